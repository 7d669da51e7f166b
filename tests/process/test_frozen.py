"""An authority that is stopped, not gone: its kernel still acknowledges, so only unanswered pings tell (rule 11)."""

from __future__ import annotations

import asyncio
import signal

import pytest

import lowwater
import lowwater.aio
from tests.kit.eventually import eventually_async
from tests.process.serving import Serving

NOTICED_SECONDS = 33.0
"""Three times what is meant: a ping after 6 s of silence, and 5 s to answer it. Without pings it takes minutes."""


class Tasks:
    """A client: a subscriber, a reader and a worker. The client on threads is generated from it."""

    def __init__(self, address: str) -> None:
        self.lw = lowwater.aio.connect(address)
        self.shown: list[int] = []

    async def begin(self) -> None:
        await self.lw.register("tasks")
        self.lease = await self.lw.worker("tasks").claim()
        self.reader = self.lw.inputs("tasks")
        await self.reader.read()

    @property
    def streams(self) -> tuple[int, int]:
        statistics = self.lw.statistics()
        return statistics.watcher.streams, statistics.reporter.streams

    async def follow(self) -> None:
        async for view in self.lw.watch("tasks"):
            self.shown.append(view.low.micros)

    async def go_on(self, to: int) -> None:
        self.lease.advance(None, oldest=None, frontier=to)
        await self.lease.flush(30)
        await eventually_async(lambda: self.shown[-1:] == [to])
        assert (await self.reader.read()).low.micros == to

    async def stale_for(self, seconds: float) -> bool:
        return (await self.reader.read()).stale_for > seconds

    async def notice(self, streams: tuple[int, int]) -> None:
        """Return when the reader and both streams have noticed."""
        await eventually_async(lambda: self.stale_for(2))
        await eventually_async(lambda: self.streams[0] > streams[0] and self.streams[1] > streams[1])

    async def call(self) -> None:
        with pytest.raises((lowwater.Timeout, lowwater.Unavailable)):
            await self.lw.get("tasks")


@pytest.mark.slow
async def test_rule11_a_frozen_authority_is_noticed_and_survived(server: Serving) -> None:
    tasks = Tasks(server.address)
    await tasks.begin()
    following = asyncio.create_task(tasks.follow())
    await tasks.go_on(1)
    streams = tasks.streams
    assert streams == (1, 1)

    # A short pause is nothing: no stream ends for it.
    server.signal(signal.SIGSTOP)
    await eventually_async(lambda: tasks.stale_for(3))
    server.signal(signal.SIGCONT)
    await tasks.go_on(2)
    assert tasks.streams == streams

    server.signal(signal.SIGSTOP)
    # Staged without the authority; goes out once it answers.
    tasks.lease.advance(None, oldest=None, frontier=3)
    async with asyncio.timeout(NOTICED_SECONDS):
        await asyncio.gather(tasks.notice(streams), tasks.call())
    assert tasks.shown[-1] == 2
    server.signal(signal.SIGCONT)
    await tasks.go_on(4)

    # Frozen, and then replaced by a new process on the same port.
    server.signal(signal.SIGSTOP)
    server.kill()
    server.start()
    async with asyncio.timeout(NOTICED_SECONDS):
        await tasks.go_on(5)
    await tasks.lw.close()
    await following
    assert tasks.shown == sorted(tasks.shown)
    assert tasks.shown[-1] == 5
