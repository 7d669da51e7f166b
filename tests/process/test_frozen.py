"""An authority that is stopped, not gone: its kernel still acknowledges, so only unanswered pings tell (rule 11).

All clients share one freeze: it takes as long as it takes to notice.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lowwater
import lowwater.aio
from tests.process.serving import Serving
from tests.process.test_client_end_to_end import eventually

NOTICED_SECONDS = 15.0
"""Within this the freeze must have been noticed; 11 s are meant: a ping after 6 s of silence, and 5 s to answer it."""


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll a condition that the other process brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.01)


class Clock:
    """Seconds since the freeze at which something was noticed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.noticed: dict[str, float] = {}

    def note(self, what: str) -> None:
        """It was noticed now."""
        self.noticed[what] = time.monotonic() - self.began

    def check(self) -> None:
        """Say when, and fail when it was too late."""
        print({what: f"{seconds:.1f} s" for what, seconds in self.noticed.items()})
        assert max(self.noticed.values()) < NOTICED_SECONDS


class Threads:
    """A client with threads: a subscriber, a reader and a worker."""

    def __init__(self, address: str) -> None:
        self.lw = lowwater.connect(address)
        self.lw.register("threads")
        self.lease = self.lw.worker("threads").claim()
        self.reader = self.lw.inputs("threads")
        self.seen: list[int] = []

    @property
    def streams(self) -> tuple[int, int]:
        """Watch and report streams opened so far."""
        statistics = self.lw.statistics()
        return statistics.watcher.streams, statistics.reporter.streams

    def follow(self) -> None:
        """Until the client is closed."""
        self.seen.extend(view.low.micros for view in self.lw.watch("threads"))

    def go_on(self, to: int) -> None:
        """Advance, and hear of it."""
        self.lease.advance(None, oldest=None, frontier=to)
        self.lease.flush(30)
        eventually(lambda: self.reader.read().low.micros == to and self.reader.read().stale_for < 2)
        eventually(lambda: self.seen[-1:] == [to])

    def notice(self, clock: Clock, streams: tuple[int, int]) -> None:
        """Return when the reader and both streams have noticed."""
        eventually(lambda: self.reader.read().stale_for > 2)
        clock.note("stale_for > 2")
        eventually(lambda: self.streams[0] > streams[0])
        clock.note("watch")
        eventually(lambda: self.streams[1] > streams[1])
        clock.note("report")

    def call(self, clock: Clock) -> None:
        """Ask, in vain."""
        try:
            self.lw.get("threads")
        except (lowwater.Timeout, lowwater.Unavailable):
            clock.note("call")


class Tasks:
    """The same on asyncio."""

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
        await until(lambda: self.seen[-1:] == [to])
        assert (await self.reader.read()).low.micros == to

    async def notice(self, clock: Clock, streams: tuple[int, int]) -> None:
        """Return when the reader and both streams have noticed."""
        while (await self.reader.read()).stale_for <= 2:  # noqa: ASYNC110 - silence has no event
            await asyncio.sleep(0.01)
        clock.note("aio stale_for > 2")
        await until(lambda: self.streams[0] > streams[0])
        clock.note("aio watch")
        await until(lambda: self.streams[1] > streams[1])
        clock.note("aio report")

    async def call(self, clock: Clock) -> None:
        """Ask, in vain."""
        try:
            await self.lw.get("tasks")
        except (lowwater.Timeout, lowwater.Unavailable):
            clock.note("aio call")


@pytest.mark.slow
async def test_rule11_a_frozen_authority_is_noticed_and_survived(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        threads, tasks = Threads(server.address), Tasks(server.address)
        await tasks.begin()
        following = [asyncio.create_task(asyncio.to_thread(threads.follow)), asyncio.create_task(tasks.follow())]

        async def all_go_on(to: int) -> None:
            await asyncio.gather(asyncio.to_thread(threads.go_on, to), tasks.go_on(to))

        await all_go_on(1)
        streams = threads.streams, tasks.streams
        assert streams == ((1, 1), (1, 1))

        # A short pause is nothing: no stream ends for it.
        server.signal(signal.SIGSTOP)
        await until(lambda: threads.reader.read().stale_for > 3)
        server.signal(signal.SIGCONT)
        await all_go_on(2)
        assert (threads.streams, tasks.streams) == streams

        server.signal(signal.SIGSTOP)
        clock = Clock()
        # Staged without the authority; goes out once it answers.
        threads.lease.advance(None, oldest=None, frontier=3)
        tasks.lease.advance(None, oldest=None, frontier=3)
        await asyncio.gather(
            asyncio.to_thread(threads.notice, clock, streams[0]),
            asyncio.to_thread(threads.call, clock),
            tasks.notice(clock, streams[1]),
            tasks.call(clock),
        )
        assert len(clock.noticed) == 8
        clock.check()
        assert (threads.seen[-1], tasks.seen[-1]) == (2, 2)
        server.signal(signal.SIGCONT)
        back = Clock()
        await all_go_on(4)
        back.note("back after SIGCONT")

        # Frozen, and then replaced by a new process on the same port.
        server.signal(signal.SIGSTOP)
        server.kill()
        server.start()
        back.began = time.monotonic()
        await all_go_on(5)
        back.note("back after a restart")
        back.check()

        threads.lw.close()
        await tasks.lw.close()
        await asyncio.gather(*following)
        for seen in (threads.seen, tasks.seen):
            assert seen == sorted(seen)
            assert seen[-1] == 5
