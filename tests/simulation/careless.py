"""What a careless client does to the protocol: it begins its counters again, says late what it said long ago, and uses a request id twice.

A client of ours does none of that. Whoever writes one in another language may, and then nothing may be lost but that client's own time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
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


class Careless:
    """What the processes of a world have sent, and may send again."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._said: dict[str, deque[workers_pb2.Report]] = {}
        self._asked: dict[str, workers_pb2.ClaimRequest] = {}
        sim.network.taps.append(self._sent)

    def _sent(self, tap: Tap) -> None:
        match tap.message:
            case workers_pb2.ReportRequest() as message if message.HasField("report"):
                self._said.setdefault(str(tap.process), deque(maxlen=KEPT)).append(message.report)
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
        """Say once more, on a stream of another sender, what was said of a claim a while ago."""
        said = [
            group
            for report in self._said.get(str(process), ())
            for group in report.groups
            if (group.computation, group.sequencer) == (lease.computation, lease.sequencer)
        ]
        if not said:
            return
        group, sender = random.choice(said), random.randbytes(16)

        def requests() -> list[workers_pb2.ReportRequest]:
            opening = workers_pb2.ReportOpen(sender=sender, stream=1)
            report = workers_pb2.Report(number=1, groups=[group])
            return [workers_pb2.ReportRequest(open=opening), workers_pb2.ReportRequest(report=report)]

        async def talk(stub: workers_pb2_grpc.WorkerServiceAsyncStub) -> None:
            async for answer in stub.Report(_Requests(requests())):
                for refused in answer.ack.refused:
                    self._sim.reach(f"said again: {refused.reason}")

        await self._everywhere(process, addresses, talk)

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


class _Requests:
    """A few messages, one behind the other."""

    def __init__(self, messages: list[workers_pb2.ReportRequest]) -> None:
        self._messages = deque(messages)

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> workers_pb2.ReportRequest:
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.popleft()
