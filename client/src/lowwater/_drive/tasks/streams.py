"""Tasks that open one stream after the other, one for each shard that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any

from lowwater import errors
from lowwater._drive.tasks.connection import Connection
from lowwater._drive.tasks.signal import Signal, being_cancelled
from lowwater.core.attempts import cancelled_call
from lowwater.core.call import Stubs
from lowwater.core.search import TIMEOUT, Search, is_search
from lowwater.core.streams import Many, Streamed

__all__ = ["Streams"]


class Streams:
    """Drives state machines with common state: a task for each, as long as it is needed.

    Opens their streams, passes on the messages, and wakes the tasks that wait for these.
    """

    def __init__(self, connection: Connection, machines: Many[Any], name: str) -> None:
        self.changed: Signal = Signal()
        """Signal after every message with news, and at the end of every stream."""
        self._connection = connection
        self._machines = machines
        self._name = name
        self._running: dict[Streamed, _Running] = {}

    def _open(self, machine: Any, address: str, stubs: Stubs) -> Any:
        """Open a stream; returns the call."""
        raise NotImplementedError

    @property
    def _server_token(self) -> str:
        """Token of the deployment this client belongs to."""
        raise NotImplementedError

    def _take(self, machine: Streamed, response: Any) -> bool:
        """Take a message; returns True when the stream has to end."""
        leaving = machine.take(response)
        self.tend()
        self._notify(machine.concerned)
        return leaving

    def _notify(self, names: Set[str] | None) -> None:
        if names is None:
            self.changed.notify_all()
        elif names:
            self.changed.notify_about(names)

    def tend(self) -> None:
        """Start tasks that are needed by now, and end streams that have to be renewed."""
        for machine in self._machines.tend():
            running = self._running.get(machine)
            if running is None:
                if machine.needed and not self._connection.closed:
                    running = self._running[machine] = _Running()
                    running.task = asyncio.create_task(self._run(machine, running), name=self._name)
            elif machine.interrupted and running.call is not None:
                call, running.call = running.call, None
                call.cancel()

    async def stop(self) -> None:
        """End the tasks, and wake all that wait."""
        self.changed.notify_all()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, machine: Streamed, running: _Running) -> None:
        delay = machine.first_pause
        while True:
            await self._pause(machine, delay)
            if machine.failure is not None or not machine.needed:
                machine.retire()
                del self._running[machine]
                await self._connection.sweep()
                break
            if machine.hurried:
                delay = machine.first_pause
                continue
            failure: Exception | None = None
            try:
                await self._stream(machine, running)
            except errors.Closed:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the state machine decides
                failure = error
            delay = machine.ended(failure)
            self.tend()
            self.changed.notify_all()
            await self._connection.sweep()

    async def _pause(self, machine: Streamed, seconds: float) -> None:
        """Wait before the next stream, until the time is over or the machine hurries."""
        monotonic = self._connection.surroundings.monotonic
        until = monotonic() + seconds
        while not machine.hurried and (remaining := until - monotonic()) > 0:
            await self.changed.wait(remaining)

    async def _stream(self, machine: Streamed, running: _Running) -> None:
        """Follow one stream to its end."""
        address = machine.address
        with self._connection.use(address) as stubs:
            if is_search(machine):
                call = self._locate(machine, address, stubs)
            else:
                call = self._open(machine, address, stubs)
            running.call = call
            try:
                async for response in call:
                    if self._take(machine, response):
                        break
            except asyncio.CancelledError:
                if being_cancelled():
                    raise
                if running.call is not None:
                    raise cancelled_call(address) from None
                # Without a call, ``tend`` has ended the stream for its renewal.
            finally:
                running.call = None
                call.cancel()

    def _locate(self, machine: Search[Any], address: str, stubs: Stubs) -> Any:
        request = machine.open(address, self._server_token)
        timeout = min(TIMEOUT, self._connection.settings.timeout)
        return _OneAnswer(stubs.cluster.Locate(request, timeout=timeout, metadata=self._connection.settings.metadata))


class _Running:
    """A task, and its open stream."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.call: Any = None
        """Open stream; None also after ``tend`` has ended it for its renewal."""


class _OneAnswer:
    """A unary call, as a stream of its answer."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._consumed = False

    def __aiter__(self) -> _OneAnswer:
        return self

    async def __anext__(self) -> Any:
        if self._consumed:
            raise StopAsyncIteration
        self._consumed = True
        return await self._call

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
