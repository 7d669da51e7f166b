"""The agent of a region: reports its progress, and hands out the numbers by which it may commit.

Once a second the agent reads L and R from the local authority, reports them to the global
authority, and takes the answer: what the region owns, and what is published for all. Every answer
replaces the one before as a whole. After a start, and after a request without an answer, the next
request is Confirm. Answers to an earlier run count for nothing, so after a start there is no number
until the global authority has answered. While the link is cut the last answer stays: the region
goes on by its number, and a sink that compares numbers in the write decides whether it still
counts.

The agent relays: it publishes each global watermark at the local authority as the injector
``global/NAME``, for which no other worker reports. Local pipelines read global names only there,
and find them holding while the global authority is away.

A region that becomes the owner of a reference first resets its own computation of that name. The
region may have published there while it did not know that it had been replaced.
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
from lowwater_regions.config import ReferenceConfig, StateFolder, registration
from lowwater_regions.reference import MOST_NUMBER, relayed_name

RELAY_IDENTITY: Final = "lowwater-region"

FATAL: Final = (errors.SecondAgent,)
"""Errors that waiting does not cure: the agent logs one, hands out nothing more, and ends."""

CALL_SECONDS: Final = 5.0

READ_SECONDS: Final = 2.0
"""Longest time that a sign of life waits for the local authority, seconds."""

SHOWN: Final = (
    *("owner", "number", "policy", "published_micros", "accepted_micros", "written_off", "complete_of"),
    *("moving_to", "move_step"),
)
"""Fields of a reference in the agent's state."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PipelineReport:
    """Last report of the region's own pipeline about a reference, and its adoption number."""

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
        name: Name of the region.
        references: References in the region's file.
        folder: Folder with the state that outlives the agent.
        local: Client of the local authority.
        stub: Stub of the global authority.
        where: Address of the global authority, for messages.
        metadata: Returns the metadata of a call to the global authority.
        monotonic: Returns seconds of a clock that never steps.
    """

    def __init__(
        self,
        name: str,
        references: Iterable[ReferenceConfig],
        folder: StateFolder,
        local: Client,
        stub: Any,
        *,
        where: str,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self.configs = {config.name: config for config in references}
        self.folder = folder
        self.local = local
        self.views: dict[str, pb.ReferenceView] = {}
        """References of the last answer; empty until the agent is confirmed."""
        self.watermarks: list[pb.GlobalWatermark] = []
        self.linked = False
        """True when the last request was answered. Otherwise the next one is Confirm."""
        self.heard_at: float | None = None
        """When the last answer came, by the monotonic clock; None: never."""
        self.pipeline_reports: dict[str, PipelineReport] = {}
        """Last report of the pipeline of each reference, in memory only."""
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
        """Watermarks of the local authority for this report. A reset takes its computation out."""
        self._read_under: dict[str, int] = {}
        """Adoption number by reference that this region knew before it read ``_values``. The values
        say nothing about a later owner."""
        self._ready: dict[str, int] = {}
        """Adoption number by reference for which the local computation was made ready."""
        self._ended: dict[str, tuple[int, int]] = {}
        """Adoption number by reference for which the local computation is reset, and its
        incarnation before that reset."""
        self._relays: dict[str, Relayed] = {}
        self._relaying: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._away_for = ""
        """Reason of the last logged failure of the link; empty while there is an answer."""
        self._registered: set[str] = set()

    # -- questions of pipelines --------------------------------------------------------------------

    @property
    def stale(self) -> float | None:
        """Seconds since the global authority answered last; None: it never did."""
        return None if self.heard_at is None else self._monotonic() - self.heard_at

    def owned(self, reference: str) -> pb.ReferenceView:
        """Return a reference that the region owns, and may commit by.

        Raises UnknownReference, Unconfirmed, StaleAdoption, RegionRefused.
        """
        metadata = self._check_named(reference)
        view = self.views.get(reference)
        if view is None:
            msg = f"region {self.name} has not been confirmed since its agent was started: commit nothing until it is"
            raise errors.Unconfirmed(msg, metadata=metadata)
        if view.owner != self.name or view.move_step == "released":
            if view.owner == self.name:
                msg = f"region {self.name} has released {reference}, number {view.number}, to {view.moving_to}: commit nothing more, and stand by"
            else:
                owner = f"region {view.owner}" if view.owner else "nobody"
                msg = (
                    f"{owner} owns {reference}, by the adoption number {view.number}, and region {self.name} does not: "
                    "commit nothing, and stand by until it is moved or adopted here"
                )
            raise errors.StaleAdoption(msg, metadata={**metadata, "owner": view.owner, "number": str(view.number)})
        if view.move_step in ("stopped", "arrived"):
            fix = "commit nothing more; the move may still be cancelled"
            raise errors.RegionRefused(
                f"{reference} has stopped to be moved to {view.moving_to}: {fix}", metadata={**metadata, "fix": fix}
            )
        if view.moving_to and self._has_stopped(view):
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

    async def confirm_owned(self, reference: str) -> pb.ReferenceView:
        """Return as owned, after asking the global authority: for a sink that cannot fence.

        Raises as owned, and the error of that call.
        """
        self.owned(reference)
        async with self._asking:
            if self.linked:
                await self._ask(self._stub.Report, pb.RegionReportRequest())
            else:
                await self._talk()
        return self.owned(reference)

    def committed(self, reference: str, report: PipelineReport) -> None:
        """Take a pipeline's commit. Raises as owned; StaleAdoption for another number."""
        before = self.pipeline_reports.get(reference)
        if before is not None and before.stopped and before == report:
            return  # a repeat
        view = self.owned(reference)
        if report.number != view.number:
            msg = f"{reference} is owned by number {view.number}, not {report.number}"
            raise errors.StaleAdoption(msg, metadata={"reference": reference, "number": str(view.number)})
        self.pipeline_reports[reference] = report

    def arrived(self, reference: str, report: PipelineReport) -> None:
        """Note that the state of a batch is here. Raises UnknownReference."""
        self._check_named(reference)
        self.arrivals[reference] = report

    def mirrors(self, reference: str, positions: list[pb.SourcePosition]) -> None:
        """Note how far the sources are mirrored here. Raises UnknownReference."""
        self._check_named(reference)
        self.mirrored[reference] = positions

    async def raised(self, reference: str, number: int, sink: str, cut: str) -> None:
        """Report that a sink has the number. Raises as owned, and Unavailable."""
        if self.owned(reference).number != number:
            msg = f"{reference} is owned by number {self.owned(reference).number}, not {number}"
            raise errors.StaleAdoption(msg, metadata={"reference": reference})
        async with self._asking:
            request = pb.FenceRequest(reference=reference, number=number, sink=sink, cut=cut)
            await self._ask(self._stub.Fence, request)

    def _check_named(self, reference: str) -> dict[str, str]:
        """Return the metadata of errors about a reference. Raises UnknownReference."""
        metadata = {"reference": reference, "region": self.name}
        if reference not in self.configs:
            raise errors.UnknownReference(f"{reference!r} is not in the file of region {self.name}", metadata=metadata)
        return metadata

    # -- the round, once a second ------------------------------------------------------------------

    async def once(self) -> None:
        """Report once, or confirm.

        Raises one of FATAL; the agent hands out nothing any more then.
        """
        async with self._asking:
            self._read_under = {name: view.number for name, view in self.views.items()}
            self._values = await self._read()
            try:
                try:
                    await self._talk()
                except (errors.Unconfirmed, errors.OldStream):
                    self.linked = False  # the authority restarted, or heard a newer request: confirm at once
                    await self._talk()
            except FATAL:
                self.views, self.linked = {}, False
                raise
            except errors.LowwaterError as error:
                self._lost(error)
        # A task of its own: a slow local authority must not delay signs of life to the global one.
        if self._relaying is None or self._relaying.done():
            self._relaying = asyncio.create_task(self._relay())
        self._stepped_at = self._monotonic()

    async def close(self) -> None:
        """End the relaying task."""
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.gather(self._relaying, return_exceptions=True)

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
            await self._ask(self._stub.Report, self._report())
            await self._move()
            return
        # The greatest numbers that this region knows, whoever owned them. A store that knows less
        # is an old copy.
        records = self.folder.state.records
        numbers = {name: owned[1] for name, record in records.items() if (owned := _owner_and_number(record))}
        try:
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        except errors.ServerTokenMismatch as error:
            self._belong(error)
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        except errors.Recovering as error:
            store = self.folder.state.store
            if not store or error.metadata.get("state") != "enrolling" or error.metadata.get("recovers") != store:
                raise
            answer = await self._call(self._stub.Enrol, pb.EnrolRequest(records=records))
            log.warning("enrolled %d references", len(records), extra=event("region_enrolled", references=len(records)))
            for view in answer.references:
                self._stand_by(view)
            for refusal in answer.refused:
                self._refuse(f"{refusal.reference}, enrolment", refusal.reason, refusal.message)
            if not answer.serving:
                raise
            self._belong_to(answer.store_token)
            answer = await self._call(self._stub.Confirm, pb.ConfirmRequest(numbers=numbers))
        # Taken at once: a registration below may have no answer, and the region then goes on by
        # this one.
        await self._take(answer)
        await self._register()
        self.linked, self._away_for = True, ""
        log.info("confirmed by the global authority", extra=event("region_confirmed", region=self.name))

    async def _register(self) -> None:
        """Register the references of the file. A refusal of one leaves the others alone."""
        for config in self.configs.values():
            if config.name in self._registered:
                continue
            try:
                await self._ask(self._stub.RegisterReference, registration(config))
                self._registered.add(config.name)
                self.refusals.pop(f"{config.name}, registration", None)
                view = self.views.get(config.name)
                if view is not None and view.policy != config.policy:
                    log.info(
                        "%s: the policy in force is %s, as an operator has decided; the file has %s",
                        config.name,
                        view.policy,
                        config.policy,
                        extra=event("policy_decided", reference=config.name, policy=view.policy),
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
                self._refuse(f"{config.name}, registration", error.reason, message)

    def _belong(self, error: errors.ServerTokenMismatch) -> None:
        """Accept the store that replaces the lost one by an operator's recovery.

        Raises the error for any other store.
        """
        store = self.folder.state.store
        if not store or error.metadata.get("recovers") != store:
            raise error
        self._belong_to(error.metadata["found"])

    def _belong_to(self, store: str) -> None:
        state = self.folder.state
        state.store, state.seen = store, 0
        self.folder.save()
        log.warning(
            "the global store was recovered, as %s", state.store, extra=event("store_recovered", token=state.store)
        )

    def _report(self) -> pb.RegionReportRequest:
        values = self._values
        request = pb.RegionReportRequest()
        for name, config in self.configs.items():
            view = self.views.get(name)
            if view is None:
                continue
            if view.owner != self.name:
                replica = self._replica(config)
                if replica is not None:
                    request.replicas.append(replica)
            elif config.low in values and self._ready.get(name) == view.number and view.move_step != "released":
                request.progress.append(self._progress(config, view, values[config.low]))
        return request

    def _progress(self, config: ReferenceConfig, view: pb.ReferenceView, low: WatermarkView) -> pb.ReferenceProgress:
        progress = pb.ReferenceProgress(
            reference=config.name, number=view.number, life=low.incarnation, low_micros=low.low.micros, batch=-1
        )
        report = self.pipeline_reports.get(config.name)
        if report is not None and report.number == view.number:
            progress.batch, progress.digest = report.batch, report.digest
            progress.positions.extend(report.positions)
        return progress

    def _replica(self, config: ReferenceConfig) -> pb.ReferenceReplica | None:
        """Return this region's replica; None while the local authority does not tell it."""
        values = self._values
        if not config.replicated or config.replicated not in values or (config.output and config.output not in values):
            return None
        number = self._read_under.get(config.name)
        if not number:
            return None
        return pb.ReferenceReplica(
            reference=config.name,
            region=self.name,
            replicated_micros=values[config.replicated].low.micros,
            output_micros=values[config.output].low.micros if config.output else MAX,
            positions=self.mirrored.get(config.name, ()),
            number=number,
        )

    def _has_stopped(self, view: pb.ReferenceView) -> bool:
        """True when the pipeline of an owned reference has reported that it stopped."""
        report = self.pipeline_reports.get(view.name)
        return report is not None and report.stopped and report.number == view.number

    async def _ask(self, method: Any, request: Any) -> None:
        """Make one call, and take its answer."""
        await self._take(await self._call(method, request))

    async def _move(self) -> None:
        """Take this region's next step of each planned move."""
        for name, view in list(self.views.items()):
            config, arrival = self.configs[name], self.arrivals.get(name)
            owner = view.owner == self.name
            try:
                if owner and view.move_step == "wanted" and self._has_stopped(view):
                    low = self._values.get(config.low)
                    if low is not None:
                        await self._ask(self._stub.Stop, pb.StopRequest(progress=self._progress(config, view, low)))
                elif owner and view.move_step == "arrived":
                    # The pipeline commits nothing after `stopped`. From here on the agent does not
                    # hand out the number either, whether the call succeeds or not.
                    request = pb.ReleaseReferenceRequest(reference=name, number=view.number, digest=view.digest)
                    await self._ask(self._stub.ReleaseReference, request)
                elif view.moving_to == self.name and view.move_step == "stopped" and arrival is not None:
                    replica = self._replica(config)
                    if replica is not None:
                        del replica.positions[:]
                        replica.positions.extend(arrival.positions)
                        arrive = pb.ArriveRequest(replica=replica, batch=arrival.batch, digest=arrival.digest)
                        await self._ask(self._stub.Arrive, arrive)
                elif view.moving_to == self.name and view.move_step == "released" and arrival is not None:
                    claim = pb.ClaimReferenceRequest(
                        reference=name,
                        number=view.number,
                        batch=arrival.batch,
                        digest=arrival.digest,
                        positions=arrival.positions,
                    )
                    await self._ask(self._stub.ClaimReference, claim)
            except (errors.RegionRefused, errors.StaleAdoption, errors.Rewound) as error:
                self._refuse(f"{name}, move", error.reason, error.message)

    def _refuse(self, name: str, reason: str, message: str) -> None:
        if self.refusals.get(name) != message:
            log.warning("%s: %s", name, message, extra=event("reference_refused", reference=name, reason=reason))
        self.refusals[name] = message

    def _refuse_local(self, name: str, what: str, error: errors.LowwaterError | TimeoutError) -> None:
        reason = error.reason if isinstance(error, errors.LowwaterError) else "TIMEOUT"
        self._refuse(name, reason, f"{what}: {str(error) or f'no answer within {READ_SECONDS:g} s'}")

    async def _take(self, answer: pb.RegionResponse) -> None:
        """Take an answer: it is all that the region owns.

        The agent hands out numbers only after the answer is durable.
        """
        state = self.folder.state
        if state.store and answer.store_token != state.store:
            msg = "the global store has become another one"
            raise errors.ServerTokenMismatch(msg, metadata={"expected": state.store, "found": answer.store_token})
        self.heard_at = self._monotonic()
        state.store, state.seen = answer.store_token, max(state.seen, answer.position)
        views = {view.name: view for view in answer.references if view.name in self.configs}
        # At once: while the local authority is away each of them waits, and the next sign of life
        # waits for them.
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
        # An owned reference that is not ready keeps its older record, which tells the next run to
        # make it ready.
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
        refused = {refusal.reference for refusal in answer.refused}
        for refusal in answer.refused:
            self._refuse(refusal.reference, refusal.reason, refusal.message)
        for name, view in views.items():
            if name not in refused:
                self.refusals.pop(name, None)
            if not view.moving_to:
                self.refusals.pop(f"{name}, move", None)

    def _stand_by(self, view: pb.ReferenceView) -> None:
        """Hand out nothing more of a reference that another region owns now, by any answer.

        This never gives the region a reference.
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
        """Forget reports that were made for an earlier move or an earlier owner."""
        before = self.views.get(name)
        if not view.moving_to and name in self.pipeline_reports:
            self.pipeline_reports[name].stopped = False
        if before is not None and before.moving_to == self.name != view.moving_to:
            self.arrivals.pop(name, None)
        if before is not None and before.number != view.number:
            # Mirrored positions are those of the owner's sources, and an arrived state is of the
            # owner's batch.
            self.mirrored.pop(name, None)
            self.arrivals.pop(name, None)

    async def _begin(self, name: str, view: pb.ReferenceView) -> None:
        """Make the local computation ready for the region's number.

        After a failure the next answer tries again.
        """
        record = self.folder.state.records.get(name)
        if not goes_on(record, view, self.name):
            low = self.configs[name].low
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self._reset(name, low, view.number)
            except errors.UnknownComputation:
                pass  # the computation was never here, so it has published nothing
            except (errors.LowwaterError, TimeoutError) as error:
                self._refuse_local(f"{name}, reset", f"{low} cannot be reset at the local authority", error)
                return
            finally:
                self._values.pop(low, None)  # this value is from before the region was the owner
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
        """Reset a computation for an adoption number, once.

        The answer to an earlier try may be lost. A second reset would begin a new global
        incarnation, which readers would take for a correction.
        """
        view = (await self.local.get(low)).get(low)
        incarnation = 0 if view is None else view.incarnation
        if self._ended.get(name, (0, 0))[0] != number:
            self._ended[name] = number, incarnation
        if incarnation <= self._ended[name][1]:
            await self.local.reset(low)

    async def _read(self) -> dict[str, WatermarkView]:
        """Return the watermarks that the local authority has published, of the file's names."""
        configs = self.configs.values()
        names = {name for config in configs for name in (config.low, config.replicated, config.output) if name}
        try:
            async with asyncio.timeout(READ_SECONDS):
                views = await self._get(sorted(names))
        except (errors.LowwaterError, TimeoutError) as error:
            self._refuse_local("local authority", "it cannot be read, and nothing that it has is reported", error)
            return {}
        self.refusals.pop("local authority", None)
        for name in names:
            if name in views and views[name].estimated:
                self._refuse(name, "ESTIMATED", f"{name} is estimated: nobody promises it, so it is not reported")
            else:
                self.refusals.pop(name, None)
        return {name: view for name, view in views.items() if view.registered and not view.estimated}

    async def _get(self, names: list[str]) -> dict[str, WatermarkView]:
        """Read watermarks at once; one by one when the agent may not read one of them."""
        try:
            return await self.local.get(*names)
        except errors.PermissionDenied:
            if len(names) == 1:
                raise
        answers = await asyncio.gather(*(self.local.get(name) for name in names), return_exceptions=True)
        views: dict[str, WatermarkView] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, errors.PermissionDenied):
                    raise answer
                self._refuse(f"{name}, read", answer.reason, str(answer))
            else:
                views |= answer
                self.refusals.pop(f"{name}, read", None)
        return views

    async def _relay(self) -> None:
        """Publish global watermarks at the local authority; the failure of one stops no other."""
        for watermark in self.watermarks:
            name = relayed_name(watermark.computation)
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await self._relay_one(name, watermark)
                self.refusals.pop(name, None)
            except (errors.LowwaterError, TimeoutError, OSError) as error:
                self._relays.pop(name, None)
                self._refuse(name, "RELAY", f"{name} cannot be relayed: {error}")

    async def _relay_one(self, name: str, watermark: pb.GlobalWatermark) -> None:
        state = self.folder.state
        relayed = state.relayed.get(name)
        if relayed is not None and watermark.incarnation < relayed:
            fix = "reset the computation where it is owned, which begins a new one"
            msg = f"its incarnation {watermark.incarnation} is older than {relayed}, which is relayed already, as after a recovery: {fix}"
            raise errors.IncarnationChanged(msg, metadata={"fix": fix})
        relay = self._relays.get(name)
        if relay is None or watermark.incarnation != relayed:
            # The owner's authority has compared the watermark with the clock, by its own max_skew.
            await self.local.register(name, max_skew=timedelta(microseconds=ANY_SKEW))
            if relayed is None:  # the file is new: an earlier life may have published under this name
                afresh = not (await self.local.get(name))[name].low.unknown
            else:
                afresh = watermark.incarnation > relayed
            if afresh:
                await self.local.reset(name)
            if relayed != watermark.incarnation:
                state.relayed[name] = watermark.incarnation
                self.folder.save()
            worker = self.local.worker(name, name=f"region {self.name}", identity=RELAY_IDENTITY, generation=state.run)
            relay = self._relays[name] = Relayed(await worker.claim())
        if watermark.published_micros == MAX and relay.value != MAX:
            await relay.lease.finish()
        elif MIN < watermark.published_micros < MAX:
            away = self.stale
            waiting = (
                "" if self.linked or away is None else f"the global authority, which was not heard for {duration(away)}"
            )
            value = max(relay.value, watermark.published_micros)
            if (value, waiting) != (relay.value, relay.waiting):
                relay.lease.advance(None, oldest=None, frontier=value, waiting_for=waiting)
            relay.waiting = waiting
        relay.value = max(relay.value, watermark.published_micros)

    # -- the global authority ----------------------------------------------------------------------

    async def _call(self, method: Any, request: Any) -> pb.RegionResponse:
        """Make one call. Raises LowwaterError."""
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
                self.linked = False  # the authority may have heard the request or not
            elif isinstance(error, errors.StaleAdoption):
                name, owner, number = (error.metadata[key] for key in ("reference", "owner", "number"))
                self._stand_by(pb.ReferenceView(name=name, owner=owner, number=int(number)))
            raise error from None
        finally:
            self._stepped_at = self._monotonic()
        return answer

    def status(self) -> dict[str, Any]:
        """Return the state of the agent, for people and programs."""
        return {
            "region": self.name,
            "linked": self.linked,
            "stale_seconds": self.stale,
            "store": self.folder.state.store,
            "references": {name: {field: getattr(view, field) for field in SHOWN} for name, view in self.views.items()},
            "global": {
                watermark.computation: {
                    "incarnation": watermark.incarnation,
                    "published_micros": watermark.published_micros,
                    "written_off": watermark.written_off,
                }
                for watermark in self.watermarks
            },
            "refusals": self.refusals,
        }


def goes_on(record: str | None, view: pb.ReferenceView, region: str) -> bool:
    """True when no other region can have owned a reference since the record.

    Another owner and the way back would take two numbers.
    """
    if record is None:
        return view.number == 1
    before = _owner_and_number(record)
    return before is not None and before[0] == region and view.number - before[1] in (0, 1)


def _owner_and_number(record: str) -> tuple[str, int] | None:
    """Return owner and number of a kept record; None for one that cannot be read."""
    try:
        fields = json.loads(record)
        owner, number = fields["owner"], fields["number"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (owner, number) if type(number) is int and 0 < number < MOST_NUMBER else None
