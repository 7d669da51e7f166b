"""Every method that a server has stands in the table of what it needs, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from lowwater import errors
from lowwater.v1 import cluster_pb2, regions_pb2, tasks_pb2, topology_pb2, watermarks_pb2, workers_pb2
from lowwater_authority.access.caller import CALLER, Caller, room_for_ranges
from lowwater_authority.access.methods import METHODS, OPEN, REGION_METHODS, Method
from lowwater_authority.access.policy import Action, Allowance, Limits, Principal, insider
from lowwater_authority.rpc.request_bounds import BOUNDS, MOST_BYTES
from lowwater_authority.serve import SERVICES
from lowwater_server.audit import Audit

FILES = (workers_pb2, watermarks_pb2, topology_pb2, cluster_pb2, tasks_pb2)

DESCRIBED = {
    f"/{service.full_name}/{method.name}": method
    for file in (*FILES, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

NOT_SERVED = {"/grpc.health.v1.Health/List"}


def test_each_method_is_either_open_or_guarded() -> None:
    services = {name for file in FILES for name in (s.full_name for s in file.DESCRIPTOR.services_by_name.values())}
    assert services == set(SERVICES)
    assert METHODS.keys() | OPEN == DESCRIBED.keys() - NOT_SERVED
    assert not METHODS.keys() & OPEN
    assert {name for name in DESCRIBED if "/grpc.health." in name} - NOT_SERVED == OPEN


def test_each_method_of_the_global_authority_is_guarded() -> None:
    [service] = regions_pb2.DESCRIPTOR.services_by_name.values()
    assert REGION_METHODS.keys() == {f"/{service.full_name}/{method.name}" for method in service.methods}
    deciding = {path.rpartition("/")[2] for path, rule in REGION_METHODS.items() if rule.everything}
    assert deciding == {"Decide", "Recover"}
    speaking = {path.rpartition("/")[2] for path, rule in REGION_METHODS.items() if rule.region is not None}
    regions = {method.name for method in service.methods if "caller" in method.input_type.fields_by_name}
    assert speaking == regions, "whoever names a region has to speak for it"
    assert {path.rpartition("/")[2] for path, rule in REGION_METHODS.items() if rule.some} == {"ListReferences"}
    silent = {path.rpartition("/")[2] for path, rule in REGION_METHODS.items() if rule.act is None}
    assert silent == {"Report", "ListReferences"}, "all else is an act for the audit"


def test_who_has_no_right_has_no_large_request_read() -> None:
    for method in {*REGION_METHODS, *(method_ for method_, bound in BOUNDS.items() if bound.size > MOST_BYTES)}:
        with pytest.raises(errors.PermissionDenied):
            (METHODS.get(method) or REGION_METHODS[method]).admit(caller(Principal("scraper", metrics=True)))


def test_what_changes_something_is_an_act_for_the_audit() -> None:
    silent = {path.rpartition("/")[2] for path, rule in METHODS.items() if rule.act is None}
    reports = {"Report", "StageTask", "PrepareBatch", "CommitBatch", "Vouch", "RenewTask"}
    asking = {name for name in silent if name.startswith(("Get", "List", "Check", "Watch"))}
    assert silent - asking - reports == {"Locate", "Identify", "ServerReflectionInfo"}
    many = {path.rpartition("/")[2] for path, rule in METHODS.items() if rule.often}
    assert many == {"CreateTasks", "TakeTask", "CommitTask", "ReleaseTask"}, "workers repeat these all the time"
    take = METHODS["/lowwater.v1.TaskService/TakeTask"]
    assert [take.acted(tasks_pb2.TakeTaskResponse(lease=lease)) for lease in (None, tasks_pb2.TaskLease())] == [
        False,
        True,
    ]


EVERYTHING = Principal("all", (Allowance("*", dict.fromkeys(Action, ("*",))),))
SHARD = insider("peer", ["token"])
CLAIM = METHODS["/lowwater.v1.WorkerService/Claim"]
RETIRE = METHODS["/lowwater.v1.TopologyService/Retire"]


def caller(principal: Principal) -> Caller:
    return Caller(principal, Limits(ranges=1), "here", Audit(lambda: 0.0), {"n/cut"}.__contains__)


def claim(identity: str, name: str = "n/cut") -> workers_pb2.ClaimRequest:
    return workers_pb2.ClaimRequest(computation=name, identity=identity)


def retirement(sequencer: int) -> topology_pb2.RetireRequest:
    return topology_pb2.RetireRequest(computation="n/cut", sequencer=sequencer)


@pytest.mark.parametrize(("rule", "request_"), [(CLAIM, claim("n/cut~")), (RETIRE, retirement(7))])
def test_only_a_shard_does_what_a_slice_does(rule: Method, request_: Any) -> None:
    rule.check(caller(SHARD), request_)
    with pytest.raises(errors.PermissionDenied, match="all is no shard"):
        rule.check(caller(EVERYTHING), request_)


@pytest.mark.parametrize(
    ("rule", "request_"),
    [(CLAIM, claim("")), (CLAIM, claim("n/other~")), (CLAIM, claim("n/cut~", "n/cut~0")), (RETIRE, retirement(0))],
)
def test_a_shard_does_nothing_else(rule: Method, request_: Any) -> None:
    rule.check(caller(EVERYTHING), request_)
    with pytest.raises(errors.PermissionDenied, match="peer lacks the permission"):
        rule.check(caller(SHARD), request_)


def test_a_shard_reports_where_a_computation_is_cut_and_nowhere_else() -> None:
    shard = caller(SHARD)
    METHODS["/lowwater.v1.WorkerService/Report"].check(shard, None)
    assert shard.may_report("n/cut")
    for name in ("n/whole", "n/cut~0", "n/unknown"):
        assert not shard.may_report(name)
        with pytest.raises(errors.PermissionDenied):
            shard.demand_report(name)
    vouch = METHODS["/lowwater.v1.WorkerService/Vouch"]
    vouch.check(shard, workers_pb2.VouchRequest(computation="n/cut"))
    with pytest.raises(errors.PermissionDenied):
        vouch.check(shard, workers_pb2.VouchRequest(computation="n/whole"))
    token = CALLER.set(shard)
    room_for_ranges("n/cut", Limits(ranges=1))(1000)
    CALLER.reset(token)
    shard.become(Principal("peer"), Limits())
    assert not shard.may_report("n/cut")


def test_who_may_report_for_what_is_cut_may_report_for_its_slices() -> None:
    one = caller(Principal("etl", (Allowance("n", {Action.REPORT: ("cut",)}),)))
    assert one.may_report("n/cut~0")
    assert one.may_report("n/cut~17")
    assert not any(one.may_report(name) for name in ("n/cut~", "n/cut~x", "n/cute~0", "cut~0"))
