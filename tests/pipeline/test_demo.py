"""``make demo-dedup`` as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.dedup.__main__ import KILLS

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_demo_ends_in_exact_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.dedup", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {
        name: int(value.replace(",", ""))
        for name, value in re.findall(r"^(.+?) {2,}([\d,]+)$", done.stdout, re.MULTILINE)
    }
    assert (said["lost"], said["doubled"], said["kill -9"]) == (0, 0, KILLS)
    assert said["rows that came out"] == said["ids"] == said["messages sent"] - said["of these copies"]
    assert (tmp_path / "demo/dedup.png").stat().st_size > 10_000
