"""Work that goes on, and who follows it: what a test of many shards holds against all that they have said."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import grpc

import lowwater
from lowwater.core.settings import OPTIONS
from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.core.times import MIN

AGAIN_SECONDS = 0.02
WORK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Said:
    stream: int
    incarnation: int
    epoch: int
    low: int


class Work:
    """A worker of each computation, which counts up as fast as its owners take it over."""

    def __init__(self, lw: lowwater.Client, names: Iterable[str]) -> None:
        self.leases = {name: lw.worker(name).claim() for name in names}
        self.done = 0
        """The greatest value that may be published."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def flush(self) -> None:
        for lease in self.leases.values():
            lease.flush(60)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopping.wait(WORK_SECONDS):
            self.done += 1
            for lease in self.leases.values():
                lease.advance(None, oldest=self.done, frontier=self.done)


class Following:
    """Follows all computations at each of some shards, without the client's ratchet, so that nothing hides what they say."""

    def __init__(self) -> None:
        self.seen_values: dict[str, list[Said]] = defaultdict(list)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._calls: dict[str, grpc.Call] = {}
        self._threads: list[threading.Thread] = []
        self._streams = 0

    def follow(self, *addresses: str) -> None:
        for address in addresses:
            thread = threading.Thread(target=self._follow, args=(address,))
            self._threads.append(thread)
            thread.start()

    def until(self, low: int, names: Iterable[str], seconds: float = 30.0) -> None:
        names = list(names)
        with self._changed:
            arrived = self._changed.wait_for(lambda: all(self.low(name) >= low for name in names), seconds)
        assert arrived, f"not at {low} yet: { {name: self.low(name) for name in names} }"

    def low(self, name: str) -> int:
        return max((value.low for value in self.seen_values[name]), default=MIN)

    def check(self) -> None:
        """Check that no value went back: not within a stream, and not from one owner to the next."""
        for name, all_said in self.seen_values.items():
            newest: dict[int, Said] = {}
            for it in all_said:
                before = newest.get(it.stream)
                assert before is None or (before.incarnation, before.low) <= (it.incarnation, it.low), (name, it)
                newest[it.stream] = it
            before = None
            for it in sorted(all_said, key=lambda said: (said.epoch, said.incarnation, said.low)):
                assert before is None or (before.incarnation, before.low) <= (it.incarnation, it.low), (name, it)
                before = it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for call in list(self._calls.values()):
            call.cancel()
        for thread in self._threads:
            thread.join()

    def _follow(self, address: str) -> None:
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
            while not self._stopping.wait(AGAIN_SECONDS):
                with self._changed:
                    self._streams += 1
                    stream = self._streams
                call = stub.Watch(watermarks_pb2.WatchRequest(), wait_for_ready=True)
                self._calls[address] = call
                if self._stopping.is_set():
                    return
                try:
                    for message in call:
                        self._take(message, stream)
                except grpc.RpcError:
                    continue

    def _take(self, message: watermarks_pb2.WatchResponse, stream: int) -> None:
        with self._changed:
            for new in message.watermarks:
                if not new.registered:
                    continue
                self.seen_values[new.computation].append(Said(stream, new.incarnation, new.epoch, new.low_micros))
            self._changed.notify_all()
