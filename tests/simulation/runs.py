"""Worlds from seeds, several at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Final

from tests.simulation import chaos
from tests.simulation.world import Result, World

MOVES: Final = 60


def moves_of(seed: int, count: int = MOVES, *, harsh: bool | None = None) -> list[chaos.Move]:
    random, sharded, rotten = Random(f"moves of {seed}"), chaos.is_sharded(seed), chaos.is_rotten(seed)
    if harsh is None:
        harsh = chaos.is_harsh(seed)
    return chaos.schedule(
        random,
        count,
        sharded=sharded,
        rotten=rotten,
        sliced=chaos.is_sliced(seed),
        harsh=harsh,
        hasty=chaos.is_hasty(seed),
        visited=chaos.is_visited(seed),
    )


def live(world: tuple[int, int], *, harsh: bool | None = None) -> Result:
    seed, count = world
    return World(seed, moves_of(seed, count, harsh=harsh)).run()


def outcomes(worlds: Sequence[tuple[int, int]], jobs: int, *, harsh: bool | None = None) -> Iterator[Result]:
    run = partial(live, harsh=harsh)
    if jobs == 1:
        yield from map(run, worlds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run, worlds)
