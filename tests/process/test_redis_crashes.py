"""The Redis journal when its server is killed or stopped, and when several processes write at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from lowwater_authority.journal import (
    GRAPH,
    Journal,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.journal.redis import PART_BYTES
from tests.contract.journal_stores import RedisStore, entry, turn

LOGS = (GRAPH, "a")


def payloads(log: str, first: int, last: int) -> list[tuple[int, bytes]]:
    """The records that ``entry`` makes."""
    return [(position, f"{log}:{position}".encode()) for position in range(first, last + 1)]


async def opened(store: RedisStore, seconds: float, *logs: str) -> Journal:
    """A journal that does not wait long; to be closed."""
    journal = store.make(seconds)
    await journal.open()
    for log in logs:
        await journal.take(log)
    return journal


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
    journal = await opened(store, 0.3, "a", "b")
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
    journal = await opened(store, 0.3, "a", "b")
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


async def test_a_stopped_server_is_given_up_in_time(store: RedisStore) -> None:
    """Whoever asks waits for one answer, or for one connection; nothing is taken, nothing is confirmed."""
    journal = await opened(store, 1.0, "a")
    for call in (journal.take("a"), journal.confirm(["a"])):
        store.server.pause()
        for asked in (call, journal.confirm(["a"])):
            begun = time.monotonic()
            with pytest.raises(JournalFailed, match="nothing was read"):
                await asked
            assert time.monotonic() - begun < 1.9
        store.server.resume()
        assert await journal.confirm(["a"]) == 0
    assert (await journal.take("a")).epoch == 2
    await journal.close()


async def test_a_call_that_is_written_counts_though_others_wrote_the_graph_behind_it(store: RedisStore) -> None:
    journal = await opened(store, 0.3, "a", "b")
    # So that the server has the script, and an attempt needs no second message.
    await journal.append([entry("b", 1)])
    alone, together = [entry(GRAPH, 1)], [entry("a", 1), entry(GRAPH, 3)]
    other = await store.connect()
    for call in (alone, together):
        store.server.pause()
        with pytest.raises(JournalUnknown):
            await journal.append(call)
        store.server.resume()
        while not store.records(call[0].log):
            await turn()
        if call is alone:
            await other.append([entry(GRAPH, 2, b"of another process")])
            await journal.append(call)
    await other.append([entry(GRAPH, 4)])
    await journal.append(together)
    # Even when a snapshot has cut it off: the other log tells.
    await other.snapshot(GRAPH, 4, b"four")
    await journal.append(together)
    with pytest.raises(JournalPosition, match="another record is there"):
        await journal.append(alone)
    for call in ([entry("a", 2), entry(GRAPH, 3)], [entry("a", 1), entry("b", 2), entry(GRAPH, 3)]):
        with pytest.raises(JournalPosition):
            await journal.append(call)
    assert (await journal.load("b")).last == 1
    assert (await journal.load("a")).last == 1
    await journal.close()


async def test_a_take_over_during_a_snapshot(store: RedisStore) -> None:
    """C7d of the attacks, with the old owner stopped between two parts of its snapshot."""
    old, new = await store.connect(), await store.connect()
    for turns in range(0, 40, 4):
        log = f"log {turns}"
        await old.take(log)
        await old.append([entry(log, n) for n in range(1, 101)])
        writing = asyncio.create_task(old.snapshot(log, 100, b"o" * (8 * PART_BYTES)))
        for _ in range(turns):
            await turn()
        await new.take(log)
        await new.append([entry(log, n) for n in range(101, 151)])
        (outcome,) = await asyncio.gather(writing, return_exceptions=True)
        assert outcome is None or isinstance(outcome, JournalFenced)
        await new.snapshot(log, 140, b"new")
        with pytest.raises(JournalError):
            await old.snapshot(log, 150, b"older")
        found = await new.load(log)
        assert (found.snapshot, found.records) == (b"new", payloads(log, 141, 150))
        assert len(store.parts(log)) == 1


async def test_two_processes_write_snapshots_of_the_graph_at_once(store: RedisStore) -> None:
    """Whichever reaches further stays; neither takes away what the other has committed, or is about to."""
    one, two = await store.connect(), await store.connect()
    await one.append([entry(GRAPH, n) for n in range(1, 6)])
    await two.load(GRAPH)
    await asyncio.gather(one.snapshot(GRAPH, 5, b"same" * PART_BYTES), two.snapshot(GRAPH, 5, b"same" * PART_BYTES))
    for position in range(6, 20, 2):
        ahead, behind = (one, two) if position % 4 else (two, one)
        await behind.append([entry(GRAPH, position)])
        await ahead.load(GRAPH)
        await ahead.append([entry(GRAPH, position + 1)])
        await asyncio.gather(
            behind.snapshot(GRAPH, position, b"o" * (4 * PART_BYTES)),
            ahead.snapshot(GRAPH, position + 1, b"n" * (3 * PART_BYTES)),
        )
        found = await behind.load(GRAPH)
        assert (found.snapshot_position, found.snapshot) == (position + 1, b"n" * (3 * PART_BYTES))
        assert found.records == []
        assert len(store.parts(GRAPH)) == 3


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
    await new.load("a")

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
