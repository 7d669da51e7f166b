"""How a shard lives among others, beat by beat, in virtual time: when it holds itself to be cut off, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.takeover import SLOW_SECONDS, TAKEN_AT_ONCE
from lowwater_authority.journal import JournalFailed, LoadedLog
from tests.kit.clock import Clock
from tests.kit.faults import FaultPlan, Outcome
from tests.kit.memory_journal import MemoryJournal
from tests.kit.shards import DEAD_AFTER, Deployment, One
from tests.simulation.kernel import Simulation


class SlowJournal(MemoryJournal):
    """Takes so many seconds to read a log whole, and none or many to say that nobody answers."""

    seconds = 0.0
    slow: frozenset[str] | None = None
    """Of which logs that is so; None: of all."""
    away = False

    async def load(self, log: str, *, known: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """See Journal."""
        if log and known is None and (self.slow is None or log in self.slow):
            await asyncio.sleep(self.seconds)
        return await super().load(log, known=known, durable=durable)

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal."""
        if self.away:
            await asyncio.sleep(self.seconds)
            raise JournalFailed("nobody answers")
        return await super().confirm(logs)


class Simulated(Deployment):
    """One store, and shards that live by themselves."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(Clock(0.0, over=lambda: sim.now))
        self.sim = sim

    async def start(self, address: str, faults: FaultPlan | None = None) -> Living:
        """Start a shard, with these faults on its way to the members; returns when it is one of them."""
        one = Living(self, address, faults)
        one.process.start(one.live)
        await one.joined.wait()
        return one


class Living(One):
    """A shard in a process of its own."""

    def __init__(self, deployment: Simulated, address: str, faults: FaultPlan | None = None) -> None:
        super().__init__(deployment, address, journal=SlowJournal, faults=faults)
        self.process = deployment.sim.process(address)
        self.joined = asyncio.Event()
        self.told: list[bool] = []
        """What was said of being cut off."""
        self.cluster.on_cut_off = self.told.append

    @property
    def store(self) -> SlowJournal:
        """Its journal."""
        assert isinstance(self.journal, SlowJournal)
        return self.journal

    async def live(self) -> None:
        """Serve until killed."""
        await self.shard.start()
        rounds = asyncio.create_task(self.shard.run())
        await self.cluster.join(self.shard)
        self.joined.set()
        await self.cluster.run()
        await rounds


def run(story: Callable[[Simulated], Coroutine[Any, Any, None]]) -> None:
    """Run a story."""
    sim = Simulation(1)
    sim.run(story(Simulated(sim)), limit=120)


@pytest.mark.parametrize("fate", [Outcome.LOST, Outcome.WRITTEN])
@pytest.mark.parametrize("done", [0, 1], ids=["beat", "propose"])
def test_a_shard_joins_though_the_store_is_slow_to_answer(fate: Outcome, done: int) -> None:
    """Nobody knows whether a call was done that timed out: the next beat tells."""

    async def story(deployment: Simulated) -> None:
        await deployment.start("one:1")
        await deployment.start("other:1", FaultPlan().then(*[Outcome.DONE] * done, fate, fate))
        assert {member.address for member in deployment.members.view.members} == {"one:1", "other:1"}

    run(story)


def test_a_shard_joins_when_the_store_is_back_and_may_leave_before(caplog: pytest.LogCaptureFixture) -> None:
    async def story(deployment: Simulated) -> None:
        deployment.members.away = True
        one, other = Living(deployment, "one:1"), Living(deployment, "other:1")
        lives = [one.process.start(one.live), other.process.start(other.live)]
        await asyncio.sleep(60)
        assert not one.joined.is_set()
        assert len(caplog.messages) < 100, "told now and then, and asked no more often than by any beat"
        other.shard.stop()
        await other.cluster.leave()
        await asyncio.sleep(1)
        assert other.joined.is_set(), "it goes on, and ends"
        deployment.members.away = False
        await one.joined.wait()
        assert [member.address for member in deployment.members.view.members] == ["one:1"]
        del lives

    run(story)


def test_however_many_take_long_the_others_have_their_turn() -> None:
    """More than are taken side by side: after a while they do not count."""

    async def story(deployment: Simulated) -> None:
        one, other = await deployment.start("one:1"), await deployment.start("other:1")
        names = [f"d{number}" for number in range(4 * TAKEN_AT_ONCE)]
        for name in names:
            await one.shard.register(Spec(name))
        await asyncio.sleep(2)
        lost = other.shard.names()
        slow = frozenset(lost[: TAKEN_AT_ONCE + 1])
        assert len(lost) > len(slow)
        one.store.slow, one.store.seconds = slow, 60.0
        other.process.crash()
        await asyncio.sleep(DEAD_AFTER + 1)
        one.store.seconds = 0.0
        await asyncio.sleep(2 * SLOW_SECONDS)
        assert set(lost) & set(one.shard.names()) >= set(lost) - slow

    run(story)


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_shard_without_its_store_is_cut_off_after_dead_after_and_comes_back(seconds: float) -> None:
    async def story(deployment: Simulated) -> None:
        one = await deployment.start("one:1")
        await asyncio.sleep(1)
        deployment.members.away = one.store.away = True
        one.store.seconds = seconds
        await asyncio.sleep(DEAD_AFTER * 0.7)
        assert one.told == []
        await asyncio.sleep(DEAD_AFTER * 0.8)
        assert one.told == [True]
        deployment.members.away = one.store.away = False
        await asyncio.sleep(seconds + 1)
        assert one.told == [True, False]

    run(story)
