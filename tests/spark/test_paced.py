"""Kafka's partitions at one pace: the fast ones are held back in the topic, and all rows come, once, in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Partition
from lowwater_spark.sources.kafka.paced import CHUNK, LIMIT, PACE, Pace, paced
from lowwater_spark.sources.kafka.paced_reader import PacedReader
from tests.kit.kafka import Kafka, Row
from tests.kit.times import at
from tests.spark.flow import Flow
from tests.spark.support import low
from tests.spark.test_inject import Source, Transaction, value_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PARTS = [Partition("t", number) for number in range(3)]


def first_at(logs: Mapping[Partition, Sequence[int]], time: int) -> dict[Partition, int]:
    offsets = {place: next((i for i, value in enumerate(log) if value >= time), -1) for place, log in logs.items()}
    return {place: offset for place, offset in offsets.items() if offset >= 0}


logs_of = st.fixed_dictionaries({place: st.lists(st.integers(0, 50), max_size=12).map(sorted) for place in PARTS})


@given(logs_of, st.integers(1, 10))
def test_no_row_is_read_beyond_the_limit_and_all_in_time(logs: Mapping[Partition, Sequence[int]], limit: int) -> None:
    read, latest = dict.fromkeys(PARTS, 0), {place: len(log) for place, log in logs.items()}
    for _ in range(1 + sum(latest.values())):
        standing = {place: logs[place][at] for place, at in read.items() if at < latest[place]}
        after = paced(read, latest, standing, limit, lambda time: first_at(logs, time))
        slowest = min(standing.values(), default=0)
        for place in PARTS:
            assert read[place] <= after[place] <= latest[place]
            assert all(row < slowest + limit for row in logs[place][read[place] : after[place]])
        assert after != read or read == latest, "somebody goes on"
        read = after
    assert read == latest


def test_one_that_has_nothing_left_holds_the_others_back() -> None:
    fast, slow, new = PARTS
    until = lambda time: {fast: time}  # noqa: E731
    assert paced({fast: 5, slow: 9}, {fast: 90, slow: 9}, {fast: 5, slow: 3}, 10, until) == {fast: 13, slow: 9}
    assert paced({fast: 20, slow: 9}, {fast: 90, slow: 9}, {fast: 19, slow: 3}, 10, until) == {fast: 20, slow: 9}
    assert paced({}, {fast: 90, new: 0}, {fast: 5}, 10, until) == {fast: 15}, "one without rows"
    assert paced({fast: 1}, {fast: 90}, {}, 10, until) == {fast: 90}, "nothing is known"


def test_the_slowest_goes_on_past_a_row_whose_time_is_wrong() -> None:
    fast, slow, _ = PARTS
    first = {fast: 7, slow: 4}
    assert paced({fast: 7, slow: 4}, {fast: 9, slow: 2000}, {fast: 90, slow: 3}, 5, lambda _: first) == {
        fast: 7,
        slow: 4 + CHUNK,
    }


def test_a_row_is_read_of_one_that_was_never_read_whatever_its_time() -> None:
    old, new, _ = PARTS
    assert paced({}, {old: 0, new: 9}, {old: 3, new: 9000}, 10, lambda _: {new: 0}, [new]) == {new: 1}


def test_where_nothing_can_be_written_the_file_is_named_with_the_fix(tmp_path: Path) -> None:
    """The last answer stays, so the source plans by that: too little is read, and never too much."""
    pace = Pace(str(tmp_path / "pace"))
    pace.tell({"partition 0 of t": 7}, idle=True)
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(OSError, match=r"other/pace/standing cannot be written, .*skew_limit.* start the query again"):
        Pace(str(tmp_path / "other/pace")).tell({"partition 0 of t": 8}, idle=True)
    assert pace.told() == ({"partition 0 of t": 7}, True)


class Paced(Source):
    def put(self, partition: int, *times: datetime) -> None:
        rows = [Row(value_of(time), partition=partition, time=int(time.timestamp() * 1000)) for time in times]
        self.kafka.put(self.name, rows)

    def begin(self, **declared: Any) -> lws.Stage:
        return self.injector(**{"disorder": MINUTE, "skew_limit": HOUR, **declared})

    def frame(self, stage: lws.Stage, **options: str) -> DataFrame:
        options_ = {"kafka.bootstrap.servers": self.kafka.address, "subscribe": self.name, "lowwater.brokers": "1"}
        value = sf.from_json(sf.col("value").cast("string"), "key string, t timestamp").alias("r")
        read = stage.read_kafka({**options_, **options})
        columns = ("topic", "partition", "offset", "timestamp", "timestampType")
        return read.select(value, *columns).select("r.*", *columns)

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows.drop("topic", "timestampType"), self.flow.folder / "out")
        self.batches.append((batch.id, batch.replayed, str(batch.low)))

    def run(
        self, stage: lws.Stage | None = None, source: Mapping[str, str] | None = None, **options: Any
    ) -> lws.TrackedQuery:
        stage = self.begin() if stage is None else stage
        return self.start(stage, self.frame(stage, **(source or {})), **options)

    def read_of(self, partition: int) -> list[str]:
        out = self.flow.spark.read.schema("t timestamp, partition int, offset long, timestamp timestamp")
        rows = out.option("recursiveFileLookup", "true").parquet(str(self.flow.folder / "out"))
        assert rows.where("t <> timestamp").count() == 0
        stored = rows.where(f"partition = {partition}").orderBy("offset").collect()
        assert [row.offset for row in stored] == [*range(len(stored))], "each once"
        return [row.t.isoformat()[11:16] for row in stored]


@pytest.fixture
def topic(kafka: Kafka, flow: Flow, tmp_path: Path) -> Paced:
    return Paced(kafka, flow, tmp_path.name, retention_ms="-1")


HALF_HOURS = [at(9 + i // 2, 30 * (i % 2)) for i in range(12)]


def test_a_fast_partition_waits_in_the_topic_for_the_slowest_and_all_come(topic: Paced, lw: lowwater.Client) -> None:
    topic.put(0, *HALF_HOURS)
    topic.put(1, at(9))
    query = topic.run()
    topic.reaches(lw, 8, 59)
    # By the next row, while nothing was read; then by what the injector has told.
    assert topic.read_of(0) == ["09:00", "09:30"]
    topic.put(1, at(9, 40))
    topic.flow.eventually(lambda: len(topic.read_of(0)) == 4, "an hour ahead, and not further")
    topic.reaches(lw, 9, 39)
    query.stop()
    again = topic.run()
    topic.put(1, at(16))
    topic.flow.eventually(lambda: len(topic.read_of(0)) == 12, "the rest, after a restart")
    topic.reaches(lw, 14, 29)
    assert topic.read_of(1) == ["09:00", "09:40", "16:00"]
    assert (query.stage_status().late_rows, again.stage_status().late_rows) == (0, 0)


def test_a_partition_at_its_end_is_no_brake_where_across_is_declared(topic: Paced, lw: lowwater.Client) -> None:
    topic.put(0, *HALF_HOURS[:3], at(23))
    topic.run(topic.begin(across=timedelta(minutes=10)))
    topic.reaches(lw, 22, 50)
    assert topic.read_of(0) == ["09:00", "09:30", "10:00", "23:00"]


def test_rows_of_open_and_aborted_transactions_hold_up_no_task(topic: Paced, lw: lowwater.Client) -> None:
    """The end of the plan may be the end of a transaction, which is no row. The record's time is another than the row's, and far ahead."""
    topic.put(1, at(9))
    whole = Transaction(topic, 0, at(9))
    topic.run(source={"kafka.isolation.level": "read_committed"})
    topic.flow.eventually(lambda: topic.batches != [] and topic.read_of(1) == ["09:00"], "the other partition")
    assert low(lw, "begin").unknown
    whole.commit()
    topic.reaches(lw, 8, 59)
    topic.put(0, at(9, 30))
    topic.put(1, at(9, 20))
    topic.reaches(lw, 9, 19)


def test_what_the_limit_does_not_go_with_is_refused(topic: Paced) -> None:
    for wrong, said_ in (
        ({"disorder": HOUR}, "skew_limit is 1:00:00 and disorder is 1:00:00"),
        ({"producer": "key", "producers": ["a"]}, "skew_limit applies to partitions"),
        ({"disorder": None}, "skew_limit says"),
    ):
        with pytest.raises(ValueError, match=said_):
            topic.begin(**wrong)
    with pytest.raises(ValueError, match=r"begin has no limit to read by: declare it by .*skew_limit"):
        topic.frame(topic.injector())
    for options, said_ in (
        ({"startingOffsets": "latest"}, "not startingoffsets: remove it"),
        ({"kafka.bootstrap.servers": ""}, "read_kafka needs the address of the brokers"),
    ):
        with pytest.raises(ValueError, match=said_):
            topic.frame(topic.begin(), **options)
    with pytest.raises(Unsupported, match=r"read by Spark's own source, in an injector with skew_limit"):
        topic.start(topic.begin(), topic.read())
    stage = lws.stage(
        topic.flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=topic.flow.address
    )
    with pytest.raises(Unsupported, match=r"by read_kafka\(\) in a stage with inputs \(.*source\)"):
        stage.foreach_batch(topic.frame(topic.begin()), topic.flow.plain, checkpoint=topic.flow.folder / "ck")
    assert not (topic.flow.folder / "ck").exists()


@pytest.fixture
def reader(kafka: Kafka, tmp_path: Path) -> PacedReader:
    """Read three rows of the first partition of a topic with the name of the test's directory."""
    kafka.create(tmp_path.name, 2)
    kafka.put(tmp_path.name, [Row(value_of(time), partition=0) for time in HALF_HOURS[:3]])
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": tmp_path.name}
    return PacedReader({**options, LIMIT: "3600000", PACE: str(tmp_path)})


def test_a_topic_made_anew_is_not_taken_for_an_empty_one(reader: PacedReader, kafka: Kafka, tmp_path: Path) -> None:
    """Else it would hold without a word until the new one has as many rows, and these would never be read."""
    read = reader.latestOffset(reader.initialOffset(), None)
    assert read == {tmp_path.name: {"0": 3, "1": 0}}
    kafka.delete(tmp_path.name)
    kafka.create(tmp_path.name, 2)
    kafka.put(tmp_path.name, [Row(value_of(HALF_HOURS[0]), partition=0)])
    with pytest.raises(CheckpointMismatch, match=r"partition 0 of .*Start from a new checkpoint, with adopt=True"):
        reader.latestOffset(read, None)
