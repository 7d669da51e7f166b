"""Each alert about clients, Spark jobs, deduplicators and regions fires at its second, and its nearest harmless neighbour does not fire it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.monitoring.exported import (
    HOURS,
    Expected,
    Exported,
    Value,
    check,
    dedup,
    healthy,
    own,
    paused,
    query,
    quiet,
    shards,
    together,
)

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
JOB = {"job": "lowwater"}
QUERY = {"job": "spark", "query": "q", "computation": "enriched"}
DRIVER = {"job": "spark", "instance": "d:1"}
WORKER = {"job": "worker", "instance": "w:1"}
PARTITION = {"job": "dedup", "topic": "orders", "partition": "0"}
GLOBAL = "global:7431"
ABOVE = {"job": "lowwater", "instance": GLOBAL}
NAMES = {
    "late": query("late_rows_total"),
    "untimed": query("untimed_rows_total"),
    "holding": query("holding"),
    "answers": shards("answers"),
    "away": shards("away"),
    "alone": shards("left_alone"),
    "sent": 'lowwater_client_reports_total{job="worker", instance="w:1"}',
    "acknowledged": 'lowwater_client_acknowledged_reports_total{job="worker", instance="w:1"}',
    "unserved": 'lowwater_client_unserved_computations{job="worker", instance="w:1"}',
    "running": dedup("running"),
    "refused": dedup("refused"),
    "commits": dedup("commits_total"),
    "up": own("up", "", GLOBAL),
    "built": own("lowwater_global_build_info", ', version="1"', GLOBAL),
    "started": own("process_start_time_seconds", "", GLOBAL),
    "serving": own("lowwater_global_serving", "", GLOBAL),
    "damaged": own("lowwater_damaged_references", "", GLOBAL),
    "suspect": own("lowwater_region_suspect", ', region="eu"', GLOBAL),
    "holds": own("lowwater_reference_holds", ', reference="hourly:clicks", region="eu"', GLOBAL),
}


def on(t: float, until: float = 20 * HOURS) -> float:
    return float(FAULT <= t < until)


def off(t: float) -> float:
    return 1 - on(t)


def never(t: float) -> float:
    return 0 * t


def changed(**values: Value) -> Exported:
    return healthy() | {NAMES[name]: value for name, value in values.items()}


def regions(**values: Value) -> Exported:
    well = {"up": lambda t: 1 + never(t), "damaged": never, "suspect": never, "holds": never, "started": never}
    return changed(**{**well, "built": well["up"], "serving": well["up"], **values})


def without(exported: Exported, words: str, until: float = 20 * HOURS) -> Exported:
    paused(exported, FAULT, until, words)
    return exported


def global_down(until: float = 20 * HOURS) -> Exported:
    return without(regions(), f'instance="{GLOBAL}"', until) | {NAMES["up"]: lambda t: 1 - on(t, until)}


def stands(t: float) -> float:
    return min(t, FAULT)


FIRES: dict[str, tuple[Callable[[], Exported], Expected]] = {
    "rows are late": (lambda: changed(late=lambda t: 3 * on(t)), {"LowwaterLateRows": {3570: [], 3600: [QUERY]}}),
    "rows have no time": (
        lambda: changed(untimed=lambda t: 3 * on(t)),
        {"LowwaterUntimedRows": {3570: [], 3600: [QUERY], 4470: [QUERY], 4500: []}},
    ),
    "a query holds": (lambda: changed(holding=on), {"LowwaterQueryHolding": {4170: [], 4200: [QUERY]}}),
    "nobody answers the driver": (
        lambda: changed(alone=on, answers=off),
        {"LowwaterAttachLeftAlone": {3870: [], 3900: [DRIVER]}},
    ),
    # Five minutes later none of the samples has seen it grow.
    "reports are unanswered": (
        lambda: changed(acknowledged=stands),
        {"LowwaterReportsUnanswered": {3990: [], 4020: [WORKER]}},
    ),
    "computations are unserved": (
        lambda: changed(unserved=lambda t: 2 * on(t)),
        {"LowwaterUnserved": {3690: [], 3720: [WORKER]}},
    ),
    "a partition has refused": (
        lambda: changed(running=off, refused=on, commits=stands),
        {"LowwaterDedupRefused": {3630: [], 3660: [PARTITION]}, "LowwaterDedupHeld": {6600: []}},
    ),
    "a deduplicator is gone": (
        lambda: without(healthy(), "lowwater_dedup_"),
        {"LowwaterDedupAbsent": {3870: [], 3930: [PARTITION], 7600: []}},
    ),
    "a partition is held": (
        lambda: changed(running=off, commits=stands),
        {"LowwaterDedupHeld": {4170: [], 4200: [PARTITION]}},
    ),
    "the global authority is down": (global_down, {"LowwaterGlobalDown": {3870: [], 3900: [ABOVE]}}),
    "it does not serve": (lambda: regions(serving=off), {"LowwaterGlobalNotServing": {3630: [], 3660: [ABOVE]}}),
    "a region is suspect": (
        lambda: regions(suspect=on),
        {"LowwaterRegionSuspect": {3690: [], 3720: [JOB | {"region": "eu"}]}},
    ),
    "a reference holds": (
        lambda: regions(holds=on),
        {"LowwaterReferenceHolds": {4470: [], 4500: [JOB | {"reference": "hourly:clicks"}]}},
    ),
    "a reference is damaged": (lambda: regions(damaged=on), {"LowwaterReferenceDamaged": {3570: [], 3600: [ABOVE]}}),
}


@pytest.mark.parametrize("case", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, case: str) -> None:
    make, expected = FIRES[case]
    check(tmp_path, make(), expected)


def restarted() -> Exported:
    exported = changed(late=lambda t: 5.0 * (t < FAULT), acknowledged=lambda t: t % FAULT, sent=lambda t: t % FAULT)
    paused(exported, FAULT, FAULT + 90, "lowwater_client_", "lowwater_spark_")
    return exported


def handed_over() -> Exported:
    """A partition goes from process to process: the old one exports it no more, the new one opens it for a while."""
    exported = changed(running=lambda t: 1 - on(t, FAULT + 240), commits=lambda t: max(0, t - FAULT - 240))
    return without(exported, "lowwater_dedup_", FAULT + 90)


HARMLESS: dict[str, Callable[[], Exported]] = {
    "restarted": restarted,
    "a stage holds for a while, an authority is away and tried again, a worker has nothing to say, shards change": (
        lambda: together(
            lambda: changed(holding=lambda t: on(t, FAULT + 300)),
            lambda: changed(away=on, answers=off),
            lambda: changed(sent=stands, acknowledged=stands),
            lambda: changed(unserved=lambda t: on(t, FAULT + 60)),
            handed_over,
        )
    ),
    "a global authority that was started again": lambda: global_down(FAULT + 240),
    "an adoption that was decided soon": lambda: regions(holds=lambda t: on(t, FAULT + 600)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    mine = {alert for _, expected in FIRES.values() for alert in expected}
    check(tmp_path, HARMLESS[name](), quiet(AFTER, of_these=() if "," in name else mine))
