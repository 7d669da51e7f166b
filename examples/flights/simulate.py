"""The demo without Spark and server: the stages run in lockstep over the watermark arithmetic.

For looking at the comparison and its picture in seconds::

    python -m examples.flights.simulate --out build/demo/simulated

Each round is one micro-batch of every job and moves the replay clock by one hour, as in the demo at
one hour a second. The jobs run from the last to the first, so that each hop costs one round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from examples.flights import compare, data, expected
from examples.flights.compare import Batch
from examples.flights.data import Flight
from examples.flights.expected import Hourly, Window
from examples.flights.plain import (
    CARRIER_BOUNDS,
    ORIGINS,
    SHARE,
    EnrichedStage,
    FlightsStage,
    HourlyStage,
    Inbox,
    Record,
    Seen,
    by_carrier,
)
from examples.flights.replay import beats
from lowwater.watermark import MAX, MIN, Watermark

BEATS_A_ROUND = 4


class Inputs(NamedTuple):
    """Watermarks that a stage has read."""

    low: Watermark
    heuristic: Mapping[float, Watermark]


@dataclass
class Computation:
    """The published watermarks of one computation, from what its leases last said."""

    values: list[int] = field(default_factory=list)
    masses: list[tuple[list[int], int, int]] = field(default_factory=list)
    """Pending event times, number of records lately finished, and frontier for the 99 % watermark,
    of each lease."""
    low: int = MIN
    heuristic: int = MIN

    def read(self) -> Inputs:
        """Return what a consumer of this computation sees."""
        return Inputs(Watermark(self.low), {SHARE: Watermark(self.heuristic)})

    def publish(self) -> None:
        """Take over what was said; both watermarks only ever rise."""
        self.low = max(self.low, min(self.values))
        self.heuristic = max(self.heuristic, self.low, self._candidate())

    def _candidate(self) -> int:
        """Return min(greatest frontier, greatest time with 99 % of the mass at or above it)."""
        living = [mass for mass in self.masses if mass[2] != MAX]
        weights = [(time, 1) for pending, _, _ in living for time in pending]
        weights += [(frontier, recent) for _, recent, frontier in living if recent]
        greatest = max((frontier for _, _, frontier in living), default=MIN)
        needed = SHARE * sum(weight for _, weight in weights)
        above = 0
        for time, weight in sorted(weights, reverse=True):
            above += weight
            if above >= needed:
                return min(greatest, time)
        return greatest


class ModelLease:
    """A lease over some ranges of a :class:`Computation`.

    Nothing that was said lately is forgotten: runs are short.
    """

    def __init__(self, computation: Computation, ranges: int = 1) -> None:
        self._computation = computation
        self._at = slice(len(computation.values), len(computation.values) + ranges)
        computation.values += [MIN] * ranges
        self._mass = len(computation.masses)
        computation.masses.append(([], 0, MIN))
        self._recent = 0

    def advance(
        self,
        seen: Any,
        *,
        oldest: Sequence[int | None] | int | None,
        frontier: int | None = None,
        pending: Iterable[int] | None = None,
        finished: int = 0,
    ) -> None:
        """Keep the state of the claim, folded with the watermarks of the inputs."""
        self._recent += finished
        fold = frontier if seen is None else seen.low.micros
        share = frontier if seen is None else seen.heuristic[SHARE].micros
        if fold is None or share is None:
            raise ValueError("a stage without inputs needs a frontier")
        oldest_times = oldest if isinstance(oldest, Sequence) else [oldest]
        self._computation.values[self._at] = [fold if value is None else min(fold, value) for value in oldest_times]
        self._computation.masses[self._mass] = (list(pending or ()), self._recent, share)

    def finish(self) -> None:
        """Raise every range to MAX."""
        self._computation.values[self._at] = [MAX] * (self._at.stop - self._at.start)
        self._computation.masses[self._mass] = ([], 0, MAX)


class Result(NamedTuple):
    """Result of a simulated run."""

    batches: list[Batch]
    rows: list[tuple[Window, Hourly]]
    duplicates: int
    late: int


def simulate(flights: Sequence[Flight], start: int) -> Result:
    """Run the three jobs over flights until all finish, from a replay clock in microseconds."""
    flown, rich, hours = Computation(), Computation(), Computation()
    to_hourly, to_enriched = Inbox(), [Inbox() for _ in CARRIER_BOUNDS[1:]]
    names = data.airlines(), data.airports()
    injectors = [
        FlightsStage(_feed(flights, origin, start), ModelLease(flown), by_carrier(to_enriched)) for origin in ORIGINS
    ]
    enriched = [EnrichedStage(flown.read, inbox, ModelLease(rich), to_hourly.put, names) for inbox in to_enriched]
    result = Result([], [], 0, 0)

    def record(inputs: Seen, records: Sequence[Record]) -> None:
        result.batches.append(
            Batch(
                batch=len(result.batches),
                clock=max(injector.clock for injector in injectors),
                low=inputs.low.micros,
                heuristic=inputs.heuristic[SHARE].micros,
                records=tuple((record.origin, record.sched_dep) for record in records),
            )
        )

    hourly = HourlyStage(
        rich.read,
        to_hourly,
        ModelLease(hours, len(ORIGINS)),
        lambda window, row: result.rows.append((window, row)),
        record,
    )
    for injector in injectors:
        injector.turn()
    finished = False
    while not finished:
        finished = hourly.turn()
        for stage in enriched:
            stage.turn()
        for injector in injectors:
            for _ in range(BEATS_A_ROUND):
                injector.turn()
        for computation in (flown, rich, hours):
            computation.publish()
    return result._replace(duplicates=sum(stage.duplicates for stage in enriched), late=hourly.late)


def _feed(flights: Sequence[Flight], origin: str, start: int) -> Iterator[Any]:
    return beats([flight for flight in flights if flight.origin == origin], start=start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate the demo's slice, check it, and write batches.jsonl, report.json and report.png."""
    from examples.flights import picture

    parser = argparse.ArgumentParser(prog="python -m examples.flights.simulate", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo/simulated"))
    options = parser.parse_args(arguments)
    result = simulate(data.load(data.SLICE_START, data.SLICE_END), data.micros(data.SLICE_START))
    compare.require_exact(result.rows, expected.hourly(data.SLICE_START, data.SLICE_END))
    options.out.mkdir(parents=True, exist_ok=True)
    recorded = options.out / "batches.jsonl"
    recorded.unlink(missing_ok=True)
    for batch in result.batches:
        compare.append_batch(recorded, batch)
    comparisons = compare.compare(result.batches)
    compare.write_report(options.out / "report.json", comparisons)
    picture.draw(result.batches, options.out / "report.png")
    for comparison in comparisons:
        print(json.dumps(asdict(comparison)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
