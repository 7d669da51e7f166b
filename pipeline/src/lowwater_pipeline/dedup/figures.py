"""Figures of a deduplicator for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.registry import Collector as BaseCollector

from lowwater.prometheus import Figure
from lowwater_pipeline.dedup.job import Job
from lowwater_pipeline.dedup.lane import Counts
from lowwater_pipeline.dedup.window import WindowKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["FIGURES", "Collector"]

_LABELS: Final = ("topic", "partition")


def _gauge(name: str, says: str) -> Figure:
    return Figure("gauge", f"lowwater_dedup_{name}", says, _LABELS)


def _counter(name: str, says: str) -> Figure:
    return Figure("counter", f"lowwater_dedup_{name}_total", says, _LABELS)


_FLOOR: Final = _gauge(
    "watermark_timestamp_seconds",
    "The low watermark that counts in the partition: what is older is undecidable, and forgotten. Of windows by a watermark, once it is a time.",
)

_READ: Final[dict[Figure, Callable[[Counts], float | None]]] = {
    _counter("admitted_messages", "Messages that were passed on."): lambda c: c.admitted,
    _counter(
        "duplicate_messages",
        "Messages that were dropped: their id is remembered. Of those admitted and these, the rate.",
    ): lambda c: c.duplicates,
    _counter("undecidable_messages", "Messages older than the watermark, which went to their own topic."): (
        lambda c: c.undecidable
    ),
    _counter("unreadable_messages", "Messages without an id or an event time, which went to their own topic."): (
        lambda c: c.unreadable
    ),
    _counter("commits", "Transactions committed."): lambda c: c.commits,
    _counter(
        "opened_lanes", "How often the partition was taken: at a start, from another process, or after a fault."
    ): (lambda c: c.opened),
    _counter("filtered_lookups", "Looks into a file of the memory that its Bloom filter has spared."): (
        lambda c: c.filtered
    ),
    _counter(
        "found_lookups", "Looks into a file of the memory that its Bloom filter has let pass, and that found the id."
    ): (lambda c: c.found),
    _counter("mended_rows", "Rows of the output that were read again to make a memory whole."): lambda c: c.mended,
    _counter("rebuilt_memories", "Memories that were made anew from the output: damaged, or of another output."): (
        lambda c: c.rebuilt
    ),
    _gauge("remembered_ids", "Ids in the memory, those included that are forgotten and not yet removed."): lambda c: (
        c.ids
    ),
    _gauge("state_bytes", "Bytes of the memory, about."): lambda c: c.bytes,
    _gauge("lag_messages", "Messages of the input behind the last commit."): lambda c: c.lag,
    _gauge(
        "window_since_timestamp_seconds",
        "While the window is shorter than it should be (--accept-shorter-window): timestamp of the first row that it has. Else absent.",
    ): lambda c: None if c.short_since is None else c.short_since / 1000,
}

_RUNNING: Final = _gauge("running", "1 while the partition is worked on; 0 while it is held, or refused.")
_REFUSED: Final = _gauge(
    "refused", "1 when the partition has stopped, for a reason that the log has. It needs somebody."
)

FIGURES: Final[tuple[Figure, ...]] = (*_READ, _FLOOR, _RUNNING, _REFUSED)
"""All figures that a deduplicator exports."""


class Collector(BaseCollector):
    """Reads a job's figures at each scrape.

    Counters include partitions that the process owned earlier; gauges only those that it owns.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def describe(self) -> Iterable[Metric]:
        """Return the metric families without samples."""
        return [figure.family() for figure in FIGURES]

    def collect(self) -> Iterable[Metric]:
        """Return the metric families with their present values."""
        settings = self._job.settings
        workers = {worker.partition: worker for worker in self._job.workers()}
        counted = self._job.counts()
        values: dict[Figure, dict[int, float | None]] = {
            figure: {at: read(counts) for at, counts in counted.items() if figure.kind == "counter" or at in workers}
            for figure, read in _READ.items()
        }
        by_watermark = settings.window.kind is WindowKind.WATERMARK
        values[_FLOOR] = {at: _moment(worker.counts.floor) for at, worker in workers.items() if by_watermark}
        values[_RUNNING] = {at: worker.running for at, worker in workers.items()}
        values[_REFUSED] = {at: worker.refused is not None for at, worker in workers.items()}
        for figure, samples in values.items():
            family = figure.family()
            for partition, value in samples.items():
                if value is not None:
                    family.add_metric([settings.input, str(partition)], value)
            yield family


def _moment(micros: int) -> float | None:
    """Return an event time in seconds; None for the values that mean unknown and finished."""
    return micros / 1e6 if -(2**63) < micros < 2**63 - 1 else None
