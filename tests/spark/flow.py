"""A feed, and the stages over it: with functions, or plain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from tests.kit.times import mark
from tests.spark.queries import Queries
from tests.spark.support import Feed, Upstream, low, row
from tests.spark.updates import HOURLY, hourly

HOUR = timedelta(hours=1)


class Flow(Queries):
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.feed = Feed(folder / "in")
        self.out: list[tuple[int, str, str, int]] = []
        self.batches: list[tuple[int, str, bool]] = []

    def read(self, schema: str = "key string, t timestamp", **options: str) -> DataFrame:
        stream = self.spark.readStream.schema(schema).options(recursiveFileLookup="true", **options)
        return stream.json(str(self.feed.folder))

    def plain(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.batches.append((batch.id, str(batch.low), batch.replayed))
        batch.write(rows, self.folder / "out")

    def windows(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.batches.append((batch.id, str(batch.low), batch.replayed))
        closed = batch.stateful(rows, hourly, HOURLY)
        self.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    def closed(self) -> list[tuple[str, str, int]]:
        return sorted((hour, key, n) for _, hour, key, n in self.out)

    def start(
        self,
        write_batch: Callable[[DataFrame, lws.Batch], object],
        name: str = "stage",
        *,
        stream: DataFrame | None = None,
        key: str | Column = "key",
        stamp: timedelta | str = "event",
        checkpoint: str = "ck",
        query_name: str | None = None,
        ranges: int = 4,
        **options: Any,
    ) -> lws.TrackedQuery:
        declared: dict[str, Any] = {"key": key, "event_time": "t", "ranges": ranges, "stamp": stamp}
        stage = lws.stage(self.spark, name, inputs=["source"], **declared, address=self.address)
        frame = self.read() if stream is None else stream
        query = stage.foreach_batch(frame, write_batch, checkpoint=self.folder / checkpoint, name=query_name, **options)
        self.queries.append(query)
        return query


class Readable(Protocol):
    """A source that a stage can read, and the stage over it."""

    flow: Flow

    def put(self, *rows: tuple[str, int]) -> object: ...
    def read(self, **options: str) -> DataFrame: ...

    def track(self, write: Callable[[DataFrame, lws.Batch], object] | None = None, **options: Any) -> lws.TrackedQuery:
        stream = options.pop("stream", None) or self.read(**options.pop("source", {}))
        return self.flow.start(write or self.flow.plain, stream=stream, ranges=2, **options)

    def followed(self, lw: lowwater.Client, upstream: Upstream, *rows: tuple[str, int]) -> lws.TrackedQuery:
        self.put(*rows)
        upstream.at(9)
        query = self.track()
        self.flow.eventually(lambda: low(lw, "stage") == mark(9), "the rows are committed")
        return query

    def story(
        self,
        lw: lowwater.Client,
        upstream: Upstream,
        planned: Callable[[lws.TrackedQuery], bool],
        change: Callable[[], object] = lambda: None,
        **source: str,
    ) -> lws.TrackedQuery:
        """Check how a stage follows its inputs: what is only planned holds, no rows are needed, and a restart goes on."""
        going = threading.Event()

        def write(rows: DataFrame, batch: lws.Batch) -> None:
            going.wait(180)
            self.flow.plain(rows, batch)

        def stands(hour: int, why: str) -> None:
            upstream.at(hour)
            self.flow.eventually(lambda: low(lw, "stage") == mark(hour), why)

        going.set()
        self.put(("a", 9), ("b", 9))
        query = self.track(write, source=source)
        stands(9, "the rows are committed")
        stands(10, "no rows are needed")
        going.clear()
        self.put(("c", 10))
        upstream.at(11)
        self.flow.eventually(lambda: planned(query), "the row is planned, not committed")
        assert low(lw, "stage") == mark(10)
        going.set()
        stands(11, "now it is")
        change()
        stands(12, "it goes past what adds no rows")
        query.stop()
        self.put(("d", 12))
        query = self.track(write, source=source)
        stands(13, "after a restart")
        assert self.keys() == ["a", "b", "c", "d"]
        return query

    def keys(self) -> list[str]:
        """The keys that the stage has written, of which none is there twice if each was read once."""
        out = self.flow.spark.read.schema("key string, t timestamp").parquet(str(self.flow.folder / "out"))
        return sorted(r.key for r in out.collect())


class Fed:
    """A feed that has rows minute by minute, each of which an output has to have once."""

    def __init__(self, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
        self.flow, self.lw, self.upstream = flow, lw, upstream
        self.minute = 0
        self.put: list[str] = []
        self.returned: list[tuple[int, bool]] = []

    def feed(self, count: int = 40) -> None:
        self.minute += 1
        keys = [f"{self.minute}-{number}" for number in range(count)]
        self.put += keys
        self.flow.feed.put(row(key, 10, self.minute) for key in keys)
        self.upstream.at(10, self.minute)

    def done(self) -> None:
        self.flow.eventually(lambda: low(self.lw, "stage") == mark(10, self.minute), "all is committed", seconds=300)


class PlainFlow(Queries):
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.feed = Feed(folder / "in")

    def read(self, folder: str = "in", **options: str) -> DataFrame:
        stream = self.spark.readStream.schema("key string, t timestamp").options(**options)
        return stream.json(str(self.folder / folder))

    def stage(self, name: str = "stage", *inputs: str, **declared: Any) -> lws.Stage:
        declared = {"key": "key", "event_time": "t", "ranges": 4, **declared}
        return lws.stage(self.spark, name, inputs=inputs or ["source"], address=self.address, **declared)

    def start(self, frame: DataFrame | None = None, *, checkpoint: str = "ck", **options: Any) -> lws.TrackedQuery:
        stage = options.pop("stage", None) or self.stage()
        settings = {"format": "json", "path": self.folder / "out", **options}
        if settings["format"] in ("noop", "console", "memory"):
            del settings["path"]
        query = stage.start(self.read() if frame is None else frame, checkpoint=self.folder / checkpoint, **settings)
        self.queries.append(query)
        return query

    def out(self) -> list[str]:
        rows = self.spark.read.schema("key string, t timestamp").json(str(self.folder / "out"))
        return sorted(entry.key for entry in rows.collect())
