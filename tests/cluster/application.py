"""Programs that are killed with all that they have started, and run again: an application on the cluster is one, submitted in client mode with the code it needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.shipping import ENVIRONMENT, Shipped
from tests.cluster.standalone import SPARK_HOME, Standalone
from tests.kit.eventually import eventually
from tests.spark.support import LIGHT

CONF: Mapping[str, str] = {
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.executorEnv.PYTHONPATH": ENVIRONMENT,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The tests read all logs afterwards.
    "spark.sql.streaming.minBatchesToRetain": "100000",
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
    # Executors are killed on purpose.
    "spark.task.maxFailures": "20",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


class Group:
    def __init__(self, log: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log = log

    def run(self, command: Sequence[str], environ: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        assert self.process is None
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environ, stdout=out, stderr=out, start_new_session=True
            )

    def check(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            msg = f"{self.log.stem} has ended with {self.process.returncode}:\n{self.tail()}"
            raise RuntimeError(msg)

    def wait(self, seconds: float = 120.0) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        code = process.wait(seconds)
        eventually(lambda: not _group_lives(process.pid), "the whole group is gone")
        return code

    def kill(self) -> int | None:
        if self.process is None:
            return None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself
        return self.wait()

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


class Application(Group):
    """A driver in Python on the cluster; the process of the driver, with the JVM, is the group."""

    def __init__(self, cluster: Standalone, shipped: Shipped, folder: Path, program: Path) -> None:
        super().__init__(folder / "driver.log")
        self.cluster = cluster
        self.shipped = shipped
        self.program = program
        self.events = folder / "events"
        self.events.mkdir(parents=True)

    def start(self, arguments: Mapping[str, Any], conf: Mapping[str, str], *submit: str) -> None:
        shipped = self.shipped
        config = {**CONF, "spark.pyspark.python": shipped.python, "spark.eventLog.dir": f"file://{self.events}", **conf}
        command = [f"{SPARK_HOME}/bin/spark-submit", "--master", self.cluster.url]
        command += ["--archives", f"{shipped.archive}#{ENVIRONMENT}", "--py-files", str(shipped.code), *submit]
        command += [part for name, value in config.items() for part in ("--conf", f"{name}={value}")]
        environ = environ_without_spark()
        # In client mode Spark unpacks the archive for the driver as well, but not before the driver imports from it.
        environ |= {"PYTHONPATH": str(shipped.site), "SPARK_LOCAL_DIRS": str(self.cluster.folder / "local")}
        self.run([*command, str(self.program), json.dumps(arguments)], environ, shipped.site.parent)


def environ_without_spark() -> dict[str, str]:
    """Return this process's environment without what leads to its own Spark or authority."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "LOWWATER"))}


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
