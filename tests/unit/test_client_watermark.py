"""Event times: what becomes one, what is refused, how they order."""

from array import array
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowwater
from lowwater import MAX, MIN, Watermark, Watermarks
from lowwater.watermark import all_to_micros, to_micros

INT64 = st.integers(MIN, MAX)


def test_a_watermark_of_every_kind_of_time() -> None:
    moment = datetime(2013, 1, 9, 15, 30, tzinfo=timezone(timedelta(hours=1)))
    micros = 1_357_741_800_000_000
    assert Watermark.of(moment) == Watermark.of(micros) == Watermark.of(Watermark(micros))
    assert Watermark.of(micros).datetime() == moment
    assert Watermark.of(micros).datetime().tzinfo is UTC


def test_naive_datetimes_are_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="tzinfo=UTC"):
        Watermark.of(datetime(2013, 1, 9))  # noqa: DTZ001 - the mistake itself


@pytest.mark.parametrize("wrong", [1.5, "2013-01-09", None, True, b"x"])
def test_what_is_no_event_time_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="microseconds"):
        to_micros(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [MIN - 1, MAX + 1])
def test_beyond_64_bits_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        to_micros(wrong)


@given(INT64, INT64)
def test_watermarks_order_as_their_times(a: int, b: int) -> None:
    assert (Watermark(a) < Watermark(b)) == (a < b)
    assert Watermark.UNKNOWN <= Watermark(a) <= Watermark.FINISHED


def test_unknown_and_finished_have_no_date() -> None:
    assert Watermark.UNKNOWN.unknown
    assert Watermark.FINISHED.finished
    assert (str(Watermark.UNKNOWN), str(Watermark.FINISHED)) == ("unknown", "finished")
    for timeless in (Watermark.UNKNOWN, Watermark.FINISHED, Watermark(MAX - 1)):
        with pytest.raises(ValueError, match=r"date|years"):
            timeless.datetime()
    assert str(Watermark(MAX - 1)) == f"{MAX - 1} us"


@given(st.datetimes(timezones=st.just(UTC)))
def test_datetimes_come_back_exactly(moment: datetime) -> None:
    assert Watermark.of(moment).datetime() == moment


def test_a_watermark_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Watermark(1).micros = 2  # type: ignore[misc]
    assert len({Watermark(1), Watermark(1)}) == 1


@given(st.lists(INT64))
def test_every_container_of_integers_gives_the_same(times: list[int]) -> None:
    column = np.array(times, dtype=np.int64)
    for container in (times, tuple(times), array("q", times), column, iter(times), [Watermark(t) for t in times]):
        assert all_to_micros(container) == times


def test_none_means_nothing() -> None:
    assert all_to_micros([None, 5]) == [MAX, 5]


@pytest.mark.parametrize("kind", ["datetime64[ns]", "datetime64[us]", "float64"])
def test_arrays_whose_unit_would_be_a_guess_are_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="astype"):
        all_to_micros(np.array([1, 2]).astype(kind))


def test_columns_of_watermarks() -> None:
    column = Watermarks([MIN, 5, MAX])
    assert list(column) == [Watermark.UNKNOWN, Watermark(5), Watermark.FINISHED] == column
    assert column[1:] == [Watermark(5), Watermark.FINISHED]
    assert np.asarray(column.micros).tolist() == [MIN, 5, MAX]
    assert column.micros.readonly
    assert lowwater.Watermark is Watermark
