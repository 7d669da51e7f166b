"""Cost of tracking for a micro-batch: the same files through tracked and untracked queries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
import lowwater_spark as lws
from benchmarks import child
from benchmarks.result import Result, Spread
from lowwater_spark.track.rows.counts import Actions
from lowwater_spark.track.run.hook import Hook

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rows: int
    """Number of rows in one batch."""
    rounds: int
    warm_up: int
    """Rounds before that do not count: the JVM compiles what it runs."""


FULL: Final = Size(1_000_000, rounds=15, warm_up=5)
QUICK: Final = Size(10_000, rounds=2, warm_up=1)

RANGES: Final = 64
KEYS: Final = 50_000
FILES: Final = 2
START: Final = 1_700_000_000_000_000
"""The least event time, microseconds: what the input has promised in the end. No row is late, and
every row is looked at for it."""

PATIENCE: Final = 120.0

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

UNTRACKED: Final = "the same query, untracked"
BY_FUNCTION: Final = "the same function by applyInArrow, untracked"
COUNTS: Final = "key string, count long"
KINDS: Final = ("untracked", "observed", "job", "by_function", "stateful", "folded")
TRACKED: Final = ("observed", "job", "stateful", "folded")


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = stack.enter_context(session())
        lw = stack.enter_context(lowwater.connect(server.address))
        lw.register("source")
        lease = lw.worker("source", identity="benchmark").claim()
        files = _files(spark, folder / "files", size.rows)
        queries = [stack.enter_context(_Query(spark, server.address, folder / kind, kind)) for kind in KINDS]
        turns = size.warm_up + size.rounds
        for turn in range(turns):
            # The promise moves from batch to batch, as in a pipeline that goes on.
            lease.advance(None, oldest=None, frontier=lowwater.Watermark(START + turn - turns + 1))
            lease.flush(PATIENCE)
            first = turn % len(queries)
            for query in queries[first:] + queries[:first]:
                query.feed(files, size.rows)
        for kind in TRACKED:
            lw.wait(kind, lowwater.Watermark(START), PATIENCE)
    counted = {query.kind: query.batches[size.warm_up :] for query in queries}
    wall = {kind: Spread(tuple(batch.milliseconds for batch in batches)) for kind, batches in counted.items()}
    processor = {kind: Spread(tuple(batch.processor for batch in batches)) for kind, batches in counted.items()}
    facts = {"n": size.rows, "ranges": RANGES}

    def line(metric: str, kind: str, spreads: Mapping[str, Spread], against: str = "untracked") -> Result:
        baseline = BY_FUNCTION if against == "by_function" else UNTRACKED
        return Result("spark_overhead", metric, spreads[kind], "ms", baseline, spreads[against], facts)

    return [
        line("batch", "observed", wall),
        line("batch_processor", "observed", processor),
        line("batch_counted_by_a_job", "job", wall),
        line("batch_counted_by_a_job_processor", "job", processor),
        line("batch_with_state", "stateful", wall),
        line("batch_with_state", "stateful", wall, "by_function"),
        line("batch_with_state_processor", "stateful", processor),
        line("batch_with_state_processor", "stateful", processor, "by_function"),
        line("batch_with_state_folded", "folded", wall),
        line("batch_with_state_folded_processor", "folded", processor),
    ]


@contextmanager
def session() -> Iterator[SparkSession]:
    """Start a Spark of two cores, and stop it."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("lowwater-benchmark")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _files(spark: SparkSession, folder: Path, rows: int) -> list[Path]:
    """Write the files that every batch reads: a text key, an event time and a number."""
    from pyspark.sql import functions as sf

    number = sf.col("id")
    frame = spark.range(0, rows, 1, FILES).select(
        sf.concat(sf.lit("k"), number % KEYS).alias("key"),
        sf.timestamp_micros(sf.lit(START) + number * 3000).alias("t"),
        sf.rand(1).alias("v"),
    )
    frame.write.parquet(f"file://{folder}")
    return sorted(folder.glob("*.parquet"))


class _Deaf(Actions):
    """Hears of no action, so every batch is counted by a job of its own."""

    def expect(self, frame: DataFrame) -> str:
        """See Actions."""
        return ""


@dataclass(frozen=True, slots=True)
class _Batch:
    milliseconds: float
    """Time from Spark's trigger to its commit."""
    processor: float
    """Processor time of the JVM, of Python's task processes and of this process meanwhile,
    milliseconds."""


class _Query(AbstractContextManager["_Query"]):
    """A query with a directory of its own to read.

    It groups, counts and writes each batch, in one way or another.
    """

    def __init__(self, spark: SparkSession, address: str, folder: Path, kind: str) -> None:
        self.kind = kind
        self.batches: list[_Batch] = []
        self._folder = folder / "in"
        self._folder.mkdir(parents=True)
        self._output = folder / "out"
        jvm: Any = spark._jvm
        self._pid = jvm.java.lang.ProcessHandle.current().pid()
        stream = spark.readStream.schema("key string, t timestamp, v double").option("recursiveFileLookup", "true")
        rows = stream.parquet(f"file://{self._folder}")
        checkpoint = folder / "checkpoint"
        self._tracked: lws.TrackedQuery | None = None
        if kind not in TRACKED:
            count = self._count if kind == "untracked" else count_by_function
            writer = rows.writeStream.foreachBatch(lambda frame, _: self._write(count(frame)))
            writer = writer.option("checkpointLocation", f"file://{checkpoint}")
            self._query = writer.trigger(processingTime="0 seconds").start()
            return
        stage = lws.stage(spark, kind, inputs=["source"], key="key", event_time="t", ranges=RANGES, address=address)
        self._tracked = stage.foreach_batch(rows, self._batch, checkpoint=checkpoint)
        self._query = self._tracked.query
        if kind == "job":
            hook = self._tracked._run.batches
            assert isinstance(hook, Hook)
            hook._actions = _Deaf()

    def _batch(self, rows: DataFrame, batch: lws.Batch) -> None:
        if self.kind == "stateful":
            self._write(batch.stateful(rows.select("key", "t"), count_by_key, COUNTS))
        elif self.kind == "folded":
            self._write(batch.stateful(folded(rows), add_by_key, COUNTS))
        else:
            self._write(self._count(rows))

    @staticmethod
    def _count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").count()

    def _write(self, counts: DataFrame) -> None:
        counts.write.mode("overwrite").parquet(f"file://{self._output}")

    def feed(self, files: Sequence[Path], rows: int) -> None:
        """Give it one batch, take its time, and check what it has written."""
        import pyarrow.compute
        import pyarrow.parquet

        beside = self._folder / f".{len(self.batches)}"
        beside.mkdir()
        for file in files:
            os.link(file, beside / file.name)
        before = self._processor_time()
        beside.rename(self._folder / f"{len(self.batches)}")
        self._query.processAllAvailable()
        spent = self._processor_time() - before
        progress = [p for p in self._query.recentProgress if p.numInputRows][-1]
        self.batches.append(_Batch(progress.durationMs["triggerExecution"], spent))
        assert pyarrow.compute.sum(pyarrow.parquet.read_table(self._output).column("count")).as_py() == rows

    def _processor_time(self) -> float:
        """Return the processor milliseconds of the JVM, its children and this process so far.

        The kernel counts in steps of ten.
        """
        own = os.times()
        return _ticks(self._pid) * 1000 / os.sysconf("SC_CLK_TCK") + (own.user + own.system) * 1000

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        (self._tracked or self._query).stop()


def _ticks(pid: int) -> int:
    """Return the processor time of a process and of all its descendants, ended ones too.

    O(processes).
    """
    children: dict[int, list[tuple[int, int]]] = {}
    spent = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended meanwhile
            fields = path.read_text().rsplit(")", 1)[1].split()
            process = int(path.parent.name), sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(process)
            spent += process[1] if process[0] == pid else 0
    below = list(children.get(pid, ()))
    while below:
        child, ticks = below.pop()
        spent += ticks
        below += children.get(child, ())
    return spent


def count_by_key(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> lws.UpdateResult:
    """Emit a range's rows counted by key; keep nothing."""
    counts = rows.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "count"])
    return None, counts, None, ()


def folded(rows: DataFrame) -> DataFrame:
    """Return a row for each key: Spark counts, and the function gets the counts."""
    from pyspark.sql import functions as sf

    return rows.groupBy("key").agg(sf.min("t").alias("t"), sf.count("*").alias("count"))


def add_by_key(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> lws.UpdateResult:
    """Emit the counts of a range; keep nothing."""
    return None, rows, None, ()


def count_by_function(rows: DataFrame) -> DataFrame:
    """Count as :func:`count_by_key` does, by as many ranges.

    All rows go by their key to a function in Python.
    """
    from lowwater_spark.track.rows.ranges import range_column

    def count(table: pa.Table) -> pa.Table:
        return count_by_key(0, None, table, lowwater.Watermark(START))[1]

    return rows.select("key").groupBy(range_column(["key"], RANGES)).applyInArrow(count, COUNTS)
