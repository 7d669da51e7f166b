"""Event-time timers of a stateful function fire when the inputs are beyond them, and not a millisecond before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, driven, millis, record, say
from tests.spark.support import Upstream

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
MILLI = timedelta(milliseconds=1)


class Alarms(StatefulProcessor):
    """Sets a timer at the time of each row, and says when it rings."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(millis(row.t.astimezone()))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], set=expiredTimerInfo.getExpiryTimeInMs(), rang=timerValues.getCurrentWatermarkInMs())

    def close(self) -> None: ...


def test_timers_ring_at_the_millisecond(driven: Driven, upstream: Upstream) -> None:
    """At W itself rows may still come, so a timer at W waits for the millisecond after it."""
    driven.spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        driven.feed().put([record("a", at(9)), record("a", at(9, 30)), record("b", at(11))])
        frame = driven.drive(step=MILLI)
        rung = frame.groupBy("key").transformWithState(
            Alarms(), "key string, set long, rang long", "Append", "EventTime"
        )
        stamped = rung.selectExpr("key", "timestamp_millis(set) AS t", "rang")
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
