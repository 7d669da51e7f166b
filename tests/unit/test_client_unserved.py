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
from lowwater._pb.lowwater.v1 import cluster_pb2
from lowwater_authority.engine.takeover import REFUSED_SECONDS
from tests.kit.eventually import eventually_async
from tests.kit.shards import NAMES, Deployment, One, held, reached, two


@dataclass
class Served:
    """A shard over the network that holds less than all there is, for the store does not let it read the rest."""

    one: One
    address: str
    unserved: set[str]


@pytest.fixture
async def served(deployment: Deployment) -> AsyncIterator[Served]:
    one, other = await two(deployment)
    await other.stop()
    one.faults.unreadable.add("load")
    await deployment.settle(one, seconds=2.4)
    async with reached(one) as address:
        yield Served(one, address, set(NAMES) - held(one))


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
        served.one.deployment.clock.now += REFUSED_SECONDS[1]  # after which it is tried again
        assert {(await anext(changes)).computation for _ in served.unserved} == served.unserved
        assert lw.statistics().watcher.unserved == ()
        assert lw.statistics().watcher.streams <= 2, (
            "the search opens another where it finds it before the stream brings it"
        )
