"""What ``lws.doctor`` says of real sessions, classic and of Spark Connect, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.command import main
from tests.process.serving import Serving
from tests.spark.connect import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SCHEMA = "key string, t timestamp"


def start(spark: Any, folder: Path) -> Any:
    """Start windows over a file, and return the query after its first batch."""
    (folder / "in").mkdir()
    (folder / "in/one.json").write_text('{"key": "a", "t": "2026-01-01T00:00:00Z"}\n')
    rows = spark.readStream.schema(SCHEMA).json(str(folder / "in")).withWatermark("t", "1 hour")
    options = {"path": str(folder / "out"), "checkpointLocation": str(folder / "ck")}
    query = rows.groupBy("t").count().writeStream.format("json").options(**options).queryName("hourly").start()
    query.processAllAvailable()
    return query


def rungs(found: lws.Report, name: str) -> dict[str, str]:
    """Return what a report says of each rung of a query."""
    pairs = [finding.text.partition(": ") for finding in found.findings if finding.topic == f"query {name}"]
    return {rung: text for rung, colon, text in pairs if colon}


def test_in_a_classic_session_every_rung_is_judged_and_nothing_is_changed(
    spark: SparkSession, authority: Serving, lw: lowwater.Client, tmp_path: Path
) -> None:
    query = start(spark, tmp_path)
    rate = spark.readStream.format("rate").load().writeStream.format("noop").queryName("rate")
    drawn = rate.option("checkpointLocation", str(tmp_path / "rate")).start()
    try:
        settings, version = dict(spark.conf.getAll), lw.topology().version
        found = lws.doctor(spark, authority.address, checkpoints=[str(tmp_path / "ck")])
        assert dict(spark.conf.getAll) == settings
        assert (lw.topology().version, lw.get()) == (version, {})
        assert not list(tmp_path.rglob("lowwater"))
        assert found.good, found
        assert {"executors", "authority", "clocks", "checkpoint"} <= {finding.topic for finding in found.findings}
        hourly, of_rate = rungs(found, "hourly"), rungs(found, "rate")
        ladder = ["attach", "track by a sidecar", "track by a stage", "drive"]
        assert [hourly[rung][:8] for rung in ladder] == ["possible"] * 4, found
        assert of_rate["attach"].startswith("possible")
        assert [of_rate[rung][:12] for rung in ladder[1:]] == ["not possible"] * 3, found
        assert f'query = spark.streams.get("{query.id}")' in str(found)
    finally:
        query.stop()
        drawn.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus")
def test_by_spark_connect_the_command_sees_the_session_of_a_notebook(
    connect: ConnectServer, authority: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect.client() as spark:
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
        query = start(spark, tmp_path)
        try:
            of_notebook = lws.doctor(spark, authority.address)
            url = f"{connect.url}/;session_id={spark.session_id}"
            assert main(["doctor", "--authority", authority.address, "--remote", url, "--json"]) == 0
            assert query.isActive
        finally:
            query.stop()
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["topic"] for finding in found} == {finding.topic for finding in of_notebook.findings}
    hourly = rungs(of_notebook, "hourly")
    assert hourly["track by a sidecar"].startswith("possible")
    assert "only the Python of a classic driver" in hourly["drive"]
    assert "lws.track(" in str(of_notebook)
