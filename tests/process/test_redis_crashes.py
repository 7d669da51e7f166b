"""The Redis journal when its server is killed or stopped, or comes back with less than it acknowledged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

import pytest

from lowwater_authority.journal import (
    GRAPH,
    Journal,
    JournalFailed,
    JournalLost,
    JournalPosition,
    JournalUnknown,
    LoadedLog,
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


# -- a server that comes back with less than it acknowledged ----------------------------------------------------------------


def journal_file(store: RedisStore) -> Path:
    """The end of the append-only file, which all writes since the start went to."""
    (path,) = (store.server.directory / "appendonlydir").glob("*.incr.aof")
    return path


def cut(store: RedisStore, size: int) -> None:
    """Kill the server, shorten its file as a power cut might have, and start it again."""
    store.server.kill()
    os.truncate(journal_file(store), size)
    store.server.start()


async def lost(call: Awaitable[object]) -> dict[str, tuple[int, int]]:
    """What the store has lost, as a call that must find it says."""
    with pytest.raises(JournalLost) as refused:
        await call
    return refused.value.logs


async def test_a_lost_tail_is_found_at_once_and_healed(store: RedisStore) -> None:
    """C7a of the attacks: what was acknowledged is gone, the epoch is the same; the writer must not go on unaware."""
    journal = await store.open()
    await journal.append([entry(log, n) for log in (GRAPH, "a", "b") for n in range(1, 6)])
    size = journal_file(store).stat().st_size
    await journal.append([entry(log, 6) for log in (GRAPH, "a")])
    await journal.append([entry("a", 7)])
    # In the middle of the record of the second append: the torn piece is cut as a whole, in both logs.
    cut(store, size + 40)
    assert await lost(journal.confirm(["a", "b", "c"])) == {GRAPH: (6, 5), "a": (7, 5)}
    for call in (journal.append([entry("a", 8), entry("b", 6)]), journal.snapshot("a", 7, b""), journal.load("a")):
        assert await lost(call) == {"a": (7, 5)}
    assert await lost(journal.confirm(["b"])) == {GRAPH: (6, 5)}
    await journal.append([entry("b", 6)])

    # Longer than what is left is not enough.
    with pytest.raises(JournalPosition, match=r"ends at 7 \(a restore must be behind it\)"):
        await journal.restore("a", 7, b"six, and one more")
    healed = await journal.restore("a", 8, b"seven, and one more", view=3, address="one:1")
    assert healed == (2, healed.nonce, "one:1", 3)
    await journal.restore(GRAPH, 7, b"six")
    for last, outcome in ((7, {"a": (8, 7)}), (8, None)):
        store.server.execute("HSET", f"{store.TAG}:meta:a", "last", last)
        if outcome:
            assert await lost(journal.confirm("abc")) == outcome
    assert await journal.confirm("abc") == 7
    await journal.append([entry("a", 9), entry(GRAPH, 8)])
    successor = await store.connect()
    assert await successor.load("a") == LoadedLog(8, b"seven, and one more", payloads("a", 9, 9))
    assert await successor.load(GRAPH) == LoadedLog(7, b"six", payloads(GRAPH, 8, 8))
    assert (await successor.load("b")).records == payloads("b", 1, 6)
    assert (await successor.owners(["a"]))["a"] == healed


async def test_nothing_is_healed_while_the_server_is_full(store: RedisStore) -> None:
    """Reads go on: what is there can be confirmed; what is not there is said to be lost, not to be missing memory."""
    journal = await store.open("a", "b")
    await journal.append([entry(log, n) for log in "ab" for n in (1, 2)])
    store.forget("a", 1)
    store.server.execute("CONFIG", "SET", "maxmemory", "1mb")
    assert await journal.confirm(["b"]) == 0
    assert (await journal.owners(["a"]))["a"].epoch == 1
    assert (await journal.load("b")).last == 2
    assert await lost(journal.confirm(["a"])) == {"a": (2, 1)}
    with pytest.raises(JournalFailed, match="raise maxmemory"):
        await journal.restore("a", 3, b"two")
    store.server.execute("CONFIG", "SET", "maxmemory", "0")
    await journal.restore("a", 3, b"two")
    assert await journal.confirm(["a", "b"]) == 0
