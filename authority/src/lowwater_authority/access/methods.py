"""What each method needs, and of which computations: one line a method.

What has no line is refused.

A report stream is asked here only whether it can report for anything: each of its reports names
computations, see rpc/workers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowwater.v1 import regions_pb2
from lowwater_authority.access.policy import Action
from lowwater_authority.core.names import is_slicing
from lowwater_authority.core.topology import MAX_INPUTS
from lowwater_authority.rpc.codec import MAX_NAMES
from lowwater_authority.rpc.refusals import bad_field

if TYPE_CHECKING:
    from lowwater_authority.access.caller import Caller

__all__ = ["METHODS", "OF_SHARDS", "OPEN", "REGION_METHODS", "Method", "decision_name"]

Needs = Callable[[Any], Iterable[tuple[Action, str]]]


@dataclass(frozen=True, slots=True)
class Method:
    """What the caller of a method must be allowed.

    Without any need it must be somebody, and sees what it may read.
    """

    needs: Needs = lambda _: ()
    """From the request: actions on computations, all of which it needs."""
    known: Callable[[Any], Iterable[str]] = lambda _: ()
    """From the request: computations to which it needs any action."""
    some: tuple[Action, ...] = ()
    """Actions of which it needs one on any computation at all, before its request is parsed; empty:
    none is asked for."""
    most: tuple[str, int] | None = None
    """The field with names in it, and how many it may have: each takes some time to decide."""
    of_slice: Callable[[Any], bool] = lambda _: False
    """From the request: whether it is one of a slice at the computation that it is a slice of. Then
    only a shard makes it, whatever it may do else, and the computation refuses it unless it is cut.
    """
    reports: bool = False
    """Whether it is a report by another name, so that a shard makes it for its slices where it
    reports for them."""
    region: Callable[[Any], str] | None = None
    """From the request: the region that the caller has to speak for; None: the caller speaks for no
    region."""
    operator: bool = False
    """Whether a request without a region is one of an operator, who may operate on everything."""
    everything: bool = False
    """Whether it takes operate on the deployment as a whole."""
    act: Callable[[Any], str] | None = None
    """From the request: what the audit calls it; None: it changes nothing that is worth a line."""
    acted: Callable[[Any], bool] = lambda _: True
    """From the answer: whether anything was changed."""
    often: bool = False
    """True for a method that workers repeat all the time: the audit has one line with a count
    instead of a line a call."""
    subject: Callable[[Any], str] = lambda request: getattr(request, "computation", "")
    """From the request: what the audit says it was done to: a computation, a reference, or a
    region."""

    def admit(self, caller: Caller) -> None:
        """Raise PermissionDenied for a caller whose request is not worth reading, whatever it says."""
        if self.everything:
            caller.demand_everything()
        if self.some:
            caller.demand_some(*self.some)
        if self.region is not None:
            caller.demand_some_region(operator=self.operator)

    def check(self, caller: Caller, request: Any) -> None:
        """Raise PermissionDenied for the first need that is not met, and InvalidArgument for more names than a request may have."""
        self.admit(caller)
        if self.region is not None:
            region = self.region(request)
            if self.operator and not region:
                caller.demand_everything()
            else:
                caller.demand_regions([region])
        if self.most is not None:
            field, most = self.most
            found = len(getattr(request, field))
            if found > most:
                raise bad_field(field, f"has {found} names", f"name at most {most}")
        if self.of_slice(request):
            caller.demand_slice(request.computation)
            return
        for action, name in self.needs(request):
            if not (self.reports and caller.may_report(name)):
                caller.demand(action, name)
        for name in self.known(request):
            if not caller.may_any(name):
                raise caller.denied(Action.READ, name)


def _own(action: Action) -> Needs:
    return lambda request: ((action, request.computation),)


def _claim(request: Any) -> Iterable[tuple[Action, str]]:
    yield Action.REPORT, request.computation
    if request.adopt:
        yield Action.OPERATE, request.computation


def _claims_for_slice(request: Any) -> bool:
    return is_slicing(request.computation, request.identity)


def _inputs(action: Action, field: str) -> Needs:
    """Also to read each input: the answer says whether it exists, and the next step is to follow it."""
    return lambda request: (
        (action, getattr(request, field)),
        *((Action.READ, name) for name in request.inputs),
    )


def _reads(request: Any) -> Iterable[tuple[Action, str]]:
    return ((Action.READ, name) for name in request.computations)


_ANYBODY: Final = Method()

_NAMED: Final = ("computations", MAX_NAMES)

_READ: Final = ("inputs", MAX_INPUTS)

_ANY: Final = (Action.READ, Action.REPORT, Action.OPERATE)
"""For requests of megabytes that need no action in particular, or whose refusal has to name the
computation: clients go on with the others."""

METHODS: Final[dict[str, Method]] = {
    "/lowwater.v1.WorkerService/Claim": Method(
        _claim,
        some=(Action.REPORT,),
        of_slice=_claims_for_slice,
        act=lambda request: "adopt" if request.adopt else "claim",
    ),
    "/lowwater.v1.WorkerService/Release": Method(_own(Action.REPORT), act=lambda _: "release"),
    "/lowwater.v1.WorkerService/Report": Method(some=(Action.REPORT,)),
    "/lowwater.v1.WorkerService/StageTask": Method(_own(Action.REPORT), some=(Action.REPORT,)),
    "/lowwater.v1.WorkerService/PrepareBatch": Method(_own(Action.REPORT), some=(Action.REPORT,)),
    "/lowwater.v1.WorkerService/CommitBatch": Method(_own(Action.REPORT), some=(Action.REPORT,)),
    "/lowwater.v1.WorkerService/Vouch": Method(_own(Action.REPORT), reports=True),
    "/lowwater.v1.WatermarkService/GetWatermarks": Method(_reads, some=_ANY, most=_NAMED),
    "/lowwater.v1.WatermarkService/Watch": Method(_reads, some=_ANY, most=_NAMED),
    "/lowwater.v1.WatermarkService/CheckComplete": Method(_own(Action.READ)),
    "/lowwater.v1.WatermarkService/ListRanges": Method(_own(Action.READ)),
    "/lowwater.v1.WatermarkService/GetHistory": Method(_own(Action.READ)),
    "/lowwater.v1.TopologyService/Register": Method(
        _inputs(Action.REPORT, "name"),
        some=(Action.REPORT,),
        most=_READ,
        act=lambda _: "register",
        subject=lambda request: request.name,
    ),
    "/lowwater.v1.TopologyService/GetTopology": _ANYBODY,
    "/lowwater.v1.TopologyService/SetInputs": Method(
        _inputs(Action.OPERATE, "computation"), most=_READ, act=lambda _: "set_inputs"
    ),
    "/lowwater.v1.TopologyService/Reset": Method(_own(Action.OPERATE), act=lambda _: "reset"),
    "/lowwater.v1.TopologyService/SplitSlice": Method(_own(Action.OPERATE), act=lambda _: "split_slice"),
    "/lowwater.v1.TopologyService/Retire": Method(
        _own(Action.OPERATE), of_slice=lambda request: request.sequencer > 0, act=lambda _: "retire"
    ),
    "/lowwater.v1.TopologyService/ChangeLayout": Method(
        _own(Action.OPERATE), some=(Action.OPERATE,), act=lambda _: "change_layout"
    ),
    "/lowwater.v1.TopologyService/GetLayout": Method(_own(Action.READ)),
    "/lowwater.v1.TopologyService/Drop": Method(_own(Action.OPERATE), act=lambda _: "drop"),
    "/lowwater.v1.TaskService/CreateGroup": Method(_own(Action.REPORT), act=lambda _: "create_group"),
    # As a change of inputs: it takes work away from all who have some.
    "/lowwater.v1.TaskService/ConfigureGroup": Method(_own(Action.OPERATE), act=lambda _: "configure_group"),
    "/lowwater.v1.TaskService/CreateTasks": Method(_own(Action.REPORT), act=lambda _: "create_tasks", often=True),
    "/lowwater.v1.TaskService/TakeTask": Method(
        _own(Action.REPORT), act=lambda _: "take_task", acted=lambda answer: answer.HasField("lease"), often=True
    ),
    # As the reports of workers: no line for each.
    "/lowwater.v1.TaskService/RenewTask": Method(_own(Action.REPORT)),
    "/lowwater.v1.TaskService/CommitTask": Method(_own(Action.REPORT), act=lambda _: "commit_task", often=True),
    "/lowwater.v1.TaskService/ReleaseTask": Method(_own(Action.REPORT), act=lambda _: "release_task", often=True),
    "/lowwater.v1.TaskService/ListTasks": Method(_own(Action.READ)),
    "/lowwater.v1.ClusterService/Locate": Method(known=lambda request: request.computations, some=_ANY, most=_NAMED),
    "/lowwater.v1.ClusterService/ListShards": _ANYBODY,
    "/lowwater.v1.ClusterService/Drain": Method(everything=True, act=lambda _: "drain"),
    "/lowwater.v1.ClusterService/Pin": Method(everything=True, act=lambda _: "pin"),
    # Who knows the digest of a token knows the token, or has read the access file.
    "/lowwater.v1.ClusterService/Identify": _ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ANYBODY,
}


def _speaks(request: Any) -> str:
    region: str = request.caller.region
    return region


def _of_region(act: str, subject: Callable[[Any], str]) -> Method:
    return Method(region=_speaks, act=lambda _: act, subject=subject)


def decision_name(number: int) -> str:
    """Return the name of an operator's decision, such as ``write_off``; that of a newer client has none."""
    known = regions_pb2.Decision.DESCRIPTOR.values_by_number.get(number)
    return "decide" if known is None else known.name.removeprefix("DECISION_").lower()


REGION_METHODS: Final[dict[str, Method]] = {
    "/lowwater.v1.RegionService/Confirm": _of_region("confirm", _speaks),
    "/lowwater.v1.RegionService/RegisterReference": Method(
        region=_speaks,
        operator=True,
        act=lambda _: "register_reference",
        subject=lambda request: f"{request.computation}:{'+'.join(sorted(request.inputs))}",
    ),
    # Once a second, as the reports of workers: no line for each.
    "/lowwater.v1.RegionService/Report": Method(region=_speaks),
    "/lowwater.v1.RegionService/Fence": _of_region("fence", lambda request: request.reference),
    "/lowwater.v1.RegionService/Stop": _of_region("stop", lambda request: request.progress.reference),
    "/lowwater.v1.RegionService/Arrive": _of_region("arrive", lambda request: request.replica.reference),
    "/lowwater.v1.RegionService/ReleaseReference": _of_region("release", lambda request: request.reference),
    "/lowwater.v1.RegionService/ClaimReference": _of_region("claim_reference", lambda request: request.reference),
    "/lowwater.v1.RegionService/Enrol": _of_region("enrol", _speaks),
    "/lowwater.v1.RegionService/ListReferences": Method(some=(Action.READ,)),
    "/lowwater.v1.RegionService/Decide": Method(
        everything=True, act=lambda request: decision_name(request.decision), subject=lambda request: request.reference
    ),
    "/lowwater.v1.RegionService/Recover": Method(
        everything=True, act=lambda _: "recover", subject=lambda request: ",".join(request.regions)
    ),
}
"""Those of the global authority, which serves nothing else."""

OPEN: Final = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods for anybody: what watches over processes has no token, and learns only whether this one
serves. (Health/List is served by nothing, and whoever calls it would have gRPC log a traceback each
time.)"""

OF_SHARDS: Final = frozenset({"/lowwater.v1.WorkerService/Vouch"})
"""Methods that shards call for their slices, again and again: ``calls_per_second`` of a host does
not count them where there are no access rules."""
