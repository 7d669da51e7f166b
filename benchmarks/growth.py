"""Growth of a round's cost, with the claims of a computation and with the computations of a round.

The state machine alone, in this process: nothing of gRPC and of the journal is in the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.result import Result, Spread
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import Mass
from lowwater_authority.core.requests import ClaimRequest, Fold, GroupReport
from lowwater_authority.core.topology import Spec

NOW: Final = 1_700_000_000_000_000
P99: Final = 990_000
BUCKETS: Final = 200
"""Number of times in the histogram of each claim. No other claim has these times, so that the sums
have as many different times as possible."""

SPAN: Final = 3_600_000_000
"""Microseconds over which these times are spread."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    counts: tuple[int, ...]
    """Claims, or computations."""
    rounds: int
    samples: int
    """Number of samples in one round of the benchmark."""


FULL: Final = Size((100, 1_000, 10_000), rounds=5, samples=200)
QUICK: Final = Size((10, 100), rounds=2, samples=5)


def run(_: Path, *, quick: bool) -> list[Result]:
    """Measure; sizes take turns."""
    size = QUICK if quick else FULL
    kinds: dict[str, Callable[[int], Iterator[float]]] = {
        "round_of_a_report": lambda claims: reports(claims, ()),
        "round_of_a_report_heuristics": lambda claims: reports(claims, (P99,)),
        "computation_in_a_round": computations,
    }
    results = []
    for kind, rounds_of in kinds.items():
        running = {count: rounds_of(count) for count in size.counts}
        spreads: dict[int, list[float]] = {count: [] for count in size.counts}
        for _round in range(size.rounds):
            for count, samples in running.items():
                durations = [
                    next(samples)
                    for _ in range(max(3, size.samples // (count if kind.startswith("computation") else 1)))
                ]
                spreads[count].append(float(np.median(durations)) * 1e3)
        first = Spread(tuple(spreads[size.counts[0]]))
        for count in size.counts:
            facts = {"ranges": count, "n": size.rounds * size.samples}
            results.append(
                Result(
                    "growth",
                    f"{kind}_{count}",
                    Spread(tuple(spreads[count])),
                    "ms",
                    f"{size.counts[0]} of them",
                    first,
                    facts,
                )
            )
    return results


def reports(claims: int, shares: tuple[int, ...]) -> Iterator[float]:
    """Yield the seconds of rounds in which one of so many claims reports a new low watermark.

    Where shares are kept, the report also has a new histogram.
    """
    random = np.random.default_rng(7)
    computation = Computation(Spec("growth", heuristics=shares))
    keys = [b"", *(index.to_bytes(4, "big") for index in range(1, claims)), b""]
    sequencers = [
        computation.claim(ClaimRequest(keys[at : at + 2], request_id=at.to_bytes(16, "big")), NOW).sequencer
        for at in range(claims)
    ]
    fold = Fold(computation.spec.input_version, ())
    number = 0

    def report(sequencer: int, low: int) -> None:
        nonlocal number
        number += 1
        mass = None
        if shares:
            starts = np.unique(random.integers(low, low + SPAN, BUCKETS))
            mass = Mass(starts, np.ones(len(starts), dtype=np.int64), 100, dict.fromkeys(shares, low + SPAN))
        message = GroupReport(sequencer, np.array([low]), fold=fold, mass=mass)
        refused = computation.report(message, sender=b"growth", number=(1, number), required=fold, now=NOW)
        assert not refused, refused

    low = NOW - 10 * SPAN
    for sequencer in sequencers:
        report(sequencer, low)
    computation.take_record(NOW)
    computation.publish()
    while True:
        for sequencer in sequencers:
            low += 1
            begin = time.perf_counter()
            report(sequencer, low)
            computation.take_record(NOW)
            computation.publish()
            yield time.perf_counter() - begin


def computations(count: int) -> Iterator[float]:
    """Yield the seconds for each of so many computations in a round in which all of them report."""
    all_of_them = []
    for at in range(count):
        computation = Computation(Spec(f"growth{at}"))
        grant = computation.claim(ClaimRequest([b"", b""], request_id=bytes(16)), NOW)
        computation.take_record(NOW)
        computation.publish()
        all_of_them.append((computation, grant.sequencer))
    fold, number = Fold(all_of_them[0][0].spec.input_version, ()), 0
    while True:
        number += 1
        values = np.array([NOW - SPAN + number])
        begin = time.perf_counter()
        for computation, sequencer in all_of_them:
            message = GroupReport(sequencer, values, fold=fold)
            computation.report(message, sender=b"growth", number=(1, number), required=fold, now=NOW)
        for computation, _ in all_of_them:
            computation.take_record(NOW)
        for computation, _ in all_of_them:
            computation.publish()
        yield (time.perf_counter() - begin) / count
