"""The stream of server-sent events for the viewers of the page, encoded once for all of them."""

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
"""Least time between two messages, in seconds."""

BEAT: Final = 5.0
"""Time in seconds after which a message goes out although nothing has changed."""

SHARE: Final = 0.05
"""Greatest share of a processor for encoding. When much changes, messages come less often."""

TOGETHER: Final = 16
"""Computations encoded without a pause; other tasks run in the pauses."""

RETRY_MILLIS: Final = 2000
"""Time in milliseconds that a browser waits before it connects again."""

log = logging.getLogger(__name__)


class Feed:
    """The newest state of a board as JSON, and numbered messages with the changes of it.

    A viewer that has got the last message but one gets the last one. Any other viewer gets the
    whole state. So memory holds one encoded record for each computation, and no backlog, however
    many watch. A feed belongs to one event loop.
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
        self._unsent: dict[str, None] = {}
        """Computations that changed since the newest message; a set that keeps order."""
        self._removed: dict[str, None] = {}
        """Computations that were dropped since the newest message; a set that keeps order."""
        self._message = b""
        self._number = 0
        self._whole = (-1, 0.0, b"")
        """The newest whole state: number of the message before it, monotonic time, content."""
        self._sent = asyncio.Event()
        self._sent_at = time.monotonic()
        self._closed = False
        self._has_viewers = asyncio.Event()
        self.viewers = 0
        """Number of viewers."""

    async def run(self) -> None:
        """Send changes to the viewers until cancelled."""
        while True:
            if not self.viewers:
                self._has_viewers.clear()
                await self._has_viewers.wait()
            began = time.thread_time()
            try:
                self._follower.look()
                await self._send()
            except Exception:
                log.exception("the page cannot send changes to its viewers; trying again", extra=event("page_failed"))
            await asyncio.sleep(max(PERIOD, (time.thread_time() - began) / SHARE))

    def join(self) -> None:
        """Count one more viewer."""
        self.viewers += 1
        self._has_viewers.set()

    def leave(self) -> None:
        """Count one viewer less."""
        self.viewers -= 1

    def close(self) -> None:
        """End the streams of all viewers."""
        self._closed = True
        self._wake()

    async def snapshot(self) -> bytes:
        """Return the whole state as JSON, younger than ``PERIOD`` and than the newest message."""
        self._follower.look()
        number, made_at, whole = self._whole
        if number == self._number and time.monotonic() - made_at < PERIOD:
            return whole
        await self._encode()
        shards = json.dumps([records.shard(shard) for shard in self._board.shards]).encode()
        computations = b",".join(self._encoded.values())
        version = json.dumps(self._version).encode()
        whole = b'%s,"version":%s,"shards":%s,"computations":[%s]}' % (self._head(), version, shards, computations)
        self._whole = self._number, time.monotonic(), whole
        return whole

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield events for one viewer, the whole state first.

        A slow viewer misses some messages, and gets the whole state instead.
        """
        yield b"retry: %d\n\n" % RETRY_MILLIS
        last_number = -1
        while not self._closed:
            sent = self._sent
            if last_number == self._number:
                await sent.wait()
            elif 0 <= last_number == self._number - 1:
                last_number = self._number
                yield self._message
            else:
                whole = await self.snapshot()
                last_number = self._number
                yield _event("snapshot", whole)

    async def _encode(self) -> None:
        """Bring the encoded records up to date."""
        async with self._encoding:
            for i, name in enumerate(self._board.changes(), start=1):
                view = self._board.view(name)
                if view is None:
                    self._unsent.pop(name, None)
                    if self._encoded.pop(name, None) is not None:
                        self._removed[name] = None
                else:
                    self._removed.pop(name, None)
                    record = records.computation(view, self._board)
                    self._encoded[name] = json.dumps(record, separators=(",", ":")).encode()
                    self._unsent[name] = None
                if not i % TOGETHER:
                    await asyncio.sleep(0)

    def _changes(self) -> bytes:
        changed = b",".join(self._encoded[name] for name in self._unsent)
        removed = json.dumps(list(self._removed)).encode()
        self._unsent.clear()
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

    async def _send(self) -> None:
        await self._encode()
        if self._unsent or self._removed:
            self._message = _event("changes", self._changes())
        elif time.monotonic() - self._sent_at >= self._beat:
            self._message = _event("beat", self._head() + b"}")
        else:
            return
        self._sent_at = time.monotonic()
        self._number += 1
        self._wake()

    def _wake(self) -> None:
        sent, self._sent = self._sent, asyncio.Event()
        sent.set()


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
