"""Each alert about the authority fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from monitoring.recordings import EPOCH
from tests.monitoring.exported import (
    DAYS,
    HOURS,
    Exported,
    Instances,
    Value,
    check,
    healthy,
    histogram,
    of,
    own,
    paused,
    quiet,
    together,
    without,
)

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
ONE = {"job": "lowwater", "instance": "one:7421"}
JOB = {"job": "lowwater"}


def rising(name: str, labels: str, a_second: float, until: float = 20 * HOURS) -> Exported:
    """A healthy deployment, and a counter that rises from a moment on."""
    exported = healthy()
    exported[own(name, labels)] = lambda t: max(0.0, min(t, until) - FAULT) * a_second
    return exported


def slow(name: str, until: float = 20 * HOURS, seconds: float = 0.8) -> Exported:
    """A healthy deployment, and something that takes long from a moment on."""
    exported = without(healthy(), f"lowwater_{name}_bucket")
    histogram(exported, f"lowwater_{name}", lambda t: seconds if FAULT <= t < until else 0.05)
    return exported


def down() -> Exported:
    """The authority does not answer: Prometheus keeps no series of a target that is down."""
    exported = healthy()
    paused(exported, FAULT, 20 * HOURS, 'instance="one:7421"')
    exported[own("up")] = lambda t: 0 if t >= FAULT else 1
    return exported


def second(epoch: float, exported: Exported, name: str = "enriched") -> Exported:
    """Another process says that it serves a computation too."""
    exported[own("lowwater_epoch", f', computation="{name}"', "two:7421")] = lambda t: epoch if t >= FAULT else None
    exported[own("lowwater_build_info", ', version="1"', "two:7421")] = lambda t: 1
    exported[own("up", "", "two:7421")] = lambda t: 1
    return exported


def unserved(until: float = 20 * HOURS) -> Exported:
    """Nobody serves enriched from a moment on."""
    exported = healthy()
    paused(exported, FAULT, until, of("epoch", "enriched"))
    return exported


def nothing_served() -> Exported:
    """The authority is alive and serves nothing of what is registered: it takes nothing over."""
    exported = healthy()
    paused(exported, FAULT, 20 * HOURS, "computation=")
    return exported


def said(event: str, level: str = "error") -> Exported:
    """A line of the log, once."""
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


def refused(name: str, until: float = 20 * HOURS) -> Exported:
    """A file that is read anew has a mistake for a time."""
    exported = healthy()
    exported[own(name)] = lambda t: int(FAULT <= t < until)
    return exported


def filling() -> Exported:
    """The disk loses a MiB a second, and has 256 at a moment."""
    exported = healthy()
    exported[own("lowwater_journal_free_bytes")] = lambda t: (FAULT - t + 256) * 2**20
    return exported


def open_files(share: float) -> Exported:
    """So much of the files are open from a moment on."""
    exported = healthy()
    exported[own("process_max_fds")] = lambda t: 1000
    exported[own("process_open_fds")] = lambda t: 1000 * share if t >= FAULT else 40
    return exported


def growing() -> Exported:
    """Nine tenths of the memory and a bit more are in use from a moment on."""
    exported = healthy()
    exported[own("process_resident_memory_bytes")] = lambda t: 91 if t >= FAULT else 89
    return exported


def behind(until: float) -> Exported:
    """The clock of the authority is behind for a time."""
    exported = healthy()
    exported[own("lowwater_clock_timestamp_seconds")] = lambda t: t - 6 if FAULT <= t < until else t - 4
    return exported


def tombstones(size: int) -> Exported:
    """Dropped computations take so many bytes from a moment on."""
    exported = healthy()
    exported[own("lowwater_tombstone_bytes")] = lambda t: size if t >= FAULT else 1 << 20
    return exported


def stuck_journal() -> Exported:
    """The journal confirms nothing any more."""
    exported = healthy()
    exported[own("lowwater_journal_confirmed_timestamp_seconds")] = lambda t: min(t, FAULT) - 1
    return exported


def cut_off(until: float) -> Exported:
    """The way to another shard is cut for a time; what this one serves is confirmed as ever."""
    exported = healthy()
    exported[own("lowwater_deployment_confirmed_timestamp_seconds")] = lambda t: (
        FAULT - 5 if FAULT <= t < until else t - 5
    )
    return exported


def never_heard() -> Exported:
    """Started again, with a token that the other shards do not know."""
    exported = healthy()
    paused(exported, FAULT, 20 * HOURS, "lowwater_deployment_confirmed")
    exported[own("process_start_time_seconds")] = lambda t: FAULT if t >= FAULT else 0
    return exported


def expiring(left: float, renewed: float) -> Exported:
    """A certificate that has so much left at a moment, and is renewed some time later."""
    exported = healthy()
    exported[own("lowwater_certificate_not_after_timestamp_seconds")] = lambda t: (
        FAULT + left if t < renewed else FAULT + 90 * DAYS
    )
    return exported


def tokens() -> Exported:
    """The last tokens of two principals expire."""
    exported = healthy()
    for principal, left in (("etl", 7), ("ops", 30)):
        expires = own("lowwater_token_expires_timestamp_seconds", f', principal="{principal}"')
        exported[expires] = lambda t, left=left: FAULT + left * DAYS  # type: ignore[misc]
    return exported


def conflating(share: float) -> Exported:
    """So many of ten values a second are replaced before they are taken."""
    exported = healthy()
    exported[own("lowwater_conflated_watermarks_total")] = lambda t: 10 * share * t
    exported[own("lowwater_pushed_watermarks_total")] = lambda t: 10 * (1 - share) * t
    return exported


FIRES: dict[str, tuple[Callable[[], Exported], Mapping[float, Instances]]] = {
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
    "LowwaterJournalNotConfirming": (stuck_journal, {3660: [], 3690: [ONE]}),
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
    "LowwaterStoreLost": (lambda: said("store_lost_records"), {3570: [], 3600: [ONE], 4470: [ONE], 4530: []}),
    "LowwaterLogDamaged": (lambda: said_at_the_start("damaged_log"), {3570: [], 3600: [ONE], 4470: [ONE], 4530: []}),
    "LowwaterInternalError": (lambda: said("internal_error"), {3570: [], 3600: [ONE]}),
    "LowwaterNewDeployment": (
        lambda: said_at_the_start("journal_created", "warning"),
        {3570: [], 3600: [ONE], 7140: [ONE], 7200: []},
    ),
    "LowwaterAccessRefused": (lambda: refused("lowwater_access_refused", 5400), {3870: [], 3900: [ONE], 5400: []}),
    "LowwaterCertificateRefused": (
        lambda: refused("lowwater_certificate_refused", 5400),
        {3870: [], 3900: [ONE], 5400: []},
    ),
    "LowwaterDiskFull": (filling, {3900: [], 3930: [ONE]}),
    "LowwaterFilesRunOut": (lambda: open_files(0.95), {3630: [], 3660: [ONE]}),
    "LowwaterMemoryRunsOut": (growing, {3630: [], 3660: [ONE]}),
    "LowwaterClockWrong": (lambda: behind(5400), {3870: [], 3900: [ONE], 5370: [ONE], 5400: []}),
    # Less than a week is left at 01:00:30, and five minutes more. Another principal has a month.
    "LowwaterTokenExpires": (tokens, {3900: [], 3930: [JOB | {"principal": "etl"}]}),
    "LowwaterTombstones": (lambda: tombstones(4 << 20), {4470: [], 4500: [JOB]}),
    # Less than a week is left at 01:00:30, and five minutes more; it ends when the certificate is renewed.
    "LowwaterCertificateExpires": (
        lambda: expiring(7 * DAYS, 5400),
        {3900: [], 3930: [ONE], 5370: [ONE], 5400: []},
    ),
}


def test_that_nothing_at_all_is_served_fires_too(tmp_path: Path) -> None:
    """Of nothing there is no count."""
    check(tmp_path, nothing_served(), {"LowwaterNoOwner": {3690: [], 3720: [JOB], 2 * HOURS: [JOB]}})


def test_a_shard_that_never_heard_of_the_others_counts_from_its_start(tmp_path: Path) -> None:
    """There is nothing that it could be old by."""
    check(tmp_path, never_heard(), {"LowwaterDeploymentNotConfirmed": {3960: [], 3990: [ONE], 2 * HOURS: [ONE]}})


def test_a_certificate_with_a_day_left_is_urgent(tmp_path: Path) -> None:
    """The warning stands beside it, and both end together."""
    both = [ONE | {"severity": "critical"}, ONE]
    check(
        tmp_path,
        expiring(1 * DAYS, 5400),
        {"LowwaterCertificateExpires": {3900: [ONE], 3930: both, 5370: both, 5400: []}},
    )


def test_a_certificate_that_has_expired_is_told_as_such(tmp_path: Path) -> None:
    told = ONE | {
        "summary": "The certificate of one:7421 expires in -29m 30s",
        "description": "From then on clients and other shards refuse new connections to it. A renewed one is taken from its files"
        " without a restart: either nobody has put it there, or what is there cannot be used.",
        "runbook_url": "monitoring/runbooks/authority.md#lowwatercertificateexpires",
    }
    both = [told | {"severity": "critical"}, told]
    check(tmp_path, expiring(0, 5400), {"LowwaterCertificateExpires": {5370: both}}, says=True)


@pytest.mark.parametrize("alert", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, alert: str) -> None:
    made, expected = FIRES[alert]
    check(tmp_path, made(), {alert: expected})


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
    """Something else that Prometheus scrapes is down."""
    exported = healthy()
    exported['up{job="shop", instance="till:80"}'] = lambda t: 0
    return exported


def later(value: Value) -> Value:
    """What a process exports that takes over: its counters begin at zero."""
    return lambda t: value(t - FAULT) if t > FAULT else None


def one_of_two() -> Exported:
    """A shard was taken away for good, target and all, and the other one serves what it served."""
    exported = second(4, healthy())
    for name in ("flights", "hourly"):
        second(4, exported, name)
    paused(exported, FAULT, 20 * HOURS, 'instance="one:7421"')
    for series, value in list(exported.items()):
        if 'instance="one:7421"' in series and "lowwater_epoch" not in series and "up{" not in series:
            exported[series.replace("one:7421", "two:7421")] = later(value)
    exported |= {
        name.replace("one:7421", "two:7421"): value for name, value in healthy().items() if "_timestamp_" in name
    }
    exported[own("lowwater_registered_computations", "", "two:7421")] = lambda t: 3
    return exported


HARMLESS: dict[str, Callable[[], Exported]] = {
    "restarted": restarted,
    "never an authority": never_an_authority,
    "moved to another shard": one_of_two,
    "a zombie of a lower epoch": lambda: second(2, healthy()),
    "a fail-over of a minute": lambda: unserved(FAULT + 60),
    "a certificate renewed in time": lambda: expiring(7 * DAYS + 1800, FAULT + 1800),
    "no certificate": lambda: without(healthy(), "certificate"),
    # Each of them for a moment, or not enough of it.
    "claims, appends, a late loop, a warning, a mistake, files, conflation, a cut way and a crowd": lambda: together(
        lambda: rising("lowwater_claims_total", ', outcome="granted"', 100, FAULT + 60),
        lambda: slow("journal_append_seconds", FAULT + 60),
        lambda: slow("event_loop_lag_seconds", FAULT + 30, 0.4),
        lambda: said("store_lost_epochs", "warning"),
        lambda: refused("lowwater_access_refused", FAULT + 240),
        lambda: open_files(0.8),
        lambda: conflating(0.5),
        lambda: cut_off(FAULT + 300),
        lambda: rising("lowwater_admission_refused_total", ', gate="reports"', 5, FAULT + 30),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    check(tmp_path, HARMLESS[name](), quiet(AFTER))


def test_a_process_that_is_down_is_not_a_stuck_journal_too(tmp_path: Path) -> None:
    check(tmp_path, down(), quiet(AFTER, "LowwaterAuthorityDown", "LowwaterAuthorityAbsent"))


CARELESS: dict[str, tuple[Callable[[], Exported], str, str]] = {
    "never an authority": (never_an_authority, "and on (job, instance) max_over_time(lowwater_build_info[6h])", ""),
    "a worker that tells when it started": (healthy, " and on (job, instance) lowwater_build_info)", ")"),
    "a zombie of a lower epoch": (lambda: second(2, healthy()), f" == on (job, computation) group_left {EPOCH}", ""),
}


@pytest.mark.xfail(strict=True, raises=AssertionError)
@pytest.mark.parametrize("name", CARELESS)
def test_without_its_care_a_rule_would_fire_for_the_neighbour(tmp_path: Path, name: str) -> None:
    made, care, instead = CARELESS[name]
    check(tmp_path, made(), quiet((FAULT + 1800,)), careless=(care, instead))
