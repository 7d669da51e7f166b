"""A stage does not wait for its clock when there is news: an input that has moved, or a batch that is committed.

The interval of the clock is an hour in these tests, so whatever comes through has come by news.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.track import query
from lowwater_spark.track.query import Tracked
from lowwater_spark.track.run import hook
from tests.kit.times import mark
from tests.spark.queries import Queries
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

HOUR = timedelta(hours=1)


class Gated(Queries):
    """One feed, and stages over it whose clock looks once an hour."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.feed = Feed(folder / "in")

    def start(self, kind: str) -> None:
        retention = timedelta() if kind == "driven" else None
        stage = lws.stage(
            self.spark,
            "stage",
            inputs=["source"],
            key="key",
            event_time="t",
            ranges=4,
            retention=retention,
            address=self.address,
        )
        stage = dataclasses.replace(stage, interval=3600.0)
        rows = self.spark.readStream.schema("key string, t timestamp").option("maxFilesPerTrigger", 1)
        frame, checkpoint, out = rows.json(str(self.feed.folder)), self.folder / "ck", self.folder / "out"
        if kind == "foreach_batch":
            self.queries.append(stage.foreach_batch(frame, self._write, checkpoint=checkpoint))
            return
        if kind == "driven":
            driven = lws.drive(frame, inputs=["source"], event_time="t")
            counts = driven.groupBy(sf.window("t", "1 hour"), "key").count()
            frame = counts.select("key", sf.col("window.end").alias("t"))
        self.queries.append(stage.start(frame, checkpoint=checkpoint, format="parquet", path=out))

    def _write(self, rows: DataFrame, batch: lws.Batch) -> None:
        rows.collect()


FLOW = Gated


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No glance comes by itself but for the commit of a plain query."""
    for module in (hook, query):
        monkeypatch.setattr(module, "QUIET", 3600.0)


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("kind", ["foreach_batch", "plain", "driven"])
def test_a_moving_input_and_a_commit_are_news(flow: Gated, lw: lowwater.Client, upstream: Upstream, kind: str) -> None:
    flow.start(kind)
    for hour in range(9, 12):
        flow.feed.put([row("a", hour)])
        upstream.at(hour + 1)
        flow.eventually(lambda: low(lw, "stage") == mark(hour + 1), f"{hour}:00 is read and committed", seconds=100)  # noqa: B023
    upstream.at(15)
    flow.eventually(lambda: low(lw, "stage") == mark(15), "idle: W alone has moved", seconds=100)


def test_an_input_that_moves_is_found_though_nobody_tells(
    flow: Gated, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracked, "_hear", lambda *_: None)
    flow.start("plain")
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "10:00 is read and committed", seconds=100)
    upstream.at(15)
    flow.eventually(lambda: low(lw, "stage") == mark(15), "idle: W alone has moved", seconds=100)
