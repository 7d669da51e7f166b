"""What a token may do at the global authority, and what a scrape of it reads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from lowwater import errors
from lowwater._server.audit import Audit
from lowwater._server.tokens import digest
from lowwater.core.attempts import error_of_call
from lowwater.core.events import ATTRIBUTE
from lowwater.v1 import regions_pb2 as pb
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority.access.guard import Guard
from lowwater_authority.access.policy import Access, Action, Allowance, Principal
from lowwater_authority.ops.observer import Observer
from lowwater_authority.regions.figures import FIGURES, ReferenceFigures
from lowwater_authority.regions.references import (
    LOCAL,
    SERVING,
    STOPPED_STORE,
    Agent,
    Change,
    Reference,
    References,
    Session,
)
from lowwater_authority.regions.registry import Registry
from lowwater_authority.rpc.regions import RegionServicer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.served import served
from tests.kit.times import SECOND

HOURLY = "sales/hourly:clicks"


def principal(name: str, *regions: str, allow: tuple[Allowance, ...] = ()) -> Principal:
    return Principal(name, allow, regions=regions, digests=(digest(name),))


ACCESS = Access(
    [
        principal("eu", "eu"),
        principal("both", "eu", "us"),
        principal("sandbox", allow=(Allowance("sandbox", {Action.REPORT: ("only-this",)}),)),
        principal("ops", allow=(Allowance("*", {Action.OPERATE: ("*",), Action.READ: ("*",)}),)),
    ]
)


class Center:
    """Calls by a token, with turns of their own."""

    def __init__(self, stub: Any, registry: Registry) -> None:
        self.stub = stub
        self.registry = registry
        self._turn = 0

    async def ask(self, who: str, method: str, request: Any, region: str = "", **more: Any) -> Any:
        if region:
            self._turn += 1
            token = self.registry.references.store.token
            request.caller.CopyFrom(
                pb.RegionCaller(
                    region=region, agent=region, run=1, nonce="n", turn=self._turn, store_token=token, **more
                )
            )
        try:
            return await getattr(self.stub, method)(request, metadata=(("authorization", f"Bearer {who}"),))
        except grpc.RpcError as failure:
            raise error_of_call(failure, "here") from None

    async def register(self, who: str, region: str = "", inputs: str = "clicks", *regions: str) -> Any:
        request = pb.RegisterReferenceRequest(
            computation="sales/hourly", inputs=[inputs], regions=regions or ("eu", "us"), home="eu", policy="local"
        )
        return await self.ask(who, "RegisterReference", request, region)


@asynccontextmanager
async def serving(disk: MemoryDisk) -> AsyncIterator[Center]:
    registry = Registry(
        MemoryJournal(disk, shared=True),
        clock=lambda: 1,
        monotonic=lambda: 1,
        token=lambda: "store",
        suspect_after=10 * SECOND,
        lately=0,
    )
    await registry.open()
    guard = Guard(ACCESS, observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    add = partial(regions_pb2_grpc.add_RegionServiceServicer_to_server, RegionServicer(registry))
    async with served(add, interceptors=[guard]) as address, grpc.aio.insecure_channel(address) as channel:
        yield Center(regions_pb2_grpc.RegionServiceStub(channel), registry)
    await registry.close()


async def test_a_token_speaks_only_for_the_regions_it_names(disk: MemoryDisk) -> None:
    [service] = pb.DESCRIPTOR.services_by_name.values()
    calls = [each for each in service.methods if "caller" in each.input_type.fields_by_name]
    async with serving(disk) as center:
        await center.register("ops")
        before = center.registry.position
        for who, region in (("sandbox", "eu"), ("sandbox", "nowhere"), ("eu", "us"), ("ops", "eu")):
            for method in calls:
                request = getattr(pb, method.input_type.name)()
                # Who speaks for no region at all is refused before the request is read.
                with pytest.raises(
                    errors.PermissionDenied, match=f"does not speak for region '{region}'|speaks for no region"
                ):
                    await center.ask(who, method.name, request, region, seen=10**12)
        assert (center.registry.position, center.registry.references.store.state) == (before, SERVING)
        answer = await center.ask("eu", "Confirm", pb.ConfirmRequest(), "eu")
        assert [each.name for each in answer.references] == [HOURLY]


async def test_a_new_reference_takes_all_regions_that_it_concerns_or_an_operator(disk: MemoryDisk) -> None:
    async with serving(disk) as center:
        with pytest.raises(errors.PermissionDenied, match="region 'us'"):
            await center.register("eu", "eu")
        for who in ("eu", "sandbox"):
            with pytest.raises(errors.PermissionDenied, match="operate"):
                await center.register(who)
        await center.register("both", "eu")
        await center.register("eu", "eu")  # as it is: every agent says so at its start
        with pytest.raises(errors.PermissionDenied, match="region 'us'"):
            await center.register(
                "eu", "eu", "views", "eu"
            )  # the least of both is the global watermark of the computation
        assert list(center.registry.references.references) == [HOURLY]
        await center.register("ops", "", "views")


async def test_calls_of_regions_stand_in_the_audit_log(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowwater_authority.audit")
    async with serving(disk) as center:
        await center.register("ops")
        await center.ask("eu", "Confirm", pb.ConfirmRequest(), "eu")
        with pytest.raises(errors.RegionRefused):
            await center.ask("eu", "Stop", pb.StopRequest(progress=pb.ReferenceProgress(reference=HOURLY)), "eu")
        with pytest.raises(errors.PermissionDenied):
            await center.ask("sandbox", "Report", pb.RegionReportRequest(), "eu")
        early = pb.ReferenceProgress(reference="none:clicks", batch=-1)
        [single] = (await center.ask("eu", "Report", pb.RegionReportRequest(progress=[early]), "eu")).refused
        refusals = {("Stop", errors.RegionRefused.reason): 1, ("Report", single.reason): 1}
        assert center.registry.refused == refusals, "whole calls, and a single reference of a report that is taken"
        decision = pb.DecideRequest(reference=HOURLY, decision=pb.DECISION_ALLOW_AUTOMATIC, who="the CFO")
        with pytest.raises(errors.RegionRefused):
            await center.ask("ops", "Decide", decision)
        await center.ask("ops", "Recover", pb.RecoverRequest(regions=["eu", "us"]))
    told = [getattr(each, ATTRIBUTE) for each in caplog.records if each.name == "lowwater_authority.audit"]
    [decided] = [each for each in (getattr(each, ATTRIBUTE) for each in caplog.records) if each["event"] == "decision"]
    assert (decided["decision"], decided["reference"], decided["principal"]) == ("allow_automatic", HOURLY, "ops")
    lines = [(each["principal"], each["act"], each.get("computation", ""), each["outcome"]) for each in told]
    assert lines == [
        ("ops", "register_reference", HOURLY, "done"),
        ("eu", "confirm", "eu", "done"),
        ("eu", "stop", HOURLY, "failed"),
        ("sandbox", "Report", "", "refused"),
        ("ops", "allow_automatic", HOURLY, "failed"),
        ("ops", "recover", "eu,us", "done"),
    ]


def test_a_scrape_tells_who_is_silent_and_what_is_published() -> None:
    now, date = 100 * SECOND, 5000 * SECOND
    core = References(10 * SECOND, 0, 0)
    made = Reference("hourly", ("clicks",), ("A", "B", "C"), LOCAL, "A", number=7, published=3 * SECOND)
    unread: dict[str, Any] = {"daily:clicks": {}}
    core.apply(Change((made, Reference("weekly", ("clicks",), ("A", "B"), LOCAL, "A")), unread=unread).encode())
    core.sessions = {
        region: Session(Agent("agent", 1, "nonce"), now - silent * SECOND) for region, silent in (("A", 30), ("B", 2))
    }
    metrics = CollectorRegistry()
    refused = Counter({("Report", "STALE_ADOPTION"): 2})
    registry = SimpleNamespace(references=core, monotonic=lambda: now, clock=lambda: date, refused=refused)
    metrics.register(ReferenceFigures(registry))  # type: ignore[arg-type]

    def value(name: str, **labels: str) -> float | None:
        return metrics.get_sample_value(name, labels)

    owned = {"reference": "hourly:clicks", "region": "A"}
    assert value("lowwater_reference_published_timestamp_seconds", **owned) == 3
    assert value("lowwater_reference_published_timestamp_seconds", reference="weekly:clicks", region="A") is None
    assert value("lowwater_reference_adoption_number", **owned) == 7
    assert value("lowwater_reference_suspect", **owned) == 1
    heard = [value("lowwater_region_heard_timestamp_seconds", region=region) for region in "ABC"]
    assert heard == [4970, 4998, None]
    assert [value("lowwater_region_suspect", region=region) for region in "ABC"] == [1, 0, 1]
    assert (value("lowwater_damaged_references"), value("lowwater_global_serving")) == (1, 1)
    assert value("lowwater_region_refusals_total", method="Report", reason="STALE_ADOPTION") == 2
    core.apply(Change(store=core.store._replace(state=STOPPED_STORE)).encode())
    assert value("lowwater_global_serving") == 0
    families = {each.name: each for each in metrics.collect()}
    assert {name: (each.type, each.documentation) for name, each in families.items()} == {
        each.name.removesuffix("_total"): (each.kind, each.says) for each in FIGURES
    }
