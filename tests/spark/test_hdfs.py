"""Tracked stages whose checkpoint is on a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.location import Location, location_of
from lowwater_spark.track.run.status import in_short
from tests.kit.hdfs import RETRIES, Hdfs
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.remote import DECLARED, Query
from tests.spark.support import Upstream, low, row
from tests.spark.updates import HOURLY, hourly

pytestmark = pytest.mark.timeout(400)

SOON = ("dfs.client.retry.policy.spec", "300,1000")
"""Spark's own client looks for a name node as often as a test can wait for."""


@pytest.fixture(scope="module")
def patient(spark: SparkSession) -> SparkSession:
    """The session, whose own client waits for a name node that is away."""
    spark.conf.set(*RETRIES)
    spark.conf.set(*SOON)
    return spark


@pytest.fixture(scope="module")
def hdfs(patient: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")).start() as hdfs:
        yield hdfs


@pytest.fixture
def checkpoint(spark: SparkSession, hdfs: Hdfs, tmp_path: Path) -> Location:
    return location_of(spark, hdfs.path(f"{tmp_path.name}/ck"), "The checkpoint")


@pytest.fixture(params=["plain", pytest.param("function", marks=pytest.mark.long)])
def query(request: pytest.FixtureRequest, flow: Flow, checkpoint: Location) -> Query:
    return Query(request.param, flow, checkpoint)


def test_rule11_no_name_node_holds(
    query: Query, flow: Flow, lw: lowwater.Client, upstream: Upstream, hdfs: Hdfs
) -> None:
    running = query.start()
    elsewhere = flow.folder / "elsewhere"
    elsewhere.mkdir()
    frame = flow.spark.readStream.schema("key string, t timestamp").json(str(elsewhere))
    neighbour = lws.stage(flow.spark, "neighbour", inputs=["source"], key="key", event_time="t", address=flow.address)
    flow.queries.append(neighbour.start(frame, checkpoint=flow.folder / "local", format="noop"))
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == low(lw, "neighbour") == mark(10), "all that 10:00 covers is read")

    hdfs.kill()
    upstream.at(11)
    flow.eventually(lambda: any("ConnectException" in why for why in running.stage_status().waiting_for), "it says why")
    flow.eventually(lambda: in_short(running.stage_status().waiting_for) in lw.why("stage").sentence, "there too")
    flow.eventually(lambda: low(lw, "neighbour") == mark(11), "the neighbour does not wait")
    flow.feed.put([row("b", 10)])
    upstream.at(12)
    assert low(lw, "stage") == mark(10)
    hdfs.start()

    flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")
    flow.eventually(lambda: running.stage_status().waiting_for == (), "and waits for nothing")
    assert query.keys() == ["a", "b"]


def test_hdfs_refusals_name_the_fix(flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location) -> None:
    stage = lws.stage(flow.spark, "stage", **DECLARED, address=flow.address)

    driven = lws.drive(flow.read(), inputs=["source"], event_time="t", approximate=0.99, late=flow.folder / "late")
    with pytest.raises(lws.Unsupported, match="The checkpoint of a query that keeps its late rows in hdfs"):
        stage.start(driven, checkpoint=str(checkpoint), format="noop")
    with pytest.raises(errors.UnknownComputation):
        lw.why("stage")

    query = stage.foreach_batch(
        flow.read(), lambda rows, batch: batch.stateful(rows, hourly, HOURLY), checkpoint=str(checkpoint)
    )
    flow.feed.put([row("a", 9)])
    with pytest.raises(lws.Unsupported, match=r"State in the checkpoint hdfs.*Pass batch.stateful\(\) a path="):
        query.await_termination(180)
