"""State of one claim in its worker: what is staged, and how much of it the authority has."""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lowwater.core.columns import Column, Handles, everything_but
from lowwater.core.fold import Fold
from lowwater.core.lateness import Arrivals, Arrived, Lateness
from lowwater.errors import FinishRequired, TooFarAhead
from lowwater.histogram import MOST_RECORDS, Histogram
from lowwater.views import NO_REMARKS, Refusal, Remarks
from lowwater.watermark import MAX

__all__ = ["GroupState", "LeaseState", "Mass", "RecentSlots", "Report"]


_OF_VALUES: Final = frozenset({TooFarAhead.reason, FinishRequired.reason})
"""Reasons of refusals that concern single values, and leave the mass of the same report valid."""

_SLOT_SECONDS: Final = 60
_SLOTS: Final = 10
"""Length and number of the slots that count a claim's lately finished records."""


@dataclass(frozen=True, slots=True)
class Mass:
    """Share of a claim in "the record timestamps in the system" (MillWheel 7.2), as on the wire."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    recent: int
    frontiers: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    """Further finished records of a slice, with their frontiers."""
    unknown: bool = False
    """True when a slice does not have the mass of all its claims."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """One claim's part of a report; no ``handles`` means all, an integer counts for all."""

    computation: str
    sequencer: int
    handles: Handles[int] | None
    values: array[int] | int
    finish: bool
    input_version: int
    input_incarnations: tuple[int, ...]
    oldest_operation: int
    mass: Mass | None
    turn: int
    waiting_for: str = ""
    lateness: Lateness | None = None
    remarks: Remarks = NO_REMARKS

    @property
    def count(self) -> int:
        """Number of 64-bit words on the wire, about."""
        handles = 0 if self.handles is None else len(self.handles) // 2
        return handles + (1 if isinstance(self.values, int) else len(self.values))


@dataclass(frozen=True, slots=True)
class Report:
    """One message up a report stream."""

    number: int
    groups: tuple[GroupState, ...]


class RecentSlots:
    """Records finished in the last ten one-minute slots that had any.

    Empty slots are left out, so that an idle claim keeps its weight. Time is any clock in seconds;
    when it goes back, the newest slot takes the count. All operations are O(1).

    >>> recent = RecentSlots()
    >>> for minute in range(12):
    ...     recent.add(1, now=minute * 60.0)
    >>> recent.total
    10
    """

    __slots__ = ("_newest", "_slots", "total")

    def __init__(self) -> None:
        self._slots: deque[int] = deque()
        self._newest = 0
        self.total: int = 0

    def add(self, finished: int, now: float) -> None:
        """Count records as finished at a time, in seconds. Raises ValueError if negative."""
        if finished < 0:
            raise ValueError(f"finished={finished}: a number of records cannot be negative")
        if not finished:
            return
        slot = int(now // _SLOT_SECONDS)
        self.total += finished
        if self._slots and slot <= self._newest:
            self._slots[-1] += finished
            return
        self._newest = slot
        self._slots.append(finished)
        if len(self._slots) > _SLOTS:
            self.total -= self._slots.popleft()


class LeaseState:
    """State machine of one claim in its worker.

    A range's watermark is min(its oldest work, fold), both from one call of the worker. The fold is
    the snapshot that the worker passed, and is never replaced by a newer one (rule 5: the inputs
    were read before the work was looked at). A range that the worker has not mentioned yet holds at
    the claim's start.

    Costs: staging is O(handles named), or O(ranges) for a full column. :meth:`take` is O(handles
    that changed) while the fold does not move; when it moves, O(exceptions) for a sparse column and
    O(ranges) for a dense one.
    """

    def __init__(
        self,
        computation: str,
        sequencer: int,
        watermarks: Column,
        *,
        incarnation: int = 0,
        epoch: int = 0,
        input_version: int = 0,
        input_incarnations: tuple[int, ...] = (),
        reference: int,
        budgets: Mapping[int, int] | None = None,
    ) -> None:
        self.computation = computation
        self.sequencer = sequencer
        self.incarnation = incarnation
        self.epoch = epoch
        self.count: int = watermarks.count
        self.reference = reference
        """Event time from which histograms count ages: the newest that the authority sent, in
        microseconds."""
        self.version: int = 0
        """Version of the staged state; it grows with every one, 0 before the first."""
        self.durable: int = 0
        """Newest version that the authority took over whole and durably; it stays while refused
        ranges wait."""
        self.answered: int = 0
        """Newest version that the authority answered, whatever it refused of it."""
        self.lost: dict[int, str] = {}
        """Reasons by handle of ranges that a newer claim, a reset or a retirement took. Not filled
        when all are lost."""
        self.lost_all: str = ""
        """Reason why the whole claim is stale; empty while it is not."""
        self.turn: int = 0
        """Number of times that reporting began with the full state. The authority orders reports by
        it, whatever stream brings them."""
        self.rests_until: float = float("-inf")
        """Time until which the claim has used up its pace, on the reporter's clock."""
        self.finished: set[int] = set()
        self.finished_all: bool = False

        self._oldest = watermarks.copy()
        self._fold = Fold(MAX, (), input_version, input_incarnations)
        self._oldest_operation = 0
        self._waiting_for = ""
        self._remarks = NO_REMARKS
        self._pending: Histogram | None = None
        self.whole_mass: Mass | None = None
        self.whole_lateness: Lateness | None = None
        """Values of a whole slice, sent instead of those that are counted here."""
        self._recent = RecentSlots()
        self.arrivals: Arrivals | None = Arrivals(budgets) if budgets else None
        """Lateness of its records; None without a lateness budget."""

        # The state that the open stream has carried; None: none yet, so the next report is the full
        # state.
        self._sent: Column | None = None
        self._sent_mass: Mass | None = None
        self._sent_lateness: Lateness | None = None
        self._sent_operation = 0
        self._sent_waiting_for = ""
        self._sent_remarks = NO_REMARKS
        # Handles that may differ from what was sent; None: all.
        self._dirty: set[int] | None = None
        # Last refusal while a refused handle waits to be taken over, and all handles that wait;
        # None: all.
        self._last_refusal: Refusal | None = None
        self._refused: set[int] | None = set()
        # Handles to send again unchanged, because they were refused; None: all.
        self._again: set[int] | None = set()

    # -- staged by the worker ----------------------------------------------------------------------

    def advance(
        self,
        fold: Fold,
        oldest: int | Mapping[int, int] | Column,
        *,
        pending: Histogram | None = None,
        finished: int = 0,
        times: Sequence[int] = (),
        arrived: Arrived | None = None,
        oldest_operation: int = 0,
        waiting_for: str = "",
        remarks: Remarks = NO_REMARKS,
        now: float,
    ) -> None:
        """Stage a new state.

        ``oldest``: event times in microseconds, MAX for "holds nothing"; one for all ranges, one
        for each of some handles, or one for every range. ``pending``: None keeps the last
        histogram. ``times``: event times of finished records, where they are known; ``arrived``:
        lateness of records whose times are not. ``now``: any clock in seconds, which counts lately
        finished records.
        """
        if isinstance(oldest, Column):
            self._oldest = oldest
            self._dirty = None
        elif isinstance(oldest, int):
            self._oldest = Column(self.count, oldest)
            self._dirty = None
        else:
            self._oldest.update(oldest)
            if self._dirty is not None:
                self._dirty.update(oldest)
        if fold.low != self._fold.low or not self.version:
            self._dirty = None
        self._fold = fold
        self._recent.add(finished, now)
        if pending is not None:
            self._pending = pending
        elif self._oldest.holds_nothing:
            # No range holds anything, so no record is pending.
            self._pending = Histogram(self.reference)
        self._oldest_operation = oldest_operation
        self._waiting_for = waiting_for
        self._remarks = remarks
        self._stage()
        if self.arrivals is not None:
            frontier = max((micros for _, micros in fold.frontiers), default=fold.low)
            self.arrivals.add(times, frontier, self.version)
            if arrived is not None and arrived.counts:
                self.arrivals.add_counted(arrived, frontier, self.version)

    def finish(self, handles: Iterable[int] | None) -> None:
        """Stage that no more data will come in some ranges; None: in all."""
        if handles is None:
            self.finished_all = True
            self._dirty = None
        else:
            self.finished.update(handles)
            self.finished_all = self.finished_all or len(self.finished) == self.count
            if self._dirty is not None:
                self._dirty.update(self.finished)
        self._stage()

    def _stage(self) -> None:
        self.version += 1
        self._retry()

    # -- carried by the stream ---------------------------------------------------------------------

    def reconnect(self) -> None:
        """Forget what the authority has: a new stream begins with the full state."""
        # A turn without a report can be used again.
        self.turn += self._sent is not None or not self.turn
        self._sent = self._sent_mass = self._sent_lateness = self._dirty = None
        self._again = set()

    def take(self) -> GroupState | None:
        """Return the unsent part of the newest state, and count it as sent; None for nothing."""
        if not self.version or self.lost_all or len(self.lost) == self.count:
            return None
        mass = self._mass()
        if mass == self._sent_mass:
            mass = None
        late = self._lateness()
        if late == self._sent_lateness:
            late = None
        handles = self._changed()
        if handles is not None and not len(handles):
            sent = self._sent_operation, self._sent_waiting_for, self._sent_remarks
            if mass is None and late is None and sent == (self._oldest_operation, self._waiting_for, self._remarks):
                return None
            return self._group(self._one_handle(), mass, late)
        return self._group(handles, mass, late)

    def beat(self) -> GroupState | None:
        """Return a repetition of what was sent, by one range, to keep the last report fresh.

        Refused ranges or a refused mass are added. None when there is nothing to repeat: also after
        the report that the worker has ended, which is to be its last.
        """
        if self._sent is None or self.lost_all or len(self.lost) == self.count:
            return None
        unsent = (self._pending is not None and self._sent_mass is None) or (
            self._sent_lateness is None and self._lateness() is not None
        )
        if self._last_refusal is not None or unsent:
            self._retry()
            group = self.take()
            if group is not None:
                return group
        over = self.finished_all or self._sent_remarks.ended
        return None if over else self._group(self._one_handle(), None)

    def _changed(self) -> Handles[int] | None:
        """Bring what was sent up to date; returns the live handles to send, None for all."""
        handles: Handles[int] | None
        if self._sent is None or self._dirty is None:
            values = self._values()
            handles = None if self._sent is None else self._sent.differences(values)
            self._sent = values
        else:
            changed: list[int] = []
            for handle in self._dirty:
                value = self._value(handle)
                if self._sent[handle] != value:
                    self._sent[handle] = value
                    changed.append(handle)
            handles = array("I", sorted(changed))
        self._dirty = set()
        if self._again is None:
            handles = None
        elif self._again and handles is not None:
            handles = array("I", sorted({*handles, *self._again}))
        self._again = set()
        if handles is None:
            return everything_but(self.count, self.lost)
        return array("I", [handle for handle in handles if handle not in self.lost]) if self.lost else handles

    def _values(self) -> Column:
        if self.finished_all:
            return Column(self.count, MAX)
        values = self._oldest.at_most(self._fold.low)
        values.update(dict.fromkeys(self.finished, MAX))
        return values

    def _value(self, handle: int) -> int:
        finished = self.finished_all or handle in self.finished
        return MAX if finished else min(self._oldest[handle], self._fold.low)

    def _one_handle(self) -> Handles[int]:
        live = (handle for handle in range(self.count) if handle not in self.lost)
        first = next(live)
        return array("I", [next((one for one in itertools.chain([first], live) if one not in self.finished), first)])

    def _mass(self) -> Mass | None:
        if self.whole_mass is not None:
            return self.whole_mass
        if self._pending is None:
            return None
        self._pending.age(self.reference)
        starts, counts = self._pending.columns()
        # Both together stay below the most records that the authority accepts of one claim.
        recent = min(self._recent.total, max(0, MOST_RECORDS - sum(counts)))
        return Mass(tuple(starts), tuple(counts), recent, self._fold.frontiers)

    def _lateness(self) -> Lateness | None:
        if self.whole_lateness is not None:
            return self.whole_lateness
        return self.arrivals.to_report() if self.arrivals is not None else None

    def _group(self, handles: Handles[int] | None, mass: Mass | None, late: Lateness | None = None) -> GroupState:
        assert self._sent is not None
        one = self._sent.value_of(handles)
        values = self._sent.values(handles) if one is None else one
        self._sent_operation = self._oldest_operation
        self._sent_waiting_for = self._waiting_for
        self._sent_remarks = self._remarks
        self._sent_mass = mass or self._sent_mass
        self._sent_lateness = late or self._sent_lateness
        return GroupState(
            self.computation,
            self.sequencer,
            handles,
            values,
            self.finished_all or bool(self.finished) or self._fold.low == MAX,
            self._fold.input_version,
            self._fold.input_incarnations,
            self._oldest_operation,
            mass,
            self.turn,
            self._waiting_for,
            late,
            self._remarks,
        )

    # -- answered by the authority -----------------------------------------------------------------

    def lose(self, handles: Iterable[int] | None, reason: str) -> None:
        """Mark ranges as lost to another owner. None: all of them."""
        if handles is not None:
            new = dict.fromkeys(handles, reason)
            self.lost.update(new)
            self.accept(array("I", new))
            self.acknowledge(self.answered)
        if handles is None or len(self.lost) == self.count:
            self.lost_all = self.lost_all or reason

    def acknowledge(self, version: int) -> None:
        """Take the answer to all versions up to one; all are durable unless refused ranges wait."""
        self.answered = max(self.answered, version)
        if self._last_refusal is None and not self.lost_all:
            self.durable = self.answered
            if self.arrivals is not None:
                self.arrivals.answered(self.durable)

    @property
    def refusal(self) -> Refusal | None:
        """Return the last refusal, of all handles that wait; None once all were taken over."""
        last = self._last_refusal
        if last is None:
            return None
        return Refusal(last.reason, last.message, None if self._refused is None else tuple(sorted(self._refused)))

    def refuse(self, refusal: Refusal) -> None:
        """Add refused ranges; they go out again with each state or beat until they are accepted.

        The mass is sent again as well, unless only values of named ranges were refused: the refusal
        may concern the mass, or the fold that its frontiers come from.
        """
        self._last_refusal = refusal
        if refusal.handles is None or refusal.reason not in _OF_VALUES:
            self._sent_mass = self._sent_lateness = None
        if refusal.handles is None:
            self._refused = None
        elif self._refused is not None:
            self._refused.update(refusal.handles)
            self._refused.difference_update(self.lost)
            if not self._refused:
                self._last_refusal = None

    def accept(self, handles: Handles[int] | None) -> None:
        """Take ranges as taken over; None: all. O(handles) while refused ones wait, else O(1)."""
        if self._last_refusal is None:
            return
        if handles is None:
            self._refused = set()
        else:
            waiting = set(range(self.count)).difference(self.lost) if self._refused is None else self._refused
            waiting.difference_update(handles)
            self._refused = waiting
        if not self._refused:
            self._last_refusal = None

    def _retry(self) -> None:
        if self._last_refusal is None or self._again is None:
            return
        if self._refused is None:
            self._again = None
        else:
            self._again.update(self._refused)
