"""An authority that is stopped, not gone: its kernel still acknowledges, so only unanswered pings tell (rule 11)."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

import lowwater
import lowwater.aio
from tests.kit.eventually import eventually_async
from tests.process.serving import Serving

NOTICED_SECONDS = 15.0
"""Within this the freeze must have been noticed; 11 s are meant: a ping after 6 s of silence, and 5 s to answer it."""


class Noticed:
    """Seconds since the freeze at which something was noticed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.at: dict[str, float] = {}

    def note(self, what: str) -> None:
        """It was noticed now."""
        self.at[what] = time.monotonic() - self.began

    def check(self) -> None:
        """Say when, and fail when it was too late."""
        print({what: f"{seconds:.1f} s" for what, seconds in self.at.items()})
        assert max(self.at.values()) < NOTICED_SECONDS


class Tasks:
    """A client: a subscriber, a reader and a worker. The client on threads is generated from it."""

    def __init__(self, address: str) -> None:
        self.lw = lowwater.aio.connect(address)
        self.seen: list[int] = []

    async def begin(self) -> None:
        """Claim and follow."""
        await self.lw.register("tasks")
        self.lease = await self.lw.worker("tasks").claim()
        self.reader = self.lw.inputs("tasks")
        await self.reader.read()

    @property
    def streams(self) -> tuple[int, int]:
        """Watch and report streams opened so far."""
        statistics = self.lw.statistics()
        return statistics.watcher.streams, statistics.reporter.streams

    async def follow(self) -> None:
        """Until the client is closed."""
        async for view in self.lw.watch("tasks"):
            self.seen.append(view.low.micros)

    async def go_on(self, to: int) -> None:
        """Advance, and hear of it."""
        self.lease.advance(None, oldest=None, frontier=to)
        await self.lease.flush(30)
        await eventually_async(lambda: self.seen[-1:] == [to])
        assert (await self.reader.read()).low.micros == to

    async def stale_for(self, seconds: float) -> bool:
        return (await self.reader.read()).stale_for > seconds

    async def notice(self, noticed: Noticed, streams: tuple[int, int]) -> None:
        """Return when the reader and both streams have noticed."""
        await eventually_async(lambda: self.stale_for(2))
        noticed.note("stale_for > 2")
        await eventually_async(lambda: self.streams[0] > streams[0])
        noticed.note("watch")
        await eventually_async(lambda: self.streams[1] > streams[1])
        noticed.note("report")

    async def call(self, noticed: Noticed) -> None:
        """Ask, in vain."""
        try:
            await self.lw.get("tasks")
        except (lowwater.Timeout, lowwater.Unavailable):
            noticed.note("call")


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
    noticed = Noticed()
    # Staged without the authority; goes out once it answers.
    tasks.lease.advance(None, oldest=None, frontier=3)
    await asyncio.gather(tasks.notice(noticed, streams), tasks.call(noticed))
    assert len(noticed.at) == 4
    noticed.check()
    assert tasks.seen[-1] == 2
    server.signal(signal.SIGCONT)
    await tasks.go_on(4)

    # Frozen, and then replaced by a new process on the same port.
    server.signal(signal.SIGSTOP)
    server.kill()
    server.start()
    back = Noticed()
    await tasks.go_on(5)
    back.note("back after a restart")
    back.check()
    await tasks.lw.close()
    await following
    assert tasks.seen == sorted(tasks.seen)
    assert tasks.seen[-1] == 5
