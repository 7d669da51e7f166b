"""Time from kill -9 until an authority over the same journal serves all its key ranges again."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import child, latency, workload
from benchmarks.owner import Owner
from benchmarks.result import Result, Spread


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    ranges: tuple[int, ...]
    rounds: int


FULL: Final = Size((500_000, 10_000_000), rounds=5)
QUICK: Final = Size((2_000, 20_000), rounds=2)

TARGETS: Final = {500_000: 1.0, 10_000_000: 10.0}
"""Seconds."""

BASELINE: Final = "an authority that holds nothing"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure; each kill finds whatever snapshots and records there are."""
    size = QUICK if quick else FULL
    empty = Spread(tuple(_start(folder / f"empty{number}") for number in range(size.rounds)))
    results = []
    for ranges in size.ranges:
        data = folder / f"ranges_{ranges}"
        with child.authority(data) as server, closing(latency.claimed(server, ranges)) as owner:
            _tell(owner)
        spread = Spread(tuple(_start(data) for _ in range(size.rounds)))
        target = {"target": TARGETS[ranges]} if ranges in TARGETS else {}
        results.append(
            Result(
                "recovery",
                f"serves_{ranges}",
                spread,
                "s",
                BASELINE,
                empty,
                {"ranges": ranges, "n": size.rounds, **target},
            )
        )
    return results


def _tell(owner: Owner) -> None:
    """Report every range once, as in any life."""
    owner.take(owner.state(workload.Treadmill(owner.ranges).start()))
    low = owner.low
    assert low > 0, low


def _start(data: Path) -> float:
    """Return the seconds from the start of the process until it serves; then kill it."""
    begin = time.perf_counter()
    with child.authority(data):
        return time.perf_counter() - begin
