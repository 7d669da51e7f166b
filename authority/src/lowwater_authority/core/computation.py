"""One computation: its claims, its rounds, and the watermarks it publishes.

In this order: claims, reports, micro-batches, what a round has changed so far, rounds.

The state here is the *staged* state: everything that has been checked and is, or is about to be,
appended. Requests are checked against it in arrival order, so that a report behind a claim in the
same round meets the new owner. What readers see is :attr:`Computation.published`, which moves only
after the append: durable before visible.

A round is: any number of staging calls, :meth:`take_record`, an append of its result,
:meth:`publish`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from lowwater import errors
from lowwater.core.text import duration
from lowwater.watermark import Watermark
from lowwater_authority.core import codec
from lowwater_authority.core.batches import ALL_PART_BYTES, MAX_PART_BYTES, BatchStage
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.budget import Budget, Kept, Lateness, Pending, reached
from lowwater_authority.core.groups import MOST_RECORDS, Group, GroupState, Mass
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.history import History
from lowwater_authority.core.inheritance import inherit_arrivals, inherit_masses
from lowwater_authority.core.interval_map import IntervalMap, Range, Taken
from lowwater_authority.core.late_records import LateRecords
from lowwater_authority.core.layout import Layout, Told
from lowwater_authority.core.names import is_slicing, whole
from lowwater_authority.core.requests import Fenced, Grant, Granted, Refused
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
"""Most workers that a refusal lists."""

GRANTS_KEPT: Final = 4096
"""Request ids remembered, so that a repeated claim gets its first answer even after it was
superseded."""

SENDERS_KEPT: Final = 64
"""Senders of one claim whose newest report is remembered. One process owns a claim, so there is
rarely a second; one more is refused, for an older report of a sender that was forgotten would
count."""

OWN_TURNS: Final = b""
"""Stands for the sender where the reports of a claim count turns of their own, whatever streams
they come by."""

LARGEST_EPOCH: Final = 1 << 23
"""Greatest ownership number that a caller may name. Sequencers have room for twice as many, so a
made-up number cannot use them up."""

LONGEST_STEP: Final = 1 << 32
"""Greatest distance between the turns of two reports of a claim. A made-up turn leaves room for all
that the claim's owner will ever count."""

LARGEST_STREAM: Final = (1 << 63) - 1
"""Greatest number of a stream. A sender that counts by a clock has room for it, and no stream ends
the room of the next one."""

STALE: Final = (
    "the sequencer is stale: a newer claim, a reset or a retirement took the ranges over. Stop writing for them."
)


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
    budgets: tuple[Kept, ...]
    """Least first."""
    passed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By share in ppm of a heuristic watermark: records that came while it was a time, and those of
    them that came behind it. Of those whose lateness was told."""


class Computation:
    """The state machine of one computation in one incarnation: everything that it knows, and the ops that its next record will have.

    Live requests and replayed ops store values and masses by the same functions. What micro-batches say passes the checks of any
    report. ``epoch_base`` is the least sequencer of this ownership less one; see ``epoch_base`` in engine/holding.py.

    Cost: a report is O(its handles); a claim O(ranges touched and claimed + log); taking the record O(changed ranges +
    blocks), plus what :class:`Masses` says when heuristics are registered and a mass or frontier changed.
    """

    TAKES_WHOLE_MASSES: ClassVar = False
    """Whether a report may carry the mass of all claims of a slice."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        self.spec = spec
        self.epoch_base = epoch_base
        self.incarnation = spec.incarnation
        self.map = IntervalMap(spec.keys.began)
        self.masses = Masses(spec.heuristics, self.map.run_groups())
        self.batches = BatchStage()
        self.tasks = Tasks()
        self.low = MIN
        self.heuristics = dict.fromkeys(spec.heuristics, MIN)
        self.late = LateRecords()
        self.budgets = {ppm: Budget(ppm) for ppm in spec.budgets}
        self.since = 0
        self.history = History()
        self.reference = MIN
        """The event time that ages of histograms count from, as of the last record; MIN before any
        frontier."""
        self.last_sequencer = 0
        self.input_version = 0
        """Version of the inputs that the log knows: that of the last revocation, and until there is
        one that of the first claim. 0: neither, in this incarnation. Authorities of 0.2 wrote it
        with claims of slices only."""
        self.identity: str | None = None
        self.order = (0, 0)
        self.vouched = MIN
        """Up to here an output may say that it is complete, reported or not: no input that is added
        may stand below it."""
        self.layout = Layout()
        """The one that is wanted."""
        self.told: Told | None = None
        """What the owner has said of its own; None: not since this process holds the computation.
        """
        self.told_by = 0
        """The claim under which it has."""
        self.granted: OrderedDict[bytes, Granted] = OrderedDict()
        self.staged = Staged()
        self._mass_changed = False
        self.mass_turns = 0
        """Grows with each record in which a mass, or a frontier, has changed."""
        self.published = self._view()
        self.published_layout = self.layout

    def follow(self, spec: Spec) -> None:
        """Go on with the registration that the graph has now, of the same incarnation or a newer one."""
        self.spec = spec

    # -- claims ------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Grant:
        """Grant the ranges between the request's bounds, or refuse it and change nothing.

        A repeat of a request gets the first answer; its id names no other request
        (InvalidArgument). A prepared batch that the claim's generation proves committed is applied
        first. Raises IdentityMismatch, OlderClaim, Rewound, TooFarAhead, StaleSequencer (a repeat
        of a superseded claim). ``wall`` as in report.
        """
        wall = now if wall is None else wall
        if request.request_id in self.granted:
            return self._granted_before(request)
        identity = self._check_claim(request)
        self._check_bounds(request, wall)
        prepared = self.batches.prepared
        if prepared is not None and prepared.request.batch < request.generation:
            self._apply_prepared(now, wall)
        self.staged.flush(self.map)
        op = pb.Op()
        claim = op.claim  # made where it stays: a copy of millions of bounds takes long
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
        group, taken = self._apply_claim(claim, now, request.bounds)
        group.last_report = now  # nobody is accused of silence from the time of an owner before it
        self.staged.append(op)
        watermarks = self.map.columns.values[group.slots()].copy()
        fenced = tuple(self._fenced(taken, "a newer claim took it over"))
        return Grant(group.sequencer, watermarks, self.reference, fenced)

    def begins(self, request: ClaimRequest, wall: int) -> bool:
        """Whether a claim would be the first of this incarnation: it decides whose the computation is. Not one that is refused."""
        if self.identity is not None or request.request_id in self.granted:
            return False
        try:
            self._check_claim(request)
            self._check_bounds(request, wall)
        except errors.LowwaterError:
            return False
        return True

    def _check_claim(self, request: ClaimRequest) -> str:
        """Raise what a claim is refused for, if it is; returns the identity that it binds the computation to."""
        identity = self._check_keys(request)
        self._check_identity(identity)
        self._check_order(request)
        self._check_place(request)
        return identity

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
        group = self.map.owned_by(sequencer)
        if group is None:
            msg = "this claim was granted and has been superseded since; make a new one if this worker is the owner"
            raise errors.StaleSequencer(msg, metadata=self._about(sequencer=sequencer))
        watermarks = np.full(group.granted, MIN)  # of what is somebody else's by now nothing is known
        places = group.live_places()
        watermarks[group.handles_of(places)] = self.map.columns.values[group.base + places]
        return Grant(sequencer, watermarks, self.reference)

    def _check_keys(self, request: ClaimRequest) -> str:
        """Refuse a claim of keys that no worker may claim here; returns the identity that the claim binds the computation to."""
        if is_slicing(self.spec.name, request.identity):
            raise self._no_root("claims", "identity", request.identity)
        return request.identity

    def _no_root(self, what: str, field: str, value: str) -> errors.InvalidArgument:
        """Return the refusal of what only a slice asks of its root."""
        msg = f"{field} is {value}, by which a slice of {self.spec.name} {what}, and that is not cut into slices; leave it out"
        return errors.InvalidArgument(msg, metadata=self._about(field=field, fix="leave it out"))

    def has_keys(self, start: bytes, end: bytes) -> bool:
        """Whether an interval lies in the key space of this computation.

        Its map must not be asked about other keys.
        """
        del start, end
        return True

    def _check_identity(self, identity: str) -> None:
        """Raise IdentityMismatch for another identity than that of the first claim."""
        if self.identity is not None and identity != self.identity:
            raise self._mismatch(identity, self.identity)

    def _mismatch(self, identity: str, bound: str, fix: str = "claim with adopt") -> errors.IdentityMismatch:
        root = whole(self.spec.name)
        msg = (
            f"{root} is bound to the identity {bound!r}, not {identity!r}: two owners of one "
            f"name would fence each other. Use another name, or {fix} to start a new incarnation of it."
        )
        return errors.IdentityMismatch(msg, metadata=self._about(identity=identity, bound_to=bound))

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
        """Return the (generation, ordinal) that a claim must not be below."""
        del request
        return self.order

    def _check_place(self, request: ClaimRequest) -> None:
        """A claim in place of another one is nobody's who has lost that: a zombie's, or a late one's."""
        if not request.instead_of:
            return
        group = self._owned(request.instead_of)
        if group.live_count != group.granted:
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=request.instead_of))

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

    def revives(self, request: ClaimRequest) -> bool:
        """Whether a claim takes what was retired. O(claims that it touches)."""
        touched = self.map.overlapping(request.bounds[0], request.bounds[-1])
        return any(group.state is GroupState.RETIRED for group, _, _ in touched)

    def _apply_claim(self, op: pb.Claim, now: int, bounds: Sequence[bytes] | None = None) -> tuple[Group, list[Taken]]:
        """Take over what a record says; ``bounds`` are its own, where the caller has them: millions take long to read."""
        group = Group(
            op.sequencer,
            Bounds(op.bounds if bounds is None else bounds),
            0,
            GroupState.OWNED,
            worker=op.worker,
            host=op.host,
            request_id=op.request_id,
            order=(op.generation, op.ordinal),
        )
        taken = self.map.claim(group, codec.int64s(op.bound_micros), now)
        self._carry(taken, group)
        inherit_arrivals(group, taken)
        inherit_masses(group, taken, bounded=bool(op.bound_micros))
        group.finished = bool((self.map.columns.values[group.slots()] == MAX).all())
        self._regrouped(taken, group)
        self.last_sequencer = op.sequencer
        self.input_version = self.input_version or op.input_version
        self._bind(op.identity)
        self.order = max(self.order, (op.generation, op.ordinal))
        if op.request_id:
            self.granted[op.request_id] = Granted(op.sequencer, op.asked)
            if len(self.granted) > GRANTS_KEPT:
                self.granted.popitem(last=False)
        return group, taken

    def _bind(self, identity: str) -> None:
        self.identity = identity

    def _carry(self, taken: Sequence[Taken], group: Group) -> None:
        """Let a new group of ranges go on with what the groups that it replaces have of their own."""

    def _regrouped(self, losses: Sequence[Taken], *new: Group) -> None:
        """Follow ranges that went from some groups to new ones."""
        for loss in losses:
            if loss.group.live_count:
                self._settle_finished(loss.group)
        remainders = chain.from_iterable(loss.remainders for loss in losses)
        for group in (*new, *(loss.group for loss in losses), *remainders):
            self.masses.changed(group)
        self._mass_changed = True
        self._forget_dead_batches()

    def _fenced(self, taken: Iterable[Taken], reason: str) -> Iterable[Fenced]:
        for lost in taken:
            if lost.group.sequencer and lost.group.state is GroupState.OWNED:
                whole = sum(high - low for low, high in lost.handles) == lost.group.granted
                handles = None if whole else [handle for low, high in lost.handles for handle in range(low, high)]
                yield Fenced(self.spec.name, lost.group.sequencer, handles, reason)

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        """Ask for another layout in place of the one of a version, and return the version that it has. A repeat of the newest change changes nothing.

        Raises IncarnationChanged, LayoutConflict, and InvalidArgument for a root. O(ranges).
        """
        if incarnation != self.incarnation:
            msg = f"{self.spec.name} is in incarnation {self.incarnation}, not {incarnation}; look at its ranges again"
            raise errors.IncarnationChanged(msg, metadata=self._about(incarnation=self.incarnation))
        wanted = Layout(expected + 1, tuple(starts), tuple(tasks))
        if wanted == self.layout:
            return wanted.version
        if expected != self.layout.version:
            msg = f"version {self.layout.version} of the layout of {self.spec.name} is wanted, not {expected}; look at it first"
            raise errors.LayoutConflict(msg, metadata=self._about(version=self.layout.version))
        self.staged.flush(self.map)
        op = pb.Layout(version=wanted.version, starts=starts, tasks=tasks)
        self._apply_layout(op)
        self.staged.append(pb.Op(layout=op))
        return wanted.version

    def _apply_layout(self, op: pb.Layout) -> None:
        self.layout = codec.layout_from(op)

    def hear(self, sequencer: int, told: Told | None) -> None:
        """Remember what the owner says of its layout; nothing, when it leaves out what it has not told here under this claim."""
        if told is not None and not told.layout.starts:
            before = self.told_layout(sequencer)
            known = before is not None and before.version == told.layout.version
            told = replace(told, layout=before) if before is not None and known else None
        self.told, self.told_by = told, sequencer

    def told_layout(self, sequencer: int) -> Layout | None:
        """Return the layout that an owner has told of under a claim; None: none."""
        return self.told.layout if self.told is not None and self.told_by == sequencer else None

    def release(self, sequencer: int) -> None:
        """Leave a claim's ranges unowned, holding their values. Raises StaleSequencer."""
        self._owned(sequencer)
        self.staged.flush(self.map)
        op = pb.Release(sequencer=sequencer)
        self._apply_release(op)
        self.staged.append(pb.Op(release=op))

    def _apply_release(self, op: pb.Release) -> None:
        group = self.map.groups[op.sequencer]
        group.state = GroupState.UNOWNED
        self.masses.changed(group)
        self._forget_dead_batches()

    def refuse_owners(self, now: int) -> None:
        """Raise OwnedRanges while a worker owns a range that is not finished.

        Whether it is alive is not known, only when it was heard of last.
        """
        owned = [g for g in self.map.groups.values() if g.state is GroupState.OWNED and not g.finished]
        if owned:
            raise self._owned_by(owned, now)

    def _owned_by(self, owned: Sequence[Group], now: int) -> errors.OwnedRanges:
        workers = sorted({group.worker or "unnamed" for group in owned})
        some = ", ".join(workers[:NAMED]) + (f" and {len(workers) - NAMED} more" if len(workers) > NAMED else "")
        heard = max(group.last_report for group in owned)
        last = f"last heard of {duration(max(0, now - heard) / 1e6)} ago" if heard else "not heard of lately"
        own, them, they = ("owns", "it", "it reports") if len(workers) == 1 else ("own", "them", "they report")
        msg = (
            f"{some} {own} key ranges of {self.spec.name}, {last}. Stop {them} in good order, which releases the ranges, or drop "
            f"{self.spec.name} with force: what {they} is refused then."
        )
        return errors.OwnedRanges(msg, metadata=self._about(workers=", ".join(workers[:NAMED])))

    @property
    def known_inputs(self) -> int:
        """Version of the inputs that the log goes by; 0 while that is not known, and nobody has reported since it may have changed."""
        if self.input_version or self.incarnation > 1:
            return self.input_version
        return 1  # the first registration: every later version is in the log

    def revoke(
        self, input_version: int, now: int, *, bound: int | None = None, reason: str = "its inputs changed"
    ) -> list[Fenced]:
        """Make every sequencer stale, and demand a newer version of the inputs from those that follow.

        ``bound``, when inputs are added: the least of their low watermarks. No range may stand beyond it: what the old owners
        said did not know of what comes from there, and nobody may claim the range before others move on. Masses
        did not know either, nor did frontiers of lateness.
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
        """Take an interval out until it is claimed again.

        Returns how many ranges left, and who lost what.

        Raises OwnedRanges when a worker owns one of them, unless forced; OtherSlice. ``sequencer``:
        the claim that has the interval, all of it and nothing else, and asks for that itself;
        StaleSequencer unless it has. ``newest_claim``: the newest one that the caller has read;
        None: any. A late message would else take out what a worker has claimed since, and the
        published value would lead it; StaleSequencer. Claims of other keys are in nobody's way.
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
        taken = self._apply_retire(op, now)
        self.staged.append(pb.Op(retire=op))
        return ranges, list(self._fenced(taken, "an operator retired it"))

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

    def _carry_retired(self, taken: Sequence[Taken], retired: Group) -> None:
        """Let retired ranges keep what the groups that they were taken from have of their own."""

    def _apply_retire(self, op: pb.Retire, now: int) -> list[Taken]:
        taken = self.map.retire(op.start, op.end, now)
        retired = [group for group, _, _ in self.map.overlapping(op.start, op.end)]
        self._carry_retired(taken, retired[0])
        inherit_arrivals(None, taken)
        inherit_masses(None, taken)
        self._regrouped(taken, *retired)
        return taken

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
        """Take over one claim's state, range by range, and return what was refused.

        ``number`` is (stream, number) of the sender; a report that names a turn orders by (turn,
        number). One that is not above the newest taken over changes nothing and is refused: whoever
        counts from the start again must hear of it. ``required`` names the inputs as registered
        now: a fold over other incarnations of them counts as MIN. ``wall`` is the wall clock, which
        says what is too far ahead; None: as ``now``.
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
            # Durable though nothing else may change: reports of an earlier stream may still come,
            # also after a restart. Before the first stream there was none, so that losing it is
            # safe.
            self._note_number(group, strong=number[0] > 1)
        group.last_report = now
        wall = now if wall is None else wall
        values, mass, late = report.watermarks, report.mass, report.lateness
        group.oldest_operation = min(report.oldest_operation, now)
        self.masses.changed(group)
        group.waiting_for, group.remarks = report.waiting_for, report.remarks
        refused: list[Refused] = []
        if _was_reset(report.fold, required):
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and mass.at_unknown()
            late = late and replace(late, frontier=MIN)
            msg = "the report folds another incarnation of an input than the one in force, so it counts as unknown; fold anew"
            refused.append(Refused(group.sequencer, errors.IncarnationChanged.reason, msg, report.handles))
        elif 0 in report.fold.input_incarnations and (beyond := _beyond_unknown(values, mass)):
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and mass.at_unknown()
            late = late and replace(late, frontier=MIN)
            msg = f"{self._unregistered(report.fold)}, so {beyond} must be {MIN}, and the report counts as that; fold all inputs"
            refused.append(Refused(group.sequencer, errors.InvalidArgument.reason, msg, report.handles))
        untold: list[Refused] = []
        if late is not None and self.budgets:
            untold = self._take_lateness(group, late, now, wall)
        refused.extend(untold)
        # What is pending no more and was not counted either would be lost: a budget that goes by
        # what is pending would spend it twice.
        if mass is not None and not (untold and self.spec.all_pending):
            refused.extend(self._take_mass(group, mass, wall))
        refused.extend(self._take_values(group, report.handles, values, finish=report.finish, now=now, wall=wall))
        return refused

    def _unregistered(self, fold: Fold) -> str:
        each = zip(self.spec.inputs, fold.input_incarnations, strict=False)
        names = [name for name, incarnation in each if not incarnation]
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
        """Store what may be stored of new values and return the rest."""
        limit = wall + self.spec.max_skew
        named = None if handles is None else handles.astype(np.intp)
        wrong = np.zeros(0, dtype=np.bool_)
        refused: list[Refused] = []
        if group.live is not None:
            wrong = group.lost(named)
            if wrong.any():
                refused.append(self._stale(group.sequencer, _named(named, wrong)))
        if len(values) and int(values.max()) > limit:
            finished = values == MAX
            # What goes no further than it stands poisons nothing, and a lowering must never be
            # lost: the clock may be wrong.
            ahead = (values > limit) & ~finished & (values > self._standing(group, named))
            if len(wrong):
                ahead &= ~wrong  # another claim owns those ranges, and the clock does not hold them
            if ahead.any():
                least = Watermark(int(np.broadcast_to(values, len(ahead))[ahead].min()))
                skew = duration(self.spec.max_skew / 1_000_000)
                words = f"the clock: {least} is ahead of it by more than its max_skew of {skew}"
                group.refuse_ahead(np.flatnonzero(ahead) if named is None else named[ahead], words)
            for mask, reason, text in (
                (ahead, errors.TooFarAhead.reason, f"more than {self.spec.max_skew // 1_000_000} s ahead of the clock"),
                (
                    finished & (not finish),
                    errors.FinishRequired.reason,
                    "MAX means finished and needs finish to be set",
                ),
            ):
                if mask.any():
                    ranges = group.granted if named is None else len(named)
                    spread = np.broadcast_to(mask, ranges) if len(mask) == 1 else mask
                    spread = spread & ~wrong if len(wrong) else spread  # each range is refused once
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
        """Return where the ranges of some handles stand, None: of all; MIN where they are lost.

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
        # A record from the far future is as far as any may be: one bad timestamp must not carry the
        # computation off.
        mass = replace(mass, starts=np.minimum(mass.starts, limit))
        if self.TAKES_WHOLE_MASSES:
            mass = mass.at_most(limit)  # see RootComputation._take_lateness
        for share, micros in chain.from_iterable(part.frontiers.items() for part in mass.parts):
            if limit < micros != MAX:
                msg = (
                    f"the frontier of the share {share} ppm is more than {self.spec.max_skew // 1_000_000} s ahead of the clock; "
                    "the mass is left as it was"
                )
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
            self.staged.of(group.sequencer).arrived.append(op)
        return []

    # -- micro-batches -----------------------------------------------------------------------------

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
        self.batches.forget_dead(lambda sequencer: self.map.owned_by(sequencer) is not None)

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
        if self.batches.last is not None:
            # A delayed repeat: committing it once more would put the older batch's values over the
            # newer one's.
            if request.batch < self.batches.last[0]:
                return list(request.tasks)
            if (request.sequencer, request.batch) == (self.batches.committed_by, self.batches.last[0]):
                return []
        return self.batches.prepare(request, group.granted)

    def commit(self, sequencer: int, batch: int, required: Fold, now: int, wall: int | None = None) -> list[Refused]:
        """Apply the prepared batch, whole or not at all; returns what was refused of it.

        A repeat gets the first answer.

        Raises StaleSequencer, NotPrepared, InputVersion, IncarnationChanged.
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
        """Let an output say how far it is complete, before that is reported.

        Inputs are only added that stand no lower.

        ``wall`` as in report: what would be refused as a report is not said either. Raises
        StaleSequencer, InputVersion, IncarnationChanged, TooFarAhead, and InvalidArgument for more
        than MIN that was folded from what is not registered.
        """
        self._owned(sequencer)
        if fold.input_version != required.input_version:
            msg = f"the output goes by version {fold.input_version} of the inputs; {required.input_version} is in force"
            raise errors.InputVersion(msg, metadata=self._about())
        if _was_reset(fold, required):
            msg = f"an input of {self.spec.name} was reset meanwhile; claim again"
            raise errors.IncarnationChanged(msg, metadata=self._about())
        if 0 in fold.input_incarnations and through > MIN:
            msg = f"{self._unregistered(fold)}, so through_micros must be {MIN}"
            fix = f"{MIN} until all inputs are registered"
            raise errors.InvalidArgument(msg, metadata=self._about(field="through_micros", fix=fix))
        if through <= self.vouched:
            return
        if wall + self.spec.max_skew < through != MAX:
            msg = f"through_micros has {through}, more than {self.spec.max_skew // 1_000_000} s ahead of the clock: is it in microseconds?"
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
        values, known = prepared.values()
        group.last_report = now
        group.oldest_operation = min(request.oldest_operation, now)
        self.masses.changed(group)
        group.recent.add(now, prepared.finished)
        refused = self._take_mass(group, prepared.mass(group.recent.total), wall)
        handles = np.flatnonzero(known).astype(np.uint32)
        refused += self._take_values(group, handles, values[known], finish=request.bound == MAX, now=now, wall=wall)
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
        group = self.map.owned_by(sequencer)
        if group is None:
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=sequencer))
        return group

    def _stale(self, sequencer: int, handles: npt.NDArray[np.uint32] | None) -> Refused:
        return Refused(sequencer, errors.StaleSequencer.reason, STALE, handles)

    def _about(self, **facts: object) -> dict[str, str]:
        return {"computation": self.spec.name} | {key: str(value) for key, value in facts.items()}

    def _store(self, group: Group, places: npt.NDArray[np.intp] | None, values: Int64s, now: int) -> None:
        """Set values that passed all checks, remembering which changed.

        ``places`` None: all, and all are live.
        """
        columns = self.map.columns
        slots = group.slots() if places is None else group.base + places
        old = columns.values[slots]
        changed = old != values
        if not changed.any():
            return
        changes = self.staged.of(group.sequencer)
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
        self.staged.of(group.sequencer).mass = True
        self._mass_changed = True

    def _note_number(self, group: Group, *, strong: bool) -> None:
        """Journal how far the senders of a claim are, whatever else changes.

        ``strong``: it is not safe to lose that.
        """
        changes = self.staged.of(group.sequencer)
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
            # Also a range that moved and came back within the round.
            self.map.columns.since[group.slots() if places is None else group.base + places] = now
        if op.HasField("mass"):
            self._set_mass(group, codec.mass_from(op.mass))
        for arrived in op.arrived:
            self.late.add(group, arrived)
        if op.kept:
            group.kept = codec.kept_from(op.kept)
        group.senders = codec.senders_from(op.senders)
        group.oldest_operation = op.oldest_operation_micros
        self.masses.changed(group)
        group.last_report = now

    # -- rounds ------------------------------------------------------------------------------------

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        """Return what this round changed as (payload, strong), None when nothing did.

        Strong means claim-class: losing it is not safe (rule 10).
        """
        self.staged.flush(self.map)
        if not self.staged.ops and not self.tasks.changed:
            return None
        low = self.map.minimum()
        # Nobody says that nothing will ever come where nobody is left to say it: a watermark holds
        # without any range.
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
        """Move the low watermark as a record says, and note the steps that it completes."""
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
        """Move the budgets by what this round has counted, or a record that is replayed.

        O(buckets log buckets), where the claims report all that is pending.
        """
        references: dict[int, int] = {}
        pending = Pending.of([])  # unknown
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
        """Move the budgets as a record says; what it published rules.

        Raises ValueError when one goes back.
        """
        stored = codec.shares_from(record.budgets)
        before = {ppm: budget.value for ppm, budget in self.budgets.items()}
        self._move_budgets(record)
        for ppm, budget in self.budgets.items():
            # A record of a release that knows no budgets has none.
            budget.value = stored.get(ppm, budget.value)
            if budget.value < before[ppm]:
                msg = f"the watermark of a lateness budget goes back from {before[ppm]} to {budget.value}"
                raise ValueError(msg)

    def replay(self, op: pb.Op, now: int) -> None:
        """Apply one journaled op, through the functions that applied it first.

        Raises KeyError when it names a claim that its predecessors do not know, ValueError when it
        is no op.
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
        for some in self.tasks:
            assert not some.every or some.next == some.start or some.next <= self.low, "no task before L"
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
    """Return what is wrong with the time of an oldest operation, and the fix; empty: nothing.

    One that is only ahead of this clock is nothing wrong: it counts as now.
    """
    if 0 <= micros < MAX:
        return ""
    return f"oldest_operation_micros is {micros}; send the time by the wall clock, in microseconds since 1970, or 0 for none"


def _wrong(group: Group, report: GroupReport, required: Fold) -> Refused | None:
    """Return the refusal of a report that cannot be of this claim, or folds other inputs than are in force."""
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
    """Return whether an input is in another incarnation than the one that was folded.

    One that was not registered when it was folded is in no other incarnation now: it was folded as
    unknown, and nothing above MIN with it.
    """
    before, after = folded.input_incarnations, now.input_incarnations
    return len(before) != len(after) or any(a not in (0, b) for a, b in zip(before, after, strict=True))


def _beyond_unknown(values: Int64s, mass: Mass | None) -> str:
    """Return the field that says more than an input that is unknown lets it, if one does."""
    if bool((values > MIN).any()):
        return "watermarks_micros"
    told = () if mass is None else chain.from_iterable(part.frontiers.values() for part in mass.parts)
    return "mass.frontiers" if any(each > MIN for each in told) else ""


def _distinct(handles: npt.NDArray[np.uint32]) -> bool:
    return bool((handles[1:] > handles[:-1]).all()) or len(np.unique(handles)) == len(handles)


def _named(handles: npt.NDArray[np.intp] | None, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    chosen = np.flatnonzero(mask) if handles is None else handles[mask]
    return chosen.astype(np.uint32)
