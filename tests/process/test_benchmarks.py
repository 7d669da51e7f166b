"""The benchmarks run, check what they measure, and print what their readers parse. Their figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import BENCHMARKS
from tests.kit.program import run_program

ROOT = Path(__file__).parents[2]
KEYS = {"benchmark", "metric", "value", "unit", "baseline", "baseline_value", "ratio"}

# All benchmarks run before the first test.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return run_program(command, cwd=ROOT)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    data = tmp_path_factory.mktemp("journals")
    done = run("--quick", "--json", "--data", str(data), *BENCHMARKS)
    assert done.returncode == 0, done.stderr
    assert not list(data.iterdir()), "a benchmark leaves nothing behind"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_benchmark_prints_objects_of_one_shape(lines: list[dict[str, Any]]) -> None:
    assert {line["benchmark"] for line in lines} == set(BENCHMARKS)
    for line in lines:
        assert line.keys() >= KEYS | {"rounds", "low", "high", "ranges", "cpus", "load_before"}
        assert line["value"] > 0
        assert line["low"] <= line["value"] <= line["high"]


PROMISED = {
    ("ingest", "updates_per_second"),
    ("latency", "p50"),
    ("latency", "p99"),
    ("depth", "p50"),
    ("scale", "p50_1000"),
}


def test_what_is_promised_is_measured(lines: list[dict[str, Any]]) -> None:
    metrics = {(line["benchmark"], line["metric"]) for line in lines}
    assert metrics >= PROMISED
