"""Alerts about the processes that report: Spark jobs and clients, as they export it themselves."""

from __future__ import annotations

from monitoring.rules import Alert, Group


def alerts() -> Group:
    """Return the alerts for operators of a pipeline."""
    return Group(
        "lowwater-workloads",
        "workloads.md",
        (
            Alert(
                "LowwaterLateRows",
                "sum by (job, query, computation) (increase(lowwater_spark_late_rows_total[15m])) > 0",
                "0s",
                "critical",
                "{{ $labels.query }} got rows that should have come before",
                "Some {{ $value | humanize }} rows lie below what the inputs of {{ $labels.computation }} had promised: somebody"
                " upstream reports more than is true, and windows that are out lack these rows.",
            ),
            Alert(
                "LowwaterUntimedRows",
                "sum by (job, query, computation) (increase(lowwater_spark_untimed_rows_total[15m])) > 0",
                "0s",
                "warning",
                "{{ $labels.query }} got rows without an event time",
                "Some {{ $value | humanize }} rows of {{ $labels.computation }} have none: no window has them, and no watermark waits for them.",
            ),
            Alert(
                "LowwaterQueryHolding",
                "min by (job, query, computation) (lowwater_spark_holding) == 1",
                "10m",
                "warning",
                "{{ $labels.query }} reports nothing new for {{ $labels.computation }}",
                "The query runs and holds its watermark for a reason that `query.stage_status()` and its driver's log say in a sentence.",
            ),
            Alert(
                "LowwaterAttachLeftAlone",
                'max by (job, instance) (lowwater_spark_attach_authority{state="left_alone"}) == 1',
                "5m",
                "warning",
                "{{ $labels.instance }} leaves the authority alone",
                "It answered too slowly or not at all, and Spark must not wait for it: the estimates of this driver stand.",
            ),
            Alert(
                "LowwaterReportsUnanswered",
                "rate(lowwater_client_reports_total[5m]) > 0\nunless rate(lowwater_client_acknowledged_reports_total[5m]) > 0",
                "2m",
                "warning",
                "The reports of {{ $labels.instance }} are not acknowledged",
                "It reports, and nothing of it becomes durable: what it owns holds up its computations.",
            ),
            Alert(
                "LowwaterUnserved",
                "max by (job, instance) (lowwater_client_unserved_computations) > 0",
                "2m",
                "warning",
                "{{ $labels.instance }} hears nothing of {{ $value }} computations that it follows",
                "No shard tells of them. Look whether the authority has the same trouble (LowwaterNoOwner), or only the way to it.",
            ),
        ),
    )
