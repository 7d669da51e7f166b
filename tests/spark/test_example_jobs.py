"""The jobs of examples/jobs on Spark: each runs as it stands, in the Spark of this process, and prints what its docstring says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scripts.jars import SETS
from tests.kit.kafka import Kafka
from tests.process.serving import Serving

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOBS = Path(__file__).parents[2] / "examples" / "jobs"


class Jobs:
    def __init__(self, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
        self._spark, self._capsys = spark, capsys

    def run(self, name: str) -> list[str]:
        """The lines that a job prints, those of a table as ``09:00 a 1``."""
        runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        assert not self._spark.streams.active, "it stops what it has started"
        lines = (re.sub(r"\s*\|\s*", " ", line).strip() for line in self._capsys.readouterr().out.splitlines())
        return [line.replace("2013-01-09 ", "") for line in lines if line and not line.startswith("+")]


@pytest.fixture
def jobs(
    spark: SparkSession,
    authority: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Jobs:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWWATER_ADDRESS", authority.address)
    return Jobs(spark, capsys)


def test_files_by_hour(jobs: Jobs) -> None:
    lines = ["hourly is complete until 2013-01-09T11:00:00Z", "hour shop cents"]
    lines += ["09:00:00 paris 300", "09:00:00 rome 250", "10:00:00 rome 120"]
    assert jobs.run("files_by_hour") == lines


def test_kafka_to_kafka(jobs: Jobs, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", kafka.address)
    hour = '{"hour":"2013-01-09T09:00:00.000Z","page":"%s","count":%d}'
    lines = ["click-counts is complete until 2013-01-09T12:00:00Z", "value", hour % ("a", 1), hour % ("b", 2)]
    assert jobs.run("kafka_to_kafka") == lines


def test_delta_to_delta(jobs: Jobs) -> None:
    lines = ["the table is complete until 2013-01-09T11:00:00Z", "hour meter watts"]
    lines += ["09:00:00 a 40", "09:00:00 b 2", "10:00:00 a 7", "10:00:00 b 5"]
    assert jobs.run("delta_to_delta") == lines


def test_the_connectors_are_those_that_are_tested() -> None:
    for name in ("kafka", "delta"):
        assert f'"{SETS[name][0]}"' in (JOBS / f"{name}_to_{name}.py").read_text(encoding="utf-8")
