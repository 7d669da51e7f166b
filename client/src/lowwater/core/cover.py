"""Index of items by the keys that they cover: a new claim is compared only with those it meets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

__all__ = ["Cover"]

Item = TypeVar("Item")

_FEW: Final = 16
"""Number of items up to which a sweep is not worth its cost."""


class Cover(Generic[Item]):
    """Items, each over the keys of ``[start, end)``; an empty ``end`` means no upper bound.

    The keys are cut where an item begins or ends, and each piece has the items over it in the order
    of addition. A call costs O(log items + pieces under the item), and moves O(items) pointers.
    Finished items need not be removed: once the number of items has doubled since the last sweep,
    the next :meth:`add` sweeps them out. In the long run that is a constant per call.
    """

    def __init__(self, is_finished: Callable[[Item], bool]) -> None:
        self._is_finished = is_finished
        self._spans: dict[Item, tuple[bytes, bytes]] = {}
        self._starts: list[bytes] = [b""]
        self._pieces: list[tuple[Item, ...]] = [()]
        self._sweep_at = _FEW

    def __len__(self) -> int:
        """Return the number of items. O(1)."""
        return len(self._spans)

    def __iter__(self) -> Iterator[Item]:
        """Iterate over a copy of the items in the order of addition, safe against other threads."""
        return iter(list(self._spans))

    def add(self, item: Item, start: bytes, end: bytes) -> list[Item]:
        """Add a new item; returns the others that have keys in common with it."""
        if len(self._spans) >= self._sweep_at:
            for finished in list(filter(self._is_finished, self._spans)):
                self.remove(finished)
            self._sweep_at = 2 * len(self._spans) + _FEW
        first = self._cut(start)
        last = self._cut(end) if end else len(self._pieces)
        overlapping = list(dict.fromkeys(chain.from_iterable(self._pieces[first:last])))
        for index in range(first, last):
            self._pieces[index] = (*self._pieces[index], item)
        self._spans[item] = start, end
        return overlapping

    def remove(self, item: Item) -> None:
        """Remove an item, if it is there."""
        span = self._spans.pop(item, None)
        if span is None:
            return
        start, end = span
        first = bisect_left(self._starts, start)
        last = bisect_left(self._starts, end) if end else len(self._pieces)
        for index in range(first, last):
            self._pieces[index] = tuple(other for other in self._pieces[index] if other is not item)
        for index in range(min(last, len(self._pieces) - 1), max(first, 1) - 1, -1):
            if self._pieces[index] == self._pieces[index - 1]:
                del self._starts[index], self._pieces[index]

    def _cut(self, key: bytes) -> int:
        """Cut at a key; returns the index of the piece that begins there."""
        index = bisect_left(self._starts, key)
        if index == len(self._starts) or self._starts[index] != key:
            self._starts.insert(index, key)
            self._pieces.insert(index, self._pieces[index - 1])
        return index
