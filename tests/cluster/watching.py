"""A subscriber that hides nothing: it keeps every value that it was shown, and when."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence

import grpc

from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater.watermark import MIN
from tests.cluster.oracle import Seen

PAUSE = 0.1
"""Seconds between two attempts to reach a shard that is away."""


class Watching:
    """Follows computations without the client library, which would never show a value that goes down.

    Each shard is followed by a thread, and tells of what it serves. Values are in the order of the epochs in which they were published: the last words of a
    shard may be read after the first ones of its successor.
    """

    def __init__(self, addresses: str, names: Sequence[str]) -> None:
        self.published: dict[str, list[Seen]] = {name: [] for name in names}
        self._epochs: dict[str, list[int]] = {name: [] for name in names}
        self._stopping = threading.Event()
        self._calls: dict[str, grpc.Call] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(address,), name=f"watching {address}", daemon=True)
            for address in addresses.split(",")
        ]
        self._lock = threading.Lock()
        for thread in self._threads:
            thread.start()

    def low(self, name: str) -> int:
        return self.published[name][-1].low if self.published[name] else MIN

    def stop(self) -> None:
        self._stopping.set()
        for call in list(self._calls.values()):
            call.cancel()
        for thread in self._threads:
            thread.join()

    def _run(self, address: str) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(address)
            except grpc.RpcError:
                self._stopping.wait(PAUSE)

    def _follow(self, address: str) -> None:
        # Shares nothing with another channel, neither its connection nor how long it waits after a failure.
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
            call = self._calls[address] = stub.Watch(watermarks_pb2.WatchRequest(computations=list(self.published)))
            if self._stopping.is_set():
                call.cancel()
            for message in call:
                now = time.time()
                with self._lock:
                    for mark in message.watermarks:
                        if mark.registered:
                            epochs = self._epochs[mark.computation]
                            place = bisect_right(epochs, mark.epoch)
                            epochs.insert(place, mark.epoch)
                            self.published[mark.computation].insert(place, Seen(now, mark.incarnation, mark.low_micros))
