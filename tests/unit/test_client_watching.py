"""The state machine of the watch stream, on made-up clocks."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import grpc
import pytest

from lowwater import Inputs, errors
from lowwater._core import ages, denials
from lowwater._core.backoff import CAP
from lowwater._core.router import MOST_NAMES, Router
from lowwater._core.settings import Settings
from lowwater._core.surroundings import Surroundings
from lowwater._core.watches import BEAT, LATE, SLEW, Changes, FoldChanges, Folding, Subscription, WatchState
from lowwater._pb.lowwater.v1 import types_pb2, watermarks_pb2
from lowwater.views import WatermarkView

WALL = 1_700_000_000.0
"""How far the authority's clock is ahead of this process's monotonic one when a test begins."""


class World:
    """A watch stream and the two clocks at its ends."""

    def __init__(
        self, names: Iterable[str] = ("c",), *, first_release: bool = False, watch_interval: float = 0.0
    ) -> None:
        self.now = 100.0
        self.wall = WALL
        self.first_release = first_release
        self.hangs_since: float | None = None
        settings = Settings("there:1", watch_interval=watch_interval)
        router = Router(settings.addresses, nullcontext())
        self.state = WatchState(settings, Surroundings(lambda: self.now, lambda: 1.0, bytes), router)
        self.subscription = self.state.subscribe(names)
        self.stream = self.state.stream()
        self.asked = self.stream.open("there:1")

    def sent(self, low: int | None = None, *, name: str = "c", incarnation: int = 1) -> watermarks_pb2.WatchResponse:
        """A message that the authority sends now."""
        clock = round((self.now + self.wall) * 1e6)
        message = watermarks_pb2.WatchResponse(server_token="t", time_micros=clock)
        if self.hangs_since is not None:
            message.time_micros = round((self.hangs_since + self.wall) * 1e6)
        if not self.first_release:
            message.clock_micros = clock
        if low is not None:
            message.watermarks.add(computation=name, registered=True, incarnation=incarnation, low_micros=low)
        return message

    def hears(self, low: int | None = None) -> None:
        """A message arrives at once."""
        self.stream.take(self.sent(low))

    @property
    def holding(self) -> bool:
        return self.state.holding([])

    @property
    def stale_for(self) -> float:
        return self.state.stale_for(["c"])


def stalled(seconds: int) -> tuple[World, list[watermarks_pb2.WatchResponse]]:
    """A process that is stopped, and finds a message for every second when it goes on."""
    world = World()
    world.hears(0)
    waiting = []
    for second in range(1, seconds + 1):
        world.now += BEAT
        waiting.append(world.sent(second))
    return world, waiting


# -- how old values are -------------------------------------------------------------------------------------------


def test_rule11_what_was_never_heard_is_infinitely_stale() -> None:
    world = World(("c", "d"))
    assert world.stale_for == float("inf")
    assert world.state.stale_for([]) == 0.0
    world.hears(1)
    assert world.stale_for == 0.0
    world.now += 3.5
    assert world.stale_for == 3.5
    assert world.state.stale_for(["c", "nobody"]) == float("inf")


def test_rule11_messages_from_a_buffer_are_as_old_as_they_are() -> None:
    world, waiting = stalled(60)
    assert world.stale_for == 60.0
    for age, message in zip(range(59, -1, -1), waiting, strict=True):
        world.stream.take(message)
        assert world.stale_for == pytest.approx(age, abs=60 * SLEW)


@pytest.mark.parametrize("first_release", [False, True])
def test_rule11_beats_of_an_authority_whose_journal_hangs_do_not_make_values_fresh(first_release: bool) -> None:
    world = World(first_release=first_release)
    world.hears(1)
    world.hangs_since = world.now
    for second in range(1, 30):
        world.now += BEAT
        world.hears()
        assert world.stale_for == pytest.approx(second)
        assert not world.holding, "nothing newer is about to come"
    world.hangs_since = None
    world.hears()
    assert world.stale_for == pytest.approx(0.0, abs=30 * SLEW)


def stale_after_a_new_stream_while_the_journal_hangs(*, first_release: bool) -> float:
    """How old values seem that are a minute old, to a stream that was opened just now."""
    world = World(first_release=first_release)
    world.hears(1)
    world.hangs_since = world.now
    world.now += 60.0
    world.state.subscribe(["d"])
    world.stream.ended(None)
    world.stream.open("there:1")
    world.hears(1)
    return world.stale_for


def test_rule11_a_new_stream_does_not_make_values_fresh_while_the_journal_hangs() -> None:
    assert stale_after_a_new_stream_while_the_journal_hangs(first_release=False) == pytest.approx(60.0)


@pytest.mark.xfail(strict=True, reason="breaks when messages do not say when they were sent")
def test_rule11_breaks_when_messages_do_not_say_when_they_were_sent() -> None:
    assert stale_after_a_new_stream_while_the_journal_hangs(first_release=True) == pytest.approx(60.0)


def test_rule11_a_faster_message_tells_that_the_same_moment_was_longer_ago() -> None:
    world = World()
    world.hangs_since = world.now
    slow = world.sent(1)
    world.now += LATE
    world.stream.take(slow)
    assert world.stale_for == 0.0
    world.hears()
    assert world.stale_for == pytest.approx(LATE)


def test_rule11_values_are_never_younger_than_now() -> None:
    world = World()
    world.hears(1)
    world.now += 10.0
    ahead = world.sent()
    ahead.time_micros += 3_600_000_000
    world.stream.take(ahead)
    assert world.stale_for == 0.0
    world.now -= 1.0
    assert world.stale_for == 0.0


def test_rule11_a_message_of_a_hanging_authority_still_wakes() -> None:
    """One of its computations moves on while the journal of another hangs: the value counts, its age stands."""
    world = World()
    world.hears(1)
    world.hangs_since = world.now
    world.now += 20.0
    world.hears(7)
    assert shown_by(Changes([]), world) == [7]
    assert world.stale_for == 20.0


def test_the_authoritys_clock_may_jump_forward() -> None:
    world = World()
    world.hears(1)
    world.now += BEAT
    world.wall += 3600.0
    world.hears(2)
    assert world.stale_for == pytest.approx(0.0)
    assert not world.holding
    world.now += BEAT
    world.hears(3)
    assert world.stale_for == pytest.approx(0.0)
    assert not world.holding


def test_a_clock_that_jumped_back_makes_values_seem_older_until_the_drift_caught_up() -> None:
    world = World()
    world.hears(1)
    last = world.sent()
    world.wall -= 10.0
    for second in range(1, 10):  # the authority's own time never goes back: it stands
        world.now += BEAT
        world.stream.take(last)
        assert world.stale_for == pytest.approx(second)
    held = []
    for second in range(2, 20_000):
        world.now += BEAT
        world.hears(second)
        held.append(world.holding)
        assert 0.0 <= world.stale_for <= 10.0 + BEAT
    assert world.stale_for == pytest.approx(0.0, abs=BEAT)
    assert sum(held) <= LATE / BEAT, "iterators wait for a beat, not for the clocks"


@pytest.mark.parametrize("drift", [100e-6, -100e-6])
def test_clocks_may_drift_apart_for_days(drift: float) -> None:
    world = World()
    for _ in range(3 * 24 * 360):
        world.now += 10.0
        world.wall += 10.0 * drift
        world.hears()
        assert world.stale_for < 0.02
        assert not world.holding


def test_each_stream_measures_anew() -> None:
    world = World()
    world.hears(1)
    world.wall -= 500.0  # another authority, on another machine, serves now
    world.stream.ended(None)
    world.stream.open("there:1")
    world.hears(2)
    assert world.stale_for == 0.0
    assert not world.holding


def test_values_of_an_ended_stream_age_from_when_they_were_confirmed() -> None:
    world, waiting = stalled(60)
    world.stream.take(waiting[0])
    world.stream.ended(None)
    assert world.stale_for == pytest.approx(59.0, abs=SLEW)


# -- the newest first ---------------------------------------------------------------------------------------------


def shown_after_a_stall() -> list[int]:
    """What an iteration over changes shows to a subscriber that was stopped for a minute."""
    world, waiting = stalled(60)
    changes = Changes(["c"])
    assert shown_by(changes, world) == [0]
    shown = []
    for message in waiting:
        world.stream.take(message)
        shown += shown_by(changes, world)
    return shown


def shown_by(changes: Changes, world: World) -> list[int]:
    """What an iteration shows now."""
    shown = []
    while changes.come(world.state, world.subscription):
        shown.append(changes.take(world.state).low.micros)
    return shown


@pytest.mark.parametrize(("seconds", "millis"), [(0.0, 0), (0.25, 250), (1.0, 1000)])
def test_every_stream_asks_for_the_interval_of_its_client(seconds: float, millis: int) -> None:
    world = World(watch_interval=seconds)
    assert world.asked.interval_millis == millis
    world.hears(1)
    world.stream.ended(None)
    assert world.stream.open("there:1").interval_millis == millis, "and each after it"


def test_rule7_the_first_value_a_stalled_subscriber_sees_is_the_newest() -> None:
    assert shown_after_a_stall() == [58, 59, 60], "those of the last two beats"


@pytest.mark.xfail(strict=True, reason="breaks when late messages wake")
def test_rule7_breaks_when_late_messages_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages, "LATE", float("inf"))
    assert shown_after_a_stall()[0] >= 58


def test_rule7_a_fold_is_not_shown_while_newer_values_are_about_to_come() -> None:
    world, waiting = stalled(60)
    changes = FoldChanges(Folding({"c": "c"}, None))
    assert changes.come(world.state, world.subscription)
    shown = []
    for message in waiting:
        world.stream.take(message)
        if changes.come(world.state, world.subscription):
            assert changes.newest is not None
            shown.append(changes.newest.low.micros)
    assert shown == [58, 59, 60]
    assert not changes.come(world.state, world.subscription), "that was it"


def test_a_fold_is_computed_when_one_of_its_inputs_changes_and_not_for_its_neighbours() -> None:
    """A chain of stages in one process: each would else compute all the folds of the others."""

    class Counting(Folding):
        folds = 0

        def fold(self, known: WatchState, subscription: Subscription) -> Inputs:
            self.folds += 1
            return super().fold(known, subscription)

    world = World(("a", "b", "c"))
    for name in ("a", "b", "c"):
        world.stream.take(world.sent(1, name=name))
    folding = Counting({"a": "a", "b": "b"}, None)
    changes = FoldChanges(folding)
    assert changes.come(world.state, world.subscription)
    for low in range(2, 20):
        world.stream.take(world.sent(low, name="c"))
        assert not changes.come(world.state, world.subscription)
    assert folding.folds == 1
    for name, shown in (("b", False), ("a", True)):
        world.stream.take(world.sent(2, name=name))
        assert changes.come(world.state, world.subscription) == shown, "the least of both"
    assert folding.folds == 3
    assert changes.newest is not None
    assert changes.newest.low.micros == 2


def test_late_values_are_known_and_shown_when_the_stream_ends() -> None:
    world, waiting = stalled(60)
    changes = Changes([])
    assert shown_by(changes, world) == [0]
    world.stream.take(waiting[10])
    assert world.state.ratchet.get("c").low.micros == 11, "a read, and a wait, may use it"
    assert shown_by(changes, world) == []
    world.stream.ended(None)
    assert shown_by(changes, world) == [11]


def test_rule7_values_that_were_not_taken_are_replaced_in_their_turn() -> None:
    world = World(())
    for name in ("a", "b", "c"):
        world.stream.take(world.sent(1, name=name))
    changes = Changes([])
    assert changes.come(world.state, world.subscription)
    assert changes.take(world.state).computation == "a"
    for name in ("b", "a", "unseen"):
        world.stream.take(world.sent(2, name=name))
    assert shown_by(changes, world) == [2, 1, 2, 2]
    some = Changes(["b", "unseen"])
    assert shown_by(some, world) == [2, 2]
    world.stream.take(world.sent(3, name="a"))
    assert shown_by(some, world) == []


# -- subscriptions ------------------------------------------------------------------------------------------------


def confirmed(*subscriptions: Subscription) -> list[bool]:
    return [each.confirmed for each in subscriptions]


def test_a_subscription_uses_nothing_that_was_heard_while_nobody_followed_it() -> None:
    world = World()
    state, first = world.state, world.subscription
    assert confirmed(first) == [False]
    world.hears(5)
    assert confirmed(first) == [True]
    assert state.subscribe(["c"]).confirmed, "the stream has fresh news"
    world.stream.ended(None)
    later = state.subscribe(["c"])
    world.stream.open("there:1")
    other, every = state.subscribe(["d"]), state.subscribe([])
    assert confirmed(later, other, every) == [False] * 3
    world.stream.take(world.sent(5, incarnation=2))
    assert confirmed(later, other, every) == [True, False, False]
    assert state.ratchet.get("c").incarnation == 2
    state.unsubscribe(other)
    state.unsubscribe(every)
    assert world.stream.renewing
    assert world.stream.ended(None) == 0.0
    assert list(world.stream.open("there:1").computations) == ["c"]


def test_a_stream_follows_what_is_wanted_in_order_or_everything() -> None:
    world = World(("b", "a", "c"))
    assert list(world.stream.open("there:1").computations) == ["a", "b", "c"]
    every = world.state.subscribe([])
    assert world.stream.renewing
    world.stream.ended(None)
    assert list(world.stream.open("there:1").computations) == []
    world.hears(1)
    assert every.confirmed
    assert world.state.subscribe(["anything"]).confirmed, "everything is followed"
    world.state.unsubscribe(every)
    world.state.unsubscribe(world.subscription)
    assert world.stream.wanted


# -- the end of a stream ------------------------------------------------------------------------------------------


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "as asked"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_streams_that_fail_back_off_until_one_lasted() -> None:
    world = World()
    delays = []
    for _ in range(8):
        world.hears()
        delays.append(world.stream.ended(Failed(grpc.StatusCode.UNAVAILABLE)))
        world.stream.open("there:1")
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], "each of them brought something"
    world.now += 2 * CAP
    assert world.stream.ended(Failed(grpc.StatusCode.UNAVAILABLE)) == 5.0, "it brought nothing"
    world.stream.open("there:1")
    world.hears()
    world.now += 2 * CAP
    assert world.stream.ended(None) == 0.1


def test_an_authority_that_goes_away_says_for_how_long() -> None:
    world = World()
    leaving = watermarks_pb2.WatchResponse(server_token="t", go_away=types_pb2.GoAway(retry_after_millis=700))
    assert world.stream.take(leaving)
    assert world.stream.ended(None) == pytest.approx(1.4), "between once and twice as long"


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        (Failed(grpc.StatusCode.UNAVAILABLE), logging.INFO),
        (Failed(grpc.StatusCode.INTERNAL), logging.WARNING),
        (errors.StaleEpoch("an old server"), logging.WARNING),
        (ZeroDivisionError(), logging.ERROR),
    ],
    ids=["away", "internal", "stale epoch", "bug"],
)
def test_watching_goes_on_after_any_failure(failure: Exception, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lowwater")
    world = World()
    assert world.stream.ended(failure) == 0.1
    assert world.state.failure is None
    assert [record.levelno for record in caplog.records] == [level]


def test_another_deployment_ends_the_watching(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.hears(1)
    with pytest.raises(errors.ServerTokenMismatch) as caught:
        world.stream.take(watermarks_pb2.WatchResponse(server_token="other"))
    world.stream.ended(caught.value)
    with pytest.raises(errors.ServerTokenMismatch):
        world.state.check()
    assert "stopped watching" in caplog.text


def test_an_answer_that_is_older_than_a_reset_changes_nothing() -> None:
    world = World()
    world.state.begin([("c", 2)])
    world.hears(9)
    assert world.state.ratchet.get("c").incarnation == 2
    assert world.state.ratchet.get("c").low.unknown
    assert world.state.statistics().held_back == 1


# -- what the caller may not read ---------------------------------------------------------------------------------


def forbidden(name: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(f"no right to {name}", metadata={"computation": name})


def test_rule11_one_forbidden_name_does_not_stop_the_others_of_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    world = World(("c", "secret"))
    denials = world.state.denials
    assert world.stream.ended(forbidden("secret")) == 0.1
    assert list(world.stream.open("there:1").computations) == ["c"]
    mine, its = world.state.subscribe(["c"]), world.state.subscribe(["secret"])
    world.hears(1)
    assert confirmed(mine, its) == [True, False]
    assert world.state.denied(["c"]) is None
    assert world.state.denied([]) is None

    pauses = []
    assert denials in world.state.tend()
    denials.first_pause  # noqa: B018 - as the shells do
    for _ in range(8):
        assert denials.wanted
        assert list(denials.open(denials.address).computations) == ["secret"]
        pauses.append(denials.ended(forbidden("secret")))
        denied = world.state.denied(["c", "secret"])
        assert denied is not None
        assert denied.metadata["computation"] == "secret"
        world.now += pauses[-1]
    assert pauses == [20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "once in a while"
    world.now += 600.0
    denials.open(denials.address)
    denials.ended(forbidden("secret"))
    assert len(caplog.records) == 2

    denials.open(denials.address)
    assert denials.take(world.sent(5, name="secret"))
    denials.ended(None)
    assert not denials.wanted
    assert world.state.denied(["secret"]) is None
    assert world.stream.renewing, "the stream of its shard follows it from now on"
    assert list(world.stream.open("there:1").computations) == ["c", "secret"]


def test_who_follows_what_was_forbidden_is_told_what_is_said_now() -> None:
    """And stops the others as little, however often."""
    world = World(("c", "secret"))
    denials = world.state.denials
    world.stream.ended(forbidden("secret"))
    world.stream.open("there:1")
    world.hears(1)
    assert denials.first_pause == 10.0
    world.state.unsubscribe(world.subscription)
    world.state.subscribe(["c"])
    assert (denials.wanted, denials.hurried) == (False, True), "nobody waits for it, so nobody drives it"
    for _ in range(3):
        again = world.state.subscribe(["secret"])
        assert not world.stream.renewing
        assert world.state.denied(["secret"]) is None, "an old answer is none"
        assert (denials.wanted, denials.hurried) == (True, True)
        assert denials.first_pause == 0.5
        denials.open(denials.address)
        denials.ended(forbidden("secret"))
        assert world.state.denied(["secret"]) is not None
        world.state.unsubscribe(again)


@pytest.mark.parametrize(
    "failure", [Failed(grpc.StatusCode.UNAVAILABLE), errors.Overloaded("later"), ZeroDivisionError(), None]
)
def test_what_may_not_be_asked_stays_forbidden_and_is_asked_again(failure: Exception | None) -> None:
    world = World(("c", "secret"))
    denials = world.state.denials
    world.stream.ended(forbidden("secret"))
    denials.open(denials.address)
    assert denials.ended(failure) == 10.0
    assert denials.wanted
    assert world.state.denied(["secret"]) is not None


def test_a_refusal_of_what_the_stream_does_not_follow_is_waited_out() -> None:
    world = World()
    assert [world.stream.ended(each) for each in (forbidden("d"), errors.PermissionDenied("all"))] == [0.1, 0.2]
    assert list(world.stream.open("there:1").computations) == ["c"]


def taken_by(follow: Callable[[int], object], names: int = 500) -> float:
    """Return how many bytes each name more takes that was followed and is not any more."""
    for number in range(names):
        follow(number)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(names, 2 * names):
            follow(number)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / names
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ends", ["open", "ended", "lost", "redirected", "forbidden"])
def test_rule7_nothing_is_kept_of_a_name_that_nobody_follows_any_more(ends: str) -> None:
    """It never was registered. Beside it somebody follows another name all the time, and is told of it whatever happens to the others."""
    world = World()
    world.hears(1)

    def follow(number: int) -> None:
        name = f"name-{number}-of-nobody"
        subscription = world.state.subscribe([name])
        world.stream.ended(None)
        world.stream.open("there:1")
        if ends == "forbidden":
            world.stream.ended(forbidden(name))
            world.stream.open("there:1")
        message = world.sent(number)
        if ends == "redirected":
            message.redirects.add(computation=name, address="")
        elif ends != "forbidden":
            message.watermarks.add(computation=name)
        world.stream.take(message)
        if ends in ("ended", "lost"):
            world.stream.ended(None if ends == "ended" else errors.Unavailable("it is away"))
        world.state.unsubscribe(subscription)
        if not world.stream.open_now:
            world.stream.open("there:1")
            world.stream.take(world.sent(number))
        assert name not in world.state.ratchet.names

    kept = taken_by(follow)
    assert world.state.ratchet.get("c").low.micros >= 499
    assert world.state.stale_for(["c"]) == 0.0
    if ends == "forbidden":
        assert len(world.state._records) <= MOST_NAMES, (
            "what is forbidden is remembered, as many as one stream may name"
        )
    else:
        assert list(world.state._records) == ["c"]
        # A shard redirects only what is registered, whose number is bounded; its route, with the ownership number, helps all sides.
        assert kept < (250 if ends == "redirected" else 100)


def test_rule7_of_a_name_that_was_registered_only_its_value_and_its_age_are_kept() -> None:
    """So it does not go back, and somebody who follows it again while the authority is away hears since when."""
    world = World(())
    subscription = world.state.subscribe(["d"])
    world.stream.ended(None)
    world.stream.open("there:1")
    message = world.sent(7, name="d")
    world.stream.take(message)
    world.now += 2.0
    world.stream.take(world.sent())
    world.state.unsubscribe(subscription)
    assert not world.state._records
    world.now += 60.0
    world.state.subscribe(["d"])
    assert world.state.stale_for(["d"]) == pytest.approx(60.0)
    world.stream.ended(None)
    world.stream.open("there:1")
    world.stream.take(world.sent(5, name="d"))
    assert world.state.ratchet.get("d").low.micros == 7
    assert world.state.ratchet.held_back == 1


def test_rule7_what_is_asked_of_names_that_nobody_has_is_not_kept() -> None:
    world = World()
    world.hears(1)
    kept = taken_by(lambda number: world.state.admit("t", [WatermarkView(f"name-{number}-of-nobody")]))
    assert kept < 50
    assert set(world.state.ratchet.names) == {"c"}


def test_rule7_no_more_forbidden_names_are_remembered_than_a_stream_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "MOST_NAMES", 10)
    world = World()
    for number in range(50):
        subscription = world.state.subscribe([f"d{number}"])
        world.stream.ended(None)
        world.stream.open("there:1")
        world.stream.ended(forbidden(f"d{number}"))
        world.stream.open("there:1")
        world.state.unsubscribe(subscription)
        assert len(world.state._records) <= 11
    assert world.state.denied(["d49"]) is not None, "the newest is remembered"
