"""One computation: claims, reports, batches, and the watermarks it publishes.

The state here is the *staged* state: everything that has been checked and is, or is about to be, appended. Requests
are checked against it in arrival order, so that a report behind a claim in the same round meets the new owner. What
readers see is :attr:`Computation.published`, which moves only after the append: durable before visible.

A round is: any number of staging calls, :meth:`take_record`, an append of its result, :meth:`publish`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core import codec
from lowwater_authority.core.batches import BatchStage
from lowwater_authority.core.group import Group, GroupState
from lowwater_authority.core.heuristics import candidates, reference_time
from lowwater_authority.core.interval_map import IntervalMap, Range, Taken
from lowwater_authority.core.mass import MOST_RECORDS, Mass
from lowwater_authority.core.requests import Fenced, Grant, Refused
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.requests import ClaimRequest, Fold, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.core.topology import Spec

GRANTS_KEPT: Final = 4096
"""Request ids remembered, so that a repeated claim gets its first answer even after it was superseded."""


SENDERS_KEPT: Final = 64
"""Senders of one claim whose newest report is remembered; one process owns a claim, so there is rarely a second."""


@dataclass(frozen=True, slots=True)
class View:
    """What readers see of a computation. Durable."""

    name: str
    incarnation: int
    low: int
    heuristics: tuple[tuple[int, int], ...]
    """(share in ppm, micros), largest share first."""
    oldest_operation: int
    since: int
    ranges: int
    holder: Range | None


@dataclass(slots=True)
class _Changes:
    """What a round changed in one claim, not yet in an op."""

    whole: bool = False
    handles: list[npt.NDArray[np.intp]] = field(default_factory=list)
    lowers: bool = False
    mass: bool = False


class Computation:
    """The state machine of one computation in one life.

    ``epoch_base`` is the least sequencer of this process's life less one; see shard.py.

    Cost: a report is O(its handles); a claim O(ranges touched and claimed + log); taking the record O(changed ranges +
    blocks), plus one sort of all histogram buckets when heuristics are registered and a mass or frontier changed.
    """

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        self.spec = spec
        self.epoch_base = epoch_base
        self.incarnation = spec.incarnation
        self.map = IntervalMap()
        self.batches = BatchStage()
        self.low = MIN
        self.heuristics = dict.fromkeys(spec.heuristics, MIN)
        self.since = 0
        self.reference = MIN
        """The event time that ages of histograms count from, as of the last record; MIN before any frontier."""
        self.last_sequencer = 0
        self.identity: str | None = None
        self.order = (0, 0)
        self.last_batch: tuple[int, bytes] | None = None
        self.committed_by = 0
        """The claim that committed it."""
        self.granted: OrderedDict[bytes, int] = OrderedDict()
        self._ops: list[pb.Op] = []
        self._changes: dict[int, _Changes] = {}
        self._mass_changed = False
        self._strong = False
        self.published = self._view()

    # -- claims --------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: int) -> Grant:
        """Grant the ranges between the request's bounds, or refuse it and change nothing.

        A repeat of a request id gets the first answer. A prepared batch that the claim's generation proves committed is
        applied first. Raises IdentityMismatch, OlderClaim, Rewound, StaleSequencer (a repeat of a superseded claim).
        """
        if request.request_id in self.granted:
            return self._granted_before(self.granted[request.request_id])
        self._check_order(request)
        prepared = self.batches.prepared
        if prepared is not None and prepared.request.batch < request.generation:
            self._apply_prepared(now)
        self._flush()
        op = pb.Claim(
            sequencer=max(self.last_sequencer, self.epoch_base) + 1,
            bounds=request.bounds,
            worker=request.worker,
            host=request.host,
            identity=request.identity,
            generation=request.generation,
            ordinal=request.ordinal,
            request_id=request.request_id,
            bound_micros=codec.int64_bytes(request.bound_micros),
        )
        group, taken = self._apply_claim(op, now)
        self._ops.append(pb.Op(claim=op))
        self._strong = True
        watermarks = self.map.columns.values[group.slots()].copy()
        fenced = tuple(self._fenced(taken, "a newer claim took it over"))
        return Grant(group.sequencer, watermarks, self.reference, fenced)

    def _granted_before(self, sequencer: int) -> Grant:
        group = self.map.groups.get(sequencer)
        if group is None or group.state is not GroupState.OWNED:
            msg = "this claim was granted and has been superseded since; make a new one if this worker is the owner"
            raise errors.StaleSequencer(msg, metadata=self._about(sequencer=sequencer))
        watermarks = self.map.columns.values[group.slots()].copy()
        if group.live is not None:
            watermarks[~group.live] = MIN  # somebody else's by now: nothing is known of them
        return Grant(sequencer, watermarks, self.reference)

    def _check_order(self, request: ClaimRequest) -> None:
        if self.identity is not None and request.identity != self.identity:
            msg = (
                f"{self.spec.name} is bound to the identity {self.identity!r}, not {request.identity!r}: two owners of one "
                "name would fence each other. Use another name, or claim with adopt to start a new life of it."
            )
            raise errors.IdentityMismatch(msg, metadata=self._about(identity=request.identity, bound_to=self.identity))
        order = (request.generation, request.ordinal)
        if order < self.order:
            msg = (
                f"a run with generation {self.order[0]}, ordinal {self.order[1]} has claimed {self.spec.name}; this claim is "
                f"of the older generation {order[0]}, ordinal {order[1]}. Stop this run: it has been replaced."
            )
            raise errors.OlderClaim(msg, metadata=self._about(generation=order[0], ordinal=order[1]))
        if self.last_batch is not None and request.generation <= self.last_batch[0]:
            batch, digest = self.last_batch
            if not (request.generation == batch and request.batch_digest and request.batch_digest == digest):
                msg = (
                    f"batch {batch} of {self.spec.name} is committed, but this run starts at batch {request.generation}: its "
                    "checkpoint is older than what was published. Restore the newer checkpoint, or start a new life with "
                    f"'lowwater reset {self.spec.name}'."
                )
                raise errors.Rewound(msg, metadata=self._about(generation=request.generation, committed=batch))

    def _apply_claim(self, op: pb.Claim, now: int) -> tuple[Group, list[Taken]]:
        group = Group(
            op.sequencer,
            list(op.bounds),
            0,
            GroupState.OWNED,
            worker=op.worker,
            host=op.host,
            request_id=op.request_id,
        )
        taken = self.map.claim(group, codec.int64s(op.bound_micros), now)
        self._hand_over_masses(group, taken, bounded=bool(op.bound_micros))
        group.finished = bool((self.map.columns.values[group.slots()] == MAX).all())
        self.last_sequencer = op.sequencer
        self.identity = op.identity
        self.order = max(self.order, (op.generation, op.ordinal))
        if op.request_id:
            self.granted[op.request_id] = op.sequencer
            if len(self.granted) > GRANTS_KEPT:
                self.granted.popitem(last=False)
        self._mass_changed = True
        return group, taken

    def _hand_over_masses(self, group: Group | None, taken: Iterable[Taken], *, bounded: bool = False) -> None:
        """Let a claim stand on the masses of the groups it replaced as a whole; of a part, nobody knows the mass.

        Nor of what had none any more, being finished or retired, and comes back by a claim (``bounded``: with a bound).
        """
        stand_ins: list[Mass] = []
        known = True
        for lost in taken:
            partly = bool(lost.group.live_count) or lost.remainder
            if lost.group.state is GroupState.RETIRED:
                known = False
            elif lost.group.finished:
                known = known and not bounded
            elif partly or not lost.group.mass_known:
                known = False
            else:
                stand_ins.extend(lost.group.masses())
            if partly:
                lost.group.mass_known = False
            if lost.group.live_count:
                self._settle_finished(lost.group)
        if group is not None:
            group.mass_known = known
            group.stand_ins = stand_ins if known else []

    def _fenced(self, taken: Iterable[Taken], reason: str) -> Iterable[Fenced]:
        for lost in taken:
            if lost.group.sequencer and lost.group.state is GroupState.OWNED:
                handles = [handle for low, high in lost.handles for handle in range(low, high)]
                whole = len(handles) == lost.group.count
                yield Fenced(self.spec.name, lost.group.sequencer, None if whole else handles, reason)

    def release(self, sequencer: int) -> None:
        """Leave a claim's ranges unowned, holding their values. Raises StaleSequencer."""
        self._owned(sequencer)
        self._flush()
        op = pb.Release(sequencer=sequencer)
        self._apply_release(op)
        self._ops.append(pb.Op(release=op))
        self._strong = True

    def _apply_release(self, op: pb.Release) -> None:
        self.map.groups[op.sequencer].state = GroupState.UNOWNED

    def revoke(self, input_version: int) -> list[Fenced]:
        """Make every sequencer stale, and demand a newer version of the inputs from those that follow."""
        self._flush()
        fenced = [
            Fenced(self.spec.name, group.sequencer, None, "its inputs changed")
            for group in self.map.groups.values()
            if group.state is GroupState.OWNED
        ]
        op = pb.Revoke(input_version=input_version)
        self._apply_revoke()
        self._ops.append(pb.Op(revoke=op))
        self._strong = True
        return fenced

    def _apply_revoke(self) -> None:
        for group in self.map.groups.values():
            group.state = GroupState.UNOWNED

    def retire(self, start: bytes, end: bytes, *, force: bool, now: int) -> tuple[int, list[Fenced]]:
        """Take an interval out until it is claimed again. Returns how many ranges left, and who lost what.

        Raises OwnedRanges when a worker owns one of them, unless forced.
        """
        owners = {
            group.worker or "unnamed"
            for group, _, _ in self.map.overlapping(start, end)
            if group.state is GroupState.OWNED and not group.finished
        }
        if owners and not force:
            msg = (
                f"{', '.join(sorted(owners))} own part of that interval. Stop them or let them release it first, or retire "
                "with force."
            )
            raise errors.OwnedRanges(msg, metadata=self._about(workers=", ".join(sorted(owners))))
        ranges = sum(high - low for _, low, high in self.map.overlapping(start, end))
        self._flush()
        op = pb.Retire(start=start, end=end)
        taken = self._apply_retire(op, now)
        self._ops.append(pb.Op(retire=op))
        self._strong = True
        return ranges, list(self._fenced(taken, "an operator retired it"))

    def _apply_retire(self, op: pb.Retire, now: int) -> list[Taken]:
        taken = self.map.retire(op.start, op.end, now)
        self._hand_over_masses(None, taken)
        self._mass_changed = True
        return taken

    # -- reports -------------------------------------------------------------------------------------------

    def report(
        self, report: GroupReport, *, sender: bytes, number: tuple[int, int], required: Fold, now: int
    ) -> list[Refused]:
        """Take over one claim's state, range by range, and return what was refused.

        ``number`` is (stream, number) of the sender; one not above the newest taken over changes nothing.
        ``required`` names the inputs as registered now: a fold over other lives of them counts as MIN.
        """
        group = self.map.groups.get(report.sequencer)
        if group is None or group.state is not GroupState.OWNED:
            return [self._stale(report.sequencer, None)]
        if number <= group.senders.get(sender, (0, 0)):
            return []
        if refusal := self._check_report(group, report, required):
            return [refusal]
        group.senders[sender] = number
        if len(group.senders) > SENDERS_KEPT:
            del group.senders[next(iter(group.senders))]
        group.last_report = now
        group.oldest_operation = report.oldest_operation
        values, mass = report.watermarks, report.mass
        refused: list[Refused] = []
        if report.fold.input_incarnations != required.input_incarnations:
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and replace(mass, frontiers=dict.fromkeys(mass.frontiers, MIN))
            msg = "the report folds another life of an input than the one in force, so it counts as unknown; fold anew"
            refused.append(Refused(group.sequencer, errors.IncarnationChanged.reason, msg, report.handles))
        if mass is not None:
            refused.extend(self._take_mass(group, mass, now))
        refused.extend(self._take_values(group, report.handles, values, finish=report.finish, now=now))
        return refused

    def _check_report(self, group: Group, report: GroupReport, required: Fold) -> Refused | None:
        ranges = group.count if report.handles is None else len(report.handles)
        problem = ""
        if len(report.watermarks) not in (1, ranges):
            problem = f"watermarks_micros has {len(report.watermarks)} values for {ranges} ranges; send one a range, or one for all"
        elif report.handles is not None and ranges and int(report.handles.max()) >= group.count:
            problem = f"handles names {int(report.handles.max())}, but the claim has the handles 0 to {group.count - 1}"
        elif report.handles is not None and not _distinct(report.handles):
            problem = "handles names a range twice; send one value a range"
        if problem:
            return Refused(group.sequencer, errors.InvalidArgument.reason, problem, report.handles)
        if report.fold.input_version != required.input_version:
            msg = (
                f"the report folds version {report.fold.input_version} of the inputs, but {required.input_version} is in force; "
                "claim again to learn the new inputs"
            )
            return Refused(group.sequencer, errors.InputVersion.reason, msg, report.handles)
        return None

    def _take_values(
        self, group: Group, handles: npt.NDArray[np.uint32] | None, values: Int64s, *, finish: bool, now: int
    ) -> list[Refused]:
        """Store what may be stored of new values and return the rest."""
        limit = now + self.spec.max_skew
        named = None if handles is None else handles.astype(np.intp)
        wrong = np.zeros(0, dtype=np.bool_)
        refused: list[Refused] = []
        if group.live is not None:
            wrong = ~(group.live if named is None else group.live[named])
            if wrong.any():
                refused.append(self._stale(group.sequencer, _named(named, wrong)))
        if len(values) and int(values.max()) > limit:
            finished = values == MAX
            ahead = (values > limit) & ~finished
            for mask, reason, text in (
                (ahead, errors.TooFarAhead.reason, f"more than {self.spec.max_skew // 1_000_000} s ahead of the clock"),
                (
                    finished & (not finish),
                    errors.FinishRequired.reason,
                    "MAX means finished and needs finish to be set",
                ),
            ):
                if mask.any():
                    ranges = group.count if named is None else len(named)
                    spread = np.broadcast_to(mask, ranges) if len(mask) == 1 else mask
                    refused.append(Refused(group.sequencer, reason, text, _named(named, spread)))
                    wrong = spread | wrong if len(wrong) else spread
        if len(wrong) and wrong.any():
            named = np.arange(group.count) if named is None else named
            values = np.broadcast_to(values, len(named))[~wrong]
            named = named[~wrong]
        self._store(group, named, values, now)
        return refused

    def _store(self, group: Group, handles: npt.NDArray[np.intp] | None, values: Int64s, now: int) -> None:
        """Set values that passed all checks, remembering which changed. ``handles`` None: all, and all are live."""
        columns = self.map.columns
        slots = group.slots() if handles is None else group.base + handles
        old = columns.values[slots]
        changed = old != values
        if not changed.any():
            return
        changes = self._changes.setdefault(group.sequencer, _Changes())
        changes.lowers = changes.lowers or bool((values < old).any())
        if handles is None and changed.all():
            changes.whole = True
            columns.set(slots, values)
            columns.since[slots] = now
        else:
            moved = np.flatnonzero(changed) if handles is None else handles[changed]
            changes.handles.append(moved)
            columns.set(group.base + moved, values if len(values) == 1 else values[changed])
            columns.since[group.base + moved] = now
        self._settle_finished(group)

    def _settle_finished(self, group: Group) -> None:
        values = self.map.columns.values[group.slots()]
        finished = bool(values[0] == MAX and (values == MAX).all())
        self._mass_changed = self._mass_changed or finished != group.finished
        group.finished = finished

    def _take_mass(self, group: Group, mass: Mass, now: int) -> list[Refused]:
        limit = now + self.spec.max_skew
        problem = ""
        if len(mass.starts) != len(mass.counts):
            problem = f"mass.pending has {len(mass.starts)} starts and {len(mass.counts)} counts; send as many of each"
        elif (mass.counts < 0).any() or (mass.starts[1:] <= mass.starts[:-1]).any():
            problem = "mass.pending must have ascending starts and counts below 2^63"
        elif float(mass.counts.sum(dtype=np.float64)) + mass.recent > MOST_RECORDS:
            problem = f"mass counts more than {MOST_RECORDS} records; no claim has that many"
        if problem:
            return [Refused(group.sequencer, errors.InvalidArgument.reason, problem)]
        # A record from the far future is as far as any may be: one bad timestamp must not carry the computation off.
        mass = replace(mass, starts=np.minimum(mass.starts, limit))
        for share, micros in mass.frontiers.items():
            if limit < micros != MAX:
                msg = (
                    f"the frontier of the share {share} ppm is more than {self.spec.max_skew // 1_000_000} s ahead of the clock; "
                    "the mass is left as it was"
                )
                return [Refused(group.sequencer, errors.TooFarAhead.reason, msg)]
        self._set_mass(group, mass)
        return []

    def _set_mass(self, group: Group, mass: Mass) -> None:
        if group.mass_known and mass.same(group.mass):
            return
        group.mass, group.mass_known, group.stand_ins = mass, True, []
        self._changes.setdefault(group.sequencer, _Changes()).mass = True
        self._mass_changed = True

    # -- micro-batches -------------------------------------------------------------------------------------

    def stage_task(self, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart) -> None:
        """Keep a task's part of a micro-batch, in memory. Raises StaleSequencer, InvalidArgument, Overloaded."""
        group = self._owned(sequencer)
        if len(part.handles) != len(part.oldest) or (len(part.handles) and int(part.handles.max()) >= group.count):
            msg = "handles and oldest_micros must be as long as each other, and name handles of the claim"
            raise errors.InvalidArgument(msg, metadata=self._about(field="handles", ranges=group.count))
        if not self.batches.add(sequencer, batch, task, part):
            msg = "too many task parts wait for their batch to be prepared; use fewer partitions"
            raise errors.Overloaded(msg, metadata=self._about(batch=batch))

    def prepare(self, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch; returns those that never came, in which case nothing is prepared."""
        group = self._owned(request.sequencer)
        if self.last_batch is not None:
            # A delayed repeat: committing it once more would put the older batch's values over the newer one's.
            if request.batch < self.last_batch[0]:
                return list(request.tasks)
            if (request.sequencer, request.batch) == (self.committed_by, self.last_batch[0]):
                return []
        return self.batches.prepare(request, group.count)

    def commit(self, sequencer: int, batch: int, required: Fold, now: int) -> list[Refused]:
        """Apply the prepared batch, whole or not at all. A repeat changes nothing.

        Raises StaleSequencer, NotPrepared, InputVersion.
        """
        self._owned(sequencer)
        prepared = self.batches.prepared
        if prepared is None or (prepared.request.sequencer, prepared.request.batch) != (sequencer, batch):
            if self.last_batch is not None and self.last_batch[0] == batch:
                return []
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
        return self._apply_prepared(now)

    def _apply_prepared(self, now: int) -> list[Refused]:
        prepared = self.batches.prepared
        assert prepared is not None
        self.batches.prepared = None
        request = prepared.request
        group = self.map.groups.get(request.sequencer)
        if group is None or group.state is not GroupState.OWNED:
            return [self._stale(request.sequencer, None)]
        values, known = prepared.values()
        group.last_report = now
        group.oldest_operation = request.oldest_operation
        group.recent.add(now, prepared.finished)
        refused = self._take_mass(group, prepared.mass(group.recent.total), now)
        handles = np.flatnonzero(known).astype(np.uint32)
        refused += self._take_values(group, handles, values[known], finish=request.bound == MAX, now=now)
        self._flush()
        op = pb.Batch(
            sequencer=request.sequencer, number=request.batch, digest=request.digest, finished=prepared.finished
        )
        self._apply_batch(op)
        self._ops.append(pb.Op(batch=op))
        self._strong = True
        return refused

    def _apply_batch(self, op: pb.Batch) -> None:
        if self.last_batch is None or op.number >= self.last_batch[0]:
            self.last_batch, self.committed_by = (op.number, op.digest), op.sequencer

    # -- rounds --------------------------------------------------------------------------------------------

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        """Return what this round changed as (payload, strong), None when nothing did.

        Strong means claim-class: losing it is not safe (rule 10).
        """
        self._flush()
        if not self._ops:
            return None
        low = max(self.low, self.map.minimum())
        if low != self.low:
            self.low, self.since = low, now
        self._move_heuristics()
        record = pb.Record(
            incarnation=self.incarnation,
            time_micros=now,
            ops=self._ops,
            low_micros=self.low,
            heuristics=codec.shares(self.heuristics),
        )
        strong = self._strong
        self._ops, self._strong = [], False
        return record.SerializeToString(), strong

    def publish(self) -> View:
        """Make the staged watermarks visible, after their record is durable."""
        self.published = self._view()
        return self.published

    def _move_heuristics(self) -> None:
        moved: dict[int, int] = {}
        if self.heuristics and self._mass_changed:
            groups = self.map.run_groups()
            moved = candidates(groups, self.heuristics)
            self.reference = reference_time(groups)
            self._mass_changed = False
        for share, value in self.heuristics.items():
            self.heuristics[share] = max(value, self.low, moved.get(share, MIN))

    def _flush(self) -> None:
        """Turn the changed values into ops, so that ops stand in the order of the checks."""
        for sequencer, changes in self._changes.items():
            group = self.map.groups[sequencer]
            handles = None if changes.whole else _united(changes.handles, group.count)
            slots = group.slots() if handles is None else group.base + handles
            self._ops.append(
                pb.Op(
                    values=pb.Values(
                        sequencer=sequencer,
                        handles=b"" if handles is None else codec.handle_bytes(handles),
                        micros=codec.int64_bytes(_shortened(self.map.columns.values[slots])),
                        lowers=changes.lowers,
                        senders=codec.senders(group.senders),
                        oldest_operation_micros=group.oldest_operation,
                        mass=codec.mass(group.mass) if changes.mass and group.mass is not None else None,
                    )
                )
            )
            self._strong = self._strong or changes.lowers
        self._changes.clear()

    def _apply_values(self, op: pb.Values, now: int) -> None:
        group = self.map.groups[op.sequencer]
        values = codec.int64s(op.micros)
        handles = codec.handles(op.handles)
        if group.state is not GroupState.OWNED or (
            len(values) and group.live is not None and not (len(handles) and group.live[handles].all())
        ):
            msg = f"values for ranges that the claim {op.sequencer} does not own"
            raise ValueError(msg)
        if len(values):
            self._store(group, handles if len(handles) else None, values, now)
        if op.HasField("mass"):
            self._set_mass(group, codec.mass_from(op.mass))
        group.senders.update(codec.senders_from(op.senders))
        group.oldest_operation = op.oldest_operation_micros
        group.last_report = now

    def replay(self, op: pb.Op, now: int) -> None:
        """Apply one journaled op, through the functions that applied it first.

        Raises KeyError when it names a claim that its predecessors do not know, ValueError when it is no op.
        """
        match op.WhichOneof("kind"):
            case "claim":
                if op.claim.sequencer <= self.last_sequencer:
                    msg = f"sequencer {op.claim.sequencer} is granted again after {self.last_sequencer}"
                    raise ValueError(msg)
                self._apply_claim(op.claim, now)
            case "values":
                self._apply_values(op.values, now)
            case "release":
                self._apply_release(op.release)
            case "revoke":
                self._apply_revoke()
            case "retire":
                self._apply_retire(op.retire, now)
            case "batch":
                self.map.groups[op.batch.sequencer].recent.add(now, op.batch.finished)
                self._apply_batch(op.batch)
            case kind:
                msg = f"unknown op {kind}"
                raise ValueError(msg)
        self._changes.clear()

    # -- shared --------------------------------------------------------------------------------------------

    def _owned(self, sequencer: int) -> Group:
        group = self.map.groups.get(sequencer)
        if group is None or group.state is not GroupState.OWNED:
            raise errors.StaleSequencer(_STALE, metadata=self._about(sequencer=sequencer))
        return group

    def _stale(self, sequencer: int, handles: npt.NDArray[np.uint32] | None) -> Refused:
        return Refused(sequencer, errors.StaleSequencer.reason, _STALE, handles)

    def _about(self, **facts: object) -> dict[str, str]:
        return {"computation": self.spec.name} | {key: str(value) for key, value in facts.items()}

    def _view(self) -> View:
        operations = [g.oldest_operation for g in self.map.groups.values() if g.oldest_operation]
        return View(
            self.spec.name,
            self.incarnation,
            self.low,
            tuple(self.heuristics.items()),
            min(operations, default=0),
            self.since,
            len(self.map),
            self.map.holder(),
        )

    def _check(self) -> None:
        """Assert every invariant. O(n)."""
        self.map._check()
        assert self.published.low <= self.low
        assert self.published.low <= max(self.low, self.map.minimum())
        for value in self.heuristics.values():
            assert value >= self.low, "a heuristic watermark is never below the low watermark"
            assert value != MAX or self.low == MAX, "only the low watermark says finished"
        for group in self.map.groups.values():
            assert group.sequencer <= self.last_sequencer


_STALE: Final = (
    "the sequencer is stale: a newer claim, a reset or a retirement took the ranges over. Stop writing for them."
)


def _shortened(values: Int64s) -> Int64s:
    """Return one value for all when they are equal: most reports say the same of all ranges."""
    return values[:1] if len(values) and bool((values == values[0]).all()) else values


def _united(handles: Sequence[npt.NDArray[np.intp]], count: int) -> npt.NDArray[np.intp]:
    """Return the handles that any of the arrays names, ascending, without a sort."""
    if len(handles) == 1 and bool((handles[0][1:] > handles[0][:-1]).all()):
        return handles[0]
    named = np.zeros(count, dtype=np.bool_)
    for some in handles:
        named[some] = True
    return np.flatnonzero(named)


def _distinct(handles: npt.NDArray[np.uint32]) -> bool:
    return bool((handles[1:] > handles[:-1]).all()) or len(np.unique(handles)) == len(handles)


def _named(handles: npt.NDArray[np.intp] | None, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    chosen = np.flatnonzero(mask) if handles is None else handles[mask]
    return chosen.astype(np.uint32)
