"""Cost of the status page for workers: the round trip of a report, while many viewers watch."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lowwater
from benchmarks import child, workload
from benchmarks.result import Result, Spread


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    computations: int
    viewers: int
    rounds: int
    seconds: float
    """Seconds of one turn."""


FULL: Final = Size(1000, viewers=20, rounds=5, seconds=6.0)
QUICK: Final = Size(20, viewers=2, rounds=1, seconds=1.0)

CHANGES: Final = 10
"""A second, of every computation."""

PAUSE: Final = 0.02
"""Seconds between two samples, give or take a half."""

INTERVAL: Final = 0.0005
"""Seconds between two reports of the probe at least: it waits for nothing but the answer."""

OFF: Final = "--http off"


class Crowd:
    """Workers whose computations all change, and viewers, in a process (see ``page_child``)."""

    def __init__(self, companion: child.Companion) -> None:
        self._companion = companion

    def begin(self) -> None:
        """Let everything change; returns when the viewers have seen some of it."""
        self._companion.say("begin")

    def end(self) -> float:
        """Let nothing change; returns how many messages a second each viewer got, on average."""
        return float(self._companion.say("end"))


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure without HTTP, with a page that no viewer opens, and with viewers; they take turns."""
    size = QUICK if quick else FULL
    free = "127.0.0.1:0"
    kinds = {
        "off": ("off", "off", 0),
        "unwatched": (free, free, 0),
        "watched": (free, free, size.viewers),
    }
    samples: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    processor: dict[str, list[float]] = {kind: [] for kind in kinds}
    messages: list[float] = []
    with ExitStack() as stack:
        probes = {}
        for kind, (http, page, viewers) in kinds.items():
            server = stack.enter_context(child.authority(folder / kind, http, page))
            crowd = stack.enter_context(_crowd(server, size.computations, viewers))
            lw = stack.enter_context(lowwater.connect(server.address, report_interval=INTERVAL))
            lw.register("probe")
            probes[kind] = server, crowd, lw.worker("probe").claim()
        for _ in range(size.rounds):
            for kind, (server, crowd, lease) in probes.items():
                crowd.begin()
                before, began = server.processor_seconds() or 0, time.monotonic()
                samples[kind].append(_sample(lease, size.seconds))
                processor[kind].append(((server.processor_seconds() or 0) - before) / (time.monotonic() - began))
                sent = crowd.end()
                if kinds[kind][2]:
                    messages.append(sent)
    facts = {
        "ranges": size.computations,
        "changes_per_second": size.computations * CHANGES,
        "viewers": size.viewers,
        "messages_per_second": round(statistics.median(messages), 2),
        "n": sum(map(len, samples["watched"])),
    }

    def lines(metric: str, spreads: Mapping[str, Spread], unit: str) -> list[Result]:
        return [
            Result("page", f"{kind}_{metric}", spreads[kind], unit, OFF, spreads["off"], facts)
            for kind in ("unwatched", "watched")
        ]

    p50, p99 = ({kind: Spread.percentile(samples[kind], percent) for kind in kinds} for percent in (50, 99))
    worked = {kind: Spread(tuple(shares)) for kind, shares in processor.items()}
    return [*lines("p50", p50, "ms"), *lines("p99", p99, "ms"), *lines("processor", worked, "s/s")]


def _sample(lease: lowwater.Lease, seconds: float) -> list[float]:
    """Return the milliseconds from an advance to its acknowledgement, again and again."""
    pause, samples = random.Random(workload.SEED), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        lease.advance(None, oldest=None, frontier=time.time_ns() // 1000)
        lease.flush(60)
        samples.append(1e3 * (time.perf_counter() - began))
        time.sleep(PAUSE * pause.uniform(0.5, 1.5))
    return samples


@contextmanager
def _crowd(server: child.Server, computations: int, viewers: int) -> Iterator[Crowd]:
    arguments = (server.address, server.page, computations, viewers, CHANGES)
    with child.companion("benchmarks.page_child", *arguments) as companion:
        yield Crowd(companion)
