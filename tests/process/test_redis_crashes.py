"""The Redis journal when its server is killed or stopped, or comes back with less than it acknowledged."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from lowwater_authority.journal import GRAPH, Journal, JournalFailed, JournalLost, JournalUnknown
from lowwater_authority.journal.frames import PART_BYTES
from tests.contract.journal_stores import RedisSubject, entry, repeated, turn

LOGS = (GRAPH, "a")


def payloads(log: str, first: int, last: int) -> list[tuple[int, bytes]]:
    return [(position, f"{log}:{position}".encode()) for position in range(first, last + 1)]


async def opened(store: RedisSubject, seconds: float, *logs: str) -> Journal:
    journal = store.make(seconds)
    await repeated(journal.open)
    for log in logs:
        await repeated(partial(journal.take, log))
    return journal


async def test_a_stopped_server_leaves_an_append_unknown_and_then_written_once(store: RedisSubject) -> None:
    journal = await opened(store, 0.3, "a", "b")
    await repeated(lambda: journal.append([entry("a", 1)]))
    before = journal.statistics().unknown
    store.server.pause()
    for _ in range(2):
        # The second finds no connection at all, but the first may still be written.
        with pytest.raises(JournalUnknown):
            await journal.append([entry("a", 2), entry("b", 1)])
    assert journal.statistics().unknown == before + 2
    store.server.resume()
    await repeated(lambda: journal.append([entry("a", 2), entry("b", 1)]))
    await repeated(lambda: journal.append([entry("a", 3)]))
    assert (await repeated(lambda: journal.load("a"))).records == payloads("a", 1, 3)
    assert (await repeated(lambda: journal.load("b"))).records == payloads("b", 1, 1)
    await journal.close()


async def test_without_a_server_surely_nothing_is_written(store: RedisSubject) -> None:
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


async def test_a_full_server_does_not_make_an_unknown_append_a_failed_one(store: RedisSubject) -> None:
    """The append is written and its answer was lost; "surely not written" would be a lie about the call as a whole."""
    journal = await opened(store, 2.0, "a", "b")  # long enough for the answers below
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


async def test_reads_go_on_while_the_server_is_full_and_nothing_is_healed(store: RedisSubject) -> None:
    """A record that is not there is reported as lost, not as a lack of memory."""
    journal = await store.open("a", "b")
    await journal.append([entry(log, n) for log in "ab" for n in (1, 2)])
    store.forget("a", 1)
    store.server.execute("CONFIG", "SET", "maxmemory", "1mb")
    assert await journal.confirm(["b"]) == 0
    assert (await journal.owners(["a"]))["a"].epoch == 1
    assert (await journal.load("b")).last == 2
    with pytest.raises(JournalLost):
        await journal.confirm(["a"])
    with pytest.raises(JournalFailed, match="raise maxmemory"):
        await journal.restore("a", 3, b"two")


def tokens(store: RedisSubject) -> set[bytes]:
    """Which snapshots of a log have parts in the store."""
    return {field.partition(b"/")[0] for field in store.parts("a")}


async def test_nothing_is_left_of_old_and_unfinished_snapshots(store: RedisSubject) -> None:
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
