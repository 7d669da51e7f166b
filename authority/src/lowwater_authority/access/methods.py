"""The permissions that each method needs: one entry a method. A method without an entry is refused.

A report stream needs only the permission to report for some computation. rpc/workers.py checks each
report, which names the computations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowwater.v1 import regions_pb2
from lowwater_authority.access.policy import Action
from lowwater_authority.core.names import is_slicing

if TYPE_CHECKING:
    from lowwater_authority.access.caller import Caller

Needs = Callable[[Any], Iterable[tuple[Action, str]]]


@dataclass(frozen=True, slots=True)
class Method:
    """The permissions that the caller of one method needs.

    Without any field, every principal may call it; the servicer shows what the caller may read.
    """

    needs: Needs = lambda _: ()
    """Function of the request: the actions on computations that the caller needs, all of them."""
    locates: Callable[[Any], Iterable[str]] = lambda _: ()
    """Function of the request: computations on each of which the caller needs any action."""
    some: tuple[Action, ...] = ()
    """Actions of which the caller needs one, on any computation at all. They are checked before the
    request is parsed. Empty: none is needed."""
    of_slice: Callable[[Any], bool] = lambda _: False
    """Function of the request: True for a request of a slice at its root. Then the caller must be a
    shard, whatever other permissions it has, and a computation that is not cut refuses it."""
    reports: bool = False
    """True: a shard may call it for its slices wherever it may report for them."""
    region: Callable[[Any], str] | None = None
    """Function of the request: the region that the caller has to speak for; None: no region."""
    operator: bool = False
    """True: an operator who may operate on everything may send a request without a region."""
    everything: bool = False
    """True: the caller must be allowed to operate on the deployment as a whole."""
    act: Callable[[Any], str] | None = None
    """Function of the request: name of the act in the audit; None: the audit has no line for it."""
    acted: Callable[[Any], bool] = lambda _: True
    """Function of the answer: True when the call has changed anything."""
    often: bool = False
    """True: workers repeat the call all the time, so the audit has one line with a count for many.
    """
    subject: Callable[[Any], str] = lambda request: getattr(request, "computation", "")
    """Function of the request: what the act was done to, a computation, a reference or a region."""

    def admit(self, caller: Caller) -> None:
        """Raise PermissionDenied for a caller that may send no request of this method at all."""
        if self.everything:
            caller.demand_everything()
        if self.some:
            caller.demand_some(*self.some)
        if self.region is not None:
            caller.demand_some_region(operator=self.operator)

    def check(self, caller: Caller, request: Any) -> None:
        """Raise PermissionDenied for the first need that the caller does not meet."""
        self.admit(caller)
        if self.region is not None:
            region = self.region(request)
            if self.operator and not region:
                caller.demand_everything()
            else:
                caller.demand_regions([region])
        if self.of_slice(request):
            caller.demand_slice(request.computation)
            return
        for action, name in self.needs(request):
            if not (self.reports and caller.may_report(name)):
                caller.demand(action, name)
        for name in self.locates(request):
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
    """Return the needs of an action that also names inputs.

    The caller needs READ on each input, because the answer tells whether it is registered.
    """
    return lambda request: (
        (action, getattr(request, field)),
        *((Action.READ, name) for name in request.inputs),
    )


def _reads(request: Any) -> Iterable[tuple[Action, str]]:
    return ((Action.READ, name) for name in request.computations)


_ANYBODY: Final = Method()

_ANY: Final = (Action.READ, Action.REPORT, Action.OPERATE)
"""Actions for methods with large requests, so that a caller without any permission is refused
before its request is parsed. Which computation it may not read is decided after that."""

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
    "/lowwater.v1.WatermarkService/GetWatermarks": Method(_reads, some=_ANY),
    "/lowwater.v1.WatermarkService/Watch": Method(_reads, some=_ANY),
    "/lowwater.v1.WatermarkService/CheckComplete": Method(_own(Action.READ)),
    "/lowwater.v1.WatermarkService/ListRanges": Method(_own(Action.READ)),
    "/lowwater.v1.WatermarkService/GetHistory": Method(_own(Action.READ)),
    "/lowwater.v1.TopologyService/Register": Method(
        _inputs(Action.REPORT, "name"),
        some=(Action.REPORT,),
        act=lambda _: "register",
        subject=lambda request: request.name,
    ),
    "/lowwater.v1.TopologyService/GetTopology": _ANYBODY,
    "/lowwater.v1.TopologyService/SetInputs": Method(
        _inputs(Action.OPERATE, "computation"), act=lambda _: "set_inputs"
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
    # OPERATE, because it takes the leases of all workers away.
    "/lowwater.v1.TaskService/ConfigureGroup": Method(_own(Action.OPERATE), act=lambda _: "configure_group"),
    "/lowwater.v1.TaskService/CreateTasks": Method(_own(Action.REPORT), act=lambda _: "create_tasks", often=True),
    "/lowwater.v1.TaskService/TakeTask": Method(
        _own(Action.REPORT), act=lambda _: "take_task", acted=lambda answer: answer.HasField("lease"), often=True
    ),
    # No audit, as for reports: workers call it all the time.
    "/lowwater.v1.TaskService/RenewTask": Method(_own(Action.REPORT)),
    "/lowwater.v1.TaskService/CommitTask": Method(_own(Action.REPORT), act=lambda _: "commit_task", often=True),
    "/lowwater.v1.TaskService/ReleaseTask": Method(_own(Action.REPORT), act=lambda _: "release_task", often=True),
    "/lowwater.v1.TaskService/ListTasks": Method(_own(Action.READ)),
    "/lowwater.v1.ClusterService/Locate": Method(locates=lambda request: request.computations, some=_ANY),
    "/lowwater.v1.ClusterService/ListShards": _ANYBODY,
    "/lowwater.v1.ClusterService/Drain": Method(everything=True, act=lambda _: "drain"),
    "/lowwater.v1.ClusterService/Pin": Method(everything=True, act=lambda _: "pin"),
    # A caller that knows the digest of a token knows the token, or has read the access file.
    "/lowwater.v1.ClusterService/Identify": _ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ANYBODY,
}


def _speaks(request: Any) -> str:
    region: str = request.caller.region
    return region


def _of_region(act: str, subject: Callable[[Any], str]) -> Method:
    return Method(region=_speaks, act=lambda _: act, subject=subject)


def decision_name(number: int) -> str:
    """Return the name of an operator's decision, such as ``write_off``; else ``decide``."""
    value = regions_pb2.Decision.DESCRIPTOR.values_by_number.get(number)
    return "decide" if value is None else value.name.removeprefix("DECISION_").lower()


REGION_METHODS: Final[dict[str, Method]] = {
    "/lowwater.v1.RegionService/Confirm": _of_region("confirm", _speaks),
    "/lowwater.v1.RegionService/RegisterReference": Method(
        region=_speaks,
        operator=True,
        act=lambda _: "register_reference",
        subject=lambda request: f"{request.computation}:{'+'.join(sorted(request.inputs))}",
    ),
    # No audit: regions report once a second.
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
"""Methods of the global authority, which has no others."""

OPEN: Final = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods that need no token: a probe learns only whether this process serves. (Health/List is not
among them: no servicer has it, and gRPC would log a traceback for each call.)"""

OF_SHARDS: Final = frozenset({"/lowwater.v1.WorkerService/Vouch"})
"""Methods that shards call for their slices all the time. Where there are no access rules, they do
not count for ``calls_per_second`` of a host."""
