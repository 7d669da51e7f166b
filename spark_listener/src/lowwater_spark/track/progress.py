"""What a tracked stage may claim, and when it needs a batch. Pure: no I/O, no clock, no threads.

Two questions are kept apart:

* Which W may batch N *use*, for example to close windows? The newest one whose head lies within
  what is planned up to N; of sources whose plans do not say which rows will be read, within what is
  committed up to N - 1, and confirmed.
* Which W may the stage *report*? The newest one whose head lies within what is committed.

A report made from an older committed batch stays true for ever: with head(W) in committed batches,
everything that comes later is at or after W, so min(what was held then, the lowest stamp at or
after W) bounds all that the stage will emit. That is why reports may be renewed while the next
batch runs, and why a late or repeated one harms nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from lowwater.watermark import MAX, MIN
from lowwater_spark.sources.base import Awaited
from lowwater_spark.sources.head import Candidates
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading, floor_stamp
from lowwater_spark.track.segments import Due

__all__ = ["RELIST", "Committed", "Progress", "bound_of", "passed_on", "stamped"]

RELIST: Final = 5.0
"""Seconds after which the sources are listed again for a reading that still waits."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed batch: how far it reaches, the W it ran with, and what the stage holds after it."""

    batch: int = NOTHING
    lines: Sequence[Any] = ()
    """Per source: its offset, which only the source understands."""
    reading: Reading = UNREAD
    held: Sequence[int | None] = ()
    """The oldest stamp that each range holds; empty: no range holds anything."""
    pending: tuple[Sequence[int], Sequence[int]] = field(default=((), ()))
    """Histogram of the records held."""
    spark_bound: int = MAX
    """The lowest stamp of what may still come out of Spark's own state, of any range, microseconds:
    the watermark that the batch ran with, less the declared retention. MAX: the plan keeps nothing
    in Spark's state."""
    due: Due | None = None
    """When it has something to do without any row; None when its update does not tell."""


class Progress:
    """The stage's side of the protocol, fed with what was read from files and from the authority.

    ``ranges`` is the number of key ranges; ``window`` the length of the windows by whose start the
    stage stamps what it emits, None when it stamps by event time; ``start`` the time by which those
    windows are shifted. Costs: O(ranges), beside what
    :class:`~lowwater_spark.sources.head.Candidates` says.
    """

    def __init__(
        self,
        ranges: int,
        window: timedelta | None,
        sources: Sequence[Awaited[Any, Any]],
        committed: Committed,
        start: timedelta = timedelta(),
    ) -> None:
        self.committed = committed
        self.holding = ""
        """Why the stage renews nothing: the last committed batch did not reach the authority whole.
        Empty: it does."""
        self._ranges = ranges
        self._window = window
        self._start = start
        self.inputs: Origin | None = None
        """What is registered; None while it is unknown, and for an injector."""
        self._observed = UNREAD
        self._listed = 0.0
        self._candidates = Candidates[Reading](sources)
        self._reading = committed.reading

    @property
    def reading(self) -> Reading:
        """The newest reading that counts for the committed state."""
        return self._reading

    @property
    def promised(self) -> int:
        """What no row of the next batch should be below, microseconds: the inputs have promised it, and Spark has let go of all that is older.

        By the watermark that the committed batch ran with, and not by that of the next one: what lies between the two comes out in the next one.
        """
        return min(self._reading.low, self.committed.spark_bound)

    def restart(self, committed: Committed) -> None:
        """Begin from a durable state, forgetting what was counted before."""
        self.committed = committed
        self._reading = committed.reading

    def relay(self, ranges: int, held: Sequence[int | None]) -> None:
        """Take notice that the key space is cut otherwise: into so many ranges, which hold what the committed batch has left."""
        self._ranges = ranges
        self.committed = dataclasses.replace(self.committed, held=held)

    def must_list(self, reading: Reading, now: float) -> bool:
        """Return whether the sources must be listed: for a reading that is news, or again for one that waits, since files vanish.

        ``now`` is in seconds, of any clock that does not go back.
        """
        return reading != self._observed or (len(self._candidates) > 0 and now - self._listed >= RELIST)

    def observe(self, reading: Reading, heads: Sequence[Any], now: float, planned: Sequence[Any]) -> None:
        """Take a reading of the inputs, and the heads of all sources, listed after it.

        ``planned`` is how far the newest planned batch goes, looked up after the listing; the
        source logs must have been read so far.
        """
        if reading == self._observed:
            self._candidates.relist(heads, planned)
        else:
            self._candidates.add(reading, heads, planned)
        self._observed = reading
        self._listed = now

    def choose(self, lines: Sequence[Any]) -> Reading:
        """Return the reading that a batch may use which is known to read up to these lines.

        Never below one that was used before.
        """
        return _later(self._reading, self._candidates.newest_reached(lines, forget=False))

    def settle(self, committed: Committed, holding: str) -> None:
        """A batch is committed.

        ``holding`` says why the authority does not know it whole; empty: it does.
        """
        if self.is_outdated(committed.reading):
            # A replay runs with the W of its first run, also after the inputs were changed; nothing
            # was read of the new ones then.
            committed = dataclasses.replace(committed, reading=UNREAD)
        self.committed = committed
        self.holding = holding
        self._reading = _later(self._reading, committed.reading)

    def is_outdated(self, reading: Reading) -> bool:
        """Return whether a reading is of other inputs than the registered ones.

        A later version than theirs is news, and counts.
        """
        if self.inputs is None or reading.low == MIN:
            return False
        return reading.input_version < self.inputs.version or reading.origin.since(self.inputs) is Change.RESET

    def renew(self) -> Reading:
        """Return the newest reading that counts now."""
        self._reading = _later(self._reading, self._candidates.newest_reached(self.committed.lines, forget=True))
        return self._reading

    def bound(self, reading: Reading) -> int:
        """Return the lowest stamp that a range can still emit which holds nothing by itself, microseconds."""
        return bound_of(self.committed, reading, self._window, self._start)

    def stamped(self, reading: Reading) -> Reading:
        """Return a reading with its heuristic watermarks as those of what the stage emits."""
        return stamped(self.committed, reading, self._window, self._start)

    def advance(self, reading: Reading) -> None:
        """Take a reading that counts for the committed state and that was found elsewhere: in another stage of the query."""
        self._reading = _later(self._reading, reading)

    def values(self, reading: Reading) -> list[int]:
        """Return where each range stands, microseconds: what it holds, or the lowest stamp that a later row can produce."""
        bound = self.bound(reading)
        held = self.committed.held
        if not held:
            return [bound] * self._ranges
        return [bound if oldest is None else min(oldest, bound) for oldest in held]

    def would_close(self) -> bool:
        """Return whether a batch with the newest reading would close something that the stage holds.

        Only a reading that the last batch did not have can: what that one left open stays open until W moves on. It runs with no more than what
        Spark still holds; when Spark's own watermark has moved, Spark runs a batch without being asked.
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
        """Return whether a batch would find something to do by its clock, ``now`` being microseconds since the epoch."""
        due = self.committed.due
        return due is not None and due.wall is not None and due.wall <= now

    @property
    def waits(self) -> bool:
        """Whether a reading waits for what stood in the sources then."""
        return len(self._candidates) > 0

    def waiting_for(self) -> list[str]:
        """Return some of the paths that keep the oldest waiting reading from counting."""
        return self._candidates.missing()


def passed_on(state: Committed, reading: Reading, window: timedelta | None) -> Reading:
    """Return what a later stage of the query may count on, when this one stands so: nothing older comes out of it.

    Its records move on at its frontier as long as it holds none; of one that holds some, the low watermark is what is known.
    """
    held = [stamp for stamp in state.held if stamp is not None]
    low = min([*held, bound_of(state, reading, window)])
    return Reading(low, dict.fromkeys(reading.heuristics, low) if held else stamped(state, reading, window).heuristics)


def bound_of(state: Committed, reading: Reading, window: timedelta | None, start: timedelta = timedelta()) -> int:
    """Return the lowest stamp that a stage can still emit when it stands so and holds nothing by itself, microseconds."""
    return floor_stamp(min(reading.low, state.spark_bound), window, start)


def stamped(state: Committed, reading: Reading, window: timedelta | None, start: timedelta = timedelta()) -> Reading:
    """Return a reading with its heuristic watermarks as those of what a stage emits that stands so.

    Of the rows in Spark's state nobody knows the distribution, so no share of them is beyond the
    lowest stamp that they can have.
    """
    shares = {
        share: floor_stamp(min(micros, state.spark_bound), window, start)
        for share, micros in reading.heuristics.items()
    }
    return dataclasses.replace(reading, heuristics=shares)


def _later(old: Reading, new: Reading | None) -> Reading:
    """Return the later of two readings: the new one unless it is behind, as when an input became unknown."""
    return old if new is None or new.low < old.low or new.low == MIN else new
