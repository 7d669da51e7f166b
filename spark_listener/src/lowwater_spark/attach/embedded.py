"""An authority of the driver: a child process that ends with it, however the driver ends."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from lowwater.core.private import make_private_folder, open_private

__all__ = ["Embedded", "acquire"]

START: Final = 30.0
"""Longest time until it serves, seconds."""

STOP: Final = 15.0
"""Longest time for an orderly stop, seconds."""

_READY: Final = re.compile(r"lowwater: serving on (\S+) \(page (\S+), ")
_LOG: Final = "authority.log"
_LINES: Final = 5
"""Number of last lines of its log that an error shows."""


class Embedded:
    """A running authority over a folder of its own, on a free port of the loopback interface.

    Only this process holds the other end of its standard input, a pipe. When the pipe closes, by
    :meth:`release` or because this process is gone, the authority stops.
    """

    def __init__(self, data: Path | None) -> None:
        self.temporary = data is None
        """True if its folder is removed with it."""
        self.data = Path(tempfile.mkdtemp(prefix="lowwater-")) if data is None else data
        make_private_folder(self.data)
        self._users = 0
        command = [sys.executable, "-m", "lowwater_spark.attach.embedded_child", str(self.data)]
        command += ["--temporary"] if self.temporary else []
        # The child gets this process's import path.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with open_private(self.data / _LOG, "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
                start_new_session=True,  # a notebook's interrupt must not stop it
            )
        self.address: str
        self.page: str
        """URL of its status page; empty when lowwater-page is not installed."""
        self.address, self.page = self._ready()

    def _ready(self) -> tuple[str, str]:
        """Return its address and page, or raise RuntimeError with the end of its log."""
        assert self.process.stdout is not None
        late = threading.Timer(START, self.process.kill)
        late.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        match = _READY.match(line)
        if match is not None:
            return match[1], "" if match[2] == "off" else match[2]
        log = (self.data / _LOG).read_text(encoding="utf-8", errors="replace") if (self.data / _LOG).exists() else ""
        self._end()
        if self.temporary:
            shutil.rmtree(self.data, ignore_errors=True)
        excerpt = "\n".join(log.splitlines()[-_LINES:]) or "it said nothing"
        msg = f"the embedded authority did not start over {self.data}:\n{excerpt}\nName another folder, or the address of an authority."
        raise RuntimeError(msg)

    @property
    def ended(self) -> bool:
        """True when the process is gone, though it is still used."""
        return self.process.poll() is not None

    def use(self) -> None:
        """Add a user."""
        self._users += 1

    def release(self) -> None:
        """Remove a user, and stop after the last one. Waits at most :data:`STOP` seconds."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            key = _key(None if self.temporary else self.data)
            if _running.get(key) is self:  # after it died, the next user has started another one
                del _running[key]
        self._end()

    def _end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_running: dict[str, Embedded] = {}
"""Authorities by folder; all sessions of a process share the one over a temporary folder."""


def _key(data: Path | None) -> str:
    return "" if data is None else str(data.resolve())


def acquire(data: Path | None) -> Embedded:
    """Return the authority over a folder, None for a temporary one; start it if needed.

    Call ``release`` when done. Raises ModuleNotFoundError when the authority is not installed,
    RuntimeError when it does not start.
    """
    if importlib.util.find_spec("lowwater_authority") is None:
        msg = (
            "attach() without an address starts an authority of its own, and lowwater-authority is not installed: "
            "'pip install --find-links dist/packages lowwater-authority', with the folder that 'make dist' leaves in a checkout of lowwater. Or pass "
            "the address of an authority."
        )
        raise ModuleNotFoundError(msg, name="lowwater_authority")
    with _lock:
        embedded = _running.get(_key(data))
        if embedded is None or embedded.ended:
            embedded = _running[_key(data)] = Embedded(data)
        embedded.use()
        return embedded
