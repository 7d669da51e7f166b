"""A thundering herd after a fail-over: the streams of thousands of workers break with their shard.

Three shards over one Redis; one of them serves the computation of all workers and is killed with
kill -9. The others notice, one of them takes over, and all workers send it their whole state. All
along, subscribers check what they are shown; in the end, with all workers gone, the owner is killed
once more, and what was acknowledged has to be there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import redis

from benchmarks.child import UNLIMITED
from benchmarks.herd_admission import NO_ADMISSION, gate, program
from benchmarks.herd_wandering import Wandering
from benchmarks.herd_workers import RANGES
from benchmarks.observing import Asker, Board, RawWatcher, Stopping
from benchmarks.owner import COMPUTATION, PATIENCE
from benchmarks.result import Result, Spread
from benchmarks.shard_failover import LOOK, TAG
from benchmarks.truth import Truth
from benchmarks.workload import Int64s
from tests.kit.eventually import eventually
from tests.process.sharding import DEAD_AFTER, Shard, Sharded, move, served

SHARDS: Final = 3

MOST_RANGES: Final = 10_000
"""Greatest number of ranges in one listing."""

BOUNDED: Final = "admission"
FREE: Final = "no admission"
SHORT: Final = "a short line"


def kinds(workers: int) -> dict[str, Mapping[str, int]]:
    """Return the bounds of admission of each kind of round.

    They are the defaults, out of reach, or so low that most workers are sent away.
    """
    return {BOUNDED: {}, FREE: NO_ADMISSION, SHORT: {"STARTING": max(2, workers // 32), "LINE": workers // 16}}


class BoundedShard(Shard):
    """A shard that may be given other bounds of admission before it is started."""

    bounds: Mapping[str, int] = {}

    def program(self) -> list[str]:
        return program(self.bounds)


class Said(Truth):
    """Values that the workers of a herd have reported so far."""

    def __init__(self, herd: Wandering) -> None:
        super().__init__(0)
        self._herd = herd

    def most(self) -> int:
        return int(self._herd.sent.min())


@dataclass(frozen=True, slots=True)
class Round:
    """One kill."""

    acknowledged: list[float]
    """Seconds after it until the state of each worker was durable at the new owner, in order."""
    taken_over: float
    """Seconds after it until another shard owned the computation."""
    starting: float
    """The most streams that started at once, at the new owner."""
    waiting: float
    """The most that waited to start there."""
    admitted: float
    """Number of streams that the shard admitted."""
    refused: float
    """Number of refusals that asked a stream to come later."""
    delays: list[float]
    """For how long, in seconds, as far as they heard it."""


class Deployment:
    """Shards, a herd that reports to one of them, and subscribers.

    Use it as an asynchronous context manager.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._stack = ExitStack()
        self._sharded = Sharded(folder, 0, flags=UNLIMITED)
        shards = [BoundedShard(folder / f"shard-{number}", self._sharded.redis.url) for number in range(SHARDS)]
        self._sharded.shards += shards
        self._shards = shards
        self._owner = shards[0]
        addresses = [shard.address for shard in shards]
        self.herd = Wandering(self._owner.address, workers, addresses=addresses)
        self._board = Board({COMPUTATION: ()}, {COMPUTATION: Said(self.herd)})
        self._watching: list[Stopping] = [
            RawWatcher(self._board, COMPUTATION, addresses),
            Asker(self._board, [COMPUTATION], addresses),
        ]

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._begin)
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stack.close)

    def _begin(self) -> None:
        self._stack.enter_context(self._sharded)
        self._operator = self._stack.enter_context(self._sharded.connect(timeout=PATIENCE))
        self._store = self._stack.enter_context(redis.Redis(port=self._sharded.redis.port, protocol=2))
        self._operator.register(COMPUTATION, heuristics=())
        move(self._operator, self._owner, COMPUTATION)
        for watcher in self._watching:
            watcher.start()
            self._stack.callback(watcher.stop)

    async def kill(self, bounds: Mapping[str, int], *, patient: bool) -> Round:
        """Set bounds on the other shards, kill the owner, and wait until all workers are served."""
        others = [shard for shard in self._shards if shard is not self._owner]
        await asyncio.to_thread(self._restart, others, bounds)
        self._board.clear()
        self.herd.expect(patient=patient)
        before, delays_before = self._epoch(), len(self.herd.delays)
        look = asyncio.create_task(asyncio.to_thread(self._taken_over_at, before))
        killed = time.monotonic()
        self._owner.kill()
        times = await self.herd.wait()
        taken_over = await look
        starting, waiting, admitted, refused = await asyncio.to_thread(self._settle, others)
        delays = self.herd.delays[delays_before:]
        return Round([at - killed for at in times], taken_over - killed, starting, waiting, admitted, refused, delays)

    def check(self) -> Int64s:
        """Kill the owner when all workers are gone, and check that its successor has their reports.

        No worker can report again by then.

        Returns the first value of each worker, as the next owner has it. Raises AssertionError when
        something is lost or was made up, or when a subscriber was ever shown a value that went back
        or led.
        """
        assert self.herd.stopping
        others = [shard for shard in self._shards if shard is not self._owner]
        self._restart(others, {})
        before = self._epoch()
        self._owner.kill()
        self._taken_over_at(before)
        eventually(lambda: any(COMPUTATION in served(self._operator, shard) for shard in others), seconds=PATIENCE)
        ranges = sorted(self._operator.ranges(COMPUTATION, limit=MOST_RANGES), key=lambda key_range: key_range.start)
        values = np.array([key_range.watermark.micros for key_range in ranges]).reshape(self.herd.workers, RANGES)
        held_values: Int64s = values[:, 0]
        assert (values == held_values[:, np.newaxis] + np.arange(RANGES)).all(), "half a report was taken over"
        durable = np.array([self.herd.durable[worker] for worker in range(self.herd.workers)])
        compare(held_values, durable, self.herd.sent)
        failures = [watcher.failure for watcher in self._watching if watcher.failure is not None]
        assert not failures, failures
        assert not self._board.wrong, self._board.wrong[:10]
        assert self._board.floor(COMPUTATION).low >= durable.min(), "the subscribers were not shown all"
        return held_values

    def _restart(self, others: Sequence[BoundedShard], bounds: Mapping[str, int]) -> None:
        """Restart shards that serve nothing, with other bounds; their figures begin anew."""
        for shard in others:
            if shard.running:
                shard.stop()
            shard.bounds = bounds
        self._sharded.start(*others)

    def _settle(self, others: Sequence[BoundedShard]) -> list[float]:
        """Pin the computation to its new owner, so that it stays when other shards return.

        Returns the figures of the owner's gate, in the order of a round.
        """
        [self._owner] = [shard for shard in others if COMPUTATION in served(self._operator, shard)]
        move(self._operator, self._owner, COMPUTATION)
        return [gate(self._owner.metrics, metric) for metric in ("peak", "longest", "admitted_total", "refused_total")]

    def _epoch(self) -> int:
        return int(self._store.hget(f"{TAG}:meta:{COMPUTATION}", "epoch") or 0)

    def _taken_over_at(self, epoch: int) -> float:
        """Return when the computation had another owner."""
        deadline, pause = time.monotonic() + PATIENCE, threading.Event()
        while time.monotonic() < deadline:
            if self._epoch() > epoch:
                return time.monotonic()
            pause.wait(LOOK)
        msg = f"nobody took the computation over within {PATIENCE:g} s"
        raise AssertionError(msg)


def compare(held_values: Int64s, durable: Int64s, reported: Int64s) -> None:
    """Compare what is there of each worker with what was acknowledged, and with what it said.

    Raises AssertionError.
    """
    assert (held_values >= durable).all(), (
        f"acknowledged and lost, of workers {np.flatnonzero(held_values < durable)[:10]}"
    )
    assert (held_values <= reported).all(), (
        f"above all that was said, of workers {np.flatnonzero(held_values > reported)[:10]}"
    )


FIGURES: Final[Mapping[str, tuple[str, Callable[[Round], float]]]] = {
    "taken": ("s", lambda figures: figures.taken_over),
    "p50_acknowledged": ("s", lambda figures: float(np.percentile(figures.acknowledged, 50))),
    "p99_acknowledged": ("s", lambda figures: float(np.percentile(figures.acknowledged, 99))),
    "last_acknowledged": ("s", lambda figures: figures.acknowledged[-1]),
    "last_after_taken": ("s", lambda figures: figures.acknowledged[-1] - figures.taken_over),
    "most_streams_starting": ("streams", lambda figures: figures.starting),
}
"""Figures of a round, each with its unit."""


def run(folder: Path, workers: int, count: int) -> list[Result]:
    """Kill the owner so often with each kind of bounds, by turns.

    Raises AssertionError when a value was wrong, or anything acknowledged was lost.
    """
    rounds = asyncio.run(_rounds(folder, workers, count))

    def line(prefix: str, metric: str, ours: str, theirs: str) -> Result:
        unit, figure = FIGURES[metric]
        value, baseline = (Spread(tuple(map(figure, rounds[kind]))) for kind in (ours, theirs))
        facts = {
            "ranges": workers * RANGES,
            "n": workers,
            "shards": SHARDS,
            "dead_after": DEAD_AFTER,
            "longest_line": max(figures.waiting for figures in rounds[ours]),
            "admitted": Spread(tuple(figures.admitted for figures in rounds[ours])).median,
            "asked_to_wait": Spread(tuple(figures.refused for figures in rounds[ours])).median,
            "longest_wait_asked_for": round(max(max(figures.delays, default=0.0) for figures in rounds[ours]), 3),
        }
        return Result("herd", f"{prefix}_{metric}", value, unit, theirs, baseline, facts)

    return [
        *(line("failover", metric, BOUNDED, FREE) for metric in FIGURES),
        *(line("failover_short_line", metric, SHORT, BOUNDED) for metric in FIGURES),
    ]


async def _rounds(folder: Path, workers: int, count: int) -> dict[str, list[Round]]:
    rounds_by_kind: dict[str, list[Round]] = {kind: [] for kind in kinds(workers)}
    async with Deployment(folder, workers) as deployment:
        async with deployment.herd.running():
            await deployment.herd.wait()
            for _ in range(count):
                for kind, bounds in kinds(workers).items():
                    rounds_by_kind[kind].append(await deployment.kill(bounds, patient=kind != FREE))
        await asyncio.to_thread(deployment.check)
    return rounds_by_kind
