"""Growing numpy columns with a minimum kept by blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lowwater_authority.core.times import MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK: Final = 4096
"""Slots per block: recomputing one costs about 2 us, scanning 10 M slots' blocks about 2 us more.
"""

GROWTH: Final = 16
"""Factor by which full columns grow. Unused slots take no memory, but used ones are copied."""

MUCH: Final = 1 << 25
"""Slots, half a gigabyte of addresses, up to which GROWTH applies; then columns double."""

SAMPLE: Final = 8
"""Blocks that are sampled for each block of least values, to find which other blocks may have
one."""

Int64s = npt.NDArray[np.int64]
Slots = slice | npt.NDArray[np.intp]


class Columns:
    """Values of all ranges, and the time since when each range has its value.

    ``values[slot]`` is an event time in microseconds, MAX in free slots, so that these never hold
    the minimum. ``since[slot]`` is a processing time in microseconds.

    Allocation appends; the interval map moves to fresh columns when these are :attr:`wasteful`.
    Cost: 16 bytes a slot and 9 bytes a block. Slots after the last used block have no value and
    take no memory.
    """

    __slots__ = ("_block_min", "_dirty", "reclaimable", "since", "size", "used", "values")

    def __init__(self, capacity: int = BLOCK) -> None:
        blocks = max(1, -(-capacity // BLOCK))
        self.values: Int64s = np.empty(blocks * BLOCK, dtype=np.int64)
        self.since: Int64s = np.empty(blocks * BLOCK, dtype=np.int64)
        self._block_min: Int64s = np.full(blocks, MAX, dtype=np.int64)
        self._dirty: npt.NDArray[np.bool_] = np.zeros(blocks, dtype=np.bool_)
        self.size = 0
        self.used = 0
        self.reclaimable = 0
        """Number of slots that fresh columns would not need."""

    @property
    def bytes(self) -> int:
        """Memory of the columns."""
        return self._blocks * BLOCK * (self.values.itemsize + self.since.itemsize)

    @property
    def _blocks(self) -> int:
        """Number of used blocks."""
        return -(-self.size // BLOCK)

    @property
    def wasteful(self) -> bool:
        """True when more than half of the allocated slots can be reclaimed."""
        return 2 * self.reclaimable > self.size + BLOCK

    def allocate(self, values: Int64s, since: Int64s | int) -> int:
        """Append slots holding ``values`` and return the first. Amortised O(n)."""
        base, count, filled = self.size, len(values), self._blocks * BLOCK
        self._reserve(base + count)
        self.size = base + count
        self.values[filled : self._blocks * BLOCK] = MAX
        self.used += count
        self.set(slice(base, base + count), values)
        self.since[base : base + count] = since
        return base

    def free(self, base: int, count: int) -> None:
        """Take slots out of the minimum. O(n)."""
        self.set(slice(base, base + count), MAX)
        self.used -= count

    def set(self, slots: Slots, values: Int64s | int) -> None:
        """Store values and mark the touched blocks. O(n)."""
        self.values[slots] = values
        if isinstance(slots, slice):
            if slots.stop > slots.start:
                self._dirty[slots.start // BLOCK : (slots.stop - 1) // BLOCK + 1] = True
        else:
            self._dirty[slots // BLOCK] = True

    def minimum(self) -> int:
        """Return the least value of all slots, MAX when there are none.

        O(dirty blocks + blocks).
        """
        self._refresh()
        return int(self._block_min.min())

    def argmin(self) -> int:
        """Return a slot that holds the minimum: the first one.

        O(dirty blocks + blocks + one block).
        """
        self._refresh()
        block = int(self._block_min.argmin())
        return block * BLOCK + int(self.values[block * BLOCK : (block + 1) * BLOCK].argmin())

    def least(self, count: int) -> npt.NDArray[np.intp]:
        """Return the slots of the ``count`` least values below MAX, least first.

        Of equal values any. O(dirty blocks + blocks + slots of the blocks that may have one), which
        are ``count`` blocks at most.
        """
        if not count or not self.size:
            return np.zeros(0, dtype=np.intp)
        self._refresh()
        most = min(self._bound(count), MAX - 1)
        blocks, rest, some = np.flatnonzero(self._block_min < most), np.flatnonzero(self._block_min == most), 1
        if count < len(blocks):
            blocks = blocks[np.argpartition(self._block_min[blocks], count - 1)[:count]]
        if 2 * len(blocks) > self._blocks:
            slots, rest = np.flatnonzero(self.values[: self.size] <= most), rest[:0]
        else:
            slots = self._up_to(most, blocks)
        # Any slots with exactly this value will do: all slots may have it.
        while len(slots) < count and len(rest):
            slots = np.concatenate((slots, self._up_to(most, rest[:some])))
            rest, some = rest[some:], 2 * some
        if count < len(slots):
            slots = slots[np.argpartition(self.values[slots], count)[:count]]
        return slots[np.argsort(self.values[slots], kind="stable")]

    def _up_to(self, most: int, blocks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the slots of some blocks with a value up to ``most``, which is below MAX."""
        places = np.flatnonzero(self.values.reshape(-1, BLOCK)[blocks] <= most)
        return blocks[places // BLOCK] * BLOCK + places % BLOCK

    def _bound(self, count: int) -> int:
        """Return a small value that ``count`` slots do not exceed, if there are as many."""
        least = self._block_min[: self._blocks]
        some = min(len(least), SAMPLE * -(-count // BLOCK))
        values = self.values.reshape(-1, BLOCK)[np.argpartition(least, some - 1)[:some]].reshape(-1)
        bounds = [MAX]
        if count <= len(values):
            bounds.append(int(np.partition(values, count - 1)[count - 1]))
        if count <= len(least):
            bounds.append(int(np.partition(least, count - 1)[count - 1]))
        return min(bounds)

    def count_below(self, limit: int) -> int:
        """Return the number of slots with a value below a limit.

        O(dirty blocks + blocks + slots of the blocks that have one).
        """
        self._refresh()
        blocks = np.flatnonzero(self._block_min < limit)
        if 2 * len(blocks) > self._blocks:
            return int(np.count_nonzero(self.values[: self.size] < limit))
        return int(np.count_nonzero(self.values.reshape(-1, BLOCK)[blocks] < limit))

    def at_most(self, limit: int, bases: Sequence[int]) -> npt.NDArray[np.intp]:
        """Return the numbers of slots with a value up to a limit, from each base to the next.

        The limit is below MAX. ``bases`` ascend, and the first is 0. O(dirty blocks + blocks +
        bases + slots from the first block that has one to the last): a million slots take about 1
        ms.
        """
        self._refresh()
        counts = np.zeros(len(bases), dtype=np.intp)
        blocks = np.flatnonzero(self._block_min <= limit)
        if len(blocks):
            low, high = int(blocks[0]) * BLOCK, min((int(blocks[-1]) + 1) * BLOCK, self.size)
            starts = np.asarray(bases, dtype=np.intp)
            first, last = np.searchsorted(starts, low, side="right") - 1, np.searchsorted(starts, high)
            sums = np.concatenate(([0], np.cumsum(self.values[low:high] <= limit, dtype=np.int32)))
            counts[first:last] = np.diff(sums[np.append(np.maximum(starts[first:last], low), high) - low])
        return counts

    def _refresh(self) -> None:
        dirty = np.flatnonzero(self._dirty)
        if len(dirty):
            self._block_min[dirty] = self.values.reshape(-1, BLOCK)[dirty].min(axis=1)
            self._dirty[dirty] = False

    def _reserve(self, size: int) -> None:
        have = len(self.values)
        if size <= have:
            return
        blocks = max(2 * have // BLOCK, min(GROWTH * have, MUCH) // BLOCK, -(-size // BLOCK))
        values, since = np.empty((2, blocks * BLOCK), dtype=np.int64)
        values[: self._blocks * BLOCK] = self.values[: self._blocks * BLOCK]
        since[: self.size] = self.since[: self.size]
        block_min = np.full(blocks, MAX, dtype=np.int64)
        block_min[: len(self._block_min)] = self._block_min
        dirty = np.zeros(blocks, dtype=np.bool_)
        dirty[: len(self._dirty)] = self._dirty
        self.values, self.since, self._block_min, self._dirty = values, since, block_min, dirty

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        assert 0 <= self.used <= self.size <= len(self.values) == len(self.since)
        assert len(self.values) % BLOCK == 0
        assert len(self._block_min) == len(self._dirty) == len(self.values) // BLOCK
        used = self.values[: self._blocks * BLOCK]
        assert (used[self.size :] == MAX).all()
        assert (self._block_min[self._blocks :] == MAX).all()
        assert not self._dirty[self._blocks :].any()
        clean = ~self._dirty[: self._blocks]
        assert (used.reshape(-1, BLOCK).min(axis=1)[clean] == self._block_min[: self._blocks][clean]).all()
        assert self.minimum() == int(used.min(initial=MAX))
