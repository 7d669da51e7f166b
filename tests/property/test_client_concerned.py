"""Who is woken by a message: nobody sleeps on who has something to see, whatever the messages are and however late."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater.core.watches import FoldChanges, Folding, Subscription, WatchState, WatchStream
from lowwater.v1 import watermarks_pb2
from tests.kit.client import OfflineClient
from tests.kit.planting import Part, bug

NAMES: tuple[str, ...] = ("a", "b", "c")
WALL = 1_700_000_000.0


class Reader:
    def __init__(self, state: WatchState, names: tuple[str, ...]) -> None:
        self.names = names
        self.subscription: Subscription = state.subscribe(names)
        self.changes = FoldChanges(Folding({name: name for name in names}, None))
        self.state = state
        self.look()

    def look(self) -> None:
        self.changes.come(self.state, self.subscription)

    @property
    def misses(self) -> bool:
        return copy.copy(self.changes).come(self.state, self.subscription)


class World:
    def __init__(self) -> None:
        self.client = OfflineClient("there:1", watch_interval=0.0)
        self.state = self.client.known
        self.readers = [Reader(self.state, NAMES[:1]), Reader(self.state, NAMES[1:])]
        self.stream = self.state.placement.stream()
        self.stream.open("there:1")
        self.sent_at: float = self.client.clock.now
        self.lows = dict.fromkeys(NAMES, 0)
        self.incarnations = dict.fromkeys(NAMES, 1)

    def message(self, moves: Iterable[str], late: float) -> watermarks_pb2.WatchResponse:
        self.sent_at = max(self.sent_at, self.client.clock.now - late)
        clock = round((self.sent_at + WALL) * 1e6)
        message = watermarks_pb2.WatchResponse(server_token="t", time_micros=clock, clock_micros=clock)
        for name in moves:
            self.lows[name] += 1
            message.watermarks.add(
                computation=name, registered=True, incarnation=self.incarnations[name], low_micros=self.lows[name]
            )
        return message

    def take(self, message: watermarks_pb2.WatchResponse) -> None:
        if self.stream.take(message):
            self.reopen()
            return
        concerned = self.stream.concerned
        for reader in self.readers:
            if concerned is None or not concerned.isdisjoint(reader.names):
                reader.look()
        missed = [reader.names for reader in self.readers if reader.misses]
        assert not missed, f"nobody told those who follow {missed}"

    def reopen(self) -> None:
        self.stream.ended(None)
        self.stream.open("there:1")
        self.wake()

    def wake(self) -> None:
        for reader in self.readers:
            reader.look()

    def do(self, kind: str, names: tuple[str, ...], seconds: float) -> None:
        if kind == "message":
            self.take(self.message(names, seconds))
        elif kind == "time passes":
            self.client.clock.now += seconds
        elif kind == "reset":
            for name in names:
                self.incarnations[name] += 1
            self.take(self.message(names, 0.0))
        elif kind == "redirect":
            message = self.message((), 0.0)
            for name in names[:1]:
                message.redirects.add(computation=name, address="there:1", epoch=self.lows[name] + 1)
            self.take(message)
        elif kind == "dropped":
            message = self.message((), 0.0)
            for name in names[:1]:
                message.dropped.add(computation=name)
            self.take(message)
        elif kind == "another reader" and names:
            self.readers.append(Reader(self.state, names))
            self.wake()
        elif kind == "stream ends":
            self.reopen()


Event = tuple[str, tuple[str, ...], float]

events = st.tuples(
    st.sampled_from(["message"] * 3 + ["time passes", "reset", "redirect", "dropped", "another reader", "stream ends"]),
    st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(tuple),
    st.sampled_from([0.0, 0.5, 1.5, 3.0, 6.0]),
)


@given(st.lists(events, max_size=40))
@settings(max_examples=200, deadline=None)
def test_rule7_whoever_has_something_to_see_is_woken(happened: list[Event]) -> None:
    world = World()
    for event in happened:
        world.do(*event)


LATE: list[Event] = [
    ("message", NAMES, 0.0),
    ("message", (), 0.0),
    ("time passes", (), 6.0),
    ("message", ("a",), 5.0),  # from a buffer: newer ones stand behind it
    ("message", (), 0.0),
]


@bug("_settled", WatchStream)
def settled_at_once(_: Part) -> Part:
    return property(lambda _: True, lambda _, value: None)


@pytest.mark.xfail(strict=True, reason="a stream is taken for settled that was late", raises=AssertionError)
def test_rule7_breaks_when_a_late_stream_is_taken_for_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    settled_at_once(monkeypatch)
    world = World()
    for event in LATE:
        world.do(*event)
