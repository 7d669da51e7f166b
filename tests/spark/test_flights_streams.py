"""The flights demo over Kafka and Delta, as its command runs it: every window is the batch answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.program import run_program

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def test_every_window_is_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights", "--kafka", "--out", str(tmp_path / "demo"), "--rate", "4"]
    ran = run_program(command, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "all 212 windows closed by the low watermark are exactly the batch answer." in ran.stdout
    assert (tmp_path / "demo/report.png").stat().st_size > 10_000
