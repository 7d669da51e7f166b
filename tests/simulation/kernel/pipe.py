"""One direction of a call: messages in order, with flow control, until the link breaks."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.kernel.network import Network

KERNEL: Final = Context()

WINDOW: Final = 20
"""Messages that were sent and not read; the sender of one more waits. gRPC counts 64 KiB instead."""


class Pipe:
    """A way from one process to another. Writing ends by :meth:`finish`, reading when that arrives or by :meth:`end`."""

    def __init__(self, network: Network, label: str, arrived: Callable[[Any], None]) -> None:
        self.severed = False
        self.ended = False
        self._network = network
        self._label = label
        self._arrived = arrived
        self._buffer: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._unread = 0
        self._due = 0.0
        self._delayed: bytes | None = None

    def sever(self) -> None:
        self.severed = True
        self._wake_writers()

    async def room(self) -> None:
        while self._unread >= WINDOW and not self.severed:
            self._network.sim.reach("network: a full stream")
            waiter = self._network.sim.loop.create_future()
            self._writers.append(waiter)
            await waiter

    def push(self, payload: bytes) -> None:
        self._send(payload)
        self.release()

    def push_late(self, payload: bytes, seconds: float) -> None:
        self.release()
        self._due = max(self._due, self._network.sim.now + seconds)
        self._send(payload)

    def hold(self, payload: bytes, seconds: float) -> None:
        self.release()
        self._delayed = payload
        self._network.sim.loop.call_later(seconds, self.release, context=KERNEL)

    def release(self) -> None:
        delayed, self._delayed = self._delayed, None
        if delayed is not None:
            self._send(delayed)

    def finish(self, last: Any) -> None:
        self.release()
        if not self.severed:
            self._schedule(self._finished, last)

    def open(self, call: Callable[[], None]) -> None:
        self._schedule(lambda _: call(), None)

    def _send(self, payload: bytes) -> None:
        if not self.severed:
            self._unread += 1
            self._schedule(self._arrive, payload)

    def _schedule(self, call: Callable[[Any], None], argument: Any) -> None:
        self._due = max(self._due, self._network.sim.now + self._network.latency())
        self._network.sim.loop.call_at(self._due, call, argument, context=KERNEL)

    @property
    def due(self) -> float:
        return self._due

    def _arrive(self, payload: bytes) -> None:
        if self.ended:
            return
        self._network.sim.trace("arrive", pipe=self._label, size=len(payload))
        self._buffer.append(payload)
        self._wake_reader()

    def _finished(self, last: Any) -> None:
        if not self.ended:
            self._network.sim.trace("finished", pipe=self._label)
            self.end(keep=True)
            self._arrived(last)

    def end(self, *, keep: bool) -> None:
        self.ended = self.severed = True
        if not keep:
            self._buffer.clear()
        self._wake_reader()
        self._wake_writers()

    async def read(self) -> bytes | None:
        while not self._buffer:
            if self.ended:
                return None
            reader = self._reader = self._network.sim.loop.create_future()
            try:
                await reader
            finally:
                self._reader = None
        payload = self._buffer.popleft()
        self._unread -= 1
        self._wake_writers()
        return payload

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        while self._writers:
            waiter = self._writers.popleft()
            if not waiter.done():
                waiter.set_result(None)
