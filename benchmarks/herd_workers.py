"""Thousands of workers on one event loop, over raw stubs, without the client library."""

from __future__ import annotations

import asyncio
import itertools
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
from benchmarks.workload import Int64s, bounds, keys
from lowwater.v1 import errors_pb2, topology_pb2, topology_pb2_grpc, workers_pb2_grpc
from lowwater.v1 import workers_pb2 as pb

RANGES: Final = 4
"""Number of ranges in each worker's claim."""

CHANNELS: Final = 8
"""Connections that the workers share."""

CLAIMING: Final = 64
"""Claims asked for at once."""

BEAT: Final = 3.0
"""Seconds between the reports of a worker that has nothing new, as in the client library."""

FIRST_BACKOFF: Final = 0.1
MOST_BACKOFF: Final = 5.0
"""Seconds between which the upper bound of a delay grows when the authority does not say how long
to wait."""

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
    """True: workers wait as the client library does. That is as long as the authority asks, with
    jitter; without such an answer for a growing time; and before the first beat a random part of
    the interval. False: they never wait."""
    stopping: bool = False
    missing: set[int] = field(default_factory=set)
    """Workers whose state is not acknowledged again."""
    acknowledged: list[float] = field(default_factory=list)
    """Times at which the states were acknowledged, by the monotonic clock."""
    beats: list[float] = field(default_factory=list)
    """Due times of the acknowledged beats. Times of arrival would show hiccups of the machine
    instead."""
    durable: dict[int, int] = field(default_factory=dict)
    """Newest acknowledged value of each worker's first range."""
    delays: list[float] = field(default_factory=list)
    """Waits that the authority asked of workers, in seconds."""
    sent: Int64s = field(init=False)
    """Newest value of each worker's first range that was sent, or is about to be. It only grows."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    failure: BaseException | None = None
    """Error that ended a worker before its time."""
    _channels: dict[str, list[grpc.aio.Channel]] = field(default_factory=dict)
    """Channels to each address."""

    def __post_init__(self) -> None:
        self.sent = np.zeros(self.workers, dtype=np.int64)

    def expect(self, *, patient: bool) -> None:
        """Begin to wait for the states of all workers."""
        self.patient = patient
        self.missing = set(range(self.workers))
        self.acknowledged = []
        self.complete.clear()

    async def wait(self) -> list[float]:
        """Return when the states of all were acknowledged, in order. Raises what ended a worker."""
        async with asyncio.timeout(PATIENCE):
            await self.complete.wait()
        if self.failure is not None:
            raise self.failure
        return self.acknowledged

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let all workers claim and report, until the end."""
        await topology_pb2_grpc.TopologyServiceStub(self.channel(0, self.address)).Register(
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
                stub = workers_pb2_grpc.WorkerServiceStub(self.channel(worker, self.address))
                return (await stub.Claim(request, timeout=PATIENCE)).sequencer

        sequencers = await asyncio.gather(*map(claim, range(self.workers)))
        self.expect(patient=True)
        tasks = [asyncio.create_task(self._work(worker, sequencer)) for worker, sequencer in enumerate(sequencers)]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self.stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for channel in itertools.chain.from_iterable(self._channels.values()):
                await channel.close()

    def channel(self, worker: int, address: str) -> grpc.aio.Channel:
        """Return the connection that a worker shares with others."""
        if address not in self._channels:
            options = (*ALONE, *BACK_SOON)
            self._channels[address] = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        return self._channels[address][worker % CHANNELS]

    def call(self, worker: int) -> Call:
        """Begin a report stream of a worker."""
        return self._call(worker, self.address, wait_for_ready=True)

    async def again(self, worker: int, delay: float, failures: int) -> None:
        """Return when a worker may open its next stream.

        ``delay`` is the wait that the authority asked for, in seconds.
        """
        await asyncio.sleep(self.pause(delay, failures, MOST_BACKOFF))

    def pause(self, delay: float, failures: int, most: float) -> float:
        """Return the seconds before the next attempt; ``most`` bounds a worker's own delay."""
        if not self.patient:
            return 0.0
        own = min(most, FIRST_BACKOFF * 2.0**failures) * random.random()
        return delay * (1.0 + random.random()) if delay else own

    def is_accepted(self, worker: int, ack: pb.ReportAck) -> bool:
        """Return True when a report was acknowledged; False would end the stream.

        Raises RuntimeError when the authority refused the report for good.
        """
        check(ack)
        return True

    def _call(self, worker: int, address: str, *, wait_for_ready: bool) -> Call:
        report: grpc.aio.StreamStreamMultiCallable[bytes, pb.ReportResponse] = self.channel(
            worker, address
        ).stream_stream("/lowwater.v1.WorkerService/Report", response_deserializer=pb.ReportResponse.FromString)
        return report(wait_for_ready=wait_for_ready)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.stopping:
            self.failure = task.exception()
            self.complete.set()

    async def _work(self, worker: int, sequencer: int) -> None:
        """Open one stream after the other, as one process does."""
        sender, failures = os.urandom(16), 0
        for stream in itertools.count(1):
            delay = 0.0
            call = self.call(worker)
            try:
                delay = await self._report(call, wire.opening(sender, stream), worker, sequencer)
            except grpc.aio.AioRpcError as error:
                delay = wait_asked(error)
                if delay:
                    self.delays.append(delay)
            except (asyncio.CancelledError, asyncio.InvalidStateError):
                # gRPC's ways to say, now and then, that the connection is gone.
                if self.stopping:
                    raise
            finally:
                call.cancel()
            failures = 0 if worker not in self.missing else failures + 1
            await self.again(worker, delay, failures)

    async def _report(self, call: Call, opening: bytes, worker: int, sequencer: int) -> float:
        """Report on one stream until it ends.

        Returns the seconds that the authority asked to stay away when it ended the stream.
        """
        await call.write(opening)
        await call.read()
        answer = self._next(call)
        begun, number = 0.0, 0
        while True:
            number += 1
            self.sent[worker] += 1
            values = self.sent[worker] + np.arange(RANGES)
            await call.write(wire.report(number, COMPUTATION, sequencer, values))
            response = await answer
            if not isinstance(response, pb.ReportResponse):
                return 0.0
            if response.HasField("go_away"):
                return response.go_away.retry_after_millis / 1e3
            if not self.is_accepted(worker, response.ack):
                return 0.0
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
                farewell = answer.result()
                return farewell.go_away.retry_after_millis / 1e3 if isinstance(farewell, pb.ReportResponse) else 0.0

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


def wait_asked(error: grpc.aio.AioRpcError) -> float:
    """Return the seconds that the authority asked to wait; 0 when it did not."""
    details = next((value for key, value in error.trailing_metadata() or () if key == DETAILS), b"")
    assert isinstance(details, bytes)
    for detail in errors_pb2.RpcStatus.FromString(details).details:
        if detail.type_url == RETRY_INFO:
            return errors_pb2.RetryInfo.FromString(detail.value).retry_delay.ToNanoseconds() / 1e9
    return 0.0
