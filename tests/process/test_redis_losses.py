"""The Redis journal when its server comes back with less than it acknowledged, while the journal stays open."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path

import pytest

from lowwater_authority.journal import (
    GRAPH,
    JournalFailed,
    JournalLost,
    JournalPosition,
    JournalUnknown,
    LoadedLog,
)
from lowwater_authority.journal.redis import PART_BYTES
from tests.contract.journal_stores import RedisStore, entry


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


async def test_what_an_owner_reads_of_its_successor_it_does_not_miss(store: RedisStore) -> None:
    """The store goes back to before the successor: the log is as its former owner left it."""
    one = await store.open("a")
    await one.append([entry("a", n) for n in range(1, 3)])
    mine = (await one.owners(["a"]))["a"]
    two = await store.open("a")
    await two.append([entry("a", 3)])
    assert (await one.load("a")).last == 3
    store.forget("a", 2)
    store.give("a", mine)
    assert await one.confirm(["a"]) == 0
    await one.append([entry("a", 3)])


async def test_a_restore_of_unknown_outcome_is_repeated_as_it_was(store: RedisStore) -> None:
    journal = store.make(timeout=0.3)
    await journal.open()
    # So that the server has the scripts, and an attempt needs no second message.
    await journal.take("b")
    await journal.restore("b", 1, b"")
    await journal.take("a")
    await journal.append([entry("a", n) for n in range(1, 4)])
    store.forget("a", 1)
    for payload in (b"three", b"t" * (2 * PART_BYTES)):
        store.server.pause()
        with pytest.raises(JournalUnknown):
            await journal.restore("a", 4, payload)
        store.server.resume()
        healed = await journal.restore("a", 4, payload)
        assert await journal.confirm(["a"]) == 0
        assert (await journal.owners(["a"]))["a"] == healed
        assert await journal.load("a") == LoadedLog(4, payload, [])
        await journal.append([entry("a", 5)])
        store.clear()
        journal.release("a")
    await journal.close()


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
