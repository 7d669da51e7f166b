"""Metrics for Prometheus.

Timestamps are exported, not ages. Only the holder is labelled with its key range.

:class:`Metrics`, the observer, counts events where they happen. ops/shard_figures.py reads the
other figures at a scrape, on any thread. A task counts ranges now and then, because no scrape may
do that; see ops/range_survey.py.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from lowwater.prometheus import Figure, counter
from lowwater_authority.engine.observer import Observer
from lowwater_authority.ops import shard_figures
from lowwater_authority.ops.log_events import LogCounter
from lowwater_authority.ops.range_survey import RangeSurvey
from lowwater_authority.ops.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lowwater_authority.access.file import AccessFile
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.promises import PromiseFile
    from lowwater_authority.rpc.streams import Streams
    from lowwater_server.tls import Certificates


SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Buckets of all latencies."""

LONG_SECONDS: Final = (0.001, 0.01, 0.1, 1, 10, 100)
"""Buckets of the replay."""

REQUESTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20_000)
"""Buckets of the requests in a round."""


def _histogram(name: str, says: str, *labels: str) -> Figure:
    return Figure("histogram", f"lowwater_{name}", says, labels)


BUILD: Final = Figure("info", "lowwater_build_info", "Version that runs.", ("version",))
REPORTS: Final = counter("reports", "Report messages answered.")
REPORTED_RANGES: Final = counter("reported_ranges", "Range states in report messages, refused ones included.")
REFUSED_REPORTS: Final = counter("refused_reports", "Refusals within reports: one for each claim and reason.", "reason")
REFUSED_CALLS: Final = counter(
    "refused_calls", "Calls and streams refused, by the name of the error.", "method", "reason"
)
CALLS: Final = counter("calls", "Unary calls, by how they ended.", "method", "code")
CALL_SECONDS: Final = _histogram("call_seconds", "Time of a unary call, from its arrival to its answer.", "method")
CLAIMS: Final = counter(
    "claims", "Claims, granted or refused; a claim that is sent on to another shard counts as refused.", "outcome"
)
PUSHED: Final = counter("pushed_watermarks", "Watermarks given to subscribers.")
PUSH_SECONDS: Final = _histogram(
    "push_seconds",
    "Time from a publish until a subscriber's stream has its watermark; of several, the oldest.",
)
ROUNDS: Final = counter("rounds", "Commit rounds published.")
ROUND_REQUESTS: Final = _histogram("round_requests", "Requests in a round.")
APPEND_SECONDS: Final = _histogram(
    "journal_append_seconds", "Time of one append, until it is durable or refused; its repeats included."
)
APPENDED_BYTES: Final = counter("journal_appended_bytes", "Bytes appended to the journal.")
REPLAY_SECONDS: Final = _histogram(
    "journal_replay_seconds", "Time to rebuild one computation from its log, once that is read."
)
LOOP_LAG: Final = _histogram(
    "event_loop_lag_seconds", "Lateness of the event loop for a task that is due every 100 ms."
)
LOG_EVENTS: Final = counter(
    "log_events", "Warnings and errors in the log, by their event in docs/reference/logs.md.", "event", "level"
)
NOT_HTTP: Final = counter("page_not_http", "Messages to the port of /metrics that were not HTTP.")

EVENTS: Final = (
    BUILD,
    REPORTS,
    REPORTED_RANGES,
    REFUSED_REPORTS,
    REFUSED_CALLS,
    CALLS,
    CALL_SECONDS,
    CLAIMS,
    PUSHED,
    PUSH_SECONDS,
    ROUNDS,
    ROUND_REQUESTS,
    APPEND_SECONDS,
    APPENDED_BYTES,
    REPLAY_SECONDS,
    LOOP_LAG,
    LOG_EVENTS,
    NOT_HTTP,
)
"""Figures that are counted where they happen."""

FIGURES: Final = (*shard_figures.FIGURES, *EVENTS)
"""All figures of an authority, but for the ``process_*`` of prometheus_client."""


class Metrics(Observer):
    """Counts events, and owns the registry with all figures of this process."""

    def __init__(self, version: str, build: Figure = BUILD) -> None:
        """``build``: figure with the version, by whose name rules know the kind of process."""
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self.survey: RangeSurvey | None = None
        """Survey of the watched shard's ranges; None before :meth:`watch`."""
        Info(build.name.removesuffix("_info"), build.says, registry=self.registry).info({"version": version})
        ProcessCollector(registry=self.registry)
        self._reports = self._count(REPORTS)
        self._ranges = self._count(REPORTED_RANGES)
        self._refused_reports = self._count(REFUSED_REPORTS)
        self._refused = self._count(REFUSED_CALLS)
        self._calls = self._count(CALLS)
        self._call_seconds = self._measure(CALL_SECONDS)
        claims = self._count(CLAIMS)
        self._granted, self._claims_refused = claims.labels("granted"), claims.labels("refused")
        self._pushed = self._count(PUSHED)
        self._push_seconds = self._measure(PUSH_SECONDS)
        self._rounds = self._count(ROUNDS)
        self._requests = self._measure(ROUND_REQUESTS, REQUESTS)
        self._appends = self._measure(APPEND_SECONDS)
        self._bytes = self._count(APPENDED_BYTES)
        self._replays = self._measure(REPLAY_SECONDS, LONG_SECONDS)
        self._lag = self._measure(LOOP_LAG)
        self._log_events = LogCounter(self._count(LOG_EVENTS))
        self._not_http = self._count(NOT_HTTP)
        self._beside: tuple[asyncio.Task[None], ...] = ()
        """Tasks that run between scrapes."""

    def _count(self, figure: Figure) -> Counter:
        return Counter(figure.name, figure.says, figure.labels, registry=self.registry)

    def _measure(self, figure: Figure, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        return Histogram(figure.name, figure.says, figure.labels, registry=self.registry, buckets=buckets)

    # -- what happens ------------------------------------------------------------------------------

    def round(self, requests: int) -> None:
        """See Observer. A round without a change has committed nothing, and is not counted."""
        if requests:
            self._rounds.inc()
            self._requests.observe(requests)

    @contextmanager
    def append(self, size: int) -> Iterator[None]:
        """See Observer. Bytes count when they are durable."""
        with self._appends.time():
            yield
        self._bytes.inc(size)

    def replayed(self, seconds: float) -> None:
        """See Observer."""
        self._replays.observe(seconds)

    def claimed(self) -> None:
        """See Observer."""
        self._granted.inc()

    def reported(self, ranges: int, refused: dict[str, int]) -> None:
        """See Observer."""
        self._reports.inc()
        self._ranges.inc(ranges)
        for reason, count in refused.items():
            self._refused_reports.labels(reason).inc(count)

    def refused(self, method: str, reason: str) -> None:
        """See Observer."""
        self._refused.labels(method, reason).inc()
        if method == "Claim":
            self._claims_refused.inc()

    def called(self, method: str, code: str, seconds: float) -> None:
        """See Observer."""
        self._calls.labels(method, code).inc()
        self._call_seconds.labels(method).observe(seconds)

    def pushed(self, computations: int, waited: float | None = None) -> None:
        """See Observer."""
        self._pushed.inc(computations)
        if waited is not None:
            self._push_seconds.observe(waited)

    def not_http(self) -> None:
        """Count a message to the page that is no HTTP. From any thread."""
        self._not_http.inc()

    @contextmanager
    def counting_log(self) -> Iterator[None]:
        """Count the log lines of this process in the body, of all loggers."""
        root = logging.getLogger()
        root.addHandler(self._log_events)
        try:
            yield
        finally:
            root.removeHandler(self._log_events)

    # -- who looks ---------------------------------------------------------------------------------

    def watch(
        self,
        shard: Shard,
        streams: Streams,
        upstream: Upstream | None = None,
        certificates: Certificates | None = None,
        promises: PromiseFile | None = None,
        access: AccessFile | None = None,
    ) -> None:
        """Export the figures of a shard, and measure its event loop, on which this is called.

        ``upstream`` asks other shards for low watermarks from now on; None: a new one does.
        """
        self.survey = RangeSurvey(shard)
        upstream = Upstream(shard) if upstream is None else upstream
        collector = shard_figures.ShardCollector(shard, streams, self.survey, upstream, certificates, promises, access)
        self.registry.register(collector)
        loop = asyncio.get_running_loop()
        self._beside = (loop.create_task(self.survey.run()), loop.create_task(upstream.run()))
        LoopLag(self._lag.observe)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all figures and their content type, for an Accept header. From any thread."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


TICK: Final = 0.1
"""Seconds between two ticks."""

MOST_MISSED: Final = 100
"""Most ticks that one stall counts for. A process that was stopped for an hour was not late 36,000
times."""


class LoopLag:
    """Observes every ``TICK`` by how many seconds the event loop was late. Made on the event loop.

    Ticks that were due during a stall count too, each with its own lateness. Otherwise a stall of
    two seconds would be one observation among six hundred a minute, although many callers waited
    in it (Tene 2013, "coordinated omission").
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + TICK
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        for _ in range(MOST_MISSED):
            self._observe(max(0.0, now - self._due))
            self._due += TICK
            if self._due > now:
                break
        else:
            self._due = now + TICK
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """End the ticks."""
        self._timer.cancel()
