"""From the core to the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowwater._pb.lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.ops.events import shortened
from lowwater_authority.rpc.refusals import MESSAGE_BYTES

if TYPE_CHECKING:
    from lowwater_authority.core.computation import View
    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.core.requests import Fenced, Refused, TaskAttempt
    from lowwater_authority.core.topology import Spec, Topology

STATES: Final = {
    GroupState.NEVER: types_pb2.RANGE_STATE_NEVER_CLAIMED,
    GroupState.OWNED: types_pb2.RANGE_STATE_OWNED,
    GroupState.UNOWNED: types_pb2.RANGE_STATE_UNOWNED,
    GroupState.RETIRED: types_pb2.RANGE_STATE_RETIRED,
}

_HANDLES: Final = bytes([workers_pb2.RefusedRanges.HANDLES_FIELD_NUMBER << 3 | 2])
"""Before the packed handles of refused ranges."""


def key_range(value: Range) -> types_pb2.Range:
    """Encode a range."""
    owner = value.owner
    finished = value.value == MAX and owner.state is not GroupState.RETIRED
    return types_pb2.Range(
        start=value.start,
        end=value.end,
        watermark_micros=value.value,
        state=types_pb2.RANGE_STATE_FINISHED if finished else STATES[owner.state],
        worker=owner.worker,
        host=owner.host,
        sequencer=owner.sequencer,
        since_micros=value.since,
        last_report_micros=owner.last_report,
        waiting_for="" if finished else owner.waiting_for,
    )


def watermark(name: str, view: View | None, topology: Topology, epoch: int) -> types_pb2.Watermark:
    """Encode what is published of a computation; an unregistered one is at MIN, with the life in which it was dropped, if it was."""
    spec = topology.computations.get(name)
    if view is None or spec is None:
        before = topology.dropped.get(name)
        life = 0 if before is None else before.incarnation
        return types_pb2.Watermark(computation=name, registered=False, incarnation=life, epoch=epoch, low_micros=MIN)
    return types_pb2.Watermark(
        computation=name,
        registered=True,
        incarnation=view.incarnation,
        epoch=epoch,
        low_micros=view.low,
        heuristics=heuristics(view.heuristics),
        oldest_operation_micros=view.oldest_operation,
        since_micros=view.since,
        holder=key_range(view.holder) if view.holder is not None else None,
        ranges=view.ranges,
        inputs=spec.inputs,
        estimated=topology.is_estimated(name),
    )


def heuristics(values: tuple[tuple[int, int], ...]) -> list[types_pb2.Heuristic]:
    """Encode heuristic watermarks."""
    return [types_pb2.Heuristic(share_ppm=share, micros=micros) for share, micros in values]


def computation(spec: Spec, topology: Topology) -> topology_pb2.Computation:
    """Encode a registered computation."""
    required = topology.required(spec.name)
    return topology_pb2.Computation(
        name=spec.name,
        inputs=spec.inputs,
        heuristics_ppm=spec.heuristics,
        key_hash=spec.key_hash,
        max_skew_micros=spec.max_skew,
        incarnation=spec.incarnation,
        input_version=required.input_version,
        input_incarnations=required.input_incarnations,
        history_step_micros=spec.history_step,
        estimated=topology.is_estimated(spec.name),
    )


def tombstone(spec: Spec) -> topology_pb2.Computation:
    """Encode what is kept of a computation that was dropped."""
    return topology_pb2.Computation(
        name=spec.name, incarnation=spec.incarnation, input_version=spec.input_version, dropped=True
    )


def completion(value: Completion) -> watermarks_pb2.Completion:
    """Encode a moment at which steps became complete."""
    return watermarks_pb2.Completion(
        incarnation=value.incarnation,
        after_micros=value.after,
        through_micros=value.through,
        time_micros=value.time,
    )


def refused(name: str, value: Refused) -> workers_pb2.RefusedRanges:
    """Encode refused ranges. What the caller has made up is told by its beginning and its end."""
    message = workers_pb2.RefusedRanges(
        computation=shortened(name),
        sequencer=value.sequencer,
        reason=value.reason,
        message=shortened(value.message, MESSAGE_BYTES),
        newest=value.newest,
    )
    if value.handles is not None:
        # As protobuf reads it, at once: one by one, two million take most of a second, in which nobody else is served.
        packed = value.handles.astype("<u4", copy=False).tobytes()
        message.MergeFromString(_HANDLES + _varint(len(packed)) + packed)
    return message


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def fenced(value: Fenced) -> workers_pb2.Fenced:
    """Encode lost ranges."""
    return workers_pb2.Fenced(
        computation=value.computation, sequencer=value.sequencer, handles=value.handles or (), reason=value.reason
    )


def attempt(value: TaskAttempt) -> workers_pb2.TaskAttempt:
    """Encode the name of a task attempt."""
    return workers_pb2.TaskAttempt(stage=value.stage, partition=value.partition, attempt=value.attempt)
