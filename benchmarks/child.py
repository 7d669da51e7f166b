"""Server processes: started, waited for, and never left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE = 1024

PROCESSOR = 2
"""Which clock of a process counts the processor time that the scheduler gave it; see
clock_getcpuclockid(3)."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    address: str
    pid: int
    page: str = ""
    """URL of the status page; "off" without."""

    def resident_bytes(self) -> int | None:
        """Return the memory that the process holds; None where /proc does not tell."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        return next(int(line.split()[1]) * PAGE for line in lines if line.startswith("VmRSS:"))

    def processor_seconds(self) -> float | None:
        """Return the processor time of the process in seconds, to the microsecond.

        None where there is no such clock.
        """
        if sys.platform != "linux":
            return None
        return time.clock_gettime(~self.pid << 3 | PROCESSOR)


_MANY: Final = 1_000_000
UNLIMITED: Final = tuple(f"--limit={name}={_MANY}" for name in ("computations", "all_computations", "calls_per_second"))
"""Flags of an authority whose limits no benchmark reaches."""


@contextmanager
def authority(data: Path, http: str = "off", page: str = "off") -> Iterator[Server]:
    """Run ``lowwater serve`` with its journal in ``data``.

    ``page`` is the address at which a process beside it serves the page.
    """
    code = "from lowwater_authority.serve import main; raise SystemExit(main())"
    arguments = ["--data", str(data), "--listen", "127.0.0.1:0", "--http", http, "--page", page, *UNLIMITED]
    with _running([sys.executable, "-c", code, *arguments], data) as (process, line):
        # lowwater: serving on HOST:PORT (page URL, metrics URL)
        words = line.split()
        yield Server(words[3], process.pid, words[5].rstrip(","))


@contextmanager
def bare(data: Path, ranges: int) -> Iterator[Server]:
    """Run the baselines over gRPC (:mod:`benchmarks.bare`)."""
    with _running([sys.executable, "-m", "benchmarks.bare", str(ranges)], data) as (process, line):
        yield Server(f"127.0.0.1:{line.strip()}", process.pid)


class Companion:
    """A process of a benchmark that gets commands, a word a line, and answers each with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()  # that it is ready

    def say(self, word: str) -> str:
        """Tell it something and return the answer. Raises RuntimeError when it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            msg = f"{self._process.args!r} ended"
            raise RuntimeError(msg)
        return answer


@contextmanager
def companion(module: str, *arguments: object) -> Iterator[Companion]:
    """Run a module beside the benchmark, which shares no event loop and no interpreter with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    try:
        yield Companion(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process and wait for its first line.

    It is killed in the end: its data is thrown away anyhow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parent.parent
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=root)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                msg = f"{' '.join(command[:3])} ended before it served: {errors.read()[-2000:]}"
                raise RuntimeError(msg)
            yield process, line
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
