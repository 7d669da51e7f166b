"""Kafka as the source of a tracked stage: a watermark counts when all that the topics had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import EARLIER
from lowwater_spark.sources.control import END, Offset
from lowwater_spark.sources.kafka import (
    BROKERS,
    KAFKA,
    NO_ID,
    Ends,
    Identity,
    KafkaSource,
    OpenKafka,
    Partition,
    Pin,
    Told,
    agreed,
    below,
    unread,
    vector_of,
)
from lowwater_spark.sources.kafka_admin import KafkaAdmin
from lowwater_spark.sources.kafka_marks import marks_topic
from lowwater_spark.track.plan import check_plan
from tests.kit.clock import Clock
from tests.kit.eventually import eventually
from tests.kit.kafka import ANSWERS_WITHIN, READY, Broker, Kafka, Row
from tests.kit.times import at, mark
from tests.spark.drive_support import HOUR, Driven, counts, driven, millis, record, say
from tests.spark.flow import Flow
from tests.spark.kafka_answers import OPTIONS, Answers, over
from tests.spark.support import Upstream, low, waits
from tests.spark.test_driving import VALUE, Query

__all__ = ["driven"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A cluster that soon gives up on a broker that does not answer."""
    soon = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
    with Kafka(tmp_path_factory.mktemp("three"), brokers=3, settings=soon) as running:
        yield running


class Topic:
    """A topic, and stages over it. Its rows are those of a feed."""

    def __init__(self, kafka: Kafka, flow: Flow, name: str, partitions: int = 1) -> None:
        self.kafka = kafka
        self.flow = flow
        self.name = name
        kafka.create(name, partitions)

    def put(self, *rows: tuple[str, int], partition: int = 0) -> None:
        said = [json.dumps({"key": key, "t": at(hour).isoformat()}).encode() for key, hour in rows]
        self.kafka.put(self.name, [Row(each, partition=partition) for each in said])

    def read(self, **options: str) -> DataFrame:
        told = {
            "kafka.bootstrap.servers": self.kafka.address,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "lowwater.brokers": str(len(self.kafka.brokers)),
            "kafka.metadata.max.age.ms": "500",
            **options,
        }
        stream = self.flow.spark.readStream.format("kafka").options(**told).load()
        return stream.select(sf.from_json(sf.col("value").cast("string"), "key string, t timestamp").alias("r")).select(
            "r.*"
        )

    def track(
        self, write_batch: Callable[[DataFrame, lws.Batch], object] | None = None, **options: Any
    ) -> lws.TrackedQuery:
        source = options.pop("source", {})
        write = self.flow.plain if write_batch is None else write_batch
        return self.flow.start(write, stream=self.read(**source), ranges=2, **options)

    def followed(self, lw: lowwater.Client, upstream: Upstream, *rows: tuple[str, int]) -> lws.TrackedQuery:
        """Start the stage over rows of nine o'clock, and wait until it has come so far."""
        self.put(*rows)
        upstream.at(9)
        query = self.track()
        self.flow.eventually(lambda: low(lw, "stage") == mark(9), "the rows are committed")
        return query

    def keys(self) -> list[str]:
        out = str(self.flow.folder / "out")
        return sorted(r.key for r in self.flow.spark.read.schema("key string, t timestamp").parquet(out).collect())

    def recreate(self) -> None:
        self.kafka.delete(self.name)
        self.kafka.create(self.name)

    def admin(self, broker: Broker | None = None) -> KafkaAdmin:
        """Return a client; with a broker it begins there, and knows nothing yet."""
        told = {"kafka.bootstrap.servers": self.kafka.address}
        if broker is not None:
            told = {"kafka.bootstrap.servers": broker.address, "kafka.client.id": uuid.uuid4().hex}
        return KafkaAdmin(self.flow.spark._jvm, told)

    def leader(self, place: Partition) -> Broker:
        """Return the broker that leads."""
        return next(each for each in self.kafka.brokers if each.number == self.leader_number(place))

    def leader_number(self, place: Partition) -> int:
        """Return the number of the broker that leads; -1: none."""
        found = self.kafka.admin.list_topics(self.name, ANSWERS_WITHIN).topics[self.name]
        return int(found.partitions[place.number].leader)

    def epoch(self, place: Partition, enough: int = 2) -> int:
        """Return the number of the newest leader that brokers know of."""
        try:
            return agreed(self.admin().told((self.name,), enough)).epochs[place]
        except OSError:
            return -1


@pytest.fixture
def topic(kafka: Kafka, flow: Flow, request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    return Topic(kafka, flow, tmp_path.name)


class Transaction:
    """A producer with an open transaction."""

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic = topic
        self.producer = Producer({"bootstrap.servers": topic.kafka.address, "log_level": 0, "transactional.id": name})
        self.producer.init_transactions(ANSWERS_WITHIN)

    def put(self, key: str, hour: int) -> None:
        """Write a row; returns when the broker has it."""
        self.producer.begin_transaction()
        self.producer.produce(self._topic.name, json.dumps({"key": key, "t": at(hour).isoformat()}).encode())
        assert self.producer.flush(ANSWERS_WITHIN) == 0


# -- what counts -------------------------------------------------------------------------------------------------------


def test_a_stage_follows_its_inputs_through_a_topic(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    """With rows, without, after a restart, and never before what stood in the topic is committed.

    Kafka's client refuses a time limit of a request above that of a whole call: the readers' is not the driver's, who has a short one.
    """
    patient = {"kafka.request.timeout.ms": "60000"}
    going = threading.Event()
    going.set()

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        going.wait(ANSWERS_WITHIN)
        topic.flow.plain(rows, batch)

    topic.put(("a", 9), ("b", 9))
    upstream.at(9)
    query = topic.track(write, source=patient)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "the rows are committed")
    upstream.at(10)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "no rows are needed")
    going.clear()
    topic.put(("c", 10))
    upstream.at(11)
    topic.flow.eventually(
        waits(query, f"partition 0 of {topic.name} (read to 2 of 3"), "the row is planned, not committed"
    )
    assert low(lw, "stage") == mark(10)
    going.set()
    topic.flow.eventually(lambda: low(lw, "stage") == mark(11), "now it is")
    query.stop()
    topic.put(("d", 11))
    upstream.at(12)
    topic.track(write)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(12), "after a restart")
    assert topic.keys() == ["a", "b", "c", "d"]


def test_a_batch_runs_again_with_the_same_offsets(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    def fail(reached: str, number: int) -> None:
        if (reached, number) == ("written", 0):
            topic.put(("b", 9))
            raise ConnectionResetError("killed")

    topic.put(("a", 9))
    upstream.at(9)
    query = topic.track(probe=fail)
    with pytest.raises(Exception, match="killed"):
        query.await_termination(120)
    assert low(lw, "stage").unknown
    topic.track()
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "what stood there when the inputs were read")
    upstream.at(10)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "and what has come since")
    plan = CheckpointLog(topic.flow.folder / "ck").plan(0)
    assert plan is not None
    assert vector_of(plan.lines[0]) == {Partition(topic.name, 0): 1}
    assert topic.keys() == ["a", "b"]


def test_1a_1b_a_strangers_open_transaction_holds_and_is_named(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    """A head by the last stable offset would leave out a row that is committed behind the stranger's."""
    stranger = Transaction(topic, f"{topic.name}-stranger")
    stranger.put("x", 8)
    topic.put(("a", 9))
    place = Partition(topic.name, 0)
    assert topic.admin().ends([place], {}, committed=True) == {place: 0}, "the last stable offset is below the row of a"
    assert topic.admin().ends([place], {}, committed=False) == {place: 2}
    upstream.at(9)
    query = topic.track(source={"kafka.isolation.level": "read_committed"})
    said = f"read to 0 of 2: a transaction is open since 0, that of {topic.name}-stranger)"
    topic.flow.eventually(waits(query, said), "it holds, and its producer is named")
    assert low(lw, "stage").unknown
    stranger.producer.abort_transaction(ANSWERS_WITHIN)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "it ends")
    assert topic.keys() == ["a"]


def test_1c_the_marker_of_an_aborted_transaction_at_the_end_is_reached(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    topic.put(("a", 9))
    aborted = Transaction(topic, f"{topic.name}-aborted")
    aborted.put("x", 9)
    aborted.producer.abort_transaction(ANSWERS_WITHIN)
    upstream.at(9)
    topic.track(source={"kafka.isolation.level": "read_committed"})
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "by a batch without rows")
    assert topic.keys() == ["a"]


def test_1d_4a_4b_a_rate_limit_leaves_rows_behind(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    topic.put(("a", 9), ("b", 9), ("c", 9))
    upstream.at(10)
    went_on = threading.Event()

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        assert went_on.wait(ANSWERS_WITHIN)
        topic.flow.plain(rows, batch)

    query = topic.track(write, source={"maxOffsetsPerTrigger": "1"}, trigger={"availableNow": True})
    topic.flow.eventually(waits(query, "(read to 0 of 3: maxOffsetsPerTrigger may leave them"), "it says why")
    went_on.set()
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "all three are read")
    assert [(batch, known == str(mark(10))) for batch, known, _ in topic.flow.batches[:3]] == [
        (0, False),
        (1, False),
        (2, False),
    ], "the third reads to the end, and nobody has confirmed it when it runs"
    assert query.await_termination(60)


def test_2a_a_partition_that_is_added_is_waited_for(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    topic.followed(lw, upstream, ("a", 9))
    topic.kafka.grow(topic.name, 3)
    topic.put(("b", 10), partition=2)
    upstream.at(11)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(11), "three partitions")
    assert topic.keys() == ["a", "b"]


def test_kafka_is_known_however_it_is_spelt(topic: Topic) -> None:
    for spelt in ("KAFKA", "org.apache.spark.sql.kafka010.KafkaSourceProvider"):
        reader = topic.flow.spark.readStream.format(spelt).option("kafka.bootstrap.servers", topic.kafka.address)
        [source] = check_plan(topic.flow.spark, reader.option("subscribe", topic.name).load()).sources
        options = {"kafka.bootstrap.servers": topic.kafka.address, "subscribe": topic.name}
        assert source == KafkaSource(options, topic.admin())
        assert source.kind == KAFKA


def test_a_session_that_asks_as_before_is_refused(topic: Topic) -> None:
    deprecated = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    topic.flow.spark.conf.set(deprecated, "true")
    try:
        with pytest.raises(Unsupported, match="useDeprecatedOffsetFetching"):
            topic.track()
    finally:
        topic.flow.spark.conf.unset(deprecated)
    assert not (topic.flow.folder / "ck").exists()


# -- driven ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def driven_topic(kafka: Kafka, flow: Flow, tmp_path: Path) -> Topic:
    return Topic(kafka, flow, tmp_path.name, partitions=2)


def put(topic: Topic, *rows: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Write records, one to each partition and so on; returns them."""
    topic.kafka.put(topic.name, [Row(json.dumps(each).encode(), partition=i % 2) for i, each in enumerate(rows)])
    return [*rows]


def hourly(topic: Topic, driven: Driven) -> DataFrame:
    source = {"kafka.isolation.level": "read_committed"}
    return driven.hourly(driven.drive(topic.read(**source), step=timedelta(milliseconds=1)))


def test_driven_windows_over_a_topic_close_when_all_their_rows_are_read(
    driven_topic: Topic, driven: Driven, lw: lowwater.Client, upstream: Upstream
) -> None:
    """To the millisecond; not while a transaction is open; by the watermark alone; after a restart; and all of them in the end."""
    rows = put(driven_topic, record("a", at(9, 5)), record("a", at(9, 59)), record("b", at(9, 30)))
    query = driven.start(hourly(driven_topic, driven), stamp=HOUR)
    say(upstream, at(10) - timedelta(milliseconds=1))
    driven.await_watermark(at(10) - timedelta(milliseconds=1))
    assert driven.out == [], "a row at one millisecond before ten may still come"
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows, at(10))
    open_one = Transaction(driven_topic, f"{driven_topic.name}-open")
    open_one.put("x", 10)
    rows += [record("x", at(10)), *put(driven_topic, record("c", at(10)), record("c", at(10, 59)))]
    say(upstream, at(11))
    driven.eventually(waits(query, "a transaction is open since"), "it holds")
    query.stop()
    again = driven.start(hourly(driven_topic, driven), stamp=HOUR)
    driven.eventually(waits(again, "a transaction is open since"), "after a restart as well")
    assert driven.watermark() == millis(at(10))
    assert driven.rows == counts(rows, at(10))
    open_one.producer.commit_transaction(ANSWERS_WITHIN)
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows, at(11))
    rows += put(driven_topic, record("d", at(11)), record("a", at(13)))
    upstream.lease.finish()
    driven.await_watermark(END)
    assert driven.rows == counts(rows)
    driven.eventually(lambda: low(lw, "stage").finished, "all is written, so nothing will come")
    assert again.stage_status().late_rows == 0


def test_a_driven_query_that_ends_by_itself_has_closed_what_it_could(
    driven_topic: Topic, driven: Driven, upstream: Upstream
) -> None:
    rows = put(driven_topic, *(record(f"k{hour}", at(hour)) for hour in range(9, 14)))
    say(upstream, at(12))
    query = driven.start(hourly(driven_topic, driven), stamp=HOUR, trigger={"availableNow": True})
    assert query.await_termination(ANSWERS_WITHIN)
    assert driven.rows == counts(rows, at(12))


def test_what_is_planned_over_a_topic_moves_no_watermark_before_it_is_confirmed(
    lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """A plan names offsets: while its rows are read the topic may be made anew. And what asks meanwhile waits for the answer."""
    upstream.at(12)
    answers = Answers(end=2)
    query = Query(tmp_path, lw, "source", source=over(answers), pinned=True)
    try:
        query.start()

        def listed() -> bool:
            query.tick()
            return query.driving._seen is not None

        eventually(listed, "the end was listed")
        query.plan(0, Offset(), read='{"t":{"0":2}}')
        (query.checkpoint / "sources/1").mkdir()
        (query.checkpoint / "sources/1/0").write_text('v1\n{"t":{"0":0}}')
        query.tick()
        assert query.given() == 0, "planned up to the end"
        (query.checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        [control] = query.controls
        control.ask(1)
        query.driving.tick()
        told = control.told()
        assert told is not None
        assert (told.offset.watermark, told.answered, told.final) == (0, 0, False), "nobody has confirmed the batch"
        answers.ids_of = {"t": "2"}
        with pytest.raises(CheckpointMismatch, match="another one"):
            query.tick()
        assert query.given() == 0, "the rows may have been those of another topic"
        answers.ids_of = {"t": "1"}
        query.run.tick()
        query.driving.tick()
        told = control.told()
        assert told is not None
        assert (told.offset.watermark, told.answered, told.final) == (VALUE, 1, True)
    finally:
        query.close()


# -- several brokers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_3d_a_stage_goes_on_while_one_of_three_brokers_is_away(
    three: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """The leader is killed; two away are too many, since nobody may know then of a row."""
    topic = Topic(three, flow, tmp_path.name)
    query = topic.followed(lw, upstream, ("a", 9))
    first = topic.leader(Partition(topic.name, 0))
    first.kill()
    topic.put(("b", 10))
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "two brokers know of each row")
    assert topic.keys() == ["a", "b"]
    second = next(each for each in three.brokers if each is not first)
    second.kill()
    upstream.at(12)
    flow.eventually(waits(query, "does not tell"), "it holds, and says why")
    assert low(lw, "stage") == mark(11)
    second.begin()
    first.begin()
    first.wait_for(READY)
    second.wait_for(READY)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")


@pytest.mark.slow
@pytest.mark.long
def test_2c_a_partition_that_one_broker_does_not_know_yet_is_waited_for(
    three: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """It is created, and has a row, while a broker is stopped. The stage looks when the broker wakes.

    Spark itself may ask two brokers, of which one does not know the partition that the other has named: it ends its query then, and goes on in the next one.
    """
    topic = Topic(three, flow, tmp_path.name)
    topic.followed(lw, upstream, ("a", 9))
    asleep = topic.leader(Partition(topic.name, 0))
    awake = [each for each in three.brokers if each is not asleep]
    place = Partition(topic.name, 0)
    before = topic.epoch(place)
    asleep.pause()
    flow.eventually(lambda: topic.epoch(place) > before, "another one leads")
    three.grow(topic.name, 2, awake)
    row = json.dumps({"key": "b", "t": at(10).isoformat()}).encode()
    addresses = ",".join(each.address for each in awake)
    three.put(topic.name, [Row(row, partition=1)], bootstrap_servers=addresses)
    upstream.at(11)
    asleep.resume()

    def both() -> bool:
        ended = flow.queries[-1].exception()
        if ended is not None:
            assert "Cannot find initial offsets" in str(ended)
            flow.queries.clear()
            topic.track()
        return low(lw, "stage") == mark(11)

    eventually(both, "two partitions")
    assert topic.keys() == ["a", "b"]


@pytest.mark.slow
def test_a_leader_that_was_away_is_not_believed(
    three: Kafka, flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked while it is stopped, and answers when it wakes, before it learns that another one leads. What the others know tells the two apart."""
    topic = Topic(three, flow, tmp_path.name)
    place = Partition(topic.name, 0)
    topic.put(("a", 9))
    before = topic.epoch(place)
    asleep = topic.leader(place)
    awake = ",".join(each.address for each in three.brokers if each is not asleep)
    old = topic.admin(asleep)
    assert old.ends([place], {}, committed=False) == {place: 1}
    asleep.pause()
    flow.eventually(lambda: topic.epoch(place) > before, "another one leads")
    three.put(topic.name, [b"{}"] * 5, bootstrap_servers=awake)
    topic.admin().told((topic.name,), 2)
    asked: list[int] = []
    tell = KafkaAdmin._told

    def noting(self: KafkaAdmin, direct: Any, number: int, topics: tuple[str, ...]) -> Any:
        asked.append(number)
        return tell(self, direct, number, topics)

    monkeypatch.setattr(KafkaAdmin, "_told", noting)
    known = agreed(topic.admin().told((topic.name,), 2))
    assert len(asked) == 2, "who has not answered, for five seconds, is asked last"
    assert asleep.number not in asked
    said: list[str] = []

    def ask() -> None:
        for _ in range(20):
            with contextlib.suppress(OSError):
                end = old.ends([place], known.epochs, committed=False)[place]
                said.append("whole" if end == 6 else f"ends at {end}")

    asking = threading.Thread(target=ask)
    asking.start()
    asleep.resume()
    asking.join()
    assert set(said) <= {"whole"}
    later = {place: known.epochs[place] + 1}
    with pytest.raises(OSError, match=f"a leader of epoch .* told the end of {place}"):
        topic.admin().ends([place], later, committed=False)


def test_unknown_holds_what_brokers_know_together_has_nothing_old() -> None:
    """Any two of three: each of the others' rows is known by two."""
    place, added = Partition("t", 0), Partition("t", 1)
    asleep = Told("c", frozenset({1, 2, 3}), {"t": "1"}, {place: 4})
    awake = Told("c", frozenset({2, 3}), {"t": "1"}, {place: 5, added: 0})
    for told in [asleep, awake], [awake, asleep], [awake, awake]:
        found = agreed(told)
        assert found.epochs == {place: 5, added: 0}
        assert found.partitions == [place, added]
    with pytest.raises(OSError, match="the brokers do not agree which topics t are"):
        agreed([awake, awake._replace(ids={"t": "2"})])
    with pytest.raises(OSError, match="the brokers do not agree"):
        agreed([awake, awake._replace(cluster="d")])


# -- what holds, and is refused --------------------------------------------------------------------------------------


def test_2d_a_topic_made_anew_under_a_query_ends_it(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    query = topic.followed(lw, upstream, ("a", 9), ("b", 9), ("c", 9))
    topic.recreate()
    topic.put(("d", 10))
    upstream.at(11)
    with pytest.raises((lws.CheckpointMismatch, StreamingQueryException)):
        query.await_termination(ANSWERS_WITHIN)
    assert low(lw, "stage") == mark(9)
    topic.flow.queries.clear()
    with pytest.raises(CheckpointMismatch, match=r"is another one .* adopt=True"):
        topic.track()
    assert low(lw, "stage") == mark(9)


@pytest.mark.parametrize(
    "confirmed",
    [
        True,
        pytest.param(
            False,
            marks=[pytest.mark.long, pytest.mark.xfail(strict=True, raises=AssertionError, reason="by the plan")],
        ),
    ],
)
def test_2d_a_topic_made_anew_between_plan_and_read_closes_no_window(
    topic: Topic, upstream: Upstream, confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says how far, and the rows are others: what is known of W is said by the batches that are confirmed."""
    if not confirmed:
        monkeypatch.setattr(OpenKafka, "planned_is_read", True)
    topic.put(("a", 9), ("b", 9))
    upstream.at(10)

    def anew(reached: str, number: int) -> None:
        if (reached, number) == ("begun", 0):
            topic.recreate()
            topic.put(("z", 9), ("z", 9))

    flow = topic.flow
    query = flow.start(flow.windows, stream=topic.read(), stamp=timedelta(hours=1), ranges=2, probe=anew)
    with pytest.raises(Exception, match="another one"):
        query.await_termination(ANSWERS_WITHIN)
    assert flow.out == []


def test_windows_over_a_topic_close_in_the_batch_after_the_one_that_is_confirmed(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    topic.put(("a", 9), ("b", 9), ("a", 10))
    upstream.at(10)
    flow = topic.flow
    query = flow.start(flow.windows, stream=topic.read(), stamp=timedelta(hours=1), ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "an empty batch has closed the hour")
    assert flow.closed() == [("09:00", "a", 1), ("09:00", "b", 1)]
    assert flow.batches[0][1] == str(lowwater.Watermark.UNKNOWN)
    assert query.stage_status().ticks >= 1


def test_3d_a_broker_that_is_away_holds_and_goes_on(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    query = topic.followed(lw, upstream, ("a", 9))
    [broker] = topic.kafka.brokers
    broker.kill()
    upstream.at(10)
    topic.flow.eventually(waits(query, "does not tell"), "it holds, and says why")
    assert low(lw, "stage") == mark(9)
    broker.start()
    topic.put(("b", 10))
    upstream.at(11)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
    assert topic.keys() == ["a", "b"]


def test_nobody_waits_for_the_lock_while_kafka_does_not_answer(
    topic: Topic, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim needs it, a batch, and whoever asks how the query stands."""
    answers, asked = threading.Event(), threading.Event()
    answers.set()
    ask = KafkaAdmin.told

    def late(self: KafkaAdmin, topics: tuple[str, ...], enough: int) -> list[Told]:
        if not answers.is_set():
            asked.set()
            answers.wait(ANSWERS_WITHIN)
        return ask(self, topics, enough)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        topic.flow.plain(rows, batch)
        if batch.id:
            answers.clear()

    topic.put(("a", 9))
    upstream.at(9)
    query = topic.track(write)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "the row is committed")
    monkeypatch.setattr(KafkaAdmin, "told", late)
    topic.put(("b", 10))
    assert asked.wait(ANSWERS_WITHIN), "whether the second batch has read the same topic"
    told = threading.Thread(target=query.stage_status)
    told.start()
    told.join(ANSWERS_WITHIN / 2)
    waited = told.is_alive()
    answers.set()
    assert not waited
    upstream.at(10)
    topic.flow.eventually(lambda: low(lw, "stage") == mark(10), "it answers")


def test_3c_a_log_that_was_cut_off_is_refused_though_it_has_grown_past_its_old_end(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The query was away meanwhile. The ends say nothing, nor does the topic's id: the leader is of a new epoch, and of the old one it has no rows."""
    query = topic.followed(lw, upstream, ("a", 9), ("b", 9))
    query.stop()
    topic.flow.queries.clear()
    [broker] = topic.kafka.brokers
    broker.kill()
    shutil.rmtree(broker.directory / "data" / f"{topic.name}-0")
    broker.start()
    topic.put(("c", 9), ("d", 9), ("e", 9))
    upstream.at(10)
    said = f"cut off: partition 0 of {topic.name} from 2 to 0"
    for _ in range(2):
        with pytest.raises(CheckpointMismatch, match=said):
            topic.track()
    assert low(lw, "stage") == mark(9)


def test_5b_a_topic_whose_beginning_was_removed_is_refused_unless_it_is_declared(
    topic: Topic, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    topic.put(("a", 9), ("b", 9))
    gone = topic.kafka.admin.delete_records([TopicPartition(topic.name, 0, 1)])
    for each in gone.values():
        each.result(ANSWERS_WITHIN)
    with pytest.raises(
        CheckpointMismatch, match=rf"partition 0 of {topic.name} begins at 1: rows before it were removed"
    ):
        topic.track()
    upstream.at(9)
    query = topic.track(source={EARLIER: "skip"})
    topic.flow.eventually(lambda: low(lw, "stage") == mark(9), "the row that is left is committed")
    assert topic.keys() == ["b"]
    assert (
        f"partition 0 of {topic.name} from offset 1: {EARLIER}=skip, so earlier rows count for nothing" in caplog.text
    )
    query.stop()
    with pytest.raises(CheckpointMismatch, match=f'declare it: option\\("{EARLIER}", "skip"\\)'):
        topic.track()


def test_1e_a_topic_with_aborted_rows_is_read_with_read_committed_alone(topic: Topic) -> None:
    """By the writer's marks: whoever read all would read the rows of a failed attempt, and those of the next one."""
    topic.kafka.create(marks_topic(topic.name))
    with pytest.raises(Unsupported, match=rf"{topic.name} without the option kafka\.isolation\.level read_committed"):
        topic.track()
    assert not (topic.flow.folder / "ck").exists()
    topic.track(source={"kafka.isolation.level": "read_committed"})


def test_5a_rows_that_were_removed_before_they_were_read_end_the_query(
    topic: Topic, lw: lowwater.Client, upstream: Upstream
) -> None:
    query = topic.followed(lw, upstream, ("a", 9))
    query.stop()
    topic.put(("b", 9), ("c", 9))
    for each in topic.kafka.admin.delete_records([TopicPartition(topic.name, 0, 3)]).values():
        each.result(ANSWERS_WITHIN)
    topic.put(("d", 10))
    upstream.at(11)
    again = topic.track()
    topic.flow.queries.clear()
    with pytest.raises(Exception, match="OffsetOutOfRangeException"):
        again.await_termination(ANSWERS_WITHIN)
    assert low(lw, "stage") == mark(9)
    assert topic.keys() == ["a"]


@pytest.mark.long
def test_5c_the_end_of_a_compacted_topic_is_reached(
    kafka: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """Offsets without rows are no rows that are missing. The markers of transactions are such, too."""
    topic = Topic(kafka, flow, f"{tmp_path.name}-other")
    name = tmp_path.name
    kafka.create(
        name, cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="1"
    )
    topic.name = name
    for hour in range(9, 14):
        row = json.dumps({"key": "a", "t": at(hour).isoformat()}).encode()
        kafka.put(name, [Row(row, key=b"a")])
    flow.eventually(lambda: len(kafka.rows(name)) < 5, "older rows of the key are gone")
    upstream.at(14)
    topic.track()
    flow.eventually(lambda: low(lw, "stage") == mark(14), "its end was read")


def test_the_options_of_a_secured_cluster_reach_whoever_asks_it(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """Both clients of the driver: the one that asks where the topics end, and the one that asks each broker itself."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    brokers = {
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": f'{login} username="me" password="secret" user_me="secret";',
    }
    with Kafka(
        tmp_path / "kafka", settings=brokers, clients={**plain, "sasl.username": "me", "sasl.password": "secret"}
    ) as kafka:
        topic = Topic(kafka, flow, "secured")
        topic.put(("a", 9))
        upstream.at(9)

        def source(password: str) -> dict[str, str]:
            told = {**plain, "sasl.jaas.config": f'{login} username="me" password="{password}";'}
            return {f"kafka.{name}": value for name, value in told.items()}

        with pytest.raises(OSError, match="SaslAuthenticationException"):
            topic.track(source=source("wrong"))
        query = topic.track(source=source("secret"))
        flow.eventually(lambda: low(lw, "stage") == mark(9), "the row is committed")
        query.stop()


def test_a_driver_without_kafkas_client_is_told_what_to_bring(topic: Topic) -> None:
    """py4j takes a class that is not there for a package, in which there may be anything."""
    nowhere: Any = topic.flow.spark._jvm
    bare = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(kafka=nowhere.org.apache.nowhere)))
    with pytest.raises(Unsupported, match="no Kafka client") as refusal:
        KafkaAdmin(bare, {"kafka.bootstrap.servers": topic.kafka.address}).told((topic.name,), 1)
    assert "spark.jars" in refusal.value.fix


def test_other_topics_than_the_checkpoints_are_refused(topic: Topic, lw: lowwater.Client, upstream: Upstream) -> None:
    query = topic.followed(lw, upstream, ("a", 9))
    query.stop()
    topic.flow.queries.clear()
    topic.kafka.create(f"{topic.name}-more")
    with pytest.raises(CheckpointMismatch, match=r"has read .*, and the query reads .*-more"):
        topic.track(source={"subscribe": f"{topic.name},{topic.name}-more"})


# -- offsets, alone ----------------------------------------------------------------------------------------------------

vectors = st.dictionaries(
    st.builds(Partition, st.sampled_from(["t", "u"]), st.integers(0, 2)), st.integers(0, 5), max_size=6
)


@given(vectors)
def test_a_line_says_its_vector(vector: dict[Partition, int]) -> None:
    told: dict[str, dict[str, int]] = {}
    for place, offset in vector.items():
        told.setdefault(place.topic, {})[str(place.number)] = offset
    assert vector_of(json.dumps(told)) == vector


@pytest.mark.parametrize(
    "line", ["7", "[1]", '"t"', '{"t":5}', '{"t":{"x":5}}', '{"t":{"0":-1}}', '{"t":{"0":1.5}}', "{"]
)
def test_a_line_of_another_source_is_refused(line: str) -> None:
    with pytest.raises(CheckpointMismatch, match="is no offset of Kafka"):
        vector_of(line)


@given(vectors, vectors, vectors)
def test_unknown_holds_what_was_read_to_its_end_is_told_one_row_at_a_time(
    head: dict[Partition, int], read: dict[Partition, int], more: dict[Partition, int]
) -> None:
    """The oracle counts rows. What reaches a head goes on reaching it, and it reaches every lower one."""
    rows = {(place, row) for place, end in head.items() for row in range(end)}
    done = {(place, row) for place, end in read.items() for row in range(end)}
    assert (not unread(head, read)) == (rows <= done)
    further = {place: max(read.get(place, 0), more.get(place, 0)) for place in read.keys() | more.keys()}
    assert set(unread(head, further)) <= set(unread(head, read))


@given(vectors, vectors)
def test_what_went_back_is_found_in_whatever_partition(now: dict[Partition, int], before: dict[Partition, int]) -> None:
    back = [place for place in now if place in before and now[place] < before[place]]
    assert bool(below(now, before)) == bool(back)
    assert not back or str(min(back)) in below(now, before)


def test_another_cluster_and_another_topic_are_told_apart() -> None:
    pin = Pin("c", {"t": "1", "u": "2"})
    assert pin.differs(Identity("c", 1, {"t": "1", "u": "2"}, {"t": 3, "u": 1})) == ""
    assert "the cluster is another one" in pin.differs(Identity("d", 1, {"t": "1", "u": "2"}, {"t": 3, "u": 1}))
    assert "the topic u is another one" in pin.differs(Identity("c", 1, {"t": "1", "u": "3"}, {"t": 3, "u": 1}))


# -- a cluster as no broker of today can be made to answer -----------------------------------------------------------------


REFUSED: list[tuple[dict[str, str], str]] = [
    ({BROKERS: ""}, r"without the option lowwater\.brokers"),
    ({BROKERS: "0"}, r"without the option lowwater\.brokers"),
    ({"failondataloss": "false"}, "with the option failOnDataLoss false"),
    ({"startingoffsets": "latest"}, "without the option startingOffsets earliest"),
    ({"startingoffsets": '{"t":{"0":3}}'}, "without the option startingOffsets earliest"),
    ({"startingtimestamp": "1000"}, "without the option startingOffsets earliest"),
    ({"startingoffsetsbytimestamp": '{"t":{"0":1}}'}, "without the option startingOffsets earliest"),
    ({"subscribepattern": "t.*"}, "with the option subscribepattern"),
    ({"assign": '{"t":[0]}'}, "with the option assign"),
]


def test_an_option_that_takes_exactness_away_is_named() -> None:
    """An injector says itself how far it is, so nothing is asked of its options; one that goes by its ends may begin anywhere."""
    for options, said in REFUSED:
        source = KafkaSource({**OPTIONS, **options}, Answers())
        assert source.waiting_for(frozenset()) == source
        with pytest.raises(Unsupported, match=f"Kafka as the source of a stage with inputs, {said}") as refusal:
            source.waiting_for(frozenset({"default/source"}))
        assert refusal.value.fix
        if "starting" in str(options):
            assert source.telling_ends().inputs == frozenset()
        else:
            with pytest.raises(Unsupported, match=f"injector with across or delay, {said}"):
                source.telling_ends()


def test_brokers_that_are_not_declared_and_rows_on_one_broker_alone_are_refused() -> None:
    """3a: one broker alone acknowledges a row, and dies. 3c: one that lacks rows comes to lead."""
    in_sync, unclean = "min.insync.replicas", "unclean.leader.election.enable"
    answers = Answers(brokers=3, settings_of={in_sync: "2", unclean: "false"})
    over(answers, lowwater__brokers="3").check_writers()
    with pytest.raises(Unsupported, match=r"Kafka with 3 brokers .* with inputs, 1 of which are declared"):
        over(answers).check_writers()
    for name, value in ((in_sync, "1"), (unclean, "true")):
        answers.settings_of = {in_sync: "2", unclean: "false", name: value}
        with pytest.raises(Unsupported, match=f"t with {name}={value} as the source of a stage with inputs"):
            over(answers, lowwater__brokers="3").check_writers()


def test_topics_without_ids_are_refused() -> None:
    """Brokers before 2.8 know none: a topic that is made anew would look as before."""
    over(Answers()).check_writers()
    with pytest.raises(Unsupported, match="where the topic t has no id"):
        over(Answers(ids_of={"t": NO_ID})).check_writers()
    with pytest.raises(Unsupported, match="where the cluster has no id"):
        over(Answers(cluster="")).check_writers()


@pytest.mark.slow
@pytest.mark.long
def test_3c_an_unclean_election_is_found_though_the_log_has_grown_past_its_old_end(
    three: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """A replica that was away comes to lead without the row that was read. The settings that allow it are set while the query runs, and back before it starts again."""
    topic = Topic(three, flow, f"{tmp_path.name}-other")
    topic.name, place = tmp_path.name, Partition(tmp_path.name, 0)
    asked = NewTopic(topic.name, num_partitions=1, replication_factor=2, config={"min.insync.replicas": "2"})
    three.admin.create_topics([asked], operation_timeout=ANSWERS_WITHIN)[topic.name].result(ANSWERS_WITHIN)

    def allow(count: str, unclean: str) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in (("min.insync.replicas", count), ("unclean.leader.election.enable", unclean))
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)
        for done in three.admin.incremental_alter_configs([resource]).values():
            done.result(ANSWERS_WITHIN)

    query = topic.followed(lw, upstream, ("a", 9), ("b", 9))
    allow("1", "true")
    first = topic.leader(place)
    known = three.admin.list_topics(topic.name, ANSWERS_WITHIN).topics[topic.name].partitions[0]
    second = next(each for each in three.brokers if each.number in known.replicas and each is not first)
    second.kill()
    topic.put(("c", 9))
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "one broker has the row")
    query.stop()
    flow.queries.clear()
    first.kill()
    try:
        second.start()
        flow.eventually(lambda: topic.leader_number(place) == second.number, "the other one leads")
        topic.put(("d", 9), ("e", 9), ("f", 9))
        allow("2", "false")
        with pytest.raises(CheckpointMismatch, match=f"cut off: partition 0 of {topic.name} from 3 to 2"):
            topic.track()
    finally:
        first.start()
    assert low(lw, "stage") == mark(10)


def test_3c_a_log_that_is_shorter_under_a_new_leader_is_found_however_long_it_is_by_now(tmp_path: Path) -> None:
    """Between two looks, and before what a batch has read is confirmed; a leader that has all rows of the old one is none."""
    for lost, how in [(False, "look"), (False, "commit"), (True, "look"), (True, "commit")]:
        manifest = Manifest(tmp_path / f"{lost} {how}")
        manifest.begin(1)
        answers = Answers(end=10, epoch=3)
        opened = OpenKafka(over(answers), manifest, 0)
        waiting = opened.wait(opened.head('{"t":{"0":3}}'), None)
        answers.epoch, answers.end, answers.common = 4, 12, 5 if lost else 10
        said = "cut off: partition 0 of t from 10 to 5"
        if not lost:
            opened.head('{"t":{"0":3}}') if how == "look" else opened.confirm('{"t":{"0":12}}')
            assert opened.reached(waiting, '{"t":{"0":12}}')
            opened.close()
            answers.epoch, answers.common = 5, 11
            with pytest.raises(CheckpointMismatch, match="cut off: partition 0 of t from 12 to 11"):
                OpenKafka(over(answers), manifest, 0).confirm('{"t":{"0":12}}')
            continue
        if how == "look":
            with pytest.raises(OSError, match=said):
                opened.head('{"t":{"0":3}}')
        else:
            with pytest.raises(CheckpointMismatch, match=said):
                opened.confirm('{"t":{"0":12}}')
        assert not opened.reached(waiting, '{"t":{"0":12}}')
        with pytest.raises(CheckpointMismatch, match=said):
            OpenKafka(over(answers), manifest, 0)


@pytest.mark.parametrize("how", ["closed", "later"])
def test_3c_how_far_partitions_were_seen_to_go_is_known_to_the_next_run(how: str, tmp_path: Path) -> None:
    """When a run ends, and else as it stood five seconds ago at the earliest."""
    manifest, now = Manifest(tmp_path), Clock(100.0)
    manifest.begin(1)
    answers = Answers(end=10, epoch=3)
    opened = OpenKafka(over(answers), manifest, 0, now)
    opened.head('{"t":{"0":3}}')
    answers.end = 12
    now.now += 5 if how == "later" else 0
    opened.head('{"t":{"0":3}}')
    if how == "closed":
        opened.close()
    answers.end, answers.epoch, answers.common = 20, 4, 11
    with pytest.raises(OSError, match="cut off: partition 0 of t from 12 to 11"):
        OpenKafka(over(answers), manifest, 0, now).head('{"t":{"0":3}}')


def test_a_reader_names_open_transactions_first_and_a_limit_only_for_what_is_not_planned(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.begin(1)
    opened = OpenKafka(over(Answers(end=10), maxoffsetspertrigger="5"), manifest, 0)
    first, second = Partition("t", 0), Partition("t", 1)
    head = Ends({first: 10, second: 10}, {first: 10, second: 8}, {second: "bank"})
    held = "partition 1 of t (read to 0 of 10: a transaction is open since 8, that of bank)"
    limited = "partition 0 of t (read to 0 of 10: maxOffsetsPerTrigger may leave them to later batches)"
    assert opened.missing(head, 5) == [held, limited], "the job has not come to the transaction, and it holds"
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "sources/0/0").write_text('v1\n{"t":{"0":0,"1":0}}')
    opened.read_to('{"t":{"0":10,"1":8}}')
    assert opened.missing(head, 5) == [held, "partition 0 of t (read to 0 of 10: the batch that runs reads the rest)"]
    assert opened.missing(head, 1) == [held]


def test_kafka_is_asked_once_a_commit(tmp_path: Path) -> None:
    """Before the lock is taken. What was asked for another line was asked before this one was committed."""
    answers = Answers(end=10)
    manifest = Manifest(tmp_path)
    manifest.begin(1)
    opened = OpenKafka(over(answers), manifest, 0)
    before = answers.asked
    opened.knock('{"t":{"0":3}}')
    opened.confirm('{"t":{"0":3}}')
    assert answers.asked == before + 1
    opened.knock('{"t":{"0":3}}')
    answers.ids_of = {"t": "2"}
    with pytest.raises(CheckpointMismatch, match="another one"):
        opened.confirm('{"t":{"0":4}}')


def test_3c_nothing_that_waited_counts_by_rows_that_came_after_a_log_was_cut_off(tmp_path: Path) -> None:
    """Of ten rows five were lost before they were read; others have their offsets by now."""
    answers = Answers(end=10)
    manifest = Manifest(tmp_path)
    manifest.begin(1)
    opened = OpenKafka(over(answers), manifest, 0)
    waiting = opened.wait(opened.head('{"t":{"0":3}}'), None)
    assert opened.reached(waiting, '{"t":{"0":10}}')
    answers.end = 5
    with pytest.raises(OSError, match="cut off: partition 0 of t from 10 to 5"):
        opened.head('{"t":{"0":3}}')
    answers.end = 12
    assert not opened.reached(waiting, '{"t":{"0":12}}')
