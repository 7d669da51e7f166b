"""Messages a second that one authority accepts, by the number of their streams.

They bound a node of a tree, whose children report one range each.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from benchmarks import child, wire, workload
from benchmarks.owner import COMPUTATION, OPTIONS, Owner, check
from benchmarks.result import Result, Spread
from lowwater.v1 import workers_pb2 as pb

CONNECTIONS: Final = 10
METHOD: Final = "/lowwater.v1.WorkerService/Report"
BACK: Final = 3_600_000_000
"""Microseconds that values are behind the clock: what is ahead of it is refused."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    streams: tuple[int, ...]
    paced: int
    """Streams that send five messages a second."""
    rounds: int
    seconds: float


FULL: Final = Size((1, 10, 100, 400), paced=100, rounds=5, seconds=3.0)
QUICK: Final = Size((1, 4), paced=4, rounds=2, seconds=0.3)


@dataclass(frozen=True, slots=True)
class Took:
    """Figures of one round."""

    messages: int
    seconds: float
    processor: float
    """Processor time of the authority, in seconds."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def per_message(self) -> float:
        """Microseconds of a processor for a message."""
        return self.processor / self.messages * 1e6


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure; sizes take turns by rounds."""
    size = QUICK if quick else FULL
    most = max(*size.streams, size.paced)
    by_streams: dict[int, list[Took]] = {streams: [] for streams in size.streams}
    paced: list[Took] = []
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "messages"))
        owner = stack.enter_context(closing(Owner(server.address, workload.keys(most), most)))
        for _ in range(size.rounds):
            for streams, rounds in by_streams.items():
                rounds.append(asyncio.run(_round(server, owner, streams, 0.0, size.seconds)))
            paced.append(asyncio.run(_round(server, owner, size.paced, 0.2, size.seconds)))
    return [*_results(by_streams), _paced(paced, by_streams, size)]


def _results(by_streams: dict[int, list[Took]]) -> list[Result]:
    results = []
    one = next(iter(by_streams.values()))
    values: tuple[tuple[str, str, Callable[[Took], float]], ...] = (
        ("messages_per_second", "messages/s", lambda took: took.rate),
        ("processor_per_message", "us", lambda took: took.per_message),
    )
    for metric, unit, value in values:
        base = Spread(tuple(map(value, one)))
        for streams, rounds in by_streams.items():
            facts = {"ranges": streams, "streams": streams, "n": sum(took.messages for took in rounds)}
            results.append(
                Result(
                    "messages",
                    f"{metric}_{streams}",
                    Spread(tuple(map(value, rounds))),
                    unit,
                    "one stream",
                    base,
                    facts,
                )
            )
    return results


def _paced(rounds: list[Took], by_streams: dict[int, list[Took]], size: Size) -> Result:
    facts = {
        "ranges": size.paced,
        "streams": size.paced,
        "rate": round(Spread(tuple(took.rate for took in rounds)).median, 1),
    }
    ours, one = (
        Spread(tuple(took.per_message for took in rounds_)) for rounds_ in (rounds, next(iter(by_streams.values())))
    )
    return Result("messages", "paced_processor_per_message", ours, "us", "one stream", one, facts)


async def _round(server: child.Server, owner: Owner, streams: int, pause: float, seconds: float) -> Took:
    """Send on so many streams, each when its last message is acknowledged and the pause is over."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(server.address, options=(*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))
            )
            for _ in range(min(CONNECTIONS, streams))
        ]
        calls = []
        for index in range(streams):
            method: grpc.aio.StreamStreamMultiCallable[bytes, pb.ReportResponse] = channels[
                index % len(channels)
            ].stream_stream(METHOD, response_deserializer=pb.ReportResponse.FromString)
            call = method()
            await call.write(wire.opening(os.urandom(16), 1))
            await call.read()
            calls.append(call)
        before, begin = server.processor_seconds(), time.perf_counter()
        until = begin + seconds
        sending = [
            _send(call, owner.sequencers[index], index / streams * pause, pause, until)
            for index, call in enumerate(calls)
        ]
        messages = sum(await asyncio.gather(*sending))
        took, after = time.perf_counter() - begin, server.processor_seconds()
        for call in calls:
            call.cancel()
    spent = 0.0 if before is None or after is None else after - before
    return Took(messages, took, spent)


async def _send(
    call: grpc.aio.StreamStreamCall[bytes, pb.ReportResponse], sequencer: int, first: float, pause: float, until: float
) -> int:
    number, due = 0, time.perf_counter() + first
    while (now := time.perf_counter()) < until:
        if due > now:
            await asyncio.sleep(due - now)
        due = max(due + pause, now)
        number += 1
        value = np.array([time.time_ns() // 1000 - BACK], dtype=np.int64)
        await call.write(wire.report(number, COMPUTATION, sequencer, value))
        acknowledged = 0
        while acknowledged < number:
            response = await call.read()
            assert isinstance(response, pb.ReportResponse), "the stream has ended"
            if response.HasField("ack"):
                check(response.ack)
                acknowledged = response.ack.number
    return number
