"""The reader of a batch tells how late its rows are, and windows follow a lateness budget."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.core.lateness import EDGES, bucket_of
from lowwater.watermark import MIN, to_micros
from lowwater_spark.track.rows.counts import Actions, Rows, bucket, lateness_of
from lowwater_spark.track.rows.keyed import Keyed
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.drive_support import HOUR, Driven, counts, driven, record
from tests.spark.flow import Flow
from tests.spark.test_drive_late import late_rows
from tests.spark.updates import HOURLY, hourly

__all__ = ["driven"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BUDGET = 0.1
MINUTE = timedelta(minutes=1)


def test_the_jvm_finds_the_bucket_that_the_client_finds(spark: SparkSession) -> None:
    edges = [edge + more for edge in EDGES if edge < 2**62 for more in (-1, 0, 1)]
    lateness = [-(2**60), -1, *edges]
    frame = spark.createDataFrame([(value,) for value in lateness], "lateness long")
    buckets = [row.bucket for row in frame.select(bucket(sf.col("lateness")).alias("bucket")).collect()]
    assert buckets == [bucket_of(value) for value in lateness]
    none = spark.range(1).select(bucket(sf.lit(None).cast("long")).alias("bucket")).collect()
    assert none == [(None,)], "a row without a time has no lateness"


def test_a_time_before_all_times_is_as_late_as_any(spark: SparkSession) -> None:
    """A sentinel for "no timestamp" must not end the query, whatever arithmetic Spark has: it is in the last buckets, and not on time."""
    reference = to_micros(at(12))
    times = [-(2**63) + 1, -(2**62), 0, 2**62]
    frame = spark.createDataFrame([(time,) for time in times], "micros long")
    rows = frame.select(bucket(lateness_of(sf.col("micros"), reference)).alias("bucket")).collect()
    assert [row.bucket for row in rows] == [bucket_of(min(reference - time, 2**62)) for time in times]


class Source:
    def __init__(self, lw: lowwater.Client, *budgets: float) -> None:
        lw.register("source", heuristics=[0.99], lateness_budget=budgets)
        self.lease = lw.worker("source", identity="tests").claim()

    def say(self, frontier: dt.datetime, oldest: dt.datetime, times: Sequence[dt.datetime] = (), **fields: Any) -> None:
        self.lease.advance(None, oldest=oldest, frontier=frontier, finished=times or 1000, pending=[oldest], **fields)
        self.lease.flush(20)


class Late(Flow):
    def begin(self, write: Any, **declared: Any) -> lws.TrackedQuery:
        stage = self.stage(**declared)
        query = stage.foreach_batch(self.read(), write, checkpoint=self.folder / "ck")
        self.queries.append(query)
        return query

    def stage(self, name: str = "stage", **declared: Any) -> lws.Stage:
        defaults = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4, "lateness_budget": BUDGET}
        return lws.stage(self.spark, name, **{**defaults, **declared}, address=self.address)


@pytest.fixture
def late(spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Late]:
    late_ = Late(spark, authority.address, tmp_path)
    yield late_
    late_.stop()


def budget(lw: lowwater.Client, name: str = "stage") -> lowwater.LatenessBudget:
    return lw.get(name)[name].budget[BUDGET]


def twice(rows: DataFrame, _batch: lws.Batch) -> None:
    rows.collect()
    rows.take(1)
    rows.groupBy("key").count().collect()


def windows(rows: DataFrame, batch: lws.Batch) -> None:
    """Keep them as state: the rows are read by the tasks of the update."""
    batch.stateful(rows, hourly, HOURLY).collect()


@pytest.mark.parametrize("action", [None, "collect"])
def test_rows_are_counted_by_how_late_they_are(action: str | None, spark: SparkSession) -> None:
    reference = to_micros(at(12))
    times = [reference + n * n * 1_000_003 * (-1) ** n for n in range(1, 400)]
    frame = spark.createDataFrame([(f"k{n}", time) for n, time in enumerate(times)], "key string, micros long")
    frame = frame.repartition(7).select("key", sf.timestamp_micros("micros").alias("t"))
    actions = Actions()
    try:
        rows = Rows(frame, Keyed(("key",), "t", 4, injector=False), MIN, actions, reference)
        observed = rows.observed()
        if action is not None:
            observed.take(1)
            observed.collect()
        counted = rows.counted()
    finally:
        actions.close()
    assert counted.finished == len(times)
    assert counted.arrived == lowwater.Arrived.of(times, reference)


@pytest.mark.parametrize("write", [twice, windows], ids=["by actions", "with state"])
def test_rule8_a_stage_tells_how_late_each_row_was_once(write: Any, late: Late, lw: lowwater.Client) -> None:
    source = Source(lw)
    source.say(at(12), oldest=at(9))
    late.begin(write, stamp=HOUR if write is windows else "event")
    come = behind = 0
    frontier = at(12)
    for turn in range(4):
        frontier = at(12 + turn)
        source.say(frontier, oldest=at(9))
        late.eventually(
            lambda: lw.get("source")["source"].heuristic[0.99] >= lowwater.Watermark.of(frontier),  # noqa: B023 - at once
            "the source stands there",
        )
        if turn == 3:  # 60 rows are enough to begin
            late.eventually(lambda: budget(lw).watermark > lowwater.Watermark.of(at(9)), "it leaves the low watermark")
        times = [frontier - n * MINUTE for n in range(-3, 15)] + [at(9, turn), at(10, turn)]
        behind += sum(lowwater.Watermark.of(time) < budget(lw).watermark for time in times)
        late.feed.put([record(f"k{n % 5}", time) for n, time in enumerate(times)])
        come += len(times)
        late.eventually(lambda: budget(lw).records == come, f"{come} rows are told of")  # noqa: B023 - at once
    state = budget(lw)
    assert state.behind >= behind > 0
    assert lowwater.Watermark.of(at(9)) == lw.get("stage")["stage"].low
    assert lowwater.Watermark.of(at(9)) < state.watermark < lowwater.Watermark.of(frontier)


def test_windows_follow_a_budget_and_late_rows_are_kept(driven: Driven, lw: lowwater.Client, tmp_path: Path) -> None:
    source = Source(lw, BUDGET)
    # Of a hundred records none was later than ten minutes, and one is still at nine.
    source.say(at(11, 30), oldest=at(9), times=[at(11, 30) - timedelta(minutes=n % 10) for n in range(100)])
    source.say(at(11, 31), oldest=at(9))
    mark_ = lw.get("source")["source"].budget[BUDGET].watermark
    assert lowwater.Watermark.of(at(11)) < mark_ < lowwater.Watermark.of(at(11, 31))
    rows = [record("a", at(9, 30)), record("b", at(10, 30)), record("c", at(12, 30))]
    driven.feed().put(rows[:2])
    frame = driven.drive(lateness_budget=BUDGET, late=tmp_path / "late")
    driven.start(driven.hourly(frame), stamp=HOUR)
    driven.hours = False  # they come before all inputs are beyond them: that is what was asked for
    driven.await_watermark(at(11))
    driven.eventually(lambda: driven.rows == counts(rows[:2]), "the record of nine was not waited for")
    assert lw.get("stage")["stage"].low <= lowwater.Watermark.of(at(9)), "what is published stays exact"
    assert lw.topology().computations["stage"].estimated
    driven.feed().put([record("late", at(9, 5)), record("late", at(10, 59)), rows[2]])
    driven.await_read(2)
    driven.eventually(lambda: len(late_rows(driven)) == 2, "both late rows are kept")
    source.lease.finish()
    driven.await_watermark(at(13))
    driven.eventually(lambda: driven.rows == counts(rows), "and the late ones are in no window")
    assert [row[0] for row in late_rows(driven)] == ["late", "late"]
