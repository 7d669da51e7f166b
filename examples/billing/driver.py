"""The driver that is killed: one process of Spark with both queries.

It goes on from its checkpoints.

python -m examples.billing.driver AUTHORITY FOLDER BROKER
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater_spark as lws
from examples.billing.computation import UNIQUE, Bills
from examples.flights.streams import SESSION
from examples.session import QUICK, spark_session
from lowwater_pipeline.computation import start
from lowwater_pipeline.dedup.stage import Deduplication

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METERS: Final = ("meter-0", "meter-1")
"""The senders, each of which has a partition of the topic."""
TOPIC: Final = "usage"
READY: Final = "the queries run"

USAGE: Final = "id long, carrier string, sched_dep timestamp, miles long"
RANGES: Final = 2


def table(folder: Path) -> Path:
    """Return where the bills are."""
    return folder / "table"


def checkpoint(folder: Path, name: str) -> Path:
    """Return where the checkpoint of a query is."""
    return folder / "checkpoints" / name


def main(address: str, path: str, broker: str) -> None:
    """Run both queries until one of them ends."""
    folder = Path(path)
    settings = {
        **SESSION,
        **QUICK,
        "spark.local.dir": str(folder / "spark"),
    }
    with spark_session("billing", folder, settings) as spark:
        _start_unique(spark, address, folder, broker)
        _start_bills(spark, address, folder)
        print(READY, flush=True)
        spark.streams.awaitAnyTermination()


def _start_unique(spark: SparkSession, address: str, folder: Path, broker: str) -> None:
    """Pass each record on once: the meters send some again."""
    from pyspark.sql import functions as sf

    options = {
        "kafka.bootstrap.servers": broker,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "lowwater.brokers": "1",
    }
    rows = spark.readStream.format("kafka").options(**options).load()
    usage = rows.select(sf.from_json(sf.col("value").cast("string"), USAGE).alias("row")).select("row.*")
    once = Deduplication("id", "sched_dep")

    def write(frame: DataFrame, batch: lws.Batch) -> None:
        result = once.of(batch, frame)
        batch.write(result.main, folder / UNIQUE)
        # The meters hold the low watermark until a record is acknowledged, so nothing is late; what
        # is would be here, and not lost.
        batch.write(result.late.unionByName(result.undecidable), folder / "late")

    stage = lws.stage(
        spark, UNIQUE, inputs=METERS, key="id", event_time="sched_dep", ranges=RANGES, heuristics=(), address=address
    )
    stage.foreach_batch(usage, write, checkpoint=checkpoint(folder, UNIQUE))


def _start_bills(spark: SparkSession, address: str, folder: Path) -> None:
    """Bill what has passed."""
    (folder / UNIQUE).mkdir(exist_ok=True)
    frame = spark.readStream.schema(USAGE).option("recursiveFileLookup", "true").parquet(str(folder / UNIQUE))

    def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        batch.write_table(outputs["bills"], table(folder))

    start(Bills(), frame, write, checkpoint=checkpoint(folder, Bills.name), ranges=RANGES, address=address)


if __name__ == "__main__":
    main(*sys.argv[1:])
