"""The lateness budget: against an oracle in floats that is written from its definition, and what its arithmetic promises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater.core import lateness
from lowwater_authority.core import codec
from lowwater_authority.core.budget import RECENT, STRETCH, Budget, lateness_from, reached
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.times import HOUR, MINUTE

PPM = 1_000_000
H = 10_000
PPMS = st.sampled_from([100_000, 10_000, 1_000])

late = st.one_of(
    st.integers(-MINUTE, MINUTE), st.integers(0, 10 * HOUR), st.integers(0, 2**40), st.just(0), st.integers(0, 2**64)
)
batches = st.lists(
    st.tuples(
        st.integers(0, 6_000),
        st.lists(late, min_size=1, max_size=4),
        st.sampled_from([0.0, 0.003, 0.01, 0.2, 1.0]),
        st.integers(-HOUR, HOUR),
        st.one_of(st.just(MIN), st.integers(0, 100 * HOUR)),
    ),
    max_size=40,
)
"""(records, how late they are, share of them behind, how far R moves, the low watermark)"""


class Oracle:
    """The definition, in floats: weights that fade at each record, no halvings, no integers."""

    def __init__(self, ppm: int) -> None:
        self.a = 0.95 * ppm / PPM
        self.windows: dict[int, dict[int, float]] = {5_000: {}, 100_000: {}}
        self.n = 0
        self.debt = self.excused = 0.0
        self.reference = MIN
        self.least = self.most = MIN
        """C lies between these: a quantile of weights that are steps of a sixteenth of a halving is known no better."""

    def tick(self, counts: dict[int, int], behind: int, reference: int, low: int) -> None:
        n = sum(counts.values())
        for window, hist in self.windows.items():
            for bucket in hist:
                hist[bucket] *= (1 - 1 / window) ** n
            for bucket, count in counts.items():
                hist[bucket] = hist.get(bucket, 0.0) + count
        warm = 5 / self.a
        if n and self.n >= warm - 1e-6:
            debt = max(self.debt + behind - self.a * n, -0.5 * self.a * H)
            self.excused += max(0.0, debt - 2 * self.a * H)
            self.debt = min(debt, 2 * self.a * H)
        self.n += n
        if self.reference < reference < MAX:
            self.reference = reference
            if self.n >= warm - 1e-6:
                for rank, name in ((1.12, "most"), (1 / 1.12, "least")):
                    delay = max(self.quantile(hist, self.a * rank) for hist in self.windows.values())
                    value = reference - delay * math.exp(self.debt / (self.a * H))
                    slack = 2 + delay * 1e-8
                    value = int(max(MIN, value + slack if name == "most" else value - slack))
                    setattr(self, name, max(getattr(self, name), value))
        self.least, self.most = max(self.least, low), max(self.most, low)

    @staticmethod
    def quantile(hist: dict[int, float], above: float) -> float:
        rest = sum(hist.values()) * above
        for bucket in sorted(hist, reverse=True):
            rest -= hist[bucket]
            if rest < 0:
                return 0.0 if bucket == 0 else float(lateness.EDGES[bucket])
        return 0.0


def ticks(steps: list[tuple[int, list[int], float, int, int]]) -> list[tuple[dict[int, int], int, int, int]]:
    all_ticks, reference = [], 50 * HOUR
    for records, kinds, share, move, low in steps:
        counts: dict[int, int] = {}
        for index, kind in enumerate(kinds):
            many = records // len(kinds) + (index < records % len(kinds))
            bucket = lateness.bucket_of(kind)
            counts[bucket] = counts.get(bucket, 0) + many
        reference += move
        all_ticks.append((counts, int(records * share), reference, low))
    return all_ticks


@given(ppm=PPMS, steps=batches)
@settings(max_examples=150, database=None, deadline=None)
def test_it_is_as_its_definition_says_in_floats(ppm: int, steps: list[tuple[int, list[int], float, int, int]]) -> None:
    budget, oracle = Budget(ppm), Oracle(ppm)
    for counts, behind, reference, low in ticks(steps):
        budget.tick(counts, behind, reference, low)
        oracle.tick(counts, behind, reference, low)
        assert budget.debt / PPM == pytest.approx(oracle.debt, abs=1e-3)
        assert budget.excused_debt / PPM == pytest.approx(oracle.excused, abs=1e-3)
        assert budget.records == oracle.n
        assert oracle.least <= budget.value <= oracle.most


@given(ppm=PPMS, steps=batches)
@settings(max_examples=150, database=None, deadline=None)
def test_in_any_stretch_no_more_is_behind_than_the_arithmetic_allows(
    ppm: int, steps: list[tuple[int, list[int], float, int, int]]
) -> None:
    budget = Budget(ppm)
    a = budget.aim
    # Of what came so far: behind - a N, and excused, both after the warm-up.
    sums = [(0, 0)]
    for counts, behind, reference, low in ticks(steps):
        warm, before = budget.warm, budget.excused_debt
        budget.tick(counts, behind, reference, low)
        if warm:
            over = sums[-1][0] + behind * PPM - a * sum(counts.values())
            sums.append((over, sums[-1][1] + budget.excused_debt - before))
    for first, (over, excused) in enumerate(sums):
        for more_over, more_excused in sums[first:]:
            assert more_over - over <= 5 * a * H // 2 + 1 + more_excused - excused


@given(ppm=PPMS, steps=batches)
@settings(max_examples=100, database=None, deadline=None)
def test_it_never_falls_and_is_between_low_and_r(ppm: int, steps: list[tuple[int, list[int], float, int, int]]) -> None:
    budget, lows = Budget(ppm), [MIN]
    for counts, behind, reference, low in ticks(steps):
        before = budget.value
        lows.append(max(lows[-1], low))
        budget.tick(counts, behind, reference, lows[-1])
        assert budget.value >= max(before, lows[-1])
        assert budget.value <= max(budget.reference, lows[-1])
        if not budget.warm:
            assert budget.value == lows[-1], "before the warm-up it is the low watermark"


@given(
    st.lists(
        st.tuples(st.sampled_from([1_000, 1_234, 2_000, 2_500]), st.sampled_from([0.0, 0.01, 0.5])),
        min_size=1,
        max_size=120,
    )
)
@settings(max_examples=60, database=None, deadline=None)
def test_the_worst_stretch_is_the_worst_of_the_shortest_recent_ones(steps: list[tuple[int, float]]) -> None:
    budget = Budget(10_000)
    weights = [(records, int(records * share)) for records, share in steps]
    for records, behind in weights:
        budget.tick({0: records}, behind, MIN, MIN)
    after = [sum(records for records, _ in weights[index + 1 :]) for index in range(len(weights))]
    recent = [pair for pair, later in zip(weights, after, strict=True) if later < RECENT]
    worst = 0
    for end in range(len(recent)):
        for first in range(end, -1, -1):
            records, behind = map(sum, zip(*recent[first : end + 1], strict=True))
            if records >= STRETCH:
                worst = max(worst, -(-behind * PPM // records))
                break
    assert budget.worst == worst


@given(ppm=PPMS, steps=batches, at=st.integers(0, 40))
@settings(max_examples=60, database=None, deadline=None)
def test_restored_from_a_snapshot_it_is_equal_and_goes_on_equally(
    ppm: int, steps: list[tuple[int, list[int], float, int, int]], at: int
) -> None:
    budget = Budget(ppm)
    all_ticks = ticks(steps)
    for tick in all_ticks[:at]:
        budget.tick(*tick)
    snapshot = pb.Budget.FromString(codec.budget(budget).SerializeToString())
    restored = codec.budget_from(snapshot)
    assert restored == budget
    for tick in all_ticks[at:]:
        budget.tick(*tick)
        restored.tick(*tick)
    assert restored == budget


references = st.one_of(st.integers(-HOUR, HOUR), st.integers(MIN, MAX), st.sampled_from([MIN, MIN + 1, 0, MAX]))


@given(
    st.dictionaries(
        references,
        st.dictionaries(st.integers(0, len(lateness.EDGES) - 1), st.integers(1, 2**50), max_size=6),
        max_size=6,
    ),
    references,
)
@settings(max_examples=100, database=None, deadline=None)
def test_what_counts_from_many_moments_is_seen_from_one_as_each_is(came: dict[int, dict[int, int]], to: int) -> None:
    true: dict[int, int] = {}
    for counted_from, some in came.items():
        for bucket, count in lateness.moved(some, counted_from, counted_from if to == MIN else to).items():
            true[bucket] = true.get(bucket, 0) + count
    assert lateness_from(came, to) == true


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8), PPMS)
def test_r_is_the_greatest_time_that_all_but_a_share_have_come_to(pairs: list[tuple[int, int]], ppm: int) -> None:
    total = sum(recent for _, recent in pairs)
    right = [
        time
        for time in range(51)
        if total and sum(recent for frontier, recent in pairs if frontier >= time) * PPM >= (PPM - ppm) * total
    ]
    # The greatest one, of those that a claim with records is at.
    assert reached(pairs, ppm) == max(right, default=MIN) or reached(pairs, ppm) == MIN == max(right, default=MIN)
    if right:
        assert reached(pairs, ppm) in {frontier for frontier, recent in pairs if recent}


@given(st.lists(st.integers(-HOUR, HOUR)), st.integers(-HOUR, HOUR), st.integers(-HOUR, HOUR), st.integers(-HOUR, HOUR))
def test_histograms_never_miss_what_is_behind(times: list[int], reference: int, to: int, mark: int) -> None:
    counts = lateness.buckets(times, reference)
    true = sum(time < mark for time in times)
    assert lateness.behind(counts, reference, mark) >= true
    elsewhere = lateness.moved(counts, reference, to)
    assert sum(elsewhere.values()) == len(times)
    assert lateness.behind(elsewhere, to, mark) >= true
