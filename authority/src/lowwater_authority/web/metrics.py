"""Metrics for Prometheus, on their own thread. Timestamps are exported, not ages; nothing is labelled by key range."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from prometheus_client.metrics_core import Metric

    from lowwater_authority.service.streams import Streams
    from lowwater_authority.shard import Shard

SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Buckets of the append latency."""


class Metrics(Observer):
    """Counts what happens, and reads the shard's state at each scrape."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        kwargs: dict[str, Any] = {"registry": self.registry}
        Info("lowwater_build", "What is running.", **kwargs).info({"version": version})
        self._computations = Gauge("lowwater_computations", "Registered computations.", **kwargs)
        self._rounds = Counter("lowwater_rounds_total", "Commit rounds published.", **kwargs)
        self._requests = Counter("lowwater_round_requests_total", "Requests that those rounds held.", **kwargs)
        self._appends = Histogram(
            "lowwater_journal_append_seconds", "Time of one append, until it is durable.", buckets=SECONDS, **kwargs
        )
        self._bytes = Counter("lowwater_journal_appended_bytes_total", "Bytes appended to the journal.", **kwargs)
        self._reports = Counter("lowwater_reports_total", "Report messages acknowledged.", **kwargs)
        self._ranges = Counter("lowwater_reported_ranges_total", "Range states in them.", **kwargs)
        self._refused_reports = Counter(
            "lowwater_refused_reports_total", "Refusals within reports, by reason.", ["reason"], **kwargs
        )
        self._refused = Counter(
            "lowwater_refused_calls_total", "Refused calls, by reason.", ["method", "reason"], **kwargs
        )
        self._pushed = Counter("lowwater_pushed_watermarks_total", "Watermarks given to subscribers.", **kwargs)

    def computations(self, count: int) -> None:
        """There are now so many computations."""
        self._computations.set(count)

    def round(self, requests: int) -> None:
        """A round of so many requests was published."""
        self._rounds.inc()
        self._requests.inc(requests)

    def append(self, size: int) -> AbstractContextManager[object]:
        """Surround an append of so many bytes."""
        self._bytes.inc(size)
        return self._appends.time()

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        """A report message was answered."""
        self._reports.inc()
        self._ranges.inc(ranges)
        for reason, count in refused.items():
            self._refused_reports.labels(reason).inc(count)

    def refused(self, method: str, reason: str) -> None:
        """A call was refused."""
        self._refused.labels(method, reason).inc()

    def pushed(self, computations: int) -> None:
        """A message was given to a subscriber."""
        self._pushed.inc(computations)

    def watch(self, shard: Shard, streams: Streams) -> None:
        """Read a shard's state at each scrape."""
        self.registry.register(_ShardCollector(shard, streams))

    def serve(self, host: str, port: int) -> int:
        """Serve /metrics on a thread of its own; returns the port."""
        server, _ = start_http_server(port, host, self.registry)
        return int(server.server_port)


class _ShardCollector(Collector):
    """Reads immutable views, so that a scrape needs no lock."""

    def __init__(self, shard: Shard, streams: Streams) -> None:
        self._shard = shard
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """Yield what the shard stands at."""
        shard = self._shard
        low = GaugeMetricFamily(
            "lowwater_low_watermark_timestamp_seconds",
            "Published low watermark, while it is a time.",
            labels=["computation"],
        )
        share = GaugeMetricFamily(
            "lowwater_heuristic_watermark_timestamp_seconds",
            "Published heuristic watermark, while it is a time.",
            labels=["computation", "share"],
        )
        finished = GaugeMetricFamily(
            "lowwater_finished", "1 once the low watermark is finished.", labels=["computation"]
        )
        ranges = GaugeMetricFamily("lowwater_ranges", "Ranges of the interval map.", labels=["computation"])
        operation = GaugeMetricFamily(
            "lowwater_oldest_operation_timestamp_seconds",
            "Processing time of the oldest operation.",
            labels=["computation"],
        )
        epoch = GaugeMetricFamily(
            "lowwater_epoch", "Ownership number of the computation among the shards.", labels=["computation"]
        )
        for view in filter(None, map(shard.view, shard.names())):
            epoch.add_metric([view.name], shard.epoch(view.name))
            finished.add_metric([view.name], float(view.low == MAX))
            ranges.add_metric([view.name], view.ranges)
            if MIN < view.low < MAX:
                low.add_metric([view.name], view.low / 1e6)
            for ppm, micros in view.heuristics:
                if MIN < micros < MAX:
                    share.add_metric([view.name, f"{ppm / 1e6:g}"], micros / 1e6)
            if view.oldest_operation:
                operation.add_metric([view.name], view.oldest_operation / 1e6)
        yield from (low, share, finished, ranges, operation, epoch)
        yield from self._admission()
        yield from self._process()

    def _admission(self) -> Iterable[Metric]:
        gates = self._streams.admission.gates
        for kind, name, text, figure in (
            (GaugeMetricFamily, "bound", "The most that may be inside at once.", attrgetter("bound")),
            (GaugeMetricFamily, "line", "The most that may wait.", attrgetter("line")),
            (GaugeMetricFamily, "inside", "How many are inside.", attrgetter("inside")),
            (GaugeMetricFamily, "peak", "The most that ever were.", attrgetter("peak")),
            (GaugeMetricFamily, "waiting", "How many wait.", lambda gate: len(gate.waiting)),
            (GaugeMetricFamily, "longest", "The most that ever waited.", attrgetter("longest")),
            (CounterMetricFamily, "admitted", "How many were let in.", attrgetter("admitted")),
            (CounterMetricFamily, "refused", "How many were told to come again.", attrgetter("refused")),
        ):
            family = kind(f"lowwater_admission_{name}", text, labels=["gate"])
            for gate in gates:
                family.add_metric([gate.name], figure(gate))
            yield family

    def _process(self) -> Iterable[Metric]:
        shard = self._shard
        for name, text, value in (
            ("lowwater_subscribers", "Subscriptions.", len(shard.hub)),
            ("lowwater_report_streams", "Open report streams.", len(self._streams)),
            ("lowwater_queued_requests", "Requests waiting for a round.", shard.queued),
            (
                "lowwater_conflated_watermarks",
                "Values replaced before living subscribers took them.",
                shard.hub.conflated,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
