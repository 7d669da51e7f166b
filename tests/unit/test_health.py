"""The health service: what it says of what, and that nobody waits for who takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater_authority.rpc.health import JOURNAL, HealthServicer
from tests.kit import served as kit

PATIENCE = 60.0

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HealthServicer, Any, int]]:
    """The servicer, a client of it, and its port."""
    servicer = HealthServicer(["a.Service"])
    add = partial(health_pb2_grpc.add_HealthServicer_to_server, servicer)
    async with kit.served(add) as address, grpc.aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE):
        yield servicer, health_pb2_grpc.HealthStub(channel), int(address.rpartition(":")[2])


def of(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", "a.Service"])
async def test_what_is_here_serves_until_it_stops(service: str) -> None:
    async with served() as (servicer, health, _):
        watch = health.Watch(of(service))
        assert (await watch.read()).status == SERVING
        assert (await health.Check(of(service))).status == SERVING
        servicer.stop()
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert (await health.Check(of(service))).status == NOT_SERVING
        assert [answer.status async for answer in health.Watch(of(service))] == [NOT_SERVING]


async def test_a_store_that_refuses_writes_is_told_of_the_journal_alone() -> None:
    """A probe that restarts the process asks for the others: a restart makes no room on a disk."""
    async with served() as (servicer, health, _):
        watch, process = health.Watch(of(JOURNAL)), health.Watch(of(""))
        assert (await watch.read()).status == SERVING
        assert (await process.read()).status == SERVING
        servicer.set_journal(serving=False)
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(of(JOURNAL))).status == NOT_SERVING
        assert (await health.Check(of(""))).status == SERVING
        assert (await health.Check(of("a.Service"))).status == SERVING
        servicer.set_journal(serving=True)
        assert (await watch.read()).status == SERVING
        servicer.stop()
        assert (await watch.read()).status == NOT_SERVING
        assert (await process.read()).status == NOT_SERVING, "and nothing before"
        assert await watch.read() is grpc.aio.EOF


async def test_what_is_not_here_is_said_to_be_unknown() -> None:
    async with served() as (servicer, health, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Check(of("a.Stranger"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(of("a.Stranger"))
        assert (await watch.read()).status == UNKNOWN
        servicer.stop()
        assert await watch.read() is grpc.aio.EOF
