"""A worker and a reader of the authority over raw stubs, without the client library."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import grpc
import numpy as np

from benchmarks import wire
from benchmarks.bare import SERVICE
from benchmarks.workload import Int64s, Update, bounds
from lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2_grpc,
)
from lowwater.v1 import workers_pb2 as pb

COMPUTATION: Final = "benchmark"

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # As the client library has it.
    ("grpc.http2.bdp_probe", 0),
)

FULL_STATE: Final = 100_000
"""Most ranges of one message of the state that a benchmark starts from."""

PATIENCE: Final = 120.0
"""Seconds after which an answer counts as lost."""


def channel(address: str) -> grpc.Channel:
    """Return a channel of its own connection."""
    return grpc.insecure_channel(address, options=(*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))


class Owner:
    """Owns all ranges of one computation by claims of equal size."""

    def __init__(self, address: str, keys: Sequence[bytes], claims: int) -> None:
        self.channel = channel(address)
        topology = topology_pb2_grpc.TopologyServiceStub(self.channel)
        topology.Register(topology_pb2.RegisterRequest(name=COMPUTATION, heuristics_ppm=[990_000]))
        self.ranges = len(keys)
        self.per_claim = self.ranges // claims
        self.sequencers = [self._claim(keys, first) for first in range(0, self.ranges, self.per_claim)]
        self._report: grpc.StreamStreamMultiCallable[bytes, pb.ReportResponse] = self.channel.stream_stream(
            "/lowwater.v1.WorkerService/Report", response_deserializer=pb.ReportResponse.FromString
        )
        self._sender = os.urandom(16)
        self._streams = 0

    def _claim(self, keys: Sequence[bytes], first: int) -> int:
        request = pb.ClaimRequest(
            computation=COMPUTATION,
            bounds=bounds(keys, first, self.per_claim),
            worker=f"worker-{first // self.per_claim}",
            host="localhost",
            request_id=os.urandom(16),
        )
        return workers_pb2_grpc.WorkerServiceStub(self.channel).Claim(request, timeout=PATIENCE).sequencer

    def _encode(self, number: int, update: Update) -> bytes:
        """Return a report of adjoining ranges of one claim.

        Handles are left out when it is the whole claim.
        """
        claim, first = divmod(update.first, self.per_claim)
        count = len(update.values)
        whole = count == self.per_claim
        handles = None if whole else np.arange(first, first + count, dtype=np.uint32)
        return wire.report(number, COMPUTATION, self.sequencers[claim], update.values, handles)

    def encode(self, updates: Iterable[Update]) -> list[bytes]:
        """Return the reports of one stream."""
        return [self._encode(number, update) for number, update in enumerate(updates, 1)]

    def state(self, values: Int64s) -> list[bytes]:
        """Return reports of a value for every range."""
        size = min(self.per_claim, FULL_STATE)
        return self.encode(Update(at, values[at : at + size]) for at in range(0, self.ranges, size))

    def opening(self) -> bytes:
        """Return the first message of a new stream."""
        self._streams += 1
        return wire.opening(self._sender, self._streams)

    def take(self, reports: Sequence[bytes]) -> None:
        """Send reports as fast as the authority accepts them; return when the last is durable."""
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for request in (self.opening(), *reports):
            requests.put(request)
        responses = self._report(iter(requests.get, None), timeout=PATIENCE)
        for response in responses:
            if response.HasField("ack"):
                check(response.ack)
                if response.ack.number == len(reports):
                    break
        # Only now: the stream has said all when everything is known to be durable.
        requests.put(None)
        for _ in responses:
            pass

    def open(self, requests: Iterator[bytes]) -> Iterator[pb.ReportResponse]:
        """Open a stream for reports that are sent one by one."""
        responses: Iterator[pb.ReportResponse] = self._report(requests)
        return responses

    @property
    def low(self) -> int:
        """The published low watermark."""
        stub = watermarks_pb2_grpc.WatermarkServiceStub(self.channel)
        answer = stub.GetWatermarks(watermarks_pb2.GetWatermarksRequest(computations=[COMPUTATION]))
        return answer.watermarks[0].low_micros

    def close(self) -> None:
        """Let go of the connection."""
        self.channel.close()


class BareOwner:
    """Sends the same messages to the server that does not journal."""

    def __init__(self, address: str, *, whole: bool) -> None:
        self.channel = channel(address)
        self._whole = whole
        self._ingest: grpc.StreamStreamMultiCallable[bytes, pb.ReportResponse] = self.channel.stream_stream(
            f"/{SERVICE}/Ingest", response_deserializer=pb.ReportResponse.FromString
        )
        self.low = 0

    def encode(self, updates: Iterable[Update]) -> list[bytes]:
        """Return the reports of one stream, each as if it were of a claim of its own."""
        return [
            wire.report(
                number,
                COMPUTATION,
                update.first,
                update.values,
                None if self._whole else np.arange(len(update.values), dtype=np.uint32),
            )
            for number, update in enumerate(updates, 1)
        ]

    def take(self, reports: Sequence[bytes]) -> None:
        """Send reports as quickly as they are taken, and return when the last is acknowledged."""
        number = 0
        for response in self._ingest(iter(reports), timeout=PATIENCE):
            number, self.low = response.ack.number, response.ack.references[0].micros
        assert number == len(reports)

    def close(self) -> None:
        """Let go of the connection."""
        self.channel.close()


def check(ack: pb.ReportAck) -> None:
    """Raise when a report was refused: its figures would mean nothing."""
    if ack.refused:
        first = ack.refused[0]
        msg = f"the authority refused a report: {first.reason}: {first.message}"
        raise RuntimeError(msg)
