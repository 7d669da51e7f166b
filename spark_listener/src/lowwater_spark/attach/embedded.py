"""An authority of the driver's own: a child process that ends with it, however the driver ends."""

from __future__ import annotations

import importlib.util
import os
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
"""Seconds that it may take to serve."""

STOP: Final = 10.0
"""Seconds that it may take to stop in order."""

_READY: Final = "lowwater: serving on "
_LOG: Final = "authority.log"
_LINES: Final = 5
"""Last lines of its log that an error shows."""


class Embedded:
    """A running authority over a folder of its own, on a free port of the loopback interface.

    Its standard input is a pipe that only this process holds the other end of. When that closes, by
    :meth:`release` or because this process is gone, the authority stops.
    """

    def __init__(self, data: Path | None) -> None:
        self.temporary = data is None
        """Whether its folder goes when it does."""
        self.data = Path(tempfile.mkdtemp(prefix="lowwater-")) if data is None else data
        make_private_folder(self.data)
        self._users = 0
        command = [sys.executable, "-m", "lowwater_spark.attach.embedded_child", str(self.data)]
        command += ["--temporary"] if self.temporary else []
        # What this process can import, the child can, too.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with open_private(self.data / _LOG, "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
                start_new_session=True,  # a notebook's interrupt is not meant for it
            )
        self.address = self._ready()

    def _ready(self) -> str:
        """Return where it serves.

        Raises RuntimeError, with the end of its log, when it does not.
        """
        assert self.process.stdout is not None
        late = threading.Timer(START, self.process.kill)
        late.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        if line.startswith(_READY):
            return line.removeprefix(_READY).split()[0]
        log = (self.data / _LOG).read_text(encoding="utf-8", errors="replace") if (self.data / _LOG).exists() else ""
        self._end()
        if self.temporary:
            shutil.rmtree(self.data, ignore_errors=True)
        told = "\n".join(log.splitlines()[-_LINES:]) or "it said nothing"
        msg = f"the embedded authority did not start over {self.data}:\n{told}\nName another folder, or the address of an authority."
        raise RuntimeError(msg)

    @property
    def ended(self) -> bool:
        """Whether the process is gone, though it is still used."""
        return self.process.poll() is not None

    def use(self) -> None:
        """Count one more user."""
        self._users += 1

    def release(self) -> None:
        """Count one user less; after the last one it stops.

        Waits for that :data:`STOP` seconds at most.
        """
        with _lock:
            self._users -= 1
            if self._users:
                return
            key = _key(None if self.temporary else self.data)
            if _running.get(key) is self:  # when this one has died, the next user has started another
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
"""By folder; all sessions of a process share the one over a temporary folder."""


def _key(data: Path | None) -> str:
    return "" if data is None else str(data.resolve())


def acquire(data: Path | None) -> Embedded:
    """Return the authority over a folder, None for a temporary one; starts it unless it runs.

    Call ``release`` when done.

    Raises ModuleNotFoundError when the authority is not installed, RuntimeError when it does not
    start.
    """
    if importlib.util.find_spec("lowwater_authority") is None:
        msg = (
            "attach() without an address starts an authority of its own, and lowwater-authority is not installed: "
            "'pip install --find-links dist/packages lowwater-authority', with the folder that 'make dist' leaves in a checkout of lowwater. Or pass "
            "the address of an authority."
        )
        raise ModuleNotFoundError(msg, name="lowwater_authority")
    with _lock:
        found = _running.get(_key(data))
        if found is None or found.ended:
            found = _running[_key(data)] = Embedded(data)
        found.use()
        return found
