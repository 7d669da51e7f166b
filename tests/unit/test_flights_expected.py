"""The batch answer by pandas, against a count by hand of the flights as the feed has them."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from examples.flights import data, expected
from examples.flights.data import HOUR, micros
from examples.flights.expected import Hourly
from tests.unit.flights_year import demo_slice, year


def test_every_window_of_the_year_two_ways() -> None:
    """Local dates and times of New York by pandas, UTC columns by hand: the same windows, in every season."""
    sums: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for flight in year():
        window = sums[flight.origin, flight.sched_dep // HOUR * HOUR]
        window[0] += 1
        if flight.dep_delay is None:
            window[1] += 1
        else:
            window[2] += 1
            window[3] += flight.dep_delay
    assert {window: Hourly(*values) for window, values in sums.items()} == expected.hourly()
    assert len(sums) == 19_486


def test_a_slice_is_cut_by_event_time() -> None:
    wanted = expected.hourly(data.SLICE_START, data.SLICE_END)
    assert len(wanted) == 212
    assert sum(window.flights for window in wanted.values()) == len(demo_slice())
    assert sum(window.cancelled for window in wanted.values()) == 19
    worst = wanted["JFK", micros(datetime(2013, 1, 9, 14, tzinfo=UTC))]
    assert worst.delay_minutes > 1301


def test_the_mean_is_over_flights_that_left() -> None:
    assert Hourly(3, 1, 2, 5).mean_delay == 2.5
    assert Hourly(1, 1, 0, 0).mean_delay is None


def test_the_joins() -> None:
    rich = expected.enriched(data.SLICE_START, data.SLICE_END)
    assert rich.keys() == {flight.id for flight in demo_slice()}
    assert rich[7072] == ("Hawaiian Airlines Inc.", "Honolulu Intl", "JFK-HNL")
    assert {row.route[4:] for row in rich.values() if row.destination is None} == {"BQN", "PSE", "SJU", "STT"}
