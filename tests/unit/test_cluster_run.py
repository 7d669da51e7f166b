"""How a shard lives among others, beat by beat, in virtual time: when it holds itself to be cut off, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.cluster.cluster import Cluster
from lowwater_authority.cluster.membership import Member
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.shard import WAIT_SECONDS, Shard
from lowwater_authority.engine.takeover import SLOW_SECONDS, TAKEN_AT_ONCE
from lowwater_authority.journal import JournalFailed, LoadedLog
from lowwater_authority.ops.observer import Observer
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_directory import MemoryDirectory, MemoryMembers
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.simulation.kernel import Simulation

DEAD_AFTER = 1.5
NAMES = [f"c{number}" for number in range(8)]


class NobodyToAsk:
    """The peers of shards that read nothing of each other."""

    async def lows(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """See Placement."""
        assert not names
        return {}


class SlowJournal(MemoryJournal):
    """Takes so many seconds to read a log whole, and none or many to say that nobody answers."""

    seconds = 0.0
    slow: frozenset[str] | None = None
    """Of which logs that is so; None: of all."""
    away = False

    async def load(self, log: str, *, known: LoadedLog | None = None) -> LoadedLog:
        """See Journal."""
        if log and known is None and (self.slow is None or log in self.slow):
            await asyncio.sleep(self.seconds)
        return await super().load(log, known=known)

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal."""
        if self.away:
            await asyncio.sleep(self.seconds)
            raise JournalFailed("nobody answers")
        return await super().confirm(logs)


class World:
    """One store, and shards that live by themselves."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.disk = MemoryDisk()
        self.members = MemoryMembers(self.clock, dead_after=int(DEAD_AFTER * 1e6))

    def clock(self) -> int:
        """Microseconds."""
        return int(self.sim.now * 1e6) + 10**15

    async def start(self, address: str, faults: FaultPlan | None = None) -> One:
        """Start a shard, with these faults on its way to the members; returns when it is one of them."""
        one = One(self, address, faults)
        one.process.start(one.live)
        await one.joined.wait()
        return one


class One:
    """A shard in a process of its own."""

    def __init__(self, world: World, address: str, faults: FaultPlan | None) -> None:
        self.process = world.sim.process(address)
        self.joined = asyncio.Event()
        self.told: list[bool] = []
        """What was said of being cut off."""
        self.journal = SlowJournal(world.disk, shared=True)
        self.cluster = Cluster(
            MemoryDirectory(world.members, faults=faults),
            Member(f"id-{address}", address),
            peers=NobodyToAsk(),  # type: ignore[arg-type]  # without a network
            monotonic=lambda: world.sim.now,
            dead_after=DEAD_AFTER,
        )
        self.cluster.on_cut_off = self.told.append
        self.shard = Shard(self.journal, clock=world.clock, observer=Observer(), placement=self.cluster)

    async def live(self) -> None:
        """Serve until killed."""
        await self.shard.start()
        rounds = asyncio.create_task(self.shard.run())
        await self.cluster.join(self.shard)
        self.joined.set()
        await self.cluster.run()
        await rounds


def run(world: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run a story."""
    sim = Simulation(1)
    sim.run(world(World(sim)), limit=120)


@pytest.mark.parametrize("fate", [Outcome.LOST, Outcome.WRITTEN])
@pytest.mark.parametrize("done", [0, 1], ids=["beat", "propose"])
def test_a_shard_joins_though_the_store_is_slow_to_answer(fate: Outcome, done: int) -> None:
    """Nobody knows whether a call was done that timed out: the next beat tells."""

    async def story(world: World) -> None:
        await world.start("one:1")
        await world.start("other:1", FaultPlan().then(*[Outcome.DONE] * done, fate, fate))
        assert {member.address for member in world.members.view.members} == {"one:1", "other:1"}

    run(story)


def test_a_shard_joins_when_the_store_is_back_and_may_leave_before(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.members.away = True
        one, other = One(world, "one:1", None), One(world, "other:1", None)
        lives = [one.process.start(one.live), other.process.start(other.live)]
        await asyncio.sleep(60)
        assert not one.joined.is_set()
        assert len(caplog.messages) < 100, "told now and then, and asked no more often than by any beat"
        other.shard.stop()
        await other.cluster.leave()
        await asyncio.sleep(1)
        assert other.joined.is_set(), "it goes on, and ends"
        world.members.away = False
        await one.joined.wait()
        assert [member.address for member in world.members.view.members] == ["one:1"]
        del lives

    run(story)


@pytest.mark.parametrize("joined", [False, True])
def test_a_beat_that_is_under_way_does_not_bring_back_who_leaves(joined: bool) -> None:
    """The store answers late: that the leaver is out of the view has overtaken it."""

    class Held(FaultPlan):
        """Holds up one beat of the shard before it reaches the store."""

        held = False
        going = asyncio.Event()

        async def before(self, operation: Operation) -> Outcome:
            if self.held and operation.name == "beat":
                self.held = False
                await self.going.wait()
            return await super().before(operation)

    async def story(world: World) -> None:
        await world.start("one:1")
        plan = Held()
        plan.held = not joined
        other = One(world, "other:1", plan)
        other.process.start(other.live)
        if joined:
            await other.joined.wait()
            plan.held = True
        await asyncio.sleep(1)
        assert not plan.held
        other.shard.stop()
        await other.cluster.leave()
        plan.going.set()
        await asyncio.sleep(1)
        assert [member.address for member in world.members.view.members] == ["one:1"]

    run(story)


def test_a_shard_that_recovers_for_long_is_not_cut_off() -> None:
    """It takes over what a dead one served, which takes many times dead_after."""

    async def story(world: World) -> None:
        one, other = await world.start("one:1"), await world.start("other:1")
        for name in NAMES:
            await one.shard.register(Spec(name))
        await asyncio.sleep(2)
        assert other.shard.names()
        one.journal.seconds = 10.0
        other.process.crash()
        await asyncio.sleep(DEAD_AFTER + 1)
        assert one.shard.names() != NAMES
        await asyncio.sleep(30)
        assert one.shard.names() == NAMES
        assert one.told == []

    run(story)


def test_one_that_takes_long_holds_up_no_other() -> None:
    """A computation is being taken over for a minute when another shard dies: what that served is served on at once."""

    async def story(world: World) -> None:
        one, other, third = [await world.start(address) for address in ("one:1", "other:1", "third:1")]
        for name in NAMES:
            await one.shard.register(Spec(name))
        await asyncio.sleep(2)
        assert third.shard.names()
        slow = other.shard.names()[0]
        for each in (one, third):
            each.journal.slow, each.journal.seconds = frozenset({slow}), 60.0
        other.process.crash()
        await asyncio.sleep(DEAD_AFTER + 1)
        third.process.crash()
        await asyncio.sleep(DEAD_AFTER + 1)
        assert one.shard.names() == sorted(set(NAMES) - {slow})
        await asyncio.sleep(70)
        assert one.shard.names() == NAMES

    run(story)


def test_however_many_take_long_the_others_have_their_turn() -> None:
    """More than are taken side by side: after a while they do not count."""

    async def story(world: World) -> None:
        one, other = await world.start("one:1"), await world.start("other:1")
        names = [f"d{number}" for number in range(4 * TAKEN_AT_ONCE)]
        for name in names:
            await one.shard.register(Spec(name))
        await asyncio.sleep(2)
        lost = other.shard.names()
        slow = frozenset(lost[: TAKEN_AT_ONCE + 1])
        assert len(lost) > len(slow)
        one.journal.slow, one.journal.seconds = slow, 60.0
        other.process.crash()
        await asyncio.sleep(DEAD_AFTER + 1)
        one.journal.seconds = 0.0
        await asyncio.sleep(2 * SLOW_SECONDS)
        assert set(lost) & set(one.shard.names()) >= set(lost) - slow

    run(story)


@pytest.mark.parametrize("seconds", [DEAD_AFTER + 0.1, 30.0])
def test_a_shard_that_was_stopped_hears_of_its_store_before_it_judges(seconds: float) -> None:
    async def story(world: World) -> None:
        one, other = await world.start("one:1"), await world.start("other:1")
        for name in NAMES:
            await one.shard.register(Spec(name))
        await asyncio.sleep(2)
        one.process.pause()
        await asyncio.sleep(seconds)
        one.process.resume()
        await asyncio.sleep(2)
        assert one.told == []
        assert sorted(one.shard.names() + other.shard.names()) == NAMES

    run(story)


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_shard_without_its_store_is_cut_off_after_dead_after_and_comes_back(seconds: float) -> None:
    async def story(world: World) -> None:
        one = await world.start("one:1")
        await asyncio.sleep(1)
        world.members.away = one.journal.away = True
        one.journal.seconds = seconds
        await asyncio.sleep(DEAD_AFTER * 0.7)
        assert one.told == []
        await asyncio.sleep(DEAD_AFTER * 0.8)
        assert one.told == [True]
        world.members.away = one.journal.away = False
        await asyncio.sleep(seconds + 1)
        assert one.told == [True, False]

    run(story)


@pytest.mark.parametrize("seconds", [WAIT_SECONDS, 60.0])
def test_a_read_waits_for_the_store_once_and_says_how_old_its_news_is(seconds: float) -> None:
    """It has come behind another look at the store, which does not answer either: that must not make it twice as long."""

    async def story(world: World) -> None:
        one = await world.start("one:1")
        await one.shard.register(Spec("a"))
        await asyncio.sleep(1)
        one.journal.away, one.journal.seconds = True, seconds
        before = asyncio.ensure_future(one.shard.confirm(()))
        await asyncio.sleep(1)
        began = world.sim.now
        with pytest.raises(
            errors.Unavailable, match=r"cannot tell whether what it knows is the newest, .* s ago"
        ) as refused:
            await one.shard.confirm(["a"])
        assert world.sim.now - began <= WAIT_SECONDS
        stale = int(refused.value.metadata["stale_micros"]) / 1e6
        assert 1 < stale <= WAIT_SECONDS + 2
        await asyncio.gather(before, return_exceptions=True)
        one.journal.away = False
        await asyncio.sleep(seconds)
        await one.shard.confirm(["a"])

    run(story)
