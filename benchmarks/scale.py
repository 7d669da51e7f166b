"""Cost of size: the latency at growing numbers of ranges, and the bytes for a range."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import child
from benchmarks.hops import JournaledHop
from benchmarks.latency import claimed, take_turns
from benchmarks.result import Result, Spread


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    ranges: tuple[int, ...]
    rounds: int
    samples: int


FULL: Final = Size((1_000, 100_000, 500_000, 10_000_000, 50_000_000), rounds=7, samples=200)
QUICK: Final = Size((1_000, 50_000), rounds=2, samples=20)

NO_PROC: Final = "resident memory is read from /proc, which this system does not have"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure. All servers stand side by side, idle but for the one whose turn it is."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        hops: list[JournaledHop] = []
        servers: list[tuple[child.Server, int | None]] = []
        seconds: list[float] = []
        for ranges in size.ranges:
            server = stack.enter_context(child.authority(folder / f"scale_{ranges}"))
            servers.append((server, server.resident_bytes()))
            begin = time.perf_counter()
            hops.append(JournaledHop(stack.enter_context(closing(claimed(server, ranges)))))
            seconds.append(time.perf_counter() - begin)
            gc.collect()
        rounds = take_turns(hops, size.rounds, size.samples)
        # Once more after the work: a snapshot may have been due.
        memory = [(server.resident_bytes(), empty) for server, empty in servers]
    results = []
    for percent in (50, 99):
        spreads = [Spread.percentile(rounds, percent) for rounds in rounds]
        for ranges, spread, durations in zip(size.ranges, spreads, seconds, strict=True):
            facts = {"ranges": ranges, "n": size.rounds * size.samples, "set_up_s": round(durations, 2)}
            first = f"{size.ranges[0]} ranges, p{percent}"
            results.append(Result("scale", f"p{percent}_{ranges}", spread, "ms", first, spreads[0], facts))
    for ranges, (full, empty) in zip(size.ranges[1:], memory[1:], strict=True):
        if full is None or empty is None:
            continue
        bytes_each = Spread(((full - empty) / ranges,))
        facts = {"ranges": ranges, "resident_bytes": full, "resident_bytes_empty": empty}
        results.append(Result("scale", f"bytes_per_range_{ranges}", bytes_each, "B", facts=facts))
    return results
