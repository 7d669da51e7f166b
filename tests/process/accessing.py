"""A ``lowwater serve --access`` for tests: principals with tokens, and every method called as any of them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.core.call import Stubs
from lowwater.core.wire import error_of
from lowwater.v1 import cluster_pb2, tasks_pb2, topology_pb2, watermarks_pb2, workers_pb2

PATIENCE: Final = 60.0

SOON: Final = {"files.followed:LOOK_SECONDS": 0.05, "files.followed:SETTLED_SECONDS": 0.2}
"""Constants of a server that reads its access file again a quarter of a second after it was changed. How long it leaves one alone that is being
written is shown in virtual time, in tests/unit/test_access_guard.py."""

Rules = Sequence[tuple[str, Mapping[str, Sequence[str]]]]


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def rules_of(name: str, token: str, rules: Rules, more: str = "") -> str:
    lines = ["[[principal]]", f'name = "{name}"', f'token_sha256 = ["{digest(token)}"]', more]
    for namespace, actions in rules:
        lines += ["[[principal.allow]]", f'namespace = "{namespace}"']
        lines += [f"{action} = {list(names)}" for action, names in actions.items()]
    return "\n".join([*lines, ""])


class Tokens(dict[str, str]):
    """A random token for whoever is asked for."""

    def __missing__(self, name: str) -> str:
        self[name] = secrets.token_urlsafe(32)
        return self[name]


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


class Wire:
    """Every method of the services over one channel, without the client library: what it would never send as well."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self.stubs = Stubs(channel)
        self.reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        self.address = address

    def attempt(
        self,
        rpc: str,
        metadata: tuple[tuple[str, str], ...],
        name: str = "",
        *,
        sequencer: int = 1,
        server_token: str = "",
        **fields: Any,
    ) -> errors.LowwaterError | None:
        try:
            return CALLS[rpc](
                self, metadata, {"server_token": server_token, **fields}, {"name": name, "sequencer": sequencer}
            )
        except grpc.RpcError as failure:
            return error_of_call(failure, self.address)


Call = Callable[[Wire, tuple[tuple[str, str], ...], dict[str, Any], dict[str, Any]], errors.LowwaterError | None]


def _unary(service: str, method: str, request: Callable[..., Any], **parts: Callable[[dict[str, Any]], Any]) -> Call:
    def call(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> None:
        message = request(**{key: value(about) for key, value in parts.items()} | fields)
        getattr(getattr(wire.stubs, service), method)(message, metadata=metadata, timeout=PATIENCE)

    return call


def _watch(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> None:
    filled: dict[str, Any] = {"computations": [about["name"]] if about["name"] else []} | fields
    request = watermarks_pb2.WatchRequest(**filled)
    call = wire.stubs.watermarks.Watch(request, metadata=metadata, timeout=PATIENCE)
    next(iter(call))
    call.cancel()


_streams = itertools.count(1)
_SENDER: Final = secrets.token_bytes(16)


def messages(groups: Sequence[workers_pb2.GroupReport], **fields: Any) -> Iterator[workers_pb2.ReportRequest]:
    """Return the messages of a report stream: an open, and one report."""
    opening = workers_pb2.ReportOpen(sender=_SENDER, stream=next(_streams), **fields)
    yield workers_pb2.ReportRequest(open=opening)
    yield workers_pb2.ReportRequest(report=workers_pb2.Report(number=1, groups=groups))


def _report(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> errors.LowwaterError | None:
    value = 1_600_000_000_000_000
    group = workers_pb2.GroupReport(
        computation=about["name"], sequencer=about["sequencer"], watermarks_micros=[value], input_version=1
    )
    call = wire.stubs.workers.Report(messages([group], **fields), metadata=metadata, timeout=PATIENCE)
    for response in call:
        if response.HasField("ack"):
            return next((error_of(part.reason, part.message, {}) for part in response.ack.refused), None)
    return None


def _reflect(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> None:
    del fields, about
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    list(wire.reflection.ServerReflectionInfo(iter([request]), metadata=metadata, timeout=PATIENCE))


def _name(about: dict[str, Any]) -> str:
    return str(about["name"])


def _names(about: dict[str, Any]) -> list[str]:
    return [about["name"]] if about["name"] else []


def _sequencer(about: dict[str, Any]) -> int:
    return int(about["sequencer"])


def _constant(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda _: value


_TASK: Final = _constant(workers_pb2.TaskAttempt(stage=1, partition=0, attempt=1))

CALLS: Final[dict[str, Call]] = {
    "Claim": _unary(
        "workers",
        "Claim",
        workers_pb2.ClaimRequest,
        computation=_name,
        bounds=_constant([b"", b""]),
        worker=_constant("thief"),
        request_id=lambda _: secrets.token_bytes(16),
    ),
    "Release": _unary("workers", "Release", workers_pb2.ReleaseRequest, computation=_name, sequencer=_sequencer),
    "Report": _report,
    "StageTask": _unary(
        "workers", "StageTask", workers_pb2.StageTaskRequest, computation=_name, sequencer=_sequencer, task=_TASK
    ),
    "PrepareBatch": _unary(
        "workers", "PrepareBatch", workers_pb2.PrepareBatchRequest, computation=_name, sequencer=_sequencer
    ),
    "CommitBatch": _unary(
        "workers", "CommitBatch", workers_pb2.CommitBatchRequest, computation=_name, sequencer=_sequencer
    ),
    "Vouch": _unary("workers", "Vouch", workers_pb2.VouchRequest, computation=_name, sequencer=_sequencer),
    "GetWatermarks": _unary("watermarks", "GetWatermarks", watermarks_pb2.GetWatermarksRequest, computations=_names),
    "Watch": _watch,
    "CheckComplete": _unary("watermarks", "CheckComplete", watermarks_pb2.CheckCompleteRequest, computation=_name),
    "ListRanges": _unary("watermarks", "ListRanges", watermarks_pb2.ListRangesRequest, computation=_name),
    "GetHistory": _unary("watermarks", "GetHistory", watermarks_pb2.GetHistoryRequest, computation=_name),
    "Register": _unary("graph", "Register", topology_pb2.RegisterRequest, name=_name),
    "GetTopology": _unary("graph", "GetTopology", topology_pb2.GetTopologyRequest),
    "SetInputs": _unary("graph", "SetInputs", topology_pb2.SetInputsRequest, computation=_name),
    "Reset": _unary("graph", "Reset", topology_pb2.ResetRequest, computation=_name),
    "Retire": _unary("graph", "Retire", topology_pb2.RetireRequest, computation=_name, force=_constant(True)),
    "Drop": _unary("graph", "Drop", topology_pb2.DropRequest, computation=_name),
    "SplitSlice": _unary("graph", "SplitSlice", topology_pb2.SplitSliceRequest, computation=_name),
    "ChangeLayout": _unary(
        "graph", "ChangeLayout", topology_pb2.ChangeLayoutRequest, computation=_name, starts=_constant([0])
    ),
    "GetLayout": _unary("graph", "GetLayout", topology_pb2.GetLayoutRequest, computation=_name),
    "CreateGroup": _unary("tasks", "CreateGroup", tasks_pb2.CreateGroupRequest, computation=_name),
    "ConfigureGroup": _unary("tasks", "ConfigureGroup", tasks_pb2.ConfigureGroupRequest, computation=_name),
    "CreateTasks": _unary("tasks", "CreateTasks", tasks_pb2.CreateTasksRequest, computation=_name),
    "TakeTask": _unary("tasks", "TakeTask", tasks_pb2.TakeTaskRequest, computation=_name),
    "RenewTask": _unary("tasks", "RenewTask", tasks_pb2.RenewTaskRequest, computation=_name),
    "CommitTask": _unary("tasks", "CommitTask", tasks_pb2.CommitTaskRequest, computation=_name),
    "ReleaseTask": _unary("tasks", "ReleaseTask", tasks_pb2.ReleaseTaskRequest, computation=_name),
    "ListTasks": _unary("tasks", "ListTasks", tasks_pb2.ListTasksRequest, computation=_name),
    "Locate": _unary("cluster", "Locate", cluster_pb2.LocateRequest, computations=_names),
    "ListShards": _unary("cluster", "ListShards", cluster_pb2.ListShardsRequest),
    "Drain": _unary("cluster", "Drain", cluster_pb2.DrainRequest, address=_constant("127.0.0.1:1")),
    "Pin": _unary("cluster", "Pin", cluster_pb2.PinRequest, computation=_name, address=_constant("127.0.0.1:1")),
    "Identify": _unary("cluster", "Identify", cluster_pb2.IdentifyRequest),
    "ServerReflectionInfo": _reflect,
}
"""Every method of the server but the health checks, which are for anybody."""
