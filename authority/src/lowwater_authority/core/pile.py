"""A pile of records by event time, that changes a little at a time: how many lie at or above a time, and from where a share of them does.

Sorted columns in chunks, and in front of them one small column of what changed lately, which goes into the chunks when it is full. So a
change costs what it changes, and a question the number of chunks and one of them; no question and no change sorts the whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lowwater_authority.core.columns import Int64s
from lowwater_authority.core.times import MIN

CHUNK: Final = 16_384
"""Times in a chunk, at most twice as many."""

FRESH: Final = 4_096
"""Times that changed lately, at most: to bring as many into two million others takes some 10 ms."""

NONE: Final[Int64s] = np.zeros(0, dtype=np.int64)


class Pile:
    """Counts by event time. The net count of no time may be below 0.

    Cost: :meth:`change` is O(times changed x log) and now and then O(``FRESH`` chunks);
    :meth:`reached` O(chunks + ``CHUNK`` + more). 16 bytes a time.
    """

    __slots__ = ("_bounds", "_counts", "_fresh_counts", "_fresh_times", "_sums", "_times", "total")

    def __init__(self) -> None:
        self.total = 0
        """All counts."""
        self._bounds: Int64s = np.array([MIN], dtype=np.int64)
        """The least time that may be in each chunk, ascending."""
        self._times: list[Int64s] = [NONE]
        self._counts: list[Int64s] = [NONE]
        self._sums: Int64s = np.zeros(1, dtype=np.int64)
        self._fresh_times: Int64s = NONE
        self._fresh_counts: Int64s = NONE

    def change(self, times: Int64s, counts: Int64s) -> None:
        """Add counts at times, in any order and perhaps the same ones several times; a count below 0 takes away."""
        if not len(times):
            return
        self.total += int(counts.sum())
        self._fresh_times, self._fresh_counts = _summed(
            np.concatenate([self._fresh_times, times]), np.concatenate([self._fresh_counts, counts])
        )
        if len(self._fresh_times) > FRESH:
            self._settle()

    def reached(self, needed: int, times: Int64s, counts: Int64s) -> int:
        """Return the greatest time with at least ``needed`` records at or above it, of these and of some more, which are not kept.

        ``needed`` is above 0, and no more than there are. Exact.
        """
        more_times, more_counts = _summed(
            np.concatenate([self._fresh_times, times]), np.concatenate([self._fresh_counts, counts])
        )
        above = _above(self._sums) + _from(more_times, more_counts, self._bounds)
        # The last chunk from whose beginning on there are enough.
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
        """Return a chunk with those of other times that belong to it."""
        low = np.searchsorted(times, self._bounds[chunk])
        high = np.searchsorted(times, self._bounds[chunk + 1]) if chunk + 1 < len(self._bounds) else len(times)
        return _summed(
            np.concatenate([self._times[chunk], times[low:high]]),
            np.concatenate([self._counts[chunk], counts[low:high]]),
        )

    def _settle(self) -> None:
        """Bring what changed lately into the chunks."""
        times, counts = self._fresh_times, self._fresh_counts
        self._fresh_times, self._fresh_counts = NONE, NONE
        chunks = np.unique(np.searchsorted(self._bounds, times, side="right") - 1)
        changed = {int(chunk): self._merged(int(chunk), times, counts) for chunk in chunks}
        bounds: list[int] = []
        kept: list[tuple[Int64s, Int64s]] = []
        for chunk, bound in enumerate(self._bounds.tolist()):
            some = changed.get(chunk, (self._times[chunk], self._counts[chunk]))
            if kept and len(kept[-1][0]) + len(some[0]) <= CHUNK // 2:
                kept[-1] = np.concatenate([kept[-1][0], some[0]]), np.concatenate([kept[-1][1], some[1]])
                continue
            for low in range(0, len(some[0]), CHUNK) if len(some[0]) > 2 * CHUNK else (0,):
                high = low + CHUNK if len(some[0]) > 2 * CHUNK else len(some[0])
                bounds.append(bound if not low else int(some[0][low]))
                kept.append(
                    (some[0][low:high].copy(), some[1][low:high].copy()) if low or high < len(some[0]) else some
                )
        self._bounds = np.array(bounds, dtype=np.int64)
        self._times, self._counts = [each for each, _ in kept], [each for _, each in kept]
        self._sums = np.array([each.sum() for each in self._counts], dtype=np.int64)

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
