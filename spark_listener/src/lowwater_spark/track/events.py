"""Reads what Spark says of a query's batches afterwards: progress events, fetched by the clock, without a listener.

A listener's calls come on threads of py4j and cost a call into Python for each batch of each query; the clock asks for what is new. Spark
keeps the last hundred events (``spark.sql.streaming.numRecentProgressUpdates``), which is far more than there are between two looks. An
event comes after its batch's entry in the commit log, any time after, and tells nothing that exactness depends on: only what is shown.
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
"""What the observation is called in the events."""

_UNTIMED: Final = "lowwater.untimed."
"""What the observations of driven frames begin with: a query may have several."""


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """What Spark says of one batch."""

    batch: int
    oldest: int | None
    """The least event time among its rows, microseconds; None when there were none, or when nobody
    looked."""
    dropped: int
    """Rows that Spark dropped for being below its own watermark."""
    ran: bool = True
    """Whether there was a batch: Spark also says that there was none, with the number of the next
    one."""
    untimed: int = 0
    """Number of rows without an event time among those that the query reads under drive(), or else
    writes."""


def observe_oldest(frame: DataFrame, event_time: str | Column) -> DataFrame:
    """Return the stream with an observation of the least event time of each batch, and of rows without one. It rides on the batch's own job."""
    from pyspark.sql import functions as sf

    time = column_of(frame, event_time)
    return frame.observe(
        _NAME, sf.unix_micros(sf.min(time)).alias("oldest"), sf.count_if(time.isNull()).alias("untimed")
    )


def observe_untimed(frame: DataFrame, event_time: str) -> DataFrame:
    """Return a stream that is to be driven with an observation of its rows without an event time, which no window takes."""
    from pyspark.sql import functions as sf

    time = column_of(frame, event_time)
    return frame.observe(f"{_UNTIMED}{uuid.uuid4().hex}", sf.count_if(time.isNull()).alias("untimed"))


class Events:
    """The events of one query that have not been seen yet. Not safe for threads."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen: tuple[int, str] | None = None

    def poll(self) -> list[BatchEvent]:
        """Return the events since the last call, oldest first.

        Two calls into the JVM when there is nothing new.
        """
        last = self._query.lastProgress()
        if last is None or _key(last) == self._seen:
            return []
        found: list[Any] = []
        for event in reversed(list(self._query.recentProgress())):
            if _key(event) == self._seen:
                break
            found.append(event)
        found.reverse()
        self._seen = _key(found[-1]) if found else self._seen
        return [_event(event) for event in found]


def _key(event: Any) -> tuple[int, str]:
    # An event that says "still idle" has the number of the batch that comes next, but not its time.
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
