"""A program that a test runs to its end, and a real server of somebody else's, known by what it writes to its log."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Self

from scripts.jars import jars

STARTS_WITHIN = 120.0
"""Seconds. A busy machine takes long to start a JVM."""


def java_program() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else "java"


def java(jar_set: str, *arguments: str) -> list[str]:
    path = os.pathsep.join(str(jar) for jar in jars(jar_set))
    # Optimising what it runs would cost more than it saves.
    return [java_program(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, *arguments]


def run_program(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with whatever exit code, and read what it writes."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)


def is_running(pid: int) -> bool:
    """Return True if a process has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Program:
    """One process, started by ``run``. It survives ``kill`` as a directory, from which it may be run again.

    ``with Program(...) as program`` kills it at the end; it does not start it.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._lines: deque[str] = deque(maxlen=200)
        self._changed = Condition()
        self._ended = False
        self._process: subprocess.Popen[str] | None = None
        self.starts = 0
        """The number of times that the program was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def launch(self, command: Sequence[str]) -> None:
        self._lines.clear()
        self._ended = False
        self.starts += 1
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def run(self, command: Sequence[str], ready: str) -> Self:
        self.launch(command)
        try:
            self.wait_for(ready)
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP; returns when it is stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_for(self, words: str) -> None:
        """Return when a line with these words was, or is, written to its log. Fails when it has ended without."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_written(words) or self._ended, STARTS_WITHIN)
            written = self._has_written(words)
        assert written, f"never said {words!r}:\n" + "".join(self._lines)

    def said(self, words: str) -> list[str]:
        with self._changed:
            return [line for line in self._lines if words in line]

    def _has_written(self, words: str) -> bool:
        return any(words in line for line in self._lines)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
