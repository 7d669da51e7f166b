"""The number of faults of each kind that have taken effect, and which kind is behind its share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping


class Tally:
    def __init__(self, shares: Mapping[str, int], names: Mapping[str, str]) -> None:
        self.shares = shares
        self.names = names
        self.counted: Counter[str] = Counter()
        """The faults by kind that took effect, with evidence, and were recovered from."""
        self.missed: Counter[str] = Counter()
        """Faults that were planned and took no effect, or left no evidence."""

    def count(self, kind: str, effect: bool) -> None:
        (self.counted if effect else self.missed)[kind] += 1

    def behind(self, rng: random.Random, possible: Iterable[str], planned: Iterable[str] = ()) -> str:
        """Return the kind that is furthest behind its share, with those that are planned already."""
        so_far = self.counted + Counter(planned)
        standing = {kind: (so_far[kind] + rng.random() / 4) / self.shares[kind] for kind in sorted(possible)}
        return min(standing, key=lambda kind: standing[kind])

    @property
    def total(self) -> int:
        return self.counted.total()

    def summary(self) -> dict[str, object]:
        return {
            "faults": self.total,
            "by_kind": {self.names[kind]: count for kind, count in sorted(self.counted.items())},
            "without_effect": self.missed.total(),
        }
