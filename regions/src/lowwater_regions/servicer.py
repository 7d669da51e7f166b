"""The service of regions over gRPC: decodes requests, asks the registry, encodes answers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowwater import Watermark, errors
from lowwater.core.events import event
from lowwater.v1 import regions_pb2 as pb
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority.access.caller import calling
from lowwater_authority.access.methods import decision_name
from lowwater_authority.core.requests import bad_field
from lowwater_authority.rpc.refusals import refuse
from lowwater_regions.change import Change
from lowwater_regions.json_records import encode
from lowwater_regions.reference import LOCAL, MOST_NAME, REPLICATED, SERVING, Position, Reference, Replica, Sink
from lowwater_regions.references import AUTOMATIC, MOST_REFERENCES, Agent, Caller, Progress, References

if TYPE_CHECKING:
    import grpc

    from lowwater_regions.registry import Registry

    Context = grpc.aio.ServicerContext[Any, Any]

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

log = logging.getLogger(__name__)


def _refusing(method: Method) -> Method:
    """Turn errors into statuses, and count refusals."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: Context) -> Any:
        counted = self._registry.refused
        try:
            answer = await method(self, request, context)
        except errors.LowwaterError as error:
            counted[method.__name__, error.reason] += 1
            await refuse(context, error)
        if isinstance(answer, pb.RegionResponse):
            counted.update((method.__name__, refusal.reason) for refusal in answer.refused)
        return answer

    return guarded  # type: ignore[return-value]  # the same signature


class RegionServicer(regions_pb2_grpc.RegionServiceServicer):
    """See proto/lowwater/v1/regions.proto."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def _region(self, caller: Caller | None, plan: Callable[[References, int, int], Change]) -> pb.RegionResponse:
        """Make the change that a region asks for, and return the state of its references."""
        registry = self._registry
        change = await registry.change(lambda core: plan(core, registry.monotonic(), registry.position))
        core, now = registry.references, registry.monotonic()
        return pb.RegionResponse(
            store_token=core.store.token,
            position=registry.position,
            references=[
                view(core, reference, now)
                for reference in _sorted(core)
                if caller and caller.region in reference.regions
            ],
            watermarks=_watermarks(core),
            refused=[
                pb.RefusedReference(reference=name, reason=error.reason, message=error.message)
                for name, error in change.refused.items()
            ],
            serving=core.store.state == SERVING,
        )

    @_refusing
    async def Confirm(self, request: pb.ConfirmRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Confirm an agent, and tell it which region owns what."""
        who = _caller(request)
        numbers = dict(request.numbers)
        answer = await self._region(who, lambda core, now, position: core.confirm(who, numbers, now, position))
        owned = [view.name for view in answer.references if view.owner == who.region]
        log.info(
            "region %s is confirmed",
            who.region,
            extra=event("region_confirmed", region=who.region, references=len(owned)),
        )
        return answer

    @_refusing
    async def RegisterReference(self, request: pb.RegisterReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Register a reference."""
        who, caller = _caller(request) if request.caller.region else None, calling()
        registration = Reference(
            request.computation,
            tuple(sorted(request.inputs)),
            tuple(sorted(request.regions)),
            request.policy or REPLICATED,
            request.home,
            sinks=tuple(Sink(sink.name, sink.fences) for sink in request.sinks),
        )

        def plan(core: References, now: int, position: int) -> Change:
            change = core.register(who, registration, now, position)
            if change.put and caller is not None and not caller.operates_everything:
                caller.demand_regions(core.concerned(registration))
            return change

        return await self._region(who, plan)

    @_refusing
    async def Report(self, request: pb.RegionReportRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Take the progress of a region."""
        who = _caller(request)
        reports = [_progress(message) for message in request.progress]
        replicas = {message.reference: _replica(message, who.region) for message in request.replicas}
        return await self._region(who, lambda core, now, position: core.progress(who, reports, replicas, now, position))

    @_refusing
    async def Fence(self, request: pb.FenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note the number of a sink."""
        who, name, number = _caller(request), request.reference, request.number
        return await self._region(
            who,
            lambda core, now, position: core.fenced(who, name, number, request.sink, request.cut, now, position),
        )

    @_refusing
    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note where the owner has stopped."""
        who, report = _caller(request), _progress(request.progress)
        return await self._region(who, lambda core, now, position: core.stop(who, report, now, position))

    @_refusing
    async def Arrive(self, request: pb.ArriveRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note that the next owner has everything."""
        who, name = _caller(request), request.replica.reference
        replica = _replica(request.replica, who.region)
        return await self._region(
            who,
            lambda core, now, position: core.arrive(
                who, name, replica, request.batch, request.digest, replica.positions, now, position
            ),
        )

    @_refusing
    async def ReleaseReference(self, request: pb.ReleaseReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Release a reference."""
        who, name, number = _caller(request), request.reference, request.number
        return await self._region(
            who, lambda core, now, position: core.release(who, name, number, request.digest, now, position)
        )

    @_refusing
    async def ClaimReference(self, request: pb.ClaimReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Claim a released reference."""
        who, name, number = _caller(request), request.reference, request.number
        positions = _positions(request.positions)
        return await self._region(
            who,
            lambda core, now, position: core.claim(
                who, name, number, request.batch, request.digest, positions, now, position
            ),
        )

    @_refusing
    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Take the records that a region has kept."""
        who, records = _caller(request), dict(request.records)
        if len(records) > MOST_REFERENCES:
            raise bad_field("records", f"has more than {MOST_REFERENCES}", "send each once")
        return await self._region(who, lambda core, now, _: core.enrol(who, records, now))

    @_refusing
    async def ListReferences(self, request: pb.ListReferencesRequest, context: Context) -> pb.ListReferencesResponse:  # noqa: N802
        """List references."""
        await self._registry.change(lambda _: Change())
        return self._listed(request.reference)

    @_refusing
    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.ListReferencesResponse:  # noqa: N802
        """Carry out an operator's decision."""
        registry = self._registry
        name, region = request.reference, request.region
        token = registry.references.store.token
        if request.store_token not in ("", token):
            msg = "another global store answers here: check --global"
            raise errors.ServerTokenMismatch(msg, metadata={"found": token})
        who, caller = request.who or "somebody", calling()
        if caller is not None:  # the name in the request proves nothing
            who = f"{caller.principal.name} ({who})"[:MOST_NAME]
        if len(who) > MOST_NAME or not who.isprintable():
            raise bad_field("who", "is no name", f"use at most {MOST_NAME} printable characters")
        if who == AUTOMATIC:
            raise bad_field("who", f"is {AUTOMATIC!r}", "say who decides: by itself is something else")
        decide = _DECISIONS.get(request.decision)
        if decide is None and request.decision != pb.DECISION_ADOPT:
            raise bad_field("decision", f"is {request.decision}", "take one that is known")
        decision = decision_name(request.decision)
        principal = "" if caller is None else caller.principal.name
        log.warning(
            "%s decides: %s of %s",
            who,
            decision,
            name,
            extra=event("decision", reference=name, decision=decision, principal=principal, who=who),
        )
        number, decision_number = request.number, request.decision_number
        if decide is None:
            await registry.adopt(name, region, who, number, decision_number)
        else:

            def plan(core: References) -> Change:
                core.check_decision(name, number, decision_number)
                return core.decided(decide(core, name, region, who, registry))

            await registry.change(plan)
        return self._listed("" if request.decision == pb.DECISION_FORGET else name)

    @_refusing
    async def Recover(self, request: pb.RecoverRequest, context: Context) -> pb.RecoverResponse:  # noqa: N802
        """Begin a recovery of the store."""
        registry = self._registry
        token = registry.token()
        await registry.change(
            lambda core: core.recover(token, request.recovers, request.regions, request.fenced, request.store_token)
        )
        log.warning(
            "the store is recovered, as %s", token, extra=event("store_recovered", regions=list(request.regions))
        )
        return pb.RecoverResponse(store_token=token)

    def _listed(self, name: str) -> pb.ListReferencesResponse:
        core, now = self._registry.references, self._registry.monotonic()
        if name and name not in core.damaged:
            views = [view(core, core.get(name), now)]
        else:
            views = [view(core, reference, now) for reference in _sorted(core)] if not name else []
            damaged = [name] if name else sorted(core.damaged)
            views += [pb.ReferenceView(name=other, damaged=core.damaged[other].reason) for other in damaged]
        return pb.ListReferencesResponse(
            store_token=core.store.token,
            references=views,
            watermarks=_watermarks(core),
            state=core.store.state,
            reason="" if core.store.state == SERVING else f"{core.store.reason}; {core.store.fix}",
        )


_DECISIONS: Final[dict[int, Callable[[References, str, str, str, Registry], Change]]] = {
    pb.DECISION_MOVE: lambda core, name, to, _, registry: core.begin_move(name, to, registry.monotonic()),
    pb.DECISION_CANCEL_MOVE: lambda core, name, *_: core.cancel_move(name),
    pb.DECISION_WRITE_OFF: lambda core, name, region, who, registry: core.write_off(
        name, who, registry.clock(), region
    ),
    pb.DECISION_ARRIVED: lambda core, name, region, _, registry: core.arrived(name, registry.monotonic(), region),
    pb.DECISION_ALLOW_AUTOMATIC: lambda core, name, *_: core.allow_automatic(name, allowed=True),
    pb.DECISION_FORBID_AUTOMATIC: lambda core, name, *_: core.allow_automatic(name, allowed=False),
    pb.DECISION_REPLICATED: lambda core, name, *_: core.set_policy(name, REPLICATED),
    pb.DECISION_LOCAL: lambda core, name, *_: core.set_policy(name, LOCAL),
    pb.DECISION_FORGET: lambda core, name, _to, _who, registry: core.forget(name, registry.monotonic()),
}
"""Changes by decision. ADOPT is missing: `Registry.adopt` makes it, and logs it."""


_SAME: Final = (
    *("name", "computation", "inputs", "regions", "policy", "owner", "number", "incarnation", "written_off"),
    *("batch", "digest", "automatic", "decision_number"),
)
"""Fields that the message has as the reference has them."""


def view(core: References, reference: Reference, now: int) -> pb.ReferenceView:
    """Encode a reference."""
    return pb.ReferenceView(
        **{field: getattr(reference, field) for field in _SAME},
        low_micros=reference.low,
        replicated_micros=reference.replicated,
        published_micros=reference.published,
        accepted_micros=reference.accepted,
        complete_of=reference.words(),
        suspect=core.is_suspect(reference.owner, now),
        silent_millis=core.silent(reference.owner, now) // 1000,
        moving_to="" if reference.move is None else reference.move.to,
        move_step="" if reference.move is None else reference.move.step,
        holds_for=[hold.region for hold in reference.holds],
        positions=_position_messages(reference.positions),
        sinks=[pb.ReferenceSink(**sink._asdict()) for sink in reference.sinks],
        replicas=[
            pb.ReferenceReplica(
                reference=reference.name,
                region=replica.region,
                replicated_micros=replica.replicated,
                output_micros=replica.output,
                positions=_position_messages(replica.positions),
                number=replica.number,
            )
            for replica in reference.current_replicas
        ],
        decisions=_decisions(reference),
        record=encode(reference),
    )


def _decisions(reference: Reference) -> list[str]:
    decisions = [
        (
            entry.when,
            f"what only {entry.source or 'a lost region'} had from {Watermark(entry.replicated)} on is written off, by {entry.who}",
        )
        for entry in reference.write_offs
    ]
    decisions += [
        (
            span.when,
            f"what was published from {Watermark(span.start)} to {Watermark(span.end)} is broken: {span.who} adopted it",
        )
        for span in reference.broken
    ]
    return [f"{datetime.fromtimestamp(when / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ} {what}" for when, what in sorted(decisions)]


def _watermarks(core: References) -> list[pb.GlobalWatermark]:
    return [
        pb.GlobalWatermark(
            computation=name, incarnation=incarnation, published_micros=published, written_off=written_off
        )
        for name, (incarnation, published, written_off) in sorted(core.watermarks().items())
    ]


def _sorted(core: References) -> list[Reference]:
    return [core.references[name] for name in sorted(core.references)]


def _caller(request: Any) -> Caller:
    caller = request.caller
    if not caller.region or len(caller.region) > MOST_NAME or not caller.region.isprintable():
        raise bad_field("caller.region", "is no name", f"use at most {MOST_NAME} printable characters")
    if not caller.agent or not caller.nonce:
        raise bad_field("caller.agent", "is empty", "send a random agent and nonce")
    return Caller(
        caller.region, Agent(caller.agent, caller.run, caller.nonce), caller.turn, caller.store_token, caller.seen
    )


def _progress(message: pb.ReferenceProgress) -> Progress:
    return Progress(
        message.reference,
        message.number,
        message.life,
        message.low_micros,
        message.batch,
        message.digest,
        _positions(message.positions),
    )


def _replica(message: pb.ReferenceReplica, region: str) -> Replica:
    positions = _positions(message.positions)
    return Replica(region, message.replicated_micros, message.output_micros, positions, message.number)


def _positions(messages: Iterable[pb.SourcePosition]) -> tuple[Position, ...]:
    return tuple(Position(place.cluster, place.topic, place.partition, place.offset) for place in messages)


def _position_messages(positions: Iterable[Position]) -> list[pb.SourcePosition]:
    return [pb.SourcePosition(**place._asdict()) for place in positions]
