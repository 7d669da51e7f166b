"""What a client does when shards fail, refuse or belong to another deployment: the pure side, on made-up clocks."""

from __future__ import annotations

import threading

import pytest

from lowwater import Settings, errors
from lowwater._core.backoff import PATIENCE
from lowwater._core.lease import LeaseState
from lowwater._core.router import HOME
from lowwater._core.search import Search, Sought
from lowwater._drive.threads.connection import Connection
from lowwater._sync.watcher import Watcher
from tests.kit.client import OfflineClient
from tests.unit.test_client_routing import (
    Failed,
    acknowledge,
    lease,
    located,
    opened,
    sent,
    staged,
    told,
    watching,
    watermark,
)

# -- calls --------------------------------------------------------------------------------------------------------


def test_a_call_waits_a_second_at_most_between_attempts() -> None:
    exchange = OfflineClient().ask(OfflineClient().calls.complete("c", 5))
    assert [exchange.failed(Failed()) for _ in range(8)][-1] == PATIENCE


def test_another_deployment_at_a_home_that_was_only_heard_of_is_a_shard_that_is_gone() -> None:
    client = OfflineClient("a:1")
    client.router.redirected("d", "x:1", 1)
    exchange = client.ask(client.calls.topology())
    assert exchange.next().address == "a:1"
    exchange.failed(Failed())
    assert exchange.next().address == "x:1"
    exchange.failed(Failed("SERVER_TOKEN_MISMATCH"))
    assert exchange.next().address == "a:1"
    with pytest.raises(errors.ServerTokenMismatch):
        exchange.failed(Failed("SERVER_TOKEN_MISMATCH"))


def test_a_read_of_one_never_asks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    client = OfflineClient("a:1")
    exchange = client.ask(client.calls.get(["c"]))
    where = exchange._where

    def moved_meanwhile() -> str:
        address = where()
        client.router.redirected("c", "x:1", 1)  # as a stream's thread may hear at any moment
        return address

    monkeypatch.setattr(exchange, "_where", moved_meanwhile)
    attempt = exchange.next()
    assert (attempt.address, list(attempt.request.computations)) == ("a:1", ["c"])


# -- looking for computations -------------------------------------------------------------------------------------


def test_what_is_to_wait_is_not_asked_about_before() -> None:
    client, found = OfflineClient(), list[Sought]()
    search, lost, other = Search(client.router, client.surroundings, found.append), Sought("c"), Sought("d")
    search.lose(lost, 5.0)
    search.lose(other)
    assert search.first_pause < 1.0
    assert list(search.open("home:1", "t").computations) == ["d"]
    search.take(located(("d", "x:1", 1)))
    assert (found, other.lost, lost.lost) == ([other], False, True)
    assert search.ended(None) == 5.0
    client.clock.now += 5.0
    assert list(search.open("home:1", "t").computations) == ["c"]


def hurried(search: Search[Sought]) -> bool:
    """Asked anew: for a type checker, a property stays as it was."""
    return search.hurried


def paused(client: OfflineClient, seconds: float) -> Search[Sought]:
    """One that waits until an overloaded shard may be asked about."""
    client.router.redirected("c", "busy:1", 1)
    search = Search[Sought](client.router, client.surroundings, lambda _: None)
    search.lose(Sought("c"), seconds)
    assert search.first_pause == seconds
    assert not hurried(search)
    return search


def test_what_is_lost_meanwhile_does_not_wait_for_an_overloaded_shard() -> None:
    client = OfflineClient()
    search = paused(client, 60.0)
    search.lose(Sought("d"))
    assert hurried(search)
    assert search.first_pause <= 1.0, "all clients lose it at one moment, so they ask at different ones"
    assert not hurried(search)
    client.clock.now += 1.0
    assert list(search.open("home:1", "t").computations) == ["d"]


def test_what_another_shard_serves_by_now_does_not_wait_for_the_overloaded_one() -> None:
    client = OfflineClient()
    search = paused(client, 60.0)
    client.router.seen("c", 1)
    assert not hurried(search), "by the same one"
    client.router.redirected("c", "new:1", 2)
    assert hurried(search)
    client.clock.now += search.first_pause
    assert list(search.open("home:1", "t").computations) == ["c"]


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


# -- watching -----------------------------------------------------------------------------------------------------


def test_an_overloaded_shard_is_watched_again_when_it_asked_to() -> None:
    client = OfflineClient()
    client.router.redirected("c", "x:1", 1)
    client.known.subscribe(["c"])
    stream = client.known.stream("x:1")
    stream.open("x:1")
    assert stream.ended(Failed("OVERLOADED", retry_after=5)) == 0.0
    assert client.known.at("c") is None
    assert client.known.search.first_pause == 11.0, "5.5 s, twice"
    assert client.router.place("c") == "x:1", "it is where it was"


def test_an_overloaded_home_stays_home() -> None:
    client = OfflineClient("a:1", "b:1")
    stream = client.known.stream()
    stream.open("a:1")
    assert stream.ended(Failed("OVERLOADED", retry_after=5)) == 11.0
    assert stream.address == "a:1"
    stream.open("a:1")
    stream.ended(Failed())
    assert stream.address == "b:1"


def test_another_deployment_ends_the_watching_only_at_an_address_that_was_given() -> None:
    client = OfflineClient("a:1")
    client.router.redirected("d", "x:1", 1)
    home = client.known.stream()
    home.open("a:1")
    home.ended(Failed())
    assert home.address == "x:1"
    home.open("x:1")
    home.ended(Failed("SERVER_TOKEN_MISMATCH"))
    assert (client.known.failure, home.address) == (None, "a:1")
    home.open("a:1")
    home.ended(Failed("SERVER_TOKEN_MISMATCH"))
    assert isinstance(client.known.failure, errors.ServerTokenMismatch)


def test_a_name_that_comes_back_and_goes_at_once_is_not_younger_for_it() -> None:
    client = OfflineClient()
    watching(client, "c", "d")
    home, there = client.known.stream(), client.known.stream("x:1")
    home.take(told([watermark("c"), watermark("d")]))
    home.take(told(redirects=[("c", "x:1", 2)]))
    there.open("x:1")
    there.take(told([watermark("c", epoch=2)]))
    client.clock.now += 10
    there.ended(Failed())
    there.retire()
    home.take(told(now=client.clock.now))
    client.known.search.open("home:1", "t")
    client.known.search.take(located(("c", "home:1", 3)))
    home.take(told(redirects=[("c", "z:1", 4)], now=client.clock.now))  # sent before home was to follow it again
    assert client.known.stale_for(["c"]) == 10.0


def test_a_watch_stream_that_nobody_needs_is_left() -> None:
    client = OfflineClient()
    client.router.redirected("c", "x:1", 1)
    subscription, other = client.known.subscribe(["c"]), client.known.subscribe(["d"])
    home, there = client.known.stream(), client.known.stream("x:1")
    home.open("home:1")
    home.take(told([watermark("d")]))
    there.open("x:1")
    there.take(told([watermark("c")]))
    client.known.tend()
    client.known.unsubscribe(subscription)
    client.known.unsubscribe(other)
    assert list(client.known.tend()) == [there]
    assert there.interrupted
    assert not home.interrupted, "home is kept for whoever comes next"
    assert there.ended(Failed()) == 0.0, "it was cancelled"
    assert client.router.place("c") == "x:1"


# -- reporting ----------------------------------------------------------------------------------------------------


def reported_elsewhere() -> tuple[OfflineClient, LeaseState]:
    """A lease that is reported to another shard than home."""
    client, state = OfflineClient(), lease()
    client.router.redirected("c", "x:1", 1)
    client.reporting.add(state)
    opened(client, "x:1")
    client.reporting.tend()
    return client, state


def test_a_lease_is_looked_for_though_another_of_its_computation_is_served() -> None:
    client, first = reported_elsewhere()
    staged(client, first, 9, 5)
    client.reporting.stream("x:1").ended(Failed())
    client.reporting.stream("x:1").retire()
    assert client.router.redirected("c", "y:1", 2), "as a claim hears that finds the new shard by itself"
    second = lease(sequencer=2)
    client.reporting.add(second)
    stream = opened(client, "y:1")
    staged(client, second, 9, 5)
    assert sent(client, "y:1", stream)
    acknowledge(client, "y:1", 1)
    assert second.durable == 1
    search = client.reporting.search
    assert list(search.open("home:1", "t").computations) == ["c"]
    search.take(located(("c", "y:1", 2)))
    client.clock.now += 1
    assert sent(client, "y:1", stream)
    acknowledge(client, "y:1", 2)
    assert first.durable == 1


def test_an_overloaded_shard_is_reported_to_again_when_it_asked_to() -> None:
    client, _ = reported_elsewhere()
    assert client.reporting.stream("x:1").ended(Failed("OVERLOADED", retry_after=5)) == 0.0
    assert client.reporting.search.first_pause == 11.0, "5.5 s, twice"
    assert client.router.place("c") == "x:1", "it is where it was"


def test_another_deployment_ends_the_reporting_only_at_an_address_that_was_given() -> None:
    client = OfflineClient("a:1")
    client.router.redirected("d", "x:1", 1)
    client.reporting.add(lease())
    home = client.reporting.stream()
    for address, reason in (("a:1", ""), ("x:1", "SERVER_TOKEN_MISMATCH")):
        assert home.address == address
        home.open(address, "t")
        home.ended(Failed(reason))
    assert (client.reporting.failure, home.address) == (None, "a:1")
    home.open("a:1", "t")
    home.ended(Failed("SERVER_TOKEN_MISMATCH"))
    assert isinstance(client.reporting.failure, errors.ServerTokenMismatch)


@pytest.mark.parametrize("failure", [Failed(), None], ids=["on a thread", "in a task"])
def test_a_report_stream_that_carries_nothing_is_left(failure: Failed | None) -> None:
    client, state = reported_elsewhere()
    there = client.reporting.stream("x:1")
    client.reporting.remove(state)
    assert list(client.reporting.tend()) == [there]
    assert there.interrupted
    assert there.ended(failure) == 0.0, "it was cancelled"
    assert client.router.place("c") == "x:1"
    client.reporting.add(state)
    opened(client, "x:1")
    assert not there.interrupted


def test_a_report_stream_to_home_is_kept_for_the_next_lease() -> None:
    client, state = OfflineClient(), lease()
    client.reporting.add(state)
    opened(client)
    client.reporting.tend()
    client.reporting.remove(state)
    assert not list(client.reporting.tend())
    assert not client.reporting.stream(HOME).interrupted


# -- threads ------------------------------------------------------------------------------------------------------


def test_a_thread_that_cannot_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
