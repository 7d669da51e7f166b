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
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.rounds import GivenUp
from lowwater_authority.engine.slices import Asked, RangeHere, Told
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR
from tests.kit.tree import One, Tree, ids, rest, until

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


async def test_a_claim_for_which_there_is_no_room_binds_nothing(tree: Tree) -> None:
    def none(ranges: int) -> None:
        msg = f"there is no room for {ranges}"
        raise errors.Overloaded(msg)

    asked = ClaimRequest([b"", KEY], identity="X", request_id=next(ids).to_bytes(16))
    with pytest.raises(errors.Overloaded):
        await tree.below.shard.claim("a~0", asked, room=none)
    await claim_as(tree.below, "a~0", "Y")


# -- the task of a slice ----------------------------------------------------------------------------------------------


# -- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [["x"], []])
async def test_what_is_finished_stays_so_when_inputs_are_taken_away(reader: Tree, left: list[str]) -> None:
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


# -- a graph for everybody --------------------------------------------------------------------------------------------


def test_slices_take_no_more_of_the_graph_than_others_can_read_beside_them() -> None:
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


# -- keys of others ---------------------------------------------------------------------------------------------------


# -- a clock that is wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retired", [False, True])
async def test_a_slice_that_stands_ahead_of_the_clock_is_claimed_anew_all_the_same(tree: Tree, retired: bool) -> None:
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


# -- over the network ---------------------------------------------------------------------------------------------------


async def test_what_is_said_by_a_range_that_is_given_up_is_waited_for_no_more() -> None:
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
