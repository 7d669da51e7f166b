"""Cost of ``attach()`` for a micro-batch, beside the query by itself.

The same windowed query reads the same files each time, one file a batch; a file-sink batch is
written, so that the rows that came out can be compared. The promise is the batch median within 10 %
and 20 ms of the query by itself; no test asserts it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

import lowwater_spark as lws
from benchmarks import child
from benchmarks.result import Result, Spread
from tests.spark.proxy import Proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASELINE: Final = "the same query, not attached"


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    batches: int
    """Files, and so batches with rows, of one run."""
    rows: int
    """Number of rows in a file."""


FULL: Final = Size(rounds=5, batches=12, rows=20_000)
QUICK: Final = Size(rounds=1, batches=4, rows=100)

WARM_UP: Final = 2
"""Batches at the start of a run that do not count: the query is planned and compiled in them."""

DELAY: Final = 1.0
"""Seconds that each call takes longer at the slow authority."""

SETTINGS: Final = {
    "spark.driver.memory": "1g",
    "spark.python.authenticate.socketTimeout": "60s",  # a worker starts slowly
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Slow(Proxy):
    """Lets every call through, late."""

    def forward(self, method: str, requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        threading.Event().wait(DELAY)
        yield from super().forward(method, requests, context)


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    feed(folder / "in", size)
    with ExitStack() as stack:
        spark = stack.enter_context(session())
        addresses = stack.enter_context(authorities(folder))
        query = Query(spark, folder)
        query.run(None)  # the first of a JVM is slower than all that follow
        medians: dict[str | None, list[float]] = {case: [] for case in (None, *addresses)}
        rows: dict[str | None, set[str]] = {case: set() for case in medians}
        for turn in range(size.rounds):
            order = [*medians]
            for case in order[turn % len(order) :] + order[: turn % len(order)]:
                took, out = query.run(None if case is None else addresses[case])
                medians[case].append(statistics.median(took[WARM_UP:]))
                rows[case].add(out)
    alone = Spread(tuple(medians[None]))
    limit = 1.1 * alone.median + 20
    results = []
    for case in addresses:
        ours = Spread(tuple(medians[case]))
        facts = {
            "n": size.rounds * size.batches,
            "ranges": 1,
            "limit": round(limit, 1),
            "within": ours.median <= limit,
            "same_rows": len(rows[None] | rows[case]) == 1,
        }
        results.append(Result("attach", f"batch median, authority {case}", ours, "ms", BASELINE, alone, facts))
    return results


class Query:
    """The query, from its beginning each time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    def run(self, address: str | None) -> tuple[list[float], str]:
        """Run the query once, and return the milliseconds of its batches, and its rows as text.

        The query is attached unless there is no address.
        """
        from pyspark.sql.functions import window

        for name in ("out", "checkpoint"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        attached = None if address is None else lws.attach(self.spark, address)
        try:
            rows = self.spark.readStream.schema("key int, t timestamp").option("maxFilesPerTrigger", 1)
            counts = rows.json(str(self.folder / "in")).withWatermark("t", "10 minutes")
            counts = counts.groupBy(window("t", "10 minutes"), "key").count()
            writer = counts.writeStream.format("parquet").queryName("attached").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start(str(self.folder / "out"))
            query.awaitTermination()
            took = [float(json.loads(progress.json)["batchDuration"]) for progress in query.recentProgress]
        finally:
            if attached is not None:
                attached.stop()
        written = self.spark.read.parquet(str(self.folder / "out"))
        text = sorted(
            str(tuple(row)) for row in written.selectExpr("cast(window.start as long)", "key", "count").collect()
        )
        return took, "\n".join(text)


def feed(folder: Path, size: Size) -> None:
    """Write the files: an hour of event time each."""
    folder.mkdir(parents=True)
    start = dt.datetime(2013, 1, 9, tzinfo=dt.UTC)
    for batch in range(size.batches):
        step = dt.timedelta(hours=1) / size.rows
        lines = (
            json.dumps({"key": i % 50, "t": (start + dt.timedelta(hours=batch) + i * step).isoformat()})
            for i in range(size.rows)
        )
        path = folder / f"{batch:03}.json"
        path.write_text("\n".join(lines), encoding="utf-8")
        os.utime(path, (1e9 + batch, 1e9 + batch))  # Spark reads files by age


@contextmanager
def authorities(folder: Path) -> Iterator[Mapping[str, str]]:
    """Provide an address of each kind."""
    with ExitStack() as stack:
        answering = stack.enter_context(child.authority(folder / "answering"))
        frozen = stack.enter_context(child.authority(folder / "frozen"))
        proxy = stack.enter_context(Slow(answering.address, lambda _: False))
        os.kill(frozen.pid, signal.SIGSTOP)
        with socket.socket() as refusing:
            refusing.bind(("127.0.0.1", 0))  # and does not listen
            yield {
                "answering": answering.address,
                "refused": f"127.0.0.1:{refusing.getsockname()[1]}",
                "frozen": frozen.address,
                "slow": proxy.address,
            }


@contextmanager
def session(settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Run Spark in this process, with more settings than those of all benchmarks."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("lowwater-benchmark")
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
