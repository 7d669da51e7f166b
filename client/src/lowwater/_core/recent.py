"""How many records were finished lately: the weight of a claim in its computation's heuristic watermarks."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["RecentSlots"]

_SECONDS: Final = 60
_SLOTS: Final = 10


class RecentSlots:
    """Records finished in the last ten one-minute slots that had any.

    Only slots with work are kept, so that idleness changes nobody's weight. Time is any clock in seconds; when it goes
    back, the newest slot takes the count. All operations are O(1).

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
        self.total = 0

    def add(self, finished: int, now: float) -> None:
        """Count records as finished at a time, in seconds. Raises ValueError when there are fewer than none."""
        if finished < 0:
            msg = f"finished={finished}: a number of records cannot be negative"
            raise ValueError(msg)
        if not finished:
            return
        slot = int(now // _SECONDS)
        self.total += finished
        if self._slots and slot <= self._newest:
            self._slots[-1] += finished
            return
        self._newest = slot
        self._slots.append(finished)
        if len(self._slots) > _SLOTS:
            self.total -= self._slots.popleft()
