"""The real flights, read once for all tests."""

from __future__ import annotations

import functools

from examples.flights import data
from examples.flights.data import Flight
from examples.flights.simulate import Result, simulate

START = data.micros(data.SLICE_START)
END = data.micros(data.SLICE_END)


@functools.cache
def year() -> tuple[Flight, ...]:
    """Every flight of 2013."""
    return tuple(data.load())


@functools.cache
def demo_slice() -> tuple[Flight, ...]:
    """The flights of 8 to 11 January."""
    return tuple(flight for flight in year() if START <= flight.sched_dep < END)


@functools.cache
def simulated() -> Result:
    """The demo's run without Spark and without a server."""
    return simulate(demo_slice(), START)
