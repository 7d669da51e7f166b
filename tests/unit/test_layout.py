"""The algebra of layouts, against a table that says of each slot which range it is in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowwater
from lowwater import InvalidArgument, Layout, RangeLoad
from lowwater.layout import MOST_RANGES, SLOTS

FEW = 64
"""Slots that the tests cut at; the last range goes on to the end."""


def table(layout: Layout) -> list[int]:
    """The start of the range of each of the first slots."""
    return [max(start for start in layout.starts if start <= slot) for slot in range(FEW)]


steps = st.lists(st.tuples(st.sampled_from(["split", "merge", "move"]), st.integers(0, FEW), st.integers(0, FEW)))


@given(steps)
def test_any_history_of_changes_leaves_each_slot_in_one_range(history: list[tuple[str, int, int]]) -> None:
    layout = Layout(0, (0,))
    for what, one, other in history:
        before, tasks = table(layout), dict(zip(layout.starts, layout.tasks or [0] * len(layout), strict=True))
        start = layout.starts[one % len(layout)]
        last = layout.starts[other % len(layout)]
        try:
            if what == "split":
                layout = layout.split(start, [other])
                expected = [other if found == start and slot >= other else found for slot, found in enumerate(before)]
                tasks |= {start: 0, other: 0}
            elif what == "merge":
                layout = layout.merge(start, last)
                expected = [start if start <= found <= last else found for found in before]
                tasks = {each: task for each, task in tasks.items() if not start < each <= last} | {start: 0}
            else:
                layout = layout.move(start, other)
                expected = before
                tasks[start] = other
        except InvalidArgument:
            expected = before
        assert not layout.wrong()
        assert table(layout) == expected
        assert dict(zip(layout.starts, layout.tasks or [0] * len(layout), strict=True)) == tasks


def test_the_bounds_are_those_of_a_claim() -> None:
    assert Layout(1, (0, 0x4000, 0x40FF)).bounds == [b"", b"\x40" + bytes(7), b"\x40\xff" + bytes(6), b""]


@pytest.mark.parametrize(
    ("starts", "tasks", "said"),
    [
        ((), (), "layout.starts does not begin at 0: let the first range start at 0"),
        ((1,), (), "layout.starts does not begin at 0"),
        ((0, 5, 5), (), "layout.starts is not ascending: sort it, each start once"),
        ((0, SLOTS), (), "layout.starts is not ascending: .* below 65536"),
        ((0, 0.5), (), "layout.starts has a value that is no whole number: pass integers"),
        ("0", (), "layout.starts='0' is refused: pass a list"),
        (range(MOST_RANGES + 1), (), "layout.starts has 16385 ranges: merge some, down to 16384"),
        ((0, 5), (1,), "layout.tasks has 1 values for 2 ranges: pass none, or one each"),
        ((0, 5), (1, -1), "layout.tasks has a task that is not 0 to 65536: count tasks from 1"),
    ],
)
def test_what_is_no_layout_is_refused_with_the_field_and_the_fix(starts: Any, tasks: Any, said: str) -> None:
    """By the client, before anything is sent."""
    with lowwater.connect("127.0.0.1:1") as nobody, pytest.raises(InvalidArgument, match=f"^{said}") as refused:
        nobody.change_layout("one", 1, Layout(0, starts, tasks))
    assert refused.value.metadata["field"] == said.partition("=")[0].partition(" ")[0]
    assert refused.value.metadata["fix"]
    if not isinstance(starts, str):
        assert re.match(said.removeprefix("layout."), Layout(0, tuple(starts), tuple(tasks)).wrong())


def test_a_range_that_is_not_there_is_refused_with_the_one_that_is() -> None:
    with pytest.raises(InvalidArgument, match="0x0010; the range of that slot starts at 0x0008"):
        Layout(0, (0, 8)).split(16, [20])
    with pytest.raises(InvalidArgument):
        Layout(0, (0, 8)).split(0, [8])
    with pytest.raises(InvalidArgument):
        Layout(0, (0, 1)).split(0, Layout(0, (0, 1)).halves(0, 2))


def test_halves_are_of_one_size() -> None:
    assert Layout(0, (0,)).halves(0, 4) == [0x4000, 0x8000, 0xC000]
    assert Layout(0, (0, 2)).halves(0, 5) == [1]


@given(st.integers(0, 100), st.integers(2, 200), st.lists(st.integers(0, 9), min_size=16, max_size=16))
def test_the_median_halves_the_rows_as_well_as_a_cut_between_parts_can(start: int, size: int, parts: list[int]) -> None:
    load = RangeLoad(start, start + size, sum(parts), 0, 0, tuple(parts))
    cut = load.median
    assert cut is not None
    assert start < cut < start + size
    if sum(parts):
        cuts = {start + size * i // 16: abs(sum(parts[:i]) / sum(parts) - 0.5) for i in range(1, 16)}
        cuts = {slot: far for slot, far in cuts.items() if start < slot < start + size}
        if cut in cuts:
            assert cuts[cut] <= min(cuts.values()) or size < 32


def test_a_range_is_ruled_by_a_key_with_more_than_half_of_its_rows() -> None:
    assert RangeLoad(0, 9, 10, 0, 0, (), 6).ruled
    assert not RangeLoad(0, 9, 10, 0, 0, (), 5).ruled
    assert RangeLoad(0, 1, 10, 0, 0, (10,)).median is None
