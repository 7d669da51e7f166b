"""The replay through the three computations, and through a query with Spark's own watermark."""

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
"""Delay of Spark's own watermark. The records that are in time arrive within a step, in order."""

RANGES: Final = 2
PATIENCE: Final = 120.0
"""Seconds that a step may take; then the run gives up and says where it stands."""

DEPARTED: Final = "id long, origin string, at timestamp"


class Stand(NamedTuple):
    """Watermarks of both computations after a step."""

    clock: int
    low: int
    """The low watermark of the last computation."""
    spark: int
    """Spark's own watermark."""


@dataclass(slots=True)
class Outcome:
    """Output of one computation."""

    hours: list[tuple[Hour, int]] = field(default_factory=list[tuple[Hour, int]])
    """Hours, each with the replay clock after which it was written."""
    changes: list[tuple[Change, int]] = field(default_factory=list[tuple[Change, int]])
    """Changes, each with the replay clock after which it was written."""
    dropped: int = 0
    """Records that were dropped because they came late."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run."""

    low: Outcome
    """Output of the computation that closes hours by the low watermark."""
    spark: Outcome
    """Output of the computation that closes hours by Spark's own watermark."""
    stands: Sequence[Stand]
    why: str
    """Answer of ``lowwater why`` in the middle of the stall."""


class Stuck(Exception):
    """A step was not finished in time."""


def run(spark: SparkSession, address: str, out: Path, steps: Sequence[Step], ask: int) -> Run:
    """Replay the steps, each when all results of the one before are written.

    ``ask`` is the replay clock at which ``why`` is asked.
    """
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
        queries = [
            stack.enter_context(_computing(computation, spark, address, out))
            for computation in (Counts(), Model(), Dips())
        ]
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
        naive.outcome.dropped = (
            sum(len(step.arriving) for step in steps) - sum(naive.counts.values()) - naive.open_records(steps)
        )
    return Run(low, naive.outcome, stands, why)


@contextlib.contextmanager
def _computing(computation: Computation, spark: SparkSession, address: str, out: Path) -> Iterator[lws.TrackedQuery]:
    """Run a computation over what the one before has written."""
    source = computation.inputs[0].name
    if isinstance(source, str):
        before = {source_class.name: source_class for source_class in (Counts, Model)}[source]
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
        self.outcome = Outcome()
        self.mark = 0
        self.counts: dict[tuple[str, int], int] = {}
        self._read_paths: set[Path] = set()
        self._models = {feed: Past() for feed in FEEDS}
        self._episodes = {feed: Episode() for feed in FEEDS}
        self._next: dict[str, int] = {}

    def follow(self, folder: Path, progress: Any, clock: int) -> None:
        """Go on with what Spark has written until a replay clock."""
        for path in sorted(set(folder.glob("part-*.json")) - self._read_paths):
            self._read_paths.add(path)
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
            self.outcome.hours.append((Hour(feed, hour, *judged), clock))
            self._episodes[feed], changes = follow(self._episodes[feed], hour, judged)
            for episode, is_open in changes:
                change = Change(
                    feed, hour, episode.kind, episode.since, is_open, episode.hours, episode.n, episode.past
                )
                self.outcome.changes.append((change, clock))
            self._next[feed] = hour + HOUR

    def open_records(self, steps: Sequence[Step]) -> int:
        """Return how many records are in hours that are still open."""
        return sum(departure.at // HOUR * HOUR + HOUR > self.mark for step in steps for departure in step.arriving)


def _rows(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, each time, the rows that are new in a folder, with times in microseconds."""
    read_paths: set[Path] = set()
    while True:
        paths = sorted(set(folder.rglob("*.parquet")) - read_paths)
        read_paths.update(paths)
        rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
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
