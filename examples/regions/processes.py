"""Processes of a region, which are killed by SIGKILL and started again over the same files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

from examples.regions.setup import CLICKS, MIRRORED, READY, Place
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka
from tests.kit.ports import free_port

SERVING: Final = "serving on"
LOWWATER: Final = str(Path(sysconfig.get_path("scripts")) / "lowwater")

AUTHORITY, AGENT, MIRROR, COMMITTER, SPARK = "authority", "agent", "mirror", "committer", "spark"


class Part:
    """A process with its children, as Spark's JVM, and its log."""

    def __init__(self, log: Path, command: Iterable[str], ready: str) -> None:
        self._path, self._command, self._ready = log, list(command), ready
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0

    def begin(self) -> None:
        """Start it, and return at once."""
        with self._path.open("ab") as log:
            self._begins = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        """Return when it says that it is ready."""
        eventually(
            lambda: self._ready in self.log(), f"{self._path.name}: {self._ready}", check=self.check, seen=self.log
        )

    def log(self) -> str:
        """Return its output since its start."""
        return self._path.read_bytes()[self._begins :].decode(errors="replace")

    def check(self) -> None:
        """Raise RuntimeError when it has failed. A mirror ends where nothing more can come."""
        process = self._process
        if process is not None and process.poll() and process is self._process:  # not killed
            raise RuntimeError(f"{self._path} has ended with {process.returncode}:\n{self.log()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Region:
    """All processes of a region."""

    def __init__(self, name: str, folder: Path, center: str, setup: Path, config: str, every: str) -> None:
        self.name = name
        folder.mkdir(parents=True)
        self.redis = RedisServer(folder / "redis", *DURABLE)
        self.kafka = Kafka(folder / "kafka")
        authority, agent = f"127.0.0.1:{free_port()}", f"unix:{folder / 'agent.socket'}"
        self.place = Place(folder, authority, agent, self.kafka.address, self.kafka.cluster)
        (folder / "region.toml").write_text(config, "utf-8")
        serve = ("serve", "--store", self.redis.url, "--listen", authority, "--advertise", authority, "--http", "off")
        speak = ["region", "--name", name, "--authority", authority, "--global", center, "--listen", agent]
        speak += ["--config", str(folder / "region.toml"), "--state", str(folder / "state"), "--every", every]
        own = {part: (sys.executable, "-m", f"examples.regions.{module}", str(setup), name) for part, module in _OWN}
        self.parts = {
            AUTHORITY: Part(folder / "authority.log", (LOWWATER, *serve), SERVING),
            AGENT: Part(folder / "agent.log", (LOWWATER, *speak), SERVING),
            **{part: Part(folder / f"{part}.log", command, READY) for part, command in own.items()},
        }

    def start(self) -> None:
        """Start everything for the first time, but for Spark return when it is ready."""
        self.redis.start()
        self.parts[AUTHORITY].begin()
        self.kafka.__enter__()
        for topic in (CLICKS, MIRRORED):
            self.kafka.create(topic)
        self.parts[AUTHORITY].wait()
        self._begin_others()

    def start_again(self) -> None:
        """Start everything over the same files."""
        self.redis.start()
        self.parts[AUTHORITY].begin()
        self.kafka.brokers[0].start()
        self.parts[AUTHORITY].wait()
        self._begin_others()

    def _begin_others(self) -> None:
        for part in (SPARK, AGENT, MIRROR, COMMITTER):
            self.parts[part].begin()

    def wait(self) -> None:
        """Return when everything works."""
        for part in self.parts.values():
            part.wait()

    def kill(self) -> None:
        """Kill -9 of everything, at once as far as a program can."""
        everything: list[Callable[[], None]] = [part.kill for part in self.parts.values()]
        everything += [self.redis.kill, self.kafka.brokers[0].kill]
        together(everything)

    def check(self) -> None:
        """Raise RuntimeError when a part has ended by itself."""
        for part in self.parts.values():
            part.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def together(what: Iterable[Callable[[], None]]) -> None:
    """Do it all at once, each on a thread; raise the first failure."""
    failures: list[BaseException] = []

    def one(do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as failure:  # noqa: BLE001  # it is raised below
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(argument,)) for argument in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


_OWN: Final = ((SPARK, "pipeline"), (MIRROR, "mirror"), (COMMITTER, "committer"))
