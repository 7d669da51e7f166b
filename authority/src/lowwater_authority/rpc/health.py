"""The health service of gRPC: whether this process serves, all of its services or none.

The servicer that comes with the protocol writes to all who watch under one lock, so that one who takes nothing keeps the others, and the change itself,
waiting. Here a change is there before anybody is told, and nobody waits for another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    Context = grpc.aio.ServicerContext[Any, Any]

__all__ = ["HealthServicer"]


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """See grpc/health/v1/health.proto. It serves from its beginning until it stops, once and for all: a process that stops does not come back."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Say from now on that nothing is served, and tell whoever watches. On the event loop; waits for nobody."""
        self._stopping.set()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        answer = health_pb2.HealthCheckResponse
        if service not in self._services:
            return answer(status=answer.SERVICE_UNKNOWN)
        return answer(status=answer.NOT_SERVING if self._stopping.is_set() else answer.SERVING)

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
        """Tell how a service is, also one that is not here, and again when that changes, which ends it: nothing changes after that."""
        told = self._status(request.service)
        yield told
        await self._stopping.wait()
        if (last := self._status(request.service)) != told:
            yield last
