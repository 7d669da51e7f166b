# Made by scripts/generate_sync.py from _async/reporter.py: change that one.
"""The threads that report, one for each shard however many leases there are."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from lowwater._drive.threads.connection import Connection
from lowwater._drive.threads.signal import Signal
from lowwater._drive.threads.streams import Streams
from lowwater._sync.watcher import Watcher
from lowwater.core.call import Stubs
from lowwater.core.lease import LeaseState
from lowwater.core.reports import Due, ReporterStatistics, Reporting, ReportStream, token_of
from lowwater.core.streams import Streamed
from lowwater.v1 import workers_pb2

__all__ = ["Reporter"]


class Reporter(Streams):
    """Runs the state machines of the report streams; the first lease starts it.

    Workers stage under ``changed`` and go on; a stream's sender takes the newest states. Staging
    works without the authority as well.
    """

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.reporting: Reporting = Reporting(connection.settings, connection.surroundings, connection.router)
        super().__init__(connection, self.reporting, "lowwater-report")
        self._watcher = watcher

    @property
    def guard(self) -> AbstractContextManager[object]:
        """Guard of every use of a lease's state."""
        return self.changed

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on."""
        with self.changed:
            self.reporting.add(lease)
            self.tend()

    def remove(self, lease: LeaseState) -> None:
        """Stop reporting a lease."""
        with self.changed:
            self.reporting.remove(lease)
            self.tend()

    def staged(self, lease: LeaseState) -> None:
        """Send a lease's new state with the next report. Hold ``changed``."""
        if self.reporting.staged(lease):
            self.changed.notify_all()

    def flush(self, lease: LeaseState, seconds: float) -> None:
        """Wait until the newest state of a lease is durable.

        Raises Timeout after ``seconds``, StaleSequencer when the claim is lost, and the error that
        the state was refused with.
        """
        monotonic = self._connection.surroundings.monotonic
        deadline = monotonic() + seconds
        with self.changed:
            version = lease.version
            self.reporting.hurry(lease)
            self.changed.notify_all()
            while not self.reporting.answered(lease, version):
                self._connection.check_open()
                time_left = deadline - monotonic()
                if time_left <= 0:
                    raise self.reporting.too_late(lease, seconds)
                self.changed.wait(time_left)

    def statistics(self) -> ReporterStatistics:
        """Return the counters so far."""
        with self.changed:
            return self.reporting.statistics()

    @property
    def _server_token(self) -> str:
        return self._watcher.state.server_token

    def _open(self, machine: ReportStream, address: str, stubs: Stubs) -> Any:
        stream, opening = machine.open(address, self._server_token)
        requests = _Requests(self._connection, self.changed, machine, stream, opening)
        return stubs.workers.Report(requests, metadata=self._connection.settings.metadata)

    def _take(self, machine: Streamed, response: Any) -> bool:
        token = token_of(response)
        if token:
            with self._watcher.changed:
                self._watcher.state.admit(token)
        return super()._take(machine, response)


class _Requests:
    """The messages of one stream, each when it is due; gRPC's sending thread asks for them."""

    def __init__(
        self,
        connection: Connection,
        changed: Signal,
        machine: ReportStream,
        stream: int,
        opening: workers_pb2.ReportRequest,
    ) -> None:
        self._connection = connection
        self._changed = changed
        self._machine = machine
        self._stream = stream
        self._ready = deque([opening])

    def __iter__(self) -> _Requests:
        return self

    def __next__(self) -> workers_pb2.ReportRequest:
        while not self._ready:
            with self._changed:
                due = self._due()
                if due is None:
                    raise StopIteration
                if due.answered:
                    self._changed.notify_all()
                self._ready.extend(due.messages)
                if not self._ready:
                    self._changed.wait(due.within)
        return self._ready.popleft()

    def _due(self) -> Due | None:
        return None if self._connection.closed else self._machine.due(self._stream)
