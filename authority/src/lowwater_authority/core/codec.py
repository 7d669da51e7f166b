"""Columns and small messages of the journal's records, to bytes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core.budget import MEMORIES, Arrivals, Budget, Memory
from lowwater_authority.core.groups import Mass, RecentSlots
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.history import Completion
from lowwater_authority.core.layout import Layout

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
    )


def mass_from(value: pb.Mass) -> Mass:
    """Decode a mass."""
    return Mass(int64s(value.starts), int64s(value.counts), value.recent, shares_from(value.frontiers))


def senders(values: Mapping[bytes, tuple[int, int]]) -> list[pb.Sender]:
    """Encode how far each sender's reports were taken over."""
    return [pb.Sender(sender=sender, stream=stream, number=number) for sender, (stream, number) in values.items()]


def senders_from(values: Iterable[pb.Sender]) -> dict[bytes, tuple[int, int]]:
    """Decode how far each sender's reports were taken over."""
    return {sender.sender: (sender.stream, sender.number) for sender in values}


def appended(message: bytes, number: int, values: Iterable[bytes]) -> bytes:
    """Return an encoded message with more of a repeated field behind it, whose values are encoded messages, too. O(bytes)."""
    parts = [message]
    for value in values:
        parts += [_varint(number << 3 | 2), _varint(len(value)), value]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def completions(values: Iterable[Completion]) -> list[pb.Completion]:
    """Encode when steps became complete."""
    return [
        pb.Completion(incarnation=incarnation, after_micros=after, through_micros=through, time_micros=time)
        for incarnation, after, through, time in values
    ]


def completions_from(values: Iterable[pb.Completion]) -> list[Completion]:
    """Decode when steps became complete."""
    return [Completion(c.incarnation, c.after_micros, c.through_micros, c.time_micros) for c in values]


def layout(value: Layout) -> pb.Layout:
    """Encode a layout."""
    return pb.Layout(version=value.version, starts=value.starts, tasks=value.tasks)


def layout_from(value: pb.Layout) -> Layout:
    """Decode a layout."""
    return Layout(value.version, tuple(value.starts), tuple(value.tasks))


def slots(value: RecentSlots) -> list[pb.Slot]:
    """Encode the minutes of lately finished records."""
    return [pb.Slot(minute=minute, finished=finished) for minute, finished in value.slots]


def slots_from(values: Iterable[pb.Slot]) -> RecentSlots:
    """Decode the minutes of lately finished records."""
    return RecentSlots([(slot.minute, slot.finished) for slot in values])


def arrivals(value: Arrivals) -> pb.Arrivals:
    """Encode what a claim has told of its records."""
    buckets = sorted(value.counts)
    return pb.Arrivals(
        frontier_micros=value.frontier,
        buckets=buckets,
        counts=[value.counts[bucket] for bucket in buckets],
        behind=[pb.Behind(ppm=ppm, told=told) for ppm, told in value.behind.items()],
        recent=slots(value.recent),
    )


def arrivals_from(value: pb.Arrivals) -> Arrivals:
    """Decode what a claim has told of its records."""
    return Arrivals(
        value.frontier_micros,
        dict(zip(value.buckets, value.counts, strict=True)),
        {each.ppm: each.told for each in value.behind},
        slots_from(value.recent),
    )


def arrived_before(value: tuple[int, int] | None) -> pb.ArrivedBefore | None:
    """Encode where those stood that a group replaced."""
    return None if value is None else pb.ArrivedBefore(frontier_micros=value[0], recent=value[1])


def arrived_before_from(value: pb.ArrivedBefore) -> tuple[int, int]:
    """Decode where those stood that a group replaced."""
    return value.frontier_micros, value.recent


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
