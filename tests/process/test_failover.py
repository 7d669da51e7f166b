"""kill -9 of shards, while workers report, subscribers watch, and others claim and register."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import shard_failover

KILLS = 10


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_a_killed_shard_served_goes_on_at_the_others(tmp_path: Path) -> None:
    rounds = shard_failover.run(tmp_path, KILLS)
    assert all(value < shard_failover.PATIENCE / 2 for result in rounds for value in result.new.values())
