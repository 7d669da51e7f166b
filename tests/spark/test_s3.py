"""Tracked stages, and a job that nobody changes, whose checkpoints are on a real S3."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.location import Location, checkpoint_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track.status import in_short
from scripts.jars import jars
from tests.kit.s3 import S3
from tests.kit.times import mark
from tests.spark.crash_driver import ANY
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, low, row
from tests.spark.test_crashes import Crashes
from tests.spark.updates import HOURLY, hourly

pytestmark = pytest.mark.timeout(600)

DECLARED: dict[str, Any] = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4}


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")).start() as s3:
        for name, value in s3.settings.items():
            spark.conf.set(name, value)
        yield s3


@pytest.fixture
def checkpoint(spark: SparkSession, s3: S3, tmp_path: Path) -> Location:
    """A checkpoint of a test's own."""
    return checkpoint_of(spark, s3.path(f"{tmp_path.name}/ck"), single_driver=True)


class Query:
    """A stage over S3: plain, or with a function that has two stages."""

    def __init__(self, kind: str, flow: Flow, checkpoint: Location) -> None:
        self._kind = kind
        self._flow = flow
        self._checkpoint = str(checkpoint)

    def start(self, *, single_driver: bool = True) -> lws.TrackedQuery:
        given: dict[str, Any] = {"checkpoint": self._checkpoint, "single_driver": single_driver}
        stage, frame = lws.stage(self._flow.spark, "stage", **DECLARED, address=self._flow.address), self._flow.read()
        if self._kind == "plain":
            query = stage.start(frame, format="json", path=self._flow.folder / "out", **given)
        else:
            # Its directory in the checkpoint has the name other%2Estage.
            other = lws.stage(self._flow.spark, "other.stage", **DECLARED, address=self._flow.address)
            query = stage.foreach_batch(frame, self._write, also=[other], **given)
        self._flow.queries.append(query)
        return query

    def _write(self, rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, self._flow.folder / "out", file_format="json")

    def keys(self) -> list[str]:
        """What readers see."""
        out = self._flow.folder / "out"
        options = {} if self._kind == "plain" else {"recursiveFileLookup": "true"}
        rows = self._flow.spark.read.schema("key string, t timestamp").options(**options).json(str(out))
        return sorted(entry.key for entry in rows.collect())


@pytest.fixture(params=["plain", pytest.param("function", marks=pytest.mark.long)])
def query(request: pytest.FixtureRequest, flow: Flow, checkpoint: Location) -> Query:
    return Query(request.param, flow, checkpoint)


def test_a_stage_goes_on_from_a_checkpoint_on_s3(
    query: Query, flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location, s3: S3
) -> None:
    """With a single driver that is declared, else it is refused. S3 does not answer for a while: it holds and says why, and the neighbour does not wait."""
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


def test_a_driven_query_closes_its_windows_from_a_checkpoint_on_s3(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location
) -> None:
    stage = lws.stage(
        flow.spark, "stage", inputs=["source"], key="key", event_time="t", stamp=sf.col("hour"), address=flow.address
    )
    frame = lws.drive(flow.read(), inputs=["source"], event_time="t")
    windows = frame.groupBy(sf.window("t", "1 hour"), "key").count()
    hours = windows.select(sf.col("window.start").alias("hour"), "key")
    for hour in (10, 11):
        flow.feed.put([row(f"{hour}", hour - 1, 30), row("open", hour)])
        query = stage.start(
            hours, checkpoint=str(checkpoint), format="json", path=flow.folder / "out", single_driver=True
        )
        flow.queries.append(query)
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "stage") == mark(hour), "its windows are closed")  # noqa: B023
        query.stop()

    out = flow.spark.read.schema("hour timestamp, key string").json(str(flow.folder / "out"))
    assert sorted((found.hour.hour, found.key) for found in out.collect()) == [(9, "10"), (10, "11"), (10, "open")]


def test_windows_of_our_own_are_closed_by_ticks_on_s3(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location
) -> None:
    """No row comes to say so. What would have to be renamed, or is written by tasks, is refused with the way out."""
    emitted: list[str] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        closed = batch.stateful(rows, hourly, HOURLY, flow.folder / "state")
        emitted.extend(entry.key for entry in closed.collect())

    def start(write: Any, name: str) -> lws.TrackedQuery:
        stage = lws.stage(flow.spark, name, **DECLARED, stamp=HOUR, address=flow.address)
        query = stage.foreach_batch(flow.read(), write, checkpoint=str(checkpoint / name), single_driver=True)
        flow.queries.append(query)
        return query

    query = start(write_batch, "stage")
    flow.feed.put([row("a", 9)])
    flow.eventually(lambda: query.stage_status().batch == 0, "the row is in")
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the hour is over")
    assert emitted == ["a"]
    query.stop()

    for refused, said in (
        (lambda rows, batch: batch.stateful(rows, hourly, HOURLY), "State in the checkpoint s3a:"),
        (lambda rows, batch: batch.write(rows, str(checkpoint / "out")), "s3a: is none of them.*batch.write_table"),
    ):
        with pytest.raises(lws.Unsupported, match=said):
            start(refused, "refused").await_termination(180)


def test_ticks_which_are_paid_for_are_listed_once_a_second(flow: Flow, checkpoint: Location, s3: S3) -> None:
    """Spark lists them whenever it looks for rows, and by itself it looks again at once. The server's log says when it was asked."""
    stage = lws.stage(flow.spark, "stage", **DECLARED, address=flow.address)
    flow.queries.append(
        stage.foreach_batch(flow.read(), lambda *_: None, checkpoint=str(checkpoint), single_driver=True)
    )
    listing = f"max-keys=5000&prefix={str(checkpoint).split('/', 3)[3]}/lowwater/ticks/"

    def seconds() -> Counter[str]:
        return Counter(
            line.split("[")[1].split("]")[0] for line in map(unquote, s3.said("list-type")) if listing in line
        )

    flow.eventually(lambda: len(seconds()) >= 5, "it has looked in five different seconds")
    # One that is late is followed by the next one in time.
    assert max(seconds().values()) <= 2


def test_a_job_is_tracked_by_its_checkpoint_on_s3(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, spark: SparkSession, checkpoint: Location
) -> None:
    """The job knows nothing of it, and nothing is written there. That it has a single driver is promised, or it is refused."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    job = flow.read().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    sidecar = None
    promises = ["history", "nothing-skipped", "sink-visible-before-commit"]
    declared: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "inputs": ["source"],
        "sources": [f"files:{flow.feed.folder},recursiveFileLookup=true"],
        "state": flow.folder / "state",
        "spark": lambda: spark,
        "address": flow.address,
    }
    try:
        flow.eventually(lambda: CheckpointLog(checkpoint).last_committed() == 0, "it has begun")
        with pytest.raises(lws.Unsupported, match='add "single-driver" to its promises'):
            lws.track("stage", promises=promises, **declared)
        sidecar = lws.track("stage", promises=[*promises, "single-driver"], **declared)
        flow.eventually(lambda: low(lw, "stage") == mark(10), "what is committed counts")
        flow.feed.put([row("b", 10)])
        upstream.at(11)
        flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
        assert not (checkpoint / "lowwater").exists()
    finally:
        job.stop()
        if sidecar is not None:
            sidecar.stop()


def test_spark_itself_does_not_keep_two_drivers_apart_there(spark: SparkSession, s3: S3) -> None:
    """Why a single driver is declared: both are told that they have planned a batch, and what is there is one's. It is a race, so it is run some times."""
    jvm: Any = spark._jvm
    manager_of = jvm.org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager
    path_of = jvm.org.apache.hadoop.fs.Path
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    folder = path_of(s3.path("race/offsets"))
    managers = [manager_of(folder, conf) for _ in range(2)]
    managers[0].mkdirs(folder)

    def both_are_told(batch: int) -> bool:
        entry = path_of(folder, str(batch))
        files = [manager.createAtomic(entry, False) for manager in managers]
        for number, file in enumerate(files):
            file.write(b"v1 of driver %d" % number)
        with ThreadPoolExecutor(2) as pool:
            closing = [pool.submit(file.close) for file in files]
        return all(closed.exception() is None for closed in closing)

    assert any(both_are_told(batch) for batch in range(50))


class OnS3(Crashes):
    """A driver that keeps its checkpoint on S3, and its state beside its output."""

    checkpoint = ""
    settings: dict[str, str]

    def arguments(self, point: str, batch: int) -> dict[str, object]:
        settings = {f"spark.hadoop.{name}": value for name, value in self.settings.items()}
        settings["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in jars("s3"))
        return {**super().arguments(point, batch), "checkpoint": self.checkpoint, "settings": settings}


@pytest.mark.parametrize("point", ["begun", pytest.param("written", marks=pytest.mark.long)])
def test_rule6_a_driver_that_was_killed_is_replayed_from_s3(
    point: str, spark: SparkSession, flow: Flow, lw: lowwater.Client, upstream: Upstream, checkpoint: Location, s3: S3
) -> None:
    """By kill -9 of the driver, its JVM and its workers, with W on S3: the next run has the same W, whatever the inputs say by then."""
    crashes = OnS3(flow.folder, flow.address)
    crashes.checkpoint, crashes.settings = str(checkpoint), s3.settings
    crashes.put(("a", 9), ("b", 10))
    upstream.at(10)
    try:
        crashes.run(point, ANY)
        crashes.crashed()
    finally:
        crashes.kill()
    upstream.at(12)
    lows = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        lows.append((batch.id, batch.replayed, batch.low))
        batch.write(batch.stateful(rows, hourly, HOURLY, flow.folder / "state"), flow.folder / "out")

    stage = lws.stage(spark, "hourly", **DECLARED, stamp=HOUR, address=flow.address)
    frame = spark.readStream.schema("key string, t timestamp").json(str(flow.folder / "in"))
    flow.queries.append(stage.foreach_batch(frame, write_batch, checkpoint=str(checkpoint), single_driver=True))
    flow.eventually(lambda: low(lw, "hourly") == mark(12), "what was interrupted is done again")

    assert lows[0] == (0, True, mark(10))
    assert crashes.written() == [("09:00", "a", 1), ("10:00", "b", 1)]
