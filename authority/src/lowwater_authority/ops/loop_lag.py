"""How late the event loop is: what every client of this process feels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TICK: Final = 0.1
"""Seconds between two looks."""

MOST_MISSED: Final = 100
"""Ticks that one stall may count for: a process that was stopped for an hour was not late 36,000 times."""


class LoopLag:
    """Asks to be woken every ``TICK``, and tells by how many seconds that was late. To be made on the event loop.

    The ticks that were due while something held the loop count too, each by its own lateness: else a stall of two seconds would be one
    observation among six hundred a minute, and everybody who waited in it none (Tene 2013, "coordinated omission").
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + TICK
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        for _ in range(MOST_MISSED):
            self._observe(max(0.0, now - self._due))
            self._due += TICK
            if self._due > now:
                break
        else:
            self._due = now + TICK
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()
