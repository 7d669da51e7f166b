"""Weak productions of a key range, without Spark, into a real Kafka: each row has one id whenever its batch is computed, and nothing is passed by the low watermark before it is acknowledged."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import lowwater
from lowwater_pipeline.computation.codec import Codec
from lowwater_pipeline.computation.computation import Computation, Input, Output, Record, Timer, Weak
from lowwater_pipeline.computation.delivery import HEADER, Delivery, check_topics, settings_of
from lowwater_pipeline.computation.productions import OUTPUT, Outputs
from lowwater_pipeline.computation.stage import ComputationUpdate, outbox_of, start
from lowwater_pipeline.computation.turn import Context
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.kafka_marks import marks_topic
from lowwater_spark.track.segments import Due, FreshSegment, NextSegments, Parent, Segments, Unsent, write_segments
from tests.kit.kafka import ANSWERS_WITHIN, Kafka
from tests.kit.times import MAX, MIN, MINUTE, SECOND

_names = itertools.count()

ROWS = pa.schema(
    [
        ("n", pa.int64()),
        ("lowwater_place", pa.int64()),
        ("lowwater_key", pa.string()),
        ("lowwater_micros", pa.int64()),
        ("lowwater_id", pa.int64()),
    ]
)
OUT = Outputs(
    "sums",
    {"sums": ["key", "start", "n"], "seen": ["n"]},
    pa.schema(
        [
            (OUTPUT, pa.string()),
            ("sums/key", pa.string()),
            ("sums/start", pa.timestamp("us", "UTC")),
            ("sums/n", pa.int64()),
            ("seen/n", pa.int64()),
        ]
    ),
)


class Sums(Computation):
    """The sum of each minute of a key, sent; and each number, as it comes, which is not sent."""

    name = "sums"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", id="id")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "sums": Output("key string, start timestamp, n long", event_time="start"),
        "seen": "n long",
    }
    state = Codec(dict[int, int])
    stamp = timedelta(minutes=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        minute = record.timestamp - record.timestamp % MINUTE
        ctx.state[minute] = ctx.state.get(minute, 0) + record["n"]
        ctx.set_timer("end", minute + MINUTE, hold=minute)
        ctx.produce("seen", {"n": record["n"]})

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        minute = timer.at - MINUTE
        ctx.produce("sums", {"key": ctx.key, "start": minute, "n": ctx.state.pop(minute)})


def _with(productions: Any) -> Sums:
    computation = Sums()
    computation.productions = productions  # type: ignore[misc]
    return computation


Row = tuple[str, int, int]
"""Key, event time, number."""


def table(rows: Sequence[Row], first: int = 0) -> pa.Table:
    records = [
        {"n": n, "lowwater_place": ord(key), "lowwater_key": key, "lowwater_micros": micros, "lowwater_id": first + i}
        for i, (key, micros, n) in enumerate(rows)
    ]
    return pa.Table.from_pylist(records, ROWS)


@dataclass
class Range:
    folder: Path
    kafka: Kafka
    topic: str = field(default_factory=lambda: f"weak-{next(_names)}")
    patience: float = ANSWERS_WITHIN
    kind: type[Delivery] = Delivery
    number: int = -1
    last: Segments = field(init=False)
    due: Due | None = None
    hold: lowwater.Watermark | None = None

    def __post_init__(self) -> None:
        self.last = Segments(str(self.folder))

    @property
    def delivery(self) -> Delivery:
        settings = settings_of({"kafka.bootstrap.servers": self.kafka.address})
        return self.kind("sums", {"sums": self.topic}, settings, self.patience, f"checkpoint/{self.number}")

    def run(self, rows: pa.Table, low: int, now: int = 0, *, killed: int = 0) -> list[dict[str, Any]]:
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        update = ComputationUpdate(Sums(), OUT, now, delivery=self.delivery)
        attempts = []
        for attempt in range(1 + killed):
            after, emitted, hold, _ = update.update_segments(self.last, rows, lowwater.Watermark(low))
            written = write_segments(after, self.last, str(folder), f"00000-{attempt}")
            attempts.append((after, emitted, hold, written))
        after, emitted, self.hold, written = attempts[-1]
        self.last, self.due = Segments(str(folder), written, tuple(after.facts)), after.due
        shutil.rmtree(self.folder / str(self.number - 2), ignore_errors=True)
        return [] if emitted is None else emitted.to_pylist()

    @property
    def waiting(self) -> int:
        outbox = outbox_of([Parent(self.last)])
        count = 0 if outbox is None else outbox.num_rows
        assert sum(segment.rows for segment in self.unsent) == count
        return count

    @property
    def unsent(self) -> list[Unsent]:
        return ComputationUpdate(Sums(), OUT, 0, delivery=self.delivery).unsent(self.last.segments)

    def messages(self) -> list[tuple[str, str, dict[str, Any]]]:
        messages = []
        options = {
            "log_level": 0,
            "group.id": "weak",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
        with closing(Consumer({"bootstrap.servers": self.kafka.address, **options})) as consumer:
            for number in consumer.list_topics(self.topic, ANSWERS_WITHIN).topics[self.topic].partitions:
                consumer.assign([TopicPartition(self.topic, number, 0)])
                while True:
                    message: Any = consumer.poll(ANSWERS_WITHIN)
                    assert message is not None
                    if message.error() is not None:
                        assert message.error().name() == "_PARTITION_EOF"
                        break
                    [(name, identity)] = message.headers()
                    assert name == HEADER
                    messages.append((identity.decode(), message.key().decode(), json.loads(message.value())))
        return messages


@pytest.fixture
def sent(tmp_path: Path, kafka: Kafka) -> Range:
    range_ = Range(tmp_path, kafka)
    kafka.create(range_.topic, 2)
    return range_


def test_rows_are_sent_while_the_batch_runs_and_the_others_are_emitted(sent: Range) -> None:
    emitted = sent.run(table([("a", 1, 3), ("a", 2, 4), ("b", MINUTE, 5)]), MINUTE)
    assert [row["seen/n"] for row in emitted] == [3, 4, 5]
    [(identity, key, row)] = sent.messages()
    assert (key, row) == ("a", {"key": "a", "start": "1970-01-01T00:00:00+00:00", "n": 7})
    assert len(identity) == 32
    assert (sent.waiting, sent.hold) == (0, lowwater.Watermark(MINUTE)), "what b's timer holds"


def test_rule5_what_is_not_acknowledged_holds_and_is_sent_again(sent: Range) -> None:
    [broker] = sent.kafka.brokers
    sent.run(table([("a", 1, 3), ("b", MINUTE + 1, 5)]), MINUTE - 1)
    broker.pause()
    try:
        sent.patience = 0.2
        sent.run(table([]), MINUTE, now=SECOND)
        assert (sent.waiting, sent.hold) == (1, lowwater.Watermark(0)), "the row of the first minute"
        assert sent.due == Due(2 * MINUTE, 2 * SECOND)
        sent.run(table([]), 2 * MINUTE, now=2 * SECOND)
        assert (sent.waiting, sent.hold) == (2, lowwater.Watermark(0))
        assert sent.unsent == [Unsent(2, 0, SECOND, f"the topic {sent.topic}")], "since the first of them was produced"
        assert sent.due == Due(None, 3 * SECOND)
    finally:
        broker.resume()
    sent.patience = ANSWERS_WITHIN
    sent.run(table([]), 2 * MINUTE, now=3 * SECOND)
    assert (sent.waiting, sent.hold, sent.due) == (0, None, Due(None, None))
    assert {(row["key"], row["n"]) for _, _, row in sent.messages()} == {("a", 3), ("b", 5)}
    assert len({identity for identity, _, _ in sent.messages()}) == 2


def test_rows_that_wait_go_with_their_keys_when_a_range_is_cut(sent: Range) -> None:
    [broker] = sent.kafka.brokers
    sent.patience = 0.1
    broker.pause()
    try:
        sent.run(table([("a", 1, 3), ("b", 1, 4), ("c", 1, 5)]), MINUTE)
    finally:
        broker.resume()
    assert sent.waiting == 3
    border = ord("b")
    parts = [outbox_of([Parent(sent.last, span)]) for span in ((-(2**63), border), (border, 2**63))]
    assert [part["key"].to_pylist() for part in parts if part is not None] == [[b"a"], [b"b", b"c"]]
    assert outbox_of([Parent(sent.last, (ord("d"), 2**63))]) is None
    both = outbox_of([Parent(sent.last, (-(2**63), border)), Parent(sent.last, (border, 2**63))])
    assert both is not None
    assert both.num_rows == 3


@pytest.mark.parametrize("seed", range(2))
def test_each_row_comes_once_by_its_id_whatever_dies_and_whoever_is_away(sent: Range, seed: int) -> None:
    chance = Random(seed)
    [broker] = sent.kafka.brokers
    expected: dict[tuple[str, int], int] = {}
    low = number = 0
    for _ in range(12):
        rows = [
            (chance.choice("abc"), low + chance.randrange(3 * MINUTE), chance.randrange(100))
            for _ in range(chance.randrange(6))
        ]
        for key, micros, n in rows:
            minute = micros // MINUTE
            expected[key, minute] = expected.get((key, minute), 0) + n
        low += chance.randrange(2 * MINUTE)
        away = chance.random() < 0.4
        sent.patience = 0.1 if away else ANSWERS_WITHIN
        if away:
            broker.pause()
        try:
            sent.run(table(rows, number), low, killed=chance.randrange(3))
        finally:
            if away:
                broker.resume()
        number += len(rows)
        if sent.patience == ANSWERS_WITHIN:
            assert sent.waiting == 0
            keys_ = {(row["key"], row["start"]) for _, _, row in sent.messages()}
            hold = MAX if sent.hold is None else sent.hold.micros
            assert all(
                (key, _start(minute)) in keys_ for key, minute in expected if minute * MINUTE < min(hold, low - MINUTE)
            )
    sent.patience = ANSWERS_WITHIN
    sent.run(table([]), MAX)
    assert (sent.waiting, sent.hold) == (0, None)
    once = {identity: (row["key"], row["start"], row["n"]) for identity, _, row in sent.messages()}
    assert sorted(once.values()) == sorted((key, _start(minute), n) for (key, minute), n in expected.items())


def _start(minute: int) -> str:
    return datetime.fromtimestamp(60 * minute, UTC).isoformat()


def test_what_kafka_refuses_for_good_ends_the_batch_by_name(sent: Range) -> None:
    sent.kafka.create(f"{sent.topic}-small", max_message_bytes="100")
    sent.topic = f"{sent.topic}-small"
    with pytest.raises(OSError, match=r"take a row of sums's output sums into the topic weak-.*-small, of .* bytes"):
        sent.run(table([("a", 1, 3)]), MINUTE)
    sent.kafka.delete(sent.topic)


def test_rows_that_wait_are_not_forgotten_by_a_declaration(sent: Range) -> None:
    [broker] = sent.kafka.brokers
    sent.patience = 0.1
    broker.pause()
    try:
        sent.run(table([("a", 1, 3)]), MINUTE)
    finally:
        broker.resume()
    strong = ComputationUpdate(Sums(), OUT, 0)
    other = ComputationUpdate(Sums(), OUT, 0, delivery=dataclasses.replace(sent.delivery, topics={"seen": sent.topic}))
    for update in (strong, other):
        with pytest.raises(ValueError, match=r"sums wait to be sent, and .* where to: let it name a topic for sums"):
            update.update_segments(sent.last, table([]), lowwater.Watermark(MINUTE))


def test_topics_are_looked_at_before_the_start(sent: Range) -> None:
    settings = settings_of({"kafka.bootstrap.servers": sent.kafka.address})
    check_topics(settings, [sent.topic])
    with pytest.raises(Unsupported, match=r"into the topic nowhere, which is not there.*--create --topic nowhere"):
        check_topics(settings, [sent.topic, "nowhere"])
    sent.kafka.create(marks_topic(sent.topic))
    with pytest.raises(Unsupported, match=r"which batch\.write_kafka has written"):
        check_topics(settings, [sent.topic])


class NoId(Sums):
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    productions = Weak({"sums": "t"}, {"kafka.bootstrap.servers": "localhost:1"})


@pytest.mark.parametrize(
    ("computation", "text"),
    [
        (NoId(), "declare id= of each Input"),
        (_with(Weak({"other": "t"}, {})), "sends other, and the outputs are sums, seen"),
        (_with(Weak({}, {})), "sends nothing"),
        (_with(Weak({"sums": "t"}, {}, timedelta(0))), "it is positive"),
        (_with(Weak({"sums": "t"}, {"kafka.acks": "1"})), "Kafka could lose"),
        (_with("weak"), r"declare Strong\(\), or Weak"),
    ],
)
def test_what_is_declared_is_looked_at(computation: Computation, text: str) -> None:
    frame: Any = None
    with pytest.raises((ValueError, TypeError, Unsupported), match=text):
        start(computation, frame, None, checkpoint="nowhere")


def test_rows_that_an_older_release_has_kept_are_sent(sent: Range) -> None:
    [broker] = sent.kafka.brokers
    sent.patience = 0.1
    broker.pause()
    try:
        sent.run(table([("a", 1, 3)]), MINUTE, now=SECOND)
        [old] = [segment for segment in sent.last.segments if len(segment.facts) > 3 and segment.facts[0] == 1]
        older = NextSegments(
            [FreshSegment(sent.last.read(old).drop_columns(["since"]), (1,))], sent.last.facts, sent.due
        )
        folder = sent.folder / "older"
        folder.mkdir()
        sent.last = Segments(str(folder), write_segments(older, sent.last, str(folder), "00000-0"), sent.last.facts)
        assert sent.unsent == []
        sent.run(table([("b", 1, 4)]), MINUTE, now=2 * SECOND)
        assert sent.unsent == [Unsent(2, 0, MIN, f"the topic {sent.topic}")]
    finally:
        broker.resume()
    sent.patience = ANSWERS_WITHIN
    sent.run(table([]), MINUTE, now=3 * SECOND)
    assert sent.waiting == 0
    assert [row["n"] for _, _, row in sorted(sent.messages(), key=lambda message: message[1])] == [3, 4]


def test_code_that_was_mended_between_two_attempts_gives_no_row_the_id_of_another(sent: Range) -> None:
    before = sent.delivery.ids("sums", ["a", "a"], [b"1", b"2"])
    after = sent.delivery.ids("sums", ["a", "a", "a"], [b"0", b"1", b"2"])
    assert after[1:] == before
    assert len({*after}) == 3
    assert len({*sent.delivery.ids("sums", ["a", "a"], [b"1", b"1"])}) == 2, "two equal rows are two"
