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
from lowwater_pipeline.dedup.sieve import Counts
from lowwater_pipeline.dedup.stage import Deduplication
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.operators import reach
from lowwater_spark.track.plan import check_plan
from lowwater_spark.track.progress import Committed, bound_of, stamped
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.spark.flow import PlainFlow
from tests.spark.retained import DELAY, HOUR, KINDS, Oracle
from tests.spark.support import Feed, Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow

PROVIDER = "spark.sql.streaming.stateStore.providerClass"

SHOWN = ("windows stamped by end",)
"""One kind of each way in which Spark holds rows back."""

SAID_BY_PLAN = ("windows stamped by start", "sliding windows")
"""Kinds that declare nothing."""

STEPS = 9
STEP = 25
"""Minutes that the inputs move on from step to step."""


@pytest.fixture(autouse=True)
def _right(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """The other side of joins, which may be empty; and the session as it was."""
    Feed(tmp_path / "right")
    yield
    spark.conf.unset(PROVIDER)


class Retained:
    """A query of one kind, fed with rows that keep the promise of its inputs, at all distances above it."""

    def __init__(self, flow: PlainFlow, upstream: Upstream, kind: str, retention: timedelta | None = None) -> None:
        self.flow = flow
        self.upstream = upstream
        make, declared, more = KINDS[kind]
        self.declared = declared if retention is None else retention
        right = flow.spark.readStream.schema("other string, u timestamp").json(str(flow.folder / "right"))
        self.frame = make(flow.read(), right)
        said = None if kind in SAID_BY_PLAN and retention is None else self.declared
        self.stage = flow.stage("stage", "source", retention=said, **more)
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

    def leap(self, lw: lowwater.Client) -> None:
        """The inputs promise hours at once, while Spark still holds what is older. Then rows come by which it lets go of all that."""
        running = self.query
        assert running is not None
        self.upstream.at(0, 1200)
        eventually(lambda: running.stage_status().low == mark(0, 1200), "the promise is read", seconds=120)
        self.flow.feed.put([{"key": "0", "t": at(0, minute).isoformat()} for minute in (1200, 1260)])
        Feed(self.flow.folder / "right").put([{"other": "0", "u": at(0, 1260).isoformat()}], "leap.json")
        eventually(lambda: low(lw, "stage") > mark(0, 600), "Spark has let go", seconds=120)

    def expected(self) -> lowwater.Watermark:
        """The lesser of what the inputs promise and Spark's own watermark, less the retention, as of the last batch."""
        last = self.log.last_committed()
        plan = None if last is None else self.log.plan(last)
        assert plan is not None
        inputs = lowwater.Watermark.of(at(0, STEPS * STEP)).micros
        held = plan.watermark * 1000 - self.declared // timedelta(microseconds=1)
        least = min(inputs, held)
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
def test_nothing_comes_out_below_what_was_published(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, kind: str
) -> None:
    if kind == "transformWithState":
        flow.spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    query = Retained(flow, upstream, kind)
    query.run()
    if kind == "dropDuplicatesWithinWatermark":
        flow.eventually(
            lambda: low(lw, "stage") == mark(0, STEPS * STEP),
            "it holds nothing back, so Spark's watermark is no matter",
        )
    else:
        flow.eventually(lambda: low(lw, "stage") == query.expected(), "the stage follows Spark's own watermark")
    assert query.oracle.broken() == []
    assert len(query.oracle.values()) >= 3, "it went on"
    assert sum(map(len, query.oracle.rows().values())) > 3, "rows came out"
    assert query.query is not None
    assert query.query.stage_status().late_rows == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the declared retention is too small: windows are stamped by their start"
)
def test_a_retention_that_is_too_small_leads(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    query = Retained(flow, upstream, "windows stamped by start", timedelta(0))
    query.run()
    assert query.query is not None
    running = query.query
    flow.eventually(lambda: running.stage_status().late_rows, "the broken promise is shown")
    assert query.oracle.broken() == []


def test_it_holds_until_spark_has_a_watermark_and_shows_what_spark_drops(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(9)
    query = Retained(flow, upstream, "windows stamped by end").start()
    flow.eventually(lambda: query.stage_status().low == mark(9), "the inputs are read, and nothing is there")
    assert low(lw, "stage").unknown, "what Spark will hold back is not known before it has a watermark"
    flow.feed.put([{"key": "a", "t": at(9).isoformat()}])
    flow.eventually(
        lambda: low(lw, "stage") == mark(8, 40), "Spark's watermark: twenty minutes below the greatest time"
    )
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


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "windows stamped by start" else pytest.param(kind, marks=[pytest.mark.long, pytest.mark.slow])
        for kind in KINDS
    ],
)
def test_foreach_batch_reports_no_more_than_spark_has_let_go_of(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, kind: str
) -> None:
    if kind == "transformWithState":
        flow.spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    seen: list[tuple[lowwater.Watermark, lowwater.Watermark, lowwater.Watermark, list[lowwater.Watermark]]] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        stamps = [lowwater.Watermark(r.t) for r in rows.select(sf.unix_micros("t").alias("t")).collect()]
        seen.append((low(lw, "stage"), batch.promised, batch.low, stamps))
        batch.write(rows, flow.folder / "out")

    query = Retained(flow, upstream, kind)

    def start() -> lws.TrackedQuery:
        query.query = query.stage.foreach_batch(query.frame, write_batch, checkpoint=flow.folder / "ck")
        flow.queries.append(query.query)
        return query.query

    upstream.at(0)
    running = start()
    flow.eventually(lambda: running.stage_status().low == mark(0), "the inputs are read, and nothing is there")
    for number in range(6):
        if number == 4:
            running.stop()
            assert running.stage_status().late_rows == 0
            running = start()
        query.step(number)
    if kind == "windows stamped by start":
        flow.eventually(lambda: low(lw, "stage") == min(query.expected(), mark(2, 30)), "it follows Spark's watermark")
    query.leap(lw)
    for published, promised, _, stamps in seen:
        assert [stamp for stamp in stamps if stamp < max(published, promised)] == []
    for i, (_, _, complete, _) in enumerate(seen):
        later = [stamp for _, _, _, stamps in seen[i + 1 :] for stamp in stamps]
        assert [stamp for stamp in later if stamp < complete] == [], "batch.low is complete, this batch included"
    promises = [promised for _, promised, _, _ in seen]
    assert promises == sorted(promises)
    assert not promises[-1].unknown, "what Spark has let go of is promised"
    assert running.stage_status().late_rows == 0


def test_ids_are_forgotten_behind_what_spark_holds(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """By what Spark has let go of: what comes out of its windows is never late, and never taken for something forgotten."""
    counts: list[Counts] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        named = rows.select("*", sf.concat_ws("/", "key", "t").alias("id"))
        found = Deduplication("id", "t").of(batch, named)
        batch.write(found.main, flow.folder / "out")
        counts.append(found.counts)

    query = Retained(flow, upstream, "windows stamped by start")
    query.query = query.stage.foreach_batch(query.frame, write_batch, checkpoint=flow.folder / "ck")
    flow.queries.append(query.query)
    for number in range(4):
        query.step(number)
    query.leap(lw)
    assert sum(each.main for each in counts) > counts[-1].remembered, "some are forgotten"
    assert [(each.late, each.undecidable, each.duplicates) for each in counts] == [(0, 0, 0)] * len(counts)


class Undeclared:
    """Plans that say their retention, need one, or cannot have one."""

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
    [one, other] = check_plan(flow.spark, outer, retention=HOUR).operators
    assert reach([one, other], stamped=False) == 4 * HOUR, "a time of a row waits for one window and then for the other"
    for frame, stamp in (
        (Undeclared.windows_and_sessions(flow.read()), sf.col("session_window.start")),
        (windows.select(sf.date_trunc("day", start).alias("t")), "t"),
        (flow.read().withWatermark("t", DELAY).groupBy(sf.window("t", "1 hour")).agg(sf.min("t").alias("u")), "u"),
        (windows, None),
    ):
        with pytest.raises(Unsupported, match="withWatermark"):
            check_plan(flow.spark, frame, event_time=stamp)
    [operator] = checked.operators
    assert (operator.kind, operator.columns, operator.holds) == ("aggregation", ("t",), True)
    assert operator.window is not None
    assert (operator.window.length, operator.window.slide, operator.window.start) == (HOUR, HOUR, timedelta(0))
    assert [(w.column, w.delay, w.driven) for w in checked.watermarks] == [("t", timedelta(minutes=20), False)]
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


def test_what_spark_holds_is_stamped_as_what_comes_is() -> None:
    """Of windows of an hour that are stamped by their day, the bound of Spark's state stands within the day, and its rows at its beginning."""
    day, micros = timedelta(days=1), timedelta(microseconds=1)
    held = Committed(0, (), spark_bound=22 * HOUR // micros + day // micros)
    reading = Reading(2 * day // micros, {990_000: 2 * day // micros})
    assert bound_of(held, reading, day) == day // micros
    assert stamped(held, reading, day).heuristics == {990_000: day // micros}


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
        found = (operator.window.length, operator.window.slide, operator.window.start)
        assert found == tuple(timedelta(minutes=minutes) for minutes in expected), cut
    sessions = stream.groupBy(sf.session_window("t", "30 minutes")).count()
    [operator] = check_plan(flow.spark, sessions, retention=HOUR).operators
    assert (operator.window, operator.columns) == (None, ("session_window",))
