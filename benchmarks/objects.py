"""Cost of a look at a source in an object store, by the number of its objects.

The server is a stand-in that answers S3's request to list, with pages that were made before. So the
figures are those of the driver: Hadoop's client, the way of the listing from the JVM to Python, and
the comparison with what was read. A look lists twice. The baseline is one listing by Hadoop's
client alone, as Spark makes one for each trigger.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.result import Result, Spread
from lowwater_spark.checkpoint.location import source_at
from lowwater_spark.sources.files.folders import folders_of
from lowwater_spark.sources.files.source import FileSource, Settled, list_head
from lowwater_spark.sources.files.source_log import File, Head, SourceLog, Taken
from lowwater_spark.sources.head import Candidates
from scripts.jars import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    objects: tuple[int, ...]


FULL: Final = Size(rounds=3, objects=(1_000, 10_000, 100_000))
QUICK: Final = Size(rounds=1, objects=(1_000, 2_000))

NEWS: Final = 10
"""Objects that no batch has taken yet."""


class _Log(SourceLog):
    """A source's log that has taken everything but the news."""

    def take(self, head: Head) -> None:
        files: list[File] = sorted(head)
        for file in files[NEWS:]:
            self._taken[file.path] = Taken(0, file.modified)
        self.read = 0


class _Driver:
    """Lists one directory."""

    def __init__(self, spark: SparkSession, objects: int, log: Path) -> None:
        folder = source_at(spark, f"s3a://bucket/{objects}", "The path")
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(str(folder))
        system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        iterators = jvm.org.apache.hadoop.util.functional.RemoteIterators
        self._list: Callable[[], int] = lambda: iterators.toList(system.listFiles(path, True)).size()  # noqa: FBT003 - methods of Java take no keywords
        self._objects = objects
        self._source = FileSource(str(folder), recursive=True, folders=folders_of(folder))
        self._log = _Log(log)
        self._settled = Settled(self._log)
        self._log.take(list_head(self._source))

    def took(self) -> float:
        """Seconds of a look."""
        since = time.perf_counter()
        self._settled.begin(0)
        head = list_head(self._source, self._settled)
        self._settled.end()
        waiting = Candidates[int]([self._log])
        waiting.add(1, [head])
        assert waiting.newest_reached([0], forget=False) is None, "the news is waited for"
        return time.perf_counter() - since

    def hadoop_took(self) -> float:
        """Seconds of one listing that stays in the JVM."""
        since = time.perf_counter()
        assert self._list() == self._objects
        return time.perf_counter() - since


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with _store() as endpoint, _session(endpoint) as spark:
        return [_measure(_Driver(spark, objects, folder / "log"), objects, size.rounds) for objects in size.objects]


def _measure(driver: _Driver, objects: int, rounds: int) -> Result:
    driver.took()
    ours, theirs = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(driver.took())
        theirs.append(driver.hadoop_took())
    facts = {"ranges": 0, "objects": objects, "requests": 2 * -(-objects // 1_000), "news": NEWS}
    value, baseline = Spread(tuple(ours)), Spread(tuple(theirs))
    return Result("objects", f"look_{objects}", value, "s", "one listing by Hadoop", baseline, facts)


@contextmanager
def _store() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.objects_child"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.kill()


@contextmanager
def _session(endpoint: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars("s3")),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": "anybody",
        "spark.hadoop.fs.s3a.secret.key": "anything",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
