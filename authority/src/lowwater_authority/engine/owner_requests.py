"""Requests of owners: claim, report, release, retire, commit, vouch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lowwater import errors
from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater_authority.core import recovery
from lowwater_authority.core.batches import ALL_PART_BYTES, part_bytes
from lowwater_authority.core.requests import Refused
from lowwater_authority.core.times import MAX
from lowwater_authority.engine.requests import allow
from lowwater_authority.engine.round import GivenUp

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.interval_map import IntervalMap
    from lowwater_authority.core.layout import LayoutReport
    from lowwater_authority.core.requests import ClaimRequest, Fold, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.requests import Permit, Requests, RoomForRanges
    from lowwater_authority.engine.round import Round

T = TypeVar("T")

log = logging.getLogger(__name__)


class OwnerRequests:
    """Requests of workers.

    Every method returns when its effect is durable; a refused request has changed nothing. All
    methods raise Moved while another shard serves the computation, and JournalFailed when the store
    surely refused the write.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._served = requests.served
        self._holdings = requests.held
        self._part_bytes = 0
        """Upper bound of the bytes of all computations' task parts. Parts that were committed since
        the last count are still in it."""

    async def claim(
        self,
        name: str,
        claim: ClaimRequest,
        *,
        adopt: bool = False,
        incarnation: int = 0,
        permit: Permit = allow,
        room: RoomForRanges = allow,
    ) -> Grant:
        """Grant ranges, unless ``room`` refuses.

        With ``adopt``, take the computation over from another identity by a new incarnation, unless
        ``permit`` refuses. ``incarnation`` is the one that ends then; 0: any.
        """
        away: Lows = {}
        binds, life = False, 0

        def stage(round_: Round) -> Grant:
            nonlocal binds, life
            computation = self._requests.by_its_inputs(round_, name)
            life = computation.incarnation
            request = self._bounded(name, claim, away)
            adopts = adopt and computation.identity not in (None, request.identity)
            if not adopts or request.request_id in computation.granted:
                # Only a claim that divides ranges needs room: no repeat, none at a root, whose
                # slices have the ranges, and none of foreign keys, which is refused.
                divides = request.request_id not in computation.granted and not computation.spec.cut.starts
                if divides and computation.has_keys(request.bounds[0], request.bounds[-1]):
                    room(_ranges_with(computation.map, request.bounds))
                binds = self._is_unbound(name, request, round_.wall)
                if binds:
                    raise GivenUp
                round_.touch(name, computation)
                grant = computation.claim(request, round_.now, round_.wall)
                round_.fenced += grant.fenced
                return grant
            # The new incarnation and its first claim are one record, so a repeat of the request
            # finds both or neither.
            self._requests.topology.check_incarnation(name, incarnation)
            changed, names = self._requests.topology.reset(name)
            permit(names)
            fresh = recovery.restarted(computation, changed.get(name))
            life = fresh.incarnation
            room(_ranges_with(fresh.map, request.bounds))
            grant = fresh.claim(request, round_.now, round_.wall)
            round_.change_graph(changed, self._served)
            round_.touch(name, fresh)
            return grant

        def inputs() -> Sequence[str]:
            return self._requests.topology.get(name).inputs if self._revives(name, claim) else ()

        before = self._requests.topology.get(name).incarnation

        async def bind() -> None:
            # The root is bound only after all other checks of the claim have passed, because a
            # refused worker must bind nothing.
            if binds:
                await self._served.slices.bind(name, claim.identity)

        lows_of = inputs if len(claim.bound_micros) else None
        grant = await self._requests.write(stage, alone=adopt, first=bind, lows_of=lows_of, away=away)
        if self._requests.topology.get(name).incarnation != life:
            # The answer would name the current incarnation, and a caller would take the ended claim
            # for one of it.
            msg = f"{name} began a new incarnation before this claim of the last one was answered; ask again, and claim anew when it says so"
            raise errors.Unavailable(msg, metadata={"computation": name})
        self._log_claim(name, claim, grant, adopted=adopt and life > before)
        return grant

    def _is_unbound(self, name: str, request: ClaimRequest, wall: int) -> bool:
        """Return whether a claim is the first of a slice with a root that is not bound yet."""
        computation = self._holdings.computation(name)
        if computation is None or not self._served.slices.is_unbound(name, request.identity):
            return False
        return computation.begins(request, wall)

    def _log_claim(self, name: str, request: ClaimRequest, grant: Grant, *, adopted: bool) -> None:
        what = "adopted" if adopted else "taken_over" if grant.fenced else "claimed"
        ranges = len(grant.watermarks)
        log.info(
            "%s of %s %s %s by %s on %s",
            counted(ranges, "key range"),
            name,
            "was" if ranges == 1 else "were",
            what.replace("_", " "),
            request.worker or "an unnamed worker",
            request.host or "an unnamed host",
            extra=event(
                what,
                computation=name,
                epoch=self._served.epoch(name),
                sequencer=grant.sequencer,
                ranges=ranges,
                start=request.bounds[0].hex() if len(request.bounds) else None,
                end=request.bounds[-1].hex() if len(request.bounds) else None,
                worker=request.worker,
                host=request.host,
                losers=len(grant.fenced) or None,
            ),
        )

    def _bounded(self, name: str, request: ClaimRequest, away: Lows) -> ClaimRequest:
        """Let no bound lead the published values of the inputs.

        A retired range begins at its bound, and its new owner may not know of a change of the
        inputs. All other ranges never lead the inputs, so their claims need not wait for the shards
        of the inputs.
        """
        inputs = self._requests.topology.get(name).inputs
        if not inputs or not self._revives(name, request):
            return request
        low = min(self._requests.low(input_, away) for input_ in inputs)
        bounds = np.where(request.bound_micros == MAX, MAX, np.minimum(request.bound_micros, low))
        return replace(request, bound_micros=bounds)

    def _revives(self, name: str, request: ClaimRequest) -> bool:
        """Return whether a claim has a bound, and revives retired ranges. O(touched claims)."""
        computation = self._holdings.computation(name)
        if computation is None or not len(request.bound_micros):
            return False
        return computation.has_keys(request.bounds[0], request.bounds[-1]) and computation.revives(request)

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
        """Take the reported states of several claims.

        The future gives pairs of a computation and a refusal.

        A report carries only changes since the one before it in its stream, and a lost report may
        have lowered a range. So three things stop later reports:

        - ``after`` is the future of the report before. If that failed, this one ends with
          OldStream.
        - ``barred`` are computations that another shard has served since the stream began. They are
          refused, and computations that are refused here for that reason are added.
        - ``older`` are refusals with OLD_STREAM, by (computation, sequencer). Such a claim is
          refused until a report has a turn above the one in the refusal.
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
                    computation = self._requests.touch(round_, name)
                    if name in stopped:
                        raise _elsewhere(name)
                except (errors.UnknownComputation, errors.Moved, errors.Unavailable) as caught:
                    error: errors.LowwaterError = caught
                    if not isinstance(error, errors.UnknownComputation):
                        stopped.add(name)
                    if isinstance(error, errors.Unavailable):
                        # Refused as Moved, so that the client sends the full state again in time.
                        error = errors.Moved(error.message)
                    if name in self._requests.topology.dropped:
                        error = _dropped(name)
                    refused.append((name, _refusal(report, error)))
                    continue
                key = name, report.sequencer
                if key in outrun and report.turn <= outrun[key].newest:
                    refused.append((name, outrun[key]))
                    continue
                required = self._requests.topology.required(name)
                refusals = computation.report(
                    report, sender=sender, number=number, required=required, now=round_.now, wall=round_.wall
                )
                refused += [(name, refusal) for refusal in refusals]
                outrun.update((key, refusal) for refusal in refusals if refusal.reason == errors.OldStream.reason)
            return refused

        def without(
            refused: list[tuple[str, Refused]], dropped: Collection[str], unconfirmed: Mapping[str, errors.Unavailable]
        ) -> list[tuple[str, Refused]]:
            stopped.update(dropped)
            lost = [(name, _refusal(report, _elsewhere(name))) for name, report in reports if name in dropped]
            again = [(name, _refusal(report, unconfirmed[name])) for name, report in reports if name in unconfirmed]
            return [*((name, refusal) for name, refusal in refused if name not in dropped), *lost, *again]

        return self._requests.rounds.write(stage, without=without)

    async def release(self, name: str, sequencer: int, failure: str | None = None) -> None:
        """Leave a claim's ranges unowned. Raises StaleSequencer.

        ``failure``: as of Computation.release.
        """
        await self._requests.write(
            lambda round_: self._requests.touch(round_, name).release(sequencer, round_.now, failure)
        )
        log.info("a claim of %s was released", name, extra=event("released", computation=name, sequencer=sequencer))

    async def retire(
        self,
        name: str,
        start: bytes,
        end: bytes,
        *,
        force: bool,
        sequencer: int = 0,
        newest_claim: int | None = None,
        incarnation: int = 0,
    ) -> int:
        """Retire an interval; returns the number of ranges. As Computation.retire.

        ``incarnation`` is the one that the caller has seen; 0: any. Raises IncarnationChanged in
        another one.
        """

        def stage(round_: Round) -> int:
            self._requests.topology.check_incarnation(name, incarnation)
            ranges, fenced = self._requests.touch(round_, name).retire(
                start, end, force=force, now=round_.now, sequencer=sequencer, newest_claim=newest_claim
            )
            round_.fenced += fenced
            return ranges

        ranges = await self._requests.write(stage)
        facts = event("retired", computation=name, ranges=ranges, start=start.hex(), end=end.hex(), force=force)
        were = "was" if ranges == 1 else "were"
        log.warning("%s of %s %s retired", counted(ranges, "key range"), name, were, extra=facts)
        return ranges

    def stage_task(self, name: str, sequencer: int, batch: int, task: TaskAttempt, part: TaskPart) -> None:
        """Keep a task's part, in memory only. It counts when it is prepared and committed."""
        computation, holdings = self._served.computation(name), self._holdings.served.values()
        before = computation.batches.bytes
        if self._part_bytes + part_bytes(part) > ALL_PART_BYTES:
            # Count again, without the parts that were committed since.
            self._part_bytes = sum(holding.computation.batches.bytes for holding in holdings)
        most = max(ALL_PART_BYTES - (self._part_bytes - before), ALL_PART_BYTES // len(holdings))
        computation.stage_task(sequencer, batch, task, part, most=most)
        self._part_bytes += computation.batches.bytes - before

    def prepare(self, name: str, request: Prepare) -> Sequence[TaskAttempt]:
        """Fix the accepted attempts of a batch, in memory only. Returns the missing ones."""
        return self._served.computation(name).prepare(request)

    async def commit(self, name: str, sequencer: int, batch: int, layout: LayoutReport | None = None) -> list[Refused]:
        """Apply a prepared batch, and remember the layout that its owner reports.

        Raises StaleSequencer, NotPrepared, InputVersion, IncarnationChanged.
        """

        def stage(round_: Round) -> list[Refused]:
            computation, required = self._requests.touch(round_, name), self._requests.topology.required(name)
            refused = computation.commit(sequencer, batch, required, round_.now, round_.wall)
            computation.note_layout(sequencer, layout)
            return refused

        return await self._requests.write(stage)

    async def vouch(self, name: str, sequencer: int, through: int, fold: Fold) -> None:
        """Let an output call itself complete up to an event time.

        Raises StaleSequencer, InputVersion, IncarnationChanged, TooFarAhead, InvalidArgument.
        """

        def stage(round_: Round) -> None:
            self._requests.touch(round_, name).vouch(
                sequencer, through, fold, self._requests.topology.required(name), round_.wall
            )

        await self._requests.write(stage)
        if self._requests.topology.get(name).slice_of:
            await self._served.slices.vouched(name, through, fold.input_version)

    async def change_layout(
        self, name: str, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]
    ) -> int:
        """Change the wanted layout; returns its version.

        Raises IncarnationChanged and LayoutConflict.
        """
        version = await self.change(
            name, lambda computation, _: computation.change_layout(incarnation, expected, starts, tasks)
        )
        facts = event("layout_changed", computation=name, version=version, ranges=len(starts))
        log.info("version %d of the layout of %s has %s", version, name, counted(len(starts), "key range"), extra=facts)
        return version

    async def change(self, name: str, change: Callable[[Computation, int], T]) -> T:
        """Change a computation by ``change(computation, processing time)``; returns its result.

        An error of ``change``, which must not have changed anything then, is raised here.
        """
        return await self._requests.write(lambda round_: change(self._requests.touch(round_, name), round_.now))


def _ranges_with(ranges: IntervalMap, bounds: Sequence[bytes]) -> int:
    """Return the number of ranges of a computation after a claim. O(touched claims)."""
    touched = list(ranges.overlapping(bounds[0], bounds[-1]))
    covered = sum(high - low for _, low, high in touched)
    (first, low, _), (last, _, high) = touched[0], touched[-1]
    cut = (first.bounds[low] != bounds[0]) + (last.bounds[high] != bounds[-1])
    return len(ranges) - covered + cut + len(bounds) - 1


def _elsewhere(name: str) -> errors.Moved:
    msg = f"{name} was served by another shard in between; open a new stream and send the full state"
    return errors.Moved(msg, metadata={"computation": name})


def _dropped(name: str) -> errors.StaleSequencer:
    """Return the refusal of a claim of a dropped computation, the same as a new incarnation's."""
    msg = f"{name} was dropped, and its claims ended with it"
    return errors.StaleSequencer(msg, metadata={"computation": name})


def _refusal(report: GroupReport, error: errors.LowwaterError) -> Refused:
    return Refused(report.sequencer, error.reason, error.message)
