"""The agent of a region: tells the global authority how far the region is, and the region by which numbers it may commit.

Once a second it reads L and R from the local authority, reports them, and takes the answer: what the region owns, and what is published for all.
Every answer replaces the one before as a whole. After a start, and whenever a request had no answer, the next one is Confirm; what the agent
was told before an own restart counts for nothing. So after a start there is no number until the global level has been heard. While
the link is cut the last answer stays: the region goes on, by the number that it had when it was cut off, and whether that still counts is for the
sinks to say, which compare it in the write.

The agent relays: each global watermark is published at the local authority as the injector ``global/NAME``, which nobody else reports for. Local
pipelines read global names there alone, and find them holding while the global level is away.

A region that becomes the owner of a reference resets its own computation of that name first. What it has published there may stem from a time
when it went on without knowing that it had been replaced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import grpc

from lowwater import WatermarkView, errors
from lowwater.aio import Client, Lease
from lowwater.core.attempts import error_of_call
from lowwater.core.events import event
from lowwater.core.text import duration
from lowwater.v1 import regions_pb2 as pb
from lowwater_authority.core.times import ANY_SKEW, MAX, MIN
from lowwater_regions.config import Kept, StateFolder, registration
from lowwater_regions.reference import MOST_NUMBER, relayed_name

RELAY_IDENTITY: Final = "lowwater-region"

FATAL: Final = (errors.SecondAgent,)
"""What waiting does not cure: the agent says why, hands out nothing more, and ends."""

CALL_SECONDS: Final = 5.0

READ_SECONDS: Final = 2.0
"""How long the local authority keeps a sign of life waiting."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PipelineReport:
    """Last report of the region's own pipeline about a reference, and the adoption number it had."""

    number: int = 0
    batch: int = -1
    digest: str = ""
    positions: list[pb.SourcePosition] = field(default_factory=list)
    stopped: bool = False


@dataclass(slots=True)
class Relayed:
    """A global watermark at the local authority."""

    lease: Lease
    value: int = MIN
    waiting: str = ""


class RegionAgent:
    """Speaks for one region.

    Args:
        name: The region's.
        kept: Its references.
        folder: What it keeps.
        local: A client of the local authority.
        stub: Of the global authority.
        where: Its address, for messages.
        metadata: Returns what goes along with a call to it.
        monotonic: Seconds.
    """

    def __init__(
        self,
        name: str,
        kept: Iterable[Kept],
        folder: StateFolder,
        local: Client,
        stub: Any,
        *,
        where: str,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self.kept = {each.name: each for each in kept}
        self.folder = folder
        self.local = local
        self.views: dict[str, pb.ReferenceView] = {}
        """The last answer, of this process; empty until it is confirmed."""
        self.watermarks: list[pb.GlobalWatermark] = []
        self.linked = False
        """Whether the last request was answered; if not, the next one is Confirm."""
        self.heard: float | None = None
        """When it was, by the monotonic clock."""
        self.pipeline_reports: dict[str, PipelineReport] = {}
        """Last report of the pipeline of each reference. Not kept over a restart."""
        self.mirrored: dict[str, list[pb.SourcePosition]] = {}
        self.arrivals: dict[str, PipelineReport] = {}
        self.refusals: dict[str, str] = {}
        self._stub, self._where, self._metadata = stub, where, metadata
        self._monotonic = monotonic
        self._stepped_at = monotonic()
        """Time, on the monotonic clock, when the agent last ended a round, or a call to the global
        authority with or without an answer."""
        self._nonce = secrets.token_hex(8)
        self._turn = 0
        self._values: dict[str, WatermarkView] = {}
        """What was read of the local authority, for this report. What is reset meanwhile is taken
        out."""
        self._read_under: dict[str, int] = {}
        """By reference the adoption number that this region knew before it read ``_values``: what
        was read says nothing of a later owner."""
        self._ready: dict[str, int] = {}
        """By reference the number for which the local computation was made ready."""
        self._ended: dict[str, tuple[int, int]] = {}
        """By reference an adoption number, and the local incarnation that was there before the
        reset for it."""
        self._relays: dict[str, Relayed] = {}
        self._relaying: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._away_for = ""
        """Why there was no answer, as it was told last."""
        self._registered: set[str] = set()

    # -- what pipelines ask ------------------------------------------------------------------------

    @property
    def stale(self) -> float | None:
        """For how many seconds the global level has not been heard; None: never."""
        return None if self.heard is None else self._monotonic() - self.heard

    def owned(self, reference: str) -> pb.ReferenceView:
        """Return a reference that the region owns, and may commit by.

        Raises UnknownReference, Unconfirmed, StaleAdoption, RegionRefused.
        """
        metadata = {"reference": reference, "region": self.name}
        if reference not in self.kept:
            raise errors.UnknownReference(f"{reference!r} is not in the file of region {self.name}", metadata=metadata)
        view = self.views.get(reference)
        if view is None:
            msg = f"region {self.name} has not been confirmed since its agent was started: commit nothing until it is"
            raise errors.Unconfirmed(msg, metadata=metadata)
        if view.owner != self.name or view.move_step == "released":
            if view.owner == self.name:
                msg = f"region {self.name} has released {reference}, number {view.number}, to {view.moving_to}: commit nothing more, and stand by"
            else:
                msg = (
                    f"{f'region {view.owner}' if view.owner else 'nobody'} owns {reference}, by the adoption number {view.number}, and region {self.name} does not: "
                    "commit nothing, and stand by until it is moved or adopted here"
                )
            raise errors.StaleAdoption(msg, metadata={**metadata, "owner": view.owner, "number": str(view.number)})
        if view.move_step in ("stopped", "arrived"):
            fix = "commit nothing more; the move may still be cancelled"
            raise errors.RegionRefused(
                f"{reference} has stopped to be moved to {view.moving_to}: {fix}", metadata={**metadata, "fix": fix}
            )
        report = self.pipeline_reports.get(reference)
        if view.moving_to and report is not None and report.stopped and report.number == view.number:
            fix = "commit nothing more; the move may still be cancelled"
            raise errors.RegionRefused(
                f"the pipeline of {reference} has said that it has stopped: {fix}", metadata={**metadata, "fix": fix}
            )
        if self._ready.get(reference) != view.number:
            msg = f"the local computation of {reference} is not reset yet for number {view.number}"
            raise errors.Unconfirmed(msg, metadata=metadata)
        return view

    @property
    def idle_seconds(self) -> float:
        """Seconds since the agent last ended a round or a call to the global authority.

        Read from any thread.

        Calls count besides rounds: a round waits for the calls of pipelines, and while the global
        authority is away each of those takes its whole timeout.
        """
        return self._monotonic() - self._stepped_at

    async def asked(self, reference: str) -> pb.ReferenceView:
        """Return as owned, but ask the global authority first: for what cannot be fenced later.

        Raises also what keeps it from being asked.
        """
        self.owned(reference)
        async with self._asking:
            if self.linked:
                await self._take(await self._call(self._stub.Report, pb.RegionReportRequest()))
            else:
                await self._talk()
        return self.owned(reference)

    def committed(self, reference: str, report: PipelineReport) -> None:
        """Take what a pipeline has committed. Raises as owned; StaleAdoption for another number."""
        before = self.pipeline_reports.get(reference)
        if before is not None and before.stopped and before == report:
            return  # said again
        view = self.owned(reference)
        if report.number != view.number:
            msg = f"{reference} is owned by number {view.number}, not {report.number}"
            raise errors.StaleAdoption(msg, metadata={"reference": reference, "number": str(view.number)})
        self.pipeline_reports[reference] = report

    def arrived(self, reference: str, report: PipelineReport) -> None:
        """Take that the state of a batch is here, to be gone on from. Raises UnknownReference."""
        if reference not in self.kept:
            raise errors.UnknownReference(f"{reference!r} is not in the file of region {self.name}")
        self.arrivals[reference] = report

    def mirrors(self, reference: str, positions: list[pb.SourcePosition]) -> None:
        """Take how far the sources are mirrored here. Raises UnknownReference."""
        if reference not in self.kept:
            raise errors.UnknownReference(f"{reference!r} is not in the file of region {self.name}")
        self.mirrored[reference] = positions

    async def raised(self, reference: str, number: int, sink: str, cut: str) -> None:
        """Pass on that a sink has the number. Raises as owned, and Unavailable."""
        if self.owned(reference).number != number:
            msg = f"{reference} is owned by number {self.owned(reference).number}, not {number}"
            raise errors.StaleAdoption(msg, metadata={"reference": reference})
        async with self._asking:
            request = pb.FenceRequest(reference=reference, number=number, sink=sink, cut=cut)
            await self._take(await self._call(self._stub.Fence, request))

    # -- once a second -----------------------------------------------------------------------------

    async def once(self) -> None:
        """Report once, or confirm.

        Raises what waiting does not cure, when nothing is handed out any more.
        """
        async with self._asking:
            self._read_under = {name: view.number for name, view in self.views.items()}
            self._values = await self._read()
            try:
                await self._talk()
            except FATAL:
                self.views, self.linked = {}, False
                raise
            except (errors.Unconfirmed, errors.OldStream):
                self.linked = False  # it was restarted, or a newer request was heard: ask anew at once
                await self._away(self._talk())
            except errors.LowwaterError as error:
                self._lost(error)
        # Beside: a local authority that is slow keeps no sign of life from the global one.
        if self._relaying is None or self._relaying.done():
            self._relaying = asyncio.create_task(self._relay())
        self._stepped_at = self._monotonic()

    async def close(self) -> None:
        """Let go of what goes on beside."""
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.gather(self._relaying, return_exceptions=True)

    async def _away(self, talking: Any) -> None:
        try:
            await talking
        except FATAL:
            self.views, self.linked = {}, False
            raise
        except errors.LowwaterError as error:
            self._lost(error)

    def _lost(self, error: errors.LowwaterError) -> None:
        if self._away_for != error.reason:
            what = "goes on" if self.views else "waits until it is confirmed"
            log.warning(
                "the global authority is away, the region %s: %s",
                what,
                error,
                extra=event("global_away", reason=str(error)),
            )
        self.linked, self._away_for = False, error.reason

    async def _talk(self) -> None:
        if self.linked:
            await self._take(await self._call(self._stub.Report, self._report()))
            await self._move()
            return
        # All that it was ever told, whoever owned it: a store that knows less is an old copy.
        numbers = {
            name: told[1] for name, record in self.folder.state.records.items() if (told := _told_before(record))
        }
        try:
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        except errors.ServerTokenMismatch as error:
            self._belong(error)
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        except errors.Recovering as error:
            if error.metadata.get("state") != "enrolling" or error.metadata.get("recovers") != self.folder.state.store:
                raise
            records = self.folder.state.records
            answer = await self._call(self._stub.Enrol, pb.EnrolRequest(records=records))
            log.warning("enrolled %d references", len(records), extra=event("region_enrolled", references=len(records)))
            for view in answer.references:
                self._stand_by(view)
            for refusal in answer.refused:
                self._refuse(f"{refusal.reference}, enrolment", refusal.reason, refusal.message)
            if not answer.serving:
                raise
            self._belong(
                errors.ServerTokenMismatch(
                    "", metadata={"found": answer.store_token, "recovers": self.folder.state.store}
                )
            )
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        # Taken at once: a registration below may have no answer, and the region goes on by what it
        # was told last.
        await self._take(answer)
        await self._register()
        self.linked, self._away_for = True, ""
        log.info("confirmed by the global authority", extra=event("region_confirmed", region=self.name))

    async def _register(self) -> None:
        """Make the references of the file known; one that is refused keeps no other from it."""
        for each in self.kept.values():
            if each.name in self._registered:
                continue
            try:
                await self._take(await self._call(self._stub.RegisterReference, registration(each)))
                self._registered.add(each.name)
                self.refusals.pop(f"{each.name}, registration", None)
                known = self.views.get(each.name)
                if known is not None and known.policy != each.policy:
                    log.info(
                        "%s: the policy in force is %s, as an operator has decided; the file has %s",
                        each.name,
                        known.policy,
                        each.policy,
                        extra=event("policy_decided", reference=each.name, policy=known.policy),
                    )
            except (
                errors.RegistrationConflict,
                errors.InvalidArgument,
                errors.RegionRefused,
                errors.PermissionDenied,
                errors.Overloaded,
            ) as error:
                message = error.message
                if isinstance(error, errors.PermissionDenied):
                    message += "; or an operator registers it with `lowwater references register`"
                self._refuse(f"{each.name}, registration", error.reason, message)

    def _belong(self, error: errors.ServerTokenMismatch) -> None:
        """Belong to the store that an operator has put in the place of the one that was lost.

        Raises the error for any other.
        """
        state = self.folder.state
        if not state.store or error.metadata.get("recovers") != state.store:
            raise error
        state.store, state.seen = error.metadata["found"], 0
        self.folder.save()
        log.warning(
            "the global store was recovered, as %s", state.store, extra=event("store_recovered", token=state.store)
        )

    def _report(self) -> pb.RegionReportRequest:
        values = self._values
        request = pb.RegionReportRequest()
        for name, each in self.kept.items():
            view = self.views.get(name)
            if view is None:
                continue
            if view.owner != self.name:
                replica = self._replica(each)
                if replica is not None:
                    request.replicas.append(replica)
            elif each.low in values and self._ready.get(name) == view.number and view.move_step != "released":
                request.progress.append(self._progress(each, view, values[each.low]))
        return request

    def _progress(self, each: Kept, view: pb.ReferenceView, low: WatermarkView) -> pb.ReferenceProgress:
        made = pb.ReferenceProgress(
            reference=each.name, number=view.number, life=low.incarnation, low_micros=low.low.micros, batch=-1
        )
        report = self.pipeline_reports.get(each.name)
        if report is not None and report.number == view.number:
            made.batch, made.digest = report.batch, report.digest
            made.positions.extend(report.positions)
        return made

    def _replica(self, each: Kept) -> pb.ReferenceReplica | None:
        """What this region has of what another one makes; None while the local authority cannot tell."""
        values = self._values
        if not each.replicated or each.replicated not in values or (each.output and each.output not in values):
            return None
        if not self._read_under.get(each.name):
            return None
        output = values[each.output].low.micros if each.output else MAX
        replicated = values[each.replicated].low.micros
        positions = self.mirrored.get(each.name, ())
        return pb.ReferenceReplica(
            reference=each.name,
            region=self.name,
            replicated_micros=replicated,
            output_micros=output,
            positions=positions,
            number=self._read_under.get(each.name, 0),
        )

    async def _move(self) -> None:
        """Do the next step of planned moves that is this region's."""
        for name, view in list(self.views.items()):
            report, arrival = self.pipeline_reports.get(name), self.arrivals.get(name)
            try:
                if (
                    view.owner == self.name
                    and view.move_step == "wanted"
                    and report
                    and report.stopped
                    and report.number == view.number
                ):
                    low = self._values.get(self.kept[name].low)
                    if low is not None:
                        await self._take(
                            await self._call(
                                self._stub.Stop, pb.StopRequest(progress=self._progress(self.kept[name], view, low))
                            )
                        )
                elif view.owner == self.name and view.move_step == "arrived":
                    # Nothing is committed from `stopped` on; from here on the number is not handed
                    # out either, whatever becomes of the call.
                    request = pb.ReleaseReferenceRequest(reference=name, number=view.number, digest=view.digest)
                    await self._take(await self._call(self._stub.ReleaseReference, request))
                elif view.moving_to == self.name and view.move_step == "stopped" and arrival is not None:
                    replica = self._replica(self.kept[name])
                    if replica is not None:
                        del replica.positions[:]
                        replica.positions.extend(arrival.positions)
                        arrive = pb.ArriveRequest(replica=replica, batch=arrival.batch, digest=arrival.digest)
                        await self._take(await self._call(self._stub.Arrive, arrive))
                elif view.moving_to == self.name and view.move_step == "released" and arrival is not None:
                    claim = pb.ClaimReferenceRequest(
                        reference=name,
                        number=view.number,
                        batch=arrival.batch,
                        digest=arrival.digest,
                        positions=arrival.positions,
                    )
                    await self._take(await self._call(self._stub.ClaimReference, claim))
            except (errors.RegionRefused, errors.StaleAdoption, errors.Rewound) as error:
                self._refuse(f"{name}, move", error.reason, error.message)

    def _refuse(self, name: str, reason: str, message: str) -> None:
        if self.refusals.get(name) != message:
            log.warning("%s: %s", name, message, extra=event("reference_refused", reference=name, reason=reason))
        self.refusals[name] = message

    async def _take(self, answer: pb.RegionResponse) -> None:
        """Go by an answer: it is the whole of what the region owns.

        Durable before anything is handed out.
        """
        state = self.folder.state
        if state.store and answer.store_token != state.store:
            msg = "the global store has become another one"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": state.store, "found": answer.store_token})
        self.heard = self._monotonic()
        state.store, state.seen = answer.store_token, max(state.seen, answer.position)
        views = {each.name: each for each in answer.references if each.name in self.kept}
        # Side by side: a local authority that is away keeps each of them waiting, and the next sign
        # of life with them.
        await asyncio.gather(
            *(
                self._begin(name, view)
                for name, view in views.items()
                if view.owner == self.name and self._ready.get(name) != view.number
            )
        )
        for name, view in views.items():
            self._over(name, view)
            self._stand_by(view)
        # Of what is not ready the older record stays, by which the next run knows that it has to be
        # made ready.
        state.records.update(
            {
                name: view.record
                for name, view in views.items()
                if view.owner != self.name or self._ready.get(name) == view.number
            }
        )
        self.folder.save()
        self.views = views
        self.watermarks = list(answer.watermarks)
        refused = {each.reference for each in answer.refused}
        for each in answer.refused:
            self._refuse(each.reference, each.reason, each.message)
        for name, view in views.items():
            if name not in refused:
                self.refusals.pop(name, None)
            if not view.moving_to:
                self.refusals.pop(f"{name}, move", None)

    def _stand_by(self, view: pb.ReferenceView) -> None:
        """Hand out nothing more of a reference that is another's now, whichever answer said so.

        This gives the region nothing that it had not.
        """
        before = self.views.get(view.name)
        if before is None or before.owner != self.name or view.owner == self.name:
            return
        self.views[view.name] = view
        log.warning(
            "%s is owned by %s now: standing by",
            view.name,
            view.owner or "nobody",
            extra=event("stand_by", reference=view.name, region=view.owner),
        )

    def _over(self, name: str, view: pb.ReferenceView) -> None:
        """What was said for a move that is over says nothing about the next one."""
        before = self.views.get(name)
        if not view.moving_to and name in self.pipeline_reports:
            self.pipeline_reports[name].stopped = False
        if before is not None and before.moving_to == self.name != view.moving_to:
            self.arrivals.pop(name, None)
        if before is not None and before.number != view.number:
            # Positions are those of the owner's sources, and a state that has arrived is of the
            # owner's batch.
            self.mirrored.pop(name, None)
            self.arrivals.pop(name, None)

    async def _begin(self, name: str, view: pb.ReferenceView) -> None:
        """Make the local computation ready for a number that the region was given; again at the next answer, if that fails."""
        record = self.folder.state.records.get(name)
        if not goes_on(record, view, self.name):
            low = self.kept[name].low
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self._reset(name, low, view.number)
            except errors.UnknownComputation:
                pass  # it was never here, so that nothing of it was published
            except (errors.LowwaterError, TimeoutError) as error:
                reason = error.reason if isinstance(error, errors.LowwaterError) else "TIMEOUT"
                said = str(error) or f"no answer within {READ_SECONDS:g} s"
                self._refuse(f"{name}, reset", reason, f"{low} cannot be reset at the local authority: {said}")
                return
            finally:
                self._values.pop(low, None)  # it was read before: of a time when the region was not the owner
            log.warning(
                "%s is owned by this region, by %d",
                name,
                view.number,
                extra=event("adopted_here", reference=name, number=view.number),
            )
        self.refusals.pop(f"{name}, reset", None)
        self._ready[name] = view.number

    # -- the local authority -----------------------------------------------------------------------

    async def _reset(self, name: str, low: str, number: int) -> None:
        """Reset a computation for an adoption number, unless an earlier try whose answer was lost has done so.

        A second reset would begin a new global incarnation, which readers would take for a correction.
        """
        found = (await self.local.get(low)).get(low)
        incarnation = 0 if found is None else found.incarnation
        if self._ended.get(name, (0, 0))[0] != number:
            self._ended[name] = number, incarnation
        if incarnation <= self._ended[name][1]:
            await self.local.reset(low)

    async def _read(self) -> dict[str, WatermarkView]:
        """Return what the local authority has published, of what is registered there."""
        names = {name for each in self.kept.values() for name in (each.low, each.replicated, each.output) if name}
        try:
            async with asyncio.timeout(READ_SECONDS):
                found = await self._get(sorted(names))
        except (errors.LowwaterError, TimeoutError) as error:
            reason = error.reason if isinstance(error, errors.LowwaterError) else "TIMEOUT"
            said = str(error) or f"no answer within {READ_SECONDS:g} s"
            self._refuse("local authority", reason, f"it cannot be read, and nothing that it has is reported: {said}")
            return {}
        self.refusals.pop("local authority", None)
        for name in names:
            if name in found and found[name].estimated:
                self._refuse(name, "ESTIMATED", f"{name} is estimated: nobody promises it, so it is not reported")
            else:
                self.refusals.pop(name, None)
        return {name: view for name, view in found.items() if view.registered and not view.estimated}

    async def _get(self, names: list[str]) -> dict[str, WatermarkView]:
        """Read them at once, or one by one when one of them may not be read: it keeps no other from being reported."""
        try:
            return await self.local.get(*names)
        except errors.PermissionDenied:
            if len(names) == 1:
                raise
        found = await asyncio.gather(*(self.local.get(name) for name in names), return_exceptions=True)
        views: dict[str, WatermarkView] = {}
        for name, each in zip(names, found, strict=True):
            if isinstance(each, BaseException):
                if not isinstance(each, errors.PermissionDenied):
                    raise each
                self._refuse(f"{name}, read", each.reason, str(each))
            else:
                views |= each
                self.refusals.pop(f"{name}, read", None)
        return views

    async def _relay(self) -> None:
        """Publish what is published for all at the local authority; one that fails keeps no other from it."""
        for each in self.watermarks:
            name = relayed_name(each.computation)
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await self._relay_one(name, each)
                self.refusals.pop(name, None)
            except (errors.LowwaterError, TimeoutError, OSError) as error:
                self._relays.pop(name, None)
                self._refuse(name, "RELAY", f"{name} cannot be relayed: {error}")

    async def _relay_one(self, name: str, told: pb.GlobalWatermark) -> None:
        state = self.folder.state
        known = state.relayed.get(name)
        if known is not None and told.incarnation < known:
            fix = "reset the computation where it is owned, which begins a new one"
            msg = f"its incarnation {told.incarnation} is older than {known}, which is relayed already, as after a recovery: {fix}"
            raise errors.IncarnationChanged(msg, metadata={"fix": fix})
        relay = self._relays.get(name)
        if relay is None or told.incarnation != known:
            # The owner's authority has compared it with the clock, by a max_skew that is not known
            # here.
            await self.local.register(name, max_skew=timedelta(microseconds=ANY_SKEW))
            if known is None:  # the file is new; what stands there may be of another life
                afresh = not (await self.local.get(name))[name].low.unknown
            else:
                afresh = told.incarnation > known
            if afresh:
                await self.local.reset(name)
            if known != told.incarnation:
                state.relayed[name] = told.incarnation
                self.folder.save()
            worker = self.local.worker(name, name=f"region {self.name}", identity=RELAY_IDENTITY, generation=state.run)
            relay = self._relays[name] = Relayed(await worker.claim())
        if told.published_micros == MAX and relay.value != MAX:
            await relay.lease.finish()
        elif MIN < told.published_micros < MAX:
            away = self.stale
            waiting = (
                "" if self.linked or away is None else f"the global authority, which was not heard for {duration(away)}"
            )
            value = max(relay.value, told.published_micros)
            if (value, waiting) != (relay.value, relay.waiting):
                relay.lease.advance(None, oldest=None, frontier=value, waiting_for=waiting)
            relay.waiting = waiting
        relay.value = max(relay.value, told.published_micros)

    # -- the global authority ----------------------------------------------------------------------

    async def _call(self, method: Any, request: Any) -> pb.RegionResponse:
        """Ask once. Raises LowwaterError."""
        self._turn += 1
        state = self.folder.state
        request.caller.CopyFrom(
            pb.RegionCaller(
                region=self.name,
                agent=state.agent,
                run=state.run,
                nonce=self._nonce,
                turn=self._turn,
                store_token=state.store,
                seen=state.seen,
            )
        )
        try:
            answer: pb.RegionResponse = await method(request, timeout=CALL_SECONDS, metadata=self._metadata())
        except grpc.RpcError as failure:
            error = error_of_call(failure, self._where)
            if isinstance(error, (errors.Unavailable, errors.Timeout)):
                self.linked = False  # no answer: whether it was heard nobody knows
            elif isinstance(error, errors.StaleAdoption):
                said = error.metadata
                self._stand_by(
                    pb.ReferenceView(name=said["reference"], owner=said["owner"], number=int(said["number"]))
                )
            raise error from None
        finally:
            self._stepped_at = self._monotonic()
        return answer

    def status(self) -> dict[str, Any]:
        """Return how everything stands, for people and programs."""
        return {
            "region": self.name,
            "linked": self.linked,
            "stale_seconds": self.stale,
            "store": self.folder.state.store,
            "references": {
                name: {
                    "owner": view.owner,
                    "number": view.number,
                    "policy": view.policy,
                    "published_micros": view.published_micros,
                    "accepted_micros": view.accepted_micros,
                    "written_off": view.written_off,
                    "complete_of": view.complete_of,
                    "moving_to": view.moving_to,
                    "move_step": view.move_step,
                }
                for name, view in self.views.items()
            },
            "global": {
                each.computation: {
                    "incarnation": each.incarnation,
                    "published_micros": each.published_micros,
                    "written_off": each.written_off,
                }
                for each in self.watermarks
            },
            "refusals": self.refusals,
        }


def goes_on(record: str | None, view: pb.ReferenceView, region: str) -> bool:
    """Whether nobody else can have owned a reference since the record: another owner and the way back are two numbers."""
    if record is None:
        return view.number == 1
    before = _told_before(record)
    return before is not None and before[0] == region and view.number - before[1] in (0, 1)


def _told_before(record: str) -> tuple[str, int] | None:
    """Return owner and number of a record that was kept; None for one that cannot be read, which keeps no other reference from anything."""
    try:
        told = json.loads(record)
        owner, number = told["owner"], told["number"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (owner, number) if type(number) is int and 0 < number < MOST_NUMBER else None
