"""A world that fails is shortened to the few moves that make it fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tests.simulation.chaos import Move, length
from tests.simulation.world import Result, World

ATTEMPTS = 80

FACT = r"-?[\w.~/#]*\d[\w.~/#]*"
"""Pattern of what differs between two violations of one kind: a time, a value, the name of a process or of a slice."""


def kind(violation: str, computations: Iterable[str]) -> str:
    return re.sub("|".join([FACT, *(rf"\b{name}\b" for name in computations)]), "#", violation)


def shrink(
    seed: int, moves: Sequence[Move], report: Callable[[str], None], *, attempts: int = ATTEMPTS
) -> tuple[list[Move], Result]:
    """Leave out moves, half of them first, then fewer and fewer, as long as the first violation is of the same kind (delta debugging).

    What is left of the randomness depends on the seed and on names, not on how many moves there are, so most of a world stays as
    it was. Returns the moves that are left and what came of them: all of them, and no violation, if there was none this time.
    """
    seconds = length(moves)
    world = World(seed, moves, seconds)
    remaining, result = list(moves), world.run()
    kinds = [kind(violation, world.pipeline.nodes) for violation in result.violations[:1]]
    size = max(1, len(remaining) // 2) if result.violations else 0
    while size:
        start = 0
        shorter = False
        while start < len(remaining) and attempts:
            attempts -= 1
            fewer = remaining[:start] + remaining[start + size :]
            tried = World(seed, fewer, seconds).run()
            if kinds == [kind(violation, world.pipeline.nodes) for violation in tried.violations[:1]]:
                remaining, result, shorter = fewer, tried, True
                report(f"{len(remaining)} moves are enough")
            else:
                start += size
        size = size if size == 1 and shorter and attempts else size // 2
    return remaining, result
