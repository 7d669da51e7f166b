"""A pile of records beside a plain count of each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import pile
from lowwater_authority.core.columns import Int64s
from lowwater_authority.core.pile import Pile
from lowwater_authority.core.times import MAX, MIN

Records = list[tuple[int, int]]

times = st.integers(-20, 20) | st.sampled_from([MIN, MAX])
records: st.SearchStrategy[Records] = st.lists(st.tuples(times, st.integers(0, 2**40)), max_size=12)
steps = st.lists(st.tuples(records, st.integers(0, 8), records, st.integers(1, 100)), max_size=25)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pile, "CHUNK", 3)
        patch.setattr(pile, "FRESH", 4)
        yield


def columns(some: Records, sign: int = 1) -> tuple[Int64s, Int64s]:
    return np.array([t for t, _ in some], dtype=np.int64), np.array([sign * n for _, n in some], dtype=np.int64)


def greatest(counts: Counter[int], needed: int) -> int:
    return max(time for time in counts if sum(count for at, count in counts.items() if at >= time) >= needed)


@given(steps)
@settings(max_examples=100, deadline=None)
def test_a_pile_is_what_a_plain_count_is(happened: list[tuple[Records, int, Records, int]]) -> None:
    ours, plain, present = Pile(), Counter[int](), list[Records]()
    for added, leaving, more, percent in happened:
        # Some come, and those that came as the first of what is left go, in one change.
        removed = present.pop(0) if leaving and len(present) >= leaving else []
        present.append(added)
        here, less = columns(added), columns(removed, -1)
        ours.change(np.concatenate([here[0], less[0]]), np.concatenate([here[1], less[1]]))
        for time, count in added:
            plain[time] += count
        for time, count in removed:
            plain[time] -= count
        plain = +plain
        ours.check()
        assert ours.total == plain.total()
        assert ours.greatest() == max(plain, default=MIN)
        together = +(plain + Counter(dict.fromkeys((time for time, _ in more), 0)))
        for time, count in more:
            together[time] += count
        together = +together
        if needed := -(-together.total() * percent // 100):
            assert ours.reached(needed, *columns(more)) == greatest(together, needed)
    assert len(ours._times) <= 2 + 2 * len(plain), "what is gone leaves nothing behind"


def test_what_grows_is_divided_and_what_goes_is_joined() -> None:
    ours = Pile()
    for time in range(200):
        ours.change(*columns([(time, 1)]))
    assert len(ours._times) > 20
    for time in range(200):
        ours.change(*columns([(time, 1)], -1))
    for time in range(6):
        ours.change(*columns([(time, 1)]))
    ours.check()
    assert len(ours._times) < 4
