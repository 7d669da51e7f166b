"""A computation that is cut into slices, and one slice of it: how each differs from one that is not cut.

A *root* is the whole of a cut computation. Its key ranges are its slices, one each: only the shard that serves a slice
claims that range, under the ownership number of the slice's log, and reports what is durable there. A *slice* is a
computation of its own with a part of the key space. Workers claim in slices.

An operator cuts a slice X in two: X hands the keys from there on over to the new slice Y (:meth:`SliceComputation.move_out`),
and Y takes them in (:meth:`SliceComputation.take_in`). The steps, and who does them: engine/slices.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater_authority.core import codec
from lowwater_authority.core.budget import Budget
from lowwater_authority.core.computation import LARGEST_EPOCH, STALE, Changes, Computation
from lowwater_authority.core.groups import MOST_RECORDS, NO_RECORDS, GroupState, Mass
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.requests import Granted, Refused, finished
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import CUT, carried, is_slicing, slicing
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.core.budget import Lateness
    from lowwater_authority.core.groups import Group
    from lowwater_authority.core.interval_map import Taken
    from lowwater_authority.core.requests import ClaimRequest, Fenced
    from lowwater_authority.core.topology import Spec

MOST_FRONTIERS: Final = 256
MOST_TIMES: Final = 4096
"""How many frontiers, and times of pending records, the mass of a slice has at most."""

CUTS_OF_ONE: Final = 1 << 20
"""The generation of a slice's claim is its incarnation times so many, and the version of the cut by which it has its keys."""

CLAIMS_OF_ONE: Final = 1 << 20
"""The ordinal of a slice's claim is its ownership number times so many, and how often it has claimed under that: a claim that is late does not count
after a newer one, whoever made it."""


def computation_of(spec: Spec, *, epoch_base: int = 0) -> Computation:
    """Return a new computation of the kind that a registration asks for: not cut, the root of slices, or a slice."""
    kind = RootComputation if spec.slices else SliceComputation if spec.slice_of else Computation
    return kind(spec, epoch_base=epoch_base)


def of_kind(computation: Computation, spec: Spec) -> Computation:
    """Return a computation as the kind that another registration of the same incarnation asks for.

    Only a merge of two graphs changes the kind: a store has lost a registration, and another
    process registered the name cut into slices, or no longer cut. All that is known of it stays.
    """
    if isinstance(computation, RootComputation) == bool(spec.slices):
        return computation
    other = computation_of(spec)
    vars(other).update(vars(computation))
    return other


class RootComputation(Computation):
    """The whole of a computation that is cut into slices. Each of its ranges is one slice."""

    TAKES_WHOLE_MASSES = True

    def _check_keys(self, request: ClaimRequest) -> str:
        """Only a slice claims here, and only all of its keys."""
        identity = request.identity
        if not is_slicing(self.spec.name, identity):
            raise self._other_slice(request.bounds[0], request.bounds[-1], "claim")
        self._check_slice(request.bounds)
        self._check_slice_order(request)
        bound = carried(self.spec.name, self.incarnation, identity) is not None
        return identity if bound else slicing(self.spec.name)

    def _check_identity(self, identity: str) -> None:
        """Slices carry the identity of their workers: all slices are claimed by workers of one identity."""
        if self.identity is None:
            return
        of_worker = carried(self.spec.name, self.incarnation, identity)
        bound = carried(self.spec.name, self.incarnation, self.identity)
        if of_worker is not None and bound is not None and of_worker != bound:
            raise self._mismatch(of_worker, bound, f"reset {self.spec.name}")

    def _bind(self, identity: str) -> None:
        if self.identity is None or identity != slicing(self.spec.name):
            self.identity = identity

    def _about_older(self, order: tuple[int, int], newest: tuple[int, int]) -> dict[str, str]:
        return self._about(generation=order[0], ordinal=order[1], claimed_ordinal=newest[1])

    def _other_slice(self, start: bytes, end: bytes, what: str) -> errors.OtherSlice:
        """Return the refusal of a worker that names the root for keys that only its slices have."""
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
        """A slice has one range here, with the keys of the slice: who claims another one knows of another cut. Raises InvalidArgument."""
        start, end = bounds[0], bounds[-1]
        over = self.spec.slices_over(start, end)
        if len(bounds) > 2 or len(over) > 1 or self.spec.span_of(over[0]) != (start, end):
            fix = "read the graph again"
            msg = f"[{start.hex()}, {end.hex()}) is no slice of {self.spec.name}, which is cut elsewhere; {fix}"
            raise errors.InvalidArgument(msg, metadata=self._about(field="bounds", fix=fix))

    def _check_slice_order(self, request: ClaimRequest) -> None:
        """Refuse an order that no slice can have. Raises InvalidArgument.

        A slice that is told a newer order takes a greater ownership number itself. By a made-up one it would use up all numbers, for good.
        """
        limits = (
            ("generation", request.generation, (self.incarnation + 1) * CUTS_OF_ONE - 1),
            ("ordinal", request.ordinal, (LARGEST_EPOCH + 1) * CLAIMS_OF_ONE - 1),
        )
        for field_name, value, most in limits:
            if value > most:
                fix = f"send at most {most}"
                msg = f"{field_name} is {value}, which no slice of {self.spec.name} can have; {fix}"
                raise errors.InvalidArgument(msg, metadata=self._about(field=field_name, fix=fix))

    def _newest_order(self, request: ClaimRequest) -> tuple[int, int]:
        """Return the order that a claim must not be below. Slices are owned one by one, so each counts its own.

        Two processes that claim with one ownership number have both owned the slice, and a store has lost one of the
        ownerships. The second one has to take a greater number, so it is told a greater one.
        """
        touched = [group for group, _, _ in self.map.overlapping(request.bounds[0], request.bounds[-1])]
        newest = max(group.order for group in touched)
        epoch = request.ordinal // CLAIMS_OF_ONE
        owners = {group.host for group in touched if group.order[1] // CLAIMS_OF_ONE == epoch and group.host}
        others = newest[1] // CLAIMS_OF_ONE == epoch and owners - {request.host}
        return (newest[0], (epoch + 1) * CLAIMS_OF_ONE) if others else newest

    def _check_bounds(self, request: ClaimRequest, wall: int) -> None:
        """The bound of a slice is where it is, which lifts nothing but retired keys."""
        if self.revives(request):
            super()._check_bounds(request, wall)

    def _carry(self, taken: Sequence[Taken], group: Group) -> None:
        """All parts of a slice that was cut in two start at its budgets. The part with its first keys goes on counting its records."""
        parts = [*taken[0].remainders, group]
        for part in parts:
            part.kept = dict(taken[0].group.kept)
        first = min(parts, key=lambda part: part.bounds[0])
        for part in parts:
            if part is not first:
                part.kept = {ppm: (micros, 0, 0) for ppm, (micros, _, _) in part.kept.items()}

    def _carry_retired(self, taken: Sequence[Taken], retired: Group) -> None:
        retired.kept = dict(taken[0].group.kept)

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        """Raise InvalidArgument: each slice has a layout of its own."""
        del incarnation, expected, starts, tasks
        fix = "ask for a layout of one of its slices"
        msg = f"{self.spec.name} is cut into slices, each of which has a layout of its own; {fix}"
        raise errors.InvalidArgument(msg, metadata=self._about(field="computation", fix=fix))

    def _owned_by(self, owned: Sequence[Group], now: int) -> errors.OwnedRanges:
        del now
        msg = (
            f"{self.spec.name} is cut into slices, and {len(owned)} of them are not finished; nobody looks for workers that own key ranges of "
            "theirs. Stop these, and drop it with force."
        )
        return errors.OwnedRanges(msg, metadata=self._about(workers=""))

    def _check_retire(self, start: bytes, end: bytes, sequencer: int) -> None:
        """Only a slice retires its keys here, all of them, and only under the claim that it still has."""
        if not sequencer:
            raise self._other_slice(start, end, "retire")
        group = self._owned(sequencer)
        if group.live_count != group.granted or (group.bounds[0], group.bounds[-1]) != (start, end):
            raise errors.StaleSequencer(STALE, metadata=self._about(sequencer=sequencer))

    def _bounded_mass(self, mass: Mass, limit: int) -> Mass:
        return super()._bounded_mass(mass, limit).at_most(limit)  # see _take_lateness

    def _take_lateness(self, group: Group, told: Lateness, now: int, wall: int) -> list[Refused]:
        """Take over how a slice keeps the budgets: each by its watermark, and by how many of all records came behind it."""
        del now
        # What it says of itself it was taken at its word for, when the clock was another. Refused, it would hold up what stands beside it.
        limit = wall + self.spec.max_skew
        kept = {
            ppm: (micros if micros == MAX else min(micros, limit), sum(told.counts.values()), behind)
            for ppm, (behind, micros) in told.behind.items()
            if ppm in self.budgets
        }
        if wrong := [behind for _, records, behind in kept.values() if behind > records]:
            msg = f"lateness.behind has {wrong[0]} of {sum(told.counts.values())} records; send how many of all came behind"
            return [Refused(group.sequencer, errors.InvalidArgument.reason, msg)]
        if kept != group.kept:
            group.kept = kept
            self._changes.setdefault(group.sequencer, Changes()).kept = True
        return []

    def _stage_budgets(self) -> None:
        """Let each budget go no further than the slowest of the slices, and have the records of all. Each of them keeps it by itself, so all together do."""
        groups = self.map.run_groups()
        open_ = [group for group in groups if group.state is not GroupState.RETIRED and not group.finished]
        unknown = MIN, 0, 0
        for ppm, budget in self.budgets.items():
            least = min((group.kept.get(ppm, unknown)[0] for group in open_), default=MIN)
            budget.value = max(budget.value, self.low, least if least != MAX else MIN)
            budget.records = sum(group.kept.get(ppm, unknown)[1] for group in groups)
            budget.behind = sum(group.kept.get(ppm, unknown)[2] for group in groups)

    def _replay_moves(self, record: pb.Record) -> None:
        del record
        self._stage_budgets()


class SliceComputation(Computation):
    """One slice of a cut computation: it has a part of the key space, which a cut makes smaller."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        super().__init__(spec, epoch_base=epoch_base)
        self.cut_version = 0
        """Version of the cut that gave this slice its keys; 0 while it has the keys it began with. Read from the slice's
        own log, because the graph may already name a newer cut. The root orders claims by it."""
        self.handed_over: dict[str, pb.Snapshot] = {}
        """What this slice knew of the keys that it handed over last, by the name of the slice that takes them in."""

    @property
    def known_inputs(self) -> int:
        """Version of the inputs that the log goes by; 0 while that is not known. A slice may begin behind a change of its root's inputs."""
        return self.input_version

    def follow(self, spec: Spec) -> None:
        """Go on with another registration. What was handed over is forgotten when the graph says, durably, that the other slice has it."""
        super().follow(spec)
        if not spec.taker:
            self.handed_over = {}

    def _check_keys(self, request: ClaimRequest) -> str:
        self._check_own(request.bounds[0], request.bounds[-1], "claim")
        return super()._check_keys(request)

    def _check_retire(self, start: bytes, end: bytes, sequencer: int) -> None:
        self._check_own(start, end, "retire")
        super()._check_retire(start, end, sequencer)

    def _mismatch(self, identity: str, bound: str, fix: str = "") -> errors.IdentityMismatch:
        return super()._mismatch(identity, bound, fix or f"reset {self.spec.slice_of}")

    def _apply_revoke(self, op: pb.Revoke, now: int) -> None:
        # What its root has not confirmed by now was acknowledged to no output, and did not know of the new inputs.
        self.vouched = MIN
        super()._apply_revoke(op, now)

    def has_keys(self, start: bytes, end: bytes) -> bool:
        """Whether an interval lies in its key space; nothing else is to be asked of its map about one that does not."""
        # Those of the graph, and those that it has in fact: if a store has lost the newest cut, the graph knows an older one.
        spans = self.spec.span, self.map.span
        return all(start >= first and (not last or bool(end and end <= last)) for first, last in spans)

    def _check_own(self, start: bytes, end: bytes, what: str) -> None:
        """Raise Unavailable while the keys are still taken in, and OtherSlice for keys of other slices."""
        if self.spec.source:
            msg = f"{self.spec.name} is still taking its keys over from {self.spec.source}; nothing was changed, try again in a moment"
            raise errors.Unavailable(msg, metadata=self._about(source=self.spec.source))
        if self.has_keys(start, end):
            return
        own_start, own_end = self.spec.span
        root, _, number = self.spec.name.rpartition(CUT)
        msg = (
            f"{self.spec.name} is slice {number} of {root}, [{own_start.hex()}, {own_end.hex()}): these keys are not all in it; {what} by {root}, "
            "which says whose they are"
        )
        raise errors.OtherSlice(msg, metadata=self._about(slice_of=root))

    def move_out(self, to: str) -> list[Fenced]:
        """Hand the keys behind those that the graph says are its own over to another slice; returns who lost what. O(what moves).

        From here on it knows nothing of them, and what it did know is kept, as it was, until the other one has taken it in: see :meth:`follow`.
        """
        end = self.spec.span[1]
        assert end, "a slice that hands keys over ends before them"
        self._flush()
        op = pb.MoveOut(start=end, to=to, cut_version=self.spec.cut_version)
        taken = self._apply_move_out(op)
        self._ops.append(pb.Op(move_out=op))
        self._strong = True
        return list(self._fenced(taken, f"its keys were moved to {to}: claim them again"))

    def _apply_move_out(self, op: pb.MoveOut) -> list[Taken]:
        taken, known = self.map.move_out(op.start)
        state = pb.Snapshot(
            computation=op.to,
            incarnation=self.incarnation,
            last_sequencer=self.last_sequencer,
            identity=self.identity or "",
            bound=self.identity is not None,
            generation=self.order[0],
            ordinal=self.order[1],
            granted=[
                pb.Granted(request_id=key, sequencer=sequencer, asked=asked)
                for key, (sequencer, asked) in self.granted.items()
            ],
            input_version=self.input_version,
            vouched_micros=None if self.vouched == MIN else self.vouched,
            budgets=[codec.budget(Budget(ppm, value=budget.value)) for ppm, budget in self.budgets.items()],
        )
        if self.last_batch is not None:
            state.has_batch, state.batch_sequencer = True, self.committed_by
            state.batch, state.batch_digest = self.last_batch
        for group, values, since in known:
            codec.unclaimed(state.groups.add(), group, values, since)
        # Those of an older cut were taken in: else the graph would not have let it be cut again.
        self.handed_over = {op.to: state}
        self.cut_version = op.cut_version
        if self.layout.starts:  # by keys that it has no more
            self.layout = Layout(self.layout.version + 1)
        self._hand_over_arrivals(None, taken)
        self._hand_over_masses(None, taken)
        self._regrouped(taken)
        self._mass_changed = True
        self._forget_dead_batches()
        return taken

    def take_in(self, state: pb.Snapshot) -> None:
        """Begin with what another slice has handed over: that state of its ``handed_over``. Nothing may have happened to this one in this incarnation.

        Its watermark is what it was told, and what nobody may report any more holds; sequencers go on above those of the other one, so that no sink takes
        a late owner of there for a newer one. A request that was granted there is known, and stale: it is never granted a second time. Masses are not known,
        and lateness budgets stand where they stood, and count anew. Raises IncarnationChanged when the state is of another incarnation, ValueError when it is not of these keys.
        """
        if state.incarnation != self.incarnation:
            msg = (
                f"{self.spec.name} is in incarnation {self.incarnation}, and would take in keys of {state.incarnation}"
            )
            raise errors.IncarnationChanged(msg, metadata=self._about(incarnation=self.incarnation))
        if span_of(state) != self.spec.span:
            msg = f"{self.spec.name} would take in other keys than its own"
            raise ValueError(msg)
        op = pb.Op()
        op.take_in.state.CopyFrom(state)
        op.take_in.cut_version = self.spec.cut_version
        self._apply_take_in(op.take_in)
        self._ops.append(op)
        self._strong = True

    def _apply_take_in(self, op: pb.TakeIn) -> None:
        state = op.state
        if self.cut_version or self.identity is not None or self.map.groups:
            msg = f"{self.spec.name} has begun without the keys that it takes in"
            raise ValueError(msg)
        if self.incarnation == self.spec.incarnation:
            groups = [codec.unclaimed_from(each) for each in state.groups]
            self.map = finished(IntervalMap.restore(groups, span_of(state)))
            self.masses = Masses(self.spec.heuristics, self.map.run_groups())
        self.cut_version = op.cut_version
        self.last_sequencer = max(self.last_sequencer, state.last_sequencer)
        self.identity = state.identity if state.bound else None
        self.order = max(self.order, (state.generation, state.ordinal))
        self.input_version = state.input_version
        self.vouched = state.vouched_micros if state.HasField("vouched_micros") else MIN
        if state.has_batch:
            self.last_batch, self.committed_by = (state.batch, state.batch_digest), state.batch_sequencer
        for each in state.granted:
            self.granted[each.request_id] = Granted(each.sequencer, each.asked)
        for told in map(codec.budget_from, state.budgets):
            if told.ppm in self.budgets:  # readers were shown no more than that: so late is what comes behind it
                self.budgets[told.ppm].value = max(self.budgets[told.ppm].value, told.value)
        self._mass_changed = True

    def _replay_other(self, op: pb.Op, now: int) -> None:
        match op.WhichOneof("kind"):
            case "move_out":
                if self.incarnation < self.spec.incarnation:
                    # Of a life that is over nobody knows which keys it began with, nor are they used any more.
                    self._apply_retire(pb.Retire(start=op.move_out.start, end=self.map.span[1]), now)
                    self.cut_version = op.move_out.cut_version
                else:
                    self._apply_move_out(op.move_out)
            case "take_in":
                self._apply_take_in(op.take_in)
            case _:
                super()._replay_other(op, now)

    def whole_mass(self) -> Mass:
        """Return the mass of all claims, as one: a slice is one claim of what it is a slice of. O(claims + buckets).

        Its claims' finished records are told by their frontiers, so that H(p) comes out as if each of them had told its own. Of more than
        ``MOST_FRONTIERS`` neighbours are rounded down to the least of them, and so are pending records of too many times. More than
        ``MOST_RECORDS`` are told by their shares: no claim has that many.
        """
        groups = [g for g in self.map.run_groups() if g.state is not GroupState.RETIRED and not g.finished]
        masses = [mass for group in groups for mass in group.masses()]
        starts, places = np.unique(np.concatenate([NO_RECORDS, *(m.starts for m in masses)]), return_inverse=True)
        counts = np.zeros(len(starts), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([NO_RECORDS, *(m.counts for m in masses)]))
        together = -(-len(starts) // MOST_TIMES)
        if together > 1:
            firsts = np.arange(0, len(starts), together)
            starts, counts = starts[firsts], np.add.reduceat(counts, firsts)
        finished: dict[tuple[tuple[int, int], ...], int] = {}
        for mass in masses:
            key = tuple(sorted(mass.frontiers.items()))
            finished[key] = finished.get(key, 0) + mass.recent
        by_frontier = sorted(finished.items(), key=lambda each: [micros for _, micros in each[0]])
        together = -(-len(by_frontier) // MOST_FRONTIERS)
        others = [_least(by_frontier[low : low + together]) for low in range(0, len(by_frontier), together or 1)]
        of = -(-(int(counts.sum()) + sum(each.recent for each in others)) // MOST_RECORDS)
        if of > 1:
            counts, others = counts // of, [replace(each, recent=each.recent // of) for each in others]
        return Mass(starts, counts, others=tuple(others), unknown=not all(group.mass_known for group in groups))


def _least(finished: Sequence[tuple[tuple[tuple[int, int], ...], int]]) -> Mass:
    """Return the finished records of some claims at the least of each frontier; without those that any of them lacks."""
    told = [dict(frontiers) for frontiers, _ in finished]
    shares = set.intersection(*(set(each) for each in told))
    frontiers = {share: min(each[share] for each in told) for share in sorted(shares)}
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
