"""Each alert about the data fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.monitoring.exported import (
    HOURS,
    Exported,
    Instances,
    Value,
    check,
    computation,
    difference,
    flowing,
    following,
    healthy,
    hourly,
    own,
    paused,
    quiet,
    series_of,
    steady,
    together,
)

FAULT = 2 * HOURS
"""When something goes wrong, in every test."""

ONE = {"job": "lowwater", "computation": "enriched"}
WHO = {"worker": "exec-7", "host": "node-3", "range": "[40.., 44..)"}
AFTER = range(FAULT, 4 * HOURS, 600)
"""Moments at which a harmless exported must be quiet."""


def standing(at: float = FAULT) -> Exported:
    """Enriched stands still from a moment on, though its worker lives."""
    exported = healthy()
    low = steady(at, following)
    computation(exported, "enriched", low, flowing)
    exported[series_of("local_lag_seconds", "hourly")] = lambda t: difference(low(t), hourly(min(t, at)))
    return exported


def named(exported: Exported, begin: float = FAULT + 30) -> Exported:
    labels = ', worker="exec-7", host="node-3", range="[40.., 44..)"'
    exported[series_of("holder_info", "enriched", labels)] = lambda t: 1 if t >= begin else None
    return exported


def finished(exported: Exported) -> Exported:
    """Enriched ends: of a finished computation neither its time nor its lag is exported."""
    ended = ("low_watermark_timestamp_seconds", "lag_seconds", "last_report", "oldest_operation")
    for name in list(exported):
        if 'computation="enriched"' in name and any(word in name for word in ended):
            paused(exported, FAULT, 20 * HOURS, name)
    exported[series_of("ranges", "enriched", ', state="owned"')] = lambda t: 64 * (t < FAULT)
    exported[series_of("ranges", "enriched", ', state="finished"')] = lambda t: 64 * (t >= FAULT)
    return exported


def estimated(exported: Exported) -> Exported:
    exported[series_of("estimated", "enriched")] = lambda t: 1
    return exported


WIKI = "https://wiki.example.org/enriched"
ANSWERS = {"owner": "ana", "team": "billing"}


def promised(exported: Exported, name: str, late: float, *, instance: str = "one") -> Exported:
    labels = f', owner="ana", team="billing", runbook="https://wiki.example.org/{name}"'
    for metric, more, value in (("promise_late_seconds", "", late), ("promise_info", labels, 1.0)):
        series = series_of(metric, name, more).replace("one:7421", f"{instance}:7421")
        exported[series] = lambda t, value=value: value  # type: ignore[misc]
    return exported


def test_a_promise_of_its_own_counts_instead_of_that_of_all_and_says_who_answers(tmp_path: Path) -> None:
    # It stands at 01:58:30 since 02:00:00, so it is older than 600 s at 02:09:00; 18 samples later, at 02:17:30, it burns, and two minutes
    # more. That of all would be broken at 02:30:00. Nothing else of the deployment is late by it.
    hour = ONE | {"window": "1h"} | ANSWERS
    says = {
        "summary": "enriched is late",
        "description": "In the last 1h its promise was broken for 18.18% of the time, and in the last 5m it still was. At this rate the"
        " objective of 99 % cannot be kept. What counts is its own promise, or where there is none, that it is complete 30 minutes after the"
        " end of a period.",
        "runbook_url": "monitoring/runbooks/pipeline.md#lowwaterpromisebroken",
        "owner_runbook_url": WIKI,
    }
    exported = promised(standing(), "enriched", 600)
    check(tmp_path, exported, {"LowwaterPromiseBroken": {OWN - 30: [], OWN: [hour | says]}}, says=True)


OWN = FAULT + 1170
"""When that fires."""


def silent() -> Exported:
    exported = named(standing())
    exported[series_of("last_report_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT)
    return exported


TWO = 'job="lowwater", instance="two:7421"'


def failed_over() -> Exported:
    """Another shard took enriched over from one that does not know it yet, and that still names the worker before."""
    exported = named(standing())
    for series in [name for name in exported if 'computation="enriched"' in name and "holder_info" not in name]:
        exported[series.replace("one:7421", "two:7421")] = later(exported[series])
    exported[f'lowwater_epoch{{{TWO}, computation="enriched"}}'] = later(lambda t: 4)
    holder = ', worker="exec-8", host="node-4", range="[40.., 44..)"'
    exported[f'lowwater_holder_info{{{TWO}, computation="enriched"{holder}}}'] = later(lambda t: 1)
    return exported


def later(value: Value) -> Value:
    """Return the second shard's value, which is missing in the first ten minutes of the fault."""
    return lambda t: value(t) if t >= FAULT + 600 else None


def silent_after_fail_over() -> Exported:
    """Enriched was taken over, its new holder died, and so did one of a computation that stayed where it is."""
    exported = failed_over()
    exported[f'lowwater_last_report_timestamp_seconds{{{TWO}, computation="enriched"}}'] = later(lambda t: FAULT + 570)
    exported[series_of("last_report_timestamp_seconds", "hourly")] = lambda t: min(t, FAULT)
    return exported


SUCCESSOR = {"worker": "exec-8", "host": "node-4"}
HOURLY = {"job": "lowwater", "computation": "hourly"}


def test_after_a_fail_over_the_newest_owners_holder_is_named_and_other_computations_still_alert(tmp_path: Path) -> None:
    # Two processes name a holder of enriched. Silent since 02:09:30, told of since 02:10:00: more than 30 s at 02:10:30, a minute more.
    check(
        tmp_path,
        silent_after_fail_over(),
        {"LowwaterHolderSilent": {7320: [HOURLY], 7860: [HOURLY], 7890: [HOURLY, ONE | WHO | SUCCESSOR]}},
    )


def test_a_worker_that_was_stopped_in_good_order_is_not_called_silent(tmp_path: Path) -> None:
    stopped = silent() | {series_of("holder_state", "enriched", ', state="stopped"'): lambda t: 1}
    check(tmp_path, stopped, {"LowwaterHolderSilent": {7320: [], 4 * HOURS: []}})


def unknown(ranges: int = 64) -> Exported:
    exported = healthy()
    missing = ("low_watermark", "lag_seconds", "last_report", "oldest_operation")
    for name in list(exported):
        if 'computation="enriched"' in name and any(word in name for word in missing):
            paused(exported, FAULT, 20 * HOURS, name)
    exported[series_of("watermark_state", "enriched", ', state="unknown"')] = lambda t: int(t >= FAULT)
    exported[series_of("ranges", "enriched", ', state="owned"')] = lambda t: ranges
    return exported


def waiting(leased: Value) -> Exported:
    exported = healthy()
    exported[series_of("tasks", "flights", ', group="close", state="ready"')] = lambda t: 3.0 * (t >= FAULT)
    exported[series_of("tasks", "flights", ', group="close", state="leased"')] = leased
    return exported


def behind(excused: Value) -> Exported:
    exported = healthy()
    for name, value in (("records", lambda t: 10.0 * t), ("behind", lambda t: 0.1 * t), ("excused", excused)):
        exported[series_of(f"lateness_budget_{name}_total", "flights", ', budget="0.01"')] = value
    return exported


def idle_but_renewed() -> Exported:
    """No data come: the inputs stand too, and the worker says so every few seconds."""
    exported = healthy()
    for name, low in (("flights", flowing), ("enriched", following)):
        computation(exported, name, steady(FAULT, low), None if name == "flights" else steady(FAULT, flowing))
    return named(exported)


def claimed_again() -> Exported:
    exported = healthy()
    exported[series_of("ranges", "enriched", ', state="unowned"')] = lambda t: 2 if FAULT <= t < FAULT + 120 else 0
    return exported


def retired() -> Exported:
    exported = healthy()
    exported[series_of("ranges", "enriched", ', state="retired"')] = lambda t: 2 if t >= FAULT else 0
    return exported


def fenced() -> Exported:
    exported = healthy()
    exported[own("lowwater_refused_reports_total", ', reason="STALE_SEQUENCER"')] = lambda t: max(0, t - FAULT)
    return exported


def begun(low: Value) -> Exported:
    """Enriched is new: it tells of itself for the first time at the moment of the fault."""
    exported = healthy()
    computation(exported, "enriched", low, flowing)
    paused(exported, 0, FAULT, 'computation="enriched"')
    return exported


def new_and_catching_up(fast: float) -> Exported:
    return begun(lambda t: min(following(t), t - 3 * HOURS + fast * max(0, t - FAULT)))


def one_slice_stands() -> Exported:
    """A slice of enriched stands still. Enriched does so as well then, and is told of: not each of its slices."""
    exported = healthy()
    computation(exported, "enriched~3", steady(FAULT, following), flowing)
    return exported


def with_series(name: str, value: Value) -> Exported:
    exported = healthy()
    exported[name] = value
    return exported


def hourly_stands() -> Exported:
    """Hourly stands at 07:00 since 08:00."""
    exported = healthy()
    computation(exported, "hourly", steady(8 * HOURS - 60, hourly), following)
    return exported


HOUR = HOURLY | {"window": "1h"}
UNOWNED = series_of("ranges", "enriched", ', state="unowned"')
STUCK = series_of("oldest_operation_timestamp_seconds", "enriched")
TOO_FAR = own("lowwater_refused_reports_total", ', reason="TOO_FAR_AHEAD"')
FIRES: dict[str, tuple[Callable[[], Exported], Mapping[float, Instances]]] = {
    # Due at 08:30:00 is 08:00; 18 of the 121 samples of an hour are more than 14.4 %, at 08:38:30, and that has to last for two minutes.
    # 44 of the 721 samples of six hours are more than 6 %, at 08:51:30; they have to last for a quarter of an hour.
    "LowwaterPromiseBroken": (
        hourly_stands,
        {31200: [], 31230: [HOUR], 32760: [HOUR], 32790: [HOUR, HOUR | {"window": "6h"}]},
    ),
    # It moved last at 02:00:00. More than 3,900 s later is 03:05:30, and five minutes more.
    "LowwaterWatermarkStalled": (standing, {11400: [], 11430: [ONE], 4 * HOURS: [ONE]}),
    # Its local lag, t - 7,170, is over 3,900 s at 03:04:30, and five minutes more.
    "LowwaterComputationHolds": (lambda: named(standing()), {11370: [], 11400: [ONE | WHO], 4 * HOURS: [ONE | WHO]}),
    # Silent for more than 30 s at 02:01:00, and one minute more.
    "LowwaterHolderSilent": (silent, {7290: [], 7320: [ONE | WHO], 7350: [ONE | WHO]}),
    "LowwaterWatermarkUnknown": (unknown, {7470: [], 7500: [ONE], 4 * HOURS: [ONE]}),
    "LowwaterRangesUnowned": (lambda: with_series(UNOWNED, lambda t: 2 if t >= FAULT else 0), {7470: [], 7500: [ONE]}),
    # It began at 01:59:55. Older than 900 s at 02:15:00, and five minutes more.
    "LowwaterOperationStuck": (lambda: with_series(STUCK, steady(FAULT, lambda t: t - 5)), {8370: [], 8400: [ONE]}),
    "LowwaterReportsRefused": (
        lambda: with_series(TOO_FAR, lambda t: 4 + max(0, t - FAULT) / 30),
        {7320: [], 7350: [{"job": "lowwater", "reason": "TOO_FAR_AHEAD"}]},
    ),
    "LowwaterTasksNotTaken": (
        lambda: waiting(lambda t: 0),
        {FAULT + 870: [], FAULT + 900: [{"job": "lowwater", "computation": "flights", "group": "close"}]},
    ),
    # It is older than 5,400 s at 03:28:30 and older for a quarter of an hour at 03:43:30.
    "LowwaterEstimateLate": (lambda: estimated(silent()), {13410: [], 13440: [ONE]}),
    "LowwaterLatenessJumped": (
        lambda: behind(lambda t: 0.0 if t < FAULT else 120.0),
        {FAULT - 30: [], FAULT: [{"job": "lowwater", "computation": "flights", "budget": "0.01"}], 4 * HOURS: []},
    ),
}


@pytest.mark.parametrize("alert", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, alert: str) -> None:
    make, expected = FIRES[alert]
    check(tmp_path, make(), {alert: expected})


def catching_up() -> Exported:
    exported = healthy()
    low: Callable[[float], float] = lambda t: following(t) - max(0, 5000 - max(0, t - FAULT) / 4) * (t >= FAULT)  # noqa: E731
    exported[series_of("local_lag_seconds", "enriched")] = lambda t: difference(flowing(t), low(t))
    return named(exported)


HARMLESS: dict[str, tuple[Callable[[], Exported], tuple[str, ...]]] = {
    "new and catches up in minutes": (lambda: new_and_catching_up(20), ()),
    "unknown before anybody claimed": (lambda: unknown(0), ()),
    "an estimate": (lambda: estimated(silent() | {STUCK: steady(FAULT, lambda t: t - 5)}), ("LowwaterEstimateLate",)),
    "finished while it stood": (lambda: finished(named(standing(FAULT - 300), FAULT)), ("LowwaterHolderSilent",)),
    # Its promise is broken, and that is told: old data are old data. But nobody is guilty of it.
    "idle but renewed": (idle_but_renewed, ("LowwaterPromiseBroken",)),
    # Catching up, claimed again, retired, fenced, a slice stands, tasks wait while somebody works, a lateness budget pays.
    "all at once": (
        lambda: together(
            *(catching_up, claimed_again, retired, fenced, one_slice_stands),
            *(lambda: waiting(lambda t: float(t % 900 < 600)), lambda: behind(lambda t: 0.0)),
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    made, but = HARMLESS[name]
    # All of them where all happens at once; promtool takes seconds for each case otherwise.
    check(tmp_path, made(), quiet(AFTER, *but, of_these=() if name == "all at once" else FIRES))


def test_an_alert_that_says_who_answers_goes_on_while_nothing_is_scraped(tmp_path: Path) -> None:
    exported = promised(standing(), "enriched", 600)
    hour = {**ONE, **ANSWERS, "window": "1h"}
    fires = FAULT + 1500
    paused(exported, fires + 300, fires + 390)
    expected: dict[str, Mapping[float, Instances]] = {
        "LowwaterPromiseBroken": {at: [hour] for at in (fires + 270, *range(fires + 300, fires + 600, 30))}
    }
    check(tmp_path, exported, expected)


def relieved() -> Exported:
    """The shard before says of enriched that its holder is silent, its ranges are left and its operation does not end."""
    exported = failed_over()
    exported[series_of("last_report_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT + 600)
    exported[series_of("oldest_operation_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT + 600)
    exported[series_of("ranges", "enriched", ', state="unowned"')] = lambda t: 2 if t >= FAULT + 600 else 0
    # Of its successor neither is known: nobody reported since.
    for name in ("last_report", "oldest_operation"):
        paused(exported, 0, 20 * HOURS, f'lowwater_{name}_timestamp_seconds{{{TWO}, computation="enriched"')
    return exported


def test_who_was_relieved_accuses_nobody(tmp_path: Path) -> None:
    check(
        tmp_path,
        relieved(),
        quiet(AFTER, "LowwaterComputationHolds", "LowwaterWatermarkStalled", "LowwaterPromiseBroken", of_these=FIRES),
    )


def test_records_that_were_excused_stay_told_while_nothing_is_scraped(tmp_path: Path) -> None:
    exported = behind(lambda t: 0.0 if t < FAULT else 120.0)
    paused(exported, FAULT + 300, FAULT + 390)
    budget = {"job": "lowwater", "computation": "flights", "budget": "0.01"}
    check(tmp_path, exported, {"LowwaterLatenessJumped": {FAULT + at: [budget] for at in range(270, 600, 30)}})
