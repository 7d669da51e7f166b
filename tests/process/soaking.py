"""The soak beside everything else: a process of its own that gives way to all others, and that ends with whoever started it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, Self

NICE: Final = 10
"""Next to busy tests it gets a tenth of each processor; much less, and it would not do enough to be judged by."""

DEAD_AFTER: Final = 20.0
"""Seconds: shards that are kept from the processor are not dead."""

ENDS_WITHIN: Final = 30.0
"""Seconds for its processes to be killed, by a process that gives way to all others."""

ROOT: Final = Path(__file__).parents[2]


class Soaking:
    """A soak under way, from :meth:`start` on. It never leaves anything running: :meth:`stop` it, or end in any way whatever."""

    def __init__(self, seconds: float, ranges: int) -> None:
        self._arguments = ["--seconds", str(seconds), "--ranges", str(ranges), "--dead-after", str(DEAD_AFTER)]
        self._folder = tempfile.TemporaryDirectory(prefix="lowwater-soak-")
        self.folder = Path(self._folder.name)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, unless it was."""
        if self._process is not None:
            return self
        command = [sys.executable, "-m", __name__, *self._arguments, "--data", str(self.folder)]
        with (
            (self.folder / "stdout").open("wb") as output,
            (self.folder / "stderr").open("wb") as errors,
            (self.folder / "running").open("wb") as running,
        ):
            # The lock ends with the last process that has this file open: the soak.
            fcntl.flock(running, fcntl.LOCK_EX)
            # It ends when this pipe does: also when whoever holds the other end is killed.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd=ROOT, pass_fds=[running.fileno()]
            )
        return self

    def stop(self) -> None:
        """End it, if it has not ended, with all that it started."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(ENDS_WITHIN)
            finally:
                self._process.kill()
                self._process.wait()
                self._process = None
        self._folder.cleanup()


def result(folder: Path) -> dict[str, Any]:
    """Wait for the end of the soak that was started with a folder, by whatever process; returns its line.

    Raises AssertionError, with what it said, when there is none.
    """
    with (folder / "running").open("rb") as running:
        fcntl.flock(running, fcntl.LOCK_SH)
    lines = (folder / "stdout").read_text().splitlines()
    assert len(lines) == 1, f"the soak said:\n{(folder / 'stderr').read_text()}"
    found: dict[str, Any] = json.loads(lines[0])
    return found


def main() -> int:
    """Soak, until it is over or nobody waits for it any more."""
    from benchmarks import soak

    os.nice(NICE)

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return soak.main()


if __name__ == "__main__":
    sys.exit(main())
