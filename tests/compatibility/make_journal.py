"""Writes the journals that the tests of later releases read: `python -m tests.compatibility.make_journal`.

It starts the authority of each version in tests/compatibility/released that has no journal yet, has it write every kind of
record, and keeps its journal beside what the server answered. Request ids, names and values are fixed; the sequencers follow from them, and
only the server's token and its clock differ from run to run.
"""

from __future__ import annotations

import json
import queue
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    types_pb2,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from tests.compatibility.environments import released, released_environment
from tests.compatibility.running import Installed

JOURNALS = Path(__file__).with_name("journals")
HOUR = 3_600_000_000
MAX = 2**63 - 1
BOUNDS = (b"", b"\x40", b"\x80", b"")

Answers = dict[str, Any]


class Peer:
    def __init__(self, address: str, stream: int) -> None:
        self.channel = grpc.insecure_channel(address)
        self.topology = topology_pb2_grpc.TopologyServiceStub(self.channel)
        self.workers = workers_pb2_grpc.WorkerServiceStub(self.channel)
        self.watermarks = watermarks_pb2_grpc.WatermarkServiceStub(self.channel)
        self.claims: dict[str, int] = {}
        self._number = 0
        self._sent: queue.Queue[workers_pb2.ReportRequest | None] = queue.Queue()
        self._stream = stream
        self._answers: Any = None

    def register(self, name: str, *inputs: str) -> None:
        self.topology.Register(
            topology_pb2.RegisterRequest(
                name=name, inputs=inputs, heuristics_ppm=[990_000, 500_000], key_hash="xxhash64"
            )
        )

    def claim(self, label: str, name: str, *bounds: bytes, **fields: Any) -> int:
        answer = self.workers.Claim(
            workers_pb2.ClaimRequest(
                computation=name,
                bounds=bounds or BOUNDS,
                worker=f"worker of {label}",
                host="host",
                request_id=label.encode().rjust(16, b".")[-16:],
                **fields,
            )
        )
        self.claims[label] = answer.sequencer
        return answer.sequencer

    def report(self, name: str, sequencer: int, *hours: int, **fields: Any) -> None:
        if self._answers is None:
            opening = workers_pb2.ReportOpen(sender=b"sender".rjust(16, b"."), stream=self._stream)
            self._sent.put(workers_pb2.ReportRequest(open=opening))
            self._answers = self.workers.Report(iter(self._sent.get, None))
            assert next(self._answers).WhichOneof("kind") == "opened"
        self._number += 1
        group = workers_pb2.GroupReport(
            computation=name,
            sequencer=sequencer,
            watermarks_micros=[hour if hour == MAX else hour * HOUR for hour in hours],
            **fields,
        )
        self._sent.put(workers_pb2.ReportRequest(report=workers_pb2.Report(number=self._number, groups=[group])))
        for answer in self._answers:
            if answer.WhichOneof("kind") == "ack" and answer.ack.number == self._number:
                assert not answer.ack.refused, answer.ack
                return

    def batch(self, name: str, sequencer: int, number: int, hour: int, version: int) -> None:
        task = workers_pb2.TaskAttempt(stage=1, partition=0, attempt=number)
        about: dict[str, Any] = {"computation": name, "sequencer": sequencer, "batch": number}
        pending = workers_pb2.Histogram(starts_micros=[hour * HOUR], counts=[3])
        self.workers.StageTask(
            workers_pb2.StageTaskRequest(
                **about, task=task, handles=[0], oldest_micros=[hour * HOUR], pending=pending, finished=7
            )
        )
        self.workers.PrepareBatch(
            workers_pb2.PrepareBatchRequest(
                **about,
                digest=b"plan %d" % number,
                tasks=[task],
                bound_micros=(hour + 1) * HOUR,
                covers_all=True,
                input_version=version,
                input_incarnations=[1],
                frontiers=frontiers(hour + 1),
            )
        )
        assert not self.workers.CommitBatch(workers_pb2.CommitBatchRequest(**about)).refused

    def close(self) -> None:
        self._sent.put(None)
        self.channel.close()


def frontiers(hour: int) -> list[types_pb2.Heuristic]:
    return [types_pb2.Heuristic(share_ppm=share, micros=hour * HOUR) for share in (990_000, 500_000)]


def mass(hour: int, recent: int) -> workers_pb2.Mass:
    pending = workers_pb2.Histogram(starts_micros=[hour * HOUR, (hour + 1) * HOUR], counts=[2, 5])
    return workers_pb2.Mass(pending=pending, recent=recent, frontiers=frontiers(hour + 4))


def begin(peer: Peer, part: str) -> None:
    names = {n: f"{part}/{n}" for n in ("flights", "weather", "enriched", "hourly", "retired", "reset", "reader")}
    flights, enriched, hourly = names["flights"], names["enriched"], names["hourly"]
    peer.register(flights)
    peer.register(names["weather"])
    peer.register(enriched, flights)
    peer.register(hourly, enriched)
    peer.register(names["retired"])
    peer.register(names["reset"])
    peer.register(names["reader"], names["reset"])

    injector = peer.claim(f"{part} flights", flights)
    peer.report(flights, injector, 14, 15, 16, mass=mass(14, 100), oldest_operation_micros=5 * HOUR)
    peer.report(flights, injector, 13, handles=[2])  # lower than before
    peer.report(flights, injector, MAX, handles=[1], finish=True)

    peer.claim(f"{part} weather", names["weather"], b"\x40", b"\x80")  # the rest is never claimed

    # Taken over in part, then claimed anew for the new inputs.
    peer.claim(f"{part} enriched", enriched, identity="query", generation=1)
    peer.topology.SetInputs(topology_pb2.SetInputsRequest(computation=enriched, inputs=[flights, names["weather"]]))
    again = peer.claim(f"{part} again", enriched, identity="query", generation=2, ordinal=1)
    peer.claim(f"{part} taken", enriched, b"\x40", b"\x80", identity="query", generation=2, ordinal=2)
    peer.report(enriched, again, 9, handles=[0, 2], input_version=2, input_incarnations=[1, 1])

    stage = peer.claim(f"{part} hourly", hourly, b"", b"", identity="query", batch_digest=b"plan 0")
    peer.batch(hourly, stage, 0, 8, version=1)

    owner = peer.claim(f"{part} retired", names["retired"])
    peer.report(names["retired"], owner, 1, 2, 3)
    peer.topology.Retire(topology_pb2.RetireRequest(computation=names["retired"], end=b"\x40", force=True))
    peer.claim(f"{part} given", names["retired"], b"\x80", b"", bound_micros=[2 * HOUR])
    peer.workers.Release(workers_pb2.ReleaseRequest(computation=names["retired"], sequencer=owner))

    peer.report(names["reset"], peer.claim(f"{part} reset", names["reset"]), 20)
    peer.topology.Reset(topology_pb2.ResetRequest(computation=names["reset"]))
    peer.report(names["reset"], peer.claim(f"{part} life 2", names["reset"], identity="a"), 4, 5, 6)
    peer.claim(f"{part} life 3", names["reset"], identity="b", adopt=True)


def go_on(peer: Peer, part: str, claims: dict[str, int]) -> None:
    flights, enriched, hourly, retired, reset = (
        f"{part}/{name}" for name in ("flights", "enriched", "hourly", "retired", "reset")
    )
    peer.report(flights, claims[f"{part} flights"], 17, 18, handles=[0, 2], mass=mass(17, 200))
    peer.report(flights, claims[f"{part} flights"], 16, handles=[2])
    peer.topology.SetInputs(topology_pb2.SetInputsRequest(computation=enriched, inputs=[flights]))
    peer.batch(hourly, claims[f"{part} hourly"], 1, 10, version=1)
    peer.workers.Release(workers_pb2.ReleaseRequest(computation=retired, sequencer=claims[f"{part} given"]))
    peer.topology.Retire(topology_pb2.RetireRequest(computation=retired, start=b"\x80", force=True))
    peer.topology.Reset(topology_pb2.ResetRequest(computation=reset))
    peer.claim(f"{part} life 4", reset, b"", b"\x10", b"", identity="c")


def ask(peer: Peer) -> Answers:
    topology = _dict(peer.topology.GetTopology(topology_pb2.GetTopologyRequest()))
    watermarks = _dict(peer.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest()))
    del watermarks["time_micros"]
    for watermark in watermarks["watermarks"]:
        del watermark["epoch"]
    names = [computation["name"] for computation in topology["computations"]]
    ranges = {
        name: _dict(peer.watermarks.ListRanges(watermarks_pb2.ListRangesRequest(computation=name))) for name in names
    }
    return {"topology": topology, "watermarks": watermarks, "ranges": ranges}


def _dict(message: Message) -> Answers:
    """A message as JSON has it: 64-bit integers are text, and what is zero or empty is left out."""
    return MessageToDict(message, preserving_proto_field_name=True)


def make(version: str) -> None:
    target = JOURNALS / version
    place = released_environment(version)
    with tempfile.TemporaryDirectory() as folder, Installed(place, Path(folder) / "data") as server:
        peer = Peer(server.address, stream=1)
        begin(peer, "snapshot")
        claims = peer.claims
        peer.close()
        server.stop()  # it writes snapshots
        server.start()
        peer = Peer(server.address, stream=2)
        peer.claims = claims
        go_on(peer, "snapshot", claims)
        begin(peer, "records")
        go_on(peer, "records", claims)
        answers = ask(peer) | {"claims": claims}
        peer.close()
        server.kill()  # it cannot write any more
        target.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(server.data / "journal.sqlite", isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
        shutil.copy(server.data / "journal.sqlite", target)
    (target / "answers.json").write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for version in released():
        if not (JOURNALS / version).exists():
            make(version)
