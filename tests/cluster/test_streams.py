"""A pipeline over Kafka and Delta on a standalone cluster, with a job in Scala beside it: every window is right, no watermark is ahead of the commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.shipping import Shipped
from tests.cluster.streams import streams

SEED = 2013


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_over_streams_and_a_job_in_scala_beside_it(tmp_path: Path, shipped: Shipped) -> None:
    """Without faults: all rows come through each stage once, all windows close, and the sidecar follows the job that nobody has changed."""
    with streams(tmp_path, SEED, shipped) as pipeline:
        pipeline.start()
        for _ in range(3):
            pipeline.put()
            pipeline.promise()
            pipeline.recovered()
            assert pipeline.wrong() == []
        pipeline.finish()
        assert pipeline.wrong(finished=True) == []
