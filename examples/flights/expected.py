"""The batch answer: what each job must end with, by pandas on the CSV.

Written apart from the pipeline and from :mod:`examples.flights.data`: the scheduled departure is
taken from the local date and time of New York, not from the UTC columns. Times are microseconds
since the Unix epoch, UTC.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any, NamedTuple

import pandas as pd

from examples.flights.data import HOUR, folder, micros

Window = tuple[str, int]
"""Origin and start of the scheduled hour [start, start + 1 h)."""


class Hourly(NamedTuple):
    """Delays of the flights of one origin that were scheduled within one hour.

    All exact integers.
    """

    flights: int
    """All, cancelled ones included."""
    cancelled: int
    delayed: int
    """Flights with a departure delay, early ones included: the count behind the mean."""
    delay_minutes: int
    """Sum of the departure delays; early departures count negative."""

    @property
    def mean_delay(self) -> float | None:
        """Mean departure delay in minutes; None when every flight was cancelled."""
        return self.delay_minutes / self.delayed if self.delayed else None


class Enriched(NamedTuple):
    """Columns that the joins add to a flight."""

    airline: str
    """The carrier's name."""
    destination: str | None
    """The destination airport's name; None for the four that the table lacks (BQN, PSE, SJU, STT).
    """
    route: str
    """Origin and destination, such as "JFK-HNL"."""


@functools.cache
def _flights() -> Any:
    columns = ["year", "month", "day", "sched_dep_time", "dep_delay", "carrier", "origin", "dest"]
    frame = pd.read_csv(folder() / "flights.csv.zip", usecols=columns, keep_default_na=False, na_values=["", "NA"])
    days = pd.to_datetime(frame[["year", "month", "day"]])
    clock = frame["sched_dep_time"]
    local = days + pd.to_timedelta(clock // 100 * 60 + clock % 100, unit="min")
    # Ambiguous and skipped hours raise: no flight is scheduled in them.
    utc = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    frame["sched_dep"] = utc.astype("datetime64[us, UTC]").astype("int64")
    frame["window"] = frame["sched_dep"] // HOUR * HOUR
    return frame


def _between(start: datetime | None, end: datetime | None) -> Any:
    frame = _flights()
    if start is not None:
        frame = frame[frame["sched_dep"] >= micros(start)]
    if end is not None:
        frame = frame[frame["sched_dep"] < micros(end)]
    return frame


def hourly(start: datetime | None = None, end: datetime | None = None) -> dict[Window, Hourly]:
    """Return every window of the flights scheduled in [start, end), all without bounds."""
    frame = _between(start, end)
    delay = frame["dep_delay"]
    table = (
        frame.assign(cancelled=delay.isna(), delayed=delay.notna(), delay_minutes=delay.fillna(0).astype("int64"))
        .groupby(["origin", "window"])
        .agg(flights=("origin", "size"), cancelled=("cancelled", "sum"), delayed=("delayed", "sum"),
             delay_minutes=("delay_minutes", "sum"))
    )  # fmt: skip
    return {
        (origin, int(window)): Hourly(*map(int, row))
        for (origin, window), row in zip(table.index, table.itertuples(index=False), strict=True)
    }


def enriched(start: datetime | None = None, end: datetime | None = None) -> dict[int, Enriched]:
    """Return the joined columns by flight id (its row number), for flights in [start, end)."""
    airlines = pd.read_csv(folder() / "airlines.csv", keep_default_na=False).set_index("carrier")["name"]
    airports = pd.read_csv(folder() / "airports.csv", keep_default_na=False).set_index("faa")["name"]
    frame = _between(start, end)
    names = frame["dest"].map(airports)
    return {
        int(number): Enriched(airline, None if pd.isna(name) else name, route)
        for number, airline, name, route in zip(
            frame.index, frame["carrier"].map(airlines), names, frame["origin"] + "-" + frame["dest"], strict=True
        )
    }
