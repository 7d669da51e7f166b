"""Operators beyond a single window that follow the input low watermark: sessions, windows of windows, and time-outs of stateful functions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import functions as sf

import lowwater
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, millis, record, say
from tests.spark.support import Upstream, low

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)

MILLI = timedelta(milliseconds=1)
GAP = timedelta(minutes=10)


def test_sessions_close_a_millisecond_after_their_end(driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    """A row exactly at W may still come, and does: it begins a session of its own, and joins the one that is open."""
    driven.feed().put([record("a", at(9)), record("a", at(9, 8)), record("b", at(9, 30))])
    sessions = driven.drive(step=MILLI).groupBy(sf.session_window("t", "10 minutes"), "key").count()
    stamped = sessions.select("key", sf.col("session_window.end").alias("t"), "session_window.start", "count")
    driven.start(stamped, retention=timedelta(0))
    driven.await_read(1)
    end = at(9, 8) + GAP
    say(upstream, end)
    driven.await_watermark(end - MILLI)
    assert driven.out == []
    say(upstream, end + MILLI)
    driven.await_watermark(end)
    assert driven.rows == [("a", end, at(9), 2)]
    driven.eventually(lambda: low(lw, "stage") == lowwater.Watermark.of(end), "what is open ends later")
    # At the low watermark itself: one that goes on with what is open, one that is alone.
    say(upstream, at(9, 35))
    driven.await_watermark(at(9, 35) - MILLI)
    driven.feed().put([record("b", at(9, 35)), record("c", at(9, 35))])
    driven.await_read(2)
    upstream.lease.finish()
    driven.eventually(lambda: low(lw, "stage").finished, "everything is written", seconds=100)
    assert driven.rows == [
        ("a", end, at(9), 2),
        ("b", at(9, 45), at(9, 30), 2),
        ("c", at(9, 45), at(9, 35), 1),
    ]
    assert driven.queries[0].stage_status().dropped_rows == 0


def test_groups_of_one_time_close_a_millisecond_after_it(
    driven: Driven, lw: lowwater.Client, upstream: Upstream
) -> None:
    """At W itself another row of that time may come."""
    driven.feed().put([record("a", at(9)), record("b", at(9, 1))])
    driven.start(driven.drive(step=MILLI).groupBy("key", "t").count(), retention=timedelta(0))
    driven.await_read(1)
    say(upstream, at(9))
    driven.await_watermark(at(9) - MILLI)
    driven.feed().put([record("a", at(9))])
    driven.await_read(2)
    assert driven.out == []
    say(upstream, at(9) + MILLI)
    driven.await_watermark(at(9))
    assert driven.rows == [("a", at(9), 2)]
    upstream.lease.finish()
    driven.eventually(lambda: low(lw, "stage").finished, "everything is written", seconds=100)
    assert driven.rows == [("a", at(9), 2), ("b", at(9, 1), 1)]


def test_groups_may_be_cut_by_any_expression_beside_the_window(
    driven: Driven, lw: lowwater.Client, upstream: Upstream
) -> None:
    """An expression has no name, and no watermark of its own; the window has it."""
    driven.hours = True
    driven.feed().put([record("a1x", at(9)), record("a1y", at(9, 30)), record("b2", at(9, 59)), record("a1", at(10))])
    beside = [sf.substring("key", 1, 2), sf.length("key") > 9, sf.upper("key").substr(1, 1).alias("first")]
    counted = driven.drive().groupBy(sf.window("t", "1 hour"), *beside).count()
    hours = counted.select(
        sf.col("substring(key, 1, 2)").alias("key"), sf.col("window.start").alias("t"), "count", "first"
    )
    driven.start(hours, stamp=HOUR)
    driven.await_read(1)
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == [("a1", at(9), 2, "A"), ("b2", at(9), 1, "B")]
    driven.eventually(
        lambda: low(lw, "stage") == lowwater.Watermark.of(at(10)), "the window from ten is the first that is open"
    )


def test_windows_of_windows_close_at_the_millisecond(driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    """The hour closes in the batch in which its last ten minutes do, and has them; no declaration is needed."""
    rows = [record("a", at(9, 5)), record("a", at(9, 15)), record("a", at(9, 59)), record("b", at(9, 55))]
    driven.feed().put(rows)
    tens = driven.drive(step=MILLI).groupBy(sf.window("t", "10 minutes"), "key").count()
    hours = tens.groupBy(sf.window(sf.window_time("window"), "1 hour"), "key").agg(sf.sum("count").alias("n"))
    driven.hours = True
    driven.start(hours.select("key", sf.col("window.start").alias("t"), "n"), stamp=HOUR)
    driven.await_read(1)
    say(upstream, at(10) - MILLI)
    driven.await_watermark(at(10) - MILLI)
    assert driven.out == []
    # A row in the last ten minutes of the hour, which are not over.
    more = [record("a", at(9, 59, 59)), record("a", at(10))]
    driven.feed().put(more)
    driven.await_read(2)
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows + more, at(10))
    driven.eventually(
        lambda: low(lw, "stage") == lowwater.Watermark.of(at(10)), "the window from ten is the first that is open"
    )
    upstream.lease.finish()
    driven.eventually(lambda: low(lw, "stage").finished, "everything is written", seconds=100)
    assert driven.rows == counts(rows + more)
    assert driven.queries[0].stage_status().dropped_rows == 0


def remind(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Set a time-out at the newest row of a key, and say when it comes."""
    if state.hasTimedOut:
        [newest] = state.get
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "set": [newest], "rang": [state.getCurrentWatermarkMs()]})
        return
    newest = max(frame["ms"].max() for frame in frames)
    state.update((int(newest),))
    state.setTimeoutTimestamp(int(newest))


def test_time_outs_of_apply_in_pandas_with_state_come_two_milliseconds_after_them(
    driven: Driven, upstream: Upstream
) -> None:
    """Spark lets a time-out come when its watermark is *beyond* it, and the watermark is a millisecond behind W: a row at W may come."""
    driven.feed().put([record("a", at(9)), record("b", at(9, 30))])
    frame = driven.drive(step=MILLI).withColumn("ms", sf.unix_millis("t"))
    rung = frame.groupBy("key").applyInPandasWithState(
        remind, "key string, set long, rang long", "newest long", "append", "EventTimeTimeout"
    )
    driven.start(rung.selectExpr("key", "timestamp_millis(set) AS t", "rang"), retention=HOUR)
    driven.await_read(1)
    say(upstream, at(9) + MILLI)
    driven.await_watermark(at(9))
    assert driven.out == []
    say(upstream, at(9) + 2 * MILLI)
    driven.await_watermark(at(9) + MILLI)
    assert driven.rows == [("a", at(9), millis(at(9)) + 1)]
    upstream.lease.finish()
    driven.await_watermark(at(12))
    assert [(key, moment) for key, moment, _ in driven.rows] == [("a", at(9)), ("b", at(9, 30))]
