"""The Redis journal on a network that delivers what was sent long after its sender gave up, and sent it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest

from lowwater_authority.journal import GRAPH, Journal, JournalFenced, JournalUnknown, LoadedLog
from lowwater_authority.journal.redis import RedisJournal
from lowwater_authority.journal.redis_scripts import APPEND, FINISH, RESTORE, TAKE, Script
from tests.contract.journal_stores import RedisSubject, entry, repeated

T = TypeVar("T")


class Network:
    def __init__(self, port: int) -> None:
        self._port = port
        self.carrying: list[asyncio.Task[None]] = []
        self._pattern = b""
        self._flowing = asyncio.Event()
        self._arrived = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.carrying.append(task)
        answers, server = await asyncio.open_connection("127.0.0.1", self._port)
        answering = asyncio.create_task(self._answer(answers, writer))
        holds = False
        while data := await reader.read(1 << 16):
            if self._pattern and self._pattern in data:
                self._pattern, holds = b"", True
                await self._flowing.wait()
            server.write(data)
        server.write_eof()
        await answering
        for stream in (server, writer):
            stream.close()
            # The journal does not wait for the end of a connection that it gave up.
            with suppress(ConnectionError):
                await stream.wait_closed()
        if holds:
            self._arrived.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not writer.is_closing():
                writer.write(data)

    def hold(self, script: Script) -> None:
        self._pattern = script.digest.encode()
        self._flowing, self._arrived = asyncio.Event(), asyncio.Event()

    async def deliver(self) -> None:
        self.flow()
        await self._arrived.wait()

    def flow(self) -> None:
        self._flowing.set()


@pytest.fixture
def network(store: RedisSubject) -> Network:
    return Network(store.server.port)


@pytest.fixture
async def journal(network: Network) -> AsyncIterator[Journal]:
    """A journal behind the network, which owns log "a"; the server has every script."""
    async with await asyncio.start_server(network.carry, "127.0.0.1", 0) as gate:
        journal_ = RedisJournal(f"redis://127.0.0.1:{gate.sockets[0].getsockname()[1]}", timeout=0.5)
        await repeated(journal_.open)
        await repeated(lambda: journal_.restore("b", 1, b""))
        await repeated(lambda: journal_.take("a"))
        await repeated(lambda: journal_.append([entry("a", 1), entry(GRAPH, 1)]))
        await repeated(lambda: journal_.snapshot("a", 1, b"one"))
        yield journal_
        await journal_.close()
        network.flow()
        await asyncio.gather(*network.carrying)


async def again(network: Network, script: Script, call: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of a call whose first attempt is still under way."""
    network.hold(script)
    with pytest.raises(JournalUnknown, match="no answer within"):
        await call()
    return await repeated(call)


async def test_a_take_that_arrives_behind_its_repeat_fences_nobody(journal: Journal, network: Network) -> None:
    owner = await again(network, TAKE, lambda: journal.take("a"))
    await network.deliver()
    assert await journal.owners(["a"]) == {"a": owner}
    await journal.append([entry("a", 2)])


async def test_a_take_that_nobody_heard_of_fences_its_own_process(journal: Journal, network: Network) -> None:
    """An epoch is known only when it is acknowledged; the next one counts."""
    before = await journal.take("a")
    network.hold(TAKE)
    with pytest.raises(JournalUnknown, match="it may be written, repeat the call"):
        await journal.take("a")
    await network.deliver()
    with pytest.raises(JournalFenced) as refused:
        await journal.append([entry("a", 2)])
    assert refused.value.owners == {"a": (before.epoch, before.epoch + 1)}
    assert (await journal.take("a")).epoch == before.epoch + 2
    await journal.append([entry("a", 2)])


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_a_restore_that_arrives_behind_its_repeat_is_void(journal: Journal, network: Network, log: str) -> None:
    for last, later in ((5, False), (9, True)):
        healed = await again(network, RESTORE, partial(journal.restore, log, last, b"memory"))
        if later:
            await journal.append([entry(log, last + 1)])
        await network.deliver()
        assert await journal.owners([log]) == {log: healed}
        await journal.append([entry(log, last + 1)])
        assert await journal.load(log) == LoadedLog(last, b"memory", [(last + 1, f"{log}:{last + 1}".encode())])


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_writes_that_arrive_behind_repeats_change_nothing(journal: Journal, network: Network, log: str) -> None:
    await again(network, APPEND, lambda: journal.append([entry(log, 2)]))
    await journal.append([entry(log, 3)])
    await network.deliver()
    await again(network, FINISH, lambda: journal.snapshot(log, 3, b"three"))
    await journal.append([entry(log, 4)])
    await journal.snapshot(log, 4, b"four")
    await network.deliver()
    await journal.append([entry(log, 5)])
    assert await journal.load(log) == LoadedLog(4, b"four", [(5, f"{log}:5".encode())])
