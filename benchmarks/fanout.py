"""Time from a report to a thousand subscribers, and the cost of streams that get only beats."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import grpc
import numpy as np

from benchmarks import child, wire
from benchmarks.bare import SERVICE
from benchmarks.owner import COMPUTATION, Owner, channel, check
from benchmarks.result import Result, Spread
from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    subscribers: int
    rounds: int
    publishes: int
    """Number of publications in one round."""
    idle: tuple[int, ...]
    """Streams that are told nothing but beats."""
    idle_rounds: int
    idle_seconds: float
    """Idle seconds of one round."""
    settling: float
    """Seconds after the last stream was opened that do not count: what that takes has ended by
    then."""


# The authority lets in 8,192 watch streams.
FULL: Final = Size(1000, rounds=6, publishes=60, idle=(0, 1000, 8000), idle_rounds=3, idle_seconds=6.0, settling=2.0)
QUICK: Final = Size(20, rounds=2, publishes=5, idle=(0, 20), idle_rounds=1, idle_seconds=1.5, settling=0.1)

EVERY: Final = 0.1
"""Seconds from one report to the next."""

WATCH: Final = "/lowwater.v1.WatermarkService/Watch"
BARE: Final = "bare grpc.aio fan-out of the same bytes"
BEATS: Final = "bare grpc.aio server that sends the same beats"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "fanout"))
        bare = stack.enter_context(child.bare(folder / "bare", 1))
        owner = stack.enter_context(closing(Owner(server.address, [b""], claims=1)))
        link = stack.enter_context(closing(channel(bare.address)))
        source = Reports(owner)
        return [*_fan_out(size, (server, source), (bare, Relayed(link, _published(owner)))), *_idle(size, server, bare)]


class Source(Protocol):
    """Where new values come from."""

    method: str
    """Method that its subscribers call."""
    request: bytes

    def send(self, low: int) -> None:
        """Have the subscribers told of a low watermark."""
        ...


class Reports:
    """Reports to an authority."""

    method = WATCH
    request = watermarks_pb2.WatchRequest(computations=[COMPUTATION]).SerializeToString()

    def __init__(self, owner: Owner) -> None:
        self._sequencer = owner.sequencers[0]
        self._number = 0
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._requests.put(owner.opening())
        self._responses = owner.open(iter(self._requests.get, None))

    def send(self, low: int) -> None:
        """See Source."""
        self._number += 1
        self._requests.put(wire.report(self._number, COMPUTATION, self._sequencer, np.array([low])))

    def acknowledged(self) -> None:
        """Return when all that was sent is durable."""
        for response in self._responses:
            if response.HasField("ack"):
                check(response.ack)
                if response.ack.number == self._number:
                    return


class Relayed:
    """Messages that a bare server sends to each of its subscribers.

    They are those of the authority byte by byte, except for the value.
    """

    method = f"/{SERVICE}/Watch"
    request = b""

    def __init__(self, link: grpc.Channel, like: watermarks_pb2.WatchResponse) -> None:
        self._like = like
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        report: grpc.StreamStreamMultiCallable[bytes, bytes] = link.stream_stream(f"/{SERVICE}/Report")
        self._responses = report(iter(self._requests.get, None))

    def send(self, low: int) -> None:
        """See Source."""
        self._like.watermarks[0].low_micros = low
        self._requests.put(self._like.SerializeToString())


def _published(owner: Owner) -> watermarks_pb2.WatchResponse:
    """Return the message that a subscriber gets of a change."""
    request = watermarks_pb2.WatchRequest(computations=[COMPUTATION])
    call = watermarks_pb2_grpc.WatermarkServiceStub(owner.channel).Watch(request)
    first: watermarks_pb2.WatchResponse = next(call)
    call.cancel()
    return first


class Crowd:
    """Subscribers (:mod:`benchmarks.fanout_child`)."""

    def __init__(self, companion: child.Companion) -> None:
        self._companion = companion

    def begin(self) -> None:
        """Note from now on what comes."""
        self._companion.say("begin")

    def count(self) -> int:
        """Return how many messages came since it was told to begin."""
        return int(self._companion.say("count"))

    def came(self, low: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Wait until each subscriber holds a low watermark.

        Returns the low watermarks that each got since it began, and the nanoseconds at which they
        came.
        """
        path = Path(self._companion.say(f"until {low}"))
        rows = np.load(path)
        path.unlink()
        return {
            number: (mine[:, 1], mine[:, 2])
            for number in np.unique(rows[:, 0])
            for mine in [rows[rows[:, 0] == number]]
        }


@contextmanager
def crowd(address: str, method: str, request: bytes, count: int) -> Iterator[Crowd]:
    """Open so many streams and wait for the first message of each."""
    with child.companion("benchmarks.fanout_child", address, method, request.hex(), count) as companion:
        yield Crowd(companion)


def _fan_out(size: Size, ours: tuple[child.Server, Source], theirs: tuple[child.Server, Source]) -> list[Result]:
    """Let both send to as many subscribers, in turn."""
    low = time.time_ns() // 1000 - 3_600_000_000
    milliseconds: list[list[list[float]]] = [[], []]
    processor: list[list[float]] = [[], []]
    with ExitStack() as stack:
        crowds = [
            stack.enter_context(crowd(server.address, source.method, source.request, size.subscribers))
            for server, source in (ours, theirs)
        ]
        time.sleep(size.settling)
        for _ in range(size.rounds):
            for i, (server, source) in enumerate((ours, theirs)):
                crowds[i].begin()
                before = server.processor_seconds() or 0.0
                sent = _send(source, low, size.publishes)
                low += size.publishes
                came = crowds[i].came(low)
                delivered = sum(len(lows) for lows, _ in came.values())
                processor[i].append(1e6 * ((server.processor_seconds() or 0.0) - before) / delivered)
                milliseconds[i].append(_delays(sent, came, size.subscribers))
    facts = {
        "ranges": 1,
        "subscribers": size.subscribers,
        "per_second": round(1 / EVERY),
        "n": sum(map(len, milliseconds[0])),
    }
    results = [
        Result(
            "fanout",
            f"p{percent}",
            Spread.percentile(milliseconds[0], percent),
            "ms",
            f"{BARE}, p{percent}",
            Spread.percentile(milliseconds[1], percent),
            facts,
        )
        for percent in (50, 99)
    ]
    spreads = [Spread(tuple(rounds)) for rounds in processor]
    return [*results, Result("fanout", "processor_per_delivery", spreads[0], "us", BARE, spreads[1], facts)]


def _send(source: Source, low: int, count: int) -> dict[int, float]:
    """Send the low watermarks behind one, evenly. Returns when each was sent."""
    sent = {}
    next_at = time.perf_counter()
    for value in range(low + 1, low + count + 1):
        time.sleep(max(0.0, next_at - time.perf_counter()))
        next_at += EVERY
        sent[value] = time.perf_counter()
        source.send(value)
    return sent


def _delays(sent: dict[int, float], came: dict[int, tuple[np.ndarray, np.ndarray]], subscribers: int) -> list[float]:
    """Return the milliseconds from each sending until each subscriber held that value or a newer.

    Raises RuntimeError when a subscriber got a value that was not sent.
    """
    if len(came) != subscribers:
        msg = f"{len(came)} of {subscribers} subscribers were told anything"
        raise RuntimeError(msg)
    values, begun = np.array(list(sent)), np.array(list(sent.values()))
    milliseconds: list[float] = []
    for lows, at in came.values():
        if not (np.diff(lows) > 0).all() or not np.isin(lows, values).all():
            msg = f"a subscriber was told {lows.tolist()}"
            raise RuntimeError(msg)
        milliseconds += ((at[np.searchsorted(lows, values)] / 1e9 - begun) * 1e3).tolist()
    return milliseconds


def _idle(size: Size, server: child.Server, bare: child.Server) -> list[Result]:
    """Let streams idle, in turn at either server."""
    results = []
    beat = _beat(server.address)
    kinds = ((server, WATCH, Reports.request), (bare, f"/{SERVICE}/Beats", beat))
    for count in size.idle:
        shares: list[list[float]] = [[], []]
        beats: list[list[float]] = [[], []]
        for _ in range(size.idle_rounds):
            for i, (target, method, request) in enumerate(kinds):
                with crowd(target.address, method, request, count) as streams:
                    time.sleep(size.settling)
                    streams.begin()
                    before, began = target.processor_seconds() or 0.0, time.perf_counter()
                    time.sleep(size.idle_seconds)
                    worked, seconds = (target.processor_seconds() or 0.0) - before, time.perf_counter() - began
                    messages = streams.count()
                shares[i].append(worked / seconds)
                beats[i].append(messages / seconds)
        facts = {
            "ranges": 1,
            "streams": count,
            "beats_per_second": round(statistics.median(beats[0]), 1),
            "baseline_beats_per_second": round(statistics.median(beats[1]), 1),
            "n": size.idle_rounds,
        }
        ours, theirs = (Spread(tuple(share)) for share in shares)
        results.append(Result("fanout", f"idle_{count}_processor", ours, "s/s", BEATS, theirs, facts))
    return results


def _beat(address: str) -> bytes:
    """Return the message of the authority without news."""
    with closing(channel(address)) as link:
        call = watermarks_pb2_grpc.WatermarkServiceStub(link).Watch(
            watermarks_pb2.WatchRequest(computations=[COMPUTATION])
        )
        beat = next(response for response in call if not response.watermarks)
        call.cancel()
    return beat.SerializeToString()
