"""A circuit breaker: after some failures in a row nothing is tried for a while, then one attempt decides."""

from __future__ import annotations

from typing import Final

__all__ = ["Breaker"]

FAILURES: Final = 3
"""Failures in a row that open it."""

FIRST_WAIT: Final = 5.0
"""Seconds that it stays open at first; twice as long after each attempt that fails."""

LONGEST_WAIT: Final = 60.0


class Breaker:
    """Pure: the time is passed in, in seconds by any clock that does not go back. Used by one thread, read by any."""

    def __init__(self) -> None:
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last attempts failed. The next one is the probe that closes it, or keeps it open."""
        return self._until is not None

    def within(self, now: float) -> float:
        """Return in how many seconds an attempt may be made; 0 for now."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def succeeded(self) -> None:
        """An attempt got an answer."""
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until = None

    def failed(self, now: float) -> None:
        """An attempt got none."""
        self._failures += 1
        if self._failures >= FAILURES:
            self._until = now + self._wait
            self._wait = min(LONGEST_WAIT, 2 * self._wait)
