"""The faults of the simulated store."""

from __future__ import annotations

import asyncio

import pytest

from lowwater_authority.journal import Entry, JournalFailed, JournalUnknown
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.simulation.kernel import RemoteFaults, RemoteStore, SimFaults, Simulation


def entry(position: int, *, strong: bool = False) -> list[Entry]:
    return [Entry("a", position, b"%d" % position, strong)]


class Store:
    """A journal in a process, over a disk that outlives it."""

    def __init__(self, *, weak: bool = False) -> None:
        self.sim, self.disk = Simulation(1), MemoryDisk()
        self.faults = SimFaults(self.sim, "store", weak=weak)
        self.journal = MemoryJournal(self.disk, faults=self.faults, randbits=self.sim.rng("journal").getrandbits)

    async def open(self) -> None:
        await self.journal.open()
        await self.journal.take("a")

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

    async def world() -> None:
        await store.open()
        setattr(store.faults.weather, probability, 1.0)
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
        await store.open()
        assert 0.001 <= store.sim.now <= 0.006
        weather.p_slow, weather.slow = 1.0, (2.0, 2.0)
        await store.journal.append(entry(1))
        assert 4 < store.sim.now < 4.01
        await store.journal.append(entry(2))
        weather.hang = True
        writing = asyncio.create_task(store.journal.append(entry(3)))
        await asyncio.sleep(60)
        assert not writing.done()
        weather.hang = False
        await writing

    store.sim.run(world(), 100)
    assert store.sim.points == {"store: slow": 6, "store: hang": 1}


@pytest.mark.parametrize("power_fails", [True, False])
def test_what_is_cached_and_not_synced_dies_with_the_machine_but_not_with_the_process(power_fails: bool) -> None:
    store = Store()

    async def world() -> None:
        process = store.sim.process("p")
        await store.open()
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
        await store.open()
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

    async def world() -> None:
        await store.open()
        store.faults.then(Outcome.FAILED)
        with pytest.raises(JournalFailed):
            await store.journal.append(entry(1))
        await store.journal.append(entry(1))

    store.sim.run(world(), 10)


class Shared:
    """Two journals of two processes over one store across the network."""

    def __init__(self, *, replicated: bool = False) -> None:
        self.sim, self.disk, self.store = Simulation(1), MemoryDisk(), RemoteStore()
        self.faults = [RemoteFaults(self.sim, name, self.store, patience=1.0, replicated=replicated) for name in "ab"]
        randbits = self.sim.rng("journal").getrandbits
        self.journals = [
            MemoryJournal(self.disk, shared=True, faults=faults, randbits=randbits) for faults in self.faults
        ]


def test_one_process_is_cut_off_from_a_store_and_the_other_is_not() -> None:
    shared = Shared()
    [one, two] = shared.journals

    async def world() -> None:
        for journal, log in zip(shared.journals, "ab", strict=True):
            await journal.open()
            await journal.take(log)
        shared.store.cut.add("a")
        with pytest.raises(JournalFailed):
            await one.append(entry(1))
        with pytest.raises(JournalFailed):
            await one.confirm(["a"])
        assert await two.confirm(["b"]) == 0
        shared.store.cut.clear()
        shared.store.weather.delay = (0.1, 0.1)
        writing = asyncio.create_task(one.append(entry(1)))
        await asyncio.sleep(0.15)
        shared.store.cut.add("a")
        with pytest.raises(JournalUnknown):
            await writing
        shared.store.cut.clear()
        await one.append(entry(1))

    shared.sim.run(world(), 10)
    assert len(shared.disk.logs["a"].records) == 1


def test_what_a_fail_over_loses_was_not_acknowledged() -> None:
    shared = Shared()
    [one, _] = shared.journals

    async def world() -> None:
        await one.open()
        await one.take("a")
        shared.store.weather.delay = (0.1, 0.1)
        writing = asyncio.create_task(one.append(entry(1)))
        await asyncio.sleep(0.15)
        assert shared.disk.unsynced == 1
        shared.disk.lose(shared.disk.unsynced)
        shared.store.fail_overs += 1
        with pytest.raises(JournalUnknown):
            await writing
        assert "a" not in shared.disk.logs
        await one.append(entry(1))

    shared.sim.run(world(), 10)


def test_a_replica_that_lags_has_a_prefix_and_a_fail_over_keeps_no_more() -> None:
    shared = Shared(replicated=True)
    [one, two] = shared.journals
    shared.disk.keeps_prefixes = True

    async def world() -> None:
        await one.open()
        await two.open()
        await one.take("a")
        await one.append(entry(1))
        shared.store.lagging = 1
        writing = asyncio.create_task(one.append(entry(2)))
        await asyncio.sleep(0.5)
        # The master has executed the write and has acknowledged nothing.
        assert (shared.disk.unsynced, writing.done()) == (1, False)
        with pytest.raises(JournalFailed):
            await shared.faults[1].settle("a")
        with pytest.raises(JournalUnknown):
            await writing
        shared.disk.lose(shared.disk.unsynced)
        shared.store.lagging = 0
        assert [position for position, _ in (await two.load("a")).records] == [1]
        await one.append(entry(2))
        assert shared.disk.unsynced == 0

    shared.sim.run(world(), 10)


def test_an_acknowledged_write_leaves_those_behind_it_in_doubt_where_a_replica_follows() -> None:
    disk = MemoryDisk()
    disk.keeps_prefixes = True
    for _ in range(3):
        disk.touch({}, synced=False)
    disk.sync(disk.written - 1)
    assert disk.unsynced == 1
    disk.sync(disk.written - 2)
    assert disk.unsynced == 1


def test_a_store_that_hangs_is_given_up() -> None:
    shared = Shared()
    [one, _] = shared.journals

    async def world() -> None:
        await one.open()
        await one.take("a")
        shared.store.weather.hang = True
        with pytest.raises(JournalUnknown):
            await one.append(entry(1))
        with pytest.raises(JournalFailed):
            await one.confirm(["a"])
        assert shared.sim.now < 3.2
        shared.store.weather.hang = False
        await one.append(entry(1))

    shared.sim.run(world(), 10)
