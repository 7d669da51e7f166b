"""A stage removes what it has handed over, under readers that run in Spark: they read every row once, and who comes too late is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files import bookmarks
from lowwater_spark.track.run.batch import Batch
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.spark.queries import Queries
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _bookmarks_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "_PAUSE", 0.0)


def minute(number: int) -> lowwater.Watermark:
    return lowwater.Watermark.of(at(9, number))


class Readers(Queries):
    def __init__(self, spark: SparkSession, address: str, base: Path) -> None:
        super().__init__(spark, address, base)
        self.out = base / "out"
        self.feed = Feed(base / "in")
        self.read: dict[str, Counter[tuple[int, str]]] = {}

    def stage(self, name: str, *inputs: str) -> lws.Stage:
        return lws.stage(self.spark, name, inputs=inputs, key="key", event_time="t", ranges=2, address=self.address)

    def stream(self, folder: str) -> DataFrame:
        frame = self.spark.readStream.schema("key string, t timestamp").option("recursiveFileLookup", "true")
        return frame.json(str(self.folder / folder))

    def started(self, query: lws.TrackedQuery) -> lws.TrackedQuery:
        self.queries.append(query)
        return query

    def writer(self) -> lws.TrackedQuery:
        def write(rows: DataFrame, batch: Batch) -> None:
            batch.write(rows, self.out, file_format="json", keep=timedelta(0))

        stage = self.stage("daily", "source")
        return self.started(stage.foreach_batch(self.stream("in"), write, checkpoint=self.folder / "daily"))

    def noting(self, name: str) -> Callable[[DataFrame, Batch], None]:
        """Note each row with the number of its batch, so that a row that is read twice is seen."""
        read = self.read.setdefault(name, Counter())

        def write(rows: DataFrame, batch: Batch) -> None:
            rows_found = {(batch.id, r.key): 1 for r in rows.collect()}
            read.update({name: 1 for name in rows_found if name not in read})

        return write

    def reader(self, name: str) -> lws.TrackedQuery:
        stage = self.stage(name, "daily")
        return self.started(stage.foreach_batch(self.stream("out"), self.noting(name), checkpoint=self.folder / name))

    def plain(self, name: str) -> lws.TrackedQuery:
        path = self.folder / f"{name}-out"
        stage = self.stage(name, "daily")
        return self.started(stage.start(self.stream("out"), checkpoint=self.folder / name, format="json", path=path))

    def rows(self, name: str) -> list[str]:
        return sorted(key for _, key in self.read[name].elements())

    def plain_rows(self, name: str) -> list[str]:
        rows = self.spark.read.schema("key string, t timestamp").json(str(self.folder / f"{name}-out"))
        return sorted(r.key for r in rows.collect())

    def follows(self, lw: lowwater.Client, name: str, mark: lowwater.Watermark) -> None:
        self.eventually(lambda: low(lw, name) >= mark, f"{name} follows")

    def left(self) -> set[int]:
        return {int(path.parent.name.removeprefix("batch=")) for path in self.out.glob("batch=*/part-*.json")}

    def through(self) -> int:
        return bookmarks.removed(str(self.out)).through


FLOW = Readers


def test_a_stage_removes_what_readers_have_read(flow: Readers, lw: lowwater.Client, upstream: Upstream) -> None:
    put: list[str] = []

    def more(*readers: str) -> None:
        put.append(f"row{len(put):03}")
        flow.feed.put([row(put[-1], 8)])
        upstream.at(9, len(put))
        for name in readers:
            flow.follows(lw, name, minute(len(put)))

    def more_until(condition: Callable[[], bool], *readers: str) -> None:
        for _ in range(30):
            if condition():
                return
            more(*readers)
        raise AssertionError(f"{flow.left()} are left, {bookmarks.bookmarks(flow.out)}")

    flow.feed.put([row("first", 8)])
    put.append("first")
    upstream.at(9, 1)
    flow.writer()
    eventually(lambda: low(lw, "daily") == lowwater.Watermark.of(at(9, 1)), "the writer")
    one = flow.reader("one")
    flow.plain("two")
    more("one", "two")
    more_until(lambda: flow.through() >= 1 and not flow.left() & {0, 1}, "one", "two")
    assert (flow.rows("one"), flow.plain_rows("two")) == (put, put)
    assert sorted(mark.reader for mark in bookmarks.bookmarks(flow.out)) == ["one", "two"]

    # One that comes now would miss rows: it is refused, claims nothing, and keeps nothing for itself.
    with pytest.raises(CheckpointMismatch, match=r"were removed, and this query has read none of them.*Start from the"):
        flow.reader("late")
    assert "late" not in {mark.reader for mark in bookmarks.bookmarks(flow.out)}
    assert not lw.get("late")["late"].registered, "nothing was claimed"
    assert one.query.isActive
