"""Well-formed requests of any content, made from the descriptors of the protocol; most of them almost make sense.

Each comes whole from one source of chance: drawing every field from Hypothesis would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from lowwater._pb.lowwater.v1 import tasks_pb2, topology_pb2, watermarks_pb2, workers_pb2
from tests.kit.times import HOUR
from tests.property.rpc_server import FIRST_SEQUENCER, NOW, Pipeline

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
    """One of the values."""
    return lambda random: random.choice(values)


def some(values: Sequence[Any], most: int = 3) -> Made:
    """A list of up to so many of the values."""
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
    "worker": one_of("", "w", "w", "水\0", "x" * 300),
    "host": one_of("", "h"),
    "identity": one_of("", "", "query", "other"),
    "generation": one_of(0, 0, 3, 4, 5, 2**64 - 1),
    "batch": one_of(3, 4, 4, 5, 2**64 - 1),
    "stage": one_of(0, 1, 1, 2**32 - 1),
    "partition": one_of(0, 0, 1, 2**32 - 1),
    "attempt": one_of(7, 7, 7, 8, 2**64 - 1),
    "max_skew_micros": one_of(0, 0, 1, HOUR, 2**62 - 1, 2**62, 2**64 - 1),
    "history_step_micros": one_of(0, 0, 1, 1_000_000, HOUR, 2**64 - 1),
    "page_size": one_of(0, 1, 10_000, 10_001, 2**32 - 1),
    "max_holders": one_of(0, 1, 1000, 1001, 2**32 - 1),
    "input_version": one_of(0, 0, 1, 1, 2, 2**64 - 1),
    "group": one_of(*["repairs", "hourly"] * 4, "daily", "", "no group", "x" * 300),
    "version": one_of(2, 2, 4, 1, 2**64 - 1),
    "configuration_version": one_of(1, 1, 2, 2**64 - 1),
    "incarnation": one_of(1, 1, 1, 0, 2),
    "epoch": one_of(FIRST_SEQUENCER >> 28, 0, 2**64 - 1),
    "nonce": one_of(*(bytes([n]) * 16 for n in b"dijkl"), b"", b"x"),
    "wait_millis": one_of(0, 0, 0, 1, 30_001, 2**32 - 1),
    "every_micros": one_of(0, HOUR, HOUR, 1, 2**64 - 1),
    "start_micros": one_of(0, 0, HOUR, -(2**63), 2**63 - 1),
    "lease_micros": one_of(0, 0, HOUR, 1, 2**64 - 1),
    "budget_ppm": one_of(*[10_000] * 10, 0, 1, 2**32 - 1),
    "share_ppm": one_of(*range(1, 20), *[990_000] * 20, 0, 1_000_000),
}

LISTS: Final[dict[str, Made]] = {
    "inputs": some(NAMES[:6]),
    "computations": some(NAMES),
    "bounds": lambda random: random.choice((*BOUNDS * 3, random.choices(KEYS, k=3))),
    "bound_micros": lambda random: random.choice(((), (), random.choices((*TIMES, *FAR), k=random.randint(0, 3)))),
    "heuristics_ppm": one_of((), (990_000,), (500_000, 990_000), (0,), (1, 1)),
    "lateness_budgets_ppm": one_of((), (), (10_000,), (100, 10_000), (99,), (10_000, 10_000), (2**32 - 1,)),
    "slices": one_of((), (), (), (b"m",), (b"g", b"m"), (b"m", b"g"), (b"",), (b"x" * 1025,)),
    "buckets": one_of((), (0,), (0, 5), (0, 5, 755), (5, 0), (0, 0), (756,), (2**32 - 1,)),
    "input_incarnations": one_of((), (), (1,), (1,), (2,), (0, 2**64 - 1)),
    "handles": one_of((), (), (), (0,), (1, 0), (0, 0), (0, 1, 2), (2**32 - 1,)),
    "watermarks_micros": some((*TIMES, *TIMES, *FAR)),
    "oldest_micros": some((*TIMES, *FAR), 2),
    "starts_micros": lambda random: sorted(random.sample((*TIMES, *FAR), random.randint(0, 3))),
    "starts": one_of((), (0,), (0, 32_768), (0, 1, 2), (5,), (0, 0), (0, 65_536), (0, 2**32 - 1)),
    "tasks": one_of((), (), (), (0, 1), (1, 2, 1), (2**32 - 1,)),
    "outputs": one_of((), (), ("part",), ("x" * 3000,)),
    "counts": some((0, 1, 1, 2, 3, 2**40, 2**63, 2**64 - 1)),
}


def message(descriptor: Descriptor, random: Random) -> Any:
    """Any message of a type; each field may be absent."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if random.random() < 0.1:
            continue
        if field.message_type is not None:
            for _ in range(random.randint(0, 2) if field.is_repeated else 1):
                inner = getattr(made, field.name)
                (inner.add() if field.is_repeated else inner).CopyFrom(message(field.message_type, random))
        elif field.is_repeated:
            getattr(made, field.name).extend(LISTS.get(field.name, some(COUNTS))(random))
        else:
            setattr(made, field.name, ALONE.get(field.name, KINDS[field.type])(random))
    return made


UNARY: Final = {
    method.name: method.input_type
    for module in (tasks_pb2, topology_pb2, watermarks_pb2, workers_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
}
"""The type of each method's request; of all but Report."""


def stream(random: Random) -> list[workers_pb2.ReportRequest]:
    """A report stream whose messages mostly come in order. A stream number of 0 stands for the next of its sender."""
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
    """A request with one field from anywhere."""
    field = random.choice(request.DESCRIPTOR.fields).name
    other = message(request.DESCRIPTOR, random)
    request.ClearField(field)
    for name in {each.name for each in request.DESCRIPTOR.fields} - {field}:
        other.ClearField(name)
    request.MergeFrom(other)
    return request


def call(random: Random, pipeline: Pipeline) -> tuple[str, Any]:
    """A method and its request: one that was valid when nothing else had been sent, or nearly so, or any."""
    kind = random.random()
    method = random.choice(OFTEN)
    if method == "Report":
        return method, pipeline.valid(method) if kind < 0.2 else stream(random)
    if kind < 0.6:
        request = pipeline.valid(method)
        return method, request if kind < 0.3 else spoilt(request, random)
    return method, message(UNARY[method], random)


OFTEN: Final = (*sorted(UNARY), *["Claim", "StageTask", "PrepareBatch", "CommitBatch"] * 2, *["Report"] * 6)
"""Methods, those that change much more often."""
