"""The lateness budget: a watermark behind which at most a given share of the records comes, in the long run.

A heuristic watermark H(p) says how far a share of the records *lately seen* is. What comes behind it is no part of that. This watermark, C,
looks at what does come behind it, and gives way: each record behind is a debt, each record at all pays some of it back, and the more debt
there is the longer C waits. It never goes back, and it is never below the low watermark.

What is kept for any sequence of records, by arithmetic alone: once ``warm_up`` records have come, of any N that follow each other at most
``a * (N + 2.5 * HORIZON) + excused`` are behind, where ``a`` is 95 % of the budget. Nothing is kept of a single window, key or hour.

The argument telescopes: Gibbs and Candes 2021; Angelopoulos, Candes and Tibshirani 2023 (arXiv 2307.16895). Integers alone, so that a replay
on any machine finds the same.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from lowwater.core import lateness
from lowwater.core.lateness import EDGES
from lowwater_authority.core.groups import NO_RECORDS, RecentSlots
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.groups import Mass

AIM: Final = 95
"""Per cent of the budget that is aimed at: the rest is for what the debt has let through."""

HORIZON: Final = 10_000
"""Records in which a debt is paid back, about."""

MEMORIES: Final = (5_000, 100_000)
"""Records after which the two memories of lateness have forgotten all but a third of what they
knew: one follows fast, one knows what is rare."""

BLOCK: Final = 1_000
"""Records that are counted together for the worst stretch."""

STRETCH: Final = 10_000
"""Length of the stretches of which the worst one is told."""

RECENT: Final = 100_000
"""Records among which the worst stretch is looked for."""

LEAST: Final = 100
"""Least budget in parts per million. Below it the memories hold too few records that are so late.
"""

MOST: Final = 500_000
"""Greatest budget in parts per million."""

BUCKETS: Final = len(EDGES)
"""Buckets of lateness that there are."""

MOST_ARRIVED: Final = 2**62
"""Records of one computation, so that all counts and their sums fit into 64 bits; of one claim:
groups.MOST_RECORDS."""

_STEPS: Final = 16
_GROWTH: Final = (
    65536, 68438, 71468, 74632, 77936, 81386, 84990, 88752, 92682, 96785, 101070, 105545, 110218, 115098, 120194, 125515
)  # fmt: skip
"""2^16 times 2^(k/16): what a record weighs that comes k steps after the last halving."""

_ONE: Final = 1 << 32

_FAR: Final = 2**62
"""Microseconds. Sums of two that are less fit into 64 bits."""

_EDGES: Final = np.array(EDGES[:-1], dtype=np.int64)
_LATE: Final = bisect_left(EDGES, _FAR)
"""The first bucket whose edge is as far."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """What a claim tells of all records that it has handed on; see the wire's Lateness for the fields."""

    counts: Mapping[int, int]
    reference: int
    frontier: int
    behind: Mapping[int, tuple[int, int]]
    """By budget: how many, and what the new ones were judged by."""


@dataclass(slots=True)
class Arrivals:
    """What a claim has told so far: what the next telling is compared with, and how much it weighs in R."""

    frontier: int = MIN
    counts: dict[int, int] = field(default_factory=dict)
    """Records by bucket of lateness."""
    behind: dict[int, int] = field(default_factory=dict)
    """By budget, as the claim told."""
    recent: RecentSlots = field(default_factory=RecentSlots)

    def add(self, counts: Mapping[int, int], behind: Mapping[int, int], frontier: int, now: int) -> None:
        """Take over what is new. O(its buckets)."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        for ppm, records in behind.items():
            self.behind[ppm] = self.behind.get(ppm, 0) + records
        self.frontier = frontier
        self.recent.add(now, sum(counts.values()))


class Kept(NamedTuple):
    """What readers see of a budget."""

    ppm: int
    micros: int
    records: int
    behind: int
    excused: int
    worst: int


@dataclass(slots=True)
class Memory:
    """How late records were, the older the less it counts.

    Instead of making all counts a little smaller at each record, what comes later weighs more, and
    all is halved from time to time.
    """

    length: int
    """Records after which a record counts for 1/e."""
    counts: dict[int, int] = field(default_factory=dict)
    """Weights by bucket of lateness."""
    passed: int = 0
    """Records since the last halving."""

    def add(self, records: int, counts: Mapping[int, int]) -> None:
        """Forget as much as so many records make forget, then count them.

        O(their buckets), at a halving O(buckets).
        """
        step = self.length * 693_147 // (1_000_000 * _STEPS)
        halvings, self.passed = divmod(self.passed + records, step * _STEPS)
        if halvings:
            self.counts = {bucket: left for bucket, weight in self.counts.items() if (left := weight >> halvings)}
        weight = _GROWTH[self.passed // step]
        for bucket, count in counts.items():
            self.counts[bucket] = min(self.counts.get(bucket, 0) + count * weight, MOST_ARRIVED)

    def delay(self, above: int) -> int:
        """Return the least edge above which at most so many parts per million lie.

        O(buckets log buckets).
        """
        left = sum(self.counts.values()) * above // PPM
        for bucket in sorted(self.counts, reverse=True):
            left -= self.counts[bucket]
            if left < 0:
                return EDGES[bucket]
        return 0


@dataclass(frozen=True, slots=True)
class Pending:
    """All records that are still to come before an event time, as all claims together tell them."""

    starts: Int64s
    """Event times, microseconds, ascending."""
    counts: Int64s
    """How many records stand at each, or after it."""
    frontier: int
    """Others that are still to come are at this time or after it; MIN: nothing is known."""

    @classmethod
    def of(cls, masses: Sequence[Mass]) -> Pending:
        """Return it of the masses of all claims that have not finished. O(buckets log buckets)."""
        starts = np.concatenate([mass.starts for mass in masses]) if masses else NO_RECORDS
        counts = np.concatenate([mass.counts for mass in masses]) if masses else NO_RECORDS
        order = np.argsort(starts, kind="stable")
        return cls(starts[order], counts[order], min((_frontier(mass) for mass in masses), default=MIN))

    def passing(self, tokens: int) -> int:
        """Return the greatest event time, at most the frontier, that at most so many of the records stand before. O(buckets).

        >>> Pending(np.array([10, 20, 30]), np.array([1, 2, 1]), 40).passing(1)
        20
        """
        if tokens < 0 or self.frontier == MIN:
            return MIN
        beyond = int(np.searchsorted(np.cumsum(self.counts), tokens, side="right"))
        return self.frontier if beyond == len(self.starts) else min(self.frontier, int(self.starts[beyond]))


def _frontier(mass: Mass) -> int:
    """Return an injector's frontier, which it tells for each share; MIN: none, or it has finished in part."""
    least = min(mass.frontiers.values(), default=MIN)
    return MIN if least == MAX else least


@dataclass(slots=True)
class Budget:
    """One budget of one computation.

    ``ppm`` is the share that may come behind, in parts per million.

    Debts are in records times parts per million, so that they are exact.
    """

    ppm: int
    value: int = MIN
    """C, microseconds."""
    reference: int = MIN
    """R: the event time that lateness counts from; the greatest so far."""
    records: int = 0
    """All that came."""
    behind: int = 0
    """Those of them that came behind the value that was published then."""
    debt: int = 0
    excused_debt: int = 0
    """What was forgiven, so that one bad day is not paid for ever."""
    memories: tuple[Memory, ...] = field(default_factory=lambda: tuple(Memory(length) for length in MEMORIES))
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """(records, behind) of blocks that follow each other, the newest last; it may still grow."""

    @property
    def aim(self) -> int:
        """``a``: the share that is aimed at, in parts per million."""
        return max(1, self.ppm * AIM // 100)

    @property
    def warm_up(self) -> int:
        """Records that come before anything is promised: until then C is the low watermark."""
        return -(-5 * PPM // self.aim)

    @property
    def warm(self) -> bool:
        """Whether enough records have come."""
        return self.records >= self.warm_up

    @property
    def excused(self) -> int:
        """Records behind that were forgiven, rounded up."""
        return -(-self.excused_debt // PPM)

    @property
    def worst(self) -> int:
        """Share behind in the worst stretch of about 10,000 of the last 100,000 records, in parts per million, rounded up."""
        worst = first = records = behind = 0
        for more, more_behind in self.blocks:
            records, behind = records + more, behind + more_behind
            while records - self.blocks[first][0] >= STRETCH:
                records, behind = records - self.blocks[first][0], behind - self.blocks[first][1]
                first += 1
            if records >= STRETCH:
                worst = max(worst, -(-behind * PPM // records))
        return worst

    def view(self) -> Kept:
        """Return what readers see. O(blocks)."""
        return Kept(self.ppm, self.value, self.records, self.behind, self.excused, self.worst)

    def tick(
        self, counts: Mapping[int, int], behind: int, reference: int, low: int, pending: Pending | None = None
    ) -> None:
        """Take over what came since the last tick, and move C. O(buckets log buckets).

        Args:
            counts: Records by bucket of lateness behind ``reference``
                (:mod:`lowwater.core.lateness`).
            behind: How many of them came behind the value that was published when they were
                committed: ratchet and all, or the debt would not see what the ratchet does.
            reference: R now. One that has gone back, or is unknown or MAX, moves nothing.
            low: The low watermark now.
            pending: All that is still to come, where it is known: C goes by that. None: it is not,
                and C goes by how late records were.
        """
        records = sum(counts.values())
        if not 0 <= behind <= records:
            msg = f"{behind} of {records} records cannot be behind"
            raise ValueError(msg)
        if records:
            for memory in self.memories if pending is None else ():
                memory.add(records, counts)
            if self.warm and pending is None:
                self._pay(records, behind)
            self.records += records
            self.behind += behind
            self._note(records, behind)
        if MAX > reference > self.reference:
            self.reference = reference
            if self.warm and pending is None:
                self.value = max(self.value, reference - self.delay())
        if pending is not None:
            self.value = max(self.value, pending.passing(self.records * self.ppm // PPM - self.behind))
        self.value = max(self.value, low)

    def delay(self) -> int:
        """Return how far behind R it would stand, microseconds."""
        longest = max(memory.delay(self.aim) for memory in self.memories)
        return longest * _exp(self.debt, self.aim * HORIZON) // _ONE

    def _pay(self, records: int, behind: int) -> None:
        once = self.aim * HORIZON
        debt = max(self.debt + behind * PPM - self.aim * records, -(once // 2))
        self.debt = min(debt, 2 * once)
        self.excused_debt += debt - self.debt

    def _note(self, records: int, behind: int) -> None:
        if self.blocks and self.blocks[-1][0] < BLOCK:
            before = self.blocks[-1]
            self.blocks[-1] = before[0] + records, before[1] + behind
        else:
            self.blocks.append((records, behind))
        while sum(each for each, _ in self.blocks) - self.blocks[0][0] >= RECENT:
            del self.blocks[0]


def seen_from(came: Mapping[int, Mapping[int, int]], to: int) -> dict[int, int]:
    """Return how late records are behind one reference that are told behind several: lateness.moved of each, added up. O(buckets log buckets).

    Args:
        came: Records by bucket, by what their lateness counts from. All together at most ``MOST_ARRIVED``.
        to: The reference; MIN: each counts from its own.
    """
    found = np.zeros(BUCKETS, dtype=np.int64)
    rows = [(to - counted_from if to != MIN else 0, some) for counted_from, some in came.items()]
    for shift, some in rows:
        if abs(shift) >= _FAR:
            for bucket, count in lateness.moved(some, 0, shift).items():
                found[bucket] += count
    near = [(shift, some) for shift, some in rows if abs(shift) < _FAR]
    buckets = np.fromiter(chain.from_iterable(some for _, some in near), dtype=np.int64)
    counts = np.fromiter(chain.from_iterable(some.values() for _, some in near), dtype=np.int64)
    shifts = np.repeat(np.array([shift for shift, _ in near], dtype=np.int64), [len(some) for _, some in near])
    # The few buckets of 146,000 years and more, whose edges do not fit with a shift: one by one.
    late = buckets >= _LATE
    there = np.searchsorted(_EDGES, _EDGES[np.minimum(buckets, _LATE)] + shifts)
    np.add.at(found, there[~late], counts[~late])
    for bucket, count, shift in zip(buckets[late].tolist(), counts[late].tolist(), shifts[late].tolist(), strict=True):
        for moved in lateness.moved({bucket: count}, 0, shift):
            found[moved] += count
    return {int(bucket): int(found[bucket]) for bucket in np.flatnonzero(found)}


def reached(told: Iterable[tuple[int, int]], ppm: int) -> int:
    """Return R: the greatest event time that all but a share of the recent records' claims have come to; MIN when there are none.

    A claim that falls silent keeps its records and its frontier, so R waits for it, unless its share is within the budget: what it holds back
    will come late.

    Args:
        told: (frontier in microseconds, records lately finished) of each unfinished claim.
        ppm: The budget.
    """
    ordered = sorted((each for each in told if each[1]), reverse=True)
    needed = -(-sum(recent for _, recent in ordered) * (PPM - ppm) // PPM)
    for frontier, recent in ordered:
        needed -= recent
        if needed <= 0:
            return frontier
    return MIN


def _exp(numerator: int, denominator: int) -> int:
    """Return e to the power of a fraction between -1/2 and 2, times 2^32."""
    total = term = _ONE
    for number in range(1, 24):
        term = term * numerator // (denominator * number)
        total += term
    return total
