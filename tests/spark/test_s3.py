"""Tracked stages, and a job that nobody changes, whose checkpoints are on a real S3 or GCS."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.location import Location, checkpoint_of
from tests.kit.gcs import Gcs
from tests.kit.s3 import S3
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.remote import DECLARED
from tests.spark.support import Upstream, low, row
from tests.spark.updates import HOURLY, hourly

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["s3"])
def checkpoint(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Location:
    store: S3 | Gcs = request.getfixturevalue(request.param)
    return checkpoint_of(spark, store.path(f"{tmp_path.name}/ck"), single_driver=True)


@pytest.mark.parametrize("checkpoint", ["s3", "gcs"], indirect=True)
def test_windows_are_closed_in_a_store(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location
) -> None:
    emitted: list[str] = []
    lows: list[tuple[int, bool, lowwater.Watermark]] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        lows.append((batch.id, batch.replayed, batch.low))
        closed = batch.stateful(rows, hourly, HOURLY, flow.folder / "state")
        emitted.extend(entry.key for entry in closed.collect())

    def start(write: Any, name: str, **more: Any) -> lws.TrackedQuery:
        stage = lws.stage(flow.spark, name, **DECLARED, stamp=HOUR, address=flow.address)
        query = stage.foreach_batch(flow.read(), write, checkpoint=str(checkpoint / name), single_driver=True, **more)
        flow.queries.append(query)
        return query

    def fail(reached: str, _number: int) -> None:
        if reached == "begun":
            raise ConnectionResetError(reached)

    flow.feed.put([row("a", 9)])
    upstream.at(9)
    with pytest.raises(Exception, match="begun"):
        start(write_batch, "stage", probe=fail).await_termination(180)
    flow.queries.clear()
    upstream.at(9, 30)
    query = start(write_batch, "stage")
    flow.eventually(lambda: query.stage_status().batch == 0, "the row is in")
    assert lows[0] == (0, True, mark(9)), "it is replayed with the watermark that stands in the store"
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the hour is over")
    assert emitted == ["a"]
    query.stop()

    for refused, text in (
        (lambda rows, batch: batch.stateful(rows, hourly, HOURLY), "State in the checkpoint (s3a|gs):"),
        (lambda rows, batch: batch.write(rows, str(checkpoint / "out")), "(s3a|gs): was not.*batch.write_table"),
    ):
        with pytest.raises(lws.Unsupported, match=text):
            start(refused, "refused").await_termination(180)


def test_ticks_which_are_paid_for_are_listed_once_a_second(flow: Flow, checkpoint: Location, s3: S3) -> None:
    stage = lws.stage(flow.spark, "stage", **DECLARED, address=flow.address)
    flow.queries.append(
        stage.foreach_batch(flow.read(), lambda *_: None, checkpoint=str(checkpoint), single_driver=True)
    )
    listing = f"max-keys=1000&prefix={str(checkpoint).split('/', 3)[3]}/lowwater/ticks/"

    def seconds() -> Counter[str]:
        return Counter(row.split("[")[1].split("]")[0] for row in map(unquote, s3.said("list-type")) if listing in row)

    flow.eventually(lambda: len(seconds()) >= 3, "it has looked in three different seconds")
    # One that is late is followed by the next one in time.
    assert max(seconds().values()) <= 2
