"""Groups: adjoining ranges of one claim, or a stretch without a claim. And masses of records."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lowwater.views import NO_REMARKS, Remarks
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowwater_authority.core.budget import Arrivals
    from lowwater_authority.core.columns import Int64s


MOST_RECORDS: Final = 2**40
"""Most records in one claim's mass, so that sums over all claims stay exact in 64 bits."""

SLOT: Final = 60 * 1_000_000
"""Width of a slot of recently finished records: one minute of processing time."""

SLOTS: Final = 10
"""Number of slots that count. Only slots with work do, so that an idle claim keeps its weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Mass:
    """A claim's pending and recently finished records by event time."""

    starts: Int64s
    """Least event times of the buckets of pending records, microseconds, ascending."""
    counts: Int64s
    """Pending records by bucket."""
    recent: int = 0
    """Recently finished records."""
    frontiers: Mapping[int, int] = field(default_factory=dict)
    """F(p) in microseconds by p in parts per million."""
    others: tuple[Mass, ...] = ()
    """Finished records of other claims of a slice: masses without pending records, one for each
    set of frontiers."""
    unknown: bool = False
    """True when the slice has claims whose mass is not known."""

    @property
    def parts(self) -> tuple[Mass, ...]:
        """This mass and its ``others``."""
        return (self, *self.others)

    def at_unknown(self) -> Mass:
        """Return the mass with all frontiers at MIN."""
        frontiers = dict.fromkeys(self.frontiers, MIN)
        return replace(self, frontiers=frontiers, others=tuple(other.at_unknown() for other in self.others))

    def at_most(self, limit: int) -> Mass:
        """Return the mass with all frontiers but MAX lowered to a time."""
        frontiers = {share: at if at == MAX else min(at, limit) for share, at in self.frontiers.items()}
        return replace(self, frontiers=frontiers, others=tuple(other.at_most(limit) for other in self.others))

    def same(self, other: Mass | None) -> bool:
        """Return True when another mass has equal content."""
        return (
            other is not None
            and self.recent == other.recent
            and self.frontiers == other.frontiers
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.counts, other.counts)
            and self.unknown == other.unknown
            and len(self.others) == len(other.others)
            and all(a.same(b) for a, b in zip(self.others, other.others, strict=True))
        )


NO_RECORDS: Final[Int64s] = np.zeros(0, dtype=np.int64)
"""The columns of an empty histogram."""


@dataclass(slots=True)
class RecentSlots:
    """Records finished in the last ten one-minute slots that had any."""

    slots: list[tuple[int, int]] = field(default_factory=list)

    def add(self, now: int, finished: int) -> None:
        """Count records finished at a processing time."""
        if finished <= 0:
            return
        minute = now // SLOT
        if self.slots and self.slots[-1][0] >= minute:
            self.slots[-1] = (self.slots[-1][0], self.slots[-1][1] + finished)
        else:
            self.slots = [*self.slots[-(SLOTS - 1) :], (minute, finished)]

    def keep(self, part: int, whole: int) -> None:
        """Keep a part of the records of each minute, rounded down."""
        self.slots = [(minute, finished * part // whole) for minute, finished in self.slots]

    @property
    def total(self) -> int:
        """All counted records."""
        return sum(count for _, count in self.slots)


class GroupState(enum.IntEnum):
    """The ownership of a group. The numbers are part of the journal's format."""

    NEVER = 0
    """Never claimed: MIN."""
    OWNED = 1
    """Owned by a claim that may report."""
    UNOWNED = 2
    """Released, revoked, or a remainder of a claim that lost keys: holds its last values."""
    RETIRED = 3
    """Retired by an operator: counts as MAX."""


@dataclass(slots=True, eq=False)
class Group:
    """The ranges ``[bounds[p], bounds[p + 1])`` for each place ``p``, in slots ``base + p``.

    Owners name a range by its *handle*, its index in the claimed bounds, for as long as the claim
    counts. Its *place* is the index in this group. Handle and place are equal until ranges are lost
    and :meth:`shrink` leaves one place for each stretch of lost ones; from then on ``handles`` has
    the first handle of each place. A place is *live* while its range belongs to this group; a newer
    claim takes ranges away. ``live`` is None while all places are live. A stretch that no claim
    names has the sequencer 0.
    """

    sequencer: int
    bounds: Bounds
    base: int
    state: GroupState
    live: npt.NDArray[np.bool_] | None = None
    live_count: int = 0
    worker: str = ""
    host: str = ""
    request_id: bytes = b""
    senders: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Newest applied report, (stream, number), by sender; (turn, number) under OWN_TURNS."""
    oldest_operation: int = 0
    """Oldest operation that its owner last reported, microseconds; 0: none. It stays after a
    release and after all ranges are finished."""
    last_report: int = 0
    """Processing time of the last report, claim or release; 0: not known. After a recovery it is
    the time of the last report that changed anything: others are not journaled."""
    claimed: int = 0
    """Processing time of the claim; 0: not known. Not in a snapshot: only a log that has the claim
    gives it back."""
    waiting_for: str = ""
    """Cause for which its worker waits, as last reported, for people. Not journaled: the next
    report has it again."""
    ahead: str = ""
    """Message about the last value that was refused because it leads the clock by more than
    max_skew. Empty once such a value is accepted. Not journaled."""
    ahead_handles: npt.NDArray[np.intp] | None = None
    """Handles, ascending, of the ranges whose values were refused as too far ahead of the clock and
    not accepted since. None: there are none."""
    remarks: Remarks = NO_REMARKS
    """Newest remarks that its worker reported about itself, for people. Only those of a worker that
    has released its ranges are journaled."""
    heard: bool = False
    """True if this process has granted the claim or taken a report of it, and so knows its remarks.
    """
    mass: Mass | None = None
    mass_known: bool = False
    """True when ``mass``, or else ``stand_ins``, describes exactly the live ranges."""
    stand_ins: list[Mass] = field(default_factory=list)
    """Masses of the groups that this one has replaced as a whole, until its own is reported."""
    finished: bool = False
    """True when every live range is at MAX."""
    recent: RecentSlots = field(default_factory=RecentSlots)
    """Records that its committed micro-batches finished recently."""
    arrivals: Arrivals | None = None
    """Reported lateness of its records; None: none reported."""
    arrived_before: tuple[int, int] | None = None
    """Weight of the groups that it has replaced: their least frontier, and their recent records. It
    counts until this group has had as many records itself."""
    order: tuple[int, int] = (0, 0)
    """Greatest (generation, ordinal) of all claims of its ranges."""
    slice_budgets: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Budgets of a slice by share in ppm: watermark, all records, and records behind it."""
    handles: npt.NDArray[np.intp] | None = None
    """First handle of each place, ascending; None: place p is handle p."""
    granted: int = 0
    """Number of handles of the claim, live or not."""
    gaps: int = 0
    """Number of stretches of places that are not live."""

    def __post_init__(self) -> None:
        """Begin with a place for each handle."""
        self.granted = self.granted or self.count

    @property
    def count(self) -> int:
        """Number of places, live or not."""
        return len(self.bounds) - 1

    @property
    def spare(self) -> int:
        """Places that :meth:`shrink` would give back. O(1)."""
        return self.count - self.live_count - self.gaps

    def come_from(self, owner: Group) -> None:
        """Note who owned these ranges last: they are those that a claim has lost."""
        self.worker, self.host, self.last_report = owner.worker, owner.host, owner.last_report
        self.order = owner.order

    def slots(self) -> slice:
        """Return the slots of all places."""
        return slice(self.base, self.base + self.count)

    def place_at(self, key: bytes) -> int:
        """Return the place whose range contains ``key``, which must lie within the bounds.

        O(log n).
        """
        return bisect_right(self.bounds, key, 0, self.count) - 1

    def place_to(self, key: bytes) -> int:
        """Return the first place whose range starts at or after ``key`` (empty: no upper bound).

        O(log n).
        """
        return self.count if not key else bisect_left(self.bounds, key, 0, self.count)

    def drop(self, low: int, high: int) -> None:
        """Make the places ``[low, high)`` no longer live. They must be. O(n)."""
        if self.live is None:
            self.live = np.ones(self.count, dtype=np.bool_)
        joins = (low > 0 and not self.live[low - 1]) + (high < self.count and not self.live[high])
        self.gaps += 1 - joins
        self.live[low:high] = False
        self.live_count -= high - low

    def live_places(self) -> npt.NDArray[np.intp]:
        """Return the live places, ascending. O(n)."""
        return np.arange(self.count) if self.live is None else np.flatnonzero(self.live)

    def places_of(self, handles: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the places of handles, each below ``granted``.

        O(handles), times a logarithm after a shrink.
        """
        return handles if self.handles is None else np.searchsorted(self.handles, handles, side="right") - 1

    def handles_of(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the handles of live places. O(n)."""
        return places if self.handles is None else self.handles[places]

    def lost(self, handles: npt.NDArray[np.intp] | None) -> npt.NDArray[np.bool_]:
        """Return a mask of the handles, None: of all, whose ranges are lost.

        O(handles) as :meth:`places_of`.
        """
        if self.live is None:
            return np.zeros(self.granted if handles is None else len(handles), dtype=np.bool_)
        if handles is not None:
            return ~self.live[self.places_of(handles)]
        lost = np.ones(self.granted, dtype=np.bool_)
        lost[self.handles_of(self.live_places())] = False
        return lost

    def refuse_ahead(self, handles: npt.NDArray[np.intp], words: str) -> None:
        """Note that values of some handles are refused as too far ahead. O(n log n)."""
        self.ahead = words
        before = handles[:0] if self.ahead_handles is None else self.ahead_handles
        self.ahead_handles = np.union1d(handles, before)

    def accept(self, handles: npt.NDArray[np.intp] | None) -> None:
        """Note that values of some handles, None: of all, are accepted. O(n log n)."""
        refused = self.ahead_handles
        if refused is not None:
            refused = refused[:0] if handles is None else np.setdiff1d(refused, handles)
            self.ahead, self.ahead_handles = (self.ahead, refused) if len(refused) else ("", None)

    def ahead_at(self, place: int) -> str:
        """Return why a live place's value is refused as too far ahead; empty: it is not.

        O(log n).
        """
        if self.ahead_handles is None:
            return ""
        handle = place if self.handles is None else self.handles[place]
        at = np.searchsorted(self.ahead_handles, handle)
        return self.ahead if at < len(self.ahead_handles) and self.ahead_handles[at] == handle else ""

    def shrink(self) -> npt.NDArray[np.intp] | None:
        """Leave one place for each stretch of lost places; return the old numbers of the others.

        None: all stay, because less than a quarter could go. Bounds of millions of ranges are not
        copied for a few. O(n), or O(1) when all stay.
        """
        if 4 * self.spare <= self.count or self.live is None:
            return None
        places = np.flatnonzero(self.live | np.concatenate(([True], self.live[:-1])))
        self.bounds = Bounds([*(self.bounds[place] for place in places.tolist()), self.bounds[-1]])
        self.handles = self.handles_of(places)
        self.live = self.live[places]
        return places

    def arrived(self) -> tuple[int, int] | None:
        """Return its frontier and its weight in R, in recent records; None: neither is known.

        Until its own are reported, it has the frontier and the weight of the groups it replaced. It
        weighs as much until it has had as many records itself.
        """
        if self.arrivals is None:
            return self.arrived_before
        before = 0 if self.arrived_before is None else self.arrived_before[1]
        return self.arrivals.frontier, max(self.arrivals.recent.total, before)

    def keep_arrived(self, part: int, whole: int) -> None:
        """Keep a part of its weight in R; the rest goes with the ranges that it has lost."""
        if self.arrivals is not None:
            self.arrivals.recent.keep(part, whole)
        if self.arrived_before is not None:
            self.arrived_before = self.arrived_before[0], self.arrived_before[1] * part // whole

    def lower_arrived(self, bound: int) -> None:
        """Lower its frontiers of lateness to a bound."""
        if self.arrivals is not None:
            self.arrivals.frontier = min(self.arrivals.frontier, bound)
        if self.arrived_before is not None:
            self.arrived_before = min(self.arrived_before[0], bound), self.arrived_before[1]

    def masses(self) -> list[Mass]:
        """Return the masses that stand for the group's records."""
        return self.stand_ins if self.mass is None else list(self.mass.parts)


def before(key: bytes, end: bytes) -> bool:
    """Return True when a key lies before an end bound, where empty means no upper bound."""
    return not end or key < end


def earlier_end(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two end bounds, where empty means no upper bound."""
    if not a or not b:
        return a or b
    return min(a, b)
