"""Conversions between this package's values and the messages of ``lowwater.v1``."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from lowwater import errors
from lowwater.core import checks
from lowwater.core.fold import Reading
from lowwater.core.lateness import Lateness
from lowwater.core.lease import GroupState, Mass, Report
from lowwater.histogram import Histogram
from lowwater.layout import Layout, LayoutView, RangeLoad
from lowwater.v1 import cluster_pb2, errors_pb2, topology_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater.views import (
    NO_REMARKS,
    PPM,
    Completeness,
    Completion,
    Computation,
    History,
    LatenessBudget,
    Promise,
    Ranges,
    RangeState,
    RangeView,
    Refusal,
    Remarks,
    Shards,
    ShardView,
    TaskAttempt,
    Topology,
    WatermarkView,
)
from lowwater.watermark import Watermark

__all__ = [
    "attempt",
    "completeness",
    "computation",
    "error_from_details",
    "error_of",
    "fenced",
    "frontiers",
    "histogram",
    "history",
    "layout",
    "layout_message",
    "layouts",
    "load_message",
    "moved",
    "ppm",
    "range_view",
    "ranges",
    "reading",
    "reading_of_claim",
    "refusal",
    "report_request",
    "shards",
    "topology",
    "watermark_view",
]

_STATES: Final = {
    types_pb2.RANGE_STATE_NEVER_CLAIMED: RangeState.NEVER_CLAIMED,
    types_pb2.RANGE_STATE_OWNED: RangeState.OWNED,
    types_pb2.RANGE_STATE_UNOWNED: RangeState.UNOWNED,
    types_pb2.RANGE_STATE_FINISHED: RangeState.FINISHED,
    types_pb2.RANGE_STATE_RETIRED: RangeState.RETIRED,
}

LEAST_BUDGET: Final = 0.0001
MOST_BUDGET: Final = 0.5
"""Least and greatest lateness budget that the authority accepts."""

_ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"
_DOMAIN: Final = "lowwater"


# -- upwards ---------------------------------------------------------------------------------------


def report_request(report: Report) -> workers_pb2.ReportRequest:
    """Return the message of a report."""
    request = workers_pb2.ReportRequest()
    request.report.number = report.number
    for group in report.groups:
        _fill(request.report.groups.add(), group)
    return request


def _fill(message: workers_pb2.GroupReport, group: GroupState) -> None:
    message.computation = group.computation
    message.sequencer = group.sequencer
    if group.handles is not None:
        _pack(message, "handles", group.handles)
    if isinstance(group.values, int):
        message.watermarks_micros.append(group.values)
    else:
        _pack(message, "watermarks_micros", group.values)
    message.finish = group.finish
    message.input_version = group.input_version
    message.input_incarnations.extend(group.input_incarnations)
    message.oldest_operation_micros = group.oldest_operation
    message.turn = group.turn
    message.waiting_for = group.waiting_for
    if (remarks := remarks_message(group.remarks)) is not None:
        message.remarks.CopyFrom(remarks)
    if group.mass is not None:
        message.mass.CopyFrom(_mass(group.mass))
    if group.lateness is not None:
        message.lateness.CopyFrom(_lateness(group.lateness))


def _pack(message: Any, field: str, column: array[int]) -> None:
    """Fill a packed fixed-width field from a column.

    On the wire such a field is the column's own little-endian bytes behind a tag and a length.
    Parsing those takes a third of the time of ``extend``, which boxes every number.
    """
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    body = column.tobytes()
    tag = message.DESCRIPTOR.fields_by_name[field].number << 3 | 2
    message.MergeFromString(_varint(tag) + _varint(len(body)) + body)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _mass(mass: Mass) -> workers_pb2.Mass:
    return workers_pb2.Mass(
        pending=workers_pb2.Histogram(starts_micros=mass.starts, counts=mass.counts),
        recent=mass.recent,
        frontiers=frontiers(mass.frontiers),
        others=[workers_pb2.FinishedAt(recent=recent, frontiers=frontiers(at)) for recent, at in mass.others],
        unknown=mass.unknown,
    )


def _lateness(lateness: Lateness) -> workers_pb2.Lateness:
    return workers_pb2.Lateness(
        buckets=[bucket for bucket, _ in lateness.counts],
        counts=[count for _, count in lateness.counts],
        reference_micros=lateness.reference,
        frontier_micros=lateness.frontier,
        behind=[
            workers_pb2.Behind(budget_ppm=ppm, records=records, judged_micros=judged)
            for ppm, records, judged in lateness.behind
        ],
    )


def histogram(pending: Histogram) -> workers_pb2.Histogram:
    """Return the message of a histogram."""
    starts, counts = pending.columns()
    return workers_pb2.Histogram(starts_micros=starts, counts=counts)


def frontiers(shares: Iterable[tuple[int, int]]) -> list[types_pb2.Heuristic]:
    """Return the messages of (share in parts per million, micros) pairs."""
    return [types_pb2.Heuristic(share_ppm=share, micros=micros) for share, micros in shares]


def attempt(task: TaskAttempt) -> workers_pb2.TaskAttempt:
    """Return the message of a task's attempt. Raises InvalidArgument."""
    value: Any = task
    if not isinstance(value, TaskAttempt):
        raise checks.refused("task", value, "a TaskAttempt")
    return workers_pb2.TaskAttempt(
        stage=checks.count("task.stage", task.stage, 32),
        partition=checks.count("task.partition", task.partition, 32),
        attempt=checks.count("task.attempt", task.attempt, 64),
    )


def ppm(heuristics: Iterable[float]) -> list[int]:
    """Return shares in parts per million, largest first. Raises InvalidArgument."""
    shares: set[int] = set()
    for share in checks.listed("heuristics", heuristics):
        parts = round(share * PPM) if checks.is_number(share) and 0 < share < 1 else 0
        if not 0 < parts < PPM:
            raise checks.refused(
                "heuristics", share, "shares of the records: numbers above 0 and below 1, such as 0.99"
            )
        shares.add(parts)
    return sorted(shares, reverse=True)


def budgets_ppm(budgets: float | Iterable[float]) -> list[int]:
    """Return lateness budgets in parts per million, smallest first. Raises InvalidArgument."""
    value: Any = budgets
    shares: list[Any] = [value] if checks.is_number(value) else list(checks.listed("lateness_budget", value))
    parts: set[int] = set()
    for share in shares:
        if not (checks.is_number(share) and LEAST_BUDGET <= share <= MOST_BUDGET):
            fix = f"shares of the records from {LEAST_BUDGET} to {MOST_BUDGET}, such as 0.01"
            raise checks.refused("lateness_budget", share, fix)
        parts.add(round(share * PPM))
    return sorted(parts)


# -- downwards -------------------------------------------------------------------------------------


def watermark_view(message: types_pb2.Watermark, previous: Promise | None = None) -> WatermarkView:
    """Return published watermarks; a message without a promise leaves the ``previous`` one."""
    return WatermarkView(
        computation=message.computation,
        registered=message.registered,
        incarnation=message.incarnation,
        epoch=message.epoch,
        low=Watermark(message.low_micros) if message.registered else Watermark.UNKNOWN,
        shares=tuple((one.share_ppm, Watermark(one.micros)) for one in message.heuristics),
        passed=tuple((one.share_ppm, one.records, one.behind) for one in message.heuristics if one.records),
        oldest_operation_micros=message.oldest_operation_micros,
        since_micros=message.since_micros,
        holder=range_view(message.holder) if message.HasField("holder") else None,
        ranges=message.ranges,
        inputs=tuple(message.inputs),
        estimated=message.estimated,
        budgets=tuple(
            LatenessBudget(
                budget.budget_ppm / PPM,
                Watermark(budget.micros),
                budget.records,
                budget.behind,
                budget.excused,
                budget.worst_ppm / PPM,
            )
            for budget in message.budgets
        ),
        promise=_promise(message.promise) if message.HasField("promise") else previous if message.registered else None,
    )


def _promise(message: types_pb2.Promise) -> Promise | None:
    """Return a promise; None for an empty message."""
    late = timedelta(microseconds=message.late_micros) if message.late_micros > 0 else None
    promise = Promise(late, message.owner, message.team, message.runbook, message.logs)
    return None if promise == Promise() else promise


def budget_marks(messages: Iterable[types_pb2.LatenessBudget]) -> dict[int, int]:
    """Return positions of lateness budgets, in microseconds, by parts per million."""
    return {budget.budget_ppm: budget.micros for budget in messages}


def range_view(message: types_pb2.Range) -> RangeView:
    """Return a key range."""
    return RangeView(
        start=message.start,
        end=message.end,
        watermark=Watermark(message.watermark_micros),
        state=_STATES.get(message.state, RangeState.NEVER_CLAIMED),
        worker=message.worker,
        host=message.host,
        sequencer=message.sequencer,
        since_micros=message.since_micros,
        last_report_micros=message.last_report_micros,
        waiting_for=message.waiting_for,
        remarks=remarks(message.remarks),
        claimed_micros=message.claimed_micros,
    )


def remarks(message: types_pb2.Remarks) -> Remarks:
    """Return the remarks of a message."""
    read = Remarks(message.holdback_micros, message.ended, message.failure, message.untimed_rows)
    return NO_REMARKS if read == NO_REMARKS else read


def remarks_message(remarks: Remarks) -> types_pb2.Remarks | None:
    """Return the message of remarks; None for NO_REMARKS."""
    if remarks == NO_REMARKS:
        return None
    return types_pb2.Remarks(**remarks._asdict())


def completeness(message: watermarks_pb2.CheckCompleteResponse) -> Completeness:
    """Return the answer to the question whether a computation is complete."""
    holders = tuple(range_view(holder) for holder in message.holders)
    return Completeness(message.complete, watermark_view(message.watermark), holders, message.holding)


def ranges(message: watermarks_pb2.ListRangesResponse) -> Ranges:
    """Return listed key ranges."""
    return Ranges(tuple(range_view(listed) for listed in message.ranges), message.total)


def history(name: str, message: watermarks_pb2.GetHistoryResponse) -> History:
    """Return the times at which steps became complete."""
    completions = (
        Completion(step.incarnation, Watermark(step.after_micros), Watermark(step.through_micros), step.time_micros)
        for step in message.completions
    )
    return History(name, timedelta(microseconds=message.step_micros), tuple(completions), message.total)


def computation(message: topology_pb2.Computation) -> Computation:
    """Return a registration."""
    return Computation(
        name=message.name,
        inputs=tuple(message.inputs),
        heuristics=tuple(share / PPM for share in message.heuristics_ppm),
        key_hash=message.key_hash,
        max_skew=timedelta(microseconds=message.max_skew_micros),
        incarnation=message.incarnation,
        input_version=message.input_version,
        input_incarnations=tuple(message.input_incarnations),
        # An authority of the first release keeps no history and names no step.
        history_step=timedelta(microseconds=message.history_step_micros or 3_600_000_000),
        estimated=message.estimated,
        lateness_budgets=tuple(ppm / PPM for ppm in message.lateness_budgets_ppm),
        all_pending=message.all_pending,
        slices=tuple(message.slices),
        slice_of=message.slice_of,
        slice_start=message.slice_start,
        slice_end=message.slice_end,
        slice_source=message.slice_source,
    )


def reading(message: topology_pb2.Computation) -> Reading:
    """Return the inputs that a registered computation folds; a slice folds those of the whole."""
    return Reading(
        message.slice_of or message.name,
        tuple(message.inputs),
        message.input_version,
        tuple(message.input_incarnations),
        tuple(message.heuristics_ppm),
    )


def reading_of_claim(name: str, message: workers_pb2.ClaimResponse) -> Reading:
    """Return the inputs that a claim folds."""
    return Reading(
        name,
        tuple(message.inputs),
        message.input_version if message.inputs else 0,
        tuple(message.input_incarnations),
        tuple(message.heuristics_ppm),
    )


def topology(message: topology_pb2.GetTopologyResponse) -> Topology:
    """Return the graph."""
    return Topology(message.version, {one.name: computation(one) for one in message.computations})


def shards(message: cluster_pb2.ListShardsResponse) -> Shards:
    """Return the shards of a deployment."""
    views = (
        ShardView(shard.address, shard.id, shard.draining, shard.silent_millis / 1e3, tuple(shard.computations))
        for shard in message.shards
    )
    pins = {pin.computation: pin.address for pin in message.pins}
    return Shards(message.version, tuple(views), pins, tuple(message.unserved))


def refusal(message: workers_pb2.RefusedRanges) -> Refusal:
    """Return the refusal of some ranges of a report."""
    return Refusal(message.reason, message.message, _handles(message.handles))


def fenced(message: workers_pb2.Fenced) -> tuple[str, int, tuple[int, ...] | None, str]:
    """Return (computation, sequencer, handles or None for all, reason)."""
    return message.computation, message.sequencer, _handles(message.handles), message.reason


def _handles(handles: Sequence[int]) -> tuple[int, ...] | None:
    return tuple(handles) or None


# -- errors ----------------------------------------------------------------------------------------


def error_from_details(details: bytes) -> errors.LowwaterError | None:
    """Return the error in the trailer ``grpc-status-details-bin``; None for a foreign one."""
    try:
        status = errors_pb2.RpcStatus.FromString(details)
        packed = {detail.type_url: detail.value for detail in status.details}
        info = errors_pb2.ErrorInfo.FromString(packed.get(_ERROR_INFO, b""))
        if info.domain != _DOMAIN:
            return None
        error = error_of(info.reason, status.message, dict(info.metadata))
        error.retry_after = _retry_delay(packed.get(_RETRY_INFO, b""))
    except DecodeError:  # a trailer of another system
        return None
    return error


def _retry_delay(info: bytes) -> float:
    """Return the seconds of a google.rpc.RetryInfo. Its field 1 is a Duration below 128 bytes."""
    if info[:1] != b"\x0a":
        return 0.0
    delay = Duration.FromString(info[2 : 2 + info[1]]) if len(info) > 1 else Duration()
    return max(0.0, delay.seconds + delay.nanos / 1e9)


def moved(error: errors.Moved) -> tuple[str, str, int]:
    """Return (computation, address, epoch) of a call that was redirected."""
    epoch = error.metadata.get("epoch", "")
    return (
        error.metadata.get("computation", ""),
        error.metadata.get("address", ""),
        int(epoch) if epoch.isdigit() else 0,
    )


def error_of(reason: str, message: str, metadata: dict[str, str]) -> errors.LowwaterError:
    """Return the error of a wire reason; the base class for a reason of a newer server."""
    return errors.BY_REASON.get(reason, errors.LowwaterError)(message, reason=reason, metadata=metadata)


def layout(message: types_pb2.Layout) -> Layout:
    """Return a layout."""
    return Layout(message.version, tuple(message.starts), tuple(message.tasks))


def layout_message(value: Layout) -> types_pb2.Layout:
    """Return the message of a layout."""
    return types_pb2.Layout(version=value.version, starts=value.starts, tasks=value.tasks)


def load_message(value: RangeLoad) -> types_pb2.RangeLoad:
    """Return the message of a key range's load."""
    return types_pb2.RangeLoad(**asdict(value))


def layouts(computation: str, message: topology_pb2.GetLayoutResponse) -> LayoutView:
    """Return the layout of a computation."""
    loads = [
        RangeLoad(load.start, load.end, load.rows, load.micros, load.bytes, tuple(load.parts), load.heaviest)
        for load in message.loads
    ]
    current = layout(message.current) if message.HasField("current") else None
    return LayoutView(
        computation, message.incarnation, layout(message.wanted), current, message.refused, message.batch, tuple(loads)
    )
