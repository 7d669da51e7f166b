"""The demo's three Spark jobs.

Each is a query with a checkpoint of its own; they hand over through directories, or through what a
subclass of :class:`Folders` says.

    feed -> flights (injector) -> enriched (airline, route; duplicates removed) -> hourly (windows
    by origin)

What is pure: the two update functions, which run in executor tasks on one key range at a time and
depend on nothing but their arguments. A replayed batch computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

import lowwater_spark as lws
from examples.flights import data
from examples.flights.compare import Batch as Recorded
from examples.flights.compare import append_batch
from examples.flights.data import HOUR
from examples.flights.plain import BUDGET, ENRICHED, FLIGHTS, HOURLY, SHARE
from examples.flights.replay import FEED_DDL, replay_clock
from lowwater.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lowwater_spark import Batch, TrackedQuery, UpdateResult

RANGES: Final = 4
"""Key ranges of each job: three origins would not fill more."""

TRIGGER: Final = {"processingTime": "0 seconds"}

RECORD_DDL: Final = (
    "id BIGINT, carrier STRING, tailnum STRING, origin STRING, dest STRING, sched_dep TIMESTAMP, dep_delay INT"
)
ENRICHED_DDL: Final = RECORD_DDL + ", airline STRING, destination STRING"
WINDOW_DDL: Final = (
    "origin STRING, start TIMESTAMP, flights BIGINT, cancelled BIGINT, delayed BIGINT, delay_minutes BIGINT"
)

DDL: Final[Mapping[str, str]] = {FLIGHTS: RECORD_DDL, ENRICHED: ENRICHED_DDL, HOURLY: WINDOW_DDL}
"""Columns of each job's output."""

_TIME: Final = pa.timestamp("us", tz="UTC")
OUT: Final = pa.schema([("id", pa.int64()), ("due", _TIME), ("landed", pa.bool_())])
"""State of *flights*: what is on the board and not landed, and what landed before its board row was
read. That is written already: its time has not the name of the event time, by which a record that
is still held is known."""

OPEN: Final = pa.schema(
    [
        ("origin", pa.string()),
        ("start", _TIME),
        ("flights", pa.int64()),
        ("cancelled", pa.int64()),
        ("delayed", pa.int64()),
        ("delay_minutes", pa.int64()),
    ]
)
"""State of *hourly*, and what it emits: one window a row."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a run keeps its files."""

    root: Path

    @property
    def feed(self) -> Path:
        """Folder into which the replayer writes."""
        return self.root / "feed"

    def output(self, job: str) -> Path:
        """Folder of a job's output."""
        return self.root / "out" / job

    def checkpoint(self, job: str) -> Path:
        """A job's checkpoint."""
        return self.root / "checkpoints" / job

    @property
    def batches(self) -> Path:
        """The record of hourly's batches."""
        return self.root / "batches.jsonl"

    @property
    def replayed(self) -> list[str]:
        """Further arguments of the replayer."""
        return []

    def make(self, spark: SparkSession) -> None:
        """Make what Spark wants to find."""
        del spark
        for folder in (self.feed, self.output(FLIGHTS), self.output(ENRICHED), self.output(HOURLY)):
            folder.mkdir(parents=True, exist_ok=True)

    def read_feed(self, spark: SparkSession) -> DataFrame:
        """Return what the replayer drops, as a stream."""
        return _read(spark, FEED_DDL, self.feed)

    def read(self, spark: SparkSession, job: str) -> DataFrame:
        """Return what a job hands on, as a stream."""
        return _read(spark, DDL[job], self.output(job))

    def write(self, batch: Batch, rows: DataFrame, job: str) -> None:
        """Hand rows of a job on."""
        batch.write(rows, self.output(job))

    def result(self, spark: SparkSession, job: str) -> DataFrame:
        """Return all that a job has handed on."""
        return spark.read.option("recursiveFileLookup", "true").schema(DDL[job]).parquet(str(self.output(job)))


def start(
    spark: SparkSession, folders: Folders, address: str, *, trigger: Mapping[str, Any] = TRIGGER
) -> list[TrackedQuery]:
    """Start the three queries, sinks last."""
    return [
        start_flights(spark, folders, address, trigger),
        start_enriched(spark, folders, address, trigger),
        start_hourly(spark, folders, address, trigger),
    ]


# -- flights ---------------------------------------------------------------------------------------


def start_flights(spark: SparkSession, folders: Folders, address: str, trigger: Mapping[str, Any]) -> TrackedQuery:
    """Inject the feed.

    What is on the board and has not landed is pending, so the low watermark is exact.
    """
    stage = lws.injector(
        spark, FLIGHTS, key="origin", event_time="sched_dep", ranges=RANGES, heuristics=[SHARE], address=address
    )
    checkpoint = folders.checkpoint(FLIGHTS)

    def inject(frame: DataFrame, batch: Batch) -> None:
        new_beats = frame.where("beat is not null").selectExpr("beat", "unix_micros(clock)", "kind = 'end'").collect()
        beats = Beats.read(checkpoint, batch.id - 1).hear(Heard(*row) for row in new_beats)
        beats.write(checkpoint, batch.id)
        if beats.last is not None and beats.last.end:
            batch.finish()
        elif beats.last is not None:
            batch.frontier(beats.last.clock)
        rows = frame.where("kind in ('board', 'flight')")
        folders.write(batch, batch.stateful(rows, land, RECORD_DDL), FLIGHTS)

    return stage.foreach_batch(folders.read_feed(spark), inject, checkpoint=checkpoint, trigger=trigger, name=FLIGHTS)


class Heard(NamedTuple):
    """A beat: its number, the replay clock, whether it is the last."""

    number: int
    clock: int
    end: bool


@dataclass(frozen=True, slots=True)
class Beats:
    """Position in the feed without a gap: a listing may show a file before an older one."""

    last: Heard | None = None
    """The last beat without a gap before it: what is scheduled before its clock is on the board."""
    ahead: tuple[Heard, ...] = ()
    """Beats read behind a gap."""

    def hear(self, beats: Iterable[Heard]) -> Beats:
        """Return how far the feed is read with more beats.

        >>> one, two, three = (Heard(n, n * 15, end=False) for n in range(3))
        >>> Beats().hear([one, three]).last
        Heard(number=0, clock=0, end=False)
        >>> Beats().hear([one, three]).hear([two]).last
        Heard(number=2, clock=30, end=False)
        """
        last, ahead = self.last, []
        for beat in sorted({*self.ahead, *beats}):
            if beat.number == (last.number + 1 if last else 0):
                last = beat
            elif last is None or beat.number > last.number:
                ahead.append(beat)
        return Beats(last, tuple(ahead))

    @classmethod
    def read(cls, checkpoint: Path, batch: int) -> Beats:
        """Return how far a batch had read."""
        if batch < 0:
            return cls()
        last, ahead = json.loads((checkpoint / "beats" / f"{batch}.json").read_text())
        return cls(Heard(*last) if last else None, tuple(Heard(*beat) for beat in ahead))

    def write(self, checkpoint: Path, batch: int) -> None:
        """Keep it for the next batch; a replay writes the same."""
        folder = checkpoint / "beats"
        folder.mkdir(exist_ok=True)
        beside = folder / f".{batch}.json"
        beside.write_text(json.dumps([self.last, self.ahead]))
        beside.rename(folder / f"{batch}.json")


def land(_: int, state: pa.Table | None, rows: pa.Table, low: Watermark) -> UpdateResult:
    """Update what is on the board and has not landed; emit the records that landed.

    ``low`` is the frontier: every board row scheduled before it has been read. A record whose board
    row was not read yet is remembered, so that the row does not wait for a landing that has been.
    """
    out: dict[int, int] = {}
    early: dict[int, int] = {}
    for number, time, landed in _rows(state, OUT):
        (early if landed else out)[number] = time
    records = rows.filter(pa.compute.equal(rows["kind"], "flight"))
    boards = rows.filter(pa.compute.equal(rows["kind"], "board"))
    out |= {number: time for number, time in _pairs(boards) if early.pop(number, None) is None}
    early |= {number: time for number, time in _pairs(records) if out.pop(number, None) is None}
    early = {number: time for number, time in early.items() if time >= low.micros}
    rows_after = [*((n, t, False) for n, t in out.items()), *((n, t, True) for n, t in early.items())]
    return _table(rows_after, OUT), records, min(out.values(), default=None), out.values()


def _pairs(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["id"].to_pylist(), _micros(rows["sched_dep"]), strict=True))


# -- enriched --------------------------------------------------------------------------------------


def start_enriched(spark: SparkSession, folders: Folders, address: str, trigger: Mapping[str, Any]) -> TrackedQuery:
    """Add the names of airline and destination, and remove duplicates on arrival.

    Holds nothing back.
    """
    stage = lws.stage(
        spark,
        ENRICHED,
        inputs=[FLIGHTS],
        key="tailnum",
        event_time="sched_dep",
        ranges=RANGES,
        heuristics=[SHARE],
        lateness_budget=BUDGET,
        address=address,
    )
    airlines = spark.createDataFrame(list(data.airlines().items()), "carrier STRING, airline STRING")
    airports = spark.createDataFrame(list(data.airports().items()), "dest STRING, destination STRING")
    records = folders.read(spark, FLIGHTS).dropDuplicates(["id"])
    joined = records.join(airlines.hint("broadcast"), "carrier", "left").join(
        airports.hint("broadcast"), "dest", "left"
    )

    def hand_on(frame: DataFrame, batch: Batch) -> None:
        folders.write(batch, frame.select(*(field.split()[0] for field in ENRICHED_DDL.split(", "))), ENRICHED)

    return stage.foreach_batch(joined, hand_on, checkpoint=folders.checkpoint(ENRICHED), trigger=trigger, name=ENRICHED)


# -- hourly ----------------------------------------------------------------------------------------


def start_hourly(spark: SparkSession, folders: Folders, address: str, trigger: Mapping[str, Any]) -> TrackedQuery:
    """Sum the delays of each origin and scheduled hour.

    A window closes when the low watermark has passed its end.
    """
    stage = lws.stage(
        spark,
        HOURLY,
        inputs=[ENRICHED],
        key="origin",
        event_time="sched_dep",
        ranges=RANGES,
        heuristics=[SHARE],
        stamp=timedelta(hours=1),
        address=address,
    )

    def close(frame: DataFrame, batch: Batch) -> None:
        # Before the state moves on: the record tells what each way of closing windows would have
        # known.
        records = [(row[0], row[1]) for row in frame.selectExpr("origin", "unix_micros(sched_dep)").collect()]
        clock = replay_clock(folders.feed)
        if clock is not None:
            append_batch(
                folders.batches,
                Recorded(
                    batch.id,
                    clock,
                    batch.low.micros,
                    batch.heuristic.get(SHARE, batch.low).micros,
                    tuple(records),
                    batch.budget.get(BUDGET, batch.low).micros,
                ),
            )
        folders.write(batch, batch.stateful(frame, sum_hours, WINDOW_DDL), HOURLY)

    return stage.foreach_batch(
        folders.read(spark, ENRICHED), close, checkpoint=folders.checkpoint(HOURLY), trigger=trigger, name=HOURLY
    )


def sum_hours(_: int, state: pa.Table | None, rows: pa.Table, low: Watermark) -> UpdateResult:
    """Add records to their windows; emit those that are complete."""
    windows = {(row[0], row[1]): list(row[2:]) for row in _rows(state, OPEN)}
    for origin, time, delay in zip(
        rows["origin"].to_pylist(), _micros(rows["sched_dep"]), rows["dep_delay"].to_pylist(), strict=True
    ):
        sums = windows.setdefault((origin, time // HOUR * HOUR), [0, 0, 0, 0])
        sums[0] += 1
        if delay is None:
            sums[1] += 1
        else:
            sums[2] += 1
            sums[3] += delay
    closed = {window: sums for window, sums in windows.items() if window[1] + HOUR <= low.micros}
    still_open = {window: sums for window, sums in windows.items() if window not in closed}
    starts = [start for _, start in still_open]
    pending = [start for (_, start), sums in still_open.items() for _ in range(sums[0])]
    return _windows(still_open), _windows(closed), min(starts, default=None), pending


def _windows(windows: Mapping[tuple[str, int], list[int]]) -> pa.Table:
    return _table([(*window, *sums) for window, sums in windows.items()], OPEN)


# -- shared ----------------------------------------------------------------------------------------


def _read(spark: SparkSession, schema: str, folder: Path) -> DataFrame:
    return spark.readStream.schema(schema).option("recursiveFileLookup", "true").parquet(str(folder))


def _micros(column: pa.ChunkedArray) -> list[int]:
    return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _rows(table: pa.Table | None, schema: pa.Schema) -> Iterable[tuple[Any, ...]]:
    if table is None:
        return ()
    columns = (_micros(table[field.name]) if field.type == _TIME else table[field.name].to_pylist() for field in schema)
    return zip(*columns, strict=True)


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.table(
        [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
