"""Bounds of the requests of each method, checked before protobuf parses them.

A parsed message takes up to twenty times its bytes on the wire: an empty name takes 2 there, and 34
in memory. So the bytes are bounded, and for large requests the elements of repeated fields too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError

from lowwater import errors
from lowwater_authority.core.codec import varint
from lowwater_authority.core.requests import bad_field
from lowwater_authority.core.topology import MAX_INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor

SMALL: Final = 65_536
"""Bytes up to which elements are not counted: parsed, such a request takes a few megabytes."""

MOST_BYTES: Final = 1 << 20
"""Most bytes of a request of a method that is not listed in :data:`BOUNDS`."""

MOST_ELEMENTS: Final = 20_000
"""Most elements of repeated fields in such a request: twice the names that a request may have."""


@dataclass(frozen=True)
class Bound:
    """Bounds of one request of a method."""

    size: int = MOST_BYTES
    """Most bytes on the wire."""
    elements: int = MOST_ELEMENTS
    """Most texts, byte strings and messages in repeated fields, at any depth. Numbers in packed
    fields are not counted: parsed, they take eight times their bytes at most."""

    names: tuple[str, int] | None = None
    """Field that names computations, and the most names in it. The guard decides on each name."""

    def check(self, data: bytes, method: str, shape: Shape | None) -> None:
        """Raise InvalidArgument for a request that is larger, or has more elements.

        It takes some nanoseconds a byte, above :data:`SMALL`.
        """
        if len(data) > self.size:
            fix = "name or report less in each"
            problem = f"has {len(data)} bytes, and {method} takes {self.size}"
            raise errors.InvalidArgument(f"the request {problem}; {fix}", metadata={"field": "", "fix": fix})
        if len(data) > SMALL and shape is not None and shape.has_more(data, self.elements):
            fix = f"send at most {self.elements} in each"
            problem = f"has more names, keys or entries than {method} takes"
            raise errors.InvalidArgument(f"the request {problem}; {fix}", metadata={"field": "", "fix": fix})

    def check_names(self, request: Any) -> None:
        """Raise InvalidArgument for a parsed request with more names."""
        if self.names is not None:
            field, most = self.names
            count = len(getattr(request, field))
            if count > most:
                raise bad_field(field, f"has {count} names", f"name at most {most}")


MAX_NAMES: Final = 10_000
"""Most computations that one read names."""

NAMED: Final = Bound(4 << 20, names=("computations", MAX_NAMES))
"""Bound of a read: 10,000 names of 257 characters each."""

COLUMNS: Final = Bound(32 << 20, 250_000)
"""Bound of a report, or of a part of a micro-batch: two million ranges of twelve bytes each, or a
hundred thousand claims."""

BOUNDS: Final[dict[str, Bound]] = {
    # Two million ranges with keys of thirty bytes. It is also gRPC's bound of a message.
    "/lowwater.v1.WorkerService/Claim": Bound(64 << 20, 4_000_000),
    "/lowwater.v1.WorkerService/Report": COLUMNS,
    "/lowwater.v1.WorkerService/StageTask": COLUMNS,
    # A hundred thousand tasks of one micro-batch.
    "/lowwater.v1.WorkerService/PrepareBatch": Bound(8 << 20, 200_000),
    "/lowwater.v1.WorkerService/CommitBatch": Bound(8 << 20, 200_000),
    "/lowwater.v1.TopologyService/ChangeLayout": Bound(8 << 20, 200_000),
    # A thousand slices whose keys have a thousand bytes each, and a thousand inputs.
    "/lowwater.v1.TopologyService/Register": Bound(2 << 20, names=("inputs", MAX_INPUTS)),
    "/lowwater.v1.TopologyService/SetInputs": Bound(names=("inputs", MAX_INPUTS)),
    "/lowwater.v1.WatermarkService/GetWatermarks": NAMED,
    "/lowwater.v1.WatermarkService/Watch": NAMED,
    "/lowwater.v1.ClusterService/Locate": NAMED,
    # All references of a region, with the positions of their sources.
    "/lowwater.v1.RegionService/Report": Bound(16 << 20, 250_000),
    "/lowwater.v1.RegionService/Confirm": Bound(16 << 20, 250_000),
    "/lowwater.v1.RegionService/Arrive": Bound(16 << 20, 250_000),
}


def bound_of(method: str) -> Bound:
    """Return the bounds of a method's requests; ``method`` is its whole path."""
    return BOUNDS.get(method, _USUAL)


_USUAL: Final = Bound()

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
GROUPS: Final = (3, 4)
FIXED32: Final = 5
"""Encodings of a field: the low three bits of its tag."""

COUNTED: Final = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES, FieldDescriptorProto.TYPE_MESSAGE)
"""Types of fields whose elements take memory of their own."""


class Shape:
    """The repeated fields of a message type whose elements are counted, and its inner messages."""

    def __init__(self, message: Descriptor, outer: dict[str, Shape] | None = None) -> None:
        """``outer``: shapes of the types around this one, by name: a type may contain itself."""
        outer = {} if outer is None else outer
        outer[message.full_name] = self
        fields = DescriptorProto()
        message.CopyToProto(fields)
        self.counted: frozenset[int] = frozenset(
            field.number
            for field in fields.field
            if field.label == FieldDescriptorProto.LABEL_REPEATED and field.type in COUNTED
        )
        self.inner: dict[int, Shape] = {
            field.number: outer.get(field.message_type.full_name) or Shape(field.message_type, outer)
            for field in message.fields
            if field.message_type is not None
        }

    @cached_property
    def tags(self) -> bytes:
        """First bytes that the tag of a counted field can have, at any depth.

        A tag that is longer than necessary begins with the same byte and the bit 0x80.
        """
        shapes = [self]
        for shape in shapes:
            shapes += [inner for inner in shape.inner.values() if inner not in shapes]
        firsts = {number << 3 & 0x7F | LENGTH for shape in shapes for number in shape.counted}
        return bytes(sorted(firsts | {first | 0x80 for first in firsts}))

    def has_more(self, data: bytes, most: int) -> bool:
        """Return whether an encoded message has more counted elements than ``most``.

        Raises DecodeError where the bytes are no message.

        Each element has a tag, so there are at most as many elements as bytes that can begin a tag.
        One pass counts these, which is enough for nearly all messages. Only the others are walked.
        """
        if len(data) - len(data.translate(None, self.tags)) <= most:
            return False
        return _goes_beyond(data, self, most)


def _goes_beyond(data: bytes, shape: Shape, most: int) -> bool:
    """Walk a message and its inner messages, which may be nested to any depth."""
    elements, steps = most, 4 * most  # a message has few fields that are not counted
    parts = [(shape, 0, len(data))]
    while parts:
        shape, at, end = parts.pop()
        while at < end:
            tag, at = varint(data, at)
            number, kind = tag >> 3, tag & 7
            steps -= 1
            if kind == LENGTH:
                size, at = varint(data, at)
                elements -= number in shape.counted
                if number in shape.inner:
                    parts.append((shape.inner[number], at, min(at + size, end)))
                at += size
            elif kind == VARINT:
                _, at = varint(data, at)
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            elif kind not in GROUPS:  # fields within an unknown group count as if they were beside it
                raise DecodeError
            if elements < 0 or steps < 0:
                return True
    return False


def shape_of(deserialize: Callable[[bytes], Any]) -> Shape | None:
    """Return the shape of a method's requests; None: they are no messages of protobuf."""
    descriptor = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    return None if descriptor is None else _shape(descriptor)


@cache
def _shape(message: Descriptor) -> Shape:
    return Shape(message)
