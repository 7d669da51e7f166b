"""Messages of the wire decoded for the core, and values of the core encoded as messages.

Functions that decode check shapes and limits, so the core sees only well-formed requests. Functions
that encode end in ``_message``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice, pairwise
from operator import lt
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater.core import wire
from lowwater.core.events import NAME_BYTES, shortened
from lowwater.core.lateness import MOST_BUCKETS
from lowwater.core.text import without_passwords, without_secrets
from lowwater.layout import SLOTS, wrong
from lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater_authority.core.batches import MAX_PARTS
from lowwater_authority.core.bounds import head
from lowwater_authority.core.budget import BUCKETS, Kept, Lateness
from lowwater_authority.core.codec import int64_bytes
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.groups import MOST_RECORDS, NO_RECORDS, GroupState, Mass
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.layout import Layout, LayoutReport, Load
from lowwater_authority.core.names import is_slicing
from lowwater_authority.core.requests import (
    NO_DIGEST,
    PIECE,
    ClaimRequest,
    Fold,
    GroupReport,
    Prepare,
    TaskAttempt,
    TaskPart,
    bad_field,
)
from lowwater_authority.core.slicing import MOST_FRONTIERS
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import MAX_BUDGETS, MAX_HEURISTICS, Spec
from lowwater_authority.rpc.refusals import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.core.requests import Fenced, Pieces, Refused
    from lowwater_authority.core.topology import Topology


MAX_KEY: Final = 1024
"""Most bytes of a key bound."""

MAX_NAME: Final = 256
"""Most characters of a worker, a host or an identity."""

SLICING: Final = MAX_NAME + 32
"""Further characters of the identity by which a slice claims at its root: it also contains the name
and the incarnation of the root."""

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters. Texts for people may have none, because a terminal would obey them."""

MAX_REFUSED: Final = 1024
"""Most characters of the reason why an owner does not follow the wanted layout."""

MAX_LOADS: Final = 64
"""Most ranges whose cost one commit reports."""

MAX_LOAD_PARTS: Final = 16
"""Most parts of such a range, each with a count of rows."""

MAX_WAITING_FOR: Final = 200
"""Most bytes, in UTF-8, of the text that says what a worker waits for."""

MAX_RANGES: Final = 2_000_000
"""Most ranges of one claim. With long keys the bound of the message is reached first."""

MAX_DIGEST: Final = 256
"""Most bytes of the digest of a micro-batch."""

MAX_BUCKETS: Final = 100_000
"""Most buckets of one histogram. Buckets of 1 % cover any past with some 3,500."""


def int64s(column: Iterable[int]) -> Int64s:
    """Decode a packed sfixed64 or uint64 column, at once if protobuf offers a buffer."""
    return np.asarray(column, dtype=np.int64) if _has_array(column) else np.fromiter(column, dtype=np.int64)


def uint32s(column: Iterable[int]) -> npt.NDArray[np.uint32]:
    """Decode a packed fixed32 column."""
    return np.asarray(column, dtype=np.uint32) if _has_array(column) else np.fromiter(column, dtype=np.uint32)


def _has_array(column: Any) -> bool:
    return hasattr(column, "__array__")


def fold(message: Any) -> Fold:
    """Decode which inputs a worker has folded into its values."""
    return Fold(message.input_version, tuple(message.input_incarnations))


def spec(message: topology_pb2.RegisterRequest) -> Spec:
    """Decode a registration. The graph checks it."""
    shares = tuple(sorted(message.heuristics_ppm, reverse=True))
    return Spec(
        message.name,
        tuple(message.inputs),
        shares,
        message.key_hash,
        message.max_skew_micros,
        history_step=message.history_step_micros,
        estimated=message.estimated,
        budgets=tuple(sorted(message.lateness_budgets_ppm)),
        all_pending=message.all_pending,
        slicing=Cut(tuple(message.slices)) if message.slices else None,
    )


def claim(message: workers_pb2.ClaimRequest) -> Pieces[ClaimRequest]:
    """Decode a claim in pieces, because millions of bounds take long. Raises InvalidArgument."""
    bounds = yield from _bounds(message)
    _check_digest("batch_digest", message.batch_digest)
    printable("worker", message.worker, MAX_NAME)
    printable("host", message.host, MAX_NAME)
    if len(message.identity) > MAX_NAME + is_slicing(message.computation, message.identity) * SLICING:
        raise bad_field("identity", f"has {len(message.identity)} characters", f"use at most {MAX_NAME}")
    if len(message.request_id) != 16:
        raise bad_field("request_id", f"has {len(message.request_id)} bytes", "send 16 random bytes")
    starting = int64s(message.bound_micros)
    if len(starting) not in (0, 1, len(bounds) - 1):
        raise bad_field(
            "bound_micros", f"has {len(starting)} values for {len(bounds) - 1} ranges", "send none, one, or one each"
        )
    request = ClaimRequest(
        bounds,
        message.worker,
        message.host,
        message.identity,
        message.generation,
        message.ordinal,
        message.request_id,
        starting,
        message.batch_digest,
        NO_DIGEST,
        message.instead_of,
    )
    return replace(request, digest=(yield from request.digested()))


def _bounds(message: workers_pb2.ClaimRequest) -> Pieces[list[bytes]]:
    count = len(message.bounds)
    if count < 2:
        raise bad_field("bounds", f"has {count} keys", "n ranges need n + 1 bounds")
    if count - 1 > MAX_RANGES:
        raise bad_field("bounds", f"delimits {count - 1} ranges", f"claim at most {MAX_RANGES} at once")
    bounds: list[bytes] = []
    for first in range(0, count, PIECE):
        if first:
            yield
        bounds += message.bounds[first : first + PIECE]
        if max(map(len, bounds[first:])) > MAX_KEY:
            raise bad_field("bounds", "has a key that is too long", f"use keys of at most {MAX_KEY} bytes")
        piece = bounds[max(0, first - 1) :]  # begins with the last bound of the piece before
        rises = list(map(lt, piece, islice(piece, 1, None)))
        if len(bounds) == count and not bounds[-1]:
            rises[-1] = True  # an empty last bound means: no upper end
        if not all(rises):
            index = max(0, first - 1) + rises.index(False)
            fix = "sort the bounds and name each once; only the last may be empty"
            raise bad_field(f"bounds[{index + 1}]", f"{bounds[index + 1]!r} does not come after {bounds[index]!r}", fix)
    return bounds


def claim_watermarks(response: workers_pb2.ClaimResponse, values: Int64s) -> None:
    """Add the watermarks of a claim's ranges: packed bytes, which protobuf parses at once."""
    packed = int64_bytes(values)
    response.MergeFromString(head(response.WATERMARKS_MICROS_FIELD_NUMBER, len(packed)) + packed)


def printable(path: str, text: str, most: int | None = None) -> str:
    """Return a text for people, of at most ``most`` characters. Raises InvalidArgument."""
    if most is not None and len(text) > most:
        raise bad_field(path, f"has {len(text)} characters", f"use at most {most}")
    if CONTROL.search(text):
        raise bad_field(path, "has a control character", "use printable characters only")
    return text


def _check_digest(path: str, digest: bytes) -> None:
    if len(digest) > MAX_DIGEST:
        raise bad_field(path, f"has {len(digest)} bytes", f"send a hash of at most {MAX_DIGEST} bytes")


def interval(start: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Check a key interval. Raises InvalidArgument."""
    for path, key in (("start", start), ("end", end)):
        if len(key) > MAX_KEY:
            raise bad_field(path, f"has {len(key)} bytes", f"use keys of at most {MAX_KEY} bytes")
    if end and end <= start:
        raise bad_field("end", f"{end!r} does not come after the start {start!r}", "swap them, or leave end empty")
    return start, end


def frontiers(path: str, messages: Iterable[types_pb2.Heuristic]) -> dict[int, int]:
    """Decode frontiers by share. Raises InvalidArgument."""
    by_share: dict[int, int] = {}
    for message in messages:
        if not 0 < message.share_ppm < PPM:
            raise bad_field(f"{path}.share_ppm", f"is {message.share_ppm}", f"use 1 to {PPM - 1}")
        if message.share_ppm in by_share:
            raise bad_field(f"{path}.share_ppm", f"names {message.share_ppm} twice", "send one frontier a share")
        by_share[message.share_ppm] = message.micros
    if len(by_share) > MAX_HEURISTICS:
        raise bad_field(path, f"has {len(by_share)} shares", f"a computation has at most {MAX_HEURISTICS}")
    return by_share


def _histogram(path: str, message: workers_pb2.Histogram) -> tuple[Int64s, Int64s]:
    """Decode starts and counts. Counts from 2^63 on become negative: the caller refuses them."""
    if len(message.starts_micros) > MAX_BUCKETS:
        raise bad_field(path, f"has {len(message.starts_micros)} buckets", f"send at most {MAX_BUCKETS}, wider ones")
    counts = np.fromiter(message.counts, dtype=np.uint64).astype(np.int64)
    return int64s(message.starts_micros), counts


def mass(message: workers_pb2.Mass) -> Mass:
    """Decode a mass; the core checks its histogram. Raises InvalidArgument."""
    starts, counts = _histogram("mass.pending", message.pending)
    if len(message.others) > MOST_FRONTIERS:
        raise bad_field(
            "mass.others", f"has {len(message.others)}", f"send at most {MOST_FRONTIERS}, and round frontiers down"
        )
    others = (
        Mass(NO_RECORDS, NO_RECORDS, other.recent, frontiers("mass.others.frontiers", other.frontiers))
        for other in message.others
    )
    own = frontiers("mass.frontiers", message.frontiers)
    return Mass(starts, counts, message.recent, own, tuple(others), unknown=message.unknown)


def failure(field: str, words: str) -> str:
    """Decode the first line of a worker's error, without secrets. Raises InvalidArgument."""
    return shortened(without_secrets(_words(field, words)), MAX_WAITING_FOR)


def group(message: workers_pb2.GroupReport) -> GroupReport:
    """Decode the state of one claim in a report. Raises InvalidArgument."""
    if len(message.computation) > NAME_BYTES:
        problem = f"has {len(message.computation)} characters, more than any name"
        raise bad_field("groups.computation", problem, "name the computation as it was registered")
    waiting_for, remarks = message.waiting_for, wire.remarks(message.remarks)
    if waiting_for:
        waiting_for = shortened(without_passwords(_words("waiting_for", waiting_for)), MAX_WAITING_FOR)
    if remarks.failure:
        remarks = remarks._replace(failure=failure("remarks.failure", remarks.failure))
    return GroupReport(
        message.sequencer,
        int64s(message.watermarks_micros),
        uint32s(message.handles) if message.handles else None,
        message.finish,
        fold(message),
        message.oldest_operation_micros,
        mass(message.mass) if message.HasField("mass") else None,
        message.turn,
        waiting_for,
        remarks,
        lateness(message.lateness) if message.HasField("lateness") else None,
    )


def lateness(message: workers_pb2.Lateness) -> Lateness:
    """Decode how late the records of a claim were. Raises InvalidArgument."""
    if max(len(message.buckets), len(message.counts)) > MOST_BUCKETS:
        problem = f"has {len(message.buckets)} buckets and {len(message.counts)} counts"
        fix = f"send at most {MOST_BUCKETS}: from the first report on, count what would be one more in a greater one"
        raise bad_field("lateness.buckets", problem, fix)
    buckets, counts = list(message.buckets), list(message.counts)
    if len(buckets) != len(counts):
        problem = f"has {len(buckets)} buckets and {len(counts)} counts"
        raise bad_field("lateness.counts", problem, "send as many of each")
    if any(high <= low for low, high in pairwise(buckets)) or (buckets and buckets[-1] >= BUCKETS):
        raise bad_field("lateness.buckets", "do not ascend, or name one that does not exist", f"use 0 to {BUCKETS - 1}")
    behind: dict[int, tuple[int, int]] = {}
    for budget in message.behind:
        if budget.budget_ppm in behind:
            raise bad_field("lateness.behind", f"names {budget.budget_ppm} twice", "send one entry a budget")
        behind[budget.budget_ppm] = budget.records, budget.judged_micros
    if len(behind) > MAX_BUDGETS:
        raise bad_field("lateness.behind", f"has {len(behind)} budgets", f"a computation has at most {MAX_BUDGETS}")
    by_bucket = dict(zip(buckets, counts, strict=True))
    return Lateness(by_bucket, message.reference_micros, message.frontier_micros, behind)


def _words(field: str, words: str) -> str:
    """Check a text for people. Raises InvalidArgument."""
    size = len(words.encode())
    if size > MAX_WAITING_FOR:
        raise bad_field(field, f"has {size} bytes", f"use at most {MAX_WAITING_FOR} bytes of UTF-8")
    return printable(field, words)


def attempt(message: workers_pb2.TaskAttempt) -> TaskAttempt:
    """Decode the key of a task attempt."""
    return TaskAttempt(message.stage, message.partition, message.attempt)


def part(message: workers_pb2.StageTaskRequest) -> TaskPart:
    """Decode a task's part of a micro-batch. Raises InvalidArgument."""
    handles, oldest = uint32s(message.handles), int64s(message.oldest_micros)
    if len(handles) != len(oldest):
        raise bad_field("oldest_micros", f"has {len(oldest)} values for {len(handles)} handles", "send one a handle")
    if len(np.unique(handles)) != len(handles):
        raise bad_field("handles", "names a range twice", "name each once, with the oldest of all that it holds")
    starts, counts = _histogram("pending", message.pending)
    if len(starts) != len(counts):
        raise bad_field("pending", f"has {len(starts)} starts and {len(counts)} counts", "send as many of each")
    if (starts[1:] <= starts[:-1]).any():
        raise bad_field("pending.starts_micros", "do not ascend", "sort the buckets, and send each once")
    if (counts < 0).any():
        raise bad_field("pending.counts", "has a count of 2^63 or more", f"a task has at most {MOST_RECORDS} records")
    if float(counts.sum(dtype=np.float64)) + message.finished > MOST_RECORDS:
        raise bad_field("pending and finished", "count too many records", f"a task has at most {MOST_RECORDS}")
    return TaskPart(handles, oldest, starts, counts, message.finished)


def layout_wish(message: topology_pb2.ChangeLayoutRequest) -> tuple[int, int, list[int], list[int]]:
    """Decode a wanted layout: incarnation, expected version, starts and tasks.

    Raises InvalidArgument.
    """
    starts, tasks = list(message.starts), list(message.tasks)
    problem = wrong(starts, tasks)
    if problem is not None:
        raise bad_field(*problem)
    return message.incarnation, message.expected_version, starts, tasks


def layout_report(message: workers_pb2.CommitBatchRequest) -> LayoutReport | None:
    """Decode what an owner reports of its layout; None when it follows none.

    Raises InvalidArgument.
    """
    if not message.HasField("layout"):
        return None
    starts, tasks = list(message.layout.starts), list(message.layout.tasks)
    problem = wrong(starts, tasks, SLOTS) if starts or tasks else None
    if problem is not None:
        raise bad_field(f"layout.{problem[0]}", *problem[1:])
    printable("layout_refused", message.layout_refused, MAX_REFUSED)
    if len(message.loads) > MAX_LOADS:
        raise bad_field("loads", f"has {len(message.loads)} ranges", f"tell of at most {MAX_LOADS}, the hottest")
    for i, load in enumerate(message.loads):
        if not load.start < load.end <= SLOTS or len(load.parts) > MAX_LOAD_PARTS:
            fix = f"0 <= start < end <= {SLOTS}, and at most {MAX_LOAD_PARTS} parts"
            raise bad_field(f"loads[{i}]", "is no range of the key space", fix)
    layout = Layout(message.layout.version, tuple(starts), tuple(tasks))
    loads = [
        Load(load.start, load.end, load.rows, load.micros, load.bytes, tuple(load.parts), load.heaviest)
        for load in message.loads
    ]
    return LayoutReport(layout, message.layout_refused, message.batch, tuple(loads))


def layout_message(value: Layout) -> types_pb2.Layout:
    """Encode a layout."""
    return types_pb2.Layout(version=value.version, starts=value.starts, tasks=value.tasks)


def layouts_message(computation: Computation) -> topology_pb2.GetLayoutResponse:
    """Encode the wanted layout of a computation, and the one that its owner reports."""
    response = topology_pb2.GetLayoutResponse(
        incarnation=computation.incarnation, wanted=layout_message(computation.published_layout)
    )
    if computation.layout_report is not None:
        response.current.CopyFrom(layout_message(computation.layout_report.layout))
        response.refused, response.batch = computation.layout_report.refused, computation.layout_report.batch
        response.loads.extend(types_pb2.RangeLoad(**load._asdict()) for load in computation.layout_report.loads)
    return response


def prepare(message: workers_pb2.PrepareBatchRequest) -> Prepare:
    """Decode which attempts of a micro-batch count. Raises InvalidArgument."""
    _check_digest("digest", message.digest)
    if len(message.tasks) > MAX_PARTS:
        raise bad_field("tasks", f"has {len(message.tasks)} attempts", f"run a batch in at most {MAX_PARTS} tasks")
    tasks = [attempt(task) for task in message.tasks]
    if len({(task.stage, task.partition) for task in tasks}) < len(tasks):
        raise bad_field("tasks", "names a task twice", "send one accepted attempt a task")
    return Prepare(
        message.sequencer,
        message.batch,
        message.digest,
        tasks,
        message.bound_micros,
        message.covers_all,
        fold(message),
        message.oldest_operation_micros,
        frontiers("frontiers", message.frontiers),
    )


STATES: Final = {
    GroupState.NEVER: types_pb2.RANGE_STATE_NEVER_CLAIMED,
    GroupState.OWNED: types_pb2.RANGE_STATE_OWNED,
    GroupState.UNOWNED: types_pb2.RANGE_STATE_UNOWNED,
    GroupState.RETIRED: types_pb2.RANGE_STATE_RETIRED,
}


def key_range_message(value: Range) -> types_pb2.Range:
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
        remarks=None if finished else wire.remarks_message(owner.remarks),
        claimed_micros=owner.claimed,
    )


def watermark_message(
    name: str, view: View | None, topology: Topology, epoch: int, promise: types_pb2.Promise | None = None
) -> types_pb2.Watermark:
    """Encode the published value of a computation.

    An unregistered one is at MIN, with the incarnation in which it was dropped, or 0. A ``promise``
    of None is left out.
    """
    spec = topology.computations.get(name)
    if view is None or spec is None:
        tombstone = topology.dropped.get(name)
        last = 0 if tombstone is None else tombstone.incarnation
        return types_pb2.Watermark(computation=name, registered=False, incarnation=last, epoch=epoch, low_micros=MIN)
    return types_pb2.Watermark(
        computation=name,
        registered=True,
        incarnation=view.incarnation,
        epoch=epoch,
        low_micros=view.low,
        heuristics=heuristic_messages(view),
        oldest_operation_micros=view.oldest_operation,
        since_micros=view.since,
        holder=key_range_message(view.holder) if view.holder is not None else None,
        ranges=view.ranges,
        inputs=spec.inputs,
        estimated=topology.is_estimated(name),
        budgets=budget_messages(view.budgets),
        promise=promise,
    )


def budget_messages(values: Iterable[Kept]) -> list[types_pb2.LatenessBudget]:
    """Encode lateness budgets."""
    return [
        types_pb2.LatenessBudget(
            budget_ppm=budget.ppm,
            micros=budget.micros,
            records=budget.records,
            behind=budget.behind,
            excused=budget.excused,
            worst_ppm=budget.worst,
        )
        for budget in values
    ]


def heuristic_messages(view: View) -> list[types_pb2.Heuristic]:
    """Encode heuristic watermarks."""
    messages: list[types_pb2.Heuristic] = []
    for share, micros in view.heuristics:
        records, behind = view.passed.get(share, (0, 0))
        messages.append(types_pb2.Heuristic(share_ppm=share, micros=micros, records=records, behind=behind))
    return messages


def computation_message(spec: Spec, topology: Topology) -> topology_pb2.Computation:
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
        lateness_budgets_ppm=spec.budgets,
        all_pending=spec.all_pending,
        slices=spec.cut.starts,
        slice_of=spec.slice_of,
        slice_start=spec.keys.span[0],
        slice_end=spec.keys.span[1],
        slice_source=spec.keys.source,
    )


def tombstone_message(spec: Spec) -> topology_pb2.Computation:
    """Encode the tombstone of a computation that was dropped."""
    return topology_pb2.Computation(
        name=spec.name, incarnation=spec.incarnation, input_version=spec.input_version, dropped=True
    )


def completion_message(value: Completion) -> watermarks_pb2.Completion:
    """Encode a moment at which steps became complete."""
    return watermarks_pb2.Completion(
        incarnation=value.incarnation,
        after_micros=value.after,
        through_micros=value.through,
        time_micros=value.time,
    )


def refused_message(name: str, value: Refused) -> workers_pb2.RefusedRanges:
    """Encode refused ranges. Texts that the caller has made up are shortened."""
    message = workers_pb2.RefusedRanges(
        computation=shortened(name),
        sequencer=value.sequencer,
        reason=value.reason,
        message=shortened(value.message, MESSAGE_BYTES),
        newest=value.newest,
    )
    if value.handles is not None:
        # Packed bytes are parsed at once. Two million handles one by one would hold up the event
        # loop for most of a second.
        packed = value.handles.astype("<u4", copy=False).tobytes()
        message.MergeFromString(head(message.HANDLES_FIELD_NUMBER, len(packed)) + packed)
    return message


def fenced_message(value: Fenced) -> workers_pb2.Fenced:
    """Encode the notice that a claim has lost ranges."""
    return workers_pb2.Fenced(
        computation=value.computation, sequencer=value.sequencer, handles=value.handles or (), reason=value.reason
    )


def attempt_message(value: TaskAttempt) -> workers_pb2.TaskAttempt:
    """Encode the key of a task attempt."""
    return workers_pb2.TaskAttempt(stage=value.stage, partition=value.partition, attempt=value.attempt)
