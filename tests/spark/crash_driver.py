"""A driver in a process of its own, that kills itself, its JVM and its workers at a given step of a given batch.

python -m tests.spark.crash_driver '{"address": ..., "folder": ..., "point": "written", "batch": 0, "plain": false, "keep": false}'
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lowwater_spark as lws
from lowwater_spark.sources import bookmarks
from tests.spark.support import SETTINGS
from tests.spark.updates import HOURLY, hourly

PLAIN_STEPS = {"planned": "ck/offsets", "written": "out/_spark_metadata", "committed": "ck/commits"}
"""What of a batch is on disk when a plain query, in which no code of ours runs, has come to a step."""

NEVER = 1e6
"""Seconds between two looks of a clock that does not look a second time."""


ANY = -1
"""Stands for any batch."""


def main(
    address: str,
    folder: str,
    point: str,
    batch: int,
    *,
    plain: bool,
    keep: bool,
    checkpoint: str = "",
    settings: Mapping[str, str] | None = None,
) -> None:
    builder = SparkSession.builder.master("local[2]").appName("crash")
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    base = Path(folder)
    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))
    if plain:
        stage = lws.stage(spark, "rows", inputs=["source"], key="key", event_time="t", ranges=4, address=address)
        if point:
            threading.Thread(target=kill_at, args=[base / PLAIN_STEPS[point] / str(batch)], daemon=True).start()
        # A batch is told of by the clock: one that does not look again leaves it untold.
        looking = dataclasses.replace(stage, interval=NEVER) if point == "committed" else stage
        looking.start(stream, checkpoint=base / "ck", format="parquet", path=base / "out").await_termination()
        return

    def probe(reached: str, number: int) -> None:
        with (base / "steps").open("a") as steps:
            steps.write(f"{reached} {number}\n")
        if reached == point and batch in {number, ANY}:
            os.killpg(0, signal.SIGKILL)

    def write_batch(rows: DataFrame, current: lws.Batch) -> None:
        with (base / "lows").open("a") as lows:
            lows.write(f"{current.id} {current.low} {current.replayed}\n")
        state = base / "state" if checkpoint else None
        current.write(current.stateful(rows, hourly, HOURLY, state), base / "out")

    if keep:
        hand_on(spark, address, base, probe)
        return
    stage = lws.stage(
        spark,
        "hourly",
        inputs=["source"],
        key="key",
        event_time="t",
        ranges=4,
        stamp=timedelta(hours=1),
        address=address,
    )
    query = stage.foreach_batch(
        stream, write_batch, checkpoint=checkpoint or base / "ck", probe=probe, single_driver=True
    )
    query.await_termination()


def hand_on(spark: SparkSession, address: str, base: Path, probe: Callable[[str, int], None]) -> None:
    """A stage that removes what it has handed over, and one that reads it."""
    bookmarks._PAUSE = 0.0

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows.repartition(3), base / "out", keep=timedelta(0))

    def copy(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, base / "copy")

    declared = {"key": "key", "event_time": "t", "ranges": 2, "address": address}
    (base / "out").mkdir(exist_ok=True)
    reader = spark.readStream.schema("key string, t timestamp").option("recursiveFileLookup", "true")
    rows = reader.json(str(base / "in"))
    first = lws.stage(spark, "rows", inputs=["source"], **declared)  # type: ignore[arg-type]
    query = first.foreach_batch(rows, write, checkpoint=base / "ck", probe=probe)
    second = lws.stage(spark, "copy", inputs=["rows"], **declared)  # type: ignore[arg-type]
    second.foreach_batch(reader.parquet(str(base / "out")), copy, checkpoint=base / "ck-copy")
    query.await_termination()


def kill_at(file: Path) -> None:
    """Kill everything as soon as a file is there. It looks every millisecond: the step after it takes several."""
    while not file.exists():
        time.sleep(0.001)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
