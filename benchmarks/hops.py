"""Time of one message, from the put into a report stream until a subscriber holds its effect."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import numpy as np

from benchmarks import wire
from benchmarks.bare import SERVICE
from benchmarks.owner import COMPUTATION, PATIENCE, Owner, channel, check
from benchmarks.workload import Move, Treadmill
from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater.v1 import workers_pb2 as pb

PAGE: Final = bytes(4096)


class Hop(Protocol):
    """Something whose time is taken, one message at a time."""

    def sample(self) -> float:
        """Return the seconds that one message takes."""
        ...


class _Stream:
    """A report stream that is fed one message at a time."""

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
                        check(response.ack)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    raise

        threading.Thread(target=read, daemon=True).start()


class JournaledHop(_Stream):
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
        elapsed = time.perf_counter() - begin
        if response.watermarks[0].low_micros != move.low:
            msg = f"the low watermark is {response.watermarks[0].low_micros}, not {move.low}"
            raise RuntimeError(msg)
        return elapsed

    def _encode(self, move: Move) -> bytes:
        self._number += 1
        claim, handle = divmod(move.range, self._owner.per_claim)
        values, handles = np.array([move.value]), np.array([handle], dtype=np.uint32)
        return wire.report(self._number, COMPUTATION, self._owner.sequencers[claim], values, handles)


class RelayHop(_Stream):
    """The same bytes through a server that only hands them on."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.channel = channel(address)
        self._number = 0
        report: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(f"/{SERVICE}/Report")
        watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(f"/{SERVICE}/Watch")
        self._drain(report(self._stream()))
        self._watch = watch(b"")
        next(self._watch)

    def sample(self) -> float:
        """See Hop."""
        self._number += 1
        values, handles = np.array([time.time_ns() // 1000]), np.array([self._number], dtype=np.uint32)
        data = wire.report(self._number, COMPUTATION, self._number, values, handles)
        begin = time.perf_counter()
        self._requests.put(data)
        received = next(self._watch)
        elapsed = time.perf_counter() - begin
        assert received == data
        return elapsed

    def close(self) -> None:
        """Let go of the connection."""
        self.channel.close()


class EchoHop(_Stream):
    """A message up a stream and down again, so many times one after the other."""

    def __init__(self, address: str, times: int) -> None:
        super().__init__()
        self._channel = channel(address)
        self._times = times
        self._number = 0
        echo: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{SERVICE}/Echo")
        self._answers = echo(self._stream())

    def sample(self) -> float:
        """See Hop."""
        self._number += 1
        values, handles = np.array([time.time_ns() // 1000]), np.array([self._number], dtype=np.uint32)
        data = wire.report(self._number, COMPUTATION, self._number, values, handles)
        answers = []
        begin = time.perf_counter()
        for _ in range(self._times):
            self._requests.put(data)
            answers.append(next(self._answers))
        elapsed = time.perf_counter() - begin
        assert answers == [data] * self._times
        return elapsed

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class SyncHop:
    """A page written over and synced: the least that durable costs on this disk."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by close()
        self._file.write(PAGE)
        os.fsync(self._file.fileno())

    def sample(self) -> float:
        """See Hop."""
        begin = time.perf_counter()
        os.pwrite(self._file.fileno(), PAGE, 0)
        # macOS has no fdatasync.
        getattr(os, "fdatasync", os.fsync)(self._file.fileno())
        return time.perf_counter() - begin

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
