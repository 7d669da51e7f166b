"""The clock of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.kit.times import HOUR, SECOND

BEGINNING: Final = 1_000_000 * HOUR
"""The wall clock's time when the monotonic clock is at 0."""


class Clock:
    """A clock that a test moves. Called, it says seconds, as the monotonic clock of a process.

    ``over`` is a clock that goes by itself, such as the real one: then a test moves this one ahead of it.
    """

    def __init__(self, now: float = 100.0, over: Callable[[], float] | None = None) -> None:
        self.now = now
        """Seconds; ahead of the other clock, if there is one."""
        self.waits: list[float] = []
        """The seconds of each call of :meth:`wait`."""
        self._over = over

    def __call__(self) -> float:
        return self.now if self._over is None else self.now + self._over()

    def micros(self) -> int:
        return BEGINNING + int(self() * SECOND)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
