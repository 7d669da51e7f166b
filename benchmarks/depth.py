"""Time from a frontier at the source until the last of ten computations in a row shows it.

Each computation folds the one before. They run in one process or in ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import lowwater
import lowwater.aio
from benchmarks import child
from benchmarks.hops import EchoHop
from benchmarks.latency import take_turns
from benchmarks.owner import PATIENCE
from benchmarks.result import Result, Spread
from lowwater import Inputs, errors


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    samples: int
    """Number of samples in one round."""


FULL: Final = Size(rounds=10, samples=40)
QUICK: Final = Size(rounds=2, samples=5)

STAGES: Final = 10
"""Computations in the chain, the source included."""

PAUSE: Final = 0.12
"""Seconds between samples, give or take a half: a client that reports without end is slowed down to
a hundred reports a second, and a sample is ten."""

ECHO: Final = f"{STAGES} round trips of a bare echo"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "depth"))
        threads = stack.enter_context(closing(Threads(server.address)))
        processes = stack.enter_context(closing(Processes(server.address)))
        tasks = stack.enter_context(closing(Tasks(server.address)))
        echo = stack.enter_context(
            closing(EchoHop(stack.enter_context(child.bare(folder / "echo", 1)).address, STAGES))
        )
        by_way = take_turns((threads, tasks, processes, echo), size.rounds, size.samples, PAUSE)
    facts = {"ranges": STAGES, "stages": STAGES, "n": size.rounds * size.samples}
    echoed = Spread.percentile(by_way[3], 50)
    return [
        Result("depth", metric, Spread.percentile(rounds, percent), "ms", f"{ECHO}, p50", echoed, facts)
        for rounds, kind in ((by_way[0], ""), (by_way[1], "asyncio_"), (by_way[2], "processes_"))
        for metric, percent in ((f"{kind}p50", 50), (f"{kind}p99", 99))
    ]


def names(kind: str) -> list[str]:
    """The computations of a chain, the source first."""
    return [f"{kind}/{i:02}" for i in range(STAGES)]


class Threads:
    """The chain with the client library, a thread for each computation behind the source."""

    def __init__(self, address: str) -> None:
        self._lw = lowwater.connect(address)
        self._micros = time.time_ns() // 1000
        chain, before = names("threads"), ""
        for name in chain:
            self._lw.register(name, inputs=[before] if before else [])
            worker = self._lw.worker(name)
            lease = worker.claim()
            if before:
                threading.Thread(target=follow, args=(self._lw, before, worker, lease), daemon=True).start()
            else:
                self._source = lease
            before = name
        self._end = self._lw.inputs(chain[-1]).watch()

    def sample(self) -> float:
        """See Hop. The end must come to exactly the frontier of the source."""
        self._micros += 1
        begin = time.perf_counter()
        self._source.advance(None, oldest=None, frontier=self._micros)
        while not arrived(next(self._end), self._micros, begin):
            pass
        return time.perf_counter() - begin

    def close(self) -> None:
        """End it."""
        self._lw.close()


class Processes(Threads):
    """The chain with a process for each computation after the source (see ``depth_child``)."""

    def __init__(self, address: str) -> None:
        self._lw = lowwater.connect(address)
        self._micros = time.time_ns() // 1000
        chain = names("processes")
        for before, name in zip(["", *chain], chain, strict=False):
            self._lw.register(name, inputs=[before] if before else [])
        self._source = self._lw.worker(chain[0]).claim()
        self._others = ExitStack()
        for before, name in pairwise(chain):
            self._others.enter_context(child.companion("benchmarks.depth_child", address, before, name))
        self._end = self._lw.inputs(chain[-1]).watch()

    def close(self) -> None:
        """See Threads."""
        self._others.close()
        super().close()


class Tasks:
    """The same on asyncio, a task for each; the loop runs while a sample is taken."""

    def __init__(self, address: str) -> None:
        self._runner = asyncio.Runner()
        self._following: list[asyncio.Task[None]] = []
        self._micros = time.time_ns() // 1000
        self._runner.run(self._begin(address))

    async def _begin(self, address: str) -> None:
        self._lw = lowwater.aio.connect(address)
        chain, before = names("tasks"), ""
        for name in chain:
            await self._lw.register(name, inputs=[before] if before else [])
            worker = self._lw.worker(name)
            lease = await worker.claim()
            if before:
                self._following.append(asyncio.create_task(self._follow(before, worker, lease)))
            else:
                self._source = lease
            before = name
        self._end = aiter(self._lw.inputs(chain[-1]).watch())

    async def _follow(self, before: str, worker: lowwater.aio.Worker, lease: lowwater.aio.Lease) -> None:
        with contextlib.suppress(errors.Closed):
            async for _ in self._lw.inputs(before).watch():
                lease.advance(await worker.inputs(), oldest=None)

    def sample(self) -> float:
        """See Hop. The end must come to exactly the frontier of the source."""
        return self._runner.run(self._sample())

    async def _sample(self) -> float:
        self._micros += 1
        begin = time.perf_counter()
        self._source.advance(None, oldest=None, frontier=self._micros)
        while not arrived(await anext(self._end), self._micros, begin):
            pass
        return time.perf_counter() - begin

    def close(self) -> None:
        """End it."""
        self._runner.run(self._lw.close())
        self._runner.close()


def follow(lw: lowwater.Client, before: str, worker: lowwater.Worker, lease: lowwater.Lease) -> None:
    """Hand on what a computation's input says, until the client is closed."""
    with contextlib.suppress(errors.Closed):
        for _ in lw.inputs(before).watch():
            lease.advance(worker.inputs(), oldest=None)


def arrived(inputs: Inputs, micros: int, begin: float) -> bool:
    """Return whether the last computation shows a frontier; no later one can be there.

    Raises RuntimeError when it takes too long.
    """
    if inputs.low.micros > micros:
        msg = f"the low watermark is {inputs.low}, ahead of the source, {micros}"
        raise RuntimeError(msg)
    if time.perf_counter() - begin > PATIENCE:
        msg = f"the end did not come to {micros} in {PATIENCE} s"
        raise RuntimeError(msg)
    return inputs.low.micros == micros
