"""The whole year through plain Python workers and a real authority; every window is checked.

``make demo-year``, or ``python -m examples.flights.year``. No Spark: eight workers, one thread
each, with a lease each.

=========== ============================== =======================================
computation workers                        key ranges
=========== ============================== =======================================
flights     3, one per airport             by origin
enriched    4                              by carrier
hourly      1, with a lease of 3 ranges    by origin
=========== ============================== =======================================

The replay is virtual: no pacing by a clock. The injectors run ahead of the slowest job by a bounded
stretch of event time only, which they learn from *hourly*'s own low watermark; so every queue
between the jobs is bounded, and what moves the run on is the watermark making its way through the
three jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import lowwater
from examples.flights import compare, data, expected, table
from examples.flights.data import DAY, HOUR, Flight
from examples.flights.expected import Hourly, Window
from examples.flights.plain import (
    CARRIER_BOUNDS,
    ENRICHED,
    FLIGHTS,
    HOURLY,
    INPUTS,
    ORIGIN_BOUNDS,
    ORIGINS,
    SHARE,
    EnrichedStage,
    FlightsStage,
    HourlyStage,
    Inbox,
    Lease,
    Seen,
    by_carrier,
)
from examples.flights.replay import Beat, beats
from examples.flights.server import serving
from lowwater.watermark import Watermark

AHEAD: Final = 7 * DAY
"""Most event time by which the injectors run ahead of hourly. It must exceed the lateness of the
worst flight (33 h), or no watermark would move."""
PAUSE_SECONDS: Final = 0.01
"""Seconds that an idle worker waits before it looks again."""
PROGRESS_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 30.0
STALE_SECONDS: Final = 60.0


class Claimed(Protocol):
    """A worker's claim: a lease, and the watermarks of its inputs."""

    lease: Lease

    def read(self) -> Seen:
        """Return the inputs' watermarks as they are known now."""
        ...

    def flush(self) -> None:
        """Return when what was reported last is durable."""


class Authority(Protocol):
    """The part of an authority that the run uses."""

    def claim(self, computation: str, worker: str, bounds: Sequence[bytes]) -> Claimed:
        """Claim the ranges between these bounds for a worker."""
        ...

    def low(self, computation: str) -> Watermark:
        """Return the published low watermark as it is known now."""
        ...

    def lines(self) -> tuple[table.Line, ...]:
        """Return where the three computations stand."""
        ...


@dataclass
class Result:
    """Result of a run."""

    rows: list[tuple[Window, Hourly]] = field(default_factory=list)
    duplicates: int = 0
    """Removed by enriched."""
    late: int = 0
    """Records that came after their window had closed: 0, or a watermark led."""


class Run:
    """The eight workers over one list of flights."""

    def __init__(
        self, flights: Sequence[Flight], start: int, authority: Authority, *, step: int = HOUR, ahead: int = AHEAD
    ) -> None:
        """Claim every range.

        Args:
            flights: Of each origin at least one.
            start: Where the replay clock starts, microseconds.
            authority: With the three computations registered.
            step: Event time per beat, microseconds.
            ahead: How far injectors may run ahead of hourly, microseconds.
        """
        self._authority = authority
        self._ahead = ahead
        self._stop = threading.Event()
        self._result = Result()
        names = data.airlines(), data.airports()
        to_hourly, to_enriched = Inbox(), [Inbox() for _ in CARRIER_BOUNDS[1:]]
        self._claims: list[Claimed] = []
        # The last job claims first: nobody reports before everybody holds.
        last = self._claim(HOURLY, HOURLY, ORIGIN_BOUNDS)
        self._hourly = HourlyStage(last.read, to_hourly, last.lease, self._write)
        self._enriched = []
        for number, (inbox, bounds) in enumerate(zip(to_enriched, _pairs(CARRIER_BOUNDS), strict=True)):
            claimed = self._claim(ENRICHED, f"{ENRICHED}-{number}", bounds)
            self._enriched.append(EnrichedStage(claimed.read, inbox, claimed.lease, to_hourly.put, names))
        self._injectors = []
        for origin, bounds in zip(ORIGINS, _pairs(ORIGIN_BOUNDS), strict=True):
            claimed = self._claim(FLIGHTS, origin, bounds)
            feed = _feed(flights, origin, start, step)
            self._injectors.append(FlightsStage(feed, claimed.lease, by_carrier(to_enriched)))

    def _claim(self, computation: str, worker: str, bounds: Sequence[bytes]) -> Claimed:
        claimed = self._authority.claim(computation, worker, bounds)
        self._claims.append(claimed)
        return claimed

    def _write(self, window: Window, row: Hourly) -> None:
        self._result.rows.append((window, row))

    def run(self, progress: Callable[[table.Snapshot], None]) -> Result:
        """Run until hourly has finished and said so; ``progress`` is called about twice a second.

        Raises whatever the first failing worker raised; the others are stopped.
        """
        with ThreadPoolExecutor(max_workers=8, thread_name_prefix="worker") as pool:
            running: list[Future[None]] = [pool.submit(self._inject, stage) for stage in self._injectors]
            running += [pool.submit(self._follow, stage.turn) for stage in self._enriched]
            running.append(pool.submit(self._follow, self._hourly.turn))
            try:
                while wait(running, PROGRESS_SECONDS, FIRST_EXCEPTION).not_done:
                    progress(self.snapshot())
                    if any(future.done() and future.exception() for future in running):
                        break
            finally:
                self._stop.set()
        for future in running:
            future.result()
        for claimed in self._claims:
            claimed.flush()
        progress(self.snapshot())
        self._result.duplicates = sum(stage.duplicates for stage in self._enriched)
        self._result.late = self._hourly.late
        return self._result

    def snapshot(self) -> table.Snapshot:
        """Return where everything stands now."""
        clock = max(stage.clock for stage in self._injectors)
        return table.Snapshot(
            clock=clock if clock > 0 else None,
            lines=self._authority.lines(),
            note=f"{len(self._result.rows):,} windows closed",
        )

    def _inject(self, stage: FlightsStage) -> None:
        while not self._stop.is_set():
            if stage.clock - self._ahead > self._authority.low(HOURLY).micros and stage.clock > 0:
                self._stop.wait(PAUSE_SECONDS)
            elif stage.turn():
                return

    def _follow(self, turn: Callable[[], bool]) -> None:
        while not self._stop.is_set() and not turn():
            self._stop.wait(PAUSE_SECONDS)


def _pairs(bounds: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(pairwise(bounds))


def _feed(flights: Sequence[Flight], origin: str, start: int, step: int) -> Iterator[Beat]:
    return beats([flight for flight in flights if flight.origin == origin], start=start, step=step)


class _Worker:
    """One worker of the real authority."""

    def __init__(self, worker: lowwater.Worker, bounds: Sequence[bytes]) -> None:
        self._worker = worker
        self._claimed = worker.claim(bounds=bounds)
        self.lease: Lease = self._claimed

    def read(self) -> Seen:
        return self._worker.inputs()

    def flush(self) -> None:
        self._claimed.flush(FLUSH_SECONDS)


class LowwaterAuthority:
    """The real one, through a client. Registers the three computations."""

    def __init__(self, client: lowwater.Client) -> None:
        self._client = client
        for name, inputs in INPUTS.items():
            client.register(name, inputs=inputs, heuristics=(SHARE,))
        self._readers = {name: client.inputs(name) for name in INPUTS}

    def claim(self, computation: str, worker: str, bounds: Sequence[bytes]) -> Claimed:
        """Claim the ranges between these bounds for a worker."""
        return _Worker(self._client.worker(computation, name=worker), bounds)

    def low(self, computation: str) -> Watermark:
        """Return the newest low watermark of the client. It is subscribed: no request is sent."""
        return self._readers[computation].read().low

    def lines(self) -> tuple[table.Line, ...]:
        """Return where the three computations stand.

        Raises:
            ConnectionError: The authority was not heard for a minute. A pipeline would go on
                without it; this run, whose injectors wait for its watermarks, would wait for ever.
        """
        views = {name: reader.read() for name, reader in self._readers.items()}
        for name, view in views.items():
            if view.stale_for > STALE_SECONDS:
                raise ConnectionError(f"no word of {name} for {view.stale_for:.0f} s: is lowwater serve still running?")
        return tuple(table.line_of(view.each[name], SHARE) for name, view in views.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the year, check every window, print one JSON line.

    Exit code 1 when a window is not the batch answer.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.flights.year", description=main.__doc__)
    parser.add_argument("--address", help="of a running lowwater serve without these computations; default: its own")
    options = parser.parse_args(arguments)
    print("reading the flights of 2013 ...", file=sys.stderr)
    flights = data.load()
    start = min(flight.sched_dep for flight in flights) // HOUR * HOUR
    with contextlib.ExitStack() as stack:
        address = options.address
        if address is None:
            address = stack.enter_context(serving(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        client = stack.enter_context(lowwater.connect(address))
        began = time.monotonic()
        result = shown(Run(flights, start, LowwaterAuthority(client)))
        seconds = time.monotonic() - began
    wrong = compare.differences(result.rows, expected.hourly())
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    print(
        json.dumps(
            {
                "flights": len(flights),
                "windows": len(result.rows),
                "windows_wrong": len(wrong),
                "late_records": result.late,
                "duplicates_removed": result.duplicates,
                "seconds": round(seconds, 1),
            }
        )
    )
    return 1 if wrong or result.late else 0


def shown(run: Run) -> Result:
    """Run with the live table on standard error."""
    snapshots: queue.SimpleQueue[table.Snapshot | None] = queue.SimpleQueue()
    screen = threading.Thread(target=table.show, args=(iter(snapshots.get, None), sys.stderr), name="screen")
    screen.start()
    try:
        return run.run(snapshots.put)
    finally:
        snapshots.put(None)
        screen.join()


if __name__ == "__main__":
    sys.exit(main())
