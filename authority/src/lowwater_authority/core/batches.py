"""Micro-batches in two steps: tasks stage, the driver prepares the accepted attempts, then commits them whole.

A report from inside a micro-batch is not true yet: the batch may be replayed. So parts wait in memory, named by
attempt, until the driver has named the accepted ones and then shown that the batch is in Spark's commit log. Losing
them to a restart holds the stage, which is safe.
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
"""Bound of parts waiting per computation; a batch with more tasks is refused."""

MAX_PART_BYTES: Final = 256 << 20
"""Bound of the bytes of these parts: some 4,500 tasks, each with a histogram of 3,500 buckets."""

ALL_PART_BYTES: Final = 512 << 20
"""Bound of the same of all computations of a process. One that has no more than its equal share of
it is always let in."""

PART_BYTES: Final = 1024
"""What a part costs besides its columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A whole set of parts, merged: the oldest stamp held per handle, where some task covered it."""

    request: Prepare
    oldest: Int64s
    covered: npt.NDArray[np.bool_]
    starts: Int64s
    counts: Int64s
    finished: int

    def values(self) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return each range's value, and whether it has one: in a stage that covers all, a hole holds."""
        values = np.minimum(self.oldest, self.request.bound)
        known = self.covered if self.request.covers_all else np.ones(len(values), dtype=np.bool_)
        return values, known

    def mass(self, recent: int) -> Mass:
        """Return the run's mass, given its recently finished records."""
        return Mass(self.starts, self.counts, recent, dict(self.request.frontiers))


class BatchStage:
    """The parts and the prepared set of one computation; holds those of the newest batch of one claim only, until it is committed."""

    def __init__(self) -> None:
        self._key = (0, -1)
        self._parts: dict[TaskAttempt, TaskPart] = {}
        self._committed = (0, -1)
        self.prepared: Prepared | None = None
        self.bytes = 0
        """Bytes of the parts that wait."""
        self.last: tuple[int, bytes] | None = None
        """Number and digest of the last committed batch. Durable, as is ``committed_by``."""
        self.committed_by = 0
        """Sequencer of the claim that committed it."""
        self.refused: list[Refused] = []
        """What was refused of the last batch that this process committed, for a repeated commit."""

    def __len__(self) -> int:
        """Return the number of parts waiting."""
        return len(self._parts)

    def add(self, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart, most: int = MAX_PART_BYTES) -> bool:
        """Keep a part.

        A part of an older batch, or of one that is committed, is dropped. Returns False when a
        bound is reached.

        ``most`` is how many bytes may wait here now, which is less when others have many. One that
        replaces another and is no larger, as a repeat is, is always kept.
        """
        key = (sequencer, batch)
        if key < self._key or key <= self._committed:
            return True
        if key != self._key:
            self._key, self._parts, self.bytes = key, {}, 0
        known = self._parts.get(task)
        more = part_bytes(part) - (0 if known is None else part_bytes(known))
        if more > 0 and (
            self.bytes + more > min(most, MAX_PART_BYTES) or (known is None and len(self._parts) >= MAX_PARTS)
        ):
            return False
        self._parts[task], self.bytes = part, self.bytes + more
        return True

    def committed(self, sequencer: int, batch: int) -> None:
        """Forget the parts of a batch that nobody will prepare again, what is prepared of it, and what comes late of it."""
        self.prepared = None
        self._committed = max(self._committed, (sequencer, batch))
        if self._key <= self._committed:
            self._parts, self.bytes = {}, 0

    def apply(self, op: pb.Batch) -> None:
        """Note a committed batch, unless a later one is committed."""
        if self.last is None or op.number >= self.last[0]:
            self.last, self.committed_by = (op.number, op.digest), op.sequencer

    def forget_dead(self, alive: Callable[[int], bool]) -> None:
        """Forget what nobody will prepare or commit any more: the claim that it is of is over."""
        if self._parts and not alive(self._key[0]):
            self._parts, self.bytes = {}, 0
        if self.prepared is not None and not alive(self.prepared.request.sequencer):
            self.prepared = None

    def prepare(self, request: Prepare, ranges: int) -> Sequence[TaskAttempt]:
        """Prepare the named attempts and return those whose part never came; with any, nothing is prepared.

        A delayed repeat of an older batch's leaves the newer one as it is.
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
    """Return about how many bytes a part takes. O(1)."""
    columns = (part.handles, part.oldest, part.pending_starts, part.pending_counts)
    return PART_BYTES + sum(column.nbytes for column in columns)


def _merged(request: Prepare, parts: Mapping[TaskAttempt, TaskPart], ranges: int) -> Prepared:
    """Merge parts: minima by min over all jobs of the batch, the histogram of the job with the most records.

    Several jobs of one batch see the same records, so their histograms are never added.
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
