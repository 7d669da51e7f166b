"""Keys that a slice hands over to another one, beside a dictionary of what is known of each key: nothing leads, nothing goes back, nothing is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.requests import NO_FOLD
from lowwater_authority.core.slicing import SliceComputation, as_slice
from lowwater_authority.core.topology import Spec as Registered
from lowwater_authority.core.topology import Topology
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.planting import Part, bug
from tests.property.core_driver import MAX, MIN, NOW, Driver, durable, request

KEYS = 8

FIRST, LAST = 2, 6
"""The slice that is cut has the keys from the first on, and not the last."""

keys = st.integers(FIRST, LAST - 1)


def edge(key: int) -> bytes:
    return bytes([256 // KEYS * key]) if 0 < key < KEYS else b""


def graph() -> Topology:
    return Topology().register(
        Registered("a", slicing=Cut((edge(FIRST), edge(LAST))), heuristics=(500_000,), budgets=(1000,))
    )


@dataclass
class Key:
    value: int = MIN
    retired: bool = False
    sequencer: int = 0


@dataclass
class Known:
    keys: dict[int, Key]
    order: tuple[int, int] = (0, 0)
    granted: dict[bytes, int] = field(default_factory=dict)
    sequencers: list[int] = field(default_factory=list)
    low: int = MIN
    layout: Layout = field(default_factory=Layout)

    def moved(self, at: int) -> Known:
        moving = {key: Key(state.value, state.retired) for key, state in self.keys.items() if key >= at}
        straddling = {state.sequencer for key, state in self.keys.items() if key >= at and state.sequencer}
        self.keys = {key: state for key, state in self.keys.items() if key < at}
        self.cut_off(straddling, at)
        if self.layout.starts:  # it names keys that are not here any more
            self.layout = Layout(self.layout.version + 1)
        return Known(moving, self.order, dict(self.granted), list(self.sequencers))

    def cut_off(self, sequencers: set[int], at: int) -> None:
        for state in self.keys.values():
            if state.sequencer in sequencers:
                state.sequencer = 0


class Pair:
    def __init__(self, name: str, topology: Topology, model: Known) -> None:
        self.name = name
        self.driver = Driver(topology.get(name))
        self.model = model
        self.requests = model.order[0]
        self.snapshots = False

    @property
    def core(self) -> SliceComputation:
        return as_slice(self.driver.core)

    def use(self, topology: Topology) -> None:
        self.driver.spec = topology.get(self.name)
        self.core.follow(self.driver.spec)

    def claim(self, first: int, more: int, bound: int | None) -> None:
        start, end = min(self.model.keys), max(self.model.keys)
        first = min(max(first, start), end)
        span = range(first, min(first + more, end + 1))
        self.requests += 1
        request_id = f"{self.name} {self.requests}".encode()
        keys = [self.model.keys[key] for key in span]
        order = self.requests, 0
        grant = self.driver.claim(
            edge(first),
            edge(span[-1] + 1),
            bound=[] if bound is None else [bound],
            request_id=request_id,
            identity="w",
            generation=order[0],
        )
        old = [(MIN if bound is None else MAX) if key.retired else key.value for key in keys]
        value = min([*old, MAX if bound is None else bound])
        lost = {key.sequencer for key in keys if key.sequencer}
        for key in self.model.keys.values():
            if key.sequencer in lost:
                key.sequencer = 0  # its claim was one range
        for key in keys:
            key.value, key.retired, key.sequencer = value, False, grant.sequencer
        assert grant.sequencer > max(self.model.sequencers, default=0)
        self.model.sequencers.append(grant.sequencer)
        self.model.granted[request_id] = grant.sequencer
        self.model.order = max(self.model.order, order)

    def report(self, pick: int, value: int) -> None:
        if not self.model.sequencers:
            return
        sequencer = self.model.sequencers[pick % len(self.model.sequencers)]
        owned = [key for key in self.model.keys.values() if key.sequencer == sequencer]
        refused = self.driver.report(sequencer, value, finish=value == MAX)
        assert bool(refused) == (not owned)
        for key in owned:
            key.value = value

    def retire(self, first: int) -> None:
        first = min(max(first, min(self.model.keys)), max(self.model.keys))
        self.driver.retire(edge(first), edge(first + 1), force=True)
        lost = self.model.keys[first].sequencer
        self.model.keys[first] = Key(MAX, retired=True)
        if lost:
            self.model.cut_off({lost}, KEYS)

    def release(self, pick: int) -> None:
        owned = sorted({key.sequencer for key in self.model.keys.values() if key.sequencer})
        if owned:
            sequencer = owned[pick % len(owned)]
            self.driver.release(sequencer)
            self.model.cut_off({sequencer}, KEYS)

    def lay_out(self, start: int) -> None:
        before = self.model.layout
        self.model.layout = Layout(before.version + 1, (0, start))
        assert self.core.change_layout(1, before.version, (0, start), ()) == before.version + 1
        assert self.driver.settle() is True

    def crash(self, *, short: bool) -> None:
        if short:
            self.driver.records = []
            self.snapshot = recovery.snapshot(self.core)
            self.snapshots = True
        before = recovery.snapshot(self.core)
        self.driver.crash(snapshot=self.snapshot if self.snapshots else None)
        assert durable(recovery.snapshot(self.core)) == durable(before)

    def check(self) -> None:
        self.core.check()
        assert self.core.map.span == (edge(min(self.model.keys)), edge(max(self.model.keys) + 1))
        ranges, _ = self.core.map.all_ranges(100)
        for key, state in self.model.keys.items():
            [range_] = [item for item in ranges if item.start <= edge(key) and (not item.end or edge(key) < item.end)]
            assert range_.value == state.value
            assert (range_.owner.state is GroupState.RETIRED) == state.retired
            owned = range_.owner.sequencer if range_.owner.state is GroupState.OWNED else 0
            assert owned == state.sequencer
        assert self.core.order == self.model.order
        assert self.core.layout == self.model.layout
        assert self.core.last_sequencer == max(self.model.sequencers, default=0)
        assert {key: claim.sequencer for key, claim in self.core.granted.items()} == self.model.granted
        assert self.core.identity == ("w" if self.model.granted else None)
        least = min(key.value for key in self.model.keys.values())
        if not all(key.retired for key in self.model.keys.values()):
            self.model.low = max(self.model.low, least)
        assert self.driver.low == self.model.low


values = st.sampled_from([10, 20, 30, 40, MAX])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), keys, st.integers(1, 4), st.sampled_from([None, 15, 35])),
        st.tuples(st.just("report"), st.integers(0, 9), values),
        st.tuples(st.just("report"), st.integers(0, 9), values),
        st.tuples(st.just("retire"), keys),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("lay out"), st.integers(1, 9)),
        st.tuples(st.just("crash"), st.booleans()),
    ),
    max_size=12,
)


def do(pair: Pair, some: list[tuple]) -> None:  # type: ignore[type-arg]
    for step in some:
        match step:
            case "claim", first, more, bound:
                pair.claim(first, more, bound)
            case "report", pick, value:
                pair.report(pick, value)
            case "retire", first:
                pair.retire(first)
            case "release", pick:
                pair.release(pick)
            case "lay out", start:
                pair.lay_out(start)
            case "crash", short:
                pair.crash(short=short)
        pair.check()


def move(source: Pair, topology: Topology, at: int, *, crash: bool) -> tuple[Pair, Topology]:
    topology, name = topology.split("a", source.name, edge(at))
    source.use(topology)
    new = Pair(name, topology, source.model.moved(at))
    with pytest.raises(errors.Unavailable):
        new.driver.claim(edge(at))
    with pytest.raises(errors.Unavailable):
        new.driver.retire(edge(at))
    fenced = source.core.hand_over(name)
    assert source.driver.settle() is True
    assert all("claim them again" in refusal.reason for refusal in fenced)
    source.check()
    if crash:
        source.crash(short=crash)
    new.core.receive(source.core.handed_over[name])
    assert new.driver.settle() is True
    topology = topology.received(name)
    new.use(topology)
    source.use(topology)
    new.check()
    assert new.core.cut_version
    assert new.core.cut_version == source.core.cut_version
    return new, topology


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(
    before=steps,
    at=st.integers(FIRST + 1, LAST - 1),
    crash=st.booleans(),
    after=steps,
    there_steps=steps,
    again=st.integers(FIRST + 1, LAST - 1),
    last=steps,
)
def test_all_that_is_known_of_keys_moves_with_them(
    before: list[tuple],  # type: ignore[type-arg]
    at: int,
    crash: bool,
    after: list[tuple],  # type: ignore[type-arg]
    there_steps: list[tuple],  # type: ignore[type-arg]
    again: int,
    last: list[tuple],  # type: ignore[type-arg]
) -> None:
    topology = graph()
    one = Pair("a~1", topology, Known({key: Key() for key in range(FIRST, LAST)}))
    do(one, before)
    granted_there = max(one.model.sequencers, default=0)
    other, topology = move(one, topology, at, crash=crash)
    do(one, after)
    do(other, there_steps)
    assert all(item > granted_there for item in other.model.sequencers if item not in one.model.sequencers)
    for pair in (one, other):
        if min(pair.model.keys) < again <= max(pair.model.keys):
            third, topology = move(pair, topology, again, crash=not crash)
            do(third, last)
    for pair in (one, other):
        do(pair, last)
        pair.crash(short=False)
        pair.check()


FIELDS = ["last_sequencer", "granted", "generation", "bound", "groups.state"]


@pytest.mark.parametrize("field", FIELDS)
def test_what_does_not_move_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @bug("receive", SliceComputation)
    def forgetful(receive: Part) -> Part:
        def forgets(self: SliceComputation, state: pb.Snapshot) -> None:
            changed = pb.Snapshot()
            changed.CopyFrom(state)
            spoilt: list[Any] = [*changed.groups] if "." in field else [changed]
            for message in spoilt:
                message.ClearField(field.rpartition(".")[2])
            receive(self, changed)

        return forgets

    forgetful(monkeypatch)
    topology = graph()
    pair = Pair("a~1", topology, Known({key: Key() for key in range(FIRST, LAST)}))
    pair.claim(2, 4, None)
    pair.report(0, 10)
    pair.retire(5)
    with pytest.raises(AssertionError):
        move(pair, topology, 4, crash=False)


def cut() -> tuple[Pair, Topology, str]:
    topology = graph()
    pair = Pair("a~1", topology, Known({key: Key() for key in range(FIRST, LAST)}))
    pair.claim(2, 4, None)
    pair.report(0, 10)
    topology, name = topology.split("a", "a~1", edge(4))
    pair.use(topology)
    return pair, topology, name


def handed_over(pair: Pair, topology: Topology, name: str) -> Driver:
    """Return the driver of the slice that has received the keys."""
    pair.core.hand_over(name)
    pair.driver.settle()
    new = Driver(topology.get(name))
    with pytest.raises(errors.IncarnationChanged):
        as_slice(Driver(replace(topology.get(name), incarnation=2)).core).receive(pair.core.handed_over[name])
    as_slice(new.core).receive(pair.core.handed_over[name])
    new.settle()
    new.spec = new.core.spec = topology.received(name).get(name)
    return new


def test_a_claim_that_was_granted_before_is_stale_and_never_granted_again() -> None:
    pair, topology, name = cut()
    [(request_id, _)] = pair.model.granted.items()
    new = handed_over(pair, topology, name)
    repeat = request([edge(2), edge(6)], request_id=request_id, identity="w", generation=1)
    with pytest.raises(errors.StaleSequencer):
        new.core.claim(repeat, NOW)
    with pytest.raises(errors.OtherSlice):
        pair.core.claim(request([edge(4), edge(5)], identity="w", generation=9), NOW)


def test_that_a_worker_has_ended_moves_with_the_keys_that_it_released() -> None:
    pair, topology, name = cut()
    pair.driver.release(1)
    new = handed_over(pair, topology, name)
    for _ in range(2):
        assert [entry.owner.remarks.ended for entry in new.core.map.all_ranges(10)[0]] == [True]
        new.crash()


def test_the_last_batch_and_what_outputs_were_let_say_move_too() -> None:
    pair, topology, name = cut()
    task = pair.driver.stage(1, 7, 0, {0: 20})
    assert pair.driver.prepare(1, 7, [task], 20, covers_all=True, digest=b"d") == []
    pair.driver.commit(1, 7)
    pair.core.vouch(1, 15, NO_FOLD, NO_FOLD, NOW)
    new = handed_over(pair, topology, name)
    new.crash()
    assert new.core.vouched == 15
    with pytest.raises(errors.Rewound):
        new.claim(edge(4), edge(6), identity="w", generation=7)
    new.claim(edge(4), edge(6), identity="w", generation=8)


def test_lateness_counts_from_where_the_budget_stood() -> None:
    pair, topology, name = cut()
    pair.core.budgets[1000].value = 70
    new = handed_over(pair, topology, name)
    assert new.core.published.budgets[0][:4] == (1000, 70, 0, 0)
    new.crash()
    assert new.core.budgets[1000].value == 70
