"""Rules 8, 9 and 10: what the network and the store may do, and which incarnation it is; each switched off once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.topology import Spec
from tests.property import switches
from tests.property.core_driver import MIN, Driver, mass
from tests.property.switches import planted

HALF = 500_000


# -- rule 8: resumable -------------------------------------------------------------------------------------

told = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6)


@given(states=told, deliveries=st.lists(st.integers(0, 5), max_size=8))
@settings(max_examples=60, database=None)
def test_rule8_resumable(states: list[tuple[int, int]], deliveries: list[int]) -> None:
    """Reports arrive in any order, some never, some twice; once the newest has come, it alone counts."""
    d, only = Driver(), Driver()
    sequencer = d.claim(b"", b"m", b"").sequencer
    only.claim(b"", b"m", b"")
    newest = len(states) - 1
    for index in [*(i % len(states) for i in deliveries), newest, *(i % len(states) for i in deliveries)]:
        d.report(sequencer, *states[index], number=(1, index + 1))
    only.report(sequencer, *states[newest])
    assert d.values() == only.values()
    d.crash()
    d.report(sequencer, *states[0], number=(1, 1 if newest else 0))
    assert d.values() == only.values()
    # A new stream starts its numbers again, and still counts; the old stream's reports do not any more.
    d.report(sequencer, 7, 8, number=(2, 1))
    d.report(sequencer, *states[newest], number=(1, newest + 1))
    assert [value for _, value in d.values()] == [7, 8]


@planted(8, switches.ClaimsNotRepeatable)
def test_rule8_claims_are_repeatable(made: type[Computation]) -> None:
    d = Driver(made=made)
    first = d.claim(b"", b"", request_id=b"1")
    d.report(first.sequencer, 5)
    again = d.claim(b"", b"", request_id=b"1")
    assert (again.sequencer, again.watermarks.tolist()) == (first.sequencer, [5])


# -- rule 9: identified ------------------------------------------------------------------------------------


@planted(9, switches.AnyIncarnation)
def test_rule9_incarnation_of_an_input(made: type[Computation]) -> None:
    """C5b: a fold over another incarnation of an input counts as MIN, its frontiers too."""
    d = Driver(Spec("c", ("a",), (HALF,), max_skew=10**9), made=made)
    now, before = Fold(1, (2,)), Fold(1, (1,))
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 10, fold=now, required=now, mass=mass(recent=5, frontiers={HALF: 10}))
    assert (d.low, d.high(HALF)) == (10, 10)
    d.report(owner, 90, fold=before, required=now, mass=mass(recent=5, frontiers={HALF: 95}))
    assert d.values() == [(b"", MIN)]
    assert (d.low, d.high(HALF)) == (10, 10)


def test_rule9_incarnation() -> None:
    """C5a: a report on its way through a reset."""
    d = Driver()
    old = d.claim(b"", b"", identity="first")
    d.report(old.sequencer, 15)
    d.reset()
    assert (d.low, d.core.published.incarnation) == (MIN, 2)
    assert d.report(old.sequencer, 15) == {("STALE_SEQUENCER", None)}
    assert d.low == MIN
    d.crash()
    assert (d.low, d.core.incarnation, d.core.map.groups) == (MIN, 2, {})
    new = d.claim(b"", b"", identity="second")
    assert new.sequencer > old.sequencer, "no sequencer is granted twice, not even in another incarnation"
    d.report(new.sequencer, 9)
    d.crash()
    assert d.low == 9


def test_rule9_records_of_incarnations_are_never_mixed() -> None:
    d = Driver()
    d.report(d.claim(b"", b"").sequencer, 5)
    first = list(d.records)
    d.reset()
    d.claim(b"", b"")
    second = d.records[len(first) :]
    with pytest.raises(recovery.ReplayError, match="incarnation 1 follows its incarnation 2"):
        recovery.recover(d.spec, None, [*first, *second, *first], epoch_base=0)
    with pytest.raises(recovery.ReplayError, match="knows only 1"):
        recovery.recover(Spec("c"), None, [*first, *second], epoch_base=0)


# -- rule 10: two durabilities -----------------------------------------------------------------------------


def test_rule10_classes() -> None:
    d = Driver(Spec("c", heuristics=(HALF,), max_skew=10**9))
    owner = d.claim(b"", b"m", b"").sequencer
    d.report(owner, 10)
    d.report(owner, 20, 30, mass=mass([25], frontiers={HALF: 30}))
    d.report(owner, 15, handles=[1])
    d.report(owner, 40, 40)
    d.prepare(owner, 1, [], 50)
    d.commit(owner, 1)
    d.release(owner)
    d.retire(b"m")
    d.core.revoke(2, d.now)
    d.settle()
    assert d.strong == [True, False, False, True, False, True, True, True, True]
    assert d.settle() is None


def test_rule10_losing_an_advance_is_safe() -> None:
    """A store that keeps only what is claim-class: owners stay, zombies stay out, nothing is further than it was."""
    for seed in range(60):
        rng = random.Random(seed)
        d = Driver()
        sequencers = [d.claim(b"", b"").sequencer]
        for _ in range(rng.randrange(4, 16)):
            owner = rng.choice(sequencers)
            match rng.randrange(6):
                case 0:
                    cut = rng.choice([b"d", b"m"])
                    sequencers.append(d.claim(*((b"", cut) if rng.random() < 0.5 else (cut, b""))).sequencer)
                case 1 if owner in d.core.map.groups and d.report(owner, 0) == set():
                    d.release(owner)
                case _:
                    d.report(owner, rng.randrange(50))
        kept = len(d.strong) - next((i for i, strong in enumerate(reversed(d.strong)) if strong), len(d.strong))
        before, low = d.core.map.all_ranges(100)[0], d.low
        d.crash(lose=len(d.records) - kept)
        after = {r.start: r for r in d.core.map.all_ranges(100)[0]}
        assert {(r.start, r.owner.sequencer, r.owner.state) for r in before} == {
            (r.start, r.owner.sequencer, r.owner.state) for r in after.values()
        }
        assert all(after[r.start].value <= r.value for r in before)
        assert d.low <= low
