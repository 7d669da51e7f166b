"""A driver in a process of its own that writes into PostgreSQL under its claim, and that is killed with its JVM and its workers at a given point of a given batch.

python -m tests.spark.postgres_out_driver '{"address": ..., "folder": ..., "dsn": ..., "point": "staged", "batch": 0}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_pipeline.guard.postgres_out import PostgresOutput
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS


def main(address: str, folder: str, dsn: str, point: str, batch: int) -> None:
    base = Path(folder)
    spark = spark_session("postgres-out", "local[2,3]", SETTINGS | QUICK)
    output = PostgresOutput(dsn, "Out", name="stage")
    now = [-1]

    def probe(reached: str) -> None:
        if (reached, now[0]) == (point, batch):
            os.killpg(0, signal.SIGKILL)

    output.probe = output.guard.probe = probe

    def write(rows: DataFrame, current: lws.Batch) -> None:
        output.own(current)
        now[0] = current.id
        output.write(current, rows.withColumn("luck", sf.rand()).repartition(3))

    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", ranges=2, address=address)
    stage.foreach_batch(stream, write, checkpoint=base / "ck").await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
