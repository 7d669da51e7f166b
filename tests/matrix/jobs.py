"""The job of a cell, however it is run: begun, killed with its JVM, and begun again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.compatibility.environments import clean_environ
from tests.kit.times import at
from tests.matrix.places import OUT, Hand, Place, python_of
from tests.spark.connect import ConnectServer

JOB: Final = Path(__file__).with_name("job.py")
TABLE: Final = "key string, t timestamp, count bigint"

FLOW: Final = """

from pyspark import pipelines as dp

@dp.table
def hourly():
    return windows(SparkSession.active(), {source!r})
"""


Rows = Sequence[tuple[str, datetime]]
Window = tuple[str, int, int]
"""A key, the start in seconds, and how many rows."""


def table(head: str, keys: Mapping[str, object]) -> str:
    """Return a table of TOML.

    >>> print(table("[[query]]", {"name": "hourly", "inputs": ["source"]}), end="")
    [[query]]
    name = "hourly"
    inputs = ["source"]
    """
    return "\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""])


class Job:
    """A driver of its own, of any version of PySpark."""

    name = "hourly"
    """The computation."""
    connects = False
    frontier = 28
    """The hour of the watermark when all rows until hour 30 are in: Spark's is two hours below."""

    def __init__(self, place: Place) -> None:
        self.place, self.folder = place, place.folder
        self.python = python_of(place.cell.spark, connects=self.connects)
        self.out, self.checkpoint = place.uri("out"), place.uri("checkpoint")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def declared(self) -> dict[str, object]:
        """What no checkpoint shows of the query."""
        return {"windows": "1h", "output_mode": "append"}

    def declaration(self, promises: list[str]) -> str:
        """Return what the sidecar is told."""
        local = {"output": self.out} if self.place.cell.store == "local" and self.place.cell.kind != "realtime" else {}
        keys = {"name": self.name, "checkpoint": self.checkpoint, "inputs": ["source"], **self.declared, **local}
        return table("[[query]]", keys | {"sources": [self.place.declared], "promises": promises})

    def expected(self, rows: Rows) -> Counter[Window]:
        """Return what there must be of the output in the end."""
        counts = Counter((key, int(t.replace(minute=0, second=0, microsecond=0).timestamp())) for key, t in rows)
        return Counter({(key, start, count): 1 for (key, start), count in counts.items() if start < at(28).timestamp()})

    def files(self, hand: Hand) -> set[str]:
        """Return the parts of the output that can be read."""
        return hand.files(self.out)

    def rows(self, hand: Hand) -> list[tuple[str, *Window]]:
        """Return each row of the output, with its part."""
        return hand.rows(self.out)

    def found(self, written: list[tuple[str, *Window]]) -> Counter[Window]:
        """Return the output, to be compared with what is expected."""
        return Counter((key, start, count) for _, key, start, count in written)

    def start(self) -> None:
        self._begin(self._command(), {})

    def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check(self) -> None:
        """Raise AssertionError when the job has ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "job.log").read_text()[-4000:]

    def _command(self) -> list[str]:
        return [self.python, "-I", str(JOB), str(self._specification())]

    def _begin(self, command: list[str], environ: dict[str, str]) -> None:
        clean = {name: value for name, value in clean_environ().items() if not name.startswith("SPARK_")}
        environ = {**clean, "PYSPARK_PYTHON": self.python, **environ}
        with (self.folder / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def _specification(self) -> Path:
        content = {"source": self.place.source, "out": self.out, "checkpoint": self.checkpoint}
        file = self.folder / "job.json"
        settings = {"settings": self._settings(), "realtime": self.place.cell.kind == "realtime"}
        file.write_text(json.dumps(content | settings))
        return file

    def _settings(self) -> dict[str, str]:
        return {"spark.master": "local[1]", **self.place.settings(self.place.cell.spark)}


class Connect(Job):
    """A client of Spark Connect, and the server that runs its query: both are killed."""

    connects = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        settings = place.settings(place.cell.spark) | {"spark.sql.warehouse.dir": place.uri("warehouse")}
        self.server = ConnectServer(place.folder, python=self.python, settings=settings)

    def start(self) -> None:
        self.server.start()
        self._begin(self._command(), {"SPARK_REMOTE": self.server.url})

    def kill(self) -> None:
        self.server.kill()
        super().kill()

    def _settings(self) -> dict[str, str]:
        return {}


class Pipeline(Connect):
    """A declarative pipeline of one flow, which is run again and again. The sidecar finds the flow where it can."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.out = place.uri("warehouse/hourly")
        self.checkpoint = place.uri("storage/_checkpoints/spark_catalog/default/hourly/hourly/0")
        self._killed = False
        cell = place.cell
        self._is_found = cell.store == "local" and cell.source in ("files", "kafka")
        self.name = "matrix.hourly" if self._is_found else "hourly"
        (self.folder / "flows").mkdir()
        flow = self.folder / "flows/hourly.py"
        flow.write_text(JOB.read_text() + FLOW.format(source=place.source))
        libraries = "libraries:\n  - glob:\n      include: flows/**\n"
        storage = place.uri("storage")
        storage = storage if "://" in storage else f"file://{storage}"
        (self.folder / "pipeline.yml").write_text(f"name: matrix\nstorage: {storage}\n{libraries}")

    def declaration(self, promises: list[str]) -> str:
        if not self._is_found:
            return super().declaration(promises)
        source = self.place.declared
        keys = {name: self.place.uri(name) for name in ("storage", "warehouse")}
        tables = [
            table("[[pipeline]]", keys | {"prefix": "matrix.", "promises": promises}),
            table("[pipeline.inputs]", {f'"{source}"': ["source"]}),
            table("[pipeline.flows.hourly]", {"sources": [source], **self.declared}),
        ]
        return "\n".join(tables)

    def start(self) -> None:
        self.server.start()
        if self._killed:
            with self.server.client() as spark:  # its catalogue was in memory
                spark.sql(f"CREATE TABLE hourly ({TABLE}) USING parquet LOCATION '{self.out}'")
        run = f'"{self.python}" -m pyspark.pipelines.cli run --spec pipeline.yml'
        self._begin(["bash", "-c", f"while {run}; do :; done"], {"SPARK_REMOTE": self.server.url})

    def kill(self) -> None:
        super().kill()
        self._killed = True


class RealTime(Job):
    """A driver whose query copies a topic in real-time mode. Kafka has a row twice when the query was killed after it."""

    frontier = 30

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.out = OUT

    @property
    def declared(self) -> dict[str, object]:
        return {"operators": []}

    def expected(self, rows: Rows) -> Counter[Window]:
        return Counter({(key, int(t.timestamp()), 1) for key, t in rows})

    def files(self, hand: Hand) -> set[str]:
        assert self.place.kafka is not None
        return {str(offset) for offset in range(self.place.kafka.end(OUT))}

    def rows(self, hand: Hand) -> list[tuple[str, *Window]]:
        assert self.place.kafka is not None
        rows = [json.loads(row.value) for row in self.place.kafka.rows(OUT)]
        times = [int(datetime.fromisoformat(row["t"]).timestamp()) for row in rows]
        return [(str(offset), row["key"], t, 1) for offset, (row, t) in enumerate(zip(rows, times, strict=True))]

    def found(self, written: list[tuple[str, *Window]]) -> Counter[Window]:
        return Counter({*super().found(written)})


JOBS: Final = {"realtime": RealTime, "classic": Job, "spark35": Job, "connect": Connect, "pipeline": Pipeline}
