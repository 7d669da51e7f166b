"""Made-up deployments for `promtool test rules`: what a healthy one exports second by second, and what a fault changes in it."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from monitoring.files import GENERATED, groups
from monitoring.settings import Settings
from tests.kit.program import run_program

STEP: Final = 30
"""Seconds between two scrapes, and two evaluations."""

HOURS: Final = 3600
DAYS: Final = 24 * HOURS
SAYS: Final = ("summary", "description", "runbook_url", "owner_runbook_url")

AUTHORITY: Final = 'job="lowwater", instance="one:7421"'

Value = Callable[[float], float | None]
Exported = dict[str, Value]
Instances = Iterable[Mapping[str, str]]
"""The labels of each instance of an alert, and perhaps what it says."""
Expected = Mapping[str, Mapping[float, Instances]]
"""The instances that fire, by alert and second."""


def alert_names() -> list[str]:
    return sorted({alert.alert for alert in _alerts()})


def series_of(name: str, computation: str, labels: str = "") -> str:
    return f'lowwater_{name}{{{AUTHORITY}, computation="{computation}"{labels}}}'


def own(name: str, labels: str = "", instance: str = "one:7421") -> str:
    return f'{name}{{job="lowwater", instance="{instance}"{labels}}}'


def query(name: str) -> str:
    return f'lowwater_spark_{name}{{job="spark", instance="d:1", query="q", computation="enriched"}}'


def shards(state: str) -> str:
    return f'lowwater_spark_attach_authority{{job="spark", instance="d:1", state="{state}"}}'


def dedup(name: str) -> str:
    return f'lowwater_dedup_{name}{{job="dedup", instance="p:1", topic="orders", partition="0"}}'


def flowing(t: float) -> float:
    """The source: a minute behind the clock."""
    return max(t - 60, 0)


def following(t: float) -> float:
    """A stage that passes records on: half a minute more."""
    return max(t - 90, 0)


def hourly(t: float) -> float:
    """A stage that writes windows of an hour: it publishes their starts."""
    return max(t - 120, 0) // 3600 * 3600


def changed(low: Value) -> Value:

    def moved(t: float) -> float:
        at = int(t) // STEP * STEP
        while at > 0 and low(at) == low(at - STEP):
            at -= STEP
        return at

    return moved


def computation(exported: Exported, name: str, low: Value, behind: Value | None, top: Value = flowing) -> None:
    exported[series_of("low_watermark_timestamp_seconds", name)] = low
    exported[series_of("low_watermark_change_timestamp_seconds", name)] = changed(low)
    exported[series_of("last_report_timestamp_seconds", name)] = lambda t: t - 2
    exported[series_of("oldest_operation_timestamp_seconds", name)] = lambda t: t - 5
    exported[series_of("epoch", name)] = lambda t: 3
    exported[series_of("estimated", name)] = lambda t: 0
    exported[series_of("ranges", name, ', state="owned"')] = lambda t: 64
    for state in ("unowned", "never_claimed", "finished", "retired"):
        exported[series_of("ranges", name, f', state="{state}"')] = lambda t: 0
    if behind is not None:
        exported[series_of("local_lag_seconds", name)] = lambda t: difference(behind(t), low(t))
        exported[series_of("global_lag_seconds", name)] = lambda t: difference(top(t), low(t))


def difference(ahead: float | None, low: float | None) -> float | None:
    return None if ahead is None or low is None else max(0.0, ahead - low)


def histogram(exported: Exported, name: str, seconds: Value) -> None:
    """Add a histogram of one process that sees ten observations a second, all of a length that may change."""
    counts = {"0.1": 0.0, "0.5": 0.0, "1": 0.0, "5": 0.0, "+Inf": 0.0}
    buckets: dict[str, dict[float, float]] = {bound: {} for bound in counts}
    for at in range(0, 10 * HOURS, STEP):
        for bound, count in list(counts.items()):
            if (length := seconds(at)) is not None and length <= float(bound):
                counts[bound] = count + 10 * STEP
            buckets[bound][at] = counts[bound]
    for bound, values in buckets.items():
        exported[own(f"{name}_bucket", f', le="{bound}"')] = values.__getitem__


def healthy() -> Exported:
    exported: Exported = {}
    computation(exported, "flights", flowing, None)
    computation(exported, "enriched", following, flowing)
    computation(exported, "hourly", hourly, following)
    exported[own("up")] = lambda t: 1
    exported[own("lowwater_build_info", ', version="1"')] = lambda t: 1
    exported[own("lowwater_owned_computations")] = lambda t: 3
    exported[own("lowwater_registered_computations")] = lambda t: 3
    exported[own("lowwater_journal_confirmed_timestamp_seconds")] = lambda t: t - 1
    exported[own("lowwater_deployment_confirmed_timestamp_seconds")] = lambda t: t - 5
    exported[own("lowwater_certificate_not_after_timestamp_seconds")] = lambda t: 90 * DAYS
    exported[own("process_start_time_seconds")] = lambda t: 0
    exported[own("process_resident_memory_bytes")] = lambda t: 89
    exported[own("lowwater_memory_limit_bytes")] = lambda t: 100
    exported[own("lowwater_clock_timestamp_seconds")] = lambda t: t + 4
    exported[own("lowwater_journal_errors_total", ', outcome="failed"')] = lambda t: 0
    exported[own("lowwater_journal_errors_total", ', outcome="unknown"')] = lambda t: t // 1000
    exported[own("lowwater_claims_total", ', outcome="granted"')] = lambda t: 12
    exported[own("lowwater_refused_reports_total", ', reason="TOO_FAR_AHEAD"')] = lambda t: 4
    exported[own("lowwater_admission_refused_total", ', gate="reports"')] = lambda t: 0
    exported[own("lowwater_pushed_watermarks_total")] = lambda t: 10 * t
    exported[own("lowwater_conflated_watermarks_total")] = lambda t: t
    exported['lowwater_client_reports_total{job="worker", instance="w:1"}'] = lambda t: t
    exported['lowwater_client_acknowledged_reports_total{job="worker", instance="w:1"}'] = lambda t: t
    exported['lowwater_client_unserved_computations{job="worker", instance="w:1"}'] = lambda t: 0
    exported['process_start_time_seconds{job="worker", instance="w:1"}'] = lambda t: 0
    exported[series_of("tasks", "flights", ', group="close", state="ready"')] = lambda t: float(t % 3600 < 300)
    exported[series_of("tasks", "flights", ', group="close", state="leased"')] = lambda t: float(300 <= t % 3600 < 600)
    exported[dedup("running")] = lambda t: 1
    exported[dedup("refused")] = lambda t: 0
    exported[dedup("commits_total")] = lambda t: t
    exported[query("late_rows_total")] = lambda t: 0
    exported[query("untimed_rows_total")] = lambda t: 0
    exported[query("holding")] = lambda t: 0
    exported |= {shards("answers"): lambda t: 1, shards("away"): lambda t: 0, shards("left_alone"): lambda t: 0}
    for name in ("journal_append_seconds", "push_seconds", "event_loop_lag_seconds"):
        histogram(exported, f"lowwater_{name}", lambda t: 0.05)
    return exported


def together(*parts: Callable[[], Exported], until: float = 4 * HOURS) -> Exported:
    base = healthy()
    exported = dict(base)
    for part in parts:
        for series, value in part().items():
            if series not in base or any(value(t) != base[series](t) for t in range(0, int(until), STEP)):
                assert exported.get(series) is base.get(series), f"two of them change {series}"
                exported[series] = value
    return exported


def without(exported: Exported, *words: str) -> Exported:
    return {series: value for series, value in exported.items() if not any(word in series for word in words)}


def paused(exported: Exported, begin: float, end: float, *words: str) -> None:
    """No scrape sees these series for a time; all series when no words are given."""
    for series, value in list(exported.items()):
        if not words or any(word in series for word in words):
            exported[series] = _paused(value, begin, end)


def _paused(value: Value, begin: float, end: float) -> Value:
    return lambda t: None if begin <= t < end else value(t)


def steady(at: float, value: Value) -> Value:
    return lambda t: value(min(t, at))


def _samples(value: Value, until: float) -> str:
    """Write a series in promtool's notation. A scrape without a series that the scrape before had marks it as gone."""
    samples = []
    before = False
    for at in range(0, int(until) + STEP, STEP):
        number = value(at)
        samples.append(f"{number!r}" if number is not None else ("stale" if before else "_"))
        before = number is not None
    return " ".join(samples)


def check(folder: Path, exported: Exported, expected: Expected, *, says: bool = False) -> None:
    """Run promtool: of each alert, which instances fire at which seconds. Severity and name need not be said.

    Without ``says`` the annotations are left out; with it they stand among the labels of an instance, and have to be the same.
    """
    until = max(at for times in expected.values() for at in times)
    severities = {(alert.alert, dict(alert.labels).get("window", "")): alert.severity for alert in _alerts()}
    contents = {name: copy.deepcopy(_rules(name)) for name in ("recording", "alerts")}
    for rule in (rule for content in contents.values() for group in content["groups"] for rule in group["rules"]):
        if not says:
            rule.pop("annotations", None)
    _leave(expected, contents)
    for name, content in contents.items():
        # JSON is YAML that is written a hundred times as fast; a test has half a million characters.
        (folder / f"{name}.yaml").write_text(json.dumps(content))
    test = {
        "rule_files": ["recording.yaml", "alerts.yaml"],
        "evaluation_interval": f"{STEP}s",
        "group_eval_order": [group.name for several in groups(Settings()).values() for group in several],
        "tests": [
            {
                "interval": f"{STEP}s",
                "input_series": [
                    {"series": name, "values": _samples(value, until)} for name, value in exported.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": f"{int(at)}s",
                        "alertname": alert,
                        "exp_alerts": [_expected(alert, instance, severities) for instance in instances],
                    }
                    for alert, times in expected.items()
                    for at, instances in times.items()
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(json.dumps(test))
    done = run_program(["promtool", "test", "rules", str(path)], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def _leave(alerts: Iterable[str], contents: Mapping[str, Any]) -> None:
    """Take out all rules but these alerts and what they read: promtool would evaluate them all, every 30 s of hours, for two seconds of a core."""
    for group in contents["alerts"]["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] in alerts]
    recordings = [rule for group in contents["recording"]["groups"] for rule in group["rules"]]
    read: set[str] = set()
    expressions = {rule["expr"] for group in contents["alerts"]["groups"] for rule in group["rules"]}
    while expressions - read:
        read |= expressions
        expressions = {rule["expr"] for rule in recordings if any(rule["record"] in expression for expression in read)}
    for group in contents["recording"]["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["expr"] in read]


@functools.cache
def _rules(name: str) -> dict[str, Any]:
    """A file of generated rules; not to be changed."""
    content: dict[str, Any] = yaml.safe_load((GENERATED / f"rules/lowwater-{name}.yaml").read_text())
    return content


@functools.cache
def _alerts() -> tuple[Any, ...]:
    return tuple(alert for group in groups(Settings())["alerts"] for alert in group.alerts)


def _expected(alert: str, labels: Mapping[str, str], severities: Mapping[tuple[str, str], str]) -> dict[str, object]:
    annotations = {name: text for name, text in labels.items() if name in SAYS}
    rest = {name: text for name, text in labels.items() if name not in annotations}
    severity = severities[alert, rest.get("window", "")]
    return {"exp_labels": {"severity": severity, **rest}, "exp_annotations": annotations}


def quiet(times: Iterable[float], *but: str, of_these: Iterable[str] = ()) -> dict[str, Mapping[float, Instances]]:
    """Expect that no alert fires at these seconds, or none of some, but perhaps those that are named."""
    return {name: {at: [] for at in times} for name in of_these or alert_names() if name not in but}
