"""The algebra of layouts, against a table that says of each slot which range it is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowwater
from lowwater import InvalidArgument, Layout, RangeLoad
from lowwater.layout import MOST_RANGES, SLOTS
from lowwater_spark.track.rows.cut import Cut
from lowwater_spark.track.rows.load import balanced, hottest, loads_of, measured

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
                expected = [other if owner == start and slot >= other else owner for slot, owner in enumerate(before)]
                tasks |= {start: 0, other: 0}
            elif what == "merge":
                layout = layout.merge(start, last)
                expected = [start if start <= owner <= last else owner for owner in before]
                tasks = {at: task for at, task in tasks.items() if not start < at <= last} | {start: 0}
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
    ("starts", "tasks", "text"),
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
def test_what_is_no_layout_is_refused_with_the_field_and_the_fix(starts: Any, tasks: Any, text: str) -> None:
    """The client refuses it before anything is sent."""
    with lowwater.connect("127.0.0.1:1") as nobody, pytest.raises(InvalidArgument, match=f"^{text}") as refused:
        nobody.change_layout("one", 1, Layout(0, starts, tasks))
    assert refused.value.metadata["field"] == text.partition("=")[0].partition(" ")[0]
    assert refused.value.metadata["fix"]
    if not isinstance(starts, str):
        assert re.match(text.removeprefix("layout."), Layout(0, tuple(starts), tuple(tasks)).wrong())


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


@given(st.integers(1, 9), st.lists(st.integers(0, 2**64 - 1), max_size=60), st.randoms(use_true_random=False))
def test_what_is_measured_is_what_a_count_says(ranges: int, places: list[int], chance: Random) -> None:
    cut = Cut(ranges, Layout(1, (0, 7, 500))) if ranges == 9 else Cut(ranges)
    places += [chance.choice(places) for _ in range(len(places) // 2)]
    measures = []
    for handle, span in enumerate(pairwise(cut.places)):
        mine = [place - 2**63 for place in places if span[0] <= place < span[1]]
        measures.append(measured(handle, np.array(mine, np.int64), span, 10 + handle))
    chance.shuffle(measures)
    loads = loads_of(cut, measures, [0] * len(cut))
    assert [load.micros for load in loads] == [10 + handle for handle in range(len(cut))]
    for load, span in zip(loads, pairwise(cut.places), strict=True):
        mine = [place for place in places if span[0] <= place < span[1]]
        assert load.rows == len(mine)
        assert load.heaviest == max(map(mine.count, mine), default=0)
        if mine:
            size = (span[1] - span[0]) // 16
            parts = [sum(min(15, (place - span[0]) // size) == part for place in mine) for part in range(16)]
            assert load.parts == tuple(parts)
    assert [load.micros for load in hottest(loads)] == sorted((e.micros for e in loads if e.rows), reverse=True)


def loads(layout: Layout, micros: Sequence[int], heaviest: Sequence[int] = ()) -> list[RangeLoad]:
    """Each range with 160 rows, spread evenly."""
    return [
        RangeLoad(start, end, 160, cost, 0, (10,) * 16, heavy)
        for start, end, cost, heavy in zip(
            layout.starts, layout.ends, micros, heaviest or [1] * len(micros), strict=True
        )
    ]


def slowest(layout: Layout, micros: Sequence[float], tasks: int) -> float:
    sums = [0.0] * tasks
    for i, cost in enumerate(micros):
        task = layout.tasks[i] if layout.tasks else 0
        sums[(task - 1 if task else i) % tasks] += cost
    return max(sums)


layouts = st.sets(st.integers(1, SLOTS - 1), min_size=1, max_size=11).map(lambda some: Layout(3, (0, *sorted(some))))


@given(layouts, st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(1, 12), st.data())
def test_each_decision_is_one_that_the_oracle_allows(
    layout: Layout, tasks: int, workers: int, pins: bool, least: int, data: st.DataObject
) -> None:
    costs = st.lists(st.integers(0, 100), min_size=len(layout), max_size=len(layout))
    history = [data.draw(costs) for _ in range(3)]
    heavy = data.draw(st.lists(st.integers(1, 160), min_size=len(layout), max_size=len(layout)))
    batches = [loads(layout, micros, heavy) for micros in history]
    balanced_ = balanced(layout, batches, tasks, workers, least, pins=pins)
    means = [sum(some) / 3 for some in zip(*history, strict=True)]
    fair = [sum(micros) / workers for micros in history]
    before = slowest(layout, means, tasks)
    may_pack = pins and before > 1.25 * sum(means) / tasks
    hot = [
        i
        for i in range(len(layout))
        if all(micros[i] > 1.25 * share for micros, share in zip(history, fair, strict=True))
        and heavy[i] <= 80
        and layout.ends[i] - layout.starts[i] > 1
    ]
    cold = [
        i
        for i in range(len(layout) - 1)
        if all(micros[i] + micros[i + 1] <= share / 8 for micros, share in zip(history, fair, strict=True))
    ]
    if balanced_ is None:
        assert not hot or not sum(means)
        assert not cold or len(layout) <= least or not sum(means)
        return
    assert not balanced_.wrong()
    assert balanced_.version == layout.version
    if balanced_.starts == layout.starts:
        assert may_pack
        assert slowest(balanced_, means, tasks) <= 0.8 * before
    elif len(balanced_) > len(layout):
        [cut] = set(balanced_.starts) - set(layout.starts)
        i = max(i for i, start in enumerate(layout.starts) if start < cut)
        assert i in hot
        assert means[i] == max(means[j] for j in hot)
    else:
        assert not hot
        [merged] = set(layout.starts) - set(balanced_.starts)
        assert layout.starts.index(merged) - 1 in cold
        assert len(layout) > least


def test_it_settles() -> None:
    """Under loads that stay, it ends after some steps, and the slowest task has its fair share by then, nearly."""
    layout, tasks = Layout(0, (0, 0x4000, 0x8000, 0xC000)), 4

    def cost(start: int, end: int) -> int:
        """A thousand times as much below a 256th of the key space."""
        return 1000 * max(0, min(end, 256) - min(start, 256)) + end - start

    for _ in range(40):
        micros = [cost(start, end) for start, end in zip(layout.starts, layout.ends, strict=True)]
        parts = [
            replace(
                load,
                parts=tuple(
                    cost(
                        load.start + (load.end - load.start) * i // 16,
                        load.start + (load.end - load.start) * (i + 1) // 16,
                    )
                    for i in range(16)
                ),
            )
            for load in loads(layout, micros)
        ]
        balanced_ = balanced(layout, [parts] * 3, tasks, tasks, 4, pins=True)
        if balanced_ is None:
            break
        layout = balanced_
    else:
        pytest.fail("it never does")
    micros = [cost(start, end) for start, end in zip(layout.starts, layout.ends, strict=True)]
    assert slowest(layout, micros, tasks) <= 1.3 * sum(micros) / tasks
    assert len(layout) < 30
