"""A shard: serves computations, and says what a round of requests does to them.

    requests -> [round: check and stage in arrival order -> one append -> publish and answer] -> the next round

Nothing is published, acknowledged or granted before its record is durable (rule 2). Everything runs on one event loop;
time, journal and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lowwater import errors
from lowwater._core.text import counted
from lowwater_authority.access.caller import anything
from lowwater_authority.core import recovery
from lowwater_authority.core.batches import ALL_PART_BYTES, part_bytes
from lowwater_authority.core.requests import Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.engine.placement import moved
from lowwater_authority.engine.rounds import GivenUp, GraphMoved, Round
from lowwater_authority.engine.serving import DROPPED, WAIT_SECONDS, Serving, within
from lowwater_authority.journal import JournalError, JournalFenced
from lowwater_authority.ops.events import event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import IntervalMap, Range
    from lowwater_authority.core.requests import ClaimRequest, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.placement import Lows

    Permit = Callable[[Iterable[str]], None]
    """Raises PermissionDenied unless new lives of these computations may begin."""

    Room = Callable[[Collection[str]], None]
    """Raises Overloaded unless there may be one more beside these computations."""

    RoomForRanges = Callable[[int], None]
    """Raises Overloaded unless there may be so many ranges."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Shard(Serving):
    """Serves a set of computations: all of a deployment, with an embedded journal.

    Every request method returns when its effect is durable. They raise errors of :mod:`lowwater.errors`; a refused
    request has changed nothing. Moved: another shard serves the computation. JournalFailed: the store surely refused the
    write, and the staged state is rolled back.
    """

    # -- the graph -----------------------------------------------------------------------------------------

    async def register(self, spec: Spec, *, room: Room = anything) -> Spec:
        """Register a computation. Raises InvalidArgument, RegistrationConflict, Cycle, EstimatedInput, and what ``room`` raises."""

        def stage(round_: Round) -> Spec:
            graph = round_.topology or self.topology  # with what was staged in front of it
            computation = self.held.computations.get(spec.name)
            unused = computation is not None and not computation.last_sequencer
            changed = graph.register(spec, unused=unused)
            if changed is not graph:
                room(graph.computations)
                if computation is not None:
                    # Another shard may have taken it over, and granted it, meanwhile: then this is refused.
                    self._touch(round_, spec.name)
                round_.topology = changed
            return changed.get(spec.name)

        known = spec.name in self.topology.computations
        if spec.name in self.topology.dropped:
            await self._until_ended(spec.name)
        registered = await self._write(stage, alone=True, together=True)
        if not known:
            inputs = list(registered.inputs)
            reads = f"reads {', '.join(inputs)}" if inputs else "is an injector"
            log.info(
                "%s is registered: it %s",
                spec.name,
                reads,
                extra=event("registered", computation=spec.name, inputs=inputs),
            )
        if not self.serves(spec.name):
            async with self._registered:
                await self.serve(spec.name)
        return registered

    async def set_inputs(self, name: str, inputs: Sequence[str], *, permit: Permit = anything) -> Spec:
        """Change what a computation reads. Raises as register does, and WouldRegress.

        Its claims are revoked first, so that what it has published is frozen when the new inputs are compared with it. Ranges
        that stand beyond the low watermark of a new input go back to it: work may come to them from there on. What was a guess, by
        what it read until now, begins a new life instead; see Topology.set_inputs.
        """
        away: Lows = {}

        def stage(round_: Round) -> Spec:
            changed = self.topology.set_inputs(name, inputs)
            computation = self._computation(name)
            if changed.get(name).incarnation > self.topology.get(name).incarnation:
                permit(changed.downstream(name))
                round_.topology = changed
                self._fence_ended_lives(round_)
                return changed.get(name)
            lows = [self._low(each, away) for each in added()]
            for new, low in zip(added(), lows, strict=True):
                if low < computation.low:
                    msg = (
                        f"{new} is behind what {name} has published: {name} would have to go back. Reset {name} first, or wait "
                        f"until {new} has caught up."
                    )
                    raise errors.WouldRegress(msg, metadata={"computation": name, "input": new})
            round_.touch(name, computation)
            bound = min(lows, default=None)
            round_.fenced += computation.revoke(changed.get(name).input_version, round_.now, bound=bound)
            round_.topology = changed
            return changed.get(name)

        def added() -> list[str]:
            return [each for each in inputs if each not in self.topology.get(name).inputs]

        before = self.topology.get(name).inputs
        changed = await self._write(stage, alone=True, lows_of=added, away=away)
        if changed.inputs != before:
            told = event("inputs_changed", computation=name, inputs=list(changed.inputs), before=list(before))
            log.info("%s reads %s now", name, ", ".join(changed.inputs) or "nothing", extra=told)
        return changed

    async def reset(self, name: str, *, permit: Permit = anything) -> list[Spec]:
        """Start a new life of a computation and of all that reads it. Raises UnknownComputation, and what ``permit`` raises.

        Any shard may do it: those that serve them begin the new lives when they read the graph, at the latest before they answer.
        """

        def stage(round_: Round) -> list[Spec]:
            changed, names = self.topology.reset(name)
            permit(names)
            round_.topology = changed
            self._fence_ended_lives(round_)
            return [changed.get(n) for n in names]

        fresh = await self._write(stage, alone=True)
        for spec in fresh:
            told = event("reset", computation=spec.name, incarnation=spec.incarnation, asked=name)
            log.warning("%s was reset: its life %d begins", spec.name, spec.incarnation, extra=told)
        return fresh

    # -- owners --------------------------------------------------------------------------------------------

    async def claim(
        self,
        name: str,
        asked: ClaimRequest,
        *,
        adopt: bool = False,
        permit: Permit = anything,
        room: RoomForRanges = anything,
    ) -> Grant:
        """Grant ranges, as far as there is ``room``.

        With ``adopt``, take the computation over from another identity by a new life, as far as ``permit`` lets it.
        """
        away: Lows = {}

        def stage(round_: Round) -> Grant:
            computation = self._computation(name)
            request = self._bounded(name, asked, away)
            adopts = adopt and computation.identity not in (None, request.identity)
            if not adopts or request.request_id in computation.granted:
                if request.request_id not in computation.granted:  # a repeat divides nothing
                    room(_ranges_with(computation.map, request.bounds))
                round_.touch(name, computation)
                grant = computation.claim(request, round_.now, round_.wall)
                round_.fenced += grant.fenced
                return grant
            # The new life and its first claim are one record: a repeat of the request finds both, or neither.
            changed, names = self.topology.reset(name)
            permit(names)
            fresh = recovery.restarted(computation, changed.get(name))
            room(_ranges_with(fresh.map, request.bounds))
            grant = fresh.claim(request, round_.now, round_.wall)
            round_.topology = changed
            self._fence_ended_lives(round_)
            round_.touch(name, fresh)
            return grant

        inputs = (lambda: self.topology.get(name).inputs) if len(asked.bound_micros) else None
        life = self.topology.get(name).incarnation
        grant = await self._write(stage, alone=adopt, lows_of=inputs, away=away)
        self._tell_claim(name, asked, grant, adopted=adopt and self.topology.get(name).incarnation > life)
        return grant

    def _tell_claim(self, name: str, asked: ClaimRequest, grant: Grant, *, adopted: bool) -> None:
        what = "adopted" if adopted else "taken_over" if grant.fenced else "claimed"
        ranges = len(grant.watermarks)
        log.info(
            "%s of %s %s %s by %s on %s",
            counted(ranges, "key range"),
            name,
            "was" if ranges == 1 else "were",
            what.replace("_", " "),
            asked.worker or "an unnamed worker",
            asked.host or "an unnamed host",
            extra=event(
                what,
                computation=name,
                epoch=self.epoch(name),
                sequencer=grant.sequencer,
                ranges=ranges,
                start=asked.bounds[0].hex() if len(asked.bounds) else None,
                end=asked.bounds[-1].hex() if len(asked.bounds) else None,
                worker=asked.worker,
                host=asked.host,
                losers=len(grant.fenced) or None,
            ),
        )

    def _bounded(self, name: str, asked: ClaimRequest, away: Lows) -> ClaimRequest:
        """Let no bound lead what is published of the inputs.

        A retired range begins at its bound, and what its new owner knows may be older than a change of the inputs. The range of
        an owner never stands beyond them anyway, so for all others this changes nothing.
        """
        inputs = self.topology.get(name).inputs
        if not inputs or not len(asked.bound_micros):
            return asked
        low = min(self._low(each, away) for each in inputs)
        bounds = np.where(asked.bound_micros == MAX, MAX, np.minimum(asked.bound_micros, low))
        return replace(asked, bound_micros=bounds)

    def _low(self, name: str, away: Lows) -> int:
        """Return how far a computation is, whoever serves it. Raises GivenUp when that has to be asked anew."""
        computation = self.held.computations.get(name)
        if computation is not None:
            return computation.published.low
        spec = self.topology.computations.get(name)
        if spec is None:
            return MIN
        if name not in away:
            raise GivenUp
        life, low = away[name]
        if life > spec.incarnation:
            raise GraphMoved
        return low if life == spec.incarnation else MIN

    def report(
        self,
        reports: Sequence[tuple[str, GroupReport]],
        *,
        sender: bytes,
        number: tuple[int, int],
        after: asyncio.Future[Any] | None = None,
        barred: set[str] | None = None,
        older: dict[tuple[str, int], Refused] | None = None,
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        """Take over the states of several claims; the future ends with what was refused, by computation.

        ``after`` is the report before it in its stream: when that one failed, this one ends with OldStream, since it says
        only what changed since, and what was lost may have lowered a range. For the same reason nothing counts of a computation
        that is ``barred``: an earlier report of the stream was refused because another shard served it, or it was let go since the
        stream began. Those that are refused for it here are added. Nor does a claim of which a report of the stream was refused as
        OLD_STREAM, ``older`` by (computation, sequencer), until its turn is above the one it was told.
        """
        stopped = set() if barred is None else barred
        outrun = {} if older is None else older

        def stage(round_: Round) -> list[tuple[str, Refused]]:
            if after is not None and after.done() and (after.cancelled() or after.exception() is not None):
                msg = "an earlier report of this stream failed; open a new stream and send the full state"
                raise errors.OldStream(msg, metadata={"number": str(number[1])})
            refused: list[tuple[str, Refused]] = []
            for name, report in reports:
                try:
                    computation = self._touch(round_, name)
                    if name in stopped:
                        raise _elsewhere(name)
                except (errors.UnknownComputation, errors.Moved, errors.Unavailable) as caught:
                    error: errors.LowwaterError = caught
                    if not isinstance(error, errors.UnknownComputation):
                        stopped.add(name)
                    if isinstance(error, errors.Unavailable):
                        # Refused as what has moved: a client says everything again then, in time.
                        error = errors.Moved(error.message)
                    if name in self.topology.dropped:
                        error = _dropped(name)
                    refused.append((name, _refusal(report, error)))
                    continue
                key = name, report.sequencer
                if key in outrun and report.turn <= outrun[key].newest:
                    refused.append((name, outrun[key]))
                    continue
                required = self.topology.required(name)
                found = computation.report(
                    report, sender=sender, number=number, required=required, now=round_.now, wall=round_.wall
                )
                refused += [(name, refusal) for refusal in found]
                outrun.update((key, refusal) for refusal in found if refusal.reason == errors.OldStream.reason)
            return refused

        def without(refused: list[tuple[str, Refused]], gone: Collection[str]) -> list[tuple[str, Refused]]:
            stopped.update(gone)
            lost = [(name, _refusal(report, _elsewhere(name))) for name, report in reports if name in gone]
            return [*((name, refusal) for name, refusal in refused if name not in gone), *lost]

        return self._loop.write(stage, without=without)

    async def release(self, name: str, sequencer: int) -> None:
        """Leave a claim's ranges unowned. Raises StaleSequencer."""
        await self._write(lambda round_: self._touch(round_, name).release(sequencer))
        log.info("a claim of %s was released", name, extra=event("released", computation=name, sequencer=sequencer))

    async def retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> int:
        """Take an interval out; returns how many ranges. Raises OwnedRanges."""

        def stage(round_: Round) -> int:
            ranges, fenced = self._touch(round_, name).retire(start, end, force=force, now=round_.now)
            round_.fenced += fenced
            return ranges

        ranges = await self._write(stage)
        told = event("retired", computation=name, ranges=ranges, start=start.hex(), end=end.hex(), force=force)
        were = "was" if ranges == 1 else "were"
        log.warning("%s of %s %s retired", counted(ranges, "key range"), name, were, extra=told)
        return ranges

    async def drop(self, name: str, *, force: bool) -> Spec:
        """Take a computation out of the graph; returns its tombstone.

        Its claims are revoked in the same step, by a record in its own log: so nobody drops what another shard serves by then. Raises
        UnknownComputation, StillRead, and OwnedRanges unless forced.

        Of one that cannot be read back from the store nobody knows for sure who owns it: it is dropped by force, without that record. When
        nobody has it in memory either, its log is taken before this returns, so that whoever has owned it serves it no more: not before
        the graph is written, for who has owned it may come back with the only good copy. Raises Unavailable when it is dropped, but its
        log could not be taken within ``WAIT_SECONDS``; that is tried on.
        """
        unread = self._is_unread(name)
        orphaned = unread and not self.serves(name)
        if unread:
            self.topology.drop(name)
            await self._refuse_unread(name, force=force)

        def stage(round_: Round) -> Spec:
            changed = self.topology.drop(name)
            if unread and self._is_unread(name):
                round_.topology = changed
                self._fence_ended_lives(round_)
                return changed.dropped[name]
            computation = self._computation(name)
            if not force:
                computation.refuse_owners(round_.now)
            round_.touch(name, computation)
            version = self.topology.get(name).input_version
            round_.fenced += computation.revoke(version, round_.now, reason=DROPPED)
            round_.topology = changed
            return changed.dropped[name]

        dropped = await self._write(stage, alone=True)
        told = event("dropped", computation=name, incarnation=dropped.incarnation, force=force)
        log.warning("%s was dropped, in its life %d", name, dropped.incarnation, extra=told)
        if orphaned:
            await self._fence_dropped(name)
        return dropped

    def _is_unread(self, name: str) -> bool:
        return self.is_damaged(name) or name in self.held.unwritten

    async def _refuse_unread(self, name: str, *, force: bool) -> None:
        """Raises Moved while another shard serves it, OwnedRanges unless forced, and Unavailable."""
        held = self.serves(name)
        if not held and await self.placement.lives_elsewhere(name):
            raise moved(name)
        if not force:
            state = "and what is in memory is not written yet" if held else "and no process has it in memory"
            msg = (
                f"the log of {name} is damaged, {state}: nobody can tell whether workers own key ranges of it. "
                "Restore a copy, or stop its workers and drop it by force: nothing of it is read then."
            )
            raise errors.OwnedRanges(msg, metadata={"computation": name, "workers": ""})
        if not held:
            return
        try:
            await self.held.refuse_usurped(name)
        except JournalFenced as error:
            self.replaced(error.owners)
            raise moved(name) from error
        except JournalError as error:
            msg = f"the store does not tell who owns the log of {name}, nothing was changed: {error}"
            raise errors.Unavailable(msg, metadata={"computation": name}) from error

    async def _fence_dropped(self, name: str) -> None:
        msg = (
            f"{name} was dropped, but its log cannot be taken from its last owner yet, which may go on until it reads that, should it "
            "come back; it is tried again until it can"
        )
        async with within(WAIT_SECONDS, lambda: errors.Unavailable(msg, metadata={"computation": name})):
            await self.held.fenced(name)

    def stage_task(self, name: str, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart) -> None:
        """Keep a task's part, in memory only: it promises nothing until it is prepared and committed."""
        computation, held = self._computation(name), self.held.computations.values()
        before = computation.batches.bytes
        if self._parts + part_bytes(part) > ALL_PART_BYTES:
            self._parts = sum(
                each.batches.bytes for each in held
            )  # without what was committed since it was counted last
        most = max(ALL_PART_BYTES - (self._parts - before), ALL_PART_BYTES // len(held))
        computation.stage_task(sequencer, batch, task, part, most=most)
        self._parts += computation.batches.bytes - before

    def prepare(self, name: str, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch, in memory only; returns the missing ones."""
        return self._computation(name).prepare(request)

    async def commit(self, name: str, sequencer: int, batch: int) -> list[Refused]:
        """Apply a prepared batch. Raises StaleSequencer, NotPrepared, InputVersion, IncarnationChanged."""

        def stage(round_: Round) -> list[Refused]:
            required = self.topology.required(name)
            return self._touch(round_, name).commit(sequencer, batch, required, round_.now, round_.wall)

        return await self._write(stage)

    # -- readers -------------------------------------------------------------------------------------------

    def view(self, name: str) -> View | None:
        """Return what is published of a computation; None when this shard does not serve it."""
        computation = self.held.computations.get(name)
        return computation.published if computation else None

    def names(self) -> list[str]:
        """Return the names of the computations that this shard serves, sorted."""
        return sorted(self.held.computations)

    def granted(self, name: str, sequencer: int) -> int:
        """Return how many ranges a claim got, lost ones too; 0 when there is no such claim here. O(1)."""
        computation = self.held.computations.get(name)
        group = None if computation is None else computation.map.groups.get(sequencer)
        return 0 if group is None else group.granted

    def reference(self, name: str) -> int:
        """Return the event time that ages of a computation's histograms count from. Raises Moved."""
        computation = self.held.computations.get(name)
        if computation is None:
            raise moved(name)
        return computation.reference

    async def look(self, read: Callable[[Mapping[str, Computation]], T]) -> T:
        """Return what ``read`` says of all that is served here, called once, on the event loop, as of the last durable round.

        But for what has to be written again first, see Holdings.unwritten.

        Raises ShuttingDown, and Unavailable when there is no such moment within ``WAIT_SECONDS``.
        """
        held = self.held
        return await self._read(
            lambda _: read({n: each for n, each in held.computations.items() if n not in held.unwritten})
        )

    async def ranges(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int]:
        """Return the ranges furthest behind, as of the last durable round."""

        def read(_: Round) -> tuple[list[Range], int]:
            ranges = self._computation(name).map
            return ranges.all_ranges(limit) if below is None else ranges.held_below(below, limit)

        return await self._read(read)

    async def history(self, name: str, *, since: int | None, limit: int) -> tuple[list[Completion], int]:
        """Return when steps became complete, newest ones, as of the last durable round. See History.newest."""
        return await self._read(lambda _: self._computation(name).history.newest(since, limit))


def _ranges_with(held: IntervalMap, bounds: Sequence[bytes]) -> int:
    """Return into how many ranges a claim would divide a computation. O(claims it touches)."""
    touched = list(held.overlapping(bounds[0], bounds[-1]))
    covered = sum(high - low for _, low, high in touched)
    (first, low, _), (last, _, high) = touched[0], touched[-1]
    cut = (first.bounds[low] != bounds[0]) + (last.bounds[high] != bounds[-1])
    return len(held) - covered + cut + len(bounds) - 1


def _elsewhere(name: str) -> errors.Moved:
    msg = f"{name} was served by another shard in between; open a new stream and send the full state"
    return errors.Moved(msg, metadata={"computation": name})


def _dropped(name: str) -> errors.StaleSequencer:
    """Return why a claim of a dropped computation is over, whoever comes back with it; a new life of it would say the same."""
    msg = f"{name} was dropped, and its claims ended with it"
    return errors.StaleSequencer(msg, metadata={"computation": name})


def _refusal(report: GroupReport, error: errors.LowwaterError) -> Refused:
    return Refused(report.sequencer, error.reason, error.message)
