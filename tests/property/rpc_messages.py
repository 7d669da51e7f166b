"""Well-formed requests that almost make sense: valid ones in which some fields have other values, whatever fits the protocol."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from lowwater.v1 import workers_pb2
from tests.kit.times import HOUR
from tests.property.rpc_server import FIRST_SEQUENCER, METHODS, NOW, Pipeline

NAMES = ("a", "b", "n/c", "spare", "d", "new", "cut", "cut~0", "", "no name", "repairs", "hourly", "x" * 300, "水\0")
COUNTS: Final = (0, 1, 2, 3, 4, 5, 7, 8, 2**31, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64 - 1)
TIMES: Final = (-(2**63), 1 - 2**63, -1, 0, 1, 13 * HOUR, 14 * HOUR, 15 * HOUR, 20 * HOUR, NOW, NOW + 23 * HOUR)
FAR: Final = (NOW + 30 * HOUR, 2**62, 2**63 - 2, 2**63 - 1)
KEYS: Final = (b"", b"g", b"m", b"p", b"z", b"\xff" * 1024, b"\0", b"k" * 1025, b"i" * 16, b"d" * 16)

KINDS: Final[dict[int, tuple[Any, ...]]] = {
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: NAMES,
    FieldDescriptor.TYPE_BYTES: KEYS,
    FieldDescriptor.TYPE_UINT32: (0, 1, 2, 990_000, 999_999, 1_000_000, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 1, 2, 3, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: COUNTS,
    FieldDescriptor.TYPE_FIXED64: COUNTS,
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 3, 7),
    FieldDescriptor.TYPE_SFIXED64: (*TIMES, *FAR),
}
OTHERS: Final = {"sequencer": range(FIRST_SEQUENCER, FIRST_SEQUENCER + 4), "server_token": ("", "", "", "other")}
OFTEN: Final = (*sorted(METHODS), *["Claim", "StageTask", "PrepareBatch", "CommitBatch"] * 2, *["Report"] * 6)


def value(field: FieldDescriptor, random: Random) -> Any:
    if field.message_type is not None:
        message = GetMessageClass(field.message_type)()
        for inner in field.message_type.fields:
            set_field(message, inner, random)
        return message
    return random.choice(OTHERS.get(field.name, KINDS[field.type]))


def set_field(message: Any, field: FieldDescriptor, random: Random) -> None:
    message.ClearField(field.name)
    if field.is_repeated:
        getattr(message, field.name).extend(value(field, random) for _ in range(random.randint(0, 3)))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value(field, random))
    else:
        setattr(message, field.name, value(field, random))


def spoil(message: Any, random: Random) -> None:
    """Give some fields another value, also within the messages that it has."""
    for field in message.DESCRIPTOR.fields:
        inner = getattr(message, field.name)
        if random.random() < 0.15:
            set_field(message, field, random)
        elif field.message_type is not None and (field.is_repeated or message.HasField(field.name)):
            for part in inner if field.is_repeated else [inner]:
                spoil(part, random)


def stream(pipeline: Pipeline, random: Random) -> list[workers_pb2.ReportRequest]:
    opening, report = pipeline.valid("Report")
    messages = [opening]
    for number in range(1, random.randint(1, 4) + 1):
        messages.append(workers_pb2.ReportRequest(report=report.report))
        messages[-1].report.number = number
    return messages


def call(random: Random, pipeline: Pipeline) -> tuple[str, Any]:
    method = random.choice(OFTEN)
    request: Any = stream(pipeline, random) if method == "Report" else pipeline.valid(method)
    if random.random() < 0.7:
        for message in request if method == "Report" else [request]:
            spoil(message, random)
    return method, request
