"""A real Prometheus over a folder of its own, asked through its API."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import yaml

from monitoring.files import GENERATED
from tests.kit.eventually import eventually

LISTENS: Final = re.compile(r"Listening on.*address=\S+:(\d+)")

Labels = Mapping[str, str]


class Prometheus:
    """Scrapes targets by job every second, and evaluates the generated rules as often.

    With ``lasting`` the expression of an alert that has to hold for a while has to hold for so long: "5s".
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]], *, lasting: str = "") -> None:
        self._folder = folder
        self.began = time.time()
        (folder / "rules").mkdir(parents=True)
        for path in (GENERATED / "rules").glob("*.yaml"):
            content = yaml.safe_load(path.read_text())
            for rule in (rule for group in content["groups"] for rule in group["rules"]):
                if lasting and rule.get("for", "0s") != "0s":
                    rule["for"] = lasting
            (folder / "rules" / path.name).write_text(json.dumps(content))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": [str(folder / "rules" / "*.yaml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(places)}]} for job, places in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        command = ["prometheus", f"--config.file={self._folder}/prometheus.yml", "--web.listen-address=127.0.0.1:0"]
        command += [f"--storage.tsdb.path={self._folder}/data", "--log.level=info"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if match := LISTENS.search(line):
                self._port = int(match[1])
                break
        else:
            raise AssertionError("".join(lines))
        self._reader = threading.Thread(target=self._process.stderr.read)  # else it would wait for somebody to read
        self._reader.start()
        eventually(self._ready, seconds=60)
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=10) as answer:
                return int(answer.status) == 200
        except urllib.error.HTTPError:
            return False

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def now(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        samples = self._ask("query", query=query)["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in samples}

    def series(self, query: str) -> list[tuple[Labels, list[float]]]:
        series = self._ask("query_range", query=query, start=f"{self.began}", end=f"{time.time()}", step="1")["result"]
        numbers = [(one["metric"], [float(value) for _, value in one["values"]]) for one in series]
        finite = [(labels, [value for value in values if math.isfinite(value)]) for labels, values in numbers]
        return [(labels, values) for labels, values in finite if values]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self, name: str) -> list[dict[str, Any]]:
        return [alert for alert in self._ask("alerts")["alerts"] if alert["labels"]["alertname"] == name]
