"""Cost of a thundering herd and of its beats, with and without bounded admission and spread clocks.

All workers of a deployment lose their authority by a kill -9. When it is back, all of them open a
stream and send their whole state in the same moment, the worst there is: their channels connect
again within a tenth of a second. How it is when another shard takes over instead is measured by
:mod:`benchmarks.herd_failover`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import grpc
import numpy as np

from benchmarks import herd_failover
from benchmarks.child import UNLIMITED
from benchmarks.herd_admission import NO_ADMISSION, gate, program
from benchmarks.herd_workers import ALONE, BACK_SOON, BEAT, RANGES, Herd
from benchmarks.owner import COMPUTATION
from benchmarks.result import Result, Spread
from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc

SLOT: Final = 0.1
"""Seconds: how fine the load of the beats is looked at."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    workers: int
    rounds: int
    beats: int


FULL: Final = Size(2000, rounds=5, beats=2)
QUICK: Final = Size(100, rounds=1, beats=1)


@dataclass(slots=True)
class Round:
    """Figures of one restart."""

    acknowledged: list[float]
    """Seconds from the moment the authority served until the state of each worker was durable."""
    silence: float
    """The longest time without a message for a watch subscriber, in seconds."""
    resident: float
    """The authority's most memory, in MB."""
    starting: float
    """The most streams that started at once."""
    work: float
    """Seconds of a processor that the authority took until then."""
    line: float
    """The most streams that waited to start."""
    refused: float
    """Number of refusals that asked a stream to come later."""
    busiest: float
    """Beats in the busiest slot, over the mean."""


class Authority:
    """``lowwater serve``, which is killed and started again with its journal and port."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self._metrics = ""
        self.address = "127.0.0.1:0"

    def start(self, bounds: Mapping[str, int]) -> None:
        """Start the authority with other bounds of admission; return when it serves."""
        command = [
            *program(bounds),
            "--data",
            str(self._data),
            "--listen",
            self.address,
            "--http",
            "127.0.0.1:0",
            "--page",
            "off",
            *UNLIMITED,
        ]
        with Path(f"{self._data}.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if not words:
            msg = f"the authority ended before it served: {Path(log.name).read_text()[-2000:]}"
            raise RuntimeError(msg)
        # lowwater: serving on HOST:PORT (page URL, metrics URL)
        self.address, self._metrics = words[3], words[7].rstrip(")")

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    close = kill

    def peak_megabytes(self) -> float:
        """Return the most memory that the process ever held; 0 where /proc does not tell."""
        assert self._process is not None
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return 0.0
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))

    def work(self) -> float:
        """Return the processor time of the process in seconds; 0 without /proc."""
        assert self._process is not None
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def gate(self, figure: str) -> float:
        """Return a figure of the gate through which streams start."""
        return gate(self._metrics, figure)


class Watcher:
    """A subscriber on a thread of its own, so that the workers' event loop does not delay it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopping = threading.Event()
        self._messages: list[float] = []
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def longest_silence(self, since: float) -> float:
        """Return the longest time without a message from a moment until now, in seconds."""
        times = [since, *(at for at in list(self._messages) if at > since), time.monotonic()]
        return max(after - before for before, after in pairwise(times))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        with grpc.insecure_channel(self._address, options=(*ALONE, *BACK_SOON)) as channel:
            stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
            request = watermarks_pb2.WatchRequest(computations=[COMPUTATION])
            while not self._stopping.is_set():
                call = self._call = stub.Watch(request, wait_for_ready=True)
                try:
                    for _ in call:
                        self._messages.append(time.monotonic())
                except grpc.RpcError:
                    continue


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Restart the authority with and without admission, by turns; then do so after fail-overs."""
    size = QUICK if quick else FULL
    with closing(Authority(folder / "herd")) as authority:
        authority.start({})
        bounded, free = asyncio.run(_rounds(authority, size))
    facts: dict[str, object] = {
        "ranges": size.workers * RANGES,
        "n": size.workers,
        "longest_line": max(restart.line for restart in bounded),
        "asked_to_wait": Spread(tuple(restart.refused for restart in bounded)).median,
    }

    def line(metric: str, unit: str, figure: Callable[[Round], float], baseline: str) -> Result:
        ours, theirs = (Spread(tuple(map(figure, restarts))) for restarts in (bounded, free))
        return Result("herd", metric, ours, unit, baseline, theirs, facts)

    none = herd_failover.FREE
    return [
        line("last_acknowledged", "s", lambda restart: restart.acknowledged[-1], none),
        line("p50_acknowledged", "s", lambda restart: float(np.percentile(restart.acknowledged, 50)), none),
        line("p99_acknowledged", "s", lambda restart: float(np.percentile(restart.acknowledged, 99)), none),
        line("longest_silence_of_a_subscriber", "s", lambda restart: restart.silence, none),
        line("processor_until_last", "s", lambda restart: restart.work, none),
        line("peak_resident", "MB", lambda restart: restart.resident, none),
        line("most_streams_starting", "streams", lambda restart: restart.starting, none),
        line("busiest_slot_over_mean", "x", lambda restart: restart.busiest, "beats that are not spread"),
        *herd_failover.run(folder / "shards", size.workers, size.rounds),
    ]


async def _rounds(authority: Authority, size: Size) -> tuple[list[Round], list[Round]]:
    """Return the rounds with admission and spread beats, and those without."""
    herd = Herd(authority.address, size.workers)
    bounded: list[Round] = []
    free: list[Round] = []
    with Watcher(authority.address) as watcher:
        async with herd.running():
            await herd.wait()
            for _ in range(size.rounds):
                bounded.append(await _restart(authority, herd, watcher, size, admission=True))
                free.append(await _restart(authority, herd, watcher, size, admission=False))
    return bounded, free


async def _restart(authority: Authority, herd: Herd, watcher: Watcher, size: Size, *, admission: bool) -> Round:
    herd.expect(patient=admission)
    authority.kill()
    await asyncio.to_thread(authority.start, {} if admission else NO_ADMISSION)
    served, before = time.monotonic(), authority.work()
    times = await herd.wait()
    work = authority.work() - before
    silence = watcher.longest_silence(served)
    # Every worker has beaten once by then, and beats evenly.
    await asyncio.sleep(BEAT)
    herd.beats.clear()
    await asyncio.sleep(size.beats * BEAT)
    first = min(herd.beats)
    slots = np.bincount([int((at - first) / SLOT) for at in herd.beats])
    return Round(
        # Streams start while the line that says that it serves is on its way.
        acknowledged=[max(0.0, at - served) for at in times],
        silence=silence,
        resident=authority.peak_megabytes(),
        starting=authority.gate("peak"),
        work=work,
        line=authority.gate("longest"),
        refused=authority.gate("refused_total"),
        busiest=float(slots.max() / (len(herd.beats) / (size.beats * BEAT / SLOT))),
    )
