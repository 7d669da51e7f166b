"""Windows, duplicates, joins and timers follow the input low watermark, to the millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import lowwater
from lowwater_spark.drive.frame import control_time
from lowwater_spark.sources.control import END
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, carrier, counts, driven, millis, record, say
from tests.spark.support import Upstream, low

__all__ = ["carrier", "driven"]

pytestmark = pytest.mark.timeout(400)

MILLI = timedelta(milliseconds=1)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"

OPEN_END = record("open", datetime(9999, 12, 31, tzinfo=UTC))
"""The time by which many a table says that something has no end."""


@pytest.mark.usefixtures("carrier")
def test_windows_close_to_the_millisecond_and_whole(driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    """Never reported: nothing closes. A millisecond short: nothing. The row exactly at W is in. Idle: W alone closes. MAX: everything, also an open end."""
    rows = [record("a", at(9, 5)), record("a", at(9, 59)), record("b", at(9, 30)), record("b", at(13)), OPEN_END]
    driven.feed().put(rows)
    query = driven.start(driven.hourly(driven.drive(step=MILLI)), stamp=HOUR)
    driven.await_read(1)
    assert (driven.out, driven.watermark()) == ([], 0)
    say(upstream, at(10) - MILLI)
    driven.await_watermark(at(10) - MILLI)
    assert driven.out == [], "nobody has promised that nothing comes before ten"
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows, at(10))
    driven.eventually(lambda: low(lw, "stage") == lowwater.Watermark.of(at(10)), "the next one begins at ten")
    # The watermark is at ten, and a row at ten is none that it has passed.
    more = [record("a", at(10)), record("c", at(10, 0, 1)), record("b", at(11, 30))]
    driven.feed().put(more)
    driven.await_read(2)
    assert driven.rows == counts(rows, at(10))
    say(upstream, at(11))
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows + more, at(11))
    assert low(lw, "stage") < lowwater.Watermark.FINISHED
    upstream.lease.finish()
    driven.await_watermark(END)
    assert driven.rows == counts(rows + more)
    driven.eventually(lambda: low(lw, "stage").finished, "all is written, so nothing will come")
    assert query.stage_status().late_rows == 0


def test_duplicates_are_known_until_the_watermark_is_beyond_them(driven: Driven, upstream: Upstream) -> None:
    frame = driven.drive(within=timedelta(minutes=10), step=MILLI).dropDuplicatesWithinWatermark(["key"])
    driven.feed().put([record("a", at(9)), record("a", at(9, 10))])
    driven.start(frame)
    say(upstream, at(9, 9))
    driven.await_watermark(millis(at(9, 9)) - 1)
    # A copy of a, as far as within allows; b is exactly at the low watermark.
    driven.feed().put([record("a", at(9, 9, 59)), record("b", at(9, 9))])
    driven.await_read(2)
    say(upstream, at(10))
    driven.await_watermark(millis(at(10)) - 1)
    driven.feed().put([record("a", at(10)), record("a", at(10, 1))])
    driven.await_read(3)
    assert sorted(key for key, _ in driven.rows) == ["a", "a", "b"]


def test_the_control_row_is_later_by_its_delay_when_the_clocks_change(spark: SparkSession) -> None:
    """Berlin puts its clocks back on 25 October 2026: those two days of the calendar have 49 hours."""
    value, delay = millis(datetime(2026, 10, 24, 12, tzinfo=UTC)), 2 * 86_400_000
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Europe/Berlin")
    try:
        time = control_time(sf.col("id"), delay)
        rows = spark.range(value, value + 1).select(sf.unix_millis(time)).collect()
    finally:
        spark.conf.set(zone, "UTC")
    assert rows[0][0] == value + delay


class Alarms(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(millis(row.t.astimezone()))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], set=expiredTimerInfo.getExpiryTimeInMs(), rang=timerValues.getCurrentWatermarkInMs())

    def close(self) -> None: ...


@pytest.mark.long
def test_timers_ring_at_the_millisecond(driven: Driven, upstream: Upstream) -> None:
    """At W itself rows may still come, so a timer at W waits for the millisecond after it."""
    driven.spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        driven.feed().put([record("a", at(9)), record("a", at(9, 30)), record("b", at(11))])
        rows = driven.drive(step=MILLI)
        out = rows.groupBy("key").transformWithState(Alarms(), "key string, set long, rang long", "Append", "EventTime")
        stamped = out.selectExpr("key", "timestamp_millis(set) AS t", "rang")
        driven.start(stamped, retention=HOUR)
        driven.await_read(1)
        say(upstream, at(9))
        driven.await_watermark(at(9) - MILLI)
        assert driven.out == []
        say(upstream, at(9) + MILLI)
        driven.await_watermark(at(9))
        assert driven.rows == [("a", at(9), millis(at(9)))]
        say(upstream, at(11))
        driven.await_watermark(at(11) - MILLI)
        upstream.lease.finish()
        driven.await_watermark(at(12))
        assert {(key, moment) for key, moment, _ in driven.rows} == {("a", at(9)), ("a", at(9, 30)), ("b", at(11))}
        assert len(driven.rows) == 3
    finally:
        driven.stop()
        driven.spark.conf.unset(PROVIDER)


@pytest.mark.usefixtures("carrier")
def test_a_join_of_two_streams_waits_for_the_slower_one(driven: Driven, lw: lowwater.Client) -> None:
    """A match comes whenever its other side does; a row without one comes when both sides are beyond its hour."""
    left, right = Upstream(lw, "left"), Upstream(lw, "right")
    flights = driven.drive(driven.read("left"), inputs=["left"])
    weather = driven.drive(driven.read("right"), inputs=["right"])
    weather = weather.select(sf.col("key").alias("station"), sf.col("t").alias("seen"))
    near = sf.expr("key = station AND seen >= t - INTERVAL 1 HOUR AND seen <= t + INTERVAL 1 HOUR")
    joined = flights.join(weather, near, "leftOuter")
    driven.feed("left").put([record("a", at(9)), record("b", at(9)), record("c", at(12)), OPEN_END])
    driven.feed("right").put([record("a", at(9, 30))])
    driven.start(joined, inputs=["left", "right"], retention=HOUR)
    driven.await_read(1, "left")
    say(left, at(14))
    say(right, at(9, 45))
    driven.await_watermark(millis(at(9, 45)) - 1)
    # The slow side's row, hours behind the fast one's promise, still finds its match: its own side has promised nothing beyond it.
    driven.feed("right").put([record("b", at(9, 45))])
    driven.await_read(2, "right", source=3)
    say(right, at(10, 1))
    driven.await_watermark(millis(at(10, 1)) - 1)
    matched = {("a", "a"), ("b", "b")}
    assert {(row[0], row[2]) for row in driven.rows} == matched
    left.lease.finish()
    right.lease.finish()
    driven.await_watermark(END)
    alone = {("c", None), ("open", None)}
    assert {(row[0], row[2]) for row in driven.rows} == matched | alone
    assert len(driven.rows) == len(matched | alone)
    driven.eventually(lambda: low(lw, "stage").finished, "nothing will come")
