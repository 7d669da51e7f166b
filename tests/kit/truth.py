"""What is right, told by those who report."""

from __future__ import annotations

import threading

from tests.kit.times import MIN


class Truth:
    def __init__(self, ranges: int) -> None:
        self._said = [MIN] * ranges
        self._lock = threading.Lock()

    def say(self, values: list[int]) -> None:
        with self._lock:
            self._said = [max(old, new) for old, new in zip(self._said, values, strict=True)]

    def most(self) -> int:
        with self._lock:
            return min(self._said)
