"""The rules of docs/guarantees.md as far as the core alone can show them, each with the rule switched off once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.topology import Spec
from tests.property import switches
from tests.property.core_driver import MAX, MIN, Driver, mass
from tests.property.switches import off, planted

HALF = 500_000


# -- rule 1: unknown holds ---------------------------------------------------------------------------------


@planted(1, switches.SilenceCountsAsIdle)
def test_rule1_unknown_holds_through_silence(made: type[Computation]) -> None:
    """Released, revoked or just silent for a year: the last value holds."""
    d = Driver(made=made)
    quiet, busy = d.claim(b"", b"g"), d.claim(b"g", b"")
    d.report(quiet.sequencer, 10)
    d.report(busy.sequencer, 20)
    for leave in (lambda: None, lambda: d.release(quiet.sequencer), lambda: d.core.revoke(2, d.now)):
        leave()
        d.now += 365 * 86_400 * 1_000_000
        d.report(busy.sequencer, 30 + d.now % 7)
        d.settle()
        assert d.low == 10


def test_rule1_unknown_holds_where_nothing_was_reported() -> None:
    d = Driver()
    first = d.claim(b"", b"m")
    d.report(first.sequencer, 100)
    assert d.low == MIN, "[m, ...) was never claimed"
    second = d.claim(b"m", b"")
    assert d.low == MIN, "[m, ...) was never reported"
    d.report(second.sequencer, 50)
    assert d.low == 50


def test_rule1_unknown_holds_through_split_and_merge() -> None:
    d = Driver()
    first = d.claim(b"", b"d", b"h", b"p", b"")
    d.report(first.sequencer, 10, 20, 30, 40)
    merged = d.claim(b"", b"h", b"")
    assert merged.watermarks.tolist() == [10, 30], "a merge takes the least"
    split = d.claim(b"h", b"j", b"k", b"")
    assert split.watermarks.tolist() == [30, 30, 30], "a split copies"
    across = d.claim(b"c", b"i")
    assert across.watermarks.tolist() == [10]
    assert d.values() == [(b"", 10), (b"c", 10), (b"i", 30), (b"j", 30), (b"k", 30)]
    assert d.low == 10


def test_rule1_unknown_holds_through_recovery() -> None:
    """The same after a crash, from records and from a snapshot."""
    d = Driver()
    first = d.claim(b"", b"h", b"")
    d.report(first.sequencer, 50, 60)
    d.report(first.sequencer, 40, handles=[0])
    d.claim(b"p", b"")
    d.release(first.sequencer)
    before, snapshot = d.values(), recovery.snapshot(d.core)
    assert before == [(b"", 40), (b"h", 60), (b"p", 60)]
    d.crash()
    assert (d.values(), d.low) == (before, 50)
    d.records = []
    d.crash(snapshot=snapshot)
    assert (d.values(), d.low) == (before, 50)


# -- rule 3: monotone --------------------------------------------------------------------------------------


@planted(3, switches.NoRatchet)
def test_rule3_monotone(made: type[Computation]) -> None:
    d = Driver(Spec("c", heuristics=(HALF,), max_skew=10**9), made=made)
    owner = d.claim(b"", b"")
    seen: list[tuple[int, int]] = []
    for value, at in ((10, 30), (20, 40), (5, 15), (25, 12), (MIN, MIN)):
        d.report(owner.sequencer, value, mass=mass([at, at], frontiers={HALF: 50}))
        seen.append((d.low, d.high(HALF)))
    owner = d.claim(b"", b"", bound=[3])
    seen.append((d.low, d.high(HALF)))
    assert seen == [(10, 30), (20, 40), (20, 40), (25, 40), (25, 40), (25, 40)]
    assert d.values() == [(b"", MIN)], "the range itself may be lowered"
    d.crash()
    assert (d.low, d.high(HALF)) == (25, 40)


# -- rule 4: fenced ----------------------------------------------------------------------------------------


@planted(4, switches.Unfenced)
def test_rule4_fenced(made: type[Computation]) -> None:
    """The zombie's stale range is refused and named, the rest of its message counts, and nobody else loses any."""
    d = Driver(made=made)
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


@planted(4, switches.ChecksPublishedOwners)
def test_rule4_fenced_within_the_round_of_the_claim(made: type[Computation]) -> None:
    """H3: the claim is staged, not yet durable, and the old owner's report comes behind it."""
    d = Driver(made=made)
    old = d.claim(b"", b"")
    d.report(old.sequencer, 10)
    new = d.claim(b"", b"", settle=False)
    assert d.report(old.sequencer, 99, settle=False) == {("STALE_SEQUENCER", None)}
    d.settle()
    assert d.values() == [(b"", 10)]
    d.crash()
    assert d.values() == [(b"", 10)]
    assert d.report(new.sequencer, 11) == set()


# -- rule 5: workers fold the inputs -----------------------------------------------------------------------


def interleavings(left: int, right: int) -> Iterator[list[bool]]:
    """All orders of two programs of so many steps; True: the left one's turn."""
    for turns in combinations(range(left + right), left):
        yield [position in turns for position in range(left + right)]


class Stage:
    """B reads A. A record of 13 moves from A to B, and A's watermark follows; B reports on a clock."""

    def __init__(self) -> None:
        self.a, self.b = Driver(), Driver()
        self.at_a, self.at_b = self.a.claim(b"", b"").sequencer, self.b.claim(b"", b"").sequencer
        self.a.report(self.at_a, 12)
        self.held: list[int] = []

    def deliver(self) -> None:
        self.held.append(13)

    def advance(self) -> None:
        self.a.report(self.at_a, 14)

    def oldest(self) -> int:
        return min(self.held, default=MAX)


def lead(program: tuple[str, ...]) -> int:
    worst = -100
    for order in interleavings(2, 2 * len(program)):
        stage = Stage()
        arrivals, steps = iter((stage.deliver, stage.advance)), iter(program * 2)
        seen, oldest = MIN, MAX
        for turn in order:
            if turn:
                next(arrivals)()
                continue
            match next(steps):
                case "seen":
                    seen = stage.a.low
                case "oldest":
                    oldest = stage.oldest()
                case "send":
                    stage.b.report(stage.at_b, min(oldest, seen))
            worst = max(worst, stage.b.low - stage.oldest())
    return worst


def test_rule5_a_fold_of_an_earlier_snapshot_never_leads() -> None:
    """Snapshot of the input first, then the oldest work, then the report: the greatest lead over all orders."""
    assert lead(("seen", "oldest", "send")) <= 0


@off(5)
def test_rule5_off_the_newest_input_is_folded() -> None:
    """C3: the snapshot is taken after the oldest work was computed."""
    assert lead(("oldest", "seen", "send")) <= 0
