"""A job that knows nothing of lowwater: ``job.py SPECIFICATION``, windows of an hour over a source, into a table of files, until it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

SCHEMA = "key string, t timestamp"


def windows(spark: SparkSession, source: dict[str, Any]) -> DataFrame:
    """Return the windows over what a specification names as the source."""
    stream = spark.readStream.format(source["format"]).options(**source["options"])
    if source["format"] == "json":
        stream = stream.schema(SCHEMA)
    rows = stream.load(source["path"]) if "path" in source else stream.load()
    if source["format"] == "kafka":
        rows = rows.select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
    counts = rows.withWatermark("t", "2 hours").groupBy(sf.window("t", "1 hour"), "key").count()
    return counts.select("key", sf.col("window.start").alias("t"), "count")


def main(file: str) -> None:
    specification = json.loads(Path(file).read_text())
    builder = SparkSession.builder
    for name, value in specification["settings"].items():
        builder = builder.config(name, value)
    frame = windows(builder.getOrCreate(), specification["source"])
    options = {"path": specification["out"], "checkpointLocation": specification["checkpoint"]}
    frame.writeStream.format("parquet").options(**options).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
