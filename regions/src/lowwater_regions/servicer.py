"""Regions over gRPC: decodes, asks the registry, encodes."""

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
from lowwater_authority.rpc.refusals import bad_field, refuse
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
    """Turn errors into statuses, and count what is refused."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: Context) -> Any:
        counted = self._registry.refused
        try:
            answer = await method(self, request, context)
        except errors.LowwaterError as error:
            counted[method.__name__, error.reason] += 1
            await refuse(context, error)
        if isinstance(answer, pb.RegionResponse):
            counted.update((method.__name__, each.reason) for each in answer.refused)
        return answer

    return guarded  # type: ignore[return-value]  # the same signature


class RegionServicer(regions_pb2_grpc.RegionServiceServicer):
    """See proto/lowwater/v1/regions.proto."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def _region(self, caller: Caller | None, plan: Callable[[References, int, int], Change]) -> pb.RegionResponse:
        """Make a change that a region asks for, and tell it how everything stands."""
        registry = self._registry
        change = await registry.change(lambda core: plan(core, registry.monotonic(), registry.position))
        core, now = registry.references, registry.monotonic()
        return pb.RegionResponse(
            store_token=core.store.token,
            position=registry.position,
            references=[view(core, each, now) for each in _sorted(core) if caller and caller.region in each.regions],
            watermarks=_watermarks(core),
            refused=[
                pb.RefusedReference(reference=name, reason=error.reason, message=error.message)
                for name, error in change.refused.items()
            ],
            serving=core.store.state == SERVING,
        )

    @_refusing
    async def Confirm(self, request: pb.ConfirmRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Say who owns what."""
        who = _caller(request)
        numbers = dict(request.numbers)
        answer = await self._region(who, lambda core, now, position: core.confirm(who, numbers, now, position))
        owned = [each.name for each in answer.references if each.owner == who.region]
        log.info(
            "region %s is confirmed",
            who.region,
            extra=event("region_confirmed", region=who.region, references=len(owned)),
        )
        return answer

    @_refusing
    async def RegisterReference(self, request: pb.RegisterReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Define a reference."""
        who, caller = _caller(request) if request.caller.region else None, calling()
        wanted = Reference(
            request.computation,
            tuple(sorted(request.inputs)),
            tuple(sorted(request.regions)),
            request.policy or REPLICATED,
            request.home,
            sinks=tuple(Sink(each.name, each.fences) for each in request.sinks),
        )

        def plan(core: References, now: int, position: int) -> Change:
            change = core.register(who, wanted, now, position)
            if change.put and caller is not None and not caller.operates_everything:
                caller.demand_regions(core.concerned(wanted))
            return change

        return await self._region(who, plan)

    @_refusing
    async def Report(self, request: pb.RegionReportRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Take progress."""
        who = _caller(request)
        told = [_progress(each) for each in request.progress]
        replicas = {each.reference: _replica(each, who.region) for each in request.replicas}
        return await self._region(who, lambda core, now, position: core.progress(who, told, replicas, now, position))

    @_refusing
    async def Fence(self, request: pb.FenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note a raised sink."""
        who, said = _caller(request), request
        return await self._region(
            who,
            lambda core, now, position: core.fenced(
                who, said.reference, said.number, said.sink, said.cut, now, position
            ),
        )

    @_refusing
    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note where the owner has stopped."""
        who, told = _caller(request), _progress(request.progress)
        return await self._region(who, lambda core, now, position: core.stop(who, told, now, position))

    @_refusing
    async def Arrive(self, request: pb.ArriveRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Note that the next owner has everything."""
        who, said = _caller(request), request
        replica = _replica(said.replica, who.region)
        return await self._region(
            who,
            lambda core, now, position: core.arrive(
                who, said.replica.reference, replica, said.batch, said.digest, replica.positions, now, position
            ),
        )

    @_refusing
    async def ReleaseReference(self, request: pb.ReleaseReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Let go."""
        who, said = _caller(request), request
        return await self._region(
            who, lambda core, now, position: core.release(who, said.reference, said.number, said.digest, now, position)
        )

    @_refusing
    async def ClaimReference(self, request: pb.ClaimReferenceRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Take over."""
        who, said = _caller(request), request
        positions = _positions(said.positions)
        return await self._region(
            who,
            lambda core, now, position: core.claim(
                who, said.reference, said.number, said.batch, said.digest, positions, now, position
            ),
        )

    @_refusing
    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.RegionResponse:  # noqa: N802
        """Take back what a region was told."""
        who, records = _caller(request), dict(request.records)
        if len(records) > MOST_REFERENCES:
            raise bad_field("records", f"has more than {MOST_REFERENCES}", "send each once")
        return await self._region(who, lambda core, now, _: core.enrol(who, records, now))

    @_refusing
    async def ListReferences(self, request: pb.ListReferencesRequest, context: Context) -> pb.ListReferencesResponse:  # noqa: N802
        """List them."""
        await self._registry.change(lambda _: Change())
        return self._listed(request.reference)

    @_refusing
    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.ListReferencesResponse:  # noqa: N802
        """Do what an operator has decided."""
        registry = self._registry
        name, region = request.reference, request.region
        token = registry.references.store.token
        if request.store_token not in ("", token):
            raise errors.ServerTokenMismatch(
                "another global store answers here: check --global", metadata={"found": token}
            )
        who, caller = request.who or "somebody", calling()
        if caller is not None:  # what people call themselves proves nothing
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
        """Begin anew."""
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
            found = [view(core, core.get(name), now)]
        else:
            found = [view(core, each, now) for each in _sorted(core)] if not name else []
            damaged = {name: core.damaged[name]} if name else core.damaged
            found += [pb.ReferenceView(name=each, damaged=unread.reason) for each, unread in sorted(damaged.items())]
        return pb.ListReferencesResponse(
            store_token=core.store.token,
            references=found,
            watermarks=_watermarks(core),
            state=core.store.state,
            reason="" if core.store.state == SERVING else f"{core.store.reason}; {core.store.fix}",
        )


_DECISIONS: Final[dict[int, Callable[[References, str, str, str, Registry], Change]]] = {
    pb.DECISION_MOVE: lambda core, name, to, _, of: core.begin_move(name, to, of.monotonic()),
    pb.DECISION_CANCEL_MOVE: lambda core, name, *_: core.cancel_move(name),
    pb.DECISION_WRITE_OFF: lambda core, name, region, who, of: core.write_off(name, who, of.clock(), region),
    pb.DECISION_ARRIVED: lambda core, name, region, _, of: core.arrived(name, of.monotonic(), region),
    pb.DECISION_ALLOW_AUTOMATIC: lambda core, name, *_: core.allow_automatic(name, allowed=True),
    pb.DECISION_FORBID_AUTOMATIC: lambda core, name, *_: core.allow_automatic(name, allowed=False),
    pb.DECISION_REPLICATED: lambda core, name, *_: core.set_policy(name, REPLICATED),
    pb.DECISION_LOCAL: lambda core, name, *_: core.set_policy(name, LOCAL),
    pb.DECISION_FORGET: lambda core, name, _to, _who, of: core.forget(name, of.monotonic()),
}
"""What each decision is but ADOPT, which the log tells of."""


def view(core: References, found: Reference, now: int) -> pb.ReferenceView:
    """Encode a reference."""
    return pb.ReferenceView(
        name=found.name,
        computation=found.computation,
        inputs=found.inputs,
        regions=found.regions,
        policy=found.policy,
        owner=found.owner,
        number=found.number,
        incarnation=found.incarnation,
        low_micros=found.low,
        replicated_micros=found.replicated,
        published_micros=found.published,
        accepted_micros=found.accepted,
        written_off=found.written_off,
        complete_of=found.words(),
        suspect=core.is_suspect(found.owner, now),
        silent_millis=core.silent(found.owner, now) // 1000,
        moving_to="" if found.move is None else found.move.to,
        move_step="" if found.move is None else found.move.step,
        holds_for=[each.region for each in found.holds],
        batch=found.batch,
        digest=found.digest,
        positions=[_position_message(each) for each in found.positions],
        sinks=[
            pb.ReferenceSink(name=each.name, fences=each.fences, fenced=each.fenced, cut=each.cut)
            for each in found.sinks
        ],
        replicas=[
            pb.ReferenceReplica(
                reference=found.name,
                region=each.region,
                replicated_micros=each.replicated,
                output_micros=each.output,
                positions=[_position_message(place) for place in each.positions],
                number=each.number,
            )
            for each in found.current_replicas
        ],
        automatic=found.automatic,
        decisions=_decisions(found),
        record=encode(found),
        decision_number=found.decision_number,
    )


def _decisions(found: Reference) -> list[str]:
    told = [
        (
            each.when,
            f"what only {each.source or 'a lost region'} had from {Watermark(each.replicated)} on is written off, by {each.who}",
        )
        for each in found.write_offs
    ]
    told += [
        (
            each.when,
            f"what was published from {Watermark(each.start)} to {Watermark(each.end)} is broken: {each.who} adopted it",
        )
        for each in found.broken
    ]
    return [f"{datetime.fromtimestamp(when / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ} {what}" for when, what in sorted(told)]


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
    said = request.caller
    if not said.region or len(said.region) > MOST_NAME or not said.region.isprintable():
        raise bad_field("caller.region", "is no name", f"use at most {MOST_NAME} printable characters")
    if not said.agent or not said.nonce:
        raise bad_field("caller.agent", "is empty", "send a random agent and nonce")
    return Caller(said.region, Agent(said.agent, said.run, said.nonce), said.turn, said.store_token, said.seen)


def _progress(said: pb.ReferenceProgress) -> Progress:
    return Progress(
        said.reference, said.number, said.life, said.low_micros, said.batch, said.digest, _positions(said.positions)
    )


def _replica(said: pb.ReferenceReplica, region: str) -> Replica:
    positions = _positions(said.positions)
    return Replica(region, said.replicated_micros, said.output_micros, positions, said.number)


def _positions(said: Iterable[pb.SourcePosition]) -> tuple[Position, ...]:
    return tuple(Position(each.cluster, each.topic, each.partition, each.offset) for each in said)


def _position_message(place: Position) -> pb.SourcePosition:
    return pb.SourcePosition(cluster=place.cluster, topic=place.topic, partition=place.partition, offset=place.offset)
