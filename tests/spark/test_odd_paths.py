"""Folders, tables and checkpoints whose names mean something to others: each stands where it is named, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row
from tests.spark.updates import HOURLY, hourly

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ODD = "a b%20c#1+d:é\u2028;="
"""Characters in which Spark reads no pattern, all in one name."""

PATTERN = f"{ODD}[1]{{x}}?*"
"""For those who read no patterns."""

WRITERS = ["stage"]


def tables(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("_delta_log")}


def test_a_stage_stands_in_folders_of_any_name(
    spark: SparkSession, flow: Flow, tmp_path: Path, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow = Flow(spark, flow.address, tmp_path / ODD)
    home = flow.folder
    spark.sql(f"CREATE DATABASE IF NOT EXISTS odd LOCATION '{home / 'my warehouse'}'")
    spark.sql("CREATE TABLE odd.orders (key string, t timestamp) USING delta")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.stateful(rows, hourly, HOURLY).collect()
        batch.write(rows, home / "out", file_format="json")
        batch.write_table(rows, "odd.orders")
        batch.write_table(rows, tmp_path / PATTERN)

    exact = sf.expr("INTERVAL 700 MICROSECONDS")
    flow.feed.put(
        [row("a", 9)], f"{ODD}.json".replace(":", "")
    )  # Hadoop itself opens no local file with a colon in its name
    upstream.at(9)
    query = flow.start(write, checkpoint=ODD, stream=flow.read().withColumn("t", sf.col("t") + exact))
    flow.eventually(lambda: low(lw, "stage") == mark(9), "published")
    query.stop()
    flow.feed.put([row("b", 10)])
    upstream.at(10)
    query = flow.start(write, checkpoint=ODD, stream=flow.read().withColumn("t", sf.col("t") + exact))
    flow.eventually(lambda: low(lw, "stage") == mark(10), "a start over the same names goes on")
    query.stop()

    assert sorted(r.key for r in spark.table("odd.orders").collect()) == ["a", "b"]
    assert sorted(r.key for r in spark.read.format("delta").load(str(tmp_path / PATTERN)).collect()) == ["a", "b"]
    assert tables(tmp_path) == {"orders", PATTERN}, "nothing was written beside"
    for place in ("odd.orders", str(tmp_path / PATTERN), str(home / "out")):
        answer = lws.complete_through(spark, place, writers=WRITERS)
        assert answer.low == mark(10), (place, answer.why)

    read = spark.read.schema("key string, t timestamp").option("recursiveFileLookup", "true").json(str(home / "out"))
    assert {r.t.microsecond for r in read.collect()} == {700}, "JSON keeps microseconds"

    def keep(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, f"file:{home / 'next'}")

    reader = lws.stage(spark, "next", inputs=["stage"], key="key", event_time="t", ranges=2, address=flow.address)
    stream = spark.readStream.table("odd.orders")
    flow.queries.append(reader.foreach_batch(stream, keep, checkpoint=home / "next ck"))
    flow.eventually(lambda: low(lw, "next") == mark(10), "a reader of the table by its name follows")
    flow.queries[-1].stop()
    assert sorted(
        r.key for r in spark.read.option("recursiveFileLookup", "true").parquet(str(home / "next")).collect()
    ) == ["a", "b"]
