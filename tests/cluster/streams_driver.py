"""The driver of one of three stages over Kafka and Delta, each an application of its own.

    topic fed -> landed -> table landed -> relayed -> topic relayed -> hourly -> table hourly

spark-submit ... tests/cluster/streams_driver.py '{"folder": ..., "stage": "landed", "brokers": ...}'
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from tests.spark.updates import HOURLY, hourly

HOUR = timedelta(hours=1)
ROW = "number long, key string, t timestamp"
TABLES = {"landed": ROW, "hourly": HOURLY}
INPUTS = {"landed": "fed", "relayed": "landed", "hourly": "relayed"}


class Streams:
    def __init__(self, spark: SparkSession, folder: Path, brokers: str) -> None:
        self.spark = spark
        self.folder = folder
        self.brokers = brokers

    def make_tables(self) -> None:
        """Make those that are missing. Several drivers may begin at once."""
        with (self.folder / "tables.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name, columns in TABLES.items():
                if not (self.folder / name / "_delta_log" / f"{0:020}.json").exists():
                    self.spark.sql(f"CREATE TABLE delta.`{self.folder / name}` ({columns}) USING delta")

    def read(self, name: str) -> DataFrame:
        if name in TABLES:
            return self.spark.readStream.format("delta").load(str(self.folder / name))
        options = {
            "kafka.bootstrap.servers": self.brokers,
            "subscribe": name,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "lowwater.brokers": str(self.brokers.count(",") + 1),
            # The feed is written by a plain producer, which leaves no marks.
            **({} if name == "fed" else {"lowwater.head": "marks"}),
        }
        rows = self.spark.readStream.format("kafka").options(**options).load()
        return rows.select(sf.from_json(sf.col("value").cast("string"), ROW).alias("row")).select("row.*")

    def write(self, name: str, rows: DataFrame, batch: lws.Batch) -> None:
        if name == "hourly":
            rows = batch.stateful(rows, hourly, HOURLY)
        if name in TABLES:
            batch.write_table(rows, str(self.folder / name))
            return
        values = rows.select("key", sf.to_json(sf.struct("*"), {"timestampFormat": ISO}).alias("value"))
        batch.write_kafka(values, name, options={"kafka.bootstrap.servers": self.brokers}, slots=2)


ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def main(folder: str, stage: str, brokers: str) -> None:
    spark = SparkSession.builder.appName(stage).getOrCreate()
    streams = Streams(spark, Path(folder), brokers)
    streams.make_tables()
    orders = streams.folder / "orders"

    def probe(point: str, _batch: int) -> None:
        for order in sorted(orders.glob(f"*.{stage}.{point}")):
            order.rename(order.with_suffix(".taken"))
            os.killpg(0, signal.SIGKILL)

    tracked = lws.stage(
        spark,
        stage,
        inputs=[INPUTS[stage]],
        key="key",
        event_time="t",
        ranges=2,
        stamp=HOUR if stage == "hourly" else "event",
    )
    rows = streams.read(INPUTS[stage])
    query = tracked.foreach_batch(
        rows,
        lambda batch_rows, batch: streams.write(stage, batch_rows, batch),
        checkpoint=streams.folder / f"{stage}-ck",
        probe=probe,
    )
    query.await_termination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
