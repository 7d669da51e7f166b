"""Each alert about Spark jobs and clients fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.monitoring.exported import HOURS, Exported, Instances, Value, check, healthy, paused, query, quiet, seen

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
SENT = 'lowwater_client_reports_total{job="worker", instance="w:1"}'
ACKNOWLEDGED = 'lowwater_client_acknowledged_reports_total{job="worker", instance="w:1"}'
UNSERVED = 'lowwater_client_unserved_computations{job="worker", instance="w:1"}'
QUERY = {"job": "spark", "query": "q", "computation": "enriched"}
DRIVER = {"job": "spark", "instance": "d:1"}
WORKER = {"job": "worker", "instance": "w:1"}


def changed(**values: Value) -> Exported:
    """A healthy deployment in which some series differ."""
    names = {
        "late": query("late_rows_total"),
        "untimed": query("untimed_rows_total"),
        "holding": query("holding"),
        "answers": seen("answers"),
        "away": seen("away"),
        "alone": seen("left_alone"),
        "sent": SENT,
        "acknowledged": ACKNOWLEDGED,
        "unserved": UNSERVED,
    }
    return healthy() | {names[name]: value for name, value in values.items()}


def on(t: float, until: float = 20 * HOURS) -> float:
    """One from the fault on."""
    return float(FAULT <= t < until)


FIRES: dict[str, tuple[Callable[[], Exported], Mapping[float, Instances]]] = {
    "LowwaterLateRows": (lambda: changed(late=lambda t: 3 * on(t)), {3570: [], 3600: [QUERY]}),
    "LowwaterUntimedRows": (
        lambda: changed(untimed=lambda t: 3 * on(t)),
        {3570: [], 3600: [QUERY], 4470: [QUERY], 4500: []},
    ),
    "LowwaterQueryHolding": (lambda: changed(holding=on), {4170: [], 4200: [QUERY]}),
    "LowwaterAttachLeftAlone": (lambda: changed(alone=on, answers=lambda t: 1 - on(t)), {3870: [], 3900: [DRIVER]}),
    # Five minutes later none of the samples has seen it grow.
    "LowwaterReportsUnanswered": (lambda: changed(acknowledged=lambda t: min(t, FAULT)), {3990: [], 4020: [WORKER]}),
    "LowwaterUnserved": (lambda: changed(unserved=lambda t: 2 * on(t)), {3690: [], 3720: [WORKER]}),
}


@pytest.mark.parametrize("alert", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, alert: str) -> None:
    made, expected = FIRES[alert]
    check(tmp_path, made(), {alert: expected})


def restarted() -> Exported:
    """Driver and worker begin anew, and count from nothing."""
    exported = changed(late=lambda t: 5.0 * (t < FAULT), acknowledged=lambda t: t % FAULT, sent=lambda t: t % FAULT)
    paused(exported, FAULT, FAULT + 90, "lowwater_client_", "lowwater_spark_")
    return exported


HARMLESS: dict[str, Callable[[], Exported]] = {
    "restarted": restarted,
    "a stage that holds for a while": lambda: changed(holding=lambda t: on(t, FAULT + 300)),
    "an authority that is away and tried again": lambda: changed(away=on, answers=lambda t: 1 - on(t)),
    "a worker with nothing to say": lambda: changed(sent=lambda t: min(t, FAULT), acknowledged=lambda t: min(t, FAULT)),
    "a move from shard to shard": lambda: changed(unserved=lambda t: on(t, FAULT + 60)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    check(tmp_path, HARMLESS[name](), quiet(AFTER))
