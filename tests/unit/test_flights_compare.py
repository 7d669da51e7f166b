"""The comparison: who closes which window when, and what comes too late for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.flights import compare, data, expected
from examples.flights.compare import HEURISTIC, LOW, SPARK_2H, SPARK_6H, Batch, Comparison, Missing, WrongWindowsError
from examples.flights.data import HOUR, MINUTE
from examples.flights.expected import Hourly, Window
from lowwater.watermark import MAX, MIN
from tests.unit.flights_year import demo_slice, simulated

DAY = 1_357_603_200_000_000
"""8 January 2013, 00:00 UTC."""


def at(hours: float) -> int:
    return DAY + int(hours * HOUR)


def batch(number: int, *times: float, low: float | None = None) -> Batch:
    return Batch(
        batch=number,
        clock=at(number),
        low=MIN if low is None else at(low),
        heuristic=MIN,
        records=tuple(("JFK", at(time)) for time in times),
    )


def by_name(batches: list[Batch]) -> dict[str, Comparison]:
    return {found.name: found for found in compare.compare(batches)}


def spark(batches: list[Batch], delay: int) -> tuple[dict[Window, tuple[int, int]], int]:
    """A windowed count in append mode, one row at a time: (closing batch, count) of each window, and rows dropped."""
    state: dict[Window, int] = {}
    closed: dict[Window, tuple[int, int]] = {}
    newest = dropped = late_mark = 0
    for index, each in enumerate(batches):
        mark = max(late_mark, newest // 1000 * 1000 - delay)
        for origin, time in each.records:
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


def test_sparks_watermark_comes_from_earlier_batches_late_rows_too_in_milliseconds() -> None:
    first, second = batch(0, 5), batch(1, 1, 0)
    odd = Batch(2, at(2), MIN, MIN, (("JFK", at(6) + 1_999),))
    assert compare.spark_watermarks([first, second, odd, odd], 2 * HOUR) == [0, at(3), at(3), at(4) + 1_000]


def test_a_record_in_the_closing_batch_counts_one_in_the_next_is_missing() -> None:
    batches = [batch(0, 0.5), batch(1, 0.6, low=1), batch(2, 0.7, low=1)]
    marks = compare.watermarks(batches)[LOW]
    assert compare.closings(batches, marks) == {("JFK", at(0)): 1}
    assert compare.missing(batches, marks) == [Missing("JFK", at(0.7), at(2))]


def test_a_window_closes_when_the_watermark_reaches_its_end_and_not_before() -> None:
    early = replace(batch(1), low=at(1) - 1)
    batches = [batch(0, 0.5), early, batch(2, low=1)]
    assert compare.closings(batches, compare.watermarks(batches)[LOW]) == {("JFK", at(0)): 2}


def test_a_watermark_that_goes_back_closes_nothing_twice() -> None:
    batches = [batch(0, 0.5, low=1), batch(1, low=0), batch(2, 2.5, low=1)]
    assert compare.watermarks(batches)[LOW] == [at(1), at(1), at(1)]


def test_origins_have_windows_of_their_own() -> None:
    batches = [
        Batch(0, at(0), MIN, MIN, (("JFK", at(0.5)),)),
        Batch(1, at(1), at(1), MIN, ()),
        Batch(2, at(2), at(1), MIN, (("EWR", at(0.5)),)),
    ]
    assert by_name(batches)[LOW].missing_records == 1
    assert by_name(batches)[LOW].windows_wrong == 1


def test_waits_and_windows_that_never_close() -> None:
    batches = [batch(0, 0.5, 1.5, 2.5, 9.5), batch(4, low=1), batch(7, low=3), batch(9, low=9)]
    low, heuristic, spark_2h, spark_6h = compare.compare(batches)
    assert (low.windows, low.windows_never_closed, low.missing_records) == (3, 1, 0)
    # Ends at 1, 2, 3; closed at 4, 7, 7.
    assert (low.median_wait_seconds, low.p99_wait_seconds) == (4 * 3600, 5 * 3600)
    assert (heuristic.windows, heuristic.median_wait_seconds, heuristic.p99_wait_seconds) == (0, None, None)
    # From the second batch on, Spark stands at 7:30 and 3:30.
    assert (spark_2h.windows, spark_2h.median_wait_seconds) == (3, 2 * 3600)
    assert (spark_6h.windows, spark_6h.windows_never_closed) == (3, 1)
    assert (low.batches, low.records) == (4, 4)
    assert (low.batch_span_seconds_median, low.batch_span_seconds_max) == (3 * 3600, 4 * 3600)


def test_finished_closes_everything() -> None:
    batches = [batch(0, 0.5, 30), replace(batch(1), low=MAX)]
    assert by_name(batches)[LOW].windows == 2


def test_the_low_watermark_misses_nothing_and_the_others_do() -> None:
    found = by_name(simulated().batches)
    assert found[LOW].missing_records == found[LOW].windows_wrong == found[LOW].windows_never_closed == 0
    assert found[LOW].windows == 212
    for name in (HEURISTIC, SPARK_2H, SPARK_6H):
        assert found[name].missing_records > 0
        assert 0 < found[name].windows_wrong <= found[name].windows
    assert found[SPARK_2H].missing_records > found[SPARK_6H].missing_records
    assert (found[HEURISTIC].median_wait_seconds or 0) < (found[LOW].median_wait_seconds or 0)
    assert found[LOW].batch_span_seconds_max == 3600


def test_the_report_is_a_list_with_the_agreed_fields(tmp_path: Path) -> None:
    path = tmp_path / "made" / "report.json"
    budgeted = [replace(each, budget=each.low) for each in simulated().batches]
    compare.write_report(path, compare.compare(budgeted))
    report = json.loads(path.read_text())
    assert [entry["name"] for entry in report] == list(compare.STRATEGIES)
    for entry in report:
        assert {"name", "windows", "missing_records", "median_wait_seconds", "p99_wait_seconds"} <= entry.keys()


def test_a_run_without_a_lateness_budget_is_compared_without_it() -> None:
    assert [found.name for found in compare.compare(simulated().batches)] == [LOW, HEURISTIC, SPARK_2H, SPARK_6H]


def test_batches_are_kept_exactly(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    for each in simulated().batches:
        compare.append_batch(path, each)
    assert compare.read_batches(path) == simulated().batches


def test_of_a_replayed_batch_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    again = replace(batch(1, 0.5), clock=at(3))
    for each in (batch(0), batch(1, 0.5), again, batch(2)):
        compare.append_batch(path, each)
    assert compare.read_batches(path) == [batch(0), again, batch(2)]


@pytest.mark.parametrize("text", ['{"batch": 1', "{}", "[]", '{"batch": 1, "clock": 2, "records": []}'])
def test_a_line_that_is_no_batch_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "batches.jsonl"
    compare.append_batch(path, batch(0))
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ValueError, match=r"batches\.jsonl:2 is not a recorded batch"):
        compare.read_batches(path)


WANTED = {("JFK", at(14)): Hourly(12, 1, 11, 250), ("LGA", at(14)): Hourly(3, 0, 3, -9)}


def test_the_right_output_has_no_differences() -> None:
    assert compare.differences(WANTED.items(), WANTED) == []
    compare.require_exact(WANTED.items(), WANTED)
    compare.require_exact(simulated().rows, expected.hourly(data.SLICE_START, data.SLICE_END))


def test_each_kind_of_difference_is_told() -> None:
    rows = [
        (("JFK", at(14)), Hourly(12, 1, 11, 249)),
        (("JFK", at(15)), Hourly(1, 0, 1, 0)),
        (("JFK", at(15)), Hourly(1, 0, 1, 0)),
        (("EWR", at(16)), Hourly(1, 0, 1, 0)),
    ]
    wanted = {**WANTED, ("JFK", at(15)): Hourly(1, 0, 1, 0)}
    first, second, third, fourth = compare.differences(rows, wanted)
    assert first == "JFK 2013-01-08 14:00 UTC: delay_minutes is 249, expected 250"
    assert second.startswith("LGA 2013-01-08 14:00 UTC: never written; expected Hourly(flights=3")
    assert third.startswith("JFK 2013-01-08 15:00 UTC: written 2 times")
    assert fourth.startswith("EWR 2013-01-08 16:00 UTC: written, but no flight was scheduled then")


def test_a_wrong_window_fails_loudly_with_the_first_twenty() -> None:
    wanted = {("JFK", at(hour)): Hourly(1, 0, 1, MINUTE) for hour in range(30)}
    with pytest.raises(WrongWindowsError, match=r"(?s)30 of 30 windows.*08 19:00.*and 10 more$"):
        compare.require_exact([], wanted)
