"""The greatest low watermark that a computation's reporters allow."""

from __future__ import annotations

import threading

from tests.kit.times import MIN


class Truth:
    def __init__(self, ranges: int) -> None:
        self._lows = [MIN] * ranges
        self._lock = threading.Lock()

    def say(self, values: list[int]) -> None:
        with self._lock:
            self._lows = [max(old, new) for old, new in zip(self._lows, values, strict=True)]

    def most(self) -> int:
        with self._lock:
            return min(self._lows)
