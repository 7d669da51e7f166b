"""Micro-batches and lag of a computation with a hot key range, before its split and after.

The hot range gets a thousand rows where the others get one. Both ways take turns in one run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import lowwater
from benchmarks import child
from benchmarks.result import Result, Spread
from benchmarks.spark_overhead import PATIENCE, START, session
from lowwater_pipeline.computation import Codec, Computation, Context, Input, Output, Record, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import lowwater_spark as lws


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rows: int
    """Number of rows in a batch, each with another key."""
    turns: int
    """Number of times that the range is split, and its parts are merged."""
    batches: int
    """Number of batches of one turn that count."""


FULL: Final = Size(10_000, turns=4, batches=5)
QUICK: Final = Size(1_000, turns=1, batches=2)

RANGES: Final = 4
PARTS: Final = 4
SKEW: Final = 1000
SECOND: Final = 1_000_000
WAIT: Final = 1e-4
"""Seconds for each record, at least."""

WHOLE, SPLIT = "whole", "split"


class Sums(Computation):
    """Keeps a sum per key, and says it after each record.

    It waits for each, as who asks a store near by: so two tasks are faster than one also where
    others take the cores.
    """

    name = "sums"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    outputs: ClassVar[Mapping[str, str | Output]] = {"sums": "key string, n long"}
    state = Codec(int)

    def process_record(self, ctx: Context, record: Record) -> None:
        """Add one."""
        del record
        time.sleep(WAIT)
        ctx.state += 1
        ctx.produce("sums", {"key": ctx.key, "n": ctx.state})


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = stack.enter_context(session())
        lw = stack.enter_context(lowwater.connect(server.address))
        bench = _Bench(spark, server.address, lw, folder, size)
        stack.callback(bench.stop)
        for _ in range(1 + size.turns):
            for kind in (WHOLE, SPLIT):
                bench.turn(kind)
    took, lags, changes = bench.took, bench.lags, bench.changes
    facts: dict[str, object] = {"n": size.rows, "ranges": RANGES, "parts": PARTS, "skew": SKEW, "tasks": 2}

    def spread(turns: Mapping[str, Sequence[Sequence[float]]], kind: str) -> Spread:
        # The first turns warm up.
        return Spread(tuple(value for turn in turns[kind][1:] for value in turn))

    def rates(kind: str) -> Spread:
        return Spread(tuple(size.rows * 1000 / milliseconds for milliseconds in spread(took, kind).rounds))

    whole = "the same before the range is split"
    return [
        Result("hot_ranges", "batch", spread(took, SPLIT), "ms", whole, spread(took, WHOLE), facts),
        Result("hot_ranges", "rows_per_second", rates(SPLIT), "rows/s", whole, rates(WHOLE), facts),
        Result("hot_ranges", "lag", spread(lags, SPLIT), "ms", whole, spread(lags, WHOLE), facts),
        Result("hot_ranges", "batch_that_splits", spread(changes, SPLIT), "ms", whole, spread(took, WHOLE), facts),
    ]


@dataclass
class _Bench:
    """One computation, over files of the same keys."""

    spark: SparkSession
    address: str
    lw: lowwater.Client
    folder: Path
    size: Size
    took: dict[str, list[list[float]]] = field(default_factory=lambda: {WHOLE: [], SPLIT: []})
    lags: dict[str, list[list[float]]] = field(default_factory=lambda: {WHOLE: [], SPLIT: []})
    changes: dict[str, list[list[float]]] = field(default_factory=lambda: {WHOLE: [], SPLIT: []})

    def __post_init__(self) -> None:
        self.lw.register("source")
        self.lease = self.lw.worker("source", identity="benchmark").claim()
        self.feed = self.folder / "in"
        self.feed.mkdir()
        self.keys = self._keys()
        self.number = 0
        rows = self.spark.readStream.schema("key string, t timestamp").parquet(f"file://{self.feed}")
        checkpoint = self.folder / "checkpoint"
        self.query = start(Sums(), rows, self._write, checkpoint=checkpoint, ranges=RANGES, address=self.address)
        self.batch()

    def _keys(self) -> list[str]:
        """Return keys of which all but one in a thousand are in the first range, spread over it."""
        from pyspark.sql import functions as sf

        hot = self.size.rows - max(RANGES - 1, self.size.rows // SKEW)
        places = self.spark.range(8 * RANGES * self.size.rows).select(sf.concat(sf.lit("key-"), "id").alias("key"))
        first = sf.xxhash64("key") < sf.lit(2**64 // RANGES - 2**63)
        chosen = places.where(first).limit(hot).union(places.where(~first).limit(self.size.rows - hot))
        return [row.key for row in chosen.collect()]

    def _write(self, outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        del batch
        outputs["sums"].write.mode("overwrite").parquet(f"file://{self.folder / 'out'}")

    def batch(self) -> tuple[float, float]:
        """Run one batch; return its milliseconds, and those until its watermark was published."""
        import pyarrow as pa
        import pyarrow.parquet

        self.number += 1
        at = START + self.number * SECOND
        beside = self.folder / f"{self.number}.parquet"
        times = pa.array([at] * len(self.keys), pa.timestamp("us", "UTC"))
        pyarrow.parquet.write_table(pa.table({"key": self.keys, "t": times}), beside)
        beside.rename(self.feed / beside.name)
        began = time.perf_counter()
        until = lowwater.Watermark(at)
        self.lease.advance(None, oldest=None, frontier=until)
        self.lease.flush(PATIENCE)
        self.lw.wait("sums", until, PATIENCE, registered=False)
        lag = (time.perf_counter() - began) * 1000
        self.query.query.processAllAvailable()
        progress = [entry for entry in self.query.query.recentProgress if entry.numInputRows][-1]
        return progress.durationMs["triggerExecution"], lag

    def turn(self, kind: str) -> None:
        """Have the range whole, or in parts, and take the batches' times."""
        layout = self.lw.layout("sums")
        while layout.current is None:
            self.batch()
            layout = self.lw.layout("sums")
        base = layout.base
        took: list[float] = []
        lags: list[float] = []
        changed: list[float] = []
        if kind == SPLIT:
            target = base.split(0, base.halves(0, PARTS))
        else:
            target = base if len(base) == RANGES else base.merge(0, base.starts[PARTS - 1])
        if target != base:
            version = self.lw.change_layout("sums", layout.incarnation, target)
            while not changed or self._version() != version:
                changed = [self.batch()[0]]
        for _ in range(self.size.batches):
            milliseconds, lag = self.batch()
            took.append(milliseconds)
            lags.append(lag)
        self.took[kind].append(took)
        self.lags[kind].append(lags)
        self.changes[kind].append(changed)

    def _version(self) -> int:
        current = self.lw.layout("sums").current
        return 0 if current is None else current.version

    def stop(self) -> None:
        """Stop the computation."""
        with suppress(Exception):
            self.query.stop()
