"""A change of several logs counts whole, or not at all: what of it a reader finds before it is durable, and what a store that loses it leaves.

``a`` reads ``x``, and is given a second input ``y``, which stands at 50. The change revokes the claims of ``a`` and lowers its ranges to 50, in its log, and
says so in the graph, all in one append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lowwater import errors
from lowwater_authority.core.requests import Grant
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, JournalFailed, JournalUnknown
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.kit.tree import One, Tree


class Store(FaultPlan):
    def __init__(self) -> None:
        super().__init__()
        self.lags = False
        self.executed = asyncio.Event()
        self.replicated = asyncio.Event()
        self.replaced = False
        """True if another server took over before the write was replicated."""
        self.refused = 0
        """The number of appends that the store still refuses."""
        self.stops = False
        """True if no append behind a heal ever returns."""
        self.healed = False
        self.stopped = asyncio.Event()

    def _is_change(self, operation: Operation) -> bool:
        return self.lags and operation.name == "append" and any(log == GRAPH for log, _ in operation.places)

    async def before(self, operation: Operation) -> Outcome:
        if self.refused and operation.name == "append":
            self.refused -= 1
            return Outcome.FAILED
        if self.stops and self.healed and operation.name == "append":
            self.stopped.set()
            await asyncio.Event().wait()
        self.healed = self.healed or operation.name == "restore"
        return Outcome.CACHED if self._is_change(operation) else Outcome.DONE

    async def after(self, operation: Operation) -> None:
        if not self._is_change(operation):
            return
        self.lags = False
        self.executed.set()
        await self.replicated.wait()
        if self.replaced:
            msg = "another server took over"
            raise JournalUnknown(msg)

    async def settle(self, log: str) -> None:
        if not self.replicated.is_set():
            msg = f"no replica confirms {log!r}"
            raise JournalFailed(msg)


class World(Tree):
    """Two processes over one store: ``serving`` serves ``a``, ``other`` all else."""

    def __init__(self) -> None:
        super().__init__(MemoryDisk())
        self.store = Store()

    async def process(self, address: str, names: Callable[[str], bool]) -> One:
        """Start one, whose store lags as ``store`` says."""
        one = One(self, address, names)
        one.journal = MemoryJournal(self.disk, shared=True, faults=self.store)
        one.shard = Shard(one.journal, clock=lambda: self.now, observer=Observer(), placement=one.placement)
        one.shard.held.logs.address = address
        self.all.append(await one.start())
        return one

    async def begin(self) -> tuple[Grant, Grant]:
        self.store.replicated.set()
        self.other = await self.process("other:1", lambda name: name != "a")
        self.serving = await self.process("owner:1", lambda name: name == "a")
        for name in "xyz":
            await self.other.shard.graph.register(Spec(name))
        await self.serving.shard.confirmation.refresh()
        await self.serving.shard.graph.register(Spec("a", inputs=("x",)))
        await self.other.shard.confirmation.refresh()
        for name, hour in (("x", 100), ("y", 50), ("z", 50)):
            assert await self.other.report(name, await self.other.claim(name), hour) == []
        grants = await self.serving.claim("a", b"", b"\x80"), await self.serving.claim("a", b"\x80", b"")
        for grant, hour in zip(grants, (50, 90), strict=True):
            assert await self.serving.report("a", grant, hour) == []
        return grants

    async def change(self, inputs: str = "xy") -> asyncio.Task[Spec]:
        self.store.replicated.clear()
        self.store.lags = True
        changing = asyncio.create_task(self.serving.shard.graph.set_inputs("a", list(inputs)))
        await self.store.executed.wait()
        return changing

    def ranges(self) -> list[int]:
        computation = self.serving.shard.held.computation("a")
        assert computation is not None
        ranges_ = sorted(computation.map.all_ranges(9)[0], key=lambda entry: entry.start)
        return [entry.value // HOUR for entry in ranges_]


@pytest.fixture
async def world() -> World:
    return World()


async def test_rule2_a_change_of_the_graph_is_not_used_before_it_is_durable(world: World) -> None:
    await world.begin()
    changing = await world.change()
    with pytest.raises(errors.Unavailable, match="no replica confirms"):
        await world.other.shard.confirmation.refresh()
    assert world.other.shard.topology.get("a").inputs == ("x",)
    world.store.replicated.set()
    assert (await changing).inputs == ("x", "y")
    await world.other.shard.confirmation.refresh()
    assert world.other.shard.topology.get("a").inputs == ("x", "y")
    await world.stop()


async def test_rule2_what_a_process_starts_with_is_durable(world: World) -> None:
    await world.begin()
    changing = await world.change()
    with pytest.raises(JournalFailed, match="no replica confirms"):
        await world.process("third:1", lambda _: False)
    world.store.replicated.set()
    await changing
    third = await world.process("third:1", lambda _: False)
    world.disk.lose(world.disk.unsynced)
    assert third.shard.topology.get("a").inputs == ("x", "y")
    await world.stop()


async def put_back_alone(one: One, graph: Topology) -> None:
    """Write the graph without the log that belongs to its newest change."""
    await one.journal.restore(GRAPH, one.shard.held.graph.log.position + 1, graph.encode(), newest=graph.needs_newest)


async def lost_with_its_owner(world: World) -> None:
    """Lose an acknowledged change of inputs, against the word of the store, and the process that made it; another one puts the graph back."""
    await world.begin()
    await world.serving.shard.graph.set_inputs("a", ["x", "y"])
    await world.other.shard.confirmation.refresh()
    world.disk.lose(1)
    await world.serving.stop()
    await world.other.shard.confirmation.confirm()
    world.serving = await world.process("owner:2", lambda name: name == "a")


async def test_rule1_a_log_behind_the_inputs_of_its_graph_follows_before_anything_counts(world: World) -> None:
    await lost_with_its_owner(world)
    assert world.serving.shard.topology.get("a").inputs == ("x", "y")
    assert world.ranges() == [50, 90]
    grant = await world.serving.claim("a", b"", b"\x80")
    assert world.ranges() == [50, 50]
    assert await world.serving.report("a", grant, 80) == []
    assert (world.low("a"), world.ranges()) == (50, [80, 50])
    # It is in the log: whoever takes over finds it.
    await world.serving.stop()
    world.serving = await world.process("owner:3", lambda name: name == "a")
    assert world.ranges() == [80, 50]
    await world.stop()


async def test_rule4_owners_of_a_log_behind_a_graph_are_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """If an owner's log is older than the graph, its reports are refused: it has not waited for the new input.

    The line in the log comes once, when the new version is in the journal.
    """
    grants = await world.begin()
    await put_back_alone(world.other, world.other.shard.topology.set_inputs("a", ["x", "y"]))
    await world.serving.shard.confirmation.refresh()
    assert world.serving.shard.topology.get("a").inputs == ("x", "y")
    world.store.refused = 2
    for _ in range(2):
        with pytest.raises(errors.JournalFailed):
            await world.serving.report("a", grants[0], 95)
    refused = await world.serving.report("a", grants[0], 95)
    assert [refusal.reason for _, refusal in refused] == ["STALE_SEQUENCER"]
    assert (world.low("a"), world.ranges()) == (50, [50, 50])
    assert caplog.text.count("the log of a had version 1 of its inputs") == 1
    await world.stop()


@pytest.mark.parametrize("starts", [True, False])
async def test_rule1_a_log_ahead_of_its_graph_is_not_served_until_its_reset(
    world: World, caplog: pytest.LogCaptureFixture, *, starts: bool
) -> None:
    await world.begin()
    older = world.other.shard.topology
    await world.serving.shard.graph.set_inputs("a", ["x", "y"])
    await world.other.shard.confirmation.refresh()
    await put_back_alone(world.other, older)
    await world.stop()
    mine = {"a"} if starts else set[str]()
    world.serving = await world.process("owner:2", mine.__contains__)
    mine.add("a")
    for _ in range(3):
        with pytest.raises(errors.Unavailable, match="version 2 of its inputs"):
            await world.serving.shard.takeover.serve("a")
    assert caplog.text.count("version 2 of its inputs") == 1
    await world.serving.shard.graph.reset("a")
    assert await world.serving.shard.takeover.serve("a")
    await world.serving.claim("a")
    await world.serving.stop()


async def test_of_two_changes_of_one_age_the_one_in_the_store_stays(world: World) -> None:
    """The stored change was acknowledged behind the loss of the other one. Reports that fold the lost inputs do not count."""
    await world.begin()
    await world.serving.shard.graph.set_inputs("a", ["x", "y"])
    await world.other.shard.confirmation.refresh()
    world.disk.lose(1)
    await world.serving.stop()
    world.serving = await world.process("owner:2", lambda name: name == "a")
    assert (await world.serving.shard.graph.set_inputs("a", ["x", "z"])).input_version == 2
    for one in (world.other, world.serving):
        await one.shard.confirmation.confirm()
        await one.shard.confirmation.refresh()
    for one in (world.other, world.serving):
        spec = one.shard.topology.get("a")
        assert (spec.inputs, spec.input_version) == (("x", "z"), 3)
    await world.stop()


@pytest.mark.parametrize("dies", [True, False])
async def test_a_heal_restores_no_half_changes(world: World, caplog: pytest.LogCaptureFixture, *, dies: bool) -> None:
    """The owner heals its log. If the process dies before it appends the change, the next owner serves on without the change."""
    await world.begin()
    world.store.stops = dies
    world.disk.lose(1)  # the advance to 90
    changing = asyncio.create_task(world.serving.shard.graph.set_inputs("a", ["x", "y"]))
    if dies:
        await world.store.stopped.wait()
        changing.cancel()
        world.store.stops = False
        await world.serving.stop()
        world.serving = await world.process("owner:2", lambda name: name == "a")
    else:
        await changing
    assert world.serving.shard.topology.get("a").inputs == (("x",) if dies else ("x", "y"))
    assert world.ranges() == [50, 50]
    grant = await world.serving.claim("a")
    assert await world.serving.report("a", grant, 95) == []
    assert world.low("a") == 95
    assert "version 1 of its inputs" not in caplog.text
    await world.stop()
