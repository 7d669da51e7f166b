"""Each alert about the authority fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.monitoring.exported import (
    DAYS,
    HOURS,
    Exported,
    Instances,
    Value,
    check,
    healthy,
    histogram,
    own,
    paused,
    quiet,
    series_of,
    together,
    without,
)

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
ONE = {"job": "lowwater", "instance": "one:7421"}
JOB = {"job": "lowwater"}


def slow(name: str, until: float = 20 * HOURS, seconds: float = 0.8) -> Exported:
    exported = without(healthy(), f"lowwater_{name}_bucket")
    histogram(exported, f"lowwater_{name}", lambda t: seconds if FAULT <= t < until else 0.05)
    return exported


def changed(name: str, value: Value, labels: str = "") -> Exported:
    return healthy() | {own(name, labels): value}


def rising(name: str, labels: str, a_second: float, until: float = 20 * HOURS) -> Exported:
    return changed(name, lambda t: max(0.0, min(t, until) - FAULT) * a_second, labels)


def now(name: str, faulty: float, well: float = 0, until: float = 20 * HOURS) -> Exported:
    return changed(name, lambda t: faulty if FAULT <= t < until else well)


def open_files(share: float) -> Exported:
    return now("process_open_fds", 1000 * share, 40) | {own("process_max_fds"): lambda t: 1000}


def unserved(until: float = 20 * HOURS) -> Exported:
    exported = healthy()
    paused(exported, FAULT, until, series_of("epoch", "enriched"))
    return exported


def cut_off(until: float) -> Exported:
    """The way to another shard is cut for a time; what this one serves is confirmed as ever."""
    name = "lowwater_deployment_confirmed_timestamp_seconds"
    return changed(name, lambda t: FAULT - 5 if FAULT <= t < until else t - 5)


def tokens() -> Exported:
    name = "lowwater_token_expires_timestamp_seconds"
    etl, ops = (own(name, f', principal="{principal}"') for principal in ("etl", "ops"))
    return healthy() | {etl: lambda t: FAULT + 7 * DAYS, ops: lambda t: FAULT + 30 * DAYS}


def conflating(share: float) -> Exported:
    """Let a share of ten values a second be replaced before they are delivered."""
    pushed = own("lowwater_pushed_watermarks_total")
    conflated = changed("lowwater_conflated_watermarks_total", lambda t: 10 * share * t)
    return conflated | {pushed: lambda t: 10 * (1 - share) * t}


def down() -> Exported:
    exported = healthy()
    paused(exported, FAULT, 20 * HOURS, 'instance="one:7421"')
    exported[own("up")] = lambda t: 0 if t >= FAULT else 1
    return exported


def second(epoch: float, exported: Exported, name: str = "enriched") -> Exported:
    exported[own("lowwater_epoch", f', computation="{name}"', "two:7421")] = lambda t: epoch if t >= FAULT else None
    exported[own("lowwater_build_info", ', version="1"', "two:7421")] = lambda t: 1
    exported[own("up", "", "two:7421")] = lambda t: 1
    return exported


def logged(event: str, level: str = "error") -> Exported:
    exported = healthy()
    exported[own("lowwater_log_events_total", f', event="{event}", level="{level}"')] = lambda t: int(t >= FAULT)
    return exported


def said_at_the_start(event: str, level: str = "error") -> Exported:
    """A process that begins, with a line of the log before its first scrape."""
    exported = healthy()
    exported[own("lowwater_log_events_total", f', event="{event}", level="{level}"')] = lambda t: (
        1 if t >= FAULT else None
    )
    exported[own("process_start_time_seconds")] = lambda t: FAULT - 20 if t >= FAULT else None
    return exported


FIRES: dict[str, tuple[Callable[[], Exported], Mapping[float, Instances]]] = {
    "LowwaterSliceUnheard": (lambda: now("lowwater_unheard_slices", 2), {3690: [], 3720: [ONE]}),
    "LowwaterPromisesRefused": (lambda: now("lowwater_promises_refused", 1), {3870: [], 3900: [ONE]}),
    "LowwaterAuthorityDown": (down, {3630: [], 3660: [ONE]}),
    "LowwaterAuthorityAbsent": (down, {3870: [], 3900: [{}]}),
    "LowwaterTwoOwners": (lambda: second(3, healthy()), {3570: [], 3600: [JOB | {"computation": "enriched"}]}),
    "LowwaterNoOwner": (unserved, {3690: [], 3720: [JOB]}),
    # Last confirmed at 00:59:55: more than a minute ago at 01:01:00, and five minutes more; it ends when the way is open again.
    "LowwaterDeploymentNotConfirmed": (lambda: cut_off(5400), {3930: [], 3960: [ONE], 5370: [ONE], 5400: []}),
    "LowwaterJournalErrors": (
        lambda: rising("lowwater_journal_errors_total", ', outcome="failed"', 0.1),
        {3600: [], 3630: [ONE]},
    ),
    # Last confirmed at 00:59:59: more than 30 s ago at 01:00:30, and a minute more.
    "LowwaterJournalNotConfirming": (
        lambda: changed("lowwater_journal_confirmed_timestamp_seconds", lambda t: min(t, FAULT) - 1),
        {3660: [], 3690: [ONE]},
    ),
    # The first 30 s of slow ones are a tenth of what is seen in five minutes.
    "LowwaterJournalSlow": (lambda: slow("journal_append_seconds"), {4170: [], 4200: [ONE]}),
    "LowwaterEventLoopLag": (lambda: slow("event_loop_lag_seconds"), {3870: [], 3900: [ONE]}),
    "LowwaterPushSlow": (lambda: slow("push_seconds", seconds=4), {4170: [], 4200: [ONE]}),
    # Five a second: more than one over five minutes after a minute, and ten minutes more.
    "LowwaterClaimStorm": (lambda: rising("lowwater_claims_total", ', outcome="granted"', 5), {4260: [], 4290: [JOB]}),
    "LowwaterOverloaded": (
        lambda: rising("lowwater_admission_refused_total", ', gate="reports"', 1),
        {3900: [], 3930: [ONE | {"gate": "reports"}]},
    ),
    "LowwaterSubscribersConflated": (lambda: conflating(0.95), {900: [], 930: [ONE]}),
    # It ends a quarter of an hour later.
    "LowwaterStoreLost": (lambda: logged("store_lost_records"), {3570: [], 3600: [ONE], 4470: [ONE], 4530: []}),
    "LowwaterLogDamaged": (lambda: said_at_the_start("damaged_log"), {3570: [], 3600: [ONE], 4470: [ONE], 4530: []}),
    "LowwaterInternalError": (lambda: logged("internal_error"), {3570: [], 3600: [ONE]}),
    "LowwaterNewDeployment": (
        lambda: said_at_the_start("journal_created", "warning"),
        {3570: [], 3600: [ONE], 7140: [ONE], 7200: []},
    ),
    "LowwaterAccessRefused": (lambda: now("lowwater_access_refused", 1, until=5400), {3870: [], 3900: [ONE], 5400: []}),
    "LowwaterCertificateRefused": (
        lambda: now("lowwater_certificate_refused", 1, until=5400),
        {3870: [], 3900: [ONE], 5400: []},
    ),
    # The disk loses a MiB a second.
    "LowwaterDiskFull": (
        lambda: changed("lowwater_journal_free_bytes", lambda t: (FAULT - t + 256) * 2**20),
        {3900: [], 3930: [ONE]},
    ),
    "LowwaterFilesRunOut": (lambda: open_files(0.95), {3630: [], 3660: [ONE]}),
    "LowwaterMemoryRunsOut": (lambda: now("process_resident_memory_bytes", 91, 89), {3630: [], 3660: [ONE]}),
    "LowwaterClockWrong": (
        lambda: changed("lowwater_clock_timestamp_seconds", lambda t: t - 6 if FAULT <= t < 5400 else t - 4),
        {3870: [], 3900: [ONE], 5370: [ONE], 5400: []},
    ),
    # Less than a week is left at 01:00:30, and five minutes more. Another principal has a month.
    "LowwaterTokenExpires": (tokens, {3900: [], 3930: [JOB | {"principal": "etl"}]}),
    "LowwaterTombstones": (lambda: now("lowwater_tombstone_bytes", 4 << 20, 1 << 20), {4470: [], 4500: [JOB]}),
    # Less than a week is left at 01:00:30, and five minutes more; it ends when the certificate is renewed.
    "LowwaterCertificateExpires": (
        lambda: changed(
            "lowwater_certificate_not_after_timestamp_seconds",
            lambda t: FAULT + 7 * DAYS if t < 5400 else FAULT + 90 * DAYS,
        ),
        {3900: [], 3930: [ONE], 5370: [ONE], 5400: []},
    ),
}


@pytest.mark.parametrize("alert", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, alert: str) -> None:
    make, expected = FIRES[alert]
    check(tmp_path, make(), {alert: expected})


def restarted() -> Exported:
    """Away for half a minute; every counter begins anew, errors of long ago are forgotten."""
    exported = healthy()
    exported[own("lowwater_journal_errors_total", ', outcome="failed"')] = lambda t: 7 if t < FAULT else 0
    exported[own("lowwater_claims_total", ', outcome="granted"')] = lambda t: 4000 if t < FAULT else 12
    paused(exported, FAULT, FAULT + 30, "lowwater_", "process_")
    exported[own("up")] = lambda t: 0 if FAULT <= t < FAULT + 30 else 1
    exported[own("process_start_time_seconds")] = lambda t: FAULT if t >= FAULT else 0
    paused(exported, FAULT, FAULT + 240, "lowwater_deployment_confirmed")
    return exported


def never_an_authority() -> Exported:
    exported = healthy()
    exported['up{job="shop", instance="till:80"}'] = lambda t: 0
    return exported


HARMLESS: dict[str, Callable[[], Exported]] = {
    "restarted": restarted,
    "never an authority": never_an_authority,
    "a zombie of a lower epoch": lambda: second(2, healthy()),
    "a fail-over of a minute": lambda: unserved(FAULT + 60),
    # Each of them for a moment, or not enough of it.
    "claims, appends, a late loop, a warning, a mistake, files, conflation, a cut way and a crowd": lambda: together(
        lambda: rising("lowwater_claims_total", ', outcome="granted"', 100, FAULT + 60),
        lambda: slow("journal_append_seconds", FAULT + 60),
        lambda: slow("event_loop_lag_seconds", FAULT + 30, 0.4),
        lambda: logged("store_lost_epochs", "warning"),
        lambda: now("lowwater_access_refused", 1, until=FAULT + 240),
        lambda: open_files(0.8),
        lambda: conflating(0.5),
        lambda: cut_off(FAULT + 300),
        lambda: rising("lowwater_admission_refused_total", ', gate="reports"', 5, FAULT + 30),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    check(tmp_path, HARMLESS[name](), quiet(AFTER, of_these=() if "," in name or name == "restarted" else FIRES))
