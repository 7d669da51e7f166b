"""The worked exchanges of conformance/README.md: read from the page, and replayed against real authorities.

A block is a list of messages in protobuf's text format, each below a line that says whose it is:

    # -> TopologyService.Register             a call
    # -> WorkerService.Report, stream 1       a message up a stream, which the first one opens
    # <-                                      the answer to the call above
    # <- stream 1                             a message down a stream
    # <- FAILED_PRECONDITION                  the refusal of the call above; the message is its ErrorInfo
    # <- stream 1 ends, INVALID_ARGUMENT      the same of a stream

with `at HOST:PORT` behind the method where there are several authorities. What a deployment makes up (tokens, sequencers, addresses) is
some value on the page and another one in the test: the first answer that has it binds the one to the other. What tells the time, and words for
people, are left out.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.message import Message

from lowwater.v1 import cluster_pb2, errors_pb2, topology_pb2, watermarks_pb2, workers_pb2
from tests.process.peer import reason

PAGE: Final = Path(__file__).parents[2] / "conformance/README.md"

SERVICES: Final = {
    "ClusterService": cluster_pb2,
    "TopologyService": topology_pb2,
    "WatermarkService": watermarks_pb2,
    "WorkerService": workers_pb2,
}

BLOCK: Final = re.compile(r"^```textproto\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINE: Final = re.compile(
    r"# (?P<way>->|<-)(?: (?P<service>\w+)\.(?P<method>\w+))?(?:,? ?stream (?P<stream>\d+))?(?: ends,)?(?: (?P<code>[A-Z_]+))?(?: at (?P<place>\S+))?"
)
BOUND: Final = {"server_token", "sequencer", "instead_of", "newest_claim", "epoch", "address"}
"""Fields that a deployment makes up."""
UNTOLD: Final = {
    "time_micros",
    "clock_micros",
    "since_micros",
    "last_report_micros",
    "claimed_micros",
    "epoch_nonce",
    "message",
    "fix",
}
"""Fields that tell the time, tell shards apart, or are for people."""


@dataclass
class Step:
    line: str
    up: bool
    service: str
    method: str
    stream: str
    code: str
    place: str
    text: str


def blocks(page: Path = PAGE) -> list[list[Step]]:
    return [list(_steps(block)) for block in BLOCK.findall(page.read_text(encoding="utf-8"))]


def _steps(block: str) -> Iterator[Step]:
    parts = re.split(r"^(# (?:->|<-).*)$", block, flags=re.MULTILINE)
    assert not parts[0].strip(), f"text before the first message: {parts[0]!r}"
    service = method = ""
    for line, text in zip(parts[1::2], parts[2::2], strict=True):
        match = LINE.fullmatch(line)
        assert match, f"not understood: {line}"
        service, method = match["service"] or service, match["method"] or method
        place, stream, code = match["place"] or "", match["stream"] or "", match["code"] or ""
        yield Step(line, match["way"] == "->", service, method, stream, code, place, text)


@dataclass
class Stream:
    service: str
    method: str
    up: queue.Queue[Message | None] = field(default_factory=queue.Queue)
    down: Any = None


class Replay:
    """Sends what the page sends, and compares the answers. ``places`` has the channel of each address on the page."""

    def __init__(self, places: Mapping[str, tuple[str, grpc.Channel]]) -> None:
        self._channels = {place: channel for place, (_, channel) in places.items()}
        self._live: dict[tuple[str, Any], Any] = {("address", place): live for place, (live, _) in places.items()}
        self._streams: dict[str, Stream] = {}
        self._answer: Any = None

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            if step.up:
                self._send(step)
            else:
                self._receive(step)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.up.put(None)
            stream.down.cancel()

    def _send(self, step: Step) -> None:
        request = self._translated(self._parsed(step, "Request"))
        call = SERVICES[step.service].DESCRIPTOR.services_by_name[step.service].methods_by_name[step.method]
        module: Any = SERVICES[step.service]
        if step.stream and step.stream in self._streams:
            self._streams[step.stream].up.put(request)
            return
        channel = self._channels[step.place]
        path = f"/lowwater.v1.{step.service}/{step.method}"
        answer = getattr(module, f"{step.method}Response").FromString
        if not step.stream:
            method = channel.unary_unary(path, request_serializer=_serialized, response_deserializer=answer)
            self._answer = _outcome(lambda: method(request, timeout=30))
            return
        stream = self._streams[step.stream] = Stream(step.service, step.method)
        stream.up.put(request)
        if call.client_streaming:
            up = iter(stream.up.get, None)
            opened = channel.stream_stream(path, request_serializer=_serialized, response_deserializer=answer)
            stream.down = opened(up, timeout=120)
        else:
            stream.down = channel.unary_stream(path, request_serializer=_serialized, response_deserializer=answer)(
                request, timeout=120
            )

    def _receive(self, step: Step) -> None:
        if step.stream:
            stream = self._streams[step.stream]
            step.service, step.method = stream.service, stream.method
            live = _outcome(lambda: _next(stream.down))
        else:
            live = self._answer
        if step.code:
            assert isinstance(live, grpc.RpcError), f"{step.line}: answered instead: {live}"
            code, why, facts = reason(live)
            info = errors_pb2.ErrorInfo(reason=why, domain="lowwater", metadata=facts)
            assert code.name == step.code, f"{step.line}: {code.name}"
            self._compare(step, text_format.Parse(step.text, errors_pb2.ErrorInfo()), info)
            return
        assert not isinstance(live, grpc.RpcError), f"{step.line}: refused instead: {live}"
        self._compare(step, self._parsed(step, "Response"), live)

    def _parsed(self, step: Step, kind: str) -> Message:
        message: Message = getattr(SERVICES[step.service], f"{step.method}{kind}")()
        try:
            return text_format.Parse(step.text, message)
        except text_format.ParseError as error:
            msg = f"{step.line}: {error}"
            raise AssertionError(msg) from error

    def _compare(self, step: Step, expected_message: Message, live: Message) -> None:
        self._bind(expected_message, live)
        expected, actual = self._translated(expected_message), _stripped(live)
        assert actual == expected, f"{step.line}\n--- the page, translated:\n{expected}\n--- the authority:\n{actual}"

    def _bind(self, expected: Message, live: Message) -> None:
        """Learn what the deployment has for what the page has."""
        for name, value in _fields(expected):
            other = dict(_fields(live)).get(name)
            if isinstance(value, Message):
                self._bind(value, other if isinstance(other, Message) else value)
            elif isinstance(value, list) and isinstance(other, list):
                for one, another in zip(value, other, strict=False):
                    if isinstance(one, Message):
                        self._bind(one, another)
            elif name in BOUND and value and other:
                self._live.setdefault((name.replace("instead_of", "sequencer"), value), other)

    def _translated(self, message: Message) -> Message:
        copy = type(message)()
        copy.CopyFrom(message)
        self._translate(copy)
        return copy

    def _translate(self, message: Any) -> None:
        for name, value in _fields(message):
            kind = name.replace("instead_of", "sequencer")
            if isinstance(value, Message):
                self._translate(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, Message):
                        self._translate(item)
            elif name == "metadata":
                for key, text in list(value.items()):  # an assignment to a map ends the iteration over it, now and then
                    value[key] = str(self._live.get((key, int(text) if text.isdecimal() else text), text))
            elif kind in BOUND:
                setattr(message, name, self._live.get((kind, value), value))


def _fields(message: Any) -> Iterator[tuple[str, Any]]:
    for descriptor, value in message.ListFields():
        repeated = hasattr(value, "append") or hasattr(value, "add")
        yield descriptor.name, list(value) if repeated else value


def _stripped(message: Message) -> Message:
    copy: Any = type(message)()
    copy.CopyFrom(message)
    _leave_out(copy)
    return copy  # type: ignore[no-any-return]


def _leave_out(message: Any) -> None:
    for name, value in list(_fields(message)):
        if name in UNTOLD or (name == "reason" and message.DESCRIPTOR.name == "Fenced"):
            message.ClearField(name)
        elif isinstance(value, Message):
            _leave_out(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Message):
                    _leave_out(item)
        elif name == "metadata":
            for key in UNTOLD & value.keys():
                del value[key]


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _outcome(call: Any) -> Any:
    try:
        return call()
    except grpc.RpcError as error:
        return error


def _next(down: Any) -> Any:
    while True:
        message = next(down)
        beat = isinstance(message, watermarks_pb2.WatchResponse) and not (
            message.watermarks or message.redirects or message.HasField("go_away") or message.dropped
        )
        if not beat:
            return message
