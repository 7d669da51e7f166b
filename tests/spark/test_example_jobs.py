"""The jobs of examples/jobs on Spark: each runs as it stands, in the Spark of this process, and prints what its docstring says."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scripts.jars import SETS
from tests.kit.kafka import Kafka
from tests.kit.program import run_program
from tests.process.serving import Serving

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOBS = Path(__file__).parents[2] / "examples" / "jobs"


@pytest.fixture
def run(
    spark: SparkSession,
    authority: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], list[str]]:
    """Run a job and return the lines that it prints, those of a table as ``09:00:00 a 1``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWWATER_ADDRESS", authority.address)

    def run(name: str) -> list[str]:
        runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        assert not spark.streams.active, "it stops what it has started"
        lines = (re.sub(r"\s*\|\s*", " ", line).strip() for line in capsys.readouterr().out.splitlines())
        return [line.replace("2013-01-09 ", "") for line in lines if line and not line.startswith("+")]

    return run


def test_files_by_hour(run: Callable[[str], list[str]]) -> None:
    rows = ["09:00:00 paris 300", "09:00:00 rome 250", "10:00:00 rome 120"]
    held = "hourly is complete until 2013-01-09T11:00:00Z, and sales waits for paris (at 2013-01-09T11:20:00Z)"
    assert run("files_by_hour") == [held, "hour shop cents", *rows]


def test_filter_files(run: Callable[[str], list[str]], authority: Serving) -> None:
    lines = re.findall(r"python examples/jobs/(.+\n?.+ lowwater promise .+)", (JOBS / "upload.py").read_text("utf-8"))
    assert len(lines) == 2
    environment = {
        **os.environ,
        "LOWWATER_ADDRESS": authority.address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    rows = []
    for hour, line in zip((9, 10), lines, strict=True):
        done = run_program(["bash", "-c", f"python {JOBS}/{line}"], env=environment)
        assert done.returncode == 0, done.stderr
        rows.append(f"b {hour:02}:40:00 700")
        until = f"2013-01-09T{hour + 1}:00:00Z"
        assert run("filter_files") == [f"large is complete until {until}", "shop at cents", *rows]


def test_kafka_to_kafka(run: Callable[[str], list[str]], kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", kafka.address)
    hour = '{"hour":"2013-01-09T09:00:00.000Z","page":"%s","count":%d}'
    rows = [hour % ("a", 1), hour % ("b", 2)]
    complete, why, *table = run("kafka_to_kafka")
    assert (complete, table) == ("click-counts is complete until 2013-01-09T12:00:00Z", ["value", *rows])
    assert re.search("held by clicks all keys on clicks-1 .* it waits for partition 1 of clicks ", why), why


def test_delta_to_delta(run: Callable[[str], list[str]]) -> None:
    rows = ["09:00:00 a 40", "09:00:00 b 2", "10:00:00 a 7", "10:00:00 b 5"]
    assert run("delta_to_delta") == ["the table is complete until 2013-01-09T11:00:00Z", "hour meter watts", *rows]


def test_the_connectors_are_those_that_are_tested() -> None:
    for name in ("kafka", "delta"):
        assert f'"{SETS[name][0]}"' in (JOBS / f"{name}_to_{name}.py").read_text(encoding="utf-8")
