"""Columns and small messages of the journal's records, to bytes and back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError

from lowwater.views import NO_REMARKS, Remarks
from lowwater_authority.core.bounds import SHORT, Bounds
from lowwater_authority.core.budget import MEMORIES, Arrivals, Budget, Memory
from lowwater_authority.core.groups import NO_RECORDS, Group, GroupState, Mass, RecentSlots
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.history import Completion
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.times import MAX
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s


def int64_bytes(values: Int64s) -> bytes:
    """Encode a column of watermarks."""
    return values.astype("<i8", copy=False).tobytes()


def int64s(data: bytes) -> Int64s:
    """Decode a column of watermarks. The result is writable."""
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def handle_bytes(handles: npt.NDArray[np.intp]) -> bytes:
    """Encode a column of handles."""
    return handles.astype("<u4").tobytes()


def handles(data: bytes) -> npt.NDArray[np.intp]:
    """Decode a column of handles."""
    return np.frombuffer(data, dtype="<u4").astype(np.intp)


def shares(values: Mapping[int, int]) -> list[pb.Share]:
    """Encode watermarks by share."""
    return [pb.Share(ppm=ppm, micros=micros) for ppm, micros in values.items()]


def shares_from(values: Iterable[pb.Share]) -> dict[int, int]:
    """Decode watermarks by share."""
    return {share.ppm: share.micros for share in values}


def mass(value: Mass) -> pb.Mass:
    """Encode a mass."""
    return pb.Mass(
        starts=int64_bytes(value.starts),
        counts=int64_bytes(value.counts),
        recent=value.recent,
        frontiers=shares(value.frontiers),
        others=[pb.FinishedAt(recent=other.recent, frontiers=shares(other.frontiers)) for other in value.others],
        unknown=value.unknown,
    )


def mass_from(value: pb.Mass) -> Mass:
    """Decode a mass."""
    others = (Mass(NO_RECORDS, NO_RECORDS, other.recent, shares_from(other.frontiers)) for other in value.others)
    frontiers = shares_from(value.frontiers)
    return Mass(
        int64s(value.starts), int64s(value.counts), value.recent, frontiers, tuple(others), unknown=value.unknown
    )


def slice_budgets(values: Mapping[int, tuple[int, int, int]]) -> list[pb.Kept]:
    """Encode the budgets of a slice."""
    return [
        pb.Kept(ppm=ppm, micros=micros, records=records, behind=behind)
        for ppm, (micros, records, behind) in values.items()
    ]


def slice_budgets_from(values: Iterable[pb.Kept]) -> dict[int, tuple[int, int, int]]:
    """Decode the budgets of a slice."""
    return {budget.ppm: (budget.micros, budget.records, budget.behind) for budget in values}


def senders(values: Mapping[bytes, tuple[int, int]]) -> list[pb.Sender]:
    """Encode the newest applied report of each sender."""
    return [pb.Sender(sender=sender, stream=stream, number=number) for sender, (stream, number) in values.items()]


def senders_from(values: Iterable[pb.Sender]) -> dict[bytes, tuple[int, int]]:
    """Decode the newest applied report of each sender."""
    return {sender.sender: (sender.stream, sender.number) for sender in values}


def parted(message: bytes, number: int) -> tuple[list[slice], bytes]:
    """Return the places of a repeated field's encoded messages, and the message without them.

    Each message can then be decoded by itself, because all of a large one at once take long.
    O(fields). Raises DecodeError.
    """
    values: list[slice] = []
    rest: list[bytes] = []
    at = 0
    while at < len(message):
        begin = at
        tag, at = varint(message, at)
        match tag & 7:
            case 0:
                _, at = varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = varint(message, at)
                at += length
                if tag >> 3 == number:
                    values.append(slice(at - length, at))
                    begin = at
            case 5:
                at += 4
            case kind:
                msg = f"a field of the kind {kind}"
                raise DecodeError(msg)
        if begin < at:
            rest.append(message[begin:at])
    if at > len(message):
        msg = "it ends within a field"
        raise DecodeError(msg)
    return values, b"".join(rest)


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number of one to ten bytes at a place, and the place after it.

    Raises DecodeError.
    """
    try:
        value = message[at]
        if value < SHORT:  # nearly all are so short
            return value, at + 1
        value &= 0x7F
        for more in range(1, 10):
            byte = message[at + more]
            value |= (byte & 0x7F) << 7 * more
            if byte < SHORT:
                return value, at + more + 1
    except IndexError:
        pass
    msg = "it ends within a number"
    raise DecodeError(msg)


def completions(values: Iterable[Completion]) -> list[pb.Completion]:
    """Encode completions of steps."""
    return [
        pb.Completion(incarnation=incarnation, after_micros=after, through_micros=through, time_micros=time)
        for incarnation, after, through, time in values
    ]


def completions_from(values: Iterable[pb.Completion]) -> list[Completion]:
    """Decode completions of steps."""
    return [Completion(c.incarnation, c.after_micros, c.through_micros, c.time_micros) for c in values]


def layout(value: Layout) -> pb.Layout:
    """Encode a layout."""
    return pb.Layout(version=value.version, starts=value.starts, tasks=value.tasks)


def layout_from(value: pb.Layout) -> Layout:
    """Decode a layout."""
    return Layout(value.version, tuple(value.starts), tuple(value.tasks))


def slots(value: RecentSlots) -> list[pb.Slot]:
    """Encode the minutes of recently finished records."""
    return [pb.Slot(minute=minute, finished=finished) for minute, finished in value.slots]


def slots_from(values: Iterable[pb.Slot]) -> RecentSlots:
    """Decode the minutes of recently finished records."""
    return RecentSlots([(slot.minute, slot.finished) for slot in values])


def arrivals(value: Arrivals) -> pb.Arrivals:
    """Encode a claim's reported records."""
    buckets = sorted(value.counts)
    return pb.Arrivals(
        frontier_micros=value.frontier,
        buckets=buckets,
        counts=[value.counts[bucket] for bucket in buckets],
        behind=[pb.Behind(ppm=ppm, told=records) for ppm, records in value.behind.items()],
        recent=slots(value.recent),
    )


def arrivals_from(value: pb.Arrivals) -> Arrivals:
    """Decode a claim's reported records."""
    return Arrivals(
        value.frontier_micros,
        Counter(dict(zip(value.buckets, value.counts, strict=True))),
        Counter({behind.ppm: behind.told for behind in value.behind}),
        slots_from(value.recent),
    )


def group(group: Group, values: Int64s, since: Int64s) -> tuple[bytes, bytes]:
    """Encode a group, with the values and since-times of all places, in two parts of one message.

    So its bounds do not become objects.
    """
    released = group.state is GroupState.UNOWNED and group.remarks.ended
    message = pb.Group(
        sequencer=group.sequencer,
        live=b"" if group.live is None else group.live.astype(np.uint8).tobytes(),
        micros=int64_bytes(values),
        since=int64_bytes(since),
        state=group.state,
        worker=group.worker,
        host=group.host,
        request_id=group.request_id,
        senders=senders(group.senders),
        oldest_operation_micros=group.oldest_operation,
        mass=None if group.mass is None else mass(group.mass),
        mass_known=group.mass_known,
        stand_ins=map(mass, group.stand_ins),
        last_report_micros=group.last_report,
        recent=slots(group.recent),
        handles=b"" if group.handles is None else handle_bytes(group.handles),
        granted=0 if group.handles is None else group.granted,
        arrivals=None if group.arrivals is None else arrivals(group.arrivals),
        generation=group.order[0],
        ordinal=group.order[1],
        kept=slice_budgets(group.slice_budgets),
        released=released,
        failure=group.remarks.failure if released else "",
        waiting_for=group.waiting_for if released else "",
    )
    if group.arrived_before is not None:
        message.arrived_before.frontier_micros, message.arrived_before.recent = group.arrived_before
    return message.SerializeToString(), group.bounds.encode(pb.Group.BOUNDS_FIELD_NUMBER)


def group_from(message: pb.Group, bounds: Iterable[bytes]) -> tuple[Group, Int64s, Int64s]:
    """Decode a group, with values and since-times. ``bounds``: those of the message, as a list."""
    live = np.frombuffer(message.live, dtype=np.uint8).astype(np.bool_) if message.live else None
    group = Group(
        message.sequencer,
        Bounds(bounds),
        0,
        GroupState(message.state),
        live=live,
        worker=message.worker,
        host=message.host,
        request_id=message.request_id,
        senders=senders_from(message.senders),
        oldest_operation=message.oldest_operation_micros,
        last_report=message.last_report_micros,
        recent=slots_from(message.recent),
        mass=mass_from(message.mass) if message.HasField("mass") else None,
        mass_known=message.mass_known,
        stand_ins=list(map(mass_from, message.stand_ins)),
        handles=handles(message.handles) if message.granted else None,
        granted=message.granted,
        arrivals=arrivals_from(message.arrivals) if message.HasField("arrivals") else None,
        order=(message.generation, message.ordinal),
        slice_budgets=slice_budgets_from(message.kept),
        remarks=Remarks(ended=True, failure=message.failure) if message.released else NO_REMARKS,
        waiting_for=message.waiting_for,
    )
    if message.HasField("arrived_before"):
        group.arrived_before = message.arrived_before.frontier_micros, message.arrived_before.recent
    values = int64s(message.micros)
    group.finished = group.state is not GroupState.RETIRED and bool((values == MAX).all())
    return group, values, int64s(message.since)


def budget(value: Budget) -> pb.Budget:
    """Encode a lateness budget."""
    excused, rest = divmod(value.excused_debt, PPM)
    return pb.Budget(
        ppm=value.ppm,
        micros=value.value,
        reference_micros=value.reference,
        records=value.records,
        behind=value.behind,
        debt=value.debt,
        excused=excused,
        excused_rest_ppm=rest,
        memories=[
            pb.LatenessMemory(
                buckets=sorted(memory.counts),
                weights=[memory.counts[bucket] for bucket in sorted(memory.counts)],
                passed=memory.passed,
            )
            for memory in value.memories
        ],
        block_records=[records for records, _ in value.blocks],
        block_behind=[behind for _, behind in value.blocks],
    )


def budget_from(value: pb.Budget) -> Budget:
    """Decode a lateness budget."""
    return Budget(
        value.ppm,
        value=value.micros,
        reference=value.reference_micros,
        records=value.records,
        behind=value.behind,
        debt=value.debt,
        excused_debt=value.excused * PPM + value.excused_rest_ppm,
        memories=tuple(
            Memory(length, dict(zip(memory.buckets, memory.weights, strict=True)), memory.passed)
            for length, memory in zip(MEMORIES, value.memories, strict=True)
        ),
        blocks=list(zip(value.block_records, value.block_behind, strict=True)),
    )
