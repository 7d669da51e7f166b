"""Which shard is asked about what, also when shards fail or refuse: the pure side, on made-up clocks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import grpc
import pytest

from lowwater import Settings, errors
from lowwater._drive.threads.connection import Connection
from lowwater._sync.watcher import Watcher
from lowwater.core.backoff import CAP, FIRST, PATIENCE
from lowwater.core.channels import Channels
from lowwater.core.columns import Column
from lowwater.core.exchange import Exchange
from lowwater.core.fold import Fold
from lowwater.core.lease import LeaseState
from lowwater.core.router import HOME, MOST_LEARNT, MOST_NAMES, Router
from lowwater.core.search import Search, Sought
from lowwater.core.watches import Changes, Subscription, WatchStream
from lowwater.v1 import cluster_pb2, errors_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater.views import WatermarkView
from tests.kit.client import OfflineClient


def router_of(*addresses: str) -> Router:
    return Router(addresses, nullcontext())


class Failed(grpc.RpcError):
    def __init__(self, reason: str = "", retry_after: float = 0.0, **metadata: str) -> None:
        self._status = errors_pb2.RpcStatus(code=9, message="refused")
        if reason:
            info = errors_pb2.ErrorInfo(reason=reason, domain="lowwater", metadata=metadata)
            self._status.details.add(
                type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
            )
        if retry_after:
            body = b"\x08%c" % int(retry_after) + b"\x10\x80\xca\xb5\xee\x01"  # and half a second
            self._status.details.add(
                type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\x0a%c" % len(body) + body
            )

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.FAILED_PRECONDITION if self._status.details else grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"

    def trailing_metadata(self) -> tuple[Any, ...]:
        return (("grpc-status-details-bin", self._status.SerializeToString()),)


def moved(name: str, address: str, epoch: int) -> Failed:
    return Failed("MOVED", computation=name, address=address, epoch=str(epoch))


def test_what_has_no_route_is_at_home() -> None:
    router = router_of("a:1", "b:1")
    assert (router.home, router.address_of("c"), router.place("c"), router.several) == ("a:1", "a:1", HOME, True)
    assert not router_of("a:1", "a:1").several
    assert router.redirected("c", "b:1", 3)
    assert (router.address_of("c"), router.place("c"), router.epoch_of("c")) == ("b:1", "b:1", 3)
    assert router.redirected("c", "a:1", 3)
    assert router.place("c") == HOME, "one stream to a shard"


class Gullible(Router):
    def redirected(self, name: str, address: str, epoch: int) -> bool:
        self._route(name).epoch = 0
        return super().redirected(name, address, epoch)


@pytest.mark.parametrize(
    "kind",
    [
        Router,
        pytest.param(Gullible, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason="rule 9 is off")),
    ],
)
def test_rule9_a_redirect_to_a_lower_number_is_not_followed(kind: type[Router]) -> None:
    router = kind(("a:1",), nullcontext())
    router.note_epoch("c", 5)
    router.note_epoch("c", 4)
    assert not router.redirected("c", "old:1", 4)
    assert (router.address_of("c"), router.refused, router.epoch_of("c")) == ("a:1", 1, 5)


def test_shards_heard_of_are_tried_in_turn_those_that_failed_last_at_the_end() -> None:
    router = router_of("a:1")
    for address in ("x:1", "y:1", "z:1"):
        router.redirected("c", address, 1)
    router.failed("x:1")
    assert turns(router, 9) == ["a:1", "y:1", "a:1", "z:1", "a:1", "x:1", "a:1", "y:1", "a:1"]
    assert not router.configured("x:1")
    assert router.configured("a:1")


def turns(router: Router, count: int) -> list[str]:
    homes = []
    for _ in range(count):
        homes.append(router.home)
        router.failed(router.home)
    return homes


def test_shards_that_come_and_go_leave_no_trace() -> None:
    router = router_of("a:1")
    for number in range(100):
        assert router.redirected("c", f"pod-{number}:1", number)
        assert router.lead_to(f"pod-{number}:1")
    assert not router.lead_to("pod-98:1")
    assert len(router.learnt) == MOST_LEARNT


def test_rule7_a_channel_that_nobody_uses_and_no_route_leads_to_is_taken_out_to_be_closed() -> None:
    router = router_of("home:1")
    router.redirected("c", "led:1", 1)
    channels = Channels[grpc.Channel](router)
    for address in ("home:1", "led:1", "used:1", "gone:1"):
        channels.use(address, None, grpc.insecure_channel).users -= address != "used:1"
    unused = channels.by_address["gone:1"]
    assert channels.unused() == [unused]
    assert [*channels.by_address] == ["home:1", "led:1", "used:1"]
    for used in (unused, *channels.clear()):
        used.channel.close()


def watermark(name: str, low: int = 0, epoch: int = 1) -> types_pb2.Watermark:
    return types_pb2.Watermark(computation=name, registered=True, incarnation=1, epoch=epoch, low_micros=low)


def located(*redirects: tuple[str, str, int]) -> cluster_pb2.LocateResponse:
    places = [types_pb2.Redirect(computation=name, address=at, epoch=epoch) for name, at, epoch in redirects]
    return cluster_pb2.LocateResponse(server_token="t", redirects=places)


def asks(exchange: Exchange[Any]) -> tuple[str, str]:
    attempt = exchange.next()
    return attempt.address, type(attempt.request).__name__.removesuffix("Request")


def test_a_redirect_is_followed_at_once_and_the_third_waits() -> None:
    client = OfflineClient()
    exchange = client.ask(client.calls.release("c", 1))
    trail, delays = [], []
    for address in ("x:1", "y:1", "x:1", "y:1"):
        while asks(exchange)[1] == "Locate":
            exchange.take(located(("c", client.router.address_of("c"), 1)))
        trail.append(asks(exchange)[0])
        delays.append(exchange.failed(moved("c", address, 1)))
    assert trail == ["home:1", "x:1", "y:1", "x:1"]
    assert delays == [0.0, FIRST, 0.0, 2 * FIRST]


@pytest.mark.parametrize("redirect", [("", 5), ("old:1", 3)], ids=["nowhere", "a lower number"])
def test_a_redirect_that_leads_nowhere_asks_home_with_the_number_seen(redirect: tuple[str, int]) -> None:
    client = OfflineClient()
    client.router.redirected("c", "x:1", 4)
    exchange = client.ask(client.calls.claim(workers_pb2.ClaimRequest(computation="c"), lambda answer: answer.epoch))
    assert asks(exchange) == ("x:1", "Claim")
    assert exchange.failed(moved("c", *redirect)) == 0.0
    request = exchange.next().request
    assert (asks(exchange), list(request.computations)) == (("home:1", "Locate"), ["c"])
    assert list(request.epochs) == [max(4, redirect[1])]
    assert exchange.take(located(("c", "y:1", 6))) == FIRST, "then the backoff"
    assert asks(exchange) == ("y:1", "Claim")
    assert exchange.take(workers_pb2.ClaimResponse(server_token="t", epoch=7)) is None
    assert (exchange.result, client.router.epoch_of("c")) == (7, 7)
    client.clock.now += 20
    with pytest.raises(errors.Unavailable, match=r"no shard answered for c in time.*refused"):
        exchange.failed(moved("c", "", 7))


def test_an_overloaded_shard_keeps_its_callers_for_later() -> None:
    client = OfflineClient("a:1", "b:1")
    client.router.redirected("c", "x:1", 1)
    exchange = client.ask(client.calls.complete("c", 5))
    assert exchange.failed(Failed("OVERLOADED", retry_after=2)) == 5.0, "2.5 s, twice"
    assert asks(exchange)[0] == "x:1"
    with pytest.raises(errors.Overloaded) as refused:
        exchange.failed(Failed("OVERLOADED", retry_after=5))
    assert refused.value.retry_after == 5.5


def test_an_answer_of_a_shard_that_was_replaced_is_asked_again() -> None:
    client = OfflineClient()
    client.known.admit("t", [])
    first = watermarks_pb2.GetWatermarksResponse(server_token="t", watermarks=[watermark("c", 5, epoch=3)])
    stale = watermarks_pb2.GetWatermarksResponse(server_token="t", watermarks=[watermark("c", 9, epoch=2)])
    exchange = client.ask(client.calls.get(["c"]))
    exchange.next()
    assert exchange.take(first) is None
    exchange = client.ask(client.calls.get(["c"]))
    exchange.next()
    assert exchange.take(stale) == 0.0
    assert asks(exchange) == ("home:1", "Locate")
    assert list(exchange.next().request.epochs) == [3]
    assert exchange.take(located(("c", "x:1", 4))) == FIRST
    assert asks(exchange) == ("x:1", "GetWatermarks")
    client.clock.now += 20
    with pytest.raises(errors.StaleEpoch):
        exchange.take(stale)


def news(
    watermarks: Iterable[types_pb2.Watermark] = (), redirects: Sequence[tuple[str, str, int]] = (), now: float = 100.0
) -> watermarks_pb2.WatchResponse:
    message = watermarks_pb2.WatchResponse(server_token="t", watermarks=watermarks, time_micros=round(now * 1e6))
    message.clock_micros = message.time_micros
    for name, address, epoch in redirects:
        message.redirects.add(computation=name, address=address, epoch=epoch)
    return message


def tended(client: OfflineClient) -> list[str]:
    return [
        type(step).__name__ + ":" + step.key
        for step in client.known.placement.tend()
        if isinstance(step, WatchStream | Search)
    ]


def watching(client: OfflineClient, *names: str) -> Any:
    subscription = client.known.subscribe(names)
    client.known.placement.stream().open("home:1")
    client.known.placement.tend()
    return subscription


def test_an_authority_that_cannot_be_asked_where_things_are_is_asked_for_them() -> None:
    client = OfflineClient()
    watching(client, "c")
    home = client.known.placement.stream()
    home.take(news([watermark("c", 5, epoch=3)]))
    home.take(news([watermark("c", 5, epoch=2)]))
    search = client.known.placement.search
    search.open("home:1", "t")
    search.ended(errors.LowwaterError("Method not found!", reason="UNIMPLEMENTED"))
    assert (client.known.placement.at("c"), home.interrupted, search.needed) == (HOME, True, False)


def test_rule11_a_message_that_redirects_everything_is_no_news() -> None:
    client = OfflineClient()
    subscription = watching(client, "c", "d")
    assert client.known.placement.stream().take(news(redirects=[("c", "x:1", 1), ("d", "x:1", 1)])), "none is left here"
    assert not subscription.confirmed
    assert client.known.stale_for(["c"]) == client.known.stale_for(["d"]) == float("inf")
    assert not client.known.placement.stream().needed
    assert "WatchStream:x:1" in tended(client)
    away = client.known.placement.stream("x:1")
    assert list(away.open("x:1").computations) == ["c", "d"]
    away.take(news([watermark("c", 5), watermark("d", 6)]))
    assert subscription.confirmed
    assert client.known.stale_for(["c", "d"]) == 0.0


def test_a_fold_over_two_shards_is_fresh_when_both_are() -> None:
    client = OfflineClient()
    subscription = watching(client, "c", "d")
    home = client.known.placement.stream()
    assert not home.take(news([watermark("c", 5)], [("d", "x:1", 1)]))
    assert not subscription.confirmed
    away = client.known.placement.stream("x:1")
    away.open("x:1")
    client.clock.now += 10
    away.take(news([watermark("d", 5)], now=client.clock.now))
    assert not subscription.confirmed, "home was heard long ago"
    home.take(news(now=client.clock.now))
    assert subscription.confirmed
    client.clock.now += 3
    home.take(news(now=client.clock.now))
    assert (client.known.stale_for(["c"]), client.known.stale_for(["d"])) == (0.0, 3.0)


def test_streams_that_redirect_in_circles_back_off() -> None:
    client = OfflineClient()
    watching(client, "c")
    search, delays, at = client.known.placement.search, [], "home:1"
    for _ in range(4):
        while (key := client.known.placement.at("c")) is not None:
            stream = client.known.placement.stream(key)
            at = key or "home:1"
            stream.open(at)
            stream.take(news(redirects=[("c", "y:1" if at == "x:1" else "x:1", 1)]))
            stream.ended(None)
        delays.append(search.first_pause)
        search.open("home:1", "t")
        search.take(located(("c", "x:1", 1)))
        search.ended(None)
    assert delays == sorted(delays)
    assert delays[-1] > 4 * delays[0]
    stream = client.known.placement.stream("x:1")
    stream.open("x:1")
    stream.take(news([watermark("c")]))
    assert search.suspects, "it may fail again at once"
    client.clock.now += 2 * CAP
    stream.take(news(now=client.clock.now))
    assert not search.suspects


def world_of_before() -> list[WatermarkView]:
    return [WatermarkView("b", registered=True, incarnation=1, epoch=1)]


def shown(changes: Changes, client: OfflineClient, subscription: Subscription) -> list[str]:
    names = []
    while changes.come(client.known, subscription):
        names.append(changes.take(client.known).computation)
    return names


@pytest.mark.parametrize("followed", [(), ("a", "b")], ids=["everything", "by name"])
def test_what_nobody_serves_does_not_keep_the_others_from_being_shown(followed: tuple[str, ...]) -> None:
    """The last value may be of an incarnation that has ended (rule 3): it is not shown before a shard serves the computation."""
    client = OfflineClient()
    client.known.admit("t", world_of_before())
    subscription = watching(client, *followed)
    home = client.known.placement.stream()
    assert not home.take(news([watermark("a", 5)], [("b", "", 1)]))
    changes = Changes(followed)
    assert shown(changes, client, subscription) == ["a"]
    assert not subscription.confirmed, "a fold needs both"
    assert client.known.statistics().unserved == ("b",)
    client.clock.now += 1
    home.take(news([watermark("a", 6)], now=client.clock.now))
    assert shown(changes, client, subscription) == ["a"]
    home.take(news([watermark("b", 7, epoch=2)], now=client.clock.now))
    assert shown(changes, client, subscription) == ["b"]
    assert subscription.confirmed
    assert client.known.statistics().unserved == ()
    client.clock.now += 1
    home.take(news(redirects=[("b", "", 2)], now=client.clock.now))
    assert client.known.statistics().unserved == ("b",)
    home.take(news([watermark("a", 7)], now=client.clock.now))
    assert shown(changes, client, subscription) == ["a"]


def test_more_names_than_a_request_takes_are_followed_without_names() -> None:
    client = OfflineClient()
    watching(client)
    names = [f"c{number}" for number in range(MOST_NAMES + 1)]
    client.known.placement.stream().take(news(redirects=[(name, "x:1", 1) for name in names]))
    away = client.known.placement.stream("x:1")
    assert not away.open("x:1").computations
    assert not away.take(news([watermark(name, 5) for name in names], [("a", "home:1", 1)]))
    assert client.known.stale_for(names) == 0.0
    assert client.known.placement.at("a") == HOME


def test_everything_is_followed_by_name_where_home_redirects_it() -> None:
    client = OfflineClient()
    client.known.admit("t", world_of_before())
    every = watching(client)
    home = client.known.placement.stream()
    assert not home.take(news([watermark("a")], [("b", "x:1", 1), ("c", "x:1", 1)]))
    assert not every.confirmed, "what is known of b may be of an incarnation that has ended"
    away = client.known.placement.stream("x:1")
    assert list(away.open("x:1").computations) == ["b", "c"]
    away.take(news([watermark("b"), watermark("c")]))
    assert every.confirmed
    home.take(news([watermark("b", 5, epoch=2)]))
    assert (client.known.placement.at("b"), client.known.placement.at("c")) == (HOME, "x:1"), "it came back"
    away.ended(Failed())
    assert client.known.placement.at("c") is None
    home.take(news([watermark("c", 5, epoch=2)]))
    assert client.known.placement.at("c") == HOME
    assert not client.known.placement.search.needed
    assert not away.needed
    away.retire()
    assert client.known.placement.stream("x:1") is not away, "nothing is kept of it"


def lease(computation: str = "c", sequencer: int = 1) -> LeaseState:
    return LeaseState(computation, sequencer, Column(3, 0), reference=0)


def staged(client: OfflineClient, state: LeaseState, low: int, oldest: dict[int, int] | int) -> None:
    state.advance(Fold(low, ()), oldest, now=0.0)
    client.reporting.staged(state)
    client.reporting.hurry(state)


def opened(client: OfflineClient, key: str = HOME) -> int:
    number, _ = client.reporting.stream(key).open(key or "home:1", "t")
    client.reporting.stream(key).take(workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token="t")))
    return number


def sent(client: OfflineClient, key: str, stream: int) -> list[workers_pb2.GroupReport]:
    due = client.reporting.stream(key).due(stream)
    assert due is not None
    return [group for message in due.messages for group in message.report.groups]


def acknowledge(client: OfflineClient, key: str, number: int, *redirects: tuple[str, str, int]) -> bool:
    ack = workers_pb2.ReportAck(number=number)
    for name, address, epoch in redirects:
        redirect = types_pb2.Redirect(computation=name, address=address, epoch=epoch)
        ack.refused.add(computation=name, sequencer=1, reason="MOVED", redirect=redirect)
    return client.reporting.stream(key).take(workers_pb2.ReportResponse(ack=ack))


def test_rule8_a_lease_moves_with_its_full_state() -> None:
    client = OfflineClient()
    state, other = lease(), lease("d")
    client.reporting.add(state)
    client.reporting.add(other)
    stream = opened(client)
    staged(client, state, 9, 5)
    assert len(sent(client, HOME, stream)) == 1
    staged(client, state, 9, {1: 6})
    assert sent(client, HOME, stream) == [], "it waits for the acknowledgement"
    assert not acknowledge(client, HOME, 1)
    assert (state.durable, state.version) == (1, 2)
    [delta] = sent(client, HOME, stream)
    assert list(delta.handles) == [1]
    assert not acknowledge(client, HOME, 2, ("c", "x:1", 1)), "the other lease stays"
    assert (state.durable, state.answered) == (1, 1), "the second state was taken over by nobody"
    away = opened(client, "x:1")
    [group] = sent(client, "x:1", away)
    assert (list(group.handles), list(group.watermarks_micros)) == ([], [5, 6, 5])
    assert not acknowledge(client, "x:1", 1)
    assert state.durable == 2


def test_rule2_an_answer_to_a_report_before_the_lease_moved_says_nothing_of_it() -> None:
    """The answer to a message comes that carried the lease before it left and came back."""
    client = OfflineClient(words=2)
    state, other = lease(), lease("d")
    client.reporting.add(state)
    client.reporting.add(other)
    stream = opened(client)
    staged(client, state, 9, {0: 5, 1: 6, 2: 7})
    assert len(sent(client, HOME, stream)) == 3
    acknowledge(client, HOME, 1, ("c", "x:1", 1))  # the first message was refused; the others are on their way
    away = opened(client, "x:1")
    assert sent(client, "x:1", away)
    client.reporting.served("c")
    acknowledge(client, "x:1", 1, ("c", "home:1", 2))
    acknowledge(client, HOME, 3)
    assert (state.durable, state.answered) == (0, 0)


def test_rule7_nothing_is_kept_of_a_computation_that_is_not_reported_any_more() -> None:
    client = OfflineClient()
    for number, lost in enumerate((False, True), 1):
        state = lease(f"c{number}", number)
        client.reporting.add(state)
        if lost:
            client.reporting.lose(client.reporting.stream(), 0.0)
            assert client.reporting.search.needed
        client.reporting.remove(state)
    assert not client.reporting.search.needed
    assert not client.reporting.search.suspects
    assert not client.reporting.computations


def test_a_call_waits_a_second_at_most_between_attempts() -> None:
    exchange = OfflineClient().ask(OfflineClient().calls.complete("c", 5))
    assert [exchange.failed(Failed()) for _ in range(8)][-1] == PATIENCE


def hurried(search: Search[Sought]) -> bool:
    return search.hurried


def test_an_overloaded_home_is_not_asked_before_and_another_one_is() -> None:
    client = OfflineClient("home:1", "other:1")
    search = Search[Sought](client.router, client.surroundings, lambda _: None)
    search.lose(Sought("c"))
    search.open("home:1", "t")
    assert search.ended(Failed("OVERLOADED", retry_after=60)) == 121.0, "60.5 s, twice"
    search.lose(Sought("d"))
    assert not hurried(search)
    assert search.first_pause == 121.0
    client.router.failed("home:1")
    assert hurried(search)
    assert search.first_pause <= 1.0


def test_what_another_shard_serves_by_now_does_not_wait_for_the_overloaded_one() -> None:
    client = OfflineClient()
    client.router.redirected("c", "busy:1", 1)
    search = Search[Sought](client.router, client.surroundings, lambda _: None)
    search.lose(Sought("c"), 60.0)
    assert search.first_pause == 60.0
    client.router.redirected("c", "new:1", 2)
    assert hurried(search)
    client.clock.now += search.first_pause
    assert list(search.open("home:1", "t").computations) == ["c"]


@pytest.mark.parametrize(("name", "token"), [("known", ()), ("reporting", ("t",))], ids=["watching", "reporting"])
def test_another_deployment_ends_it_only_at_an_address_that_was_given(name: str, token: tuple[str, ...]) -> None:
    client = OfflineClient("a:1")
    client.router.redirected("d", "x:1", 1)
    side: Any = getattr(client, name)
    home = getattr(side, "placement", side).stream()
    home.open("a:1", *token)
    home.ended(Failed())
    assert home.address == "x:1"
    home.open("x:1", *token)
    home.ended(Failed("SERVER_TOKEN_MISMATCH"))
    assert (side.failure, home.address) == (None, "a:1")
    home.open("a:1", *token)
    home.ended(Failed("SERVER_TOKEN_MISMATCH"))
    assert isinstance(side.failure, errors.ServerTokenMismatch)


def test_a_watch_stream_that_nobody_needs_is_left() -> None:
    client = OfflineClient()
    client.router.redirected("c", "x:1", 1)
    subscription, other = client.known.subscribe(["c"]), client.known.subscribe(["d"])
    home, away = client.known.placement.stream(), client.known.placement.stream("x:1")
    home.open("home:1")
    home.take(news([watermark("d")]))
    away.open("x:1")
    away.take(news([watermark("c")]))
    client.known.placement.tend()
    client.known.unsubscribe(subscription)
    client.known.unsubscribe(other)
    assert list(client.known.placement.tend()) == [away]
    assert away.interrupted
    assert not home.interrupted, "home is kept for whoever comes next"
    assert away.ended(Failed()) == 0.0, "it was cancelled"
    assert client.router.place("c") == "x:1"


def reported_elsewhere() -> tuple[OfflineClient, LeaseState]:
    client, state = OfflineClient(), lease()
    client.router.redirected("c", "x:1", 1)
    client.reporting.add(state)
    opened(client, "x:1")
    client.reporting.tend()
    return client, state


def test_an_overloaded_shard_is_asked_again_when_it_said() -> None:
    client, _ = reported_elsewhere()
    client.known.subscribe(["c"])
    client.known.placement.stream("x:1").open("x:1")
    for side in (client.known.placement, client.reporting):
        assert side.stream("x:1").ended(Failed("OVERLOADED", retry_after=5)) == 0.0
        assert side.search.first_pause == 11.0, "5.5 s, twice"
        assert client.router.place("c") == "x:1", "it is where it was"


def test_a_thread_that_fails_starts_later(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    watcher, room, started = Watcher(Connection(Settings("a:1"))), [False], list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if not room[0]:
            raise RuntimeError("can't start new thread")
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="start new thread"):
        watcher.subscribe(["c"])  # nobody would try again
    room[0] = True
    watcher.subscribe(["d"])
    assert len(started) == 1
    room[0] = False
    watcher.state.router.redirected("e", "x:1", 1)
    watcher.subscribe(["e"])
    assert "a thread lowwater-watch could not be started" in caplog.text
    assert len(started) == 1
    room[0] = True
    with watcher.changed:
        watcher.tend()
    assert len(started) == 2
