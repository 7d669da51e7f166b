"""The Redis journal when its server is killed, stopped, or comes back with less than it acknowledged."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lowwater_authority.journal import (
    Journal,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.journal.redis import PART_BYTES
from tests.contract.journal_stores import RedisStore, entry, turn

LOGS = ("", "a")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisStore]:
    made = RedisStore(tmp_path)
    yield made
    await made.close()


def payloads(log: str, first: int, last: int) -> list[tuple[int, bytes]]:
    """The records that ``entry`` makes."""
    return [(position, f"{log}:{position}".encode()) for position in range(first, last + 1)]


def journal_file(store: RedisStore) -> Path:
    """The end of the append-only file, which all writes since the start went to."""
    (path,) = (store.server.directory / "appendonlydir").glob("*.incr.aof")
    return path


def cut(store: RedisStore, size: int) -> None:
    """Kill the server, shorten its file as a power cut might have, and start it again."""
    store.server.kill()
    os.truncate(journal_file(store), size)
    store.server.start()


@pytest.mark.slow
async def test_everything_acknowledged_is_there_after_kill_9_under_load(store: RedisStore) -> None:
    """One writer outlives five deaths of the server; each append that a death met is repeated, and is there once."""
    journal = await store.open()
    position = 1
    for kill in range(1, 6):
        killing: asyncio.Task[None] | None = None
        met = 0
        while not met:
            try:
                await journal.append([entry(log, position, strong=position % 2 == 0) for log in LOGS])
            except (JournalUnknown, JournalFailed):
                met = position
                continue
            position += 1
            if killing is None and position > 100 * kill:
                killing = asyncio.create_task(asyncio.to_thread(store.server.kill))
        assert killing is not None
        await killing
        store.server.start()
        assert (await journal.load("a")).last in {met - 1, met}
        await journal.append([entry(log, met, strong=met % 2 == 0) for log in LOGS])
        position = met + 1
    successor = await store.open()
    for log in LOGS:
        assert (await successor.load(log)).records == payloads(log, 1, position - 1)


async def test_a_stopped_server_leaves_an_append_unknown_and_then_written_once(store: RedisStore) -> None:
    journal = store.make(timeout=0.3)
    await journal.open()
    await journal.append([entry("a", 1)])
    store.server.pause()
    for _ in range(2):
        # The second finds no connection at all, but the first may still be written.
        with pytest.raises(JournalUnknown):
            await journal.append([entry("a", 2), entry("b", 1)])
    store.server.resume()
    await journal.append([entry("a", 2), entry("b", 1)])
    await journal.append([entry("a", 3)])
    assert (await journal.load("a")).records == payloads("a", 1, 3)
    assert (await journal.load("b")).records == payloads("b", 1, 1)
    assert journal.statistics().unknown == 2
    await journal.close()


async def test_without_a_server_surely_nothing_is_written(store: RedisStore) -> None:
    journal = await store.open()
    store.server.kill()
    # The connection is found dead when it is used: that append might have reached the server.
    with pytest.raises(JournalUnknown, match="repeat the call"):
        await journal.append([entry("a", 1)])
    # The next append of another log surely goes nowhere.
    with pytest.raises(JournalFailed, match=r"redis://127\.0\.0\.1:\d+: .*see that it runs"):
        await journal.append([entry("b", 1)])
    with pytest.raises(JournalUnknown, match="an earlier attempt may be written"):
        await journal.append([entry("a", 1)])
    store.server.start()
    await journal.append([entry("a", 1)])
    assert await journal.logs() == ["a"]


async def test_a_full_server_does_not_make_an_unknown_append_a_failed_one(store: RedisStore) -> None:
    """It is written, its answer was lost; "surely not written" would be a lie about the call as a whole."""
    journal = store.make(timeout=0.3)
    await journal.open()
    store.server.pause()
    with pytest.raises(JournalUnknown):
        await journal.append([entry("a", 1)])
    store.server.resume()
    store.server.execute("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(JournalUnknown, match="raise maxmemory"):
        await journal.append([entry("a", 1)])
    with pytest.raises(JournalFailed, match="raise maxmemory"):
        await journal.append([entry("b", 1)])
    store.server.execute("CONFIG", "SET", "maxmemory", "0")
    await journal.append([entry("a", 1)])
    assert (await journal.load("a")).records == payloads("a", 1, 1)
    await journal.close()


async def test_a_full_server_does_not_make_a_cancelled_append_a_failed_one(store: RedisStore) -> None:
    journal = await store.open()
    await journal.append([entry("b", 1)])
    store.server.pause()
    appending = asyncio.create_task(journal.append([entry("a", 1)]))
    for _ in range(5):
        await turn()
    appending.cancel()
    await asyncio.gather(appending, return_exceptions=True)
    store.server.resume()
    assert await journal.logs() == ["a", "b"]
    store.server.execute("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(JournalUnknown, match=r"an earlier attempt may be written, and now: .* raise maxmemory"):
        await journal.append([entry("a", 1)])
    store.server.execute("CONFIG", "SET", "maxmemory", "0")
    await journal.append([entry("a", 1)])


async def test_a_lost_tail_is_a_wrong_position_for_its_writer(store: RedisStore) -> None:
    """C7a of the attacks: what was acknowledged is gone, the epoch is the same; the writer must not go on unaware."""
    journal = await store.open()
    await journal.append([entry(log, n) for log in LOGS for n in range(1, 6)])
    size = journal_file(store).stat().st_size
    await journal.append([entry(log, 6) for log in LOGS])
    await journal.append([entry("a", 7)])
    # In the middle of the record of the second append: the torn piece is cut as a whole, in both logs.
    cut(store, size + 40)
    with pytest.raises(JournalUnknown):
        await journal.append([])
    with pytest.raises(JournalPosition) as refused:
        await journal.append([entry("a", 8)])
    assert (refused.value.log, refused.value.position, refused.value.last) == ("a", 8, 5)
    for log in LOGS:
        assert (await journal.load(log)).records == payloads(log, 1, 5)


async def test_a_lost_epoch_that_is_given_again_is_told_apart_by_the_nonce(
    store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    """C7b of the attacks: two owners hold epoch 2."""
    await (await store.open()).append([entry("a", 1)])
    size = journal_file(store).stat().st_size
    second = await store.open()
    await second.append([entry("a", 2)])
    cut(store, size)
    with pytest.raises(JournalUnknown):
        await second.append([])
    with caplog.at_level(logging.ERROR), pytest.raises(JournalFenced):
        await second.append([entry("a", 3)])
    assert "has lost epoch 2, which it acknowledged: it answers with 1" in caplog.text
    third = await store.open()
    assert (third.epoch, second.epoch) == (2, 2)
    assert third.nonce != second.nonce
    await third.append([entry("a", 2)])
    with pytest.raises(JournalFenced):
        await second.append([entry("a", 3)])
    assert (await third.load("a")).records == payloads("a", 1, 2)


async def test_a_server_that_comes_back_empty_refuses_its_old_writer(store: RedisStore) -> None:
    journal = await store.open()
    await journal.append([entry("a", 1)])
    store.server.execute("FLUSHALL")
    with pytest.raises(JournalFenced):
        await journal.append([entry("a", 2)])
    assert (await store.open()).server_token != journal.server_token


async def test_two_owners_race_for_each_position(store: RedisStore) -> None:
    """Whoever opened last writes; the other writes nothing from then on, not even what it had under way."""
    owners: list[Journal] = []
    for position in range(1, 11):
        owners.append(await store.open())
        calls = [owner.append([entry("a", position, f"{owner.epoch}".encode())]) for owner in owners]
        *fenced, newest = await asyncio.gather(*calls, return_exceptions=True)
        assert newest is None
        assert all(isinstance(error, JournalFenced) for error in fenced)
    found = await owners[-1].load("a")
    assert [payload for _, payload in found.records] == [f"{epoch}".encode() for epoch in range(1, 11)]


async def test_two_processes_that_open_at_once_get_two_epochs(store: RedisStore) -> None:
    journals = [store.make() for _ in range(5)]
    await asyncio.gather(*(journal.open() for journal in journals))
    assert sorted(journal.epoch for journal in journals) == [1, 2, 3, 4, 5]
    assert len({journal.server_token for journal in journals}) == 1
    for journal in journals:
        await journal.close()


async def test_a_take_over_during_a_snapshot(store: RedisStore) -> None:
    """C7d of the attacks, with the old owner stopped between two parts of its snapshot."""
    for turns in range(0, 40, 4):
        old = await store.open()
        log = f"log {turns}"
        await old.append([entry(log, n) for n in range(1, 101)])
        writing = asyncio.create_task(old.snapshot(log, 100, b"o" * (8 * PART_BYTES)))
        for _ in range(turns):
            await turn()
        new = await store.open()
        await new.append([entry(log, n) for n in range(101, 151)])
        (outcome,) = await asyncio.gather(writing, return_exceptions=True)
        assert outcome is None or isinstance(outcome, JournalFenced)
        await new.snapshot(log, 140, b"new")
        with pytest.raises(JournalError):
            await old.snapshot(log, 150, b"older")
        found = await new.load(log)
        assert (found.snapshot, found.records) == (b"new", payloads(log, 141, 150))
        assert len(store.parts(log)) == 1


def tokens(store: RedisStore) -> set[bytes]:
    """Which snapshots of a log have parts in the store."""
    return {field.partition(b"/")[0] for field in store.parts("a")}


async def test_nothing_is_left_of_old_and_unfinished_snapshots(store: RedisStore) -> None:
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 11)])
    await journal.snapshot("a", 5, b"f" * (3 * PART_BYTES))
    assert len(store.parts("a")) == 3
    before = tokens(store)
    for _ in range(3):
        writing = asyncio.create_task(journal.snapshot("a", 9, b"n" * (500 * PART_BYTES)))
        while not (staged := tokens(store)) - before:
            await turn()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert len(staged) == 2
        before |= staged
    await journal.snapshot("a", 10, b"t")
    assert len(store.parts("a")) == 1
    assert store.records("a") == {}


async def test_a_reader_beside_snapshots_sees_whole_states(store: RedisStore) -> None:
    """The old owner may read; what it gets may be old, but never pieces of two states."""
    old = await store.open()
    await old.append([entry("a", n) for n in range(1, 301)])
    new = await store.open()

    async def replace() -> None:
        for position in range(10, 301, 10):
            await new.snapshot("a", position, f"{position}".encode() * PART_BYTES)

    writing = asyncio.create_task(replace())
    reads = 0
    while not writing.done():
        found = await old.load("a")
        position = found.snapshot_position
        assert found.snapshot == (f"{position}".encode() * PART_BYTES if position else None)
        assert found.records == payloads("a", position + 1, 300)
        reads += 1
    await writing
    assert reads
