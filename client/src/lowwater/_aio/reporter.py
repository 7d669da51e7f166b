"""The tasks that report, one for each shard however many leases there are."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lowwater._aio.connection import Connection
from lowwater._aio.signal import Signal
from lowwater._aio.streaming import Streaming
from lowwater._aio.watcher import Watcher
from lowwater._core.call import Stubs
from lowwater._core.lease import LeaseState
from lowwater._core.reports import Reporting, ReportStream, token_of
from lowwater._core.streams import Streamed
from lowwater._pb.lowwater.v1 import workers_pb2

__all__ = ["Reporter"]


class Reporter(Streaming):
    """Runs the state machines of the report streams, started by the first lease: sends what is due, and hears what became of it."""

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.reporting: Reporting = Reporting(connection.settings, connection.surroundings, connection.routes)
        super().__init__(connection, self.reporting, "lowwater-report")
        self._watcher = watcher

    @property
    def guard(self) -> AbstractContextManager[object]:
        """Nothing: states are used on one event loop."""
        return nullcontext()

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on."""
        self.reporting.add(lease)
        self.tend()

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer."""
        self.reporting.remove(lease)
        self.tend()

    def staged(self, lease: LeaseState) -> None:
        """Let a lease's new state leave with the next report."""
        if self.reporting.staged(lease):
            self.changed.notify()

    async def flush(self, lease: LeaseState, seconds: float) -> None:
        """Wait until the newest state of a lease is durable.

        Raises Timeout after so many seconds, StaleSequencer when the claim is lost, and what the state was refused for.
        """
        monotonic = self._connection.surroundings.monotonic
        deadline = monotonic() + seconds
        version = lease.version
        self.reporting.hurry(lease)
        self.changed.notify()
        while not self.reporting.answered(lease, version):
            self._connection.check_open()
            left = deadline - monotonic()
            if left <= 0:
                raise self.reporting.too_late(lease, seconds)
            await self.changed.wait(left)

    @property
    def _server_token(self) -> str:
        return self._watcher.state.server_token

    def _open(self, machine: ReportStream, address: str, stubs: Stubs) -> Any:
        stream, opening = machine.open(address, self._server_token)
        requests = _Requests(machine, self.changed, stream, opening)
        return stubs.workers.Report(requests, metadata=self._connection.settings.metadata)

    def _take(self, machine: Streamed, response: Any) -> bool:
        token = token_of(response)
        if token:
            self._watcher.state.admit(token)
        return super()._take(machine, response)


class _Requests:
    """The messages of one stream, each when it is due; gRPC's sender asks for them.

    No generator: one that is left in the middle would be closed later, by a task of its own.
    """

    def __init__(self, machine: ReportStream, changed: Signal, stream: int, opening: workers_pb2.ReportRequest) -> None:
        self._machine = machine
        self._changed = changed
        self._stream = stream
        self._ready = deque([opening])

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> workers_pb2.ReportRequest:
        while not self._ready:
            due = self._machine.due(self._stream)
            if due is None:
                raise StopAsyncIteration
            if due.answered:
                self._changed.notify()
            self._ready.extend(due.messages)
            if not self._ready:
                await self._changed.wait(due.within)
        return self._ready.popleft()
