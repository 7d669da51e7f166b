"""kill -9 of the authority at random moments, while workers report and subscribers watch."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import grpc
import pytest

import lowwater
from lowwater._pb.lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.core.times import MIN
from tests.kit.times import SECOND
from tests.kit.truth import Truth
from tests.process.serving import Serving

BOUNDS = [b"", b"h", b"p", b""]
SEED = 20130109
DEADLINE = 60.0
KILLS = 30


class Watcher:
    """Watches without the client's own ratchet, so that nothing hides what the authority shows."""

    def __init__(self, server: Serving, truth: Truth) -> None:
        self.wrong: list[str] = []
        self.newest = MIN
        self._server = server
        self._truth = truth
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until so many new values came."""
        for _ in range(count):
            with self._changed:
                seen = self.newest
                assert self._changed.wait_for(lambda seen=seen: self.newest > seen, DEADLINE), "the watermark is stuck"  # type: ignore[misc]

    def stop(self) -> None:
        self._stopping.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with self._server.channel() as channel:
                stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
                self._call = stub.Watch(watermarks_pb2.WatchRequest(computations=["a"]), wait_for_ready=True)
                try:
                    for message in self._call:
                        for watermark in message.watermarks:
                            self._see(watermark.low_micros)
                except grpc.RpcError:
                    continue

    def _see(self, low: int) -> None:
        most = self._truth.most()
        if low > most:
            self.wrong.append(f"published {low}, but the workers had said no more than {most}")
        if low < self.newest:
            self.wrong.append(f"published {low} after {self.newest}")
        with self._changed:
            self.newest = max(self.newest, low)
            self._changed.notify_all()


class Worker:
    """Owns three ranges and moves them on at random, now and then a step back, which an owner may."""

    def __init__(self, client: lowwater.Client, truth: Truth, rng: random.Random) -> None:
        self.worker = client.worker("a", name="w")
        self.lease = self.worker.claim(bounds=BOUNDS)
        self._truth = truth
        self._rng = rng
        self._values = [0] * (len(BOUNDS) - 1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.worker.close()

    def _work(self) -> None:
        while not self._stopping.wait(0.003):
            handle = self._rng.randrange(len(self._values))
            step = self._rng.choice([1, 2, 5, 10, -3])
            self._values[handle] = max(0, self._values[handle] + step * SECOND)
            self._truth.say(self._values)
            frontier = max(self._values)
            self.lease.advance(None, oldest=self._values, frontier=frontier, pending=self._values)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_rules_2_3_4_hold_through_kills(tmp_path: Path) -> None:
    """No value goes down, none is above what the workers had said, claims survive, and zombies stay fenced."""
    rng = random.Random(SEED)
    with Serving(tmp_path / "data") as server, lowwater.connect(server.address) as client:
        client.register("a")
        with client.worker("a", name="zombie") as zombie_worker:
            zombie = zombie_worker.claim(bounds=BOUNDS)
            truth = Truth(len(BOUNDS) - 1)
            worker = Worker(client, truth, rng)
            watcher = Watcher(server, truth)
            try:
                for _ in range(KILLS):
                    watcher.wait_for_more(rng.randint(1, 25))
                    server.kill()
                    server.start()
                watcher.wait_for_more(3)
            finally:
                watcher.stop()
                worker.stop()
            assert watcher.wrong == []
            assert not worker.lease.lost
            ranges = client.ranges("a").ranges
            assert {held.sequencer for held in ranges} == {worker.lease.sequencer}
            assert sorted(held.start for held in ranges) == BOUNDS[:-1]
            with pytest.raises(lowwater.StaleSequencer):
                report_and_flush(zombie)
            assert client.get("a")["a"].epoch == KILLS + 1


def report_and_flush(lease: lowwater.Lease) -> None:
    """What a zombie does when it wakes."""
    lease.advance(None, oldest=0, frontier=SECOND)
    lease.flush(DEADLINE)
