"""Rule 7 at full size: subscribers that stall for 100,000 published changes get the newest value, and memory stays flat.

One storm for all of them: fifty computations change in every report, and each report is sent when the one before is
durable, so that all its changes are published on their own.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from lowwater._core.ages import LATE
from lowwater._core.settings import OPTIONS
from lowwater._pb.lowwater.v1 import topology_pb2, topology_pb2_grpc, watermarks_pb2, workers_pb2_grpc
from lowwater._pb.lowwater.v1 import workers_pb2 as pb
from tests.process.serving import Serving, serving

NAMES = [f"c{number:02}" for number in range(50)]
REPORTS = 2_000
PUBLISHED = REPORTS * len(NAMES)
STOPPED = REPORTS // 10
"""How many of the last reports a subscriber is stopped for. It answers no pings then. Where that takes more than 10 s it is cut off, and finds
the newest values on a new stream."""
FLAT_BYTES = 4 << 20
"""How much a process may grow over the second half of the storm."""

SUBSCRIBER = """
import asyncio, json, sys
import lowwater, lowwater.aio

how, address, names = sys.argv[1], sys.argv[2], int(sys.argv[3])

def say(*fields):
    print(json.dumps(fields), flush=True)

def stall():
    say("stalled")
    sys.stdin.readline()

def prints():
    # For the one that is stopped from outside.
    with lowwater.connect(address) as lw:
        for view in lw.watch():
            say(view.computation, view.low.micros)

def does_not_come_back():
    with lowwater.connect(address) as lw:
        some, every = lw.watch(), lw.watch()
        next(some)  # the other first values wait behind it, and are old after the stall
        for _ in range(names):
            next(every)
        stall()
        say([next(some).low.micros for _ in range(names)])
        say([next(every).low.micros for _ in range(names)])

{"prints": prints, "does_not_come_back": does_not_come_back}[how]()
"""


pytestmark = pytest.mark.slow


class Subscriber:
    """A program that follows all names with the client library."""

    def __init__(self, how: str, address: str) -> None:
        command = [sys.executable, "-c", SUBSCRIBER, how, address, str(len(NAMES))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> None:
        """End the stall."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class Raw:
    """A subscriber without the library: opens the stream, takes the first message and reads no more."""

    def __init__(self, address: str, options: tuple[tuple[str, Any], ...]) -> None:
        self.channel = grpc.insecure_channel(address, options=(*options, ("grpc.use_local_subchannel_pool", 1)))
        watch = self.channel.unary_stream(
            "/lowwater.v1.WatermarkService/Watch", watermarks_pb2.WatchRequest.SerializeToString, lambda data: data
        )
        self.call = watch(watermarks_pb2.WatchRequest())
        next(self.call)

    def until_newest(self) -> tuple[int, int]:
        """Read up to the newest values; returns how many older messages and bytes stood before them."""
        messages = size = 0
        for data in self.call:
            found = watermarks_pb2.WatchResponse.FromString(data).watermarks
            if found and all(each.low_micros == REPORTS for each in found):
                assert len(found) == len(NAMES), "the newest of all at once"
                break
            messages += 1
            size += len(data)
        return messages, size

    def until(self, micros: int) -> None:
        """Read on until the authority's clock shows so much; it says so in every message, and in its beats when nothing changes."""
        for data in self.call:
            if watermarks_pb2.WatchResponse.FromString(data).clock_micros > micros:
                return


class Feed:
    """The owner of all ranges, over raw stubs, so that every change is one that the storm asked for."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        topology = topology_pb2_grpc.TopologyServiceStub(self.channel)
        self.workers = workers_pb2_grpc.WorkerServiceStub(self.channel)
        self.sequencers = {}
        for name in NAMES:
            topology.Register(topology_pb2.RegisterRequest(name=name))
            claim = pb.ClaimRequest(
                computation=name, bounds=[b"", b""], worker="storm", host="here", request_id=os.urandom(16)
            )
            self.sequencers[name] = self.workers.Claim(claim).sequencer
        self._sent: queue.SimpleQueue[pb.ReportRequest | None] = queue.SimpleQueue()
        self._sent.put(pb.ReportRequest(open=pb.ReportOpen(sender=os.urandom(16), stream=1)))
        self._answers = self.workers.Report(iter(self._sent.get, None))
        next(self._answers)

    def report(self, number: int) -> None:
        """Advance all computations, and wait until that is durable, hence published."""
        groups = [
            pb.GroupReport(computation=name, sequencer=sequencer, watermarks_micros=[number])
            for name, sequencer in self.sequencers.items()
        ]
        self._sent.put(pb.ReportRequest(report=pb.Report(number=number, groups=groups)))
        answer = next(self._answers)
        assert answer.ack.number == number
        assert not answer.ack.refused

    def close(self) -> None:
        """End the stream."""
        self._sent.put(None)
        self.channel.close()


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def metric(server: Serving, name: str) -> float:
    """A metric without labels."""
    with urllib.request.urlopen(server.metrics) as page:
        found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
    assert found
    return float(found[1])


@dataclass
class Storm:
    """What is left after it."""

    server: Serving
    stalled: dict[str, Subscriber] = field(default_factory=dict)
    raw: dict[str, Raw] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)
    conflated: float = 0


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path_factory.mktemp("storm")))
        feed = Feed(server.address)
        stack.callback(feed.close)
        after = Storm(server)
        stalled = after.stalled["does_not_come_back"] = stack.enter_context(
            Subscriber("does_not_come_back", server.address)
        )
        assert stalled.line() == ["stalled"]
        for kind, options in (("client", OPTIONS), ("grpc", ())):
            after.raw[kind] = Raw(server.address, options)
            stack.callback(after.raw[kind].channel.close)
        assert server.process is not None
        measured = {"authority": server.process.pid, "library": after.stalled["does_not_come_back"].process.pid}
        began, rounds, before = time.monotonic(), metric(server, "lowwater_rounds_total"), dict[str, int]()
        for number in range(1, REPORTS + 1):
            feed.report(number)
            if number == REPORTS - STOPPED:
                stopped = after.stalled["prints"] = stack.enter_context(Subscriber("prints", server.address))
                # Stopped while it waits: what it says afterwards it has taken afterwards.
                assert {stopped.line()[0] for _ in NAMES} == set(NAMES)
                stopped.signal(signal.SIGSTOP)
            if number == REPORTS // 2:
                before = {name: resident(pid) for name, pid in measured.items()}
        after.grown = {name: resident(pid) - before[name] for name, pid in measured.items()}
        after.conflated = metric(server, "lowwater_conflated_watermarks_total")
        assert metric(server, "lowwater_rounds_total") - rounds == REPORTS, "each report was published on its own"
        print(f"{PUBLISHED:,} changes published in {time.monotonic() - began:.1f} s, {after.conflated:,.0f} conflated")
        # However quick the storm was: what stands in a buffer is late only from then on.
        clock = Raw(server.address, OPTIONS)
        stack.callback(clock.channel.close)
        clock.until(time.time_ns() // 1000 + int(LATE * 1e6))
        yield after


def test_rule7_a_loop_that_did_not_come_back_gets_the_newest_values_first(storm: Storm) -> None:
    stalled = storm.stalled["does_not_come_back"]
    stalled.go_on()
    newest = [[REPORTS] * len(NAMES)]
    assert stalled.line() == newest, "the loop that had not taken all first values"
    assert stalled.line() == newest, "the loop that had"


def test_rule7_a_process_that_was_stopped_gets_the_newest_values_first(storm: Storm) -> None:
    stopped = storm.stalled["prints"]
    stopped.signal(signal.SIGCONT)
    assert sorted(stopped.line() for _ in NAMES) == [[name, REPORTS] for name in NAMES]


def test_rule7_the_transport_keeps_little_for_a_client_that_does_not_read(storm: Storm) -> None:
    client, default = storm.raw["client"].until_newest(), storm.raw["grpc"].until_newest()
    print(f"old messages and bytes before the newest: {client} with the client's options, {default} with gRPC's")
    assert client[1] < 32 << 10 < default[1]


def test_rule7_memory_stays_flat(storm: Storm) -> None:
    print(f"bytes grown over the second half: {storm.grown}")
    # Those that stalled all the time took next to nothing, and gRPC's own buffers a half: all else was replaced, nothing was kept.
    assert storm.conflated > 1.5 * PUBLISHED
    assert all(grown < FLAT_BYTES for grown in storm.grown.values()), storm.grown
