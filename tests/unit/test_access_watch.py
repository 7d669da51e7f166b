"""A watch of everything while the rights of who follows it change."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from lowwater._pb.lowwater.v1 import topology_pb2, topology_pb2_grpc, watermarks_pb2, watermarks_pb2_grpc
from lowwater._server.audit import Audit
from lowwater._server.tokens import digest
from lowwater_authority.access.guard import Guard
from lowwater_authority.access.policy import Access, Action, Allowance, Principal
from lowwater_authority.ops.observer import Observer
from tests.kit.served import authority_served

RIGHT = (("authorization", "Bearer right"),)


def reading(*names: str) -> Access:
    """Somebody who may report for everything, and read some of it."""
    allowed = Allowance("n", {Action.READ: names, Action.REPORT: ("*",)})
    return Access([Principal("op", (allowed,), digests=(digest("right"),))])


async def test_a_watch_of_everything_is_told_of_what_may_be_read_now() -> None:
    """What was granted may stand still for long, and whoever waits for it would wait as long."""
    guard = Guard(reading("a"), observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    async with (
        authority_served(interceptors=[guard], randbits=lambda _: 1) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
        asyncio.timeout(60),
    ):
        graph: Any = topology_pb2_grpc.TopologyServiceStub(channel)
        for name in ("n/a", "n/b", "n/c"):
            await graph.Register(topology_pb2.RegisterRequest(name=name), metadata=RIGHT)
        stub: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        watch = stub.Watch(watermarks_pb2.WatchRequest(), metadata=RIGHT)

        async def told() -> list[str]:
            """Names, from the next message that has some."""
            while True:
                found = [each.computation for each in (await watch.read()).watermarks]
                if found:
                    return found

        async def told_nothing(beats: int) -> bool:
            return not [each for _ in range(beats) for each in (await watch.read()).watermarks]

        assert await told() == ["n/a"]
        guard.use(reading("a", "b"))
        assert await told() == ["n/a", "n/b"]
        guard.use(reading("a", "b"))
        assert await told_nothing(2), "the same rules again"
        guard.use(reading("c"))
        assert await told() == ["n/c"]
        watch.cancel()
