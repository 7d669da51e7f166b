"""A job of somebody else's in Scala, and the sidecar that tracks it from beside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster.application import Group, environ_without_spark
from tests.cluster.output import Output
from tests.cluster.standalone import SPARK_HOME
from tests.kit.program import java_program
from tests.spark.support import LIGHT

SOURCE: Final = Path(__file__).with_name("Copy.scala")

CONF: Final[Mapping[str, str]] = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.streaming.pollingDelay": "300ms",
    # The tests read all logs afterwards.
    "spark.sql.streaming.minBatchesToRetain": "100000",
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}


def compiled(folder: Path) -> Path:
    """Compile it with the compiler that Spark's own shell has; about 3 s of a core. Returns the jar."""
    jar = folder / "copy.jar"
    command = [java_program(), "-XX:TieredStopAtLevel=1", "-cp", f"{SPARK_HOME}/jars/*", "scala.tools.nsc.Main"]
    subprocess.run([*command, "-usejavacp", "-d", str(jar), str(SOURCE)], check=True)
    return jar


class Copying(Group):
    """The job: it copies a topic into files by Spark's own sink. It knows nothing of lowwater, and nothing of lowwater runs in it."""

    def __init__(self, folder: Path, jar: Path, brokers: str, topic: str, classpath: str) -> None:
        super().__init__(folder / "copy.log")
        self.output = Output(folder / "copied", folder / "copied-ck")
        settings = {**CONF, "spark.driver.extraClassPath": classpath}
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self._command = [f"{SPARK_HOME}/bin/spark-submit", "--master", "local[2]", "--class", "Copy", *conf, str(jar)]
        self._command += [brokers, topic, str(self.output.folder), str(self.output.checkpoint)]
        self._local = folder / "copy-local"
        self._local.mkdir()

    def start(self) -> None:
        self.run(self._command, environ_without_spark() | {"SPARK_LOCAL_DIRS": str(self._local)}, self._local)


class Beside(Group):
    """``lowwater-spark track`` for the job, as the computation ``copied``."""

    def __init__(self, folder: Path, job: Copying, brokers: str, topic: str, classpath: str, address: str) -> None:
        super().__init__(folder / "sidecar.log")
        query = {
            "name": "copied",
            "checkpoint": str(job.output.checkpoint),
            "inputs": [topic],
            "output": str(job.output.folder),
            # The job begins at the same time: its first batch may be planned before the sidecar has looked.
            "promises": ["nothing-skipped", "sink-visible-before-commit", "history"],
        }
        options = {
            "kafka.bootstrap.servers": brokers,
            "kafka.isolation.level": "read_committed",
            "lowwater.brokers": str(brokers.count(",") + 1),
            "lowwater.head": "marks",
        }
        declared = folder / "queries.toml"
        # The values of TOML that are needed here are written as in JSON.
        lines = ["[[query]]", *(f"{key} = {json.dumps(value)}" for key, value in query.items())]
        lines += ["[[query.sources]]", 'kind = "kafka"', f"topics = {json.dumps([topic])}", "[query.sources.options]"]
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in options.items()]
        declared.write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = {
            "spark.driver.extraClassPath": classpath,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": LIGHT,
            "spark.driver.host": "127.0.0.1",
        }
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self._command = [sys.executable, "-m", "lowwater_spark.sidecar.command", "track", str(declared), *conf]
        self._command += ["--state", str(folder / "sidecar"), "--address", address]

    def start(self) -> None:
        self.run(self._command, dict(os.environ))
