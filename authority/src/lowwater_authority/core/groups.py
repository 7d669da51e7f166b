"""Groups: a claim's adjoining ranges, or a stretch that no claim names.

And masses: what a claim says of its record timestamps.
"""

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
"""Of one claim's mass, so that sums over all claims stay exact in 64 bits."""

SLOT: Final = 60 * 1_000_000
"""Width of a slot of recently finished records: one minute of processing time."""

SLOTS: Final = 10
"""How many slots count. Only slots with work are kept, so idleness changes no claim's weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Mass:
    """A claim's share of the record timestamps.

    ``starts`` and ``counts`` are the buckets of its pending records (least event time in
    microseconds, records), ``recent`` its lately finished records, ``frontiers`` F(p) in
    microseconds by p in parts per million. A slice has the finished records of many claims:
    ``others`` are masses without pending records, one for each frontier, and ``unknown`` says that
    there are claims whose mass it does not know.
    """

    starts: Int64s
    counts: Int64s
    recent: int = 0
    frontiers: Mapping[int, int] = field(default_factory=dict)
    others: tuple[Mass, ...] = ()
    unknown: bool = False

    @property
    def parts(self) -> tuple[Mass, ...]:
        """All masses that it is made of."""
        return (self, *self.others)

    def at_unknown(self) -> Mass:
        """Return it with all frontiers at MIN."""
        frontiers = dict.fromkeys(self.frontiers, MIN)
        return replace(self, frontiers=frontiers, others=tuple(each.at_unknown() for each in self.others))

    def at_most(self, limit: int) -> Mass:
        """Return it with no frontier beyond a time, but MAX."""
        frontiers = {share: each if each == MAX else min(each, limit) for share, each in self.frontiers.items()}
        return replace(self, frontiers=frontiers, others=tuple(each.at_most(limit) for each in self.others))

    def same(self, other: Mass | None) -> bool:
        """Whether another mass has equal content."""
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

    def keep(self, part: int, of: int) -> None:
        """Leave a part of the records, the same one of each minute, rounded down."""
        self.slots = [(minute, finished * part // of) for minute, finished in self.slots]

    @property
    def total(self) -> int:
        """All counted records."""
        return sum(count for _, count in self.slots)


class GroupState(enum.IntEnum):
    """How a group stands. The numbers are part of the journal's format."""

    NEVER = 0
    """No owner has ever claimed it: MIN."""
    OWNED = 1
    """A claim that may report."""
    UNOWNED = 2
    """Released, revoked, or cut off from its claim: holds its last values."""
    RETIRED = 3
    """Taken out by an operator: counts as MAX."""


@dataclass(slots=True, eq=False)
class Group:
    """The ranges ``[bounds[p], bounds[p + 1])`` for each place ``p``, in slots ``base + p``.

    Owners name ranges by handle, the index in the bounds that they claimed, for as long as the
    claim counts. A place is where one stands here. They are the same until ranges are lost and
    :meth:`shrink` leaves one place for all that were lost side by side; ``handles`` says then which
    handle each place begins with. A place is *live* while its range belongs to this group; a newer
    claim takes places away. ``live`` is None while all are. A stretch that no claim names has the
    sequencer 0.
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
    """Newest report taken over, (stream, number), of each sender; of the claim's own turns under no
    name."""
    oldest_operation: int = 0
    """As it was told last; what was said before a release or the end of all ranges stays."""
    last_report: int = 0
    """Processing time of its last sign of life, a report or the claim itself; 0 when none is known.
    A report that changes nothing is not journaled, nor is this time of a claim: a recovery knows
    the last report that changed anything."""
    waiting_for: str = ""
    """What its worker said last that it waits for, for people. Never journaled: the worker's next
    report says it again."""
    ahead: str = ""
    """Message about the last value that was refused for leading the clock by more than max_skew.
    Empty once such a value is accepted. Not journaled."""
    ahead_handles: npt.NDArray[np.intp] | None = None
    """Handles, ascending, of the ranges whose values were refused as too far ahead of the clock and
    not accepted since. None: there are none."""
    remarks: Remarks = NO_REMARKS
    """Newest remarks that its worker reported about itself, for people. Not journaled."""
    mass: Mass | None = None
    mass_known: bool = False
    """Whether ``mass``, or the stand-ins for it, describe exactly the ranges that are live."""
    stand_ins: list[Mass] = field(default_factory=list)
    """Masses of the groups this one replaced as a whole, until it tells its own."""
    finished: bool = False
    """Every live range is at MAX."""
    recent: RecentSlots = field(default_factory=RecentSlots)
    """Records its committed micro-batches finished lately."""
    arrivals: Arrivals | None = None
    """What it has told of the lateness of its records; None: nothing."""
    arrived_before: tuple[int, int] | None = None
    """Until it had as many records lately as those that it replaced: how far the last of them was,
    and how many they all had."""
    order: tuple[int, int] = (0, 0)
    """The highest (generation, ordinal) that any of its ranges was claimed with."""
    kept: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of a slice, by lateness budget in ppm: its watermark, all records that came, and those of
    them that came behind."""
    handles: npt.NDArray[np.intp] | None = None
    """The first handle of each place, ascending; None: place p is handle p."""
    granted: int = 0
    """Number of handles of the claim, live or not."""
    gaps: int = 0
    """Stretches of places that are not live."""

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
        """Return where handles stand, each below ``granted``.

        O(handles), times a logarithm after a shrink.
        """
        return handles if self.handles is None else np.searchsorted(self.handles, handles, side="right") - 1

    def handles_of(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the handles of live places. O(n)."""
        return places if self.handles is None else self.handles[places]

    def lost(self, handles: npt.NDArray[np.intp] | None) -> npt.NDArray[np.bool_]:
        """Return which of some handles, None: of all, are not live any more.

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
        """Note that values of some handles are refused as too far ahead of the clock.

        O(n log n).
        """
        self.ahead = words
        before = handles[:0] if self.ahead_handles is None else self.ahead_handles
        self.ahead_handles = np.union1d(handles, before)

    def accept(self, handles: npt.NDArray[np.intp] | None) -> None:
        """Note that values of some handles are accepted, None: of all. O(n log n).

        The refusal of any other handle stays noted.
        """
        refused = self.ahead_handles
        if refused is not None:
            refused = refused[:0] if handles is None else np.setdiff1d(refused, handles)
            self.ahead, self.ahead_handles = (self.ahead, refused) if len(refused) else ("", None)

    def ahead_at(self, place: int) -> str:
        """Return why the clock holds the range in a live place, in words; empty: it does not.

        O(log n).
        """
        if self.ahead_handles is None:
            return ""
        handle = place if self.handles is None else self.handles[place]
        at = np.searchsorted(self.ahead_handles, handle)
        return self.ahead if at < len(self.ahead_handles) and self.ahead_handles[at] == handle else ""

    def shrink(self) -> npt.NDArray[np.intp] | None:
        """Leave one place for each stretch of places that are not live; returns the places that stay, as they were numbered. O(n).

        None: all stay, which costs nothing. So they do unless a quarter can go: the bounds of millions of ranges are not copied for a few.
        """
        if 4 * self.spare <= self.count or self.live is None:
            return None
        kept = np.flatnonzero(self.live | np.concatenate(([True], self.live[:-1])))
        self.bounds = Bounds([*(self.bounds[place] for place in kept.tolist()), self.bounds[-1]])
        self.handles = self.handles_of(kept)
        self.live = self.live[kept]
        return kept

    def arrived(self) -> tuple[int, int] | None:
        """Return how far it is and how many records it had lately; None: nothing is known of it.

        It weighs as much as those that it replaced until it has had as many records itself, and is
        where they were until it says something.
        """
        if self.arrivals is None:
            return self.arrived_before
        before = 0 if self.arrived_before is None else self.arrived_before[1]
        return self.arrivals.frontier, max(self.arrivals.recent.total, before)

    def keep_arrived(self, part: int, of: int) -> None:
        """Weigh no more than a part of what it did: the rest has gone to others with its ranges."""
        if self.arrivals is not None:
            self.arrivals.recent.keep(part, of)
        if self.arrived_before is not None:
            self.arrived_before = self.arrived_before[0], self.arrived_before[1] * part // of

    def lower_arrived(self, bound: int) -> None:
        """Be no further than a bound, as far as lateness goes."""
        if self.arrivals is not None:
            self.arrivals.frontier = min(self.arrivals.frontier, bound)
        if self.arrived_before is not None:
            self.arrived_before = min(self.arrived_before[0], bound), self.arrived_before[1]

    def masses(self) -> list[Mass]:
        """Return the masses that stand for the group's records."""
        return self.stand_ins if self.mass is None else list(self.mass.parts)


def before(key: bytes, end: bytes) -> bool:
    """Whether ``key`` lies before an end bound, where empty means no upper bound."""
    return not end or key < end


def earlier_end(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two end bounds, where empty means no upper bound."""
    if not a or not b:
        return a or b
    return min(a, b)
