"""Where a cell's files are, where its rows come from, and what Spark needs for both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scripts.jars import jars
from tests.floors.environments import CLIENTS, environment
from tests.kit import delta
from tests.kit.gcs import Gcs
from tests.kit.hdfs import Hdfs
from tests.kit.kafka import Kafka
from tests.kit.s3 import S3
from tests.matrix.cells import ICEBERG, NEWEST, OLD, Cell
from tests.spark.support import SETTINGS

HAND: Final = Path(__file__).with_name("hand.py")
CATALOG: Final = "ice"
OUT: Final = "out"
"""The topic of a job in real-time mode."""

_SDK: Final = tuple(
    f"software.amazon.awssdk:{part}:2.29.52" for part in ("s3-transfer-manager", "apache-client", "sts")
)

PACKAGES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    ICEBERG: {
        "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"],
        "s3": ["org.apache.hadoop:hadoop-aws:3.4.2", *_SDK],
    },
    OLD: {
        "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0"],
        "kafka": ["org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"],
        "delta": ["io.delta:delta-spark_2.12:3.3.2"],
        "s3": ["org.apache.hadoop:hadoop-aws:3.3.4"],
    },
}
"""What other versions than the newest need. For that one the jars are here."""


class Place:
    """The store of a cell, and its source. ``settings`` are what a Spark of a version needs for both."""

    def __init__(self, cell: Cell, folder: Path, server: Hdfs | S3 | Gcs | None, kafka: Kafka | None) -> None:
        self.cell, self.folder, self.server, self.kafka = cell, folder, server, kafka

    def uri(self, name: str) -> str:
        return str(self.folder / name) if self.server is None else self.server.path(f"{self.folder.name}/{name}")

    def settings(self, spark: str) -> dict[str, str]:
        """Return the settings of a Spark of a version."""
        needs = [need for need in (self.cell.source, self.cell.store) if need in ("kafka", "delta", "iceberg", "s3")]
        found = dict(SETTINGS) | {"spark.sql.shuffle.partitions": "1"}
        path = [str(jar) for jar in (jars("gcs") if self.cell.store == "gcs" else [])]
        if spark == NEWEST:
            path += [str(jar) for need in needs for jar in jars(need)]
        else:
            packages = [package for need in needs for package in PACKAGES[spark][need]]
            if packages:
                found["spark.jars.packages"] = ",".join(packages)
                found["spark.jars.excludes"] = "software.amazon.awssdk:bundle"
        if path:
            found["spark.driver.extraClassPath"] = os.pathsep.join(path)
        if self.cell.source == "delta":
            found |= delta.SETTINGS
        if self.cell.source == "iceberg":
            found |= {
                "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
                f"spark.sql.catalog.{CATALOG}.type": "hadoop",
                f"spark.sql.catalog.{CATALOG}.warehouse": self.uri("tables"),
            }
        if self.cell.store == "gcs":
            # The connector's vectored reads call a method that Hadoop 3.5 does not have any more.
            found["spark.hadoop.parquet.hadoop.vectored.io.enabled"] = "false"
        if isinstance(self.server, S3 | Gcs):
            found |= {f"spark.hadoop.{name}": value for name, value in self.server.settings.items()}
        return found

    @property
    def source(self) -> dict[str, Any]:
        """The source, as the job reads it."""
        match self.cell.source:
            case "files":
                return {"format": "json", "options": {}, "path": self.uri("in")}
            case "kafka":
                assert self.kafka is not None
                options = {"subscribe": "events", "startingOffsets": "earliest"}
                return {"format": "kafka", "options": options | {"kafka.bootstrap.servers": self.kafka.address}}
            case "delta":
                return {"format": "delta", "options": {}, "path": self.uri("in")}
            case _:
                return {"format": "iceberg", "options": {}, "path": f"{CATALOG}.db.events"}

    @property
    def declared(self) -> str:
        """The source, as the sidecar is told of it."""
        if self.cell.source == "kafka":
            assert self.kafka is not None
            return f"kafka:events,lowwater.brokers=1,kafka.bootstrap.servers={self.kafka.address}"
        option = ",lowwater.externalLogStore=false" if (self.cell.source, self.cell.store) == ("delta", "s3") else ""
        return f"{self.cell.source}:{self.source['path']}{option}"


class Hand:
    """The session that writes rows, and looks at what the job has written. For several threads."""

    def __init__(self, place: Place, python: str) -> None:
        self._place, self._count, self._lock = place, 0, threading.Lock()
        with (place.folder / "hand.log").open("ab") as log:
            command = [python, str(HAND), json.dumps(place.settings(place.cell.reader))]
            environ = {**os.environ, "PYSPARK_PYTHON": python}
            self.process = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _do(self, *command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        assert answer, (self._place.folder / "hand.log").read_text()[-3000:]
        return json.loads(answer)

    def put(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Bring rows into the source; they are visible when it returns."""
        self._count += 1
        lines = [json.dumps(row) for row in rows]
        match self._place.cell.source:
            case "files":
                self._do("put", f"{self._place.uri('in')}/{self._count:03}.json", "\n".join(lines))
            case "kafka":
                assert self._place.kafka is not None
                self._place.kafka.put("events", lines)
            case kind:
                self._do("append", kind, self._place.source["path"], [[row["key"], row["t"]] for row in rows])

    def begun(self, checkpoint: str) -> bool:
        return bool(self._do("begun", checkpoint))

    def files(self, out: str) -> set[str]:
        return {*self._do("files", out)}

    def rows(self, out: str) -> list[tuple[str, str, int, int]]:
        return [tuple(row) for row in self._do("rows", out)]


def python_of(spark: str, *, reports: bool = False, connects: bool = False) -> str:
    """Return the interpreter with a version of PySpark, with lowwater for a sidecar, and with what a client of Spark Connect needs."""
    if spark == NEWEST:
        return sys.executable
    needs = [f"pyspark[connect,pipelines]=={spark}"] if connects else []
    name = "sidecar" if reports else "client" if connects else "job"
    return environment(spark, CLIENTS if reports else (), "pandas<3", *needs, name=f"{spark}-{name}")


@contextmanager
def opened(cell: Cell, folder: Path) -> Iterator[Place]:
    """Run the servers of a cell."""
    makers: dict[str, Any] = {"hdfs": Hdfs, "s3": S3, "gcs": Gcs}
    maker = makers.get(cell.store)
    server = None if maker is None else maker(folder / cell.store)
    try:
        if server is not None:
            server.start()
        if cell.source == "kafka":
            with Kafka(folder / "kafka") as kafka:
                kafka.create("events")
                kafka.create(OUT)
                yield Place(cell, folder, server, kafka)
        else:
            yield Place(cell, folder, server, None)
    finally:
        if server is not None:
            server.kill()
