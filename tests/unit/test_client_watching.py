"""The state machine of the watch stream, and who may use which news, on made-up clocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from lowwater import Inputs, errors
from lowwater.core.backoff import CAP
from lowwater.core.router import MOST_NAMES
from lowwater.core.watches import BEAT, SLEW, Changes, FoldChanges, Folding, Subscription, Waiting, WatchState
from lowwater.v1 import types_pb2, watermarks_pb2
from tests.kit.client import OfflineClient
from tests.unit.test_client_routing import Failed

WALL = 1_700_000_000.0
"""The authority's clock minus this process's monotonic one when a test begins, in seconds."""


class Following(OfflineClient):
    """A client with a watch stream, and the clock at the stream's other end."""

    def __init__(
        self, names: Iterable[str] = ("c",), *, first_release: bool = False, watch_interval: float = 0.0
    ) -> None:
        super().__init__("there:1", watch_interval=watch_interval)
        self.wall = WALL
        self.first_release = first_release
        self.hangs_since: float | None = None
        self.subscription = self.known.subscribe(names)
        self.stream = self.known.placement.stream()
        self.request = self.stream.open("there:1")

    def sent(self, low: int | None = None, *, name: str = "c", incarnation: int = 1) -> watermarks_pb2.WatchResponse:
        clock = round((self.clock.now + self.wall) * 1e6)
        message = watermarks_pb2.WatchResponse(server_token="t", time_micros=clock)
        if self.hangs_since is not None:
            message.time_micros = round((self.hangs_since + self.wall) * 1e6)
        if not self.first_release:
            message.clock_micros = clock
        if low is not None:
            message.watermarks.add(computation=name, registered=True, incarnation=incarnation, low_micros=low)
        return message

    def hears(self, low: int | None = None) -> None:
        self.stream.take(self.sent(low))

    @property
    def holding(self) -> bool:
        return self.known.holding([])

    @property
    def stale_for(self) -> float:
        return self.known.stale_for(["c"])


def stalled(seconds: int) -> tuple[Following, list[watermarks_pb2.WatchResponse]]:
    client = Following()
    client.hears(0)
    waiting = []
    for second in range(1, seconds + 1):
        client.clock.now += BEAT
        waiting.append(client.sent(second))
    return client, waiting


def test_rule11_what_was_never_heard_is_infinitely_stale() -> None:
    client = Following(("c", "d"))
    assert client.stale_for == float("inf")
    assert client.known.stale_for([]) == 0.0
    client.hears(1)
    assert client.stale_for == 0.0
    client.clock.now += 3.5
    assert client.stale_for == 3.5
    assert client.known.stale_for(["c", "nobody"]) == float("inf")


def test_rule11_messages_from_a_buffer_are_as_old_as_they_are() -> None:
    client, waiting = stalled(60)
    assert client.stale_for == 60.0
    for age, message in zip(range(59, -1, -1), waiting, strict=True):
        client.stream.take(message)
        assert client.stale_for == pytest.approx(age, abs=60 * SLEW)


@pytest.mark.parametrize("first_release", [False, True])
def test_rule11_beats_of_an_authority_whose_journal_hangs_do_not_make_values_fresh(first_release: bool) -> None:
    client = Following(first_release=first_release)
    client.hears(1)
    client.hangs_since = client.clock.now
    for second in range(1, 30):
        client.clock.now += BEAT
        client.hears()
        assert client.stale_for == pytest.approx(second)
        assert not client.holding, "nothing newer is about to come"
    client.hangs_since = None
    client.hears()
    assert client.stale_for == pytest.approx(0.0, abs=30 * SLEW)


def stale_after_a_new_stream_while_the_journal_hangs(*, first_release: bool) -> float:
    """Return how stale values of a minute ago seem to a stream that was opened just now."""
    client = Following(first_release=first_release)
    client.hears(1)
    client.hangs_since = client.clock.now
    client.clock.now += 60.0
    client.known.subscribe(["d"])
    client.stream.ended(None)
    client.stream.open("there:1")
    client.hears(1)
    return client.stale_for


def test_rule11_a_new_stream_does_not_make_values_fresh_while_the_journal_hangs() -> None:
    assert stale_after_a_new_stream_while_the_journal_hangs(first_release=False) == pytest.approx(60.0)


@pytest.mark.xfail(strict=True, reason="breaks when messages do not say when they were sent")
def test_rule11_breaks_when_messages_do_not_say_when_they_were_sent() -> None:
    assert stale_after_a_new_stream_while_the_journal_hangs(first_release=True) == pytest.approx(60.0)


def test_rule11_values_are_never_younger_than_now() -> None:
    client = Following()
    client.hears(1)
    client.clock.now += 10.0
    ahead = client.sent()
    ahead.time_micros += 3_600_000_000
    client.stream.take(ahead)
    assert client.stale_for == 0.0
    client.clock.now -= 1.0
    assert client.stale_for == 0.0
    client.clock.now += 8.0
    client.stream.ended(None)
    assert client.stale_for == pytest.approx(7.0), "as old as when the stream was there"


def shown_after_a_stall() -> list[int]:
    client, waiting = stalled(60)
    changes = Changes(["c"])
    assert shown_by(changes, client) == [0]
    shown = []
    for message in waiting:
        client.stream.take(message)
        shown += shown_by(changes, client)
    return shown


def shown_by(changes: Changes, client: Following) -> list[int]:
    shown = []
    while changes.come(client.known, client.subscription):
        shown.append(changes.take(client.known).low.micros)
    return shown


@pytest.mark.parametrize(("seconds", "millis"), [(0.0, 0), (0.25, 250), (1.0, 1000)])
def test_every_stream_asks_for_the_interval_of_its_client(seconds: float, millis: int) -> None:
    client = Following(watch_interval=seconds)
    assert client.request.interval_millis == millis
    client.hears(1)
    client.stream.ended(None)
    assert client.stream.open("there:1").interval_millis == millis, "and each after it"


def test_rule7_the_first_value_a_stalled_subscriber_sees_is_the_newest() -> None:
    assert shown_after_a_stall() == [58, 59, 60], "those of the last two beats"


def test_a_fold_is_computed_when_one_of_its_inputs_changes_and_not_for_its_neighbours() -> None:
    """A chain of stages in one process: each would else compute all the folds of the others."""

    class Counting(Folding):
        folds = 0

        def fold(self, state: WatchState, subscription: Subscription) -> Inputs:
            self.folds += 1
            return super().fold(state, subscription)

    client = Following(("a", "b", "c"))
    for name in ("a", "b", "c"):
        client.stream.take(client.sent(1, name=name))
    folding = Counting({"a": "a", "b": "b"}, None)
    changes = FoldChanges(folding)
    assert changes.come(client.known, client.subscription)
    for low in range(2, 20):
        client.stream.take(client.sent(low, name="c"))
        assert not changes.come(client.known, client.subscription)
    assert folding.folds == 1
    for name, shown in (("b", False), ("a", True)):
        client.stream.take(client.sent(2, name=name))
        assert changes.come(client.known, client.subscription) == shown, "the least of both"
    assert folding.folds == 3
    assert changes.newest is not None
    assert changes.newest.low.micros == 2


def test_rule7_values_that_were_not_taken_are_replaced_in_their_turn() -> None:
    client = Following(())
    for name in ("a", "b", "c"):
        client.stream.take(client.sent(1, name=name))
    changes = Changes([])
    assert changes.come(client.known, client.subscription)
    assert changes.take(client.known).computation == "a"
    for name in ("b", "a", "unseen"):
        client.stream.take(client.sent(2, name=name))
    assert shown_by(changes, client) == [2, 1, 2, 2]
    some = Changes(["b", "unseen"])
    assert shown_by(some, client) == [2, 2]
    client.stream.take(client.sent(3, name="a"))
    assert shown_by(some, client) == []


def confirmed(*subscriptions: Subscription) -> list[bool]:
    return [subscription.confirmed for subscription in subscriptions]


def test_a_subscription_uses_nothing_that_was_heard_while_nobody_followed_it() -> None:
    client = Following()
    state, first = client.known, client.subscription
    assert confirmed(first) == [False]
    client.hears(5)
    assert confirmed(first) == [True]
    assert state.subscribe(["c"]).confirmed, "the stream has fresh news"
    client.stream.ended(None)
    later = state.subscribe(["c"])
    client.stream.open("there:1")
    other, every = state.subscribe(["d"]), state.subscribe([])
    assert confirmed(later, other, every) == [False] * 3
    client.stream.take(client.sent(5, incarnation=2))
    assert confirmed(later, other, every) == [True, False, False]
    assert state.ratchet.get("c").incarnation == 2
    state.unsubscribe(other)
    state.unsubscribe(every)
    assert client.stream.renewing
    assert client.stream.ended(None) == 0.0
    assert list(client.stream.open("there:1").computations) == ["c"]


def test_a_follower_of_everything_that_was_away_learns_of_a_drop() -> None:
    client, changes = Following(()), Changes([])
    client.hears(5)
    assert shown_by(changes, client) == [5]
    client.stream.ended(None)
    client.stream.open("there:1")
    message = client.sent()
    for name in ("c", "strange"):
        message.dropped.add(computation=name, incarnation=1)
    client.stream.take(message)
    assert changes.come(client.known, client.subscription)
    assert changes.take(client.known).dropped
    assert client.known.ratchet.names == {"c"}


def test_streams_that_fail_back_off_until_one_lasted() -> None:
    client = Following()
    delays = []
    for _ in range(8):
        client.hears()
        delays.append(client.stream.ended(Failed()))
        client.stream.open("there:1")
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], "each of them brought something"
    client.clock.now += 2 * CAP
    assert client.stream.ended(Failed()) == 5.0, "it brought nothing"
    client.stream.open("there:1")
    client.hears()
    client.clock.now += 2 * CAP
    assert client.stream.ended(None) == 0.1


def test_an_authority_that_goes_away_says_for_how_long() -> None:
    client = Following()
    leaving = watermarks_pb2.WatchResponse(server_token="t", go_away=types_pb2.GoAway(retry_after_millis=700))
    assert client.stream.take(leaving)
    assert client.stream.ended(None) == pytest.approx(1.4), "between once and twice as long"


def test_another_deployment_ends_the_watching(caplog: pytest.LogCaptureFixture) -> None:
    client = Following()
    client.hears(1)
    with pytest.raises(errors.ServerTokenMismatch) as caught:
        client.stream.take(watermarks_pb2.WatchResponse(server_token="other"))
    client.stream.ended(caught.value)
    with pytest.raises(errors.ServerTokenMismatch) as first:
        client.known.check()
    with pytest.raises(errors.ServerTokenMismatch) as second:
        client.known.check()
    assert first.value is not second.value, "each caller adds a traceback of its own"
    assert "stopped watching" in caplog.text


def forbidden(name: str) -> errors.PermissionDenied:
    return errors.PermissionDenied(f"no right to {name}", metadata={"computation": name})


def test_rule11_one_forbidden_name_does_not_stop_the_others_of_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    client = Following(("c", "secret"))
    denials = client.known.placement.denials
    assert client.stream.ended(forbidden("secret")) == 0.1
    assert list(client.stream.open("there:1").computations) == ["c"]
    mine, its = client.known.subscribe(["c"]), client.known.subscribe(["secret"])
    client.hears(1)
    assert confirmed(mine, its) == [True, False]
    assert client.known.denied(["c"]) is None
    assert client.known.denied([]) is None

    pauses = []
    assert denials in client.known.placement.tend()
    denials.first_pause  # noqa: B018 - as the shells do
    for _ in range(8):
        assert denials.needed
        assert list(denials.open(denials.address).computations) == ["secret"]
        pauses.append(denials.ended(forbidden("secret")))
        denied = client.known.denied(["c", "secret"])
        assert denied is not None
        assert denied.metadata["computation"] == "secret"
        client.clock.now += pauses[-1]
    assert pauses == [20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "once in a while"
    client.clock.now += 600.0
    denials.open(denials.address)
    denials.ended(forbidden("secret"))
    assert len(caplog.records) == 2

    denials.open(denials.address)
    assert denials.take(client.sent(5, name="secret"))
    denials.ended(None)
    assert not denials.needed
    assert client.known.denied(["secret"]) is None
    assert client.stream.renewing, "the stream of its shard follows it from now on"
    assert list(client.stream.open("there:1").computations) == ["c", "secret"]


@pytest.mark.parametrize("ends", ["open", "ended", "lost", "redirected"])
def test_rule7_nothing_is_kept_of_a_name_that_nobody_follows_any_more(ends: str) -> None:
    client = Following()
    client.hears(1)
    for number in range(20):
        name = f"name-{number}-of-nobody"
        subscription = client.known.subscribe([name])
        client.stream.ended(None)
        client.stream.open("there:1")
        message = client.sent(number)
        if ends == "redirected":
            message.redirects.add(computation=name, address="")
        else:
            message.watermarks.add(computation=name)
        client.stream.take(message)
        if ends in ("ended", "lost"):
            client.stream.ended(None if ends == "ended" else errors.Unavailable("it is away"))
        client.known.unsubscribe(subscription)
        if not client.stream.open_now:
            client.stream.open("there:1")
            client.stream.take(client.sent(number))
        assert client.known.ratchet.names == {"c"}
        assert list(client.known.placement.records) == ["c"]
    assert client.known.ratchet.get("c").low.micros == 19
    assert client.known.stale_for(["c"]) == 0.0


def test_rule7_no_more_forbidden_names_are_remembered_than_a_stream_may_have() -> None:
    client = Following()
    for number in range(MOST_NAMES + 50):
        subscription = client.known.subscribe([f"d{number}"])
        client.stream.ended(None)
        client.stream.open("there:1")
        client.stream.ended(forbidden(f"d{number}"))
        client.stream.open("there:1")
        client.known.unsubscribe(subscription)
    assert len(client.known.placement.records) <= MOST_NAMES + 1
    assert client.known.denied([f"d{MOST_NAMES + 49}"]) is not None, "the newest is remembered"


def promised(client: Following) -> str | None:
    promise = client.known.ratchet.get("c").promise
    return None if promise is None else promise.team


def test_a_promise_stands_until_the_stream_says_otherwise() -> None:
    client = Following()
    first, changed, removed = client.sent(1), client.sent(3), client.sent(5)
    first.watermarks[0].promise.team = "billing"
    changed.watermarks[0].promise.team = "reports"
    removed.watermarks[0].promise.SetInParent()
    teams = []
    for message in (first, client.sent(2), changed, client.sent(4), removed, client.sent(6)):
        client.stream.take(message)
        teams.append(promised(client))
    assert teams == ["billing", "billing", "reports", "reports", None, None]


def thawed(reset_at: float) -> tuple[Following, list[watermarks_pb2.WatchResponse]]:
    """A process that was stopped for an hour, in which somebody reset what it follows; it finds a message every ten seconds."""
    client = Following()
    client.hears(5000)
    waiting = []
    for second in range(10, 3600, 10):
        client.clock.now += 10.0
        waiting.append(client.sent(-1, incarnation=2) if second >= reset_at else client.sent(5000))
    client.clock.now += BEAT
    waiting.append(client.sent())
    return client, waiting


@pytest.mark.parametrize("reset_at", [10.0, 1800.0, 3590.0])
def test_a_wait_that_begins_on_old_news_is_answered_by_fresh_news_only(reset_at: float) -> None:
    client, waiting = thawed(reset_at)
    for older in (None, *waiting[:-2]):
        if older is not None:
            assert not client.stream.take(older)
        wait = Waiting("c", 4000, 10.0)
        subscription = client.known.subscribe(["c"])
        assert not wait.reached(client.known, subscription), "incarnation 1 has ended"
        assert not client.stream.renewing, "what is newer stands in the buffer"
        client.known.unsubscribe(subscription)
    wait, subscription = Waiting("c", 4000, 10.0), client.known.subscribe(["c"])
    for newest in waiting[-2:]:
        client.stream.take(newest)
    assert subscription.confirmed
    assert not wait.reached(client.known, subscription)
    assert Waiting("c", -1, 10.0).reached(client.known, subscription)


def test_a_wait_does_not_survive_a_reset() -> None:
    client, wait = Following(), Waiting("c", 10, 10.0)
    client.hears(5)
    assert not wait.reached(client.known, client.subscription)
    client.stream.take(client.sent(20, incarnation=2))
    with pytest.raises(errors.IncarnationChanged, match="incarnation 1 ended, 2 began"):
        wait.reached(client.known, client.subscription)


def test_a_first_message_that_lay_in_a_buffer_is_not_taken_for_fresh() -> None:
    client = Following()
    lying = client.sent(5000)
    client.clock.now += 3600.0
    after = client.known.subscribe(["c"])
    assert client.stream.take(lying), "how old it is nobody knows"
    assert confirmed(client.subscription, after) == [True, False], "it was sent after the first began to follow"


def test_a_stream_that_seems_late_for_ever_is_renewed_for_those_who_wait() -> None:
    client = Following()
    client.hears(1)
    client.wall -= 10.0  # the authority's own time never goes back: it stands, and then all seems 10 s old
    for _ in range(20):
        client.clock.now += BEAT
        assert not client.stream.take(client.sent(2)), "nobody waits"
    late = client.known.subscribe(["c"])
    assert confirmed(late) == [False]
    client.clock.now += BEAT
    assert client.stream.take(client.sent(3))
    assert client.stream.ended(None) == 0.0
    client.stream.open("there:1")
    client.hears(3)
    assert confirmed(late) == [True]
    assert client.stale_for == 0.0
