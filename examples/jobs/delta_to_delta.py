"""Delta to Delta: sum up one table by meter and hour, into another table, each hour once.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/delta_to_delta.py
It fills the first table, waits until the sums are complete, and ends. You will see two hours. The
second table says itself how far it is complete, so its readers need no authority.

A filter needs no `drive`, no `stamp` and no window: give `stage.foreach_batch` the filtered table.
What such a table says of itself is one batch behind the authority, which hears of each commit.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws

FOLDER = Path("delta_to_delta").absolute()
METERS, POWER = str(FOLDER / "meters"), str(FOLDER / "power")
SETTINGS = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",  # of a small table; Delta takes 50 otherwise
}


def append(spark: SparkSession, lease: lowwater.Lease, until: str, *rows: tuple[str, str, int]) -> None:
    """Fill the first table as its writer does: append, then promise that nothing older follows."""
    frame = spark.createDataFrame(list(rows), "meter string, clock string, watts long")
    frame = frame.withColumn("at", sf.to_timestamp(sf.concat(sf.lit("2013-01-09 "), "clock"))).drop("clock")
    frame.write.format("delta").mode("append").save(METERS)
    lease.advance(None, oldest=None, frontier=f"2013-01-09T{until}Z")
    lease.flush()


if __name__ == "__main__":
    spark = SparkSession.builder.config(map={**SETTINGS}).getOrCreate()
    lw = lowwater.connect()
    lw.register("meters")
    writer = lw.worker("meters", name="writer").claim()
    append(spark, writer, "10:00", ("a", "09:10", 40), ("b", "09:50", 2), ("a", "10:30", 7))

    # The sums. `drive` takes the place of `withWatermark`: an hour waits for the writer's promise.
    meters = spark.readStream.format("delta").load(METERS)
    stage = lws.stage(spark, "power", inputs=["meters"], key="meter", event_time="at", stamp=sf.col("hour"))
    sums = stage.drive(meters).groupBy(sf.window("at", "1 hour"), "meter").agg(sf.sum("watts").alias("watts"))

    def write(hours: DataFrame, batch: lws.Batch) -> None:
        batch.write_table(hours, POWER)

    hours = sums.select(sf.col("window.start").alias("hour"), "meter", "watts")
    query = stage.foreach_batch(hours, write, checkpoint=FOLDER / "checkpoint")
    append(spark, writer, "11:00", ("b", "10:20", 5), ("a", "11:10", 9))
    lw.wait("power", until="2013-01-09T11:00Z", timeout=300)  # a job of yours runs on: query.await_termination()

    answer = lws.complete_through(spark, POWER, writers=["power"])
    print(f"the table is complete until {answer.low}")
    spark.read.format("delta").option("versionAsOf", answer.version).load(POWER).sort("hour", "meter").show()
    query.stop()
    lw.close()
