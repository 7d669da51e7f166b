"""Rule 7 at full size: subscribers that stall for 100,000 published changes get the newest value, and memory stays flat.

One storm for all of them: fifty computations change in every report, and each report is sent when the one before is
durable, so that all its changes are published on their own.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from lowwater.core.ages import LATE
from lowwater.core.settings import OPTIONS
from lowwater.v1 import topology_pb2, topology_pb2_grpc, watermarks_pb2, workers_pb2_grpc
from lowwater.v1 import workers_pb2 as pb
from tests.process.scrape import Scrape
from tests.process.serving import Serving

NAMES = [f"c{number:02}" for number in range(50)]
REPORTS = 2_000
PUBLISHED = REPORTS * len(NAMES)
FLAT_BYTES = 4 << 20
"""How much a process may grow over the second half of the storm."""

SUBSCRIBER = """
import json, sys
import lowwater

with lowwater.connect(sys.argv[1]) as lw:
    names = int(sys.argv[2])
    some, every = lw.watch(), lw.watch()
    next(some)  # the other first values wait behind it, and are old after the stall
    for _ in range(names):
        next(every)
    print("stalled", flush=True)
    sys.stdin.readline()
    for watch in (some, every):
        print(json.dumps([next(watch).low.micros for _ in range(names)]), flush=True)
"""


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


@pytest.mark.long  # 100,000 changes; what a message is made of after a stall: tests/unit/test_fan_out.py
@pytest.mark.slow
def test_rule7_who_stalls_gets_the_newest_values_and_memory_stays_flat(server: Serving) -> None:
    command = [sys.executable, "-c", SUBSCRIBER, server.address, str(len(NAMES))]
    with ExitStack() as stack:
        feed = Feed(server.address)
        stack.callback(feed.close)
        stalled = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(stalled.kill)
        assert stalled.stdin is not None
        assert stalled.stdout is not None
        assert stalled.stdout.readline() == "stalled\n"
        raw = {kind: Raw(server.address, options) for kind, options in (("client", OPTIONS), ("grpc", ()))}
        for each in raw.values():
            stack.callback(each.channel.close)
        assert server.process is not None
        measured = {"authority": server.process.pid, "library": stalled.pid}
        rounds, before = Scrape(server).value("rounds_total") or 0, dict[str, int]()
        for number in range(1, REPORTS + 1):
            feed.report(number)
            if number == REPORTS // 2:
                before = {name: resident(pid) for name, pid in measured.items()}
        grown = {name: resident(pid) - before[name] for name, pid in measured.items()}
        after = Scrape(server)
        assert after.value("rounds_total") == rounds + REPORTS, "each report was published on its own"
        # Those that stalled took next to nothing, and gRPC's own buffers a half: all else was replaced, nothing was kept.
        assert (after.value("conflated_watermarks_total") or 0) > 1.5 * PUBLISHED
        assert all(each < FLAT_BYTES for each in grown.values()), grown
        # However quick the storm was: what stands in a buffer is late only from then on.
        clock = Raw(server.address, OPTIONS)
        stack.callback(clock.channel.close)
        clock.until(time.time_ns() // 1000 + int(LATE * 1e6))
        stalled.stdin.write("\n")
        stalled.stdin.flush()
        newest = f"{[REPORTS] * len(NAMES)}\n"
        assert [stalled.stdout.readline() for _ in range(2)] == [newest] * 2
        client, default = raw["client"].until_newest(), raw["grpc"].until_newest()
        assert client[1] < 32 << 10 < default[1], "old bytes before the newest"
