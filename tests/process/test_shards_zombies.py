"""Processes that were stopped, replaced meanwhile, and go on: nothing that they say counts, and nothing that they answer is old."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import lowwater
from lowwater.v1 import watermarks_pb2, workers_pb2
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.peer import Peer, reason
from tests.process.sharding import Shard, Sharded, move, served

NAMES = ("kept", "reset")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    with Sharded(tmp_path_factory.mktemp("zombies"), 2) as one:
        yield one


def acknowledged(stream: Iterator[workers_pb2.ReportResponse]) -> workers_pb2.ReportAck:
    return next(message for message in stream if message.HasField("ack")).ack


def move_on(lease: lowwater.Lease, hour: int) -> None:
    lease.advance(None, oldest=None, frontier=hour * HOUR)
    lease.flush(30)


class Zombie(Peer):
    """A worker, a subscriber and a reader who know one shard only, and believe all that it says."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.claims = {name: self.claim(name, b"m", b"") for name in NAMES}
        self.stream = 1
        self.acks = self.open()
        self.report_all(1, 10)
        self.messages = self.watch()
        assert {
            watermark.computation: watermark.low_micros for watermark in next(self.messages).watermarks
        } == dict.fromkeys(NAMES, 10 * HOUR)

    def watch(self) -> Iterator[watermarks_pb2.WatchResponse]:
        return self.watermarks.Watch(watermarks_pb2.WatchRequest(computations=NAMES))

    def report_all(self, number: int, hour: int) -> None:
        for name in NAMES:
            self.report(number, self.claims[name], hour, name=name)
            assert not acknowledged(self.acks).refused
            number += 1

    def reported_now(self) -> list[workers_pb2.RefusedRanges]:
        """Return the refusals of the reports that were sent meanwhile; a worker sends again what it is not told where to send."""
        refused: list[workers_pb2.RefusedRanges] = []
        while len(refused) < len(NAMES):
            parts: list[workers_pb2.RefusedRanges] = []
            try:
                parts += acknowledged(self.acks).refused
                assert {part.reason for part in parts} == {"MOVED"}, "it took a report over"
            except (grpc.RpcError, StopIteration):
                pass  # the report was in a round when it turned out that another shard had taken the computation over
            if parts and all(part.redirect.address for part in parts):
                refused += parts
                continue
            refused.clear()
            self.stream += 1
            self.sent.put(None)
            self.sent = type(self.sent)()
            self.acks = self.open(self.stream)
            for number, name in enumerate(NAMES, 1):
                self.report(number, self.claims[name], 13, name=name)
        return refused


def test_rule4_a_zombie_shard_says_nothing_of_before_and_takes_nothing_over(deployment: Sharded) -> None:
    frozen, other = deployment.shards
    with lowwater.connect(other.address) as lw, deployment.connect() as everywhere:
        for name in NAMES:
            lw.register(name)
        move(lw, frozen, *NAMES)
        owner = {name: everywhere.worker(name).claim(bounds=[b"", b"m"]) for name in NAMES}
        for lease in owner.values():
            move_on(lease, 20)
        zombie = Zombie(frozen)
        before = {name: view.epoch for name, view in everywhere.get(*NAMES).items()}
        views = everywhere.watch("kept")
        assert next(views).low.micros == 10 * HOUR

        frozen.freeze()
        stopped = time.time_ns() // 1000
        eventually(lambda: set(NAMES) <= set(served(lw, other)))
        for name in NAMES:
            lw.pin(name, other.address)  # so that it does not get them back, which would be right
        assert lw.reset("reset")[0].incarnation == 2
        successor = Peer(other)
        stream = successor.open()
        successor.report(1, zombie.claims["kept"], 11, name="kept")
        assert not acknowledged(stream).refused, "a claim does not depend on the shard that granted it"
        with lw.worker("reset") as worker:
            move_on(worker.claim(), 1)

        # All of it lies in the sockets of the zombie when it wakes up.
        read: Any = zombie.watermarks.GetWatermarks.future(watermarks_pb2.GetWatermarksRequest(computations=NAMES))
        question = watermarks_pb2.CheckCompleteRequest(computation="reset", until_micros=10 * HOUR)
        check: Any = zombie.watermarks.CheckComplete.future(question)
        fresh = zombie.watch()
        for number, name in enumerate(NAMES, 3):
            zombie.report(number, zombie.claims[name], 13, name=name)
        frozen.thaw()

        first = next(fresh)
        redirects = [*read.result(30).redirects, *first.redirects]
        assert not read.result().watermarks
        with pytest.raises(grpc.RpcError) as moved:
            check.result(30)
        assert reason(moved.value)[1] == "MOVED"
        assert not first.watermarks
        names: list[str] = []
        while len(names) < len(NAMES):
            message = next(zombie.messages)
            assert not message.watermarks or message.clock_micros <= stopped  # it had sent that before
            if not names and not message.redirects:
                assert message.time_micros <= stopped, "it vouches for values that are another's"
            redirects += message.redirects
            names += [redirect.computation for redirect in message.redirects]
        redirects += [part.redirect for part in zombie.reported_now()]
        assert sorted(address.computation for address in redirects) == sorted(4 * NAMES)
        for redirect in redirects:
            assert redirect.address == other.address
            assert redirect.epoch > before[redirect.computation]

        # Those who know more than one shard went on, by themselves.
        assert [view.low.micros for view in (next(views),)] == [11 * HOUR]
        owner["kept"].flush(30)
        now = lw.get(*NAMES)
        assert {name: (view.incarnation, view.low.micros) for name, view in now.items()} == {
            "kept": (1, 11 * HOUR),
            "reset": (2, HOUR),
        }
        with pytest.raises(lowwater.StaleSequencer):
            move_on(owner["reset"], 21)
        eventually(lambda: len(lw.shards()) == 2)
        assert lw.get(*NAMES) == everywhere.get(*NAMES) == now
        for peer in (zombie, successor):
            peer.sent.put(None)
            peer.channel.close()
