"""What one claim's ranges are at: the newest state its worker staged, and how much of it the authority knows."""

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
"""Refusals of single values, which leave the mass in the same report alone."""

_SLOT_SECONDS: Final = 60
_SLOTS: Final = 10
"""Of which size, and how many of them, tell how much a claim has finished lately."""


@dataclass(frozen=True, slots=True)
class Mass:
    """A claim's share of "the record timestamps in the system" (MillWheel 7.2), as it goes on the wire."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    recent: int
    frontiers: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    """Of a slice: more finished records, by their frontiers."""
    unknown: bool = False
    """Of a slice: whether it does not know of all its claims."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """One claim's part of a report.

    ``handles`` None means all; an integer in ``values`` stands for all the handles.
    """

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
        """How many 64-bit words it takes on the wire, about."""
        handles = 0 if self.handles is None else len(self.handles) // 2
        return handles + (1 if isinstance(self.values, int) else len(self.values))


@dataclass(frozen=True, slots=True)
class Report:
    """One message up a report stream."""

    number: int
    groups: tuple[GroupState, ...]


class RecentSlots:
    """Records finished in the last ten one-minute slots that had any.

    Only slots with work are kept, so that idleness changes nobody's weight. Time is any clock in
    seconds; when it goes back, the newest slot takes the count. All operations are O(1).

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
        """Count records as finished at a time, in seconds.

        Raises ValueError when there are fewer than none.
        """
        if finished < 0:
            msg = f"finished={finished}: a number of records cannot be negative"
            raise ValueError(msg)
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
    """The state machine of one claim in its worker.

    A range's watermark is min(what it holds, fold), both as the worker staged them in one call: the
    fold is the snapshot it passed in, and nothing here ever replaces it by a newer one (rule 5: the
    inputs were read before the work was looked at). Ranges the worker has not spoken of yet hold
    where the claim found them.

    Costs: staging is O(handles named), or O(ranges) for a full column. :meth:`take` is O(handles
    that changed) while the fold stands still, and when it moves O(exceptions) for a sparse column,
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
        """Where the ages of histograms count from: the newest that the authority told."""
        self.version: int = 0
        """Grows with every staged state; 0 before the first."""
        self.durable: int = 0
        """The newest version that the authority took over, durably and whole: not while refused
        ranges wait."""
        self.answered: int = 0
        """The newest version that the authority answered, whatever it refused of it."""
        self.lost: dict[int, str] = {}
        """Handles that a newer claim, a reset or a retirement took, and why. Not filled when all
        are lost."""
        self.lost_all: str = ""
        """Why the whole claim is stale; empty while it is not."""
        self.turn: int = 0
        """How often it began to be reported with its full state: the authority orders its reports
        by it, whatever stream they take."""
        self.rests_until: float = float("-inf")
        """Until when it has reported as often as it may, on the reporter's clock."""
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
        """Of a slice: what is told in place of what is counted here."""
        self._recent = RecentSlots()
        self.arrivals: Arrivals | None = Arrivals(budgets) if budgets else None
        """How late its records were; None: the computation has no lateness budget."""

        # What this stream has carried; None: nothing yet, so the next report is the full state.
        self._sent: Column | None = None
        self._sent_mass: Mass | None = None
        self._sent_lateness: Lateness | None = None
        self._sent_operation = 0
        self._sent_waiting_for = ""
        self._sent_remarks = NO_REMARKS
        # Where it may differ from the staged state; None: anywhere.
        self._dirty: set[int] | None = None
        # The last refusal while something refused waits to be taken over, and all the handles that
        # wait; None: all.
        self._last_refusal: Refusal | None = None
        self._refused: set[int] | None = set()
        # Handles to send again although nothing changed, for they were refused; None: all.
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

        ``oldest`` in microseconds, MAX for "holds nothing": one for all ranges, some handles', or
        every range's. ``pending`` None keeps the last one. ``times`` are the event times of what
        was finished, as far as they are known; ``arrived`` says how late records were whose times
        are not. ``now`` is any clock in seconds, for counting what was finished lately.
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
            # Nothing is held anywhere, so nothing is pending.
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
        """Stage that nothing will ever come in some ranges, or in all."""
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
        """Forget what the authority knows: a new stream begins with the full state."""
        self.turn += self._sent is not None or not self.turn  # one by which nothing was sent is as good as new
        self._sent = self._sent_mass = self._sent_lateness = self._dirty = None
        self._again = set()

    def take(self) -> GroupState | None:
        """Return what the authority does not know yet of the newest state, and count it as sent; None when it knows all."""
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
            said = self._sent_operation, self._sent_waiting_for, self._sent_remarks
            if mass is None and late is None and said == (self._oldest_operation, self._waiting_for, self._remarks):
                return None
            return self._group(self._one_handle(), mass, late)
        return self._group(handles, mass, late)

    def beat(self) -> GroupState | None:
        """Return a repetition of what was sent, by one range: it keeps the claim's last report fresh.

        What was refused, ranges or the mass, comes along. None when there is nothing to repeat.
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
        return None if self.finished_all else self._group(self._one_handle(), None)

    def _changed(self) -> Handles[int] | None:
        """Bring what was sent up to the newest state.

        Returns the live handles that have to go; None: all of them.
        """
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
        return array("I", [h for h in handles if h not in self.lost]) if self.lost else handles

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
        return array("I", [next((h for h in itertools.chain([first], live) if h not in self.finished), first)])

    def _mass(self) -> Mass | None:
        if self.whole_mass is not None:
            return self.whole_mass
        if self._pending is None:
            return None
        self._pending.age(self.reference)
        starts, counts = self._pending.columns()
        # Together at most what the authority takes of one claim.
        recent = min(self._recent.total, max(0, MOST_RECORDS - sum(counts)))
        return Mass(tuple(starts), tuple(counts), recent, self._fold.frontiers)

    def _lateness(self) -> Lateness | None:
        if self.whole_lateness is not None:
            return self.whole_lateness
        return self.arrivals.told() if self.arrivals is not None else None

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
        """Give up ranges that somebody else owns now. None: all of them."""
        if handles is not None:
            new = dict.fromkeys(handles, reason)
            self.lost.update(new)
            self.accept(array("I", new))
            self.acknowledge(self.answered)
        if handles is None or len(self.lost) == self.count:
            self.lost_all = self.lost_all or reason

    def acknowledge(self, version: int) -> None:
        """Everything up to a version was answered; it is durable unless refused ranges wait."""
        self.answered = max(self.answered, version)
        if self._last_refusal is None and not self.lost_all:
            self.durable = self.answered
            if self.arrivals is not None:
                self.arrivals.answered(self.durable)

    @property
    def refusal(self) -> Refusal | None:
        """What the authority refused to take over for other reasons, with the last of them; None once it took all over."""
        last = self._last_refusal
        if last is None:
            return None
        return Refusal(last.reason, last.message, None if self._refused is None else tuple(sorted(self._refused)))

    def refuse(self, refusal: Refusal) -> None:
        """Add ranges whose state was not taken over; they are sent again with the next state or beat, until they are.

        The mass is sent again too, unless only values of named ranges were refused: the refusal may be of the mass, or of the
        fold that its frontiers come from.
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
        """Ranges (None: all) that were sent have been taken over.

        O(handles) while refused ones wait, else O(1).
        """
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
