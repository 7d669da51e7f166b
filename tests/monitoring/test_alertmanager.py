"""The example of routes and inhibitions: who is told, by Alertmanager's own tool, and what is left unsaid beside its cause."""

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
    severities = [alert["labels"]["severity"] for alert in ALERTS if alert["alert"] == name]
    assert severities, f"no alert is called {name}"
    return {"alertname": name, "severity": severity or severities[0], "job": "lowwater", **labels}


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
    pairs = [f"{name}={value}" for name, value in labels.items()]
    command = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *pairs]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{receiver}\n"


def test_the_example_names_no_alert_that_there_is_not() -> None:
    named = set()
    for rule in yaml.safe_load(EXAMPLE.read_text())["inhibit_rules"]:
        for matcher in [*rule["source_matchers"], *rule["target_matchers"]]:
            for start, several in re.findall(r"(Lowwater\w*)(?:\(([\w|]+)\))?", matcher):
                named |= {f"{start}{word}" for word in several.split("|")} if several else {start}
    assert named - {"Lowwater"} <= {alert["alert"] for alert in ALERTS}


def matches(matchers: list[str], labels: dict[str, str]) -> bool:
    matches_ = [re.fullmatch(r'(\w+) (=~|=) "?([^"]*)"?', matcher) for matcher in matchers]
    return all(match and re.fullmatch(match[3], labels.get(match[1], "")) for match in matches_)


@pytest.mark.parametrize(
    ("cause", "beside", "unsaid"),
    [
        (alert("LowwaterAuthorityDown"), alert("LowwaterPromiseBroken", "critical", computation="hourly"), True),
        (alert("LowwaterAuthorityDown"), alert("LowwaterPromiseBroken", "critical", job="another"), False),
        (alert("LowwaterAuthorityDown"), alert("LowwaterJournalSlow", instance="lowwater-1"), False),
        (alert("LowwaterHolderSilent", computation="a"), alert("LowwaterComputationHolds", computation="a"), True),
        (alert("LowwaterHolderSilent", computation="a"), alert("LowwaterComputationHolds", computation="b"), False),
        (alert("LowwaterPromiseBroken", "critical"), alert("LowwaterPromiseBroken", "warning"), True),
        (alert("LowwaterPromiseBroken", "warning"), alert("LowwaterPromiseBroken", "critical"), False),
        (alert("LowwaterAuthorityDown"), alert("LowwaterAuthorityDown", instance="lowwater-1"), False),
    ],
)
def test_what_has_a_cause_beside_it_is_left_unsaid(cause: dict[str, str], beside: dict[str, str], unsaid: bool) -> None:
    rules = [
        matches(rule["source_matchers"], cause)
        and matches(rule["target_matchers"], beside)
        and all(cause.get(label) == beside.get(label) for label in rule["equal"])
        for rule in yaml.safe_load(EXAMPLE.read_text())["inhibit_rules"]
    ]
    assert any(rules) is unsaid
