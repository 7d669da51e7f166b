"""The least values of many, found by blocks: as sorting all of them finds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import columns
from lowwater_authority.core.columns import Columns
from lowwater_authority.core.times import MAX, MIN

values = st.lists(st.sampled_from([MIN, -3, 0, 1, 2, 3, 50, MAX - 1, MAX]), max_size=200)


@given(values=values, freed=st.sets(st.integers(0, 199)), count=st.integers(0, 220), below=st.integers(-4, 60))
@settings(max_examples=100, database=None)
def test_the_least_values_and_how_many_are_below(values: list[int], freed: set[int], count: int, below: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "BLOCK", 4)
        ours = Columns()
        if values:
            ours.allocate(np.array(values, dtype=np.int64), 0)
        for slot in freed & set(range(len(values))):
            ours.free(slot, 1)
            values[slot] = MAX
        slots = ours.least(count)
        assert len(set(slots.tolist())) == len(slots)
        lowest = sorted(value for value in values if value < MAX)[:count]
        assert [values[slot] for slot in slots] == lowest == ours.values[slots].tolist()
        assert ours.count_below(below) == sum(value < below for value in values)
        ours.check()


@pytest.mark.parametrize("value", [0, MIN])
def test_where_all_are_equal_few_are_looked_at(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 4)
    looked, up_to = list[int](), Columns._up_to

    def note(self: Columns, most: int, blocks: np.ndarray) -> np.ndarray:
        looked.extend(blocks.tolist())
        return up_to(self, most, blocks)

    monkeypatch.setattr(Columns, "_up_to", note)
    ours = Columns()
    ours.allocate(np.full(4000, value, dtype=np.int64), 0)
    assert len(ours.least(10)) == 10
    assert len(looked) < 10
