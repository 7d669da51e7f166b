"""Micro-batches in two steps: tasks stage their parts, then the driver prepares and commits them.

A report from inside a micro-batch is not true yet, because the batch may be replayed. So parts wait
in memory, by task attempt. The driver names the accepted attempts, and commits once the batch is in
Spark's commit log. If a restart loses the parts, the stage holds, which is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater_authority.core.groups import MOST_RECORDS, NO_RECORDS, Mass
from lowwater_authority.core.times import MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.requests import Prepare, Refused, TaskAttempt, TaskPart
    from lowwater_authority.records import journal_pb2 as pb

MAX_PARTS: Final = 100_000
"""Most waiting parts of a computation; a batch with more tasks is refused."""

MAX_PART_BYTES: Final = 256 << 20
"""Most bytes of these parts: some 4,500 tasks, each with a histogram of 3,500 buckets."""

ALL_PART_BYTES: Final = 512 << 20
"""Most bytes of waiting parts in a process. A computation may always use its equal share."""

PART_BYTES: Final = 1024
"""Bytes of a part besides its columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A merged set of parts. ``oldest`` by handle; ``covered`` by a task."""

    request: Prepare
    oldest: Int64s
    covered: npt.NDArray[np.bool_]
    starts: Int64s
    counts: Int64s
    finished: int

    def values(self) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the values, and a mask of the ranges that have one.

        In a stage whose tasks cover all ranges, a range that is not covered holds.
        """
        values = np.minimum(self.oldest, self.request.bound)
        has_value = self.covered if self.request.covers_all else np.ones(len(values), dtype=np.bool_)
        return values, has_value

    def mass(self, recent: int) -> Mass:
        """Return the mass of the run, given its recently finished records."""
        return Mass(self.starts, self.counts, recent, dict(self.request.frontiers))


class BatchParts:
    """The micro-batches of one computation: parts of the newest one, and the last commit."""

    def __init__(self) -> None:
        self._key = (0, -1)
        self._parts: dict[TaskAttempt, TaskPart] = {}
        self._committed = (0, -1)
        self.prepared: Prepared | None = None
        self.bytes = 0
        """Bytes of the waiting parts."""
        self.last: tuple[int, bytes] | None = None
        """Number and digest of the last committed batch. Durable, as is ``committed_by``."""
        self.committed_by = 0
        """Sequencer of the claim that committed it."""
        self.refused: list[Refused] = []
        """Refusals of the last batch that this process committed, for a repeated commit."""

    def __len__(self) -> int:
        """Return the number of waiting parts."""
        return len(self._parts)

    def add(self, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart, most: int = MAX_PART_BYTES) -> bool:
        """Keep a part. False: a bound is reached.

        A part of an older or a committed batch is dropped. ``most``: bytes that may wait here now,
        which are fewer while other computations have many. A part that replaces another one of at
        least its size, as a repeat does, is always kept.
        """
        key = (sequencer, batch)
        if key < self._key or key <= self._committed:
            return True
        if key != self._key:
            self._key, self._parts, self.bytes = key, {}, 0
        replaced = self._parts.get(task)
        more = part_bytes(part) - (0 if replaced is None else part_bytes(replaced))
        if more > 0 and (
            self.bytes + more > min(most, MAX_PART_BYTES) or (replaced is None and len(self._parts) >= MAX_PARTS)
        ):
            return False
        self._parts[task], self.bytes = part, self.bytes + more
        return True

    def committed(self, sequencer: int, batch: int) -> None:
        """Forget a committed batch; parts of it that come late are dropped."""
        self.prepared = None
        self._committed = max(self._committed, (sequencer, batch))
        if self._key <= self._committed:
            self._parts, self.bytes = {}, 0

    def apply(self, op: pb.Batch) -> None:
        """Note a committed batch, unless a later one is committed."""
        if self.last is None or op.number >= self.last[0]:
            self.last, self.committed_by = (op.number, op.digest), op.sequencer

    def forget_dead(self, alive: Callable[[int], bool]) -> None:
        """Forget parts and prepared sets of claims that are not alive."""
        if self._parts and not alive(self._key[0]):
            self._parts, self.bytes = {}, 0
        if self.prepared is not None and not alive(self.prepared.request.sequencer):
            self.prepared = None

    def prepare(self, request: Prepare, ranges: int) -> Sequence[TaskAttempt]:
        """Prepare the named attempts, and return those whose part never came.

        If there are any, nothing is prepared. A delayed repeat for an older batch changes nothing.
        """
        if self.prepared is not None:
            newest = self.prepared.request
            if (request.sequencer, request.batch) < (newest.sequencer, newest.batch):
                return list(request.tasks)
        parts = self._parts if self._key == (request.sequencer, request.batch) else {}
        missing = [task for task in request.tasks if task not in parts]
        if missing:
            self.prepared = None
            return missing
        self.prepared = _merged(request, {task: parts[task] for task in request.tasks}, ranges)
        return []


def part_bytes(part: TaskPart) -> int:
    """Return the approximate bytes of a part. O(1)."""
    columns = (part.handles, part.oldest, part.pending_starts, part.pending_counts)
    return PART_BYTES + sum(column.nbytes for column in columns)


def _merged(request: Prepare, parts: Mapping[TaskAttempt, TaskPart], ranges: int) -> Prepared:
    """Merge parts: the least values of all jobs, and the histogram of the job with most records.

    Several jobs of one batch read the same records, so their histograms are never added.
    """
    oldest = np.full(ranges, MAX, dtype=np.int64)
    covered = np.zeros(ranges, dtype=np.bool_)
    jobs: dict[int, list[TaskPart]] = {}
    for task, part in parts.items():
        np.minimum.at(oldest, part.handles, part.oldest)
        covered[part.handles] = True
        jobs.setdefault(task.stage, []).append(part)
    largest = max(jobs.values(), key=_records, default=[])
    starts = np.concatenate([part.pending_starts for part in largest]) if largest else NO_RECORDS
    counts = np.concatenate([part.pending_counts for part in largest]) if largest else NO_RECORDS
    unique, inverse = np.unique(starts, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, inverse, counts)
    return Prepared(request, oldest, covered, unique, sums, min(MOST_RECORDS, sum(part.finished for part in largest)))


def _records(parts: Sequence[TaskPart]) -> int:
    return sum(int(part.pending_counts.sum()) + part.finished for part in parts)
