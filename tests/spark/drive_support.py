"""Driven queries for tests: a feed, a stage over it, and everything that comes out, with what had been promised when it did."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.drive import frame as frame_module
from lowwater_spark.sources.control import REMEMBERS, is_control
from lowwater_spark.sources.files.source_log import log_offset
from lowwater_spark.track.plan.operators import nodes
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.queries import Queries
from tests.spark.support import Feed, Upstream

HOUR = timedelta(hours=1)

Row = tuple[Any, ...]


def millis(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // timedelta(milliseconds=1)


def aware(value: Any) -> Any:
    """A collected value; Spark hands out times that are naive, in the local zone."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def record(key: str, moment: dt.datetime) -> dict[str, str]:
    return {"key": key, "t": moment.isoformat()}


def say(upstream: Upstream, moment: dt.datetime) -> None:
    """Let an upstream promise, durably, that nothing older than a moment will come."""
    upstream.lease.advance(None, oldest=None, frontier=moment)
    upstream.lease.flush(20)


class Driven(Queries):
    """A stage whose windows are driven, and its output, batch by batch."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.feeds: dict[str, Feed] = {}
        self.frames: list[DataFrame] = []
        """Driven frames of the test, in the order in which they were declared."""
        self.out: list[tuple[int, Row]] = []
        self.hours = False
        """True when rows that come out are hours, stamped by their start, that must not come before they are complete."""
        self.inputs: Sequence[str] = ()
        self.fails_in: int | None = None
        """A batch in which the function fails, once, after the batch was planned."""
        self.going = threading.Event()
        """Set unless the function shall wait: its batch is then planned, and not committed."""
        self.going.set()
        self.held = False
        """True while the function waits."""

    def feed(self, name: str = "in") -> Feed:
        return self.feeds.setdefault(name, Feed(self.folder / name))

    def read(self, name: str = "in", schema: str = "key string, t timestamp", **options: Any) -> DataFrame:
        self.feed(name)
        return self.spark.readStream.schema(schema).options(**options).json(str(self.folder / name))

    def drive(
        self, frame: DataFrame | None = None, *, inputs: Sequence[str] = ("source",), **options: Any
    ) -> DataFrame:
        driven_ = lws.drive(self.read() if frame is None else frame, inputs=inputs, event_time="t", **options)
        self.frames.append(driven_)
        return driven_

    def hourly(self, frame: DataFrame, *keys: str) -> DataFrame:
        self.hours = True
        counts = frame.groupBy(sf.window("t", "1 hour"), *(keys or ("key",))).count()
        return counts.select("key", sf.col("window.start").alias("t"), "count")

    def start(
        self,
        frame: DataFrame,
        *,
        inputs: Sequence[str] = ("source",),
        name: str = "stage",
        checkpoint: str = "ck",
        retention: timedelta | None = None,
        trigger: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> lws.TrackedQuery:
        stage = lws.stage(
            self.spark,
            name,
            inputs=inputs,
            key=frame.columns[0],
            event_time="t",
            ranges=2,
            stamp=options.pop("stamp", "event"),
            retention=retention,
            address=self.address,
        )
        self.inputs = inputs
        query = stage.foreach_batch(frame, self.write, checkpoint=self.folder / checkpoint, trigger=trigger, **options)
        self.queries.append(query)
        return query

    def stop(self) -> None:
        self.going.set()
        super().stop()

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.held = not self.going.is_set()
        assert self.going.wait(100)
        self.held = False
        written = [tuple(map(aware, row)) for row in rows.collect()]
        if self.hours:
            with lowwater.connect(self.address) as lw:
                low = min(view.low for view in lw.get(*self.inputs).values())
            assert all(lowwater.Watermark.of(row[1] + HOUR) <= low for row in written), f"{written} before {low}"
        if self.fails_in == batch.id:
            self.fails_in = None
            msg = "told to fail"
            raise RuntimeError(msg)
        self.out += [(batch.id, row) for row in written]

    @property
    def readers(self) -> set[str]:
        """The readers that the controls in the plans of the test's frames have: "passes", "remembers", or both."""
        plans = [frame._jdf.queryExecution().analyzed() for frame in self.frames]
        controls = [node for plan in plans for node in nodes(plan) if is_control(node)]
        return {"remembers" if str(leaf.extraOptions().get(REMEMBERS)) == "true" else "passes" for leaf in controls}

    @property
    def rows(self) -> list[Row]:
        return sorted((row for _, row in self.out), key=repr)

    def watermark(self, checkpoint: str = "ck") -> int:
        """The watermark that the last committed batch ran with, milliseconds."""
        log = CheckpointLog(self.folder / checkpoint)
        batch = log.last_committed()
        plan = None if batch is None else log.plan(batch)
        return 0 if plan is None else plan.watermark

    def await_watermark(self, moment: dt.datetime | int, checkpoint: str = "ck") -> None:
        """Wait until a batch that ran with a watermark, or a higher one, is committed."""
        goal = moment if isinstance(moment, int) else millis(moment)

        self._await(lambda: self.watermark(checkpoint) >= goal, f"a batch with the watermark {goal}")

    def await_read(self, files: int, name: str = "in", source: int = 1) -> None:
        log = CheckpointLog(self.folder / "ck")

        def come() -> bool:
            batch = log.last_committed()
            plan = None if batch is None else log.plan(batch)
            return plan is not None and log_offset(plan.lines[source]) >= files - 1

        self._await(come, f"{files} files of {name} read")

    def check(self) -> None:
        """Raise what has ended a query, also when its own clock has."""
        super().check()
        for query in self.queries:
            query.await_termination(0.001)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        self.eventually(condition, what, seconds=100)


def counts(rows: Sequence[Mapping[str, str]], before: dt.datetime | None = None) -> list[Row]:
    """The batch answer, by plain Python: how many rows of each key are in each hour that ends at a moment or before."""
    totals: dict[tuple[str, dt.datetime], int] = {}
    for row in rows:
        hour = dt.datetime.fromisoformat(row["t"]).replace(minute=0, second=0, microsecond=0)
        if before is None or hour + HOUR <= before:
            totals[row["key"], hour] = totals.get((row["key"], hour), 0) + 1
    return sorted(((key, hour, n) for (key, hour), n in totals.items()), key=repr)


@pytest.fixture
def driven(spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Driven]:
    driven_ = Driven(spark, authority.address, tmp_path)
    yield driven_
    driven_.stop()


# The reader that remembers is the one of Spark before 4.2, where tests/floors and tests/iceberg run it.
@pytest.fixture(params=["passes", pytest.param("remembers", marks=pytest.mark.long)])
def carrier(request: pytest.FixtureRequest, driven: Driven, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both readers of the control. Spark 4.2 can use each of them, and the plans say which one it has used."""
    monkeypatch.setattr(frame_module, "passes_offset", lambda _: request.param == "passes")
    yield
    assert driven.readers == {request.param}


__all__ = ["HOUR", "Driven", "Row", "at", "carrier", "counts", "driven", "millis", "record", "say"]
