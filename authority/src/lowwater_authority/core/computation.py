"""One computation: its claims, its rounds, and the watermarks it publishes.

The state here is the *staged* state: all that was checked and is appended, or is about to be.
Requests are checked against it in the order of arrival, so that a report after a claim in the same
round meets the new owner. Readers see :attr:`Computation.published`, which moves only after the
append: durable before visible.

A round is: any number of staging calls, :meth:`take_record`, an append of its result,
:meth:`publish`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from lowwater import errors
from lowwater.core.text import duration
from lowwater.views import NO_REMARKS, Remarks
from lowwater.watermark import Watermark
from lowwater_authority.core import codec
from lowwater_authority.core.batches import ALL_PART_BYTES, MAX_PART_BYTES, BatchParts
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.budget import Budget, Kept, Lateness, Pending, reached
from lowwater_authority.core.groups import MOST_RECORDS, Group, GroupState, Mass
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.history import History
from lowwater_authority.core.inheritance import inherit_arrivals, inherit_masses
from lowwater_authority.core.interval_map import IntervalMap, Loss, Range
from lowwater_authority.core.late_records import LateRecords
from lowwater_authority.core.layout import Layout, LayoutReport
from lowwater_authority.core.names import is_slicing, whole
from lowwater_authority.core.requests import Fenced, Grant, Granted, Refused, bad_field
from lowwater_authority.core.staged import Staged
from lowwater_authority.core.tasks import Tasks
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.requests import ClaimRequest, Fold, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.core.topology import Spec


NAMED: Final = 20
"""Most workers in an error message."""

GRANTS_KEPT: Final = 4096
"""Number of request ids that are remembered, so that a repeated claim gets its first answer, even
after another claim has superseded it."""

SENDERS_KEPT: Final = 64
"""Most senders of one claim. One process owns a claim, so a second sender is rare. The next one is
refused: if one were forgotten to make room, its older reports would count again."""

OWN_TURNS: Final = b""
"""Sender of all reports that name a turn. Turns order the reports of a claim across streams."""

LARGEST_EPOCH: Final = 1 << 23
"""Greatest epoch that a caller may name. Sequencers have room for twice as many, so that
an invented number cannot use them up."""

LONGEST_STEP: Final = 1 << 32
"""Greatest distance between the turns of two reports of a claim. An invented turn then leaves room
for all turns that the claim's owner will ever use."""

LARGEST_STREAM: Final = (1 << 63) - 1
"""Greatest number of a stream: room for a sender that takes the clock as the number."""

STALE: Final = (
    "the sequencer is stale: a newer claim, a reset or a retirement took the ranges over. Stop writing for them."
)


_UNKNOWN: Final = Pending.of([])


@dataclass(frozen=True, slots=True)
class View:
    """The durable state of a computation that readers see."""

    name: str
    incarnation: int
    low: int
    heuristics: tuple[tuple[int, int], ...]
    """Heuristic watermarks, (share in ppm, micros), largest share first."""
    oldest_operation: int
    """Oldest operation of all owners of unfinished ranges; 0 when none reports one."""
    since: int
    ranges: int
    holder: Range | None
    budgets: tuple[Kept, ...]
    """Lateness budgets, least first."""
    passed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Records that arrived while a heuristic watermark was above MIN, and how many of them were
    behind it, by share in ppm. Only records whose lateness was reported."""


class Computation:
    """The state machine of one computation in one incarnation, and the ops of its next record.

    Live requests and replayed ops change the state by the same functions. Values of micro-batches
    pass the checks of any report. ``epoch_base`` is the least sequencer of this ownership less one;
    see ``epoch_base`` in engine/holding.py. The class is large because each request comes in three
    parts that belong together: its checks, its op, and the change that live and replayed ops share.

    Cost: a report is O(its handles); a claim O(ranges touched and claimed + log); taking the record
    O(changed ranges + blocks), plus the cost of :class:`Masses` when heuristics are registered and
    a mass or a frontier has changed.
    """

    TAKES_WHOLE_MASSES: ClassVar = False
    """True where a report may have the mass of many claims: at a root, whose claims are slices."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        self.spec = spec
        self.epoch_base = epoch_base
        self.incarnation = spec.incarnation
        self.map = IntervalMap(spec.keys.began)
        self.masses = Masses(spec.heuristics, self.map.run_groups())
        self.batches = BatchParts()
        self.tasks = Tasks()
        self.low = MIN
        self.heuristics = dict.fromkeys(spec.heuristics, MIN)
        self.late = LateRecords()
        self.budgets = {ppm: Budget(ppm) for ppm in spec.budgets}
        self.since = 0
        self.history = History()
        self.reference = MIN
        """Event time from which the ages of histograms count, as of the last record; MIN before any
        frontier."""
        self.last_sequencer = 0
        self.input_version = 0
        """Version of the inputs in the log: that of the last revocation, or else of the first
        claim. 0: neither is in this incarnation. Authorities of 0.2 wrote it only with claims of
        slices.
        """
        self.identity: str | None = None
        self.order = (0, 0)
        self.vouched = MIN
        """Event time up to which an output may call itself complete. No input below it may be
        added.
        """
        self.layout = Layout()
        """Wanted layout."""
        self.layout_report: LayoutReport | None = None
        """The owner's last report of its layout; None: none since this process loaded the log."""
        self._layout_reporter = 0
        """Sequencer of the claim that reported it."""
        self.granted: OrderedDict[bytes, Granted] = OrderedDict()
        self.staged = Staged()
        self._mass_changed = False
        self.mass_turns = 0
        """Number of records in which a mass or a frontier has changed."""
        self.published = self._view()
        self.published_layout = self.layout

    def follow(self, spec: Spec) -> None:
        """Replace the registration by a newer one of the same or a later incarnation."""
        self.spec = spec

    # -- claims ------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Grant:
        """Grant the ranges between the request's bounds, or refuse it and change nothing.

        A repeat of a request gets the first answer; another request under the same id is refused
        (InvalidArgument). A prepared batch that the claim's generation proves committed is applied
        first. Raises IdentityMismatch, OlderClaim, Rewound, TooFarAhead, StaleSequencer (a repeat
        of a superseded claim). ``wall`` as in report.
        """
        wall = now if wall is None else wall
        if request.request_id in self.granted:
            return self._granted_before(request)
        identity = self._check_claim(request, now)
        self._check_bounds(request, wall)
        prepared = self.batches.prepared
        if prepared is not None and prepared.request.batch < request.generation:
            self._apply_prepared(now, wall)
        self.staged.flush(self.map)
        op = pb.Op()
        claim = op.claim  # filled in place: a copy of millions of bounds takes long
        claim.sequencer = max(self.last_sequencer, self.epoch_base) + 1
        claim.bounds.extend(request.bounds)
        claim.worker = request.worker
        claim.host = request.host
        claim.identity = identity
        claim.generation = request.generation
        claim.ordinal = request.ordinal
        claim.request_id = request.request_id
        claim.bound_micros = codec.int64_bytes(request.bound_micros)
        claim.asked = request.digest
        claim.input_version = self.spec.input_version
        group, losses = self._apply_claim(claim, now, request.bounds)
        group.last_report = now  # the new owner's silence begins now, not with an earlier owner
        group.heard = True
        self.staged.append(op)
        watermarks = self.map.columns.values[group.slots()].copy()
        fenced = tuple(self._fenced(losses, "a newer claim took it over"))
        return Grant(group.sequencer, watermarks, self.reference, fenced)

    def begins(self, request: ClaimRequest, wall: int) -> bool:
        """Return True when a claim would be granted as the first one, which binds the identity."""
        if self.identity is not None or request.request_id in self.granted:
            return False
        try:
            self._check_claim(request, wall)
            self._check_bounds(request, wall)
        except errors.LowwaterError:
            return False
        return True

    def _check_claim(self, request: ClaimRequest, now: int) -> str:
        """Refuse a claim, or return the identity to which it binds the computation."""
        identity = self._check_keys(request)
        self._check_identity(identity, now)
        self._check_order(request)
        self._check_place(request)
        return identity

    def _granted_before(self, request: ClaimRequest) -> Grant:
        sequencer, digest = self.granted[request.request_id]
        if digest and digest != request.digest:
            problem = (
                "named another claim before, which was granted: this one asks for something else, by its bounds, its order or "
                "its owner"
            )
            raise bad_field("request_id", problem, "send 16 new random bytes for a new claim", **self._about())
        group = self.map.owned_by(sequencer)
        if group is None:
            msg = "this claim was granted and has been superseded since; make a new one if this worker is the owner"
            raise errors.StaleSequencer(msg, metadata=self._about(sequencer=sequencer))
        watermarks = np.full(group.granted, MIN)  # MIN for ranges that another claim has taken since
        places = group.live_places()
        watermarks[group.handles_of(places)] = self.map.columns.values[group.base + places]
        return Grant(sequencer, watermarks, self.reference)

    def _check_keys(self, request: ClaimRequest) -> str:
        """Refuse keys that no worker may claim here, or return the identity to be bound."""
        if is_slicing(self.spec.name, request.identity):
            raise self._no_root("claims", "identity", request.identity)
        return request.identity

    def _no_root(self, what: str, field: str, value: str) -> errors.InvalidArgument:
        """Return the refusal of a request that only a slice may send, to its root."""
        problem = f"is {value}, by which a slice of {self.spec.name} {what}, and that is not cut into slices"
        return bad_field(field, problem, "leave it out", **self._about())

    def has_keys(self, start: bytes, end: bytes) -> bool:
        """Return True for an interval in the computation's key space; its map has no other keys."""
        del start, end
        return True

    def _check_identity(self, identity: str, now: int) -> None:
        """Raise IdentityMismatch for another identity than that of the first claim."""
        if self.identity is not None and identity != self.identity:
            raise self._mismatch(identity, self.identity, now)

    def _mismatch(
        self, identity: str, bound: str, now: int, fix: str = "claim with adopt=True"
    ) -> errors.IdentityMismatch:
        root = whole(self.spec.name)
        msg = (
            f"{root} is bound to the identity {bound!r}, not {identity!r}: two owners of one "
            f"name would fence each other. {self._owner(now)}Use another name or another namespace, or {fix} to start a "
            "new incarnation of it."
        )
        return errors.IdentityMismatch(msg, metadata=self._about(identity=identity, bound_to=bound))

    def _owner(self, now: int) -> str:
        """Return a sentence about the worker that reported last, alive or not; empty for none."""
        owned = [g for g in self.map.groups.values() if g.state is GroupState.OWNED]
        if not owned:
            return ""
        last = max(owned, key=attrgetter("last_report"))
        host = f" on {last.host}" if last.host else ""
        return f"{last.worker or 'An unnamed worker'}{host} owns it, {_heard(last.last_report, now)}. "

    def _check_order(self, request: ClaimRequest) -> None:
        order = (request.generation, request.ordinal)
        newest = self._newest_order(request)
        if order < newest:
            msg = (
                f"a run with generation {newest[0]}, ordinal {newest[1]} has claimed {self.spec.name}; this claim is "
                f"of the older generation {order[0]}, ordinal {order[1]}. Stop this run: it has been replaced."
            )
            raise errors.OlderClaim(msg, metadata=self._about_older(order, newest))
        if self.batches.last is not None and request.generation <= self.batches.last[0]:
            batch, digest = self.batches.last
            if not (request.generation == batch and request.batch_digest and request.batch_digest == digest):
                msg = (
                    f"batch {batch} of {self.spec.name} is committed, but this run starts at batch {request.generation}: its "
                    "checkpoint is older than what was published. Restore the newer checkpoint, or start a new incarnation with "
                    f"'lowwater reset {self.spec.name}'."
                )
                raise errors.Rewound(msg, metadata=self._about(generation=request.generation, committed=batch))

    def _about_older(self, order: tuple[int, int], newest: tuple[int, int]) -> dict[str, str]:
        del newest
        return self._about(generation=order[0], ordinal=order[1])

    def _newest_order(self, request: ClaimRequest) -> tuple[int, int]:
        """Return the least (generation, ordinal) that a claim may have."""
        del request
        return self.order

    def _check_place(self, request: ClaimRequest) -> None:
        """Refuse a claim in place of one that has lost ranges: it is late, or a zombie's."""
        if not request.instead_of:
            return
        group = self._owned(request.instead_of)
        if group.live_count != group.granted:
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=request.instead_of))

    def _check_bounds(self, request: ClaimRequest, wall: int) -> None:
        """Refuse a bound that leads the clock: revived ranges begin at their bounds, for good."""
        bounds = request.bound_micros
        ahead = bounds[(bounds > wall + self.spec.max_skew) & (bounds != MAX)]
        if len(ahead):
            msg = (
                f"bound_micros has {int(ahead[0])}: {self.spec.too_far(int(ahead[0]))}. Is it in microseconds? "
                "Claim without a bound when nothing is known."
            )
            fix = "event times up to max_skew ahead of the clock, or none"
            raise errors.TooFarAhead(msg, metadata=self._about(field="bound_micros", fix=fix))

    def revives(self, request: ClaimRequest) -> bool:
        """Return True when a claim takes retired ranges. O(claims that it touches)."""
        touched = self.map.overlapping(request.bounds[0], request.bounds[-1])
        return any(group.state is GroupState.RETIRED for group, _, _ in touched)

    def _apply_claim(self, op: pb.Claim, now: int, bounds: Sequence[bytes] | None = None) -> tuple[Group, list[Loss]]:
        """Apply a claim. ``bounds``: those of the op, if the caller has them as a list already."""
        group = Group(
            op.sequencer,
            Bounds(op.bounds if bounds is None else bounds),
            0,
            GroupState.OWNED,
            worker=op.worker,
            host=op.host,
            request_id=op.request_id,
            order=(op.generation, op.ordinal),
            claimed=now,
        )
        losses = self.map.claim(group, codec.int64s(op.bound_micros), now)
        self._carry(losses, group)
        inherit_arrivals(group, losses)
        inherit_masses(group, losses, bounded=bool(op.bound_micros))
        group.finished = bool((self.map.columns.values[group.slots()] == MAX).all())
        self._regrouped(losses, group)
        self.last_sequencer = op.sequencer
        self.input_version = self.input_version or op.input_version
        self._bind(op.identity)
        self.order = max(self.order, (op.generation, op.ordinal))
        if op.request_id:
            self.granted[op.request_id] = Granted(op.sequencer, op.asked)
            if len(self.granted) > GRANTS_KEPT:
                self.granted.popitem(last=False)
        return group, losses

    def _bind(self, identity: str) -> None:
        self.identity = identity

    def _carry(self, losses: Sequence[Loss], group: Group) -> None:
        """Pass the budgets of claims on to the claim that replaces them; only a root has these."""

    def _regrouped(self, losses: Sequence[Loss], *new: Group) -> None:
        """Follow ranges that went from some groups to new ones."""
        for loss in losses:
            if loss.group.live_count:
                self._settle_finished(loss.group)
        remainders = chain.from_iterable(loss.remainders for loss in losses)
        for group in (*new, *(loss.group for loss in losses), *remainders):
            self.masses.changed(group)
        self._mass_changed = True
        self._forget_dead_batches()

    def _fenced(self, losses: Iterable[Loss], reason: str) -> Iterable[Fenced]:
        for loss in losses:
            if loss.group.sequencer and loss.group.state is GroupState.OWNED:
                whole = sum(high - low for low, high in loss.handles) == loss.group.granted
                handles = None if whole else [handle for low, high in loss.handles for handle in range(low, high)]
                yield Fenced(self.spec.name, loss.group.sequencer, handles, reason)

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        """Replace the layout of the version ``expected``, and return the new version.

        A repeat of the newest change changes nothing. Raises IncarnationChanged, LayoutConflict,
        and InvalidArgument for a root. O(ranges).
        """
        if incarnation != self.incarnation:
            msg = f"{self.spec.name} is in incarnation {self.incarnation}, not {incarnation}; look at its ranges again"
            raise errors.IncarnationChanged(msg, metadata=self._about(incarnation=self.incarnation))
        layout = Layout(expected + 1, tuple(starts), tuple(tasks))
        if layout == self.layout:
            return layout.version
        if expected != self.layout.version:
            msg = f"version {self.layout.version} of the layout of {self.spec.name} is wanted, not {expected}; look at it first"
            raise errors.LayoutConflict(msg, metadata=self._about(version=self.layout.version))
        self.staged.flush(self.map)
        op = pb.Layout(version=layout.version, starts=starts, tasks=tasks)
        self._apply_layout(op)
        self.staged.append(pb.Op(layout=op))
        return layout.version

    def _apply_layout(self, op: pb.Layout) -> None:
        self.layout = codec.layout_from(op)

    def note_layout(self, sequencer: int, report: LayoutReport | None) -> None:
        """Remember an owner's report of its layout.

        A report may leave out ranges that the same claim has reported with the same version. If
        this process does not know them, the report counts as None.
        """
        if report is not None and not report.layout.starts:
            before = self.reported_layout(sequencer)
            complete = before is not None and before.version == report.layout.version
            report = replace(report, layout=before) if before is not None and complete else None
        self.layout_report, self._layout_reporter = report, sequencer

    def reported_layout(self, sequencer: int) -> Layout | None:
        """Return the layout that an owner has reported under a claim; None: none."""
        report = self.layout_report if self._layout_reporter == sequencer else None
        return None if report is None else report.layout

    def release(self, sequencer: int, now: int, failure: str | None = None) -> None:
        """Leave a claim's ranges unowned, holding their values. Raises StaleSequencer.

        ``failure``: first line of the error that ended its worker, or empty; None: as its last
        report says.
        """
        group = self._owned(sequencer)
        self.staged.flush(self.map)
        op = pb.Release(sequencer=sequencer)
        if group.heard:
            op.failure, op.waiting_for = group.remarks.failure, group.waiting_for
        if failure is not None:
            op.failure = failure
        self._apply_release(op, now)
        self.staged.append(pb.Op(release=op))

    def _apply_release(self, op: pb.Release, now: int) -> None:
        group = self.map.groups[op.sequencer]
        group.state = GroupState.UNOWNED
        group.last_report = now  # a replay has lost the reports that changed nothing
        # A process that has not heard of the worker does not know whether it had failed, and older
        # releases of the authority did not note it.
        group.remarks = Remarks(ended=True, failure=op.failure) if op.HasField("failure") else NO_REMARKS
        group.waiting_for = op.waiting_for
        self.masses.changed(group)
        self._forget_dead_batches()

    def refuse_owners(self, now: int) -> None:
        """Raise OwnedRanges while a worker owns a range that is not finished, alive or not."""
        owned = [g for g in self.map.groups.values() if g.state is GroupState.OWNED and not g.finished]
        if owned:
            raise self._owned_ranges(owned, now)

    def _owned_ranges(self, owned: Sequence[Group], now: int) -> errors.OwnedRanges:
        workers = sorted({group.worker or "unnamed" for group in owned})
        some = ", ".join(workers[:NAMED]) + (f" and {len(workers) - NAMED} more" if len(workers) > NAMED else "")
        last_report = max(group.last_report for group in owned)
        last = _heard(last_report, now)
        own, them, they = ("owns", "it", "it reports") if len(workers) == 1 else ("own", "them", "they report")
        msg = (
            f"{some} {own} key ranges of {self.spec.name}, {last}. Stop {them} in good order, which releases the ranges, or drop "
            f"{self.spec.name} with force: what {they} is refused then."
        )
        return errors.OwnedRanges(msg, metadata=self._about(workers=", ".join(workers[:NAMED])))

    @property
    def logged_inputs(self) -> int:
        """Version of the inputs in the log; 0: the log names none, and no worker has reported."""
        if self.input_version or self.incarnation > 1:
            return self.input_version
        return 1  # the first registration: every later version is in the log

    def revoke(
        self, input_version: int, now: int, *, bound: int | None = None, reason: str = "its inputs changed"
    ) -> list[Fenced]:
        """Make every sequencer stale. New claims must fold a newer version of the inputs.

        ``bound``, when inputs are added: the least of their low watermarks. Values of all ranges
        are lowered to it, because the old owners did not take the new inputs into account. A new
        owner may come too late to lower them. Frontiers of lateness are lowered
        too, and masses become unknown.
        """
        self.staged.flush(self.map)
        fenced = [
            Fenced(self.spec.name, group.sequencer, None, reason)
            for group in self.map.groups.values()
            if group.state is GroupState.OWNED
        ]
        op = pb.Revoke(input_version=input_version, bound_micros=bound)
        self._apply_revoke(op, now)
        self.staged.append(pb.Op(revoke=op))
        return fenced

    def _apply_revoke(self, op: pb.Revoke, now: int) -> None:
        self.input_version = op.input_version
        for group in self.map.groups.values():
            if group.state is GroupState.OWNED:
                group.remarks = NO_REMARKS  # a replay does not have them
            group.state = GroupState.UNOWNED
            self.masses.changed(group)
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
            self.masses.changed(group)
            group.lower_arrived(op.bound_micros)
            self._settle_finished(group)
        self._mass_changed = True

    def retire(
        self,
        start: bytes,
        end: bytes,
        *,
        force: bool,
        now: int,
        sequencer: int = 0,
        newest_claim: int | None = None,
    ) -> tuple[int, list[Fenced]]:
        """Retire an interval until it is claimed again.

        Returns the number of retired ranges, and which claims lost what.

        Raises OwnedRanges when a worker owns one of them, unless forced; OtherSlice. ``sequencer``:
        the claim that retires its own keys; StaleSequencer unless it owns exactly this interval.
        ``newest_claim``: the newest claim that the caller has read; None: any. If a late message
        retired keys that a worker has claimed since, the published value would lead that worker;
        StaleSequencer. Newer claims of other keys do not matter.
        """
        self._check_retire(start, end, sequencer)
        if newest_claim is not None and not self._newest_claim(start, end) <= newest_claim <= self.last_sequencer:
            msg = (
                f"a worker has claimed some of these keys of {self.spec.name} after you listed its "
                "ranges, so nothing was retired; list the ranges again, then repeat"
            )
            raise errors.StaleSequencer(msg, metadata=self._about(newest_claim=self.last_sequencer))
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
        self.staged.flush(self.map)
        op = pb.Retire(start=start, end=end)
        losses = self._apply_retire(op, now)
        self.staged.append(pb.Op(retire=op))
        return ranges, list(self._fenced(losses, "an operator retired it"))

    def _check_retire(self, start: bytes, end: bytes, sequencer: int) -> None:
        """Refuse to retire keys that may not be retired here, or not by this claim."""
        del start, end
        if sequencer:
            raise self._no_root("retires", "sequencer", str(sequencer))

    def _newest_claim(self, start: bytes, end: bytes) -> int:
        """Return the newest claim among those of these keys; 0: no claim counts. O(ranges there).

        A new claim may cut an owned range, and what remains of that range is unowned and names no
        claim. So unowned keys count as those of the newest claim of the computation. Retired keys
        count as 0: retiring them again changes nothing.
        """
        return max(
            group.sequencer or (self.last_sequencer if group.state is GroupState.UNOWNED else 0)
            for group, _, _ in self.map.overlapping(start, end)
        )

    def _carry_retired(self, losses: Sequence[Loss], retired: Group) -> None:
        """Pass the budgets of claims on to their retired ranges; only a root has these."""

    def _apply_retire(self, op: pb.Retire, now: int) -> list[Loss]:
        losses = self.map.retire(op.start, op.end, now)
        retired = [group for group, _, _ in self.map.overlapping(op.start, op.end)]
        self._carry_retired(losses, retired[0])
        inherit_arrivals(None, losses)
        inherit_masses(None, losses)
        self._regrouped(losses, *retired)
        return losses

    # -- reports -----------------------------------------------------------------------------------

    def report(
        self,
        report: GroupReport,
        *,
        sender: bytes,
        number: tuple[int, int],
        required: Fold,
        now: int,
        wall: int | None = None,
    ) -> list[Refused]:
        """Apply one claim's report, range by range, and return what was refused.

        ``number`` is (stream, number) of the sender; reports that name a turn are ordered by (turn,
        number). A report that is not above the newest one changes nothing and is refused, so that a
        sender that counts from the start again learns of it. ``required`` names the inputs as
        registered now: a fold over other incarnations of them counts as MIN. ``wall`` is the wall
        clock, which decides what is too far ahead; None: as ``now``.
        """
        group = self.map.owned_by(report.sequencer)
        if group is None:
            return [self._stale(report.sequencer, None)]
        if report.turn:
            sender, number = OWN_TURNS, (report.turn, number[1])
        newest = group.senders.get(sender)
        if newest is not None and number <= newest:
            return [_older(report, newest[0])]
        if report.turn > (0 if newest is None else newest[0]) + LONGEST_STEP:
            msg = f"turn is {report.turn}, more than {LONGEST_STEP} above the newest of the claim; count turns from 1"
            return [Refused(group.sequencer, errors.InvalidArgument.reason, msg, report.handles)]
        if newest is None and sender != OWN_TURNS and len(group.senders) >= SENDERS_KEPT:
            msg = f"{SENDERS_KEPT} senders have reported for this claim, and none of them may be forgotten; claim again"
            return [Refused(group.sequencer, errors.StaleSequencer.reason, msg)]
        if refusal := _wrong(group, report, required):
            return [refusal]
        group.senders[sender] = number
        if newest is None or newest[0] < number[0]:
            # The number must be durable even if no value changes: reports of an earlier stream may
            # come late, also after a restart. No stream is before the first one, so losing that
            # number is safe.
            self._note_number(group, strong=number[0] > 1)
        group.last_report = now
        wall = now if wall is None else wall
        values, mass, late = report.watermarks, report.mass, report.lateness
        group.oldest_operation = min(report.oldest_operation, now)
        self.masses.changed(group)
        group.waiting_for, group.remarks, group.heard = report.waiting_for, report.remarks, True
        refused: list[Refused] = []
        if unknown := self._refuse_fold(report, required):
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and mass.at_unknown()
            late = late and replace(late, frontier=MIN)
            refused.append(unknown)
        uncounted: list[Refused] = []
        if late is not None and self.budgets:
            uncounted = self._take_lateness(group, late, now, wall)
        refused.extend(uncounted)
        # If lateness was refused, the mass stays as it was. Records that left it without being
        # counted would be lost, and a budget by pending records would spend them twice.
        if mass is not None and not (uncounted and self.spec.all_pending):
            refused.extend(self._take_mass(group, mass, wall))
        refused.extend(self._take_values(group, report.handles, values, finish=report.finish, now=now, wall=wall))
        return refused

    def _refuse_fold(self, report: GroupReport, required: Fold) -> Refused | None:
        """Return the refusal of a report whose values all count as unknown, because of its fold."""
        if _was_reset(report.fold, required):
            msg = "the report folds another incarnation of an input than the one in force, so it counts as unknown; fold anew"
            return Refused(report.sequencer, errors.IncarnationChanged.reason, msg, report.handles)
        if 0 in report.fold.input_incarnations and (beyond := _beyond_unknown(report.watermarks, report.mass)):
            msg = f"{self._unregistered(report.fold)}, so {beyond} must be {MIN}, and the report counts as that; fold all inputs"
            return Refused(report.sequencer, errors.InvalidArgument.reason, msg, report.handles)
        return None

    def _must_be_unknown(self, field: str, fold: Fold) -> errors.InvalidArgument:
        """Return the refusal of a field above MIN though an input is folded as not registered."""
        problem = f"must be {MIN}, because {self._unregistered(fold)}"
        return bad_field(field, problem, f"send {MIN} until all inputs are registered", **self._about())

    def _unregistered(self, fold: Fold) -> str:
        inputs = zip(self.spec.inputs, fold.input_incarnations, strict=False)
        names = [name for name, incarnation in inputs if not incarnation]
        return f"{' and '.join(names) or 'an input'} is folded as not registered, which is unknown"

    def _take_values(
        self,
        group: Group,
        handles: npt.NDArray[np.uint32] | None,
        values: Int64s,
        *,
        finish: bool,
        now: int,
        wall: int,
    ) -> list[Refused]:
        """Store the values that pass the checks, and return the refusals of the others."""
        limit = wall + self.spec.max_skew
        named = None if handles is None else handles.astype(np.intp)
        wrong = np.zeros(0, dtype=np.bool_)
        refused: list[Refused] = []
        too_far = ""
        if group.live is not None:
            wrong = group.lost(named)
            if wrong.any():
                refused.append(self._stale(group.sequencer, _named(named, wrong)))
        if len(values) and int(values.max()) > limit:
            finished = values == MAX
            # A value that raises nothing does no harm however far ahead it is, and a lowering must
            # never be lost: this clock may be wrong.
            ahead = (values > limit) & ~finished & (values > self._standing(group, named))
            if len(wrong):
                ahead &= ~wrong  # ranges of another claim are refused for that, not by the clock
            if ahead.any():
                least = int(np.broadcast_to(values, len(ahead))[ahead].min())
                too_far = self.spec.too_far(least)
                skew = duration(self.spec.max_skew / 1_000_000)
                words = f"the clock: {Watermark(least)} is ahead of it by more than its max_skew of {skew}"
                group.refuse_ahead(np.flatnonzero(ahead) if named is None else named[ahead], words)
            for mask, reason, text in (
                (ahead, errors.TooFarAhead.reason, too_far),
                (
                    finished & (not finish),
                    errors.FinishRequired.reason,
                    "MAX means finished and needs finish to be set",
                ),
            ):
                if mask.any():
                    ranges = group.granted if named is None else len(named)
                    spread = np.broadcast_to(mask, ranges) if len(mask) == 1 else mask
                    spread = spread & ~wrong if len(wrong) else spread  # one refusal a range
                    if spread.any():
                        refused.append(Refused(group.sequencer, reason, text, _named(named, spread)))
                    wrong = spread | wrong if len(wrong) else spread
        if len(wrong) and wrong.any():
            named = np.arange(group.granted) if named is None else named
            values = np.broadcast_to(values, len(named))[~wrong]
            named = named[~wrong]
        if len(values):
            group.accept(named)
        self._store(group, None if named is None else group.places_of(named), values, now)
        return refused

    def _standing(self, group: Group, named: npt.NDArray[np.intp] | None) -> Int64s:
        """Return the values of the ranges of some handles, None: of all; MIN where they are lost.

        O(handles).
        """
        lost = group.lost(named)
        handles = np.arange(group.granted) if named is None else named
        standing = np.full(len(handles), MIN, dtype=np.int64)
        standing[~lost] = self.map.columns.values[group.base + group.places_of(handles[~lost])]
        return standing

    def _take_mass(self, group: Group, mass: Mass, wall: int) -> list[Refused]:
        limit = wall + self.spec.max_skew
        problem = ""
        if len(mass.starts) != len(mass.counts):
            problem = f"mass.pending has {len(mass.starts)} starts and {len(mass.counts)} counts; send as many of each"
        elif (mass.counts < 0).any() or (mass.starts[1:] <= mass.starts[:-1]).any():
            problem = "mass.pending must have ascending starts and counts below 2^63"
        elif (mass.others or mass.unknown) and not self.TAKES_WHOLE_MASSES:
            problem = "mass.others and mass.unknown are for slices; send the mass of the claim"
        elif float(mass.counts.sum(dtype=np.float64)) + sum(part.recent for part in mass.parts) > MOST_RECORDS:
            problem = f"mass counts more than {MOST_RECORDS} records; no claim has that many"
        if problem:
            return [Refused(group.sequencer, errors.InvalidArgument.reason, problem)]
        # Pending records from the far future count at the limit: one bad timestamp must not raise a
        # heuristic watermark for good.
        mass = replace(mass, starts=np.minimum(mass.starts, limit))
        if self.TAKES_WHOLE_MASSES:
            mass = mass.at_most(limit)  # see RootComputation._take_lateness
        for share, micros in chain.from_iterable(part.frontiers.items() for part in mass.parts):
            if limit < micros != MAX:
                msg = f"the frontier of the share {share} ppm: {self.spec.too_far(micros)}; the mass is left as it was"
                return [Refused(group.sequencer, errors.TooFarAhead.reason, msg)]
        self._set_mass(group, mass)
        return []

    def _take_lateness(self, group: Group, reported: Lateness, now: int, wall: int) -> list[Refused]:
        """Count what a claim has not reported before, judged by what is published now."""
        op = self.late.arrived(self.spec, group, reported, self.published, self.budgets, now, wall)
        if isinstance(op, Refused):
            return [op]
        if op is not None:
            self.late.add(group, op)
            self.staged.claim(group.sequencer).arrived.append(op)
        return []

    # -- micro-batches -----------------------------------------------------------------------------

    def stage_task(
        self, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart, *, most: int = MAX_PART_BYTES
    ) -> None:
        """Keep a task's part of a micro-batch in memory; all parts may take ``most`` bytes.

        Raises StaleSequencer, InvalidArgument, Overloaded.
        """
        group = self._owned(sequencer)
        if len(part.handles) and int(part.handles.max()) >= group.granted:
            problem = f"names {int(part.handles.max())}, but the claim has the handles 0 to {group.granted - 1}"
            raise bad_field("handles", problem, f"name handles below {group.granted}", **self._about())
        if not self.batches.add(sequencer, batch, task, part, most):
            crowd = (
                f", for those of all computations take more than {ALL_PART_BYTES} B" if most < MAX_PART_BYTES else ""
            )
            msg = f"too many task parts wait for batch {batch} to be committed, or too large ones{crowd}; use fewer partitions"
            raise errors.Overloaded(msg, metadata=self._about(batch=batch))

    def _forget_dead_batches(self) -> None:
        """Forget the staged parts of claims that have ended."""
        self.batches.forget_dead(lambda sequencer: self.map.owned_by(sequencer) is not None)

    def prepare(self, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch.

        Returns the attempts whose parts never came; if there are any, the batch is not prepared.
        Raises StaleSequencer; InvalidArgument for a bound or a frontier above MIN that folds an
        unregistered input, and for an oldest operation that is no time.
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
                raise self._must_be_unknown(beyond, request.fold)
        if problem := wrong_operation(request.oldest_operation):
            fix = "a time in microseconds since 1970, or 0"
            raise errors.InvalidArgument(problem, metadata=self._about(field="oldest_operation_micros", fix=fix))
        if self.batches.last is not None:
            # A delayed repeat. If it were committed again, values of an older batch would replace
            # those of a newer one.
            if request.batch < self.batches.last[0]:
                return list(request.tasks)
            if (request.sequencer, request.batch) == (self.batches.committed_by, self.batches.last[0]):
                return []
        return self.batches.prepare(request, group.granted)

    def commit(self, sequencer: int, batch: int, required: Fold, now: int, wall: int | None = None) -> list[Refused]:
        """Apply the prepared batch, whole or not at all, and return what was refused of it.

        A repeat gets the first answer. Raises StaleSequencer, NotPrepared, InputVersion,
        IncarnationChanged.
        """
        self._owned(sequencer)
        prepared = self.batches.prepared
        if prepared is None or (prepared.request.sequencer, prepared.request.batch) != (sequencer, batch):
            if self.batches.last is not None and self.batches.last[0] == batch:
                return self.batches.refused
            msg = (
                f"no whole set of task parts is prepared for batch {batch} of {self.spec.name}; the stage holds until a later "
                "batch is prepared. Run an empty batch."
            )
            raise errors.NotPrepared(msg, metadata=self._about(batch=batch))
        if prepared.request.fold.input_version != required.input_version:
            msg = f"the batch folds version {prepared.request.fold.input_version} of the inputs; {required.input_version} is in force"
            raise errors.InputVersion(msg, metadata=self._about(batch=batch))
        if _was_reset(prepared.request.fold, required):
            msg = f"an input of {self.spec.name} was reset while batch {batch} ran; claim again"
            raise errors.IncarnationChanged(msg, metadata=self._about(batch=batch))
        return self._apply_prepared(now, now if wall is None else wall)

    def vouch(self, sequencer: int, through: int, fold: Fold, required: Fold, wall: int) -> None:
        """Allow an output to call itself complete up to ``through``, before a report says so.

        No input below that event time may be added from then on. ``wall`` as in report: a value
        that a report may not have is refused here too. Raises StaleSequencer, InputVersion,
        IncarnationChanged, TooFarAhead; InvalidArgument for a value above MIN that folds an
        unregistered input.
        """
        self._owned(sequencer)
        if fold.input_version != required.input_version:
            msg = f"the output goes by version {fold.input_version} of the inputs; {required.input_version} is in force"
            raise errors.InputVersion(msg, metadata=self._about())
        if _was_reset(fold, required):
            msg = f"an input of {self.spec.name} was reset meanwhile; claim again"
            raise errors.IncarnationChanged(msg, metadata=self._about())
        if 0 in fold.input_incarnations and through > MIN:
            raise self._must_be_unknown("through_micros", fold)
        if through <= self.vouched:
            return
        if wall + self.spec.max_skew < through != MAX:
            msg = f"through_micros has {through}: {self.spec.too_far(through)}. Is it in microseconds?"
            fix = "event times up to max_skew ahead of the clock"
            raise errors.TooFarAhead(msg, metadata=self._about(field="through_micros", fix=fix))
        self.staged.flush(self.map)
        op = pb.Vouch(through_micros=through)
        self._apply_vouch(op)
        self.staged.append(pb.Op(vouch=op))

    def _apply_vouch(self, op: pb.Vouch) -> None:
        self.vouched = max(self.vouched, op.through_micros)

    def _apply_prepared(self, now: int, wall: int) -> list[Refused]:
        prepared = self.batches.prepared
        assert prepared is not None
        request = prepared.request
        self.batches.committed(request.sequencer, request.batch)
        group = self.map.owned_by(request.sequencer)
        if group is None:
            return [self._stale(request.sequencer, None)]
        values, reported = prepared.values()
        group.last_report = now
        group.oldest_operation = min(request.oldest_operation, now)
        self.masses.changed(group)
        group.recent.add(now, prepared.finished)
        refused = self._take_mass(group, prepared.mass(group.recent.total), wall)
        handles = np.flatnonzero(reported).astype(np.uint32)
        refused += self._take_values(group, handles, values[reported], finish=request.bound == MAX, now=now, wall=wall)
        self.staged.flush(self.map)
        op = pb.Batch(
            sequencer=request.sequencer, number=request.batch, digest=request.digest, finished=prepared.finished
        )
        self.batches.apply(op)
        self.staged.append(pb.Op(batch=op))
        self.batches.refused = refused
        return refused

    # -- what a round has changed ------------------------------------------------------------------

    def _owned(self, sequencer: int) -> Group:
        """Return the claim of a sequencer, which ``IntervalMap.owned_by`` checks.

        Raises StaleSequencer.
        """
        group = self.map.owned_by(sequencer)
        if group is None:
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=sequencer))
        return group

    def _stale(self, sequencer: int, handles: npt.NDArray[np.uint32] | None) -> Refused:
        return Refused(sequencer, errors.StaleSequencer.reason, STALE, handles)

    def _about(self, **facts: object) -> dict[str, str]:
        return {"computation": self.spec.name} | {key: str(value) for key, value in facts.items()}

    def _store(self, group: Group, places: npt.NDArray[np.intp] | None, values: Int64s, now: int) -> None:
        """Set values that passed all checks, and note which places have changed.

        ``places`` None: all places, and all are live.
        """
        columns = self.map.columns
        slots = group.slots() if places is None else group.base + places
        old = columns.values[slots]
        changed = old != values
        if not changed.any():
            return
        changes = self.staged.claim(group.sequencer)
        changes.lowers = changes.lowers or bool((values < old).any())
        if places is None and changed.all():
            changes.whole = True
            columns.set(slots, values)
            columns.since[slots] = now
        else:
            moved = np.flatnonzero(changed) if places is None else places[changed]
            changes.places.append(moved)
            columns.set(group.base + moved, values if len(values) == 1 else values[changed])
            columns.since[group.base + moved] = now
        self._settle_finished(group)

    def _settle_finished(self, group: Group) -> None:
        values = self.map.columns.values[group.slots()]
        finished = bool(values[0] == MAX and (values == MAX).all())
        if finished != group.finished:
            group.finished = finished
            self._mass_changed = True
            self.masses.changed(group)

    def _set_mass(self, group: Group, mass: Mass) -> None:
        if group.mass_known is not mass.unknown and mass.same(group.mass):
            return
        group.mass, group.mass_known, group.stand_ins = mass, not mass.unknown, []
        self.masses.changed(group)
        self.staged.claim(group.sequencer).mass = True
        self._mass_changed = True

    def _note_number(self, group: Group, *, strong: bool) -> None:
        """Journal the newest numbers of a claim's senders, even if no value changes.

        ``strong``: they must not be lost.
        """
        changes = self.staged.claim(group.sequencer)
        changes.newer = changes.newer or strong

    def _apply_values(self, op: pb.Values, now: int) -> None:
        group = self.map.owned_by(op.sequencer)
        values = codec.int64s(op.micros)
        handles = codec.handles(op.handles)
        if group is None or (
            len(values) and group.live is not None and (not len(handles) or group.lost(handles).any())
        ):
            msg = f"values for ranges that the claim {op.sequencer} does not own"
            raise ValueError(msg)
        if len(values):
            places = group.places_of(handles) if len(handles) else None
            self._store(group, places, values, now)
            # A range whose value moved and came back within the round is in the op too.
            self.map.columns.since[group.slots() if places is None else group.base + places] = now
        if op.HasField("mass"):
            self._set_mass(group, codec.mass_from(op.mass))
        for arrived in op.arrived:
            self.late.add(group, arrived)
        if op.kept:
            group.slice_budgets = codec.slice_budgets_from(op.kept)
        group.senders = codec.senders_from(op.senders)
        group.oldest_operation = op.oldest_operation_micros
        self.masses.changed(group)
        group.last_report = now

    # -- rounds ------------------------------------------------------------------------------------

    def past_claims(self) -> pb.Snapshot:
        """Return what goes on with the keys, whoever serves them: all of the claims but ranges."""
        state = pb.Snapshot(
            incarnation=self.incarnation,
            last_sequencer=self.last_sequencer,
            identity=self.identity or "",
            bound=self.identity is not None,
            generation=self.order[0],
            ordinal=self.order[1],
            granted=[
                pb.Granted(request_id=key, sequencer=sequencer, asked=digest)
                for key, (sequencer, digest) in self.granted.items()
            ],
            input_version=self.input_version,
            vouched_micros=None if self.vouched == MIN else self.vouched,
        )
        if self.batches.last is not None:
            state.has_batch, state.batch_sequencer = True, self.batches.committed_by
            state.batch, state.batch_digest = self.batches.last
        return state

    def take_past_claims(self, state: pb.Snapshot) -> None:
        """Go on behind the claims of a state that :meth:`past_claims` has returned."""
        self.last_sequencer = max(self.last_sequencer, state.last_sequencer)
        self.identity = state.identity if state.bound else None
        self.order = max(self.order, (state.generation, state.ordinal))
        for grant in state.granted:
            self.granted[grant.request_id] = Granted(grant.sequencer, grant.asked)
        self.input_version = state.input_version
        self.vouched = state.vouched_micros if state.HasField("vouched_micros") else MIN
        if state.has_batch:
            self.batches.last, self.batches.committed_by = (state.batch, state.batch_digest), state.batch_sequencer

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        """Return the record of this round, and whether it must not be lost (rule 10).

        None: the round has changed nothing.
        """
        self.staged.flush(self.map)
        if not self.staged.ops and not self.tasks.changed:
            return None
        low = self.map.minimum()
        # A computation whose ranges are all retired keeps its watermark: MAX means "nothing more
        # will come", and no owner is left to promise that.
        self.raise_low(self.low if low == MAX and self.map.all_retired else max(self.low, low), now)
        self._move_budgets()
        self._move_heuristics()
        self.tasks.pass_low(self.low)
        steps, strong = self.tasks.take_steps()
        ops, is_strong = self.staged.take()
        record = pb.Record(
            incarnation=self.incarnation,
            time_micros=now,
            ops=[*ops, *(pb.Op(task=step) for step in steps)],
            low_micros=self.low,
            heuristics=codec.shares(self.heuristics),
            budgets=codec.shares({ppm: budget.value for ppm, budget in self.budgets.items()}),
            budget_references=codec.shares({ppm: budget.reference for ppm, budget in self.budgets.items()}),
        )
        return record.SerializeToString(), strong or is_strong

    def raise_low(self, low: int, now: int) -> None:
        """Move the low watermark, and note the steps of the history that this completes."""
        if low != self.low:
            self.history.note(self.incarnation, self.spec.history_step, old=self.low, low=low, now=now)
            self.low, self.since = low, now

    def publish(self) -> View:
        """Make the staged watermarks visible, after their record is durable."""
        self.published = self._view()
        self.published_layout = self.layout
        self.tasks.publish()
        return self.published

    def _move_heuristics(self) -> None:
        moved: dict[int, int] = {}
        self.mass_turns += self._mass_changed
        if self._mass_changed and self.heuristics:
            moved = self.masses.candidates()
            self.reference = self.masses.reference_time()
        self._mass_changed = False
        for share, value in self.heuristics.items():
            self.heuristics[share] = max(value, self.low, moved.get(share, MIN))

    def _move_budgets(self, record: pb.Record | None = None) -> None:
        """Move the budgets by the records that this round, or a replayed record, has counted.

        O(buckets log buckets), where the claims report all that is pending.
        """
        references: dict[int, int] = {}
        pending = _UNKNOWN
        if record is not None:
            references = codec.shares_from(record.budget_references)
        elif self.budgets and (self.late or self._mass_changed):
            groups = self.map.open_groups()
            arrived = [position for group in groups if (position := group.arrived()) is not None]
            references = {ppm: reached(arrived, ppm) for ppm in self.budgets}
            if self.spec.all_pending and all(group.mass_known and group.masses() for group in groups):
                pending = Pending.of([mass for group in groups for mass in group.masses()])
        self.late.move(self.budgets, references, self.low, pending if self.spec.all_pending else None)

    def replay_budgets(self, record: pb.Record) -> None:
        """Move the budgets by a replayed record, to the values that it has published.

        Raises ValueError when one goes back.
        """
        stored = codec.shares_from(record.budgets)
        old = {ppm: budget.value for ppm, budget in self.budgets.items()}
        self._move_budgets(record)
        for ppm, budget in self.budgets.items():
            # Records of releases without budgets have no value.
            budget.value = stored.get(ppm, budget.value)
            if budget.value < old[ppm]:
                msg = f"the watermark of a lateness budget goes back from {old[ppm]} to {budget.value}"
                raise ValueError(msg)

    def replay(self, op: pb.Op, now: int) -> None:
        """Apply one journaled op, through the functions that applied it first.

        Raises KeyError or ValueError when it does not follow from the ops before it.
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
                self._apply_release(op.release, now)
            case "revoke":
                self._apply_revoke(op.revoke, now)
            case "retire":
                self._apply_retire(op.retire, now)
            case "batch":
                self.map.groups[op.batch.sequencer].recent.add(now, op.batch.finished)
                self.batches.apply(op.batch)
            case "vouch":
                self._apply_vouch(op.vouch)
            case "task":
                self.tasks.apply(op.task)
            case "layout":
                self._apply_layout(op.layout)
            case _:
                self._replay_other(op, now)
        self.staged.changes.clear()

    def _replay_other(self, op: pb.Op, now: int) -> None:
        del now
        msg = f"unknown op {op.WhichOneof('kind')}"
        raise ValueError(msg)

    def _view(self) -> View:
        oldest = self.masses.oldest_operation()
        return View(
            self.spec.name,
            self.incarnation,
            self.low,
            tuple(self.heuristics.items()),
            0 if self.low == MAX else oldest,
            self.since,
            len(self.map),
            self.map.holder(),
            tuple(budget.view() for budget in self.budgets.values()),
            dict(self.late.passed),
        )

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        self.map.check()
        self.masses.check(self.map.run_groups())
        self.tasks.check()
        for tasks in self.tasks:
            assert not tasks.every or tasks.next == tasks.start or tasks.next <= self.low, "no task before L"
        assert self.published.low <= self.low
        assert self.published.low <= max(self.low, self.map.minimum())
        for value in self.heuristics.values():
            assert value >= self.low, "a heuristic watermark is never below the low watermark"
            assert value != MAX or self.low == MAX, "only the low watermark says finished"
        for budget in self.budgets.values():
            assert budget.value >= self.low, "the watermark of a lateness budget is never below the low watermark"
            assert budget.value != MAX or self.low == MAX, "only the low watermark says finished"
        for group in self.map.groups.values():
            assert group.sequencer <= self.last_sequencer


def wrong_operation(micros: int) -> str:
    """Return the fault of an oldest operation's time, and the fix; empty: none.

    A time ahead of this clock is no fault: it counts as now.
    """
    if 0 <= micros < MAX:
        return ""
    return f"oldest_operation_micros is {micros}; send the time by the wall clock, in microseconds since 1970, or 0 for none"


def _wrong(group: Group, report: GroupReport, required: Fold) -> Refused | None:
    """Return the refusal of a report with wrong fields or another input version, or None."""
    ranges = group.granted if report.handles is None else len(report.handles)
    problem = ""
    if len(report.watermarks) not in (1, ranges):
        problem = f"watermarks_micros has {len(report.watermarks)} values for {ranges} ranges; send one a range, or one for all"
    elif report.handles is not None and ranges and int(report.handles.max()) >= group.granted:
        problem = f"handles names {int(report.handles.max())}, but the claim has the handles 0 to {group.granted - 1}"
    elif report.handles is not None and not _distinct(report.handles):
        problem = "handles names a range twice; send one value a range"
    else:
        problem = wrong_operation(report.oldest_operation)
    if problem:
        return Refused(group.sequencer, errors.InvalidArgument.reason, problem, report.handles)
    if report.fold.input_version != required.input_version:
        msg = (
            f"the report folds version {report.fold.input_version} of the inputs, but {required.input_version} is in force; "
            "claim again to learn the new inputs"
        )
        return Refused(group.sequencer, errors.InputVersion.reason, msg, report.handles)
    return None


def _older(report: GroupReport, newest: int) -> Refused:
    if report.turn:
        msg = f"a newer report of this claim was taken over, of its turn {newest}; send the full state under a greater turn"
    else:
        msg = f"a newer report of this sender was taken over, of its stream {newest}; open a greater stream and send the full state"
    return Refused(report.sequencer, errors.OldStream.reason, msg, newest=newest)


def _was_reset(folded: Fold, now: Fold) -> bool:
    """Return True when an input was reset after it was folded.

    An input that was registered after the fold does not count: it was folded as unknown, so no
    value of the report is above MIN.
    """
    before, after = folded.input_incarnations, now.input_incarnations
    return len(before) != len(after) or any(old not in (0, new) for old, new in zip(before, after, strict=True))


def _beyond_unknown(values: Int64s, mass: Mass | None) -> str:
    """Return the field that is above MIN though an input is unknown; empty: none."""
    if bool((values > MIN).any()):
        return "watermarks_micros"
    frontiers = () if mass is None else chain.from_iterable(part.frontiers.values() for part in mass.parts)
    return "mass.frontiers" if any(micros > MIN for micros in frontiers) else ""


def _distinct(handles: npt.NDArray[np.uint32]) -> bool:
    return bool((handles[1:] > handles[:-1]).all()) or len(np.unique(handles)) == len(handles)


def _named(handles: npt.NDArray[np.intp] | None, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    chosen = np.flatnonzero(mask) if handles is None else handles[mask]
    return chosen.astype(np.uint32)


def _heard(last_report: int, now: int) -> str:
    """Return when a worker was heard of last; 0: not since the authority restarted."""
    return f"last heard of {duration(max(0, now - last_report) / 1e6)} ago" if last_report else "not heard of lately"
