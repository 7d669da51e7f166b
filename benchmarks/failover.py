"""Time from kill -9 of a shard until subscribers hold new, correct watermarks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import shard_failover
from benchmarks.observing import LIBRARY, RAW
from benchmarks.result import Result, Spread
from tests.process.sharding import DEAD_AFTER

KILLS: Final = 50
QUICK: Final = 1

TARGET: Final = 1.0
"""Seconds that p99 should not exceed."""

BASELINE: Final = "silence after which a shard counts as dead"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure; the phases of each round go to stderr.

    Raises AssertionError when a value was wrong, or anything acknowledged was lost.
    """
    rounds = shard_failover.run(
        folder, QUICK if quick else KILLS, lambda kill: print(kill.text(), file=sys.stderr, flush=True)
    )

    facts = {"ranges": shard_failover.RANGES, "n": len(rounds), "shards": shard_failover.SHARDS}

    def line(metric: str, seconds: Sequence[float], percent: float, **more: object) -> Result:
        value = Spread((float(np.percentile(seconds, percent)),))
        return Result("failover", metric, value, "s", BASELINE, Spread((DEAD_AFTER,)), {**facts, **more})

    results = [
        line("noticed_p50", [kill.noticed for kill in rounds], 50),
        line("taken_p50", [kill.owned for kill in rounds], 50),
        line("claimed_p50", [kill.claimed for kill in rounds], 50),
        line("claimed_max", [kill.claimed for kill in rounds], 100),
    ]
    for kind in (RAW, LIBRARY):
        new = [kill.new[kind] for kill in rounds]
        results += [
            line(f"{kind}_there_p50", [kill.heard_of[kind] for kill in rounds], 50),
            line(f"{kind}_new_p50", new, 50),
            line(f"{kind}_new_p90", new, 90),
            line(f"{kind}_new_p99", new, 99, target=TARGET, kills=[round(seconds, 3) for seconds in sorted(new)]),
            line(f"{kind}_new_max", new, 100),
        ]
    return results
