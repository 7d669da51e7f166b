"""A change goes to those who follow it, and becomes a message once, and again when the state that it was made from is another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.core.computation import Computation, View
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.hub import Hub, Subscription
from lowwater_authority.rpc import watermarks as rpc_watermarks
from lowwater_authority.rpc.watermarks import BEAT_SECONDS, MAX_INTERVAL_MILLIS
from tests.kit.shards import Deployment
from tests.simulation.kernel import Simulation
from tests.unit.test_promises import Served, serving
from tests.unit.test_room import serving as streaming
from tests.unit.test_shard import Gate

VIEWS = {name: Computation(Spec(name)).published for name in "abcdef"}


class Walked:
    """All that follow, each asked about each value, as the oracle."""

    def __init__(self) -> None:
        self.waiting: dict[Subscription, dict[str, View | None]] = {}
        self.names: dict[Subscription, tuple[str, ...]] = {}

    def put(self, name: str, view: View | None) -> None:
        for subscription, names in self.names.items():
            if not names or name in names:
                self.waiting[subscription][name] = view


@pytest.mark.parametrize("seed", range(5))
async def test_each_subscription_gets_what_it_follows_and_nothing_else(seed: int) -> None:
    random_, hub, oracle = random.Random(seed), Hub(), Walked()
    ended: list[Subscription] = []
    for _ in range(300):
        act = random_.random()
        if act < 0.2:
            names = tuple(random_.choices("abcdef", k=random_.randrange(5)))  # the same twice, too, and none
            subscription = hub.subscribe(names)
            oracle.names[subscription], oracle.waiting[subscription] = names, {}
        elif act < 0.3 and oracle.names:
            subscription = random_.choice(list(oracle.names))
            hub.unsubscribe(subscription)
            del oracle.names[subscription]
            ended.append(subscription)
        elif act < 0.4 and ended:
            hub.unsubscribe(random_.choice(ended))
        elif act < 0.5:
            name = random_.choice("abcdef")
            hub.move(name)
            oracle.put(name, None)
        elif act < 0.8:
            names = tuple(random_.sample("abcdef", 2))
            hub.publish(VIEWS[name] for name in names)
            for name in names:
                oracle.put(name, VIEWS[name])
        elif oracle.names:
            subscription = random_.choice(list(oracle.names))
            if oracle.waiting[subscription]:
                assert list((await subscription.take(0)).items()) == list(oracle.waiting[subscription].items())
                oracle.waiting[subscription] = {}
        assert len(hub) == len(oracle.names)
    for subscription, waiting in oracle.waiting.items():
        assert await subscription.take(0) == waiting
        hub.unsubscribe(subscription)
    assert len(hub) == 0
    assert not hub._by_name, "who has gone leaves no name behind"
    assert not hub._of_everything


async def test_what_waits_is_as_old_as_its_first_change() -> None:
    clock = [3.0]
    hub = Hub(lambda: clock[0])
    subscription = hub.subscribe([])
    for waits in (2.0, 0.5):
        for name in "ab":
            hub.publish([VIEWS[name]])
            clock[0] += waits / 2
        await subscription.take(0)
        assert subscription.waited == waits


def watch(served: Served, *names: str) -> Any:
    return served.watermarks.Watch(watermarks_pb2.WatchRequest(computations=names))


async def test_a_follower_of_everything_is_told_first_what_was_dropped_before_it_came() -> None:
    async with serving(None) as served:
        await served.register("a", "b")
        await served.graph.Drop(topology_pb2.DropRequest(computation="a"))
        for names, dropped in (((), ["a"]), (("b",), [])):
            first = await watch(served, *names).read()
            assert [mark.computation for mark in first.dropped] == dropped


async def test_a_message_is_made_again_when_the_graph_says_something_else_of_it() -> None:
    async with serving(None) as served:
        await served.register("a", "b", "c")
        assert list((await served.got("c"))["c"].inputs) == []
        for inputs in (["a"], ["a", "b"], []):
            await served.graph.SetInputs(topology_pb2.SetInputsRequest(computation="c", inputs=inputs))
            assert list((await served.got("c"))["c"].inputs) == inputs


async def test_a_message_is_made_again_when_the_view_alone_is_as_it_was(deployment: Deployment) -> None:
    """A heal of the graph may make an estimate of it, and a renewal of its ownership changes no value."""
    shard = (await deployment.start("one:1")).shard
    await shard.graph.register(Spec("c"))
    messages, view = rpc_watermarks.Messages(shard), shard.served.view("c")
    first = messages.of("c", view)
    assert not first.estimated
    await shard.confirmation.rise("c", first.epoch + 1)
    assert messages.of("c", view).epoch > first.epoch
    shard.held.graph.use(Topology().register(Spec("c", estimated=True)))
    assert messages.of("c", view).estimated


async def test_what_is_kept_of_messages_is_bounded() -> None:
    async with serving(None) as served:
        names = [f"c{number}" for number in range(10)]
        await served.register(*names)
        messages = rpc_watermarks.Messages(served.authority.shard, most=3)
        for _ in range(2):
            for name in names:
                assert messages.of(name, served.authority.shard.served.view(name)).computation == name
                assert len(messages) <= 3


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a message is kept whatever it was made from")
async def test_breaks_when_messages_are_kept_blindly(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    build, cache = rpc_watermarks.Messages.of, dict[str, types_pb2.Watermark]()

    def ever(self: Any, name: str, *made_from: Any) -> types_pb2.Watermark:
        return cache.setdefault(name, build(self, name, *made_from))

    monkeypatch.setattr(rpc_watermarks.Messages, "of", ever)
    await test_a_message_is_made_again_when_the_view_alone_is_as_it_was(deployment)


A = Computation(Spec("a")).published
B = Computation(Spec("b")).published


def virtually(story: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
    sim = Simulation(1)
    sim.run(story(Hub(lambda: sim.now)), 3600)


def now() -> float:
    return asyncio.get_running_loop().time()


async def publishing(hub: Hub, seconds: float, every: float = 0.1) -> None:
    ends = now() + seconds
    while now() < ends:
        hub.publish([A])
        await asyncio.sleep(every)


async def heard(subscription: Subscription, until: float, interval: float) -> list[tuple[float, bool]]:
    times = []
    while now() < until:
        batch = await subscription.take(BEAT_SECONDS, interval)
        times.append((round(now(), 6), bool(batch)))
    return times


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


async def test_a_stream_has_the_interval_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals: list[float] = []
    take = Subscription.take

    async def noted(self: Subscription, timeout: float, interval: float = 0.0) -> Any:  # noqa: ASYNC109 - as there
        intervals.append(interval)
        return await take(self, timeout, interval)

    monkeypatch.setattr(Subscription, "take", noted)
    async with streaming(Gate()) as (_, channel):
        stub: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        watching = stub.Watch(watermarks_pb2.WatchRequest(interval_millis=250))
        assert (await watching.read()).watermarks
        await watching.read()
        assert intervals[:2] == [0.0, 0.25], "the first message waits for nothing"
        with pytest.raises(grpc.RpcError, match="interval_millis") as refused:
            await stub.Watch(watermarks_pb2.WatchRequest(interval_millis=MAX_INTERVAL_MILLIS + 1)).read()
        assert isinstance(error_of_call(refused.value, ""), errors.InvalidArgument)
