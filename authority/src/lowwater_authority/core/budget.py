"""Lateness budgets: watermarks behind which only a given share of all records comes.

A heuristic watermark H(p) says how far a share of the *recent* records is; it does not look at what
comes behind it. This watermark, C, does: each record behind it is a debt, every record pays some of
the debt back, and C waits longer the greater the debt is. C never goes back, and is never below the
low watermark.

The promise holds for any sequence of records, by arithmetic alone: once ``warm_up`` records have
come, of any N consecutive ones at most ``a * (N + 2.5 * HORIZON) + excused`` are behind, where
``a`` is 95 % of the budget. There is no promise for a single window, key or hour.

The argument telescopes: Gibbs and Candes 2021; Angelopoulos, Candes and Tibshirani 2023 (arXiv
2307.16895). All numbers are integers, so that a replay on any machine computes the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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
"""Per cent of the budget that is the aim: the rest covers what the debt lets through."""

HORIZON: Final = 10_000
"""Records in which a debt is paid back, approximately."""

MEMORIES: Final = (5_000, 100_000)
"""Records after which the two memories of lateness have forgotten two thirds: one follows quickly,
the other remembers what is rare."""

BLOCK: Final = 1_000
"""Records that are counted together for the worst stretch."""

STRETCH: Final = 10_000
"""Records in a stretch. The share behind in the worst stretch is published."""

RECENT: Final = 100_000
"""Newest records among which the worst stretch is searched."""

LEAST: Final = 100
"""Least budget in parts per million. Below it the memories have too few records that late."""

MOST: Final = 500_000
"""Greatest budget in parts per million."""

BUCKETS: Final = len(EDGES)
"""Number of buckets of lateness."""

MOST_ARRIVED: Final = 2**62
"""Most records of one computation, so that all sums fit into 64 bits. groups.MOST_RECORDS is the
bound of one claim."""

_STEPS: Final = 16
_GROWTH: Final = (
    65536, 68438, 71468, 74632, 77936, 81386, 84990, 88752, 92682, 96785, 101070, 105545, 110218, 115098, 120194, 125515
)  # fmt: skip
"""Weight of a record k steps after the last halving: 2^16 times 2^(k/16)."""

_ONE: Final = 1 << 32

_FAR: Final = 2**62
"""Microseconds. The sum of two smaller numbers fits into 64 bits."""

_EDGES: Final = np.array(EDGES[:-1], dtype=np.int64)
_LATE: Final = bisect_left(EDGES, _FAR)
"""First bucket whose edge is at least ``_FAR``."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """A claim's report of all records that it has handed on; see the wire's Lateness."""

    counts: Mapping[int, int]
    reference: int
    frontier: int
    behind: Mapping[int, tuple[int, int]]
    """Records behind by budget, and the watermark that the new ones were compared with."""


@dataclass(slots=True)
class Arrivals:
    """All that a claim has reported of its records so far, and its weight in R."""

    frontier: int = MIN
    counts: Counter[int] = field(default_factory=Counter)
    """Records by bucket of lateness."""
    behind: Counter[int] = field(default_factory=Counter)
    """Records behind by budget, as reported."""
    recent: RecentSlots = field(default_factory=RecentSlots)

    def add(self, counts: Mapping[int, int], behind: Mapping[int, int], frontier: int, now: int) -> None:
        """Add new records. O(buckets)."""
        self.counts.update(counts)
        self.behind.update(behind)
        self.frontier = frontier
        self.recent.add(now, sum(counts.values()))


class Kept(NamedTuple):
    """The published state of a budget."""

    ppm: int
    micros: int
    records: int
    behind: int
    excused: int
    worst: int


@dataclass(slots=True)
class Memory:
    """A histogram of lateness in which older records weigh less.

    The weights do not shrink with each record. Instead, later records weigh more, and all weights
    are halved from time to time.
    """

    length: int
    """Records after which a record counts for 1/e."""
    counts: dict[int, int] = field(default_factory=dict)
    """Weights by bucket of lateness."""
    passed: int = 0
    """Records since the last halving."""

    def add(self, records: int, counts: Mapping[int, int]) -> None:
        """Age the weights by a number of records, then add these. O(buckets)."""
        step = self.length * 693_147 // (1_000_000 * _STEPS)
        halvings, self.passed = divmod(self.passed + records, step * _STEPS)
        if halvings:
            self.counts = {bucket: halved for bucket, weight in self.counts.items() if (halved := weight >> halvings)}
        weight = _GROWTH[self.passed // step]
        for bucket, count in counts.items():
            self.counts[bucket] = min(self.counts.get(bucket, 0) + count * weight, MOST_ARRIVED)

    def delay(self, above: int) -> int:
        """Return the least edge above which at most a share in ppm lies. O(buckets log buckets)."""
        allowed = sum(self.counts.values()) * above // PPM
        for bucket in sorted(self.counts, reverse=True):
            allowed -= self.counts[bucket]
            if allowed < 0:
                return EDGES[bucket]
        return 0


@dataclass(frozen=True, slots=True)
class Pending:
    """All records that are still to come, as reported by all claims together."""

    starts: Int64s
    """Event times, microseconds, ascending."""
    counts: Int64s
    """Records at or after each of ``starts``, before the next one."""
    frontier: int
    """Event time at or after which all other records will come; MIN: not known."""

    @classmethod
    def of(cls, masses: Sequence[Mass]) -> Pending:
        """Return the pending records of all unfinished claims. O(buckets log buckets)."""
        starts = np.concatenate([mass.starts for mass in masses]) if masses else NO_RECORDS
        counts = np.concatenate([mass.counts for mass in masses]) if masses else NO_RECORDS
        order = np.argsort(starts, kind="stable")
        return cls(starts[order], counts[order], min((_frontier(mass) for mass in masses), default=MIN))

    def passing(self, tokens: int) -> int:
        """Return the greatest event time, up to the frontier, with ``tokens`` records before it.

        O(buckets).

        >>> Pending(np.array([10, 20, 30]), np.array([1, 2, 1]), 40).passing(1)
        20
        """
        if tokens < 0 or self.frontier == MIN:
            return MIN
        beyond = int(np.searchsorted(np.cumsum(self.counts), tokens, side="right"))
        return self.frontier if beyond == len(self.starts) else min(self.frontier, int(self.starts[beyond]))


def _frontier(mass: Mass) -> int:
    """Return an injector's frontier, the least of all shares; MIN: none, or all are finished."""
    least = min(mass.frontiers.values(), default=MIN)
    return MIN if least == MAX else least


@dataclass(slots=True)
class Budget:
    """One budget of one computation. Debts are exact: in records times parts per million."""

    ppm: int
    """Share of records that may come behind, in parts per million."""
    value: int = MIN
    """C, microseconds."""
    reference: int = MIN
    """R, the event time from which lateness counts; the greatest so far."""
    records: int = 0
    """All records that came."""
    behind: int = 0
    """Records that came behind the value that was published at that time."""
    debt: int = 0
    excused_debt: int = 0
    """Debt that was forgiven, so that one bad day is not paid for ever."""
    memories: tuple[Memory, ...] = field(default_factory=lambda: tuple(Memory(length) for length in MEMORIES))
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """(records, behind) of consecutive blocks, the newest last; that one may still grow."""

    @property
    def aim(self) -> int:
        """``a``, the share of late records that is the aim, in parts per million."""
        return max(1, self.ppm * AIM // 100)

    @property
    def warm_up(self) -> int:
        """Records before the promise holds. Until then C is the low watermark."""
        return -(-5 * PPM // self.aim)

    @property
    def warm(self) -> bool:
        """True once enough records have come."""
        return self.records >= self.warm_up

    @property
    def excused(self) -> int:
        """Records behind that were forgiven, rounded up."""
        return -(-self.excused_debt // PPM)

    @property
    def worst(self) -> int:
        """Share behind in the worst stretch of RECENT records, in parts per million, rounded up."""
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
        """Return the state to be published. O(blocks)."""
        return Kept(self.ppm, self.value, self.records, self.behind, self.excused, self.worst)

    def tick(
        self, counts: Mapping[int, int], behind: int, reference: int, low: int, pending: Pending | None = None
    ) -> None:
        """Add the records since the last tick, and move C. O(buckets log buckets).

        Args:
            counts: Records by bucket of lateness behind ``reference``
                (:mod:`lowwater.core.lateness`).
            behind: Records that came behind the value that was published when they were
                committed. The published value counts, because the debt must see the ratchet.
            reference: R now. A lower, unknown or MAX value moves nothing.
            low: The low watermark now.
            pending: All records that are still to come, by which C then goes. None: they are not
                known, and C goes by the lateness of past records.
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
        """Return how far C should lag R, microseconds."""
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
        while sum(count for count, _ in self.blocks) - self.blocks[0][0] >= RECENT:
            del self.blocks[0]


def lateness_from(came: Mapping[int, Mapping[int, int]], to: int) -> dict[int, int]:
    """Return the lateness of records from one reference, in buckets: the sum of lateness.moved.

    O(buckets log buckets).

    Args:
        came: Records by bucket, by the reference that their lateness counts from. At most
            ``MOST_ARRIVED`` records.
        to: The reference of the result; MIN: the lateness stays as it is.
    """
    sums = np.zeros(BUCKETS, dtype=np.int64)
    rows = [(to - counted_from if to != MIN else 0, by_bucket) for counted_from, by_bucket in came.items()]
    for shift, by_bucket in rows:
        if abs(shift) >= _FAR:
            for bucket, count in lateness.moved(by_bucket, 0, shift).items():
                sums[bucket] += count
    near = [(shift, by_bucket) for shift, by_bucket in rows if abs(shift) < _FAR]
    buckets = np.fromiter(chain.from_iterable(by_bucket for _, by_bucket in near), dtype=np.int64)
    counts = np.fromiter(chain.from_iterable(by_bucket.values() for _, by_bucket in near), dtype=np.int64)
    shifts = np.repeat(
        np.array([shift for shift, _ in near], dtype=np.int64), [len(by_bucket) for _, by_bucket in near]
    )
    # Buckets of 146,000 years and more: an edge plus a shift does not fit, so one by one.
    late = buckets >= _LATE
    places = np.searchsorted(_EDGES, _EDGES[np.minimum(buckets, _LATE)] + shifts)
    np.add.at(sums, places[~late], counts[~late])
    for bucket, count, shift in zip(buckets[late].tolist(), counts[late].tolist(), shifts[late].tolist(), strict=True):
        for moved in lateness.moved({bucket: count}, 0, shift):
            sums[moved] += count
    return {int(bucket): int(sums[bucket]) for bucket in np.flatnonzero(sums)}


def reached(positions: Iterable[tuple[int, int]], ppm: int) -> int:
    """Return R, the event time that claims with all but a share of the recent records have reached.

    A silent claim keeps its records and its frontier, so R waits for it, unless its share is within
    the budget; then its records will come late. MIN without recent records.

    Args:
        positions: (frontier in microseconds, recently finished records) of each unfinished claim.
        ppm: The budget.
    """
    ordered = sorted((position for position in positions if position[1]), reverse=True)
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
