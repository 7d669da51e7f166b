"""An application on the cluster: submitted in client mode, with the code it needs, and killed or restarted by whoever tests it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
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
    # A task fails many times on purpose, and may be copied when it hangs.
    "spark.task.maxFailures": "20",
    "spark.speculation": "true",
    "spark.speculation.interval": "250ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "3",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


class Application:
    """One program, run again and again: the process of its driver, with the JVM, is a group of its own."""

    def __init__(self, cluster: Standalone, shipped: Shipped, folder: Path, program: Path) -> None:
        self.cluster = cluster
        self.shipped = shipped
        self.folder = folder
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "driver.log"
        self.events = folder / "events"
        self.events.mkdir()

    def start(self, arguments: Mapping[str, Any], conf: Mapping[str, str], *submit: str) -> None:
        """Submit it. ``conf`` are its settings beside :data:`CONF`; ``submit`` further arguments of spark-submit."""
        assert self.process is None
        shipped = self.shipped
        settings = {
            **CONF,
            "spark.pyspark.python": shipped.python,
            "spark.eventLog.dir": f"file://{self.events}",
            **conf,
        }
        command = [f"{SPARK_HOME}/bin/spark-submit", "--master", self.cluster.url]
        command += ["--archives", f"{shipped.archive}#{ENVIRONMENT}", "--py-files", str(shipped.code), *submit]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "LOWWATER"))
        }
        # In client mode Spark unpacks the archive for the driver as well, but not before the driver imports from it.
        environ |= {"PYTHONPATH": str(shipped.site), "SPARK_LOCAL_DIRS": str(self.cluster.folder / "local")}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, str(self.program), json.dumps(arguments)],
                cwd=shipped.site.parent,
                env=environ,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise RuntimeError when the driver has ended without being told to."""
        if self.process is not None and self.process.poll() is not None:
            msg = f"the driver has ended with {self.process.returncode}:\n{self.tail()}"
            raise RuntimeError(msg)

    def wait(self, seconds: float = 120.0) -> int:
        """Wait until the driver, its JVM and their children are gone; returns the exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        code = process.wait(seconds)
        eventually(lambda: not _group_lives(process.pid), "the driver's whole group is gone")
        return code

    def kill(self) -> None:
        """Kill -9 everything of the driver's machine."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            self.wait()

    def tail(self) -> str:
        """The end of the driver's log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
