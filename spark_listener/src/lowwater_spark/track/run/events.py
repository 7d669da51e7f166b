"""Reads Spark's later events about a query's batches. The clock polls for them, without a listener.

A listener is called on py4j's threads, and costs a call into Python for each batch of each query;
the clock asks for new events instead. Spark keeps the last hundred events
(``spark.sql.streaming.numRecentProgressUpdates``), far more than occur between two looks. An event
comes some time after its batch's entry in the commit log. Exactness never depends on events.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.columns import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchEvent", "Events", "observe_oldest", "observe_untimed"]

_NAME: Final = "lowwater.oldest"
"""Name of the observation in the events."""

_UNTIMED: Final = "lowwater.untimed."
"""Prefix of the observations of driven frames: a query may have several."""


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Spark's event about one batch."""

    batch: int
    oldest: int | None
    """Least event time of the batch's rows, microseconds; None without rows or observation."""
    dropped: int
    """Number of rows that Spark dropped for being below its own watermark."""
    ran: bool = True
    """False: there was no batch. Spark's idle events have the number of the next one."""
    untimed: int = 0
    """Number of rows without an event time, read by the query under drive(), or else written."""


def observe_oldest(frame: DataFrame, event_time: str | Column) -> DataFrame:
    """Return the stream with a metric of each batch's least event time and rows without one.

    The metric is a part of the batch's own job.
    """
    from pyspark.sql import functions as sf

    time = column_of(frame, event_time)
    return frame.observe(
        _NAME, sf.unix_micros(sf.min(time)).alias("oldest"), sf.count_if(time.isNull()).alias("untimed")
    )


def observe_untimed(frame: DataFrame, event_time: str) -> DataFrame:
    """Return a driven stream with a metric of rows without an event time, which no window takes."""
    from pyspark.sql import functions as sf

    time = column_of(frame, event_time)
    return frame.observe(f"{_UNTIMED}{uuid.uuid4().hex}", sf.count_if(time.isNull()).alias("untimed"))


class Events:
    """Reader of the new events of one query. Not safe for threads."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._last_key: tuple[int, str] | None = None

    def poll(self) -> list[BatchEvent]:
        """Return the events since the last call, oldest first.

        Costs two calls into the JVM if there is no new event.
        """
        last = self._query.lastProgress()
        if last is None or _key(last) == self._last_key:
            return []
        events: list[Any] = []
        for event in reversed(list(self._query.recentProgress())):
            if _key(event) == self._last_key:
                break
            events.append(event)
        events.reverse()
        self._last_key = _key(events[-1]) if events else self._last_key
        return [_event(event) for event in events]


def _key(event: Any) -> tuple[int, str]:
    # Spark's event of a trigger without rows has the number of the next batch. That batch's own
    # event has another timestamp: by the number alone, poll() would take it for a known one.
    return event.batchId(), event.timestamp()


def _event(event: Any) -> BatchEvent:
    metrics = event.observedMetrics()
    row = metrics.get(_NAME)
    driven = [metrics.get(name).getLong(0) for name in metrics if name.startswith(_UNTIMED)]
    untimed = sum(driven) if driven else 0 if row is None else row.getLong(1)
    dropped = sum(operator.numRowsDroppedByWatermark() for operator in event.stateOperators())
    ran = event.durationMs().containsKey("addBatch")
    oldest = None if row is None or row.isNullAt(0) else row.getLong(0)
    return BatchEvent(event.batchId(), oldest, dropped, ran, untimed)
