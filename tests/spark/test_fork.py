"""A client in Spark's Python workers, which are forked from a daemon, while the driver has one as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest
from pyspark.sql import SparkSession

import lowwater
from tests.process.serving import Serving
from tests.spark.forked_tasks import report_and_read
from tests.spark.session import spark_session
from tests.spark.support import SETTINGS

PARTITIONS = 4
RUNS = 2


@pytest.fixture(scope="module", params=["true", "false"], ids=["reused", "forked_for_each_task"])
def reuse(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def spark(reuse: str) -> Iterator[SparkSession]:
    """A session of its own: whether workers are reused is fixed when it starts."""
    session = spark_session("lowwater-fork", "local[2,1]", {**SETTINGS, "spark.python.worker.reuse": reuse})
    yield session
    session.stop()


@pytest.mark.slow
def test_tasks_report_and_read_with_a_client_kept_in_the_worker(
    spark: SparkSession, reuse: str, authority: Serving, lw: lowwater.Client
) -> None:
    address = authority.address
    for number in range(PARTITIONS):
        lw.register(f"task-{number}")
    lw.register("driver")
    lease, reader = lw.worker("driver").claim(), lw.inputs("driver")
    pids: list[int] = []
    uses: list[int] = []
    for run in range(1, RUNS + 1):
        lease.advance(None, oldest=None, frontier=run)
        lease.flush(20)
        frame = spark.range(0, PARTITIONS, 1, PARTITIONS)
        done = frame.rdd.mapPartitions(partial(report_and_read, address, run)).collect()
        assert [each[:3] for each in sorted(done)] == [(number, run, run) for number in range(PARTITIONS)]
        pids += [each.pid for each in done]
        uses += [each.uses for each in done]
        assert lw.wait("driver", run, timeout=20).low.micros == reader.read().low.micros == run
    statistics = lw.statistics()
    assert (statistics.watcher.streams, statistics.reporter.streams) == (1, 1), "the driver's client was left alone"
    assert os.getpid() not in pids
    if reuse == "true":
        assert len(set(pids)) <= 4
        assert max(uses) >= RUNS * PARTITIONS // 4, "one client served many tasks"
    else:
        assert len(set(pids)) == RUNS * PARTITIONS
        assert set(uses) == {1}
