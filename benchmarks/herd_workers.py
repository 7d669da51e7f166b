"""Workers by the thousand, on one event loop, over raw stubs: nothing of the client library is in the figures."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc
import numpy as np

from benchmarks import wire
from benchmarks.owner import COMPUTATION, OPTIONS, PATIENCE, check
from benchmarks.workload import bounds, keys
from lowwater._pb.lowwater.v1 import errors_pb2, topology_pb2, topology_pb2_grpc, workers_pb2_grpc
from lowwater._pb.lowwater.v1 import workers_pb2 as pb

RANGES: Final = 4
"""Of each worker's claim."""

CHANNELS: Final = 8
"""Connections that the workers share."""

CLAIMING: Final = 64
"""Claims asked for at once."""

BEAT: Final = 3.0
"""Seconds between the reports of a worker that has nothing new, as in the client library."""

FIRST_BACKOFF: Final = 0.1
MOST_BACKOFF: Final = 5.0
"""Seconds between which the upper bound of a delay grows when the authority does not say how long to wait."""

DETAILS: Final = "grpc-status-details-bin"
RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"

ALONE: Final = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""A connection of its own."""

BACK_SOON: Final = tuple((f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max"))
"""A channel connects again at once, so that all workers come together."""


Call = grpc.aio.StreamStreamCall[bytes, pb.ReportResponse]


@dataclass(slots=True)
class Herd:
    """All workers, on one event loop, over raw stubs."""

    address: str
    workers: int
    patient: bool = True
    """Whether workers wait as the client library does: as long as they are asked to, with jitter, by themselves with a growing
    one, and for their first beat a random part of the interval. Without it they never wait."""
    stopping: bool = False
    missing: set[int] = field(default_factory=set)
    """Workers whose state is not acknowledged again."""
    acknowledged: list[float] = field(default_factory=list)
    """When the state of each was, by the monotonic clock."""
    beats: list[float] = field(default_factory=list)
    """When beats were due that were acknowledged: hiccups of the machine would hide how they fall."""
    durable: dict[int, int] = field(default_factory=dict)
    """The newest value that was acknowledged of the first range of each."""
    delays: list[float] = field(default_factory=list)
    """How long the authority asked workers to wait, in seconds."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def expect(self, *, patient: bool) -> None:
        """From now on wait for the states of all."""
        self.patient = patient
        self.missing = set(range(self.workers))
        self.acknowledged = []
        self.complete.clear()

    async def wait(self) -> list[float]:
        """Return when the states of all were acknowledged, in order."""
        async with asyncio.timeout(PATIENCE):
            await self.complete.wait()
        return self.acknowledged

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let all workers claim and report, until the end."""
        channels = [grpc.aio.insecure_channel(self.address, options=(*ALONE, *BACK_SOON)) for _ in range(CHANNELS)]
        await topology_pb2_grpc.TopologyServiceStub(channels[0]).Register(
            topology_pb2.RegisterRequest(name=COMPUTATION)
        )
        starts = keys(self.workers * RANGES)
        at_once = asyncio.Semaphore(CLAIMING)

        async def claim(worker: int) -> int:
            request = pb.ClaimRequest(
                computation=COMPUTATION,
                bounds=bounds(starts, worker * RANGES, RANGES),
                worker=f"worker-{worker}",
                host="localhost",
                request_id=os.urandom(16),
            )
            async with at_once:
                stub = workers_pb2_grpc.WorkerServiceStub(channels[worker % CHANNELS])
                return (await stub.Claim(request, timeout=PATIENCE)).sequencer

        sequencers = await asyncio.gather(*map(claim, range(self.workers)))
        self.expect(patient=True)
        tasks = [
            asyncio.create_task(self._work(channels[worker % CHANNELS], worker, sequencer))
            for worker, sequencer in enumerate(sequencers)
        ]
        try:
            yield
        finally:
            self.stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for channel in channels:
                await channel.close()

    async def _work(self, channel: grpc.aio.Channel, worker: int, sequencer: int) -> None:
        """Open one stream after the other, as one process does."""
        report: grpc.aio.StreamStreamMultiCallable[bytes, pb.ReportResponse] = channel.stream_stream(
            "/lowwater.v1.WorkerService/Report", response_deserializer=pb.ReportResponse.FromString
        )
        sender, stream, failures = os.urandom(16), 0, 0
        while True:
            stream += 1
            call = report(wait_for_ready=True)
            try:
                await self._report(call, wire.opening(sender, stream), worker, sequencer)
            except grpc.aio.AioRpcError as error:
                failures = 0 if worker not in self.missing else failures + 1
                delay = asked(error)
                if delay:
                    self.delays.append(delay)
                await asyncio.sleep(self._pause(delay, failures))
            except (asyncio.CancelledError, asyncio.InvalidStateError):
                # gRPC's ways to say, now and then, that the connection is gone.
                if self.stopping:
                    raise
            finally:
                call.cancel()

    def _pause(self, asked: float, failures: int) -> float:
        """Return the seconds before the next stream."""
        if not self.patient:
            return 0.0
        own = min(MOST_BACKOFF, FIRST_BACKOFF * 2.0**failures) * random.random()
        return asked * (1.0 + random.random()) if asked else own

    async def _report(self, call: Call, opening: bytes, worker: int, sequencer: int) -> None:
        """Report on one stream until it fails."""
        await call.write(opening)
        await call.read()
        answer = self._next(call)
        begun, number = 0.0, 0
        while True:
            number += 1
            values = np.arange(worker, worker + RANGES) + number
            await call.write(wire.report(number, COMPUTATION, sequencer, values))
            response = await answer
            if not isinstance(response, pb.ReportResponse):
                return
            check(response.ack)
            self.durable[worker] = int(values[0])
            now = time.monotonic()
            if number > 1:
                self.beats.append(begun + (number - 1) * BEAT)
            else:
                self._have(worker, now)
                begun = now - BEAT * (random.random() if self.patient else 0.0)
            # Reading all the time tells at once when the stream ends.
            answer = self._next(call)
            ended, _ = await asyncio.wait({answer}, timeout=begun + number * BEAT - now)
            if ended:
                answer.result()
                return

    @staticmethod
    def _next(call: Call) -> asyncio.Task[pb.ReportResponse | object]:
        """Begin to read."""
        answer = asyncio.ensure_future(call.read())
        # Where a write has failed nobody asks for it.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    def _have(self, worker: int, now: float) -> None:
        if worker in self.missing:
            self.missing.remove(worker)
            self.acknowledged.append(now)
            if not self.missing:
                self.complete.set()


def asked(error: grpc.aio.AioRpcError) -> float:
    """Return the seconds that the authority asked to wait; 0 when it did not."""
    details = next((value for key, value in error.trailing_metadata() or () if key == DETAILS), b"")
    assert isinstance(details, bytes)
    for detail in errors_pb2.RpcStatus.FromString(details).details:
        if detail.type_url == RETRY_INFO:
            return errors_pb2.RetryInfo.FromString(detail.value).retry_delay.ToNanoseconds() / 1e9
    return 0.0
