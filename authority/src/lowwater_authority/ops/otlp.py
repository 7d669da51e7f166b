"""Figures of /metrics, pushed by OpenTelemetry: the extra ``lowwater-authority[otel]``.

OpenTelemetry is imported only when the environment asks for it. The figures are read from the
registry of prometheus_client, as at a scrape, and handed to the SDK's exporter. Endpoint, headers,
certificates and the interval are the SDK's own variables.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.events import event
from lowwater_authority.ops.otel import check_grpc, named_exporter, reason_of, resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Pushed", "begin", "interval", "enabled"]

_PACKAGES: Final = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc"

_SECONDS: Final = 60.0
"""Default of OTEL_METRIC_EXPORT_INTERVAL, the seconds between two pushes."""

CLOSE_SECONDS: Final = 3.0
"""Longest wait of a stop for the last push, in seconds."""

log = logging.getLogger(__name__)


def enabled(environment: Mapping[str, str]) -> bool:
    """Return whether an environment asks for figures by OTLP.

    An endpoint for all signals does not count, because it was for traces alone before.

    >>> enabled({"OTEL_METRICS_EXPORTER": "otlp"}), enabled({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"})
    (True, False)
    """
    named = named_exporter("METRICS", environment)
    return named != "none" if named else bool(environment.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"))


def interval(environment: Mapping[str, str]) -> float:
    """Return the seconds between two pushes. Raises ValueError."""
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not text:
        return _SECONDS
    if not text.isdecimal() or not int(text):
        raise ValueError(f"OTEL_METRIC_EXPORT_INTERVAL={text} is no number of milliseconds; set 1 or more")
    return int(text) / 1000


class Pushed:
    """Pushes the figures of a registry, on a thread of its own; without an exporter, none."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        exporter: Any = None,
        resource: Any = None,
        every: float = _SECONDS,
    ) -> None:
        self._registry = registry
        self._exporter = exporter
        self._resource = resource
        self._every = every
        self._started = time.time_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowwater-otlp", daemon=True)
        if exporter is not None:
            self._thread.start()

    @property
    def on(self) -> bool:
        """True if figures are pushed."""
        return self._exporter is not None

    def close(self) -> None:
        """Push once more, ``CLOSE_SECONDS`` at most: a collector may be away."""
        if self.on:
            self._stop.set()
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._stop.wait(self._every)
            try:
                # The SDK itself logs that a collector is away.
                self._exporter.export(self._data(), timeout_millis=1000 * (CLOSE_SECONDS if over else self._every))
            except Exception as error:  # noqa: BLE001 - the next push may succeed
                log.warning("figures were not pushed: %s", error, extra=event("figures_not_pushed", error=repr(error)))
        self._exporter.shutdown()

    def _data(self) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        assert self._registry is not None
        metrics = list(metrics_of(self._registry.collect(), self._started, time.time_ns()))
        scope = ScopeMetrics(InstrumentationScope("lowwater-authority"), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def metrics_of(families: Iterable[Metric], started: int, now: int) -> Iterable[Any]:
    """Yield figures as the SDK has them, under the names that they have in /metrics.

    Times are nanoseconds since 1970.
    """
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as SdkMetric

    cumulative = AggregationTemporality.CUMULATIVE
    for family in families:
        if family.type == "histogram":
            points = [
                HistogramDataPoint(labels, started, now, sum(counts), total, counts, bounds, None, None)  # type: ignore[arg-type]  # least and most are unknown
                for labels, counts, total, bounds in _buckets(family)
            ]
            if points:
                yield SdkMetric(family.name, family.documentation, family.unit, Histogram(points, cumulative))
            continue
        by_name: dict[str, list[NumberDataPoint]] = {}
        for sample in family.samples:
            begun = started if family.type == "counter" else None
            point = NumberDataPoint(sample.labels, begun, now, sample.value)  # type: ignore[arg-type]  # a gauge has no start
            by_name.setdefault(sample.name, []).append(point)
        for name, numbers in by_name.items():
            data = Sum(numbers, cumulative, is_monotonic=True) if family.type == "counter" else Gauge(numbers)
            yield SdkMetric(name, family.documentation, family.unit, data)


def _buckets(family: Metric) -> Iterable[tuple[dict[str, str], list[int], float, list[float]]]:
    """Yield the labels, counts by bucket, sum, and inner bounds of each histogram of a family."""
    cumulated: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            cumulated.setdefault(key, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, until in cumulated.items():
        bounds = sorted(until)
        below = [0.0, *(until[bound] for bound in bounds)]
        counts = [int(more - less) for less, more in pairwise(below)]
        yield dict(key), counts, sums.get(key, 0.0), bounds[:-1]


def begin(registry: CollectorRegistry, version: str) -> Pushed:
    """Begin to push figures, if the environment asks for it.

    A missing extra or a bad variable is only logged: a watermark is worth more than its figures.
    """
    if not enabled(os.environ):
        return Pushed()
    try:
        return _pushed(registry, version)
    except Exception as error:  # noqa: BLE001 - see reason_of
        reason = reason_of(error, _PACKAGES)
        log.warning("no figures are pushed: %s", reason, extra=event("figures_off", reason=reason))
        return Pushed()


def _pushed(registry: CollectorRegistry, version: str) -> Pushed:
    check_grpc("METRICS", named_exporter("METRICS", os.environ) or "otlp", "otlp")
    every = interval(os.environ)
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    pushed = Pushed(registry, OTLPMetricExporter(), resource(version), every)
    log.info("figures are pushed every %g s", every, extra=event("figures_on", seconds=every))
    return pushed
