"""Public constructors and functions of the client: what is no event time, or no count, is refused with the fix."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowwater
import lowwater.aio
from lowwater import MAX, MIN, Histogram, TaskAttempt, Watermark, Watermarks
from lowwater.histogram import MOST_RECORDS

UTC = dt.UTC
FIX = re.compile("time zone|microseconds|64 bits")
"""Every refusal of an event time says one of these."""

BAD_TIMES: st.SearchStrategy[Any] = st.one_of(
    st.datetimes(),
    st.booleans(),
    st.floats(),
    st.text(),
    st.integers(min_value=MAX + 1),
    st.integers(max_value=MIN - 1),
    st.dates(),
    st.timedeltas(),
    st.sampled_from([Decimal(1), 1j, np.float64(1), np.bool_(True), np.datetime64(1, "us"), object(), [1]]),
)

ONE = TaskAttempt(1, 2, 3)


@pytest.fixture(scope="module")
def lw() -> Iterator[lowwater.Client]:
    """Nobody listens there: what it refuses, it refuses by itself."""
    with lowwater.connect("127.0.0.1:1", timeout=0.01) as client:
        yield client


TAKES_ONE: dict[str, Callable[[lowwater.Client, Any], object]] = {
    "Watermark.of": lambda _, t: Watermark.of(t),
    "Watermarks": lambda _, t: Watermarks([0, t]),
    "Histogram": lambda _, t: Histogram(t),
    "Histogram.add": lambda _, t: Histogram(0).add(t),
    "Histogram.add of none": lambda _, t: Histogram(0).add(t, 0),
    "Histogram.add_many": lambda _, t: Histogram(0).add_many([0, t]),
    "Histogram.age": lambda _, t: Histogram(0).age(t),
    "Histogram.from_columns reference": lambda _, t: Histogram.from_columns(t, [], []),
    "Histogram.from_columns starts": lambda _, t: Histogram.from_columns(0, [t], [1]),
    "Client.wait": lambda lw, t: lw.wait("a", t),
    "Client.complete": lambda lw, t: lw.complete("a", t),
    "Client.ranges": lambda lw, t: lw.ranges("a", below=t),
    "Client.history": lambda lw, t: lw.history("a", since=t),
    "Batches.stage_task": lambda lw, t: lw.batches.stage_task("a", 1, 1, ONE, handles=[0], oldest=[t]),
    "Batches.prepare bound": lambda lw, t: prepare(lw, bound=t),
    "Batches.prepare frontier": lambda lw, t: prepare(lw, frontiers=[(0.99, t)]),
    "Batches.prepare operation": lambda lw, t: prepare(lw, oldest_operation=t),
    "Worker.claim": lambda lw, t: lw.worker("a").claim(bound=t if not isinstance(t, list) else 1.5),  # type: ignore[arg-type]
    "Worker.claim of ranges": lambda lw, t: lw.worker("a").claim(bounds=[b"", b"m", b""], bound=[0, t]),
}
"""Every public function that takes an event time and needs no claim; tests/process/test_bad_messages.py has the others."""


def prepare(lw: lowwater.Client, **fields: Any) -> object:
    """Prepare a batch."""
    return lw.batches.prepare("a", 1, 1, **{"digest": b"", "tasks": [], "bound": 0, "seen": None, **fields})


@pytest.mark.parametrize("name", TAKES_ONE)
@given(time=BAD_TIMES)
@settings(max_examples=40)
def test_what_is_no_event_time_is_refused_everywhere(lw: lowwater.Client, name: str, time: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        TAKES_ONE[name](lw, time)
    assert FIX.search(str(error.value))


@pytest.mark.parametrize("name", [name for name in TAKES_ONE if not name.startswith(("Client", "Batches", "Worker"))])
@given(
    time=st.one_of(st.integers(MIN, MAX), st.datetimes(timezones=st.just(UTC)), st.integers(MIN, MAX).map(Watermark))
)
@settings(max_examples=20)
def test_what_is_one_is_taken(lw: lowwater.Client, name: str, time: Any) -> None:
    TAKES_ONE[name](lw, time)


@given(micros=st.one_of(BAD_TIMES, st.datetimes(timezones=st.just(UTC)), st.just(Watermark(0)), st.none()))
def test_a_watermark_is_made_from_integers_of_64_bits(micros: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"microseconds|64 bits|time zone|Watermark\.of"):
        Watermark(micros)


@given(micros=st.integers(MIN, MAX))
def test_integers_of_other_kinds_become_plain(micros: int) -> None:
    made = Watermark(np.int64(micros))  # type: ignore[arg-type]  # an integer, in all but the type
    assert type(made.micros) is int
    assert made == Watermark(micros)
    column = np.array([micros, 0])
    assert list(Watermarks(column)) == list(Watermarks([micros, 0])) == list(Watermarks(Watermarks(column).micros))


@pytest.mark.parametrize("times", [5, 1.5, None, dt.datetime(2013, 1, 9, tzinfo=UTC), Watermark(0)], ids=repr)
def test_one_event_time_where_many_are_wanted_is_refused(times: Any) -> None:
    for takes in (Watermarks, Histogram(0).add_many, lambda value: Histogram.from_columns(0, value, [])):
        with pytest.raises(TypeError, match="pass a list or another iterable of event times"):
            takes(times)


def test_arrays_of_other_units_are_refused() -> None:
    for times in (np.array(["2013-01-09"], dtype="datetime64[s]"), np.array([1.5]), np.array([True])):
        with pytest.raises(TypeError, match="microseconds"):
            Histogram(0).add_many(times)
    with pytest.raises(ValueError, match="64 bits"):
        Watermarks(np.array([2**64 - 1], dtype=np.uint64))


# -- counts --------------------------------------------------------------------------------------------------------------


@given(
    times=st.lists(st.integers(MIN, MAX), max_size=9),
    n=st.one_of(st.integers(max_value=-1), st.integers(min_value=MOST_RECORDS + 1), st.floats(), st.text(), st.none()),
)
def test_a_bad_count_is_refused_and_changes_nothing(times: list[int], n: Any) -> None:
    histogram = Histogram(0)
    histogram.add_many(times)
    before = histogram.copy()
    with pytest.raises((TypeError, ValueError), match=r"pass an integer|cannot be added|count at most"):
        histogram.add(5, n)
    with pytest.raises((TypeError, ValueError), match=r"pass an integer|cannot be added|count at most"):
        Histogram.from_columns(0, [5], [n])
    assert histogram == before
    histogram._check()


@given(
    starts=st.lists(st.integers(MIN, MAX), max_size=5), counts=st.lists(st.integers(0, MOST_RECORDS // 8), max_size=5)
)
def test_columns_of_unequal_length_are_refused(starts: list[int], counts: list[int]) -> None:
    if len(starts) == len(counts):
        Histogram.from_columns(0, starts, counts)._check()
        return
    with pytest.raises(ValueError, match="pass one count a start"):
        Histogram.from_columns(0, starts, counts)


def test_a_merge_that_cannot_be_changes_nothing() -> None:
    histogram = Histogram(0)
    histogram.add(-5, MOST_RECORDS)
    other = Histogram(10**9)
    other.add(5)
    before = histogram.copy()
    with pytest.raises(ValueError, match="count at most"):
        histogram.merge(other)
    with pytest.raises(TypeError, match="add_many"):
        histogram.merge([5])  # type: ignore[arg-type]  # which is what is tested
    assert histogram == before
    histogram.age(10**15)
    assert histogram.total == MOST_RECORDS, "full buckets may still flow together"


# -- what the authority says ---------------------------------------------------------------------------------------------


@given(micros=st.integers(MIN, MAX))
def test_a_wild_clock_breaks_nobody_who_looks_at_it(micros: int) -> None:
    view = lowwater.WatermarkView("a", oldest_operation_micros=micros, since_micros=micros)
    assert view.since == view.oldest_operation
    assert (view.since is None) == (micros <= 0)
    last = dt.datetime.max.replace(tzinfo=UTC)
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    time = lowwater.Completion(1, Watermark(0), Watermark(0), micros).time
    assert time == (view.since or epoch)
    exact = 0 <= micros <= (last - epoch) // dt.timedelta(microseconds=1)
    assert not exact or (time - epoch) // dt.timedelta(microseconds=1) == micros
    assert exact or time in {epoch, last}
