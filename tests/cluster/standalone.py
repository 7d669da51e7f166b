"""A real standalone Spark cluster: a master and a worker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final, Self

import pyspark

from tests.kit.eventually import eventually

HOST: Final = "127.0.0.1"
SPARK_HOME: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

_SERVING: Final = re.compile(r"Starting Spark master at (spark://\S+?:\d+)")
_REGISTERED: Final = re.compile(r"Registering worker \d+\.\d+\.\d+\.\d+:")


class Standalone:
    def __init__(self, folder: Path, *, cores: int = 2, memory: str = "1g") -> None:
        self.folder = folder
        self.sizes = ["--cores", str(cores), "--memory", memory]
        """The worker's options for its size."""
        self.url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """Master and worker by name."""

    def __enter__(self) -> Self:
        for name in ("empty", "local", "work"):
            (self.folder / name).mkdir(parents=True)
        place = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        self._start("master", MASTER, *place)
        self.url = eventually(lambda: self._matches(_SERVING), "the master serves")[0]
        self._start("worker", WORKER, *place, *self.sizes, "--work-dir", str(self.folder / "work"), self.url)
        eventually(lambda: self._matches(_REGISTERED), "the worker is registered")
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)
        for pid in self.executors():
            _kill(pid)

    def executors(self, application: str = "") -> list[int]:
        pids = []
        work = os.fsencode(self.folder / "work" / application)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    if EXECUTOR.encode() in (process / "cmdline").read_bytes() and os.fsencode(
                        (process / "cwd").readlink()
                    ).startswith(work):
                        pids.append(int(process.name))
                except OSError:
                    continue  # it has ended, or is none of ours
        return pids

    def _matches(self, pattern: re.Pattern[str]) -> list[str]:
        return pattern.findall((self.folder / "master.log").read_text(encoding="utf-8", errors="replace"))

    def _start(self, name: str, main: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [f"{SPARK_HOME}/bin/spark-class", main, *arguments],  # it becomes the JVM: the pid stays
                cwd=self.folder,
                env=self._environ(),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "JAVA_HOME": os.environ.get("JAVA_HOME") or _java_home(),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.folder / "empty"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            # An application whose executors are killed again and again goes on.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }


def _java_home() -> str:
    java = shutil.which("java")
    assert java is not None, "the tests need a Java; scripts/setup.sh finds or brings one"
    return str(Path(java).resolve().parents[1])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself
