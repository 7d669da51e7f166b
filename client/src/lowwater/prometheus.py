"""Metrics of the client for Prometheus, for a process that is scraped anyway.

Needs the package prometheus-client. The registry of prometheus_client exports them from then on::

    import lowwater, lowwater.prometheus

    lw = lowwater.connect("localhost:7420")
    lowwater.prometheus.register(lw)

No other module of the client imports this one, nor prometheus_client.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as BaseCollector

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.core.statistics import ClientStatistics

__all__ = ["FIGURES", "Collector", "Figure", "counter", "gauge", "register"]

Family = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class Figure:
    """One exported metric."""

    kind: Literal["counter", "gauge", "histogram", "info"]
    name: str
    """Name in queries: that of a counter ends in ``_total``, that of an info in ``_info``."""
    says: str
    labels: tuple[str, ...] = ()

    def family(self, samples: Iterable[tuple[Sequence[str], float]] = ()) -> Family:
        """Return a family with samples, each its label values and its value.

        Only for counters and gauges.
        """
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.says, labels=self.labels)
        for labels, value in samples:
            family.add_metric(labels, value)
        return family

    def value(self, value: float | None) -> Family:
        """Return a family with one sample without labels; None: without any sample."""
        return self.family([] if value is None else [((), value)])


def counter(name: str, says: str, *labels: str) -> Figure:
    """Return a counter of this project; ``name`` is without its prefix and ``_total``."""
    return Figure("counter", f"lowwater_{name}_total", says, labels)


def gauge(name: str, says: str, *labels: str) -> Figure:
    """Return a gauge of this project; ``name`` is without its prefix."""
    return Figure("gauge", f"lowwater_{name}", says, labels)


def _counter(name: str, says: str) -> Figure:
    return counter(f"client_{name}", says)


def _gauge(name: str, says: str) -> Figure:
    return gauge(f"client_{name}", says)


_READ: Final[dict[Figure, Callable[[ClientStatistics], int]]] = {
    _gauge("claims", "Claims that are reported."): lambda s: s.reporter.leases,
    _gauge("waiting_claims", "Claims with a state that was not sent yet; each has room for one, the newest."): (
        lambda s: s.reporter.waiting
    ),
    _gauge("reports_in_flight", "Streams with a report that is not acknowledged."): lambda s: s.reporter.in_flight,
    _counter("report_streams", "Report streams opened."): lambda s: s.reporter.streams,
    _counter("reports", "Report messages sent."): lambda s: s.reporter.reports,
    _counter("acknowledged_reports", "Report messages acknowledged as durable."): lambda s: s.reporter.acknowledged,
    _counter("refused_reports", "Answers that named refused ranges."): lambda s: s.reporter.refused,
    _counter("watch_streams", "Watch streams opened."): lambda s: s.watcher.streams,
    _counter("watch_messages", "Messages received on watch streams, beats included."): lambda s: s.watcher.messages,
    _counter("held_back_watermarks", "Values that came lower than seen before, and were not shown."): (
        lambda s: s.watcher.held_back
    ),
    _gauge("unserved_computations", "Followed computations that no shard serves now."): (
        lambda s: len(s.watcher.unserved)
    ),
    _counter("refused_redirects", "Redirects to shards that had been replaced, which were not followed."): (
        lambda s: s.refused_redirects
    ),
}

FIGURES: Final[tuple[Figure, ...]] = tuple(_READ)
"""All metrics that a client exports."""


class Collector(BaseCollector):
    """Reads the statistics of clients at each scrape, and exports their sums.

    A scrape may run in any thread. Counters of a closed client stay at the last scrape, because a
    total must not fall; its gauges are left out. A scrape costs a few dozen microseconds per
    client, and no network. Clients of :mod:`lowwater.aio` cannot be exported, because their state
    belongs to their event loop.
    """

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self._last_read: dict[int, tuple[threading.Lock, dict[int, ClientStatistics]]] = {}
        """Last statistics by process, since a forked child counts from 0, and by position of the
        client."""

    def describe(self) -> Iterable[Family]:
        """Return the families without samples."""
        return [figure.family() for figure in FIGURES]

    def collect(self) -> Iterable[Family]:
        """Return the current values; without samples when all the clients are closed."""
        open_clients: dict[int, ClientStatistics] = {}
        lock, last = self._last_read.setdefault(os.getpid(), (threading.Lock(), {}))
        with lock:
            for place, client in enumerate(self._clients):
                with suppress(errors.Closed):
                    open_clients[place] = client.statistics()
            last |= open_clients
            all_clients = list(last.values())
        if not open_clients:
            return self.describe()
        counted = {"counter": all_clients, "gauge": list(open_clients.values())}
        return [figure.value(sum(map(read, counted[figure.kind]))) for figure, read in _READ.items()]


def register(*clients: Client, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Export the sums over clients, until ``registry.unregister`` of the result.

    Raises ValueError when the registry has them already.
    """
    collector = Collector(*clients)
    registry.register(collector)
    return collector
