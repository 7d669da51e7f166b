"""What covers which keys: the claims of one worker, so that a new one is compared with those that it meets, and not with all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

__all__ = ["Cover"]

Item = TypeVar("Item")

_FEW: Final = 16
"""So many items are not worth looking through for those that are over."""


class Cover(Generic[Item]):
    """Items, each over the keys of ``[start, end)``; an empty ``end`` means no upper bound.

    The keys are cut where an item begins or ends, and each piece knows the items over it, those
    added first in front. Costs of a call: O(log items + pieces under the item), and the moving of
    O(items) pointers. Nobody has to remove what is over: once as many items are there as twice
    those that were left the last time, those that are over go. In the long run that is a constant a
    call.
    """

    def __init__(self, over: Callable[[Item], bool]) -> None:
        self._over = over
        self._spans: dict[Item, tuple[bytes, bytes]] = {}
        self._starts: list[bytes] = [b""]
        self._pieces: list[tuple[Item, ...]] = [()]
        self._many = _FEW

    def __len__(self) -> int:
        """How many items there are. O(1)."""
        return len(self._spans)

    def __iter__(self) -> Iterator[Item]:
        """Go over the items that there are now, those added first in front, whatever another thread adds or removes meanwhile."""
        return iter(list(self._spans))

    def add(self, item: Item, start: bytes, end: bytes) -> list[Item]:
        """Add an item that is not there; returns the others that have keys in common with it."""
        if len(self._spans) >= self._many:
            for each in list(filter(self._over, self._spans)):
                self.remove(each)
            self._many = 2 * len(self._spans) + _FEW
        first = self._cut(start)
        last = self._cut(end) if end else len(self._pieces)
        met = list(dict.fromkeys(chain.from_iterable(self._pieces[first:last])))
        for index in range(first, last):
            self._pieces[index] = (*self._pieces[index], item)
        self._spans[item] = start, end
        return met

    def remove(self, item: Item) -> None:
        """Remove an item, if it is there."""
        span = self._spans.pop(item, None)
        if span is None:
            return
        start, end = span
        first = bisect_left(self._starts, start)
        last = bisect_left(self._starts, end) if end else len(self._pieces)
        for index in range(first, last):
            self._pieces[index] = tuple(each for each in self._pieces[index] if each is not item)
        for index in range(min(last, len(self._pieces) - 1), max(first, 1) - 1, -1):
            if self._pieces[index] == self._pieces[index - 1]:
                del self._starts[index], self._pieces[index]

    def _cut(self, key: bytes) -> int:
        """Have a piece begin at a key; returns its index."""
        index = bisect_left(self._starts, key)
        if index == len(self._starts) or self._starts[index] != key:
            self._starts.insert(index, key)
            self._pieces.insert(index, self._pieces[index - 1])
        return index
