"""Closers of days: each takes a task, adds the day up, and commits its output under the lease."""

from __future__ import annotations

import csv
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import lowwater
from examples.daily_close.injector import FLIGHTS, day_file
from examples.flights.data import DAY

GROUP = "daily"

Row = tuple[str, int, int, int]
"""Origin, flights, cancelled, minutes of delay at departure."""

Work = Callable[[lowwater.TaskLease, Path], bytes]
"""Adds up the day of a lease, writes it to a path, and returns its digest."""


def close(lw: lowwater.Client, name: str, closes: Path, work: Work, pause: Callable[[lowwater.TaskLease], None]) -> int:
    """Close days until nothing is left of the data, and return how many.

    ``pause`` is called between taking a day and adding it up.

    The task says that every flight of the day is in its file: it was made when the low watermark
    passed the day. Another worker may have the day by the time this one is done: then StaleLease
    says so, and what was written here, under a name of its own, is left for the broom.
    """
    tasks, closed = lw.tasks(FLIGHTS), 0
    while True:
        lease = tasks.take(GROUP, worker=name, wait=5)
        if lease is None:
            if tasks.list(GROUP, limit=1).group.closed.finished:
                return closed
            continue
        pause(lease)
        output = lease.output("close.csv")
        written = work(lease, closes / output)
        try:
            lease.commit([output], digest=written)
        except lowwater.StaleLease as late:
            print(f"{name}: {late.message}")
        else:
            closed += 1


def files(landing: Path, task: lowwater.TaskView) -> list[Path]:
    """Return the files that hold the flights of a task's interval."""
    if task.until.finished:  # whatever there is from here on
        return [path for path in sorted(landing.iterdir()) if path >= day_file(landing, task.at.micros)]
    days = [day_file(landing, day) for day in range(task.at.micros, task.until.micros, DAY)]
    return [path for path in days if path.exists()]


def close_day(landing: Path, lease: lowwater.TaskLease, path: Path) -> bytes:
    """Do the work in plain Python."""
    return write(path, add_up(landing, lease.task))


def add_up(landing: Path, task: lowwater.TaskView) -> list[Row]:
    """Add up the flights of a task's interval by origin."""
    sums: dict[str, list[int]] = {}
    for path in files(landing, task):
        with path.open(encoding="utf-8", newline="") as file:
            for _, departure, origin, cancelled, delay in csv.reader(file):
                if lowwater.Watermark(int(departure)) < task.until:
                    totals = sums.setdefault(origin, [0, 0, 0])
                    totals[0], totals[1], totals[2] = totals[0] + 1, totals[1] + int(cancelled), totals[2] + int(delay)
    return [(origin, *map(int, totals)) for origin, totals in sorted(sums.items())]  # type: ignore[misc]  # three of them


def write(path: Path, rows: list[Row]) -> bytes:
    """Write a close, and return its digest."""
    text = "".join(f"{origin},{flights},{cancelled},{delay}\n" for origin, flights, cancelled, delay in rows)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return sha256(text.encode()).digest()


def read(path: Path) -> list[Row]:
    """Read a close: a file, or a directory of Spark's."""
    rows: list[Row] = []
    for part in sorted(path.glob("part-*")) if path.is_dir() else [path]:
        with part.open(encoding="utf-8", newline="") as file:
            rows += [(origin, *map(int, totals)) for origin, *totals in csv.reader(file)]  # type: ignore[misc]  # three of them
    return rows
