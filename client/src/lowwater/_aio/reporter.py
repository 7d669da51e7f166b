"""The task that reports, one per client however many leases there are."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lowwater._aio.connection import Connection
from lowwater._aio.signal import Signal
from lowwater._aio.streaming import Streaming
from lowwater._aio.watcher import Watcher
from lowwater._core.lease import LeaseState
from lowwater._core.reporting import Reporting
from lowwater._pb.lowwater.v1 import workers_pb2

__all__ = ["Reporter"]


class Reporter(Streaming):
    """Runs the state machine of the report stream, started by the first lease: sends what is due, and hears what became of it."""

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.reporting: Reporting = Reporting(connection.settings, connection.surroundings)
        super().__init__(connection, self.reporting, "lowwater-report")
        self._watcher = watcher

    @property
    def guard(self) -> AbstractContextManager[object]:
        """Nothing: states are used on one event loop."""
        return nullcontext()

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on."""
        self.reporting.state.add(lease)
        self.start()

    def staged(self, lease: LeaseState) -> None:
        """Let a lease's new state go out at the next tick."""
        if self.reporting.state.staged(lease):
            self.changed.notify()

    async def flush(self, lease: LeaseState, seconds: float) -> None:
        """Wait until the newest state of a lease is durable.

        Raises Timeout after so many seconds, StaleSequencer when the claim is lost, and what the state was refused for.
        """
        monotonic = self._connection.surroundings.monotonic
        deadline = monotonic() + seconds
        version = lease.version
        self.reporting.state.hurry()
        self.changed.notify()
        while not self.reporting.answered(lease, version):
            self._connection.check_open()
            left = deadline - monotonic()
            if left <= 0:
                raise self.reporting.too_late(lease, seconds)
            await self.changed.wait(left)

    def _open(self) -> Any:
        report = self._connection.stubs.workers.Report
        stream, opening = self.reporting.open(self._watcher.state.server_token)
        requests = _Requests(self.reporting, self.changed, stream, opening)
        return report(requests, metadata=self._connection.settings.metadata)

    def _take(self, response: workers_pb2.ReportResponse) -> bool:
        if response.HasField("opened"):
            self._watcher.state.admit(response.opened.server_token)
        return self.reporting.take(response)


class _Requests:
    """The messages of one stream, each when it is due; gRPC's sender asks for them.

    No generator: one that is left in the middle would be closed later, by a task of its own.
    """

    def __init__(self, reporting: Reporting, changed: Signal, stream: int, opening: workers_pb2.ReportRequest) -> None:
        self._reporting = reporting
        self._changed = changed
        self._stream = stream
        self._ready = deque([opening])

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> workers_pb2.ReportRequest:
        while not self._ready:
            due = self._reporting.due(self._stream)
            if due is None:
                raise StopAsyncIteration
            if due.answered:
                self._changed.notify()
            self._ready.extend(due.messages)
            if not self._ready:
                await self._changed.wait(due.within)
        return self._ready.popleft()
