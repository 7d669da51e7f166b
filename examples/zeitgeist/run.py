"""The replay through the three computations, and beside them through a query that closes its hours by Spark's own watermark."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq

import lowwater
import lowwater_spark as lws
from examples.flights.data import HOUR
from examples.two_partitions.records import micros
from examples.zeitgeist.answer import Change, Hour
from examples.zeitgeist.computations import FEEDS, Counts, Dips, Episode, Model, Past, follow
from examples.zeitgeist.replay import Step, put
from lowwater.watermark import to_micros
from lowwater_pipeline.computation import Computation, Output, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY: Final = "1 hour"
"""Of Spark's own watermark. All records that are in time come within a step, and in order."""

RANGES: Final = 2
PATIENCE: Final = 120.0
"""Seconds that a step may take; then the run gives up and says where it stands."""

DEPARTED: Final = "id long, origin string, at timestamp"


class Stand(NamedTuple):
    """How both stand after a step."""

    clock: int
    low: int
    """The low watermark of the last computation."""
    spark: int
    """Spark's own watermark."""


@dataclass(slots=True)
class Outcome:
    """What one of them has said."""

    hours: list[tuple[Hour, int]] = field(default_factory=list[tuple[Hour, int]])
    """Each with the replay clock after which it was there."""
    changes: list[tuple[Change, int]] = field(default_factory=list[tuple[Change, int]])
    """The same."""
    dropped: int = 0
    """Records that were not counted since they came late."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run."""

    low: Outcome
    """By the low watermark."""
    spark: Outcome
    """By Spark's own."""
    stands: Sequence[Stand]
    why: str
    """What lowwater had to say in the middle of the stall."""


class Stuck(Exception):
    """A step was not finished in time."""


def run(spark: SparkSession, address: str, out: Path, steps: Sequence[Step], ask: int) -> Run:
    """Replay the steps, each when everything that follows from the one before is written; ``ask`` is the replay clock at which lowwater is asked for what it waits."""
    records = out / "records"
    records.mkdir()
    low, naive = Outcome(), Naive()
    stands, why = [], ""
    with contextlib.ExitStack() as stack:
        lw = stack.enter_context(lowwater.connect(address))
        leases = {}
        for feed, name in FEEDS.items():
            lw.register(name)
            leases[feed] = stack.enter_context(lw.worker(name, name=f"injector-{feed}")).claim()
        queries = [stack.enter_context(_computing(each, spark, address, out)) for each in (Counts(), Model(), Dips())]
        alone = stack.enter_context(_alone(spark, out))
        read = {name: _rows(out / name) for name in (Model.name, Dips.name)}
        for step in steps:
            put(step, records)
            for feed, lease in leases.items():  # the records are there: now say so
                lease.advance(None, oldest=None, frontier=step.frontiers[feed])
                lease.flush(PATIENCE)
            _settle(lw, queries, lowwater.Watermark(min(step.frontiers.values())))
            alone.processAllAvailable()
            low.hours += [(Hour(**row), step.clock) for row in next(read[Model.name])]
            low.changes += [(Change(**row), step.clock) for row in next(read[Dips.name])]
            naive.follow(out / "alone", alone.lastProgress, step.clock)
            stands.append(Stand(step.clock, lw.get(Dips.name)[Dips.name].low.micros, naive.mark))
            if step.clock == ask:
                why = str(lw.why(Dips.name))
        low.dropped = sum(query.stage_status().late_rows for query in queries)
        naive.told.dropped = sum(len(step.arriving) for step in steps) - sum(naive.counts.values()) - naive.left(steps)
    return Run(low, naive.told, stands, why)


@contextlib.contextmanager
def _computing(computation: Computation, spark: SparkSession, address: str, out: Path) -> Iterator[lws.TrackedQuery]:
    """Run a computation over what the one before has written."""
    source = computation.inputs[0].name
    if isinstance(source, str):
        before = {each.name: each for each in (Counts, Model)}[source]
        [declared] = before.outputs.values()
        assert isinstance(declared, Output)
        folder = out / source
        frame = spark.readStream.schema(declared.schema).option("recursiveFileLookup", "true").parquet(str(folder))
    else:
        frame = spark.readStream.schema(DEPARTED).json(str(out / "records"))
    (out / computation.name).mkdir()

    def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        [rows] = outputs.values()
        batch.write(rows, out / computation.name)

    checkpoint = out / "checkpoints" / computation.name
    query = start(computation, frame, write, checkpoint=checkpoint, ranges=RANGES, address=address)
    try:
        yield query
    finally:
        query.stop()


@contextlib.contextmanager
def _alone(spark: SparkSession, out: Path) -> Iterator[Any]:
    """Count the same hours by Spark's own watermark, with nothing of lowwater."""
    from pyspark.sql import functions as sf

    rows = spark.readStream.schema(DEPARTED).json(str(out / "records")).withWatermark("at", DELAY)
    hours = rows.groupBy(sf.window("at", "1 hour"), "origin").count()
    hours = hours.select("origin", sf.col("window.start").alias("start"), sf.col("count").alias("n"))
    writer = hours.writeStream.outputMode("append").format("json").option("path", str(out / "alone"))
    query = writer.option("checkpointLocation", str(out / "checkpoints/alone")).queryName("alone").start()
    try:
        yield query
    finally:
        query.stop()


class Naive:
    """The same model and the same rules, on hours that Spark's own watermark has closed.

    An hour without a row by then has had no departure: so this detector believes.
    """

    def __init__(self) -> None:
        self.told = Outcome()
        self.mark = 0
        self.counts: dict[tuple[str, int], int] = {}
        self._known: set[Path] = set()
        self._models = {feed: Past() for feed in FEEDS}
        self._episodes = {feed: Episode() for feed in FEEDS}
        self._next: dict[str, int] = {}

    def follow(self, folder: Path, progress: Any, clock: int) -> None:
        """Go on with what Spark has written until a replay clock."""
        for path in sorted(set(folder.glob("part-*.json")) - self._known):
            self._known.add(path)
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.counts[row["origin"], micros(row["start"])] = row["n"]
        self.mark = micros(json.loads(progress.json)["eventTime"]["watermark"])
        for feed in FEEDS:
            self._judge(feed, clock)

    def _judge(self, feed: str, clock: int) -> None:
        model = self._models[feed]
        if feed not in self._next:
            firsts = [hour for origin, hour in self.counts if origin == feed]
            if not firsts:
                return
            self._next[feed] = min(firsts)
        while self._next[feed] + HOUR <= self.mark:
            hour = self._next[feed]
            model.counted[hour] = self.counts.get((feed, hour), 0)
            judged = model.judge(hour)
            self.told.hours.append((Hour(feed, hour, *judged), clock))
            self._episodes[feed], changes = follow(self._episodes[feed], hour, judged)
            for each, is_open in changes:
                change = Change(feed, hour, each.kind, each.since, is_open, each.hours, each.n, each.past)
                self.told.changes.append((change, clock))
            self._next[feed] = hour + HOUR

    def left(self, steps: Sequence[Step]) -> int:
        """Return how many records are in hours that are still open."""
        return sum(each.at // HOUR * HOUR + HOUR > self.mark for step in steps for each in step.arriving)


def _rows(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, each time, the rows that are new in a folder, with times in microseconds."""
    known: set[Path] = set()
    while True:
        found = sorted(set(folder.rglob("*.parquet")) - known)
        known.update(found)
        rows = [row for path in found for row in pq.ParquetFile(path).read().to_pylist()]
        yield [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """Return a time, which Spark writes in UTC, as microseconds; other values as they are."""
    return to_micros(value.replace(tzinfo=UTC)) if isinstance(value, datetime) else value


def _settle(lw: lowwater.Client, queries: Sequence[lws.TrackedQuery], mark: lowwater.Watermark) -> None:
    """Wait until everything below a low watermark has passed all computations.

    Raises what has ended one of them, and Stuck.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lw.wait(Dips.name, until=mark, timeout=1)
        except lowwater.Timeout:
            for query in queries:
                query.await_termination(0.001)
            if time.monotonic() > deadline:
                raise Stuck(f"a step was not finished within {PATIENCE:.0f} s: {lw.why(Dips.name)}") from None
        else:
            return
