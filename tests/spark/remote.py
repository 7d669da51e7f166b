"""Stages whose checkpoint is on another file system than this machine's: what HDFS and S3 are asked alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.location import Location
from tests.kit.times import mark
from tests.spark.crash_driver import ANY
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, low, row
from tests.spark.test_crashes import Crashes
from tests.spark.updates import HOURLY, hourly

DECLARED: dict[str, Any] = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4}


class Query:
    """A stage: plain, or with a function that has two stages."""

    def __init__(self, kind: str, flow: Flow, checkpoint: Location, **options: Any) -> None:
        self._kind = kind
        self._flow = flow
        self._options = {"checkpoint": str(checkpoint), **options}

    def start(self, **options: Any) -> lws.TrackedQuery:
        given = {**self._options, **options}
        stage, frame = lws.stage(self._flow.spark, "stage", **DECLARED, address=self._flow.address), self._flow.read()
        if self._kind == "plain":
            query = stage.start(frame, format="json", path=self._flow.folder / "out", **given)
        else:
            # Its directory in the checkpoint has the name other%2Estage.
            other = lws.stage(self._flow.spark, "other.stage", **DECLARED, address=self._flow.address)
            query = stage.foreach_batch(frame, self._write, also=[other], **given)
        self._flow.queries.append(query)
        return query

    def _write(self, rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, self._flow.folder / "out", file_format="json")

    def keys(self) -> list[str]:
        """What readers see."""
        out = self._flow.folder / "out"
        options = {} if self._kind == "plain" else {"recursiveFileLookup": "true"}
        rows = self._flow.spark.read.schema("key string, t timestamp").options(**options).json(str(out))
        return sorted(entry.key for entry in rows.collect())


def driven_windows_close(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location, **options: Any
) -> None:
    """Start a driven query twice, and have the windows of an hour closed each time."""
    stage = lws.stage(
        flow.spark, "stage", inputs=["source"], key="key", event_time="t", stamp=sf.col("hour"), address=flow.address
    )
    windows = stage.drive(flow.read()).groupBy(sf.window("t", "1 hour"), "key").count()
    hours = windows.select(sf.col("window.start").alias("hour"), "key")
    for hour in (10, 11):
        flow.feed.put([row(f"{hour}", hour - 1, 30), row("open", hour)])
        query = stage.start(hours, checkpoint=str(checkpoint), format="json", path=flow.folder / "out", **options)
        flow.queries.append(query)
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "stage") == mark(hour), "its windows are closed")  # noqa: B023
        query.stop()

    out = flow.spark.read.schema("hour timestamp, key string").json(str(flow.folder / "out"))
    assert sorted((found.hour.hour, found.key) for found in out.collect()) == [(9, "10"), (10, "11"), (10, "open")]


class Remote(Crashes):
    """A driver that keeps its checkpoint there, and its state beside its output."""

    more: Mapping[str, object]

    def arguments(self, point: str, batch: int) -> dict[str, object]:
        return {**super().arguments(point, batch), **self.more}


def killed_driver_is_replayed(
    point: str,
    flow: Flow,
    lw: lowwater.Client,
    upstream: Upstream,
    checkpoint: Location,
    *,
    settings: dict[str, object] | None = None,
    **options: Any,
) -> None:
    """Kill -9 the driver, its JVM and its workers: the next run has the same W, whatever the inputs say by then."""
    crashes = Remote(flow.folder, flow.address)
    crashes.more = {"checkpoint": str(checkpoint)} | ({} if settings is None else {"settings": settings})
    crashes.put(("a", 9), ("b", 10))
    upstream.at(10)
    try:
        crashes.run(point, ANY)
        crashes.crashed()
    finally:
        crashes.kill()
    upstream.at(12)
    lows = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        lows.append((batch.id, batch.replayed, batch.low))
        batch.write(batch.stateful(rows, hourly, HOURLY, flow.folder / "state"), flow.folder / "out")

    stage = lws.stage(flow.spark, "hourly", **DECLARED, stamp=HOUR, address=flow.address)
    frame = flow.spark.readStream.schema("key string, t timestamp").json(str(flow.folder / "in"))
    flow.queries.append(stage.foreach_batch(frame, write_batch, checkpoint=str(checkpoint), **options))
    flow.eventually(lambda: low(lw, "hourly") == mark(12), "what was interrupted is done again")

    assert lows[0] == (0, True, mark(10))
    assert crashes.written() == [("09:00", "a", 1), ("10:00", "b", 1)]
