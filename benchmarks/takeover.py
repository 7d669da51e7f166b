"""Time for each computation of a dead shard until the survivor serves it.

Beside it the waits of the survivor's own workers meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

import lowwater
from benchmarks.child import UNLIMITED
from benchmarks.owner import COMPUTATION
from benchmarks.register import WINDOW, Registrar, Reporter
from benchmarks.result import Result, Spread
from tests.kit.eventually import eventually
from tests.process.sharding import Sharded, served

WRITES: Final = 100
"""For the baseline."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    computations: int
    """Number of computations, of which either shard owns about half."""
    rounds: int


FULL: Final = Size(2000, rounds=3)
QUICK: Final = Size(20, rounds=1)

BASELINE: Final = "a synced write to the same Redis"

QUIET: Final = 2.0
"""Seconds of reports before the shard dies."""

PATIENCE: Final = 2_000.0


@dataclass(frozen=True, slots=True)
class Death:
    """Figures of one death of a shard."""

    computations: int
    seconds: float
    """Seconds from the view without the shard until the survivor served all its computations."""
    longest: float
    """The longest wait of a report to the survivor meanwhile, milliseconds."""
    quiet: float
    """Longest wait of a report before the death, in milliseconds."""


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    measured = [_measure(folder / str(number), size.computations) for number in range(size.rounds)]
    deaths, synced = [death for death, _ in measured], Spread(tuple(wait for _, wait in measured))
    facts = {"ranges": deaths[0].computations, "n": deaths[0].computations}
    per_computation = Spread(tuple(1e3 * death.seconds / death.computations for death in deaths))
    longest, quiet = Spread(tuple(death.longest for death in deaths)), Spread(tuple(death.quiet for death in deaths))
    return [
        Result("takeover", "each", per_computation, "ms", BASELINE, synced, facts),
        Result("takeover", "longest_wait_of_a_report", longest, "ms", "nobody dies", quiet, facts),
    ]


def _measure(folder: Path, computations: int) -> tuple[Death, float]:
    with Sharded(folder, 2, flags=UNLIMITED) as sharded, ExitStack() as stack:
        victim, survivor = sharded.shards
        lw = stack.enter_context(lowwater.connect(survivor.address, timeout=60.0))
        lw.register(COMPUTATION)
        lw.pin(COMPUTATION, survivor.address)
        eventually(lambda: COMPUTATION in served(lw, survivor))
        reporter = stack.enter_context(closing(Reporter(survivor.address)))
        registrar = stack.enter_context(closing(Registrar(survivor.address)))
        registrar.register(computations, WINDOW)
        eventually(lambda: len(served(lw, survivor)) + len(served(lw, victim)) > computations, seconds=PATIENCE)
        computations_taken = len(served(lw, victim))
        calm = time.monotonic()
        time.sleep(QUIET)
        began = time.monotonic()
        victim.kill()
        eventually(lambda: victim.address not in {shard.address for shard in lw.shards()})
        noticed = time.monotonic()
        eventually(lambda: len(served(lw, survivor)) > computations, seconds=PATIENCE)
        done = time.monotonic()
        death = Death(computations_taken, done - noticed, reporter.longest(began, done), reporter.longest(calm, began))
        return death, _synced(sharded)


def _synced(sharded: Sharded) -> float:
    """Return the milliseconds that a write takes until it is synced, alone."""
    with redis.Redis(port=sharded.redis.port, protocol=2) as client:
        began = time.monotonic()
        for number in range(WRITES):
            client.set("baseline", number)
        return 1e3 * (time.monotonic() - began) / WRITES
