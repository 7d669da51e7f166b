"""Each alert about the data fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monitoring.recordings import BROKEN, EXACT, FRESHNESS, LOCAL_LAG
from monitoring.rules import NO_SLICE
from tests.monitoring.exported import (
    HOURS,
    Expected,
    Exported,
    Value,
    changed,
    check,
    computation,
    difference,
    flowing,
    following,
    healthy,
    held,
    hourly,
    of,
    own,
    paused,
    quiet,
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
    low = held(at, following)
    computation(exported, "enriched", low, flowing)
    exported[of("local_lag_seconds", "hourly")] = lambda t: difference(low(t), hourly(min(t, at)))
    return exported


def named(exported: Exported, begin: float = FAULT + 30) -> Exported:
    """The authority names who holds enriched."""
    labels = ', worker="exec-7", host="node-3", range="[40.., 44..)"'
    exported[of("holder_info", "enriched", labels)] = lambda t: 1 if t >= begin else None
    return exported


def finished(exported: Exported) -> Exported:
    """Enriched ends: of a finished computation neither its time nor its lag is exported."""
    gone = ("low_watermark_timestamp_seconds", "lag_seconds", "last_report", "oldest_operation")
    for name in list(exported):
        if 'computation="enriched"' in name and any(word in name for word in gone):
            paused(exported, FAULT, 20 * HOURS, name)
    exported[of("ranges", "enriched", ', state="owned"')] = lambda t: 64 * (t < FAULT)
    exported[of("ranges", "enriched", ', state="finished"')] = lambda t: 64 * (t >= FAULT)
    return exported


def estimated(exported: Exported) -> Exported:
    """Nobody promises enriched."""
    exported[of("estimated", "enriched")] = lambda t: 1
    return exported


def test_a_broken_promise_fires_after_its_share_of_an_hour(tmp_path: Path) -> None:
    # Hourly stands at 07:00 since 08:00. Due at 08:30:00 is 08:00, so it is broken from then on; 18 of the 121 samples of an hour
    # are more than 14.4 %, at 08:38:30, and that has to last for two minutes.
    exported = healthy()
    low = held(8 * HOURS - 60, hourly)
    computation(exported, "hourly", low, following)
    hour = {"job": "lowwater", "computation": "hourly", "window": "1h"}
    # 44 of the 721 samples of six hours are more than 6 %, at 08:51:30; they have to last for a quarter of an hour.
    six = hour | {"window": "6h"}
    check(tmp_path, exported, {"LowwaterPromiseBroken": {31200: [], 31230: [hour], 32760: [hour], 32790: [hour, six]}})


def test_a_broken_promise_that_is_kept_again_does_not_fire(tmp_path: Path) -> None:
    # Eight minutes late, once: two thirds of a quarter of an hour's worth of the budget.
    exported = healthy()
    computation(exported, "hourly", lambda t: hourly(t) if t >= 9480 else held(FAULT - 60, hourly)(t), following)
    check(tmp_path, exported, quiet(AFTER, "LowwaterWatermarkStalled", "LowwaterComputationHolds"))


WIKI = "https://wiki.example.org/enriched"
ANSWERS = {"owner": "ana", "team": "billing"}


def promised(exported: Exported, name: str, late: float, *, instance: str = "one") -> Exported:
    """Something is promised of a computation."""
    labels = f', owner="ana", team="billing", runbook="https://wiki.example.org/{name}"'
    for metric, more, value in (("promise_late_seconds", "", late), ("promise_info", labels, 1.0)):
        series = of(metric, name, more).replace("one:7421", f"{instance}:7421")
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


def test_an_alert_that_says_who_answers_goes_on_while_nothing_is_scraped(tmp_path: Path) -> None:
    """As when a computation moves: with other labels it would be another alert, and the one that fired would end."""
    exported = promised(standing(), "enriched", 600)
    hour = {**ONE, **ANSWERS, "window": "1h"}
    fires = FAULT + 1500
    paused(exported, fires + 300, fires + 390)
    expected: Expected = {
        "LowwaterPromiseBroken": {at: [hour] for at in (fires + 270, *range(fires + 300, fires + 600, 30))}
    }
    check(tmp_path, exported, expected)


def test_a_promise_that_allows_more_is_quiet_for_longer_and_for_its_computation_alone(tmp_path: Path) -> None:
    """Hourly and enriched stand; three hours were promised of hourly, and nothing of enriched."""
    exported = healthy()
    computation(exported, "hourly", held(FAULT - 60, hourly), following)
    computation(exported, "enriched", held(FAULT - 60, following), flowing)
    enriched = ONE | {"window": "1h"}
    both = [HOURLY | {"window": "1h"}, enriched]
    for name, made, expected in (
        ("none", exported, both),
        ("three", promised(dict(exported), "hourly", 3 * HOURS), [enriched]),
    ):
        (tmp_path / name).mkdir()
        check(tmp_path / name, made, {"LowwaterPromiseBroken": {FAULT + 3000: expected}})


def test_one_wrong_promise_fires_for_its_computation_alone(tmp_path: Path) -> None:
    """A second was promised of a source that is a minute behind."""
    flights = {"job": "lowwater", "computation": "flights", "window": "1h"} | ANSWERS
    check(
        tmp_path,
        promised(healthy(), "flights", 1),
        {**quiet(AFTER, "LowwaterPromiseBroken"), "LowwaterPromiseBroken": {2 * HOURS: [flights]}},
    )


def test_other_alerts_of_a_computation_say_who_answers_too(tmp_path: Path) -> None:
    check(
        tmp_path,
        promised(silent(), "enriched", 20 * HOURS),
        {"LowwaterHolderSilent": {7290: [], 7320: [ONE | WHO | ANSWERS]}, "LowwaterPromiseBroken": {7320: []}},
    )


def twice_promised() -> Exported:
    """Two processes of one epoch serve enriched, and have files that differ."""
    exported = promised(silent_after_fail_over(), "enriched", 20 * HOURS)
    exported[f'lowwater_epoch{{{TWO}, computation="enriched"}}'] = later(lambda t: 3)
    exported[f'lowwater_promise_info{{{TWO}, computation="enriched", owner="zoe", runbook="", team="b"}}'] = later(
        lambda t: 1
    )
    return exported


def test_two_promises_of_one_computation_do_not_stop_the_alerts_of_others(tmp_path: Path) -> None:
    check(tmp_path, twice_promised(), {"LowwaterHolderSilent": {7860: [HOURLY], FAULT + 1200: [HOURLY]}})


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_without_its_care_they_would(tmp_path: Path) -> None:
    check(
        tmp_path,
        twice_promised(),
        {"LowwaterHolderSilent": {7860: [HOURLY], FAULT + 1200: [HOURLY]}},
        careless=("topk by (job, computation) (1, max by (job, computation, owner", "(max by (job, computation, owner"),
    )


def test_a_shard_that_was_relieved_promises_nothing(tmp_path: Path) -> None:
    """Its file is an old one, and what it says of lateness would fire."""
    check(
        tmp_path,
        promised(failed_over(), "enriched", 600),
        {"LowwaterPromiseBroken": {OWN + 30: [], OWN + 600: []}},
    )


def test_an_estimate_is_old_by_its_own_promise(tmp_path: Path) -> None:
    # It stands at 01:58:30: older than 600 s at 02:09:00, and a quarter of an hour more.
    exported = promised(estimated(standing()), "enriched", 600)
    check(
        tmp_path,
        exported,
        {
            "LowwaterEstimateLate": {FAULT + 1410: [], FAULT + 1440: [ONE | ANSWERS]},
            "LowwaterPromiseBroken": {4 * HOURS: []},
        },
    )


def test_a_stalled_watermark_fires_once_it_stood_longer_than_a_window_takes(tmp_path: Path) -> None:
    # It moved last at 02:00:00. More than 3,900 s later is 03:05:30, and five minutes more.
    check(tmp_path, standing(), {"LowwaterWatermarkStalled": {11400: [], 11430: [ONE], 4 * HOURS: [ONE]}})


def test_who_holds_is_named_once_the_lag_says_that_it_holds(tmp_path: Path) -> None:
    # Its local lag, t - 7,170, is over 3,900 s at 03:04:30, and five minutes more.
    check(
        tmp_path,
        named(standing()),
        {"LowwaterComputationHolds": {11370: [], 11400: [ONE | WHO], 4 * HOURS: [ONE | WHO]}},
    )


def test_who_holds_without_a_name_is_told_all_the_same(tmp_path: Path) -> None:
    check(tmp_path, standing(), {"LowwaterComputationHolds": {11370: [], 11400: [ONE]}})


def silent() -> Exported:
    """The worker that holds enriched died."""
    exported = named(standing())
    exported[of("last_report_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT)
    return exported


def test_a_silent_holder_is_named(tmp_path: Path) -> None:
    # Silent for more than 30 s at 02:01:00, and one minute more.
    check(tmp_path, silent(), {"LowwaterHolderSilent": {7290: [], 7320: [ONE | WHO], 7350: [ONE | WHO]}})


def test_a_silent_holder_is_told_of_in_words_that_name_it(tmp_path: Path) -> None:
    says = {
        "summary": "A worker that holds enriched is silent",
        "description": "Nothing has come for 2m 0s from a worker whose key range holds the low watermark. Silence never advances it: the"
        " range has to be claimed by a worker that lives. The key range is [40.., 44..), of exec-7 on node-3.",
        "runbook_url": "monitoring/runbooks/pipeline.md#lowwaterholdersilent",
        "owner_runbook_url": "",
    }
    check(tmp_path, silent(), {"LowwaterHolderSilent": {7320: [ONE | WHO | says]}}, says=True)


def dead(until: float) -> Exported:
    """The job that makes hourly is gone since a moment, and is dropped at another."""
    exported = healthy()
    computation(exported, "hourly", held(FAULT, hourly), following)
    exported[of("last_report_timestamp_seconds", "hourly")] = lambda t: min(t, FAULT)
    labels = ', worker="exec-9", host="node-1", range="[.., ..)"'
    exported[of("holder_info", "hourly", labels)] = lambda t: 1 if t >= FAULT + 30 else None
    paused(exported, until, 20 * HOURS, 'computation="hourly"')
    exported[own("lowwater_registered_computations")] = lambda t: 3 if t < until else 2
    return exported


def test_what_is_told_of_a_job_that_is_gone_ends_when_it_is_dropped(tmp_path: Path) -> None:
    """Without a drop these fire for ever; with it they end with its series, and nothing else is told of."""
    hour = {"job": "lowwater", "computation": "hourly"}
    who = {"worker": "exec-9", "host": "node-1", "range": "[.., ..)"}
    drop = FAULT + 6300  # the promise is broken by then, too
    kept: Expected = {"LowwaterHolderSilent": {drop + 600: [hour | who]}}
    (tmp_path / "kept").mkdir()
    check(tmp_path / "kept", dead(20 * HOURS), kept)
    # A burnt budget is looked back at for half an hour.
    ends: Expected = {
        **quiet((drop + 30, drop + 1830), "LowwaterPromiseBroken"),
        "LowwaterPromiseBroken": {drop + 1830: []},
        "LowwaterHolderSilent": {drop - 30: [hour | who], drop + 30: [], drop + 1830: []},
    }
    check(tmp_path, dead(drop), ends)


TWO = 'job="lowwater", instance="two:7421"'
ONE_HOLDER, EVERY_HOLDER = "topk by (job, computation) (1, ", "("


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
    """What the second shard says: nothing in the first ten minutes of the fault."""
    return lambda t: value(t) if t >= FAULT + 600 else None


def silent_after_fail_over() -> Exported:
    """Enriched was taken over, its new holder died, and so did one of a computation that stayed where it is."""
    exported = failed_over()
    exported[f'lowwater_last_report_timestamp_seconds{{{TWO}, computation="enriched"}}'] = later(lambda t: FAULT + 570)
    exported[of("last_report_timestamp_seconds", "hourly")] = lambda t: min(t, FAULT)
    return exported


SUCCESSOR = {"worker": "exec-8", "host": "node-4"}
HOURLY = {"job": "lowwater", "computation": "hourly"}


def test_after_a_fail_over_the_holder_of_the_newest_owner_is_named_and_other_computations_still_alert(
    tmp_path: Path,
) -> None:
    # Two processes name a holder of enriched. Silent since 02:09:30, told of since 02:10:00: more than 30 s at 02:10:30, a minute more.
    check(
        tmp_path,
        silent_after_fail_over(),
        {"LowwaterHolderSilent": {7320: [HOURLY], 7860: [HOURLY], 7890: [HOURLY, ONE | WHO | SUCCESSOR]}},
    )


def test_after_a_fail_over_it_is_told_who_holds(tmp_path: Path) -> None:
    check(tmp_path, failed_over(), {"LowwaterComputationHolds": {11370: [], 11400: [ONE | WHO | SUCCESSOR]}})


def relieved() -> Exported:
    """The shard before says of enriched that its holder is silent, its ranges are left and its operation does not end."""
    exported = failed_over()
    exported[of("last_report_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT + 600)
    exported[of("oldest_operation_timestamp_seconds", "enriched")] = lambda t: min(t, FAULT + 600)
    exported[of("ranges", "enriched", ', state="unowned"')] = lambda t: 2 if t >= FAULT + 600 else 0
    # Of its successor neither is known: nobody reported since.
    for name in ("last_report", "oldest_operation"):
        paused(exported, 0, 20 * HOURS, f'lowwater_{name}_timestamp_seconds{{{TWO}, computation="enriched"')
    return exported


def test_who_was_relieved_accuses_nobody(tmp_path: Path) -> None:
    check(
        tmp_path,
        relieved(),
        quiet(AFTER, "LowwaterComputationHolds", "LowwaterWatermarkStalled", "LowwaterPromiseBroken"),
    )


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_without_the_epoch_who_was_relieved_would_accuse(tmp_path: Path) -> None:
    check(
        tmp_path,
        relieved(),
        quiet(AFTER, "LowwaterComputationHolds", "LowwaterWatermarkStalled", "LowwaterPromiseBroken"),
        careless=(" and on (job, instance, computation) instance:lowwater_epoch:newest", ""),
    )


def test_two_owners_of_one_epoch_do_not_stop_the_alert_that_names_the_holder(tmp_path: Path) -> None:
    exported = silent_after_fail_over()
    exported[f'lowwater_epoch{{{TWO}, computation="enriched"}}'] = later(lambda t: 3)
    check(tmp_path, exported, {"LowwaterHolderSilent": {7320: [HOURLY], 7860: [HOURLY], FAULT + 1200: [HOURLY]}})


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_two_holders_of_one_computation_would_stop_it(tmp_path: Path) -> None:
    exported = silent_after_fail_over()
    exported[f'lowwater_epoch{{{TWO}, computation="enriched"}}'] = later(lambda t: 3)
    check(
        tmp_path,
        exported,
        {"LowwaterHolderSilent": {7860: [HOURLY], FAULT + 1200: [HOURLY]}},
        careless=(ONE_HOLDER, EVERY_HOLDER),
    )


def unknown(ranges: int = 64) -> Exported:
    """Enriched was claimed, and a range of it never reported."""
    exported = healthy()
    gone = ("low_watermark", "lag_seconds", "last_report", "oldest_operation")
    for name in list(exported):
        if 'computation="enriched"' in name and any(word in name for word in gone):
            paused(exported, FAULT, 20 * HOURS, name)
    exported[of("watermark_state", "enriched", ', state="unknown"')] = lambda t: int(t >= FAULT)
    exported[of("ranges", "enriched", ', state="owned"')] = lambda t: ranges
    return exported


def test_an_unknown_watermark_of_claimed_ranges_fires_after_five_minutes(tmp_path: Path) -> None:
    check(tmp_path, unknown(), {"LowwaterWatermarkUnknown": {7470: [], 7500: [ONE], 4 * HOURS: [ONE]}})


def test_ranges_without_an_owner_fire_after_five_minutes(tmp_path: Path) -> None:
    exported = healthy()
    exported[of("ranges", "enriched", ', state="unowned"')] = lambda t: 2 if t >= FAULT else 0
    check(tmp_path, exported, {"LowwaterRangesUnowned": {7470: [], 7500: [ONE]}})


def test_ranges_that_nobody_ever_claimed_fire_too(tmp_path: Path) -> None:
    exported = healthy()
    exported[of("ranges", "enriched", ', state="never_claimed"')] = lambda t: 1 if t >= FAULT else 0
    check(tmp_path, exported, {"LowwaterRangesUnowned": {7470: [], 7500: [ONE]}})


def test_an_operation_that_does_not_end_fires(tmp_path: Path) -> None:
    # It began at 01:59:55. Older than 900 s at 02:15:00, and five minutes more.
    exported = healthy()
    exported[of("oldest_operation_timestamp_seconds", "enriched")] = held(FAULT, lambda t: t - 5)
    check(tmp_path, exported, {"LowwaterOperationStuck": {8370: [], 8400: [ONE]}})


def test_reports_with_bad_timestamps_fire(tmp_path: Path) -> None:
    exported = healthy()
    exported[own("lowwater_refused_reports_total", ', reason="TOO_FAR_AHEAD"')] = lambda t: 4 + max(0, t - FAULT) / 30
    check(
        tmp_path,
        exported,
        {"LowwaterReportsRefused": {7320: [], 7350: [{"job": "lowwater", "reason": "TOO_FAR_AHEAD"}]}},
    )


def waiting(leased: Value) -> Exported:
    """Tasks of flights wait from a moment on."""
    exported = healthy()
    exported[of("tasks", "flights", ', group="close", state="ready"')] = lambda t: 3.0 * (t >= FAULT)
    exported[of("tasks", "flights", ', group="close", state="leased"')] = leased
    return exported


def test_tasks_that_nobody_takes_fire_after_a_quarter_of_an_hour(tmp_path: Path) -> None:
    group = {"job": "lowwater", "computation": "flights", "group": "close"}
    expected: Expected = {"LowwaterTasksNotTaken": {FAULT + 870: [], FAULT + 900: [group]}}
    check(tmp_path, waiting(lambda t: 0), expected)


def quick() -> Exported:
    """Each worker has its task for a second, so no scrape sees one."""
    exported = waiting(lambda t: 0)
    exported[of("tasks_closed_timestamp_seconds", "flights", ', group="close"')] = flowing
    return exported


def test_an_estimate_alerts_as_an_estimate_and_never_as_exact(tmp_path: Path) -> None:
    # It is older than 5,400 s at 03:28:30 and older for a quarter of an hour at 03:43:30; what stands behind it stands too.
    exported = estimated(silent())
    late: Expected = {"LowwaterEstimateLate": {13410: [], 13440: [ONE]}}
    check(tmp_path, exported, {**quiet(AFTER, "LowwaterEstimateLate"), **late})


def behind(excused: Value) -> Exported:
    """Records of flights come behind its lateness budget, 6 a minute of 600."""
    exported = healthy()
    for name, value in (("records", lambda t: 10.0 * t), ("behind", lambda t: 0.1 * t), ("excused", excused)):
        exported[of(f"lateness_budget_{name}_total", "flights", ', budget="0.01"')] = value
    return exported


def test_records_that_a_lateness_budget_cannot_pay_for_are_told(tmp_path: Path) -> None:
    excused = behind(lambda t: 0.0 if t < FAULT else 120.0)
    budget = {"job": "lowwater", "computation": "flights", "budget": "0.01"}
    expected: Expected = {"LowwaterLatenessJumped": {FAULT - 30: [], FAULT: [budget], FAULT + 2 * HOURS: []}}
    check(tmp_path, excused, expected)


def test_records_that_were_excused_stay_told_while_nothing_is_scraped(tmp_path: Path) -> None:
    exported = behind(lambda t: 0.0 if t < FAULT else 120.0)
    paused(exported, FAULT + 300, FAULT + 390)
    budget = {"job": "lowwater", "computation": "flights", "budget": "0.01"}
    check(tmp_path, exported, {"LowwaterLatenessJumped": {FAULT + at: [budget] for at in range(270, 600, 30)}})


def idle_but_renewed() -> Exported:
    """No data come: the inputs stand too, and the worker says so every few seconds."""
    exported = healthy()
    for name, low in (("flights", flowing), ("enriched", following)):
        computation(exported, name, held(FAULT, low), None if name == "flights" else held(FAULT, flowing))
    return named(exported)


def catching_up() -> Exported:
    """Far behind after a pause, and faster than its input."""
    exported = healthy()
    low: Callable[[float], float] = lambda t: following(t) - max(0, 5000 - max(0, t - FAULT) / 4) * (t >= FAULT)  # noqa: E731
    exported[of("local_lag_seconds", "enriched")] = lambda t: difference(flowing(t), low(t))
    return named(exported)


def claimed_again() -> Exported:
    """Two minutes without an owner."""
    exported = healthy()
    exported[of("ranges", "enriched", ', state="unowned"')] = lambda t: 2 if FAULT <= t < FAULT + 120 else 0
    return exported


def retired() -> Exported:
    """Ranges that were taken out."""
    exported = healthy()
    exported[of("ranges", "enriched", ', state="retired"')] = lambda t: 2 if t >= FAULT else 0
    return exported


def fenced() -> Exported:
    """Reports of a worker that was replaced are refused."""
    exported = healthy()
    exported[own("lowwater_refused_reports_total", ', reason="STALE_SEQUENCER"')] = lambda t: max(0, t - FAULT)
    return exported


def from_nothing(value: Value) -> Value:
    """A counter that begins anew."""
    lost = value(FAULT) or 0
    return lambda t: value(t) if t < FAULT else (value(t) or 0) - lost


def restarted() -> Exported:
    """The authority is away for half a minute, and counts from nothing again."""
    exported = healthy()
    for series, value in list(exported.items()):
        if "_total" in series or "_bucket" in series:
            exported[series] = from_nothing(value)
    paused(exported, FAULT, FAULT + 30)
    return exported


def begun(low: Value) -> Exported:
    """Enriched is new: it tells of itself for the first time at the moment of the fault."""
    exported = healthy()
    computation(exported, "enriched", low, flowing)
    paused(exported, 0, FAULT, 'computation="enriched"')
    return exported


def new_and_catching_up(fast: float) -> Exported:
    """A new computation begins three hours behind, and gains."""
    return begun(lambda t: min(following(t), t - 3 * HOURS + fast * max(0, t - FAULT)))


def test_a_new_computation_that_falls_behind_fires_after_half_an_hour(tmp_path: Path) -> None:
    # Three hours behind since 02:00:00 and no nearer: at 02:30:00 there is half an hour of history, and it lasts two minutes more.
    hour = ONE | {"window": "1h"}
    check(
        tmp_path, begun(lambda t: t - 3 * HOURS), {"LowwaterPromiseBroken": {9090: [], 9120: [hour], 4 * HOURS: [hour]}}
    )


def one_slice_stands() -> Exported:
    """A slice of enriched stands still. Enriched does so as well then, and is told of: not each of its slices."""
    exported = healthy()
    computation(exported, "enriched~3", held(FAULT, following), flowing)
    return exported


HARMLESS: dict[str, tuple[Callable[[], Exported], tuple[str, ...]]] = {
    "new and catches up in minutes": (lambda: new_and_catching_up(20), ()),
    "new and catches up in hours": (lambda: new_and_catching_up(2), ()),
    "unknown before anybody claimed": (lambda: unknown(0), ()),
    "finished": (lambda: finished(healthy()), ()),
    "finished while it stood": (lambda: finished(named(standing(FAULT - 300), FAULT)), ("LowwaterHolderSilent",)),
    # Its promise is broken, and that is told: old data are old data. But nobody is guilty of it.
    "idle but renewed": (idle_but_renewed, ("LowwaterPromiseBroken",)),
    "catching up, workers are quick": (lambda: together(catching_up, quick), ()),
    "restarted": (restarted, ()),
    # Claimed again, retired, fenced, a slice stands, tasks wait while somebody works, a lateness budget pays.
    "all at once": (
        lambda: together(
            *(claimed_again, retired, fenced, one_slice_stands),
            *(lambda: waiting(lambda t: float(t % 900 < 600)), lambda: behind(lambda t: 0.0)),
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    made, but = HARMLESS[name]
    check(tmp_path, made(), quiet(AFTER, *but))


CARELESS: dict[str, tuple[Callable[[], Exported], str, str]] = {
    "estimated as exact": (lambda: estimated(silent()), EXACT, ""),
    "idle but renewed": (idle_but_renewed, f"and on (job, computation) ({LOCAL_LAG} - {LOCAL_LAG} offset 10m > 0)", ""),
    "catching up": (catching_up, f"and deriv({LOCAL_LAG}[10m]) > 0.1", ""),
    "unknown before anybody claimed": (
        lambda: unknown(0),
        '(lowwater_ranges{state=~"owned"} and on (job, instance, computation) instance:lowwater_epoch:newest) > 0',
        "(lowwater_ranges) >= 0",
    ),
    "retired": (retired, 'state=~"unowned|never_claimed"', 'state!="owned"'),
    "fenced": (fenced, 'reason=~"TOO_FAR_AHEAD|FINISH_REQUIRED"', ""),
    "a slice": (one_slice_stands, f"{{{NO_SLICE}}}", ""),
}


@pytest.mark.xfail(strict=True, raises=AssertionError)
@pytest.mark.parametrize("name", CARELESS)
def test_without_its_care_a_rule_would_fire_for_the_neighbour(tmp_path: Path, name: str) -> None:
    made, care, instead = CARELESS[name]
    check(
        tmp_path,
        made(),
        quiet((FAULT + 1800, 4 * HOURS), "LowwaterPromiseBroken", "LowwaterEstimateLate"),
        careless=(care, instead),
    )


KNOWN = {
    "history": (20, FAULT + 180, f"and on (job, computation) max_over_time({BROKEN}[1h] offset 30m)"),
    "slope": (
        2,
        FAULT + 2400,
        f"unless on (job, computation) (({FRESHNESS} < {FRESHNESS} offset 30m) unless {FRESHNESS} offset 6h)",
    ),
}
"""What keeps a new computation quiet: how fast one gains, and when it would be told of without that."""


@pytest.mark.parametrize("care", KNOWN)
def test_without_its_care_a_new_computation_that_catches_up_would_page(tmp_path: Path, care: str) -> None:
    """A broken promise of two samples is one of 100 %."""
    fast, at, part = KNOWN[care]
    hour = ONE | {"window": "1h"}
    check(tmp_path, new_and_catching_up(fast), {"LowwaterPromiseBroken": {at: [hour]}}, careless=(part, ""))


def test_the_moment_of_a_low_watermark_is_found_by_looking_back() -> None:
    assert [changed(hourly)(t) for t in (0, 3690, 3720, 7290, 7320)] == [0, 0, 3720, 3720, 7320]
