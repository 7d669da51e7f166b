"""What changes is given to those who follow it, and made into a message once, and again when what it was made from is another."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from lowwater._pb.lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2
from lowwater_authority.core.computation import Computation, View
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.hub import Hub, Subscription
from lowwater_authority.rpc import codec
from lowwater_authority.rpc import watermarks as rpc_watermarks
from tests.unit.test_promises import Served, serving

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
    gone: list[Subscription] = []
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
            gone.append(subscription)
        elif act < 0.4 and gone:
            hub.unsubscribe(random_.choice(gone))
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
        assert subscription._pending == waiting
        hub.unsubscribe(subscription)
    assert len(hub) == 0
    assert not hub._by_name, "who has gone leaves no name behind"
    assert not hub._of_everything


def watch(served: Served, *names: str) -> Any:
    return served.watermarks.Watch(watermarks_pb2.WatchRequest(computations=names))


async def test_a_follower_of_everything_is_told_first_what_was_dropped_before_it_came() -> None:
    async with serving(None) as served:
        await served.register("a", "b")
        await served.graph.Drop(topology_pb2.DropRequest(computation="a"))
        for names, dropped in (((), ["a"]), (("b",), [])):
            first = await watch(served, *names).read()
            assert [each.computation for each in first.dropped] == dropped


async def test_a_message_is_made_once_for_all_who_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = codec.watermark_message

    def counted(name: str, *others: Any) -> types_pb2.Watermark:
        made.append(name)
        return make(name, *others)

    async with serving(None) as served:
        await served.register("a", "b")
        monkeypatch.setattr(codec, "watermark_message", counted)
        streams = [watch(served, "a", "b") for _ in range(20)]
        await asyncio.gather(*(each.read() for each in streams))
        assert sorted(made) == ["a", "b"]
        await served.got("a", "b")
        assert sorted(made) == ["a", "b"]
        made.clear()
        served.authority.shard.hub.publish([served.authority.shard.view("a")])  # type: ignore[list-item]
        await asyncio.gather(*(each.read() for each in streams))
        assert made == [], "it is as it was"


async def test_a_message_is_made_again_when_the_graph_says_something_else_of_it() -> None:
    async with serving(None) as served:
        await served.register("a", "b", "c")
        assert list((await served.got("c"))["c"].inputs) == []
        for inputs in (["a"], ["a", "b"], []):
            await served.graph.SetInputs(topology_pb2.SetInputsRequest(computation="c", inputs=inputs))
            assert list((await served.got("c"))["c"].inputs) == inputs


async def test_a_message_is_made_again_when_the_view_alone_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heal of the graph may make an estimate of it, and a renewal of its ownership changes no value."""
    async with serving(None) as served:
        await served.register("c")
        shard = served.authority.shard
        messages, view = rpc_watermarks.Messages(shard), shard.view("c")
        first = messages.of("c", view)
        assert not first.estimated
        with monkeypatch.context() as healed:
            healed.setattr(shard.held, "topology", Topology().register(Spec("c", estimated=True)))
            assert messages.of("c", view).estimated
        with monkeypatch.context() as renewed:
            renewed.setattr(shard, "epoch", lambda _: first.epoch + 1)
            assert messages.of("c", view).epoch == first.epoch + 1
        assert messages.of("c", view) == first


async def test_what_is_kept_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_watermarks, "MOST_KEPT", 3)
    async with serving(None) as served:
        names = [f"c{number}" for number in range(10)]
        await served.register(*names)
        messages = rpc_watermarks.Messages(served.authority.shard)
        for _ in range(2):
            for name in names:
                assert messages.of(name, served.authority.shard.view(name)).computation == name
                assert len(messages._kept) <= 3


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a message is kept whatever it was made from")
async def test_breaks_when_a_message_is_kept_whatever_it_was_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    of, kept = rpc_watermarks.Messages.of, dict[str, types_pb2.Watermark]()

    def ever(self: Any, name: str, *made_from: Any) -> types_pb2.Watermark:
        return kept.setdefault(name, of(self, name, *made_from))

    monkeypatch.setattr(rpc_watermarks.Messages, "of", ever)
    await test_a_message_is_made_again_when_the_view_alone_is_as_it_was(monkeypatch)
