"""Rows into Kafka, each once: whatever dies on the way, and although a batch that runs again makes other rows."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark import SparkConf
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.kafka import BROKERS, HEAD, MARKS
from lowwater_spark.sources.kafka_marks import Begun, Slot, SlotMark, marks_topic, parse
from lowwater_spark.track import kafka_out, kafka_slot
from lowwater_spark.track.handover import publish_directory
from lowwater_spark.track.kafka_slot import Published, SlotWriter
from tests.kit.eventually import eventually
from tests.kit.kafka import ANSWERS_WITHIN, Kafka
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.kafka_slots import Slots
from tests.spark.kafka_tasks import Ends
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SLOTS = 2
ROOT = Path(__file__).parents[2]


class Out:
    """A topic that a stage writes into. Where a row goes, and what is in it, is another thing each time that the batch is made."""

    def __init__(self, kafka: Kafka, flow: Flow, name: str, lw: lowwater.Client, upstream: Upstream) -> None:
        self.kafka, self.flow, self.name = kafka, flow, name
        self.lw, self.upstream = lw, upstream
        self.ends = Ends(flow.folder / "ends")
        self.ends.folder.mkdir()
        self.minute = 0
        self.put: list[str] = []
        self.returned: list[tuple[int, bool]] = []
        kafka.create(name, partitions=3)

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.returned.append(
            (batch.id, batch.write_kafka(self.rows(rows), self.name, options=self.options, slots=SLOTS))
        )

    def rows(self, rows: DataFrame) -> DataFrame:
        spread = rows.withColumn("at", sf.rand()).repartition(3, "at")
        return spread.select("key", sf.concat_ws(" ", "key", "at").alias("value"))

    @property
    def options(self) -> Mapping[str, object]:
        return {"kafka.bootstrap.servers": self.kafka.address}

    @property
    def staging(self) -> Path:
        return self.flow.folder / "ck/lowwater/kafka" / self.name

    def start(self, write: Callable[[DataFrame, lws.Batch], object] | None = None, **options: Any) -> lws.TrackedQuery:
        return self.flow.start(write or self.write, ranges=2, **options)

    def feed(self, count: int = 40) -> None:
        """One more batch, when the one before it is done."""
        self.minute += 1
        keys = [f"{self.minute}-{number}" for number in range(count)]
        self.put += keys
        self.flow.feed.put(row(key, 10, self.minute) for key in keys)
        self.upstream.at(10, self.minute)

    def done(self) -> None:
        """Wait until all of it is committed."""
        self.flow.eventually(lambda: low(self.lw, "stage") == mark(10, self.minute), "all is committed", seconds=300)

    def times(self) -> Counter[int]:
        """How often a row is there, and how many rows are there so often. A reader of what is committed sees no others."""
        found = Counter((each.key or b"").decode() for each in self.kafka.rows(self.name))
        assert found.keys() <= set(self.put)
        return Counter(found[key] for key in self.put)

    def end(self) -> int:
        """How many records the topic has, those of open transactions included."""
        return self._end("read_uncommitted")

    def stable(self) -> int:
        """How many of them a reader of what is committed can reach."""
        return self._end("read_committed")

    def _end(self, isolation: str) -> int:
        told = {
            "bootstrap.servers": self.kafka.address,
            "log_level": 0,
            "group.id": "kit",
            "isolation.level": isolation,
        }
        with contextlib.closing(Consumer(told)) as consumer:
            places = [TopicPartition(self.name, number) for number in range(3)]
            return sum(consumer.get_watermark_offsets(place, timeout=ANSWERS_WITHIN)[1] for place in places)

    def once(self) -> None:
        """Each row is there, and once."""
        assert self.times() == {1: len(self.put)}


@pytest.fixture
def out(
    kafka: Kafka,
    flow: Flow,
    lw: lowwater.Client,
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Out:
    made = Out(kafka, flow, tmp_path.name, lw, upstream)
    monkeypatch.setattr(kafka_out, "publish_slots", made.ends.publish)
    return made


# -- once --------------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_at_any_step_and_a_driver_that_ends_between_them(out: Out) -> None:
    """The driver ends when the rows are staged, and when they are published; both times a new run makes other rows of the same batch, and they count for nothing."""
    left = [("rows staged", 1), ("rows published", 2)]

    def fail(reached: str, number: int) -> None:
        if (reached, number) in left:
            left.remove((reached, number))
            raise ConnectionResetError(reached)

    for batch, slot, step in (
        (0, 0, "begun"),
        (0, 1, "read"),
        (1, 0, "written"),
        (1, 1, "marked"),
        (3, 0, "published"),
    ):
        out.ends.plan(step, batch, slot)
    out.start(probe=fail)
    for batch in range(4):
        out.feed()
        if batch in (1, 2):
            with pytest.raises(Exception, match="rows staged" if batch == 1 else "rows published"):
                out.flow.queries[-1].await_termination(120)
            out.flow.queries.clear()
            out.start(probe=fail)
        out.done()
    out.once()
    assert (out.ends.left(), left) == ([], [])
    assert out.returned[-4:] == [(0, True), (1, True), (2, False), (3, True)], "the rows of batch 2 were there"
    assert sorted(path.name for path in out.staging.iterdir()) == ["batch=1", "batch=2", "batch=3"]


def test_a_batch_that_is_published_in_part_is_completed_from_the_same_rows(out: Out) -> None:
    half(out)
    out.once()


@pytest.mark.long
def test_once_breaks_when_a_batch_that_is_run_again_makes_its_rows_anew(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each slot, and a mark in it, are not enough."""

    def anew(parent: Path, name: str, *rest: Any, **options: Any) -> bool:
        shutil.rmtree(parent / name, ignore_errors=True)
        return publish_directory(parent, name, *rest, **options)

    monkeypatch.setattr(kafka_out, "publish_directory", anew)
    same = SimpleNamespace(uuid4=lambda: uuid.UUID(int=0))
    monkeypatch.setattr(kafka_out, "uuid", same)  # else what was made anew is refused
    half(out)
    times = out.times()
    assert times[0], "rows are lost"
    assert times[2], "and others are doubled"


def half(out: Out) -> None:
    """A batch of which one slot is published when the query ends; and the same batch again."""
    out.ends.plan("begun", 0, 1, kind="fail")
    query = out.start()
    out.feed(400)
    with pytest.raises(Exception, match="slot 1 fails"):
        query.await_termination(120)
    out.flow.queries.clear()
    assert 0 < len(out.kafka.rows(out.name)) < 400
    out.ends.forgive()
    out.start()
    out.done()


@pytest.mark.long
def test_a_controller_that_freezes_while_a_batch_is_written_does_not_end_the_query(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked it before waits for it without end, and hears of no other: the question is asked anew."""
    soon = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
    with Kafka(tmp_path / "kafka", brokers=3, settings=soon) as three:
        out = Out(three, flow, tmp_path.name, lw, upstream)
        monkeypatch.setattr(kafka_out, "publish_slots", out.ends.publish)
        controllers = [three.admin.describe_cluster().result(ANSWERS_WITHIN).controller.id]

        def freeze(reached: str, number: int) -> None:
            if (reached, number) == ("rows published", 1):
                three.brokers[controllers[0] - 1].pause()

        out.start(probe=freeze)
        out.feed()
        out.done()
        out.feed()
        out.done()
        three.brokers[controllers[0] - 1].resume()
        out.once()
        for query in flow.queries:
            query.stop()


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_marks_that_are_gone_are_refused(out: Out) -> None:
    """Whether a batch is there nobody could know: a new run finds it at its start, one that goes on when a slot asks for its mark."""

    def anew() -> None:
        out.kafka.delete(marks_topic(out.name))
        out.kafka.create(marks_topic(out.name), partitions=16, cleanup_policy="compact")

    query = out.start()
    out.feed()
    out.done()
    anew()
    out.ends.plan("written", 1, 0)  # whose worker would know it without asking
    out.feed()
    with pytest.raises(
        Exception, match=r"slot 0 of stage in .* has not published what comes before batch 1 \(.* has none\)"
    ):
        query.await_termination(120)
    out.flow.queries.clear()
    query = out.start()
    with pytest.raises(Exception, match=r"lowwater-marks-.* was deleted or made anew: .* adopt=True"):
        query.await_termination(120)
    out.flow.queries.clear()


def test_a_checkpoint_that_is_older_than_what_it_has_written_is_refused(out: Out) -> None:
    """Its next batch has a number that Kafka has already, and other rows."""
    query = out.start()
    out.feed()
    out.done()
    query.stop()
    copy = out.flow.folder / "copy"
    shutil.copytree(out.flow.folder / "ck", copy)
    query = out.start()
    out.feed()
    out.done()
    query.stop()
    out.flow.queries.clear()
    shutil.rmtree(out.flow.folder / "ck")
    copy.rename(out.flow.folder / "ck")
    out.feed()
    # The authority would refuse it, too. One that has lost its journal would not.
    query = out.start(name="other")
    with pytest.raises(Exception, match=r"has published batch 1, from other rows than those that are staged"):
        query.await_termination(120)
    out.flow.queries.clear()


class Drivers:
    """The driver's processes of a test."""

    def __init__(self, out: Out) -> None:
        self.out = out
        self.driver: subprocess.Popen[bytes] | None = None

    def run(self, point: str = "", batch: int = -1) -> None:
        out = self.out
        told: dict[str, Any] = {
            "address": out.flow.address,
            "folder": str(out.flow.folder),
            "brokers": out.kafka.address,
        }
        told |= {"topic": out.name, "point": point, "batch": batch}
        command = [sys.executable, "-m", "tests.spark.kafka_out_driver", json.dumps(told)]
        with (out.flow.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def killed(self) -> None:
        """Wait until it was."""
        assert self.driver is not None
        assert self.driver.wait(300) == -signal.SIGKILL, self.log()

    def check(self) -> None:
        assert self.driver is not None
        assert self.driver.poll() is None, self.log()

    def log(self) -> str:
        return (self.out.flow.folder / "driver.log").read_text()[-3000:]

    def kill(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait(30)


@pytest.fixture
def drivers(out: Out) -> Iterator[Drivers]:
    made = Drivers(out)
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_with_its_jvm_and_its_workers(out: Out, drivers: Drivers) -> None:
    """When the rows are staged; in the middle of a slot's transaction; and when all is published."""
    out.feed()
    drivers.run("rows staged", 0)
    drivers.killed()
    assert out.times() == {0: 40}
    out.ends.plan("marked", 0, 1, kind="group")
    drivers.run("rows published", 1)
    drivers.killed()
    assert out.ends.left() == []
    drivers.run("rows published", 0)
    drivers.killed()
    drivers.run()
    for _ in range(2):
        eventually(lambda: low(out.lw, "stage") == mark(10, out.minute), "it goes on", seconds=300, check=drivers.check)
        out.once()
        out.feed()


def test_what_an_abandoned_checkpoint_has_open_is_ended_by_the_next_one(out: Out) -> None:
    """Readers of the topic would wait until Kafka aborts it: here, longer than this test may take."""
    patient = {**out.options, "kafka.transaction.timeout.ms": 900_000}

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write_kafka(out.rows(rows), out.name, options=patient, slots=SLOTS)

    for slot in range(SLOTS):
        for step in ("begun", "written", "marked"):  # a task is tried three times
            out.ends.plan(step, 0, slot)
    query = out.start(write)
    out.feed()
    with pytest.raises(Exception, match="worker exited unexpectedly"):
        query.await_termination(120)
    out.flow.queries.clear()
    assert out.stable() < out.end(), "a reader of what is committed would wait here"
    out.start(checkpoint="next", adopt=True)
    out.done()
    # A broker answers a commit before its marks are in all the partitions.
    eventually(lambda: out.stable() == out.end(), "nothing is open")
    out.once()
    said = [parse(each.key, each.value) for each in out.kafka.rows(marks_topic(out.name))]
    ended = {each.slot.number: each.life for each in said if isinstance(each, Begun) and each.ended}
    assert ended == dict.fromkeys(range(SLOTS), 2), "who goes on in life 1 finds it"


def test_two_stages_of_a_query_write_each_for_itself(out: Out) -> None:
    """Also into one topic: the trouble that one has with it is not the other's."""
    declared: dict[str, Any] = {"key": "key", "event_time": "t", "ranges": 2, "address": out.flow.address}
    second = lws.stage(out.flow.spark, "second", inputs=["source"], **declared)
    refused: list[str] = []

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        out.write(rows, batch)
        other = batch.of("second")
        if batch.id == 1:
            with contextlib.suppress(CheckpointMismatch):
                other.write_kafka(rows.selectExpr("key AS value"), out.name, options=out.options, slots=1)
            refused.append(str(batch._failures.pop()))
        else:
            other.write_kafka(rows.selectExpr("key AS value"), out.name, options=out.options, slots=3)

    out.start(write, also=[second])
    out.ends.plan("marked", 0, 2)
    for _ in range(2):
        out.feed()
        out.done()
    assert re.search(r"written by 3 slots, and 1 are asked for", refused[0])
    by_key = Counter(each.key is None for each in out.kafka.rows(out.name))
    assert by_key == {False: 80, True: 40}
    assert out.returned == [(0, True), (1, True)]


# -- who reads it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", [pytest.param({}, id="ends", marks=pytest.mark.long), pytest.param({HEAD: MARKS}, id="marks")]
)
def test_a_reader_follows_the_writer_and_is_refused_when_it_does_not_name_it(head: dict[str, str], out: Out) -> None:
    """Or when it would read rows of transactions that are aborted."""

    def read(inputs: Sequence[str], head: Mapping[str, str] = head, /, **options: str) -> None:
        told = {**out.options, "subscribe": out.name, "startingOffsets": "earliest", BROKERS: "1", **head, **options}
        stream = (
            out.flow.spark.readStream.format("kafka").options(**{name: str(each) for name, each in told.items()}).load()
        )
        rows = stream.selectExpr("string(key) AS key", "timestamp'2013-01-09 10:00:00' AS t")
        declared: dict[str, Any] = {"key": "key", "event_time": "t", "ranges": 2, "address": out.flow.address}
        stage = lws.stage(out.flow.spark, "reader", inputs=inputs, **declared)
        query = stage.foreach_batch(rows, write, checkpoint=out.flow.folder / "reader")
        out.flow.queries.append(query)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, out.flow.folder / "read")

    out.start()
    out.feed()
    out.done()
    committed = {"kafka.isolation.level": "read_committed"}
    for each in ({}, head):
        with pytest.raises(Unsupported, match=r"without (the option )?kafka\.isolation\.level read_committed"):
            read(["stage"], each)
        with pytest.raises(Unsupported, match="into which stage writes and which the inputs do not name"):
            read(["source"], each, **committed)
    read(["stage"], **committed)
    out.feed()
    out.flow.eventually(lambda: low(out.lw, "reader") == mark(10, 2), "the reader has it")
    rows = out.flow.spark.read.schema("key string, t timestamp").parquet(str(out.flow.folder / "read"))
    assert sorted(each.key for each in rows.collect()) == sorted(out.put)


# -- what is refused before anything is written ---------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "acks": ({"options": {"kafka.acks": 1}}, "with the option kafka.acks 1"),
    "an id": ({"options": {"kafka.transactional.id": "x"}}, r"with the option kafka\.transactional\.id"),
    "Java's": (
        {"options": {"kafka.max.request.size": 5}},
        r"with the option kafka\.max\.request\.size .* Use kafka\.message\.max\.bytes instead",
    ),
    "no value": ({"options": {"kafka.linger.ms": "x"}}, r"with the option kafka\.linger\.ms"),
    "Spark's": ({"options": {"includeHeaders": True}}, "takes options of Kafka's client, .* and not includeheaders"),
    "no topic": (
        {"topic": "nowhere"},
        r"The topic nowhere, which is not there, .* kafka-topics.sh .* --create --topic nowhere",
    ),
    "slots": ({"slots": 0}, "at least 1: 0"),
    "more slots": ({"slots": 3}, "written by 2 slots, and 3 are asked for"),
    "a topic's column": ({"columns": ["key AS value", "'x' AS topic"]}, "this one has topic"),
    "no value's column": ({"columns": ["key"]}, "has a column value"),
    "a type": ({"columns": ["1 AS value"]}, "the column value for Kafka is of string or binary, not of int"),
}


def test_what_would_not_be_once_is_refused_by_its_name(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function catches each refusal, which would end the query, and asks for the next."""
    said: dict[str, str] = {}

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        def ask(what: str, topic: str = out.name, **how: Any) -> None:
            columns, options = how.pop("columns", ["key", "key AS value"]), {**out.options, **how.pop("options", {})}
            with contextlib.suppress(ValueError, CheckpointMismatch):
                batch.write_kafka(rows.selectExpr(*columns), topic, options=options, **{"slots": 2, **how})
            said[what] = str(batch._failures[-1]) if batch._failures else ""
            batch._failures.clear()

        ask("nothing")
        ask("twice")
        for what, (how, _) in REFUSED.items():
            batch._taken.clear()
            ask(what, **how)
        batch._topics.clear()
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "confluent_kafka", None)
            batch._taken.clear()
            ask("no library")
        with monkeypatch.context() as twice:
            twice.setattr(out.flow.spark.sparkContext, "_conf", SparkConf().set("spark.speculation", "true"))
            batch._taken.clear()
            ask("speculation")
        with monkeypatch.context() as deletes:
            deletes.setattr(kafka_out, "SECTION", "roots")  # where nothing is kept of the topic
            deletes.setattr(kafka_out, "marks_topic", lambda _topic: "deletes")
            batch._taken.clear()
            ask("deletes")

    out.kafka.create("deletes", partitions=16)
    out.start(write)
    out.feed()
    out.done()
    assert said.pop("nothing") == ""
    assert re.search(r"has been written to .* already", said["twice"])
    for what, (_, expected) in REFUSED.items():
        assert re.search(expected, said[what]), (what, said[what])
    assert re.search(r'confluent-kafka .* pip install "lowwater-spark\[kafka\]"', said["no library"])
    assert re.search(r"with spark\.speculation .* Set spark\.speculation to false", said["speculation"])
    assert re.search(r"deletes with cleanup\.policy=delete .* --add-config cleanup\.policy=compact", said["deletes"])
    out.once()


# -- a slot, alone -------------------------------------------------------------------------------------------------------


@pytest.fixture
def slots(kafka: Kafka, tmp_path: Path) -> Slots:
    return Slots(kafka, tmp_path.name, tmp_path)


def test_fenced_a_driver_that_was_replaced_writes_nothing_more(slots: Slots) -> None:
    """It had its rows written, but not committed, when its successor published them. Later it comes with a batch that is long done."""
    old, new = slots.writer(), slots.writer()
    batch = slots.batch(0, "a", "b")

    def replaced(step: str, _batch: int, _slot: int) -> None:
        if step == "marked":
            assert new.publish(batch).wrote

    done = old.publish(replace(batch, probe=replaced))
    assert (done.wrote, done.refused) == (False, ""), "it finds them"
    assert new.publish(slots.batch(1, "c")).wrote, "who has published last begins anew"
    assert new.publish(slots.batch(2, "d")).wrote
    assert "has published a batch after 1 " in old.publish(slots.batch(1, "x")).refused
    assert slots.values() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "known",
    [True, pytest.param(False, marks=pytest.mark.xfail(strict=True, reason="nobody knows in which life it was ended"))],
)
def test_fenced_who_goes_on_in_an_earlier_life_writes_nothing_more(
    slots: Slots, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Another checkpoint has taken the computation over, and the authority cannot tell it: rows of it would be older than what is promised by now."""
    if not known:
        monkeypatch.setattr(kafka_slot, "parse", lambda *record: replace_life(parse(*record)))
    old, beside = slots.writer(), slots.writer(1)
    assert old.publish(slots.batch(0, "a", life=1)).wrote
    ended = Producer({**slots.settings, "transactional.id": slots.slot.transactional_id})
    ended.init_transactions(ANSWERS_WITHIN)
    ended.begin_transaction()
    key, value = Begun(slots.slot, "default/writer", ended=True, life=2).record()
    ended.produce(marks_topic(slots.slot.topic), value, key, slots.slot.partition(2))
    ended.commit_transaction(ANSWERS_WITHIN)
    for writer, life in ((old, 1), (old, 1), (slots.writer(), 1), (slots.writer(), 0)):
        assert "in its life 2" in writer.publish(slots.batch(1, "x", life=life)).refused
    assert not slots.writer().publish(slots.batch(0, "a", life=1)).refused, "what is done is done"
    assert beside.publish(slots.batch(0, "b", life=1)).wrote, "its neighbour was not ended"
    assert slots.writer().publish(slots.batch(1, "c", life=3)).wrote, "it has the computation again"
    assert slots.values() == ["a", "b", "c"]


def replace_life(said: SlotMark | Begun | None) -> SlotMark | Begun | None:
    return replace(said, life=0) if isinstance(said, Begun) else said


def test_a_batch_is_found_also_where_it_was_left_out_of_others(slots: Slots) -> None:
    """Not all batches are written to all topics: the one before it counts."""
    slot = slots.writer()
    assert slot.publish(slots.batch(3, "a", after=0)).wrote
    assert slot.publish(slots.batch(7, "b", after=4)).wrote
    assert not slots.writer().publish(slots.batch(7, "b", after=4)).wrote
    assert "has not published what comes before batch 9" in slot.publish(slots.batch(9, "c", after=9)).refused
    assert "from other rows" in slot.publish(slots.batch(7, "x", after=4, staged="anew")).refused
    assert slots.values() == ["a", "b"]


def test_a_mark_that_hides_behind_a_strangers_transaction_is_waited_for(slots: Slots) -> None:
    """It is committed, and a reader of what is committed does not see it: the last stable offset is below it."""
    done, stranger = hidden(slots)
    with pytest.raises(TimeoutError):
        done.result(1.0)
    stranger.abort_transaction(ANSWERS_WITHIN)
    assert not done.result(ANSWERS_WITHIN).wrote
    assert slots.values() == ["a", "b"]


def test_once_breaks_when_a_slot_reads_only_what_is_stable(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    def stable(consumer: Consumer, _end: int, deadline: float) -> Iterator[Message]:
        while True:
            message = consumer.poll(1.0)
            if message is not None and message.error() is not None:
                return
            if message is not None:
                yield message

    monkeypatch.setattr(kafka_slot, "until", stable)
    done, stranger = hidden(slots)
    assert done.result(ANSWERS_WITHIN).wrote
    stranger.abort_transaction(ANSWERS_WITHIN)
    assert slots.values() == ["a", "a", "b", "b"]


def hidden(slots: Slots) -> tuple[Future[Published], Producer]:
    """A batch that is published while a stranger has a transaction open where the marks are; and the same batch in another process, under way."""
    stranger = Producer({**slots.settings, "transactional.id": f"{slots.slot.topic}-stranger"})
    stranger.init_transactions(ANSWERS_WITHIN)
    first = slots.writer()
    assert first.publish(slots.batch(0)).wrote
    stranger.begin_transaction()
    stranger.produce(marks_topic(slots.slot.topic), b"stranger", b"stranger", slots.slot.partition(2))
    assert stranger.flush(ANSWERS_WITHIN) == 0
    batch = slots.batch(1, "a", "b")
    assert first.publish(batch).at > 3, "behind the stranger"
    executor = ThreadPoolExecutor(1)
    second = executor.submit(slots.writer().publish, batch)
    executor.shutdown(wait=False)
    return second, stranger


def test_one_slots_trouble_leaves_the_others_alone(slots: Slots) -> None:
    """One has a transaction open, and one has lost its marks: another slot of the writer goes on, and another topic's writer."""
    other = Slots(slots.kafka, f"{slots.slot.topic}-other", slots.folder)
    open_one = slots.writer()

    def meanwhile(step: str, _batch: int, _slot: int) -> None:
        if step == "written":
            assert other.writer().publish(other.batch(0, "other")).wrote
            assert slots.writer(1).publish(slots.batch(5, "x")).refused
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        open_one.publish(slots.batch(0, "a", probe=meanwhile))
    assert slots.writer(1).publish(slots.batch(0, "b")).wrote
    assert slots.values() == ["b"]
    assert other.values() == ["other"]


def test_one_that_writes_for_long_does_not_hold_up_another_whose_marks_are_beside_its(slots: Slots) -> None:
    """Two writers of the topic share a partition of marks. What one has open, with its rows, must not hide what the other has published."""
    names = map(str, itertools.count())
    beside = next(
        each
        for each in (Slot(name, ".", slots.slot.topic, 0) for name in names)
        if each.partition(2) == slots.slot.partition(2)
    )
    batch = slots.batch(0, "other", slot=beside)
    found: list[bool] = []

    def meanwhile(step: str, _batch: int, _slot: int) -> None:
        if step == "written":
            found.extend(SlotWriter(slots.settings, beside, 2).publish(batch).wrote for _ in range(2))

    assert slots.writer().publish(slots.batch(0, "a", probe=meanwhile)).wrote
    assert found == [True, False], "it is published, and whoever comes next finds its mark"
    assert slots.values() == ["a", "other"]
