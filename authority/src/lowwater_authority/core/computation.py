"""One computation: its claims, its rounds, and the watermarks it publishes.

In layers: staged.py holds the state, reports.py takes over what owners say, commits.py micro-batches; here is the rest.

The state here is the *staged* state: everything that has been checked and is, or is about to be, appended. Requests
are checked against it in arrival order, so that a report behind a claim in the same round meets the new owner. What
readers see is :attr:`Computation.published`, which moves only after the append: durable before visible.

A round is: any number of staging calls, :meth:`take_record`, an append of its result, :meth:`publish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater._core.text import duration
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core import codec
from lowwater_authority.core.commits import Commits
from lowwater_authority.core.groups import Group, GroupState
from lowwater_authority.core.heuristics import candidates, reference_time
from lowwater_authority.core.interval_map import Range, Taken
from lowwater_authority.core.requests import Fenced, Grant, Granted
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowwater_authority.core.mass import Mass
    from lowwater_authority.core.requests import ClaimRequest
    from lowwater_authority.core.topology import Spec

NAMED: Final = 20
"""Most workers that a refusal lists."""

GRANTS_KEPT: Final = 4096
"""Request ids remembered, so that a repeated claim gets its first answer even after it was superseded."""


@dataclass(frozen=True, slots=True)
class View:
    """What readers see of a computation. Durable."""

    name: str
    incarnation: int
    low: int
    heuristics: tuple[tuple[int, int], ...]
    """(share in ppm, micros), largest share first."""
    oldest_operation: int
    """Of the owners of ranges that are not finished; 0 when none of these tells one."""
    since: int
    ranges: int
    holder: Range | None


class Computation(Commits):
    """The state machine of one computation in one life.

    ``epoch_base`` is the least sequencer of this process's life less one; see engine/shard.py.

    Cost: a report is O(its handles); a claim O(ranges touched and claimed + log); taking the record O(changed ranges +
    blocks), plus one sort of all histogram buckets when heuristics are registered and a mass or frontier changed.
    """

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        super().__init__(spec, epoch_base=epoch_base)
        self.published = self._view()

    # -- claims --------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Grant:
        """Grant the ranges between the request's bounds, or refuse it and change nothing.

        A repeat of a request gets the first answer; its id names no other request (InvalidArgument). A prepared batch that the claim's generation proves committed is
        applied first. Raises IdentityMismatch, OlderClaim, Rewound, TooFarAhead, StaleSequencer (a repeat of a superseded
        claim). ``wall`` as in report.
        """
        wall = now if wall is None else wall
        if request.request_id in self.granted:
            return self._granted_before(request)
        self._check_order(request)
        self._check_bounds(request, wall)
        prepared = self.batches.prepared
        if prepared is not None and prepared.request.batch < request.generation:
            self._apply_prepared(now, wall)
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
            asked=request.digest,
        )
        group, taken = self._apply_claim(op, now)
        group.last_report = now  # nobody is accused of silence from the time of an owner before it
        self._ops.append(pb.Op(claim=op))
        self._strong = True
        watermarks = self.map.columns.values[group.slots()].copy()
        fenced = tuple(self._fenced(taken, "a newer claim took it over"))
        return Grant(group.sequencer, watermarks, self.reference, fenced)

    def _granted_before(self, request: ClaimRequest) -> Grant:
        sequencer, asked = self.granted[request.request_id]
        if asked and asked != request.digest:
            msg = (
                "request_id named another claim before, which was granted: this one asks for something else, by its bounds, its order or "
                "its owner; a new claim needs 16 new random bytes"
            )
            raise errors.InvalidArgument(
                msg, metadata=self._about(field="request_id", fix="16 new random bytes for a new claim")
            )
        group = self.map.groups.get(sequencer)
        if group is None or group.state is not GroupState.OWNED:
            msg = "this claim was granted and has been superseded since; make a new one if this worker is the owner"
            raise errors.StaleSequencer(msg, metadata=self._about(sequencer=sequencer))
        watermarks = np.full(group.granted, MIN)  # of what is somebody else's by now nothing is known
        places = group.live_places()
        watermarks[group.handles_of(places)] = self.map.columns.values[group.base + places]
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

    def _check_bounds(self, request: ClaimRequest, wall: int) -> None:
        """A retired range begins at its bound, so one bad timestamp must not lift it for ever."""
        bounds = request.bound_micros
        ahead = bounds[(bounds > wall + self.spec.max_skew) & (bounds != MAX)]
        if len(ahead):
            msg = (
                f"bound_micros has {int(ahead[0])}, more than {self.spec.max_skew // 1_000_000} s ahead of the clock: is it in "
                "microseconds? Claim without a bound when nothing is known."
            )
            fix = "event times up to max_skew ahead of the clock, or none"
            raise errors.TooFarAhead(msg, metadata=self._about(field="bound_micros", fix=fix))

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
            self.granted[op.request_id] = Granted(op.sequencer, op.asked)
            if len(self.granted) > GRANTS_KEPT:
                self.granted.popitem(last=False)
        self._mass_changed = True
        self._forget_dead_batches()
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
                whole = len(handles) == lost.group.granted
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
        self._forget_dead_batches()

    def refuse_owners(self, now: int) -> None:
        """Raise OwnedRanges while a worker owns a range that is not finished. Whether it lives is not known, only when it was heard of last."""
        owned = [g for g in self.map.groups.values() if g.state is GroupState.OWNED and not g.finished]
        if not owned:
            return
        workers = sorted({group.worker or "unnamed" for group in owned})
        some = ", ".join(workers[:NAMED]) + (f" and {len(workers) - NAMED} more" if len(workers) > NAMED else "")
        heard = max(group.last_report for group in owned)
        last = f"last heard of {duration(max(0, now - heard) / 1e6)} ago" if heard else "not heard of lately"
        own, them, they = ("owns", "it", "it reports") if len(workers) == 1 else ("own", "them", "they report")
        msg = (
            f"{some} {own} key ranges of {self.spec.name}, {last}. Stop {them} in good order, which releases the ranges, or drop "
            f"{self.spec.name} with force: what {they} is refused then."
        )
        raise errors.OwnedRanges(msg, metadata=self._about(workers=", ".join(workers[:NAMED])))

    def revoke(
        self, input_version: int, now: int, *, bound: int | None = None, reason: str = "its inputs changed"
    ) -> list[Fenced]:
        """Make every sequencer stale, and demand a newer version of the inputs from those that follow.

        ``bound``, when inputs are added: the least of their low watermarks. No range may stand beyond it: what the old owners
        said did not know of what comes from there, and nobody may claim the range before others move on. Masses
        did not know either.
        """
        self._flush()
        fenced = [
            Fenced(self.spec.name, group.sequencer, None, reason)
            for group in self.map.groups.values()
            if group.state is GroupState.OWNED
        ]
        op = pb.Revoke(input_version=input_version, bound_micros=bound)
        self._apply_revoke(op, now)
        self._ops.append(pb.Op(revoke=op))
        self._strong = True
        return fenced

    def _apply_revoke(self, op: pb.Revoke, now: int) -> None:
        for group in self.map.groups.values():
            group.state = GroupState.UNOWNED
        self._forget_dead_batches()
        if not op.HasField("bound_micros"):
            return
        columns = self.map.columns
        for group in self.map.run_groups():
            if group.state is GroupState.RETIRED:
                continue
            slots = group.base + group.live_places()
            beyond = slots[columns.values[slots] > op.bound_micros]
            columns.set(beyond, op.bound_micros)
            columns.since[beyond] = now
            group.mass_known, group.stand_ins = False, []
            self._settle_finished(group)
        self._mass_changed = True

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
                f"{', '.join(sorted(owners))} {'owns' if len(owners) == 1 else 'own'} part of that interval. Have it released first, or "
                "retire it with force."
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
        self._forget_dead_batches()
        return taken

    # -- rounds --------------------------------------------------------------------------------------------

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        """Return what this round changed as (payload, strong), None when nothing did.

        Strong means claim-class: losing it is not safe (rule 10).
        """
        self._flush()
        if not self._ops:
            return None
        low = self.map.minimum()
        # Nobody says that nothing will ever come where nobody is left to say it: a watermark holds without any range.
        self.raise_low(self.low if low == MAX and self.map.all_retired else max(self.low, low), now)
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

    def raise_low(self, low: int, now: int) -> None:
        """Move the low watermark as a record says, and note the steps that it completes."""
        if low != self.low:
            self.history.note(self.incarnation, self.spec.history_step, old=self.low, low=low, now=now)
            self.low, self.since = low, now

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
                self._apply_revoke(op.revoke, now)
            case "retire":
                self._apply_retire(op.retire, now)
            case "batch":
                self.map.groups[op.batch.sequencer].recent.add(now, op.batch.finished)
                self._apply_batch(op.batch)
            case kind:
                msg = f"unknown op {kind}"
                raise ValueError(msg)
        self._changes.clear()

    def _view(self) -> View:
        working = (g for g in self.map.groups.values() if g.state is GroupState.OWNED and not g.finished)
        operations = [] if self.low == MAX else [g.oldest_operation for g in working if g.oldest_operation]
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
