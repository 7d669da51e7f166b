"""The example of a daily close, in small: one day is slept over, and is closed by another worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.daily_close.__main__ import main


def test_each_day_is_closed_once_and_the_sleeper_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--days", "2"]) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "sleeper: the lease of the interval from 2013-01-08T00:00:00Z counts no more: it is done by closer-" in told
    assert "each day is closed once" in told
    written = list((tmp_path / "out" / "closes" / "daily" / "2013-01-08T000000Z").iterdir())
    assert len(written) == 2, "the sleeper's close has a name of its own, and is in nobody's way"


@pytest.mark.long
@pytest.mark.spark
def test_a_batch_of_spark_closes_a_day_under_its_version(tmp_path: Path) -> None:
    """In a process of its own: the session is the demo's."""
    told = [sys.executable, "-m", "examples.daily_close", "--spark", "--days", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sleeper: the lease of the interval from 2013-01-08T00:00:00Z counts no more" in done.stdout
    assert "each day is closed once" in done.stdout
    written = list((tmp_path / "out" / "closes" / "daily" / "2013-01-08T000000Z").rglob("part-*"))
    assert len(written) == 2, "the sleeper's batch has written into a directory of its own"
