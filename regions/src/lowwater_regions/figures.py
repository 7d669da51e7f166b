"""The metrics of the global authority, read from the references and sessions at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.registry import Collector

from lowwater.prometheus import Figure, counter, gauge
from lowwater_authority.core.times import MAX, MIN
from lowwater_regions.reference import SERVING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from lowwater_regions.registry import Registry


def _reference(name: str, says: str) -> Figure:
    return gauge(f"reference_{name}", says, "reference", "region")


PUBLISHED: Final = _reference("published_timestamp_seconds", "What is published of a reference, while it is a time.")
NUMBER: Final = _reference("adoption_number", "The adoption number of its owner.")
SUSPECT: Final = _reference("suspect", "1 while its owner is silent for too long, or nobody is known to be it.")
HOLDS: Final = _reference("holds", "Lost regions for which it holds until an operator decides.")
WRITTEN_OFF: Final = _reference(
    "written_off", "1 when rows were written off or broken, and nobody has said since that they arrived."
)
REGION_HEARD: Final = gauge(
    "region_heard_timestamp_seconds",
    "When the agent of a region was heard of last; absent before that, since the start.",
    "region",
)
REGION_SUSPECT: Final = gauge("region_suspect", "1 while a region is silent for too long.", "region")
DAMAGED: Final = gauge("damaged_references", "References whose record cannot be read.")
SERVES: Final = gauge("global_serving", "0 while the store has to be recovered, and nobody is answered.")
REFUSED: Final = counter(
    "region_refusals",
    "Calls refused, and single references refused within calls that were taken, by the name of the error.",
    "method",
    "reason",
)

BUILD: Final = Figure("info", "lowwater_global_build_info", "What is running.", ("version",))
"""A name of its own: rules about an authority's computations do not apply here."""

FIGURES: Final = (
    PUBLISHED,
    NUMBER,
    SUSPECT,
    HOLDS,
    WRITTEN_OFF,
    REGION_HEARD,
    REGION_SUSPECT,
    DAMAGED,
    SERVES,
    REFUSED,
)
"""All metrics of docs/reference/generated/metrics.md. A reference's ``region`` is its owner."""


class ReferenceFigures(Collector):
    """Collector of the references' metrics; it may run on any thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Read all metrics; O(references + regions)."""
        core, now, date = self._registry.references, self._registry.monotonic(), self._registry.clock()
        families = {figure: figure.family() for figure in FIGURES}
        references, sessions = list(core.references.values()), dict(core.sessions)
        for reference in references:
            owned = (reference.name, reference.owner)
            if MIN < reference.published < MAX:
                families[PUBLISHED].add_metric(owned, reference.published / 1e6)
            families[NUMBER].add_metric(owned, reference.number)
            families[SUSPECT].add_metric(owned, core.is_suspect(reference.owner, now))
            families[HOLDS].add_metric(owned, len(reference.holds))
            families[WRITTEN_OFF].add_metric(owned, reference.written_off)
        for region in sorted({*sessions, *(region for reference in references for region in reference.regions)}):
            if region in sessions:
                families[REGION_HEARD].add_metric((region,), (date - (now - sessions[region].heard_at)) / 1e6)
            families[REGION_SUSPECT].add_metric((region,), core.is_suspect(region, now))
        for labels, count in sorted(self._registry.refused.copy().items()):
            families[REFUSED].add_metric(labels, count)
        families[DAMAGED].add_metric((), len(core.damaged))
        families[SERVES].add_metric((), core.store.state == SERVING)
        yield from families.values()
