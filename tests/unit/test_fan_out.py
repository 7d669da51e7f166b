"""What changes is given to those who follow it, and made into a message once; each stream still hears exactly what it did when each made its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest

from lowwater._pb.lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2
from lowwater_authority.core.computation import Computation, View
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.hub import Hub, Subscription
from lowwater_authority.promises import NOTHING
from lowwater_authority.rpc import codec
from lowwater_authority.rpc import watermarks as rpc_watermarks
from lowwater_authority.rpc.watermarks import WatermarkServicer
from tests.unit.test_promises import GOOD, Served, entry, promises, serving

VIEWS = {name: Computation(Spec(name)).published for name in "abcdef"}


# -- the index -------------------------------------------------------------------------------------------------------------


class Walked:
    """All that follow, each asked about each value, as the oracle."""

    def __init__(self) -> None:
        self.waiting: dict[Subscription, dict[str, View | None]] = {}
        self.names: dict[Subscription, tuple[str, ...]] = {}

    def put(self, name: str, view: View | None) -> None:
        for subscription, names in self.names.items():
            if not names or name in names:
                self.waiting[subscription][name] = view


@pytest.mark.parametrize("seed", range(20))
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


# -- the messages ----------------------------------------------------------------------------------------------------------


class Oracle:
    """Makes what each stream is told a second time, each message anew, as a servicer does that keeps nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: dict[int, list[watermarks_pb2.WatchResponse]] = {}
        """By stream, in the order in which they were opened."""
        self._told: dict[int, dict[str, tuple[int, types_pb2.Promise]]] = {}
        self._streams: list[object] = []
        respond = WatermarkServicer._response

        async def noted(
            servicer: WatermarkServicer,
            taken: Any,
            promised: Any,
            confirmed: int | None = None,
            *others: Any,
            **options: Any,
        ) -> watermarks_pb2.WatchResponse:
            stream = next((i for i, each in enumerate(self._streams) if each is promised), len(self._streams))
            if stream == len(self._streams):
                self._streams.append(promised)
            dropped = options.get("dropped", ())
            until = servicer.services.shard.confirmed if confirmed is None else confirmed
            self.said.setdefault(stream, []).append(self._made(servicer, stream, taken, until, dropped, *others))
            return await respond(servicer, taken, promised, confirmed, *others, **options)

        monkeypatch.setattr(WatermarkServicer, "_response", noted)

    def _made(
        self,
        servicer: WatermarkServicer,
        stream: int,
        taken: dict[str, View | None],
        confirmed: int,
        dropped: Iterable[str],
        unknown: Iterable[types_pb2.Watermark] = (),
    ) -> watermarks_pb2.WatchResponse:
        shard, told = servicer.services.shard, self._told.setdefault(stream, {})
        response = watermarks_pb2.WatchResponse(
            server_token=servicer.services.token, time_micros=confirmed, clock_micros=shard.now
        )
        for name in (*(each.computation for each in unknown), *taken):
            message = codec.watermark_message(name, taken.get(name), shard.topology, shard.epoch(name))
            if not message.registered:
                told.pop(name, None)
            if name in taken and taken[name] is None and name in shard.topology.computations:
                if not shard.tells(name):
                    response.redirects.add(computation=name)
                continue
            if message.registered:
                promise = servicer.services.promises.of(name)
                incarnation, before = told.get(name, (0, NOTHING))
                if promise != before or (promise != NOTHING and incarnation != message.incarnation):
                    message.promise.CopyFrom(promise)
                told[name] = message.incarnation, promise
            response.watermarks.append(message)
        for name in dropped:
            response.dropped.append(codec.watermark_message(name, None, shard.topology, 0))
        return response


def watch(served: Served, *names: str) -> Any:
    return served.watermarks.Watch(watermarks_pb2.WatchRequest(computations=names))


@pytest.mark.parametrize("seed", range(4))
async def test_each_stream_hears_exactly_what_it_would_if_each_message_was_made_anew(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random_, oracle = random.Random(seed), Oracle(monkeypatch)
    async with serving(GOOD) as served:
        graph = served.graph

        async def register(name: str) -> None:
            more: dict[str, Any] = {
                "a": {"heuristics_ppm": [990_000, 500_000], "lateness_budgets_ppm": [10_000]},
                "b": {"inputs": ["a"]},
                "c": {"estimated": True},
            }
            await graph.Register(topology_pb2.RegisterRequest(name=name, **more.get(name, {})))

        registered = {"a", "b", "c"}
        for name in sorted(registered):
            await register(name)
        calls, hour = [], 0
        for step in range(30):
            if step % 5 == 0:
                names = random_.choice([(), ("c",), ("a", "c"), ("c", "b", "a", "nobody"), ("a", "d")])
                calls.append(watch(served, *names))
                heard = [await calls[-1].read()]
                assert heard == oracle.said[len(calls) - 1][:1]
            act, hour = random_.randrange(5), hour + 1
            if act <= 1:
                await served.reach(random_.choice(["a", "c"] if "c" in registered else ["a"]), hour)
            elif act == 2:
                team = random_.choice("xyz")
                text = random_.choice([GOOD, "", entry(computations="'[a-c]'", team=f"'{team}'")])
                served.authority.promise(promises(text))
            elif act == 3:
                await graph.Reset(topology_pb2.ResetRequest(computation="a"))
            elif "c" in registered:
                registered.discard("c")
                await graph.Drop(topology_pb2.DropRequest(computation="c", force=True))
            else:
                registered.add("c")
                await register("c")
        for stream, call in enumerate(calls):
            made = oracle.said[stream][1:]
            assert [await call.read() for _ in made] == made, stream
        assert sum(len(each.watermarks) for made in oracle.said.values() for each in made) > 30


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a message is kept whatever it was made from")
async def test_breaks_when_a_message_is_kept_whatever_it_was_made_from(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    of, kept = rpc_watermarks.Messages.of, dict[str, types_pb2.Watermark]()

    def ever(self: Any, name: str, *made_from: Any) -> types_pb2.Watermark:
        return kept.setdefault(name, of(self, name, *made_from))

    monkeypatch.setattr(rpc_watermarks.Messages, "of", ever)
    await test_each_stream_hears_exactly_what_it_would_if_each_message_was_made_anew(monkeypatch, seed)
