"""The picture can be drawn from any run; what it looks like is for eyes."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights import picture
from examples.flights.compare import Batch
from lowwater.watermark import MAX, MIN
from tests.unit.flights_year import START


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 20_000


def test_a_run_of_which_little_is_known(tmp_path: Path) -> None:
    batches = [Batch(0, START, MIN, MIN, (("JFK", START),)), Batch(1, START + 1, MAX, MAX, ())]
    picture.draw(batches, tmp_path / "report.png")
    assert is_picture(tmp_path / "report.png")


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        picture.draw([Batch(0, START, MIN, MIN, ())], tmp_path / "report.png")
