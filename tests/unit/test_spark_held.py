"""The event times of what a stage holds, as its function returns them."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

from lowwater.watermark import MAX
from lowwater_spark.track.update import held_micros, least_record, times_in
from tests.kit.times import at

BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
MOMENTS = [at(9), BEFORE_1970, None, at(9, 30)]
MICROS = [1_357_722_000_000_000, -1, MAX, 1_357_723_800_000_000]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_arrow_times_are_what_their_datetimes_are(unit: str, zone: str) -> None:
    times: Any = pa.array(MOMENTS, pa.timestamp(unit, tz=zone))
    assert held_micros(times) == held_micros(times.to_pylist()) == MICROS
    chunks = pa.chunked_array([times.slice(1), times.slice(0, 1)])
    assert held_micros(chunks) == [*MICROS[1:], MICROS[0]]


def test_other_times_are_as_they_were() -> None:
    assert held_micros(()) == held_micros(pa.array([], pa.timestamp("us", tz="UTC"))) == []
    assert held_micros([at(9), 5]) == [MICROS[0], 5]
    assert held_micros(pa.array([5, None])) == [5, MAX]
    with pytest.raises(ValueError, match="time zone"):
        held_micros(pa.array([dt.datetime(2013, 1, 9)]))  # noqa: DTZ001 - the mistake itself


def test_the_least_record_is_in_what_is_pending_or_in_the_state() -> None:
    times = pa.array(MOMENTS, pa.timestamp("ns", tz="Europe/Berlin"))
    state = pa.table({"t": times, "due": times, "plain": [5, 6, 7, 8]})
    assert least_record([7], None, "t") == 7
    assert least_record([], None, "t") == least_record([], state.slice(0, 0), "t") == MAX
    assert least_record([7], state, "t") == -1
    assert least_record([-2], state, "t") == -2
    assert [least_record([], state, name) for name in ("plain", "missing", "")] == [MAX] * 3
    assert least_record([], state.slice(2, 1), "t") == MAX, "null is nothing"
    assert least_record([], state, "`T`") == -1, "the rule for names of columns holds in the state as well"
    assert least_record([], state.rename_columns(["Event Time", "t", "u"]), "event time") == -1


def test_the_event_times_are_taken_from_the_rows_own_column_where_that_is_surely_meant() -> None:
    """Spark takes another case for the same name, and a dot for a field of a struct: there they get a column of their own."""
    kinds = dict.fromkeys(["t", "T2", "a.b", "x", "X"], TimestampType()) | {
        "local": TimestampNTZType(),
        "n": LongType(),
    }
    schema = {name: SimpleNamespace(dataType=kind) for name, kind in kinds.items()}
    frame: Any = SimpleNamespace(columns=[*kinds], schema=schema)
    assert times_in(frame, "t") == "t"
    for name in ("T", "t2", "a.b", "x", "X", "`t`", "none", "local", "n"):
        assert times_in(frame, name) == "__lowwater_time"
