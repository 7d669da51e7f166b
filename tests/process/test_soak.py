"""Three minutes of the soak, two shards under churn, while the other tests run. ``make soak`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak
from tests.process.soaking import result

MOST_GROWTH = 1.08
"""Two minutes after the start processes still warm up, the more so the less they get of the machine: 1.016 to 1.066 were measured."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_memory_does_not_grow_under_churn(soaking: Path) -> None:
    """Rule 7, "every queue has a bound", for all that lives as long as the soak: its last quarter holds what its second held."""
    line = result(soaking)
    assert soak.grown(line, MOST_GROWTH) == [], line
    done = line["clients"]
    assert all(done[soak.STEADY][what] for what in ("claims", "reports", "lost", "releases")), (
        "the workers did not churn"
    )
    assert done[soak.WATCHERS]["visits"], "the watchers did not come and go"
    assert all(line[what] for what in ("restarts", "deaths", "resets"))
