"""The head of a topic as its writer tells it: what the marks of ``batch.write_kafka`` name is waited for, and nothing that was written since."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Partition
from lowwater_spark.sources.kafka.marks import Begun, Slot, SlotMark, marks_topic, same_id
from lowwater_spark.sources.kafka.source import BROKERS, HEAD, MARKS, KafkaSource, OpenKafka, written
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.kafka import ANSWERS_WITHIN, Kafka
from tests.kit.times import at, mark
from tests.spark.flow import Flow
from tests.spark.kafka_answers import OPTIONS, Answers, over
from tests.spark.kafka_slots import Slots
from tests.spark.support import Upstream, begun, low, waits

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COMMITTED = "kafka.isolation.level"


class Reader:
    """Stages over a topic that is written by slots in this process. They report for their input as their test says."""

    def __init__(self, kafka: Kafka, flow: Flow, name: str) -> None:
        self.flow = flow
        self.slots = Slots(kafka, name, flow.folder, "source")
        self.slot = self.slots.writer()
        self.written = 0
        self.going = threading.Event()
        self.going.set()

    def publish(self, *keys: str, probe: Callable[[str, int, int], None] | None = None) -> None:
        rows = [json.dumps({"key": key, "t": at(9).isoformat()}) for key in keys]
        assert self.slot.publish(self.slots.batch(self.written, *rows, probe=probe)).wrote
        self.written += 1

    @contextlib.contextmanager
    def publishing(self, *keys: str) -> Iterator[None]:
        """Have a batch written, with its transaction open, for as long as the block runs. Then it is published."""
        reached, go_on = threading.Event(), threading.Event()

        def wait(step: str, _batch: int, _slot: int) -> None:
            if step == "written":
                reached.set()
                assert go_on.wait(ANSWERS_WITHIN)

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(self.publish, *keys, probe=wait)
            try:
                assert reached.wait(ANSWERS_WITHIN)
                yield
            finally:
                go_on.set()
            done.result(ANSWERS_WITHIN)

    def start(self, name: str = "stage", **options: str) -> lws.TrackedQuery:
        settings = {
            "kafka.bootstrap.servers": self.slots.kafka.address,
            "subscribe": self.slots.slot.topic,
            "startingOffsets": "earliest",
            BROKERS: "1",
            COMMITTED: "read_committed",
            HEAD: MARKS,
            **options,
        }
        options_ = {name: value for name, value in settings.items() if value}
        stream = self.flow.spark.readStream.format("kafka").options(**options_).load()
        parsed = sf.from_json(sf.col("value").cast("string"), "key string, t timestamp")
        rows = stream.select(parsed.alias("r")).select("r.*")

        def write(rows: DataFrame, batch: lws.Batch) -> None:
            batch.write(rows, self.flow.folder / f"out-{name}")
            assert self.going.wait(ANSWERS_WITHIN)

        return self.flow.start(write, name, stream=rows, checkpoint=f"ck-{name}", ranges=2)

    def keys(self, name: str = "stage") -> list[str]:
        out = str(self.flow.folder / f"out-{name}")
        return sorted(r.key for r in self.flow.spark.read.schema("key string, t timestamp").parquet(out).collect())


@pytest.fixture
def reader(kafka: Kafka, flow: Flow, tmp_path: Path) -> Reader:
    return Reader(kafka, flow, tmp_path.name)


def test_rows_open_for_the_next_batch_are_not_awaited(reader: Reader, lw: lowwater.Client, upstream: Upstream) -> None:
    eventually = reader.flow.eventually
    reader.publish("a")
    upstream.at(9)
    reader.start()
    by_ends = reader.start("ends", **{HEAD: ""})
    eventually(lambda: low(lw, "stage") == low(lw, "ends") == mark(9), "all is published")
    with reader.publishing("b", "c"):
        upstream.at(10)
        eventually(lambda: low(lw, "stage") == mark(10), "what is open is the next batch's")
        eventually(waits(by_ends, "a transaction is open since"), "the end is behind it")
        assert low(lw, "ends") == mark(9)
    upstream.at(11)
    eventually(lambda: low(lw, "stage") == low(lw, "ends") == mark(11), "it is published")
    assert reader.keys() == reader.keys("ends") == ["a", "b", "c"]


def test_head_of_w_marked_rows_are_awaited_beyond_all(reader: Reader, lw: lowwater.Client, upstream: Upstream) -> None:
    reader.publish("a")
    upstream.at(9)
    query = reader.start()
    reader.flow.eventually(lambda: low(lw, "stage") == mark(9), "one row")
    stranger = Producer({**reader.slots.settings, "transactional.id": f"{reader.slots.slot.topic}-stranger"})
    stranger.init_transactions(ANSWERS_WITHIN)
    stranger.begin_transaction()
    stranger.produce(marks_topic(reader.slots.slot.topic), b"stranger", b"stranger", reader.slots.slot.partition(2))
    assert stranger.flush(ANSWERS_WITHIN) == 0
    reader.going.clear()
    reader.publish("b")
    upstream.at(10)
    reader.flow.eventually(waits(query, f"of {reader.slots.slot.topic} (read to"), "the row is planned, not committed")
    assert low(lw, "stage") == mark(9)
    reader.going.set()
    reader.flow.eventually(lambda: low(lw, "stage") == mark(10), "now it is")
    assert reader.keys() == ["a", "b"]


def test_who_goes_by_marks_needs_them() -> None:
    with pytest.raises(Unsupported, match=r"with the option lowwater\.head mark cannot .* Set it to marks if only"):
        over(Answers(), lowwater__head="mark")
    with pytest.raises(Unsupported, match=r"lowwater\.head marks and without kafka\.isolation\.level read_committed"):
        over(Answers(), lowwater__head=MARKS)


def test_a_reader_before_its_writer_holds_until_marks(reader: Reader, lw: lowwater.Client, upstream: Upstream) -> None:
    marks = marks_topic(reader.slots.slot.topic)
    reader.publish("a")
    reader.slots.kafka.delete(marks)
    upstream.at(9)
    query = reader.start()
    reader.flow.eventually(waits(query, f"the topic {marks} is missing, or this user may not see it"), "it holds")
    assert low(lw, "stage").unknown
    reader.slots.kafka.create(marks, 2, cleanup_policy="compact")
    reader.flow.eventually(lambda: low(lw, "stage") == mark(9), "the row before it is read")
    reader.slot, reader.written = reader.slots.writer(1), 0
    reader.publish("b")
    upstream.at(10)
    reader.flow.eventually(lambda: low(lw, "stage") == mark(10), "the row that is marked, too")
    assert reader.keys() == ["a", "b"]


def test_both_clients_of_kafka_write_the_id_of_a_topic_in_the_same_letters(reader: Reader) -> None:
    kafka, name = reader.slots.kafka, f"{reader.slots.slot.topic}-other"
    kafka.create(name)
    while same_id(kafka.id_of(name)) == kafka.id_of(name):
        name += "-"
        kafka.create(name)
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": name}
    frame = reader.flow.spark.readStream.format("kafka").options(**options).load()
    [source] = check_plan(reader.flow.spark, frame).sources
    assert isinstance(source, KafkaSource)
    assert source.cluster.ids((name,)) == (kafka.cluster, {name: same_id(kafka.id_of(name))})


marks = st.builds(
    SlotMark,
    st.builds(Slot, st.just("c"), st.just("."), st.sampled_from(["t", "u"]), st.integers(0, 2)),
    writer=st.just("default/a"),
    next=st.integers(1, 3),
    digest=st.just("d"),
    staged=st.just("s"),
    topic_id=st.sampled_from(["1", "2"]),
    partitions=st.just(3),
    ends=st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=3),
)


@given(st.lists(marks, max_size=6), st.integers(0, 6))
def test_head_of_w_each_row_that_a_mark_tells_of_is_waited_for(marks: list[SlotMark], cut: int) -> None:
    ids = {"t": "1", "u": "2"}
    rows = {
        (mark.slot.topic, number, row)
        for mark in marks
        if mark.topic_id == ids[mark.slot.topic]
        for number, end in mark.ends.items()
        for row in range(end)
    }
    other = Begun(Slot("c", ".", "t", 0), "default/a")
    ends = written(written({}, [*marks[:cut], other], ids), marks[cut:], ids)
    assert {(place.topic, place.number, row) for place, end in ends.items() for row in range(end)} == rows


ROW = Partition("t", 0)


def marking() -> Answers:
    return Answers(ids_of={"t": "1", marks_topic("t"): "2"})


def opened(answers: Answers, manifest: Manifest) -> OpenKafka:
    source = over(answers, lowwater__head=MARKS, kafka__isolation__level="read_committed")
    source.check_writers()
    opened_ = source.open(manifest, 0)
    assert isinstance(opened_, OpenKafka)
    return opened_


def test_marks_are_read_once_and_each_run_begins_at_the_ends(tmp_path: Path) -> None:
    answers = marking()
    for _ in range(3):
        answers.mark(4)
    source = opened(answers, begun(tmp_path))
    assert source.head("-").ends == {ROW: 4}, "what was there before is waited for, whoever has written it"
    answers.mark(6)
    answers.end = 9  # of the next batch
    assert source.head("-").ends == source.head("-").ends == {ROW: 6}
    source.close()
    again = opened(answers, begun(tmp_path, 2))
    assert again.head("-").ends == {ROW: 9}
    answers.mark(10)
    answers.end = 12
    assert again.head("-").ends == {ROW: 10}
    assert answers.reads == [3, 4]


def test_unknown_holds_and_what_the_marks_cannot_tell_is_waited_for_by_the_ends(tmp_path: Path) -> None:
    for what in ("failure", "newer", "cut off", "anew", "led anew"):
        answers = marking()
        source = opened(answers, begun(tmp_path / what))
        for end in (3, 5):
            answers.mark(end)
        assert source.head("-").ends == {ROW: 5}
        answers.mark(7)
        answers.end = 9
        if what == "failure":
            answers.failure = OSError("it takes too long")
        elif what == "newer":
            answers.failure = ValueError("the mark is of format 2")
        elif what == "cut off":
            answers.written = answers.written[:1]
        elif what == "anew":
            answers.ids_of[marks_topic("t")] = "3"
            answers.written.clear()
        else:
            answers.marks_epoch = 1
            answers.written.pop()
        if answers.failure is not None:
            with pytest.raises(OSError, match=r"takes too long|of format 2"):
                source.head("-")
            answers.failure = None
        assert source.head("-").ends == {ROW: 9}, what
        answers.end = 12
        answers.mark(10)
        assert source.head("-").ends == {ROW: 10}, "and it goes on by marks"


def test_rows_that_were_cut_off_below_their_marks_are_found(tmp_path: Path) -> None:
    answers = marking()
    source = opened(answers, begun(tmp_path))
    answers.mark(5)
    waiting = source.head("-")
    answers.mark(9)
    answers.end = 7
    text = "cut off: partition 0 of t from 9 to 7"
    with pytest.raises(OSError, match=text):
        source.head("-")
    assert not source.reached(waiting, '{"t":{"0":5}}')
    with pytest.raises(CheckpointMismatch, match=text):
        opened(answers, begun(tmp_path, 2))


def test_an_injector_goes_by_no_marks() -> None:
    with pytest.raises(Unsupported, match=r"injector, with the option lowwater\.head"):
        KafkaSource({**OPTIONS, HEAD: MARKS}, Answers()).telling_ends()
