"""Between the states here and the messages of ``lowwater.v1``."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
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
"""Of a lateness budget, as the authority takes them."""

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
    if (told := remarks_message(group.remarks)) is not None:
        message.remarks.CopyFrom(told)
    if group.mass is not None:
        message.mass.CopyFrom(_mass(group.mass))
    if group.lateness is not None:
        message.lateness.CopyFrom(_lateness(group.lateness))


def _pack(message: Any, field: str, column: array[int]) -> None:
    """Fill a packed fixed-width field from a column.

    On the wire such a field is the column's own little-endian bytes behind a tag and a length;
    parsing those takes a third of the time of ``extend``, which boxes every number.
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


def _lateness(told: Lateness) -> workers_pb2.Lateness:
    return workers_pb2.Lateness(
        buckets=[bucket for bucket, _ in told.counts],
        counts=[count for _, count in told.counts],
        reference_micros=told.reference,
        frontier_micros=told.frontier,
        behind=[
            workers_pb2.Behind(budget_ppm=ppm, records=records, judged_micros=judged)
            for ppm, records, judged in told.behind
        ],
    )


def histogram(pending: Histogram) -> workers_pb2.Histogram:
    """Return the message of a histogram."""
    starts, counts = pending.columns()
    return workers_pb2.Histogram(starts_micros=starts, counts=counts)


def frontiers(shares: Iterable[tuple[int, int]]) -> list[types_pb2.Heuristic]:
    """Return the messages of (share in parts per million, micros)."""
    return [types_pb2.Heuristic(share_ppm=share, micros=micros) for share, micros in shares]


def attempt(task: TaskAttempt) -> workers_pb2.TaskAttempt:
    """Return the message of a task's attempt. Raises InvalidArgument."""
    given: Any = task
    if not isinstance(given, TaskAttempt):
        raise checks.refused("task", given, "a TaskAttempt")
    return workers_pb2.TaskAttempt(
        stage=checks.count("task.stage", task.stage, 32),
        partition=checks.count("task.partition", task.partition, 32),
        attempt=checks.count("task.attempt", task.attempt, 64),
    )


def ppm(heuristics: Iterable[float]) -> list[int]:
    """Return shares in parts per million, largest first.

    Raises InvalidArgument for what is no share.
    """
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
    """Return lateness budgets in parts per million, least first.

    Raises InvalidArgument for what is none.
    """
    one: Any = budgets
    given: list[Any] = [one] if checks.is_number(one) else list(checks.listed("lateness_budget", one))
    found: set[int] = set()
    for each in given:
        if not (checks.is_number(each) and LEAST_BUDGET <= each <= MOST_BUDGET):
            fix = f"shares of the records from {LEAST_BUDGET} to {MOST_BUDGET}, such as 0.01"
            raise checks.refused("lateness_budget", each, fix)
        found.add(round(each * PPM))
    return sorted(found)


# -- downwards -------------------------------------------------------------------------------------


def watermark_view(message: types_pb2.Watermark, told: Promise | None = None) -> WatermarkView:
    """Return the published watermarks of a computation; ``told``: the promise that a message without one leaves as it was."""
    return WatermarkView(
        computation=message.computation,
        registered=message.registered,
        incarnation=message.incarnation,
        epoch=message.epoch,
        low=Watermark(message.low_micros) if message.registered else Watermark.UNKNOWN,
        shares=tuple((each.share_ppm, Watermark(each.micros)) for each in message.heuristics),
        passed=tuple((each.share_ppm, each.records, each.behind) for each in message.heuristics if each.records),
        oldest_operation_micros=message.oldest_operation_micros,
        since_micros=message.since_micros,
        holder=range_view(message.holder) if message.HasField("holder") else None,
        ranges=message.ranges,
        inputs=tuple(message.inputs),
        estimated=message.estimated,
        budgets=tuple(
            LatenessBudget(
                each.budget_ppm / PPM,
                Watermark(each.micros),
                each.records,
                each.behind,
                each.excused,
                each.worst_ppm / PPM,
            )
            for each in message.budgets
        ),
        promise=_promise(message.promise) if message.HasField("promise") else told if message.registered else None,
    )


def _promise(message: types_pb2.Promise) -> Promise | None:
    """Return what was promised; None when the message is empty, since nothing was then."""
    late = timedelta(microseconds=message.late_micros) if message.late_micros > 0 else None
    found = Promise(late, message.owner, message.team, message.runbook, message.logs)
    return None if found == Promise() else found


def budget_marks(messages: Iterable[types_pb2.LatenessBudget]) -> dict[int, int]:
    """Return where lateness budgets stand, in microseconds by parts per million."""
    return {each.budget_ppm: each.micros for each in messages}


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
    )


def remarks(message: types_pb2.Remarks) -> Remarks:
    """Return the remarks of a protobuf message."""
    found = Remarks(message.holdback_micros, message.ended, message.failure, message.untimed_rows)
    return NO_REMARKS if found == NO_REMARKS else found


def remarks_message(remarks: Remarks) -> types_pb2.Remarks | None:
    """Return the protobuf message of remarks; None for NO_REMARKS."""
    if remarks == NO_REMARKS:
        return None
    return types_pb2.Remarks(
        holdback_micros=remarks.holdback_micros,
        ended=remarks.ended,
        failure=remarks.failure,
        untimed_rows=remarks.untimed_rows,
    )


def completeness(message: watermarks_pb2.CheckCompleteResponse) -> Completeness:
    """Return the answer to "is it complete?"."""
    holders = tuple(range_view(each) for each in message.holders)
    return Completeness(message.complete, watermark_view(message.watermark), holders, message.holding)


def ranges(message: watermarks_pb2.ListRangesResponse) -> Ranges:
    """Return listed key ranges."""
    return Ranges(tuple(range_view(each) for each in message.ranges), message.total)


def history(name: str, message: watermarks_pb2.GetHistoryResponse) -> History:
    """Return when steps became complete."""
    completions = (
        Completion(each.incarnation, Watermark(each.after_micros), Watermark(each.through_micros), each.time_micros)
        for each in message.completions
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
    """Return what a registered computation folds; a slice folds what the whole does."""
    return Reading(
        message.slice_of or message.name,
        tuple(message.inputs),
        message.input_version,
        tuple(message.input_incarnations),
        tuple(message.heuristics_ppm),
    )


def reading_of_claim(name: str, message: workers_pb2.ClaimResponse) -> Reading:
    """Return what a claim folds."""
    return Reading(
        name,
        tuple(message.inputs),
        message.input_version if message.inputs else 0,
        tuple(message.input_incarnations),
        tuple(message.heuristics_ppm),
    )


def topology(message: topology_pb2.GetTopologyResponse) -> Topology:
    """Return the graph."""
    return Topology(message.version, {each.name: computation(each) for each in message.computations})


def shards(message: cluster_pb2.ListShardsResponse) -> Shards:
    """Return the shards of a deployment."""
    views = (
        ShardView(each.address, each.id, each.draining, each.silent_millis / 1e3, tuple(each.computations))
        for each in message.shards
    )
    pins = {each.computation: each.address for each in message.pins}
    return Shards(message.version, tuple(views), pins, tuple(message.unserved))


def refusal(message: workers_pb2.RefusedRanges) -> Refusal:
    """Return what a report did not achieve."""
    return Refusal(message.reason, message.message, _handles(message.handles))


def fenced(message: workers_pb2.Fenced) -> tuple[str, int, tuple[int, ...] | None, str]:
    """Return (computation, sequencer, handles or None for all, reason)."""
    return message.computation, message.sequencer, _handles(message.handles), message.reason


def _handles(handles: Sequence[int]) -> tuple[int, ...] | None:
    return tuple(handles) or None


# -- errors ----------------------------------------------------------------------------------------


def error_from_details(details: bytes) -> errors.LowwaterError | None:
    """Return the error that the trailer ``grpc-status-details-bin`` carries; None when it is not one of ours."""
    try:
        status = errors_pb2.RpcStatus.FromString(details)
        packed = {each.type_url: each.value for each in status.details}
        info = errors_pb2.ErrorInfo.FromString(packed.get(_ERROR_INFO, b""))
        if info.domain != _DOMAIN:
            return None
        error = error_of(info.reason, status.message, dict(info.metadata))
        error.retry_after = _retry_delay(packed.get(_RETRY_INFO, b""))
    except DecodeError:  # somebody else's trailer
        return None
    return error


def _retry_delay(info: bytes) -> float:
    """Return the seconds that a google.rpc.RetryInfo asks for: its field 1 is a Duration, always shorter than 128 bytes."""
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
    """Return the error of a wire reason; the root for one that this client does not know."""
    return errors.BY_REASON.get(reason, errors.LowwaterError)(message, reason=reason, metadata=metadata)


def layout(message: types_pb2.Layout) -> Layout:
    """Decode a layout."""
    return Layout(message.version, tuple(message.starts), tuple(message.tasks))


def layout_message(value: Layout) -> types_pb2.Layout:
    """Encode a layout."""
    return types_pb2.Layout(version=value.version, starts=value.starts, tasks=value.tasks)


def load_message(value: RangeLoad) -> types_pb2.RangeLoad:
    """Encode what a key range cost."""
    return types_pb2.RangeLoad(
        start=value.start,
        end=value.end,
        rows=value.rows,
        micros=value.micros,
        bytes=value.bytes,
        parts=value.parts,
        heaviest=value.heaviest,
    )


def layouts(computation: str, message: topology_pb2.GetLayoutResponse) -> LayoutView:
    """Decode how a computation is laid out."""
    loads = [
        RangeLoad(each.start, each.end, each.rows, each.micros, each.bytes, tuple(each.parts), each.heaviest)
        for each in message.loads
    ]
    current = layout(message.current) if message.HasField("current") else None
    return LayoutView(
        computation, message.incarnation, layout(message.wanted), current, message.refused, message.batch, tuple(loads)
    )
