"""What somebody may use who begins to follow what is followed already: fresh news only. On made-up clocks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from lowwater import errors
from lowwater._core.call import Stubs
from lowwater._core.watches import BEAT, Folding, Waiting
from lowwater._pb.lowwater.v1 import topology_pb2, watermarks_pb2
from lowwater_authority.authority import Authority
from lowwater_authority.ops.observer import Observer
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.unit.test_client_watching import World, confirmed


def thawed(reset_at: float) -> tuple[World, list[watermarks_pb2.WatchResponse]]:
    """A process that was stopped for an hour, in which somebody reset what it follows; it finds a message every ten seconds."""
    world = World()
    world.hears(5000)
    waiting = []
    for second in range(10, 3600, 10):
        world.now += 10.0
        waiting.append(world.sent(-1, incarnation=2) if second >= reset_at else world.sent(5000))
    world.now += BEAT
    waiting.append(world.sent())
    return world, waiting


@pytest.mark.parametrize("reset_at", [10.0, 1800.0, 3590.0])
def test_a_wait_that_begins_on_old_news_is_answered_by_fresh_news_only(reset_at: float) -> None:
    world, waiting = thawed(reset_at)
    for older in (None, *waiting[:-2]):
        if older is not None:
            assert not world.stream.take(older)
        wait = Waiting("c", 4000, 10.0)
        subscription = world.state.subscribe(["c"])
        assert not wait.reached(world.state, subscription), "incarnation 1 has ended"
        assert not world.stream.renewing, "what is newer stands in the buffer"
        world.state.unsubscribe(subscription)
    wait, subscription = Waiting("c", 4000, 10.0), world.state.subscribe(["c"])
    for newest in waiting[-2:]:
        world.stream.take(newest)
    assert subscription.confirmed
    assert not wait.reached(world.state, subscription)
    assert Waiting("c", -1, 10.0).reached(world.state, subscription)


def test_a_wait_that_goes_on_is_not_answered_by_late_news_either() -> None:
    world, waiting = thawed(1800.0)
    wait = Waiting("c", 5001, 10.0)
    assert not wait.reached(world.state, world.subscription)
    late = waiting[0]
    late.watermarks[0].low_micros = 5001
    world.stream.take(late)
    assert not wait.reached(world.state, world.subscription)
    for message in waiting[-2:]:
        world.stream.take(message)
    waiting[-2].watermarks.add(computation="c", registered=True, incarnation=2, low_micros=-1)
    world.stream.take(waiting[-2])
    with pytest.raises(errors.IncarnationChanged, match="Wait anew"):
        wait.reached(world.state, world.subscription)


def test_a_subscription_while_the_journal_hangs_is_confirmed_when_it_no_longer_does() -> None:
    world = World()
    world.hears(1)
    world.hangs_since = world.now
    world.now += 10.0
    world.hears()
    one = world.state.subscribe(["c"])
    assert not world.stream.take(world.sent()), "another stream would not know more"
    other = world.state.subscribe(["d"])
    world.stream.ended(None)
    world.stream.open("there:1")
    assert not world.stream.take(world.sent(1))
    assert confirmed(one, other) == [False, False]
    world.hangs_since = None
    world.hears()
    assert confirmed(one, other) == [True, True]


def test_a_stream_that_seems_late_for_ever_is_renewed_for_those_who_wait() -> None:
    world = World()
    world.hears(1)
    world.wall -= 10.0  # the authority's own time never goes back: it stands, and then all seems 10 s old
    for _ in range(20):
        world.now += BEAT
        assert not world.stream.take(world.sent(2)), "nobody waits"
    late = world.state.subscribe(["c"])
    assert confirmed(late) == [False]
    world.now += BEAT
    assert world.stream.take(world.sent(3))
    assert world.stream.ended(None) == 0.0
    world.stream.open("there:1")
    world.hears(3)
    assert confirmed(late) == [True]
    assert world.stale_for == 0.0


def test_a_first_message_that_lay_in_a_buffer_is_not_taken_for_fresh() -> None:
    world = World()
    lying = world.sent(5000)
    world.now += 3600.0
    after = world.state.subscribe(["c"])
    assert world.stream.take(lying), "how old it is nobody knows"
    assert confirmed(world.subscription, after) == [True, False], "it was sent after the first began to follow"
    assert world.stream.ended(None) == 0.0
    world.stream.open("there:1")
    world.now += 3600.0
    world.stream.take(world.sent(-1, incarnation=2))
    assert after.confirmed, "however long it took"


def test_a_first_read_waits_for_the_newest() -> None:
    world, waiting = thawed(1800.0)
    world.stream.take(waiting[0])
    assert world.subscription.confirmed
    assert not Folding.come(world.state, world.subscription)
    for message in waiting[-2:]:
        world.stream.take(message)
    assert Folding.come(world.state, world.subscription)


# -- what the authority says --------------------------------------------------------------------------------------


class Hanging(FaultPlan):
    """Appends wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waits = asyncio.Event()

    async def before(self, operation: Operation) -> Outcome:
        """See FaultPlan."""
        if not self.gate.is_set():
            self.waits.set()
        await self.gate.wait()
        return await super().before(operation)


async def test_rule11_the_authority_tells_when_it_sent_and_what_it_knows_to_be_the_newest() -> None:
    plan, ticks = Hanging(), itertools.count(1_000)
    authority = Authority(MemoryJournal(MemoryDisk(), faults=plan), clock=lambda: next(ticks), observer=Observer())
    await authority.recover()
    running = asyncio.create_task(authority.run())
    server = grpc.aio.server()
    authority.add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()

    async with grpc.aio.insecure_channel(address) as channel:
        stubs = Stubs(channel)

        async def first() -> watermarks_pb2.WatchResponse:
            messages: AsyncIterator[watermarks_pb2.WatchResponse] = stubs.watermarks.Watch(
                watermarks_pb2.WatchRequest()
            )
            async for message in messages:
                return message
            raise AssertionError

        await stubs.graph.Register(topology_pb2.RegisterRequest(name="a"))
        quiet = [await first(), await first()]
        plan.gate.clear()
        writing = asyncio.ensure_future(stubs.graph.Register(topology_pb2.RegisterRequest(name="b")))
        await plan.waits.wait()
        hanging = [await first(), await first()]
        plan.gate.set()
        await writing
        again = await first()
    for message in (*quiet, again):
        assert message.time_micros < message.clock_micros <= message.time_micros + 1
    assert hanging[0].time_micros == hanging[1].time_micros < hanging[0].clock_micros < hanging[1].clock_micros
    assert quiet[1].time_micros < hanging[0].time_micros
    assert hanging[1].clock_micros < again.time_micros
    authority.leave()
    await server.stop(None)
    await running
