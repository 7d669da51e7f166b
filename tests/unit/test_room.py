"""The bytes of the reports that wait for the journal, and of what is refused of them until it is read: of one stream, and of all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from lowwater import errors
from lowwater._core.attempts import error_of_call
from lowwater._pb.lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater_authority.authority import Authority
from lowwater_authority.core.requests import Refused
from lowwater_authority.engine.admission import Gate as Admitting
from lowwater_authority.rpc import streams
from lowwater_authority.rpc.codec import MAX_RANGES
from lowwater_authority.rpc.streams import UNREAD_LEAST, Room
from tests.kit.eventually import eventually_async
from tests.kit.served import authority_served
from tests.kit.times import HOUR
from tests.unit.test_shard import Gate

PATIENCE = 30.0


def entering(room: Room, *sizes: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(room.enter(size)) for size in sizes]


async def settle() -> None:
    """All that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


def done(tasks: Sequence[asyncio.Task[None]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_who_comes_beyond_the_bound_waits_in_order() -> None:
    room = Room(10)
    tasks = entering(room, 6, 5, 1)
    await settle()
    assert done(tasks) == [True, False, False], "a small one does not go before a large one: it would wait for ever"
    room.leave(6)
    await settle()
    assert done(tasks) == [True, True, True]
    assert (room.bytes, room.peak) == (6, 6)


async def test_what_is_larger_than_the_room_is_let_in_alone() -> None:
    room = Room(10)
    tasks = entering(room, 99, 1)
    await settle()
    assert done(tasks) == [True, False]
    room.leave(99)
    await settle()
    assert done(tasks) == [True, True]


async def test_who_has_gone_keeps_nobody_waiting_and_holds_nothing() -> None:
    room = Room(10)
    tasks = entering(room, 8, 9, 2)
    await settle()
    tasks[1].cancel()
    await settle()
    assert done(tasks) == [True, True, True]
    room.leave(8)
    room.leave(2)
    late = entering(room, 10, 10)
    await settle()
    room.leave(10)  # the second one is let in, and goes in this moment
    late[1].cancel()
    await settle()
    assert room.bytes == 0


class Sender:
    """One process, with a claim of ``ranges``, whose reports have a value a range."""

    def __init__(self, channel: Any, name: str, ranges: int) -> None:
        self._stub: Any = workers_pb2_grpc.WorkerServiceStub(channel)
        self._name = name
        self._ranges = ranges
        self._number = 0

    async def start(self) -> Sender:
        bounds = [b"", *(index.to_bytes(4, "big") for index in range(1, self._ranges)), b""]
        asked = workers_pb2.ClaimRequest(computation=self._name, bounds=bounds, request_id=b"r" * 16)
        self._sequencer = (await self._stub.Claim(asked)).sequencer
        self._call = self._stub.Report()
        opening = workers_pb2.ReportOpen(sender=self._name.encode() * 16, stream=1)
        await self._call.write(workers_pb2.ReportRequest(open=opening))
        assert (await self._call.read()).HasField("opened")
        return self

    async def report(self, hour: int, *others: workers_pb2.GroupReport) -> None:
        self._number += 1
        group = workers_pb2.GroupReport(computation=self._name, sequencer=self._sequencer)
        group.watermarks_micros.extend([hour * HOUR + index for index in range(self._ranges)])
        await self._call.write(
            workers_pb2.ReportRequest(report=workers_pb2.Report(number=self._number, groups=[group, *others]))
        )

    def leave(self) -> None:
        self._call.cancel()

    async def acknowledged(self, number: int) -> workers_pb2.ReportAck:
        async with asyncio.timeout(PATIENCE):
            while (message := await self._call.read()).ack.number < number:
                assert message is not grpc.aio.EOF
        ack: workers_pb2.ReportAck = message.ack
        return ack


@asynccontextmanager
async def listening(faults: Gate) -> AsyncIterator[tuple[Authority, str]]:
    async with authority_served(faults) as (authority, address):
        try:
            yield authority, address
        finally:
            faults.open.set()


@asynccontextmanager
async def serving(faults: Gate) -> AsyncIterator[tuple[Authority, Any]]:
    async with listening(faults) as (authority, address), grpc.aio.insecure_channel(address) as channel:
        await register(channel, "ab")
        yield authority, channel


async def register(channel: Any, names: str) -> None:
    stub: Any = topology_pb2_grpc.TopologyServiceStub(channel)
    for name in names:
        await stub.Register(topology_pb2.RegisterRequest(name=name))


LARGE = 10_000
"""Ranges of a large report: 80 KB."""


async def flooded(monkeypatch: pytest.MonkeyPatch, *, stream: int, together: int) -> tuple[int, bool]:
    """While the journal hangs, one worker sends six large reports, then another a small one.

    Returns how many bytes waited at most, and whether the small one was among them.
    """
    monkeypatch.setattr(streams, "STREAM_BYTES", stream)
    monkeypatch.setattr(streams, "ALL_BYTES", together)
    gate = Gate()
    async with serving(gate) as (authority, channel):
        large, small = await Sender(channel, "a", LARGE).start(), await Sender(channel, "b", 1).start()
        room = authority.streams.room
        gate.open.clear()
        for hour in range(6):
            await large.report(hour)
        await eventually_async(lambda: authority.streams.slowed == 1 or room.bytes > 6 * 8 * LARGE)
        before = room.bytes
        await small.report(1)
        await eventually_async(lambda: authority.streams.slowed == 2 or room.bytes > before)
        among = room.bytes > before
        gate.open.set()
        await large.acknowledged(6)
        await small.acknowledged(1)
        view = authority.shard.view("a")
        assert view is not None
        assert view.low == 5 * HOUR, "all of them count, in their order"
        assert room.bytes == 0
        return room.peak, among


async def test_rule7_the_reports_of_a_stream_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a stream over it slows no other."""
    peak, among = await flooded(monkeypatch, stream=200_000, together=1_000_000)
    assert peak < 210_000
    assert among


async def test_rule7_the_reports_of_all_streams_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    peak, among = await flooded(monkeypatch, stream=1_000_000, together=200_000)
    assert peak <= 200_000
    assert not among


UNREAD = 100_000
"""Ranges of a claim that is refused by name: 400 KB."""

AHEAD = 5000
"""An hour that is too far ahead."""


@pytest.mark.parametrize("leaves", [False, True])
async def test_rule7_what_is_refused_and_not_read_is_bounded_in_bytes(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has twenty reports refused, range by range, and reads nothing; then it reads all, or ``leaves``. A neighbour goes on."""
    acknowledge, durable = streams.Outbox.acknowledge, [0]

    def counted(self: streams.Outbox, number: int, *args: Any, **more: Any) -> None:
        durable.append(number)
        acknowledge(self, number, *args, **more)

    monkeypatch.setattr(streams.Outbox, "acknowledge", counted)
    async with serving(Gate()) as (authority, channel):
        large, small = await Sender(channel, "a", UNREAD).start(), await Sender(channel, "b", 1).start()
        room, unread = authority.streams.room, authority.streams.unread
        for hour in range(20):
            await large.report(AHEAD + hour)
        await eventually_async(lambda: durable[-1] == 20)
        await eventually_async(lambda: room.bytes == 0)
        assert unread.bytes < 1 << 20, "one message is being sent, and one waits, in which all others are merged"
        await small.report(1)
        await small.acknowledged(1)
        if leaves:
            large.leave()
        else:
            await large.acknowledged(20)
        await eventually_async(lambda: unread.bytes == 0)
        await small.report(2)
        await small.acknowledged(2)


EVERY = np.arange(MAX_RANGES, dtype=np.uint32)


def refused_of(name: str, ranges: int, reason: str = errors.TooFarAhead.reason) -> tuple[str, Refused]:
    return name, Refused(1, reason, "", EVERY[:ranges])


def opened(together: streams.Streams, number: int) -> streams.Outbox:
    return together.open(number.to_bytes(16, "big"), 1)


async def test_rule7_the_share_of_a_stream_falls_as_others_do_not_read() -> None:
    """However many there are, the next one is told by name what is refused of a small claim, and the bound holds."""
    together = streams.Streams()
    for number in range(200):
        outbox = opened(together, number)
        for report in range(1, 11):  # of a claim each
            together.acknowledge(outbox, report, [refused_of(f"{number}-{report}", MAX_RANGES)])
        assert outbox.closed is None
    assert together.unread.bytes <= streams.UNREAD_BYTES + 200 * UNREAD_LEAST
    late = opened(together, 200)
    together.acknowledge(late, 1, [refused_of("late", 100)])
    (message,) = await together.take(late)
    assert [list(each.handles) for each in message.ack.refused] == [list(range(100))]


def may_follow(room: streams.Shared, count: int) -> bool:
    """Whether one more stream may follow so many names."""
    try:
        with streams.watched(room, ["a-name"] * count):
            return True
    except errors.Overloaded:
        return False


def followed_beside(hostile: int, count: int) -> bool:
    """Whether one more stream may follow so many names when others follow as many as they are let."""
    room = streams.Shared(streams.WATCHED_BYTES)
    with ExitStack() as open_streams:
        for _ in range(hostile):
            most = 1
            while may_follow(room, most):
                most *= 2
            least = most // 2  # the most names that it is let
            while most - least > 1:
                some = (most + least) // 2
                least, most = (some, most) if may_follow(room, some) else (least, some)
            open_streams.enter_context(streams.watched(room, ["a-name"] * least))
        assert room.bytes <= streams.WATCHED_BYTES * 3 // 2 + hostile * streams.WATCHED_LEAST
        beside = may_follow(room, count)
    assert (room.bytes, room.streams) == (0, 0)
    return beside


@pytest.mark.parametrize(("hostile", "count"), [(38, 500), (100, 200), (400, 50)])
def test_rule7_names_are_followed_beside_any_number_of_streams_that_take_all_they_can(hostile: int, count: int) -> None:
    assert followed_beside(hostile, count)


def falls(self: streams.Shared, own: int, streams_: int) -> int:
    """As the room fills, and whatever the number of streams is."""
    del streams_
    return max(0, self.bound - (self.bytes - own)) // (streams.SHARE + 1)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the share of a stream falls to nothing")
def test_rule7_breaks_when_the_share_falls_as_the_room_fills_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.Shared, "share", falls)
    assert followed_beside(38, 500)


async def test_what_is_lost_is_never_said_of_more_than_that_and_ends_its_own_stream() -> None:
    """A claim that is said to be lost as a whole ends; so what cannot be named is told on the next stream."""
    together = streams.Streams()
    one, other = opened(together, 1), opened(together, 2)
    for number, name in enumerate("abcd", 1):
        together.acknowledge(one, number, [refused_of(name, MAX_RANGES, errors.StaleSequencer.reason)])
    assert isinstance(one.closed, errors.Overloaded)
    assert together.unread.bytes == 0
    together.acknowledge(other, 1, [refused_of("e", MAX_RANGES, errors.StaleSequencer.reason)])
    assert other.closed is None
    (message,) = await together.take(other)
    assert len(message.ack.refused[0].handles) == MAX_RANGES


MADE_UP = 1 << 20
"""Characters of a name that no computation can have."""


async def test_rule7_a_name_that_no_computation_can_have_is_counted_and_refused_by_its_ends() -> None:
    """While the journal hangs, one report says something of a claim and of a name of 1 MB."""
    gate = Gate()
    async with serving(gate) as (authority, channel):
        sender = await Sender(channel, "a", 1).start()
        gate.open.clear()
        await sender.report(7, workers_pb2.GroupReport(computation="n" * MADE_UP, sequencer=1, watermarks_micros=[0]))
        await eventually_async(lambda: authority.streams.room.bytes > 0)
        assert authority.streams.room.bytes > MADE_UP
        gate.open.set()
        answer = await sender.acknowledged(1)
        view = authority.shard.view("a")
        assert view is not None
    (refused,) = answer.refused
    assert (refused.reason, refused.sequencer) == ("INVALID_ARGUMENT", 1)
    assert "groups.computation has 1048576 characters" in refused.message
    assert refused.ByteSize() < 1000
    assert view.low == 7 * HOUR, "the claim beside it counts"


async def test_rule7_watch_streams_are_bounded_and_others_are_told_when_to_come_again() -> None:
    async with serving(Gate()) as (authority, channel):
        authority.streams.admission.open_watches.bound = 2
        stub: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        asked = watermarks_pb2.WatchRequest(computations=["a"])
        watching = [stub.Watch(asked) for _ in range(2)]
        for each in watching:
            assert (await each.read()).watermarks
        with pytest.raises(grpc.RpcError) as refused:
            await stub.Watch(asked).read()
        error = error_of_call(refused.value, "")
        assert isinstance(error, errors.Overloaded)
        assert error.metadata["bound"] == "watch_streams"
        assert error.retry_after > 0
        assert (await watching[0].read()).time_micros, "who was there goes on"
        watching[1].cancel()
        gate: Admitting[Any] = authority.streams.admission.open_watches
        await eventually_async(lambda: gate.inside == 1)
        assert (await stub.Watch(asked).read()).watermarks


def named(count: int, about: str = "") -> list[str]:
    return [f"{about}{number}" for number in range(count)]
