"""Lateness budgets of a computation: what its claims tell, what is counted of it, and what is left of it after a crash."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import numpy as np
import pytest

from lowwater import errors
from lowwater.core import lateness
from lowwater_authority.core import recovery
from lowwater_authority.core.budget import Budget, Lateness
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import Mass
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.times import HOUR, MINUTE
from tests.property.core_driver import MIN, NOW, Driver

PPM = 10_000
"""A budget of 1 %."""


class Source:
    """A claim that hands on records, and tells of them as a client does: all of them, each time."""

    def __init__(self, driver: Driver, *bounds: bytes, frontier: int = NOW - HOUR) -> None:
        self.driver = driver
        self.sequencer = driver.claim(*(bounds or (b"", b""))).sequencer
        self.counts: dict[int, int] = {}
        self.behind, self.judged = 0, MIN
        self.frontier = frontier

    def hand_on(self, records: int, late: int = 0, *, judged: int | None = None) -> None:
        mark = published(self.driver) if judged is None else judged
        bucket = lateness.bucket_of(late)
        self.counts[bucket] = self.counts.get(bucket, 0) + records
        self.judged = mark
        self.behind += records if mark > MIN and self.frontier - late < mark else 0

    def told(self, **more: object) -> Lateness:
        said = {"counts": dict(self.counts), "reference": self.frontier, "frontier": self.frontier}
        return Lateness(**{**said, "behind": {PPM: (self.behind, self.judged)}, **more})  # type: ignore[arg-type]

    def report(self, value: int = MIN, **more: object) -> set[tuple[str, int | None]]:
        return self.driver.report(self.sequencer, value, lateness=self.told(), **more)  # type: ignore[arg-type]


def driver() -> Driver:
    return Driver(Spec("c", budgets=(PPM,)))


def budget(of: Driver) -> Budget:
    return of.core.budgets[PPM]


def published(of: Driver) -> int:
    return of.core.published.budgets[0].micros


def counted(of: Driver) -> tuple[int, int]:
    kept = of.core.published.budgets[0]
    return kept.records, kept.behind


def warmed(of: Driver, *bounds: bytes) -> Source:
    """A source whose 600 records were not late, and that has gone on for a minute."""
    source = Source(of, *bounds)
    source.hand_on(600)
    source.report()
    source.frontier += MINUTE
    source.hand_on(1)
    source.report()
    return source


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": {0: 600}},
        {"counts": {7: 606}},
        {"counts": {0: 2**40, 2: 1}},
        {"behind": {PPM: (0, 0)}},
        {"behind": {PPM: (607, 0)}},
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing_of_it(wrong: dict[str, object]) -> None:
    made = driver()
    source = warmed(made)
    source.hand_on(5, late=HOUR)
    source.report()
    before = counted(made), published(made)
    refused = made.report(source.sequencer, 9, lateness=source.told(**wrong))
    assert refused == {("INVALID_ARGUMENT", None)}
    assert (counted(made), published(made), made.low) == (*before, 9), "the rest of the report counts"
    source.hand_on(1)
    assert not source.report(10), "nor does it spoil what comes after"
    assert counted(made) == (607, 5)


def test_what_would_take_a_computation_beyond_62_bits_is_refused() -> None:
    made = driver()
    one, two = Source(made, b"", b"m"), Source(made, b"m", b"")
    budget(made).records = 2**62 - 5
    one.hand_on(4)
    two.hand_on(2)
    assert not one.report(settle=False)
    assert two.report(settle=False) == {("INVALID_ARGUMENT", None)}
    made.settle()
    assert counted(made)[0] == 2**62 - 1
    assert two.report() == {("INVALID_ARGUMENT", None)}
    recovery.snapshot(made.core)


def test_rule3_it_never_goes_back_over_crashes_snapshots_and_takeovers() -> None:
    for seed in range(6):
        random = Random(seed)
        made = driver()
        sources = [Source(made, b"", b"m"), Source(made, b"m", b"")]
        shown = MIN
        snapshot: tuple[bytes, int] | None = None
        for _ in range(60):
            source = random.choice(sources)
            source.frontier = max(source.frontier, made.now - HOUR) + random.randrange(MINUTE)
            for _ in range(random.randrange(3)):
                source.hand_on(random.randrange(400), late=random.choice((0, MINUTE, HOUR)))
            low = random.choice((MIN, NOW - 2 * HOUR, source.frontier - HOUR))
            source.report(low, settle=random.random() < 0.8)
            assert published(made) >= max(shown, made.low)
            shown = published(made)
            if random.random() < 0.1:
                at = sources.index(source)
                sources[at] = Source(made, *((b"", b"m"), (b"m", b""))[at], frontier=source.frontier)
            if random.random() < 0.2:
                made.settle()
                if random.random() < 0.5:
                    snapshot = recovery.snapshot(made.core), len(made.records)
                before, kept = arrived(made.core), made.core.published.budgets
                start, after = snapshot if snapshot is not None else (None, 0)
                made.core = recovery.recover(
                    made.spec, start, made.records[after:], epoch_base=made.core.epoch_base + 1000
                )
                assert made.core.published.budgets == kept
                assert arrived(made.core) == before
        assert budget(made).warm


def arrived(core: Computation) -> object:
    """All that is known of what came. Copied, so that it stays as it is."""
    groups = [(each.sequencer, each.arrivals, each.arrived_before) for each in core.map.run_groups()]
    return deepcopy((core.budgets, groups))


def weights(of: Driver) -> list[tuple[bytes, int]]:
    told = {each.bounds[0]: each.arrived() for each in of.core.map.run_groups()}
    return [(start, weight[1]) for start, weight in told.items() if weight is not None]


def test_cuts_and_merges_make_no_more_of_what_weighs_in_it() -> None:
    made = driver()
    source = Source(made, b"", b"m", b"")
    source.hand_on(100)
    source.report()
    for _ in range(40):
        made.claim(b"m", b"")
        assert weights(made) == [(b"", 50), (b"m", 50)]
        made.claim(b"k", b"p")
        assert sum(weight for _, weight in weights(made)) == 100
        made.claim(b"", b"m", b"")
        assert weights(made) == [(b"", 100)]
    assert made.core.map.groups[made.core.last_sequencer].arrived_before == (source.frontier, 100)


def test_an_input_that_is_added_takes_back_how_far_its_claims_were() -> None:
    """What they said did not know of what comes from there; a replay finds the same."""
    made = driver()
    one, _ = warmed(made, b"", b"m"), warmed(made, b"m", b"")
    made.claim(b"m", b"")
    shown = published(made)
    made.core.revoke(1, made.now, bound=one.frontier - HOUR)
    made.settle()
    assert [each.arrived() for each in made.core.map.run_groups()] == [(one.frontier - HOUR, 601)] * 2
    again = recovery.recover(made.spec, None, made.records, epoch_base=made.core.epoch_base + 1000)
    assert arrived(again) == arrived(made.core)
    made.core.revoke(2, made.now, bound=None)
    assert [each.arrived() for each in made.core.map.run_groups()] == [(one.frontier - HOUR, 601)] * 2
    assert published(made) == shown, "it never goes back"


def test_a_record_in_which_it_goes_back_is_refused() -> None:
    made = driver()
    warmed(made)
    record = pb.Record.FromString(made.records[-1])
    record.budgets[0].micros -= 1
    again = pb.Record(incarnation=1, time_micros=record.time_micros, budgets=record.budgets, low_micros=MIN)
    with pytest.raises(recovery.ReplayError, match="goes back"):
        recovery.recover(made.spec, None, [*made.records, again.SerializeToString()], epoch_base=1000)


def test_registered_budgets_are_of_the_registration() -> None:
    graph = Topology().register(Spec("c", budgets=(1_000, PPM)))
    assert graph.register(Spec("c", budgets=(1_000, PPM))) is graph
    assert Topology.decode(graph.encode()).get("c").budgets == (1_000, PPM)
    with pytest.raises(errors.RegistrationConflict, match="lateness budgets"):
        graph.register(Spec("c"))
    for wrong in ((99,), (500_001,), (PPM, PPM), (1_000, 2_000, 3_000, 4_000, 5_000)):
        with pytest.raises(errors.InvalidArgument, match="lateness_budgets_ppm"):
            Topology().register(Spec("d", budgets=wrong))


class Board:
    def __init__(self, *bounds: bytes, seed: int = 0) -> None:
        self.driver = Driver(Spec("c", heuristics=(990_000,), budgets=(PPM,), all_pending=True))
        self.source = Source(self.driver, *bounds)
        self.random = Random(seed)
        self.pending: dict[int, int] = {}
        """Event time by record."""
        self.landed = self.behind = 0

    def announce(self, time: int) -> None:
        self.pending[len(self.pending) + self.landed] = time

    def land(self, record: int) -> None:
        """A record comes in; it is behind if what readers saw before had passed it."""
        time = self.pending.pop(record)
        self.landed += 1
        mark = published(self.driver)
        late = max(0, self.source.frontier - time)
        self.behind += mark > time
        bucket = lateness.bucket_of(late)
        self.source.counts[bucket] = self.source.counts.get(bucket, 0) + 1
        self.source.behind += mark > time
        self.source.judged = mark

    def report(self, frontier: int | None = None) -> None:
        self.source.frontier = self.source.frontier if frontier is None else frontier
        times = sorted(self.pending.values())
        mass = Mass(
            np.array(times, dtype=np.int64), np.ones(len(times), dtype=np.int64), 0, {990_000: self.source.frontier}
        )
        assert not self.source.report(min([self.source.frontier, *times]), mass=mass)

    def passing(self) -> int:
        """The oracle: the greatest time at most the frontier that no more pending records are before than may still come behind."""
        tokens = self.landed * PPM // 1_000_000 - self.behind
        times = sorted(self.pending.values())
        best = MIN
        for time in sorted({*times, self.source.frontier}):
            if time <= self.source.frontier and sum(each < time for each in times) <= tokens:
                best = max(best, time)
        return best


@pytest.mark.parametrize("seed", range(5))
def test_rule3_with_all_pending_known_the_share_behind_is_kept_from_the_first_record_on(seed: int) -> None:
    board, seen, waits = Board(seed=seed), MIN, []
    random, clock, number = board.random, NOW - 48 * HOUR, 0
    while clock < NOW:
        clock += 10 * MINUTE
        for _ in range(random.randrange(30)):
            board.announce(clock + random.randrange(HOUR))
        for record in [record for record in board.pending if random.random() < (0.002 if record % 50 == 0 else 0.3)]:
            board.land(record)
        board.report(clock)
        number += 1
        kept = published(board.driver)
        assert kept == max(seen, board.passing(), board.driver.core.published.low)
        assert board.behind * 1_000_000 <= PPM * board.landed, "at no time are more behind than the budget says"
        seen = kept
        waits.append(clock - kept)
    told = board.driver.core.published.budgets[0]
    assert (told.records, told.behind, told.excused) == (board.landed, board.behind, 0)
    assert board.behind > 0
    assert seen > board.driver.core.published.low


@pytest.mark.parametrize("wrong", [{"inputs": ("a",)}, {"budgets": ()}, {"heuristics": ()}])
def test_only_an_injector_with_a_budget_can_know_all_that_is_pending(wrong: dict[str, tuple[object, ...]]) -> None:
    asked = {"heuristics": (990_000,), "budgets": (PPM,), "all_pending": True, **wrong}
    with pytest.raises(errors.InvalidArgument, match="all_pending"):
        Topology().register(Spec("c", **asked))  # type: ignore[arg-type]


def test_what_comes_behind_a_heuristic_watermark_is_counted() -> None:
    made = Driver(Spec("c", heuristics=(990_000,), budgets=(PPM,)))
    source = Source(made)
    nothing = Mass(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 1, {990_000: source.frontier})
    source.hand_on(10)
    source.report(mass=nothing)
    assert made.core.published.passed == {}, "there was none when they came"
    source.frontier += HOUR
    source.hand_on(5, late=30 * MINUTE)
    source.hand_on(3, late=2 * HOUR)
    source.report()
    assert made.core.published.passed == {990_000: (8, 3)}
    made.crash()
    assert made.core.published.passed == {990_000: (8, 3)}
