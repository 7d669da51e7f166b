"""A driver in a process of its own, that kills itself, its JVM and its workers at a given step of a given batch.

python -m tests.spark.crash_driver '{"address": ..., "folder": ..., "point": "written", "batch": 0}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lowwater_spark as lws
from tests.spark.support import SETTINGS
from tests.spark.updates import HOURLY, hourly


def main(address: str, folder: str, point: str, batch: int) -> None:
    builder = SparkSession.builder.master("local[2]").appName("crash")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    base = Path(folder)
    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))

    def probe(reached: str, number: int) -> None:
        if (reached, number) == (point, batch):
            os.killpg(0, signal.SIGKILL)

    def write_batch(rows: DataFrame, current: lws.Batch) -> None:
        with (base / "lows").open("a") as lows:
            lows.write(f"{current.id} {current.low} {current.replayed}\n")
        current.write(current.stateful(rows, hourly, HOURLY), base / "out")

    hours = timedelta(hours=1)
    stage = lws.stage(
        spark, "hourly", inputs=["source"], key="key", event_time="t", ranges=4, stamp=hours, address=address
    )
    stage.foreach_batch(stream, write_batch, checkpoint=base / "ck", probe=probe).await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
