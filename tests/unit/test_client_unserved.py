"""A client beside computations that nobody can serve, over shards whose store does not give them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc.aio
import pytest

import lowwater.aio
from lowwater._core.call import Stubs
from lowwater._pb.lowwater.v1 import cluster_pb2, cluster_pb2_grpc, watermarks_pb2_grpc
from lowwater_authority.ops.observer import Observer
from lowwater_authority.rpc.cluster import ClusterServicer
from lowwater_authority.rpc.services import Services
from lowwater_authority.rpc.streams import Streams
from lowwater_authority.rpc.watermarks import WatermarkServicer
from tests.kit.eventually import eventually_async
from tests.kit.shards import NAMES, Deployment, One, held, two


@dataclass
class Served:
    """A shard over the network that holds less than all there is, for the store does not let it read the rest."""

    one: One
    address: str
    unserved: set[str]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    deployment = Deployment()
    one, other = await two(deployment)
    await other.stop()
    one.faults.unreadable.add("load")
    await deployment.settle(one, seconds=2.4)
    server, services = grpc.aio.server(), Services(one.shard, Observer(), one.cluster)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterServicer(services), server)
    readers = WatermarkServicer(services, Streams())
    watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server(readers, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield Served(one, address, set(NAMES) - held(one))
    await server.stop(None)
    await one.stop()


async def test_one_that_cannot_be_served_does_not_hide_where_the_others_are(served: Served) -> None:
    assert served.unserved
    async with grpc.aio.insecure_channel(served.address) as channel:
        answer = await Stubs(channel).cluster.Locate(cluster_pb2.LocateRequest(computations=NAMES))
    assert {each.computation for each in answer.redirects if not each.address} == served.unserved
    assert {each.computation for each in answer.redirects if each.address == "one:1"} == held(served.one)


async def test_everything_is_followed_beside_what_cannot_be_served(served: Served) -> None:
    """Over one stream: nobody else is disturbed by the search. What comes back is shown, by whichever hears of it first."""
    async with lowwater.aio.connect(served.address) as lw, aclosing(lw.watch()) as changes, asyncio.timeout(30):
        shown = {(await anext(changes)).computation for _ in held(served.one)}
        assert shown == held(served.one)
        known = lw._runtime().watcher.state
        await eventually_async(lambda: known.search._backoff._attempt >= 4)
        assert set(lw.statistics().watcher.unserved) == served.unserved
        assert lw.statistics().watcher.streams == 1
        served.one.faults.unreadable.clear()
        assert {(await anext(changes)).computation for _ in served.unserved} == served.unserved
        assert lw.statistics().watcher.unserved == ()
        assert lw.statistics().watcher.streams <= 2, (
            "the search opens another where it finds it before the stream brings it"
        )
