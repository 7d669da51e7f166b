"""A pile of records by event time, which finds the time from which on a share of them lies.

The times are in sorted chunks. Recent changes are in one small column of their own, which goes into
the chunks when it is full. So a change costs what it changes, a reading costs the number of chunks
plus one of them, and neither sorts all times.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lowwater_authority.core.columns import Int64s
from lowwater_authority.core.times import MIN

CHUNK: Final = 16_384
"""Times in a chunk; at most twice as many."""

FRESH: Final = 4_096
"""Most recently changed times: merging them into two million others takes some 10 ms."""

NONE: Final[Int64s] = np.zeros(0, dtype=np.int64)


class Pile:
    """Counts of records by event time. No count may be below 0.

    Cost: :meth:`change` is O(times changed x log) and now and then O(``FRESH`` chunks);
    :meth:`reached` O(chunks + ``CHUNK`` + more). 16 bytes a time.
    """

    __slots__ = ("_bounds", "_counts", "_fresh_counts", "_fresh_times", "_sums", "_times", "total")

    def __init__(self) -> None:
        self.total = 0
        """All counts."""
        self._bounds: Int64s = np.array([MIN], dtype=np.int64)
        """Least time that may be in each chunk, ascending."""
        self._times: list[Int64s] = [NONE]
        self._counts: list[Int64s] = [NONE]
        self._sums: Int64s = np.zeros(1, dtype=np.int64)
        self._fresh_times: Int64s = NONE
        self._fresh_counts: Int64s = NONE

    def change(self, times: Int64s, counts: Int64s) -> None:
        """Add counts at times, in any order and repeated; negative counts subtract."""
        if not len(times):
            return
        self.total += int(counts.sum())
        self._fresh_times, self._fresh_counts = _summed(
            np.concatenate([self._fresh_times, times]), np.concatenate([self._fresh_counts, counts])
        )
        if len(self._fresh_times) > FRESH:
            self._settle()

    def reached(self, needed: int, times: Int64s, counts: Int64s) -> int:
        """Return the greatest time with at least ``needed`` records at or above it. Exact.

        ``times`` and ``counts`` are further records that count in this call only. ``needed`` is
        above 0, and at most the number of all records.
        """
        more_times, more_counts = _summed(
            np.concatenate([self._fresh_times, times]), np.concatenate([self._fresh_counts, counts])
        )
        above = _above(self._sums) + _from(more_times, more_counts, self._bounds)
        # The last chunk with enough records in and above it.
        chunk = int(np.flatnonzero(above >= needed)[-1])
        beyond = int(above[chunk + 1]) if chunk + 1 < len(above) else 0
        some_times, some_counts = self._merged(chunk, more_times, more_counts)
        enough = np.cumsum(some_counts[::-1]) + beyond >= needed
        return int(some_times[::-1][int(np.argmax(enough))])

    def greatest(self) -> int:
        """Return the greatest time that has records; MIN when there are none."""
        for chunk in range(len(self._times) - 1, -1, -1):
            times, _ = self._merged(chunk, self._fresh_times, self._fresh_counts)
            if len(times):
                return int(times[-1])
        return MIN

    def _merged(self, chunk: int, times: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
        """Return a chunk merged with the other times that belong to it."""
        low = np.searchsorted(times, self._bounds[chunk])
        high = np.searchsorted(times, self._bounds[chunk + 1]) if chunk + 1 < len(self._bounds) else len(times)
        return _summed(
            np.concatenate([self._times[chunk], times[low:high]]),
            np.concatenate([self._counts[chunk], counts[low:high]]),
        )

    def _settle(self) -> None:
        """Merge the recent changes into the chunks."""
        times, counts = self._fresh_times, self._fresh_counts
        self._fresh_times, self._fresh_counts = NONE, NONE
        chunks = np.unique(np.searchsorted(self._bounds, times, side="right") - 1)
        changed = {int(chunk): self._merged(int(chunk), times, counts) for chunk in chunks}
        bounds: list[int] = []
        merged: list[tuple[Int64s, Int64s]] = []
        for chunk, bound in enumerate(self._bounds.tolist()):
            some = changed.get(chunk, (self._times[chunk], self._counts[chunk]))
            if merged and len(merged[-1][0]) + len(some[0]) <= CHUNK // 2:
                merged[-1] = np.concatenate([merged[-1][0], some[0]]), np.concatenate([merged[-1][1], some[1]])
                continue
            for low in range(0, len(some[0]), CHUNK) if len(some[0]) > 2 * CHUNK else (0,):
                high = low + CHUNK if len(some[0]) > 2 * CHUNK else len(some[0])
                bounds.append(bound if not low else int(some[0][low]))
                merged.append(
                    (some[0][low:high].copy(), some[1][low:high].copy()) if low or high < len(some[0]) else some
                )
        self._bounds = np.array(bounds, dtype=np.int64)
        self._times, self._counts = [times for times, _ in merged], [counts for _, counts in merged]
        self._sums = np.array([counts.sum() for counts in self._counts], dtype=np.int64)

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        assert self._bounds[0] == MIN
        assert (self._bounds[1:] > self._bounds[:-1]).all()
        assert len(self._fresh_times) <= FRESH
        for chunk, (times, counts) in enumerate(zip(self._times, self._counts, strict=True)):
            assert len(times) == len(counts) <= 2 * CHUNK
            assert (times[1:] > times[:-1]).all()
            assert (counts != 0).all()
            assert int(counts.sum()) == self._sums[chunk]
            assert not len(times) or times[0] >= self._bounds[chunk]
            assert not len(times) or chunk + 1 == len(self._bounds) or times[-1] < self._bounds[chunk + 1]
            assert (self._merged(chunk, self._fresh_times, self._fresh_counts)[1] > 0).all()
        assert int(self._sums.sum() + self._fresh_counts.sum()) == self.total


def _summed(times: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Return the times ascending, each once and only where the sum of its counts is not 0."""
    if not len(times):
        return times, counts
    order = np.argsort(times, kind="stable")
    times, counts = times[order], counts[order]
    first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    sums = np.add.reduceat(counts, first)
    present = sums != 0
    return times[first][present], sums[present]


def _above(sums: Int64s) -> Int64s:
    """Return, for each place, the sum from there on."""
    return np.cumsum(sums[::-1])[::-1]


def _from(times: Int64s, counts: Int64s, bounds: Int64s) -> Int64s:
    """Return how many of sorted times are at or above each bound."""
    return np.append(_above(counts), 0)[np.searchsorted(times, bounds)]
