"""Owners over gRPC: claims, report streams, micro-batches."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from lowwater import errors
from lowwater.core.events import NAME_BYTES, event, shortened
from lowwater.v1 import workers_pb2 as pb
from lowwater.v1 import workers_pb2_grpc
from lowwater_authority.access.caller import calling, holder, permit, room_for_ranges
from lowwater_authority.core.computation import LARGEST_STREAM
from lowwater_authority.core.requests import Refused
from lowwater_authority.engine.placement import moved
from lowwater_authority.engine.round import GivenUp
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.refusals import MESSAGE_BYTES, bad_field, check_token, refuse, refusing
from lowwater_authority.rpc.streams import Outbox, Streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    import grpc

    from lowwater.v1.types_pb2 import Redirect
    from lowwater_authority.core.requests import GroupReport, Made, Pieces
    from lowwater_authority.rpc.services import Services

    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

SENDER_BYTES = 16
"""Size of a sender's name."""

REPORT_BYTES = 1024
"""What a report costs besides its claims."""

GROUP_BYTES = 512
"""What a claim in it costs besides its columns."""

NAMED = 2
"""How often a claim's computation is named: by the report, and by the message of its refusal."""

HANDLE_BYTES = 4
"""A range that is named."""


class WorkerServicer(workers_pb2_grpc.WorkerServiceServicer):
    """See proto/lowwater/v1/workers.proto."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.streams = Streams()
        services.shard.rounds.on_fenced = self.streams.fence
        services.shard.served.on_moved = self.streams.bar

    @refusing
    async def Claim(self, request: pb.ClaimRequest, context: Context) -> pb.ClaimResponse:  # noqa: N802
        """Take ownership of key ranges."""
        shard, name = self.services.shard, request.computation
        await self.services.confirm(name)  # an incarnation that was begun elsewhere begins here first
        asked = await in_turns(codec.claim(request))
        grant = await shard.owners.claim(
            name,
            asked,
            adopt=request.adopt,
            incarnation=request.incarnation,
            permit=permit(name),
            room=room_for_ranges(name, self.services.limits),
        )
        self.services.observer.claimed()
        spec, required = shard.topology.get(name), shard.topology.required(name)
        holding = shard.held.served.get(name)
        if holding is None:
            raise moved(name)  # granted, and taken over since: the repeat finds it there
        response = pb.ClaimResponse(
            server_token=self.services.token,
            sequencer=grant.sequencer,
            incarnation=spec.incarnation,
            epoch=holding.ownership.epoch,
            epoch_nonce=holding.ownership.nonce,
            input_version=required.input_version,
            inputs=spec.inputs,
            input_incarnations=required.input_incarnations,
            heuristics_ppm=spec.heuristics,
            reference_micros=grant.reference,
            budgets=codec.budget_messages(holding.computation.published.budgets),
        )
        codec.claim_watermarks(response, grant.watermarks)
        return response

    @refusing
    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """Give ranges back."""
        await self.services.reach(request.computation)
        await self.services.shard.owners.release(request.computation, request.sequencer)
        return pb.ReleaseResponse()

    @refusing
    async def StageTask(self, request: pb.StageTaskRequest, context: Context) -> pb.StageTaskResponse:  # noqa: N802
        """Keep a task's part of a micro-batch."""
        if not request.HasField("task"):
            raise bad_field("task", "is missing", "name the stage, the partition and the attempt")
        await self.services.reach(request.computation)
        task, part = codec.attempt(request.task), codec.part(request)
        try:
            self.services.shard.owners.stage_task(request.computation, request.sequencer, request.batch, task, part)
        except errors.StaleSequencer:
            await self.services.confirm(request.computation)  # a shard that was replaced does not know the newest claim
            raise
        return pb.StageTaskResponse()

    @refusing
    async def PrepareBatch(self, request: pb.PrepareBatchRequest, context: Context) -> pb.PrepareBatchResponse:  # noqa: N802
        """Fix the accepted attempts of a micro-batch."""
        await self.services.reach(request.computation)
        prepare = codec.prepare(request)
        try:
            missing = self.services.shard.owners.prepare(request.computation, prepare)
        except errors.StaleSequencer:
            await self.services.confirm(request.computation)
            raise
        return pb.PrepareBatchResponse(missing=map(codec.attempt_message, missing))

    @refusing
    async def CommitBatch(self, request: pb.CommitBatchRequest, context: Context) -> pb.CommitBatchResponse:  # noqa: N802
        """Apply a prepared micro-batch."""
        await self.services.reach(request.computation)
        shard, name, told = self.services.shard, request.computation, codec.told(request)
        refused = await shard.owners.commit(name, request.sequencer, request.batch, told)
        response = pb.CommitBatchResponse(refused=[codec.refused_message(name, value) for value in refused])
        if told is None:
            return response
        wanted, known = shard.served.wanted_layout(name), shard.served.reported_layout(name, request.sequencer)
        if known is not None:
            response.known_layout = known.version
        if wanted is not None and wanted.differs(told.layout if known is None else known):
            response.wanted.CopyFrom(codec.layout_message(wanted))
        return response

    @refusing
    async def Vouch(self, request: pb.VouchRequest, context: Context) -> pb.VouchResponse:  # noqa: N802
        """Let an output say how far it is complete."""
        await self.services.reach(request.computation)
        fold = codec.fold(request)
        await self.services.shard.owners.vouch(request.computation, request.sequencer, request.through_micros, fold)
        return pb.VouchResponse()

    async def Report(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ReportRequest], context: Context
    ) -> AsyncIterator[pb.ReportResponse]:
        """One process's reports up, acknowledgements and fencing down."""
        messages: Any = aiter(request_iterator)
        try:
            self.services.check()
            first = await anext(messages, None)
            if first is None:
                return
            sender = self._opening(first)
            outbox = await self.streams.admit(sender, first.open.stream, holder())
        except errors.LowwaterError as error:
            # Else gRPC's generator would hold the first message, which may be no opening but
            # megabytes.
            await messages.aclose()
            self.services.observer.refused("Report", error.reason)
            await refuse(context, error, again=self.streams.again)
        reader = asyncio.create_task(self._read(messages, sender, first.open.stream, outbox))
        try:
            yield pb.ReportResponse(opened=pb.ReportOpened(server_token=self.services.token))
            if self.services.leaving.is_set():
                outbox.wake()  # the call to look around came before there was this outbox
            while True:
                for message in await self.streams.take(outbox):
                    if outbox.closed is None:
                        yield message
                if outbox.closed is not None:
                    await refuse(context, outbox.closed, again=self.streams.again)
                if self.services.leaving.is_set():
                    go_away = self.services.go_away()
                    go_away.retry_after_millis = max(go_away.retry_after_millis, round(self.streams.again * 1000))
                    yield pb.ReportResponse(go_away=go_away)
                    return
                if outbox.finished and outbox.empty:
                    return
        finally:
            reader.cancel()
            self.streams.close(sender, outbox)

    def _opening(self, first: pb.ReportRequest) -> bytes:
        if first.WhichOneof("kind") != "open":
            raise bad_field("kind", "of the first message is not open", "open the stream before reporting")
        check_token(self.services.token, first.open.server_token)
        if len(first.open.sender) != SENDER_BYTES:
            raise bad_field("open.sender", f"has {len(first.open.sender)} bytes", f"send {SENDER_BYTES} random bytes")
        if first.open.stream < 1:
            raise bad_field("open.stream", "is 0", "count streams from 1")
        if first.open.stream > LARGEST_STREAM:
            fix = f"count streams from 1, to {LARGEST_STREAM} at most"
            raise bad_field("open.stream", f"is {first.open.stream}", fix)
        return first.open.sender

    async def _read(
        self, requests: AsyncGenerator[pb.ReportRequest], sender: bytes, stream: int, outbox: Outbox
    ) -> None:
        last: asyncio.Future[Any] | None = None
        newest = 0
        try:
            async for request in requests:
                self.streams.heard(outbox)
                if request.WhichOneof("kind") != "report":
                    raise bad_field("kind", "is not report", "open a stream once, then only report")
                if not _follows(request.report.number, newest):
                    continue
                newest = request.report.number
                redirects = await self._redirects(request.report, outbox.barred)
                size = self._size(request.report)
                await self.streams.enter(outbox, size)
                try:
                    last = self._take(request.report, sender, stream, outbox, redirects, size=size, after=last)
                except BaseException:
                    self.streams.leave(outbox, size)
                    raise
            if last is not None:
                await asyncio.wait([last])
        except errors.LowwaterError as error:
            self.services.observer.refused("Report", error.reason)
            # Else the frames of the error would hold the message until the garbage collector runs,
            # and so would gRPC's generator.
            outbox.close(error.with_traceback(None))
        finally:
            await requests.aclose()
            outbox.finish()

    def _size(self, report: pb.Report) -> int:
        """Return about how many bytes a report has, decoded, and what may be refused of it by name.

        O(groups).
        """
        size = REPORT_BYTES
        for group in report.groups:
            named = len(group.handles)
            ranges = named or self.services.shard.served.granted(group.computation, group.sequencer)
            size += GROUP_BYTES + 8 * len(group.watermarks_micros) + HANDLE_BYTES * (named + ranges)
            size += 16 * len(group.mass.pending.counts) if group.HasField("mass") else 0
            size += 16 * len(group.lateness.counts) if group.HasField("lateness") else 0
            size += 4 * (len(group.waiting_for) + len(group.remarks.failure))
            size += NAMED * len(group.computation)
        return size

    async def _redirects(self, report: pb.Report, barred: set[str]) -> dict[str, Redirect]:
        """Return where the computations of a report are that other shards serve, or did since the stream began (``barred``)."""
        caller = calling()
        names = dict.fromkeys(group.computation for group in report.groups if len(group.computation) <= NAME_BYTES)
        if caller is not None:
            names = {name: None for name in names if caller.may_report(name)}
        for name in names:
            try:
                await self.services.reach(name)
            except (errors.Moved, errors.Unavailable):
                barred.add(name)  # one that cannot be served does not stop those beside it
            except errors.UnknownComputation:
                continue  # refused one by one
        elsewhere = [name for name in names if name in barred]
        return {redirect.computation: redirect for redirect in await self.services.redirects(elsewhere)}

    def _take(
        self,
        report: pb.Report,
        sender: bytes,
        stream: int,
        outbox: Outbox,
        redirects: dict[str, Redirect],
        *,
        size: int,
        after: asyncio.Future[Any] | None,
    ) -> asyncio.Future[Any]:
        """Hand a report of ``size`` bytes to the shard; the outbox acknowledges it when it is durable, and it leaves the rooms."""
        if len({(group.computation, group.sequencer) for group in report.groups}) < len(report.groups):
            raise bad_field(
                "report.groups", "names a claim twice", "send one entry a claim, and the rest in the next report"
            )
        _check_rights(report, outbox)
        groups: list[tuple[str, GroupReport]] = []
        malformed: list[tuple[str, Refused]] = []
        for message in report.groups:
            # One bad claim, or one that is elsewhere, must not stop those beside it.
            if message.computation in redirects:
                continue
            try:
                groups.append((message.computation, _permitted(message)))
            except (errors.InvalidArgument, errors.PermissionDenied) as error:
                name = shortened(message.computation)
                malformed.append((name, Refused(message.sequencer, error.reason, error.message)))
        elsewhere = [
            (group.computation, Refused(group.sequencer, errors.Moved.reason, "another shard serves it"))
            for group in report.groups
            if group.computation in redirects
        ]
        for name, group in groups:
            if self.services.shard.served.granted(name, group.sequencer):
                self.streams.speaks(name, group.sequencer, outbox)
        ranges = sum(len(group.watermarks) if group.handles is None else len(group.handles) for _, group in groups)
        names = dict.fromkeys(name for name, _ in groups)
        number = (stream, report.number)
        durable = self.services.shard.owners.report(
            groups, sender=sender, number=number, after=after, barred=outbox.barred, older=outbox.older
        )

        def acknowledge(done: asyncio.Future[list[tuple[str, Refused]]]) -> None:
            try:
                self.streams.started(outbox)
                error = done.exception() if not done.cancelled() else None
                if isinstance(error, GivenUp):
                    error = errors.ShuttingDown("a computation of this report was taken over meanwhile; connect again")
                if isinstance(error, errors.LowwaterError):
                    # The client connects again and sends its whole state, so nothing is lost by
                    # ending the stream.
                    outbox.close(error)
                else:
                    refused = [*malformed, *done.result(), *elsewhere]
                    self.services.observer.reported(ranges, dict(Counter(value.reason for _, value in refused)))
                    self._tell_refused(refused)
                    references = self._references(names)
                    self.streams.acknowledge(outbox, report.number, refused, references=references, redirects=redirects)
            except BaseException:
                # What was refused was not told, so no later acknowledgement may cover it.
                outbox.close(errors.Unavailable("the answer to a report could not be made; connect again"))
                raise
            finally:
                self.streams.leave(outbox, size)  # the room is everybody's

        outbox.answer(durable, acknowledge)
        return durable

    def _tell_refused(self, refused: list[tuple[str, Refused]]) -> None:
        """Log which reports do not count and why, once in a while for each computation and reason; not those of a computation that moved.

        Names that nobody registered are the caller's own invention: they count as one.
        """
        for name, value in refused:
            if value.reason == errors.Moved.reason:
                continue
            known = name if name in self.services.shard.topology.computations else ""
            if count := self.services.quiet.count(("Report", known, value.reason), self.services.shard.now / 1e6):
                computation, message = shortened(name), shortened(value.message, MESSAGE_BYTES)
                log.warning(
                    "reports of %s refused, %s: %s",
                    computation,
                    value.reason,
                    message,
                    extra=event(
                        "report_refused",
                        computation=computation,
                        reason=value.reason,
                        sequencer=value.sequencer,
                        count=count,
                        error=message,
                    ),
                )

    def _references(self, names: dict[str, None]) -> dict[str, pb.ReferenceTime]:
        shard = self.services.shard
        return {
            name: pb.ReferenceTime(
                computation=name, micros=shard.served.reference(name), budgets=codec.budget_messages(view.budgets)
            )
            for name in names
            if (view := shard.served.view(name)) is not None
        }


async def in_turns(pieces: Pieces[Made]) -> Made:
    """Do all the work, and let others have the event loop in between."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            made: Made = end.value
            return made
        await asyncio.sleep(0)


def _permitted(message: pb.GroupReport) -> GroupReport:
    """Decode one claim's part of a report.

    Raises InvalidArgument, and PermissionDenied when the caller may not report for it.
    """
    caller = calling()
    if caller is not None:
        caller.demand_report(message.computation)
    return codec.group(message)


def _check_rights(report: pb.Report, outbox: Outbox) -> None:
    """Remember what the caller may not report for.

    Raises ShuttingDown when it may again what it was refused on this stream.

    Reports carry only what changed. One that was refused may have lowered a range, so what comes
    after it on the same stream would lead (rules 1 and 8): the client is to send its full state on
    a new one.
    """
    caller = calling()
    if caller is None:
        return
    for name in dict.fromkeys(group.computation for group in report.groups):
        if not caller.may_report(name):
            outbox.deny(name)
        elif name in outbox.denied:
            msg = f"{caller.principal.name} may report for {name} again; connect again and send the full state"
            raise errors.ShuttingDown(msg)


def _follows(number: int, newest: int) -> bool:
    """Whether a report is the next of its stream; False for a repeat (rule 8).

    Raises InvalidArgument.

    Reports carry only what changed, so behind a lost one, which may have lowered a range, the
    others would lead.
    """
    if not number:
        raise bad_field("report.number", "is 0", "number the reports of each stream from 1")
    if number > newest + 1:
        problem = f"is {number} after {newest}: reports were lost in between"
        raise bad_field("report.number", problem, "open a new stream and send the full state")
    return number > newest
