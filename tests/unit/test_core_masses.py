"""Heuristic watermarks: whose records count, where, and what makes nobody's count."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import recovery
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.groups import Group, GroupState, Mass
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.topology import Spec
from tests.property.core_driver import MAX, MIN, SECOND, Driver, column, mass
from tests.property.second_opinion import Told, heuristic

P99, P95, P50 = 990_000, 950_000, 500_000
SPEC = Spec("c", heuristics=(P99, P95, P50), max_skew=1000 * SECOND)


def at(time: int, recent: int = 0, pending: tuple[int, ...] = ()) -> Mass:
    return mass(pending, recent, {P99: time, P95: time, P50: time})


def owners(d: Driver, *bounds: bytes) -> list[int]:
    return [d.claim(low, high).sequencer for low, high in pairwise(bounds)]


times = st.integers(0, 12) | st.just(MAX)
tellings = st.lists(
    st.tuples(st.lists(st.integers(0, 12), max_size=5), st.integers(0, 5), st.dictionaries(st.booleans(), times)),
    max_size=5,
)


@given(reports=tellings, share=st.sampled_from([P99, P95, P50, 1, 999_999, 333_333]))
@settings(max_examples=200, database=None)
def test_the_formula_record_by_record(reports: list[tuple[list[int], int, dict[bool, int]]], share: int) -> None:
    """Many groups, brute force: exactly the same, in exact arithmetic."""
    groups, expected = [], []
    for index, (pending, recent, reached) in enumerate(reports):
        frontiers = {share if wanted_share else 777: frontier for wanted_share, frontier in reached.items()}
        group = Group(index + 1, Bounds([b"", b""]), 0, GroupState.OWNED, mass=mass(pending, recent, frontiers))
        group.mass_known, group.live_count = True, 1
        groups.append(group)
        expected.append([Told(tuple(pending), recent, frontiers)])
    masses = Masses([share], groups)
    assert masses.candidates().get(share) == heuristic(share, expected)
    finite = [frontier for _, _, reached in reports for frontier in reached.values() if frontier != MAX]
    assert masses.reference_time() == max(finite, default=MIN)


def test_shares_compare_exactly() -> None:
    """99 of 100 is 99 %, 98 of 99 is not; and sums beyond 2^53 lose nothing."""
    cases: list[tuple[int, int, bool]] = [(99, 1, True), (98, 1, False), (99 * 10**11, 10**11, True)]
    cases.append((99 * 10**11 - 1, 10**11, False))
    group = Group(1, Bounds([b"", b""]), 0, GroupState.OWNED, mass_known=True, live_count=1)
    for above, below, passes in cases:
        group.mass = Mass(column([5]), column([below]), above, {P99: 50})
        assert Masses([P99], [group]).candidates() == {P99: 50 if passes else 5}


@pytest.mark.parametrize("finished", [False, True])
def test_rule7_groups_that_are_gone_are_forgotten(finished: bool) -> None:
    """Also where nobody asks: of a computation that is finished, and in a long replay."""
    d = Driver(Spec("c"))
    (owner,) = owners(d, b"", b"")
    if finished:
        d.report(owner, MAX, finish=True)
    for _ in range(100):
        d.claim(b"", b"", settle=False)
        record = d.core.take_record(d.now)
        assert record is not None
        d.records.append(record[0])
        d.core.publish()
    assert len(d.core.masses) < 10
    again = recovery.recover(d.spec, None, d.records, epoch_base=0)
    assert len(again.masses) < 10
