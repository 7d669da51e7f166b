"""Services of the authority over a socket of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from lowwater import errors
from lowwater_authority.authority import Authority
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc.health import HealthServicer
from lowwater_authority.rpc.refusals import refuse
from tests.kit.faults import FaultPlan
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR


@asynccontextmanager
async def served(
    *services: Callable[[grpc.aio.Server], object],
    interceptors: Sequence[Any] = (),
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    server = grpc.aio.server(interceptors=interceptors)
    for add in services:
        add(server)
    place = "127.0.0.1:0"
    port = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def scripted(service: str, **methods: tuple[Any, Callable[[Any], Any]]) -> Callable[[grpc.aio.Server], None]:
    def handler(kind: Any, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler[Any, Any]:
        async def answered(request: Any, context: Any) -> Any:
            try:
                return answer(request)
            except errors.LowwaterError as error:
                await refuse(context, error)

        write: Any = lambda message: message.SerializeToString()  # noqa: E731
        return grpc.unary_unary_rpc_method_handler(answered, kind.FromString, write)

    made_ = grpc.method_handlers_generic_handler(service, {name: handler(*pair) for name, pair in methods.items()})
    return lambda server: server.add_generic_rpc_handlers((made_,))


def healthy(server: grpc.aio.Server) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(()), server)


@asynccontextmanager
async def authority_served(
    faults: FaultPlan | None = None, observer: Observer | None = None
) -> AsyncIterator[tuple[Authority, str]]:
    journal = MemoryJournal(MemoryDisk(), faults=faults)
    authority = Authority(journal, clock=lambda: 1000 * HOUR, observer=observer or Observer())
    await authority.recover()
    rounds = asyncio.create_task(authority.run())
    try:
        async with served(authority.add_to) as address:
            try:
                yield authority, address
            finally:
                authority.leave()
    finally:
        await rounds
        await authority.close()
