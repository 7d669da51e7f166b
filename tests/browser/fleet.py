"""A pipeline of plain Python workers for the page to show: flights and what is made of them, by executors on several hosts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import lowwater
from lowwater._sync.client import Client
from lowwater.core.settings import Settings
from lowwater.core.surroundings import REAL

TICK_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Job:
    name: str
    inputs: tuple[str, ...] = ()
    executors: tuple[str, ...] = ("exec-1",)
    """Its ranges are dealt out to these in turn, an equal stretch of keys to each."""
    bounds: tuple[bytes, ...] = (b"", b"")
    behind: float = 1.0
    """Seconds that each of its ranges is behind what it could have done."""
    stuck: Mapping[int, float] = field(default_factory=dict)
    """Ranges that do not move, by index: how many seconds they were behind when they began."""

    def share(self, executor: str) -> tuple[int, int]:
        ranges, number = len(self.bounds) - 1, self.executors.index(executor)
        return ranges * number // len(self.executors), ranges * (number + 1) // len(self.executors)


def even(count: int) -> tuple[bytes, ...]:
    return (b"", *((i * 65536 // count).to_bytes(2, "big") for i in range(1, count)), b"")


EXECUTORS: Final = tuple(f"exec-{number}" for number in range(1, 9))
ORIGINS: Final = (b"", b"JFK", b"LGA", b"")
MINUTES: Final = 60.0

PIPELINE: Final = (
    Job("flights", executors=("ingest-1", "ingest-2", "ingest-3"), bounds=ORIGINS, behind=2),
    Job("weather", executors=("ingest-1",), behind=20),
    Job("carriers", executors=("ingest-2",), behind=5),
    Job("enriched", ("flights", "weather", "carriers"), EXECUTORS, even(64), behind=6),
    Job("hourly", ("enriched",), EXECUTORS[:3], ORIGINS, behind=3),
    Job("routes", ("enriched",), EXECUTORS[3:5], even(16), behind=8),
    Job("delays", ("enriched",), EXECUTORS[5:7], even(8), behind=2),
    Job("storms", ("weather",), ("exec-8",), even(4), behind=30),
    Job("daily", ("hourly",), ("exec-1",), ORIGINS, behind=4),
    Job("alerts", ("delays", "storms"), ("exec-8",), even(4), behind=1),
    Job("report", ("daily", "routes"), ("exec-2",), behind=2),
    Job("archive", ("flights",), ("exec-4",), even(8), behind=15 * MINUTES),
)
"""Twelve computations, all in time."""

GUILTY: Final = "exec-7"


def late() -> tuple[Job, ...]:
    """The same, with one range of *enriched* far behind, which ``GUILTY`` works on."""
    enriched = next(job for job in PIPELINE if job.name == "enriched")
    first, _ = enriched.share(GUILTY)
    return tuple(replace(job, stuck={first + 2: 41 * MINUTES}) if job is enriched else job for job in PIPELINE)


def register(lw: lowwater.Client, pipeline: Sequence[Job]) -> None:
    for job in pipeline:
        lw.register(job.name, inputs=job.inputs)


def host(executor: str) -> str:
    """Where an executor runs: two to a machine."""
    kind, _, number = executor.partition("-")
    return f"{'node' if kind == 'exec' else 'edge'}-{(int(number) + 1) // 2}"


def client(address: str, executor: str) -> Client:
    return Client(Settings(address=address), surroundings=replace(REAL, host=lambda: host(executor)))


class Working:
    def __init__(self, lw: Client, job: Job, executor: str) -> None:
        first, last = job.share(executor)
        self._job = job
        self._worker = lw.worker(job.name, name=executor)
        self._lease = self._worker.claim(bounds=job.bounds[first : last + 1])
        began = time.time()
        self._stuck = {i - first: began - seconds for i, seconds in job.stuck.items() if first <= i < last}

    def turn(self) -> None:
        inputs = self._worker.inputs() if self._job.inputs else None
        now = time.time()
        working_on = _micros(now - self._job.behind)
        oldest = [working_on] * (len(self._lease.bounds) - 1)
        for handle, stuck in self._stuck.items():
            oldest[handle] = _micros(stuck)
        frontier = None if self._job.inputs else working_on
        self._lease.advance(inputs, oldest=oldest, frontier=frontier, pending=[min(oldest)], finished=200)


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)


def work(address: str, executor: str, pipeline: Sequence[Job]) -> None:
    with client(address, executor) as lw:
        working = [Working(lw, job, executor) for job in pipeline if executor in job.executors]
        print("working", flush=True)
        while True:
            for worker in working:
                worker.turn()
            threading.Event().wait(TICK_SECONDS)


class Fleet:
    def __init__(self, address: str, pipeline: str) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        jobs = PIPELINES[pipeline]
        with lowwater.connect(address) as lw:
            register(lw, jobs)
        for executor in sorted({executor for job in jobs for executor in job.executors}):
            command = [sys.executable, "-m", "tests.browser.fleet", address, executor, pipeline]
            self._processes[executor] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        for executor, process in self._processes.items():
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n", f"{executor} did not start"

    def freeze(self, executor: str) -> None:
        self._processes[executor].send_signal(signal.SIGSTOP)

    def thaw(self, executor: str) -> None:
        self._processes[executor].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


SMALL: Final = (
    Job("flights", executors=("ingest-1",), bounds=ORIGINS),
    Job("enriched", ("flights",), ("exec-6", GUILTY), even(8)),
    Job("hourly", ("enriched",), ("exec-6",), ORIGINS),
)


PIPELINES: Final[Mapping[str, Sequence[Job]]] = {"late": late(), "small": SMALL}
"""The jobs of each pipeline, by the name that an executor is started with."""


@contextlib.contextmanager
def fleet(address: str, pipeline: str) -> Iterator[Fleet]:
    running = Fleet(address, pipeline)
    try:
        running.ready()
        yield running
    finally:
        running.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], PIPELINES[sys.argv[3]])
