"""Alerts about the data: which computation is late, and who holds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from monitoring.recordings import (
    BROKEN,
    EXACT,
    FRESHNESS,
    HOLDER,
    LATE,
    LOCAL_LAG,
    OPERATION,
    PROMISE,
    SILENCE,
    STANDING,
    WHO,
    broken,
    by_computation,
    by_group,
    newest,
)
from monitoring.rules import COMPUTATION, NO_SLICE, Alert, Group
from monitoring.settings import Settings

SILENT_SECONDS: Final = 30
"""Seconds without a report after which a worker counts as silent: a living one repeats its report
every few seconds, even when nothing has changed."""

STUCK_SECONDS: Final = 900
"""Seconds after which one operation is worth an alert."""

NAMED: Final = (
    "{{ if $labels.range }} The key range is {{ $labels.range }}"
    "{{ if $labels.worker }}, of {{ $labels.worker }} on {{ $labels.host }}{{ end }}.{{ end }}"
)
"""Text that names range, worker and host of the holder, as far as the alert has their labels."""


def named(expr: str) -> str:
    """Put worker, host and key range of the holder on the series of an expression, if known.

    The value stays. Only a low watermark that stands still has a holder, so the labels change when
    a slow watermark moves on. An alert with other labels is another one, whose ``for`` starts anew.
    So the expression itself looks back as far as the alert needs.
    """
    return (
        f"(\n{expr}\n) * on ({COMPUTATION}) group_left (worker, host, range) {HOLDER}\n"
        f"or\n(\n{expr}\n) unless on ({COMPUTATION}) {HOLDER}"
    )


OWN_RUNBOOK: Final = (
    "{{ with query (printf `" + PROMISE + "{job=%q, computation=%q}` $labels.job $labels.computation) }}"
    '{{ . | first | label "runbook" }}{{ end }}'
)
"""Template of the runbook's URL that the owner of a computation has given. It is an annotation and
no label, because labels tell alerts apart."""


def answered(alert: Alert) -> Alert:
    """Put owner, team and runbook of a promise on an alert about a computation that has one."""
    expr = f"(\n{alert.expr}\n) * on ({COMPUTATION}) group_left (owner, team) {WHO}"
    if BROKEN in alert.expr:
        # BROKEN looks back in time. So this alert goes on while the computation is not scraped for
        # a moment and has no series WHO.
        expr += f"\nor\n(\n{alert.expr}\n) unless on ({COMPUTATION}) {WHO}"
    return replace(alert, expr=expr, annotations=(("owner_runbook_url", OWN_RUNBOOK),))


def is_about_one(alert: Alert) -> bool:
    """Return whether the alert is about a computation."""
    return "$labels.computation" in alert.summary + alert.description


def well_sampled(long: str) -> str:
    """Leave out computations with too few samples for a share: two samples say too little.

    Half of the long window must have samples. A computation with less than six hours of samples is
    left out while it catches up.
    """
    half = {"1h": "30m", "6h": "3h"}[long]
    return (
        f"and on ({COMPUTATION}) max_over_time({BROKEN}[{long}] offset {half})\n"
        f"unless on ({COMPUTATION}) (({FRESHNESS} < {FRESHNESS} offset 30m) unless {FRESHNESS} offset 6h)"
    )


def ranges(states: str) -> str:
    """Count the key ranges of each computation that are in one of some states."""
    counted = newest(f'lowwater_ranges{{state=~"{states}"}}')
    return f"sum by ({COMPUTATION}) ({counted})"


def burn(settings: Settings, long: str, short: str, factor: float, lasting: str, severity: str) -> Alert:
    """Tell that the promise is broken so often that the objective cannot be kept.

    Two windows: the long one shows that the breach matters, the short one that it still goes on. So
    the alert ends soon after the breach.
    """
    limit = round(factor * (1 - settings.objective), 6)
    minutes = settings.late_seconds // 60
    return Alert(
        "LowwaterPromiseBroken",
        f"{broken(long)} > {limit:g}\nand {broken(short)} > {limit:g}\n{well_sampled(long)}",
        lasting,
        "critical" if severity == "critical" else "warning",
        "{{ $labels.computation }} is late",
        f"In the last {long} its promise was broken for {{{{ $value | humanizePercentage }}}} of the time, and in the last"
        f" {short} it still was. At this rate the objective of {settings.objective_words} cannot be kept. What counts is its own promise, or where"
        f" there is none, that it is complete {minutes} minutes after the end of a period.",
        (("window", long),),
    )


def alerts(settings: Settings) -> Group:
    """Return the alerts for owners of a promise."""
    group = _alerts(settings)
    return replace(group, rules=tuple(answered(alert) if is_about_one(alert) else alert for alert in group.alerts))


def _alerts(settings: Settings) -> Group:
    step = settings.step_seconds
    # Alerts about silent workers and ranges without an owner also cover slices: a computation that
    # is cut into slices has workers and ranges only there.
    ended = by_computation('lowwater_holder_state{state="stopped"}')
    stopped = f"unless on ({COMPUTATION}) ({ended} == 1)"
    behind = f"{LOCAL_LAG}{{{NO_SLICE}}} > {step} and deriv({LOCAL_LAG}[10m]) > 0.1\n{EXACT}"
    return Group(
        "lowwater-pipeline",
        "pipeline.md",
        (
            burn(settings, "1h", "5m", 14.4, "2m", "critical"),
            burn(settings, "6h", "30m", 6, "15m", "warning"),
            Alert(
                "LowwaterWatermarkStalled",
                f"{STANDING}{{{NO_SLICE}}} > {step}\nand on ({COMPUTATION}) ({LOCAL_LAG} - {LOCAL_LAG} offset 10m > 0)\n{EXACT}",
                "5m",
                "critical",
                "{{ $labels.computation }} stands still while its inputs go on",
                "Its low watermark has not moved for {{ $value | humanizeDuration }}, and its inputs have moved since. The fault is"
                " in this computation, not before it.",
            ),
            Alert(
                "LowwaterComputationHolds",
                named(behind),
                "5m",
                "warning",
                "{{ $labels.computation }} holds up all behind it",
                "It is {{ $value | humanizeDuration }} behind its inputs, more than any window of its own explains, and falls"
                " further behind." + NAMED,
            ),
            Alert(
                "LowwaterHolderSilent",
                named(f"{SILENCE} > {SILENT_SECONDS}\n{EXACT}\n{stopped}"),
                "1m",
                "warning",
                "A worker that holds {{ $labels.computation }} is silent",
                "Nothing has come for {{ $value | humanizeDuration }} from a worker whose key range holds the low watermark, and which"
                " was not stopped in good order. Silence never advances it: the range has to be claimed by a worker that lives."
                + NAMED,
            ),
            Alert(
                "LowwaterRangesUnowned",
                f"{ranges('unowned|never_claimed')} > 0",
                "5m",
                "warning",
                "{{ $value }} key ranges of {{ $labels.computation }} have no owner",
                "They hold the low watermark where it is, or at unknown if nobody ever claimed them, until a worker claims them or"
                " an operator retires them.",
            ),
            Alert(
                "LowwaterWatermarkUnknown",
                by_computation(f'lowwater_watermark_state{{state="unknown", {NO_SLICE}}}') + " == 1\n"
                f"and on ({COMPUTATION}) {ranges('owned')} > 0\n{EXACT}",
                "5m",
                "warning",
                "Nothing can be said of {{ $labels.computation }}, though workers own it",
                "Its low watermark is unknown: some key range was claimed and never reported, or an input is unknown. Without a"
                " time there is no lag, no age and no broken promise that another alert could tell of.",
            ),
            Alert(
                "LowwaterOperationStuck",
                f"{OPERATION}{{{NO_SLICE}}} > {STUCK_SECONDS}\n{EXACT}",
                "5m",
                "warning",
                "An operation of {{ $labels.computation }} does not end",
                "The oldest one has been running for {{ $value | humanizeDuration }}: the system is stuck, the data are not late.",
            ),
            Alert(
                "LowwaterReportsRefused",
                'sum by (job, reason) (rate(lowwater_refused_reports_total{reason=~"TOO_FAR_AHEAD|FINISH_REQUIRED"}[5m])) > 0',
                "2m",
                "warning",
                "Reports with impossible timestamps are refused ({{ $labels.reason }})",
                "The ranges that they are about hold where they were. One bad timestamp of a record is enough: find the worker in"
                " the log of the authority.",
            ),
            Alert(
                "LowwaterTasksNotTaken",
                by_group('lowwater_tasks{state="ready"}') + " > 0\n"
                "unless " + by_group('lowwater_tasks{state="leased"}') + " > 0\n"
                f"unless max by ({COMPUTATION}, group) (changes(lowwater_tasks_closed_timestamp_seconds[5m])) > 0",
                "15m",
                "warning",
                "{{ $value }} tasks of {{ $labels.group }} wait, and nobody works on any",
                "They were created under {{ $labels.computation }}, and for a quarter of an hour no worker was seen with one under a lease, nor"
                " was anything closed: the workers of the group are away, or ask for another group.",
            ),
            Alert(
                "LowwaterLatenessJumped",
                f"sum by ({COMPUTATION}, budget) (increase(lowwater_lateness_budget_excused_total[1h])) > 0",
                "0m",
                "info",
                "Records of {{ $labels.computation }} came later than its lateness budget of {{ $labels.budget }} allows",
                "{{ $value | humanize }} of the last hour are excused: lateness jumped, and a watermark does not go back. The budget is kept of the others."
                " Windows that it has closed lack these records; they are set aside.",
            ),
            Alert(
                "LowwaterEstimateLate",
                f"(\n{FRESHNESS} > on ({COMPUTATION}) {LATE}\nor\n"
                f"({FRESHNESS}{{{NO_SLICE}}} unless on ({COMPUTATION}) {LATE}) > {settings.late_seconds + settings.period_seconds}\n)\n"
                f"and on ({COMPUTATION}) (max by ({COMPUTATION}) (lowwater_estimated) == 1)",
                "15m",
                "info",
                "The estimate of {{ $labels.computation }} is old",
                "It is {{ $value | humanizeDuration }} old. Nobody promises this watermark and no exact computation reads it: it"
                " never alerts as an exact one does.",
            ),
        ),
    )
