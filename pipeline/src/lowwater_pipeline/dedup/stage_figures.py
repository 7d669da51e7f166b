"""Figures of stages that deduplicate, for Prometheus, for a driver that is scraped.

    from lowwater_pipeline.dedup import stage_figures

    figures = stage_figures.register()               # prometheus_client's registry has them from
    now on

    def write(rows, batch):
        found = once.of(batch, rows)
        ...
        figures.count("unique", batch, found.counts)

Neither Spark nor a Kafka client is imported. ``computation`` is the stage's name in the pipeline
graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector as BaseCollector

from lowwater.prometheus import Figure
from lowwater_pipeline.dedup.sieve import Counts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from lowwater_spark import Batch

__all__ = ["FIGURES", "StageCollector", "register"]


def _gauge(name: str, says: str) -> Figure:
    return Figure("gauge", f"lowwater_dedup_stage_{name}", says, ("computation",))


def _counter(name: str, says: str, *labels: str) -> Figure:
    return Figure("counter", f"lowwater_dedup_stage_{name}_total", says, ("computation", *labels))


_READ: Final[dict[Figure, Mapping[tuple[str, ...], Callable[[Counts], int]]]] = {
    _counter(
        "rows",
        "Rows by what became of them: main, late or undecidable, or duplicate, which are dropped. Of main, late and duplicate these, the rate.",
        "route",
    ): {
        ("main",): lambda c: c.main,
        ("late",): lambda c: c.late,
        ("undecidable",): lambda c: c.undecidable,
        ("duplicate",): lambda c: c.duplicates,
    },
    _counter("forgotten_early_ids", "Ids that a bound by size has pushed out early: a copy of one passes once more."): {
        (): lambda c: c.forgotten_early
    },
    _counter(
        "lookups",
        "Looks of a row into a segment of the state: filtered, which its Bloom filter has spared; found; or vain, which it has let pass, and the id was not there.",
        "outcome",
    ): {
        ("filtered",): lambda c: c.looks - c.passed,
        ("found",): lambda c: c.found,
        ("vain",): lambda c: c.passed - c.found,
    },
    _gauge("remembered_ids", "Ids in the state behind the last batch."): {(): lambda c: c.remembered},
    _gauge(
        "state_bytes",
        "Bytes of the segments that they are in, with their filters, about. Files may take twice as much.",
    ): {(): lambda c: c.state_bytes},
}
"""By figure and its labels but the first."""

FIGURES: Final[tuple[Figure, ...]] = tuple(_READ)
"""All that a stage exports."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a stage has counted in this process."""

    batch: tuple[int, str]
    """Number and digest of the last batch."""
    total: Counts
    """The sums over all batches; what is remembered and its bytes are those of the last one."""

    def and_then(self, batch: tuple[int, str], counts: Counts) -> _Counted:
        """Return it with one more batch, and as it is if that is the last one, which has run again."""
        if batch == self.batch:
            return self
        sums = Counts(*map(sum, zip(self.total, counts, strict=True)))
        return _Counted(batch, sums._replace(remembered=counts.remembered, state_bytes=counts.state_bytes))


class StageCollector(BaseCollector):
    """Adds up what the stages of a process have counted.

    A scrape costs nothing but reading the sums.

    A batch that runs again in this process, which only the last one of a stage does, is counted
    once. One name is one stage. A new process counts from nothing, with the batch that it runs
    again: so of a batch during which the driver dies both may tell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[str, _Counted] = {}

    def count(self, computation: str, batch: Batch, counts: Counts) -> None:
        """Count a batch of the stage of this name.

        Call it in every batch, with what ``Deduplicated.counts`` says; a second call for a batch
        changes nothing.
        """
        number = batch.id, batch.digest
        with self._lock:
            before = self._stages.get(computation)
            now = _Counted(number, counts) if before is None else before.and_then(number, counts)
            self._stages = {**self._stages, computation: now}

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples."""
        return [figure.family() for figure in FIGURES]

    def collect(self) -> Iterable[Metric]:
        """Return the figures as they are now. A stage that has ended stays as it stood."""
        stages = self._stages
        for figure, samples in _READ.items():
            family = figure.family()
            for computation, counted in stages.items():
                for labels, read in samples.items():
                    family.add_metric([computation, *labels], read(counted.total))
            yield family


def register(registry: CollectorRegistry = REGISTRY) -> StageCollector:
    """Export the figures of stages until ``registry.unregister`` of what is returned, which is to be told of every batch.

    A registry takes this once. Raises ValueError when it has them already.
    """
    collector = StageCollector()
    registry.register(collector)
    return collector
