"""The threads that report, one for each shard however many leases there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from lowwater._core.attempts import closed_client
from lowwater._core.call import Stubs
from lowwater._core.lease import LeaseState
from lowwater._core.reports import ReporterStatistics, Reporting, ReportStream, token_of
from lowwater._core.streams import Streamed
from lowwater._pb.lowwater.v1 import workers_pb2
from lowwater._sync.connection import Connection
from lowwater._sync.streaming import Streaming
from lowwater._sync.watcher import Watcher

__all__ = ["Reporter"]


class Reporter(Streaming):
    """Runs the state machines of the report streams, started by the first lease: sends what is due, and hears what became of it.

    Workers stage under ``changed`` and go on; a stream's sender takes the newest states. Without the authority, staging goes
    on as ever.
    """

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.reporting: Reporting = Reporting(connection.settings, connection.surroundings, connection.routes)
        super().__init__(connection, self.reporting, "lowwater-report")
        self._watcher = watcher

    @property
    def guard(self) -> AbstractContextManager[object]:
        """Held around every use of a lease's state."""
        return self.changed

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on."""
        with self.changed:
            self.reporting.add(lease)
            self.tend()

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer."""
        with self.changed:
            self.reporting.remove(lease)
            self.tend()

    def staged(self, lease: LeaseState) -> None:
        """Let a lease's new state leave with the next report. Hold ``changed``."""
        if self.reporting.staged(lease):
            self.changed.notify_all()

    def flush(self, lease: LeaseState, timeout: float) -> None:
        """Wait until the newest state of a lease is durable.

        Raises Timeout after so many seconds, StaleSequencer when the claim is lost, and what the state was refused for.
        """
        monotonic = self._connection.surroundings.monotonic
        deadline = monotonic() + timeout
        with self.changed:
            version = lease.version
            self.reporting.hurry(lease)
            self.changed.notify_all()
            while not self.reporting.answered(lease, version):
                if self._connection.closed.is_set():
                    raise closed_client()
                left = deadline - monotonic()
                if left <= 0:
                    raise self.reporting.too_late(lease, timeout)
                self.changed.wait(left)

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far."""
        with self.changed:
            return self.reporting.statistics()

    @property
    def _server_token(self) -> str:
        return self._watcher.state.server_token

    def _open(self, machine: ReportStream, address: str, stubs: Stubs) -> Any:
        report = stubs.workers.Report
        stream, opening = machine.open(address, self._server_token)
        return report(self._requests(machine, stream, opening), metadata=self._connection.settings.metadata)

    def _take(self, machine: Streamed, response: Any) -> bool:
        token = token_of(response)
        if token:
            with self._watcher.changed:
                self._watcher.state.admit(token)
        return super()._take(machine, response)

    def _requests(
        self, machine: ReportStream, stream: int, opening: workers_pb2.ReportRequest
    ) -> Iterator[workers_pb2.ReportRequest]:
        """Yield the messages of one stream, each when it is due. Runs on the thread that gRPC gives to a stream's sender."""
        yield opening
        while True:
            with self.changed:
                due = None if self._connection.closed.is_set() else machine.due(stream)
                if due is None:
                    return
                if due.answered:
                    self.changed.notify_all()
                if not due.messages:
                    self.changed.wait(due.within)
            yield from due.messages
