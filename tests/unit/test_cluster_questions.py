"""What a shard answers while it takes computations over: those that take long do not hide the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import grpc.aio
import pytest

from lowwater._core.call import Stubs
from lowwater._core.search import TIMEOUT
from lowwater._pb.lowwater.v1 import cluster_pb2, watermarks_pb2
from lowwater_authority.engine.shard import TOGETHER_SECONDS
from tests.kit.shards import NAMES, Deployment, One, held, reached, turns, two

LATEST = TOGETHER_SECONDS + 2.0
"""Seconds after which an answer is too late, with as much time for the answer itself as a busy machine may need."""


class Taking(NamedTuple):
    """A shard that is taking computations over, and where it is reached."""

    one: One
    address: str
    hanging: set[str]
    """What it cannot read for now."""
    whole: asyncio.Event
    """Set when it can."""


@pytest.fixture(params=[1, 3])
async def taking(deployment: Deployment, request: pytest.FixtureRequest) -> AsyncIterator[Taking]:
    """Another shard has died, and so many of its logs cannot be read for now."""
    one, other = await two(deployment)
    await other.stop()
    hanging = set(sorted(held(other))[: request.param])
    one.faults.late = dict.fromkeys(hanging, whole := asyncio.Event())
    for _ in range(8):
        deployment.clock.now += 0.3
        await one.hear()
        await one.cluster._look_after_what_is_held()
        await turns()
    assert held(one) == set(NAMES) - hanging
    async with reached(one) as address:
        yield Taking(one, address, hanging, whole)
        whole.set()


async def test_where_the_others_are_is_said_in_time(taking: Taking) -> None:
    """A client waits ``TIMEOUT`` for the whole answer, and looks for another shard when it does not come."""
    assert TIMEOUT > LATEST
    async with grpc.aio.insecure_channel(taking.address) as channel:
        began = time.perf_counter()
        found = await Stubs(channel).cluster.Locate(cluster_pb2.LocateRequest(computations=NAMES), timeout=TIMEOUT)
        assert time.perf_counter() - began < LATEST
        nowhere = {redirect.computation for redirect in found.redirects if not redirect.address}
        assert nowhere == taking.hanging
        taking.whole.set()
        found = await Stubs(channel).cluster.Locate(cluster_pb2.LocateRequest(computations=NAMES), timeout=TIMEOUT)
        assert {redirect.address for redirect in found.redirects} == {taking.one.address}


async def test_the_others_are_read_in_time(taking: Taking) -> None:
    asked = watermarks_pb2.GetWatermarksRequest(computations=NAMES)
    async with grpc.aio.insecure_channel(taking.address) as channel:
        got = await Stubs(channel).watermarks.GetWatermarks(asked, timeout=LATEST)
    assert {watermark.computation for watermark in got.watermarks} == set(NAMES) - taking.hanging
    assert {redirect.computation for redirect in got.redirects} == taking.hanging
