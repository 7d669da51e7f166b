"""Connections to other processes, over real sockets: what is evidence that one has died, and what is none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from lowwater_authority.cluster.lifelines import Lifelines
from lowwater_authority.cluster.membership import Member
from tests.kit.eventually import eventually_async as eventually

PAUSE = 0.02
ME = Member("me", "127.0.0.1:1")


class Process:
    """What a process of another shard is to a connection: it accepts, and dies."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._open: list[asyncio.StreamWriter] = []
        self.accepted = 0

    async def start(self) -> Process:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"a greeting that nobody reads")
        self.accepted += 1
        self._open.append(writer)

    @property
    def member(self) -> Member:
        return Member(f"on {self._port}", f"127.0.0.1:{self._port}")

    def hang_up(self) -> None:
        """Close connections, as a server does on which nobody begins."""
        while self._open:
            self._open.pop().transport.abort()

    def stop_accepting(self) -> None:
        self._server.close()

    def die(self) -> None:
        self.stop_accepting()
        self.hang_up()

    async def again(self) -> Process:
        return await Process(self._port).start()


def accepted(other: Process, count: int) -> bool:
    return other.accepted >= count


class Tries:
    """How often somebody was connected to, or tried to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self._open: Any = asyncio.open_connection
        monkeypatch.setattr(asyncio, "open_connection", self._count)

    async def _count(self, *place: Any) -> Any:
        try:
            return await self._open(*place)
        finally:
            self.done += 1

    async def more(self, count: int = 3) -> None:
        """Wait for so many more."""
        wanted = self.done + count
        await eventually(lambda: self.done >= wanted)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(monkeypatch)


@asynccontextmanager
async def lifelines() -> AsyncIterator[Lifelines]:
    lines = Lifelines(ME, PAUSE)
    yield lines
    await lines.close()


async def test_who_closes_and_refuses_is_gone_and_that_is_told_once() -> None:
    other = await Process().start()
    async with lifelines() as lines:
        told = asyncio.Queue[Member]()
        lines.on_gone = told.put_nowait
        lines.follow([ME, other.member])
        await eventually(lambda: other.accepted)
        assert not lines.gone
        other.die()
        assert await told.get() == other.member
        assert lines.gone == {other.member.id}
        again = await other.again()
        await eventually(lambda: not lines.gone)
        assert told.empty()
        again.die()
        assert await told.get() == other.member


async def test_one_that_never_accepted_is_not_gone(tries: Tries) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen: it refuses
        async with lifelines() as lines:
            lines.follow([Member("new", f"127.0.0.1:{unused.getsockname()[1]}")])
            await tries.more()
            assert not lines.gone


async def test_one_that_only_hangs_up_is_not_gone() -> None:
    other = await Process().start()
    async with lifelines() as lines:
        lines.follow([other.member])
        for count in range(1, 5):
            await eventually(partial(accepted, other, count))
            other.hang_up()
            assert not lines.gone
    other.die()


async def test_a_process_at_the_same_address_is_another_member(tries: Tries) -> None:
    """What was said of the one before is not said of it, also where it has not accepted anybody yet."""
    other = await Process().start()
    async with lifelines() as lines:
        lines.follow([other.member])
        await eventually(lambda: other.accepted)
        other.die()
        await eventually(lambda: lines.gone)
        lines.follow([Member("the next one", other.member.address)])
        assert not lines.gone
        await tries.more()
        assert not lines.gone
