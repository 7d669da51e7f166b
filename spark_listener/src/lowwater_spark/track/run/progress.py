"""The claims of a tracked stage, and its need of batches. Pure: no I/O, no clock, no threads.

Two questions are kept apart:

* Which low watermark W of the inputs may batch N *use*, for example to close windows? The newest
  one whose head (the rows that were in the sources when W had been read) is within the planned
  batches up to N; for sources whose plans do not name their rows, within the committed and
  confirmed batches up to N - 1.
* Which W may the stage *report*? The newest one whose head is within the committed batches.

A report from an older committed batch stays true for ever: with head(W) in committed batches, all
later rows are at or after W, so min(what was held then, the lowest stamp at or after W) bounds all
that the stage will emit. So reports may be renewed while the next batch runs, and a late or
repeated one harms nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from lowwater.watermark import MAX, MIN
from lowwater_spark.sources.base import Awaited
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.head import Candidates
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading
from lowwater_spark.track.rows.keyed import floor_stamp
from lowwater_spark.track.segments import Due

__all__ = ["RELIST", "AfterBatch", "Progress", "bound_of", "passed_on", "stamped"]

RELIST: Final = 5.0
"""Seconds between two listings of the sources for a reading that still waits."""


@dataclass(frozen=True, slots=True)
class AfterBatch:
    """A stage after a batch: the ends of the batch's rows, its reading, and what the stage holds.

    The state counts when the batch is committed: :attr:`Progress.committed` is the newest such.
    """

    batch: int = NOTHING
    lines: Sequence[Any] = ()
    """Offset of each source, which only the source understands."""
    reading: Reading = UNREAD
    held: Sequence[int | None] = ()
    """Oldest stamp that each range holds; empty: no range holds one."""
    pending: tuple[Sequence[int], Sequence[int]] = field(default=((), ()))
    """Histogram of the held records: bucket starts in microseconds, counts."""
    spark_bound: int = MAX
    """Lowest stamp that Spark's own state can still emit, microseconds: the batch's watermark less
    the declared retention. MAX: the plan keeps no rows in Spark's state."""
    due: Due | None = None
    """Times at which the stage acts without any row; None if its update does not say."""


class Progress:
    """The stage's side of the protocol, fed with results from files and from the authority.

    ``ranges`` is the number of key ranges; ``window`` the length of the windows whose start is the
    stamp, None if that is the event time; ``start`` the shift of the windows. Cost: O(ranges),
    besides that of :class:`~lowwater_spark.sources.head.Candidates`.
    """

    def __init__(
        self,
        ranges: int,
        window: timedelta | None,
        sources: Sequence[Awaited[Any, Any]],
        committed: AfterBatch,
        start: timedelta = timedelta(),
    ) -> None:
        self.committed = committed
        self.holding = ""
        """Why the authority does not know the last batch whole, so the stage holds; or empty."""
        self._ranges = ranges
        self._window = window
        self._start = start
        self.inputs: Origin | None = None
        """Registered inputs; None while they are unknown, and for an injector."""
        self._observed = UNREAD
        self._listed = 0.0
        self._candidates = Candidates[Reading](sources)
        self.reading = committed.reading
        """Newest reading that counts with the committed state."""

    @property
    def promised(self) -> int:
        """Event time below which a row of the next batch is late, microseconds.

        It is the least of the inputs' watermark and Spark's bound. Spark's bound follows from the
        committed batch's watermark: the next batch emits the rows from there to its own.
        """
        return min(self.reading.low, self.committed.spark_bound)

    def restart(self, committed: AfterBatch) -> None:
        """Begin with a durable state, and forget earlier readings."""
        self.committed = committed
        self.reading = committed.reading

    def relay(self, ranges: int, held: Sequence[int | None]) -> None:
        """Adopt another cut: its number of ranges, and the oldest stamp that each one holds."""
        self._ranges = ranges
        self.committed = dataclasses.replace(self.committed, held=held)

    def must_list(self, reading: Reading, now: float) -> bool:
        """Return whether the sources must be listed: for a new reading, or again for a waiting one.

        A waiting one needs it because files vanish. ``now`` is a monotonic clock's, seconds.
        """
        return reading != self._observed or (len(self._candidates) > 0 and now - self._listed >= RELIST)

    def observe(self, reading: Reading, heads: Sequence[Any], now: float, planned: Sequence[Any]) -> None:
        """Record a reading of the inputs, and the heads of all sources, listed after it.

        ``planned`` is the end of the newest planned batch, looked up after the listing; the source
        logs must have been read up to it.
        """
        if reading == self._observed:
            self._candidates.relist(heads, planned)
        else:
            self._candidates.add(reading, heads, planned)
        self._observed = reading
        self._listed = now

    def choose(self, lines: Sequence[Any]) -> Reading:
        """Return the reading that a batch may use if it is known to read up to these lines.

        It is never below one that was used before.
        """
        return _later(self.reading, self._candidates.newest_reached(lines, forget=False))

    def record(self, committed: AfterBatch, holding: str) -> None:
        """Record a committed batch.

        ``holding``: why the authority does not know it whole, or empty.
        """
        if self.is_outdated(committed.reading):
            # A replay runs with the inputs' watermark of its first run. If an input was added or
            # reset since, that watermark says nothing about its rows. If it were reported, they
            # could come out below it.
            committed = dataclasses.replace(committed, reading=UNREAD)
        self.committed = committed
        self.holding = holding
        self.reading = _later(self.reading, committed.reading)

    def is_outdated(self, reading: Reading) -> bool:
        """Return whether a reading belongs to other inputs than the registered ones.

        A reading of a later version than theirs is new, and counts.
        """
        if self.inputs is None or reading.low == MIN:
            return False
        return reading.input_version < self.inputs.version or reading.origin.since(self.inputs) is Change.RESET

    def renew(self) -> Reading:
        """Return the newest reading that counts now."""
        self.reading = _later(self.reading, self._candidates.newest_reached(self.committed.lines, forget=True))
        return self.reading

    def bound(self, reading: Reading) -> int:
        """Return the lowest stamp that a range without held stamps can still emit, microseconds."""
        return bound_of(self.committed, reading, self._window, self._start)

    def stamped(self, reading: Reading) -> Reading:
        """Return a reading with the heuristic watermarks of the stage's output."""
        return stamped(self.committed, reading, self._window, self._start)

    def advance(self, reading: Reading) -> None:
        """Adopt a reading that counts with the committed state, from another stage of the query."""
        self.reading = _later(self.reading, reading)

    def values(self, reading: Reading) -> list[int]:
        """Return each range's value, microseconds: its held stamp or the lowest of a later row."""
        bound = self.bound(reading)
        stamps = self.committed.held
        if not stamps:
            return [bound] * self._ranges
        return [bound if oldest is None else min(oldest, bound) for oldest in stamps]

    def would_close(self) -> bool:
        """Return whether a batch with the newest reading would close any held window or row.

        Only a reading above the last batch's can: what that batch left open stays open until W
        moves. The batch uses no more than the bound of Spark's own state; when Spark's watermark
        moves, Spark runs a batch by itself.
        """
        low = self.promised
        if low <= self.committed.reading.low:
            return False
        due = self.committed.due
        if due is not None:
            return due.low is not None and due.low <= low
        oldest = min((stamp for stamp in self.committed.held if stamp is not None), default=MAX)
        if oldest == MAX:
            return False
        length = 0 if self._window is None else self._window // timedelta(microseconds=1)
        return oldest + length <= low if length else oldest < low

    def would_fire(self, now: int) -> bool:
        """Return whether anything is due at ``now``, a batch's clock in epoch microseconds."""
        due = self.committed.due
        return due is not None and due.wall is not None and due.wall <= now

    @property
    def waits(self) -> bool:
        """True if a reading waits until the rows of its listing are committed."""
        return len(self._candidates) > 0

    def waiting_for(self) -> list[str]:
        """Return some of the paths for which the oldest reading waits."""
        return self._candidates.missing()


def passed_on(state: AfterBatch, reading: Reading, window: timedelta | None) -> Reading:
    """Return the reading on which a later stage may rely: the stage emits no lower stamp.

    Without held records the shares follow the stage's; otherwise only the low watermark is known.
    """
    stamps = [stamp for stamp in state.held if stamp is not None]
    low = min([*stamps, bound_of(state, reading, window)])
    return Reading(
        low, dict.fromkeys(reading.heuristics, low) if stamps else stamped(state, reading, window).heuristics
    )


def bound_of(state: AfterBatch, reading: Reading, window: timedelta | None, start: timedelta = timedelta()) -> int:
    """Return the lowest stamp, microseconds, that a stage without held stamps can still emit."""
    return floor_stamp(min(reading.low, state.spark_bound), window, start)


def stamped(state: AfterBatch, reading: Reading, window: timedelta | None, start: timedelta = timedelta()) -> Reading:
    """Return a reading with the heuristic watermarks of a stage's output.

    The distribution of the rows in Spark's state is unknown, so no share is above the lowest stamp
    that these rows can have.
    """
    shares = {
        share: floor_stamp(min(micros, state.spark_bound), window, start)
        for share, micros in reading.heuristics.items()
    }
    return dataclasses.replace(reading, heuristics=shares)


def _later(old: Reading, new: Reading | None) -> Reading:
    """Return the new reading, or the old one if the new one is lower or unknown."""
    return old if new is None or new.low < old.low or new.low == MIN else new
