"""Injector of the flights, in the order in which their records became available.

It reports a frontier.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import lowwater
from examples.flights.data import DAY, HOUR, Flight, moment

FLIGHTS = "flights"


def day_file(landing: Path, micros: int) -> Path:
    """Return the file of the flights of a day."""
    return landing / f"{moment(micros // DAY * DAY):%Y-%m-%d}.csv"


def inject(lw: lowwater.Client, flights: Sequence[Flight], landing: Path) -> None:
    """Write each flight into the file of its day; report the frontier after each hour of records.

    A flight comes hours after its departure, some a day later. The frontier is the oldest departure
    that is still to come, so it is exact. Rows are in their files before it passes them.
    """
    landing.mkdir(parents=True)
    with lw.worker(FLIGHTS, name="injector") as worker:
        lease = worker.claim()
        for rows, frontier in hours(flights):
            write(landing, rows)
            if frontier is not None:
                lease.advance(None, oldest=None, frontier=frontier)
        # Days that the end overtakes would have one task together.
        lease.flush(60)
        lease.finish()


def hours(flights: Sequence[Flight]) -> Iterator[tuple[list[Flight], int | None]]:
    """Yield the records of each hour, and the oldest departure of all later records.

    None: no record is later.
    """
    ordered = sorted(flights, key=lambda flight: flight.available)
    oldest: list[int] = []
    for flight in reversed(ordered):
        oldest.append(min(flight.sched_dep, oldest[-1]) if oldest else flight.sched_dep)
    oldest.reverse()
    done = 0
    for _, group in groupby(ordered, key=lambda flight: flight.available // HOUR):
        rows = list(group)
        done += len(rows)
        yield rows, oldest[done] if done < len(ordered) else None


def write(landing: Path, rows: Iterable[Flight]) -> None:
    """Append flights to the files of their days."""
    by_day: dict[Path, list[Flight]] = {}
    for flight in rows:
        by_day.setdefault(day_file(landing, flight.sched_dep), []).append(flight)
    for path, some in by_day.items():
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows((f.id, f.sched_dep, f.origin, int(f.cancelled), f.dep_delay or 0) for f in some)
