"""The book: the status of each attached query, and the watermarks that are not yet reported.

Spark's threads write here and go on; they wait only for the lock of the book, which is never held
across a call. Each query has one entry, and a newer value replaces one that was not sent. So the
book is bounded by the number of queries. So are the event times that queries have read: see
:mod:`lowwater.core.event_times`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from lowwater.core.event_times import EventTimes
from lowwater.watermark import MIN, Watermark
from lowwater_spark.attach.progress import BatchProgress

__all__ = ["Book", "QueryStatus", "Saying"]

MOST_QUERIES: Final = 1_000
"""Greatest number of remembered queries. Above it those that ended longest ago are forgotten; live
ones never."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The status of one query. Counts begin with the attachment, and survive restarts."""

    computation: str
    """Name of its computation, without the namespace."""
    query: str
    run: str
    name: str | None
    state: str = "running"
    """State: "running", "idle" (no new data) or "ended"."""
    failure: str = ""
    """Reason of its end, when it failed."""
    batch: int | None = None
    """Number of the last batch that Spark reported."""
    batches: int = 0
    """Number of batches that Spark reported."""
    rows: int = 0
    """Number of rows that were read."""
    late_rows: int = 0
    """Number of rows that Spark dropped as late, as Spark counts them: an aggregation first adds up
    the rows of one group and task, which then count as one; a query without state drops none."""
    state_rows: int = 0
    """Number of rows in its state after the last batch."""
    rows_per_second: float = 0.0
    """Input rate of the last batch."""
    batch_seconds: float = 0.0
    """Duration of the last batch."""
    idle_beats: int = 0
    """Number of times that Spark reported it as idle."""
    watermark: Watermark = Watermark.UNKNOWN
    """Spark's watermark in the last batch; unknown without ``withWatermark``."""
    reported: Watermark = Watermark.UNKNOWN
    """Watermark that the authority has acknowledged, durably."""
    published: Watermark = Watermark.UNKNOWN
    """Watermark that readers see. It never goes down: a query that begins anew, from a new
    checkpoint, must first catch up with it."""
    problem: str = ""
    """Reason why the authority lacks the newest value; empty while it has it."""


@dataclass(frozen=True, slots=True)
class Saying:
    """The newest state of a query to report."""

    computation: str
    query: str
    watermark: int | None
    """Watermark, microseconds; None while it is unknown."""
    ended: bool
    failure: str = ""
    """Error that ended the query; empty for none."""


class Book:
    """The statuses and waiting reports of all queries. Thread-safe.

    ``clock`` is monotonic, in seconds; ``most`` queries are remembered. ``left_out`` says
    whether events of a run are passed over, by the ids of query and run and by the name. A method
    costs O(1), or O(queries).
    """

    def __init__(
        self,
        name_of: Callable[[str | None, str], str],
        clock: Callable[[], float],
        *,
        most: int = MOST_QUERIES,
        left_out: Callable[[str, str, str | None], bool] = lambda query, run, name: False,
    ) -> None:
        self.changed: threading.Condition = threading.Condition()
        """Notified when there is something to report."""
        self.conflated: int = 0
        """Number of values replaced before they were sent."""
        self.dropped: int = 0
        """Number of events of queries for which there was no room."""
        self.swallowed: int = 0
        """Number of our errors that were kept from Spark."""
        self.last_swallowed: str = ""
        self._name_of = name_of
        self._clock = clock
        self._most = most
        self._left_out = left_out
        self._queries: dict[str, QueryStatus] = {}
        self._times: dict[str, EventTimes] = {}
        self._last: dict[str, tuple[str, int]] = {}
        """The last batch of each query that came, with the run's id, by the query's id."""
        self._waiting: dict[str, float] = {}
        """Earliest time at which each waiting query may be reported, seconds of ``clock``, by the
        query's id. The query that began to wait first is the first."""
        self._ended: dict[str, None] = {}
        """Ids of the ended queries. The one that ended first is the first."""
        self._owed: set[str] = set()
        """Ids of the queries whose newest value the authority lacks."""
        self._in_flight: str | None = None
        """Id of the query that is being reported."""

    # -- Spark's side ------------------------------------------------------------------------------

    def started(self, query: str, run: str, name: str | None) -> None:
        """Note that a query starts, or starts again."""
        with self.changed:
            status = self._status(query, run, name)
            if status is not None:
                self._put(replace(status, run=run, name=name, state="running", failure=""))

    def begins_after(self, query: str, run: str, batch: int) -> None:
        """Note the newest batch of a run before the attachment. None up to it counts."""
        with self.changed:
            self._last.setdefault(query, (run, batch))

    def progressed(self, progress: BatchProgress) -> None:
        """Note a committed batch, once."""
        with self.changed:
            status = self._status(progress.query, progress.run, progress.name)
            if status is None:
                return
            # The batches of a run come in order. After a lost connection to Spark Connect some of
            # them come again, and would count twice.
            run, batch = self._last.get(progress.query, ("", -1))
            if run == progress.run and progress.batch <= batch:
                return
            if progress.times is not None:
                self._times.setdefault(progress.query, EventTimes()).note(progress.times)
            # After a restart of the query, progress events of its earlier run may still come. Their
            # rows count, but the new run's batch, state and watermark stay: the book would show and
            # report older ones otherwise.
            counted = replace(
                status,
                batches=status.batches + 1,
                rows=status.rows + progress.rows,
                late_rows=status.late_rows + progress.late_rows,
            )
            if status.run != progress.run:
                self._queries[progress.query] = counted
                return
            self._last[progress.query] = progress.run, progress.batch
            newest = replace(
                counted,
                state="ended" if status.state == "ended" else "running",
                batch=progress.batch,
                state_rows=progress.state_rows,
                rows_per_second=progress.rows_per_second,
                batch_seconds=progress.seconds,
                watermark=Watermark.UNKNOWN if progress.watermark is None else Watermark(progress.watermark),
            )
            self._put(newest)

    def idle(self, query: str, run: str, timestamp: str = "") -> None:
        """Note that a query found no new data at a time, in ISO 8601."""
        with self.changed:
            status = self._queries.get(query)
            if status is not None and status.run == run and status.state != "ended":
                self._put(replace(status, state="idle", idle_beats=status.idle_beats + 1))
                if query in self._times:
                    self._times[query].idle(timestamp)

    def terminated(self, query: str, run: str, failure: str | None) -> None:
        """Note that a query ended."""
        with self.changed:
            status = self._queries.get(query)
            if status is not None and status.run == run:
                self._put(replace(status, state="ended", failure=failure or ""))

    def swallow(self, error: BaseException) -> None:
        """Count an error that Spark must not see."""
        with self.changed:
            self.swallowed += 1
            self.last_swallowed = repr(error)

    def _status(self, query: str, run: str, name: str | None) -> QueryStatus | None:
        """Return the status that an event of a run is about; None without one. Hold the lock."""
        status = self._queries.get(query)
        if (status is None or status.run != run) and self._left_out(query, run, name):
            return None
        return status or self._enter(query, run, name)

    def _enter(self, query: str, run: str, name: str | None) -> QueryStatus | None:
        """Make room for a query; return None when there is none. Hold the lock."""
        if len(self._queries) >= self._most:
            oldest = next((candidate for candidate in self._ended if candidate not in self._waiting), None)
            if oldest is None:
                self.dropped += 1
                return None
            del self._ended[oldest]
            del self._queries[oldest]
            self._times.pop(oldest, None)
            self._last.pop(oldest, None)
        return QueryStatus(self._name_of(name, query), query, run, name)

    def _put(self, status: QueryStatus) -> None:
        """Store a status that the authority should get. Hold the lock."""
        query = status.query
        self._queries[query] = status
        self._owed.add(query)
        self._ended.pop(query, None)
        if status.state == "ended":
            self._ended[query] = None
        if query in self._waiting:
            self.conflated += 1
        else:
            self._waiting[query] = self._clock()
            self.changed.notify_all()

    def times(self, query: str) -> EventTimes:
        """Return the event times that a query, by its id, has read. O(stretches)."""
        with self.changed:
            return self._times.get(query, EventTimes()).copy()

    # -- the sender's side -------------------------------------------------------------------------

    def take(self) -> Saying | None:
        """Return the report that waits longest of those that may be sent now; None without one."""
        with self.changed:
            now = self._clock()
            for query, due in self._waiting.items():
                if due <= now:
                    del self._waiting[query]
                    self._owed.discard(query)
                    self._in_flight = query
                    status = self._queries[query]
                    micros = status.watermark.micros
                    return Saying(
                        status.computation,
                        query,
                        None if micros == MIN else micros,
                        ended=status.state == "ended",
                        failure=status.failure,
                    )
        return None

    def within(self) -> float | None:
        """Return the seconds until a report may be taken; None without one. Hold the lock."""
        return max(0.0, min(self._waiting.values()) - self._clock()) if self._waiting else None

    def waits(self, query: str) -> bool:
        """Return True if a report of a query waits."""
        with self.changed:
            return query in self._waiting

    def reported(self, query: str, watermark: int, published: int) -> None:
        """Note that the authority has acknowledged a report."""
        self._note(query, reported=Watermark(watermark), published=Watermark(published), problem="")

    def failed(self, query: str, problem: str, *, again: float) -> None:
        """Note that a report failed; report the newest value after ``again`` seconds or later."""
        with self.changed:
            self._note(query, problem=problem)
            if query in self._queries:
                self._waiting[query] = self._clock() + again
                self._owed.add(query)

    def said(self) -> None:
        """Note that the taken report was answered, or failed."""
        with self.changed:
            self._in_flight = None
            self.changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until the authority has answered about all that is noted; False if it has not."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._owed and self._in_flight is None, timeout)

    def look_again(self, query: str, after: float) -> None:
        """Report a query again after some seconds, because its inputs may have moved by then."""
        with self.changed:
            if query in self._queries:
                self._waiting.setdefault(query, self._clock() + after)

    def refused(self, query: str, problem: str) -> None:
        """Note that the authority refuses a report; wait for Spark's next value."""
        self._note(query, problem=problem)

    def _note(self, query: str, **changes: Watermark | str) -> None:
        with self.changed:
            if query not in self._queries:
                # The book was full, and a new query took the room of this one, which had ended.
                # That happened while the sender reported the end.
                return
            self._queries[query] = replace(self._queries[query], **changes)  # type: ignore[arg-type]  # fields by name

    def queries(self) -> tuple[QueryStatus, ...]:
        """Return the statuses of all queries, in the order in which they were first seen."""
        with self.changed:
            return tuple(self._queries.values())
