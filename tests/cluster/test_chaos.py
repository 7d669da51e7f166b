"""A pipeline on a standalone cluster of two workers under faults: every closed window is right, no watermark is ahead of the commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import chaos
from tests.cluster.shipping import Shipped

FAULTS = 20

SEED = 2013


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rule3_rule6_under_twenty_counted_faults(tmp_path: Path, shipped: Shipped) -> None:
    """Task failures, killed Python workers, executors, workers, drivers and authorities, and speculative copies that win."""
    result = chaos.run(tmp_path, FAULTS, SEED, shipped=shipped, say=print)
    assert result["violations"] == 0
    assert result["faults"] >= FAULTS
    assert set(result["by_kind"]) == set(chaos.NAMES.values()), "each kind took effect"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rule6_a_report_before_the_commit_is_found(tmp_path: Path, shipped: Shipped) -> None:
    """The verdict can fail: the same checks find a driver that tells the authority of a batch before Spark's commit log has it."""
    found: list[str] = []
    with chaos.pipeline(tmp_path, SEED, shipped) as pipeline:
        pipeline.start(early=True)
        for _ in range(5):
            pipeline.put()
            pipeline.promise()
            pipeline.recovered()
            found = pipeline.wrong()
            if found:
                break
    assert any(each.startswith("hourly") and "committed" in each for each in found), found
    assert not any("written" in each for each in found), "what is written is right"
