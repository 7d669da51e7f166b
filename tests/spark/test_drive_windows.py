"""Windows, duplicates, joins and timers follow the input low watermark, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.drive import watermark as watermark_module
from lowwater_spark.drive.frame import _control_time
from lowwater_spark.drive.plan import Steps
from lowwater_spark.sources.control import END
from tests.kit.times import at
from tests.spark.drive_support import CARE, HOUR, Driven, aware, counts, driven, millis, record, say
from tests.spark.support import Upstream, low

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)

MILLI = timedelta(milliseconds=1)

OPEN_END = record("open", datetime(9999, 12, 31, tzinfo=UTC))
"""The time by which many a table says that something has no end."""


def test_windows_close_at_the_millisecond_and_hold_every_row(
    driven: Driven, lw: lowwater.Client, upstream: Upstream
) -> None:
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


def test_a_plain_query_is_driven(driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    """With a sink of Spark's own, and a stage downstream in mind: its watermark never leads what stands in the output."""
    rows = [record("a", at(9, 5)), record("b", at(9, 30)), record("a", at(10, 30))]
    driven.feed().put([*rows, record("c", at(9)) | {"t": None}])
    stage = lws.stage(
        driven.spark, "plain", inputs=["source"], key="key", event_time="t", stamp=HOUR, address=driven.address
    )
    out = str(driven.folder / "out")
    frame = driven.hourly(driven.drive())
    query = stage.start(frame, checkpoint=driven.folder / "ck", format="parquet", path=out)
    driven.queries.append(query)
    say(upstream, at(10))
    driven.eventually(
        lambda: low(lw, "plain") == lowwater.Watermark.of(at(10)), "the hour that ends at ten is written", seconds=100
    )
    driven.await_watermark(at(10))
    found = [tuple(map(aware, row)) for row in driven.spark.read.parquet(out).collect()]
    assert sorted(found) == counts(rows, at(10))
    driven.eventually(lambda: query.stage_status().untimed_rows == 1, "windows take no row without a time")
    holdback = lw.ranges("plain").ranges[0].remarks.holdback_micros
    assert holdback == 3_600_000_000, "whoever asks why knows that an hour is held back"
    upstream.lease.finish()
    driven.eventually(lambda: low(lw, "plain").finished, "finished", seconds=100)
    found = [tuple(map(aware, row)) for row in driven.spark.read.parquet(out).collect()]
    assert sorted(found, key=repr) == counts(rows)
    assert query.stage_status().dropped_rows == 0


def test_sliding_and_shifted_windows(driven: Driven, upstream: Upstream) -> None:
    """The default step is where windows end, also when those are no multiples of the slide."""
    driven.feed().put([record("a", at(9, 50)), record("a", at(10, 6))])
    frame = driven.drive()
    shifted = frame.groupBy(sf.window("t", "1 hour", "20 minutes", "5 minutes"), "key").count()
    driven.start(shifted.select("key", sf.col("window.end").alias("t"), "count"), stamp=HOUR)
    say(upstream, at(10, 24, 59))
    driven.await_watermark(at(10, 5))
    say(upstream, at(10, 25))
    driven.await_watermark(at(10, 25))
    assert set(driven.rows) == {("a", at(10, 5), 1), ("a", at(10, 25), 2)}


@CARE
def test_duplicates_are_known_until_the_watermark_is_beyond_them(
    care: bool, driven: Driven, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy within the promised distance never comes out, a row exactly at W always does."""
    if not care:  # the millisecond by which the watermark stays below W
        monkeypatch.setattr(watermark_module, "steps_for", lambda checked, drive: Steps(1_000, before=False))
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
        time = _control_time(sf.col("id"), delay)
        found = spark.range(value, value + 1).select(sf.unix_millis(time)).collect()
    finally:
        spark.conf.set(zone, "UTC")
    assert found[0][0] == value + delay


@pytest.mark.parametrize("how", [pytest.param("inner", marks=pytest.mark.long), "leftOuter"])
def test_a_join_of_two_streams_waits_for_the_slower_one(how: str, driven: Driven, lw: lowwater.Client) -> None:
    """A match comes whenever its other side does; a row without one comes when both sides are beyond its hour."""
    left, right = Upstream(lw, "left"), Upstream(lw, "right")
    flights = driven.drive(driven.read("left"), inputs=["left"])
    weather = driven.drive(driven.read("right"), inputs=["right"])
    weather = weather.select(sf.col("key").alias("station"), sf.col("t").alias("seen"))
    near = sf.expr("key = station AND seen >= t - INTERVAL 1 HOUR AND seen <= t + INTERVAL 1 HOUR")
    joined = flights.join(weather, near, how)
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
    alone = {("c", None), ("open", None)} if how == "leftOuter" else set()
    assert {(row[0], row[2]) for row in driven.rows} == matched | alone
    assert len(driven.rows) == len(matched | alone)
    driven.eventually(lambda: low(lw, "stage").finished, "nothing will come")
