"""The example of routes and inhibitions, by a real Alertmanager: who is told, and what is left unsaid beside its cause."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.files import GENERATED
from tests.kit.eventually import eventually
from tests.kit.ports import free_port

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


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, bool]]]:
    """Fires alerts in an Alertmanager, and says which of them are inhibited."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    assert program, "there is no Alertmanager: run scripts/setup.sh --tests"
    folder = tmp_path_factory.mktemp("alertmanager")
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={EXAMPLE}", f"--storage.path={folder}", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--cluster.listen-address="], stdout=log, stderr=log)
    api = f"http://{address}/api/v2/alerts"

    def ask(data: bytes | None = None) -> Any:
        request = urllib.request.Request(api, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read() or b"null")
        except OSError:
            return False

    eventually(lambda: ask() == [], "Alertmanager answers", seconds=60)

    def fire(*fired: dict[str, str]) -> dict[str, bool]:
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert ask(json.dumps([{"labels": each, "endsAt": ends} for each in fired]).encode()) is not False

        def known() -> dict[str, bool] | None:
            job = fired[0]["job"]
            found = [each for each in ask() if each["labels"]["job"] == job]
            if len(found) < len(fired) or any(each["status"]["state"] == "unprocessed" for each in found):
                return None
            return {
                f"{each['labels']['alertname']} {each['labels']['severity']}": bool(each["status"]["inhibitedBy"])
                for each in found
            }

        return eventually(known, "Alertmanager knows what is fired", seconds=60) or {}

    yield fire
    process.terminate()
    process.wait(30)


def test_what_has_a_cause_beside_it_is_left_unsaid(post: Callable[..., dict[str, bool]]) -> None:
    said = post(
        alert("LowwaterAuthorityDown", instance="lowwater-0"),
        alert("LowwaterPromiseBroken", "critical", computation="hourly"),
        alert("LowwaterJournalSlow", instance="lowwater-1"),
    )
    assert said == {
        "LowwaterAuthorityDown critical": False,
        "LowwaterPromiseBroken critical": True,
        "LowwaterJournalSlow warning": False,
    }
