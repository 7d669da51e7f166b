"""The faults that a MemoryJournal can be given, and what a crash leaves of its disk."""

from __future__ import annotations

import asyncio
import random

import pytest

from lowwater_authority.journal import (
    Entry,
    JournalClosed,
    JournalFailed,
    JournalFenced,
    JournalUnknown,
    LoadedLog,
    MemoryDisk,
    MemoryJournal,
)
from lowwater_authority.journal.faults import FaultPlan, Operation, Outcome


def one(position: int, log: str = "a") -> list[Entry]:
    return [Entry(log, position, b"%d" % position, strong=False)]


async def opened(disk: MemoryDisk, faults: FaultPlan | None = None) -> MemoryJournal:
    journal = MemoryJournal(disk, faults=faults)
    await journal.open()
    return journal


async def positions(disk: MemoryDisk, log: str = "a") -> list[int]:
    """What the next process finds."""
    return [position for position, _ in (await (await opened(disk)).load(log)).records]


@pytest.mark.asyncio
async def test_a_failed_append_surely_wrote_nothing() -> None:
    disk, faults = MemoryDisk(), FaultPlan().then(Outcome.FAILED)
    journal = await opened(disk, faults)
    with pytest.raises(JournalFailed):
        await journal.append(one(1))
    assert await journal.load("a") == LoadedLog(0, None, [])
    await journal.append(one(1))
    assert journal.statistics().failed == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.WRITTEN])
async def test_an_unknown_append_is_repeated_as_it_was(outcome: Outcome) -> None:
    disk, faults = MemoryDisk(), FaultPlan().then(outcome, outcome)
    journal = await opened(disk, faults)
    call = one(1) + one(1, "b")
    for _ in range(2):
        with pytest.raises(JournalUnknown):
            await journal.append(call)
    await journal.append(call)
    assert [await positions(disk, log) for log in "ab"] == [[1], [1]]
    assert journal.statistics().unknown == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(("outcome", "found"), [(Outcome.LOST, []), (Outcome.WRITTEN, [1])])
async def test_after_a_crash_an_unknown_append_is_whole_or_absent(outcome: Outcome, found: list[int]) -> None:
    disk = MemoryDisk()
    journal = await opened(disk, FaultPlan().then(outcome))
    with pytest.raises(JournalUnknown):
        await journal.append(one(1))
    disk.crash()
    assert await positions(disk) == found


@pytest.mark.asyncio
@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.WRITTEN])
async def test_an_unknown_snapshot_is_repeated(outcome: Outcome) -> None:
    disk, faults = MemoryDisk(), FaultPlan()
    journal = await opened(disk, faults)
    await journal.append(one(1))
    faults.then(outcome)
    with pytest.raises(JournalUnknown):
        await journal.snapshot("a", 1, b"one")
    await journal.snapshot("a", 1, b"one")
    assert await journal.load("a") == LoadedLog(1, b"one", [])


class Gate(FaultPlan):
    """Every write waits at two gates: one before the disk, one before the acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self.gates = {"before": asyncio.Event(), "after": asyncio.Event()}

    async def before(self, operation: Operation) -> Outcome:
        await self.arrived.put("before")
        await self.gates["before"].wait()
        return await super().before(operation)

    async def after(self, operation: Operation) -> None:
        await self.arrived.put("after")
        await self.gates["after"].wait()


@pytest.mark.asyncio
@pytest.mark.parametrize(("gate", "found"), [("before", []), ("after", [1])])
async def test_cancelled_or_crashed_while_slow(gate: str, found: list[int]) -> None:
    for ending in ("cancel", "crash"):
        disk, faults = MemoryDisk(), Gate()
        journal = await opened(disk, faults)
        writing = asyncio.create_task(journal.append(one(1)))
        assert await faults.arrived.get() == "before"
        if gate == "after":
            faults.gates["before"].set()
            assert await faults.arrived.get() == "after"
        if ending == "cancel":
            writing.cancel()
        else:
            disk.crash()
        for event in faults.gates.values():
            event.set()
        (error,) = await asyncio.gather(writing, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError | JournalClosed | JournalUnknown)
        assert await positions(disk) == found


@pytest.mark.asyncio
async def test_an_owner_replaced_while_its_write_is_slow_writes_nothing() -> None:
    disk, faults = MemoryDisk(), Gate()
    old = await opened(disk, faults)
    writing = asyncio.create_task(old.append(one(1)))
    await faults.arrived.get()
    new = await opened(disk)
    faults.gates["before"].set()
    with pytest.raises(JournalFenced):
        await writing
    assert await new.load("a") == LoadedLog(0, None, [])


class CachedAdvances(FaultPlan):
    """A weaker store: what is not strong stays in the cache."""

    async def before(self, operation: Operation) -> Outcome:
        outcome = await super().before(operation)
        return outcome if operation.strong or outcome is not Outcome.DONE else Outcome.UNSYNCED


class CachedEverything(FaultPlan):
    """Breaks rule 2: acknowledges before the disk has it."""

    async def before(self, operation: Operation) -> Outcome:
        del operation
        return Outcome.UNSYNCED


@pytest.mark.asyncio
async def test_a_crash_drops_the_unsynced_tail() -> None:
    for keep in range(4):
        disk = MemoryDisk()
        journal = await opened(disk, CachedAdvances())
        await journal.append([Entry("a", 1, b"", strong=True)])
        await journal.append(one(2))
        await journal.append(one(3) + one(1, "b"))
        await journal.append(one(2, "b"))
        assert disk.unsynced == 3
        disk.crash(keep)
        with pytest.raises(JournalClosed):
            await journal.append([])
        assert await positions(disk) == [1, 2, 3][: min(3, 1 + keep)]
        assert await positions(disk, "b") == [[], [], [1], [1, 2]][keep]


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["acknowledged", "crashed"])
async def test_a_cached_write_is_durable_before_it_is_acknowledged_and_not_sooner(ending: str) -> None:
    disk, faults = MemoryDisk(), Gate()
    journal = await opened(disk, faults)
    faults.then(Outcome.CACHED)
    faults.gates["before"].set()
    writing = asyncio.create_task(journal.append(one(1)))
    assert [await faults.arrived.get() for _ in range(2)] == ["before", "after"]
    assert disk.unsynced == 1
    if ending == "crashed":
        disk.crash()
        faults.gates["after"].set()
        with pytest.raises(JournalUnknown):
            await writing
        assert await positions(disk) == []
    else:
        faults.gates["after"].set()
        await writing
        disk.crash()
        assert await positions(disk) == [1]


@pytest.mark.asyncio
async def test_a_strong_entry_brings_everything_before_it_to_the_disk() -> None:
    disk = MemoryDisk()
    journal = await opened(disk, CachedAdvances())
    await journal.append(one(1))
    await journal.append([Entry("b", 1, b"", strong=True)])
    await journal.append(one(2))
    disk.crash()
    assert await positions(disk) == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(FaultPlan(), id="synced"),
        pytest.param(
            CachedEverything(),
            id="acknowledged-before-sync",
            marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason="rule 2 is broken on purpose"),
        ),
    ],
)
async def test_rule_2_what_was_acknowledged_survives_a_crash(faults: FaultPlan) -> None:
    disk = MemoryDisk()
    journal = await opened(disk, faults)
    await journal.append([Entry("a", 1, b"claim", strong=True)])
    await journal.append(one(2))
    await journal.snapshot("a", 1, b"one")
    disk.crash()
    assert await positions(disk) == [2]


@pytest.mark.asyncio
async def test_the_same_random_numbers_give_the_same_journal() -> None:
    seen = []
    for _ in range(2):
        source = random.Random(7)
        journal = MemoryJournal(MemoryDisk(), randbits=source.getrandbits, clock=iter([1.0, 3.5]).__next__)
        await journal.open()
        await journal.append(one(1))
        seen.append((journal.server_token, journal.nonce, journal.statistics()))
    assert seen[0] == seen[1]
    assert seen[0][2].last_append_seconds == 2.5
