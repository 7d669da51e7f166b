"""The example of routes and inhibitions, by Alertmanager's own tool: who is told."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from monitoring.files import GENERATED

EXAMPLE = Path(__file__).parents[2] / "monitoring/examples/alertmanager.yaml"
ALERTS = [
    rule
    for group in yaml.safe_load((GENERATED / "rules/lowwater-alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def alert(name: str, severity: str = "", **labels: str) -> dict[str, str]:
    found = [each["labels"]["severity"] for each in ALERTS if each["alert"] == name]
    assert found, f"no alert is called {name}"
    return {"alertname": name, "severity": severity or found[0], "job": "lowwater", **labels}


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (alert("LowwaterPromiseBroken", "critical", computation="payments/hourly"), "payments-pager"),
        (alert("LowwaterPromiseBroken", "warning", computation="payments/hourly"), "payments"),
        (alert("LowwaterPromiseBroken", "critical", computation="hourly"), "platform-pager"),
        (alert("LowwaterHolderSilent", computation="hourly"), "platform"),
        (alert("LowwaterPromiseBroken", "critical", computation="hourly", team="billing"), "billing-pager"),
        (alert("LowwaterHolderSilent", computation="payments/hourly", team="billing"), "billing"),
        (alert("LowwaterHolderSilent", computation="payments/hourly", team="somebody", owner="ana"), "payments"),
        (alert("LowwaterEstimateLate", computation="payments/hourly"), "nobody"),
        (alert("LowwaterAuthorityDown", instance="lowwater-0"), "platform-pager"),
        ({"alertname": "DiskFull", "severity": "critical"}, "platform"),
    ],
)
def test_who_is_told(labels: dict[str, str], receiver: str) -> None:
    said = [f"{name}={value}" for name, value in labels.items()]
    command = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *said]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{receiver}\n"


def test_the_example_names_no_alert_that_there_is_not() -> None:
    named = set()
    for rule in yaml.safe_load(EXAMPLE.read_text())["inhibit_rules"]:
        for matcher in [*rule["source_matchers"], *rule["target_matchers"]]:
            for start, several in re.findall(r"(Lowwater\w*)(?:\(([\w|]+)\))?", matcher):
                named |= {f"{start}{each}" for each in several.split("|")} if several else {start}
    assert named - {"Lowwater"} <= {each["alert"] for each in ALERTS}
