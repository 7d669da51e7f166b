"""Tracked stages, and a job that nobody changes, whose checkpoints are on a real S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.location import Location, checkpoint_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track.status import in_short
from tests.kit.s3 import S3
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.remote import DECLARED, Query
from tests.spark.support import Upstream, low, row
from tests.spark.updates import HOURLY, hourly

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")).start() as s3:
        for name, value in s3.settings.items():
            spark.conf.set(name, value)
        yield s3


@pytest.fixture
def checkpoint(spark: SparkSession, s3: S3, tmp_path: Path) -> Location:
    return checkpoint_of(spark, s3.path(f"{tmp_path.name}/ck"), single_driver=True)


@pytest.fixture(params=["plain", "function"])
def query(request: pytest.FixtureRequest, flow: Flow, checkpoint: Location) -> Query:
    return Query(request.param, flow, checkpoint, single_driver=True)


@pytest.mark.long
def test_a_stage_goes_on_from_a_checkpoint_on_s3(
    query: Query, flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location, s3: S3
) -> None:
    with pytest.raises(lws.Unsupported, match="single_driver=True"):
        query.start(single_driver=False)
    with pytest.raises(errors.UnknownComputation):
        lw.why("stage")
    assert not checkpoint.exists(), "nothing is touched"

    for hour in (10, 11):
        running = query.start()
        flow.feed.put([row(f"{hour}", hour - 1)])
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "stage") == mark(hour), "all that was put is read")  # noqa: B023
        running.stop()

    running = query.start()
    elsewhere = flow.folder / "elsewhere"
    elsewhere.mkdir()
    frame = flow.spark.readStream.schema("key string, t timestamp").json(str(elsewhere))
    neighbour = lws.stage(flow.spark, "neighbour", **DECLARED, address=flow.address)
    flow.queries.append(neighbour.start(frame, checkpoint=flow.folder / "local", format="noop"))
    flow.eventually(lambda: low(lw, "neighbour") == mark(11), "a neighbour with a local checkpoint")
    s3.pause()
    try:
        upstream.at(12)
        flow.eventually(lambda: any(s3.bucket in why for why in running.stage_status().waiting_for), "it says why")
        flow.eventually(
            lambda: in_short(running.stage_status().waiting_for) in lw.why("stage").sentence, "so does the authority"
        )
        flow.eventually(lambda: low(lw, "neighbour") == mark(12), "the neighbour does not wait")
        assert low(lw, "stage") == mark(11)
    finally:
        s3.resume()
    flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")
    flow.eventually(lambda: running.stage_status().waiting_for == (), "and waits for nothing")

    assert query.keys() == ["10", "11"]
    assert CheckpointLog(checkpoint).last_committed() == 1
    assert lw.get("stage")["stage"].incarnation == 1, "it is one computation, of one checkpoint"


def test_what_cannot_be_on_s3_is_refused_with_the_way_out(flow: Flow, checkpoint: Location) -> None:
    refusals: dict[str, Any] = {
        "State in the checkpoint s3a:": lambda rows, batch: batch.stateful(rows, hourly, HOURLY),
        "s3a: is none of them.*batch.write_table": lambda rows, batch: batch.write(rows, str(checkpoint / "out")),
    }
    flow.feed.put([row("a", 9)])
    for said, write in refusals.items():
        stage = lws.stage(flow.spark, "stage", **DECLARED, stamp=HOUR, address=flow.address)
        query = stage.foreach_batch(flow.read(), write, checkpoint=str(checkpoint), single_driver=True)
        with pytest.raises(lws.Unsupported, match=said):
            query.await_termination(180)


def test_ticks_which_are_paid_for_are_listed_once_a_second(flow: Flow, checkpoint: Location, s3: S3) -> None:
    stage = lws.stage(flow.spark, "stage", **DECLARED, address=flow.address)
    flow.queries.append(
        stage.foreach_batch(flow.read(), lambda *_: None, checkpoint=str(checkpoint), single_driver=True)
    )
    listing = f"max-keys=5000&prefix={str(checkpoint).split('/', 3)[3]}/lowwater/ticks/"

    def seconds() -> Counter[str]:
        return Counter(
            line.split("[")[1].split("]")[0] for line in map(unquote, s3.said("list-type")) if listing in line
        )

    flow.eventually(lambda: len(seconds()) >= 3, "it has looked in three different seconds")
    # One that is late is followed by the next one in time.
    assert max(seconds().values()) <= 2
