"""A pipeline over Kafka and Delta under faults, with a job in Scala beside it: every window is right, no watermark is ahead of the commits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster import chaos
from tests.cluster.shipping import Shipped
from tests.cluster.streams import CALLED, MOST, SHARES, plan
from tests.cluster.tally import Tally

FAULTS = 16

SEED = 2013


@pytest.mark.parametrize("seed", range(20))
def test_rounds_are_planned_until_all_faults_are_counted(seed: int) -> None:
    rng, tally = random.Random(seed), Tally(SHARES, CALLED)
    while tally.total < 100:
        kinds = plan(rng, tally, 100)
        assert 0 < len(kinds) <= min(MOST, 100 - tally.total)
        assert kinds.count("broker") + kinds.count("leader") <= 1
        assert all(kinds.count(kind) <= (2 if kind == "executor" else 1) for kind in kinds)
        for kind in kinds:
            tally.count(kind, True)
    assert all(tally.counted[kind] >= share * 2 for kind, share in SHARES.items())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_rule3_rule6_over_kafka_and_delta_under_sixteen_counted_faults(tmp_path: Path, shipped: Shipped) -> None:
    result = chaos.run(tmp_path, FAULTS, SEED, shipped=shipped, say=print)
    assert result["violations"] == 0
    assert result["faults"] >= FAULTS
    assert set(result["by_kind"]) == set(CALLED.values()), "each kind took effect"
