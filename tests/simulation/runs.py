"""Worlds from seeds, several at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from tests.simulation import chaos
from tests.simulation.world import Result, World

MOVES: Final = 60
"""Moves in one world."""


def moves_of(seed: int, count: int = MOVES) -> list[chaos.Move]:
    """Return the moves of a world."""
    random, sharded, rotten = Random(f"moves of {seed}"), chaos.is_sharded(seed), chaos.is_rotten(seed)
    return chaos.schedule(random, count, sharded=sharded, rotten=rotten, sliced=chaos.is_sliced(seed))


def live(world: tuple[int, int]) -> Result:
    """Run one world."""
    seed, count = world
    return World(seed, moves_of(seed, count)).run()


def outcomes(worlds: Sequence[tuple[int, int]], jobs: int) -> Iterator[Result]:
    """Run worlds, several at a time, in order."""
    if jobs == 1:
        yield from map(live, worlds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(live, worlds)
