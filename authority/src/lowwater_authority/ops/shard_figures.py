"""Figures of a shard, read at a scrape from immutable views, without waiting for the event loop."""

from __future__ import annotations

import math
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.registry import Collector

from lowwater.prometheus import Figure, counter, gauge
from lowwater_authority.ops.computation_figures import READ, Reading
from lowwater_authority.ops.resources import memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from lowwater_authority.access.file import AccessFile
    from lowwater_authority.core.computation import Computation
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.ops.range_survey import RangeSurvey
    from lowwater_authority.ops.upstream import Upstream
    from lowwater_authority.promises import PromiseFile
    from lowwater_authority.rpc.streams import Streams
    from lowwater_server.tls import Certificates


GATES: Final[dict[Figure, Callable[[Any], int]]] = {
    gauge("admission_bound", "Most callers inside a gate at once.", "gate"): attrgetter("bound"),
    gauge("admission_line", "Most callers that wait in line.", "gate"): attrgetter("line"),
    gauge("admission_inside", "Callers inside.", "gate"): attrgetter("inside"),
    gauge("admission_peak", "Greatest number of callers inside so far.", "gate"): attrgetter("peak"),
    gauge("admission_waiting", "Callers that wait in line.", "gate"): lambda gate: len(gate.waiting),
    gauge("admission_longest", "Greatest number of waiting callers so far.", "gate"): attrgetter("longest"),
    counter("admission_admitted", "Callers that were let in.", "gate"): attrgetter("admitted"),
    counter("admission_refused", "Callers that were refused, and told when to come again.", "gate"): attrgetter(
        "refused"
    ),
}

PROCESS: Final[dict[Figure, Callable[[Shard, Streams], float]]] = {
    gauge("owned_computations", "Computations that this process serves."): lambda shard, _: len(shard.served.names()),
    gauge("registered_computations", "Computations of the deployment, as far as this process has read."): (
        lambda shard, _: len(shard.topology.computations)
    ),
    gauge("unheard_slices", "Slices served here whose last report the root of their computation has not confirmed."): (
        lambda shard, _: shard.slices.unheard
    ),
    counter(
        "answers_withheld",
        "Answers of slices that were refused, because the root had not confirmed their change within a second.",
    ): (lambda shard, _: shard.slices.withheld),
    gauge("tombstone_bytes", "Bytes that are remembered of dropped computations: names, incarnations and versions."): (
        lambda shard, _: shard.topology.tombstone_bytes
    ),
    gauge("subscribers", "Open watch streams."): lambda shard, _: len(shard.hub),
    gauge("report_streams", "Open report streams."): lambda _, streams: len(streams),
    gauge(
        "reports_in_flight_bytes",
        "Bytes of the reports that wait for the journal, of all streams.",
    ): (lambda _, streams: streams.room.bytes),
    gauge("unread_refusal_bytes", "Bytes of refusals within reports that are not sent yet, of all streams."): (
        lambda _, streams: streams.unread.bytes
    ),
    gauge(
        "watched_name_bytes",
        "Bytes of the names that watch streams follow one by one, and of the watermarks that wait there.",
    ): (lambda _, streams: streams.watched.bytes),
    counter(
        "reports_slowed",
        "Reports whose streams were not read on for a while, because too many bytes wait for the journal.",
    ): (lambda _, streams: streams.slowed),
    gauge("queued_requests", "Requests that wait for a round."): lambda shard, _: len(shard.rounds),
    counter("conflated_watermarks", "Watermarks replaced by newer ones before a subscriber took them."): (
        lambda shard, _: shard.hub.conflated
    ),
    counter("journal_snapshots", "Snapshots that bound the replay, written."): (
        lambda shard, _: shard.journal.statistics().snapshots
    ),
    counter("journal_snapshot_bytes", "Bytes of those snapshots."): (
        lambda shard, _: shard.journal.statistics().snapshot_bytes
    ),
    gauge(
        "journal_confirmed_timestamp_seconds",
        "Processing time up to which the published values are confirmed as the newest; now, unless the store is slow or away.",
    ): lambda shard, _: shard.confirmation.confirmed_at(time.time_ns() // 1000) / 1e6,
}

HELD: Final = gauge(
    "held_bytes",
    "Memory of the computations served here: the columns of their ranges, parts of micro-batches that are not committed, histories.",
    "what",
)

KINDS: Final[dict[str, Callable[[Computation], int]]] = {
    "ranges": lambda computation: computation.map.columns.bytes,
    "parts": lambda computation: computation.batches.bytes,
    "histories": lambda computation: computation.history.bytes,
}
"""Parts of ``HELD``."""

ERRORS: Final = counter(
    "journal_errors", "Writes that the store refused (failed), or did not answer (unknown; tried again).", "outcome"
)

FREE: Final = gauge("journal_free_bytes", "Bytes free on the disk of --data; absent with --store.")

CONFIRMED: Final = gauge(
    "deployment_confirmed_timestamp_seconds",
    "Processing time up to which all watermarks behind its lags and holders are confirmed as the newest, those of other shards too; absent before the first answers.",
)

NOT_AFTER: Final = gauge(
    "certificate_not_after_timestamp_seconds",
    "Expiry of the certificate that new connections get; absent without TLS.",
)

REFUSED: Final = gauge(
    "promises_refused",
    "1 while the file of --promises is bad, and its last good state is in force, else 0; absent without one.",
)

ACCESS_REFUSED: Final = gauge(
    "access_refused",
    "1 while the file of --access is bad, and its last good rules are in force, else 0.",
)

TOKEN_EXPIRES: Final = gauge(
    "token_expires_timestamp_seconds",
    "Expiry of a principal's last token; absent for a principal with a token or a certificate that does not expire.",
    "principal",
)

CERTIFICATE_REFUSED: Final = gauge(
    "certificate_refused",
    "1 while the files of --tls-cert and the other TLS options are bad, and the last good ones are in force, else 0; absent without TLS.",
)

CLOCK: Final = gauge("clock_timestamp_seconds", "Clock of this process at the scrape.")

MEMORY_LIMIT: Final = gauge(
    "memory_limit_bytes",
    "Memory that the control groups of this process allow; absent without a limit, or without control groups of version 2.",
)

FIGURES: Final[tuple[Figure, ...]] = (
    *READ,
    *PROCESS,
    HELD,
    CONFIRMED,
    NOT_AFTER,
    CERTIFICATE_REFUSED,
    REFUSED,
    ACCESS_REFUSED,
    TOKEN_EXPIRES,
    CLOCK,
    MEMORY_LIMIT,
    ERRORS,
    FREE,
    *GATES,
)
"""Figures that are read at a scrape."""


def process(certificates: Certificates | None, access: AccessFile | None) -> Iterator[Metric]:
    """Yield figures of this process: clock, memory limit, certificates, access rules and tokens."""
    limit = memory_limit()
    principals = () if access is None else access.value.principals
    yield CLOCK.value(time.time())
    yield MEMORY_LIMIT.value(limit if limit < math.inf else None)
    yield NOT_AFTER.value(None if certificates is None else certificates.not_after)
    yield CERTIFICATE_REFUSED.value(None if certificates is None else float(certificates.refused))
    yield ACCESS_REFUSED.value(float(access is not None and access.refused is not None))
    yield TOKEN_EXPIRES.family(
        ([principal.name], principal.ends) for principal in principals if principal.ends is not None
    )


class ProcessCollector(Collector):
    """Reads the figures of a process that serves no computation; see :func:`process`."""

    def __init__(self, certificates: Certificates | None, access: AccessFile | None) -> None:
        self._certificates = certificates
        self._access = access

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        return process(self._certificates, self._access)


class ShardCollector(Collector):
    """Reads a shard. O(computations + streams of a gate), never O(ranges)."""

    def __init__(
        self,
        shard: Shard,
        streams: Streams,
        survey: RangeSurvey,
        upstream: Upstream,
        certificates: Certificates | None = None,
        promises: PromiseFile | None = None,
        access: AccessFile | None = None,
    ) -> None:
        self._shard = shard
        self._access = access
        self._promises = promises
        self._streams = streams
        self._survey = survey
        self._upstream = upstream
        self._certificates = certificates

    def describe(self) -> Iterator[Metric]:
        """Yield the families without samples."""
        for figure in FIGURES:
            yield figure.family()

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the shard.

        The event loop may run between two families, so that it waits for one family at most.
        """
        promises = None if self._promises is None else self._promises.value
        reading = Reading(self._shard, self._survey, self._upstream, promises)
        views = [view for view in map(self._shard.served.view, self._shard.served.names()) if view is not None]
        for figure, samples in READ.items():
            yield figure.family(sample for view in views for sample in samples(reading, view))
            time.sleep(0)
        for figure, read in PROCESS.items():
            yield figure.value(read(self._shard, self._streams))
        holdings = list(self._shard.held.served.values())  # in one step, because this may be another thread
        served = [computation for holding in holdings if (computation := holding.held) is not None]
        yield HELD.family(([what], sum(map(count, served))) for what, count in KINDS.items())
        yield CONFIRMED.value(self._confirmed_at())
        yield from process(self._certificates, self._access)
        yield REFUSED.value(None if self._promises is None else float(self._promises.refused is not None))
        statistics = self._shard.journal.statistics()
        yield ERRORS.family([(["failed"], statistics.failed), (["unknown"], statistics.unknown)])
        yield FREE.value(self._shard.journal.free_bytes())
        for figure, read_gate in GATES.items():
            yield figure.family(([gate.name], read_gate(gate)) for gate in self._streams.admission.gates)

    def _confirmed_at(self) -> float | None:
        stale_for, now = self._upstream.stale_for, time.time()
        if stale_for is None:
            return None
        return min(now - stale_for, self._shard.confirmation.confirmed_at(int(now * 1e6)) / 1e6)
