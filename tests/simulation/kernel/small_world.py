"""A small world for the kernel's own tests: one authority, raw stubs, an echo. As a program it prints a digest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc

from lowwater._pb.lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater_authority.authority import Authority
from lowwater_authority.journal import JournalError
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.simulation.kernel import Process, SimFaults, Simulation

ADDRESS = "authority:7420"
HOUR = 3_600_000_000
START = 1_357_689_600_000_000


class SmallWorld:
    """An authority over a disk. ``serve`` starts its next life."""

    def __init__(self, seed: int = 1, *, weak: bool = False, keep_trace: bool = False) -> None:
        self.sim = Simulation(seed, keep_trace=keep_trace)
        self.disk = MemoryDisk()
        self.faults = SimFaults(self.sim, "disk", weak=weak)
        self.authority: Authority | None = None
        self.server: Process | None = None

    def serve(self) -> Process:
        """Start the authority, the first time or again."""
        self.server = self.sim.process("authority") if self.server is None else self.server.restarted()
        self.server.start(self._serve, self.server)
        return self.server

    async def _serve(self, process: Process) -> None:
        sim, random = self.sim, self.sim.rng(f"journal {process.generation}")
        journal = MemoryJournal(self.disk, faults=self.faults, randbits=random.getrandbits, clock=lambda: sim.now)
        self.authority = authority = Authority(journal, clock=process.clock, observer=Observer())
        await authority.recover()
        server = sim.network.server(process, ADDRESS)
        authority.add_to(server)
        await server.start()
        try:
            await authority.run()
        finally:
            await server.stop(1.0)
        await authority.close()

    def stubs(self, name: str = "client") -> Stubs:
        """A client process that does nothing by itself, and its stubs."""
        return Stubs(self.sim.process(name), self.sim.network.channel(self.sim.process(name), ADDRESS))

    def run(self, program: Callable[[SmallWorld], Coroutine[Any, Any, Any]], limit: float = 1_000) -> Any:
        """Run a program as god."""
        return self.sim.run(program(self), limit)


class Stubs:
    """Raw stubs of one client process. Its calls must be made in that process: :meth:`do`."""

    def __init__(self, process: Process, channel: grpc.aio.Channel) -> None:
        self.process = process
        self.channel = channel
        self.graph = topology_pb2_grpc.TopologyServiceStub(channel)
        self.watermarks = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        self.workers = workers_pb2_grpc.WorkerServiceStub(channel)
        # The process has to do something, or it would end.
        process.start(asyncio.Event().wait)

    def do(self, method: Any, request: Any) -> asyncio.Task[Any]:
        """Make a unary call in the client's process."""

        async def call() -> Any:
            return await method(request, timeout=5.0, wait_for_ready=True)

        return self.process.start(call)

    def register(self, name: str) -> asyncio.Task[Any]:
        return self.do(self.graph.Register, topology_pb2.RegisterRequest(name=name))

    def claim(self, name: str, request_id: bytes = b"1" * 16) -> asyncio.Task[Any]:
        return self.do(
            self.workers.Claim, workers_pb2.ClaimRequest(computation=name, bounds=[b"", b""], request_id=request_id)
        )

    async def low(self, name: str) -> int:
        """The published low watermark."""
        response = await self.do(
            self.watermarks.GetWatermarks, watermarks_pb2.GetWatermarksRequest(computations=[name])
        )
        low: int = response.watermarks[0].low_micros
        return low

    def report(self, name: str, sequencer: int, micros: int, timeout: float | None = 20.0) -> asyncio.Task[Any]:
        """Report one value on a stream of its own; ends with the acknowledged number, 0 when it was refused."""

        async def requests() -> AsyncIterator[workers_pb2.ReportRequest]:
            yield workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=b"s" * 16, stream=micros - START + 1))
            group = workers_pb2.GroupReport(computation=name, sequencer=sequencer, watermarks_micros=[micros])
            yield workers_pb2.ReportRequest(report=workers_pb2.Report(number=1, groups=[group]))

        async def report() -> int:
            number = 0
            async for response in self.workers.Report(requests(), timeout=timeout, wait_for_ready=True):
                number = number if response.ack.refused else response.ack.number or number
            return number

        return self.process.start(report)


async def stormy(world: SmallWorld) -> int:
    """Some minutes of everything: weather, crashes, pauses, cuts; returns how many values were acknowledged."""
    sim, weather = world.sim, world.sim.network.weather
    server, client = world.serve(), world.stubs()
    await client.register("a")
    weather.p_slow, weather.slow = 0.1, (0.01, 0.5)
    weather.p_lose_request = weather.p_lose_response = weather.p_repeat_request = weather.p_break = 0.05
    weather.p_report_doubled = 0.1
    storm = world.faults.weather
    storm.p_failed = storm.p_lost = storm.p_written = storm.p_slow = 0.05
    random, acknowledged = sim.rng("storm"), 0
    watcher = client.process.start(_follow, client)
    for number in range(1, 120):
        chosen = random.choice(("crash", "pause", "cut", *["report"] * 6))
        if chosen == "crash":
            server.crash()
            world.disk.crash(random.randrange(3))
            server = world.serve()
        elif chosen == "pause":
            server.pause()
            await asyncio.sleep(random.uniform(0, 15))
            server.resume()
        elif chosen == "cut":
            sim.network.cut(client.process)
            await asyncio.sleep(random.uniform(0, 2))
            sim.network.heal(client.process)
        try:
            grant = await client.claim("a", number.to_bytes(16))
            acknowledged += await client.report("a", grant.sequencer, START + number)
        except grpc.aio.AioRpcError as error:
            sim.reach(f"call: {error.code().name}")
        if not server.alive:
            assert isinstance(server.failure, JournalError), server.failure
            server = world.serve()
    sim.reach(f"watched {watcher.done()}")
    assert not sim.errors, sim.errors
    return acknowledged


async def _follow(client: Stubs) -> None:
    while True:
        try:
            async for response in client.watermarks.Watch(watermarks_pb2.WatchRequest(), wait_for_ready=True):
                client.process.sim.trace("seen", lows=[mark.low_micros for mark in response.watermarks])
        except grpc.aio.AioRpcError as error:
            client.process.sim.trace("lost", code=error.code().name)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    small = SmallWorld(int(sys.argv[1]))
    print(small.run(stormy, 100_000), small.sim.digest())
