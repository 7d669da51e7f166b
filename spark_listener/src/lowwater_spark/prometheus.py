"""Figures of tracked queries and of attachments for Prometheus, for a driver that is scraped.

    import lowwater_spark as lws
    import lowwater_spark.prometheus

    figures = lowwater_spark.prometheus.register(lws.attach(spark))
    figures.add(stage.start(...))            # prometheus_client's registry exports them now

Needs the package prometheus-client; no other module of this package imports it. ``query`` is the
query's name in Spark, else its id; ``computation`` is the name in the pipeline graph.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector as BaseCollector

from lowwater import Watermark
from lowwater.prometheus import Figure
from lowwater_spark.attach.attachment import Attachment, AttachStatus, QueryStatus
from lowwater_spark.track.query import TrackedQuery
from lowwater_spark.track.run.status import Status

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["FIGURES", "Collector", "register"]

logger = logging.getLogger("lowwater.spark")

P = ParamSpec("P")
T = TypeVar("T")

QUERY: Final = ("query", "computation")


def _gauge(name: str, says: str, labels: tuple[str, ...] = QUERY) -> Figure:
    return Figure("gauge", f"lowwater_spark_{name}", says, labels)


def _counter(name: str, says: str, labels: tuple[str, ...] = QUERY) -> Figure:
    return Figure("counter", f"lowwater_spark_{name}_total", says, labels)


def _moment(watermark: Watermark) -> float | None:
    """Return a watermark in seconds; None while it is unknown or finished."""
    return None if watermark.unknown or watermark.finished else watermark.micros / 1e6


_TRACKED: Final[dict[Figure, Callable[[Status], float | None]]] = {
    _gauge("committed_batch", "The last committed batch; absent before the first."): lambda s: s.batch,
    _gauge(
        "low_watermark_timestamp_seconds",
        "Input low watermark, of an injector the frontier, that the committed batches have reached, while it is a time.",
    ): lambda s: _moment(s.low),
    _gauge(
        "reported_watermark_timestamp_seconds", "Least watermark that the key ranges report, while it is a time."
    ): lambda s: _moment(s.reported),
    _gauge("holding", "1 while the stage reports nothing new; `holding` of its status is the reason."): (
        lambda s: bool(s.holding)
    ),
    _counter(
        "late_rows",
        "Rows below what the inputs had promised before: broken promises. For a query with a sink of Spark's own it is the number of batches that had any.",
    ): lambda s: s.late_rows,
    _counter("untimed_rows", "Rows without an event time: they hold no watermark, and are in no window."): lambda s: (
        s.untimed_rows
    ),
    _gauge(
        "unsent_rows",
        "Rows of weak productions that no broker has acknowledged yet: they are in the state, are sent again, and the low watermark does not pass them.",
    ): lambda s: s.unsent_rows,
    _gauge(
        "unsent_since_timestamp_seconds",
        "When the first unsent row was produced, by the clock of its batch; absent without any.",
    ): lambda s: s.unsent_since,
}

_FIRST: Final = " Of a query of several stages it has the name of the first."

_WHOLE: Final[dict[Figure, Callable[[Status], float]]] = {
    _counter(
        "dropped_rows",
        "Rows that Spark's own operators have dropped, for being below Spark's watermark, as Spark counts them."
        + _FIRST,
    ): lambda s: s.dropped_rows,
    _counter(
        "ticks",
        "Empty batches that were asked for, so that the stages follow their inputs." + _FIRST,
    ): lambda s: s.ticks,
    _gauge(
        "remembered_files",
        "Files that were read and whose names are kept in the driver's memory." + _FIRST,
    ): lambda s: s.remembered_files,
    _counter(
        "removed_batches",
        "Handed-over batches whose files were removed (`keep=`)." + _FIRST,
    ): lambda s: s.removed_batches,
    _counter("removed_bytes", "Bytes of the files of removed batches (`keep=`)." + _FIRST): lambda s: s.removed_bytes,
    _gauge(
        "removal_held_back_seconds",
        "How long the oldest handed-over batch has been kept beyond `keep=` because a reader has not read it; 0 when there was none at the last write."
        + _FIRST,
    ): lambda s: s.removal_held_back,
}
"""Figures of a query as a whole, so that sums over stages count it once."""

_ATTACHED: Final[dict[Figure, Callable[[QueryStatus], float | None]]] = {
    _counter("attached_batches", "Batches that Spark reported."): lambda q: q.batches,
    _counter("attached_rows", "Rows that were read."): lambda q: q.rows,
    _counter("attached_dropped_rows", "Rows that Spark dropped as late, as Spark counts them."): (
        lambda q: q.late_rows
    ),
    _gauge("attached_state_rows", "Rows in the query's state after the last batch."): lambda q: q.state_rows,
    _gauge("attached_batch_seconds", "How long the last batch took."): lambda q: q.batch_seconds,
    _gauge(
        "attached_watermark_timestamp_seconds", "Spark's watermark that the last batch ran with, while it is a time."
    ): lambda q: _moment(q.watermark),
    _gauge(
        "attached_reported_timestamp_seconds",
        "Watermark of the query that the authority has acknowledged, durably, while it is a time.",
    ): lambda q: _moment(q.reported),
    _gauge("attached_running", "1 while the query runs, idle or not."): lambda q: q.state != "ended",
}

_ATTACHMENT: Final[dict[Figure, Callable[[AttachStatus], float]]] = {
    _counter("attach_delivered", "Values that the authority has answered.", ()): lambda s: s.delivered,
    _counter("attach_failures", "Attempts to report a value without an answer; they are repeated.", ()): lambda s: (
        s.failures
    ),
    _counter("attach_conflated", "Values that a newer one of the same query replaced before they were sent.", ()): (
        lambda s: s.conflated
    ),
    _counter("attach_dropped_events", "Events of queries beyond the thousand that are remembered.", ()): (
        lambda s: s.dropped
    ),
    _counter("attach_swallowed_errors", "Errors that were kept from Spark; they are bugs.", ()): lambda s: s.swallowed,
}

_BREAKER: Final = _gauge(
    "attach_authority",
    "1 for how the authority is seen: it answers, is away (tried again at the next value), or is left alone for a while.",
    ("state",),
)
_STATES: Final = ("answers", "away", "left alone")

FIGURES: Final[tuple[Figure, ...]] = (*_TRACKED, *_WHOLE, *_ATTACHED, *_ATTACHMENT, _BREAKER)
"""All figures that a driver exports."""


class Collector(BaseCollector):
    """Reads the status of queries and attachments at each scrape, on the scrape's thread.

    A scrape calls neither the JVM nor the network. But the status of a query waits while the query
    reports a batch or claims. While the authority is away, these calls take some seconds to time
    out, so a scrape may time out as well. A status that fails is logged and left out; the others
    are exported.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[TrackedQuery, str] = {}
        self._attachments: list[Attachment] = []

    def add(self, *watched: TrackedQuery | Attachment) -> None:
        """Export these queries and attachments too. Figures of all attachments are added up."""
        for item in watched:
            if isinstance(item, Attachment):
                with self._lock:
                    self._attachments = [
                        *(attachment for attachment in self._attachments if attachment is not item),
                        item,
                    ]
            else:
                name = str(item.query.name or item.query.id)
                with self._lock:
                    self._queries = {**self._queries, item: name}

    def remove(self, *watched: TrackedQuery | Attachment) -> None:
        """Stop exporting these. Until then a query that has ended keeps its last values."""
        with self._lock:
            self._queries = {query: name for query, name in self._queries.items() if query not in watched}
            self._attachments = [attachment for attachment in self._attachments if attachment not in watched]

    def describe(self) -> Iterable[Metric]:
        """Return the metric families without samples."""
        return [figure.family() for figure in FIGURES]

    def collect(self) -> Iterable[Metric]:
        """Return the metric families with their present values."""
        with self._lock:
            queries, attachments = self._queries, self._attachments
        stages: dict[tuple[str, str], Status] = {}
        whole: dict[tuple[str, str], Status] = {}
        for query, name in queries.items():
            by_stage = {stage: _status(name, query.stage_status, stage) for stage in query.stages}
            present = {(name, stage): status for stage, status in by_stage.items() if status is not None}
            stages |= present
            whole |= {labels: status for labels, status in present.items() if labels[1] == query.stages[0]}
        answers = [_status("an attachment", attachment.status) for attachment in attachments]
        statuses = [status for status in answers if status is not None]
        # Spark frees a query's name when the query ends, so two queries may have equal labels. Of
        # two samples with equal labels in one scrape Prometheus would drop one. So only the later
        # query is exported: of the attachment added last, the one that was first seen last.
        attached = {
            (query.name or query.query, query.computation): query for status in statuses for query in status.queries
        }
        yield from _families(_TRACKED, stages)
        yield from _families(_WHOLE, whole)
        yield from _families(_ATTACHED, attached)
        for figure, read in _ATTACHMENT.items():
            yield figure.value(sum(map(read, statuses)) if statuses else None)
        yield _BREAKER.family(
            ([state.replace(" ", "_")], float(any(status.authority == state for status in statuses if status.enabled)))
            for state in (_STATES if statuses else ())
        )


def _status(name: str, status: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return a status; None if it raises, which is logged."""
    try:
        return status(*args, **kwargs)
    except Exception:
        logger.exception("the figures of %s are left out of a scrape", name)
        return None


def _families(
    figures: Mapping[Figure, Callable[[Any], float | None]], read_from: Mapping[tuple[str, str], Any]
) -> Iterable[Metric]:
    for figure, read in figures.items():
        values = {labels: read(status) for labels, status in read_from.items()}
        yield figure.family((labels, value) for labels, value in values.items() if value is not None)


def register(*watched: TrackedQuery | Attachment, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Export queries and attachments, and return the collector, to which more can be added.

    ``registry.unregister`` ends it. Raises ValueError when the registry exports them already.
    """
    collector = Collector()
    collector.add(*watched)
    registry.register(collector)
    return collector
