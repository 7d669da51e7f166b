"""Stages with Spark's own stateful operators: what is published is never above what still comes out, and it goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.plan.bounds import Stamp, Truncated, Window, lowest_stamp
from lowwater_spark.track.plan.checked import check_plan
from lowwater_spark.track.plan.operators import stamps_of
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.spark.flow import PlainFlow
from tests.spark.retained import DELAY, HOUR, KINDS, Oracle
from tests.spark.support import Feed, Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow

SHOWN = ("windows stamped by end",)
"""One kind of each way in which Spark holds rows back."""

SAID_BY_PLAN = {"windows stamped by start": Window(HOUR, HOUR, timedelta())}
"""Kinds that declare nothing, stamped by the start of these windows."""

STEPS = 6
STEP = 25
"""Minutes that the inputs move on from step to step."""


@pytest.fixture(autouse=True)
def _right(tmp_path: Path) -> None:
    """The other side of joins, which may be empty."""
    Feed(tmp_path / "right")


class Retained:
    """A query of one kind, fed with rows that keep the promise of its inputs, at all distances above it."""

    def __init__(self, flow: PlainFlow, upstream: Upstream, kind: str) -> None:
        self.flow = flow
        self.upstream = upstream
        self.kind = kind
        make, self.declared, more = KINDS[kind]
        right = flow.spark.readStream.schema("other string, u timestamp").json(str(flow.folder / "right"))
        self.frame = make(flow.read(), right)
        retention = None if kind in SAID_BY_PLAN else self.declared
        self.stage = flow.stage("stage", "source", retention=retention, **more)
        self.random = random.Random(7)
        self.oracle = Oracle(flow.address, flow.folder / "out")
        self.log = CheckpointLog(flow.folder / "ck")
        self.query: lws.TrackedQuery | None = None

    def start(self) -> lws.TrackedQuery:
        self.query = self.flow.start(self.frame, stage=self.stage)
        return self.query

    def step(self, number: int) -> None:
        """Rows from the promise to two hours above it, some at edges; then the promise moves, and a batch has read them."""
        promise = number * STEP
        minutes = [promise, promise + 60, *(promise + self.random.randrange(120) for _ in range(12))]
        keys = [f"{self.random.randrange(5)}" for _ in minutes]
        times = [at(0, minute).isoformat() for minute in minutes]
        self.flow.feed.put([{"key": key, "t": time} for key, time in zip(keys, times, strict=True)])
        others = [(key, minute + self.random.randrange(-20, 21)) for key, minute in zip(keys, minutes, strict=True)]
        right = [{"other": key, "u": at(0, minute).isoformat()} for key, minute in others if minute >= promise]
        Feed(self.flow.folder / "right").put(right, f"{number}.json")
        batch = self.log.last_committed()
        assert self.query is not None
        query = self.query

        def read() -> bool:
            failed = query.query.exception()
            assert failed is None, str(failed)[:5000]
            return (query.stage_status().batch or -1) > (-1 if batch is None else batch)

        eventually(read, "a batch has read it", seconds=120)
        self.upstream.at(0, promise + STEP)

    def expected(self) -> lowwater.Watermark:
        """The lesser of what the inputs promise and what Spark can still let go of, as of the last batch."""
        last = self.log.last_committed()
        plan = None if last is None else self.log.plan(last)
        assert plan is not None
        inputs = lowwater.Watermark.of(at(0, STEPS * STEP)).micros
        declared = self.declared + (timedelta(milliseconds=1) if "join" in self.kind else timedelta())
        bound = plan.watermark * 1000 - declared // timedelta(microseconds=1)
        if self.kind in SAID_BY_PLAN:
            bound = lowest_stamp([Stamp("start", SAID_BY_PLAN[self.kind])], plan.watermark * 1000)
        least = min(inputs, bound)
        # What is stamped by the start of its window is stamped by that of the one in which the bound stands.
        return lowwater.Watermark(least if self.stage.keyed.window is None else least // 3_600_000_000 * 3_600_000_000)

    def run(self) -> None:
        # Known before there is a row: a window that a row opens may start below it.
        self.upstream.at(0)
        with self.oracle.watching("stage"):
            started = self.start()
            eventually(lambda: started.stage_status().low == mark(0), "the inputs are read, and nothing is there")
            for number in range(STEPS):
                self.step(number)
                if number == STEPS // 2:
                    assert self.query is not None
                    self.query.stop()
                    self.start()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind if kind in SHOWN else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_no_row_is_below_the_published(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, kind: str) -> None:
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    query = Retained(flow, upstream, kind)
    query.run()
    if kind == "dropDuplicatesWithinWatermark":
        flow.eventually(lambda: low(lw, "stage") == mark(0, STEPS * STEP), "Spark's watermark is no matter")
    else:
        flow.eventually(lambda: low(lw, "stage") == query.expected(), "the stage follows Spark's own watermark")
    assert query.oracle.broken() == []
    assert len(query.oracle.values()) >= 3, "it went on"
    assert sum(map(len, query.oracle.rows().values())) > 3, "rows came out"
    assert query.query is not None
    assert query.query.stage_status().late_rows == 0


def test_it_holds_until_spark_has_a_watermark(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(9)
    query = Retained(flow, upstream, "windows stamped by end").start()
    flow.eventually(lambda: query.stage_status().low == mark(9), "the inputs are read, and nothing is there")
    assert low(lw, "stage").unknown, "what Spark will hold back is not known before it has a watermark"
    flow.feed.put([{"key": "a", "t": at(9).isoformat()}])
    flow.eventually(lambda: low(lw, "stage") == mark(8, 40), "Spark's watermark: 20 minutes below the greatest time")
    flow.feed.put([{"key": "a", "t": at(12).isoformat()}])
    flow.eventually(lambda: low(lw, "stage") == mark(9), "never above the inputs")
    flow.feed.put([{"key": "a", "t": at(9, 30).isoformat()}])
    flow.eventually(lambda: query.stage_status().dropped_rows == 1, "Spark drops what its own watermark has passed")
    assert query.stage_status().late_rows == 0
    upstream.at(15)
    flow.eventually(lambda: low(lw, "stage") == mark(11, 40), "what Spark may still hold")
    upstream.lease.finish()
    flow.eventually(lambda: query.stage_status().low.finished, "the inputs are finished")
    assert low(lw, "stage") == mark(11, 40), "Spark still holds a window, so the stage is not finished"


class Undeclared:
    @staticmethod
    def windows(left: DataFrame) -> DataFrame:
        return left.withWatermark("t", DELAY).groupBy(sf.window("t", "1 hour")).count()

    @staticmethod
    def windows_of_windows(left: DataFrame) -> DataFrame:
        hours = Undeclared.windows(left)
        return hours.groupBy(sf.window(sf.window_time("window"), "3 hours")).count()

    @staticmethod
    def sessions(left: DataFrame) -> DataFrame:
        return left.withWatermark("t", DELAY).groupBy(sf.session_window("t", "1 hour")).count()

    @staticmethod
    def windows_and_sessions(left: DataFrame) -> DataFrame:
        hours = Undeclared.windows(left).select(sf.window_time("window").alias("u"))
        return hours.groupBy(sf.session_window("u", "1 hour")).count()

    @staticmethod
    def no_watermark(left: DataFrame) -> DataFrame:
        return left.groupBy(sf.window("t", "1 hour")).count()

    @staticmethod
    def other_key(left: DataFrame) -> DataFrame:
        return left.withWatermark("t", DELAY).groupBy("key").count()


def test_what_spark_holds_must_be_declared_and_have_an_end(flow: PlainFlow) -> None:
    sessions = Undeclared.sessions(flow.read())
    with pytest.raises(Unsupported, match="withWatermark") as refusal:
        check_plan(flow.spark, sessions)
    assert "retention=" in refusal.value.fix
    assert check_plan(flow.spark, sessions, retention=HOUR).retention == HOUR
    windows = Undeclared.windows(flow.read())
    assert check_plan(flow.spark, windows, retention=timedelta(0)).retention == timedelta(0), "by their end"
    start, end = sf.col("window.start"), sf.col("window.end")
    checked = check_plan(flow.spark, windows, event_time=start)
    assert checked.retention == HOUR, "the plan says how long a window holds a row"
    named = windows.select(end.alias("e"), "count").select(sf.col("e").alias("t"), "count")
    assert check_plan(flow.spark, named, event_time="t").retention == HOUR
    outer = Undeclared.windows_of_windows(flow.read())
    assert check_plan(flow.spark, outer, event_time=start).retention == 3 * HOUR
    for frame, stamp in (
        (Undeclared.windows_and_sessions(flow.read()), sf.col("session_window.start")),
        (windows.select((start - sf.expr("INTERVAL 7 DAYS")).alias("t")), "t"),
        (flow.read().withWatermark("t", DELAY).groupBy(sf.window("t", "1 hour")).agg(sf.min("t").alias("u")), "u"),
        (windows, None),
    ):
        with pytest.raises(Unsupported, match="withWatermark"):
            check_plan(flow.spark, frame, event_time=stamp)
    for frame in (Undeclared.no_watermark(flow.read()), Undeclared.other_key(flow.read())):
        with pytest.raises(Unsupported, match=r"withWatermark|holds rows back"):
            check_plan(flow.spark, frame)
        with pytest.raises(Unsupported, match="without a watermark"):
            check_plan(flow.spark, frame, retention=HOUR)
    right = flow.spark.readStream.schema("k string, u timestamp").json(str(flow.folder / "right"))
    one_side = flow.read().withWatermark("t", DELAY).join(right, sf.expr("key = k"))
    with pytest.raises(Unsupported, match="join of two streams without a watermark"):
        check_plan(flow.spark, one_side, retention=HOUR)
    with pytest.raises(ValueError, match="not negative"):
        flow.stage(retention=-HOUR)


class Stamped:
    """Frames, the column that their rows are stamped with, and what the plan says of it; ``None``: nothing."""

    def __init__(self, flow: PlainFlow) -> None:
        right = flow.spark.readStream.schema("other string, u timestamp").json(str(flow.folder / "right"))
        self.left, self.right = flow.read().withWatermark("t", DELAY), right.withWatermark("u", DELAY)
        self.hours = self.left.groupBy(sf.window("t", "1 hour"), "key").count()

    def joined(self, condition: str, how: str = "inner") -> DataFrame:
        return self.left.join(self.right, sf.expr(condition), how)

    @staticmethod
    def truncated(unit: str) -> tuple[Truncated, ...]:
        zone = SparkSession.active().conf.get("spark.sql.session.timeZone")
        return (Truncated(unit, str(zone), int, lambda _after, _until: ()),)

    def cases(self) -> Iterator[tuple[DataFrame, Any, list[Stamp] | None]]:
        hour = Window(HOUR, HOUR, timedelta())
        start, end = sf.col("window.start"), sf.col("window.end")
        within = "key = other AND u >= t AND u <= t + INTERVAL 1 HOUR"
        lag = HOUR + timedelta(milliseconds=1)
        yield self.hours, start, [Stamp("start", hour)]
        yield self.hours, end, [Stamp("end", hour)]
        yield self.hours, sf.window_time("window"), [Stamp("end", hour, shift=-timedelta(microseconds=1))]
        twice = (*self.truncated("hour"), *self.truncated("week"))
        yield self.hours, sf.date_trunc("week", sf.date_trunc("hour", end)), [Stamp("end", hour, truncated=twice)]
        yield self.hours, sf.date_trunc("dey", start), None
        yield self.left.groupBy("t", "key").count(), "t", [Stamp("time")]
        sessions = self.left.groupBy(sf.session_window("t", "1 hour"), "key").count()
        yield sessions, sf.col("session_window.end"), [Stamp("time")]
        yield sessions, sf.col("session_window.start"), None
        yield self.joined(within), "t", [Stamp("time", lag=lag)]
        yield self.joined(within), "u", [Stamp("time", lag=timedelta(milliseconds=1))]
        yield self.joined("key = other AND t = u"), "t", [Stamp("time")]
        # A bound above an inner join is a part of its condition. An outer one is an inner one, where the bound drops rows without a match.
        both, times = "key = other", within.removeprefix("key = other AND ")
        yield self.joined(both).where(times), "t", [Stamp("time", lag=lag)]
        yield self.joined(both, "leftOuter").where(times), "t", [Stamp("time", lag=lag)]
        # By another name, of the window and of the columns that it goes through.
        named = (
            self.left.select("key", sf.window("t", "1 hour").alias("w"))
            .withColumn("v", sf.col("w"))
            .where("v IS NOT NULL")
        )
        yield named.groupBy("v").count(), sf.col("v.end"), [Stamp("end", hour)]
        sliding = self.left.withColumn("w", sf.window("t", "1 hour", "20 minutes")).groupBy("w", "key").count()
        yield sliding, sf.col("w.start"), [Stamp("start", Window(HOUR, HOUR / 3, timedelta()))]
        ten = Window(HOUR / 6, HOUR / 6, timedelta())
        above = self.joined(within).groupBy(sf.window("t", "10 minutes"), "key").count()
        yield above, start, [Stamp("start", ten, lag)]
        moved = self.hours.select("key", (start - sf.expr("INTERVAL 7 DAYS")).alias("s"))
        # Each child of a union counts, not the first alone.
        yield self.hours.select("key", start.alias("s")).union(moved), "s", None
        united = self.hours.select("key", start.alias("s")).union(self.hours.select("key", end.alias("e")))
        yield united, "s", [Stamp("start", hour), Stamp("end", hour)]


def test_the_plan_says_what_the_output_is_stamped_with(flow: PlainFlow) -> None:
    for frame, column, expected in Stamped(flow).cases():
        assert stamps_of(frame, column) == expected, (column, expected)


def test_a_declaration_below_what_the_plan_says_is_refused(flow: PlainFlow) -> None:
    stamped = Stamped(flow)
    start, minute = sf.col("window.start"), timedelta(minutes=1)
    joined = stamped.joined("key = other AND u >= t AND u <= t + INTERVAL 1 HOUR")
    above = joined.groupBy(sf.window("t", "10 minutes"), "key").count()
    with pytest.raises(Unsupported, match=r"aggregation above join of two streams.*1:10:00 below.*seconds=4200\)"):
        check_plan(flow.spark, above, retention=HOUR, event_time=start)
    assert check_plan(flow.spark, above, retention=70 * minute, event_time=start).retention == 70 * minute
    micros = stamped.left.groupBy(sf.window("t", "15 days 7 seconds 3 milliseconds"), "key").count()
    with pytest.raises(Unsupported, match=r"retention=timedelta\(days=15, seconds=7, microseconds=2000\)"):
        check_plan(flow.spark, micros, retention=HOUR, event_time=start)
    for stamp in (start, sf.date_trunc("day", start)):  # what the day is below the start counts beside any declaration
        with pytest.raises(Unsupported, match="The retention 0:00:00 of a query with aggregation"):
            check_plan(flow.spark, stamped.hours, retention=timedelta(0), event_time=stamp)
    assert check_plan(flow.spark, stamped.hours, retention=timedelta(0), event_time=sf.col("window.end")).stamps
    assert check_plan(flow.spark, joined, retention=HOUR, event_time="t").retention == HOUR, "as the condition says"


def test_a_join_by_key_alone_is_refused(flow: PlainFlow) -> None:
    """Spark keeps its rows for ever, so a match of any age can come out; with a bound one way only as well."""
    stamped = Stamped(flow)
    for frame in (stamped.joined("key = other"), stamped.joined("key = other AND u >= t")):
        with pytest.raises(Unsupported, match="without a bound on the times of both"):
            check_plan(flow.spark, frame, retention=HOUR, event_time="t")
    between = stamped.joined("key = other AND u BETWEEN t AND t + INTERVAL 1 HOUR")
    assert check_plan(flow.spark, between, retention=HOUR, event_time="t").retention == HOUR


def test_a_join_that_spark_bounds_by_another_column_is_refused(flow: PlainFlow) -> None:
    """Spark waits for h in ``u <= h``, and lets go of a row by its event time, which is an hour lower: its matches are lost."""
    stamped = Stamped(flow)
    named = stamped.left.withColumn("h", sf.expr("t + INTERVAL 1 HOUR"))
    condition = "key = other AND u >= t AND u <= h"
    with pytest.raises(Unsupported, match="it releases rows too early, and loses matches"):
        check_plan(flow.spark, named.join(stamped.right, sf.expr(condition)), retention=HOUR, event_time="t")
    longer = named.join(stamped.right, sf.expr(condition + " AND u <= t + INTERVAL 2 HOURS"))
    assert check_plan(flow.spark, longer, retention=2 * HOUR, event_time="t").retention == 2 * HOUR, "as long as t says"


def test_every_stage_of_a_query_is_stamped_as_the_plan_says(flow: PlainFlow) -> None:
    """The stages of a query have one bound: the least of all. A stamp that a function makes must be declared, as that of a query's first stage."""
    hours = Stamped(flow).hours
    start, end = sf.col("window.start"), sf.col("window.end")
    checked = check_plan(flow.spark, hours, event_time=end, also=[start])
    assert [stamp.kind for stamp in checked.stamps] == ["end", "start"]
    week = start - sf.expr("INTERVAL 7 DAYS")
    for also in (week, "made_by_a_function"):
        with pytest.raises(Unsupported, match=r"The stamp .* of one of the query's stages .* all stages of the query"):
            check_plan(flow.spark, hours, event_time=end, also=[also])
        checked = check_plan(flow.spark, hours, retention=8 * 24 * HOUR, event_time=end, also=[also])
        assert checked.spark_bound(Plan(0, (), "", watermark=10**12)) == 10**15 - 8 * 24 * HOUR // timedelta(
            microseconds=1
        )
    right = Stamped(flow).left.withColumnRenamed("key", "other")
    left = Stamped(flow).left
    within = (left["key"] == right["other"]) & right["t"].between(left["t"], left["t"] + sf.expr("INTERVAL 1 HOUR"))
    for event_time, also in ((left["t"], right["t"]), (right["t"], left["t"])):  # both print as t
        checked = check_plan(flow.spark, left.join(right, within), event_time=event_time, also=[also])
        assert {stamp.lag for stamp in checked.stamps} == {HOUR + timedelta(milliseconds=1), timedelta(milliseconds=1)}
    stage, other = flow.stage(stamp=end), flow.stage("other", stamp=week)
    windows = stage.drive(flow.read()).groupBy(sf.window("t", "1 hour"), "key").count()
    with pytest.raises(Unsupported, match="of one of the query's stages"):
        stage.foreach_batch(windows, lambda _rows, _batch: None, checkpoint=flow.folder / "ck", also=[other])


def test_an_outer_join_keeps_rows_a_millisecond_longer_than_declared(flow: PlainFlow) -> None:
    """Spark lets go an hour and a millisecond below its watermark in ``u <= t + 1 hour``."""
    joined = Stamped(flow).joined("key = other AND u >= t AND u <= t + INTERVAL 1 HOUR", "leftOuter")
    plan = Plan(0, (), "", watermark=36_000_000)
    for stamp, retention in ((sf.coalesce("t", "u"), HOUR), ("t", None)):
        checked = check_plan(flow.spark, joined, retention=retention, event_time=stamp)
        assert checked.spark_bound(plan) == (36_000_000 - 3_600_001) * 1_000


def test_queries_may_have_names_for_parts(flow: PlainFlow) -> None:
    flow.read().createOrReplaceTempView("rows_of_a_stream")
    query = "WITH some AS (SELECT * FROM rows_of_a_stream WHERE key <> 'z') SELECT * FROM some"
    assert len(check_plan(flow.spark, flow.spark.sql(query)).sources) == 1
    with pytest.raises(Unsupported, match="used twice"):
        check_plan(flow.spark, flow.spark.sql(f"{query} UNION ALL SELECT * FROM some"))


def test_how_windows_are_cut_is_found(flow: PlainFlow) -> None:
    stream = flow.read().withWatermark("t", DELAY)
    window: Callable[..., Any] = sf.window
    for cut, expected in {
        ("1 hour", "1 hour"): (60, 60, 0),
        ("1 hour", "20 minutes"): (60, 20, 0),
        ("1 hour", "20 minutes", "5 minutes"): (60, 20, 5),
        ("1 hour", "1 hour", "5 minutes"): (60, 60, 5),
        ("90 minutes", "1 hour"): (90, 60, 0),
    }.items():
        [operator] = check_plan(flow.spark, stream.groupBy("key", window("t", *cut)).count(), retention=HOUR).operators
        assert operator.window is not None
        cut_found = (operator.window.length, operator.window.slide, operator.window.start)
        assert cut_found == tuple(timedelta(minutes=minutes) for minutes in expected), cut
    sessions = stream.groupBy(sf.session_window("t", "30 minutes")).count()
    [operator] = check_plan(flow.spark, sessions, retention=HOUR).operators
    assert (operator.window, operator.columns) == (None, ("session_window",))
