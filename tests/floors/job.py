"""A streaming job that knows nothing of lowwater: ``job.py FOLDER KIND [on]``. It reads what there is in FOLDER/in, and ends, or goes on."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def main(place: str, kind: str, on: str = "") -> None:
    folder = Path(place)
    builder = SparkSession.builder.master("local[1]").appName("job")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.schema("key string, t timestamp").json(str(folder / "in"))
    if kind == "windows":
        counts = frame.withWatermark("t", "20 minutes").groupBy(sf.window("t", "1 hour"), "key").count()
        frame = counts.select("key", sf.col("window.start").alias("t"), "count")
    if kind == "joined":
        right = spark.readStream.schema("other string, u timestamp").json(str(folder / "right"))
        matches = sf.expr("key = other and u >= t and u <= t + interval 30 minutes")
        pairs = frame.withWatermark("t", "20 minutes").join(right.withWatermark("u", "20 minutes"), matches)
        counts = pairs.groupBy(sf.window("u", "1 hour"), "key").count()
        frame = counts.select("key", sf.col("window.start").alias("t"), "count")
    writer = frame.writeStream.format("json").option("path", str(folder / "out"))
    writer = writer.trigger(processingTime="0 seconds") if on else writer.trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "ck")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
