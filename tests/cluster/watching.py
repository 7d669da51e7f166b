"""A subscriber that hides nothing: it keeps every value that it was shown, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import grpc

from lowwater._pb.lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater.watermark import MIN
from tests.cluster.oracle import Seen

PAUSE = 0.1
"""Seconds between two attempts to reach an authority that is away."""


class Watching:
    """Follows computations without the client library, which would never show a value that goes down."""

    def __init__(self, address: str, names: Sequence[str]) -> None:
        self.seen: dict[str, list[Seen]] = {name: [] for name in names}
        self._address = address
        self._stopping = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._run, name="watching", daemon=True)
        self._thread.start()

    def low(self, name: str) -> int:
        """The newest value of a computation."""
        return self.seen[name][-1].low if self.seen[name] else MIN

    def stop(self) -> None:
        """Follow no more."""
        self._stopping.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except grpc.RpcError:
                self._stopping.wait(PAUSE)

    def _follow(self) -> None:
        # Shares nothing with another channel, neither its connection nor how long it waits after a failure.
        with grpc.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
            self._call = stub.Watch(watermarks_pb2.WatchRequest(computations=list(self.seen)))
            for message in self._call:
                now = time.time()
                for mark in message.watermarks:
                    if mark.registered:
                        self.seen[mark.computation].append(Seen(now, mark.incarnation, mark.low_micros))
