"""What a careless client does to the protocol: it begins its counters again, says late what it said long ago, and uses a request id twice.

A client of ours does none of that. Whoever writes one in another language may, and then nothing may be lost but that client's own time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import grpc

from lowwater._core.settings import Settings
from lowwater._pb.lowwater.v1 import workers_pb2, workers_pb2_grpc

if TYPE_CHECKING:
    from lowwater.aio import Lease
    from tests.simulation.kernel import Process, Simulation, Tap

KEPT: Final = 20
"""Reports of a process that may be said again."""

SECONDS: Final = 3.0
"""How long a careless call waits."""

PATIENCE_SECONDS: Final = 20.0
"""How long a report is kept back until the authority it was meant for is there again."""

SENDERS: Final = 4
"""How many senders without turns a claim may have in a world; see SENDERS_KEPT of the authority."""


class Careless:
    """What the processes of a world have sent, and may send again. ``weak``: the store may forget which number was the newest."""

    def __init__(self, sim: Simulation, *, weak: bool) -> None:
        self._sim = sim
        self._weak = weak
        self._said: dict[str, deque[workers_pb2.Report]] = {}
        self._senders: set[bytes] = set()
        """Those that only careless ones speak as. A client of ours has more than one too, one after the other."""
        self._repeats: set[int] = set()
        """The calls by which careless ones speak."""
        self._newest: dict[tuple[str, str, int], workers_pb2.GroupReport] = {}
        """The last that the client of a process has said of a claim, and not what was said again."""
        self._asked: dict[str, workers_pb2.ClaimRequest] = {}
        self._in_doubt: set[tuple[str, int]] = set()
        sim.network.taps.append(self._sent)

    def _sent(self, tap: Tap) -> None:
        match tap.message:
            case workers_pb2.ReportRequest() as message if message.HasField("report"):
                process = str(tap.process)
                self._said.setdefault(process, deque(maxlen=KEPT)).append(message.report)
                if tap.call not in self._repeats:
                    known = {(process, group.computation, group.sequencer): group for group in message.report.groups}
                    self._newest.update(known)
            case workers_pb2.ReportRequest() as message if message.HasField("open"):
                if message.open.sender in self._senders:
                    self._repeats.add(tap.call)
            case workers_pb2.ClaimRequest() as message:
                self._asked[str(tap.process)] = message
            case _:
                pass

    def count_again(self, lease: Lease) -> None:
        """Begin to count the turns of a claim from 1 again, as a process that was restarted from an image of its memory."""
        state = lease._state
        if state.turn > 1:
            state.turn = 1
            self._sim.reach("a client counted its turns again")

    async def say_again(self, process: Process, addresses: str, lease: Lease, random: Random) -> None:
        """Say once more, on a stream of another sender, what was said of a claim a while ago. Without a turn nobody could tell that it is old."""
        said = [group for group in self._said_of(process, lease) if group.turn]
        if not said:
            return
        group, sender = random.choice(said), random.randbytes(16)

        async def talk(stub: workers_pb2_grpc.WorkerServiceAsyncStub) -> None:
            with closing(self._talk(stub, sender)) as talk:
                for reason in await talk.say(group):
                    self._sim.reach(f"said again: {reason}")

        await self._everywhere(process, addresses, talk)

    async def introduce(self, process: Process, addresses: str, lease: Lease, random: Random) -> _Named | None:
        """Say what stands as a sender that counts no turns. None: it was refused, or nobody knows."""
        said = self._newest.get((str(process), lease.computation, lease.sequencer))
        if said is None or self._weak:
            return None
        group, sender = _without_turn(said), random.randbytes(16)
        for address in Settings(addresses).addresses:
            channel = self._sim.network.channel(process, address)
            try:
                async with asyncio.timeout(SECONDS):
                    with closing(self._talk(workers_pb2_grpc.WorkerServiceStub(channel), sender)) as talk:
                        if not await talk.say(group):
                            return _Named(address, sender, group)
            except (grpc.aio.AioRpcError, TimeoutError):
                # It may be on its way for long, and be taken over when the ranges have gone down.
                self._in_doubt.add((lease.computation, lease.sequencer))
                return None
            finally:
                await channel.close()
        return None

    def is_in_doubt(self, lease: Lease) -> bool:
        """Whether something that was said for a claim may still be on its way: its ranges may not go down any more."""
        return (lease.computation, lease.sequencer) in self._in_doubt

    async def repeat_behind_many(self, process: Process, named: _Named, lease: Lease, random: Random) -> None:
        """Let more senders speak for a claim than it may have, and the first of them say late what it said before the ranges went down."""
        low = _without_turn(self._said_of(process, lease)[-1])

        async def speak(stub: workers_pb2_grpc.WorkerServiceAsyncStub) -> bool:
            for _ in range(SENDERS):
                with closing(self._talk(stub, random.randbytes(16))) as talk:
                    for reason in await talk.say(low):
                        self._sim.reach(f"one sender more: {reason}")
            return True

        await self._late(
            process, named.address, random, speak, _Copy("said again behind many", named.sender, named.group)
        )

    async def say_late(self, process: Process, addresses: str, lease: Lease, random: Random) -> None:
        """Take a report back: the ranges stand where they stood. It comes all the same, when the authority was away in between."""
        said = self._said_of(process, lease)
        if len(said) < 2 or self._weak:
            return
        high, low = _copy(random.choice(said[:-1])), _copy(said[-1])
        state = lease._state
        high.turn, low.turn = state.turn + 1, state.turn + 2
        state.turn += 2

        async def speak(stub: workers_pb2_grpc.WorkerServiceAsyncStub) -> bool:
            with closing(self._talk(stub, random.randbytes(16))) as talk:
                return not await talk.say(low)

        for address in Settings(addresses).addresses:
            if await self._late(process, address, random, speak, _Copy("said late", random.randbytes(16), high)):
                return

    async def _late(
        self,
        process: Process,
        address: str,
        random: Random,
        speak: Callable[[workers_pb2_grpc.WorkerServiceAsyncStub], Awaitable[bool]],
        copy: _Copy,
    ) -> bool:
        """Speak, wait until whoever listens is gone, and let a copy arrive at the next one as the first thing that it hears.

        Returns whether there is nothing more to be tried elsewhere.
        """
        channel = self._sim.network.channel(process, address)
        stub = workers_pb2_grpc.WorkerServiceStub(channel)
        try:
            async with asyncio.timeout(SECONDS):
                if not await speak(stub):
                    return False
            async with asyncio.timeout(PATIENCE_SECONDS):
                with closing(self._talk(stub, random.randbytes(16))) as listening:
                    await listening.end()
                with closing(self._talk(stub, copy.sender, waits=True)) as talk:
                    for reason in await talk.say(copy.group):
                        self._sim.reach(f"{copy.what}: {reason}")
        except grpc.aio.AioRpcError as error:
            self._sim.reach(f"careless: {error.code().name}")
        except TimeoutError:
            self._sim.reach("careless: in vain")
        finally:
            await channel.close()
        return True

    def _talk(self, stub: workers_pb2_grpc.WorkerServiceAsyncStub, sender: bytes, *, waits: bool = False) -> _Talk:
        self._senders.add(sender)
        return _Talk(stub, sender, waits=waits)

    def _said_of(self, process: Process, lease: Lease) -> list[workers_pb2.GroupReport]:
        """Return what was said for a claim, oldest first."""
        return [
            group
            for report in self._said.get(str(process), ())
            for group in report.groups
            if (group.computation, group.sequencer) == (lease.computation, lease.sequencer)
        ]

    async def use_a_request_id_twice(self, process: Process, addresses: str) -> None:
        """Claim the whole key space under the id of another claim, that of some of it."""
        asked = workers_pb2.ClaimRequest()
        asked.CopyFrom(self._asked[str(process)])
        if list(asked.bounds) == [b"", b""]:
            return
        del asked.bounds[:]
        asked.bounds.extend([b"", b""])
        del asked.bound_micros[:]

        async def talk(stub: workers_pb2_grpc.WorkerServiceAsyncStub) -> None:
            await stub.Claim(asked)

        await self._everywhere(process, addresses, talk)

    async def _everywhere(
        self,
        process: Process,
        addresses: str,
        talk: Callable[[workers_pb2_grpc.WorkerServiceAsyncStub], Awaitable[None]],
    ) -> None:
        """Do something at each shard. It may be refused."""
        for address in Settings(addresses).addresses:
            channel = self._sim.network.channel(process, address)
            try:
                async with asyncio.timeout(SECONDS):
                    await talk(workers_pb2_grpc.WorkerServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                self._sim.reach(f"careless: {error.code().name}")
            except TimeoutError:
                self._sim.reach("careless: in vain")
            finally:
                await channel.close()


class _Talk:
    """A stream of a sender that says something once, under the number 1. To be closed."""

    def __init__(self, stub: workers_pb2_grpc.WorkerServiceAsyncStub, sender: bytes, *, waits: bool = False) -> None:
        self._requests: asyncio.Queue[workers_pb2.ReportRequest | None] = asyncio.Queue()
        opening = workers_pb2.ReportOpen(sender=sender, stream=1)
        self._requests.put_nowait(workers_pb2.ReportRequest(open=opening))
        self._call = stub.Report(self, wait_for_ready=waits)

    async def say(self, group: workers_pb2.GroupReport) -> list[str]:
        """Say something; returns why it was refused. Raises AioRpcError."""
        self._requests.put_nowait(workers_pb2.ReportRequest(report=workers_pb2.Report(number=1, groups=[group])))
        while True:
            answer = await self._call.read()
            if not isinstance(answer, workers_pb2.ReportResponse):
                return ["the stream has ended"]
            if answer.HasField("ack"):
                return [refused.reason for refused in answer.ack.refused]

    async def end(self) -> None:
        """Return when the stream has broken."""
        await self._call.code()

    def close(self) -> None:
        """Say no more."""
        self._requests.put_nowait(None)
        self._call.cancel()

    def __aiter__(self) -> _Talk:
        return self

    async def __anext__(self) -> workers_pb2.ReportRequest:
        request = await self._requests.get()
        if request is None:
            raise StopAsyncIteration
        return request


@dataclass(frozen=True)
class _Named:
    """A sender that has said something of a claim without a turn, and to whom."""

    address: str
    sender: bytes
    group: workers_pb2.GroupReport


@dataclass(frozen=True)
class _Copy:
    """A report that arrives late, and what that is called."""

    what: str
    sender: bytes
    group: workers_pb2.GroupReport


def _copy(group: workers_pb2.GroupReport) -> workers_pb2.GroupReport:
    copy = workers_pb2.GroupReport()
    copy.CopyFrom(group)
    return copy


def _without_turn(group: workers_pb2.GroupReport) -> workers_pb2.GroupReport:
    copy = _copy(group)
    copy.turn = 0
    return copy
