"""A task that opens one stream after the other, for as long as the client lives."""

from __future__ import annotations

import asyncio
from typing import Any

from lowwater import errors
from lowwater._aio.connection import Connection
from lowwater._aio.signal import Signal, being_cancelled
from lowwater._core.streams import Streamed

__all__ = ["Streaming"]


class Streaming:
    """Drives a state machine: opens its streams, feeds it what they bring, and wakes those that wait for it."""

    def __init__(self, connection: Connection, streamed: Streamed, name: str) -> None:
        self.changed: Signal = Signal()
        """Notified after every message, and at the end of every stream."""
        self._connection = connection
        self._streamed = streamed
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None

    def _open(self) -> Any:
        """Open a stream; returns the call."""
        raise NotImplementedError

    def _take(self, response: Any) -> bool:
        """Take a message; returns whether the stream is to be left."""
        return self._streamed.take(response)

    def start(self) -> None:
        """Start the task, unless it runs."""
        if self._task is None and not self._connection.closed:
            self._task = asyncio.create_task(self._run(), name=self._name)

    def renew(self) -> None:
        """End the open stream, if there is one; the next one follows."""
        if self._call is not None:
            self._call.cancel()

    async def stop(self) -> None:
        """End the task, and wake all that wait."""
        self.changed.notify()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        streamed = self._streamed
        while streamed.failure is None:
            while not streamed.wanted:
                await self.changed.wait(None)
            failure: Exception | None = None
            try:
                await self._stream()
            except errors.Closed:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the state machine decides
                failure = error
            delay = streamed.ended(failure)
            self.changed.notify()
            await asyncio.sleep(delay)

    async def _stream(self) -> None:
        """Follow one stream to its end."""
        self._call = call = self._open()
        try:
            async for response in call:
                leaving = self._take(response)
                self.changed.notify()
                if leaving:
                    break
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            # Else only the call was, to be renewed.
        finally:
            self._call = None
            call.cancel()
