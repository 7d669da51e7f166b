"""A claim's process tells how late its records were: state by state, over streams that break, to a real computation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowwater
from lowwater import MIN, Watermark
from lowwater.core import lateness, wire
from lowwater.core.columns import Column
from lowwater.core.fold import Fold
from lowwater.core.lateness import Arrivals, Arrived
from lowwater.core.lease import LeaseState
from lowwater.core.ratchet import Ratchet
from lowwater.core.reports import ReporterState
from lowwater.v1 import topology_pb2, types_pb2
from lowwater.views import LatenessBudget, WatermarkView
from lowwater_authority.core import budget as authority
from lowwater_authority.core.topology import Spec
from lowwater_authority.rpc import codec
from tests.kit.client import OfflineClient
from tests.kit.times import HOUR, MINUTE
from tests.property.core_driver import NOW, Driver

PPM = 10_000


def marks(driver: Driver) -> dict[int, int]:
    return {budget.ppm: budget.micros for budget in driver.core.published.budgets}


class Pair:
    """A claim in its process, and the computation that it is of, with a stream between them that may break."""

    def __init__(self) -> None:
        self.core = Driver(Spec("c", budgets=(PPM,)))
        sequencer = self.core.claim(b"", b"").sequencer
        self.lease = LeaseState("c", sequencer, Column(1, MIN), reference=MIN, budgets=marks(self.core))
        self.reporter = ReporterState(b"s" * 16, 0.0, lambda: 1.0)
        self.reporter.add(self.lease)
        self.connect()
        self.now = 0.0
        self.frontier = NOW - 10 * HOUR
        self.untold: list[int] = []
        """Event times that the computation does not know of yet."""
        self.behind = self.records = 0
        """The records among those that it knows of, and how many came behind what was published when it heard of them."""

    def connect(self) -> None:
        self.stream = self.reporter.open()
        self.reporter.accepted(0.0)

    def hand_on(self, times: Sequence[int], *, counted: bool = False) -> None:
        self.untold += times
        records, fold = len(times), Fold(self.frontier, ((990_000, self.frontier),))
        times_: Sequence[int] = () if counted else times
        arrived = Arrived.of(times, self.frontier) if counted else None
        self.lease.advance(fold, NOW - 30 * HOUR, finished=records, times=times_, arrived=arrived, now=self.now)
        self.reporter.staged(self.lease)

    def carry(self, *, arrives: bool = True, answered: bool = True, meanwhile: Sequence[int] = ()) -> None:
        """Bring what is due to the computation, and the answer back, if both arrive; else the stream breaks. Some records come in between."""
        self.now += 1.0
        reports, count = self.reporter.take(self.now), len(self.untold)
        if meanwhile:
            self.frontier = max(self.frontier, *meanwhile)
            self.hand_on(meanwhile)
        for report in reports if arrives else ():
            (message,) = wire.report_request(report).report.groups
            group = codec.group(message)
            published = marks(self.core)[PPM]
            refused = self.core.core.report(
                group, sender=b"", number=(self.stream, report.number), required=codec.fold(message), now=self.core.now
            )
            assert not refused
            self.core.settle()
            self.behind += sum(time < published for time in self.untold[:count])
            self.records += count
            del self.untold[:count]
            count = 0
            if answered:
                self.reporter.acknowledged(report.number, (), (), {"c": marks(self.core)})
        if not arrives or not answered:
            self.connect()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, database=None, deadline=None)
def test_rule8_each_record_counts_once_and_none_is_missed_that_came_behind(seed: int) -> None:
    """Whatever is lost on the way: as many as were handed on, and as many behind as by what readers saw, or some more."""
    random, pair = Random(seed), Pair()
    late = random.choice((MINUTE, HOUR))

    def some() -> list[int]:
        return [pair.frontier - random.randrange(late) for _ in range(random.randrange(60))]

    for _ in range(50):
        pair.frontier += random.choice((0, random.randrange(10 * MINUTE)))
        if random.random() < 0.7:
            pair.hand_on(some(), counted=random.random() < 0.3)
        if random.random() < 0.6:
            new = [pair.frontier + random.randrange(MINUTE), *some()] if random.random() < 0.5 else []
            pair.carry(arrives=random.random() < 0.8, answered=random.random() < 0.8, meanwhile=new)
        budget = pair.core.core.published.budgets[0]
        assert budget.records == pair.records
        assert budget.behind >= pair.behind
    pair.carry(arrives=False)
    pair.carry()
    budget = pair.core.core.published.budgets[0]
    assert (budget.records, pair.untold) == (pair.records, [])
    assert budget.behind >= pair.behind


@given(st.lists(st.integers(-HOUR, HOUR)), st.lists(st.integers(-HOUR, HOUR)), st.integers(0, HOUR))
def test_two_counts_together_take_no_record_for_earlier(one: list[int], two: list[int], shift: int) -> None:
    both = Arrived.of(one, shift) | Arrived.of(two, 0)
    assert (both.reference, sum(both.counts.values())) == (0, len(one) + len(two))
    for edge in lateness.EDGES[:700:7]:
        later = sum(count for bucket, count in both.counts.items() if lateness.EDGES[bucket] > edge)
        assert later >= sum(-time > edge for time in (*one, *two))


def test_a_report_names_the_least_of_what_no_acknowledged_one_has_told() -> None:
    arrivals = Arrivals({PPM: 5})
    assert arrivals.to_report() is None, "a worker that tells no event times says nothing of lateness"
    arrivals.add([3, 9], 10_000, 1)
    arrivals.raise_marks({PPM: 8, 77: 9})
    arrivals.add([7, 8], 20_000, 2)
    report = arrivals.to_report()
    assert report is not None
    assert (report.reference, report.frontier, report.behind) == (10_000, 20_000, ((PPM, 2, 5),))
    arrivals.answered(1)
    report = arrivals.to_report()
    assert report is not None
    assert (report.reference, report.behind) == (20_000, ((PPM, 2, 8),))
    arrivals.answered(2)
    arrivals.add([], 30_000, 3)
    report = arrivals.to_report()
    assert report is not None
    assert (report.reference, report.behind) == (30_000, ((PPM, 2, 8),))
    assert sum(count for _, count in report.counts) == 4


@given(st.integers(0, 2**32))
@settings(max_examples=3, database=None, deadline=None)
def test_a_claim_tells_as_few_buckets_as_the_authority_takes_and_no_record_for_earlier(seed: int) -> None:
    random, arrivals = Random(seed), Arrivals({PPM: MIN})
    handed_on: list[int] = []
    counts: dict[int, int] = {}
    report = None
    for version in range(400):
        late = [int(1_000 * 1.05 ** random.uniform(0, 750)) for _ in range(5)]
        handed_on += late
        arrivals.add([-time for time in late], 0, version)
        report = arrivals.to_report()
        assert report is not None
        before, counts = counts, dict(report.counts)
        assert all(counts[bucket] >= count for bucket, count in before.items()), "no count ever falls"
    assert len(counts) <= lateness.MOST_BUCKETS
    assert sum(counts.values()) == len(handed_on)
    for edge in lateness.EDGES:
        assert sum(count for bucket, count in counts.items() if lateness.EDGES[bucket] > edge) >= sum(
            time > edge for time in handed_on
        )


FAR = 4_070_908_800 * 1_000_000
"""A record of 2099."""


@pytest.mark.parametrize("bad", ["record", "frontier"])
def test_what_one_bad_timestamp_does_ends_with_it(bad: str) -> None:
    """Before any frontier, or as one: what comes after counts from where its claim is again."""
    driver = Driver(Spec("c", budgets=(PPM,)))
    sequencer = driver.claim(b"", b"").sequencer
    arrivals = Arrivals(marks(driver))

    def tell(times: Sequence[int], frontier: int, version: int) -> bool:
        arrivals.add(times, frontier, version)
        report = arrivals.to_report()
        assert report is not None
        behind = {ppm: (records, judged) for ppm, records, judged in report.behind}
        sent = authority.Lateness(dict(report.counts), report.reference, report.frontier, behind)
        accepted = not driver.report(sequencer, MIN, lateness=sent)
        if accepted:
            arrivals.answered(version)
        arrivals.raise_marks(marks(driver))
        return accepted

    now = driver.now
    if bad == "record":
        assert tell([now - MINUTE, FAR], MIN, 1)
    else:
        assert not tell([now - MINUTE], FAR, 1)
    for minute in range(20):
        driver.now = now = now + MINUTE
        assert tell([now - 2 * MINUTE] * 100, now - MINUTE, 2 + minute)
    budget = driver.core.published.budgets[0]
    assert budget.records == 2_000 + (2 if bad == "record" else 1)
    assert now - 3 * MINUTE < budget.micros <= now - MINUTE


def test_rule3_no_reader_sees_it_go_back() -> None:
    ratchet = Ratchet()

    def shown(micros: int, records: int) -> LatenessBudget:
        budget = LatenessBudget(0.01, Watermark(micros), records, 1, 0, 0.0)
        ratchet.admit(WatermarkView("c", registered=True, incarnation=1, budgets=(budget,)))
        return ratchet.get("c").budget[0.01]

    assert shown(5, 10).watermark.micros == 5
    assert (shown(4, 11), ratchet.held_back) == (LatenessBudget(0.01, Watermark(5), 10, 1, 0, 0.0), 1)
    assert shown(6, 12).records == 12
    assert ratchet.begin("c", 2)
    assert ratchet.get("c").budget[0.01].watermark.unknown


def test_the_wire_carries_a_budget_whole() -> None:
    message = types_pb2.LatenessBudget(budget_ppm=PPM, micros=7, records=100, behind=3, excused=1, worst_ppm=20_000)
    view = wire.watermark_view(types_pb2.Watermark(computation="c", registered=True, budgets=[message]))
    assert view.budget == {0.01: LatenessBudget(0.01, Watermark(7), 100, 3, 1, 0.02)}
    registered = topology_pb2.Computation(name="c", lateness_budgets_ppm=[1_000, PPM])
    assert wire.computation(registered).lateness_budgets == (0.001, 0.01)


def test_an_authority_that_knows_no_budgets_is_not_taken_for_one_that_does() -> None:
    """An older authority passes the field over, and its computation would never have the watermark."""
    call = OfflineClient().calls.register(
        "c", (), (), "", timedelta(days=1), None, estimated=False, lateness_budget=0.01
    )
    answer = topology_pb2.RegisterResponse(server_token="t", computation=topology_pb2.Computation(name="c"))
    with pytest.raises(lowwater.InvalidArgument, match="upgrade the authority"):
        call.take(answer)
