"""The processes that are killed by SIGKILL and started again: driver, authority and broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final, Self

from examples.billing.driver import READY, checkpoint
from tests.kit.ports import free_port
from tests.kit.program import Program

MOST: Final = 2.5
"""Seconds after a batch was planned within which something is killed."""
DRIVER, AUTHORITY, BROKER = "driver", "authority", "broker"


class Authority(Program):
    """``lowwater serve``, which is found at the same port again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.address = f"127.0.0.1:{free_port()}"

    def start(self) -> Self:
        """Run it, and return when it serves."""
        command = [str(Path(sysconfig.get_path("scripts")) / "lowwater"), "serve", "--data", str(self.directory)]
        command += ["--listen", self.address, "--http", "127.0.0.1:0"]
        return self.run(command, "lowwater: serving on")


class Driver:
    """The driver, which is a group of processes: Python, and Spark's JVM."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "driver.log"
        self._command = [sys.executable, "-m", "examples.billing.driver", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0
        """Where its log begins of this start."""
        self.ended = 0
        """Number of times that the process ended by itself."""

    def start(self) -> None:
        """Begin, or go on from the checkpoints."""
        with self._log.open("ab") as log:
            self._begins = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        """True once its queries have begun."""
        return READY.encode() in self._log.read_bytes()[self._begins :]

    def keep(self) -> None:
        """Start it again when it has ended by itself, as who runs one does."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
            self.ended += 1
            self.start()

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def planned(folder: Path, query: str) -> int:
    """Return how many batches a query has planned."""
    return _entries(folder, query, "offsets")


def within_a_batch(folder: Path, query: str) -> bool:
    """Return whether a query has planned a batch that it has not committed."""
    return _entries(folder, query, "commits") < planned(folder, query)


def _entries(folder: Path, query: str, log: str) -> int:
    numbers = [int(path.name) for path in (checkpoint(folder, query) / log).glob("[0-9]*")]
    return max(numbers, default=-1) + 1
