"""Share of a core that a tracked query takes without news, beside the same query untracked.

Spark itself looks at the sources of an idle query every 10 ms
(``spark.sql.streaming.pollingDelay``), which is most of what there is to see. One query runs at a
time, and they take turns. Before its time counts, each has read a batch, and rests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
import lowwater_spark as lws
from benchmarks import child
from benchmarks.attach import session
from benchmarks.pipeline_stages import EVERY_BATCH, RANGES, START
from benchmarks.result import Result, Spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    rest: float
    """Seconds after the first batch that do not count: timers that slow down by and by have done
    so."""
    seconds: float
    """Seconds of one query in one round."""


FULL: Final = Size(rounds=3, rest=5, seconds=60)
QUICK: Final = Size(rounds=1, rest=1, seconds=2)

KINDS: Final[Mapping[str, str]] = {
    "foreach_batch": "foreach_batch",
    "plain": "plain",
    "driven": "windows",
}
"""Kinds of tracked queries, each with the untracked kind that it is compared with."""

UNTRACKED: Final[Mapping[str, str]] = {
    "foreach_batch": "the same query untracked, foreachBatch",
    "plain": "the same query untracked, file sink",
    "windows": "the same windows untracked, with Spark's own watermark",
}

PATIENCE: Final = 120.0


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = stack.enter_context(session())
        jvm: Any = spark._jvm
        pid = jvm.java.lang.ProcessHandle.current().pid()
        lw = stack.enter_context(lowwater.connect(server.address))
        lw.register("source")
        lease = stack.enter_context(lw.worker("source", identity="benchmark")).claim()
        lease.advance(None, oldest=None, frontier=lowwater.Watermark.of(START + timedelta(seconds=1)))
        lease.flush(PATIENCE)
        shares_by_kind: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        # The first of each in a JVM is not counted.
        for turn in range(size.rounds + 1):
            for key in [*((kind, False) for kind in UNTRACKED), *((kind, True) for kind in KINDS)]:
                with _idle(spark, server.address, folder / f"{key[0]}-{key[1]}-{turn}", *key):
                    time.sleep(size.rest if turn else 0.0)
                    shares = _shares(pid, size.seconds if turn else 0.0)
                if turn:
                    shares_by_kind.setdefault(key, []).append(shares)
    return [
        Result(
            "idle",
            f"{kind}_{what}",
            Spread(tuple(pair[i] for pair in shares_by_kind[kind, True])),
            "% of a core",
            UNTRACKED[against],
            Spread(tuple(pair[i] for pair in shares_by_kind[against, False])),
            {"n": 1, "ranges": RANGES, "seconds": size.seconds},
        )
        for kind, against in KINDS.items()
        for i, what in enumerate(("driver", "jvm"))
    ]


def _shares(pid: int, seconds: float) -> tuple[float, float]:
    """Return the shares of a core that this process and the JVM take, in percent.

    The JVM counts with all processes that it has started.
    """
    before = _ticks(pid)
    begin, own = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    own, took = time.process_time() - own, time.perf_counter() - begin
    after = _ticks(pid)
    its = sum(after[process] - before[process] for process in before.keys() & after.keys())
    return 100 * own / took, 100 * its / os.sysconf("SC_CLK_TCK") / took


def _ticks(pid: int) -> dict[int, int]:
    """Return the processor time of a process and of its running descendants, by process.

    The kernel counts in steps of ten milliseconds.
    """
    stats: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended meanwhile
            fields = path.read_text().rsplit(")", 1)[1].split()
            stats[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    processes = {pid}
    while more := {process for process, (parent, _) in stats.items() if parent in processes} - processes:
        processes |= more
    return {process: stats[process][1] for process in processes}


@contextmanager
def _idle(spark: SparkSession, address: str, folder: Path, kind: str, tracked: bool) -> Iterator[None]:
    """Run a query that has read a batch and finds nothing more."""
    (folder / "in").mkdir(parents=True)
    record = {"key": "k", "t": START.isoformat(), "v": 1.0}
    (folder / "in" / "0.json").write_text(json.dumps(record), encoding="utf-8")
    rows = spark.readStream.schema("key string, t timestamp, v double").json(str(folder / "in"))
    started = _tracked(spark, address, folder, kind, rows) if tracked else _untracked(folder, kind, rows)
    query = started.query if isinstance(started, lws.TrackedQuery) else started
    try:
        query.processAllAvailable()
        yield
        assert query.isActive
    finally:
        started.stop()


def _untracked(folder: Path, kind: str, rows: DataFrame) -> StreamingQuery:
    frame = _windows(rows.withWatermark("t", "0 seconds")) if kind == "windows" else rows.where("v >= 0")
    writer = frame.writeStream.trigger(**EVERY_BATCH).option("checkpointLocation", str(folder / "checkpoint"))
    if kind == "foreach_batch":
        return writer.foreachBatch(lambda batch, _: _write(batch, folder / "out")).start()
    return writer.format("parquet").start(str(folder / "out"))


def _tracked(spark: SparkSession, address: str, folder: Path, kind: str, rows: DataFrame) -> lws.TrackedQuery:
    driven = kind == "driven"
    stage = lws.stage(
        spark,
        folder.name,
        inputs=["source"],
        key="key",
        event_time="t",
        ranges=RANGES,
        retention=timedelta() if driven else None,
        address=address,
    )
    checkpoint = folder / "checkpoint"
    if kind == "foreach_batch":
        return stage.foreach_batch(
            rows.where("v >= 0"), lambda batch, _: _write(batch, folder / "out"), checkpoint=checkpoint
        )
    frame = rows.where("v >= 0")
    if driven:
        frame = _windows(lws.drive(rows, inputs=["source"], event_time="t"))
    return stage.start(frame, checkpoint=checkpoint, format="parquet", path=folder / "out")


def _windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    counts = rows.groupBy(sf.window("t", "1 second"), "key").agg(sf.count("v").alias("n"))
    return counts.select("key", sf.col("window.end").alias("t"), "n")


def _write(rows: DataFrame, out: Path) -> None:
    rows.write.mode("append").parquet(str(out))
