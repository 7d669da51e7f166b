"""A lease reports the lesser of what it holds and of the snapshot, and only what changed."""

from array import array
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import MAX, MIN, Histogram, Refusal, Remarks
from lowwater.core.columns import Column
from lowwater.core.fold import Fold
from lowwater.core.lease import GroupState, LeaseState, RecentSlots
from lowwater.core.reports import ReporterState


def lease_of(count: int, watermarks: int | list[int] = MIN) -> LeaseState:
    column = Column(count, watermarks) if isinstance(watermarks, int) else Column.of(watermarks)
    return LeaseState("c", 7, column, input_version=2, input_incarnations=(4,), reference=MIN)


def fold_at(low: int) -> Fold:
    return Fold(low, ((990_000, low + 1),), 2, (4,))


def spread(group: GroupState, count: int) -> dict[int, int]:
    handles = range(count) if group.handles is None else group.handles
    values = [group.values] * len(handles) if isinstance(group.values, int) else group.values
    return dict(zip(handles, values, strict=True))


def report_of(lease: LeaseState) -> GroupState:
    group = lease.take()
    assert group is not None
    return group


class NewestFold(LeaseState):
    def take(self) -> GroupState | None:
        self._fold = fold_at(20)
        self._dirty = None
        return super().take()


@pytest.mark.parametrize(
    "state",
    [
        LeaseState,
        pytest.param(NewestFold, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason="rule 5 is off")),
    ],
)
def test_rule5_a_tick_never_uses_a_newer_fold_than_the_snapshot(state: type[LeaseState]) -> None:
    """The inputs go on after the snapshot; whatever makes the reporter speak, it repeats what the worker folded."""
    reporter = ReporterState(b"s" * 16, 0.05, lambda: 1.0)
    lease = state("c", 7, Column(3, MIN), input_version=2, input_incarnations=(4,), reference=MIN)
    reporter.add(lease)
    reported: list[int] = []

    def run(start: int) -> None:
        reporter.open()
        reporter.accepted(float(start))
        for second in range(start, start + 60):
            for report in reporter.take(float(second)):
                for group in report.groups:
                    reported.extend(spread(group, 3).values())
                    assert group.mass is None or dict(group.mass.frontiers) == {990_000: 11}
                reporter.acknowledged(report.number, (), [("c", 1_000_000)])
        reporter.disconnected()

    lease.advance(fold_at(10), {0: MAX, 1: MAX, 2: 5}, now=0.0)
    reporter.staged(lease)
    run(0)
    lease.finish([0])
    reporter.staged(lease)
    run(60)
    assert len(reported) > 30
    assert {value for value in reported if value != MAX} <= {MIN, 5, 10}


def test_finish_is_the_only_way_to_the_end() -> None:
    lease = lease_of(3)
    lease.advance(fold_at(10), MAX, now=0.0)
    assert not report_of(lease).finish
    lease.finish([1])
    group = report_of(lease)
    assert (spread(group, 3), group.finish) == ({1: MAX}, True)
    lease.advance(fold_at(11), MAX, now=0.0)
    assert spread(report_of(lease), 3) == {0: 11, 2: 11}
    lease.finish(None)
    group = report_of(lease)
    assert (set(spread(group, 3).values()), group.finish, lease.beat()) == ({MAX}, True, None)


def refusal_of(lease: LeaseState) -> Refusal | None:
    return lease.refusal


def test_a_second_refusal_does_not_erase_the_first() -> None:
    lease = lease_of(4)
    lease.advance(fold_at(10), MAX, now=0.0)
    report_of(lease)
    lease.refuse(Refusal("TOO_FAR_AHEAD", "", (1,)))
    lease.refuse(Refusal("INCARNATION_CHANGED", "why", (2, 3)))
    assert refusal_of(lease) == Refusal("INCARNATION_CHANGED", "why", (1, 2, 3))
    lease.acknowledge(1)
    assert (lease.answered, lease.durable) == (1, 0)
    assert spread(lease.beat() or report_of(lease), 4) == {1: 10, 2: 10, 3: 10}
    lease.accept(array("I", [1, 2]))
    assert refusal_of(lease) == Refusal("INCARNATION_CHANGED", "why", (3,))
    lease.refuse(Refusal("OVERLOADED", "", None))
    assert spread(lease.beat() or report_of(lease), 4) == dict.fromkeys(range(4), 10)
    lease.accept(array("I", [0, 1]))
    lease.lose([2], "newer")
    assert refusal_of(lease) == Refusal("OVERLOADED", "", (3,))
    lease.lose([3], "newer")
    assert refusal_of(lease) is None
    assert lease.durable == 1


@pytest.mark.parametrize("refusal", [Refusal("INVALID_ARGUMENT", "", None), Refusal("INCARNATION_CHANGED", "", (0, 1))])
@pytest.mark.parametrize("beat", [True, False])
def test_a_refused_mass_comes_again(refusal: Refusal, beat: bool) -> None:
    lease = lease_of(2)
    lease.reference = 20_000
    pending = Histogram(20_000)
    pending.add(5_000, 3)
    lease.advance(fold_at(10_000), MAX, pending=pending, now=0.0)
    mass = report_of(lease).mass
    assert mass is not None
    lease.refuse(refusal)
    if not beat:
        lease.advance(fold_at(10_000), MAX, pending=pending, now=0.0)
    again = lease.beat() if beat else lease.take()
    assert again is not None
    assert again.mass == mass
    lease.refuse(refusal)
    lease.accept(None)  # by a report that was on its way already, without the mass
    again = lease.beat()
    assert again is not None
    assert again.mass == mass


def test_a_mass_goes_out_when_it_changed() -> None:
    lease = lease_of(2)
    lease.reference = 20_000
    lease.advance(fold_at(10_000), {0: 5_000}, now=0.0)
    assert report_of(lease).mass is None, "the worker has not told what is pending, and nobody guesses"
    pending = Histogram(20_000)
    pending.add(5_000, 3)
    lease.advance(fold_at(10_000), {}, pending=pending, finished=4, now=0.0)
    mass = report_of(lease).mass
    assert mass is not None
    assert (mass.starts, mass.counts, mass.recent, mass.frontiers) == ((5_000,), (3,), 4, ((990_000, 10_001),))
    lease.advance(fold_at(10_000), {}, now=0.0)
    assert lease.take() is None
    lease.reconnect()
    assert report_of(lease).mass == mass
    lease.advance(fold_at(10_000), MAX, now=0.0)
    mass = report_of(lease).mass
    assert mass is not None
    assert (mass.starts, mass.recent) == ((), 4), "nothing is held anywhere, so nothing is pending"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.none() | st.integers(0, 9) | st.dictionaries(st.integers(0, 39), st.integers(0, 9), max_size=3),
            st.sampled_from(["", "take", "reconnect"]),
        )
    )
)
def test_reports_of_a_stream_add_up_to_its_state(steps: list[tuple[int, int | dict[int, int] | None, str]]) -> None:
    count = 40
    lease = lease_of(count, 3)
    model = dict.fromkeys(range(count), 3)
    state: dict[int, int] = {}
    for low, oldest, then in steps:
        staged: int | Mapping[int, int] = MAX if oldest is None else oldest
        lease.advance(fold_at(low), staged, now=0.0)
        model |= staged if isinstance(staged, Mapping) else dict.fromkeys(range(count), staged)
        if then == "reconnect":
            lease.reconnect()
            state.clear()
        if then:
            group = lease.take()
            if group is not None:
                state |= spread(group, count)
            assert state == {handle: min(oldest, low) for handle, oldest in model.items()}


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5))))
def test_recent_against_a_list_of_minutes(adds: list[tuple[int, int]]) -> None:
    recent, minutes = RecentSlots(), dict[int, int]()
    now = 0
    for step, finished in adds:
        now += step
        recent.add(finished, now=float(now))
        if finished:
            minutes[now // 60] = minutes.get(now // 60, 0) + finished
        assert recent.total == sum(minutes[minute] for minute in sorted(minutes)[-10:])


def test_a_worker_that_has_ended_repeats_nothing() -> None:
    """Else the time of its last report, which is when it ended, would go on."""
    lease = lease_of(1)
    for ended, beats in ((False, True), (True, False), (False, True)):
        lease.advance(fold_at(10), MAX, remarks=Remarks(ended=ended), now=0.0)
        assert lease.take() is not None
        assert (lease.beat() is not None) == beats
