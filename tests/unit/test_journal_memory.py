"""The faults that a MemoryJournal can be given, and what a crash leaves of its disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from lowwater_authority.journal import (
    GRAPH,
    End,
    Entry,
    JournalClosed,
    JournalFailed,
    JournalFenced,
    JournalUnknown,
    LoadedLog,
    Ownership,
)
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import LAG, MemoryDisk, MemoryJournal, StoredLog


def one(position: int, log: str = "a") -> list[Entry]:
    return [Entry(log, position, b"%d" % position, strong=False)]


async def opened(disk: MemoryDisk, faults: FaultPlan | None = None) -> MemoryJournal:
    """The owner of "a" and "b"; the faults begin behind that."""
    journal = MemoryJournal(disk)
    await journal.open()
    for log in "ab":
        await journal.take(log)
    journal._faults = faults or FaultPlan()
    return journal


async def positions(disk: MemoryDisk, log: str = "a") -> list[int]:
    """What the next process finds."""
    journal = MemoryJournal(disk)
    await journal.open()
    return [position for position, _ in (await journal.load(log, durable=False)).records]


def state(disk: MemoryDisk) -> tuple[dict[str, StoredLog], dict[str, Ownership]]:
    """All that a disk holds."""
    copy = disk.backup()
    return copy.logs, copy.owners


WRITES: dict[str, Callable[[MemoryJournal], Awaitable[object]]] = {
    "append": lambda journal: journal.append(one(2) + one(1, "b")),
    "snapshot": lambda journal: journal.snapshot("a", 1, b"one"),
    "take": lambda journal: journal.take("a"),
    "restore": lambda journal: journal.restore("a", 5, b"five", view=1),
    "restore of the graph": lambda journal: journal.restore(GRAPH, 5, b"five", view=1),
}


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LOST, Outcome.WRITTEN])
async def test_a_write_ends_as_it_was_planned_and_is_repeated_as_it_was(kind: str, outcome: Outcome) -> None:
    disk, faults = MemoryDisk(), FaultPlan()
    journal = await opened(disk, faults)
    await journal.append(one(1))
    before = state(disk)
    faults.then(outcome, outcome)
    for _ in range(2):
        with pytest.raises(JournalFailed if outcome is Outcome.FAILED else JournalUnknown):
            await WRITES[kind](journal)
        assert (state(disk) != before) is (outcome is Outcome.WRITTEN)
    await WRITES[kind](journal)
    after = state(disk)
    assert after != before
    disk.crash()
    assert state(disk) == after


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


async def test_a_strong_entry_brings_everything_before_it_to_the_disk() -> None:
    disk = MemoryDisk()
    journal = await opened(disk, CachedAdvances())
    await journal.append(one(1))
    await journal.append([Entry("b", 1, b"", strong=True)])
    await journal.append(one(2))
    disk.crash()
    assert await positions(disk) == [1]


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


# --- losing what was acknowledged ---------------------------------------------------------------------------------


async def write_something(journal: MemoryJournal, source: random.Random) -> None:
    """One write of any kind that changes the disk."""
    log = source.choice(["a", "b", GRAPH])
    last = (await journal.load(log)).last
    kind = source.choice(["append", "append", "append", "snapshot", "take", "restore"])
    if kind == "take" and log != GRAPH:
        await journal.take(log)
    elif kind == "restore":
        await journal.restore(log, last + 2, source.randbytes(3))
    elif kind == "snapshot" and (await journal.load(log)).records:
        await journal.snapshot(log, last, source.randbytes(3))
    else:
        other = (await journal.load("b")).last
        await journal.append(one(last + 1, log) + (one(other + 1, "b") if log != "b" else []))


async def test_any_number_of_writes_of_any_kind_is_undone() -> None:
    for seed in range(30):
        source = random.Random(seed)
        disk = MemoryDisk()
        journal = await opened(disk)
        states = [state(disk)]
        for _ in range(40):
            if source.random() < 0.1 and len(states) > 1:
                count = source.randrange(1, len(states))
                disk.lose(count)
                del states[-count:]
                assert state(disk) == states[-1]
                journal = await opened(disk)
                states = [state(disk)]
            await write_something(journal, source)
            states.append(state(disk))


async def test_what_is_lost_in_the_cache_is_not_lost_again_by_a_crash() -> None:
    disk = MemoryDisk()
    journal = await opened(disk, CachedEverything())
    for n in range(1, 5):
        await journal.append(one(n))
    disk.sync()
    for n in range(5, 8):
        await journal.append(one(n))
    disk.lose(1)
    assert (disk.unsynced, await positions(disk)) == (2, [1, 2, 3, 4, 5, 6])
    disk.crash(1)
    assert await positions(disk) == [1, 2, 3, 4, 5]
    disk.lose(2)
    assert (disk.unsynced, await positions(disk)) == (0, [1, 2, 3])


async def test_old_writes_are_not_remembered_but_unsynced_ones_are() -> None:
    disk = MemoryDisk()
    journal = await opened(disk, CachedEverything())
    for n in range(1, LAG + 11):
        await journal.append(one(n))
    assert disk.unsynced == LAG + 10
    disk.crash()
    assert await positions(disk) == []
    journal = await opened(disk)
    for n in range(1, LAG + 11):
        await journal.append(one(n))
    disk.lose(LAG + 10)
    assert await positions(disk) == list(range(1, 11))


async def test_a_backup_is_a_disk_of_its_own_and_may_be_put_back() -> None:
    disk = MemoryDisk()
    journal = await opened(disk)
    await journal.append(one(1))
    copy = disk.backup()
    await journal.append(one(2))
    await journal.snapshot("a", 1, b"one")
    for _ in range(2):
        assert await positions(copy) == [1]
        assert copy.server_token == disk.server_token
        disk.put_back(copy)
        disk.lose(9)
        assert await positions(disk) == [1]
        await (await opened(disk)).append(one(2))


class Unconfirmed(FaultPlan):
    """Confirms nothing that was read, after what a test has happen first."""

    def __init__(self, *happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens = list(happens)

    async def settle(self, log: str) -> None:
        if not self.happens:
            raise JournalFailed(f"nobody confirms {log!r}")
        self.happens.pop(0)()


async def test_rule_2_what_was_read_survives_a_crash() -> None:
    disk = MemoryDisk()
    writer = await opened(disk, CachedEverything())
    await writer.append(one(1))
    reader = MemoryJournal(disk, shared=True)
    await reader.open()
    assert (await reader.load("a", durable=False)).last == 1
    assert disk.unsynced == 1
    assert (await reader.load("a")).last == 1
    disk.crash()
    assert await positions(disk) == [1]


async def test_rule_2_what_nobody_confirms_is_neither_returned_nor_remembered() -> None:
    disk = MemoryDisk()
    writer = await opened(disk, CachedEverything())
    await writer.append([Entry(GRAPH, 1, b"one", strong=True)])
    reader = MemoryJournal(disk, shared=True, faults=Unconfirmed())
    await reader.open()
    with pytest.raises(JournalFailed, match="nobody confirms"):
        await reader.load(GRAPH)
    assert reader.acknowledged(GRAPH) == End()
    disk.lose(1)
    assert await reader.confirm(()) == 0


async def test_what_was_lost_before_it_was_confirmed_is_read_again() -> None:
    disk = MemoryDisk()
    writer = await opened(disk, CachedEverything())
    await writer.append([Entry(GRAPH, 1, b"one", strong=True)])
    reader = MemoryJournal(disk, shared=True, faults=Unconfirmed(lambda: disk.lose(1)))
    await reader.open()
    assert await reader.load(GRAPH) == LoadedLog(0, None, [])
