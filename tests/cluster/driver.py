"""The application's driver, in client mode: two tracked queries over one feed, hourly windows of our own and driven ones of Spark's.

spark-submit ... tests/cluster/driver.py '{"folder": ..., "early": false}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from tests.cluster.job import hourly_under_orders
from tests.spark.updates import HOURLY

HOUR = timedelta(hours=1)
STEPS = ("begun", "state", "written", "staged", "prepared", "committed")
"""Where a driver can be told to kill itself."""


def main(folder: str, *, early: bool) -> None:
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    base = Path(folder)
    started: list[lws.TrackedQuery] = []
    running = threading.Event()

    def probe(point: str, number: int) -> None:
        if early and point == "prepared":
            # The planted bug: the authority is told of the batch before Spark has committed it.
            running.wait()
            started[0]._run.authority.commit(number)
        for order in sorted((base / "orders").glob(f"*.{point}")):
            order.rename(order.with_suffix(".taken"))
            os.killpg(0, signal.SIGKILL)

    def write_batch(rows: DataFrame, current: lws.Batch) -> None:
        closed = current.stateful(rows, partial(hourly_under_orders, str(base / "orders")), HOURLY)
        current.write(closed, base / "hourly")

    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))
    stage = lws.stage(spark, "hourly", inputs=["source"], key="key", event_time="t", ranges=4, stamp=HOUR)
    started.append(stage.foreach_batch(stream, write_batch, checkpoint=base / "hourly-ck", probe=probe))
    running.set()
    stage = lws.stage(spark, "driven", inputs=["source"], key="key", event_time="t", ranges=4, stamp=sf.col("hour"))
    counts = stage.drive(stream).groupBy(sf.window("t", "1 hour"), "key").agg(sf.count("*").alias("n"))
    hours = counts.select(sf.col("window.start").alias("hour"), "key", "n")
    started.append(stage.start(hours, checkpoint=base / "driven-ck", format="parquet", path=base / "driven"))
    # Either ends only by an error, and then everything does.
    spark.streams.awaitAnyTermination()
    for query in started:
        query.stop()
        query.await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
