"""Departures of the weeks around the blizzard of 8 and 9 February 2013, and their replay steps.

The replay is the same in every run.

The first step brings the five weeks from which the model learns; from then on the replay clock goes
on by some hours a step. The feed of LaGuardia stands still for twelve hours of an ordinary
Wednesday, and then brings what it has missed. Each feed is in order of event time, so it knows
exactly how far it has come. Times are microseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from examples.flights import data
from examples.flights.data import HOUR, MINUTE, micros, moment
from examples.zeitgeist.computations import FEEDS

BEGIN: Final = micros(datetime(2013, 1, 1, tzinfo=UTC))
START: Final = micros(datetime(2013, 2, 6, tzinfo=UTC))
END: Final = micros(datetime(2013, 2, 12, 12, tzinfo=UTC))

STALLED: Final = "LGA"
STALL: Final = (START + 12 * HOUR, START + 24 * HOUR)
"""Replay clock between which nothing comes from that feed."""

CLOCKS: Final = range(START, END + HOUR, 3 * HOUR)
"""The replay clock of each step."""


class Departure(NamedTuple):
    """A flight that has left."""

    id: int
    origin: str
    at: int
    """Event time: when it left."""


class Step(NamedTuple):
    """The events of one time of the replay clock."""

    clock: int
    arriving: Sequence[Departure]
    frontiers: Mapping[str, int]
    """Frontier of each airport's feed: every later record of the feed is at or above it."""


def departures() -> list[Departure]:
    """Return the departures of the replay in order of time; reads the file of the whole year."""
    departures_ = [
        Departure(flight.id, flight.origin, flight.sched_dep + flight.dep_delay * MINUTE)
        for flight in data.load()
        if flight.dep_delay is not None
    ]
    return sorted(
        (departure for departure in departures_ if BEGIN <= departure.at < END), key=lambda departure: departure.at
    )


def steps(departures: Sequence[Departure], clocks: Iterable[int] = CLOCKS) -> list[Step]:
    """Return the whole replay; the records before the first clock come in the first step."""
    frontiers = dict.fromkeys(FEEDS, BEGIN)
    steps_ = []
    for clock in clocks:
        before = dict(frontiers)
        frontiers |= {feed: clock for feed in FEEDS if not (feed == STALLED and STALL[0] < clock <= STALL[1])}
        arriving = [
            departure
            for departure in departures
            if before[departure.origin] <= departure.at < frontiers[departure.origin]
        ]
        steps_.append(Step(clock, arriving, dict(frontiers)))
    return steps_


def put(step: Step, folder: Path) -> None:
    """Let the records of a step arrive: a file of JSON lines, which appears whole."""
    if not step.arriving:
        return
    name = f"{moment(step.clock):%m-%dT%H}.json"
    beside = folder.parent / f"arriving-{name}"
    lines = [
        json.dumps(departure._asdict() | {"at": moment(departure.at).isoformat()}) + "\n" for departure in step.arriving
    ]
    beside.write_text("".join(lines), encoding="utf-8")
    beside.rename(folder / name)
