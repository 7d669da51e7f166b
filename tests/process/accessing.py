"""A ``lowwater serve --access`` for tests: principals with tokens, and every method called as any of them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass
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


def _fields(name: str, sequencer: int) -> dict[str, Any]:
    """What a request says of a computation and of a claim of it, by field."""
    return {
        "name": name,
        "computation": name,
        "computations": [name] if name else [],
        "sequencer": sequencer,
        "bounds": [b"", b""],
        "worker": "thief",
        "request_id": secrets.token_bytes(16),
        "task": workers_pb2.TaskAttempt(stage=1, partition=0, attempt=1),
        "starts": [0],
        "force": True,
        "address": "127.0.0.1:1",
    }


def _unary(service: str, method: Any) -> Call:
    def call(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> None:
        if service != "workers":
            about = {**about, "sequencer": 0}  # only a shard names the claim that it retires
        known = {name: value for name, value in _fields(**about).items() if name in method.input_type.fields_by_name}
        message = GetMessageClass(method.input_type)(**known | fields)
        getattr(getattr(wire.stubs, service), method.name)(message, metadata=metadata, timeout=PATIENCE)

    return call


def _watch(wire: Wire, metadata: Any, fields: dict[str, Any], about: dict[str, Any]) -> None:
    named = {"computations": _fields(**about)["computations"]}
    request = watermarks_pb2.WatchRequest(**named | fields)
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


SERVICES: Final[dict[str, Any]] = {
    "workers": workers_pb2,
    "watermarks": watermarks_pb2,
    "graph": topology_pb2,
    "tasks": tasks_pb2,
    "cluster": cluster_pb2,
}

CALLS: Final[dict[str, Call]] = {
    **{
        method.name: _unary(name, method)
        for name, module in SERVICES.items()
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    },
    "Report": _report,
    "Watch": _watch,
    "ServerReflectionInfo": _reflect,
}
"""Every method of the server but the health checks, which are for anybody."""
