"""A real standalone Spark cluster: a master, and a worker on each of one or two loopback addresses, which are as many hosts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from tests.kit.eventually import eventually

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
"""A speculative copy is never put on the host of the attempt that it copies."""

SPARK_HOME: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

_SERVING: Final = re.compile(r"Starting Spark master at (spark://\S+?:\d+)")
_REGISTERED: Final = re.compile(r"Registering worker (\d+\.\d+\.\d+\.\d+):")


class Standalone:
    """Spark's own classes, in processes of their own, in an environment in which nothing leads to the source tree."""

    def __init__(self, folder: Path, hosts: Sequence[str] = HOSTS, *, cores: int = 2, memory: str = "1g") -> None:
        self.folder = folder
        self.hosts = hosts
        self.sizes = ["--cores", str(cores), "--memory", memory]
        """Of each worker."""
        self.url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The master as "", workers by host."""

    def __enter__(self) -> Self:
        for name in ("empty", "local", "work"):
            (self.folder / name).mkdir(parents=True)
        arguments = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        self._start("", MASTER, *arguments)
        self.url = eventually(lambda: self._found(_SERVING), "the master serves")[0]
        for host in self.hosts:
            self.start_worker(host)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            if host in self._processes:
                self.kill_worker(host)
        master = self._processes.get("")
        if master is not None:
            master.kill()
            master.wait(30)
        for pid in self.executors():
            _kill(pid)

    def start_worker(self, host: str) -> None:
        """Start the worker of a host and wait until the master knows it."""
        before = self.registrations(host)
        work = ["--work-dir", str(self.folder / "work")]
        self._start(host, WORKER, "--host", host, "--port", "0", "--webui-port", "0", *self.sizes, *work, self.url)
        eventually(lambda: self.registrations(host) > before, f"the worker of {host} is registered")

    def kill_worker(self, host: str) -> int:
        """Kill -9 the worker of a host; its executors notice and end. Returns its exit code."""
        worker = self._processes.pop(host)
        worker.kill()
        return worker.wait(30)

    def registrations(self, host: str) -> int:
        """How many workers of a host the master has known."""
        return self._found(_REGISTERED).count(host)

    def executors(self, application: str = "") -> list[int]:
        """The pids of the living executors of this cluster, or of one application."""
        found = []
        work = os.fsencode(self.folder / "work" / application)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    if EXECUTOR.encode() in (process / "cmdline").read_bytes() and os.fsencode(
                        (process / "cwd").readlink()
                    ).startswith(work):
                        found.append(int(process.name))
                except OSError:
                    continue  # it has ended, or is none of ours
        return found

    def _found(self, pattern: re.Pattern[str]) -> list[str]:
        return pattern.findall((self.folder / "master.log").read_text(encoding="utf-8", errors="replace"))

    def _start(self, name: str, main: str, *arguments: str) -> None:
        log = self.folder / (f"worker-{name}.log" if name else "master.log")
        with log.open("ab") as out:
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
