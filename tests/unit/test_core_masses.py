"""Heuristic watermarks: whose records count, where, and what makes nobody's count."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import recovery
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.groups import MOST_RECORDS, SLOT, Group, GroupState, Mass, RecentSlots
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.requests import NO_FOLD, GroupReport
from lowwater_authority.core.topology import Spec
from tests.property.core_driver import MAX, MIN, SECOND, Driver, column, mass, part
from tests.property.second_opinion import Told, heuristic

P99, P95, P50 = 990_000, 950_000, 500_000
SPEC = Spec("c", heuristics=(P99, P95, P50), max_skew=1000 * SECOND)


def at(time: int, recent: int = 0, pending: tuple[int, ...] = ()) -> Mass:
    """A mass whose finished records all stand at one time."""
    return mass(pending, recent, {P99: time, P95: time, P50: time})


def owners(d: Driver, *bounds: bytes) -> list[int]:
    """One claim a range."""
    return [d.claim(low, high).sequencer for low, high in pairwise(bounds)]


def test_one_stuck_range_of_64_holds_99_percent_but_not_95() -> None:
    d = Driver(SPEC)
    claims = owners(d, *[bytes([i]) if i else b"" for i in range(64)], b"")
    for sequencer in claims:
        d.report(sequencer, 10, mass=at(10, recent=100))
    for sequencer in claims[1:]:
        d.report(sequencer, 20, mass=at(20, recent=100))
    assert (d.low, d.high(P99), d.high(P95), d.high(P50)) == (10, 10, 20, 20)


def test_a_record_from_the_far_future_carries_nothing_off() -> None:
    d = Driver(SPEC)
    (owner,) = owners(d, b"", b"")
    d.report(owner, 10, mass=mass((10**18, 2 * 10**18), 0, {P99: MAX, P95: MAX, P50: MAX}))
    assert 10 < d.high(P50) <= d.now + 1000 * SECOND, "as far ahead of the clock as a report may be, and no further"


def test_S7_a_finished_group_has_no_mass() -> None:
    """S7: A is finished with 10,000 records, B has 50 at 14."""
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(b, 14, mass=at(14, recent=50))
    d.report(a, 14, mass=at(13, recent=10_000))
    d.report(a, MAX, finish=True, mass=at(MAX, recent=10_000))
    d.report(b, 20, mass=at(20, recent=50, pending=(15,) * 50))
    assert (d.low, d.high(P99), d.high(P50)) == (20, 20, 20)
    d.report(b, 20, mass=at(40, recent=30, pending=(30,) * 70))
    assert (d.high(P99), d.high(P50)) == (30, 30), "A's ten thousand count no more"
    d.report(b, MAX, finish=True)
    assert (d.low, d.high(P99)) == (MAX, MAX)


def test_only_L_says_MAX() -> None:
    """All inputs are finished, the stage is not: F is MAX, and MAX must wait for L."""
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=at(12, recent=5))
    d.report(b, 10, mass=at(MAX, recent=5000))
    assert d.high(P99) == 12
    d.report(a, 10, mass=at(MAX, recent=5))
    assert d.high(P99) == 12
    d.report(a, 10, mass=at(MAX))
    d.report(b, 10, mass=at(MAX))
    assert d.high(P99) == 12
    for owner in (a, b):
        d.report(owner, MAX, finish=True)
    assert d.high(P99) == MAX


def test_S9_idleness_changes_no_weight() -> None:
    slots = RecentSlots()
    for minute in range(0, 40, 2):
        slots.add(minute * SLOT, 5)
        slots.add(minute * SLOT + 1, 0)
    assert slots.total == 50, "the last ten minutes that had any work, however long ago"
    slots.add(41 * SLOT, 100)
    assert slots.total == 145
    slots.add(40 * SLOT, 1)
    assert slots.total == 146, "a clock that goes back adds to the newest slot"
    slots.add(42 * SLOT, -5)
    assert slots.total == 146


def test_S9_a_batch_without_records_keeps_the_weight() -> None:
    d = Driver(SPEC)
    (owner,) = owners(d, b"", b"")
    task = d.stage(owner, 1, 0, {0: MAX})
    d.core.stage_task(owner, 1, task, part({0: MAX}, finished=100))
    d.prepare(owner, 1, [task], 10, frontiers={P99: 10, P95: 10, P50: 10})
    d.commit(owner, 1)
    d.now += 24 * 60 * SLOT
    d.prepare(owner, 2, [], 11, frontiers={P99: 11, P95: 11, P50: 11})
    d.commit(owner, 2)
    told = d.core.map.groups[owner].mass
    assert told is not None
    assert told.recent == 100


def test_a_silent_group_keeps_its_mass_and_its_successor_replaces_it_whole() -> None:
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=at(10, recent=100))
    d.report(b, 10, mass=at(10, recent=100))
    d.release(a)
    d.report(b, 20, mass=at(20, recent=100))
    assert (d.high(P99), d.high(P50)) == (10, 20), "released, still half of the mass"
    new = d.claim(b"", b"m").sequencer
    d.report(b, 30, mass=at(30, recent=100))
    assert (d.high(P99), d.high(P50)) == (10, 30), "the claim stands on what it replaced"
    d.report(new, 12, mass=at(12, recent=1))
    assert (d.high(P99), d.high(P95)) == (30, 30), "1 of 101"
    assert d.low == 12


def test_part_of_a_claim_makes_the_mass_unknown() -> None:
    """Nobody knows how the records split: nothing moves until both have told."""
    d = Driver(SPEC)
    old = d.claim(b"", b"m", b"").sequencer
    d.report(old, 10, mass=at(15, recent=100))
    new = d.claim(b"", b"m").sequencer
    d.report(new, 10, mass=at(40, recent=100))
    assert d.high(P50) == 15, "the rest of the old claim has not told"
    d.report(old, 10, handles=[1], mass=at(30, recent=99))
    assert (d.high(P99), d.high(P50)) == (30, 40)
    d.claim(b"x", b"z")
    d.report(old, 50, handles=[1], mass=at(50, recent=99))
    d.report(new, 50, mass=at(50, recent=99))
    assert (d.high(P99), d.high(P50)) == (30, 40), "[m, x) and [z, ...) are nobody's: unknown"


def test_masses_too_when_64_become_32() -> None:
    """M: each new claim replaces two old ones as a whole, and stands on the masses of both until it tells."""
    d = Driver(Spec("c", heuristics=(P99, P50), max_skew=1000 * SECOND))
    edges = [bytes([i]) if i else b"" for i in range(64)] + [b""]
    for index, sequencer in enumerate(owners(d, *edges)):
        d.report(sequencer, 10, mass=mass((), 10, {P99: 10 + index, P50: 10 + index}))
    high = (d.high(P99), d.high(P50))
    assert high == (10, 42)
    claims = owners(d, *edges[::2])
    assert (d.high(P99), d.high(P50)) == high
    snapshot, d.records = recovery.snapshot(d.core), []
    d.crash(snapshot=snapshot)
    d.report(claims[0], 10, mass=mass((), 20, {P99: 80, P50: 80}))
    assert (d.high(P99), d.high(P50)) == (12, 44), "two told, 62 stood for"
    for sequencer in claims:
        d.report(sequencer, 10, mass=mass((), 20, {P99: 80, P50: 80}))
    assert (d.high(P99), d.high(P50)) == (80, 80)


def test_one_claim_over_all_keeps_the_masses_and_a_crossing_one_does_not() -> None:
    d = Driver(SPEC)
    for owner in owners(d, b"", b"m", b""):
        d.report(owner, 10, mass=at(20, recent=10))
    whole = d.claim(b"", b"g", b"").sequencer
    group = d.core.map.groups[whole]
    assert group.mass_known
    assert len(group.masses()) == 2
    crossing = d.claim(b"d", b"p").sequencer
    assert not d.core.map.groups[crossing].mass_known
    assert not d.core.map.groups.get(whole, group).mass_known


def test_a_finished_rest_of_a_claim_counts_for_nothing() -> None:
    """[m, ...) goes to a newer claim; what the old one keeps is finished: it may not hold H for ever, nor after a crash."""
    for crash in (False, True):
        d = Driver(SPEC)
        old = d.claim(b"", b"m", b"").sequencer
        d.report(old, MAX, 10, finish=True, mass=at(10, recent=10))
        new = d.claim(b"m", b"").sequencer
        assert d.core.map.groups[old].finished
        if crash:
            snapshot, d.records = recovery.snapshot(d.core), []
            d.crash(snapshot=snapshot)
        d.report(new, 10, mass=at(30, recent=10))
        assert d.high(P99) == 30


def test_what_was_finished_and_comes_back_has_told_nothing() -> None:
    """By the bound of a claim, or by a report of what its owner has left of it."""
    d = Driver(SPEC)
    busy, done = d.claim(b"", b"d").sequencer, d.claim(b"d", b"m", b"").sequencer
    d.report(busy, 10, mass=at(10, recent=10))
    d.report(done, MAX, finish=True, mass=at(10, recent=10))
    back = d.claim(b"d", b"m", bound=[5]).sequencer
    d.report(busy, 20, mass=at(20, recent=10))
    assert d.high(P50) == 10, "brought back by its bound"
    d.report(back, 20, mass=at(20, recent=10))
    assert d.high(P50) == 20
    d.report(done, 20, handles=[1])
    d.report(busy, 20, mass=at(40, recent=90))
    assert d.high(P50) == 20, "its mass told of more ranges than it has now"
    d.report(done, 20, handles=[1], mass=at(30, recent=10))
    assert d.high(P50) == 40


@pytest.mark.parametrize("bound", [[], [9]])
def test_a_revived_range_has_told_nothing(bound: list[int]) -> None:
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=at(10, recent=10))
    d.retire(b"m", force=True)
    assert d.report(b, 10) == {("STALE_SEQUENCER", None)}
    back = d.claim(b"m", b"", bound=bound).sequencer
    d.report(a, 20, mass=at(20, recent=10))
    assert d.high(P50) == 10
    d.report(back, 20, mass=at(20, recent=10))
    assert d.high(P50) == 20


def test_an_empty_report_and_a_future_frontier_do_not_poison() -> None:
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=at(10, recent=10))
    d.report(b, 10, mass=mass())
    assert d.high(P99) == 10, "no records and no frontier: nothing to say"
    d.report(b, 10, mass=at(MAX))
    assert d.high(P99) == 10, "no records, inputs finished"
    limit = d.now + 1000 * SECOND
    assert d.report(b, 10, mass=mass((), 10, {P99: limit + 1, P50: 5})) == {("TOO_FAR_AHEAD", None)}
    d.report(b, 10, mass=at(11, pending=(limit + 10**15,) * 1000))
    assert d.high(P99) == 11, "pending records of the future reach no further than the greatest frontier"


def test_L_stands_in_for_a_share_nobody_tells() -> None:
    d = Driver(SPEC)
    (owner,) = owners(d, b"", b"")
    d.report(owner, 10, mass=mass([40], 5, {P99: 30}))
    assert (d.high(P99), d.high(P95), d.high(P50)) == (30, 10, 10)
    snapshot, d.records = recovery.snapshot(d.core), []
    d.spec = Spec("c", heuristics=(P99, 900_000), max_skew=1000 * SECOND)
    d.crash(snapshot=snapshot)
    assert (d.high(P99), d.high(900_000)) == (30, 10)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (Mass(column([1, 2]), column([1])), "send as many of each"),
        (Mass(column([2, 1]), column([1, 1])), "ascending"),
        (Mass(column([1, 1]), column([1, 1])), "ascending"),
        (Mass(column([1]), column([-1])), "below 2"),
        (Mass(column([1]), column([1]), 2**64 - 1), "records"),
        (Mass(column([1, 2]), column([2**62, 2**62])), "records"),
        (Mass(column([1]), column([MOST_RECORDS]), 1), "records"),
    ],
)
def test_a_malformed_mass_is_refused_and_the_values_count(told: Mass, text: str) -> None:
    d = Driver(SPEC)
    (owner,) = owners(d, b"", b"")
    d.report(owner, 5, mass=at(6, recent=1))
    report = GroupReport(owner, column([7]), mass=told)
    (refused,) = d.core.report(report, sender=b"s", number=(2, 1), required=NO_FOLD, now=d.now)
    assert (refused.reason, refused.handles) == ("INVALID_ARGUMENT", None)
    assert text in refused.message
    d.settle()
    kept = d.core.map.groups[owner].mass
    assert d.low == 7
    assert at(6, recent=1).same(kept)


def test_S8_ages_count_from_the_greatest_unfinished_frontier() -> None:
    d = Driver(SPEC)
    assert d.core.reference == MIN
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=mass((), 1, {P99: 13, P50: 17}))
    d.report(b, 10, mass=at(MAX))
    assert d.core.reference == 17
    assert d.claim(b"x", b"z").reference == 17


times = st.integers(0, 12) | st.just(MAX)
tellings = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), max_size=5),
        st.integers(0, 5),
        st.dictionaries(st.booleans(), times),
    ),
    max_size=5,
)


@given(told=tellings, share=st.sampled_from([P99, P95, P50, 1, 999_999, 333_333]))
@settings(max_examples=200, database=None)
def test_the_formula_record_by_record(told: list[tuple[list[int], int, dict[bool, int]]], share: int) -> None:
    """Many groups, brute force: exactly the same, in exact arithmetic."""
    groups, expected = [], []
    for index, (pending, recent, reached) in enumerate(told):
        frontiers = {share if asked else 777: frontier for asked, frontier in reached.items()}
        group = Group(index + 1, Bounds([b"", b""]), 0, GroupState.OWNED, mass=mass(pending, recent, frontiers))
        group.mass_known, group.live_count = True, 1
        groups.append(group)
        expected.append([Told(tuple(pending), recent, frontiers)])
    masses = Masses([share], groups)
    assert masses.candidates().get(share) == heuristic(share, expected)
    finite = [frontier for _, _, reached in told for frontier in reached.values() if frontier != MAX]
    assert masses.reference_time() == max(finite, default=MIN)


def test_shares_compare_exactly() -> None:
    """99 of 100 is 99 %, 98 of 99 is not; and sums beyond 2^53 lose nothing."""
    cases: list[tuple[int, int, bool]] = [(99, 1, True), (98, 1, False), (99 * 10**11, 10**11, True)]
    cases.append((99 * 10**11 - 1, 10**11, False))
    group = Group(1, Bounds([b"", b""]), 0, GroupState.OWNED, mass_known=True, live_count=1)
    for above, below, passes in cases:
        group.mass = Mass(column([5]), column([below]), above, {P99: 50})
        assert Masses([P99], [group]).candidates() == {P99: 50 if passes else 5}


@pytest.mark.parametrize("crash", [False, True])
def test_masses_are_journaled(crash: bool) -> None:
    d = Driver(SPEC)
    a, b = owners(d, b"", b"m", b"")
    d.report(a, 10, mass=at(12, recent=3, pending=(10, 11)))
    d.report(b, 10, mass=at(13, recent=3))
    owner = d.claim(b"", b"").sequencer
    if crash:
        d.crash()
    d.report(owner, 11)
    assert (d.low, d.high(P99), d.high(P50)) == (11, 11, 12)


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
    assert len(d.core.masses._entries) + len(d.core.masses._changed) < 10
    again = recovery.recover(d.spec, None, d.records, epoch_base=0)
    assert len(again.masses._entries) + len(again.masses._changed) < 10


def test_rule7_a_long_replay_keeps_few_groups_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    most, changed = 0, Masses.changed

    def counted(self: Masses, group: Group) -> None:
        nonlocal most
        changed(self, group)
        most = max(most, len(self._changed))

    d = Driver(Spec("c"))
    for _ in range(2_000):
        d.claim(b"", b"")
    monkeypatch.setattr(Masses, "changed", counted)
    recovery.recover(d.spec, None, d.records, epoch_base=0)
    assert 0 < most < 500
