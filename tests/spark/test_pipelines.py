"""Declarative pipelines, run by Spark's own program: their flows are tracked exactly by what the storage has, and nothing is typed twice."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet
import pytest

import lowwater
from lowwater_spark.sidecar.pipeline import describe_pipeline
from lowwater_spark.sources.files.sink_log import list_sink
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.connect import ConnectServer, alive, sidecars
from tests.spark.retained import Oracle
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

HOUR = timedelta(hours=1)

FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.table
def {table}():
    return SparkSession.active().readStream.schema("key string, t timestamp").json("{folder}/in")
"""

# withWatermark in Python asks for the table's columns, and fails while a table of the same pipeline is not there.
WINDOWS = """
CREATE STREAMING TABLE hourly AS
SELECT key, window.start AS t, count(*) AS n FROM STREAM(enriched) WATERMARK t DELAY OF INTERVAL 2 HOURS
GROUP BY window(t, '1 hour'), key;
"""


def specified(folder: Path, table: str = "enriched") -> Path:
    (folder / "flows").mkdir()
    (folder / "flows/a.py").write_text(FLOWS.format(folder=folder, table=table))
    file = folder / "spark-pipeline.yml"
    libraries = "libraries:\n  - glob:\n      include: flows/**\n"
    file.write_text(f"name: flights\nstorage: file://{folder}/storage\n{libraries}")
    return file


def ran(run: subprocess.Popen[str]) -> None:
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output


def windows(table: Path) -> dict[tuple[str, datetime], int]:
    """Return the count of each window in a table; a window that is there twice is a failure."""
    rows = [line for file in list_sink(str(table)) for line in pyarrow.parquet.read_table(file.path).to_pylist()]
    counts = {(r["key"], r["t"].replace(tzinfo=UTC)): r["n"] for r in rows}
    assert len(counts) == len(rows)
    return counts


def stamps(file: Path) -> list[datetime]:
    return [r["t"].replace(tzinfo=UTC) for r in pyarrow.parquet.read_table(file).to_pylist()]


def test_the_flows_of_a_pipeline_are_tracked_through_runs_and_kills(
    connect: ConnectServer, authority: Serving, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    feed, rows, file = Feed(tmp_path / "in"), list[dict[str, str]](), specified(tmp_path)

    def put(hour: int, *earlier: int) -> None:
        """Put rows of an hour, and late ones of the hour before."""
        some = [row("a", hour, 40), row("b", hour), *(row("a", hour - 1, minute) for minute in earlier)]
        rows.extend(some)
        feed.put(some)
        upstream.at(hour, 10)

    with pytest.raises(FileNotFoundError, match="is no directory here: run the pipeline once"):
        describe_pipeline(file, None)
    put(9)
    ran(connect.pipeline(file))
    text = describe_pipeline(file, connect.warehouse)
    filled = text.replace('"<computation>"', '"source"').replace('# "', '"')
    filled = filled.replace(f'"<files:{tmp_path}/in>"', f'"files:{tmp_path}/in"')
    declared = tmp_path / "queries.toml"
    declared.write_text(f'{filled}\n[pipeline.flows.hourly]\nwindows = "1h"\noutput_mode = "append"\n')
    command = sidecars(declared, tmp_path / "state", authority.address)
    with ExitStack() as ending:

        def begin() -> subprocess.Popen[bytes]:
            process = ending.enter_context(subprocess.Popen(command))
            ending.callback(process.kill)
            return process

        beside = begin()
        eventually(
            lambda: low(lw, "flights.enriched") == mark(9, 10), "the first flow is followed", check=alive(beside)
        )
        (tmp_path / "flows/b.sql").write_text(WINDOWS)
        put(13, 5, 50)
        ran(connect.pipeline(file))
        # Spark's watermark of 11:40 has closed the windows that end by then.
        eventually(lambda: low(lw, "flights.hourly") == mark(11), "a flow that was added is found", check=alive(beside))
        oracle = Oracle(authority.address, connect.warehouse / "hourly", stamps)
        ending.enter_context(oracle.watching("flights.hourly"))
        assert [*lw.topology().computations["flights.hourly"].inputs] == ["flights.enriched"]
        put(16, 20)
        run = connect.pipeline(file)
        checkpoint = tmp_path / "storage/_checkpoints/spark_catalog/default/enriched/enriched/0"
        eventually((checkpoint / "offsets/2").exists, "a run has begun")
        connect.kill()
        beside.kill()
        run.kill()  # it would try to reach the server for ten minutes
        run.communicate()
        put(18, 30)
        connect.start()
        with connect.client() as spark:  # its catalogue was in memory
            for table, columns in (
                ("enriched", "key string, t timestamp"),
                ("hourly", "key string, t timestamp, n bigint"),
            ):
                spark.sql(f"CREATE TABLE {table} ({columns}) USING parquet LOCATION '{connect.warehouse}/{table}'")
        beside = begin()
        ran(connect.pipeline(file))
        put(20, 59)
        ran(connect.pipeline(file))
        # The second flow of a run has seen Spark's watermark of 18:40.
        eventually(lambda: low(lw, "flights.hourly") == mark(18), "the frontier is reached", check=alive(beside))
        assert low(lw, "flights.enriched") == mark(20, 10)
    assert oracle.broken() == []
    assert oracle.values()
    starts = [(r["key"], datetime.fromisoformat(r["t"]).replace(minute=0)) for r in rows]
    expected = Counter(window for window in starts if window[1] + HOUR <= at(18, 40))
    assert windows(connect.warehouse / "hourly") == expected


def test_rule1_after_a_full_refresh_a_flow_is_refused_until_it_is_reset(
    connect: ConnectServer, authority: Serving, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    feed, file = Feed(tmp_path / "in"), specified(tmp_path, "landed")
    feed.put([row("a", 9)])
    upstream.at(9, 10)
    ran(connect.pipeline(file))
    text = describe_pipeline(file, connect.warehouse).replace(f'"<files:{tmp_path}/in>"', f'"files:{tmp_path}/in"')
    declared, log = tmp_path / "queries.toml", tmp_path / "sidecar.log"
    declared.write_text(text.replace('"<computation>"', '"source"').replace('# "', '"'))
    command = sidecars(declared, tmp_path / "state", authority.address)
    with log.open("ab") as told, subprocess.Popen(command, stderr=told) as beside:
        try:
            eventually(lambda: low(lw, "flights.landed") == mark(9, 10), "it is followed", check=alive(beside))
            ran(connect.pipeline(file, "--full-refresh-all"))
            upstream.at(9, 50)
            eventually(lambda: "lowwater reset flights.landed" in log.read_text(), "refused", check=alive(beside))
            assert low(lw, "flights.landed") == mark(9, 10)
        finally:
            beside.kill()
    lw.reset("flights.landed")
    shutil.rmtree(tmp_path / "state/flights%2Elanded")
    flow = '[pipeline.flows."landed"]'
    declared.write_text(declared.read_text().replace(flow, f"{flow}\nadopt = true"))
    with subprocess.Popen(command) as beside:
        try:
            eventually(lambda: low(lw, "flights.landed") == mark(9, 50), "it is followed again", check=alive(beside))
        finally:
            beside.kill()
