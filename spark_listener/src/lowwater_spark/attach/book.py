"""What is known of each attached query, and what the authority has not heard yet.

Spark's threads write here and go on; they never wait for more than a lock that nobody holds across
a call. One entry a query, the newest value wins: what was not sent yet is replaced, so the book is
bounded by the number of queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from lowwater.watermark import MIN, Watermark
from lowwater_spark.attach.progress import BatchProgress

__all__ = ["Book", "QueryStatus", "Saying"]

MOST_QUERIES: Final = 1_000
"""Queries that are remembered. Beyond them those that ended longest ago are forgotten; living ones
never."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """How one attached query stands.

    The counts begin with the attachment, and go on when the query is started again.
    """

    computation: str
    """The name it is registered under, without the namespace."""
    query: str
    run: str
    name: str | None
    state: str = "running"
    """"running", "idle" (it found no new data) or "ended"."""
    failure: str = ""
    """Why it ended, when it failed."""
    batch: int | None = None
    """The last batch that Spark reported."""
    batches: int = 0
    """Batches that Spark reported."""
    rows: int = 0
    """Rows that were read."""
    late_rows: int = 0
    """Rows that Spark dropped as late, as it counts them: an aggregation adds up the rows of one
    group and task first, so that they count as one, and a query without state drops none."""
    state_rows: int = 0
    """Rows in its state after the last batch."""
    rows_per_second: float = 0.0
    """Input rate of the last batch."""
    batch_seconds: float = 0.0
    """How long the last batch took."""
    idle_beats: int = 0
    """How often Spark said that it is idle."""
    watermark: Watermark = Watermark.UNKNOWN
    """Spark's, that the last batch ran with; unknown without ``withWatermark``."""
    reported: Watermark = Watermark.UNKNOWN
    """What the authority has taken over of it, durably."""
    published: Watermark = Watermark.UNKNOWN
    """What readers see. It never goes back: a query that begins anew, from a new checkpoint, must
    catch up with it first."""
    problem: str = ""
    """Why the authority does not have it; empty while it does."""


@dataclass(frozen=True, slots=True)
class Saying:
    """The newest that the authority should hear of a query."""

    computation: str
    query: str
    watermark: int | None
    """Microseconds; None while it is unknown."""
    ended: bool


class Book:
    """Safe for threads.

    ``clock`` is monotonic, in seconds; ``most`` queries are remembered. Every method is O(1), but
    :meth:`take` is O(queries that wait).
    """

    def __init__(
        self, name_of: Callable[[str | None, str], str], clock: Callable[[], float], *, most: int = MOST_QUERIES
    ) -> None:
        self.changed: threading.Condition = threading.Condition()
        """Notified when there is something to say."""
        self.conflated: int = 0
        """Values that were replaced before they were sent."""
        self.dropped: int = 0
        """Events of queries for which there was no room."""
        self.swallowed: int = 0
        """Errors of ours that were kept from Spark."""
        self.last_swallowed: str = ""
        self._name_of = name_of
        self._clock = clock
        self._most = most
        self._queries: dict[str, QueryStatus] = {}
        # In the order in which they began to wait, and not before when.
        self._waiting: dict[str, float] = {}
        self._ended: dict[str, None] = {}

    # -- Spark's side ------------------------------------------------------------------------------

    def started(self, query: str, run: str, name: str | None) -> None:
        """A query starts, or starts again."""
        with self.changed:
            known = self._queries.get(query) or self._enter(query, run, name)
            if known is not None:
                self._put(replace(known, run=run, name=name, state="running", failure=""))

    def progressed(self, said: BatchProgress) -> None:
        """A batch was committed."""
        with self.changed:
            known = self._queries.get(said.query) or self._enter(said.query, said.run, said.name)
            if known is None:
                return
            # The events of a run that was replaced may come late: they count, but say nothing of
            # where the new one is.
            counted = replace(
                known,
                batches=known.batches + 1,
                rows=known.rows + said.rows,
                late_rows=known.late_rows + said.late_rows,
            )
            if known.run != said.run:
                self._queries[said.query] = counted
                return
            newest = replace(
                counted,
                state="ended" if known.state == "ended" else "running",
                batch=said.batch,
                state_rows=said.state_rows,
                rows_per_second=said.rows_per_second,
                batch_seconds=said.seconds,
                watermark=Watermark.UNKNOWN if said.watermark is None else Watermark(said.watermark),
            )
            self._put(newest)

    def idle(self, query: str, run: str) -> None:
        """A query found no new data."""
        with self.changed:
            known = self._queries.get(query)
            if known is not None and known.run == run and known.state != "ended":
                self._put(replace(known, state="idle", idle_beats=known.idle_beats + 1))

    def terminated(self, query: str, run: str, failure: str | None) -> None:
        """A query ended."""
        with self.changed:
            known = self._queries.get(query)
            if known is not None and known.run == run:
                self._put(replace(known, state="ended", failure=failure or ""))

    def swallow(self, error: BaseException) -> None:
        """Count an error that Spark must not see."""
        with self.changed:
            self.swallowed += 1
            self.last_swallowed = repr(error)

    def _enter(self, query: str, run: str, name: str | None) -> QueryStatus | None:
        """Make room for a query; None when there is none. Hold the lock."""
        if len(self._queries) >= self._most:
            oldest = next((each for each in self._ended if each not in self._waiting), None)
            if oldest is None:
                self.dropped += 1
                return None
            del self._ended[oldest]
            del self._queries[oldest]
        return QueryStatus(self._name_of(name, query), query, run, name)

    def _put(self, status: QueryStatus) -> None:
        """Take over a status that the authority should hear of. Hold the lock."""
        query = status.query
        self._queries[query] = status
        self._ended.pop(query, None)
        if status.state == "ended":
            self._ended[query] = None
        if query in self._waiting:
            self.conflated += 1
        else:
            self._waiting[query] = self._clock()
            self.changed.notify_all()

    # -- the sender's side -------------------------------------------------------------------------

    def take(self) -> Saying | None:
        """Return the newest of a query that waits, of those that may be sent now the one that waits longest; None without one."""
        with self.changed:
            now = self._clock()
            for query, due in self._waiting.items():
                if due <= now:
                    del self._waiting[query]
                    status = self._queries[query]
                    micros = status.watermark.micros
                    return Saying(
                        status.computation, query, None if micros == MIN else micros, ended=status.state == "ended"
                    )
        return None

    def within(self) -> float | None:
        """Return in how many seconds there is something to take; None when nothing waits.

        Hold ``changed``.
        """
        return max(0.0, min(self._waiting.values()) - self._clock()) if self._waiting else None

    def waits(self, query: str) -> bool:
        """Return whether there is something to say of a query."""
        with self.changed:
            return query in self._waiting

    def reported(self, query: str, watermark: int, published: int) -> None:
        """The authority has taken over what was said of a query."""
        self._note(query, reported=Watermark(watermark), published=Watermark(published), problem="")

    def failed(self, query: str, problem: str, *, again: float) -> None:
        """The authority did not take it over: say the newest again after so many seconds at the earliest."""
        with self.changed:
            self._note(query, problem=problem)
            if query in self._queries:
                self._waiting[query] = self._clock() + again

    def look_again(self, query: str, after: float) -> None:
        """What was said of a query depends on its inputs: say the newest again after so many seconds, or when Spark says something new."""
        with self.changed:
            if query in self._queries:
                self._waiting.setdefault(query, self._clock() + after)

    def refused(self, query: str, problem: str) -> None:
        """The authority will not take it over, and there is nothing to say before Spark says something new."""
        self._note(query, problem=problem)

    def _note(self, query: str, **changes: Watermark | str) -> None:
        with self.changed:
            if query not in self._queries:
                return  # it had ended, and room was made while its end was said
            self._queries[query] = replace(self._queries[query], **changes)  # type: ignore[arg-type]  # by name

    def queries(self) -> tuple[QueryStatus, ...]:
        """Return how the queries stand, in the order in which they were first seen."""
        with self.changed:
            return tuple(self._queries.values())
