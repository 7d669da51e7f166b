"""The state machine of all references: which region owns what, and how far that is published.

A method here looks at the state and returns a `Change`, which changes nothing yet. The caller
writes the change to the journal and then calls `apply`; replay calls `apply` with the same records.
The steps have the names of the model (tests/model/regions.pml): SUSPECT, adopt, confirm, publish,
stand by. Its steps `raise` and `commit` happen at the sinks.

Two things are in memory only, because they are about processes: when each region was last heard,
and which agent speaks for it. After a start of the global authority silence counts from that start,
and every agent is *unconfirmed* until it has asked by which numbers its region owns what.

Silence makes a region SUSPECT and moves nothing. The published watermark holds at the least of L,
the frontier R of every region that keeps a replica, and the *hold* of the last adoption: the R of
the region that took over. Only the lost region may have rows above the hold. An operator decides
about them: they have arrived, or they are written off.

Times are microseconds. ``now`` is from a clock that never steps and has no date; ``when`` is a date
for people. ``position`` is the end of the journal's log. No I/O, clock or randomness here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lowwater import errors
from lowwater.core.checks import is_name
from lowwater_authority.core.times import MAX, MIN
from lowwater_regions import json_records
from lowwater_regions.change import Change, Unread, checked, decode
from lowwater_regions.reference import (
    ARRIVED,
    ENROLLING,
    LOCAL,
    MOST_EACH,
    MOST_LIFE,
    MOST_NAME,
    MOST_POSITIONS,
    MOST_TEXT,
    RELEASED,
    REPLICATED,
    SERVING,
    STOPPED,
    STOPPED_STORE,
    WANTED,
    Broken,
    Hold,
    Move,
    Position,
    Reference,
    Replica,
    Store,
    Tombstone,
    WriteOff,
    relayed_name,
)

AUTOMATIC: Final = "automatic"
"""The name of who decides, where no operator does."""

GAP: Final = 1 << 10
"""Jump of adoption numbers for each region that is absent from a recovery: such a region may have a
number that no other region reports."""

MOST_REGIONS: Final = 1000

MOST_REFERENCES: Final = 1000
"""Bound of references. Each region gets the records of its references whole, once a second, about a
kilobyte each."""


class Agent(NamedTuple):
    """A process that speaks for a region.

    ``run`` grows with each start over one state file; each start draws a ``nonce``.
    """

    agent: str
    run: int
    nonce: str


class Caller(NamedTuple):
    """The agent that sends a request, and what it knows."""

    region: str
    agent: Agent
    turn: int
    """Number of the request. It grows with each request of a process: an older one that arrives
    late does not count."""
    token: str = ""
    """Token of the store that the agent knows; empty in a region's very first request."""
    seen: int = 0
    """Greatest position of the store's log that the agent knows. A store that ends before it is an
    old copy."""


@dataclass(slots=True)
class Session:
    """The agent that speaks for a region, in memory only."""

    agent: Agent
    heard_at: int
    turn: int = 0
    confirmed: bool = False


class Progress(NamedTuple):
    """An owner's report of a reference."""

    reference: str
    number: int
    """Adoption number by which the owner believes to own the reference."""
    life: int
    low: int
    batch: int = -1
    """Last committed batch; -1: unknown, as for an agent that has just started."""
    digest: str = ""
    positions: tuple[Position, ...] = ()


class References:
    """All references of a deployment.

    Args:
        suspect_after: Silence after which a region is suspect, microseconds.
        lately: Time after an adoption, and after the start, without automatic adoptions.
        now: When the process started.
    """

    def __init__(self, suspect_after: int, lately: int, now: int) -> None:
        self.store = Store()
        self.references: dict[str, Reference] = {}
        self.forgotten: dict[str, Tombstone] = {}
        self.damaged: dict[str, Unread] = {}
        """References whose record cannot be read. Requests about them are refused; snapshots keep
        their records."""
        self.sessions: dict[str, Session] = {}
        self.suspect_after = suspect_after
        self.lately = lately
        self._started = self._watched = now
        self._adopted: dict[str, int] = {}

    # -- the state ---------------------------------------------------------------------------------

    def get(self, name: str) -> Reference:
        """Return a reference. Raises UnknownReference, and RegionRefused for a damaged one."""
        if name in self.damaged:
            what = f"its record is damaged ({self.damaged[name].reason})"
            raise _refusal(name, what, "recover the store, which takes it from the regions")
        reference = self.references.get(name)
        if reference is None:
            msg = f"there is no reference {name!r}: `lowwater references list` says what there is"
            raise errors.UnknownReference(msg, metadata={"reference": name})
        return reference

    def silent(self, region: str, now: int) -> int:
        """Return how long a region has been silent; at most the time since the start."""
        session = self.sessions.get(region)
        return now - (self._started if session is None else session.heard_at)

    def is_suspect(self, region: str, now: int) -> bool:
        """True when a region has been silent for too long. Suspicion alone moves nothing."""
        return not region or self.silent(region, now) >= self.suspect_after

    def watched(self, now: int) -> None:
        """Note that the process is awake; its owner calls this several times in `suspect_after`.

        A process that slept has heard no region meanwhile, so silence counts from now.
        """
        self.held_up(self._watched, now)
        self._watched = now

    def held_up(self, since: int, now: int) -> None:
        """Note that no region could be heard since then, as while the store was slow.

        After a long delay silence counts from now.
        """
        if now - since >= self.suspect_after // 2:
            self._started = now
            for session in self.sessions.values():
                session.heard_at = now

    def watermarks(self) -> dict[str, tuple[int, int, bool]]:
        """Return incarnation, published watermark and taint of each computation.

        The watermark is the least of the computation's references. A reference that comes or goes
        begins a new incarnation, because the minimum over others may be lower.
        """
        by_computation: dict[str, list[Reference]] = {}
        for reference in self.references.values():
            by_computation.setdefault(reference.computation, []).append(reference)
        incarnations: dict[str, int] = {}
        for name, tombstone in self.forgotten.items():
            computation = name.partition(":")[0]
            incarnations[computation] = incarnations.get(computation, 0) + tombstone.incarnation + 1
        for name in self.damaged:  # its watermark is unknown: readers hold the value that they have
            by_computation.pop(name.partition(":")[0], None)
        return {
            computation: (
                sum(reference.incarnation for reference in references) + incarnations.get(computation, 0),
                min(reference.published for reference in references),
                any(reference.written_off for reference in references),
            )
            for computation, references in by_computation.items()
        }

    # -- the journal -------------------------------------------------------------------------------

    def apply(self, record: bytes) -> None:
        """Take over a journal record.

        Raises NewerFormat, and one of `json_records.UNREADABLE` when the record cannot be read.
        """
        change = json_records.decode_change(record) if json_records.is_json(record) else decode(record)
        for name, unread in change.unread.items():
            self.damaged[name] = unread
            self.references.pop(name, None)
        for reference in change.put:
            self.references[reference.name] = reference
            self.damaged.pop(reference.name, None)
            self.forgotten.pop(reference.name, None)
        for name, tombstone in change.forget.items():
            self.references.pop(name, None)
            self.forgotten[name] = tombstone
        if change.store is not None:
            if change.store.token != self.store.token:  # a region must ask anew by which numbers it owns what
                for session in self.sessions.values():
                    session.confirmed = False
            self.store = change.store

    def snapshot(self) -> bytes:
        """Return everything durable as one record, unreadable records too."""
        return Change(tuple(self.references.values()), self.forgotten, self.store, self.damaged).encode()

    # -- requests of regions -----------------------------------------------------------------------

    def confirm(self, caller: Caller, numbers: Mapping[str, int], now: int, position: int) -> Change:
        """Confirm an agent after a restart or a cut link. Until then its region commits nothing.

        ``numbers`` are the greatest adoption numbers that the agent knows, whoever owned what.
        Raises SecondAgent, Recovering, ServerTokenMismatch.
        """
        if (old := self._enter(caller, numbers, now, position, confirms=True)) is not None:
            return old
        self.sessions[caller.region].confirmed = True
        return Change()

    def register(self, caller: Caller | None, registration: Reference, now: int, position: int) -> Change:
        """Register a reference; ``caller`` is None for an operator, who speaks for no region.

        Repeating it is harmless. Raises RegistrationConflict, InvalidArgument, and as confirm does.
        """
        self._check_serving()
        if caller is not None and (old := self._enter(caller, {}, now, position)) is not None:
            return old
        _check(registration)
        if registration.name in self.damaged:
            self.get(registration.name)
        reference = self.references.get(registration.name)
        if reference is not None:
            _check_same_registration(reference, registration)
            return Change()
        for other in self.references.values():
            if other.computation == registration.computation:
                shared = set(other.inputs) & set(registration.inputs)
                if shared:
                    msg = f"{other.name} has the home input {min(shared)} already: the homes of one computation share none"
                    raise errors.RegistrationConflict(
                        msg, metadata={"reference": registration.name, "other": other.name}
                    )
            elif relayed_name(other.computation) == relayed_name(registration.computation):
                msg = f"{registration.computation} and {other.computation} would both be relayed as {relayed_name(registration.computation)}: rename one of them"
                raise errors.RegistrationConflict(msg, metadata={"reference": registration.name, "other": other.name})
        if len(self.references) >= MOST_REFERENCES:
            raise errors.Overloaded(f"{MOST_REFERENCES} references are registered already: forget some first")
        before = self.forgotten.get(registration.name, Tombstone(0, -1))
        return Change((replace(registration, number=before.number + 1, incarnation=before.incarnation + 2),))

    def concerned(self, registration: Reference) -> list[str]:
        """Return the regions whose global watermark a new reference changes.

        These are its own regions, and those of the other references of its computation.
        """
        others = [other for other in self.references.values() if other.computation == registration.computation]
        return sorted({*registration.regions, *(region for other in others for region in other.regions)})

    def progress(
        self, caller: Caller, reports: Iterable[Progress], replicas: Mapping[str, Replica], now: int, position: int
    ) -> Change:
        """Take a region's sign of life and its progress: one compare-and-set a second.

        A refusal is in the change, and leaves other references alone. Raises Unconfirmed, and as
        confirm does.
        """
        reports = list(reports)
        numbers = {name: replica.number for name, replica in replicas.items()}
        numbers |= {report.reference: report.number for report in reports}
        if (old := self._enter(caller, numbers, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        changed: dict[str, Reference] = {}
        refused: dict[str, errors.LowwaterError] = {}
        for name, replica in replicas.items():
            try:
                changed[name] = _with_replica(self.get(name), replica._replace(region=caller.region))
            except errors.LowwaterError as error:
                refused[name] = error
        for report in reports:
            name = report.reference
            try:
                changed[name] = self._advanced(changed.get(name) or self.get(name), caller.region, report)
            except errors.LowwaterError as error:
                refused[name] = error
        published = (replace(reference, published=reference.publishable) for reference in changed.values())
        put = tuple(reference for reference in published if reference != self.references[reference.name])
        return Change(put, refused=refused)

    def _advanced(self, reference: Reference, region: str, report: Progress) -> Reference:
        self._check_owner(reference, region, report.number)
        _check_size(reference, report.positions, report.digest)
        if report.life < reference.life:
            msg = (
                f"{reference.name}: the local incarnation {report.life} is older than {reference.life}, which was reported before. Was the local authority "
                f"set up anew? Then reset the computation there until its incarnation is {reference.life}"
            )
            raise errors.Rewound(msg, metadata={"reference": reference.name})
        _check_batch(reference, report)
        _check_tail(reference, report)
        if reference.life and report.life > reference.life:
            # The computation was reset at home on purpose. In its new life the rows that were
            # written off may be read; whether they are, an operator must say.
            reference = replace(reference, incarnation=reference.incarnation + 1, published=MIN)
        if report.batch >= 0:
            reference = replace(reference, batch=report.batch, digest=report.digest, batch_number=reference.number)
        positions = report.positions or reference.positions
        return replace(reference, life=report.life, jumped=False, low=report.low, positions=positions)

    def fenced(self, caller: Caller, name: str, number: int, sink: str, cut: str, now: int, position: int) -> Change:
        """Note the owner's number at a sink, or the cut of a topic there."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        reference = self.get(name)
        self._check_owner(reference, caller.region, number)
        _check_size(reference, (), cut)
        names = [other.name for other in reference.sinks]
        if sink not in names:
            raise _refusal(name, f"it has no sink {sink!r}", f"name one of {', '.join(names)}")
        sinks = tuple(
            other._replace(fenced=number, cut=cut or (other.cut if other.fenced == number else ""))
            if other.name == sink
            else other
            for other in reference.sinks
        )
        return self._put(replace(reference, sinks=sinks))

    # -- a planned move ----------------------------------------------------------------------------

    def stop(self, caller: Caller, report: Progress, now: int, position: int) -> Change:
        """Note that the owner has stopped behind a batch, whose state the report describes."""
        if (old := self._enter(caller, {report.reference: report.number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        reference = self.get(report.reference)
        move = self._moving(reference)
        if move.step != WANTED:
            state = reference.owner, reference.batch, reference.digest
            if state == (caller.region, report.batch, report.digest):
                return Change()
            raise _refusal(reference.name, f"its move is {move.step}", "cancel it, and begin anew")
        stopped = self._advanced(reference, caller.region, report)
        return self._put(replace(stopped, published=stopped.publishable, move=move._replace(step=STOPPED)))

    def arrive(
        self,
        caller: Caller,
        name: str,
        replica: Replica,
        batch: int,
        digest: str,
        positions: tuple[Position, ...],
        now: int,
        position: int,
    ) -> Change:
        """Note that the next owner has R, the outputs and the state at which the owner stopped."""
        if (old := self._enter(caller, {}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        reference = self.get(name)
        move = self._moving(reference)
        self._check_target(reference, caller.region)
        if move.step in (ARRIVED, RELEASED):
            _check_same_state(reference, batch, digest, positions)
            return Change()
        if move.step != STOPPED:
            raise _refusal(name, f"{reference.owner} has not stopped yet", "wait until the move is stopped")
        _check_same_state(reference, batch, digest, positions)
        if replica.number != reference.number:
            what = f"the replica of {caller.region} is of number {replica.number}, and {reference.owner} stopped by {reference.number}"
            raise _refusal(name, what, "read R and the outputs' replica anew")
        for what, value in (("R", replica.replicated), ("the output's replica", replica.output)):
            if value < reference.low:
                what = f"{what} is at {value}, and {reference.owner} stopped at {reference.low}"
                raise _refusal(name, what, "wait until it has arrived")
        arrived = _with_replica(reference, replica._replace(region=caller.region))
        return self._put(replace(arrived, move=move._replace(step=ARRIVED)))

    def release(self, caller: Caller, name: str, number: int, digest: str, now: int, position: int) -> Change:
        """Release a reference by its owner. From here on only an adoption leads back."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        reference = self.get(name)
        move = self._moving(reference)
        state = reference.owner, reference.number, reference.digest
        if reference.released and state == (caller.region, number, digest):
            return Change()
        self._check_owner(reference, caller.region, number)
        if move.step != ARRIVED:
            raise _refusal(name, f"{move.to} does not have everything yet", "wait until the move has arrived")
        if digest != reference.digest:
            what = "the digest is not that of the batch at which it stopped"
            raise _refusal(name, what, "cancel the move, and begin anew")
        return self._put(replace(reference, move=move._replace(step=RELEASED)))

    def claim(
        self,
        caller: Caller,
        name: str,
        number: int,
        batch: int,
        digest: str,
        positions: tuple[Position, ...],
        now: int,
        position: int,
    ) -> Change:
        """Take over by the next owner, at equal positions; ``number`` is the released one."""
        if (old := self._enter(caller, {name: number}, now, position)) is not None:
            return old
        self._check_confirmed(caller)
        reference = self.get(name)
        if (reference.owner, reference.number, reference.move) == (caller.region, number + 1, None):
            return Change()  # a repeat
        move = self._moving(reference)
        self._check_target(reference, caller.region)
        if move.step != RELEASED or number != reference.number:
            raise _refusal(name, f"{reference.owner} has not released it", "wait until the move is released")
        _check_same_state(reference, batch, digest, positions)
        return self._put(self._owned_by(reference, caller.region))

    def begin_move(self, name: str, to: str, now: int) -> Change:
        """Begin an operator's move to another region. A move loses nothing."""
        self._check_serving()
        reference = self.get(name)
        self._check_candidate(reference, to, now)
        if reference.move is not None:
            if reference.move.to == to:
                return Change()
            raise _refusal(name, f"it is being moved to {reference.move.to}", "cancel that first")
        if self.is_suspect(reference.owner, now):
            what = f"its owner {reference.owner or '(unknown)'} is silent"
            raise _refusal(name, what, "wait for it, or adopt")
        return self._put(replace(reference, move=Move(to)))

    def cancel_move(self, name: str) -> Change:
        """Cancel a move that the owner has not released yet."""
        self._check_serving()
        reference = self.get(name)
        if reference.move is None:
            return Change()
        if reference.released:
            fix = f"wait until {reference.move.to} has claimed it, or adopt"
            raise _refusal(name, f"{reference.owner} has released it", fix)
        return self._put(replace(reference, move=None))

    # -- decisions of operators --------------------------------------------------------------------

    def check_decision(self, name: str, number: int, decision_number: int) -> None:
        """Refuse a late decision, which was made about another state of a reference.

        ``number`` 0 stands for any state. Raises RegionRefused.
        """
        reference = self.references.get(name)
        if reference is None or not number:
            return
        if (number, decision_number) != (reference.number, reference.decision_number):
            what = "it has changed since this was decided, and nothing was done"
            raise _refusal(name, what, "look at it again, and decide anew")

    @staticmethod
    def decided(change: Change) -> Change:
        """Return an operator's change with the decision counted."""
        counted = (replace(changed, decision_number=changed.decision_number + 1) for changed in change.put)
        return replace(change, put=tuple(counted))

    def adopt(self, name: str, to: str, who: str, when: int, now: int) -> Change:
        """Give a reference to another region, because its owner is lost or seems so.

        The published watermark holds at what that region has, rows and outputs, until an operator
        decides about the rest.
        """
        self._check_serving()
        reference = self.get(name)
        if not reference.released:
            self._check_candidate(reference, to, now)
            if not self.is_suspect(reference.owner, now):
                fix = "move it, which loses nothing; or wait until it is silent for long enough"
                raise _refusal(name, f"its owner {reference.owner} is alive", fix)
        elif to not in reference.regions or self.is_suspect(to, now):
            raise _refusal(name, f"{to} is none of its regions, or silent", "name one of its regions that reports")
        adopted = self._owned_by(reference, to)
        if reference.released and reference.move is not None and to in (reference.owner, reference.move.to):
            return self._put(adopted)  # both regions have all rows, as after the claim that did not come
        replica = reference.replica(to)
        if reference.policy == LOCAL:
            # Also where R leads L: the next watermarks lack what the lost region accepted behind R.
            end = max(replica.frontier, reference.published)
            broken = Broken(replica.frontier, end, who, when, reference.owner, reference.incarnation)
            same = [span for span in reference.broken if span[-2:] == broken[-2:]]
            if same:  # the region was lost once more: one entry covers both spans
                start, end = min(span.start for span in (*same, broken)), max(span.end for span in (*same, broken))
                broken = broken._replace(start=start, end=end)
            adopted = replace(adopted, broken=(*(span for span in reference.broken if span not in same), broken))
        else:
            hold = Hold(replica.frontier, reference.owner, replica.positions)
            if all(other.region != hold.region or other.at > hold.at for other in reference.holds):
                others = (other for other in reference.holds if other.region != hold.region)
                adopted = replace(adopted, holds=(*others, hold))
        return self._put(adopted)

    def adoptions(self, now: int) -> list[tuple[str, str]]:
        """Return the adoptions that need no operator: reference and region.

        An operator must have allowed them, every sink must fence, the next region must know R and
        positions, and the last adoption must be long ago.
        """
        if self.store.state != SERVING:
            return []
        adoptions: list[tuple[str, str]] = []
        for name, reference in self.references.items():
            if not reference.automatic or not reference.sinks or not all(sink.fences for sink in reference.sinks):
                continue
            if now - self._adopted.get(name, self._started) < self.lately or not self.is_suspect(reference.owner, now):
                continue
            able = [
                replica
                for replica in reference.current_replicas
                if replica.region != reference.owner
                and not self.is_suspect(replica.region, now)
                and replica.replicated > MIN
                and replica.output > MIN
                and replica.positions
                and all(place.offset >= 0 for place in replica.positions)
            ]
            if able:
                best = max(able, key=lambda replica: (replica.replicated, replica.region))
                adoptions.append((name, best.region))
        return adoptions

    def adopt_by_itself(self, name: str, to: str, when: int, now: int) -> Change:
        """Adopt as `adoptions` has proposed, if it still does."""
        return self.adopt(name, to, AUTOMATIC, when, now) if (name, to) in self.adoptions(now) else Change()

    def write_off(self, name: str, who: str, when: int, region: str = "") -> Change:
        """Give up the rows that only a lost region may have; of all lost regions by default.

        The published watermark is tainted until `arrived` in a later incarnation.
        """
        self._check_serving()
        reference = self.get(name)
        over, rest = _holds_of(reference, region)
        write_offs = (WriteOff(hold.region, hold.positions, hold.at, who, when, reference.incarnation) for hold in over)
        return self._publish(replace(reference, holds=rest, write_offs=(*reference.write_offs, *write_offs)))

    def arrived(self, name: str, now: int, region: str = "") -> Change:
        """Note that a lost region is back and all its accepted rows are mirrored.

        Rows that were given up in an earlier incarnation are included by now, too, as far as the
        region had them.
        """
        self._check_serving()
        reference = self.get(name)
        rest = replace(
            reference,
            holds=tuple(hold for hold in reference.holds if region not in ("", hold.region)),
            write_offs=tuple(
                write_off
                for write_off in reference.write_offs
                if not _is_read_anew(reference, write_off, write_off.source, region)
            ),
            broken=tuple(
                broken for broken in reference.broken if not _is_read_anew(reference, broken, broken.region, region)
            ),
        )
        if rest == reference:
            if reference.written_off:
                fix = "reset the computation where it is owned, let it read them, and say so then"
                raise _refusal(name, "windows were closed without these rows", fix)
            _holds_of(reference, region)
        regions = {hold.region for hold in reference.holds} - {hold.region for hold in rest.holds}
        regions |= {write_off.source for write_off in reference.write_offs if write_off not in rest.write_offs}
        regions |= {broken.region for broken in reference.broken if broken not in rest.broken}
        if "" in regions:  # the owner was unknown, so any of the regions may be the lost one
            regions = (regions - {""}) | set(reference.regions)
        for lost in sorted(regions):
            if self.is_suspect(lost, now):
                fix = "start its agent first, or write off what it has"
                raise _refusal(name, f"{lost} is silent", fix)
        return self._publish(rest)

    def allow_automatic(self, name: str, *, allowed: bool) -> Change:
        """Allow or forbid adoptions without an operator.

        Raises RegionRefused where a sink does not fence.
        """
        self._check_serving()
        reference = self.get(name)
        bad = [sink.name for sink in reference.sinks if not sink.fences]
        if allowed and (bad or not reference.sinks):
            what = f"its sinks {', '.join(bad)} cannot fence" if bad else "it has no sink"
            raise _refusal(name, what, "an operator has to adopt it, after the lost region's writers are stopped")
        return self._put(replace(reference, automatic=allowed))

    def set_policy(self, name: str, policy: str) -> Change:
        """Set the policy: publish min(L, R), or L."""
        self._check_serving()
        reference = replace(self.get(name), policy=policy, decided=True)
        _check(reference)
        return self._publish(reference)

    def forget(self, name: str, now: int) -> Change:
        """Forget a reference. Its numbers and incarnations go on when it is registered again."""
        self._check_serving()
        if name in self.damaged:
            fix = "recover the store, which takes them from the regions"
            raise _refusal(name, "its numbers cannot be read", fix)
        reference = self.get(name)
        if not self.is_suspect(reference.owner, now):
            fix = "stop its agent, or take the reference out of its file, first"
            raise _refusal(name, f"its owner {reference.owner} is alive", fix)
        return Change(forget={name: Tombstone(reference.number, reference.incarnation)})

    # -- a lost store ------------------------------------------------------------------------------

    def begin(self, token: str) -> Change:
        """Return the first record of a store."""
        return Change(store=Store(token)) if not self.store.token else Change()

    def recover(
        self, token: str, recovers: str, expected: Iterable[str], fenced: Iterable[str], answers: str = ""
    ) -> Change:
        """Begin a recovery: an operator says that the store was lost, or is an older copy.

        All regions enrol anew, under a new token.

        ``recovers`` is the token of the lost store, as the regions have it. ``fenced`` are absent
        regions whose numbers count at no sink any more, by the operator's care. ``answers`` is the
        token of the store that the operator has seen; empty: any. After a recovery the store has
        another token, so a message that comes late begins no second recovery. Raises
        ServerTokenMismatch.
        """
        if answers not in ("", self.store.token):
            msg = "the store has another token than the one that this was decided on, and nothing was done: look at it again"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": self.store.token, "found": answers})
        expected, fenced = tuple(sorted(set(expected))), tuple(sorted(set(fenced)))
        regions = {region for reference in self.references.values() for region in reference.regions}
        left_out = (regions | {*self.store.named}) - set(expected) - set(fenced)
        if left_out or not expected:
            msg = f"recover leaves out {', '.join(sorted(left_out)) or 'all regions'}: name each region, or fence its sinks and name it as fenced"
            raise errors.InvalidArgument(msg, metadata={"field": "regions"})
        lost = self.store.recovers if self.store.state == ENROLLING else self.store.token
        return Change(store=Store(token, ENROLLING, "an operator recovers it", recovers or lost, expected, (), fenced))

    def enrol(self, caller: Caller, records: Mapping[str, str], now: int) -> Change:
        """Take the records that a region was given last, by reference.

        When all regions have enrolled, numbers go on above the greatest of them.

        An unreadable record damages its reference, whatever other regions have: it may have the
        greatest number, and a hold that no other region knows. The rest of the region enrols.
        """
        if self.store.state != ENROLLING:
            return Change()  # a repeat: the agent confirms next
        if caller.token not in (self.store.recovers, self.store.token):
            msg = "this region belongs to another store than the recovered one: check --global"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": self.store.recovers})
        if caller.region not in self.store.expected:
            fix = "recover again, with all regions"
            raise _refusal(caller.region, "the recovery does not name this region", fix)
        self._listen(caller, now)
        best = dict(self.references)
        named = {*self.store.named}
        refused: dict[str, errors.LowwaterError] = {}
        unread: dict[str, Unread] = {}
        for name, record in records.items():
            try:
                reference = _enrolled(name, record)
            except (*json_records.UNREADABLE, errors.InvalidArgument) as error:
                what = f"the record that {caller.region} has of it cannot be read ({json_records.reason_of(error)})"
                fix = f"stop the agent of {caller.region}, remove its --state folder, and recover with {caller.region} as --fenced"
                refused[name] = _refusal(name, what, fix)
                unread[name] = Unread(what, record.encode())
            else:
                if reference.number > self.forgotten.get(name, Tombstone(0, 0)).number:
                    named |= {*reference.regions}
                    best[name] = _better(best.get(name), reference)
        spoiled = {*self.store.unread, *unread}
        best = {name: reference for name, reference in best.items() if name not in spoiled}
        store = self.store._replace(
            enrolled=tuple(sorted({*self.store.enrolled, caller.region})),
            unread=tuple(sorted(spoiled)),
            named=tuple(sorted(named)),
        )
        if set(store.enrolled) >= set(store.expected) and not store.left_out:
            # Numbers go on above the greatest known one; that of an absent region is unknown.
            more = 1 + GAP * len(store.fenced)
            best = {name: replace(old, number=old.number + more, move=None) for name, old in best.items()}
            if self.store.fenced:
                best = {name: _jumped(old) for name, old in best.items()}
            store = Store(store.token, recovers=store.recovers)
        put = tuple(reference for reference in best.values() if reference != self.references.get(reference.name))
        return Change(put, store=store, unread=unread, refused=refused)

    # -- inside ------------------------------------------------------------------------------------

    def _enter(
        self, caller: Caller, numbers: Mapping[str, int], now: int, position: int, *, confirms: bool = False
    ) -> Change | None:
        """Check who asks. Returns a change when the request shows that the store is old.

        Only a region of some reference can show that, when it confirms or has been confirmed: the
        word of any other caller would stop the store for all.
        """
        self._check_serving()
        if caller.token and caller.token != self.store.token:
            msg = "another global store answers here than the one of this region: check --global; after a loss, an operator recovers the store"
            metadata = {"expected": caller.token, "found": self.store.token, "recovers": self.store.recovers}
            raise errors.ServerTokenMismatch(msg, metadata=metadata)
        self._listen(caller, now)
        above = [name for name, number in numbers.items() if number > self._known_number(name)]
        if not caller.token or not (caller.seen > position or above):
            return None
        if not confirms:
            self._check_confirmed(caller)
        what = f"{caller.region} has seen more of it"
        if above:
            what = f"{caller.region} has a greater number of {above[0]}"
        strangers = [name for name in above if name in self.references and caller.region not in self.get(name).regions]
        if strangers or not any(caller.region in reference.regions for reference in self.references.values()):
            where = f"{strangers[0]} is none of its references" if strangers else "it is in no reference here"
            fix = "check --global and --state of its agent; when this store is an older copy, an operator has to recover it"
            raise _refusal(caller.region, f"{what}, and {where}", fix)
        reason = f"this store is older than its own answers: {what}"
        stopped = self.store._replace(state=STOPPED_STORE, reason=reason)
        return Change(store=stopped, raises=_recovering(stopped))

    def _known_number(self, name: str) -> int:
        if name in self.damaged:
            return MAX
        reference = self.references.get(name)
        return self.forgotten.get(name, Tombstone(0, 0)).number if reference is None else reference.number

    def _listen(self, caller: Caller, now: int) -> None:
        """Count a request as a sign of life of the one agent that speaks for a region.

        Raises SecondAgent, OldStream.
        """
        session = self.sessions.get(caller.region)
        if session is None and len(self.sessions) >= MOST_REGIONS:
            raise errors.Overloaded(f"{MOST_REGIONS} regions have sent requests already: check the names")
        if session is None or session.agent != caller.agent:
            if session is not None and not self._succeeds(session, caller.agent, now):
                msg = f"another agent speaks for region {caller.region}: this one was refused; stop one of the two"
                raise errors.SecondAgent(msg, metadata={"region": caller.region})
            session = self.sessions[caller.region] = Session(caller.agent, now)
        if caller.turn <= session.turn:
            msg = "a newer request of this agent has arrived already"
            raise errors.OldStream(msg, metadata={"region": caller.region})
        session.turn, session.heard_at = caller.turn, now

    def _succeeds(self, session: Session, agent: Agent, now: int) -> bool:
        """True when an agent takes the place of the one that spoke last.

        The next run over the same state file does; any other agent does after a silence.
        """
        silent = now - session.heard_at >= self.suspect_after
        if session.agent.agent == agent.agent:
            return agent.run > session.agent.run or (agent.run == session.agent.run and silent)
        return silent

    def _check_confirmed(self, caller: Caller) -> None:
        if not self.sessions[caller.region].confirmed:
            msg = f"region {caller.region} has not been confirmed since its agent or the global authority started: confirm first"
            raise errors.Unconfirmed(msg, metadata={"region": caller.region})

    def _check_owner(self, reference: Reference, region: str, number: int) -> None:
        if reference.owner == region and reference.number == number and not reference.released:
            return
        owner = f"its owner is {reference.owner or 'unknown'}"
        if reference.released:
            owner = f"{reference.owner} has released it"
        msg = f"{region} does not own {reference.name} by number {number}: {owner}, and its number is {reference.number}. Stand by, and commit nothing"
        metadata = {"reference": reference.name, "owner": reference.owner, "number": str(reference.number)}
        raise errors.StaleAdoption(msg, metadata=metadata)

    def _check_candidate(self, reference: Reference, to: str, now: int) -> None:
        if to not in reference.regions:
            fix = f"name one of {', '.join(reference.regions)}"
            raise _refusal(reference.name, f"{to!r} is none of its regions", fix)
        if to == reference.owner:
            raise _refusal(reference.name, f"{to} owns it already", "there is nothing to do")
        if self.is_suspect(to, now):
            raise _refusal(reference.name, f"{to} is silent", "start `lowwater region` there first")

    def _check_target(self, reference: Reference, region: str) -> None:
        to = self._moving(reference).to
        if to != region:
            raise _refusal(reference.name, f"it is moved to {to}, not to {region}", "stand by")

    def _moving(self, reference: Reference) -> Move:
        if reference.move is None:
            raise _refusal(reference.name, "it is not being moved", "begin with `lowwater references move`")
        return reference.move

    def _check_serving(self) -> None:
        if self.store.state != SERVING:
            raise _recovering(self.store)

    def _owned_by(self, reference: Reference, region: str) -> Reference:
        """Return the record under its next owner.

        The published watermark stays. What only the owner reports is unknown again, and so are the
        replicas of other regions: a region with all rows of the last owner has none that the next
        one accepts (`current_replicas`).
        """
        replicas = tuple(replica for replica in reference.replicas if replica.region != region)
        owned = replace(reference, owner=region, number=reference.number + 1, move=None, replicas=replicas)
        if reference.owner == region:
            return owned  # after a move without a claim the owner goes on: a reset of it must be seen
        return replace(owned, life=0, jumped=False, low=MIN)

    def adopted(self, name: str, now: int) -> None:
        """Remember when a reference was adopted; see ``lately``."""
        self._adopted[name] = now

    def _publish(self, changed: Reference) -> Change:
        return self._put(replace(changed, published=changed.publishable))

    def _put(self, changed: Reference) -> Change:
        return Change((changed,)) if changed != self.references[changed.name] else Change()


# -- checks ----------------------------------------------------------------------------------------


def _refusal(name: str, what: str, fix: str) -> errors.RegionRefused:
    return errors.RegionRefused(f"{name}: {what}; {fix}", metadata={"reference": name, "fix": fix})


def _recovering(store: Store) -> errors.Recovering:
    msg = f"the global authority serves no requests: {store.reason}; {store.fix}"
    return errors.Recovering(
        msg, metadata={"state": store.state, "recovers": store.recovers, "token": store.token, "fix": store.fix}
    )


def _check(reference: Reference) -> None:
    """Raise InvalidArgument for a record that must not be registered."""
    sinks = [sink.name for sink in reference.sinks]
    single_region = reference.policy == REPLICATED and len(reference.regions) < 2
    problems = (
        (not is_name(reference.computation), "computation", "take [namespace/]name"),
        (
            not reference.inputs or not all(map(is_name, reference.inputs)),
            "inputs",
            "name the home inputs that it needs",
        ),
        (tuple(sorted(set(reference.inputs))) != reference.inputs, "inputs", "name each once, sorted"),
        (tuple(sorted(set(reference.regions))) != reference.regions, "regions", "name each once, sorted"),
        (not all(map(_is_label, reference.regions)), "regions", "give each a name"),
        (reference.owner not in ("", *reference.regions), "owner", "name one of its regions"),
        (reference.policy not in (REPLICATED, LOCAL), "policy", f"take {REPLICATED} or {LOCAL}"),
        (single_region, "regions", "a replica needs a second region; or take local"),
        (len(set(sinks)) < len(sinks), "sinks", "name each once"),
        (not all(map(_is_label, sinks)), "sinks", "give each a name"),
        *(
            (len(getattr(reference, name)) > MOST_EACH, name, f"name at most {MOST_EACH}")
            for name in ("inputs", "regions", "sinks")
        ),
    )
    for wrong, name, fix in problems:
        if wrong:
            raise errors.InvalidArgument(f"{name}: {fix}", metadata={"field": name, "fix": fix})


def _is_label(name: str) -> bool:
    return 0 < len(name) <= MOST_NAME and name.isprintable()


def _check_same_registration(reference: Reference, registration: Reference) -> None:
    """Raise RegistrationConflict when a reference is registered with something else."""
    fields = ("regions",) if reference.decided else ("policy", "regions")
    differ = [name for name in fields if getattr(reference, name) != getattr(registration, name)]
    if [sink[:2] for sink in reference.sinks] != [sink[:2] for sink in registration.sinks]:
        differ.append("sinks")
    if differ:
        fix = "give all regions the same, or forget it first"
        if differ == ["policy"]:
            fix = f"{reference.policy} is in force; give all regions the same, or decide with `lowwater references policy`"
        msg = f"{registration.name} is registered with other {', '.join(differ)}: {fix}"
        raise errors.RegistrationConflict(msg, metadata={"reference": registration.name, "fields": " ".join(differ)})


def _check_size(reference: Reference, positions: tuple[Position, ...], *texts: str) -> None:
    """Raise RegionRefused for a report that is too large to go to all regions each second."""
    texts += tuple(text for place in positions for text in place[:2])
    if len(positions) > MOST_POSITIONS or any(len(text) > MOST_TEXT for text in texts):
        what = f"more than {MOST_POSITIONS} positions, or a text of more than {MOST_TEXT} characters"
        raise _refusal(reference.name, f"the report has {what}", "report less, or divide the reference into several")


def _check_batch(reference: Reference, report: Progress) -> None:
    """Raise Rewound for a batch before the last one, or another one of its number.

    The owner's checkpoint went back then. Raises RegionRefused for a batch after a stop.
    """
    if report.batch < 0 or reference.batch_number != reference.number:
        return
    if report.batch < reference.batch or (report.batch == reference.batch and report.digest != reference.digest):
        msg = f"{reference.name}: batch {report.batch} is not what comes after batch {reference.batch}: a checkpoint went back, or two runs work on it"
        raise errors.Rewound(msg, metadata={"reference": reference.name})
    if report.batch > reference.batch and reference.move is not None and reference.move.step != WANTED:
        what = f"it has stopped at batch {reference.batch} to be moved"
        raise _refusal(reference.name, what, "commit nothing more, or cancel the move")


def _check_tail(reference: Reference, report: Progress) -> None:
    """Raise RegionRefused when the owner reads rows that were written off.

    Windows are closed without these rows, and would change.
    """
    if reference.life and report.life > reference.life:
        return
    for write_off in reference.write_offs:
        if write_off.incarnation < reference.incarnation:
            continue
        ends = {place[:3]: place.offset for place in write_off.positions}
        for place in report.positions:
            end = ends.get(place[:3], MAX)
            if place.offset > end:
                what = f"{place.topic}/{place.partition} was written off from {end} on"
                fix = "keep the tail aside; a correction is a new incarnation: reset the computation"
                raise _refusal(reference.name, what, fix)


def _check_same_state(reference: Reference, batch: int, digest: str, positions: tuple[Position, ...]) -> None:
    """Raise RegionRefused unless the next owner has the state in which the last one stopped."""
    if (batch, digest) != (reference.batch, reference.digest):
        what = f"its state is of batch {batch}, the owner stopped at {reference.batch}"
        raise _refusal(reference.name, what, "wait until the state has arrived")
    if set(positions) != set(reference.positions):
        fix = "give the positions of the source, by its own cluster and offsets: those of a mirror are others"
        raise _refusal(reference.name, "its positions are not those at which the owner stopped", fix)


def _with_replica(reference: Reference, replica: Replica) -> Reference:
    """Return a record with a region's replica.

    Raises RegionRefused for a region that keeps none.
    """
    if replica.region not in reference.regions:
        what = f"{replica.region} is none of its regions"
        raise _refusal(reference.name, what, "register it with all of them")
    _check_size(reference, replica.positions)
    if not replica.number:
        what = f"{replica.region} does not report the adoption number of its replica, so the replica cannot count"
        raise _refusal(reference.name, what, "upgrade its `lowwater region`")
    if replica.region == reference.owner:
        return reference
    others = (other for other in reference.replicas if other.region != replica.region)
    return replace(reference, replicas=tuple(sorted((*others, replica))))


def _is_read_anew(reference: Reference, entry: WriteOff | Broken, lost: str, region: str) -> bool:
    """True when rows that were given up count again after an operator's `arrived`.

    Windows of the same incarnation have closed without them, so only a later one counts.
    """
    return region in ("", lost) and entry.incarnation < reference.incarnation


def _holds_of(reference: Reference, region: str) -> tuple[list[Hold], tuple[Hold, ...]]:
    """Return the holds for a region, or for any, and the other holds.

    Raises RegionRefused when there is none.
    """
    over = [hold for hold in reference.holds if region in ("", hold.region)]
    if not over:
        what = f"it holds for no lost region{region and f' {region}'}"
        raise _refusal(reference.name, what, "there is nothing to decide: adopt first")
    return over, tuple(hold for hold in reference.holds if hold not in over)


def _enrolled(name: str, record: str) -> Reference:
    """Return a record that a region has kept. Raises as decode does, and InvalidArgument."""
    reference = json_records.decode(json.loads(record))
    _check(reference)
    return checked(name, reference)


def _jumped(reference: Reference) -> Reference:
    """Return a record whose number has jumped, so that the owner resets its own computation.

    That reset does not concern readers, and the record counts it already; any other reset begins a
    new incarnation. After several jumps that the owner has not heard of it makes one reset.
    """
    life = reference.life
    if life and not reference.jumped:
        life = min(life + 1, MOST_LIFE)
    return replace(reference, life=life, jumped=True, low=MIN)


def _better(mine: Reference | None, theirs: Reference) -> Reference:
    """Return the newer of two records of one reference.

    When they name two owners by one number, the owner is unmine.
    """
    if mine is None:
        return theirs
    newer = max(mine, theirs, key=lambda record: (record.number, record.incarnation, record.published))
    if mine.number == theirs.number and mine.owner != theirs.owner:
        return replace(newer, owner="")
    return newer
