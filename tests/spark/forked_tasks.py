"""What Spark's Python workers run in the tests of forks. Imports little: some of them do so for a single task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import lowwater

_clients: dict[str, lowwater.Client] = {}
_uses = 0


class Done(NamedTuple):
    """What a task saw, and where."""

    number: int
    own: int
    driver: int
    pid: int
    uses: int


def report_and_read(address: str, run: int, rows: Iterable[Any]) -> Iterator[Done]:
    """One task: report for its own computation and read that and the driver's, with the worker's cached client."""
    global _uses
    lw = _clients.setdefault(address, lowwater.connect(address))
    for row in rows:
        _uses += 1
        name = f"task-{row.id}"
        with lw.worker(name) as worker:
            lease = worker.claim()
            lease.advance(None, oldest=None, frontier=run)
            lease.flush(20)
        own, driver = lw.wait(name, run, timeout=20).low.micros, lw.get("driver")["driver"].low.micros
        yield Done(row.id, own, driver, os.getpid(), _uses)
