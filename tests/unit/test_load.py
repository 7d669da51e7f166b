"""What key ranges cost, and the layout that spreads it: against a naive oracle that tries what may be tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import Layout, RangeLoad
from lowwater.layout import SLOTS
from lowwater_spark.track.cut import Cut
from lowwater_spark.track.load import balanced, hottest, loads_of, measured
from lowwater_spark.track.state import RangeEntry


@given(st.integers(1, 9), st.lists(st.integers(0, 2**64 - 1), max_size=60), st.randoms(use_true_random=False))
def test_what_is_measured_is_what_a_count_says(ranges: int, places: list[int], chance: Random) -> None:
    cut = Cut(ranges, Layout(1, (0, 7, 500))) if ranges == 9 else Cut(ranges)
    places += [chance.choice(places) for _ in range(len(places) // 2)]
    found = []
    for handle, span in enumerate(pairwise(cut.places)):
        mine = [place - 2**63 for place in places if span[0] <= place < span[1]]
        found.append(measured(handle, np.array(mine, np.int64), span, 10 + handle))
    chance.shuffle(found)
    loads = loads_of(cut, found, [RangeEntry()] * len(cut))
    assert [each.micros for each in loads] == [10 + handle for handle in range(len(cut))]
    for each, span in zip(loads, pairwise(cut.places), strict=True):
        mine = [place for place in places if span[0] <= place < span[1]]
        assert each.rows == len(mine)
        assert each.heaviest == max(map(mine.count, mine), default=0)
        if mine:
            size = (span[1] - span[0]) // 16
            parts = [sum(min(15, (place - span[0]) // size) == part for place in mine) for part in range(16)]
            assert each.parts == tuple(parts)
    assert [each.micros for each in hottest(loads)] == sorted((e.micros for e in loads if e.rows), reverse=True)


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
    made = balanced(layout, batches, tasks, workers, least, pins=pins)
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
    if made is None:
        assert not hot or not sum(means)
        assert not cold or len(layout) <= least or not sum(means)
        return
    assert not made.wrong()
    assert made.version == layout.version
    if made.starts == layout.starts:
        assert may_pack
        assert slowest(made, means, tasks) <= 0.8 * before
    elif len(made) > len(layout):
        [cut] = set(made.starts) - set(layout.starts)
        i = max(i for i, start in enumerate(layout.starts) if start < cut)
        assert i in hot
        assert means[i] == max(means[j] for j in hot)
    else:
        assert not hot
        [gone] = set(layout.starts) - set(made.starts)
        assert layout.starts.index(gone) - 1 in cold
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
                each,
                parts=tuple(
                    cost(
                        each.start + (each.end - each.start) * i // 16,
                        each.start + (each.end - each.start) * (i + 1) // 16,
                    )
                    for i in range(16)
                ),
            )
            for each in loads(layout, micros)
        ]
        made = balanced(layout, [parts] * 3, tasks, tasks, 4, pins=True)
        if made is None:
            break
        layout = made
    else:
        pytest.fail("it never does")
    micros = [cost(start, end) for start, end in zip(layout.starts, layout.ends, strict=True)]
    assert slowest(layout, micros, tasks) <= 1.3 * sum(micros) / tasks
    assert len(layout) < 30
