"""Rows into Kafka, each once: whatever dies on the way, and although a batch that runs again makes other rows."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.kafka.marks import Begun, Slot, marks_topic, parse
from lowwater_spark.track.output import kafka_out
from lowwater_spark.track.output.kafka_out import KafkaOut, kafka_columns
from lowwater_spark.track.output.kafka_slot import SlotWriter
from tests.kit.eventually import eventually
from tests.kit.kafka import ANSWERS_WITHIN, Kafka
from tests.spark.flow import Fed, Flow
from tests.spark.kafka_slots import Slots
from tests.spark.kafka_tasks import Ends
from tests.spark.support import Upstream, place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SLOTS = 2

SPECULATING = SimpleNamespace(
    sparkContext=SimpleNamespace(getConf=lambda: SparkConf(loadDefaults=False).set("spark.speculation", "true"))
)


class Out(Fed):
    def __init__(self, kafka: Kafka, flow: Flow, name: str, lw: lowwater.Client, upstream: Upstream) -> None:
        super().__init__(flow, lw, upstream)
        self.kafka, self.name = kafka, name
        self.ends = Ends(flow.folder / "ends")
        self.ends.folder.mkdir()
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

    def times(self) -> Counter[int]:
        """Count how often each row is there, and how many rows are there so often. A reader of what is committed sees no others."""
        keys = Counter((row.key or b"").decode() for row in self.kafka.rows(self.name))
        assert keys.keys() <= set(self.put)
        return Counter(keys[key] for key in self.put)

    def end(self) -> int:
        return self._end("read_uncommitted")

    def stable(self) -> int:
        """Return the number of rows that a reader of committed ones can reach."""
        return self._end("read_committed")

    def _end(self, isolation: str) -> int:
        conf = {"bootstrap.servers": self.kafka.address, "log_level": 0, "group.id": "k", "isolation.level": isolation}
        with contextlib.closing(Consumer(conf)) as consumer:
            places = [TopicPartition(self.name, number) for number in range(3)]
            return sum(consumer.get_watermark_offsets(place, timeout=ANSWERS_WITHIN)[1] for place in places)

    def once(self) -> None:
        assert self.times() == {1: len(self.put)}


@pytest.fixture
def out(
    kafka: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Out:
    out_ = Out(kafka, flow, tmp_path.name, lw, upstream)
    monkeypatch.setattr(kafka_out, "publish_slots", out_.ends.publish)
    return out_


def test_a_worker_that_is_killed_at_any_step_and_a_driver_that_ends_between_them(out: Out) -> None:
    points = [("rows staged", 1), ("rows published", 2)]

    def fail(reached: str, number: int) -> None:
        if (reached, number) in points:
            points.remove((reached, number))
            raise ConnectionResetError(reached)

    for turn, slot, step in ((0, 0, "begun"), (0, 1, "read"), (1, 0, "written"), (1, 1, "marked"), (3, 0, "published")):
        out.ends.plan(step, turn, slot)
    out.start(probe=fail)
    for turn in range(4):
        out.feed()
        if turn in (1, 2):
            with pytest.raises(Exception, match="rows staged" if turn == 1 else "rows published"):
                out.flow.queries[-1].await_termination(120)
            out.flow.queries.clear()
            out.start(probe=fail)
        out.done()
    out.once()
    assert (out.ends.left(), points) == ([], [])
    assert out.returned[-4:] == [(0, True), (1, True), (2, False), (3, True)], "the rows of batch 2 were there"
    assert sorted(path.name for path in out.staging.iterdir()) == ["batch=1", "batch=2", "batch=3"]


def test_a_batch_that_is_published_in_part_is_completed_from_the_same_rows(out: Out) -> None:
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
    out.once()


def test_marks_that_are_gone_are_refused(out: Out) -> None:
    def anew() -> None:
        out.kafka.delete(marks_topic(out.name))
        out.kafka.create(marks_topic(out.name), partitions=16, cleanup_policy="compact")

    query = out.start()
    out.feed()
    out.done()
    anew()
    out.ends.plan("written", 1, 0)  # whose worker would know it without asking
    out.feed()
    with pytest.raises(Exception, match=r"slot 0 of stage in .* has not published the batch before batch 1"):
        query.await_termination(120)
    out.flow.queries.clear()
    query = out.start()
    with pytest.raises(Exception, match=r"lowwater-marks-.* was deleted or made anew, so .* adopt=True"):
        query.await_termination(120)
    out.flow.queries.clear()


def test_what_an_abandoned_checkpoint_has_open_is_ended_by_the_next_one(out: Out) -> None:
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
    marks = [parse(row.key, row.value) for row in out.kafka.rows(marks_topic(out.name))]
    ended = {mark_.slot.number: mark_.life for mark_ in marks if isinstance(mark_, Begun) and mark_.ended}
    assert ended == dict.fromkeys(range(SLOTS), 2), "who goes on in life 1 finds it"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "acks": ({"options": {"kafka.acks": 1}}, "with the option kafka.acks 1"),
    "an id": ({"options": {"kafka.transactional.id": "x"}}, r"with the option kafka\.transactional\.id"),
    "Java's": (
        {"options": {"kafka.max.request.size": 5}},
        r"with the option kafka\.max\.request\.size .* Use kafka\.message\.max\.bytes instead",
    ),
    "Spark's": ({"options": {"includeHeaders": True}}, "takes options of Kafka's client, .* and not includeheaders"),
    "no topic": ({"topic": "nowhere"}, r"The topic nowhere, which does not exist, .* kafka-topics.sh .* --create"),
    "no slots": ({"slots": 0}, "at least 1: 0"),
    "more slots": ({"slots": 3}, "written by 2 slots, and slots=3 was passed"),
    "speculation": ({"session": SPECULATING}, r"with spark\.speculation .* Set spark\.speculation to false"),
}


def test_what_would_not_be_once_is_refused_by_its_name(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    kafka.create(tmp_path.name, partitions=3)
    checkpoint = place(tmp_path / "ck")

    def ask(topic: str = tmp_path.name, slots: int = 2, session: Any = spark, **more: Any) -> None:
        options = {"kafka.bootstrap.servers": kafka.address, **more.get("options", {})}
        with contextlib.closing(KafkaOut(checkpoint, tmp_path / "staged", "default/a", topic, options, 1)) as opened:
            opened.open(session, 0, slots)

    ask()
    for how, text in REFUSED.values():
        with pytest.raises((ValueError, CheckpointMismatch), match=text):
            ask(**how)


HEADER = "array(named_struct('key', {}, 'value', cast('x' as binary))) AS headers"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["value", "array(cast(null as struct<key:string,value:binary>)) AS headers"], "a header for Kafka is null"),
        (["value", HEADER.format("cast(null as string)")], "a header for Kafka is null"),
        (["value", "3 AS partition"], "says 3, and the topic has the partitions 0 to 2"),
        (["value", "-1 AS partition"], "says -1"),
        (["value AS key"], "needs a column value"),
        (["1 AS value"], "the column value for Kafka must be of string or binary, not of int"),
    ],
)
def test_a_row_that_kafka_refuses_fails_before_it_is_staged(spark: SparkSession, columns: list[str], why: str) -> None:
    rows = spark.sql("SELECT 'a' AS value").selectExpr(*columns)
    with pytest.raises((ValueError, PySparkException), match=why):
        rows.select(*kafka_columns(rows, 3)).collect()


@pytest.fixture
def slots(kafka: Kafka, tmp_path: Path) -> Slots:
    return Slots(kafka, tmp_path.name, tmp_path)


def test_fenced_a_driver_that_was_replaced_writes_nothing_more(slots: Slots) -> None:
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


def test_fenced_who_goes_on_in_an_earlier_life_writes_nothing_more(slots: Slots) -> None:
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


def test_a_batch_is_found_also_where_it_was_left_out_of_others(slots: Slots) -> None:
    slot = slots.writer()
    assert slot.publish(slots.batch(3, "a", after=0)).wrote
    assert slot.publish(slots.batch(7, "b", after=4)).wrote
    assert not slots.writer().publish(slots.batch(7, "b", after=4)).wrote
    assert "has not published the batch before batch 9" in slot.publish(slots.batch(9, "c", after=9)).refused
    assert "from other rows" in slot.publish(slots.batch(7, "x", after=4, staged="anew")).refused
    assert slots.values() == ["a", "b"]


def test_a_mark_that_hides_behind_a_strangers_transaction_is_waited_for(slots: Slots) -> None:
    stranger = Producer({**slots.settings, "transactional.id": f"{slots.slot.topic}-stranger"})
    stranger.init_transactions(ANSWERS_WITHIN)
    first = slots.writer()
    assert first.publish(slots.batch(0)).wrote
    stranger.begin_transaction()
    stranger.produce(marks_topic(slots.slot.topic), b"stranger", b"stranger", slots.slot.partition(2))
    assert stranger.flush(ANSWERS_WITHIN) == 0
    batch = slots.batch(1, "a", "b")
    assert first.publish(batch).at > 3, "behind the stranger"
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(slots.writer().publish, batch)
        with pytest.raises(TimeoutError):
            done.result(1.0)
        stranger.abort_transaction(ANSWERS_WITHIN)
        assert not done.result(ANSWERS_WITHIN).wrote
    assert slots.values() == ["a", "b"]


def test_two_stages_of_a_query_write_each_for_itself_and_once(out: Out) -> None:
    declared: dict[str, Any] = {"key": "key", "event_time": "t", "ranges": 2, "address": out.flow.address}
    second = lws.stage(out.flow.spark, "second", inputs=["source"], **declared)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        out.write(rows, batch)
        other = batch.of("second")
        other.write_kafka(rows.selectExpr("key AS value"), out.name, options=out.options, slots=3)
        if batch.id == 1:
            out.write(rows, batch)

    query = out.start(write, also=[second])
    out.ends.plan("marked", 0, 2)
    out.feed()
    out.done()
    out.feed()
    with pytest.raises(Exception, match=r"has been written to .* already"):
        query.await_termination(120)
    out.flow.queries.clear()
    by_key = Counter(row.key is None for row in out.kafka.rows(out.name))
    assert by_key == {False: 80, True: 80}
    assert out.returned == [(0, True), (1, True)]


def test_one_slots_trouble_leaves_the_others_alone(slots: Slots) -> None:
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
    names = map(str, itertools.count())
    beside = next(
        slot
        for slot in (Slot(name, ".", slots.slot.topic, 0) for name in names)
        if slot.partition(2) == slots.slot.partition(2)
    )
    batch = slots.batch(0, "other", slot=beside)
    results: list[bool] = []

    def meanwhile(step: str, _batch: int, _slot: int) -> None:
        if step == "written":
            results.extend(SlotWriter(slots.settings, beside, 2).publish(batch).wrote for _ in range(2))

    assert slots.writer().publish(slots.batch(0, "a", probe=meanwhile)).wrote
    assert results == [True, False], "it is published, and whoever comes next finds its mark"
    assert slots.values() == ["a", "other"]
