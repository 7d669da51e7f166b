"""The rules of docs/concepts/guarantees.md as far as the core alone can show them, each with the rule switched off once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.topology import Spec
from tests.property import switches
from tests.property.core_driver import MAX, MIN, Driver, mass
from tests.property.switches import off, planted

HALF = 500_000


@planted(1, switches.SilenceCountsAsIdle)
def test_rule1_unknown_holds_through_silence(computation_class: type[Computation]) -> None:
    d = Driver(computation_class=computation_class)
    quiet, busy = d.claim(b"", b"g"), d.claim(b"g", b"")
    d.report(quiet.sequencer, 10)
    d.report(busy.sequencer, 20)
    for leave in (lambda: None, lambda: d.release(quiet.sequencer), lambda: d.core.revoke(2, d.now)):
        leave()
        d.now += 365 * 86_400 * 1_000_000
        d.report(busy.sequencer, 30 + d.now % 7)
        d.settle()
        assert d.low == 10


@planted(3, switches.NoRatchet)
def test_rule3_monotone(computation_class: type[Computation]) -> None:
    d = Driver(Spec("c", heuristics=(HALF,), max_skew=10**9), computation_class=computation_class)
    owner = d.claim(b"", b"")
    shown: list[tuple[int, int]] = []
    for value, at in ((10, 30), (20, 40), (5, 15), (25, 12), (MIN, MIN)):
        d.report(owner.sequencer, value, mass=mass([at, at], frontiers={HALF: 50}))
        shown.append((d.low, d.high(HALF)))
    owner = d.claim(b"", b"", bound=[3])
    shown.append((d.low, d.high(HALF)))
    assert shown == [(10, 30), (20, 40), (20, 40), (25, 40), (25, 40), (25, 40)]
    assert d.values() == [(b"", MIN)], "the range itself may be lowered"
    d.crash()
    assert (d.low, d.high(HALF)) == (25, 40)


@planted(4, switches.Unfenced)
def test_rule4_fenced(computation_class: type[Computation]) -> None:
    d = Driver(computation_class=computation_class)
    old = d.claim(b"", b"d", b"h", b"")
    d.report(old.sequencer, 10, 10, 10)
    new = d.claim(b"d", b"h")
    (notice,) = new.fenced
    assert (notice.sequencer, notice.handles) == (old.sequencer, [1])
    assert d.report(old.sequencer, 90, 90, 90) == {("STALE_SEQUENCER", 1)}
    assert d.values() == [(b"", 90), (b"d", 10), (b"h", 90)]
    d.report(new.sequencer, 20)
    assert d.low == 20
    last = d.claim(b"", b"")
    assert [notice.handles for notice in last.fenced] == [[0, 2], None]
    for zombie in (old, new):
        assert d.report(zombie.sequencer, 99) == {("STALE_SEQUENCER", None)}
    assert d.low == 20


def interleavings(ours: int, right: int) -> Iterator[list[bool]]:
    """All orders of two programs of so many steps; True: the left one's turn."""
    for turns in combinations(range(ours + right), ours):
        yield [position in turns for position in range(ours + right)]


class Stage:
    """B reads A. A record of 13 moves from A to B, and A's watermark follows; B reports on a clock."""

    def __init__(self) -> None:
        self.a, self.b = Driver(), Driver()
        self.at_a, self.at_b = self.a.claim(b"", b"").sequencer, self.b.claim(b"", b"").sequencer
        self.a.report(self.at_a, 12)
        self.pending: list[int] = []

    def deliver(self) -> None:
        self.pending.append(13)

    def advance(self) -> None:
        self.a.report(self.at_a, 14)

    def oldest(self) -> int:
        return min(self.pending, default=MAX)


def lead(program: tuple[str, ...]) -> int:
    worst = -100
    for order in interleavings(2, 2 * len(program)):
        stage = Stage()
        arrivals, steps = iter((stage.deliver, stage.advance)), iter(program * 2)
        low, oldest = MIN, MAX
        for turn in order:
            if turn:
                next(arrivals)()
                continue
            match next(steps):
                case "seen":
                    low = stage.a.low
                case "oldest":
                    oldest = stage.oldest()
                case "send":
                    stage.b.report(stage.at_b, min(oldest, low))
            worst = max(worst, stage.b.low - stage.oldest())
    return worst


def test_rule5_a_fold_of_an_earlier_snapshot_never_leads() -> None:
    """Snapshot of the input first, then the oldest work, then the report: the greatest lead over all orders."""
    assert lead(("seen", "oldest", "send")) <= 0


@off(5)
def test_rule5_off_the_newest_input_is_folded() -> None:
    assert lead(("oldest", "seen", "send")) <= 0


@planted(8, switches.ClaimsNotRepeatable)
def test_rule8_claims_are_repeatable(computation_class: type[Computation]) -> None:
    d = Driver(computation_class=computation_class)
    first = d.claim(b"", b"", request_id=b"1")
    d.report(first.sequencer, 5)
    again = d.claim(b"", b"", request_id=b"1")
    assert (again.sequencer, again.watermarks.tolist()) == (first.sequencer, [5])


@planted(9, switches.AnyIncarnation)
def test_rule9_incarnation_of_an_input(computation_class: type[Computation]) -> None:
    """C5b: a fold over another incarnation of an input counts as MIN, its frontiers too."""
    d = Driver(Spec("c", ("a",), (HALF,), max_skew=10**9), computation_class=computation_class)
    now, before = Fold(1, (2,)), Fold(1, (1,))
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 10, fold=now, required=now, mass=mass(recent=5, frontiers={HALF: 10}))
    assert (d.low, d.high(HALF)) == (10, 10)
    d.report(owner, 90, fold=before, required=now, mass=mass(recent=5, frontiers={HALF: 95}))
    assert d.values() == [(b"", MIN)]
    assert (d.low, d.high(HALF)) == (10, 10)


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


def test_rule7_nothing_of_a_batch_is_kept_after_its_commit() -> None:
    d = Driver()
    run = d.claim(b"", b"d", b"").sequencer
    tasks = [d.stage(run, 1, index, {index: 15}) for index in range(2)]
    assert d.prepare(run, 1, tasks, 14) == []
    assert d.commit(run, 1) == set()
    assert (len(d.core.batches), d.core.batches.bytes) == (0, 0)
    d.stage(run, 1, 0, {0: 3}, attempt=1)
    assert len(d.core.batches) == 0
    assert d.prepare(run, 1, tasks, 14) == []
    assert d.commit(run, 1) == set(), "a repeat gets the first answer"
    tasks = [d.stage(run, 2, index, {index: 20}) for index in range(2)]
    assert d.prepare(run, 2, tasks, 19) == []
    d.stage(run, 3, 0, {0: 30})
    assert d.commit(run, 2) == set()
    assert len(d.core.batches) == 1, "of the batch that follows"
    assert {value for _, value in d.values()} == {19}


def test_a_batch_of_another_fold_is_refused() -> None:
    d = Driver(Spec("c", ("a",)))
    run = d.claim(b"", b"").sequencer
    d.prepare(run, 1, [], 14, fold=Fold(1, (1,)))
    with pytest.raises(errors.InputVersion):
        d.commit(run, 1, Fold(2, (1, 1)))
    with pytest.raises(errors.IncarnationChanged):
        d.commit(run, 1, Fold(1, (2,)))
    assert d.low == MIN
    assert d.commit(run, 1, Fold(1, (1,))) == set()
    assert d.low == 14
