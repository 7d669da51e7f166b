"""Groups: a claim's adjoining ranges, or a stretch that no claim names."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lowwater_authority.core.mass import Mass, RecentSlots

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """The ranges ``[bounds[h], bounds[h + 1])`` for each handle ``h``, in slots ``base + h``.

    A handle is *live* while the range belongs to this group; a newer claim takes handles away. ``live`` is
    None while all are. A stretch that no claim names has the sequencer 0.
    """

    sequencer: int
    bounds: Sequence[bytes]
    base: int
    state: GroupState
    live: npt.NDArray[np.bool_] | None = None
    live_count: int = 0
    worker: str = ""
    host: str = ""
    request_id: bytes = b""
    senders: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Newest report taken over, (stream, number), of each sender; of the claim's own turns under no name."""
    oldest_operation: int = 0
    """As it was told last; what was said before a release or the end of all ranges stays."""
    last_report: int = 0
    """Processing time of its last sign of life, a report or the claim itself; 0 when none is known. A report that changes nothing is
    not journaled, nor is this time of a claim: a recovery knows the last report that changed anything."""
    mass: Mass | None = None
    mass_known: bool = False
    """Whether ``mass``, or the stand-ins for it, describe exactly the ranges that are live."""
    stand_ins: list[Mass] = field(default_factory=list)
    """Masses of the groups this one replaced as a whole, until it tells its own."""
    finished: bool = False
    """Every live range is at MAX."""
    recent: RecentSlots = field(default_factory=RecentSlots)
    """Records its committed micro-batches finished lately."""

    @property
    def count(self) -> int:
        """Number of handles, live or not."""
        return len(self.bounds) - 1

    def slots(self) -> slice:
        """Return the slots of all handles."""
        return slice(self.base, self.base + self.count)

    def handle_at(self, key: bytes) -> int:
        """Return the handle whose range contains ``key``, which must lie within the bounds. O(log n)."""
        return bisect_right(self.bounds, key, 0, self.count) - 1

    def handle_to(self, key: bytes) -> int:
        """Return the first handle whose range starts at or after ``key`` (empty: no upper bound). O(log n)."""
        return self.count if not key else bisect_left(self.bounds, key, 0, self.count)

    def drop(self, low: int, high: int) -> None:
        """Make the handles ``[low, high)`` no longer live. They must be. O(n)."""
        if self.live is None:
            self.live = np.ones(self.count, dtype=np.bool_)
        self.live[low:high] = False
        self.live_count -= high - low

    def live_handles(self) -> npt.NDArray[np.intp]:
        """Return the live handles, ascending. O(n)."""
        return np.arange(self.count) if self.live is None else np.flatnonzero(self.live)

    def masses(self) -> list[Mass]:
        """Return the masses that stand for the group's records."""
        return self.stand_ins if self.mass is None else [self.mass]


def before(key: bytes, end: bytes) -> bool:
    """Whether ``key`` lies before an end bound, where empty means no upper bound."""
    return not end or key < end


def earlier_end(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two end bounds, where empty means no upper bound."""
    if not a or not b:
        return a or b
    return min(a, b)
