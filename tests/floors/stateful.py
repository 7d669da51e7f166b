"""Queries of Spark 3.5 with every kind of state: ``stateful.py FOLDER [QUERY...]``. Each leaves its checkpoint in FOLDER/QUERY."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf


def put(folder: Path, name: str, hour: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"key": "a", "t": f"2013-01-09T{hour:02}:10:00"}) + "\n")


class Queries:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        for hour in (9, 11):
            put(folder / "in", f"{hour}.json", hour)

    def bare(self) -> DataFrame:
        stream = self.spark.readStream.schema("key string, t timestamp").option("maxFilesPerTrigger", "1")
        return stream.json(str(self.folder / "in"))

    def timed(self) -> DataFrame:
        return self.bare().withWatermark("t", "20 minutes")

    def joined(self, how: str, right: DataFrame | None = None) -> DataFrame:
        left = self.timed().select(sf.col("key").alias("k"), sf.col("t").alias("l"))
        other = (self.timed() if right is None else right).select("key", sf.col("t").alias("r"))
        return left.join(other, sf.expr("k = key and r >= l and r <= l + interval 1 hour"), how)

    def function(self, timeout: str) -> DataFrame:
        def run(key: Any, _frames: Any, _state: Any) -> Iterator[pd.DataFrame]:
            yield pd.DataFrame({"key": [key[0]]})

        return self.timed().groupBy("key").applyInPandasWithState(run, "key string", "n long", "append", timeout)

    def run(self, name: str, version: str = "") -> None:
        """Run the query ``version`` over the checkpoint ``name``; left out, the query of that name."""
        frame, mode = QUERIES[version or name](self)
        writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / name)).start().awaitTermination()

    def changed(self) -> None:
        """A new version of a query, without its deduplication, goes on over the checkpoint of the old one."""
        self.run("changed")
        put(self.folder / "in", "13.json", 13)
        self.run("changed", "window")


def hours(frame: DataFrame, *keys: str) -> DataFrame:
    return frame.groupBy(sf.window("t", "1 hour"), *keys).count()


def days(frame: DataFrame) -> DataFrame:
    return frame.groupBy(sf.window(sf.window_time("window"), "1 day")).count()


QUERIES: dict[str, Callable[[Queries], tuple[DataFrame, str]]] = {
    "window": lambda q: (hours(q.timed(), "key"), "append"),
    "window without a watermark": lambda q: (hours(q.bare()), "update"),
    "event time": lambda q: (q.timed().groupBy("t").count(), "append"),
    "key": lambda q: (q.timed().groupBy("key").agg(sf.first(sf.struct("t"))), "update"),
    "no key": lambda q: (q.timed().groupBy().count(), "update"),
    "window of windows": lambda q: (days(hours(q.timed())), "append"),
    "session": lambda q: (q.timed().groupBy(sf.session_window("t", "10 minutes"), "key").count(), "append"),
    "session without a watermark": lambda q: (
        q.bare().groupBy(sf.session_window("t", "10 minutes"), "key").count(),
        "complete",
    ),
    "distinct": lambda q: (q.timed().distinct(), "append"),
    "dropDuplicates": lambda q: (q.bare().dropDuplicates(["key"]), "append"),
    "dropDuplicatesWithinWatermark": lambda q: (q.timed().dropDuplicatesWithinWatermark(["key"]), "append"),
    "inner join": lambda q: (q.joined("inner"), "append"),
    "left outer join": lambda q: (q.joined("left_outer"), "append"),
    "join with one watermark": lambda q: (q.joined("inner", q.bare()), "append"),
    "window over a join": lambda q: (q.joined("inner").groupBy(sf.window("r", "1 hour"), "k").count(), "append"),
    "function with a timeout": lambda q: (q.function("EventTimeTimeout"), "append"),
    "function without a timeout": lambda q: (q.function("NoTimeout"), "append"),
    "limit": lambda q: (q.bare().limit(5), "append"),
    "changed": lambda q: (hours(q.timed().dropDuplicates(["key", "t"]), "key"), "append"),
}
"""Each query with its output mode, by the name of its checkpoint."""


def main(place: str, *names: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    queries = Queries(spark, Path(place))
    for name in names or QUERIES:
        queries.run(name) if name != "changed" else queries.changed()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
