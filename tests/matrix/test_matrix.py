"""A sample of the matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.cells import Cell
from tests.matrix.held import held

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("cell", [Cell("classic", "kafka", "local")], ids=str)
def test_rule1_a_cell_is_held_to_its_promise(cell: Cell, tmp_path: Path) -> None:
    outcome = held(cell, tmp_path / "cell", job_kills=2, sidecar_kills=1)
    assert outcome.exact
    assert outcome.values >= 3
