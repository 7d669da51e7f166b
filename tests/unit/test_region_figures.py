"""What a scrape of the global authority reads."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from lowwater._pb.lowwater.v1 import regions_pb2 as pb
from lowwater_authority.regions.figures import FIGURES, ReferenceFigures
from lowwater_authority.regions.references import LOCAL, STOPPED_STORE, Agent, Change, Reference, References, Session
from lowwater_authority.regions.registry import Registry
from lowwater_authority.rpc.regions import RegionServicer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import SECOND


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


class Aborted(Exception):
    """What ends a call."""


class Context:
    """Of a call that is made here."""

    async def abort(self, code: grpc.StatusCode, message: str, _: object) -> None:
        raise Aborted(code, message)


async def test_what_regions_are_refused_is_counted_by_its_reason(disk: MemoryDisk) -> None:
    """Whole calls, and a single reference within a report that is taken."""
    registry = Registry(
        MemoryJournal(disk, shared=True),
        clock=lambda: 1,
        monotonic=lambda: 1,
        token=lambda: "store",
        suspect_after=10 * SECOND,
        lately=0,
    )
    await registry.open()
    servicer, context = RegionServicer(registry), Context()

    def caller(turn: int) -> pb.RegionCaller:
        return pb.RegionCaller(region="A", agent="agent", run=1, nonce="nonce", turn=turn)

    def report(turn: int) -> pb.RegionReportRequest:
        progress = pb.ReferenceProgress(reference="hourly:clicks", number=1, batch=-1)
        return pb.RegionReportRequest(caller=caller(turn), progress=[progress])

    with pytest.raises(Aborted):
        await servicer.Report(report(1), context)  # type: ignore[arg-type]
    assert registry.refused == {("Report", "UNCONFIRMED"): 1}
    await servicer.Confirm(pb.ConfirmRequest(caller=caller(2)), context)  # type: ignore[arg-type]
    [refused] = (await servicer.Report(report(3), context)).refused  # type: ignore[arg-type]
    assert registry.refused == {("Report", "UNCONFIRMED"): 1, ("Report", refused.reason): 1}
    await registry.close()
