"""Streams take bounded room of a server: reports that wait, refusals that are not read, followed names; and who is let in when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest

from lowwater import errors
from lowwater.core import wire
from lowwater.core.attempts import error_of_call
from lowwater.core.columns import Column
from lowwater.core.fold import Fold
from lowwater.core.lease import LeaseState
from lowwater.core.reports import ReporterState
from lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater.v1 import workers_pb2 as pb
from lowwater.v1.types_pb2 import Redirect
from lowwater_authority.authority import Authority
from lowwater_authority.core.requests import Fenced, Refused
from lowwater_authority.engine.admission import Gate as Admitting
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc import rooms, streams
from lowwater_authority.rpc.acknowledgement import Acknowledgement
from lowwater_authority.rpc.codec import MAX_RANGES
from lowwater_authority.rpc.rooms import SHARE, Room
from lowwater_authority.rpc.streams import DENIED_BOUND, UNREAD_LEAST, Outbox, Streams
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
        request = workers_pb2.ClaimRequest(computation=self._name, bounds=bounds, request_id=b"r" * 16)
        self._sequencer = (await self._stub.Claim(request)).sequencer
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
async def listening(faults: Gate, observer: Observer | None = None) -> AsyncIterator[tuple[Authority, str]]:
    async with authority_served(faults, observer=observer) as (authority, address):
        try:
            yield authority, address
        finally:
            faults.open.set()


@asynccontextmanager
async def serving(faults: Gate, observer: Observer | None = None) -> AsyncIterator[tuple[Authority, Any]]:
    async with listening(faults, observer) as (authority, address), grpc.aio.insecure_channel(address) as channel:
        await register(channel, "ab")
        yield authority, channel


async def register(channel: Any, names: str) -> None:
    stub: Any = topology_pb2_grpc.TopologyServiceStub(channel)
    for name in names:
        await stub.Register(topology_pb2.RegisterRequest(name=name))


LARGE = 10_000
"""Ranges of a large report: 80 KB."""


async def flooded(*, stream: int, together: int) -> tuple[int, bool]:
    """While the journal hangs, one worker sends six large reports, then another a small one.

    Returns how many bytes waited at most, and whether the small one was among them.
    """
    gate = Gate()
    async with serving(gate) as (authority, channel):
        authority.streams.stream_bytes, authority.streams.room.bound = stream, together
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
        view = authority.shard.served.view("a")
        assert view is not None
        assert view.low == 5 * HOUR, "all of them count, in their order"
        assert room.bytes == 0
        return room.peak, among


async def test_rule7_the_reports_of_a_stream_are_bounded_in_bytes() -> None:
    peak, among = await flooded(stream=200_000, together=1_000_000)
    assert peak < 210_000
    assert among


async def test_rule7_the_reports_of_all_streams_are_bounded_in_bytes() -> None:
    peak, among = await flooded(stream=1_000_000, together=200_000)
    assert peak <= 200_000
    assert not among


UNREAD = 30_000
"""Ranges of a claim that is refused by name: 120 KB."""

AHEAD = 5000
"""An hour that is too far ahead."""


@pytest.mark.parametrize("leaves", [False, True])
async def test_rule7_what_is_refused_and_not_read_is_bounded_in_bytes(leaves: bool) -> None:
    """A worker has twenty reports refused, range by range, and reads nothing; then it reads all, or ``leaves``. A neighbour goes on."""
    answered: list[int] = []

    class Counting(Observer):
        def reported(self, ranges: int, refused: dict[str, int]) -> None:
            answered.append(ranges)

    async with serving(Gate(), Counting()) as (authority, channel):
        large, small = await Sender(channel, "a", UNREAD).start(), await Sender(channel, "b", 1).start()
        room, unread = authority.streams.room, authority.streams.unread
        for hour in range(20):
            await large.report(AHEAD + hour)
        await eventually_async(lambda: len(answered) == 20)
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
    assert [list(part.handles) for part in message.ack.refused] == [list(range(100))]


def may_follow(room: rooms.Shared, count: int) -> bool:
    """Return True if one more stream may follow so many names."""
    try:
        with rooms.watched(room, ["a-name"] * count):
            return True
    except errors.Overloaded:
        return False


def followed_beside(hostile: int, count: int, kind: type[rooms.Shared] = rooms.Shared) -> bool:
    """Return True if one more stream may follow so many names when others follow as many as they are let."""
    room = kind(rooms.WATCHED_BYTES)
    with ExitStack() as open_streams:
        for _ in range(hostile):
            most = 1
            while may_follow(room, most):
                most *= 2
            least = most // 2  # the most names that it is let
            while most - least > 1:
                some = (most + least) // 2
                least, most = (some, most) if may_follow(room, some) else (least, some)
            open_streams.enter_context(rooms.watched(room, ["a-name"] * least))
        assert room.bytes <= rooms.WATCHED_BYTES * 3 // 2 + hostile * rooms.WATCHED_LEAST
        beside = may_follow(room, count)
    assert (room.bytes, room.streams) == (0, 0)
    return beside


@pytest.mark.parametrize(("hostile", "count"), [(38, 500), (100, 200), (400, 50)])
def test_rule7_names_are_followed_beside_any_number_of_streams_that_take_all_they_can(hostile: int, count: int) -> None:
    assert followed_beside(hostile, count)


class Falling(rooms.Shared):
    """The share falls as the room fills, whatever the number of streams is."""

    def share(self, own: int, streams: int) -> int:
        del streams
        return max(0, self.bound - (self.bytes - own)) // (SHARE + 1)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the share of a stream falls to nothing")
def test_rule7_breaks_when_the_share_falls_as_the_room_fills_alone() -> None:
    assert followed_beside(38, 500, Falling)


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
        view = authority.shard.served.view("a")
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
        request = watermarks_pb2.WatchRequest(computations=["a"])
        watching = [stub.Watch(request) for _ in range(2)]
        for stream in watching:
            assert (await stream.read()).watermarks
        with pytest.raises(grpc.RpcError) as refused:
            await stub.Watch(request).read()
        error = error_of_call(refused.value, "")
        assert isinstance(error, errors.Overloaded)
        assert error.metadata["bound"] == "watch_streams"
        assert error.retry_after > 0
        assert (await watching[0].read()).time_micros, "who was there goes on"
        watching[1].cancel()
        gate: Admitting[Any] = authority.streams.admission.open_watches
        await eventually_async(lambda: gate.inside == 1)
        assert (await stub.Watch(request).read()).watermarks


def named(count: int, about: str = "") -> list[str]:
    return [f"{about}{number}" for number in range(count)]


def test_rule7_a_principal_that_takes_all_it_may_keeps_no_neighbour_away() -> None:
    gate = Admitting[int]("watch_streams", 64, 0)
    for number in range(48):
        assert gate.enter(number, 0.0, "greedy")
    with pytest.raises(
        errors.Overloaded, match=r"greedy has 48 of 64 watch streams; .* three quarters .* add a shard; try again"
    ) as refused:
        gate.enter(99, 0.0, "greedy")
    assert (gate.refused, gate.saturated, refused.value.metadata) == (
        1,
        False,
        {"bound": "watch_streams", "limit": "64"},
    )
    others = [f"principal {number}" for number in range(4)]
    for other in others:
        has = 0
        while has < gate.bound - gate.inside:
            assert gate.enter(0, 0.0, other)
            has += 1
    assert gate.enter(0, 0.0, "one who wants one stream")
    gate.leave(0.0, others[0])
    assert gate.enter(0, 0.0, "another"), "what is given back is there for all"


def test_rule7_principals_that_wait_are_let_in_by_turns() -> None:
    gate = Admitting[str]("starting_report_streams", 1, 100)
    for number in range(10):
        gate.enter(f"greedy {number}", 0.0, "greedy")
    gate.enter("neighbour", 0.0, "neighbour")
    gate.enter("gone", 0.0, "neighbour")
    assert gate.give_up("gone")
    assert [gate.leave(0.0, "greedy") for _ in range(2)] == ["greedy 1", "neighbour"], "the second one, not the tenth"
    let_in = [gate.leave(0.0, who) for who in ("neighbour", *["greedy"] * 8)]
    assert let_in == [*(f"greedy {number}" for number in range(2, 10)), None]
    assert (gate.inside, len(gate.waiting)) == (0, 0)
    for number in range(75):
        gate.enter(f"alone {number}", 0.0, "greedy")  # three quarters: the neighbour that has left counts no more


def test_delays_grow_with_those_that_wait_and_with_the_time_that_each_takes() -> None:
    """Little's law: with 100 in the line and 20 a second served, the next turn is in five seconds, and more later for each."""
    gate = Admitting[int]("calls", 1, 100)
    now = 0.0
    for caller in range(1000):
        now += 0.05
        gate.enter(caller, now)
        if caller >= 100:
            gate.leave(now)
    assert gate.rate(now) == pytest.approx(20, rel=0.05)
    assert len(gate.waiting) == 99
    gate.enter(1000, now)
    delays = [refusal(gate, now) for _ in range(20)]
    assert delays[0] == pytest.approx(101 / 20 / 1.5, rel=0.05)
    assert all(after - before == pytest.approx(1 / 20 / 1.5, rel=0.05) for before, after in pairwise(delays))
    for caller in range(20):
        now += 0.05
        gate.leave(now)
        gate.enter(2000 + caller, now)
    # Those whose turn has come are not in front of the next one any more.
    assert refusal(gate, now) == pytest.approx(delays[0], rel=0.05)


BOUNDS = ("report_streams", "starting_report_streams", "starting_watch_streams", "watch_streams", "task_waits")


async def test_a_stream_that_ends_or_is_refused_gives_its_place_back() -> None:
    streams = narrow()
    outbox = await streams.admit(name(1), 1)
    streams.close(name(1), outbox)
    with pytest.raises(errors.OldStream):
        await streams.admit(name(1), 1)
    streams.admission.streams.bound = 0
    with pytest.raises(errors.Overloaded, match="report streams"):
        await streams.admit(name(2), 1)
    assert {gate.name: gate.inside for gate in streams.admission.gates} == dict.fromkeys(BOUNDS, 0)


async def test_a_stream_that_says_nothing_keeps_no_other_from_starting() -> None:
    streams = narrow(silence=0.0)
    silent = await streams.admit(name(1), 1)
    await streams.admit(name(2), 1)
    assert not silent.starting
    assert silent.closed is None


@pytest.mark.parametrize("when", ["waiting", "just let in", "let in meanwhile"])
async def test_a_caller_that_goes_away_keeps_no_place(when: str) -> None:
    streams = narrow()
    first = await streams.admit(name(1), 1)
    second, third = await parked(streams, 2), await parked(streams, 3)
    if when == "just let in":
        streams.started(first)
    second.cancel()
    if when == "let in meanwhile":
        streams.started(first)
    await asyncio.wait([second])
    streams.started(first)
    await third
    assert second.cancelled()
    assert (streams.admission.starting.inside, len(streams.admission.starting.waiting)) == (1, 0)


async def test_whoever_waits_is_told_when_the_process_stops() -> None:
    streams = narrow()
    await streams.admit(name(1), 1)
    second = await parked(streams, 2)
    streams.wake()
    with pytest.raises(errors.ShuttingDown):
        await second
    assert (streams.admission.starting.inside, len(streams.admission.starting.waiting)) == (1, 0)


def narrow(**options: float) -> Streams:
    streams = Streams(**options)
    streams.admission.starting.bound = 1
    return streams


def name(sender: int) -> bytes:
    return sender.to_bytes(16)


async def parked(streams: Streams, sender: int) -> asyncio.Task[Outbox]:
    """A stream that waits for its turn."""
    before = len(streams.admission.starting.waiting)
    task = asyncio.create_task(streams.admit(name(sender), 1))
    while len(streams.admission.starting.waiting) == before:
        assert not task.done()
        await asyncio.sleep(0)
    return task


def refusal(gate: Admitting[int], now: float) -> float:
    """The delay that the next one is told."""
    with pytest.raises(errors.Overloaded) as refused:
        gate.enter(-1, now)
    return refused.value.retry_after


FAR, STALE = errors.TooFarAhead.reason, errors.StaleSequencer.reason


def handles(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, dtype=np.uint32)


def added(*refused: tuple[str, Refused], before: int = 0) -> Acknowledgement:
    answer = Acknowledgement(before)
    for number, refusal in enumerate(refused, before + 1):
        answer.add(number, [refusal], {}, {})
    return answer


def references(**micros: int) -> dict[str, pb.ReferenceTime]:
    return {name: pb.ReferenceTime(computation=name, micros=value) for name, value in micros.items()}


def test_refusals_merge_by_claim_and_reason() -> None:
    (message,) = added(
        ("a", Refused(1, FAR, "first", handles(3, 5))),
        ("a", Refused(1, STALE, "lost", handles(4))),
        ("a", Refused(2, FAR, "another claim", handles(5))),
        ("b", Refused(1, FAR, "another computation", handles(5))),
        ("a", Refused(1, FAR, "second", handles(9, 0, 5))),
    ).messages()
    merged = {(part.computation, part.sequencer, part.reason): part for part in message.refused}
    assert len(merged) == len(message.refused) == 4
    assert list(merged["a", 1, FAR].handles) == [0, 3, 5, 9]
    assert merged["a", 1, FAR].message == "second"
    assert list(merged["a", 1, STALE].handles) == [4]
    assert message.number == 5


def test_handles_that_no_claim_has_are_refused_as_a_whole() -> None:
    """Merging costs a byte for each handle below the greatest."""
    refused = [("a", Refused(1, "INVALID_ARGUMENT", "", handles(value))) for value in (7, 2**32 - 1)]
    (message,) = added(*refused).messages()
    assert [list(part.handles) for part in message.refused] == [[]]


def test_the_newest_number_and_the_address_stay() -> None:
    answer = Acknowledgement(0)
    old = errors.OldStream.reason
    answer.add(1, [("a", Refused(1, old, "", newest=9))], references(a=1, b=2), {})
    redirect = Redirect(computation="c", address="x:1", epoch=3)
    moved = [("c", Refused(1, errors.Moved.reason, "")), ("d", Refused(1, errors.Moved.reason, ""))]
    answer.add(2, [("a", Refused(1, old, "", newest=4)), *moved], references(b=3), {"c": redirect})
    (message,) = answer.messages()
    first, second, third = message.refused
    assert first.newest == 9
    assert second.redirect == redirect
    assert third.redirect == Redirect(computation="d")
    assert {reference.computation: reference.micros for reference in message.references} == {"a": 1, "b": 3}


RANGES = 1000


def claim(reporter: ReporterState, sequencer: int) -> LeaseState:
    lease = LeaseState("a", sequencer, Column(RANGES, 0), reference=0)
    lease.advance(Fold(50 * sequencer, (), 0, ()), 10**6, now=0.0)
    reporter.add(lease)
    return lease


def reported(messages: Iterator[pb.ReportAck], number: int) -> list[tuple[int, set[int], set[int], bool]]:
    """A process that reports claims 1 to 5 takes the messages of one acknowledgement.

    Returns, after each of them, how much is durable of claim 3, what of it is refused, what of it is lost, and whether the neighbour,
    claim 6, is durable.
    """
    reporter = ReporterState(b"s" * 16, 0.05, lambda: 0.5)
    leases = [claim(reporter, sequencer) for sequencer in range(1, 7)]
    reporter.open()
    reporter.accepted(0.0)
    (report,) = reporter.take(0.0)
    assert report.number == number
    messages_ = []
    for message in messages:
        refused = [(part.computation, part.sequencer, wire.refusal(part)) for part in message.refused]
        reporter.acknowledged(message.number, refused)
        third, refusal = leases[2], leases[2].refusal
        waits = set() if refusal is None else set(range(RANGES)) if refusal.handles is None else set(refusal.handles)
        messages_.append((third.durable, waits, set(third.lost), bool(leases[5].durable)))
    return messages_


def refusals() -> list[tuple[str, Refused]]:
    """Refuse a third of claims 1 to 5 as lost, and a third as too far ahead; the rest, and claim 6, counts."""
    third = np.arange(RANGES, dtype=np.uint32)
    return [
        ("a", Refused(sequencer, reason, reason, third[third % 3 == rest]))
        for sequencer in range(1, 6)
        for rest, reason in enumerate((STALE, FAR))
    ]


def divided(before: int = 0) -> list[tuple[int, set[int], set[int], bool]]:
    answer = Acknowledgement(before, message_bytes=8 * RANGES)
    answer.add(1, refusals(), {}, {})
    return reported(answer.messages(), number=1)


def test_rule7_an_acknowledgement_of_several_messages_covers_no_later_refusal() -> None:
    *before, (durable, refused, lost, neighbour) = divided()
    assert len(before) >= 1
    for early, _, _, beside in before:
        assert not early, "nothing is taken over before all is told that is not"
        assert not beside
    assert not durable
    assert {handle for handle in range(RANGES) if handle % 3 == 1} <= refused
    assert lost == {handle for handle in range(RANGES) if handle % 3 == 0}
    assert neighbour, "what was refused of others does not hold it up"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the first message has the number")
def test_rule7_breaks_when_the_first_of_several_messages_acknowledges() -> None:
    for _, _, _, beside in divided(before=1)[:-1]:
        assert not beside


async def test_what_cannot_be_made_to_fit_ends_the_stream_with_the_reason() -> None:
    outbox = Outbox(message_bytes=1000)
    outbox.acknowledge(1, [("a", Refused(sequencer, FAR, "")) for sequencer in range(100)])
    assert not list(await outbox.take())
    assert isinstance(outbox.closed, errors.Overloaded)
    assert "send fewer in a report" in outbox.closed.message


async def test_nothing_is_acknowledged_behind_a_report_that_failed() -> None:
    outbox = Outbox()
    outbox.acknowledge(1)
    outbox.close(errors.JournalFailed("report 2 was not written"))
    outbox.acknowledge(3)
    (message,) = await outbox.take()
    assert message.ack.number == 1
    assert outbox.closed is not None


async def test_a_claim_that_is_lost_whole_is_spoken_for_no_more() -> None:
    """A worker that claims again and again on one stream leaves nothing behind."""
    streams = Streams()
    outbox = streams.open(b"s" * 16, 1)
    for sequencer in range(1, 4):
        streams.speaks("a", sequencer, outbox)
        streams.fence(Fenced("a", sequencer, [0], "a newer claim took it over"))
    assert len(outbox.claims) == 3
    for sequencer in range(1, 4):
        streams.fence(Fenced("a", sequencer, None, "a newer claim took it over"))
    assert not outbox.claims


def test_rule7_a_stream_remembers_only_so_many_denials() -> None:
    """If a denial were forgotten, the next report would lead once the right comes back: reports carry what changed."""
    outbox = Outbox()
    for number in range(DENIED_BOUND):
        outbox.deny(f"n/{number}")
    outbox.deny("n/0")
    assert len(outbox.denied) == DENIED_BOUND
    with pytest.raises(errors.Overloaded, match=f"refused the reports of {DENIED_BOUND} computations"):
        outbox.deny("n/one-more")
