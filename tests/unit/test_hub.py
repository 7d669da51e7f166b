"""How often a subscription is told, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from lowwater import errors
from lowwater._core.attempts import error_of_call
from lowwater._pb.lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.hub import Hub, Subscription
from lowwater_authority.rpc.watermarks import BEAT_SECONDS, MAX_INTERVAL_MILLIS
from tests.simulation.kernel import Simulation
from tests.unit.test_room import serving
from tests.unit.test_shard import Gate

A = Computation(Spec("a")).published
B = Computation(Spec("b")).published


def virtually(story: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
    """Run a story of a hub; an hour of it costs nothing."""
    sim = Simulation(1)
    sim.run(story(Hub(lambda: sim.now)), 3600)


def now() -> float:
    return asyncio.get_running_loop().time()


async def publishing(hub: Hub, seconds: float, every: float = 0.1) -> None:
    """Something changes again and again."""
    ends = now() + seconds
    while now() < ends:
        hub.publish([A])
        await asyncio.sleep(every)


async def heard(subscription: Subscription, until: float, interval: float) -> list[tuple[float, bool]]:
    """When something was told, and whether it was more than a beat."""
    told = []
    while now() < until:
        taken = await subscription.take(BEAT_SECONDS, interval)
        told.append((round(now(), 6), bool(taken)))
    return told


def test_rule7_a_subscription_with_an_interval_is_told_once_in_it() -> None:
    async def story(hub: Hub) -> None:
        calm, eager = hub.subscribe([]), hub.subscribe([])
        busy = asyncio.create_task(publishing(hub, 2.0))
        one, other = await asyncio.gather(heard(calm, 1.9, 0.45), heard(eager, 1.9, 0.0))
        await busy
        assert one == [(0.0, True), (0.45, True), (0.9, True), (1.35, True), (1.8, True), (2.25, True)]
        assert len(other) == 20, "a neighbour is told of each change, as before"
        assert calm.statistics().conflated > 10 > eager.statistics().conflated

    virtually(story)


@pytest.mark.parametrize("interval", [0.0, 0.3, 1.0])
def test_the_longest_interval_leaves_no_silence_longer_than_a_beat(interval: float) -> None:
    async def story(hub: Hub) -> None:
        subscription = hub.subscribe([])
        busy = asyncio.create_task(publishing(hub, 5.0, every=0.7))
        told = await heard(subscription, 9.0, interval)
        await busy
        times = [0.0, *(time for time, _ in told)]
        assert max(after - before for before, after in itertools.pairwise(times)) <= BEAT_SECONDS + 1e-6
        assert sum(news for _, news in told) >= 5
        assert subscription.statistics().waiting == 0

    virtually(story)


def test_what_must_be_told_now_does_not_wait() -> None:
    async def story(hub: Hub) -> None:
        subscription = hub.subscribe([])
        hub.publish([A])
        await subscription.take(BEAT_SECONDS, 1.0)
        hub.publish([B])
        asyncio.get_running_loop().call_later(0.25, hub.wake)
        assert await subscription.take(BEAT_SECONDS, 1.0) == {"b": B}
        assert now() == 0.25
        hub.publish([A])
        assert await subscription.take(BEAT_SECONDS, 1.0) == {"a": A}
        assert now() == 1.25, "it was woken once"

    virtually(story)


def test_who_asked_to_wait_is_not_slow() -> None:
    async def story(hub: Hub) -> None:
        subscription = hub.subscribe([])
        hub.publish([A])
        await subscription.take(BEAT_SECONDS, 0.5)
        hub.publish([A])
        await subscription.take(BEAT_SECONDS, 0.5)
        assert (now(), subscription.waited) == (0.5, 0.0)
        await asyncio.sleep(1)
        hub.publish([A])
        await asyncio.sleep(0.125)  # what gRPC's buffers cost a reader that does not read
        await subscription.take(BEAT_SECONDS, 0.5)
        assert subscription.waited == 0.125

    virtually(story)


async def test_a_stream_has_the_interval_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals: list[float] = []
    take = Subscription.take

    async def noted(self: Subscription, timeout: float, interval: float = 0.0) -> Any:  # noqa: ASYNC109 - as there
        intervals.append(interval)
        return await take(self, timeout, interval)

    monkeypatch.setattr(Subscription, "take", noted)
    async with serving(Gate()) as (_, channel):
        stub: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        watching = stub.Watch(watermarks_pb2.WatchRequest(interval_millis=250))
        assert (await watching.read()).watermarks
        await watching.read()
        assert intervals[:2] == [0.0, 0.25], "the first message waits for nothing"
        with pytest.raises(grpc.RpcError, match="interval_millis") as refused:
            await stub.Watch(watermarks_pb2.WatchRequest(interval_millis=MAX_INTERVAL_MILLIS + 1)).read()
        assert isinstance(error_of_call(refused.value, ""), errors.InvalidArgument)
