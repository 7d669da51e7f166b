"""Lateness budgets of a computation: what its claims tell, what is counted of it, and what is left of it after a crash."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import errors
from lowwater.core import lateness
from lowwater_authority.core import recovery
from lowwater_authority.core.budget import Budget, Lateness
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import SLOTS, Group, Mass
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.times import HOUR, MINUTE
from tests.property.core_driver import MAX, MIN, NOW, Driver

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

    def lateness(self, **more: object) -> Lateness:
        fields = {"counts": dict(self.counts), "reference": self.frontier, "frontier": self.frontier}
        return Lateness(**{**fields, "behind": {PPM: (self.behind, self.judged)}, **more})  # type: ignore[arg-type]

    def report(self, value: int = MIN, **more: object) -> set[tuple[str, int | None]]:
        return self.driver.report(self.sequencer, value, lateness=self.lateness(), **more)  # type: ignore[arg-type]


def driver() -> Driver:
    return Driver(Spec("c", budgets=(PPM,)))


def budget(driver: Driver) -> Budget:
    return driver.core.budgets[PPM]


def published(driver: Driver) -> int:
    return driver.core.published.budgets[0].micros


def counted(driver: Driver) -> tuple[int, int]:
    budget_ = driver.core.published.budgets[0]
    return budget_.records, budget_.behind


def warmed(driver: Driver, *bounds: bytes) -> Source:
    """A source whose 600 records were not late, and that has gone on for a minute."""
    source = Source(driver, *bounds)
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
    subject = driver()
    source = warmed(subject)
    source.hand_on(5, late=HOUR)
    source.report()
    before = counted(subject), published(subject)
    refused = subject.report(source.sequencer, 9, lateness=source.lateness(**wrong))
    assert refused == {("INVALID_ARGUMENT", None)}
    assert (counted(subject), published(subject), subject.low) == (*before, 9), "the rest of the report counts"
    source.hand_on(1)
    assert not source.report(10), "nor does it spoil what comes after"
    assert counted(subject) == (607, 5)


def test_what_would_take_a_computation_beyond_62_bits_is_refused() -> None:
    subject = driver()
    first, second = Source(subject, b"", b"m"), Source(subject, b"m", b"")
    budget(subject).records = 2**62 - 5
    first.hand_on(4)
    second.hand_on(2)
    assert not first.report(settle=False)
    assert second.report(settle=False) == {("INVALID_ARGUMENT", None)}
    subject.settle()
    assert counted(subject)[0] == 2**62 - 1
    assert second.report() == {("INVALID_ARGUMENT", None)}
    recovery.snapshot(subject.core)


def arrived(core: Computation) -> object:
    """All that is known of what came. Copied, so that it stays as it is."""
    groups = [(group.sequencer, group.arrivals, group.arrived_before) for group in core.map.run_groups()]
    return deepcopy((core.budgets, groups))


EDGES = [b"", b"d", b"k", b"p", b"t", b""]

picks = st.integers(0, 9)
spans = st.sets(st.integers(0, 5), min_size=2, max_size=4).map(sorted)
records = st.sampled_from([0, 100, 400, None])
claims = st.tuples(st.just("claim"), spans)
reports = st.tuples(st.just("report"), picks, records, st.sampled_from([0, MINUTE, HOUR]), picks)
others = (
    st.tuples(st.just("retire"), spans)
    | st.tuples(st.just("revoke"), st.none() | picks)
    | st.tuples(st.just("wait"), st.integers(1, 12))
    | st.sampled_from([("snapshot",), ("crash",)])
)
steps = st.lists(
    st.integers(0, 5).flatmap(lambda kind: [claims, others][kind] if kind < 2 else reports), min_size=15, max_size=40
)


class Owners:
    """Claims of parts of a computation that report lateness, beside what is known of their weights in R."""

    def __init__(self) -> None:
        self.driver = driver()
        self.sources: list[Source] = []
        self.snapshot: tuple[bytes | None, int] = None, 0
        self.reference = self.last_published = MIN
        self.records = self.revocations = 0

    def weights(self) -> dict[Group, tuple[int, int]]:
        groups = {group: group.arrived() for group in self.driver.core.map.run_groups()}
        return {group: weight for group, weight in groups.items() if weight is not None}

    def claim(self, span: list[int]) -> None:
        before = self.weights()
        ranges = {group: group.live_count for group in before}
        groups = set(self.driver.core.map.run_groups())
        self.sources.append(Source(self.driver, *(EDGES[edge] for edge in span)))
        after = self.weights()
        assert sum(weight for _, weight in after.values()) == sum(weight for _, weight in before.values())
        assert {frontier for frontier, _ in after.values()} <= {frontier for frontier, _ in before.values()}
        cut = any(group.sequencer == 0 and group not in groups for group in self.driver.core.map.run_groups())
        emptied = [before[group] for group in before if not group.live_count]
        own = after.get(self.driver.core.map.groups[self.sources[-1].sequencer], (MAX, 0))
        assert own[0] <= min((frontier for frontier, weight in emptied if weight and not cut), default=MAX)
        for group, (_, weight) in before.items():
            if group.live_count and not cut:
                part = weight * group.live_count // ranges[group]
                assert part - SLOTS < after[group][1] <= part, "by its number of ranges"

    def report(self, source: Source, records: int | None, late: int, more: int) -> None:
        group = self.driver.core.map.owned_by(source.sequencer)
        if records is None:  # as many as weigh in it for those before
            records = group.arrived_before[1] if group is not None and group.arrived_before is not None else 10
        source.hand_on(records, late=late)
        frontier = MAX if more == 9 else source.frontier + more * MINUTE
        report = source.lateness(frontier=frontier)
        refused = self.driver.report(source.sequencer, frontier - HOUR if more == 8 else MIN, lateness=report)
        assert {reason for reason, _ in refused} <= {"STALE_SEQUENCER"}
        source.frontier = max(source.frontier, min(frontier, NOW))
        if group is None:
            self.sources.remove(source)
            return
        self.records += records
        assert group.arrivals is not None
        before = group.arrived_before
        assert before is None or before[1] > group.arrivals.recent.total, "it counts until as many have come"

    def retire(self, span: list[int]) -> None:
        before = sum(weight for _, weight in self.weights().values())
        self.driver.retire(EDGES[span[0]], EDGES[span[-1]], force=True)
        assert sum(weight for _, weight in self.weights().values()) <= before

    def revoke(self, back: int | None) -> None:
        """Add an input: what claims said does not know of what comes from there."""
        self.revocations += 1
        bound = None if back is None else self.driver.now - back * HOUR
        before = self.weights()
        self.driver.core.revoke(self.revocations, self.driver.now, bound=bound)
        self.driver.settle()
        limit = MAX if bound is None else bound
        assert self.weights() == {group: (min(at, limit), weight) for group, (at, weight) in before.items()}

    def crash(self) -> None:
        before, budgets = arrived(self.driver.core), self.driver.core.published.budgets
        start, after = self.snapshot
        records, base = self.driver.records[after:], self.driver.core.epoch_base + 1000
        self.driver.core = recovery.recover(self.driver.spec, start, records, epoch_base=base)
        assert self.driver.core.published.budgets == budgets
        assert arrived(self.driver.core) == before

    def check(self) -> None:
        weights = [weight for group, weight in self.weights().items() if weight[1] and not group.finished]
        total = sum(weight for _, weight in weights)
        enough = (1_000_000 - PPM) * total
        right = [
            at for at, _ in weights if sum(more for frontier, more in weights if frontier >= at) * 1_000_000 >= enough
        ]
        if (greatest := max(right, default=MIN)) != MAX:
            self.reference = max(self.reference, greatest)
        assert budget(self.driver).reference == self.reference
        assert budget(self.driver).records == self.records
        assert published(self.driver) >= max(self.last_published, self.driver.low)
        self.last_published = published(self.driver)


@given(steps=steps)
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
def test_rule3_whoever_owns_them_ranges_weigh_what_was_told_and_it_never_goes_back(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    owners = Owners()
    owners.claim([0, 5])
    for step in steps:
        match step:
            case "report", pick, records, late, more if owners.sources:
                live = [one for one in owners.sources if owners.driver.core.map.owned_by(one.sequencer)]
                sources = live if live and pick else owners.sources  # now and then one that owns nothing any more
                owners.report(sources[-1 - pick % len(sources)], records, late, more)
            case "claim", span:
                owners.claim(span)
            case "retire", span:
                owners.retire(span)
            case "revoke", back:
                owners.revoke(back)
            case "wait", minutes:
                owners.driver.now += minutes * MINUTE
            case ("snapshot",):
                owners.snapshot = recovery.snapshot(owners.driver.core), len(owners.driver.records)
            case ("crash",):
                owners.crash()
            case _:
                pass
        owners.check()


def test_a_record_in_which_it_goes_back_is_refused() -> None:
    subject = driver()
    warmed(subject)
    record = pb.Record.FromString(subject.records[-1])
    record.budgets[0].micros -= 1
    again = pb.Record(incarnation=1, time_micros=record.time_micros, budgets=record.budgets, low_micros=MIN)
    with pytest.raises(recovery.ReplayError, match="goes back"):
        recovery.recover(subject.spec, None, [*subject.records, again.SerializeToString()], epoch_base=1000)


def test_registered_budgets_are_of_the_registration() -> None:
    graph = Topology().register(Spec("c", budgets=(1_000, PPM)))
    assert graph.register(Spec("c", budgets=(1_000, PPM))) is graph
    assert Topology.decode(graph.encode()).get("c").budgets == (1_000, PPM)
    with pytest.raises(errors.RegistrationConflict, match="lateness budgets"):
        graph.register(Spec("c"))
    for wrong in ((99,), (500_001,), (PPM, PPM)):
        with pytest.raises(errors.InvalidArgument, match="lateness_budgets_ppm"):
            Topology().register(Spec("d", budgets=wrong))


class Board:
    """An injector that knows all records that are still to come, and a model of the budget: every record by itself."""

    def __init__(self, seed: int) -> None:
        self.driver = Driver(Spec("c", heuristics=(990_000,), budgets=(PPM,), all_pending=True))
        self.source = Source(self.driver, b"", b"m")
        # Another part of it has ended, and nothing is known of its records.
        if seed % 2:
            self.driver.retire(b"m", b"")
        else:
            self.driver.report(self.driver.claim(b"m", b"").sequencer, MAX, finish=True)
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
        at = sorted(self.pending.values())
        m = Mass(np.array(at, dtype=np.int64), np.ones(len(at), dtype=np.int64), 0, {990_000: self.source.frontier})
        assert not self.source.report(min([self.source.frontier, *at]), mass=m)

    def passing(self) -> int:
        """The oracle: the greatest time at most the frontier that no more pending records are before than may still come behind."""
        tokens = self.landed * PPM // 1_000_000 - self.behind
        times = sorted(self.pending.values())
        best = MIN
        for time in sorted({*times, self.source.frontier}):
            if time <= self.source.frontier and sum(at < time for at in times) <= tokens:
                best = max(best, time)
        return best


@pytest.mark.parametrize("seed", range(5))
def test_rule3_with_all_pending_known_the_share_behind_is_kept_from_the_first_record_on(seed: int) -> None:
    board, last, waits = Board(seed), MIN, []
    random, clock, number = board.random, NOW - 48 * HOUR, 0
    while clock < NOW:
        clock += 10 * MINUTE
        for _ in range(random.randrange(30)):
            board.announce(clock + random.randrange(HOUR))
        for record in [record for record in board.pending if random.random() < (0.002 if record % 50 == 0 else 0.3)]:
            board.land(record)
        board.report(clock)
        number += 1
        current = published(board.driver)
        assert current == max(last, board.passing(), board.driver.core.published.low)
        assert board.behind * 1_000_000 <= PPM * board.landed, "at no time are more behind than the budget says"
        last = current
        waits.append(clock - current)
    state = board.driver.core.published.budgets[0]
    assert (state.records, state.behind, state.excused) == (board.landed, board.behind, 0)
    assert board.behind > 0
    assert last > board.driver.core.published.low


@pytest.mark.parametrize("wrong", [{"inputs": ("a",)}, {"budgets": ()}, {"heuristics": ()}])
def test_only_an_injector_with_a_budget_can_know_all_that_is_pending(wrong: dict[str, tuple[object, ...]]) -> None:
    fields = {"heuristics": (990_000,), "budgets": (PPM,), "all_pending": True, **wrong}
    with pytest.raises(errors.InvalidArgument, match="all_pending"):
        Topology().register(Spec("c", **fields))  # type: ignore[arg-type]


def test_what_comes_behind_a_heuristic_watermark_is_counted() -> None:
    subject = Driver(Spec("c", heuristics=(990_000,), budgets=(PPM,)))
    source = Source(subject)
    nothing = Mass(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 1, {990_000: source.frontier})
    source.hand_on(10)
    source.report(mass=nothing)
    assert subject.core.published.passed == {}, "there was none when they came"
    source.frontier += HOUR
    source.hand_on(5, late=30 * MINUTE)
    source.hand_on(3, late=2 * HOUR)
    source.report()
    assert subject.core.published.passed == {990_000: (8, 3)}
    subject.crash()
    assert subject.core.published.passed == {990_000: (8, 3)}
