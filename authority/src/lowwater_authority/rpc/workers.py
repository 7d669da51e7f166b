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
from lowwater_authority.core.requests import Refused, bad_field
from lowwater_authority.engine.placement import moved
from lowwater_authority.engine.round import GivenUp
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.refusals import MESSAGE_BYTES, check_token, refuse, refusing
from lowwater_authority.rpc.streams import Outbox, Streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from lowwater.v1.types_pb2 import Redirect
    from lowwater_authority.core.requests import GroupReport, Pieces, Result
    from lowwater_authority.rpc.services import Context, Services

log = logging.getLogger(__name__)

SENDER_BYTES = 16
"""Bytes of a sender's name."""

REPORT_BYTES = 1024
"""Bytes that a report takes besides its claims, about."""

GROUP_BYTES = 512
"""Bytes that one claim of a report takes besides its columns, about."""

NAMED = 2
"""Copies of a computation's name: one in the report, one in the message of its refusal."""

HANDLE_BYTES = 4
"""Bytes of a handle, the number of a range within its claim."""


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
        await self.services.confirm(name)  # this shard learns of a new incarnation first
        claim = await in_turns(codec.claim(request))
        grant = await shard.owners.claim(
            name,
            claim,
            adopt=request.adopt,
            incarnation=request.incarnation,
            permit=permit(name),
            room=room_for_ranges(name, self.services.limits),
        )
        self.services.observer.claimed()
        spec, required = shard.topology.get(name), shard.topology.required(name)
        holding = shard.held.served.get(name)
        if holding is None:
            raise moved(name)  # another shard has taken it over since the grant, and has the claim
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
        """Release all ranges of a claim."""
        await self.services.reach(request.computation)
        failure = codec.failure("failure", request.failure) if request.HasField("failure") else None
        await self.services.shard.owners.release(request.computation, request.sequencer, failure)
        return pb.ReleaseResponse()

    @refusing
    async def StageTask(self, request: pb.StageTaskRequest, context: Context) -> pb.StageTaskResponse:  # noqa: N802
        """Stage a task's part of a micro-batch, in memory."""
        if not request.HasField("task"):
            raise bad_field("task", "is missing", "name the stage, the partition and the attempt")
        await self.services.reach(request.computation)
        task, part = codec.attempt(request.task), codec.part(request)
        try:
            self.services.shard.owners.stage_task(request.computation, request.sequencer, request.batch, task, part)
        except errors.StaleSequencer:
            # A shard that was replaced does not know the newest claim: then this raises Moved.
            await self.services.confirm(request.computation)
            raise
        return pb.StageTaskResponse()

    @refusing
    async def PrepareBatch(self, request: pb.PrepareBatchRequest, context: Context) -> pb.PrepareBatchResponse:  # noqa: N802
        """Fix which attempts of a micro-batch count. Returns those whose parts are missing."""
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
        shard, name, report = self.services.shard, request.computation, codec.layout_report(request)
        refused = await shard.owners.commit(name, request.sequencer, request.batch, report)
        response = pb.CommitBatchResponse(refused=[codec.refused_message(name, value) for value in refused])
        if report is None:
            return response
        wanted, stored = shard.served.wanted_layout(name), shard.served.reported_layout(name, request.sequencer)
        if stored is not None:
            response.known_layout = stored.version
        if wanted is not None and wanted.differs(report.layout if stored is None else stored):
            response.wanted.CopyFrom(codec.layout_message(wanted))
        return response

    @refusing
    async def Vouch(self, request: pb.VouchRequest, context: Context) -> pb.VouchResponse:  # noqa: N802
        """Take the event time up to which an owner's outputs are complete."""
        await self.services.reach(request.computation)
        fold = codec.fold(request)
        await self.services.shard.owners.vouch(request.computation, request.sequencer, request.through_micros, fold)
        return pb.VouchResponse()

    # -- a report, from its stream's first message to its acknowledgement --------------------------

    async def Report(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ReportRequest], context: Context
    ) -> AsyncIterator[pb.ReportResponse]:
        """Read the reports of one process; send acknowledgements, and notices of lost ranges."""
        messages: Any = aiter(request_iterator)
        try:
            self.services.check()
            first = await anext(messages, None)
            if first is None:
                return
            sender = self._opening(first)
            outbox = await self.streams.admit(sender, first.open.stream, holder())
        except errors.LowwaterError as error:
            # Otherwise gRPC's generator would hold the first message, which may have megabytes.
            await messages.aclose()
            self.services.observer.refused("Report", error.reason)
            await refuse(context, error, again=self.streams.again)
        reader = asyncio.create_task(self._read(messages, sender, first.open.stream, outbox))
        try:
            yield pb.ReportResponse(opened=pb.ReportOpened(server_token=self.services.token))
            if self.services.leaving.is_set():
                outbox.wake()  # Streams.wake was called before it knew this outbox
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
        """Return the sender of a stream from its first message. Raises InvalidArgument."""
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
        """Hand the reports of a stream to the shard, one by one, until the last is durable."""
        last: asyncio.Future[Any] | None = None
        newest = 0
        try:
            async for request in requests:
                self.streams.begin_reports(outbox)
                if request.WhichOneof("kind") != "report":
                    raise bad_field("kind", "is not report", "open a stream once, then only report")
                if not _follows(request.report.number, newest):
                    continue
                newest = request.report.number
                redirects = await self._redirects(request.report, outbox.barred)
                size = self._size(request.report)
                await self.streams.enter(outbox, size)
                try:
                    last = self._hand_over(request.report, sender, stream, outbox, redirects, size=size, after=last)
                except BaseException:
                    self.streams.leave(outbox, size)
                    raise
            if last is not None:
                await asyncio.wait([last])
        except errors.LowwaterError as error:
            self.services.observer.refused("Report", error.reason)
            # Otherwise the frames of the error would hold the message until the garbage collector
            # runs, and so would gRPC's generator.
            outbox.close(error.with_traceback(None))
        finally:
            await requests.aclose()
            outbox.finish()

    async def _redirects(self, report: pb.Report, barred: set[str]) -> dict[str, Redirect]:
        """Return the places of the computations that this stream may not report for here.

        They are those that other shards serve, and those in ``barred``, to which this adds the
        former.
        """
        caller = calling()
        names = dict.fromkeys(group.computation for group in report.groups if len(group.computation) <= NAME_BYTES)
        if caller is not None:
            names = {name: None for name in names if caller.may_report(name)}
        for name in names:
            try:
                await self.services.reach(name)
            except (errors.Moved, errors.Unavailable):
                barred.add(name)  # the other computations of the report go on
            except errors.UnknownComputation:
                continue  # the shard refuses its claims, one by one
        elsewhere = [name for name in names if name in barred]
        return {redirect.computation: redirect for redirect in await self.services.redirects(elsewhere)}

    def _size(self, report: pb.Report) -> int:
        """Return the bytes of a decoded report and of all handles in its refusals, about.

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

    def _hand_over(
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
        """Hand a report to the shard, behind the report ``after``; returns when it is durable.

        The outbox answers it then, and its ``size`` bytes leave the rooms.
        """
        if len({(group.computation, group.sequencer) for group in report.groups}) < len(report.groups):
            raise bad_field(
                "report.groups", "names a claim twice", "send one entry a claim, and the rest in the next report"
            )
        _check_rights(report, outbox)
        groups, refused = _decoded(report, redirects)
        for name, group in groups:
            if self.services.shard.served.granted(name, group.sequencer):
                self.streams.speaks(name, group.sequencer, outbox)
        durable = self.services.shard.owners.report(
            groups,
            sender=sender,
            number=(stream, report.number),
            after=after,
            barred=outbox.barred,
            older=outbox.older,
        )
        number, names = report.number, dict.fromkeys(name for name, _ in groups)
        ranges = sum(len(group.watermarks) if group.handles is None else len(group.handles) for _, group in groups)

        def answer(done: asyncio.Future[list[tuple[str, Refused]]]) -> None:
            try:
                error = done.exception() if not done.cancelled() else None
                if isinstance(error, GivenUp):
                    error = errors.ShuttingDown("a computation of this report was taken over meanwhile; connect again")
                if isinstance(error, errors.LowwaterError):
                    # Nothing is lost: the client connects again and reports its whole state.
                    outbox.close(error)
                else:
                    refusals = [*refused, *done.result()]
                    self.services.observer.reported(ranges, dict(Counter(value.reason for _, value in refusals)))
                    self._tell_refused(refusals)
                    references = self._references(names)
                    self.streams.acknowledge(outbox, number, refusals, references=references, redirects=redirects)
            except BaseException:
                # The refusals were not sent, so no later acknowledgement may cover this report.
                outbox.close(errors.Unavailable("the answer to a report could not be made; connect again"))
                raise
            finally:
                self.streams.leave(outbox, size)

        outbox.answer(durable, answer)
        return durable

    def _tell_refused(self, refused: list[tuple[str, Refused]]) -> None:
        """Log refusals, once in a while for each computation and reason, but none of a move.

        Unregistered names count as one computation, because a caller can make up any number.
        """
        for name, value in refused:
            if value.reason == errors.Moved.reason:
                continue
            registered = name if name in self.services.shard.topology.computations else ""
            if count := self.services.quiet.count(("Report", registered, value.reason), self.services.shard.now / 1e6):
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
        """Return what workers count the ages of records from, by computation."""
        shard = self.services.shard
        return {
            name: pb.ReferenceTime(
                computation=name, micros=shard.served.reference(name), budgets=codec.budget_messages(view.budgets)
            )
            for name in names
            if (view := shard.served.view(name)) is not None
        }


async def in_turns(pieces: Pieces[Result]) -> Result:
    """Do a long piece of work, and let others use the event loop between its parts."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)


def _decoded(
    report: pb.Report, redirects: dict[str, Redirect]
) -> tuple[list[tuple[str, GroupReport]], list[tuple[str, Refused]]]:
    """Return the claims of a report that the shard may apply, and the refusals of all others.

    A claim that is malformed, forbidden or served elsewhere does not stop those beside it.
    """
    groups: list[tuple[str, GroupReport]] = []
    refused: list[tuple[str, Refused]] = []
    caller = calling()
    for message in report.groups:
        name, sequencer = message.computation, message.sequencer
        if name in redirects:
            refused.append((name, Refused(sequencer, errors.Moved.reason, "another shard serves it")))
            continue
        try:
            if caller is not None:
                caller.demand_report(name)
            groups.append((name, codec.group(message)))
        except (errors.InvalidArgument, errors.PermissionDenied) as error:
            refused.append((shortened(name), Refused(sequencer, error.reason, error.message)))
    return groups, refused


def _check_rights(report: pb.Report, outbox: Outbox) -> None:
    """Note for which computations the caller may not report.

    Raises ShuttingDown when it may report again for one that it was refused on this stream. Reports
    carry only changes, and a refused one may have lowered a range, so later ones of the stream
    could lead (rules 1 and 8). The client has to send its full state on a new stream.
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
    """Return whether a report is the next of its stream; False for a repeat (rule 8).

    Raises InvalidArgument for a report behind a lost one. Reports carry only changes, and the lost
    one may have lowered a range, so later ones could lead.
    """
    if not number:
        raise bad_field("report.number", "is 0", "number the reports of each stream from 1")
    if number > newest + 1:
        problem = f"is {number} after {newest}: reports were lost in between"
        raise bad_field("report.number", problem, "open a new stream and send the full state")
    return number > newest
