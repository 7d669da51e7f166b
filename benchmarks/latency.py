"""Time from a report to a subscriber that holds the new watermark, through the journal."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import child, workload
from benchmarks.hops import Hop, JournaledHop, RelayHop, SyncHop
from benchmarks.owner import Owner
from benchmarks.result import Result, Spread


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    ranges: int
    rounds: int
    samples: int
    """Number of samples in one round."""


FULL: Final = Size(1_000_000, rounds=10, samples=300)
QUICK: Final = Size(10_000, rounds=2, samples=20)

CLAIMS: Final = 100
RANGES_PER_CLAIM: Final = 10_000

PAUSE: Final = 0.002
"""Seconds between samples, give or take a half: every queue is empty again, the acknowledgement is
in."""

WARM_UP: Final = 10
"""Messages at the start of a round that do not count: what ran before has the caches."""

RELAY: Final = "bare two-hop gRPC relay"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "latency"))
        owner = stack.enter_context(closing(claimed(server, size.ranges)))
        relay = stack.enter_context(closing(RelayHop(stack.enter_context(child.bare(folder / "relay", 1)).address)))
        sync = stack.enter_context(closing(SyncHop(folder)))
        ours, relayed, synced = take_turns((JournaledHop(owner), relay, sync), size.rounds, size.samples)
    facts = {"ranges": size.ranges, "n": size.rounds * size.samples}
    p50, p99 = Spread.percentile(ours, 50), Spread.percentile(ours, 99)
    relay50, relay99 = Spread.percentile(relayed, 50), Spread.percentile(relayed, 99)
    floor = relay50 + Spread.percentile(synced, 50)
    return [
        Result("latency", "p50", p50, "ms", f"{RELAY}, p50", relay50, facts),
        Result("latency", "p50", p50, "ms", f"{RELAY} + a synced page, p50", floor, facts),
        Result("latency", "p99", p99, "ms", f"{RELAY}, p50", relay50, facts),
        Result("latency", "p99", p99, "ms", f"{RELAY}, p99", relay99, facts),
    ]


def claimed(server: child.Server, ranges: int) -> Owner:
    """Claim all ranges of a server: by claims of 10,000, or by a hundred larger ones."""
    return Owner(server.address, workload.keys(ranges), claims=min(CLAIMS, -(-ranges // RANGES_PER_CLAIM)))


def take_turns(hops: Iterable[Hop], rounds: int, samples: int, seconds: float = PAUSE) -> tuple[list[list[float]], ...]:
    """Return all samples of each hop, by round, in milliseconds; ``seconds`` is the mean pause."""
    pause = random.Random(workload.SEED)
    by_hop: dict[Hop, list[list[float]]] = {hop: [] for hop in hops}
    # The first answers come behind the snapshots of the set-up; then what it wrote goes to the disk
    # now, not under the syncs that are measured.
    for hop in by_hop:
        hop.sample()
    os.sync()
    for _ in range(rounds):
        for hop, samples_by_round in by_hop.items():
            milliseconds = []
            for _ in range(WARM_UP + samples):
                milliseconds.append(1e3 * hop.sample())
                time.sleep(seconds * pause.uniform(0.5, 1.5))
            samples_by_round.append(milliseconds[WARM_UP:])
    return tuple(by_hop.values())
