"""A driver in a process of its own, that kills itself, its JVM and its workers at a given step of a given batch.

python -m tests.spark.crash_driver '{"address": ..., "folder": ..., "point": "written", "batch": 0, "plain": false}'
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lowwater_spark as lws
from tests.spark.support import SETTINGS
from tests.spark.updates import HOURLY, hourly

PLAIN_STEPS = {"planned": "ck/offsets", "written": "out/_spark_metadata", "committed": "ck/commits"}
"""What of a batch is on disk when a plain query, in which no code of ours runs, has come to a step."""

NEVER = 1e6
"""Seconds between two looks of a clock that does not look a second time."""


def main(address: str, folder: str, point: str, batch: int, *, plain: bool) -> None:
    builder = SparkSession.builder.master("local[2]").appName("crash")
    for name, value in SETTINGS.items():
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
        if (reached, number) == (point, batch):
            os.killpg(0, signal.SIGKILL)

    def write_batch(rows: DataFrame, current: lws.Batch) -> None:
        with (base / "lows").open("a") as lows:
            lows.write(f"{current.id} {current.low} {current.replayed}\n")
        current.write(current.stateful(rows, hourly, HOURLY), base / "out")

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
    stage.foreach_batch(stream, write_batch, checkpoint=base / "ck", probe=probe).await_termination()


def kill_at(file: Path) -> None:
    """Kill everything as soon as a file is there. It looks every millisecond: the step after it takes several."""
    while not file.exists():
        time.sleep(0.001)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
