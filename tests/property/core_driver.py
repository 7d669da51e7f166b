"""A computation with a journal in memory: what tests of the core drive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lowwater_authority.core import recovery
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import Mass
from lowwater_authority.core.requests import (
    NO_FOLD,
    ClaimRequest,
    Fold,
    Grant,
    GroupReport,
    Prepare,
    Refused,
    TaskAttempt,
    TaskPart,
)
from lowwater_authority.core.slicing import computation_of
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb

MIN = -(2**63)
MAX = 2**63 - 1
SECOND = 1_000_000
NOW = 1_000_000 * SECOND


def column(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)


def mass(pending: Iterable[int] = (), recent: int = 0, frontiers: Mapping[int, int] | None = None) -> Mass:
    counted = sorted(Counter(pending).items())
    return Mass(column(t for t, _ in counted), column(n for _, n in counted), recent, dict(frontiers or {}))


def request(
    bounds: Sequence[bytes],
    *,
    generation: int = 0,
    ordinal: int = 0,
    identity: str = "",
    request_id: bytes = b"",
    bound: Sequence[int] = (),
    digest: bytes = b"",
    worker: str = "w",
    instead_of: int = 0,
) -> ClaimRequest:
    return ClaimRequest(
        bounds, worker, "host", identity, generation, ordinal, request_id, column(bound), digest, instead_of=instead_of
    )


def part(oldest: Mapping[int, int], pending: Iterable[int] = (), finished: int = 0) -> TaskPart:
    records = mass(pending)
    handles = np.array(list(oldest), dtype=np.uint32)
    return TaskPart(handles, column(oldest.values()), records.starts, records.counts, finished)


def flat(refused: Iterable[Refused]) -> set[tuple[str, int | None]]:
    reasons: set[tuple[str, int | None]] = set()
    for refusal in refused:
        handles = [None] if refusal.handles is None else refusal.handles.tolist()
        reasons |= {(refusal.reason, handle) for handle in handles}
    stale = {handle for reason, handle in reasons if reason == "STALE_SEQUENCER" and handle is not None}
    # A range that is somebody else's may be refused for its value as well: the first reason is enough.
    return {(reason, handle) for reason, handle in reasons if handle not in stale or reason == "STALE_SEQUENCER"}


class Driver:
    """Runs rounds as a shard does; :meth:`settle` makes one durable and visible.

    ``computation_class`` is the class of the computation, so that a test can drive one whose rule is switched off.
    """

    def __init__(
        self, spec: Spec | None = None, *, computation_class: Callable[..., Computation] = computation_of
    ) -> None:
        self.spec = spec or Spec("c", max_skew=1000 * SECOND)
        self.core = computation_class(self.spec, epoch_base=0)
        self.now = NOW
        self.records: list[bytes] = []
        self.strong: list[bool] = []
        self._numbers = 0

    @property
    def low(self) -> int:
        return self.core.published.low

    def high(self, share: int) -> int:
        return dict(self.core.published.heuristics)[share]

    def values(self) -> list[tuple[bytes, int]]:
        ranges, _ = self.core.map.all_ranges(10**6)
        return sorted((r.start, r.value) for r in ranges)

    def claim(self, *bounds: bytes, settle: bool = True, **more: object) -> Grant:
        grant = self.core.claim(request(bounds, **more), self.now)  # type: ignore[arg-type]  # as request names them
        if settle:
            self.settle()
        return grant

    def report(
        self,
        sequencer: int,
        *values: int,
        handles: Sequence[int] | None = None,
        number: tuple[int, int] | None = None,
        sender: bytes = b"s",
        finish: bool = False,
        fold: Fold = NO_FOLD,
        required: Fold = NO_FOLD,
        mass: Mass | None = None,
        turn: int = 0,
        lateness: Lateness | None = None,
        settle: bool = True,
    ) -> set[tuple[str, int | None]]:
        self._numbers += 1
        report = GroupReport(
            sequencer,
            column(values),
            None if handles is None else np.array(handles, dtype=np.uint32),
            finish,
            fold,
            0,
            mass,
            turn,
            lateness=lateness,
        )
        refused = self.core.report(
            report, sender=sender, number=number or (1, self._numbers), required=required, now=self.now
        )
        if settle:
            self.settle()
        return flat(refused)

    def stage(
        self, sequencer: int, batch: int, task: int, oldest: Mapping[int, int], *, attempt: int = 0, stage: int = 0
    ) -> TaskAttempt:
        name = TaskAttempt(stage, task, attempt)
        self.core.stage_task(sequencer, batch, name, part(oldest))
        return name

    def prepare(
        self,
        sequencer: int,
        batch: int,
        tasks: Sequence[TaskAttempt],
        bound: int,
        *,
        covers_all: bool = False,
        digest: bytes = b"",
        fold: Fold = NO_FOLD,
        frontiers: Mapping[int, int] | None = None,
    ) -> list[TaskAttempt]:
        request = Prepare(sequencer, batch, digest, tasks, bound, covers_all, fold, 0, dict(frontiers or {}))
        return list(self.core.prepare(request))

    def commit(self, sequencer: int, batch: int, required: Fold = NO_FOLD) -> set[tuple[str, int | None]]:
        refused = self.core.commit(sequencer, batch, required, self.now)
        self.settle()
        return flat(refused)

    def release(self, sequencer: int) -> None:
        self.core.release(sequencer, self.now)
        self.settle()

    def retire(self, start: bytes = b"", end: bytes = b"", *, force: bool = False) -> int:
        ranges, _ = self.core.retire(start, end, force=force, now=self.now)
        self.settle()
        return ranges

    def settle(self) -> bool | None:
        record = self.core.take_record(self.now)
        if record is not None:
            self.records.append(record[0])
            self.strong.append(record[1])
        self.core.publish()
        self.core.check()
        self.now += SECOND
        return None if record is None else record[1]

    def reset(self) -> None:
        self.spec = replace(self.spec, incarnation=self.core.incarnation + 1)
        self.core = recovery.restarted(self.core, self.spec)
        self.core.publish()

    def crash(self, *, lose: int = 0, snapshot: bytes | None = None) -> None:
        records = self.records[: len(self.records) - lose]
        self.core = recovery.recover(self.spec, snapshot, records, epoch_base=self.core.epoch_base + 1000)
        self.records = records
        self.core.check()


def durable(snapshot: bytes) -> bytes:
    """A snapshot without what a round may leave out of its record.

    A report that changes no value and no mass, and is not the first of its stream, is not journaled; it leaves its number and its times
    behind, which nothing else depends on: what it said again is as harmless as what it said first. A value that moves and comes back
    within a round has moved for the living alone.
    """
    message = pb.Snapshot.FromString(snapshot)
    for group in (*message.groups, *(group for handed in message.handed_over for group in handed.state.groups)):
        del group.senders[:]
        group.oldest_operation_micros = group.last_report_micros = 0
        group.since = b""
    return message.SerializeToString(deterministic=True)
