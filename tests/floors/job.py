"""A streaming job that knows nothing of lowwater: ``job.py FOLDER KIND``. It reads what there is in FOLDER/in, and ends."""

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


def main(place: str, kind: str) -> None:
    folder = Path(place)
    builder = SparkSession.builder.master("local[1]").appName("job")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.schema("key string, t timestamp").json(str(folder / "in"))
    if kind == "windows":
        counts = frame.withWatermark("t", "20 minutes").groupBy(sf.window("t", "1 hour"), "key").count()
        frame = counts.select("key", sf.col("window.start").alias("t"), "count")
    writer = frame.writeStream.format("json").option("path", str(folder / "out"))
    writer.option("checkpointLocation", str(folder / "ck")).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
