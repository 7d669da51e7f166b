"""A minute of the soak: two shards under churn. ``make soak`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak

SECONDS = 60.0
RANGES = 100_000

MOST_GROWTH = 1.15
"""A quarter is fifteen seconds here, and processes are still warming up: this finds what grows by the second."""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_memory_does_not_grow_under_churn(tmp_path: Path) -> None:
    line = soak.run(tmp_path, SECONDS, RANGES)
    assert soak.grown(line, MOST_GROWTH) == [], line
    done = line["clients"]
    assert isinstance(done, dict)
    assert all(done[soak.STEADY][what] for what in ("claims", "reports", "lost", "releases")), (
        "the workers did not churn"
    )
    assert done[soak.WATCHERS]["visits"], "the watchers did not come and go"
    assert all(line[what] for what in ("restarts", "deaths", "resets"))
