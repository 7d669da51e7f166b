"""What every viewer of the page is told, as server-sent events: encoded once for all, conflated, newest first."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event
from lowwater_page import records

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from lowwater_page.board import Board
    from lowwater_page.follower import Follower

PERIOD: Final = 0.25
"""Seconds between two messages at least."""

BEAT: Final = 5.0
"""Seconds after which a message says that nothing has changed."""

SHARE: Final = 0.05
"""Most of a processor that encoding may take: when much changes, messages come less often than
every ``PERIOD``."""

TOGETHER: Final = 16
"""Computations encoded in one go; in between, whoever serves watermarks gets the interpreter."""

RETRY_MILLIS: Final = 2000
"""How long a browser waits before it connects again."""

log = logging.getLogger(__name__)


class Feed:
    """The newest state of a board as JSON, and a numbered message of what changed since the one before.

    A viewer that has seen the message before gets the newest one, any other the whole state, so that nobody needs a backlog: what is
    kept is one encoded record for each computation, however many watch. For the one event loop it is used in.
    """

    def __init__(
        self, board: Board, follower: Follower, *, version: str, clock: Callable[[], int], beat: float = BEAT
    ) -> None:
        self._board = board
        self._follower = follower
        self._version = version
        self._clock = clock
        self._beat = beat
        self._encoding = asyncio.Lock()
        self._encoded: dict[str, bytes] = {}
        self._untold: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        """What was dropped since the newest message."""
        self._message = b""
        self._number = 0
        self._whole = (-1, 0.0, b"")
        """The newest whole state: after which message, when, and what."""
        self._told = asyncio.Event()
        self._told_at = time.monotonic()
        self._closed = False
        self._came = asyncio.Event()
        self.viewers = 0
        """Who watches now."""

    async def run(self) -> None:
        """Tell the viewers of changes, until cancelled."""
        while True:
            if not self.viewers:
                self._came.clear()
                await self._came.wait()
            began = time.thread_time()
            try:
                self._follower.look()
                await self._tell()
            except Exception:
                log.exception("the page's viewers cannot be told of changes; trying again", extra=event("page_failed"))
            await asyncio.sleep(max(PERIOD, (time.thread_time() - began) / SHARE))

    def join(self) -> None:
        """Another one watches."""
        self.viewers += 1
        self._came.set()

    def leave(self) -> None:
        """One watches no more."""
        self.viewers -= 1

    def close(self) -> None:
        """End what every viewer follows."""
        self._closed = True
        self._wake()

    async def snapshot(self) -> bytes:
        """Return the whole state as JSON, not older than ``PERIOD``, nor than the newest message."""
        self._follower.look()
        number, made_at, whole = self._whole
        if number == self._number and time.monotonic() - made_at < PERIOD:
            return whole
        await self._encode()
        shards = json.dumps([records.shard(each) for each in self._board.shards]).encode()
        computations = b",".join(self._encoded.values())
        version = json.dumps(self._version).encode()
        whole = b'%s,"version":%s,"shards":%s,"computations":[%s]}' % (self._head(), version, shards, computations)
        self._whole = self._number, time.monotonic(), whole
        return whole

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield events for one viewer, the whole state first.

        Whoever takes them slowly misses some, and gets the whole state instead.
        """
        yield b"retry: %d\n\n" % RETRY_MILLIS
        seen = -1
        while not self._closed:
            told = self._told
            if seen == self._number:
                await told.wait()
            elif 0 <= seen == self._number - 1:
                seen = self._number
                yield self._message
            else:
                whole = await self.snapshot()
                seen = self._number
                yield _event("snapshot", whole)

    async def _encode(self) -> None:
        """Bring the encoded records up to date."""
        async with self._encoding:
            for i, name in enumerate(self._board.changes(), start=1):
                view = self._board.view(name)
                if view is None:
                    self._untold.pop(name, None)
                    if self._encoded.pop(name, None) is not None:
                        self._removed[name] = None
                else:
                    self._removed.pop(name, None)
                    record = records.computation(view, self._board)
                    self._encoded[name] = json.dumps(record, separators=(",", ":")).encode()
                    self._untold[name] = None
                if not i % TOGETHER:
                    await asyncio.sleep(0)

    def _changes(self) -> bytes:
        changed = b",".join(self._encoded[name] for name in self._untold)
        removed = json.dumps(list(self._removed)).encode()
        self._untold.clear()
        self._removed.clear()
        return b'%s,"computations":[%s],"removed":%s}' % (self._head(), changed, removed)

    def _head(self) -> bytes:
        stale_for = self._follower.stale_for
        stale = None if stale_for is None else round(stale_for, 3)
        return b'{"time_micros":%d,"stale_for":%s,"away":%s' % (
            self._clock(),
            json.dumps(stale).encode(),
            json.dumps(records.away(self._follower.away)).encode(),
        )

    async def _tell(self) -> None:
        await self._encode()
        if self._untold or self._removed:
            self._message = _event("changes", self._changes())
        elif time.monotonic() - self._told_at >= self._beat:
            self._message = _event("beat", self._head() + b"}")
        else:
            return
        self._told_at = time.monotonic()
        self._number += 1
        self._wake()

    def _wake(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
