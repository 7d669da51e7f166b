"""The dashboards mark the moment of a move, of a reset and of an alert, and no other."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.program import run_program
from tests.monitoring.panels_asked import CHOSEN, dashboards

BOARDS = ("lowwater-authority", "lowwater-lag", "lowwater-promises")


def events(board: str) -> dict[str, str]:
    expressions = {}
    for event in dashboards()[board]["annotations"]["list"]:
        assert event["expr"] == event["target"]["expr"], "for either version of Grafana"
        assert event["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        expressions[event["name"]] = event["expr"].replace("$job", CHOSEN["$job"])
    return expressions


def test_the_dashboards_of_a_deployment_have_the_same_marks() -> None:
    assert {tuple(events(board)) for board in BOARDS} == {("Moves", "Resets", "Alerts")}
    others = dashboards().keys() - set(BOARDS)
    assert not any(dashboards()[board]["annotations"]["list"] for board in others), "they are about several jobs"


def test_a_mark_is_there_for_a_minute_after_what_it_marks(tmp_path: Path) -> None:
    marks = events("lowwater-lag")
    hourly = 'job="lowwater", computation="hourly"'
    series = {
        f'lowwater_epoch{{{hourly}, instance="one"}}': "3x19 stale",
        f'lowwater_epoch{{{hourly}, instance="two"}}': "_x20 4x100",
        f'lowwater_epoch{{{hourly.replace("hourly", "daily")}, instance="one"}}': "7x120",
        f'lowwater_incarnation{{{hourly}, instance="one"}}': "1x39 2x100",
        'ALERTS{alertname="LowwaterHolderSilent", alertstate="firing", job="lowwater"}': "_x60 1x2 stale",
        'ALERTS{alertname="LowwaterHolderSilent", alertstate="pending", job="lowwater"}': "_x40 1x80",
        'ALERTS{alertname="DiskFull", alertstate="firing", job="lowwater"}': "1x120",
    }
    expected = {"Moves": (600, f"{{{hourly}}}", 4), "Resets": (1200, f"{{{hourly}}}", 2)}
    labels = 'ALERTS{alertname="LowwaterHolderSilent", alertstate="firing", job="lowwater"}'
    expected["Alerts"] = (1800, labels, 1)
    tests = [
        {
            "expr": marks[name],
            "eval_time": f"{at}s",
            "exp_samples": [{"labels": labels, "value": value}] if moment <= at < moment + 60 else [],
        }
        for name, (moment, labels, value) in expected.items()
        for at in (60, moment - 30, moment, moment + 30, moment + 120, 3000)
    ]
    content = {
        "rule_files": [],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    path = tmp_path / "events.yaml"
    path.write_text(json.dumps(content))
    done = run_program(["promtool", "test", "rules", path], timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
