"""Columns of one event time per range, against plain lists, with and without numpy."""

import sys
from array import array

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowwater import MAX, MIN, Watermark
from lowwater._core.columns import Column, everything_but

VALUES = st.integers(-3, 3) | st.sampled_from([MIN, MAX])


@pytest.fixture(params=["numpy", "plain"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same columns in a process that has imported numpy and in one that has not."""
    if request.param == "plain":
        monkeypatch.delitem(sys.modules, "numpy")
    return str(request.param)


either_way = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def columns(draw: st.DrawFn, count: int) -> tuple[Column, list[int]]:
    """A column, dense or sparse, and the same as a list."""
    if draw(st.booleans()):
        plain = draw(st.lists(VALUES, min_size=count, max_size=count))
        return Column.of(plain), plain
    common = draw(VALUES)
    plain = [common] * count
    column = Column(count, common)
    for handle, micros in draw(st.lists(st.tuples(st.integers(0, count - 1), VALUES), max_size=6)):
        plain[handle] = column[handle] = micros
        column._check()
    return column, plain


@pytest.mark.usefixtures("arithmetic")
@either_way
@given(columns(40), VALUES, st.lists(st.integers(0, 39), unique=True))
def test_a_column_is_a_list(pair: tuple[Column, list[int]], limit: int, some: list[int]) -> None:
    column, plain = pair
    handles = array("I", sorted(some))
    assert list(column.values()) == plain
    assert [column[h] for h in range(40)] == plain
    assert list(column.values(handles)) == [plain[h] for h in handles]
    clamped = column.at_most(limit)
    clamped._check()
    assert list(clamped.values()) == [min(v, limit) for v in plain]
    assert column.holds_nothing == all(value == MAX for value in plain)
    if column.uniform is not None:
        assert set(plain) == {column.uniform}
    if some and column.value_of(handles) is not None:
        assert {plain[h] for h in handles} == {column.value_of(handles)}
    assert list(column.copy().values()) == plain


@pytest.mark.usefixtures("arithmetic")
@either_way
@given(columns(40), columns(40))
def test_differences_are_exact(these: tuple[Column, list[int]], those: tuple[Column, list[int]]) -> None:
    found = these[0].differences(those[0])
    expected = [h for h in range(40) if these[1][h] != those[1][h]]
    assert (list(range(40)) if found is None else list(found)) == expected
    assert (these[0] == those[0]) == (not expected)


@given(st.sets(st.integers(0, 9)))
def test_everything_but(handles: set[int]) -> None:
    found = everything_but(10, handles)
    assert (list(range(10)) if found is None else list(found)) == [h for h in range(10) if h not in handles]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1, None, Watermark(3)], id="list"),
        pytest.param(array("q", [1, MAX, 3]), id="array"),
        pytest.param(np.array([1, MAX, 3]), id="int64"),
        pytest.param(np.array([1, 9, MAX, 9, 3, 9])[::2], id="strided"),
        pytest.param(np.array([1, MAX, 3], dtype=">i8"), id="other byte order"),
        pytest.param(memoryview(array("q", [1, MAX, 3])), id="memoryview"),
    ],
)
def test_every_kind_of_sequence(values: object) -> None:
    assert list(Column.of(values).values()) == [1, MAX, 3]  # type: ignore[arg-type]


def test_narrower_integers_count_too() -> None:
    assert list(Column.of(np.array([1, 2], dtype=np.int32)).values()) == [1, 2]


def test_a_column_does_not_follow_its_source() -> None:
    source = np.array([1, 2, 3])
    column = Column.of(source)
    source[0] = 100
    assert column[0] == 1


@pytest.mark.parametrize("wrong", [np.array([1.5]), np.array(["2013"], dtype="datetime64[s]"), ["x"]])
def test_what_holds_no_event_times_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        Column.of(wrong)  # type: ignore[arg-type]


def test_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        Column.of(np.zeros((2, 2), dtype=np.int64))


def test_a_million_ranges_that_hold_nothing_take_no_room() -> None:
    column = Column(1_000_000, MAX)
    column[7] = 5
    assert column._dense is None
    assert column.at_most(10)._dense is None
    assert list(column.differences(Column(1_000_000, MAX)) or ()) == [7]
