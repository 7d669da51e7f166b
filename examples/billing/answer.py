"""Expected bills, by plain Python over the flights, and the bills in the table, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from examples.flights.data import DAY, Flight, micros


class Bill(NamedTuple):
    """A row of the table."""

    account: str
    day: int
    """Its start, microseconds."""
    flights: int
    cents: int


def expected(flights: Iterable[Flight]) -> list[Bill]:
    """Return the bills of all accounts and days."""
    miles: dict[tuple[str, int], list[int]] = {}
    for flight in flights:
        miles.setdefault((flight.carrier, flight.sched_dep - flight.sched_dep % DAY), []).append(flight.distance)
    return sorted(Bill(account, day, len(flown), 2 * sum(flown)) for (account, day), flown in miles.items())


def billed(table: Path) -> list[Bill]:
    """Return the rows of a Delta table that is only appended to, by its JSON log."""
    files = []
    for version in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in version.read_text(encoding="utf-8").split("\n") if line]
        assert not any("remove" in action for action in actions), f"{version} takes rows away"
        files += [action["add"]["path"] for action in actions if "add" in action]
    rows = [row for name in files for row in pq.ParquetFile(table / name).read().to_pylist()]
    return sorted(Bill(row["account"], _start(row["day"]), row["flights"], row["cents"]) for row in rows)


def _start(day: datetime) -> int:
    """Return a time, which Spark writes in UTC, in microseconds."""
    return micros(day.replace(tzinfo=UTC))
