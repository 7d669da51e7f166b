"""Queries that nobody changes, tracked by their checkpoints: what is published is never above what still comes out, and what cannot be known is refused."""

from __future__ import annotations

import json
import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.settings import connection
from lowwater_spark.sidecar import evidence
from lowwater_spark.sidecar.command import describe, main
from lowwater_spark.sidecar.declaration import PROMISES, Declaration, source_of
from lowwater_spark.sidecar.watch import _Beginning, from_environment
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.progress import Committed, Progress
from lowwater_spark.track.run import Run
from tests.kit.eventually import eventually
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.flow import PlainFlow
from tests.spark.retained import Oracle
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROMISED = ["nothing-skipped", "sink-visible-before-commit"]


class Elsewhere(PlainFlow):
    """A job of somebody else's over the feed, which knows nothing of lowwater, and sidecars of its checkpoint."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.jobs: list[StreamingQuery] = []
        self.sidecars: list[lws.Sidecar] = []

    def job(
        self, frame: DataFrame | None = None, *, checkpoint: str = "ck", out: str = "out", **options: Any
    ) -> StreamingQuery:
        stream = self.read() if frame is None else frame
        writer = stream.writeStream.format("json").option("path", str(self.folder / out)).options(**options)
        job = (
            writer.option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )
        self.jobs.append(job)
        return job

    def begun(self, checkpoint: str = "ck") -> None:
        """Wait until the job has a checkpoint."""
        eventually((self.folder / checkpoint / "metadata").exists, "the job has begun")

    def follow(self, *more: str, checkpoint: str = "ck", state: str = "state", **declared: Any) -> lws.Sidecar:
        said: dict[str, Any] = {
            "inputs": ["source"],
            "sources": [f"files:{self.folder / 'in'}"],
            "promises": [*PROMISED, *more],
            "output": str(self.folder / "out"),
        }
        path = str(self.folder / checkpoint)
        sidecar = lws.track(
            "stage", checkpoint=path, state=self.folder / state, address=self.address, **{**said, **declared}
        )
        self.sidecars.append(sidecar)
        return sidecar

    def committed(self, batch: int, checkpoint: str = "ck") -> None:
        log = CheckpointLog(self.folder / checkpoint)
        self.eventually(lambda: log.last_committed() in range(batch, 1000), f"batch {batch} is committed")

    def check(self) -> None:
        for job in self.jobs:
            assert job.exception() is None, str(job.exception())

    def stop(self) -> None:
        for sidecar in self.sidecars:
            sidecar.stop()
        for job in self.jobs:
            job.stop()


FLOW = Elsewhere


def hours(frame: DataFrame) -> DataFrame:
    counts = frame.withWatermark("t", "20 minutes").groupBy(sf.window("t", "1 hour"), "key").count()
    return counts.select("key", sf.col("window.start").alias("t"), "count")


def ended_by(sidecar: lws.Sidecar) -> Exception:
    try:
        ended = sidecar.await_termination(60)
    except (CheckpointMismatch, Unsupported, errors.LowwaterError) as failure:
        return failure
    pytest.fail("it has ended without a reason" if ended else "it goes on")


def test_a_job_is_followed_through_a_backlog_and_restarts(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    """W counts when all that was listed is committed; the rate limit makes it wait, and killing either changes nothing."""
    for minute in range(6):
        flow.feed.put([row("a", 9, minute)])
    oracle = Oracle(flow.address, flow.folder / "out")
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    with oracle.watching("stage"):
        job = flow.job(flow.read(maxFilesPerTrigger="1"))
        flow.begun()
        sidecar = flow.follow("history")
        upstream.at(10)
        flow.eventually(lambda: low(lw, "stage") == mark(10), "the backlog is read")
        assert CheckpointLog(flow.folder / "ck").last_committed() == 5
        upstream.at(10, 30)
        flow.eventually(lambda: low(lw, "stage") == mark(10, 30), "it follows its inputs when no rows come")
        sidecar.stop()
        flow.feed.put([row("a", 10, 30)])
        flow.committed(6)
        job.stop()
        again = flow.follow()
        assert again.status().low == mark(10, 30), "what counted before counts at once"
        flow.feed.put([row("a", 10, 40)])
        upstream.at(11)
        flow.eventually(lambda: again.status().waiting_for != (), "the job is away, so a file waits")
        assert low(lw, "stage") == mark(10, 30)
        flow.job(flow.read(maxFilesPerTrigger="1"))
        flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
    assert oracle.broken() == []
    assert not (flow.folder / "ck" / "lowwater").exists(), "nothing is written into the checkpoint"


def test_windows_of_spark_need_their_retention_and_hold(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(9)
    flow.feed.put([row("a", 9, 10)])
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    oracle = Oracle(flow.address, flow.folder / "out")
    with oracle.watching("stage"):
        flow.job(hours(flow.read()))
        flow.committed(0)
        with pytest.raises(Unsupported, match=r"stateStoreSave.*how far below its watermark") as refused:
            flow.follow("history")
        assert "of windows their length" in refused.value.fix
        with pytest.raises(Unsupported, match="does not say in which output mode"):
            flow.follow("history", retention="1h")
        sidecar = flow.follow("history", windows="1h", output_mode="append")
        flow.feed.put([row("a", 11)])
        upstream.at(11, 30)
        # The watermark of 10:40 has closed the hour of nine, and that of ten is open.
        flow.eventually(lambda: low(lw, "stage") == mark(10), "the first window that ends above Spark's watermark")
        flow.feed.put([row("a", 13)])
        upstream.at(13)
        flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")
        sidecar.stop()
    assert oracle.broken() == []
    assert len(oracle.values()) >= 2
    for changed in (
        {"retention": "0s", "stamp": "1h"},
        {"retention": "1h", "stamp": "1h"},
        {"windows": "1h", "windows_start": "15m"},
    ):
        with pytest.raises(CheckpointMismatch, match="other declarations"):
            flow.follow(output_mode="append", **changed)


def test_rule1_a_checkpoint_that_was_begun_anew_is_not_the_one_that_was_looked_at(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Its job reads everything once more: what was reported of the old one must not be renewed. The neighbour goes on."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    job = flow.job()
    other = flow.job(checkpoint="other", out="elsewhere")
    flow.committed(0)
    flow.committed(0, "other")
    sidecar = flow.follow("history")
    path = str(flow.folder / "other")
    neighbour = lws.track(
        "neighbour",
        checkpoint=path,
        inputs=["source"],
        sources=[f"files:{flow.folder / 'in'}"],
        promises=[*PROMISED, "history"],
        state=flow.folder / "state",
        address=flow.address,
    )
    flow.sidecars.append(neighbour)
    flow.eventually(lambda: (low(lw, "stage"), low(lw, "neighbour")) == (mark(10), mark(10)), "both follow")
    job.stop()
    shutil.rmtree(flow.folder / "ck")
    shutil.rmtree(flow.folder / "out")
    flow.job()
    assert "is of another query by now" in str(ended_by(sidecar))
    upstream.at(11)
    flow.eventually(lambda: low(lw, "neighbour") == mark(11), "one's fault stays its own")
    assert low(lw, "stage") == mark(10)
    with pytest.raises(CheckpointMismatch, match="another query by now"):
        flow.follow()
    with pytest.raises(errors.IdentityMismatch):
        flow.follow("history", state="another")
    assert other.isActive


@pytest.mark.long
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when nobody asks whose the checkpoint is")
def test_rule1_breaks_when_nobody_asks_whose_the_checkpoint_is(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence.Evidence, "attend", lambda _self: None)
    monkeypatch.setattr(evidence.Evidence, "confirm", lambda _self, _plan: None)
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    oracle = Oracle(flow.address, flow.folder / "again")
    with oracle.watching("stage"):
        job = flow.job()
        flow.committed(0)
        flow.follow("history", output="")
        flow.eventually(lambda: low(lw, "stage") == mark(10), "it follows")
        job.stop()
        shutil.rmtree(flow.folder / "ck")
        flow.job(out="again")
        upstream.at(11)
        flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
        flow.committed(0)
    assert oracle.broken() == []


def test_rule1_a_checkpoint_that_was_restored_from_a_copy_is_refused(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    job = flow.job(flow.read(), retention="1h")
    flow.committed(0)
    flow.follow("history")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it follows")
    job.stop()
    shutil.copytree(flow.folder / "ck", flow.folder / "old")
    job = flow.job()
    flow.feed.put([row("b", 10)])
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the second batch")
    job.stop()
    flow.sidecars[-1].stop()
    shutil.rmtree(flow.folder / "ck")
    shutil.copytree(flow.folder / "old", flow.folder / "ck")
    with pytest.raises(CheckpointMismatch, match="batch 1 was committed, and its commit log ends before"):
        flow.follow()
    # Another driver has planned the same batch from other rows.
    flow.feed.put([row("c", 11)])
    shutil.rmtree(flow.folder / "out")
    flow.job()
    flow.committed(1)
    with pytest.raises(CheckpointMismatch, match="was planned anew"):
        flow.follow()


def test_s5_what_a_copy_of_the_checkpoint_reads_counts_for_nothing(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    """It has the same id, and runs beside the one that is looked at, into an output of its own."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    job = flow.job()
    flow.committed(0)
    flow.follow("history")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "one row is read")
    job.stop()
    shutil.copytree(flow.folder / "ck", flow.folder / "copy")
    flow.feed.put([row("b", 10)])
    flow.job(checkpoint="copy", out="other")
    flow.committed(1, "copy")
    upstream.at(11)
    [sidecar] = flow.sidecars
    flow.eventually(lambda: sidecar.status().waiting_for, "the query that is looked at has not read the second row")
    [said] = sidecar.status().waiting_for
    assert said.startswith("the job that this sidecar follows, "), "it is the job that has not read, not the sidecar"
    assert lw.ranges("stage").ranges[0].worker.startswith("sidecar stage-")
    assert low(lw, "stage") == mark(10)
    flow.job()
    flow.eventually(lambda: low(lw, "stage") == mark(11), "now it has")


def test_who_has_not_seen_the_beginning_must_be_told_of_it(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    """At first, and when more batches came while nobody looked than Spark keeps."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        job = flow.job(flow.read(maxFilesPerTrigger="1"))
    finally:
        flow.spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    flow.committed(0)
    with pytest.raises(Unsupported, match=r"batches are committed already.*before anybody looked"):
        flow.follow()
    flow.follow("history").stop()
    for minute in range(8):
        flow.feed.put([row("b", 9, minute)])
    flow.committed(8)
    flow.eventually(lambda: not (flow.folder / "ck/offsets/0").exists(), "Spark has removed what was seen")
    with pytest.raises(Unsupported, match=r"the entry of batch 0.* is gone"):
        flow.follow()
    flow.follow("history")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it follows again")
    assert job.isActive


def test_rule1_nothing_counts_before_the_first_commit(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    """Nobody knows yet that the query has windows: a row at half past ten opens that of ten."""
    upstream.at(10, 30)
    flow.job(hours(flow.read()))
    flow.begun()
    sidecar = flow.follow()
    flow.eventually(lambda: sidecar.status().low == mark(10, 30), "the inputs are read, and nothing is there")
    assert "before it nobody knows" in " ".join(sidecar.status().waiting_for)
    flow.feed.put([row("a", 10, 35)])
    assert "how far below its watermark" in str(ended_by(sidecar))
    assert low(lw, "stage").unknown


def test_rule1_what_is_planned_counts_for_nothing(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    """A batch that failed is planned anew with fewer files, as an operator has it who removes its plan: the others are not read."""
    fail, hold = threading.Event(), threading.Event()
    fail.set()

    def write(rows: DataFrame, batch: int) -> None:
        if batch == 1 and fail.is_set():
            msg = "too big"
            raise RuntimeError(msg)
        if batch == 2:
            hold.wait(120)

    def job(**options: str) -> StreamingQuery:
        stream = flow.read(**options).writeStream.foreachBatch(write).trigger(processingTime="0 seconds")
        return stream.option("checkpointLocation", str(flow.folder / "ck")).start()

    upstream.at(9)
    flow.feed.put([row("z", 9)])
    first = job()
    flow.committed(0)
    sidecar = flow.follow("history", output="")
    flow.eventually(lambda: low(lw, "stage") == mark(9), "it follows")
    first.stop()
    flow.feed.put([row("f", 9, 1)])
    flow.feed.put([row("g", 9, 2)])
    with pytest.raises(StreamingQueryException):
        job().awaitTermination(60)
    upstream.at(10)
    flow.eventually(
        lambda: len(sidecar.status().waiting_for) == 2, "the plan of batch 1 has both, and is not committed"
    )
    for log in ("offsets", "sources/0"):
        for name in ("1", ".1.crc"):
            (flow.folder / "ck" / log / name).unlink(missing_ok=True)
    fail.clear()
    again = job(maxFilesPerTrigger="1")
    try:
        flow.committed(1)
        flow.eventually(lambda: len(sidecar.status().waiting_for) == 1, "one of them is read")
        assert low(lw, "stage") == mark(9)
        hold.set()
        flow.eventually(lambda: low(lw, "stage") == mark(10), "both are")
    finally:
        hold.set()
        again.stop()


def test_another_volume_than_the_drivers_is_refused(flow: Elsewhere, upstream: Upstream) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    job = flow.job()
    flow.committed(0)
    job.stop()
    (flow.folder / "in").rename(flow.folder / "its-volume")
    (flow.folder / "in").mkdir()
    with pytest.raises(Unsupported, match="another volume may be mounted") as refused:
        flow.follow("history")
    told = Path(refused.value.fix.rpartition("touch ")[2])
    told.parent.mkdir(parents=True, exist_ok=True)
    told.touch()
    flow.follow("history")


def test_how_a_directory_with_a_sinks_log_is_read_is_declared(flow: Elsewhere, upstream: Upstream) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.committed(0)
    with pytest.raises(Unsupported, match="no log of Spark's file sink"):
        flow.follow("history", sources=[f"sink:{flow.folder / 'in'}"])
    # A file sink begins to write there; the job lists the directory all the same.
    shutil.copytree(flow.folder / "out" / "_spark_metadata", flow.folder / "in" / "_spark_metadata")
    with pytest.raises(Unsupported, match="one that was started before lists all files"):
        flow.follow("history")
    with pytest.raises(Unsupported, match="files that the sink's log does not name"):
        flow.follow("history", sources=[f"sink:{flow.folder / 'in'}"])


def test_a_lost_state_directory_is_no_older_claim(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.committed(0)
    for _ in range(3):
        flow.follow("history").stop()
    shutil.rmtree(flow.folder / "state")
    flow.follow("history")
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")


def test_a_clock_that_was_put_back_is_no_older_claim(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    """Claims are numbered by the clock, and each comes after what the state directory has seen."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.committed(0)
    flow.follow("history").stop()
    [newest] = sorted((flow.folder / "state/stage/lowwater/manifest").glob("*.json"), key=lambda path: int(path.stem))[
        -1:
    ]
    written = json.loads(newest.read_text())
    newest.write_text(json.dumps({**written, "run": written["run"] + 10**12}))
    for hour in (11, 12):
        flow.follow()
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "stage") == mark(hour), "it goes on")  # noqa: B023
        flow.sidecars[-1].stop()


def test_rule1_what_was_read_while_the_checkpoint_was_exchanged_is_not_reported(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that finds nothing new asks once whose the checkpoint is; one that has taken a batch asks again before it tells anybody."""
    asked: list[str] = []
    confirm, sync = evidence.Evidence.confirm, Plain._sync

    def confirming(self: evidence.Evidence, plan: Plan | None) -> None:
        asked.append("")
        confirm(self, plan)

    def exchanging(self: Plain, last: int) -> None:
        sync(self, last)
        if last == 1:
            (flow.folder / "ck" / "metadata").write_text('{"id": "another"}')

    monkeypatch.setattr(evidence.Evidence, "confirm", confirming)
    monkeypatch.setattr(Plain, "_sync", exchanging)
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    job = flow.job()
    flow.committed(0)
    job.stop()
    sidecar = flow.follow("history")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it follows")
    looks: list[int] = []
    look = Run.tick

    def looking(self: Run, *, last: bool = False) -> None:
        asked.clear()
        look(self, last=last)
        looks.append(len(asked))

    monkeypatch.setattr(Run, "tick", looking)
    flow.eventually(lambda: looks[-3:] == [1, 1, 1], "nothing comes, and it asks once a look")
    flow.feed.put([row("b", 10)])
    upstream.at(11)
    flow.eventually(lambda: sidecar.status().waiting_for != (), "the file is listed, and its batch is awaited")
    flow.job()
    assert "is of another query by now" in str(ended_by(sidecar))
    assert low(lw, "stage") == mark(10)


def test_gaps_of_async_progress_are_no_gaps_in_what_was_read(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Spark then notes one batch of many, later, and clears what the next start would do again. What it has noted is read, whatever came between."""
    options = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "300"}
    writer = flow.read(maxFilesPerTrigger="1").writeStream.format("noop").options(**options)

    def start() -> StreamingQuery:
        flow.jobs.append(writer.option("checkpointLocation", str(flow.folder / "ck")).start())
        return flow.jobs[-1]

    flow.feed.put([row("a", 9)])
    job = start()
    flow.committed(0)
    sidecar = flow.follow("history", output="")

    def noted() -> list[int]:
        return sorted(int(entry.name) for entry in (flow.folder / "ck" / "commits").iterdir() if entry.name.isdecimal())

    def reached(hour: int) -> bool:
        """Or one row more: Spark notes nothing of a batch that ends too soon after one that it has noted."""
        if low(lw, "stage") == mark(hour):
            return True
        flow.feed.put([row("a", hour - 1)])
        return False

    for hour in range(10, 14):
        upstream.at(hour)
        flow.eventually(lambda: reached(hour), "all that there was is noted")  # noqa: B023
        if hour == 11:
            job.stop()
            job = start()
    job.stop()
    flow.eventually(lambda: sidecar.status().batch == noted()[-1], "the newest is read")
    assert noted()[-1] + 1 > len(noted()), "it has noted each batch, and shows nothing"


def test_a_claim_that_is_made_late_says_what_is_committed_then(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream, authority: Serving
) -> None:
    """The authority is away at the start, and meanwhile batches are committed."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.committed(0)
    flow.follow("history", state="before").stop()
    authority.kill()
    late = flow.follow("history")
    assert late.status().holding != ""
    flow.feed.put([row("b", 9)])
    flow.committed(1)
    authority.start()
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it claims behind batch 1")


def test_two_sidecars_and_a_tracked_job_do_not_mix(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    """The newer of two is heard; a computation that a job tracks itself is no sidecar's, and the other way round."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.committed(0)
    first = flow.follow("history")
    second = flow.follow()
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the newer one reports")
    assert isinstance(ended_by(first), CheckpointMismatch | errors.StaleSequencer)
    second.stop()
    with pytest.raises(errors.IdentityMismatch):
        flow.start(checkpoint="own", path=flow.folder / "own-out")
    flow.start(stage=flow.stage("own"), checkpoint="own", path=flow.folder / "own-out")
    flow.eventually(lambda: low(lw, "own") == mark(11), "the job tracks itself")
    with pytest.raises(Unsupported, match="its own job tracks it"):
        flow.follow("history", checkpoint="own")


def test_a_source_more_than_declared_is_refused(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    (flow.folder / "more").mkdir()
    flow.job(flow.read().union(flow.read("more")))
    flow.committed(0)
    with pytest.raises(Unsupported, match="reads 2 sources, and 1 are declared"):
        flow.follow("history")
    with pytest.raises(Unsupported, match="Spark holds nothing in it"):
        flow.follow(
            "history", state="held", retention="1h", sources=[f"files:{flow.folder / each}" for each in ("in", "more")]
        )
    with pytest.raises(CheckpointMismatch, match="has taken"):
        flow.follow("history", state="swapped", sources=[f"files:{flow.folder / each}" for each in ("more", "in")])
    flow.follow("history", state="all", sources=[f"files:{flow.folder / each}" for each in ("in", "more")])
    flow.eventually(lambda: low(lw, "stage") == mark(10), "both are declared")


# -- without Spark ------------------------------------------------------------------------------------------------------


SAID: dict[str, Any] = {
    "name": "stage",
    "checkpoint": "/ck",
    "inputs": ["source"],
    "sources": ["files:/in"],
    "promises": PROMISED,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "name of a query is a text that is not empty"),
        ({"inputs": []}, "the query stage: inputs is a list"),
        ({"inputs": "source"}, "inputs is a list of texts"),
        ({"sources": []}, "has no sources"),
        ({"sources": ["files"]}, "'files' is no source; write it like"),
        ({"sources": ["files:in"]}, "absolute directory"),
        ({"sources": ["files:/in/*"]}, "no pattern"),
        ({"sources": ["files:/in,latestFirst=true"]}, "option latestfirst, which says nothing here"),
        ({"sources": ["rate:1"]}, "nobody can tell where it ends"),
        ({"sources": ["kafka:a"]}, "needs its topics, kafka.bootstrap.servers and lowwater.brokers"),
        ({"promises": ["nothing-skipped"]}, "promises.*sink-visible|sink-visible-before-commit"),
        ({"promises": ["all"]}, "promises all, which is none of"),
        ({"output_mode": "complete"}, "writes old results again"),
        ({"retention": "soon"}, "retention: 'soon' is no duration"),
        ({"heuristics": [1]}, "heuristics is a list of shares"),
        ({"heuristics": [1.5]}, "shares between 0 and 1"),
        ({"stamp": "0s"}, "stamp is the length of the windows, above 0"),
        ({"windows": "1h", "stamp": "1h"}, "stands for retention and stamp; leave those two out"),
        ({"windows": "0s"}, "windows is the length of tumbling windows, above 0"),
        ({"windows": "1h", "windows_start": "1h"}, "windows_start is the startTime .* below that length"),
        ({"windows_start": "15m"}, "windows_start is the startTime of the windows whose length windows or stamp"),
        ({"adopt": "false"}, "adopt is true or false"),
        ({"output": "out"}, "output is the absolute directory"),
        ({"sources": [7]}, "7 is no source"),
        (
            {"sources": [{"kind": "files", "path": "/in", "recursive": True}]},
            "a table with kind, path, topics, options",
        ),
        ({"sources": [{"kind": "kafka", "topics": "abc"}]}, "topics is a list of texts"),
        ({"sources": [{"kind": "files", "path": "/in", "options": 5}]}, "options is a table"),
        ({"sources": ["files:/in,maxFileAge=soon"]}, "maxfileage: 'soon' is no duration"),
        ({"sources": ["delta:in"]}, "absolute directory or a URI"),
        ({"sources": ["iceberg:ice.db.t,branch=x"]}, "has the option branch, which says nothing here"),
        ({"input": ["source"]}, "input is no key of a query; there are adopt, checkpoint"),
    ],
)
def test_what_is_declared_is_read_and_what_is_wrong_is_named(wrong: dict[str, Any], message: str) -> None:
    assert Declaration.parse({**SAID, "retention": "90m"}).retention == timedelta(minutes=90)
    with pytest.raises(ValueError, match=message):
        Declaration.parse({**SAID, **wrong})
    with pytest.raises(ValueError, match="a query is a table"):
        Declaration.parse("stage")


@pytest.mark.parametrize(
    ("declared", "lowest"),
    [({}, mark(10)), ({"windows_start": "15m"}, mark(9, 15)), ({"windows_start": "59m"}, mark(9, 59))],
)
def test_rule1_shifted_windows_are_stamped_before_the_hour(
    tmp_path: Path, declared: dict[str, Any], lowest: lowwater.Watermark
) -> None:
    """Spark's watermark is at 10:00. The window of 9:15 to 10:15 is still to come, and its rows are stamped 9:15."""
    said = Declaration.parse({**SAID, "windows": "1h", **declared})
    checked = _Beginning(said, tmp_path, None)._checked([])
    state = Committed(spark_bound=checked.bound_at(mark(10).micros))
    progress = Progress(1, said.stamp, [], state, said.windows_start)
    assert progress.values(Reading(mark(12).micros)) == [lowest.micros]
    assert progress.values(Reading(lowest.micros + 1)) == [lowest.micros], "a row of this time opens that window"


def test_windows_belong_to_the_shape_and_an_older_release_kept_none() -> None:
    tumbling = Declaration.parse({**SAID, "windows": "1h"})
    shifted = Declaration.parse({**SAID, "windows": "1h", "windows_start": "15m"})
    others = Declaration.parse({**SAID, "retention": "1h", "stamp": "1h"})
    assert tumbling.has_shape(tumbling.shape())
    assert not any(other.has_shape(tumbling.shape()) for other in (shifted, others))
    older = {key: value for key, value in tumbling.shape().items() if not key.startswith("windows")}
    assert tumbling.has_shape(older)
    assert others.has_shape(older)
    assert not shifted.has_shape(older), "what that release published of shifted windows may have led"


def test_how_the_authority_is_reached_stands_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No argument has a token."""
    certificate = tmp_path / "ca.crt"
    certificate.write_bytes(b"a certificate")
    monkeypatch.setenv("LOWWATER_TOKEN", "secret")
    monkeypatch.setenv("LOWWATER_CA", str(certificate))
    found = connection(from_environment, "lowwater:1")
    assert (found.address, found.token, found.root_certificates) == ("lowwater:1", "secret", b"a certificate")


def test_a_source_is_a_text_or_a_table() -> None:
    table = {
        "kind": "kafka",
        "topics": ["b", "a"],
        "options": {"kafka.bootstrap.servers": "x:1", "lowwater.brokers": 3, "lowwater.earlierRows": "skip"},
    }
    text = "kafka:a+b,kafka.bootstrap.servers=x:1,lowwater.brokers=3,lowwater.earlierRows=skip"
    assert source_of(text) == source_of(table)


@dataclass
class Operator:
    """A state directory as Spark writes it."""

    checkpoint: Path

    def put(self, number: int, name: str, *schemas: str) -> None:
        folder = self.checkpoint / "state" / str(number)
        for i, schema in enumerate(schemas):
            path = folder / "0" / (f"store{i}" if len(schemas) > 1 else "") / "_metadata" / "schema"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\x00\x02v2" + schema.encode())
        meta = folder / "_metadata" / "metadata"
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": number, "operatorName": name}}))


DELAYED = '{"metadata":{"spark.watermarkDelayMs":600000}}'


@pytest.mark.parametrize(
    ("operator", "schemas", "refused"),
    [
        ("dedupeWithinWatermark", ["{}"], ""),
        ("stateStoreSave", [DELAYED], ""),
        ("stateStoreSave", ["{}"], "under a watermark"),
        ("stateStoreSave", [], "its schema cannot be found"),
        ("symmetricHashJoin", [DELAYED, DELAYED, "{}"], ""),
        ("symmetricHashJoin", [DELAYED, "{}"], "under a watermark"),
        ("applyInPandasWithState", ["{}"], ""),
        ("somethingNew", [DELAYED], "does not know what Spark holds"),
        ("", [DELAYED], "without a name"),
    ],
)
def test_what_a_checkpoint_says_of_sparks_state(
    tmp_path: Path, operator: str, schemas: list[str], refused: str
) -> None:
    Operator(tmp_path).put(0, operator, *schemas)
    retention = {} if operator.startswith("dedupe") else {"retention": "1h"}
    declared = Declaration.parse({**SAID, **retention, "output_mode": "append"})
    tumbling = Declaration.parse({**SAID, "windows": "1h", "output_mode": "append"})
    if operator != "stateStoreSave":
        with pytest.raises(Unsupported, match=r"windows are declared to be all|nothing in it"):
            evidence.Evidence(tmp_path, None, tumbling, [])._check_operators(0)  # type: ignore[arg-type]
    looked: Any = evidence.Evidence(tmp_path, None, declared, [])  # type: ignore[arg-type]
    assert evidence.operators(tmp_path) == {"0": operator}
    if refused:
        with pytest.raises(Unsupported, match=refused):
            looked._check_operators(0)
    else:
        looked._check_operators(0)
        # An operator that a newer version of the query has added is looked at as well.
        Operator(tmp_path).put(1, "somethingNew")
        with pytest.raises(Unsupported, match="somethingNew"):
            looked._check_operators(1)


# -- the command --------------------------------------------------------------------------------------------------------


def test_the_command_describes_a_checkpoint_and_says_what_is_wrong(
    flow: Elsewhere, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job(hours(flow.read()))
    flow.committed(0)
    said = describe(str(flow.folder / "ck"), None)
    assert "stateStoreSave" in said
    assert '"<files:/data/in>",  # {"logOffset":0}' in said
    filled = said.replace("<the computation's name>", "stage").replace(
        "<each computation whose output it reads>", "source"
    )
    filled = filled.replace("<files:/data/in>", f"files:{flow.folder / 'in'}").replace("<1h>", "1h")
    filled = filled.replace("<append or update>", "append").replace('# "', '"')
    [query] = tomllib.loads(filled)["query"]
    assert Declaration.parse(query).promises == frozenset(PROMISES) - {"single-driver"}
    for arguments, message in {
        ("describe", str(flow.folder / "in")): "metadata",
        ("track", "--state", "/s"): "name of a query is a text",
        ("track", "/nowhere.toml", "--state", "/s"): "/nowhere.toml",
        ("track", "/f", "--state", "/s", "--name", "x"): "or by options, not both",
        ("describe", "hdfs://x/ck", "--conf", "a"): "--conf takes NAME=VALUE",
    }.items():
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


@pytest.fixture
def declared(flow: Elsewhere) -> Callable[..., Path]:
    def write(*queries: str) -> Path:
        path = flow.folder / "queries.toml"
        common = f'inputs = ["source"]\nsources = ["files:{flow.folder / "in"}"]\npromises = {[*PROMISED, "history"]}\n'
        path.write_text("".join(f"[[query]]\n{query}\n{common}" for query in queries))
        return path

    return write


@pytest.fixture
def command(flow: Elsewhere) -> Iterator[Callable[[Path], Any]]:
    import subprocess
    import sys

    running: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "lowwater_spark.sidecar.command", "track", str(path)]
        arguments = ["--state", str(flow.folder / "state"), "--address", flow.address]
        arguments += ["--heartbeat", str(flow.folder / "heartbeat")]
        running.append(subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_many_queries_in_one_process_are_each_on_their_own(
    flow: Elsewhere,
    lw: lowwater.Client,
    upstream: Upstream,
    declared: Callable[..., Path],
    command: Callable[[Path], Any],
) -> None:
    """One is refused, one is not there yet, one goes on; a kill -9 takes nothing back."""
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.job(hours(flow.read()), checkpoint="windows", out="hours")
    flow.committed(0)
    flow.committed(0, "windows")
    ways = {name: flow.folder / name for name in ("ck", "windows", "later")}
    path = declared(*(f'name = "{name}"\ncheckpoint = "{way}"' for name, way in ways.items()))
    first = command(path)
    flow.eventually(lambda: "ck" in lw.get("ck") and low(lw, "ck") == mark(10), "one goes on")
    flow.job(checkpoint="later", out="later-out")
    flow.eventually(lambda: "later" in lw.get("later") and low(lw, "later") == mark(10), "another one has come")
    heartbeat = flow.folder / "heartbeat"
    since = heartbeat.stat().st_mtime_ns
    flow.eventually(
        lambda: heartbeat.stat().st_mtime_ns > since, "both have looked, and the one that was refused does not count"
    )
    first.kill()
    assert "windows is not tracked any more: the operator stateStoreSave" in first.stderr.read()
    flow.feed.put([row("a", 10)])
    upstream.at(11)
    second = command(path)
    flow.eventually(lambda: (low(lw, "ck"), low(lw, "later")) == (mark(11), mark(11)), "the next process goes on")
    second.terminate()
    assert second.wait(60) == 1, "one was refused"
