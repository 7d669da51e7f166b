"""A driven stage that counts the rows of each key and hour until it is killed: ``driven_job.py FOLDER ADDRESS``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from tests.floors.smoke import HOUR, SCHEMA, SETTINGS, quick


def main(place: str, address: str) -> None:
    folder = Path(place)
    builder = SparkSession.builder.master("local[2]").appName("driven")
    for name, value in {**SETTINGS, **quick(pyspark.__version__)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(folder / "in"))
    stage = lws.stage(
        spark, "driven", inputs=["source"], key="key", event_time="t", stamp=HOUR, ranges=2, address=address
    )
    hourly = stage.drive(rows).groupBy(sf.window("t", "1 hour"), "key").count()
    frame = hourly.select("key", sf.col("window.start").alias("t"), "count")
    stage.start(frame, checkpoint=folder / "ck", format="json", path=folder / "out").await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
