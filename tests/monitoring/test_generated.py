"""The generated files: what `python -m monitoring` writes, the same each time, of names that exist, with a runbook for each alert."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from lowwater.prometheus import FIGURES as CLIENT
from lowwater_authority.ops.metrics import FIGURES as AUTHORITY
from lowwater_pipeline.dedup.figures import FIGURES as DEDUP
from lowwater_pipeline.dedup.stage_figures import FIGURES as DEDUP_STAGES
from lowwater_regions.figures import BUILD as GLOBAL
from lowwater_regions.figures import FIGURES as REGIONS
from lowwater_spark.prometheus import FIGURES as SPARK
from monitoring.files import GENERATED, HERE, groups
from monitoring.grafana import COLUMNS
from monitoring.pipeline_alerts import alerts, is_about_one
from monitoring.recordings import BROKEN, WHO
from monitoring.settings import Settings
from tests.kit.program import run_program
from tests.monitoring.panels_asked import dashboards, rules, selectors

BOARDS: Final = sorted(dashboards())
PROCESS: Final = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "up",
}
"""The metrics that prometheus_client and Prometheus add."""
PROMISED: Final = {alert.alert for alert in alerts(Settings()).alerts if is_about_one(alert)}
"""Alerts about a computation, which may have an owner."""
LABELS: Final = {"job", "instance", "le"}


def exported() -> dict[str, set[str]]:
    """Every metric that something exports or records, and its labels; of a histogram its three series."""
    labels: dict[str, set[str]] = {name: set() for name in PROCESS}
    for figure in (*AUTHORITY, GLOBAL, *REGIONS, *CLIENT, *SPARK, *DEDUP, *DEDUP_STAGES):
        names = [f"{figure.name}{end}" for end in ("_bucket", "_sum", "_count")]
        for name in names if figure.kind == "histogram" else [figure.name]:
            labels[name] = set(figure.labels)
    for rule in rules("recording"):
        labels[rule["record"]] = {"computation", "worker", "host", "range", "owner", "team", "runbook"}
    return labels


def panels(board: str) -> list[dict[str, Any]]:
    return [panel for panel in dashboards()[board]["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for board in BOARDS:
        yield from (target["expr"] for panel in panels(board) for target in panel["targets"])
        yield from (event["expr"] for event in dashboards()[board]["annotations"]["list"])
    yield from (rule["expr"] for name in ("recording", "alerts") for rule in rules(name))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, "-m", "monitoring", *arguments], cwd=HERE.parent, timeout=100)


def test_what_is_committed_is_what_is_generated() -> None:
    done = command("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_of_a_deployment_go_to_its_own_folder_and_are_checked_there(tmp_path: Path) -> None:
    mine = ("--out", str(tmp_path), "--late-seconds", "120", "--period-seconds", "60", "--runbooks", "https://wiki/x")
    assert command(*mine).returncode == 0
    alerts = (tmp_path / "rules/lowwater-alerts.yaml").read_text()
    assert "runbook_url: https://wiki/x/pipeline.md#lowwaterpromisebroken" in alerts
    assert "that it is complete 2 minutes after" in alerts
    assert command(*mine, "--check").returncode == 0
    (tmp_path / "rules/lowwater-alerts.yaml").write_text(alerts + "\n")
    assert "lowwater-alerts.yaml is not what" in command(*mine, "--check").stderr
    assert command("--late-seconds", "120").returncode == 2, "the committed files are made with the defaults"


def test_prometheus_takes_the_rules() -> None:
    files = sorted(map(str, (GENERATED / "rules").glob("*.yaml")))
    done = run_program(["promtool", "check", "rules", *files], timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_and_every_label_exists() -> None:
    names = exported()
    used = {selector for expr in expressions() for selector in selectors(expr)}
    assert len(used) > 60
    for selector in used:
        metric, _, matchers = selector.partition("{")
        assert metric in names, selector
        assert set(re.findall(r"(\w+)\s*=", matchers)) <= names[metric] | LABELS, selector


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_one_that_grafana_can_load_and_a_reader_understand(board: str) -> None:
    content = dashboards()[board]
    assert content["uid"] == board
    assert content["schemaVersion"] >= 39, "of Grafana 11"
    every = content["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    covered: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & covered, panel["title"]
        covered |= cells
    chosen = {variable["name"] for variable in content["templating"]["list"]}
    assert {"datasource", "job", "page"} < chosen
    for panel in panels(board):
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= chosen, target["expr"]
            assert "job" in used or target["expr"].startswith("time() - (time()"), target["expr"]
    targets = {link["url"].removeprefix("/d/") for link in content["links"] if link["url"].startswith("/d/")}
    assert targets == set(BOARDS) - {board}
    assert any(link["url"] == "${page}/" for link in content["links"])


def test_every_alert_says_what_to_do() -> None:
    for group in groups(Settings())["alerts"]:
        text = (HERE / "runbooks" / group.runbook).read_text()
        sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
        assert set(sections) == {alert.alert for alert in group.alerts}, group.runbook
        for name, section in sections.items():
            for word in ("**It means**", "**Look**", "**Do**"):
                assert word in section, name
    for rule in rules("alerts"):
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        about_one = "$labels.computation" in str(rule["annotations"]) and rule["alert"] in PROMISED
        more = {"owner_runbook_url"} if about_one else set[str]()
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"} | more
        assert (f"group_left (owner, team) {WHO}" in rule["expr"]) == about_one
        path, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert (HERE.parent / path).is_file()
        assert section == rule["alert"].lower()


def test_what_panels_and_alerts_share_is_recorded_once() -> None:
    recorded = {rule["record"] for rule in rules("recording")}
    used = {selector.partition("{")[0] for expr in expressions() for selector in selectors(expr)}
    assert recorded <= used, "nothing is recorded for nobody"
    assert BROKEN in recorded
