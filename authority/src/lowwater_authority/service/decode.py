"""From the wire to the core: checks shapes and limits, so that the core sees only well-formed requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.mass import MOST_RECORDS, Mass
from lowwater_authority.core.requests import ClaimRequest, Fold, GroupReport, Prepare, TaskAttempt, TaskPart
from lowwater_authority.core.times import DAY
from lowwater_authority.core.topology import Spec
from lowwater_authority.service.refusals import bad_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from lowwater._pb.lowwater.v1 import topology_pb2, types_pb2, workers_pb2
    from lowwater_authority.core.columns import Int64s

MAX_KEY: Final = 1024
"""Longest key bound, in bytes."""

MAX_NAME: Final = 256
"""Longest worker, host or identity, in characters."""

MAX_RANGES: Final = 2_000_000
"""Most ranges of one claim; the message limit binds before it for long keys."""


def int64s(column: Iterable[int]) -> Int64s:
    """Decode a packed sfixed64 or uint64 column; without a copy per element where protobuf offers a buffer."""
    return np.asarray(column, dtype=np.int64) if _has_array(column) else np.fromiter(column, dtype=np.int64)


def uint32s(column: Iterable[int]) -> npt.NDArray[np.uint32]:
    """Decode a packed fixed32 column."""
    return np.asarray(column, dtype=np.uint32) if _has_array(column) else np.fromiter(column, dtype=np.uint32)


def _has_array(column: Any) -> bool:
    return hasattr(column, "__array__")


def fold(message: Any) -> Fold:
    """Decode which inputs were folded."""
    return Fold(message.input_version, tuple(message.input_incarnations))


def spec(message: topology_pb2.RegisterRequest) -> Spec:
    """Decode a registration; the graph checks it."""
    shares = tuple(sorted(message.heuristics_ppm, reverse=True))
    return Spec(message.name, tuple(message.inputs), shares, message.key_hash, message.max_skew_micros or DAY)


def claim(message: workers_pb2.ClaimRequest) -> ClaimRequest:
    """Decode a claim. Raises InvalidArgument."""
    bounds = list(message.bounds)
    _check_bounds(bounds)
    for path in ("worker", "host", "identity"):
        if len(getattr(message, path)) > MAX_NAME:
            raise bad_field(path, "is too long", f"use at most {MAX_NAME} characters")
    if len(message.request_id) != 16:
        raise bad_field("request_id", f"has {len(message.request_id)} bytes", "send 16 random bytes")
    starting = int64s(message.bound_micros)
    if len(starting) not in (0, 1, len(bounds) - 1):
        raise bad_field(
            "bound_micros", f"has {len(starting)} values for {len(bounds) - 1} ranges", "send none, one, or one each"
        )
    return ClaimRequest(
        bounds,
        message.worker,
        message.host,
        message.identity,
        message.generation,
        message.ordinal,
        message.request_id,
        starting,
        message.batch_digest,
    )


def _check_bounds(bounds: list[bytes]) -> None:
    if len(bounds) < 2:
        raise bad_field("bounds", f"has {len(bounds)} keys", "n ranges need n + 1 bounds")
    if len(bounds) - 1 > MAX_RANGES:
        raise bad_field("bounds", f"delimits {len(bounds) - 1} ranges", f"claim at most {MAX_RANGES} at once")
    if max(map(len, bounds)) > MAX_KEY:
        raise bad_field("bounds", "has a key that is too long", f"use keys of at most {MAX_KEY} bytes")
    inner = bounds[:-1] if not bounds[-1] else bounds
    for index in range(len(inner) - 1):
        if inner[index] >= inner[index + 1]:
            fix = "sort the bounds and name each once; only the last may be empty"
            raise bad_field(f"bounds[{index + 1}]", f"{inner[index + 1]!r} does not come after {inner[index]!r}", fix)


def interval(start: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Check a key interval. Raises InvalidArgument."""
    _check_bounds([start, end])
    return start, end


def frontiers(path: str, messages: Iterable[types_pb2.Heuristic]) -> dict[int, int]:
    """Decode frontiers by share. Raises InvalidArgument."""
    found: dict[int, int] = {}
    for message in messages:
        if not 0 < message.share_ppm < PPM:
            raise bad_field(f"{path}.share_ppm", f"is {message.share_ppm}", f"use 1 to {PPM - 1}")
        found[message.share_ppm] = message.micros
    return found


def mass(message: workers_pb2.Mass) -> Mass:
    """Decode a mass. Counts of 2^63 and more come out negative, which the core refuses."""
    counts = np.fromiter(message.pending.counts, dtype=np.uint64).astype(np.int64)
    return Mass(
        int64s(message.pending.starts_micros), counts, message.recent, frontiers("mass.frontiers", message.frontiers)
    )


def group(message: workers_pb2.GroupReport) -> GroupReport:
    """Decode one claim's state. Raises InvalidArgument."""
    return GroupReport(
        message.sequencer,
        int64s(message.watermarks_micros),
        uint32s(message.handles) if message.handles else None,
        message.finish,
        fold(message),
        message.oldest_operation_micros,
        mass(message.mass) if message.HasField("mass") else None,
    )


def attempt(message: workers_pb2.TaskAttempt) -> TaskAttempt:
    """Decode the name of a task attempt."""
    return TaskAttempt(message.stage, message.partition, message.attempt)


def part(message: workers_pb2.StageTaskRequest) -> TaskPart:
    """Decode a task's part. Raises InvalidArgument."""
    starts = int64s(message.pending.starts_micros)
    counts = np.fromiter(message.pending.counts, dtype=np.uint64).astype(np.int64)
    if len(starts) != len(counts) or (counts < 0).any():
        raise bad_field(
            "pending", f"has {len(starts)} starts and {len(counts)} counts", "send as many of each, below 2^63"
        )
    if float(counts.sum(dtype=np.float64)) + message.finished > MOST_RECORDS:
        raise bad_field("pending and finished", "count too many records", f"a task has at most {MOST_RECORDS}")
    return TaskPart(uint32s(message.handles), int64s(message.oldest_micros), starts, counts, message.finished)


def prepare(message: workers_pb2.PrepareBatchRequest) -> Prepare:
    """Decode a prepare. Raises InvalidArgument."""
    return Prepare(
        message.sequencer,
        message.batch,
        message.digest,
        [attempt(task) for task in message.tasks],
        message.bound_micros,
        message.covers_all,
        fold(message),
        message.oldest_operation_micros,
        frontiers("frontiers", message.frontiers),
    )
