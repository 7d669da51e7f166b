"""Well-formed requests of any content, made from the descriptors of the protocol; most of them almost make sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from lowwater.v1 import workers_pb2
from tests.kit.times import HOUR
from tests.property.rpc_server import FIRST_SEQUENCER, METHODS, NOW, Pipeline

NAMES: Final = ("a", "b", "n/c", "spare", "d", "new", "cut", "cut~0", "", "no name", "x" * 300, "水\0")
COUNTS: Final = (0, 1, 2, 3, 4, 5, 2**31, 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64 - 1)
TIMES: Final = (-(2**63), 1 - 2**63, -1, 0, 1, 13 * HOUR, 14 * HOUR, 15 * HOUR, 20 * HOUR, NOW, NOW + 23 * HOUR)
FAR: Final = (NOW + 30 * HOUR, 2**62, 2**63 - 2, 2**63 - 1)
KEYS: Final = (b"", b"g", b"m", b"p", b"z", b"\xff" * 1024, b"\0", b"k" * 1025)
BOUNDS: Final = (
    [b"", b""],
    [b"", b"g", b"p", b""],
    [b"", b"m", b""],
    [b"g", b"m"],
    [b"m", b""],
    [b"", b"a", b"b", b"z"],
)

Made = Callable[[Random], Any]


def one_of(*values: Any) -> Made:
    return lambda random: random.choice(values)


def some(values: Sequence[Any], most: int = 3) -> Made:
    return lambda random: random.choices(values, k=random.randint(0, most))


KINDS: Final[dict[int, Made]] = {
    FieldDescriptor.TYPE_BOOL: one_of(False, True),
    FieldDescriptor.TYPE_STRING: one_of("", "w", "other", "水\0", "x" * 300),
    FieldDescriptor.TYPE_BYTES: one_of(*KEYS, b"i" * 16),
    FieldDescriptor.TYPE_UINT32: one_of(0, 1, 2, 990_000, 999_999, 1_000_000, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: one_of(0, 1, 2, 3, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: one_of(*COUNTS),
    FieldDescriptor.TYPE_FIXED64: one_of(*COUNTS),
    FieldDescriptor.TYPE_ENUM: one_of(0, 1, 2, 3, 7),
    FieldDescriptor.TYPE_SFIXED64: one_of(*TIMES, *FAR),
}

ALONE: Final[dict[str, Made]] = {
    # By field: values that lead further than to the first check, most of the time.
    "server_token": one_of(*[""] * 20, "other"),
    "computation": one_of(*NAMES[:5] * 4, *NAMES),
    "name": one_of(*NAMES),
    "sequencer": one_of(*range(FIRST_SEQUENCER, FIRST_SEQUENCER + 4), 0, 2**64 - 1),
    "request_id": one_of(*(bytes([n]) * 16 for n in range(19)), b"", b"x"),
    "identity": one_of("", "", "query", "other"),
    "generation": one_of(0, 0, 3, 4, 5, 2**64 - 1),
    "batch": one_of(3, 4, 4, 5, 2**64 - 1),
    "attempt": one_of(7, 7, 7, 8, 2**64 - 1),
    "input_version": one_of(0, 0, 1, 1, 2, 2**64 - 1),
    "group": one_of(*["repairs", "hourly"] * 4, "daily", "", "no group", "x" * 300),
    "incarnation": one_of(1, 1, 1, 0, 2),
    "nonce": one_of(*(bytes([n]) * 16 for n in b"dijkl"), b"", b"x"),
    "wait_millis": one_of(0, 0, 0, 1, 30_001, 2**32 - 1),
    "share_ppm": one_of(*range(1, 20), *[990_000] * 20, 0, 1_000_000),
}

LISTS: Final[dict[str, Made]] = {
    "inputs": some(NAMES[:6]),
    "computations": some(NAMES),
    "bounds": lambda random: random.choice((*BOUNDS * 3, random.choices(KEYS, k=3))),
    "heuristics_ppm": one_of((), (990_000,), (500_000, 990_000), (0,), (1, 1)),
    "slices": one_of((), (), (), (b"m",), (b"g", b"m"), (b"m", b"g"), (b"",), (b"x" * 1025,)),
    "input_incarnations": one_of((), (), (1,), (1,), (2,), (0, 2**64 - 1)),
    "handles": one_of((), (), (), (0,), (1, 0), (0, 0), (0, 1, 2), (2**32 - 1,)),
    "outputs": one_of((), (), ("part",), ("x" * 3000,)),
}


def message(descriptor: Descriptor, random: Random) -> Any:
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if random.random() < 0.1:
            continue
        if field.message_type is not None:
            for _ in range(random.randint(0, 2) if field.is_repeated else 1):
                inner = getattr(made, field.name)
                (inner.add() if field.is_repeated else inner).CopyFrom(message(field.message_type, random))
        elif field.is_repeated:
            each = ALONE.get(field.name, KINDS[field.type])
            listed = LISTS.get(
                field.name, lambda random, each=each: [each(random) for _ in range(random.randint(0, 3))]
            )
            getattr(made, field.name).extend(listed(random))
        else:
            setattr(made, field.name, ALONE.get(field.name, KINDS[field.type])(random))
    return made


def stream(random: Random) -> list[workers_pb2.ReportRequest]:
    opening = workers_pb2.ReportOpen(
        server_token=ALONE["server_token"](random),
        sender=random.choice((b"s" * 16, b"s" * 16, b"t" * 16, b"s" * 16, b"x")),
        stream=random.choice((*[0] * 40, 1, 2, 2**64 - 1)),
    )
    said = [workers_pb2.ReportRequest(open=opening)] if random.random() < 0.9 else []
    for number in range(1, random.randint(1, 4) + 1):
        groups = [message(workers_pb2.GroupReport.DESCRIPTOR, random) for _ in range(random.randint(0, 3))]
        chosen = random.choice((*[number] * 8, 0, 1, number + 1, 2**64 - 1))
        said.append(workers_pb2.ReportRequest(report=workers_pb2.Report(number=chosen, groups=groups)))
    if random.random() < 0.05:
        said.append(workers_pb2.ReportRequest())
    return said


def spoilt(request: Any, random: Random) -> Any:
    field = random.choice(request.DESCRIPTOR.fields).name
    other = message(request.DESCRIPTOR, random)
    request.ClearField(field)
    for name in {each.name for each in request.DESCRIPTOR.fields} - {field}:
        other.ClearField(name)
    request.MergeFrom(other)
    return request


def call(random: Random, pipeline: Pipeline) -> tuple[str, Any]:
    kind = random.random()
    method = random.choice(OFTEN)
    if method == "Report":
        return method, pipeline.valid(method) if kind < 0.2 else stream(random)
    if kind < 0.6:
        request = pipeline.valid(method)
        return method, request if kind < 0.3 else spoilt(request, random)
    return method, message(METHODS[method].input_type, random)


OFTEN: Final = (*sorted(METHODS), *["Claim", "StageTask", "PrepareBatch", "CommitBatch"] * 2, *["Report"] * 6)
