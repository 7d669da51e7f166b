"""The faults of the simulated store."""

from __future__ import annotations

import asyncio

import pytest

from lowwater_authority.journal import Entry, JournalFailed, JournalUnknown
from lowwater_authority.journal.faults import Outcome
from lowwater_authority.journal.memory import MemoryDisk, MemoryJournal
from tests.simulation.kernel import SimFaults, Simulation


def entry(position: int, *, strong: bool = False) -> list[Entry]:
    return [Entry("a", position, b"%d" % position, strong)]


class Store:
    """A journal in a process, over a disk that outlives it."""

    def __init__(self, *, weak: bool = False) -> None:
        self.sim, self.disk = Simulation(1), MemoryDisk()
        self.faults = SimFaults(self.sim, "store", weak=weak)
        self.journal = MemoryJournal(self.disk, faults=self.faults, randbits=self.sim.rng("journal").getrandbits)

    async def found(self) -> list[int]:
        """What the next process finds."""
        journal = MemoryJournal(self.disk)
        await journal.open()
        return [position for position, _ in (await journal.load("a")).records]


@pytest.mark.parametrize(
    ("probability", "raised", "found"),
    [("p_failed", JournalFailed, []), ("p_lost", JournalUnknown, []), ("p_written", JournalUnknown, [1])],
)
def test_the_store_fails_in_every_way(probability: str, raised: type[Exception], found: list[int]) -> None:
    store = Store()
    setattr(store.faults.weather, probability, 1.0)

    async def world() -> None:
        await store.journal.open()
        with pytest.raises(raised):
            await store.journal.append(entry(1))
        store.disk.crash()
        assert await store.found() == found

    store.sim.run(world(), 10)
    assert sum(store.sim.points.values()) == 1


def test_the_store_is_slow_and_hangs_as_it_is_told() -> None:
    store = Store()
    weather = store.faults.weather

    async def world() -> None:
        await store.journal.open()
        await store.journal.append(entry(1))
        assert 0.001 <= store.sim.now <= 0.006
        weather.p_slow, weather.slow = 1.0, (2.0, 2.0)
        await store.journal.append(entry(2))
        assert 4 < store.sim.now < 4.01
        weather.hang = True
        writing = asyncio.create_task(store.journal.append(entry(3)))
        await asyncio.sleep(60)
        assert not writing.done()
        weather.hang = False
        await writing

    store.sim.run(world(), 100)
    assert store.sim.points == {"store: slow": 4, "store: hang": 1}


@pytest.mark.parametrize("power_fails", [True, False])
def test_what_is_cached_and_not_synced_dies_with_the_machine_but_not_with_the_process(power_fails: bool) -> None:
    store = Store()

    async def world() -> None:
        process = store.sim.process("p")
        await store.journal.open()
        await store.journal.append(entry(1))
        assert store.disk.unsynced == 0
        store.faults.weather.delay = (1.0, 1.0)
        process.start(store.journal.append, entry(2))
        await asyncio.sleep(1.5)
        assert store.disk.unsynced == 1
        process.crash()
        if power_fails:
            store.disk.crash()
        assert await store.found() == ([1] if power_fails else [1, 2])

    store.sim.run(world(), 100)


def test_a_weak_store_acknowledges_advances_from_its_cache() -> None:
    store = Store(weak=True)

    async def world() -> None:
        await store.journal.open()
        for position in (1, 2):
            await store.journal.append(entry(position))
        assert store.disk.unsynced == 2
        await store.journal.append(entry(3, strong=True))
        assert store.disk.unsynced == 0
        await store.journal.append(entry(4))
        store.disk.crash()
        assert await store.found() == [1, 2, 3]

    store.sim.run(world(), 10)


def test_faults_that_are_lined_up_go_first() -> None:
    store = Store()
    store.faults.then(Outcome.FAILED)

    async def world() -> None:
        await store.journal.open()
        with pytest.raises(JournalFailed):
            await store.journal.append(entry(1))
        await store.journal.append(entry(1))

    store.sim.run(world(), 10)
