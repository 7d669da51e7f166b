"""The real servicers of a real shard in the simulator, called with raw stubs."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import pytest

from lowwater._core import wire
from lowwater._pb.lowwater.v1 import topology_pb2, watermarks_pb2, workers_pb2
from lowwater_authority.journal import JournalFenced
from tests.simulation.kernel import Tap
from tests.simulation.kernel.small_world import HOUR, START, SmallWorld, Stubs


async def follow(client: Stubs, lows: list[int], beats: list[float]) -> None:
    """Watch one computation: every value, and when each message came."""
    request = watermarks_pb2.WatchRequest(computations=["a"])
    async for response in client.watermarks.Watch(request, wait_for_ready=True):
        lows += [mark.low_micros for mark in response.watermarks]
        beats.append(client.process.sim.now)


async def ready(world: SmallWorld) -> tuple[Stubs, int]:
    """Start the authority; returns a client and the sequencer of a claim of all of "a"."""
    world.serve()
    client = world.stubs()
    await client.register("a")
    return client, (await client.claim("a")).sequencer


def test_register_claim_report_and_watch() -> None:
    taps: list[Tap] = []
    lows: list[int] = []
    beats: list[float] = []

    async def program(world: SmallWorld) -> None:
        world.sim.network.taps.append(taps.append)
        client, sequencer = await ready(world)
        reader = world.stubs("reader")
        reader.process.start(follow, reader, lows, beats)
        await asyncio.sleep(1)
        assert await client.report("a", sequencer, START + HOUR) == 1
        assert await client.low("a") == START + HOUR
        await asyncio.sleep(10)

    world = SmallWorld()
    world.run(program)
    assert (lows[0], lows[-1]) == (-(2**63), START + HOUR)
    assert all(later - earlier <= 1.01 for earlier, later in pairwise(beats)), "a beat each second"
    methods = {(tap.method.rsplit("/", 1)[1], tap.direction, type(tap.message)) for tap in taps}
    assert {
        ("Claim", "response", workers_pb2.ClaimResponse),
        ("Report", "request", workers_pb2.ReportRequest),
        ("Watch", "response", watermarks_pb2.WatchResponse),
    } <= methods
    assert not world.sim.errors


def test_refusals_travel_in_the_trailer() -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.do(
                client.workers.Release, workers_pb2.ReleaseRequest(computation="a", sequencer=sequencer + 1)
            )
        trailers: Any = dict(refused.value.trailing_metadata())
        error = wire.error_from_details(trailers["grpc-status-details-bin"])
        assert error is not None
        assert (refused.value.code(), error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_SEQUENCER")

    SmallWorld().run(program)


def test_a_claim_whose_response_was_lost_is_found_by_its_request_id() -> None:
    async def program(world: SmallWorld) -> None:
        client, _ = await ready(world)
        world.sim.network.weather.p_lose_response = 1.0
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await client.claim("a", b"2" * 16)
        assert lost.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        world.sim.network.weather.p_lose_response = 0.0
        records = len(world.disk.logs["a"].records)
        again = await client.claim("a", b"2" * 16)
        assert len(world.disk.logs["a"].records) == records
        assert (await client.claim("a", b"3" * 16)).sequencer > again.sequencer

    SmallWorld().run(program)


def test_what_was_acknowledged_survives_kills_and_power_cuts() -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        world.faults.weather.delay = (0.2, 0.2)
        for hour in range(1, 6):
            assert await client.report("a", sequencer, START + hour * HOUR) == 1
            unanswered = client.report("a", sequencer, START + (hour * HOUR + HOUR // 2))
            # The write is in the cache, and no further.
            await asyncio.sleep(0.3)
            assert world.disk.unsynced == 1
            assert world.server is not None
            world.server.crash()
            world.disk.crash()
            with pytest.raises(grpc.aio.AioRpcError):
                await unanswered
            world.serve()
            await asyncio.sleep(0.1)
            assert await client.low("a") == START + hour * HOUR

    world = SmallWorld()
    world.run(program)
    assert not world.sim.errors


def test_nothing_is_answered_while_the_store_hangs() -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        world.faults.weather.hang = True
        report = client.report("a", sequencer, START, timeout=None)
        await asyncio.sleep(100)
        assert not report.done()
        assert await client.low("a") == -(2**63)
        world.faults.weather.hang = False
        assert await report == 1

    SmallWorld().run(program)


@pytest.mark.parametrize("weak", [False, True])
def test_a_weak_store_loses_advances_but_no_claims(weak: bool) -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        assert await client.report("a", sequencer, START) == 1
        assert world.server is not None
        world.server.crash()
        world.disk.crash()
        world.serve()
        await asyncio.sleep(0.1)
        assert await client.low("a") == (-(2**63) if weak else START)
        assert await client.report("a", sequencer, START + HOUR) == 1
        assert await client.low("a") == START + HOUR

    SmallWorld(weak=weak).run(program)


def test_a_replaced_authority_that_was_frozen_ends_as_a_process_does() -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        old = world.server
        assert old is not None
        old.pause()
        # The newer owner opens the journal, and listens elsewhere in reality: here the address is still taken.
        new = world.serve()
        await asyncio.sleep(1)
        assert isinstance(new.failure, RuntimeError)
        old.resume()
        with pytest.raises(grpc.aio.AioRpcError):
            await client.report("a", sequencer, START)
        await old.ended.wait()
        assert isinstance(old.failure, JournalFenced)

    SmallWorld().run(program)


def test_a_planned_stop_says_goodbye_and_is_served_on_by_the_next() -> None:
    async def program(world: SmallWorld) -> None:
        client, sequencer = await ready(world)
        reader, goodbyes = world.stubs("reader"), []

        async def watch() -> None:
            async for response in reader.watermarks.Watch(watermarks_pb2.WatchRequest()):
                goodbyes.append(response.HasField("go_away"))

        watching = reader.process.start(watch)
        await asyncio.sleep(1)
        assert world.authority is not None
        assert world.server is not None
        world.authority.leave()
        await world.server.ended.wait()
        await watching
        assert goodbyes[-1]
        assert world.server.failure is None
        world.serve()
        await asyncio.sleep(0.1)
        assert await client.report("a", sequencer, START) == 1

    SmallWorld().run(program)


def test_a_method_of_the_base_class_is_not_implemented() -> None:
    """As a server of an older release answers: an unimplemented method is no error of the simulation."""

    async def program(world: SmallWorld) -> None:
        client, _ = await ready(world)
        call = client.channel.unary_unary(
            "/lowwater.v1.TopologyService/Rename",
            request_serializer=topology_pb2.ResetRequest.SerializeToString,
            response_deserializer=topology_pb2.ResetResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.do(call, topology_pb2.ResetRequest())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    world = SmallWorld()
    world.run(program)
    assert not world.sim.errors
