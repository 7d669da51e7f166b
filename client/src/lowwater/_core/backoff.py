"""How long to wait before trying again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["CAP", "Backoff"]

FIRST: Final = 0.1
"""Upper bound of the first delay, in seconds."""

CAP: Final = 5.0
"""Upper bound of every delay, in seconds."""


class Backoff:
    """Exponential backoff with full jitter: the n-th delay is uniform between 0 and ``min(CAP, FIRST * 2**n)`` seconds.

    Full jitter spreads the reconnects of a thousand workers over the whole interval, instead of in waves. ``random`` returns
    floats in [0, 1).
    """

    __slots__ = ("_attempt", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._attempt = 0

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        bound = min(CAP, FIRST * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        return bound * self._random()

    def reset(self) -> None:
        """Start over, after an attempt that worked."""
        self._attempt = 0
