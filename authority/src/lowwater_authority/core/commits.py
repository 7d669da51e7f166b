"""Micro-batches of a computation: staged and prepared in memory, applied whole by their commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowwater import errors
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core.batches import ALL_PART_BYTES, MAX_PART_BYTES
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.reports import Reports, wrong_operation
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.core.requests import Fold, Prepare, Refused, TaskAttempt, TaskPart


class Commits(Reports):
    """The part of a computation that commits micro-batches. What they say passes the checks of any report."""

    def stage_task(
        self, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart, *, most: int = MAX_PART_BYTES
    ) -> None:
        """Keep a task's part of a micro-batch, in memory, of all parts at ``most`` so many bytes.

        Raises StaleSequencer, InvalidArgument, Overloaded.
        """
        group = self._owned(sequencer)
        if len(part.handles) and int(part.handles.max()) >= group.granted:
            msg = f"handles names {int(part.handles.max())}, but the claim has the handles 0 to {group.granted - 1}"
            fix = f"name handles below {group.granted}"
            raise errors.InvalidArgument(msg, metadata=self._about(field="handles", fix=fix))
        if not self.batches.add(sequencer, batch, task, part, most):
            crowd = (
                f", for those of all computations take more than {ALL_PART_BYTES} B" if most < MAX_PART_BYTES else ""
            )
            msg = f"too many task parts wait for batch {batch} to be committed, or too large ones{crowd}; use fewer partitions"
            raise errors.Overloaded(msg, metadata=self._about(batch=batch))

    def _forget_dead_batches(self) -> None:
        """Call when claims may have ended: what waits for their batches would stay until somebody stages another."""
        groups = self.map.groups

        def alive(sequencer: int) -> bool:
            group = groups.get(sequencer)
            return group is not None and group.state is GroupState.OWNED

        self.batches.forget_dead(alive)

    def prepare(self, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch; returns those that never came, in which case nothing is prepared.

        Raises StaleSequencer, and InvalidArgument for a bound or a frontier above MIN that was folded from what is not registered, and
        for an oldest operation that is no time.
        """
        group = self._owned(request.sequencer)
        if 0 in request.fold.input_incarnations:
            beyond = (
                "bound_micros"
                if request.bound > MIN
                else "frontiers"
                if max(request.frontiers.values(), default=MIN) > MIN
                else ""
            )
            if beyond:
                msg = f"{self._unregistered(request.fold)}, so {beyond} must be {MIN}"
                fix = f"{MIN} until all inputs are registered"
                raise errors.InvalidArgument(msg, metadata=self._about(field=beyond, fix=fix))
        if problem := wrong_operation(request.oldest_operation):
            fix = "a time in microseconds since 1970, or 0"
            raise errors.InvalidArgument(problem, metadata=self._about(field="oldest_operation_micros", fix=fix))
        if self.last_batch is not None:
            # A delayed repeat: committing it once more would put the older batch's values over the newer one's.
            if request.batch < self.last_batch[0]:
                return list(request.tasks)
            if (request.sequencer, request.batch) == (self.committed_by, self.last_batch[0]):
                return []
        return self.batches.prepare(request, group.granted)

    def commit(self, sequencer: int, batch: int, required: Fold, now: int, wall: int | None = None) -> list[Refused]:
        """Apply the prepared batch, whole or not at all; returns what was refused of it. A repeat gets the first answer.

        Raises StaleSequencer, NotPrepared, InputVersion.
        """
        self._owned(sequencer)
        prepared = self.batches.prepared
        if prepared is None or (prepared.request.sequencer, prepared.request.batch) != (sequencer, batch):
            if self.last_batch is not None and self.last_batch[0] == batch:
                return self._refused_of_batch
            msg = (
                f"no whole set of task parts is prepared for batch {batch} of {self.spec.name}; the stage holds until a later "
                "batch is prepared. Run an empty batch."
            )
            raise errors.NotPrepared(msg, metadata=self._about(batch=batch))
        if prepared.request.fold.input_version != required.input_version:
            msg = f"the batch folds version {prepared.request.fold.input_version} of the inputs; {required.input_version} is in force"
            raise errors.InputVersion(msg, metadata=self._about(batch=batch))
        if prepared.request.fold.input_incarnations != required.input_incarnations:
            msg = f"an input of {self.spec.name} was reset while batch {batch} ran; claim again"
            raise errors.IncarnationChanged(msg, metadata=self._about(batch=batch))
        return self._apply_prepared(now, now if wall is None else wall)

    def _apply_prepared(self, now: int, wall: int) -> list[Refused]:
        prepared = self.batches.prepared
        assert prepared is not None
        request = prepared.request
        self.batches.committed(request.sequencer, request.batch)
        group = self.map.groups.get(request.sequencer)
        if group is None or group.state is not GroupState.OWNED:
            return [self._stale(request.sequencer, None)]
        values, known = prepared.values()
        group.last_report = now
        group.oldest_operation = min(request.oldest_operation, now)
        group.recent.add(now, prepared.finished)
        refused = self._take_mass(group, prepared.mass(group.recent.total), wall)
        handles = np.flatnonzero(known).astype(np.uint32)
        refused += self._take_values(group, handles, values[known], finish=request.bound == MAX, now=now, wall=wall)
        self._flush()
        op = pb.Batch(
            sequencer=request.sequencer, number=request.batch, digest=request.digest, finished=prepared.finished
        )
        self._apply_batch(op)
        self._ops.append(pb.Op(batch=op))
        self._strong = True
        self._refused_of_batch = refused
        return refused

    def _apply_batch(self, op: pb.Batch) -> None:
        if self.last_batch is None or op.number >= self.last_batch[0]:
            self.last_batch, self.committed_by = (op.number, op.digest), op.sequencer
