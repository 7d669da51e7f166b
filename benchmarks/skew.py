"""Worth of a skew limit: memory of a window query while one Kafka partition falls behind.

In each step one partition of a real topic gets four hours of event time, the other one hour. An
injector brings the topic in, with ``skew_limit`` by ``Stage.read_kafka``, and without by Spark's
own source. A driven query behind it counts by the hour and by a key that no two rows share, so that
it has a row in its state for each row that it waits with. Both ways run one after the other in one
JVM: a step is over when all is read that may be, and the windows are closed that can be.

``python -m benchmarks.skew PICTURE.png`` draws it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import lowwater_spark as lws
from benchmarks import child
from benchmarks.result import Result, Spread
from benchmarks.spark_overhead import SETTINGS
from tests.kit.kafka import Kafka, Row
from tests.spark.session import QUICK, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR: Final = timedelta(hours=1)
BEGIN: Final = datetime(2013, 1, 9, tzinfo=UTC)
FAST: Final = 4
"""Hours that the fast partition gets while the other one gets one."""
LIMIT: Final = 2 * HOUR
DISORDER: Final = timedelta(minutes=1)
PATIENCE: Final = 240.0
_MEGABYTE: Final = 1_000_000
WITH, WITHOUT = WAYS = "with skew_limit", "without"


class Held(NamedTuple):
    """State of the window query after a step."""

    rows: int
    """Number of rows in its state, by Spark's own count."""
    state: int
    """Bytes of its state, as Spark estimates them."""
    heap: int
    """Bytes of the JVM's heap that are in use after a collection."""


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Return what is held at the end, against the same without a limit."""
    steps, keys = (2, 20) if quick else (8, 5000)
    samples = measure(folder, steps, keys)
    facts = {
        "ranges": 0,
        "steps": steps,
        "rows_an_hour": keys,
        "limit_hours": LIMIT // HOUR,
        "hours_behind": steps * (FAST - 1),
    }

    def result(metric: str, unit: str, figure: Callable[[Sequence[Held]], int]) -> Result:
        ours, theirs = (Spread((float(max(figure(samples[way]), 1)),)) for way in WAYS)
        return Result("skew", metric, ours, unit, "without a limit", theirs, facts)

    return [
        result("state_rows", "rows", lambda samples_: samples_[-1].rows),
        result("state_bytes", "bytes", lambda samples_: samples_[-1].state),
        result("heap_growth", "bytes", lambda samples_: samples_[-1].heap - samples_[0].heap),
    ]


def measure(folder: Path, steps: int, keys: int) -> dict[str, list[Held]]:
    """Return what was held after each step, by the way of reading."""
    # As in the tests: Spark gives a worker ten seconds to begin, and on a busy machine its usual
    # one needs more.
    settings = {**SETTINGS, **QUICK, "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    samples: dict[str, list[Held]] = {}
    with ExitStack() as stack:
        kafka = stack.enter_context(Kafka(folder / "kafka"))
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = spark_session("lowwater-benchmark", "local[2]", settings)
        stack.callback(spark.stop)
        for number, way in enumerate(WAYS):
            pipeline = _Pipeline(spark, kafka, server.address, folder / f"way-{number}", limited=way == WITH)
            try:
                samples[way] = [pipeline.step(step, keys) for step in range(steps)]
            finally:
                pipeline.stop()
    return samples


class _Pipeline:
    """An injector over a topic of its own, and hourly windows behind it."""

    def __init__(self, spark: SparkSession, kafka: Kafka, address: str, folder: Path, *, limited: bool) -> None:
        from pyspark.sql import functions as sf

        self._spark, self._kafka, self._topic, self._limited = spark, kafka, folder.name, limited
        self._fast: list[datetime] = []
        kafka.create(self._topic, 2, retention_ms="-1")
        out = folder / "out"
        out.mkdir(parents=True)
        begin = lws.injector(
            spark,
            f"begin-{folder.name}",
            key="key",
            event_time="timestamp",
            disorder=DISORDER,
            skew_limit=LIMIT if limited else None,
            address=address,
        )
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": self._topic}
        if limited:
            read = begin.read_kafka(options)
        else:
            read = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
        rows = read.select(sf.col("key").cast("string").alias("key"), "timestamp", "topic", "partition")
        hourly = lws.stage(
            spark,
            f"hourly-{folder.name}",
            inputs=[begin.name],
            key="key",
            event_time="t",
            stamp=sf.col("window.start"),
            address=address,
        )
        source = spark.readStream.schema("key string, t timestamp").option("recursiveFileLookup", "true")
        counts = hourly.drive(source.parquet(str(out))).groupBy(sf.window("t", "1 hour"), "key").count()

        def write(frame: DataFrame, batch: lws.Batch) -> None:
            batch.write(frame.select("key", sf.col("timestamp").alias("t")), out)

        self._begin = begin.foreach_batch(rows, write, checkpoint=folder / "begin")
        self._hourly = hourly.start(counts, checkpoint=folder / "hourly", format="noop")

    def step(self, step: int, keys: int) -> Held:
        """Bring a step's rows in, and return what is held when nothing more can be done."""
        fast = [BEGIN + (step * FAST + hour) * HOUR + HOUR * key / keys for hour in range(FAST) for key in range(keys)]
        slow = [BEGIN + step * HOUR + HOUR * key / keys for key in range(keys)]
        for partition, times in enumerate((fast, slow)):
            rows = [
                Row(b"", f"{partition}-{step}-{i}".encode(), partition, round(time_.timestamp() * 1000))
                for i, time_ in enumerate(times)
            ]
            self._kafka.put(self._topic, rows)
        self._fast += fast
        # What may be read is known beforehand; so the step is over when that is in, and not when
        # nothing came for a while.
        frontier = slow[-1] - DISORDER
        read = (step + 1) * keys + sum(not self._limited or event_time < frontier + LIMIT for event_time in self._fast)
        progress = self._await(read, BEGIN + step * HOUR)
        state = progress["stateOperators"][0]
        sample = Held(state["numRowsTotal"], state["memoryUsedBytes"], self._heap())
        way = WITH if self._limited else WITHOUT
        print(f"skew: {way}: step {step}: {read} rows read, {sample}", file=sys.stderr, flush=True)
        return sample

    def _await(self, read: int, closed: datetime) -> Mapping[str, Any]:
        """Return Spark's progress of the window query once it has read so many rows.

        By then it has closed the windows up to that moment.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            for query in (self._begin, self._hourly):
                if not query.query.isActive:
                    query.await_termination()
            rows = sum(
                source.numInputRows
                for entry in {entry.batchId: entry for entry in self._hourly.query.recentProgress}.values()
                for source in entry.sources
                if "FileStreamSource" in source.description
            )
            last = self._hourly.query.lastProgress
            if last is not None and rows >= read and _watermark(last) >= closed:
                if rows > read:
                    raise RuntimeError(f"{rows} rows were read of {read} that may be")
                return last
            if time.monotonic() > deadline:
                raise RuntimeError(f"{rows} rows were read of {read} in {PATIENCE:g} s: {last}")
            time.sleep(0.1)

    def _heap(self) -> int:
        """Return the bytes of the heap that are in use after a collection."""
        jvm: Any = self._spark._jvm
        for _ in range(3):
            jvm.java.lang.System.gc()
        bean = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        return int(bean.getHeapMemoryUsage().getUsed())

    def stop(self) -> None:
        """End both queries."""
        for query in (self._hourly, self._begin):
            query.stop()


def _watermark(progress: Mapping[str, Any]) -> datetime:
    """Return Spark's own watermark, as of a progress."""
    return datetime.fromisoformat(progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z"))


def draw(samples: Mapping[str, Sequence[Held]], path: Path) -> None:
    """Draw what was held after each step into a PNG file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MultipleLocator

    figure = Figure(figsize=(9, 4.6), dpi=130, layout="constrained", facecolor="white")
    left_axes, right = figure.subplots(1, 2)
    for (way, series), colour in zip(samples.items(), ("#0072B2", "#C4390B"), strict=True):
        behind = [(step + 1) * (FAST - 1) for step in range(len(series))]
        left_axes.plot(behind, [one.state / _MEGABYTE for one in series], color=colour, marker="o", label=way)
        right.plot(behind, [(one.heap - series[0].heap) / _MEGABYTE for one in series], color=colour, marker="o")
    left_axes.set_ylabel("state of the window query, MB")
    left_axes.set_ylim(bottom=0)
    left_axes.legend(frameon=False)
    right.set_ylabel("heap, MB more than after the first step")
    for axes in (left_axes, right):
        axes.set_xlabel("hours that one partition is behind the other")
        axes.xaxis.set_major_locator(MultipleLocator(6))
        axes.set_xlim(left=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle("A skew limit leaves rows of the fast partition in Kafka", x=0.01, ha="left")
    figure.savefig(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lowwater-skew-") as folder_name:
        draw(measure(Path(folder_name), 8, 5000), Path(sys.argv[1]))
