"""The health service of gRPC: whether this process serves, all of its services or none, and whether its journal takes writes.

The servicer that comes with the protocol writes to all who watch under one lock, so that one who takes nothing keeps the others, and the change itself,
waiting. Here a change is there before anybody is told, and nobody waits for another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    Context = grpc.aio.ServicerContext[Any, Any]

__all__ = ["JOURNAL", "HealthServicer"]


JOURNAL: Final = "lowwater.journal"
"""The name under which the journal is asked for. No gRPC service has it; a probe that restarts the
process must not ask for it."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """See grpc/health/v1/health.proto.

    Its services serve from its beginning until it stops, once and for all: a process that stops
    does not come back.

    ``JOURNAL`` beside them comes and goes: it does not serve while the store takes no writes. The
    process answers reads all the same, and a restart would not make room on a disk; so no other
    service follows it.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", JOURNAL, *services))
        self._stopping = False
        self._journal = True
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, when an answer may have changed."""

    def stop(self) -> None:
        """Say from now on that nothing is served, and tell whoever watches.

        On the event loop; waits for nobody.
        """
        self._stopping = True
        self._tell()

    def set_journal(self, *, serving: bool) -> None:
        """Say from now on whether the store takes writes, and tell whoever watches ``JOURNAL``.

        On the event loop; waits for nobody.
        """
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
        """Tell how a service is; one that is not here is not found."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is here")
        return self._status(request.service)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        """Tell how a service is, also one that is not here, and again when that changes.

        A stop ends it: nothing changes after that.
        """
        told: health_pb2.HealthCheckResponse | None = None
        while True:
            changed, stopping, status = self._changed, self._stopping, self._status(request.service)
            if status != told:
                told = status
                yield status
            if stopping:
                return
            await changed.wait()
