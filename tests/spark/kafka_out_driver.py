"""A driver in a process of its own that publishes into Kafka, and that is killed with its JVM and its workers at a given step of a given batch.

python -m tests.spark.kafka_out_driver '{"address": ..., "folder": ..., "brokers": ..., "topic": ..., "point": "rows staged", "batch": 0}'
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
from lowwater_spark.track import kafka_out
from tests.spark.kafka_tasks import Ends
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS


def main(address: str, folder: str, brokers: str, topic: str, point: str, batch: int) -> None:
    base = Path(folder)
    ends = Ends(base / "ends")
    ends.group.write_text(str(os.getpgrp()))
    kafka_out.__dict__["publish_slots"] = ends.publish
    spark = spark_session("kafka-out", "local[2,3]", SETTINGS | QUICK)

    def probe(reached: str, number: int) -> None:
        if (reached, number) == (point, batch):
            os.killpg(0, signal.SIGKILL)

    def write(rows: DataFrame, current: lws.Batch) -> None:
        spread = rows.withColumn("at", sf.rand()).repartition(3, "at")
        out = spread.select("key", sf.concat_ws(" ", "key", "at").alias("value"))
        current.write_kafka(out, topic, options={"kafka.bootstrap.servers": brokers}, slots=2)

    stream = spark.readStream.schema("key string, t timestamp").json(str(base / "in"))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", ranges=2, address=address)
    stage.foreach_batch(stream, write, checkpoint=base / "ck", probe=probe).await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
