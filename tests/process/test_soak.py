"""Three minutes of the soak, two shards under churn. ``make soak`` is the long one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import soak
from tests.kit.program import run_program

ROOT = Path(__file__).parents[2]

MOST_GROWTH = 1.08
"""Two minutes after the start processes still warm up, the more so the less they get of the machine: 1.016 to 1.066 were measured."""

DEAD_AFTER = 20.0
"""Seconds: shards that are kept from the processor are not dead."""


@pytest.mark.long
@pytest.mark.slow
def test_memory_does_not_grow_under_churn(tmp_path: Path) -> None:
    """Rule 7, "every queue has a bound", for all that lives as long as the soak: its last quarter holds what its second held."""
    command = [sys.executable, "-m", "benchmarks.soak", "--data", str(tmp_path), "--dead-after", str(DEAD_AFTER)]
    done = run_program([*command, "--seconds", "180", "--ranges", "100000"], cwd=ROOT)
    assert done.stdout, done.stderr
    line = json.loads(done.stdout)
    assert soak.grown(line, MOST_GROWTH) == [], line
    clients = line["clients"]
    assert all(clients[soak.STEADY][what] for what in ("claims", "reports", "lost", "releases")), "no churn"
    assert clients[soak.WATCHERS]["visits"], "the watchers did not come and go"
    assert all(line[what] for what in ("restarts", "deaths", "resets"))
