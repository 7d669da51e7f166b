"""Recording rules for panels and alerts: one series for a computation, whichever shard serves it.

Every shard exports the computations that it serves. While a computation moves, two shards may
export it: for a scrape, or for as long as the old one does not know that it was replaced. Only the
values of the shard with the greatest epoch count. The greatest value would be right for a
watermark, which only grows, but not for a lag, a holder or an operation.
"""

from __future__ import annotations

from typing import Final

from monitoring.rules import COMPUTATION, NO_SLICE, Group, Record
from monitoring.settings import Settings

LOW: Final = "computation:lowwater_low_watermark_timestamp_seconds:max"
FRESHNESS: Final = "computation:lowwater_freshness_seconds:age"
STANDING: Final = "computation:lowwater_standing_seconds:age"
LOCAL_LAG: Final = "computation:lowwater_local_lag_seconds:max"
GLOBAL_LAG: Final = "computation:lowwater_global_lag_seconds:max"
SILENCE: Final = "computation:lowwater_holder_silence_seconds:age"
OPERATION: Final = "computation:lowwater_oldest_operation_seconds:age"
HOLDER: Final = "computation:lowwater_holder_info:max"
PROMISE: Final = "computation:lowwater_promise_info:max"
LATELY: Final = (
    f"topk by ({COMPUTATION}) (1, max by ({COMPUTATION}, owner, team) (last_over_time(lowwater_promise_info[5m])))"
)
"""Owner and team of each computation when it was scraped last, at most five minutes ago."""

WHO: Final = "computation:lowwater_promise_owner:max"
LATE: Final = "computation:lowwater_promise_late_seconds:max"
USED: Final = "computation:lowwater_promise_used:ratio"
BROKEN: Final = "computation:lowwater_promise_broken:bool"
NEWEST: Final = "instance:lowwater_epoch:newest"
APPEND: Final = "instance:lowwater_journal_append_seconds:p99_5m"
PUSH: Final = "instance:lowwater_push_seconds:p99_5m"
CONFLATION: Final = "instance:lowwater_conflated_watermarks:ratio_5m"
LOOP: Final = "instance:lowwater_event_loop_lag_seconds:p99_5m"

WINDOWS: Final = ("5m", "30m", "1h", "6h")
"""The windows in which the broken promise is averaged, for burn alerts."""

EPOCH: Final = f"max by ({COMPUTATION}) (lowwater_epoch)"
"""Epoch of the shard that serves a computation: the greatest one."""

UNSERVED: Final = (
    "max by (job) (lowwater_registered_computations)\n"
    "- (count by (job) (count by (job, computation) (lowwater_epoch)) or 0 * max by (job) (lowwater_registered_computations))"
)
"""Number of registered computations that no shard serves. When no shard serves any, the count has
no series and counts as 0."""

EXACT: Final = f"unless on ({COMPUTATION}) (max by ({COMPUTATION}) (lowwater_estimated) == 1)"
"""Leaves out computations whose watermark is an estimate."""


def broken(window: str) -> str:
    """Return the name of a series: the share of a window in which the promise was broken."""
    return f"computation:lowwater_promise_broken:avg_{window}"


def by_computation(metric: str) -> str:
    """Take a metric from the serving shard; ``max`` only drops the labels of the process."""
    return f"max by ({COMPUTATION}) ({newest(metric)})"


def by_group(metric: str) -> str:
    """Take a metric of a group of tasks from the shard that serves its computation."""
    return f"max by ({COMPUTATION}, group) ({newest(metric)})"


def newest(metric: str) -> str:
    """Leave out the values of a process whose computation another process has taken over."""
    return f"{metric} and on (job, instance, computation) {NEWEST}"


def due(settings: Settings) -> str:
    """Return the event time up to which every computation has to be complete now."""
    late, period = settings.late_seconds, settings.period_seconds
    return f"(time() - {late} - (time() - {late}) % {period})"


def quantile(share: float, histogram: str) -> str:
    """Take a quantile of a histogram of each authority process, over five minutes."""
    return f"histogram_quantile({share}, sum by (job, instance, le) (rate({histogram}_bucket[5m])))"


def watermarks(settings: Settings) -> Group:
    """Return the recorded watermarks, lags and promises of the computations."""
    promised = f'{LOW}{{computation=~"{settings.computations}", {NO_SLICE}}}'
    return Group(
        "lowwater-watermarks",
        "",
        (
            Record(
                NEWEST,
                f"max by (job, instance, computation) (lowwater_epoch)\n== on ({COMPUTATION}) group_left () {EPOCH}",
            ),
            Record(LOW, by_computation("lowwater_low_watermark_timestamp_seconds")),
            Record(FRESHNESS, f"time() - {LOW}"),
            # Without `and` a finished computation, which has no LOW any more, would seem to stand
            # still for ever.
            Record(
                STANDING,
                f"time() - {by_computation('lowwater_low_watermark_change_timestamp_seconds')}"
                f" and on ({COMPUTATION}) {LOW}",
            ),
            Record(LOCAL_LAG, by_computation("lowwater_local_lag_seconds")),
            Record(GLOBAL_LAG, by_computation("lowwater_global_lag_seconds")),
            Record(SILENCE, f"time() - {by_computation('lowwater_last_report_timestamp_seconds')}"),
            Record(OPERATION, f"time() - {by_computation('lowwater_oldest_operation_timestamp_seconds')}"),
            # Exactly one holder for a computation, even when two processes have one epoch. With
            # two, the join in the alerts that name the holder would fail for all computations.
            Record(
                HOLDER,
                f"topk by ({COMPUTATION}) (1, max by ({COMPUTATION}, worker, host, range) ({newest('lowwater_holder_info')}))",
            ),
            # Exactly one promise for a computation, for the same reason as with HOLDER.
            Record(
                PROMISE,
                f"topk by ({COMPUTATION}) (1, max by ({COMPUTATION}, owner, team, runbook) ({newest('lowwater_promise_info')}))",
            ),
            # WHO is 1 for each computation that is served, even for one without a promise. So an
            # alert that is multiplied by WHO keeps its value.
            Record(
                WHO,
                f"max by ({COMPUTATION}, owner, team) ({PROMISE})\n"
                f"or\n(0 * {by_computation('lowwater_epoch')} + 1 unless on ({COMPUTATION}) {PROMISE})\n"
                # While no shard exports the computation, as when it moves to another shard, WHO
                # keeps its last labels: with other labels an alert would be a new alert.
                f"or (\n{LATELY}\nor (0 * max by ({COMPUTATION}) (last_over_time(lowwater_epoch[5m])) + 1"
                f" unless on ({COMPUTATION}) last_over_time(lowwater_promise_info[5m]))\n"
                f") unless on ({COMPUTATION}) max by ({COMPUTATION}) (lowwater_epoch)",
            ),
            Record(LATE, by_computation("lowwater_promise_late_seconds")),
            Record(USED, f"{FRESHNESS} / on ({COMPUTATION}) {LATE}"),
            # A computation is compared with its own promise, or with the default one if it has
            # none.
            Record(
                BROKEN,
                f"(\n{LOW} < bool on ({COMPUTATION}) (time() - {LATE})\nor\n{promised} < bool {due(settings)}\n)\n{EXACT}",
            ),
            *(Record(broken(window), f"avg_over_time({BROKEN}[{window}])") for window in WINDOWS),
        ),
    )


def processes() -> Group:
    """Return the recorded health of the authority processes."""
    replaced = "sum by (job, instance) (rate(lowwater_conflated_watermarks_total[5m]))"
    pushed = "sum by (job, instance) (rate(lowwater_pushed_watermarks_total[5m]))"
    return Group(
        "lowwater-processes",
        "",
        (
            Record(APPEND, quantile(0.99, "lowwater_journal_append_seconds")),
            Record(PUSH, quantile(0.99, "lowwater_push_seconds")),
            Record(CONFLATION, f"{replaced}\n/ ({replaced} + {pushed})"),
            Record(LOOP, quantile(0.99, "lowwater_event_loop_lag_seconds")),
        ),
    )
