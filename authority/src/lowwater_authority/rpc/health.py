"""The health service of gRPC: whether this process serves, and whether its journal takes writes.

The servicer that comes with the protocol writes to all watchers under one lock, so a watcher that
reads nothing would hold up the others, and the change itself. Here a change counts at once, and no
watcher waits for another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    Context = grpc.aio.ServicerContext[Any, Any]


JOURNAL: Final = "lowwater.journal"
"""Service name under which a probe asks for the journal. No gRPC service has this name. A probe
that restarts the process must not ask for it."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """See grpc/health/v1/health.proto.

    All ``services`` serve from the beginning until the process stops.

    ``JOURNAL`` does not serve while the store takes no writes. The other services do: the process
    answers reads then, and a restart would not make room on a disk.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", JOURNAL, *services))
        self._stopping = False
        self._journal = True
        self._changed = asyncio.Event()
        """Event that is set, and replaced, when an answer may have changed."""

    def stop(self) -> None:
        """Answer from now on that no service serves, and wake all watchers. On the event loop."""
        self._stopping = True
        self._tell()

    def set_journal(self, *, serving: bool) -> None:
        """Set whether ``JOURNAL`` serves, and wake all watchers. On the event loop."""
        self._journal = serving
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        answer = health_pb2.HealthCheckResponse
        if service not in self._services:
            return answer(status=answer.SERVICE_UNKNOWN)
        serves = not self._stopping and (self._journal or service != JOURNAL)
        return answer(status=answer.SERVING if serves else answer.NOT_SERVING)

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Return the status of a service. An unknown one is refused with NOT_FOUND."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is here")
        return self._status(request.service)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        """Send the status of a service, also of an unknown one, and again when it changes.

        The stream ends when the process stops.
        """
        sent: health_pb2.HealthCheckResponse | None = None
        while True:
            changed, stopping, status = self._changed, self._stopping, self._status(request.service)
            if status != sent:
                sent = status
                yield status
            if stopping:
                return
            await changed.wait()
