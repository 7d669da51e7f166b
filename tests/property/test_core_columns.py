"""The least values of many, found by blocks: as sorting all of them finds them."""

from __future__ import annotations

import numpy as np
import pytest

from lowwater_authority.core import columns
from lowwater_authority.core.columns import Columns
from lowwater_authority.core.times import MIN


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
