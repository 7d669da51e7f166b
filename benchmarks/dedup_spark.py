"""Cost of deduplication for a micro-batch of a tracked stage, with a million ids remembered.

Four ways take turns: off, on with filters, on without, and by a rewrite of all ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
import lowwater_spark as lws
from benchmarks import child
from benchmarks.result import Result, Spread
from benchmarks.spark_overhead import PATIENCE, START, session
from lowwater_pipeline.dedup.sieve import Counts, Sieve
from lowwater_pipeline.dedup.stage import Deduplication

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    ids: int
    """Remembered before the first round."""
    rows: int
    """Number of rows in a batch."""
    rounds: int
    warm_up: int
    """Rounds before that do not count: the JVM compiles what it runs."""


FULL: Final = Size(1_000_000, 20_000, rounds=12, warm_up=4)
QUICK: Final = Size(5_000, 500, rounds=2, warm_up=1)

RANGES: Final = 16
HOUR: Final = 3_600_000_000
"""Microseconds. The ids are of an hour, and W stands an hour before them."""
COPIES: Final = 20
STRAGGLERS: Final = 20
"""One row in so many is a copy of an id of that hour; one is new and of that hour. The others are
new, and of the seconds after it."""

OFF, ON, UNFILTERED, REWRITTEN = "off", "on", "unfiltered", "rewritten"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = stack.enter_context(session())
        lw = stack.enter_context(lowwater.connect(server.address))
        lw.register("source")
        lease = lw.worker("source", identity="benchmark").claim()
        lease.advance(None, oldest=None, frontier=lowwater.Watermark(START - HOUR))
        lease.flush(PATIENCE)
        arms = [stack.enter_context(_Arm(spark, server.address, folder / kind, kind)) for kind in _KINDS]
        before = _file(folder / "before.parquet", size, None)
        for arm in arms:
            arm.feed(before, size.ids)
        for turn in range(size.warm_up + size.rounds):
            file = _file(folder / f"{turn}.parquet", size, turn)
            first = turn % len(arms)
            for arm in arms[first:] + arms[:first]:
                arm.feed(file, size.rows if arm.kind == OFF else size.rows - size.rows // COPIES)
    took = {arm.kind: Spread(tuple(arm.milliseconds[1 + size.warm_up :])) for arm in arms}
    rates = {
        kind: Spread(tuple(size.rows * 1000 / milliseconds for milliseconds in spread.rounds))
        for kind, spread in took.items()
    }
    counted = next(arm for arm in arms if arm.kind == ON).counts[-1]
    facts: dict[str, object] = {"n": size.rows, "ids_before": size.ids, "ranges": RANGES, "copies": 1 / COPIES}
    filters = {
        "filter_hit_rate": round(counted.filter_hit_rate, 4),
        "false_positive_rate": round(counted.false_positive_rate, 5),
        "bytes_per_id": round(counted.state_bytes / counted.remembered, 1),
    }
    off, unfiltered = "the same stage without deduplication", "the same without filters"

    def line(
        metric: str, kind: str, unit: str, spreads: Mapping[str, Spread], baseline: str, other: str, **more: object
    ) -> Result:
        return Result("dedup_spark", metric, spreads[kind], unit, baseline, spreads[other], facts | more)

    return [
        line("batch", ON, "ms", took, off, OFF, **filters),
        line("rows_per_second", ON, "rows/s", rates, off, OFF),
        line("batch_with_filters", ON, "ms", took, unfiltered, UNFILTERED, **filters),
        line("batch_without_filters", UNFILTERED, "ms", took, off, OFF),
        line("batch_in_segments", ON, "ms", took, "each key range's ids written anew in each batch", REWRITTEN),
    ]


def _file(path: Path, size: Size, turn: int | None) -> Path:
    """Write the ids of the hour, or the rows of a round: every arm reads the same."""
    import pyarrow as pa
    import pyarrow.parquet

    if turn is None:
        numbers, times = list(range(size.ids)), [START + number * HOUR // size.ids for number in range(size.ids)]
    else:
        numbers, times = [], []
        for number in range(size.rows):
            place = (turn * size.rows + number) * 7919 % size.ids
            fresh = size.ids + turn * size.rows + number
            copy, straggler = number % COPIES == 0, number % STRAGGLERS == 1
            numbers.append(place if copy else fresh)
            recent = START + HOUR + turn * 1_000_000 + number
            times.append(START + place * HOUR // size.ids if copy or straggler else recent)
    ids = [f"{number * 2654435761 % 2**32:08x}-{number:027}" for number in numbers]
    columns = {"id": ids, "t": pa.array(times, pa.timestamp("us", "UTC")), "v": [0.5] * len(ids)}
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


class _Arm(AbstractContextManager["_Arm"]):
    """A tracked stage that reads a directory of its own and writes the new rows of each batch."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, kind: str) -> None:
        self.kind = kind
        self.milliseconds: list[float] = []
        self.counts: list[Counts] = []
        self._folder = folder / "in"
        self._folder.mkdir(parents=True)
        self._output = folder / "out"
        self._pass = _KINDS[kind]
        stage = lws.stage(spark, kind, inputs=["source"], key="id", event_time="t", ranges=RANGES, address=address)
        rows = spark.readStream.schema("id string, t timestamp, v double").parquet(f"file://{self._folder}")
        self._query = stage.foreach_batch(rows, self._batch, checkpoint=folder / "checkpoint")

    def _batch(self, rows: DataFrame, batch: lws.Batch) -> None:
        new, counts = self._pass(rows, batch)
        new.write.mode("overwrite").parquet(f"file://{self._output}")
        self.counts.extend(counts)

    def feed(self, file: Path, rows: int) -> None:
        """Give it one batch, take its time, and check what it has written."""
        import pyarrow.parquet

        os.link(file, self._folder / file.name)
        self._query.query.processAllAvailable()
        progress = [p for p in self._query.query.recentProgress if p.numInputRows][-1]
        self.milliseconds.append(progress.durationMs["triggerExecution"])
        rows_written = pyarrow.parquet.read_table(self._output, columns=["id"]).num_rows
        if rows_written != rows:
            raise RuntimeError(f"{self.kind} has passed {rows_written} rows on, not {rows}")

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._query.stop()


Passed = tuple["DataFrame", list[Counts]]


def _off(rows: DataFrame, _: lws.Batch) -> Passed:
    return rows, []


def _on(rows: DataFrame, batch: lws.Batch, *, filters: bool = True) -> Passed:
    once = Deduplication("id", "t")
    once._sieve = Sieve("id", "t", filters=filters)
    result = once.of(batch, rows)
    return result.main, [result.counts]


def _unfiltered(rows: DataFrame, batch: lws.Batch) -> Passed:
    return _on(rows, batch, filters=False)


def _rewritten(rows: DataFrame, batch: lws.Batch) -> Passed:
    new = batch.stateful(rows, in_one_table, "id string, t timestamp, v double")
    new.count()  # as the others ask for their counts
    return new, []


def in_one_table(_: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> lws.UpdateResult:
    """Emit the rows of a range whose ids are new.

    All ids are in one table, which is written anew. No copies in one batch here.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    times = rows["t"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    ids = pa.table({"id": rows["id"].cast(pa.large_string()), "micros": times})
    if state is None:
        return ids, rows, None, ()
    new = pc.invert(pc.is_in(ids["id"], value_set=state["id"].combine_chunks()))
    remembered = pa.concat_tables([state, ids.filter(new)])
    return remembered.filter(pc.greater_equal(remembered["micros"], low.micros)), rows.filter(new), None, ()


_KINDS: Final[Mapping[str, Callable[[DataFrame, lws.Batch], Passed]]] = {
    OFF: _off,
    ON: _on,
    UNFILTERED: _unfiltered,
    REWRITTEN: _rewritten,
}
