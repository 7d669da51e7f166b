"""A job that knows nothing of lowwater: ``job.py SPECIFICATION``, until it is killed.

It writes windows of an hour over a source into a table of files; in real-time mode the rows of a topic into another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

SCHEMA = "key string, t timestamp"
REAL_TIME: dict[str, Any] = {"realTime": "5 seconds"}
"""A trigger that PySpark's own types do not know."""


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
    spark, source = builder.getOrCreate(), specification["source"]
    options = {"path": specification["out"], "checkpointLocation": specification["checkpoint"]}
    if specification["realtime"]:
        rows = spark.readStream.format("kafka").options(**source["options"]).load().select("key", "value")
        options |= {name: value for name, value in source["options"].items() if name.startswith("kafka.")}
        options["topic"] = options.pop("path")
        writer = rows.writeStream.format("kafka").outputMode("update").trigger(**REAL_TIME)
    else:
        writer = windows(spark, source).writeStream.format("parquet")
    writer.options(**options).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
