"""Computations in slices under attack: what comes between two steps of a slice and its root, and what of others may reach them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lowwater.aio
from lowwater import errors
from lowwater._core.claims import Grant
from lowwater._core.columns import Column
from lowwater._core.fold import Reading
from lowwater._core.lease import LeaseState
from lowwater_authority.cluster.peers import RangeThere
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.groups import MOST_RECORDS, GroupState, Mass
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, GroupReport
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import slices
from lowwater_authority.engine.rounds import GivenUp
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.slices import Asked, RangeHere, Told
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR
from tests.kit.tree import One, Tree, ids, numbers, rest, until

KEY = b"\x80"


pytestmark = pytest.mark.usefixtures("unhurried_slices")


@pytest.fixture
async def reader(disk: MemoryDisk) -> AsyncIterator[Tree]:
    """One that reads ``x``, which stands at 100; ``y`` stands at 50, and ``z`` at 42."""
    made = await Tree(disk).start(inputs=("x",))
    for name in ("y", "z"):
        await made.top.shard.register(Spec(name))
    for name, hour in (("x", 100), ("y", 50), ("z", 42)):
        grant = await made.top.claim(name)
        assert await made.top.report(name, grant, hour) == []
    yield made
    await made.stop()


@pytest.fixture
async def tree(disk: MemoryDisk) -> AsyncIterator[Tree]:
    made = await Tree(disk).start()
    yield made
    await made.stop()


async def claim_as(one: One, name: str, identity: str, bound: int | None = None) -> None:
    """Claim all of a slice. Raises as Shard.claim does."""
    span, bounds = list(one.shard.topology.get(name).span), [] if bound is None else [bound]
    asked = ClaimRequest(
        span, identity=identity, request_id=next(ids).to_bytes(16), bound_micros=np.array(bounds, dtype=np.int64)
    )
    await one.shard.claim(name, asked)


# -- whose it is ------------------------------------------------------------------------------------------------------


async def test_a_claim_that_is_refused_for_its_bound_binds_nothing(tree: Tree) -> None:
    with pytest.raises(errors.TooFarAhead):
        await claim_as(tree.below, "a~0", "X", bound=5_000 * HOUR)
    await claim_as(tree.below, "a~0", "Y")


async def test_a_claim_for_which_there_is_no_room_binds_nothing(tree: Tree) -> None:
    def none(ranges: int) -> None:
        msg = f"there is no room for {ranges}"
        raise errors.Overloaded(msg)

    asked = ClaimRequest([b"", KEY], identity="X", request_id=next(ids).to_bytes(16))
    with pytest.raises(errors.Overloaded):
        await tree.below.shard.claim("a~0", asked, room=none)
    await claim_as(tree.below, "a~0", "Y")


async def test_who_is_refused_as_another_does_not_have_the_slice_claimed_anew(tree: Tree) -> None:
    await claim_as(tree.below, "a~0", "X")
    await rest()
    before, asked = tree.root.last_sequencer, len(tree.way.sent("claim"))
    for _ in range(5):
        with pytest.raises(errors.IdentityMismatch):
            await claim_as(tree.below, "a~1", "Y")
    await rest()
    assert tree.root.last_sequencer == before, "nothing was granted"
    assert len(tree.way.sent("claim")) == asked + 5, "each was asked for once"
    await claim_as(tree.below, "a~1", "X")


# -- the task of a slice ----------------------------------------------------------------------------------------------


async def test_masses_are_told_no_more_often_because_a_slice_is_read_back(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that refuses one write after the other has a slice read back each time, while it tells of what was there before."""
    monkeypatch.setattr(slices, "MASS_SECONDS", 600.0)
    tree = await Tree(disk).start(heuristics=(500_000,))
    first, _ = await tree.both(10, 10)
    told = tree.below.slice("a~0")
    tree.way.hold("say")
    pending = Mass(np.array([10 * HOUR]), np.array([5]), 10, {500_000: 10 * HOUR})
    report = GroupReport(first.sequencer, np.array([10 * HOUR], dtype=np.int64), mass=pending)
    before = len(tree.way.sent("say"))
    told._mass_due = 0.0
    assert await tree.below.shard.report([("a~0", report)], sender=b"s" * 16, number=(1, next(numbers))) == []
    await until(lambda: len(tree.way.sent("say")) > before)
    await tree.below.read_back("a~0")
    tree.way.let("say")
    await rest()
    assert told._mass_said != told._mass_turns, "of what was read back nothing was told yet"
    assert told._mass_due > asyncio.get_running_loop().time(), "and it has its turn later"
    await tree.stop()


# -- inputs -----------------------------------------------------------------------------------------------------------


async def test_inputs_that_change_again_before_a_slice_has_read_of_it_bound_it_all_the_same(
    reader: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the root has granted under one version of the inputs knows nothing of what the next one has added."""
    first, second = await reader.both(40, 45)
    reader.way.hold("say")
    assert await reader.below.report("a~0", first, 90) == []
    assert await reader.below.report("a~1", second, 95) == []
    reads, reading = asyncio.Event(), asyncio.Event()
    refresh = Shard.refresh

    async def slow(self: Shard) -> None:
        if self is reader.below.shard:
            reading.set()
            await reads.wait()
        await refresh(self)

    monkeypatch.setattr(Shard, "refresh", slow)
    await reader.top.shard.set_inputs("a", ["x", "y"])
    reader.way.let("say")
    await reading.wait()
    await reader.top.shard.set_inputs("a", ["x", "y", "z"])
    reads.set()
    reader.below.look("a~0", "a~1")
    await until(lambda: reader.below.shard.topology.get("a~0").input_version == 3)
    await until(lambda: all(reader.below.slice(f"a~{n}").is_settled() for n in (0, 1)))
    await rest()
    assert max(reader.stands(0), reader.stands(1)) <= 42, "nobody of them has folded z"
    assert reader.low() <= 42


async def test_an_input_that_comes_back_bounds_what_was_folded_without_it_meanwhile(reader: Tree) -> None:
    """The slice has read of its going, and a worker goes by that, before the slice follows the one or the other."""
    await reader.top.shard.set_inputs("a", ["x", "y"])
    await reader.below.shard.refresh()
    first, _ = await reader.both(40, 45)
    reader.way.hold("claim")
    await reader.top.shard.set_inputs("a", ["x"])
    await reader.below.shard.refresh()
    reader.below.report("a~0", first, 90)
    await until(lambda: reader.low("a~0") == 90)
    await reader.top.shard.set_inputs("a", ["x", "y"])
    await reader.below.shard.refresh()
    reader.way.let("claim")
    await until(lambda: all(reader.below.slice(f"a~{n}").is_settled() for n in (0, 1)))
    await rest()
    assert reader.stands(0) <= 50


@pytest.mark.parametrize("left", [["x"], []])
async def test_what_is_finished_stays_so_when_inputs_are_taken_away(reader: Tree, left: list[str]) -> None:
    """Its worker has gone, so nobody would finish it again."""
    await reader.top.shard.set_inputs("a", ["x", "y"])
    await reader.below.shard.refresh()
    first = await reader.below.claim("a~0", b"", b"\x40")
    second = await reader.below.claim("a~0", b"\x40", KEY)
    other = await reader.below.claim("a~1")
    assert await reader.below.report("a~0", first, MAX, finish=True) == []
    assert await reader.below.report("a~0", second, 40) == []
    assert await reader.below.report("a~1", other, 45) == []
    await until(lambda: (reader.stands(0), reader.stands(1)) == (40, 45))
    await rest()
    await reader.top.shard.set_inputs("a", left)
    await reader.below.shard.refresh()
    await until(lambda: all(reader.below.slice(f"a~{n}").is_settled() for n in (0, 1)))
    second = await reader.below.claim("a~0", b"\x40", KEY)
    other = await reader.below.claim("a~1")
    assert await reader.below.report("a~0", second, 60) == []
    assert await reader.below.report("a~1", other, 60) == []
    await until(lambda: reader.low() == 60)


# -- what of others reaches a slice -----------------------------------------------------------------------------------


async def test_a_slice_moves_while_nobody_serves_what_it_reads(tree: Tree) -> None:
    """Its workers have answers all the same: where none of its ranges was retired, its input has no part in where it stands."""
    tree.top.placement.names = lambda name: "~" not in name and name != "x"
    other = await tree.another("other:1", lambda name: name == "x")
    await other.shard.register(Spec("x"))
    assert await other.report("x", await other.claim("x"), 100) == []
    await tree.top.shard.refresh()
    await tree.top.shard.register(Spec("b", inputs=("x",), slices=(KEY,)))
    await tree.below.shard.refresh()
    assert await tree.below.shard.serve("b~0")
    first = await tree.below.claim("b~0")
    assert await tree.below.report("b~0", first, 40) == []
    await until(lambda: tree.below.slice("b~0")._said is not None)
    await other.stop()
    new = await tree.fail_over()
    late = new.report("b~0", first, 30)
    await until(late.done)
    assert await late == []


async def test_more_records_than_one_claim_may_have_are_told_by_their_shares(disk: MemoryDisk) -> None:
    """The root takes no more of one claim, and a slice is one: it would refuse the masses, and the slice would acknowledge nothing."""
    tree = await Tree(disk).start(heuristics=(500_000,))
    first = await tree.below.claim("a~0", b"", b"\x40")
    second = await tree.below.claim("a~0", b"\x40", KEY)
    for grant, hour in ((first, 10), (second, 20)):
        mass = Mass(np.array([hour * HOUR]), np.array([MOST_RECORDS]), 0, {500_000: 30 * HOUR})
        report = GroupReport(grant.sequencer, np.array([10 * HOUR], dtype=np.int64), mass=mass)
        assert await tree.below.shard.report([("a~0", report)], sender=b"s" * 16, number=(1, next(numbers))) == []
    told = tree.below.slice("a~0")
    told._mass_due = 0.0
    tree.below.look("a~0")
    await until(lambda: told._mass_said == told._mass_turns)
    [[group, _, _]] = tree.root.map.overlapping(b"", KEY)
    assert group.mass is not None
    assert group.mass.counts.tolist() == [MOST_RECORDS // 2] * 2
    await tree.stop()


# -- a graph for everybody --------------------------------------------------------------------------------------------


def test_slices_take_no_more_of_the_graph_than_others_can_read_beside_them() -> None:
    """A graph of a gigabyte would be sent to nobody any more, whatever else is in it."""
    keys = tuple(number.to_bytes(2) for number in range(1, 1000))
    inputs = [f"i{number}" for number in range(101)]
    with pytest.raises(errors.InvalidArgument, match=r"1000 slices with 101 inputs each.*may have 100000"):
        Topology().register(Spec("a", inputs=tuple(inputs), slices=keys))
    made = Topology().register(Spec("a", inputs=tuple(inputs[1:]), slices=keys))
    with pytest.raises(errors.InvalidArgument, match="cut it into fewer slices, or read fewer inputs"):
        made.set_inputs("a", inputs)
    assert len(made.set_inputs("a", inputs[:100]).computations) == 1001
    full = Topology().register(Spec("a", inputs=tuple(f"i{number}" for number in range(200)), slices=keys[:499]))
    with pytest.raises(errors.InvalidArgument, match="slice: '501 slices with 200 inputs each") as refused:
        full.split("a", "a~0", b"\x00")
    assert refused.value.metadata["field"] == "slice"


# -- a graph that a store has lost changes of -------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [(), (b"c",)])
def test_a_graph_that_is_put_together_has_no_slices_but_of_what_is_cut(cut: tuple[bytes, ...]) -> None:
    """Two processes have registered one name, each without knowing of the other: nobody could drop what is a slice of nothing."""
    mine = Topology().register(Spec("a", slices=cut))
    theirs = Topology().register(Spec("a", slices=(b"f", b"m", b"t")))
    for merged in (mine.merged(theirs), mine.merged(theirs).merged(mine)):
        registered = merged.computations["a"]
        assert registered.slices == cut
        assert {name: spec for name, spec in merged.computations.items() if name != "a"} == registered.slice_specs()
        assert merged.dropped.keys() == {f"a~{n}" for n in range(4)} - merged.computations.keys()
    ended = merged.drop("a")
    again = ended.register(Spec("a", slices=(b"f", b"m", b"t")))
    assert {spec.incarnation for spec in again.computations.values()} == {2}
    assert not again.dropped


def test_a_slice_that_was_cut_off_while_its_whole_was_dropped_is_dropped_with_it() -> None:
    """One process has dropped it, and did not know of the cut of another one."""
    before = Topology().register(Spec("x")).register(Spec("a", inputs=("x",), slices=(b"m",)))
    made, new = before.split("a", "a~1", b"t")
    dropped = before.drop("a")
    for merged in (made.moved(new).merged(dropped), dropped.merged(made.moved(new))):
        assert set(merged.computations) == {"x"}
        assert set(merged.dropped) == {"a", "a~0", "a~1", "a~2"}
        assert not merged.drop("x").computations, "nothing reads it any more"


def test_a_graph_that_is_put_together_has_the_newest_inputs_and_the_newest_cut() -> None:
    """Each changed by a process that did not know of the other: the logs of the slices have these keys, and no reset is needed to go on."""
    before = Topology().register(Spec("x")).register(Spec("y")).register(Spec("a", inputs=("x",), slices=(b"m",)))
    made, new = before.split("a", "a~1", b"t")
    fed = before.set_inputs("a", ["x", "y"])
    for merged in (made.moved(new).merged(fed), fed.merged(made.moved(new))):
        assert merged.get("a").inputs == ("x", "y")
        assert merged.get("a").parts == made.moved(new).get("a").parts
        assert {name: merged.get(name) for name in ("a~0", "a~1", "a~2")} == merged.get("a").slice_specs()
        assert Topology.decode(merged.encode()) == merged


# -- keys of others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys"), [("a~0", (b"\xa0", b"\xb0")), ("a~1", (b"\x10", b"\x20")), ("a~1", (b"", KEY))]
)
@pytest.mark.parametrize("bound", [None, 5])
async def test_a_claim_of_keys_before_or_behind_a_slice_is_refused_as_that(
    tree: Tree, name: str, keys: tuple[bytes, bytes], bound: int | None
) -> None:
    """It changes nothing: no failure half way, by which the slice would have to be read back."""
    await tree.both(10, 10)
    before = tree.below.shard.held.computation(name)
    with pytest.raises(errors.OtherSlice):
        await tree.below.claim(name, *keys, bound=bound)
    with pytest.raises(errors.OtherSlice):
        await tree.below.shard.retire(name, *keys, force=True)
    assert tree.below.shard.held.computation(name) is before


# -- a clock that is wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retired", [False, True])
async def test_a_slice_that_stands_ahead_of_the_clock_is_claimed_anew_all_the_same(tree: Tree, retired: bool) -> None:
    """As the range of a worker does, it stands where it did when the clock was set back; nothing is lifted by that but what was retired."""
    first, _ = await tree.both(1_010, 10)
    if retired:
        await tree.below.shard.retire("a~0", b"", KEY, force=True)
        await until(lambda: tree.state(0) is GroupState.RETIRED)
    tree.now -= 500 * HOUR
    tree.below = await tree.fail_over()
    if retired:
        with pytest.raises(errors.TooFarAhead):
            await tree.below.claim("a~0", bound=1_010)
        await tree.below.claim("a~0", bound=10)
        assert tree.stands(0) == 10
        return
    for hour in (1_010, 20):
        told = tree.below.report("a~0", first, hour)
        await until(told.done)
        assert await told == []
        assert tree.stands(0) == hour


async def test_masses_and_budgets_ahead_of_the_clock_hold_no_answer_back(disk: MemoryDisk) -> None:
    """They count as far as any may be: refused, they would take what stands beside them along, for as long as the clock is behind."""
    tree = await Tree(disk).start(heuristics=(500_000,), budgets=(10_000,))
    first = await tree.below.claim("a~0")
    pending = Mass(np.array([10 * HOUR]), np.array([5]), 10, {500_000: 1_020 * HOUR})
    late = Lateness({0: 5}, 1_020 * HOUR, 1_020 * HOUR, {10_000: (0, MIN)})

    async def say(hour: int, **more: Any) -> None:
        report = GroupReport(first.sequencer, np.array([hour * HOUR], dtype=np.int64), **more)
        told = tree.below.shard.report([("a~0", report)], sender=b"s" * 16, number=(1, next(numbers)))
        await until(told.done)
        assert await told == []

    await say(1_010, mass=pending, lateness=late)
    tree.now -= 500 * HOUR
    tree.below = await tree.fail_over()
    await say(20)
    await until(lambda: tree.below.slice("a~0")._said is not None)
    limit = tree.now + tree.top.shard.topology.get("a").max_skew
    [[group, _, _]] = tree.root.map.overlapping(b"", KEY)
    assert group.mass is not None
    assert [part.frontiers for part in group.mass.others] == [{500_000: limit}]
    assert all(micros <= limit for micros, _, _ in group.kept.values())
    await tree.stop()


# -- over the network ---------------------------------------------------------------------------------------------------


async def test_what_is_said_by_a_range_that_is_given_up_is_waited_for_no_more() -> None:
    """No answer of it is read then: the slice would not claim anew for as long as it waits."""
    async with lowwater.aio.connect("localhost:1") as lw:
        state = LeaseState("a", 7, Column(1, MIN), reference=0)
        reading = Reading("a", (), 0, (), ())
        granted = lowwater.aio.Lease(lw._runtime(), Grant(state, (b"", KEY), lowwater.Watermarks([MIN]), reading))
        lw._runtime().reporter.add(state)
        known = RangeThere(lw.worker("a", name="a~0"), granted, (b"", KEY))
        told = Told(
            1, NO_FOLD, current=True, vouched=MIN, low=1, retired=False, kept=(), oldest_operation=0, waiting_for=""
        )
        says = asyncio.create_task(known.say(told, None))
        await rest()
        assert not says.done()
        known.close()
        await until(says.done)
        assert isinstance(says.exception(), errors.StaleSequencer)
        assert known.lost


# -- a root that is taken over meanwhile ----------------------------------------------------------------------------------


async def test_a_root_that_another_process_takes_meanwhile_is_a_reason_to_try_again() -> None:
    """A round of the shard that is given up ends its reports by no error of the protocol: it must not end the slice's task, which would be silent for ever."""

    def report(*_: Any, **__: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(GivenUp())
        return answer

    graph = SimpleNamespace(get=lambda _: SimpleNamespace(incarnation=1), required=lambda _: NO_FOLD)
    asked = Asked(
        "hourly", "hourly~0", (b"", KEY), host="", epoch=1, claims=1, bound=0, request_id=b"id", identity="hourly~"
    )
    told = Told(
        1, NO_FOLD, current=True, vouched=MIN, low=5, retired=False, kept=(), oldest_operation=0, waiting_for=""
    )
    shard: Any = SimpleNamespace(topology=graph, report=report)
    with pytest.raises(errors.Unavailable, match="has taken hourly over"):
        await RangeHere(shard, asked, 1, 0).say(told, None)
