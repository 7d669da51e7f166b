"""What a test does in a store, by a Spark session of its own: ``hand.py SETTINGS``, then a command in each line, of which the answer is a line, too."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

RESULT = "key string, t timestamp, count bigint"


class Hand:
    """The commands."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.jvm: Any = spark._jvm
        self.conf: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def _file(self, name: str) -> tuple[Any, Any]:
        path = self.jvm.org.apache.hadoop.fs.Path(name)
        return path.getFileSystem(self.conf), path

    def put(self, name: str, content: str) -> None:
        """Write a file that is whole as soon as it is seen."""
        files, path = self._file(name)
        first = path
        if not name.startswith(("s3a:", "gs:")):  # an object is there when it is whole
            first = self.jvm.org.apache.hadoop.fs.Path(path.getParent().getParent(), f".{path.getName()}")
        out = files.create(first)
        out.write(bytearray(content, "utf-8"))
        out.close()
        if first is not path:
            files.mkdirs(path.getParent())
            if not files.rename(first, path):
                msg = f"{name} is there"
                raise FileExistsError(msg)

    def append(self, kind: str, name: str, rows: list[tuple[str, str]]) -> None:
        """Append rows to a table."""
        times = [(key, dt.datetime.fromisoformat(t)) for key, t in rows]
        writer = (
            self.spark.createDataFrame(times, "key string, t timestamp").coalesce(1).write.format(kind).mode("append")
        )
        if kind == "iceberg":
            self.spark.sql(f"create table if not exists {name} (key string, t timestamp) using iceberg")
            writer.saveAsTable(name)
        else:
            writer.save(name)

    def begun(self, checkpoint: str) -> bool:
        """Return whether a query has committed a batch."""
        files, path = self._file(f"{checkpoint}/commits/0")
        return bool(files.exists(path))

    def _table(self, out: str) -> DataFrame | None:
        files, path = self._file(f"{out}/_spark_metadata")
        return self.spark.read.schema(RESULT).parquet(out) if files.exists(path) else None

    def files(self, out: str) -> list[str]:
        """Return the files of which Spark's file sink says that they are of its output."""
        table = self._table(out)
        return [] if table is None else table.inputFiles()

    def rows(self, out: str) -> list[list[Any]]:
        """Return the file, key, start in seconds and count of each window."""
        table = self._table(out)
        if table is None:
            return []
        found = table.select(sf.input_file_name(), "key", sf.col("t").cast("long"), "count").collect()
        return [list(each) for each in found]


def main(settings: str) -> None:
    builder = SparkSession.builder.master("local[1]")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    # What Spark itself prints does not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    hand = Hand(builder.getOrCreate())
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answers.write(json.dumps(getattr(hand, command)(*arguments)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
