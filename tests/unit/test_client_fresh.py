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
from tests.unit.test_client_watching import Following, confirmed


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


def test_a_wait_that_goes_on_is_not_answered_by_late_news_either() -> None:
    client, waiting = thawed(1800.0)
    wait = Waiting("c", 5001, 10.0)
    assert not wait.reached(client.known, client.subscription)
    late = waiting[0]
    late.watermarks[0].low_micros = 5001
    client.stream.take(late)
    assert not wait.reached(client.known, client.subscription)
    for message in waiting[-2:]:
        client.stream.take(message)
    waiting[-2].watermarks.add(computation="c", registered=True, incarnation=2, low_micros=-1)
    client.stream.take(waiting[-2])
    with pytest.raises(errors.IncarnationChanged, match="Wait anew"):
        wait.reached(client.known, client.subscription)


def test_a_subscription_while_the_journal_hangs_is_confirmed_when_it_no_longer_does() -> None:
    client = Following()
    client.hears(1)
    client.hangs_since = client.clock.now
    client.clock.now += 10.0
    client.hears()
    one = client.known.subscribe(["c"])
    assert not client.stream.take(client.sent()), "another stream would not know more"
    other = client.known.subscribe(["d"])
    client.stream.ended(None)
    client.stream.open("there:1")
    assert not client.stream.take(client.sent(1))
    assert confirmed(one, other) == [False, False]
    client.hangs_since = None
    client.hears()
    assert confirmed(one, other) == [True, True]


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


def test_a_first_message_that_lay_in_a_buffer_is_not_taken_for_fresh() -> None:
    client = Following()
    lying = client.sent(5000)
    client.clock.now += 3600.0
    after = client.known.subscribe(["c"])
    assert client.stream.take(lying), "how old it is nobody knows"
    assert confirmed(client.subscription, after) == [True, False], "it was sent after the first began to follow"
    assert client.stream.ended(None) == 0.0
    client.stream.open("there:1")
    client.clock.now += 3600.0
    client.stream.take(client.sent(-1, incarnation=2))
    assert after.confirmed, "however long it took"


def test_a_first_read_waits_for_the_newest() -> None:
    client, waiting = thawed(1800.0)
    client.stream.take(waiting[0])
    assert client.subscription.confirmed
    assert not Folding.come(client.known, client.subscription)
    for message in waiting[-2:]:
        client.stream.take(message)
    assert Folding.come(client.known, client.subscription)


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
