"""Fail-over: how long after kill -9 of a shard subscribers hold a new and correct watermark of what it served."""

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
        folder, QUICK if quick else KILLS, lambda each: print(each.text(), file=sys.stderr, flush=True)
    )

    facts = {"ranges": shard_failover.RANGES, "n": len(rounds), "shards": shard_failover.SHARDS}

    def line(metric: str, seconds: Sequence[float], percent: float, **more: object) -> Result:
        value = Spread((float(np.percentile(seconds, percent)),))
        return Result("failover", metric, value, "s", BASELINE, Spread((DEAD_AFTER,)), {**facts, **more})

    found = [
        line("noticed_p50", [each.noticed for each in rounds], 50),
        line("taken_p50", [each.taken for each in rounds], 50),
        line("claimed_p50", [each.claimed for each in rounds], 50),
        line("claimed_max", [each.claimed for each in rounds], 100),
    ]
    for kind in (RAW, LIBRARY):
        new = [each.new[kind] for each in rounds]
        found += [
            line(f"{kind}_there_p50", [each.there[kind] for each in rounds], 50),
            line(f"{kind}_new_p50", new, 50),
            line(f"{kind}_new_p90", new, 90),
            line(f"{kind}_new_p99", new, 99, target=TARGET, kills=[round(each, 3) for each in sorted(new)]),
            line(f"{kind}_new_max", new, 100),
        ]
    return found
