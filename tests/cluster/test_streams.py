"""A pipeline over Kafka and Delta under faults, with a job in Scala beside it: every window is right, no watermark is ahead of the commits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster import chaos
from tests.cluster.shipping import Shipped
from tests.cluster.streams import CALLED, MOST, SHARES, plan, streams
from tests.cluster.tally import Tally

FAULTS = 16

SEED = 2013


@pytest.mark.parametrize("seed", range(20))
def test_rounds_are_planned_until_all_faults_are_counted(seed: int) -> None:
    """No round takes two brokers or the driver and the executors of all stages, and each kind gets its share."""
    rng, tally = random.Random(seed), Tally(SHARES, CALLED)
    while tally.total < 100:
        kinds = plan(rng, tally, 100, vacuum=tally.total > 0)
        assert 0 < len(kinds) <= min(MOST, 100 - tally.total)
        assert kinds.count("broker") + kinds.count("leader") <= 1
        assert all(kinds.count(each) <= (2 if each == "executor" else 1) for each in kinds)
        for each in kinds:
            tally.count(each, True)
    assert all(tally.counted[kind] >= share * 2 for kind, share in SHARES.items())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_rule3_rule6_over_kafka_and_delta_under_sixteen_counted_faults(tmp_path: Path, shipped: Shipped) -> None:
    """Brokers, leaders, drivers, executors, shards, the job in Scala and its sidecar; a stalled partition whose rows come late; OPTIMIZE and VACUUM."""
    result = chaos.run(tmp_path, FAULTS, SEED, over="kafka", shipped=shipped, say=print)
    assert result["violations"] == 0
    assert result["faults"] >= FAULTS
    assert set(result["by_kind"]) == set(CALLED.values()), "each kind took effect"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rule6_a_report_before_the_commit_is_found_over_streams(tmp_path: Path, shipped: Shipped) -> None:
    """The verdict can fail: the same checks find a driver that tells the authority of all that a batch reads before Spark's commit log has it."""
    found: list[str] = []
    with streams(tmp_path, SEED, shipped) as pipeline:
        pipeline.start_stage("landed", early=True)
        for _ in range(5):
            pipeline.put()
            pipeline.promise()
            pipeline.await_that(lambda: pipeline.watching.low("landed") >= pipeline.low, "the first stage has it")
            found = pipeline.wrong()
            if found:
                break
    assert any(each.startswith("landed") and "committed" in each for each in found), found
    assert not any("written" in each for each in found), "what is written is right"
