"""The example of a daily close, in small: one day is slept over, and is closed by another worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.daily_close.__main__ import main


@pytest.mark.long  # the rule: test_tasks.py
def test_each_day_is_closed_once_and_the_sleeper_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--days", "2"]) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "sleeper: the lease of the interval from 2013-01-08T00:00:00Z counts no more: it is done by closer-" in told
    assert "each day is closed once" in told
    written = list((tmp_path / "out" / "closes" / "daily" / "2013-01-08T000000Z").iterdir())
    assert len(written) == 2, "the sleeper's close has a name of its own, and is in nobody's way"
