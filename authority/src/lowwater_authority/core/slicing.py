"""The root of a computation that is cut into slices, and one slice: how they differ from others.

A *root* is the whole of a cut computation. The root has one key range for each slice. Only the
shard that serves a slice claims that range, under the epoch of the slice's log, and
reports what is durable there. A *slice* is a computation of its own with a part of the key space.
Workers claim in slices.

A cut, and how a slice is cut in two: core/cut.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater_authority.core import codec
from lowwater_authority.core.budget import Budget
from lowwater_authority.core.computation import LARGEST_EPOCH, STALE, Computation
from lowwater_authority.core.groups import MOST_RECORDS, NO_RECORDS, Mass
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.inheritance import inherit_arrivals, inherit_masses
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.names import CUT, carried, is_slicing, slicing
from lowwater_authority.core.requests import Refused, bad_field, finished
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.core.budget import Lateness
    from lowwater_authority.core.groups import Group
    from lowwater_authority.core.interval_map import Loss
    from lowwater_authority.core.requests import ClaimRequest, Fenced
    from lowwater_authority.core.topology import Spec

MOST_FRONTIERS: Final = 256
MOST_TIMES: Final = 4096
"""Most frontiers, and most times of pending records, in the mass of a slice."""

CUTS_OF_ONE: Final = 1 << 20
"""Factor of the incarnation in the generation of a slice's claim.

The generation is the incarnation times this, plus the version of the cut that gave the slice its
keys."""

CLAIMS_OF_ONE: Final = 1 << 20
"""Factor of the epoch in the ordinal of a slice's claim.

The ordinal is the epoch times this, plus the number of claims under that ownership.
So a late claim never counts after a newer one, whichever process made the newer one."""


def computation_of(spec: Spec, *, epoch_base: int = 0) -> Computation:
    """Return a new computation of the kind that a registration asks for: uncut, root or slice."""
    kind = RootComputation if spec.cut.starts else SliceComputation if spec.slice_of else Computation
    return kind(spec, epoch_base=epoch_base)


def of_kind(computation: Computation, spec: Spec) -> Computation:
    """Return a computation as the kind that another registration of the same incarnation asks for.

    Only a merge of two graphs changes the kind: a store has lost a registration, and another
    process registered the name cut into slices, or no longer cut. All that is known of it stays.
    """
    if isinstance(computation, RootComputation) == bool(spec.cut.starts):
        return computation
    other = computation_of(spec)
    vars(other).update(vars(computation))
    return other


class RootComputation(Computation):
    """The whole of a computation that is cut into slices. Each of its ranges is one slice."""

    TAKES_WHOLE_MASSES = True

    def _check_keys(self, request: ClaimRequest) -> str:
        """Refuse all claims but those of a slice for all of its keys."""
        identity = request.identity
        if not is_slicing(self.spec.name, identity):
            raise self._other_slice(request.bounds[0], request.bounds[-1], "claim")
        self._check_slice(request.bounds)
        self._check_slice_order(request)
        bound = carried(self.spec.name, self.incarnation, identity) is not None
        return identity if bound else slicing(self.spec.name)

    def _check_identity(self, identity: str, now: int) -> None:
        """Raise IdentityMismatch unless workers of one identity claim in all slices.

        A slice claims by an identity that carries the one of its workers.
        """
        if self.identity is None:
            return
        of_worker = carried(self.spec.name, self.incarnation, identity)
        bound = carried(self.spec.name, self.incarnation, self.identity)
        if of_worker is not None and bound is not None and of_worker != bound:
            raise self._mismatch(of_worker, bound, now, f"reset {self.spec.name}")

    def _owner(self, now: int) -> str:
        """Return nothing: slices own the root's ranges, and no worker does."""
        del now
        return ""

    def _bind(self, identity: str) -> None:
        if self.identity is None or identity != slicing(self.spec.name):
            self.identity = identity

    def _about_older(self, order: tuple[int, int], newest: tuple[int, int]) -> dict[str, str]:
        return self._about(generation=order[0], ordinal=order[1], claimed_ordinal=newest[1])

    def _other_slice(self, start: bytes, end: bytes, what: str) -> errors.OtherSlice:
        """Return the refusal of a worker that names the root for keys of its slices."""
        over = self.spec.slices_over(start, end)
        if len(over) == 1:
            msg = f"{what} these keys of {over[0]}, the slice of {self.spec.name} that they are in"
            return errors.OtherSlice(msg, metadata=self._about(slice=over[0]))
        msg = (
            f"{self.spec.name} is cut into slices, and these keys lie in {len(over)} of them, {over[0]} to {over[-1]}: {what} the keys of one slice "
            "at a time, as Client.slices lists them"
        )
        return errors.OtherSlice(msg, metadata=self._about(first=over[0], last=over[-1]))

    def _check_slice(self, bounds: Sequence[bytes]) -> None:
        """Raise InvalidArgument unless the bounds are exactly those of one slice.

        A shard that claims other bounds knows another cut of the computation.
        """
        start, end = bounds[0], bounds[-1]
        over = self.spec.slices_over(start, end)
        if len(bounds) > 2 or len(over) > 1 or self.spec.span_of(over[0]) != (start, end):
            problem = f"[{start.hex()}, {end.hex()}) is no slice of {self.spec.name}, which is cut elsewhere"
            raise bad_field("bounds", problem, "read the graph again", **self._about())

    def _check_slice_order(self, request: ClaimRequest) -> None:
        """Refuse an order that no slice can have. Raises InvalidArgument.

        A slice that learns of a newer order takes a greater epoch. An invented order
        would use up all epochs of the slice, for good.
        """
        limits = (
            ("generation", request.generation, (self.incarnation + 1) * CUTS_OF_ONE - 1),
            ("ordinal", request.ordinal, (LARGEST_EPOCH + 1) * CLAIMS_OF_ONE - 1),
        )
        for field_name, value, most in limits:
            if value > most:
                problem = f"is {value}, which no slice of {self.spec.name} can have"
                raise bad_field(field_name, problem, f"send at most {most}", **self._about())

    def _newest_order(self, request: ClaimRequest) -> tuple[int, int]:
        """Return the order that a claim must not be below: the newest of the claimed slice alone.

        If two processes claim with one epoch, a store has lost one of two ownerships.
        The second process must take a greater number, so the order returned to it is greater.
        """
        touched = [group for group, _, _ in self.map.overlapping(request.bounds[0], request.bounds[-1])]
        newest = max(group.order for group in touched)
        epoch = request.ordinal // CLAIMS_OF_ONE
        owners = {group.host for group in touched if group.order[1] // CLAIMS_OF_ONE == epoch and group.host}
        others = newest[1] // CLAIMS_OF_ONE == epoch and owners - {request.host}
        return (newest[0], (epoch + 1) * CLAIMS_OF_ONE) if others else newest

    def _check_bounds(self, request: ClaimRequest, wall: int) -> None:
        """Check the bound only if the claim revives retired keys: a bound lifts no others."""
        if self.revives(request):
            super()._check_bounds(request, wall)

    def _carry(self, losses: Sequence[Loss], group: Group) -> None:
        """Let all parts of a slice that was cut in two start at its budgets.

        The part with its first keys goes on counting its records; the others count from zero.
        """
        parts = [*losses[0].remainders, group]
        for part in parts:
            part.slice_budgets = dict(losses[0].group.slice_budgets)
        first = min(parts, key=lambda part: part.bounds[0])
        for part in parts:
            if part is not first:
                part.slice_budgets = {ppm: (micros, 0, 0) for ppm, (micros, _, _) in part.slice_budgets.items()}

    def _carry_retired(self, losses: Sequence[Loss], retired: Group) -> None:
        retired.slice_budgets = dict(losses[0].group.slice_budgets)

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        """Raise InvalidArgument: each slice has a layout of its own."""
        del incarnation, expected, starts, tasks
        problem = f"{self.spec.name} is cut into slices, each of which has a layout of its own"
        raise bad_field("computation", problem, "ask for a layout of one of its slices", **self._about())

    def _owned_ranges(self, owned: Sequence[Group], now: int) -> errors.OwnedRanges:
        del now
        msg = (
            f"{self.spec.name} is cut into slices, and {len(owned)} of them are not finished; their workers are not "
            "known here. Stop the workers of all slices, and drop it with force."
        )
        return errors.OwnedRanges(msg, metadata=self._about(workers=""))

    def _check_retire(self, start: bytes, end: bytes, sequencer: int) -> None:
        """Refuse to retire keys, unless a slice retires all of its own under a live claim."""
        if not sequencer:
            raise self._other_slice(start, end, "retire")
        group = self._owned(sequencer)
        if group.live_count != group.granted or (group.bounds[0], group.bounds[-1]) != (start, end):
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=sequencer))

    def _take_lateness(self, group: Group, reported: Lateness, now: int, wall: int) -> list[Refused]:
        """Take over a slice's budgets: of each its watermark, all records, and the late ones."""
        del now
        # A watermark beyond the clock is lowered and not refused: when the slice accepted it, the
        # clock was another, and a refusal would stop the rest of the slice's report.
        limit = wall + self.spec.max_skew
        budgets = {
            ppm: (micros if micros == MAX else min(micros, limit), sum(reported.counts.values()), behind)
            for ppm, (behind, micros) in reported.behind.items()
            if ppm in self.budgets
        }
        if wrong := [behind for _, records, behind in budgets.values() if behind > records]:
            msg = f"lateness.behind has {wrong[0]} of {sum(reported.counts.values())} records; send how many of all came behind"
            return [Refused(group.sequencer, errors.InvalidArgument.reason, msg)]
        if budgets != group.slice_budgets:
            group.slice_budgets = budgets
            self.staged.claim(group.sequencer).slice_budgets = True
        return []

    def _move_budgets(self, record: pb.Record | None = None) -> None:
        """Move each budget to the slowest slice's watermark, with the records of all slices.

        Each slice keeps the budget by itself, so all of them together keep it.
        """
        del record
        groups, open_ = self.map.run_groups(), self.map.open_groups()
        unknown = MIN, 0, 0
        for ppm, budget in self.budgets.items():
            least = min((group.slice_budgets.get(ppm, unknown)[0] for group in open_), default=MIN)
            budget.value = max(budget.value, self.low, least if least != MAX else MIN)
            budget.records = sum(group.slice_budgets.get(ppm, unknown)[1] for group in groups)
            budget.behind = sum(group.slice_budgets.get(ppm, unknown)[2] for group in groups)


class SliceComputation(Computation):
    """One slice of a cut computation, with a part of the key space, which a cut makes smaller."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        super().__init__(spec, epoch_base=epoch_base)
        self.cut_version = 0
        """Version of the cut that gave this slice its keys; 0 while it has the keys it began with.

        Read from the slice's own log, because the graph may already name a newer cut. The root
        orders claims by this version."""
        self.handed_over: dict[str, pb.Snapshot] = {}
        """State of the keys that this slice handed over last, by name of the receiving slice."""

    @property
    def logged_inputs(self) -> int:
        """Version of the inputs in the log; 0 while the log names none.

        Unlike an uncut computation, a slice may begin after its root's inputs have changed.
        """
        return self.input_version

    def follow(self, spec: Spec) -> None:
        """Go on with another registration.

        Once the graph says, durably, that the other slice received its keys, their state here is
        forgotten.
        """
        super().follow(spec)
        if not spec.keys.receiver:
            self.handed_over = {}

    def _check_keys(self, request: ClaimRequest) -> str:
        self._check_own(request.bounds[0], request.bounds[-1], "claim")
        return super()._check_keys(request)

    def _check_retire(self, start: bytes, end: bytes, sequencer: int) -> None:
        self._check_own(start, end, "retire")
        super()._check_retire(start, end, sequencer)

    def _mismatch(self, identity: str, bound: str, now: int, fix: str = "") -> errors.IdentityMismatch:
        return super()._mismatch(identity, bound, now, fix or f"reset {self.spec.slice_of}")

    def _apply_revoke(self, op: pb.Revoke, now: int) -> None:
        # A completeness that the root has not confirmed by now was acknowledged to no output, and
        # did not take the new inputs into account.
        self.vouched = MIN
        super()._apply_revoke(op, now)

    def has_keys(self, start: bytes, end: bytes) -> bool:
        """Return True for an interval in the slice's key space; its map has no other keys."""
        # Both the keys of the graph and those of the log count: if a store has lost the newest
        # cut, the graph names an older one.
        spans = self.spec.keys.span, self.map.span
        return all(start >= first and (not last or bool(end and end <= last)) for first, last in spans)

    def _check_own(self, start: bytes, end: bytes, what: str) -> None:
        """Raise Unavailable until this slice has received its keys, OtherSlice for foreign keys."""
        if self.spec.keys.source:
            msg = f"{self.spec.name} is still taking its keys over from {self.spec.keys.source}; nothing was changed, try again in a moment"
            raise errors.Unavailable(msg, metadata=self._about(source=self.spec.keys.source))
        if self.has_keys(start, end):
            return
        own_start, own_end = self.spec.keys.span
        root, _, number = self.spec.name.rpartition(CUT)
        msg = (
            f"{self.spec.name} is slice {number} of {root}, [{own_start.hex()}, {own_end.hex()}): these keys are not all in it; {what} by {root}, "
            "which names the slice that has them"
        )
        raise errors.OtherSlice(msg, metadata=self._about(slice_of=root))

    def hand_over(self, to: str) -> list[Fenced]:
        """Hand over the keys behind the end that the graph gives this slice. O(what moves).

        Returns which claims lost what. ``handed_over`` keeps the state of these keys for the
        receiving slice, until :meth:`follow` learns that it has received them.
        """
        end = self.spec.keys.span[1]
        assert end, "a slice that hands keys over ends before them"
        self.staged.flush(self.map)
        op = pb.MoveOut(start=end, to=to, cut_version=self.spec.keys.version)
        losses = self._apply_hand_over(op)
        self.staged.append(pb.Op(move_out=op))
        return list(self._fenced(losses, f"its keys were moved to {to}: claim them again"))

    def _apply_hand_over(self, op: pb.MoveOut) -> list[Loss]:
        losses, state_of_keys = self.map.hand_over(op.start)
        state = self.past_claims()
        state.computation = op.to
        state.budgets.extend(codec.budget(Budget(ppm, value=budget.value)) for ppm, budget in self.budgets.items())
        for group, values, since in state_of_keys:
            state.groups.add().MergeFromString(b"".join(codec.group(group, values, since)))
        # The keys of an older cut were received by now: before that the graph allows no other cut.
        self.handed_over = {op.to: state}
        self.cut_version = op.cut_version
        if self.layout.starts:  # the layout names keys that this slice has handed over
            self.layout = Layout(self.layout.version + 1)
        inherit_arrivals(None, losses)
        inherit_masses(None, losses)
        self._regrouped(losses)
        return losses

    def receive(self, state: pb.Snapshot) -> None:
        """Begin with the state that another slice has handed over, from its ``handed_over``.

        This slice must not have changed in this incarnation. All values stay, and ranges that no
        worker owns now hold. Sequencers go on above those of the other slice, so that no sink takes
        a late owner there for a newer one. The requests that the other slice granted are known here
        and stale, so none of them is granted twice. Masses are unknown. Lateness budgets keep their
        watermarks and count records anew.

        Raises IncarnationChanged when the state is of another incarnation, ValueError when it has
        other keys.
        """
        if state.incarnation != self.incarnation:
            msg = (
                f"{self.spec.name} is in incarnation {self.incarnation}, and would take in keys of {state.incarnation}"
            )
            raise errors.IncarnationChanged(msg, metadata=self._about(incarnation=self.incarnation))
        if span_of(state) != self.spec.keys.span:
            msg = f"{self.spec.name} would take in other keys than its own"
            raise ValueError(msg)
        op = pb.Op()
        op.take_in.state.CopyFrom(state)
        op.take_in.cut_version = self.spec.keys.version
        self._apply_receive(op.take_in)
        self.staged.append(op)

    def _apply_receive(self, op: pb.TakeIn) -> None:
        state = op.state
        if self.cut_version or self.identity is not None or self.map.groups:
            msg = f"{self.spec.name} has begun without the keys that it takes in"
            raise ValueError(msg)
        if self.incarnation == self.spec.incarnation:
            groups = [codec.group_from(group, group.bounds) for group in state.groups]
            self.map = finished(IntervalMap.restore(groups, span_of(state)))
            self.masses = Masses(self.spec.heuristics, self.map.run_groups())
        self.cut_version = op.cut_version
        self.take_past_claims(state)
        for shown in map(codec.budget_from, state.budgets):
            if (budget := self.budgets.get(shown.ppm)) is not None:  # readers saw it, so rows behind it are late
                budget.value = max(budget.value, shown.value)
        self._mass_changed = True

    def _replay_other(self, op: pb.Op, now: int) -> None:
        match op.WhichOneof("kind"):
            case "move_out":
                if self.incarnation < self.spec.incarnation:
                    # The log does not tell with which keys an ended incarnation began, and they
                    # are not used any more.
                    self._apply_retire(pb.Retire(start=op.move_out.start, end=self.map.span[1]), now)
                    self.cut_version = op.move_out.cut_version
                else:
                    self._apply_hand_over(op.move_out)
            case "take_in":
                self._apply_receive(op.take_in)
            case _:
                super()._replay_other(op, now)

    def whole_mass(self) -> Mass:
        """Return the masses of all claims as one, because a slice is one claim of its root.

        Finished records are grouped by their frontiers, so that H(p) is the same as if each claim
        reported to the root. Beyond ``MOST_FRONTIERS`` groups, neighbours are rounded down to the
        least of them; likewise pending records beyond ``MOST_TIMES`` times. More than
        ``MOST_RECORDS`` records are scaled down, because no claim may have more.
        O(claims + buckets).
        """
        groups = self.map.open_groups()
        masses = [mass for group in groups for mass in group.masses()]
        starts, places = np.unique(np.concatenate([NO_RECORDS, *(m.starts for m in masses)]), return_inverse=True)
        counts = np.zeros(len(starts), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([NO_RECORDS, *(m.counts for m in masses)]))
        together = -(-len(starts) // MOST_TIMES)
        if together > 1:
            firsts = np.arange(0, len(starts), together)
            starts, counts = starts[firsts], np.add.reduceat(counts, firsts)
        recent_by_frontiers: dict[tuple[tuple[int, int], ...], int] = {}
        for mass in masses:
            key = tuple(sorted(mass.frontiers.items()))
            recent_by_frontiers[key] = recent_by_frontiers.get(key, 0) + mass.recent
        by_frontier = sorted(recent_by_frontiers.items(), key=lambda item: [micros for _, micros in item[0]])
        together = -(-len(by_frontier) // MOST_FRONTIERS)
        others = [_least(by_frontier[low : low + together]) for low in range(0, len(by_frontier), together or 1)]
        divisor = -(-(int(counts.sum()) + sum(mass.recent for mass in others)) // MOST_RECORDS)
        if divisor > 1:
            counts = counts // divisor
            others = [replace(mass, recent=mass.recent // divisor) for mass in others]
        return Mass(starts, counts, others=tuple(others), unknown=not all(group.mass_known for group in groups))


def _least(finished: Sequence[tuple[tuple[tuple[int, int], ...], int]]) -> Mass:
    """Return the finished records of some claims at the least of each frontier that all have."""
    by_claim = [dict(frontiers) for frontiers, _ in finished]
    shares = set.intersection(*map(set, by_claim))
    frontiers = {share: min(claim[share] for claim in by_claim) for share in sorted(shares)}
    return Mass(NO_RECORDS, NO_RECORDS, sum(recent for _, recent in finished), frontiers)


def span_of(snapshot: pb.Snapshot) -> tuple[bytes, bytes]:
    """Return the key space that the groups of a snapshot make up."""
    starts = [group.bounds[0] for group in snapshot.groups]
    ends = {group.bounds[-1] for group in snapshot.groups}
    return min(starts), b"" if b"" in ends else max(ends)


def as_slice(computation: Computation) -> SliceComputation:
    """Return a computation that is known to be a slice by its name."""
    assert isinstance(computation, SliceComputation), f"{computation.spec.name} is no slice"
    return computation
