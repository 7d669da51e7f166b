"""A worker and a reader of the authority over raw stubs: nothing of the client library is in the figures."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import grpc
import numpy as np

from benchmarks import wire
from benchmarks.bare import SERVICE
from benchmarks.workload import Int64s, Move, Treadmill, Update, bounds
from lowwater._pb.lowwater.v1 import topology_pb2, topology_pb2_grpc, watermarks_pb2, watermarks_pb2_grpc
from lowwater._pb.lowwater.v1 import workers_pb2 as pb
from lowwater._pb.lowwater.v1 import workers_pb2_grpc

COMPUTATION: Final = "benchmark"

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # As the client library has it.
    ("grpc.http2.bdp_probe", 0),
)

FULL_STATE: Final = 100_000
"""Most ranges of one message of the state that a benchmark starts from."""

PATIENCE: Final = 60.0
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
        self._report = self.channel.stream_stream(
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
        """Return a report of adjoining ranges of one claim. Handles are left out when it is the whole claim."""
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
        """Send reports as quickly as they are taken, and return when the last is acknowledged as durable."""
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for request in (self.opening(), *reports):
            requests.put(request)
        responses = self._report(iter(requests.get, None), timeout=PATIENCE)
        for response in responses:
            if response.HasField("ack"):
                _check(response.ack)
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
        self._ingest = self.channel.stream_stream(
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


class Hop:
    """A report stream and a subscription, one message at a time: from the put to when the subscriber holds it."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def _stream(self) -> Iterator[bytes]:
        return iter(self._requests.get, None)

    def _drain(self, responses: Iterator[Any]) -> None:
        """Read what comes back, so that nothing piles up; ends with the channel."""

        def read() -> None:
            try:
                for response in responses:
                    if isinstance(response, pb.ReportResponse) and response.HasField("ack"):
                        _check(response.ack)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:  # type: ignore[attr-defined]  # a call as well
                    raise

        threading.Thread(target=read, daemon=True).start()

    def sample(self) -> float:
        """Return the seconds that one message takes."""
        raise NotImplementedError


class JournaledHop(Hop):
    """Report -> journal -> subscriber: the treadmill makes each report move the low watermark."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._treadmill = Treadmill(owner.ranges)
        owner.take(owner.state(self._treadmill.start()))
        self._number = 0
        self._requests.put(owner.opening())
        self._drain(owner.open(self._stream()))
        request = watermarks_pb2.WatchRequest(computations=[COMPUTATION])
        self._watch = watermarks_pb2_grpc.WatermarkServiceStub(owner.channel).Watch(request)
        next(self._watch)

    def sample(self) -> float:
        """See Hop. The subscriber must see exactly the low watermark that the report leads to."""
        move = self._treadmill.move()
        data = self._encode(move)
        begin = time.perf_counter()
        self._requests.put(data)
        while not (response := next(self._watch)).watermarks:
            # A beat.
            if time.perf_counter() - begin > PATIENCE:
                msg = f"no watermark for {PATIENCE} s after report {self._number}"
                raise RuntimeError(msg)
        taken = time.perf_counter() - begin
        if response.watermarks[0].low_micros != move.low:
            msg = f"the low watermark is {response.watermarks[0].low_micros}, not {move.low}"
            raise RuntimeError(msg)
        return taken

    def _encode(self, move: Move) -> bytes:
        self._number += 1
        claim, handle = divmod(move.range, self._owner.per_claim)
        values, handles = np.array([move.value]), np.array([handle], dtype=np.uint32)
        return wire.report(self._number, COMPUTATION, self._owner.sequencers[claim], values, handles)


class RelayHop(Hop):
    """The same bytes through a server that only hands them on."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.channel = channel(address)
        self._number = 0
        self._drain(self.channel.stream_stream(f"/{SERVICE}/Report")(self._stream()))
        self._watch = self.channel.unary_stream(f"/{SERVICE}/Watch")(b"")
        next(self._watch)

    def sample(self) -> float:
        """See Hop."""
        self._number += 1
        values, handles = np.array([time.time_ns() // 1000]), np.array([self._number], dtype=np.uint32)
        data = wire.report(self._number, COMPUTATION, self._number, values, handles)
        begin = time.perf_counter()
        self._requests.put(data)
        received = next(self._watch)
        taken = time.perf_counter() - begin
        assert received == data
        return taken

    def close(self) -> None:
        """Let go of the connection."""
        self.channel.close()


def _check(ack: pb.ReportAck) -> None:
    if ack.refused:
        first = ack.refused[0]
        msg = f"the authority refused a report: {first.reason}: {first.message}"
        raise RuntimeError(msg)
