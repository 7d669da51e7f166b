"""Queries with Spark's own stateful operators, and the oracle that says whether what was published of them was true."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
from lowwater_spark.sources.files.sink_log import list_sink

HOUR = timedelta(hours=1)
HALF = timedelta(minutes=30)
DELAY = "20 minutes"


def by_start(left: DataFrame, _: DataFrame) -> DataFrame:
    counted = left.withWatermark("t", DELAY).groupBy(sf.window("t", "1 hour"), "key").count()
    return counted.select("key", sf.col("window.start").alias("t"))


def by_end(left: DataFrame, _: DataFrame) -> DataFrame:
    counted = left.withWatermark("t", DELAY).groupBy(sf.window("t", "1 hour"), "key").count()
    return counted.select("key", sf.col("window.end").alias("t"))


def deduplicated(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.withWatermark("t", DELAY).dropDuplicatesWithinWatermark(["key"])


def outer_join(left: DataFrame, right: DataFrame) -> DataFrame:
    other = right.withWatermark("u", DELAY)
    matches = sf.expr("key = other and t >= u - interval 30 minutes and t <= u + interval 30 minutes")
    joined = left.withWatermark("t", DELAY).join(other, matches, "leftOuter")
    return joined.select("key", sf.coalesce(sf.least("t", "u"), "t").alias("t"))


KINDS: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], timedelta, dict[str, Any]]] = {
    "windows stamped by start": (by_start, HOUR, {"stamp": HOUR}),
    "windows stamped by end": (by_end, timedelta(0), {}),
    "dropDuplicatesWithinWatermark": (deduplicated, timedelta(0), {}),
    "outer join": (outer_join, HALF, {}),
}
"""The query, the retention that is right for it, and the other declarations of the stage."""


class Oracle:
    """Watches what is published of a stage, and finds rows that came out below it afterwards."""

    def __init__(self, address: str, out: Path, stamps: Callable[[Path], list[dt.datetime]] | None = None) -> None:
        self._address = address
        self._out = out
        self._stamps = stamps or _stamps
        self._stop = threading.Event()
        self.published: list[tuple[lowwater.Watermark, set[str]]] = []
        """Each value, and the files that stood in the sink's log when it had been seen."""

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        with lowwater.connect(self._address) as reader:
            thread = threading.Thread(target=self._watch, args=[reader, name])
            thread.start()
            try:
                yield
            finally:
                reader.close()
                thread.join()

    def _watch(self, reader: lowwater.Client, name: str) -> None:
        try:
            for view in reader.watch(name):
                self.published.append((view.low, self._files()))
        except lowwater.LowwaterError:
            pass

    def _files(self) -> set[str]:
        return {file.path for file in list_sink(str(self._out))} if (self._out / "_spark_metadata").is_dir() else set()

    def rows(self) -> dict[str, list[lowwater.Watermark]]:
        times = {}
        for path in self._files():
            times[path] = [lowwater.Watermark.of(stamp) for stamp in self._stamps(Path(path))]
        return times

    def values(self) -> list[lowwater.Watermark]:
        return sorted({value for value, _ in self.published if not value.unknown})

    def broken(self) -> list[str]:
        """Rows that came out after something above them had been published."""
        rows = self.rows()
        return [
            f"{stamp} in {Path(path).name} after {value}"
            for value, before in self.published
            for path, stamps in rows.items()
            if path not in before
            for stamp in stamps
            if stamp < value
        ]


def _stamps(file: Path) -> list[dt.datetime]:
    return [_parse(json.loads(line)["t"]) for line in file.read_text(encoding="utf-8").splitlines()]


def _parse(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
