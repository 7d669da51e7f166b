"""An injector whose frontier is told from its rows: over partitions of a real Kafka, and over producers that a column names."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.kafka.source import KafkaSource
from lowwater_spark.track.rows.frontier import STRANGERS, Bounds, Seen, look
from tests.kit.kafka import ANSWERS_WITHIN, Kafka, Row
from tests.kit.times import at, mark
from tests.spark.flow import Flow
from tests.spark.kafka_answers import Answers
from tests.spark.support import begun, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MINUTES = {n: timedelta(minutes=n) for n in (0, 10, 30)}
WHEN = "key string, t timestamp"


class Source:
    def __init__(self, kafka: Kafka, flow: Flow, name: str, partitions: int = 2, **settings: str) -> None:
        self.kafka = kafka
        self.flow = flow
        self.name = name
        self.batches: list[tuple[int, bool, str]] = []
        kafka.create(name, partitions, **settings)

    def put(self, partition: int, *times: datetime) -> None:
        self.kafka.put(self.name, [Row(value_of(time), partition=partition) for time in times])

    def read(self, **options: str) -> DataFrame:
        defaults = {
            "kafka.bootstrap.servers": self.kafka.address,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "lowwater.brokers": "1",
            "kafka.metadata.max.age.ms": "500",
            **options,
        }
        settings = {option: value for option, value in defaults.items() if value}
        stream = self.flow.spark.readStream.format("kafka").options(**settings).load()
        value = sf.from_json(sf.col("value").cast("string"), WHEN).alias("r")
        return stream.select(value, "topic", "partition", "offset").select("r.*", "topic", "partition", "offset")

    def injector(self, name: str = "begin", **declared: Any) -> lws.Stage:
        declared = {"key": "key", "event_time": "t", "ranges": 2, "disorder": MINUTES[10], **declared}
        return lws.injector(self.flow.spark, name, address=self.flow.address, **declared)

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.batches.append((batch.id, batch.replayed, str(batch.low)))
        batch.write(rows.select("key", "t"), self.flow.folder / "out")

    def start(self, stage: lws.Stage | None = None, frame: DataFrame | None = None, **options: Any) -> lws.TrackedQuery:
        query = (self.injector() if stage is None else stage).foreach_batch(
            self.read() if frame is None else frame, self.write, checkpoint=self.flow.folder / "ck", **options
        )
        self.flow.queries.append(query)
        return query

    def reaches(self, lw: lowwater.Client, hour: int, minute: int = 0) -> None:
        self.flow.eventually(lambda: low(lw, "begin") == mark(hour, minute), f"the frontier {hour:02}:{minute:02}")


def value_of(time: datetime) -> bytes:
    return json.dumps({"key": "a", "t": time.isoformat()}).encode()


@pytest.fixture
def source(kafka: Kafka, flow: Flow, tmp_path: Path) -> Source:
    return Source(kafka, flow, tmp_path.name)


def test_the_slowest_partition_holds_and_one_without_rows_holds_all(source: Source, lw: lowwater.Client) -> None:
    source.put(0, at(9), at(11), at(10, 55))
    query = source.start()
    source.flow.eventually(lambda: query.stage_status().batch == 0, "a batch")
    assert low(lw, "begin").unknown
    assert query.stage_status().waiting_for == (f"partition 1 of {source.name} (no row yet)",)
    source.put(1, at(9, 30))
    source.reaches(lw, 9, 20)
    assert query.stage_status().waiting_for == (f"partition 1 of {source.name} (at 2013-01-09T09:30:00Z)",)
    source.put(1, at(12))
    source.reaches(lw, 10, 50)
    assert query.stage_status().late_rows == 0
    query.stop()
    source.start()
    source.put(0, at(13))
    source.reaches(lw, 11, 50)
    assert "no row" not in str(query.stage_status().waiting_for)


@pytest.mark.parametrize(
    "how", [{"subscribe": "t"}, {"assign": '{"t":[0]}'}, {"subscribepattern": "^t$"}], ids=lambda how: next(iter(how))
)
def test_a_topic_made_anew_while_its_injector_is_away_is_refused(how: dict[str, str], tmp_path: Path) -> None:
    """The topic has grown past what was read by then: Spark sees nothing of that."""
    answers = Answers(end=2)
    source = KafkaSource(how, answers)
    reading = source.open(begun(tmp_path), 0)
    reading.confirm('{"t":{"0":2}}')
    answers.ids_of["u"] = "2"
    source.open(begun(tmp_path, 2), 0)
    answers.ids_of["t"] = "3"
    with pytest.raises(CheckpointMismatch, match=r"the topic t is another one .* adopt=True"):
        source.open(begun(tmp_path, 3), 0)


def test_disorder_is_named_and_harmless(source: Source, lw: lowwater.Client, caplog: pytest.LogCaptureFixture) -> None:
    query = source.start()
    source.put(0, at(12))
    source.put(1, at(11))
    source.reaches(lw, 10, 50)
    with caplog.at_level(logging.WARNING, "lowwater.spark"):
        # Below what its own partition had promised, though not below what was published: the declaration is wrong all the same.
        source.put(0, at(11, 20), at(11, 55))
        source.flow.eventually(lambda: query.stage_status().late_rows == 1, "it is counted")
    assert low(lw, "begin") == mark(10, 50)
    example = f"2013-01-09T11:20:00Z of partition 0 of {source.name} at offset 1 in batch"
    assert query.stage_status().late_example.startswith(example)
    assert "the declaration is too small" in caplog.text
    source.put(1, at(10), at(12))
    source.flow.eventually(lambda: query.stage_status().late_rows == 2, "so is the other")
    source.reaches(lw, 11, 50)
    assert query.stage_status().late_example.startswith(
        f"2013-01-09T10:00:00Z of partition 1 of {source.name} at offset 1"
    )


class Transaction:
    def __init__(self, source: Source, partition: int, time: datetime) -> None:
        self._producer = Producer(
            {"bootstrap.servers": source.kafka.address, "log_level": 0, "transactional.id": source.name}
        )
        self._producer.init_transactions(ANSWERS_WITHIN)
        self._producer.begin_transaction()
        self._producer.produce(source.name, value_of(time), partition=partition)
        self._producer.flush(ANSWERS_WITHIN)

    def commit(self) -> None:
        self._producer.commit_transaction(ANSWERS_WITHIN)


def test_an_idle_partition_moves_with_evidence_and_holds_with_a_backlog(source: Source, lw: lowwater.Client) -> None:
    """Partition 1 has a row that is not read yet, and older than what partition 0 shows."""
    frame = source.read(**{"kafka.isolation.level": "read_committed"})
    query = source.start(source.injector(across=MINUTES[30]), frame)
    source.put(0, at(9))
    source.reaches(lw, 8, 30)
    # It was appended first, so what was declared across the partitions allows it.
    unread = Transaction(source, 1, at(8, 45))
    before = max(batch for batch, *_ in source.batches)
    source.put(0, at(11))
    source.flow.eventually(lambda: (query.stage_status().batch or 0) > before, "the newer row is read, and committed")
    try:
        assert low(lw, "begin") == mark(8, 30), "partition 1 has a row that is not read yet"
    finally:
        unread.commit()
    # It is at its end again, after the newer row.
    source.reaches(lw, 10, 30)
    assert query.stage_status().late_rows == 0


def test_by_the_clock_a_silent_topic_moves_too(source: Source, lw: lowwater.Client) -> None:
    began = datetime.now(UTC)
    query = source.start(source.injector(delay=timedelta(seconds=2)))
    source.flow.eventually(lambda: low(lw, "begin") > lowwater.Watermark.of(began), "it moves without a single row")
    assert low(lw, "begin") < lowwater.Watermark.of(datetime.now(UTC) - timedelta(seconds=2))
    assert query.stage_status().ticks > 0


def test_durable_before_reported_a_replayed_batch_finds_the_same_frontier(source: Source, lw: lowwater.Client) -> None:
    source.put(0, at(1))
    source.put(1, at(1))
    points: list[str] = []

    def fail(reached: str, _number: int) -> None:
        if points == [reached]:
            points.clear()
            source.put(0, at(hour + 2))
            source.put(1, at(hour + 2))
            raise ConnectionResetError(reached)

    source.start(probe=fail)
    source.reaches(lw, 0, 50)
    for hour, step in ((1, "seen"), (5, "prepared")):
        query, before = source.flow.queries[-1], low(lw, "begin")
        source.batches.clear()
        points.append(step)
        source.kafka.put(source.name, [Row(value_of(at(hour + 1)), partition=n) for n in (1, 0)])
        with pytest.raises(Exception, match=step):
            query.await_termination(120)
        assert low(lw, "begin") == before, "what is not committed is not reported"
        source.flow.queries.clear()
        batch = 1 + max(int(path.name) for path in (source.flow.folder / "ck/commits").iterdir() if path.name.isdigit())
        mark_ = json.loads((source.flow.folder / f"ck/lowwater/batches/{batch}.frontier.json").read_text())["frontier"]
        source.batches.clear()
        source.start(source.injector(disorder=MINUTES[30]), probe=fail)
        source.reaches(lw, hour + 1, 30)
        assert source.batches[0] == (batch, True, str(lowwater.Watermark(mark_)))


def test_a_column_that_names_no_producers_is_refused_before_it_is_kept(flow: Flow) -> None:
    bounds = Bounds.of(MINUTES[0], None, None, None, "id", ["web"])
    assert bounds is not None
    now = int(at(9).timestamp() * 1_000_000)

    def refused_rows(rows: int, *before: str) -> int:
        frame = flow.spark.range(rows).selectExpr("string(id) as id", "timestamp_micros(0) as t")
        return len(look(frame, "t", bounds, Seen(strangers=before), MIN, now))

    assert refused_rows(STRANGERS, "7") == STRANGERS
    for rows, before in ((STRANGERS + 1, ()), (STRANGERS, ("web-1",)), (3 * STRANGERS, ())):
        with pytest.raises(ValueError, match=r"producer='id' names more than 1000 producers .* Pass the column"):
            refused_rows(rows, *before)


def test_producers_are_waited_for_by_name_and_a_stranger_holds(flow: Flow, lw: lowwater.Client) -> None:

    def start(*producers: str) -> lws.TrackedQuery:
        stage = lws.injector(
            flow.spark,
            "begin",
            key="key",
            event_time="t",
            ranges=2,
            disorder=MINUTES[0],
            producer=sf.regexp_extract("file_name", "^(.+)-", 1),
            producers=producers,
            address=flow.address,
        )
        files = flow.read().select("*", "_metadata.file_name")
        query = stage.foreach_batch(files, lambda _rows, _batch: None, checkpoint=flow.folder / "ck")
        flow.queries.append(query)
        return query

    flow.feed.put([row("a", 9)], "web-1.json")
    flow.feed.put([row("a", 11)], "app-1.json")
    query = start("web", "app")
    flow.eventually(lambda: low(lw, "begin") == mark(9), "the slowest")
    flow.feed.put([row("a", 12)], "stray-1.json")
    flow.eventually(lambda: (query.stage_status().batch or 0) > 0, "a batch with a stranger")
    flow.feed.put([row("a", 11)], "web-2.json")
    flow.eventually(lambda: (query.stage_status().batch or 0) > 1, "and one without")
    assert low(lw, "begin") == mark(9)
    assert query.stage_status().waiting_for == ("stray (not declared, and it has rows)",)
    query.stop()
    start("web", "app", "stray")
    flow.feed.put([row("a", 13)], "app-2.json")
    flow.eventually(lambda: low(lw, "begin") == mark(11), "declared, it is waited for")


def test_what_cannot_be_told_is_refused_and_touches_nothing(source: Source) -> None:
    files, rows = source.flow.read(), source.read()
    by_producers = source.injector(across=MINUTES[0], producer="key", producers=["a"])
    for stage, frame, reason in (
        (None, files, "The files .* goes by partitions"),
        (None, rows.drop("partition"), "without the column partition .*Keep the columns topic and partition"),
        (by_producers, files, "The files .* or their ends"),
        (source.injector(delay=MINUTES[0]), source.read(**{"lowwater.brokers": ""}), "with across or delay, without"),
    ):
        with pytest.raises(Unsupported, match=reason):
            source.start(stage, frame)
    assert not (source.flow.folder / "ck").exists()


def test_one_topic_in_two_sources_is_refused(source: Source) -> None:
    source.put(0, at(9))
    both = source.read().union(source.read(**{"kafka.client.id": "other"}))
    with pytest.raises(Exception, match=r"partition 0 of .*, which two sources of the query read"):
        source.start(frame=both).await_termination(120)
    source.flow.queries.clear()
