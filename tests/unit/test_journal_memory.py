"""The faults that a MemoryJournal can be given, and what a crash leaves of its disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lowwater_authority.journal import (
    GRAPH,
    End,
    Entry,
    JournalFailed,
    Ownership,
)
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal, StoredLog


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


class CachedEverything(FaultPlan):
    """Breaks rule 2: acknowledges before the disk has it."""

    async def before(self, operation: Operation) -> Outcome:
        del operation
        return Outcome.UNSYNCED


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
