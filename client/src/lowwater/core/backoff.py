"""Pauses before another attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["CAP", "FIRST", "PATIENCE", "Backoff"]

FIRST: Final = 0.1
"""Most seconds of the first delay."""

CAP: Final = 5.0
"""Most seconds between two streams."""

PATIENCE: Final = 1.0
"""Most seconds between two calls: a shard that takes over is found this long after it did, at
most."""


class Backoff:
    """Exponential backoff with full jitter.

    The n-th delay is uniform between 0 and ``min(cap, FIRST * 2**n)`` seconds. Full jitter spreads
    the reconnects of a thousand workers over the whole interval, instead of waves. ``random``
    returns floats in [0, 1).
    """

    __slots__ = ("_attempt", "_cap", "_random")

    def __init__(self, random: Callable[[], float], cap: float = CAP) -> None:
        self._random = random
        self._cap = cap
        self._attempt = 0

    def next(self, at_least: float = 0.0) -> float:
        """Return the delay before the next attempt, in seconds.

        ``at_least``: seconds that the authority asked for. The callers that it asked wait between
        once and twice as long.
        """
        bound = min(self._cap, FIRST * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        delay = bound * self._random()
        return max(delay, self.spread(at_least)) if at_least else delay

    def spread(self, at_least: float) -> float:
        """Return a random time between once and twice the seconds that the authority asked for."""
        return at_least * (1.0 + self._random()) if at_least else 0.0

    def reset(self) -> None:
        """Start over after a successful attempt."""
        self._attempt = 0
