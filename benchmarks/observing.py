"""Subscribers that find the shards themselves, and note all values that must never be shown."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import grpc

import lowwater
from benchmarks.truth import Truth
from lowwater.v1 import types_pb2, watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.core.times import MIN

ALONE: Final = (("grpc.use_local_subchannel_pool", 1),)
"""A channel that shares nothing with others: neither their connections nor how long they wait after
a failure."""

PAUSE: Final = 0.05
"""Seconds between two attempts to find a shard that serves."""

RAW: Final = "raw"
LIBRARY: Final = "library"


class Floor(NamedTuple):
    """Values read of a computation: no later answer may have less of any of them."""

    epoch: int = 0
    incarnation: int = 0
    low: int = MIN


class Sight(NamedTuple):
    """One value that a subscriber was shown."""

    by: str
    name: str
    at: float
    """Time by the monotonic clock."""
    epoch: int
    low: int


class Board:
    """Values that subscribers got, checked against each other and against the workers' reports.

    ``inputs`` are those of each computation. A value is wrong when it is below one that somebody
    had seen before it was asked for (within an incarnation), of a lower epoch, or above what the
    workers of the computation, or of anything it reads, had said.
    """

    def __init__(self, inputs: Mapping[str, Sequence[str]], truths: Mapping[str, Truth]) -> None:
        self.wrong: list[str] = []
        self.sights: list[Sight] = []
        """Since :meth:`clear`."""
        self._inputs = inputs
        self._truths = truths
        self._floors = dict.fromkeys(inputs, Floor())
        self._changed = threading.Condition()

    def floor(self, name: str) -> Floor:
        """Return the values below which no later answer may be."""
        with self._changed:
            return self._floors[name]

    def clear(self) -> dict[str, Floor]:
        """Forget the sights; returns the floors of that moment."""
        with self._changed:
            self.sights = []
            return dict(self._floors)

    def wait_for(self, what: Callable[[Sequence[Sight]], bool], within: float) -> bool:
        """Wait until it is true of the sights; returns whether it became so."""
        with self._changed:
            return self._changed.wait_for(lambda: what(self.sights), within)

    def most(self, name: str) -> int:
        """The most that may be published of a computation now."""
        return min([self._truths[name].most(), *map(self.most, self._inputs[name])])

    def see(self, by: str, name: str, floor: Floor, value: Floor) -> Floor:
        """Check a value that was read when ``floor`` was known; return the floor for the next."""
        at, most = time.monotonic(), self.most(name)
        if value.low > most:
            self.wrong.append(f"{by}: {name} at {value.low}, but the workers had said no more than {most}")
        if (value.incarnation, value.low) < (floor.incarnation, floor.low) or value.epoch < floor.epoch:
            self.wrong.append(f"{by}: {name} at {value} after {floor}")
        with self._changed:
            newest = self._floors[name]
            low = max(value[1:], newest[1:])
            self._floors[name] = Floor(max(newest.epoch, value.epoch), *low)
            self.sights.append(Sight(by, name, at, value.epoch, value.low))
            self._changed.notify_all()
        return value

    def take(self, by: str, floor: Floor, message: types_pb2.Watermark) -> Floor:
        """Take a message that was asked for when ``floor`` was known."""
        if not message.registered:
            self.wrong.append(f"{by}: {message.computation} is said not to be registered")
            return floor
        return self.see(by, message.computation, floor, Floor(message.epoch, message.incarnation, message.low_micros))


class Stopping:
    """A thread that runs until it is stopped."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failure: Exception | None = None
        """Error that ended it early; None: none."""
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def run(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - whoever checks the thread shows it
            self.failure = error

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()


class RawWatcher(Stopping):
    """Subscriber of one computation that follows redirects, without the client library."""

    def __init__(self, board: Board, name: str, addresses: Iterable[str]) -> None:
        super().__init__()
        self._board = board
        self._name = name
        self._addresses = itertools.cycle(addresses)
        self._call: grpc.Call | None = None

    def run(self) -> None:
        address = ""
        while not self.stopping.is_set():
            try:
                address = self._watch(address or next(self._addresses))
            except grpc.RpcError:
                address = ""
            if not address:
                self.stopping.wait(PAUSE)

    def stop(self) -> None:
        self.stopping.set()
        if self._call is not None:
            self._call.cancel()
        super().stop()

    def _watch(self, address: str) -> str:
        """Follow the computation at a shard; return its next address, empty if unknown."""
        floor = self._board.floor(self._name)
        with grpc.insecure_channel(address, options=ALONE) as channel:
            stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
            self._call = stub.Watch(watermarks_pb2.WatchRequest(computations=[self._name]))
            for message in self._call:
                for watermark in message.watermarks:
                    floor = self._board.take(RAW, floor, watermark)
                for redirect in message.redirects:
                    return redirect.address if redirect.epoch >= floor.epoch else ""
        return ""


class Asker(Stopping):
    """Asks every shard in turn for everything: whatever it answers by itself must be the newest."""

    def __init__(self, board: Board, names: Sequence[str], addresses: Iterable[str]) -> None:
        super().__init__()
        self._board = board
        self._names = names
        self._addresses = itertools.cycle(addresses)

    def run(self) -> None:
        while not self.stopping.wait(PAUSE):
            floors = {name: self._board.floor(name) for name in self._names}
            try:
                for watermark in said_by(next(self._addresses), self._names):
                    self._board.take("get", floors[watermark.computation], watermark)
            except grpc.RpcError:
                continue


class LibraryWatcher(Stopping):
    """Follows some computations with the client library."""

    def __init__(self, board: Board, names: Sequence[str], client: lowwater.Client) -> None:
        super().__init__()
        self._board = board
        self._names = names
        self._client = client

    def run(self) -> None:
        floors = dict.fromkeys(self._names, Floor())
        for view in self._client.watch(*self._names):
            if view.registered:
                name = view.computation
                value = Floor(view.epoch, view.incarnation, view.low.micros)
                floors[name] = self._board.see(LIBRARY, name, floors[name], value)

    def stop(self) -> None:
        self._client.close()
        super().stop()


def said_by(address: str, names: Sequence[str]) -> list[types_pb2.Watermark]:
    """Return a shard's own values of computations, without those that it redirects.

    Raises grpc.RpcError.
    """
    with grpc.insecure_channel(address, options=ALONE) as channel:
        stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        answer = stub.GetWatermarks(watermarks_pb2.GetWatermarksRequest(computations=names), timeout=5)
        return list(answer.watermarks)
