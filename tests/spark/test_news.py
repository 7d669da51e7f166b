"""A stage does not wait for its clock when there is news: an input that has moved, or a batch that is committed.

The interval of the clock is an hour in these tests, so whatever comes through has come by news.
"""

from __future__ import annotations

import dataclasses
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track import hook, query
from lowwater_spark.track.query import Tracked, TrackedQuery
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.queries import Queries
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

HOUR = timedelta(hours=1)


class Gated(Queries):
    """One feed, and stages over it whose clock looks once an hour."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.feed = Feed(folder / "in")
        self.gates: dict[int, threading.Event] = {}
        """What batches wait for before they end, by number."""

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
        if batch.id in self.gates:
            assert self.gates[batch.id].wait(60)

    def stop(self) -> None:
        """Let the batches go, and stop the queries."""
        for gate in self.gates.values():
            gate.set()
        super().stop()


FLOW = Gated


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No glance comes by itself but for the commit of a plain query."""
    for module in (hook, query):
        monkeypatch.setattr(module, "QUIET", 3600.0)


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("kind", ["foreach_batch", "plain", "driven"])
def test_an_input_that_moves_and_a_committed_batch_are_news(
    flow: Gated, lw: lowwater.Client, upstream: Upstream, kind: str
) -> None:
    flow.start(kind)
    for hour in range(9, 12):
        flow.feed.put([row("a", hour)])
        upstream.at(hour + 1)
        flow.eventually(lambda: low(lw, "stage") == mark(hour + 1), f"{hour}:00 is read and committed", seconds=100)  # noqa: B023
    upstream.at(15)
    flow.eventually(lambda: low(lw, "stage") == mark(15), "idle: W alone has moved", seconds=100)


def test_a_stage_waits_for_its_clock_without_news(
    flow: Gated, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail: nothing else than news brings its stages on."""
    monkeypatch.setattr(TrackedQuery, "_news", lambda _, **__: False)
    upstream.at(9)
    flow.start("plain")
    flow.eventually(lambda: low(lw, "stage") == mark(9), "a run looks when it starts")
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.eventually((flow.folder / "ck/commits/0").exists, "the batch is committed")
    with pytest.raises(AssertionError, match="not within"):
        flow.eventually(lambda: low(lw, "stage") == mark(10), "nobody has looked", seconds=2)


@pytest.mark.parametrize("kind", ["foreach_batch", "plain", pytest.param("driven", marks=pytest.mark.long)])
def test_an_input_that_moves_is_found_though_nobody_tells(
    flow: Gated, lw: lowwater.Client, upstream: Upstream, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told may be lost: then a slow glance finds it."""
    monkeypatch.setattr(Tracked, "_hear", lambda *_: None)
    flow.start(kind)
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "10:00 is read and committed", seconds=100)
    upstream.at(15)
    flow.eventually(lambda: low(lw, "stage") == mark(15), "idle: W alone has moved", seconds=100)


@pytest.mark.usefixtures("told_only")
def test_a_commit_that_the_next_batch_notices_is_news(
    flow: Gated, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backlog the batch that follows may notice a commit before the clock does. What is complete by then is reported at once."""
    monkeypatch.setattr(CheckpointLog, "committed", lambda *_: False)  # the clock never does
    flow.gates = {1: threading.Event(), 2: threading.Event()}
    flow.start("foreach_batch")
    run = flow.queries[0]._run
    for hour in (9, 10):
        flow.feed.put([row("a", hour)])
    flow.eventually((flow.folder / "ck/offsets/1").exists, "the second batch runs")
    upstream.at(11)
    flow.eventually(lambda: len(run.progress._candidates) > 0, "11:00 was listed for, and waits for the commit")
    flow.feed.put([row("a", 11)])
    flow.gates[1].set()
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the second batch is committed, and the third one has begun")


def test_a_batch_that_nobody_can_be_told_of_is_news_once(
    flow: Gated, authority: Serving, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Or the clock would look again and again for as long as the authority is away."""
    flow.start("foreach_batch")
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch is reported", seconds=100)
    run = flow.queries[0]._run
    authority.kill()
    flow.feed.put([row("a", 10)])
    flow.eventually(lambda: run.progress.committed.batch == 1, "the second batch is committed", seconds=100)
    assert run.authority.problem
    flow.eventually(lambda: not run.news(), "the clock has looked, and rests")
