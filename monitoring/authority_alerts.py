"""Alerts about the authority itself: whether it lives, and whether it keeps up."""

from __future__ import annotations

from typing import Final

from monitoring.recordings import APPEND, CONFLATION, EPOCH, LOOP, PUSH, UNSERVED
from monitoring.rules import COMPUTATION, Alert, Group, Severity
from monitoring.settings import Settings

URGENT: Final = 7
"""Part of the time for renewal in which a certificate is urgent, as a divisor: a seventh, so of a
week the last day."""


def expires(seconds: int, severity: Severity) -> Alert:
    """Tell of a certificate that was not renewed in time.

    Without TLS there is no certificate, and so no series and no alert.
    """
    return Alert(
        "LowwaterCertificateExpires",
        f"min by (job, instance) (lowwater_certificate_not_after_timestamp_seconds) - time() < {seconds}",
        "5m",
        severity,
        "The certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "From then on clients and other shards refuse new connections to it. A renewed one is taken from its files without a restart:"
        " either nobody has put it there, or what is there cannot be used.",
    )


def logged(events: str) -> str:
    """Return an expression that holds for a quarter of an hour after a process logged some events.

    An event that a process logs as it starts is in the process's first sample, and so no increase.
    For such an event the age of the process counts.
    """
    series = f'lowwater_log_events_total{{event=~"{events}", level="error"}}'
    young = "max by (job, instance) (time() - process_start_time_seconds) < 900"
    return (
        f"sum by (job, instance) (increase({series}[15m])) > 0\nor\n(sum by (job, instance) ({series}) > 0 and {young})"
    )


def alerts(settings: Settings) -> Group:
    """Return the alerts for operators of the authority."""
    return Group(
        "lowwater-authority",
        "authority.md",
        (
            Alert(
                "LowwaterAuthorityDown",
                # Each target that was an authority in the last six hours, so that the alert needs
                # no name of a scrape job.
                "up == 0\nand on (job, instance) max_over_time(lowwater_build_info[6h])",
                "1m",
                "critical",
                "The authority {{ $labels.instance }} does not answer",
                "Pipelines go on, watermarks stop. Where other shards are alive they take over what it served within seconds.",
            ),
            Alert(
                "LowwaterAuthorityAbsent",
                "absent(lowwater_build_info)",
                "5m",
                "critical",
                "No authority is scraped at all",
                "Either none runs, or Prometheus does not find it. Every other alert of this file is blind until it does.",
            ),
            Alert(
                "LowwaterTwoOwners",
                f"count by ({COMPUTATION}) (\n  lowwater_epoch == on ({COMPUTATION}) group_left {EPOCH}\n) > 1",
                "0s",
                "critical",
                "{{ $value }} shards serve {{ $labels.computation }} with one epoch",
                "The store gives each epoch once, so this must never be: stop all but one of them, and keep the journal for a report.",
            ),
            Alert(
                "LowwaterNoOwner",
                f"{UNSERVED} > 0",
                "2m",
                "critical",
                "{{ $value }} computations are served by no shard",
                "Their watermarks stand. A fail-over takes seconds; this one does not come to an end.",
            ),
            Alert(
                "LowwaterDeploymentNotConfirmed",
                # A shard that has never heard of all others exports no such moment. Its time counts
                # from its start.
                "time() - (\n"
                "  max by (job, instance) (lowwater_deployment_confirmed_timestamp_seconds)\n"
                "  or max by (job, instance) (process_start_time_seconds and on (job, instance) lowwater_build_info)\n"
                ") > 60",
                "5m",
                "warning",
                "{{ $labels.instance }} does not hear of all shards",
                "It has not for {{ $value | humanizeDuration }}. Watermarks go on, but lags and"
                " holders that need what another shard serves are absent: alerts about them are silent.",
            ),
            Alert(
                "LowwaterSliceUnheard",
                "max by (job, instance) (lowwater_unheard_slices) > 0",
                "2m",
                "warning",
                "{{ $value }} slices of {{ $labels.instance }} do not reach their computations",
                "The computations stand where these slices were last heard of. Reports that only advance a slice are acknowledged; what lowers one is"
                " refused until it is heard of.",
            ),
            Alert(
                "LowwaterJournalErrors",
                'sum by (job, instance) (increase(lowwater_journal_errors_total{outcome="failed"}[5m])) > 0',
                "0s",
                "critical",
                "The journal of {{ $labels.instance }} fails",
                "Reports and claims are refused with JOURNAL_FAILED, and nothing is published that was not written. Look at the disk"
                " or the store first.",
            ),
            Alert(
                "LowwaterDiskFull",
                "min by (job, instance) (lowwater_journal_free_bytes) < 268435456",
                "5m",
                "critical",
                "The disk of {{ $labels.instance }} has {{ $value | humanize1024 }}B left",
                "When it is full, every report and claim is refused, and no watermark moves. Nothing that was acknowledged is lost.",
            ),
            Alert(
                "LowwaterJournalNotConfirming",
                "time() - max by (job, instance) (lowwater_journal_confirmed_timestamp_seconds) > 30",
                "1m",
                "critical",
                "The journal of {{ $labels.instance }} does not answer",
                "Nothing was confirmed for {{ $value | humanizeDuration }}: readers see watermarks grow stale, and no claim is granted.",
            ),
            Alert(
                "LowwaterJournalSlow",
                f"{APPEND} > 0.5",
                "10m",
                "warning",
                "Appends of {{ $labels.instance }} take {{ $value | humanizeDuration }} (p99)",
                "Every watermark waits for its append. A full or shared disk, or a store far away.",
            ),
            Alert(
                "LowwaterEventLoopLag",
                f"{LOOP} > 0.5",
                "5m",
                "warning",
                "The event loop of {{ $labels.instance }} is late by {{ $value | humanizeDuration }} (p99)",
                "The process has too little CPU, or serves too much: reports, claims and watermarks all wait behind it.",
            ),
            Alert(
                "LowwaterClaimStorm",
                "sum by (job) (rate(lowwater_claims_total[5m])) > 1",
                "10m",
                "warning",
                "{{ $value | humanize }} claims a second, and no end",
                "Workers take ranges from each other, or die and come back: each claim makes an earlier owner stale.",
            ),
            Alert(
                "LowwaterOverloaded",
                "sum by (job, instance, gate) (rate(lowwater_admission_refused_total[5m])) > 0",
                "5m",
                "warning",
                "{{ $labels.instance }} sends callers away ({{ $labels.gate }})",
                "More come than may wait. They are told when to come again, and nothing is lost; but someone waits.",
            ),
            Alert(
                "LowwaterSubscribersConflated",
                f"{CONFLATION} > 0.9",
                "15m",
                "info",
                "Subscribers of {{ $labels.instance }} do not keep up",
                "{{ $value | humanizePercentage }} of the values were replaced before they were taken. What they get is the newest;"
                " a subscriber that takes nothing at all looks like this too.",
            ),
            Alert(
                "LowwaterPushSlow",
                f"{PUSH} > 1",
                "10m",
                "warning",
                "Watermarks reach subscribers of {{ $labels.instance }} after {{ $value | humanizeDuration }} (p99)",
                "They are published and wait for the stream: a subscriber that does not read, or a process without CPU.",
            ),
            Alert(
                "LowwaterPromisesRefused",
                "max by (job, instance) (lowwater_promises_refused) > 0",
                "5m",
                "warning",
                "{{ $labels.instance }} does not take the new file of promises",
                "It has a mistake, which the log names with its place and the fix. What the file said before stands, and no watermark depends"
                " on it.",
            ),
            Alert(
                "LowwaterStoreLost",
                logged("store_lost_records|store_lost_epochs"),
                "0s",
                "critical",
                "The store of {{ $labels.instance }} has lost what it acknowledged",
                "The shard puts it back from memory, and no watermark went back. A shard that ends before it has done so takes the only copy along.",
            ),
            Alert(
                "LowwaterLogDamaged",
                logged("damaged_log|damaged_log_kept|damaged_graph_mended"),
                "0s",
                "critical",
                "{{ $labels.instance }} has found a log that cannot be read",
                "Its computation stands, or lives from memory alone: the line names it. Do not restart the process before the log is whole again.",
            ),
            Alert(
                "LowwaterInternalError",
                logged("internal_error"),
                "0s",
                "warning",
                "{{ $labels.instance }} has failed in a way that it never should",
                "Nothing of the request was kept. The trace in the log belongs into a report.",
            ),
            Alert(
                "LowwaterNewDeployment",
                'sum by (job, instance) (lowwater_log_events_total{event="journal_created"}) > 0'
                " and max by (job, instance) (time() - process_start_time_seconds) < 3600",
                "0s",
                "warning",
                "{{ $labels.instance }} has begun a new deployment",
                "Its folder or store was empty. Where there was a deployment before, its volume is not mounted or its store was emptied.",
            ),
            Alert(
                "LowwaterAccessRefused",
                "max by (job, instance) (lowwater_access_refused) > 0",
                "5m",
                "critical",
                "{{ $labels.instance }} does not take the new access file",
                "It has a mistake, which the log names. The rules of before are in force: whoever was removed in the new file still gets in.",
            ),
            Alert(
                "LowwaterTokenExpires",
                "min by (job, principal) (lowwater_token_expires_timestamp_seconds) - time() < 604800",
                "5m",
                "warning",
                "The last token of {{ $labels.principal }} expires, or has expired",
                "From its date on the authority refuses every call of this principal, and ends its streams. Each of its tokens has a date in the access file. "
                "Time left: {{ $value | humanizeDuration }}; below 0, the date has passed.",
            ),
            Alert(
                "LowwaterCertificateRefused",
                "max by (job, instance) (lowwater_certificate_refused) > 0",
                "5m",
                "warning",
                "{{ $labels.instance }} does not take the new certificate",
                "The log says why. The certificate of before is in force until it expires, and so is what clients are checked by.",
            ),
            Alert(
                "LowwaterFilesRunOut",
                "max by (job, instance) (process_open_fds / process_max_fds and on (job, instance)"
                " (lowwater_build_info or lowwater_global_build_info)) > 0.9",
                "1m",
                "critical",
                "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its files open",
                "Without a free one nobody can connect: each connection is a file, also one without a token.",
            ),
            Alert(
                "LowwaterMemoryRunsOut",
                "max by (job, instance) (process_resident_memory_bytes / on (job, instance) lowwater_memory_limit_bytes) > 0.9",
                "1m",
                "critical",
                "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its memory",
                "Beyond its limit the kernel kills it. It comes back with the same need, while watermarks of what it serves stand.",
            ),
            Alert(
                "LowwaterClockWrong",
                "max by (job, instance) (abs(lowwater_clock_timestamp_seconds - timestamp(lowwater_clock_timestamp_seconds))) > 5",
                "5m",
                "warning",
                "The clock of {{ $labels.instance }} differs from that of Prometheus by {{ $value | humanizeDuration }}",
                "No watermark depends on clocks. But a clock that is behind refuses event times as too far ahead, and one that leads lets them in; lags and ages are"
                " wrong by the difference.",
            ),
            Alert(
                "LowwaterTombstones",
                "max by (job) (lowwater_tombstone_bytes) > 3 * 1024 * 1024",
                "15m",
                "warning",
                "Dropped computations take {{ $value | humanize1024 }}B",
                "Each keeps its name from beginning again with old values. A namespace may have 4 MiB of them when it is alone, less beside others;"
                " then it can drop nothing more.",
            ),
            expires(settings.renewal_seconds // URGENT, "critical"),
            expires(settings.renewal_seconds, "warning"),
        ),
    )
