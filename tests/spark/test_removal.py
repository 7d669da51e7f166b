"""A stage removes what it has handed over, under readers that run in Spark: they read every row once, and who comes too late is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources import bookmarks
from lowwater_spark.track.batch import Batch
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _bookmarks_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "_PAUSE", 0.0)


def minute(number: int) -> lowwater.Watermark:
    return lowwater.Watermark.of(at(9, number))


class Readers:
    """A stage that hands over and removes, and its readers."""

    def __init__(self, spark: SparkSession, address: str, base: Path) -> None:
        self.spark, self.address, self.base = spark, address, base
        self.out = base / "out"
        self.queries: list[lws.TrackedQuery] = []
        self.read: dict[str, Counter[tuple[int, str]]] = {}

    def stage(self, name: str, *inputs: str) -> lws.Stage:
        return lws.stage(self.spark, name, inputs=inputs, key="key", event_time="t", ranges=2, address=self.address)

    def stream(self, folder: str, **options: str) -> DataFrame:
        frame = self.spark.readStream.schema("key string, t timestamp")
        return frame.options(**{"recursiveFileLookup": "true", **options}).json(str(self.base / folder))

    def started(self, query: lws.TrackedQuery) -> lws.TrackedQuery:
        self.queries.append(query)
        return query

    def writer(
        self,
        keep: timedelta | None = timedelta(0),
        *more: str,
        probe: Callable[[str, int], None] = lambda _point, _batch: None,
    ) -> lws.TrackedQuery:
        """A stage that hands all its rows over, to each of its outputs."""

        def write(rows: DataFrame, batch: Batch) -> None:
            for out in ("out", *more):
                batch.write(rows, self.base / out, file_format="json", keep=keep)

        stage = self.stage("daily", "source")
        return self.started(stage.foreach_batch(self.stream("in"), write, checkpoint=self.base / "daily", probe=probe))

    def noting(self, name: str) -> Callable[[DataFrame, Batch], None]:
        """Note each row with the number of its batch, so that a row that is read twice is seen."""
        read = self.read.setdefault(name, Counter())

        def write(rows: DataFrame, batch: Batch) -> None:
            found = {(batch.id, r.key): 1 for r in rows.collect()}
            read.update({each: 1 for each in found if each not in read})

        return write

    def reader(self, name: str) -> lws.TrackedQuery:
        stage = self.stage(name, "daily")
        return self.started(stage.foreach_batch(self.stream("out"), self.noting(name), checkpoint=self.base / name))

    def driven(self, name: str) -> lws.TrackedQuery:
        """A reader that counts in windows of a minute, which Spark holds until they are complete."""
        frame = lws.drive(self.stream("out"), inputs=["daily"], event_time="t")
        counts = frame.groupBy(sf.window("t", "1 minute"), "key").count()
        stage = lws.stage(
            self.spark,
            name,
            inputs=["daily"],
            key="key",
            event_time="t",
            ranges=2,
            stamp=timedelta(minutes=1),
            address=self.address,
        )
        windows = counts.select("key", sf.col("window.start").alias("t"), "count")
        return self.started(stage.foreach_batch(windows, self.noting(name), checkpoint=self.base / name))

    def plain(self, name: str, reads: str = "daily", of: str = "out") -> lws.TrackedQuery:
        stage = self.stage(name, reads)
        path = self.base / f"{name}-out"
        options = {} if reads == "daily" else {"recursiveFileLookup": "false"}  # of a sink, by its log
        return self.started(
            stage.start(self.stream(of, **options), checkpoint=self.base / name, format="json", path=path)
        )

    def rows(self, name: str) -> list[str]:
        return sorted(key for _, key in self.read[name].elements())

    def plain_rows(self, name: str) -> list[str]:
        found = self.spark.read.schema("key string, t timestamp").json(str(self.base / f"{name}-out"))
        return sorted(r.key for r in found.collect())

    def follows(self, lw: lowwater.Client, name: str, mark: lowwater.Watermark) -> None:
        """Wait for a stage's low watermark. Raises what has ended its query, if something has."""
        newest = next(query for query in reversed(self.queries) if name in query.stages)
        eventually(
            lambda: low(lw, name) >= mark or (not newest.query.isActive and newest.await_termination()),
            f"{name} follows",
        )

    def left(self, of: str = "out") -> set[int]:
        return {int(path.parent.name.removeprefix("batch=")) for path in (self.base / of).glob("batch=*/part-*.json")}

    def through(self, of: str = "out") -> int:
        return bookmarks.removed(str(self.base / of)).through

    def stop(self) -> None:
        for query in self.queries:
            query.stop()


def test_a_stage_removes_what_its_readers_have_read_and_they_go_on(
    spark: SparkSession,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    feed: Callable[[str], Feed],
    tmp_path: Path,
) -> None:
    flow, rows = Readers(spark, authority.address, tmp_path), feed("in")
    put: list[str] = []

    def more(*readers: str) -> None:
        """A row comes, everybody has read it, and the promise arrives."""
        put.append(f"row{len(put):03}")
        rows.put([row(put[-1], 8)])
        upstream.at(9, len(put))
        for name in readers:
            flow.follows(lw, name, minute(len(put)))

    def more_until(condition: Callable[[], bool], *readers: str) -> None:
        for _ in range(30):
            if condition():
                return
            more(*readers)
        raise AssertionError(f"{flow.left()} are left, {bookmarks.bookmarks(flow.out)}")

    try:
        rows.put([row("first", 8)])
        put.append("first")
        upstream.at(9, 1)
        flow.writer()
        eventually(lambda: low(lw, "daily") == lowwater.Watermark.of(at(9, 1)), "the writer")
        one, two = flow.reader("one"), flow.plain("two")
        more("one", "two")
        more_until(lambda: flow.through() >= 1 and not flow.left() & {0, 1}, "one", "two")
        assert (flow.rows("one"), flow.plain_rows("two")) == (put, put)
        assert sorted(mark.reader for mark in bookmarks.bookmarks(flow.out)) == ["one", "two"]

        # One that comes now would miss rows: it is refused, claims nothing, and keeps nothing for itself.
        with pytest.raises(
            CheckpointMismatch, match=r"were removed, and this query has read none of them.*Start from the"
        ):
            flow.reader("late")
        assert "late" not in {mark.reader for mark in bookmarks.bookmarks(flow.out)}
        assert not lw.get("late")["late"].registered, "nothing was claimed"
        assert one.query.isActive

        # One of both rests. The other goes on; what the resting one needs stays.
        two.stop()
        held = next(mark.read for mark in bookmarks.bookmarks(flow.out) if mark.reader == "two")
        for _ in range(2):
            more("one")
        assert flow.through() <= held
        assert held + 1 in flow.left()
        assert flow.rows("one") == put
        two = flow.plain("two")
        eventually(lambda: low(lw, "two") == lowwater.Watermark.of(at(9, len(put))), "it goes on where it was")
        more_until(lambda: flow.through() > held, "one", "two")
        assert (flow.rows("one"), flow.plain_rows("two")) == (put, put)

        # A reader that is gone for good is forgotten by taking its bookmark away.
        two.stop()
        at_rest = flow.through()
        for mark in bookmarks.bookmarks(flow.out):
            if mark.reader == "two":
                mark.path.unlink()
        more_until(lambda: flow.through() > at_rest, "one")
        assert flow.rows("one") == put
        # All start again: the writer, the reader, and the one that was gone and has missed rows.
        for query in flow.queries:
            query.stop()
        flow.writer()
        flow.reader("one")
        more("one")
        assert flow.rows("one") == put
        with pytest.raises(CheckpointMismatch, match="this query has read those up to"):
            flow.plain("two")
    finally:
        flow.stop()


class Interrupted(RuntimeError):
    """Ends the writer in the middle of a batch that it removes."""


@pytest.mark.long
def test_a_driven_query_and_a_plain_chain_lose_nothing_and_none_holds_the_others_output_back(
    spark: SparkSession,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    feed: Callable[[str], Feed],
    tmp_path: Path,
) -> None:
    """One stage hands over to two outputs: one is read by a driven query, the other by a plain one, whose sink another plain one reads."""
    flow, rows = Readers(spark, authority.address, tmp_path), feed("in")
    put: list[str] = []

    def come(*readers: str) -> None:
        """A row comes, and is promised to be the last of its minute; all have read it, and what is complete is written."""
        rows.put([row(f"row{len(put):03}", 9, len(put))])
        put.append(f"row{len(put):03}")
        upstream.at(9, len(put))
        for name in readers:
            # A window's row is stamped by its start.
            flow.follows(lw, name, minute(len(put) - (name == "windows")))

    def come_until(condition: Callable[[], bool], *readers: str) -> None:
        for _ in range(20):
            if condition():
                return
            come(*readers)
        raise AssertionError(f"{flow.left()} and {flow.left('beside')} are left")

    def interrupt(point: str, _batch: int) -> None:
        if point == "removed":
            raise Interrupted

    try:
        writer = flow.writer(timedelta(0), "beside", probe=interrupt)
        come("daily")
        windows = flow.driven("windows")
        flow.plain("two", of="beside")
        # The writer dies in the middle of the first batch that it removes; its next run goes on with it.
        while writer.query.isActive:
            come()
            eventually(lambda: not writer.query.isActive or low(lw, "daily") >= minute(len(put)), "it writes, or ends")
        with pytest.raises(Interrupted):
            writer.await_termination()
        cut = max(("out", "beside"), key=flow.through)
        assert flow.through(cut) > bookmarks.removed(str(tmp_path / cut)).cleared, "a batch is in pieces"
        writer = flow.writer(timedelta(0), "beside")
        come_until(
            lambda: all(bookmarks.removed(str(tmp_path / of)).cleared >= 0 for of in ("out", "beside")),
            "windows",
            "two",
        )
        status = writer.stage_status()
        assert status.removed_batches >= 2, "of both outputs"
        assert status.removed_bytes > 0

        # The driven one rests, with a window that Spark holds. Its bookmark is damaged, too. The other output goes on.
        windows.stop()
        at_rest, beside = flow.through(), flow.through("beside")
        [mark] = bookmarks.bookmarks(flow.out)
        content = mark.path.read_bytes()
        mark.path.write_bytes(content[:-9])
        come_until(lambda: flow.through("beside") > beside, "two")
        mark.path.write_bytes(content)
        for _ in range(2):
            come("two")
        assert flow.through() <= mark.read
        assert max(flow.left()) > mark.read, "what it has not read"
        assert writer.stage_status().removal_held_back > 0

        # It goes on where it was, and each of its windows comes once. Who reads the sink of the other one has all rows as well.
        flow.driven("windows")
        come("windows", "two")
        come_until(lambda: flow.through() > max(at_rest, mark.read), "windows", "two")
        flow.plain("three", "two", of="two-out")
        eventually(lambda: low(lw, "three") == minute(len(put)), "the end of the chain")
        assert flow.rows("windows") == put
        assert flow.plain_rows("two") == flow.plain_rows("three") == put
        assert not {n for n in flow.left() if n <= bookmarks.removed(str(flow.out)).cleared}
    finally:
        flow.stop()
