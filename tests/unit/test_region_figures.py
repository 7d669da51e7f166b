"""What a scrape of the global authority reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from lowwater_authority.regions.figures import FIGURES, ReferenceFigures
from lowwater_authority.regions.references import LOCAL, STOPPED_STORE, Agent, Change, Reference, References, Session
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
    metrics.register(ReferenceFigures(SimpleNamespace(references=core, monotonic=lambda: now, clock=lambda: date)))  # type: ignore[arg-type]

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
    core.apply(Change(store=core.store._replace(state=STOPPED_STORE)).encode())
    assert value("lowwater_global_serving") == 0
    families = {each.name: each for each in metrics.collect()}
    assert {name: (each.type, each.documentation) for name, each in families.items()} == {
        each.name: (each.kind, each.says) for each in FIGURES
    }
