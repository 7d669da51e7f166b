"""Executions that would make a watermark lead, go back or stick, at the level of one computation: owners and reports.

The letters are those of the design's list of attacks.
"""

from __future__ import annotations

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.topology import Spec
from tests.property import switches
from tests.property.core_driver import MAX, MIN, SECOND, Driver, mass
from tests.property.switches import planted

HALF = 500_000


def test_C4_nothing_pending_is_not_finished() -> None:
    """The min of the empty set is MAX; MAX without finish is refused, and so is every value that only looks like it."""
    d = Driver()
    owner = d.claim(b"", b"m", b"").sequencer
    d.report(owner, 10)
    assert d.report(owner, MAX) == {("FINISH_REQUIRED", 0), ("FINISH_REQUIRED", 1)}
    assert d.report(owner, 11, MAX) == {("FINISH_REQUIRED", 1)}
    assert d.report(owner, MAX - 1, 12) == {("TOO_FAR_AHEAD", 0)}
    assert d.report(owner, 12, handles=[0], finish=True) == set(), "finish alone finishes nothing"
    assert d.low == 12
    assert d.report(owner, MAX, finish=True) == set()
    assert d.low == MAX
    assert d.core.published.holder is None


def test_C6_handles_follow_the_claim_through_recovery() -> None:
    """A handle is the place in its own claim's bounds, so a rebuild in key order cannot exchange two of them."""
    d = Driver()
    upper = d.claim(b"m", b"t", b"").sequencer
    lower = d.claim(b"", b"m").sequencer
    d.report(upper, 12, 13)
    d.report(lower, 14)
    d.crash(snapshot=None)
    d.report(upper, 15, handles=[0])
    assert d.values() == [(b"", 14), (b"m", 15), (b"t", 13)]
    snapshot, d.records = recovery.snapshot(d.core), []
    d.crash(snapshot=snapshot)
    d.report(upper, 16, handles=[1])
    d.report(lower, 20, handles=[0])
    assert d.values() == [(b"", 20), (b"m", 15), (b"t", 16)]


def test_C6_lost_handles_are_not_given_to_others() -> None:
    d = Driver()
    old = d.claim(b"", b"d", b"h", b"").sequencer
    d.report(old, 1, 2, 3)
    d.claim(b"", b"d")
    snapshot, d.records = recovery.snapshot(d.core), []
    d.crash(snapshot=snapshot)
    assert d.report(old, 9, handles=[0]) == {("STALE_SEQUENCER", 0)}
    d.report(old, 5, handles=[1])
    assert d.values() == [(b"", 1), (b"d", 5), (b"h", 3)]


def test_C7_sequencers_grow_past_a_lost_tail() -> None:
    """A claim is granted, its record is lost with the store's tail: the next life of the process grants a higher one."""
    d = Driver()
    granted = d.claim(b"", b"").sequencer
    d.crash(lose=1)
    assert d.report(granted, 99) == {("STALE_SEQUENCER", None)}
    assert d.claim(b"", b"").sequencer > granted


def test_C9a_a_late_claim_of_an_old_run_is_refused() -> None:
    d = Driver()
    new = d.claim(b"", b"", identity="q", generation=7, ordinal=2).sequencer
    for generation, ordinal in ((6, 9), (7, 1), (0, 0)):
        with pytest.raises(errors.OlderClaim) as caught:
            d.claim(b"", b"", identity="q", generation=generation, ordinal=ordinal)
        assert caught.value.metadata == {"computation": "c", "generation": str(generation), "ordinal": str(ordinal)}
    assert d.report(new, 5) == set()


@planted("S11", switches.NoClaimOrder)
def test_S11_the_ordinal_decides(made: type[Computation]) -> None:
    """S11: both runs start at generation 7, nothing is committed in between, and the first one's claim arrives last."""
    d = Driver(made=made)
    second = d.claim(b"", b"", identity="q", generation=7, ordinal=2).sequencer
    for _ in range(2):
        refused = False
        try:
            d.claim(b"", b"", identity="q", generation=7, ordinal=1)
        except errors.OlderClaim:
            refused = True
        assert refused
        d.crash()
    assert d.report(second, 5) == set()


def test_C9b_a_rewound_run_is_refused() -> None:
    """A run restarted from a copy at batch 10 of a checkpoint whose batch 20 is committed."""
    d = Driver()
    first = d.claim(b"", b"", identity="q", generation=0).sequencer
    d.prepare(first, 20, [], 14, digest=b"twenty")
    d.commit(first, 20)
    for generation, digest in ((10, b""), (10, b"twenty"), (20, b""), (20, b"other")):
        with pytest.raises(errors.Rewound):
            d.claim(b"", b"", identity="q", generation=generation, ordinal=1, digest=digest)
    assert d.report(first, 15) == set(), "a refused claim takes nothing away"
    d.crash()
    with pytest.raises(errors.Rewound):
        d.claim(b"", b"", identity="q", generation=10)


def test_C9b_a_replay_of_the_same_batch_is_not_a_rewind() -> None:
    d = Driver()
    first = d.claim(b"", b"", identity="q").sequencer
    d.prepare(first, 20, [], 14, digest=b"twenty")
    d.commit(first, 20)
    again = d.claim(b"", b"", identity="q", generation=20, ordinal=1, digest=b"twenty").sequencer
    assert d.prepare(again, 20, [], 14, digest=b"twenty") == []
    assert d.commit(again, 20) == set()
    d.prepare(again, 21, [], 16)
    d.commit(again, 21)
    assert d.low == 16
    with pytest.raises(errors.Rewound):
        d.claim(b"", b"", identity="q", generation=20, ordinal=2, digest=b"twenty")


def test_C9c_two_identities_do_not_fence_each_other() -> None:
    d = Driver()
    owner = d.claim(b"", b"", identity="orders of the shop").sequencer
    with pytest.raises(errors.IdentityMismatch, match="adopt"):
        d.claim(b"", b"", identity="orders of the kitchen", generation=99)
    assert d.report(owner, 5) == set()
    d.crash()
    with pytest.raises(errors.IdentityMismatch):
        d.claim(b"", b"", identity="")


def test_H1_a_claim_starts_from_its_bound() -> None:
    """The worker reported 14 from memory and died; its successor's checkpoint says 13, in the claim's own record."""
    d = Driver()
    d.report(d.claim(b"", b"m", b"").sequencer, 14)
    again = d.claim(b"", b"m", b"", bound=[13, 20])
    assert again.watermarks.tolist() == [13, 14], "min(last value, bound)"
    assert d.strong[-1]
    d.crash()
    assert d.values() == [(b"", 13), (b"m", 14)]
    assert d.low == 14, "what was published stays"


@planted("H2", switches.NumbersIgnored)
def test_H2_a_lowering_is_not_undone_by_a_late_report(made: type[Computation]) -> None:
    """H2: 13 after 14; then 14 comes once more, late."""
    d = Driver(made=made)
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 14, number=(1, 1))
    d.report(owner, 13, number=(1, 2))
    assert d.strong[-1], "a lost lowering is not a lost advance"
    d.report(owner, 14, number=(1, 1))
    assert d.values() == [(b"", 13)]
    d.crash()
    d.report(owner, 14, number=(1, 1))
    assert d.values() == [(b"", 13)]


def test_H2_within_one_round_the_lowering_is_claim_class() -> None:
    """Up, down and up again in one round still waits for the strongest write; the record holds the last word only."""
    d = Driver()
    owner = d.claim(b"", b"").sequencer
    for value in (14, 13, 15):
        d.report(owner, value, settle=False)
    assert d.settle() is True
    (op,) = pb.Record.FromString(d.records[-1]).ops
    assert np.frombuffer(op.values.micros, dtype="<i8").tolist() == [15]


def test_H3_a_report_behind_a_release_or_retirement_in_the_same_round() -> None:
    d = Driver()
    left, right = d.claim(b"", b"m").sequencer, d.claim(b"m", b"").sequencer
    d.report(left, 5)
    d.report(right, 6)
    d.core.release(left)
    d.core.retire(b"m", b"", force=True, now=d.now)
    assert d.report(left, 9, settle=False) == {("STALE_SEQUENCER", None)}
    assert d.report(right, 9, settle=False) == {("STALE_SEQUENCER", None)}
    d.settle()
    assert d.values() == [(b"", 5), (b"m", MAX)]


def test_H3_a_report_before_the_claim_in_the_same_round_counts() -> None:
    d = Driver()
    old = d.claim(b"", b"").sequencer
    d.report(old, 5, settle=False)
    assert d.claim(b"", b"m", settle=False).watermarks.tolist() == [5]
    assert d.report(old, 9, settle=False) == {("STALE_SEQUENCER", None)}
    d.settle()
    d.crash()
    assert d.values() == [(b"", 5), (b"m", 5)]


@planted("H9", switches.AnySkew)
def test_H9_a_timestamp_of_2099_poisons_nothing(made: type[Computation]) -> None:
    """H9: one record of the year 2099."""
    d = Driver(Spec("c", heuristics=(HALF,), max_skew=1000 * SECOND), made=made)
    owner = d.claim(b"", b"m", b"").sequencer
    limit = d.now + 1000 * SECOND
    assert d.report(owner, limit, limit + 1, settle=False) == {("TOO_FAR_AHEAD", 1)}
    refused = d.report(owner, 5, mass=mass(recent=9, frontiers={HALF: limit + 1}))
    assert refused == {("TOO_FAR_AHEAD", None)}
    assert d.high(HALF) == 5
    assert d.values() == [(b"", 5), (b"m", 5)]


def test_H4_an_old_version_of_the_inputs_is_refused() -> None:
    d = Driver()
    owner = d.claim(b"", b"").sequencer
    assert d.report(owner, 5, fold=Fold(1, (1,)), required=Fold(2, (1, 1))) == {("INPUT_VERSION", None)}
    assert d.low == MIN


def a_new_input(made: type[Computation] = Computation) -> Driver:
    """The range [m..) stands at 15 while 13 is published, and an input at 14 is added.

    It hands a record of 14 to [m..), which nobody owns now, and moves on to 15; so does the new owner of [..m).
    """
    d = Driver(made=made)
    first = d.claim(b"", b"m").sequencer
    second = d.claim(b"m", b"").sequencer
    d.report(first, 13)
    d.report(second, 15)
    d.core.revoke(2, d.now, bound=14)
    d.settle()
    assert d.low == 13
    third = d.claim(b"", b"m").sequencer
    d.report(third, 15, fold=Fold(2, ()), required=Fold(2, ()))
    assert d.low == 14
    return d


def test_rule1_H4_a_new_input_holds_the_ranges_that_nobody_claims_anew() -> None:
    d = a_new_input()
    d.crash()
    assert d.values() == [(b"", 15), (b"m", 14)]


def test_H4_a_new_input_makes_every_mass_unknown() -> None:
    """The frontiers in them were folded from the other inputs alone."""
    d = Driver(Spec("c", max_skew=1000 * SECOND, heuristics=(990_000,)))
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 13, mass=mass(recent=100, frontiers={990_000: 15}))
    assert d.high(990_000) == 15
    d.core.revoke(2, d.now, bound=14)
    d.settle()
    newer = d.claim(b"", b"").sequencer
    d.report(newer, 14, fold=Fold(2, ()), required=Fold(2, ()))
    assert d.core._view().heuristics == ((990_000, 15),)  # the ratchet
    assert not d.core.map.groups[newer].mass_known


def test_S12_a_revoked_owner_cannot_go_on() -> None:
    d = Driver()
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 14)
    (fenced,) = d.core.revoke(2, d.now)
    d.settle()
    assert (fenced.sequencer, fenced.handles) == (owner, None)
    assert d.report(owner, 15) == {("STALE_SEQUENCER", None)}
    with pytest.raises(errors.StaleSequencer):
        d.release(owner)
    d.crash()
    assert d.values() == [(b"", 14)]
    assert d.report(owner, 15) == {("STALE_SEQUENCER", None)}


def test_H11_retire_is_the_only_way_out_and_a_claim_the_way_back() -> None:
    """Injectors go from four to three."""
    d = Driver()
    owners = [d.claim(a, b).sequencer for a, b in ((b"", b"d"), (b"d", b"h"), (b"h", b"p"), (b"p", b""))]
    for owner in owners:
        d.report(owner, 10)
    for owner in owners[:3]:
        d.report(owner, 20)
    with pytest.raises(errors.OwnedRanges, match="force"):
        d.retire(b"p")
    assert d.low == 10
    d.release(owners[3])
    assert d.retire(b"p") == 1
    assert d.low == 20
    back = d.claim(b"p", b"", bound=[15])
    assert back.watermarks.tolist() == [15], "revived at its bound"
    assert (d.low, d.core.map.minimum()) == (20, 15)
    d.crash()
    assert d.values()[-1] == (b"p", 15)


@pytest.mark.parametrize(("bound", "value"), [([15], 10), ([5], 5), ([], MIN), ([5, 30], 5)])
def test_a_retired_range_proves_everything_again(bound: list[int], value: int) -> None:
    """Half of [d, p) is retired, half holds at 10."""
    d = Driver()
    d.report(d.claim(b"", b"h").sequencer, 10)
    d.retire(b"h")
    bounds = (b"d", b"p") if len(bound) < 2 else (b"d", b"p", b"")
    grant = d.claim(*bounds, bound=bound)
    assert grant.watermarks.tolist()[0] == value
    assert grant.watermarks.tolist()[1:] == bound[1:]


def test_a_bound_of_MAX_brings_nothing_back_finished() -> None:
    """MAX enters by finish alone: as the bound of a range that was retired it says as little as none at all."""
    d = Driver()
    d.report(d.claim(b"", b"m").sequencer, 10)
    d.retire(b"m")
    assert d.low == 10
    d.claim(b"", b"p", b"", bound=[MAX, MAX])
    assert d.values() == [(b"", MIN), (b"p", MIN)]
    assert d.low == 10
    d.report(d.claim(b"", b"m", b"p", b"", bound=[8, MAX, 9]).sequencer, 11, 12, 13)
    d.claim(b"", b"", bound=[MAX])
    assert d.values() == [(b"", 11)], "what nobody retired keeps what its owner said"


def test_H9_a_bound_ahead_of_the_clock_is_refused() -> None:
    d = Driver()
    d.claim(b"", b"")
    d.retire(b"m", force=True)
    with pytest.raises(errors.TooFarAhead) as refused:
        d.claim(b"m", b"", bound=[d.now + 1001 * SECOND])
    assert refused.value.metadata["field"] == "bound_micros"
    assert d.values() == [(b"", MIN), (b"m", MAX)]


def test_a_computation_without_any_range_is_not_finished() -> None:
    """Its injector is replaced: the old one's range is retired before the new one has claimed."""
    d = Driver()
    d.report(d.claim(b"", b"").sequencer, 10)
    d.retire(force=True)
    assert d.low == 10
    d.crash()
    assert d.low == 10
    d.report(d.claim(b"", b"", bound=[12]).sequencer, 14)
    assert d.low == 14
    d.report(d.claim(b"", b"m").sequencer, MAX, finish=True)
    d.retire(b"m", force=True)
    assert d.low == MAX, "one owner has said that nothing will ever come, and nobody waits for the rest"


def test_retire_cuts_ranges_and_leaves_the_rest_holding() -> None:
    d = Driver()
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 10)
    with pytest.raises(errors.OwnedRanges):
        d.retire(b"d", b"h")
    assert d.retire(b"d", b"h", force=True) == 1
    assert d.values() == [(b"", 10), (b"d", MAX), (b"h", 10)]
    assert d.report(owner, 20) == {("STALE_SEQUENCER", None)}
    assert d.low == 10


def test_a_finished_owner_may_be_retired_without_force() -> None:
    d = Driver()
    d.report(d.claim(b"", b"m").sequencer, MAX, finish=True)
    assert d.retire(b"", b"m") == 1
    assert d.low == MIN
