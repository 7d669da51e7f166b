"""Registrations that come at once: what they write, what they share, and whom they hold up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import pytest

from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.holdings import replayed
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, Entry
from lowwater_authority.ops.observer import Observer
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.shards import turns


class Plan(FaultPlan):
    """Keeps which logs each write was of; holds, refuses or stops at appends as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.takes = asyncio.Event()
        self.takes.set()
        self.taking = 0
        """Takes under way."""
        self.left: dict[bool, int] = {}
        """How many more writes begin, or end: behind these, nothing does."""

    async def before(self, operation: Operation) -> Outcome:
        await self._stop(begins=True)
        await self.open.wait()
        if operation.name == "append":
            self.writes.append([log for log, _ in operation.places])
            return await super().before(operation)
        if operation.name == "take":
            self.taking += 1
            await self.takes.wait()
            self.taking -= 1
        return Outcome.DONE

    async def after(self, operation: Operation) -> None:
        await self._stop(begins=False)

    async def _stop(self, *, begins: bool) -> None:
        if begins in self.left:
            if not self.left[begins]:
                await asyncio.Event().wait()
            self.left[begins] -= 1


class One:
    """A shard by itself."""

    def __init__(self, disk: MemoryDisk, graph_bytes: int = 64 << 10) -> None:
        self.plan = Plan()
        self.disk = disk
        # How many share a write is not to depend on the machine.
        settings = ShardSettings(graph_bytes=graph_bytes, round_seconds=float("inf"))
        journal = MemoryJournal(disk, faults=self.plan)
        self.shard = Shard(journal, clock=lambda: 10**15, observer=Observer(), settings=settings)

    async def start(self) -> One:
        await self.shard.start()
        self._task = asyncio.create_task(self.shard.run())
        return self

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def register(self, name: str, *inputs: str) -> asyncio.Task[Spec]:
        return asyncio.create_task(self.shard.register(Spec(name, inputs)))

    async def held_up(self, *names: str) -> list[asyncio.Task[Spec]]:
        """Register, while the store takes its time for the first one."""
        self.plan.open.clear()
        tasks = [self.register(name) for name in names]
        await turns()
        return tasks


@pytest.fixture
async def one() -> AsyncIterator[One]:
    made = await One(MemoryDisk()).start()
    yield made
    await made.kill()


async def outcomes(tasks: Sequence[asyncio.Task[Spec]]) -> list[str]:
    """The names that were registered, and why the others were not."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each.name if isinstance(each, Spec) else getattr(each, "reason", repr(each)) for each in found]


async def test_one_that_fails_as_it_never_should_is_refused_alone(one: One, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: Collection[str]) -> None:
        raise RuntimeError("a fault of this one alone")

    tasks = await one.held_up("first")
    tasks += [one.register("a"), asyncio.create_task(one.shard.register(Spec("bad"), room=bad)), one.register("b", "a")]
    await turns()
    one.plan.open.set()
    assert await outcomes(tasks) == ["first", "a", "UNKNOWN", "b"]
    assert one.plan.writes == [[GRAPH], [GRAPH]]
    assert one.shard.topology.computations.keys() == {"first", "a", "b"}
    assert "a request failed in a way it never should" in caplog.text


async def test_one_that_is_refused_is_refused_alone(one: One) -> None:
    tasks = await one.held_up("first")
    tasks += [
        one.register("a"),
        one.register("a", "first"),  # for what waits in front of it
        one.register("a"),
        one.register("b", "c"),
        one.register("c", "b"),
        one.register("no name"),
        one.register("d", "a"),
    ]
    await turns()
    one.plan.open.set()
    conflict, cycle, invalid = "REGISTRATION_CONFLICT", "CYCLE", "INVALID_ARGUMENT"
    assert await outcomes(tasks) == ["first", "a", conflict, "a", "b", cycle, invalid, "d"]
    assert one.plan.writes == [[GRAPH], [GRAPH]]
    assert one.shard.topology.computations.keys() == {"first", "a", "b", "d"}


async def test_the_log_of_the_graph_stays_bounded() -> None:
    one = await One(MemoryDisk(), graph_bytes=500).start()
    for number in range(20):
        await one.register(f"c{number}")
    longest = 0
    for _ in range(100):
        await one.shard.reset("c7")
        await one.shard.held.logs.settle()
        loaded = await one.shard.journal.load(GRAPH)
        longest = max(longest, sum(len(payload) for _, payload in loaded.records))
        assert replayed(loaded).topology == one.shard.topology
    whole = len(one.shard.topology.encode())
    assert longest <= max(500, 2 * whole) + 100, "the changes since then never outweigh a whole graph by much"
    await one.kill()


@pytest.mark.parametrize("begins", [True, False])
async def test_a_crash_at_any_write_keeps_what_was_acknowledged(begins: bool) -> None:
    """Each write in turn is the first that does not begin, or is not told of: of a change, of the whole graph in its place, of a take."""
    crashes = 0
    while True:
        disk = MemoryDisk()
        one = await One(disk, graph_bytes=60).start()
        one.plan.left[begins] = crashes
        told: dict[str, Spec | None] = {}

        async def live(one: One, told: dict[str, Spec | None]) -> None:
            for name in "abcdef":
                told[name] = await one.register(name)
            [told["b"]] = await one.shard.reset("b")
            await one.shard.drop("c", force=True)
            told["c"] = None
            await one.register("g")
            await one.shard.held.logs.settle()

        task = asyncio.create_task(live(one, told))
        await turns(300)
        done = task.done()
        task.cancel()
        await one.kill()
        disk.crash()
        again = await One(disk, graph_bytes=60).start()
        for name, spec in told.items():
            known = again.shard.topology.computations.get(name)
            assert known == spec or name in "bc", f"{name} behind write {crashes}"
        if (b := told.get("b")) is not None and b.incarnation == 2:
            assert again.shard.topology.get("b").incarnation == 2
        if "c" in told and told["c"] is None:
            assert "c" in again.shard.topology.dropped
        assert (await again.register("new")).name == "new"
        await again.kill()
        if done:
            break
        crashes += 1
    assert crashes > 12


async def test_a_journal_of_whole_graphs_is_gone_on_with(one: One) -> None:
    """As 0.1 has written it."""
    await one.kill()
    graphs = [Topology().register(Spec("a"))]
    graphs.append(graphs[-1].register(Spec("b", ("a",))))
    graphs.append(graphs[-1].reset("a")[0])
    disk = MemoryDisk()
    journal = MemoryJournal(disk)
    await journal.open()
    for position, each in enumerate(graphs, 1):
        await journal.append([Entry(GRAPH, position, each.encode(), strong=True)])
    again = await One(disk).start()
    assert again.shard.topology == graphs[-1]
    await again.register("c", "b")
    loaded = await again.shard.journal.load(GRAPH)
    assert len(loaded.records[-1][1]) < len(loaded.records[0][1]) + 10, "from here on, what changes"
    await again.kill()
    assert (await One(disk).start()).shard.topology == graphs[-1].register(Spec("c", ("b",)))
