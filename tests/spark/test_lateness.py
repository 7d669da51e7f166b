"""How late the rows of a batch are, told by whoever reads them, and windows that follow a lateness budget."""

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
from lowwater._core.lateness import EDGES, bucket_of
from lowwater.watermark import MIN, to_micros
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.rows import Actions, Rows, bucket, lateness_of
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.drive_support import HOUR, Driven, counts, driven, record
from tests.spark.flow import Flow
from tests.spark.test_drive_late import kept
from tests.spark.updates import HOURLY, hourly

__all__ = ["driven"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BUDGET = 0.1
MINUTE = timedelta(minutes=1)


def test_the_jvm_finds_the_bucket_that_the_client_finds(spark: SparkSession) -> None:
    """At each edge, and a microsecond to both sides of it: of all buckets that two times of the years 1 to 9999 can have."""
    edges = [edge + more for edge in EDGES if edge < 2**62 for more in (-1, 0, 1)]
    lateness = [-(2**60), -1, *edges]
    frame = spark.createDataFrame([(each,) for each in lateness], "lateness long")
    found = [row.bucket for row in frame.select(bucket(sf.col("lateness")).alias("bucket")).collect()]
    assert found == [bucket_of(each) for each in lateness]
    none = spark.range(1).select(bucket(sf.lit(None).cast("long")).alias("bucket")).collect()
    assert none == [(None,)], "a row without a time has no lateness"


def test_a_time_before_all_times_is_as_late_as_any(spark: SparkSession) -> None:
    """A sentinel for "no timestamp" must not end the query, whatever arithmetic Spark has: it is in the last buckets, and not on time."""
    reference = to_micros(at(12))
    times = [-(2**63) + 1, -(2**62), 0, 2**62]
    frame = spark.createDataFrame([(each,) for each in times], "micros long")
    found = frame.select(bucket(lateness_of(sf.col("micros"), reference)).alias("bucket")).collect()
    assert [row.bucket for row in found] == [bucket_of(min(reference - each, 2**62)) for each in times]


class Source:
    """An injector in plain Python, which is asked for a lateness budget or not."""

    def __init__(self, lw: lowwater.Client, *budgets: float) -> None:
        lw.register("source", heuristics=[0.99], lateness_budget=budgets)
        self.lease = lw.worker("source", identity="tests").claim()

    def say(self, frontier: dt.datetime, oldest: dt.datetime, times: Sequence[dt.datetime] = (), **said: Any) -> None:
        """Say how far it is, with something left at a time, durably."""
        self.lease.advance(None, oldest=oldest, frontier=frontier, finished=times or 1000, pending=[oldest], **said)
        self.lease.flush(20)


class Late(Flow):
    """A stage with a lateness budget."""

    def begin(self, write: Any, **declared: Any) -> lws.TrackedQuery:
        stage = self.stage(**declared)
        query = stage.foreach_batch(self.read(), write, checkpoint=self.folder / "ck")
        self.queries.append(query)
        return query

    def stage(self, name: str = "stage", **declared: Any) -> lws.Stage:
        made = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4, "lateness_budget": BUDGET}
        return lws.stage(self.spark, name, **{**made, **declared}, address=self.address)


@pytest.fixture
def late(spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Late]:
    made = Late(spark, authority.address, tmp_path)
    yield made
    made.stop()


def budget(lw: lowwater.Client, name: str = "stage") -> lowwater.LatenessBudget:
    return lw.get(name)[name].budget[BUDGET]


def nothing(_rows: DataFrame, _batch: lws.Batch) -> None:
    """Read no row."""


def twice(rows: DataFrame, _batch: lws.Batch) -> None:
    """Read all rows by two actions, and some by another."""
    rows.collect()
    rows.take(1)
    rows.groupBy("key").count().collect()


def windows(rows: DataFrame, batch: lws.Batch) -> None:
    """Keep them as state: the rows are read by the tasks of the update."""
    batch.stateful(rows, hourly, HOURLY).collect()


@pytest.mark.parametrize("action", [None, "collect", "count", "take"])
def test_rows_are_counted_by_how_late_they_are(action: str | None, spark: SparkSession) -> None:
    """By whatever reads them: each of several tasks has its buckets, and the action that has read most counts."""
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
            getattr(observed, action)(*([1000] if action == "take" else []))
        counted = rows.counted()
    finally:
        actions.close()
    assert counted.rows == len(times)
    assert counted.arrived == lowwater.Arrived.of(times, reference)


@pytest.mark.parametrize(
    "write",
    [pytest.param(nothing, marks=pytest.mark.long), twice, windows],
    ids=["by a job", "by actions", "with state"],
)
def test_rule8_a_stage_tells_how_late_each_row_was_once(write: Any, late: Late, lw: lowwater.Client) -> None:
    """On time, late by minutes, late by hours, and ahead; those behind are all that are behind what was published."""
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
    told = budget(lw)
    assert told.behind >= behind > 0
    assert lowwater.Watermark.of(at(9)) == lw.get("stage")["stage"].low
    assert lowwater.Watermark.of(at(9)) < told.watermark < lowwater.Watermark.of(frontier)


def test_rows_of_a_batch_that_fails_count_when_it_is_committed(late: Late, lw: lowwater.Client) -> None:
    """It runs again, with its rows read twice by each of its runs."""
    source = Source(lw)
    source.say(at(12), oldest=at(9))
    fails = [True]

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        twice(rows, batch)
        if fails and batch.id == 1:
            fails.clear()
            msg = "told to fail"
            raise RuntimeError(msg)

    late.feed.put([record("a", at(11))])
    late.begin(write)
    late.eventually(lambda: budget(lw).records >= 1, "the first row is told of")
    late.feed.put([record("a", at(11, n)) for n in range(10)])
    with pytest.raises(Exception, match="told to fail"):
        late.queries[-1].await_termination()
    assert budget(lw).records == 1, "nothing counts before its batch is committed"
    late.queries.clear()
    late.begin(write)
    late.eventually(lambda: budget(lw).records > 1, "the others are told of")
    assert budget(lw).records == 11


def test_an_injector_tells_it_by_the_frontier_that_its_rows_give(late: Late, lw: lowwater.Client) -> None:
    """Its frontier is told from the rows of the batch before they are counted."""
    made = lws.injector(
        late.spark,
        "in",
        key="key",
        event_time="t",
        disorder=HOUR,
        producer="key",
        producers=["a", "b"],
        lateness_budget=BUDGET,
        address=late.address,
    )
    query = made.foreach_batch(late.read(), twice, checkpoint=late.folder / "ck")
    late.queries.append(query)
    late.feed.put([record(key, at(12, n)) for n in range(50) for key in ("a", "b")])
    late.eventually(lambda: lw.get("in").get("in") is not None and budget(lw, "in").records == 100, "they are told of")
    late.feed.put([record(key, at(13, n)) for n in range(50) for key in ("a", "b")])
    late.eventually(lambda: budget(lw, "in").records == 200, "and those too")
    view = lw.get("in")["in"]
    assert view.low == lowwater.Watermark.of(at(12, 49))
    assert view.budget[BUDGET].watermark == view.low, "no row is behind the frontier, so the budget waits for none"
    assert view.budget[BUDGET].behind == 0


@pytest.mark.parametrize("time", ["t", "expression"])
def test_an_injector_that_emits_no_event_time_is_refused(time: str, late: Late, lw: lowwater.Client) -> None:
    """Its budget would count nothing, for ever, and say so nowhere. An event time that is no column's name has none to look for."""
    event_time = sf.col("t") if time == "expression" else time
    made = lws.injector(
        late.spark, "in", key="key", event_time=event_time, lateness_budget=BUDGET, address=late.address
    )

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.frontier(at(9))
        batch.stateful(rows, hourly, "hour timestamp, key string, n long").collect()

    late.feed.put([record("a", at(12))])
    query = made.foreach_batch(late.read(), write, checkpoint=late.folder / "ck")
    with pytest.raises(Exception, match="counts the rows that it emits by their event time"):
        query.await_termination()
    assert lw.get("in")["in"].budget[BUDGET].records == 0


def test_where_nobody_can_count_a_budget_is_refused(late: Late, lw: lowwater.Client) -> None:
    Source(lw)
    with pytest.raises(
        Unsupported, match=r"The lateness budget of stage as a plain query.*Start it with foreach_batch"
    ):
        late.stage().start(late.read(), format="noop", checkpoint=late.folder / "ck")
    second = late.stage("second")
    with pytest.raises(
        Unsupported, match=r"The lateness budget of second, which is not the first stage.*Declare it of first"
    ):
        late.stage("first", lateness_budget=()).foreach_batch(
            late.read(), nothing, checkpoint=late.folder / "ck", also=[second]
        )
    with pytest.raises(lowwater.InvalidArgument, match="lateness_budget"):
        late.stage(lateness_budget=2.0).foreach_batch(late.read(), nothing, checkpoint=late.folder / "ck")
    assert not (late.folder / "ck/offsets").exists(), "nothing has begun"


def test_windows_follow_a_lateness_budget_and_its_rows_are_set_aside(
    driven: Driven, lw: lowwater.Client, tmp_path: Path
) -> None:
    """Every row is in exactly one place. What is published stays exact."""
    source = Source(lw, BUDGET)
    # Of a hundred records none was later than ten minutes, and one is still at nine.
    source.say(at(11, 30), oldest=at(9), times=[at(11, 30) - timedelta(minutes=n % 10) for n in range(100)])
    source.say(at(11, 31), oldest=at(9))
    there = lw.get("source")["source"].budget[BUDGET].watermark
    assert lowwater.Watermark.of(at(11)) < there < lowwater.Watermark.of(at(11, 31))
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
    driven.eventually(lambda: len(kept(driven)) == 2, "both late rows are kept")
    source.lease.finish()
    driven.await_watermark(at(13))
    driven.eventually(lambda: driven.rows == counts(rows), "and the late ones are in no window")
    assert [row[0] for row in kept(driven)] == ["late", "late"]


def test_an_input_without_a_budget_is_followed_by_its_low_watermark(driven: Driven, lw: lowwater.Client) -> None:
    source = Source(lw)
    source.say(at(12), oldest=at(10))
    driven.feed().put([record("a", at(9, 30)), record("a", at(10, 30))])
    driven.start(driven.hourly(driven.drive(lateness_budget=BUDGET, late=driven.folder / "late")), stamp=HOUR)
    driven.await_watermark(at(10))
    driven.eventually(lambda: len(driven.rows) == 1, "the window before ten is there, and no other")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lateness_budget": 0.01}, "would drop those without a trace. Pass late=PATH"),
        ({"lateness_budget": 0.7, "late": "/tmp"}, "above 0 and at most 0.5"),
        ({"lateness_budget": 0.01, "approximate": 0.99, "late": "/tmp"}, "a frame has one watermark"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], reason: str, driven: Driven) -> None:
    with pytest.raises(ValueError, match=reason):
        lws.drive(driven.read(), inputs=["source"], event_time="t", **options)
