"""Figures of deduplicating stages for Prometheus, for a driver that is scraped.

    from lowwater_pipeline.dedup import stage_figures

    figures = stage_figures.register()               # prometheus_client's registry exports them now

    def write(rows, batch):
        found = once.of(batch, rows)
        ...
        figures.count("unique", batch, found.counts)

Imports neither Spark nor a Kafka client. ``computation`` is the stage's name in the pipeline graph.
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
"""For each figure, functions that read its value, by its labels after ``computation``."""

FIGURES: Final[tuple[Figure, ...]] = tuple(_READ)
"""All figures that a stage exports."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """The counts of a stage in this process."""

    batch: tuple[int, str]
    """Number and digest of the last batch."""
    total: Counts
    """Sums over all batches; remembered ids and their bytes are those of the last batch."""

    def and_then(self, batch: tuple[int, str], counts: Counts) -> _Counted:
        """Return the counts with one more batch; unchanged if the last batch has run again."""
        if batch == self.batch:
            return self
        sums = Counts(*map(sum, zip(self.total, counts, strict=True)))
        return _Counted(batch, sums._replace(remembered=counts.remembered, state_bytes=counts.state_bytes))


class StageCollector(BaseCollector):
    """Adds up the counts of a process's stages. A scrape only reads the sums.

    A batch that runs again in this process is counted once; only a stage's last batch can. A
    computation's name stands for one stage. A new process counts from 0, beginning with the batch
    that it runs again, so two processes may both count a batch during which a driver died.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[str, _Counted] = {}

    def count(self, computation: str, batch: Batch, counts: Counts) -> None:
        """Count a batch of a stage, given ``Deduplicated.counts``.

        Call it in every batch; a second call for a batch changes nothing.
        """
        number = batch.id, batch.digest
        with self._lock:
            before = self._stages.get(computation)
            now = _Counted(number, counts) if before is None else before.and_then(number, counts)
            self._stages = {**self._stages, computation: now}

    def describe(self) -> Iterable[Metric]:
        """Return the metric families without samples."""
        return [figure.family() for figure in FIGURES]

    def collect(self) -> Iterable[Metric]:
        """Return the metric families. A stage that has ended keeps its last values."""
        stages = self._stages
        for figure, samples in _READ.items():
            family = figure.family()
            for computation, counted in stages.items():
                for labels, read in samples.items():
                    family.add_metric([computation, *labels], read(counted.total))
            yield family


def register(registry: CollectorRegistry = REGISTRY) -> StageCollector:
    """Export the figures of stages, and return the collector that every batch must be given to.

    ``registry.unregister`` ends it. Raises ValueError when the registry exports them already.
    """
    collector = StageCollector()
    registry.register(collector)
    return collector
