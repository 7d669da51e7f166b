"""A real gRPC server over a shard in memory, with a small pipeline in it, all on one event loop that the test turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message_factory import GetMessageClass

from lowwater.v1 import (
    cluster_pb2,
    errors_pb2,
    tasks_pb2,
    topology_pb2,
    types_pb2,
    watermarks_pb2,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater_authority.authority import Authority
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import GroupState
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc.interceptors import Decoding
from lowwater_authority.serve import OPTIONS
from tests.kit.eventually import eventually_async
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.property.core_driver import durable

NOW: Final = 1_000 * HOUR
SENDER: Final = b"s" * 16
NONCE: Final = 1
FIRST_SEQUENCER: Final = (1 << 40 | NONCE << 28) + 1
METHODS: Final = {
    method.name: method
    for module in (topology_pb2, watermarks_pb2, workers_pb2, cluster_pb2, tasks_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if service.name != "ClusterService" or method.name == "Identify"
}
"""The methods of the protocol but for those that need many shards: tests/process/test_shards_store.py."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str]


def refusal_of(error: Any) -> Refusal:
    refusal = Refusal(error.code(), "", error.details() or "", {})
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = errors_pb2.RpcStatus.FromString(value)
            info = errors_pb2.ErrorInfo.FromString(status.details[0].value)
            assert status.message == error.details()
            refusal = Refusal(error.code(), info.reason, status.message, dict(info.metadata))
    return refusal


class RpcServer:
    """A server and a raw channel to it. Processing time stands still unless a test moves ``now``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now = NOW
        self.observer = Observer()
        self.disk = MemoryDisk()
        # One nonce for all: the sequencers are the same in every server that is made.
        journal = MemoryJournal(self.disk, randbits=lambda _: NONCE)
        self.authority = Authority(journal, clock=lambda: self.now, observer=self.observer)
        self.shard = self.authority.shard

    def __enter__(self) -> Self:
        self.run(self._start())
        return self

    def __exit__(self, *failure: object) -> None:
        self.run(self._stop())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    async def _start(self) -> None:
        await self.authority.recover()
        self._server = grpc.aio.server(options=OPTIONS, interceptors=(Decoding(self.observer),))
        self.authority.add_to(self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._rounds = asyncio.create_task(self.authority.run())
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS[:2])
        # A stream of grpc.aio that is refused while it writes ends with an error of its own instead of the server's.
        self._threaded = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS[:2])

    async def _stop(self) -> None:
        await self.channel.close()
        self._threaded.close()
        self.authority.leave()
        await self._server.stop(None)
        await self._rounds
        await self.authority.close()
        await self.loop.shutdown_default_executor()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _method(self, name: str) -> Any:
        method = METHODS[name]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return kind(
            f"/{method.containing_service.full_name}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    def call(self, name: str, request: Any) -> Any:
        return self.run(self._call(name, request))

    async def _call(self, name: str, request: Any) -> Any:
        if name == "Report":
            reporting = workers_pb2_grpc.WorkerServiceStub(self._threaded).Report
            return await asyncio.to_thread(lambda: list(reporting(iter(request), timeout=30)))
        if name == "Watch":
            watching = self._method(name)(request, timeout=30)
            message = await watching.read()
            watching.cancel()
            return message
        return await self._method(name)(request, timeout=30)

    def refused(self, name: str, request: Any) -> Refusal:
        try:
            answer = self.call(name, request)
        except grpc.RpcError as error:
            return refusal_of(error)
        msg = f"{name} took {request!r} and answered {answer!r}"
        raise AssertionError(msg)

    def computation(self, name: str) -> Computation:
        return self.shard.held.served[name].computation

    # -- the whole state -------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, object]:
        """Everything that anybody can see, and everything that the shard keeps; of what is cut only the graph, for its slices tell of themselves at any time."""
        names = self.names()
        lists = {
            name: self.call("ListRanges", watermarks_pb2.ListRangesRequest(computation=name, page_size=10_000))
            for name in names
        }
        stages = {name: self.computation(name).batches for name in names}
        return {
            "topology": self.call("GetTopology", topology_pb2.GetTopologyRequest()),
            "watermarks": self.call("GetWatermarks", watermarks_pb2.GetWatermarksRequest(computations=names)),
            "ranges": lists,
            "states": {name: recovery.snapshot(self.computation(name)) for name in names},
            "batches": {name: (len(stage), id(stage.prepared)) for name, stage in stages.items()},
            "journal": self.journal(),
        }

    def durable(self) -> dict[str, Any]:
        states = {name: durable(recovery.snapshot(self.computation(name))) for name in self.names()}
        return {"states": states, "journal": self.journal(), "graph": self.shard.topology}

    def journal(self) -> dict[str, tuple[int, int]]:
        logs = self.disk.logs.items()
        return {name: (stored.last, stored.snapshot_position) for name, stored in logs if not _is_cut(name)}

    def names(self) -> list[str]:
        return [name for name in self.shard.served.names() if not _is_cut(name)]

    def check(self) -> None:
        for name in self.shard.served.names():
            computation = self.computation(name)
            computation.check()
            loaded = self.run(self.shard.journal.load(name))
            records = [payload for _, payload in loaded.records]
            again = recovery.recover(computation.spec, loaded.snapshot, records, epoch_base=computation.epoch_base)
            again.check()
            assert durable(recovery.snapshot(again)) == durable(recovery.snapshot(computation))


def _is_cut(name: str) -> bool:
    return name == "cut" or name.startswith("cut~")


def opening(stream: int = 1, sender: bytes = SENDER, token: str = "") -> workers_pb2.ReportRequest:
    return workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(server_token=token, sender=sender, stream=stream))


def report(number: int, *groups: workers_pb2.GroupReport) -> workers_pb2.ReportRequest:
    return workers_pb2.ReportRequest(report=workers_pb2.Report(number=number, groups=groups))


class Pipeline:
    """a -> b -> n/c, whose ranges are owned and reported; spare, unclaimed; d, which runs micro-batches; guess, estimated.

    And cut, which is in two slices. Under a hang a group with intervals and one without, of whose tasks one is leased and one is done.
    """

    def __init__(self, server: RpcServer) -> None:
        self.server = server
        self._ids = iter(range(1, 1 << 20))
        self.streams = iter(range(1, 1 << 20))
        self.sequencers: dict[str, int] = {}
        for name, inputs in (("a", ()), ("b", ("a",)), ("n/c", ("b",)), ("spare", ()), ("d", ())):
            self.register(name, inputs)
        server.call("Register", topology_pb2.RegisterRequest(name="guess", estimated=True))
        self.claim("a", b"", b"g", b"p", b"")
        server.call("Register", topology_pb2.RegisterRequest(name="cut", slices=[b"m"]))
        server.run(eventually_async(lambda: len(self._slices()) == 2, "both slices of cut are claimed"))
        self.claim("b", b"", b"m", b"")
        self.claim("d", b"", b"m", b"", identity="query", generation=3)
        self.send_report(self.group("a", 14, 15, 16))
        self.send_report(self.group("b", 13, 14, input_version=1, input_incarnations=[1]))
        for batch in (3, 4):
            server.call("StageTask", self.stage(batch))
            server.call("PrepareBatch", self.prepare(batch))
            if batch == 3:
                server.call("CommitBatch", self.commit(batch))
        server.call("CreateGroup", tasks_pb2.CreateGroupRequest(computation="a", group="hourly", every_micros=HOUR))
        server.call("CreateGroup", tasks_pb2.CreateGroupRequest(computation="a", group="repairs"))
        server.call("CreateTasks", self.new_tasks("n1", "n2", "n3", "n4", "n5"))
        self.committed = self.take(b"d" * 16)
        server.call("CommitTask", self.ended(self.committed))
        self.lease = self.take(b"i" * 16)

    def _slices(self) -> list[int]:
        groups = self.server.computation("cut").map.groups.values()
        return [group.sequencer for group in groups if group.state is GroupState.OWNED]

    def slice_claim(self) -> int:
        return self._slices()[0]

    def register(self, name: str, inputs: Sequence[str] = ()) -> None:
        request = topology_pb2.RegisterRequest(
            name=name, inputs=inputs, heuristics_ppm=[990_000], lateness_budgets_ppm=[10_000]
        )
        self.server.call("Register", request)

    def claiming(self, name: str, *bounds: bytes, **fields: Any) -> workers_pb2.ClaimRequest:
        request_id = next(self._ids).to_bytes(16)
        return workers_pb2.ClaimRequest(
            computation=name, bounds=bounds, worker="w", host="h", request_id=request_id, **fields
        )

    def claim(self, name: str, *bounds: bytes, **fields: Any) -> None:
        self.sequencers[name] = self.server.call("Claim", self.claiming(name, *bounds, **fields)).sequencer

    def group(self, name: str, *hours: int, **fields: Any) -> workers_pb2.GroupReport:
        values = [hour * HOUR for hour in hours]
        return workers_pb2.GroupReport(
            computation=name, sequencer=self.sequencers[name], watermarks_micros=values, **fields
        )

    def send_report(self, *groups: workers_pb2.GroupReport) -> list[workers_pb2.RefusedRanges]:
        sender = next(self._ids).to_bytes(16)
        answers = self.server.call("Report", [opening(1, sender), report(1, *groups)])
        acks = [answer.ack for answer in answers if answer.HasField("ack")]
        assert [ack.number for ack in acks] == [1]
        return list(acks[0].refused)

    def low(self, name: str) -> int:
        request = watermarks_pb2.GetWatermarksRequest(computations=[name])
        low: int = self.server.call("GetWatermarks", request).watermarks[0].low_micros
        return low

    def stage(self, batch: int) -> workers_pb2.StageTaskRequest:
        return workers_pb2.StageTaskRequest(
            computation="d",
            sequencer=self.sequencers["d"],
            batch=batch,
            task=workers_pb2.TaskAttempt(stage=1, partition=0, attempt=7),
            handles=[0, 1],
            oldest_micros=[12 * HOUR, 13 * HOUR],
            pending=workers_pb2.Histogram(starts_micros=[12 * HOUR, 13 * HOUR], counts=[1, 2]),
            finished=3,
        )

    def prepare(self, batch: int) -> workers_pb2.PrepareBatchRequest:
        return workers_pb2.PrepareBatchRequest(
            computation="d",
            sequencer=self.sequencers["d"],
            batch=batch,
            digest=b"plan",
            tasks=[workers_pb2.TaskAttempt(stage=1, partition=0, attempt=7)],
            bound_micros=14 * HOUR,
            frontiers=[types_pb2.Heuristic(share_ppm=990_000, micros=14 * HOUR)],
        )

    def commit(self, batch: int) -> workers_pb2.CommitBatchRequest:
        return workers_pb2.CommitBatchRequest(computation="d", sequencer=self.sequencers["d"], batch=batch)

    def new_tasks(self, *names: str) -> tasks_pb2.CreateTasksRequest:
        new = [tasks_pb2.NewTask(name=name, at_micros=HOUR, payload=b"p") for name in names]
        return tasks_pb2.CreateTasksRequest(computation="a", group="repairs", tasks=new)

    def take(self, nonce: bytes) -> tasks_pb2.TakeTaskResponse:
        request = tasks_pb2.TakeTaskRequest(computation="a", group="repairs", worker="w", nonce=nonce)
        response: tasks_pb2.TakeTaskResponse = self.server.call("TakeTask", request)
        return response

    def ended(self, response: tasks_pb2.TakeTaskResponse) -> tasks_pb2.CommitTaskRequest:
        output = f"{response.lease.version}-{response.lease.nonce.hex()}/part"
        return tasks_pb2.CommitTaskRequest(
            server_token=response.server_token, computation="a", lease=response.lease, outputs=[output]
        )

    def valid(self, method: str) -> Any:
        requests: dict[str, Callable[[], Any]] = {
            "Register": lambda: topology_pb2.RegisterRequest(
                name="new", inputs=["a", "b"], heuristics_ppm=[500_000, 990_000], key_hash="xxhash64"
            ),
            "GetTopology": topology_pb2.GetTopologyRequest,
            "SetInputs": lambda: topology_pb2.SetInputsRequest(computation="n/c", inputs=["b", "spare"]),
            "Reset": lambda: topology_pb2.ResetRequest(computation="n/c"),
            "SplitSlice": lambda: topology_pb2.SplitSliceRequest(computation="cut", slice="cut~0", at=b"c"),
            "Retire": lambda: topology_pb2.RetireRequest(computation="spare", start=b"c", end=b"m"),
            "Drop": lambda: topology_pb2.DropRequest(computation="spare"),
            "ChangeLayout": lambda: topology_pb2.ChangeLayoutRequest(
                computation="a", incarnation=1, starts=[0, 16, 400], tasks=[0, 1, 2]
            ),
            "GetLayout": lambda: topology_pb2.GetLayoutRequest(computation="a"),
            "GetWatermarks": lambda: watermarks_pb2.GetWatermarksRequest(computations=["a", "b"]),
            "Watch": lambda: watermarks_pb2.WatchRequest(computations=["a", "b"]),
            "CheckComplete": lambda: watermarks_pb2.CheckCompleteRequest(computation="a", until_micros=HOUR),
            "ListRanges": lambda: watermarks_pb2.ListRangesRequest(computation="a"),
            "GetHistory": lambda: watermarks_pb2.GetHistoryRequest(computation="a"),
            "Claim": lambda: self.claiming("spare", b"", b"g", b"", bound_micros=[15 * HOUR, 16 * HOUR]),
            "Release": lambda: workers_pb2.ReleaseRequest(computation="a", sequencer=self.sequencers["a"]),
            "Report": lambda: [opening(next(self.streams)), report(1, self.group("a", 15, 16, 17))],
            "StageTask": lambda: self.stage(4),
            "PrepareBatch": lambda: self.prepare(4),
            "CommitBatch": lambda: self.commit(4),
            "Vouch": lambda: workers_pb2.VouchRequest(
                computation="d", sequencer=self.sequencers["d"], through_micros=14 * HOUR
            ),
            "Identify": lambda: cluster_pb2.IdentifyRequest(token_sha256="0" * 64),
            "CreateGroup": lambda: tasks_pb2.CreateGroupRequest(
                computation="a", group="daily", every_micros=24 * HOUR, start_micros=-24 * HOUR
            ),
            "ConfigureGroup": lambda: tasks_pb2.ConfigureGroupRequest(
                computation="a", group="hourly", configuration=b"two", configuration_version=1
            ),
            "CreateTasks": lambda: self.new_tasks("n3", "n6"),
            "TakeTask": lambda: tasks_pb2.TakeTaskRequest(
                computation="a", group="repairs", worker="w", nonce=next(self._ids).to_bytes(16)
            ),
            "RenewTask": lambda: tasks_pb2.RenewTaskRequest(
                server_token=self.lease.server_token, computation="a", lease=self.lease.lease
            ),
            "CommitTask": lambda: self.ended(self.lease),
            "ReleaseTask": lambda: tasks_pb2.ReleaseTaskRequest(
                server_token=self.lease.server_token, computation="a", lease=self.lease.lease
            ),
            "ListTasks": lambda: tasks_pb2.ListTasksRequest(computation="a", group="repairs"),
        }
        return requests[method]()


@contextlib.contextmanager
def running() -> Iterator[Pipeline]:
    with RpcServer() as server:
        yield Pipeline(server)
