"""Masses: what a claim says of its record timestamps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowwater_authority.core.columns import Int64s

MOST_RECORDS: Final = 2**40
"""Of one claim's mass, so that sums over all claims stay exact in 64 bits."""

SLOT: Final = 60 * 1_000_000
"""Width of a slot of recently finished records: one minute of processing time."""

SLOTS: Final = 10
"""How many slots count. Only slots with work are kept, so idleness changes no claim's weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Mass:
    """A claim's share of the record timestamps.

    ``starts`` and ``counts`` are the buckets of its pending records (least event time in microseconds, records),
    ``recent`` its lately finished records, ``frontiers`` F(p) in microseconds by p in parts per million.
    """

    starts: Int64s
    counts: Int64s
    recent: int = 0
    frontiers: Mapping[int, int] = field(default_factory=dict)

    def same(self, other: Mass | None) -> bool:
        """Whether another mass has equal content."""
        return (
            other is not None
            and self.recent == other.recent
            and self.frontiers == other.frontiers
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.counts, other.counts)
        )


NO_RECORDS: Final[Int64s] = np.zeros(0, dtype=np.int64)
"""The columns of an empty histogram."""


@dataclass(slots=True)
class RecentSlots:
    """Records finished in the last ten one-minute slots that had any."""

    slots: list[tuple[int, int]] = field(default_factory=list)

    def add(self, now: int, finished: int) -> None:
        """Count records finished at a processing time."""
        if finished <= 0:
            return
        minute = now // SLOT
        if self.slots and self.slots[-1][0] >= minute:
            self.slots[-1] = (self.slots[-1][0], self.slots[-1][1] + finished)
        else:
            self.slots = [*self.slots[-(SLOTS - 1) :], (minute, finished)]

    @property
    def total(self) -> int:
        """All counted records."""
        return sum(count for _, count in self.slots)
