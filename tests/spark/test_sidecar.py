"""Queries that nobody changes, tracked by their checkpoints: what is published is never above what still comes out, and what cannot be known is refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar import evidence
from lowwater_spark.sidecar.command import main
from lowwater_spark.sidecar.declaration import PROMISES, Declaration, source_of
from lowwater_spark.sidecar.description import describe
from lowwater_spark.sidecar.stateful import operators
from lowwater_spark.sidecar.watch import checked
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.run.progress import AfterBatch, Progress
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.flow import PlainFlow
from tests.spark.retained import Oracle
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROMISED = ["nothing-skipped", "sink-visible-before-commit"]


class Elsewhere(PlainFlow):
    """A job of somebody else's over the feed, which knows nothing of lowwater, and sidecars of its checkpoint."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
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
        eventually((self.folder / checkpoint / "metadata").exists, "the job has begun")

    def follow(self, *more: str, checkpoint: str = "ck", state: str = "state", **declared: Any) -> lws.Sidecar:
        defaults: dict[str, Any] = {
            "inputs": ["source"],
            "sources": [f"files:{self.folder / 'in'}"],
            "promises": [*PROMISED, *more],
            "output": str(self.folder / "out"),
        }
        path = str(self.folder / checkpoint)
        sidecar = lws.track(
            "stage", checkpoint=path, state=self.folder / state, address=self.address, **{**defaults, **declared}
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


def test_a_job_is_followed_through_all_restarts(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_windows_of_spark_need_a_retention_and_hold(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_rule1_a_checkpoint_begun_anew_is_another_one(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_rule1_a_restored_checkpoint_is_refused(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_who_has_not_seen_the_beginning_must_be_told(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
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
            "history", state="held", retention="1h", sources=[f"files:{flow.folder / name}" for name in ("in", "more")]
        )
    with pytest.raises(CheckpointMismatch, match="has taken"):
        flow.follow("history", state="swapped", sources=[f"files:{flow.folder / name}" for name in ("more", "in")])
    flow.follow("history", state="all", sources=[f"files:{flow.folder / name}" for name in ("in", "more")])
    flow.eventually(lambda: low(lw, "stage") == mark(10), "both are declared")


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
        ({"sources": ["files:/in/*"]}, "no pattern"),
        ({"sources": ["files:/in,latestFirst=true"]}, "option latestfirst, which says nothing here"),
        ({"promises": ["nothing-skipped"]}, "promises.*sink-visible|sink-visible-before-commit"),
        ({"output_mode": "complete"}, "writes old results again"),
        ({"heuristics": [1.5]}, "shares between 0 and 1"),
        ({"windows": "1h", "stamp": "1h"}, "stands for retention and stamp; leave those two out"),
        ({"windows_start": "15m"}, "windows_start is the startTime of the windows whose length windows or stamp"),
        (
            {"sources": [{"kind": "files", "path": "/in", "recursive": True}]},
            "a table with kind, path, topics, options",
        ),
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
def test_rule1_shifted_windows_are_stamped_below_the_hour(declared: dict[str, Any], lowest: lowwater.Watermark) -> None:
    declaration = Declaration.parse({**SAID, "windows": "1h", **declared})
    state = AfterBatch(spark_bound=checked(declaration, []).bound_at(mark(10).micros))
    progress = Progress(1, declaration.stamp, [], state, declaration.windows_start)
    assert progress.values(Reading(mark(12).micros)) == [lowest.micros]
    assert progress.values(Reading(lowest.micros + 1)) == [lowest.micros], "a row of this time opens that window"


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
    checkpoint: Path

    def put(self, number: int, name: str, *schemas: str) -> None:
        folder = self.checkpoint / "state" / str(number)
        for store, schema in zip(SIDES if len(schemas) > 1 else ("",), schemas, strict=False):
            path = folder / "0" / store / "_metadata" / "schema"
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = f'{{"type":"struct","fields":[{schema}]}}'.encode()
            text = b"\x00\x00\x00\x01" + len(columns).to_bytes(2, "big") + columns
            path.write_bytes(b"\x00\x02v2" + text + text)
        meta = folder / "_metadata" / "metadata"
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": number, "operatorName": name}}))


SIDES = ("left-keyWithIndexToValue", "right-keyWithIndexToValue")
DELAYED = '{"name":"t","type":"timestamp","metadata":{"spark.watermarkDelayMs":600000}}'
BARE = '{"name":"t","type":"timestamp","metadata":{}}'
NESTED = f'{{"name":"first","type":{{"type":"struct","fields":[{DELAYED}]}},"metadata":{{}}}}'


@pytest.mark.parametrize(
    ("operator", "schemas", "refused"),
    [
        ("dedupeWithinWatermark", [BARE], ""),
        ("stateStoreSave", [DELAYED], ""),
        ("stateStoreSave", [BARE], "under a watermark"),
        ("stateStoreSave", [NESTED], "under a watermark"),
        ("symmetricHashJoin", [DELAYED, DELAYED], ""),
        ("symmetricHashJoin", [DELAYED, BARE], "under a watermark"),
        ("somethingNew", [DELAYED], "does not know what Spark holds"),
    ],
)
def test_what_a_checkpoint_says_of_state(tmp_path: Path, operator: str, schemas: list[str], refused: str) -> None:
    Operator(tmp_path).put(0, operator, *schemas)
    first = Plan(0, [], "", 0)
    retention = {} if operator.startswith("dedupe") else {"retention": "1h"}
    declared = Declaration.parse({**SAID, **retention, "output_mode": "append"})
    tumbling = Declaration.parse({**SAID, "windows": "1h", "output_mode": "append"})
    if operator != "stateStoreSave":
        with pytest.raises(Unsupported, match=r"windows are declared to be all|nothing in it"):
            evidence.Evidence(tmp_path, None, tumbling, []).check_operators(first)  # type: ignore[arg-type]
    looked: Any = evidence.Evidence(tmp_path, None, declared, [])  # type: ignore[arg-type]
    assert [stateful.name for stateful in operators(tmp_path, first)] == [operator]
    if refused:
        with pytest.raises(Unsupported, match=refused):
            looked.check_operators(first)
    else:
        looked.check_operators(first)
        # An operator that a newer version of the query has added is looked at as well.
        Operator(tmp_path).put(1, "somethingNew")
        with pytest.raises(Unsupported, match="somethingNew"):
            looked.check_operators(Plan(1, [], "", 0))


def test_a_checkpoint_is_described(flow: Elsewhere, upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job(hours(flow.read()))
    flow.committed(0)
    text = describe(str(flow.folder / "ck"), None)
    assert "In Spark's state: aggregation." in text
    assert '"<files:/data/in>",  # {"logOffset":0}' in text
    filled = text.replace("<the computation's name>", "stage").replace(
        "<each computation whose output it reads>", "source"
    )
    filled = filled.replace("<files:/data/in>", f"files:{flow.folder / 'in'}").replace("<1h>", "1h")
    filled = filled.replace("<append or update>", "append").replace('# "', '"')
    [query] = tomllib.loads(filled)["query"]
    assert Declaration.parse(query).promises == frozenset(PROMISES) - {"single-driver", "same-operators"}
    for arguments, message in {
        ("describe", str(flow.folder / "in")): "metadata",
        ("track", "--state", "/s"): "name of a query is a text",
        ("track", "/nowhere.toml", "--state", "/s"): "/nowhere.toml",
        ("track", "/f", "--state", "/s", "--name", "x"): "or by options, not both",
        ("describe", "hdfs://x/ck", "--conf", "a"): "--conf takes NAME=VALUE",
    }.items():
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_queries_in_one_process_are_each_on_their_own(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    path = flow.folder / "queries.toml"
    ways = {name: flow.folder / name for name in ("ck", "windows", "later")}
    common = f'inputs = ["source"]\nsources = ["files:{flow.folder / "in"}"]\npromises = {[*PROMISED, "history"]}\n'
    path.write_text("".join(f'[[query]]\nname = "{name}"\ncheckpoint = "{ways[name]}"\n{common}' for name in ways))
    program = [sys.executable, "-m", "lowwater_spark.sidecar.command", "track", str(path)]
    heartbeat = flow.folder / "heartbeat"
    program += ["--state", str(flow.folder / "state"), "--address", flow.address, "--heartbeat", str(heartbeat)]
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    flow.job()
    flow.job(hours(flow.read()), checkpoint="windows", out="hours")
    flow.committed(0)
    flow.committed(0, "windows")
    with contextlib.ExitStack() as ending:

        def command() -> subprocess.Popen[str]:
            process = ending.enter_context(subprocess.Popen(program, stderr=subprocess.PIPE, text=True))
            ending.callback(process.kill)
            return process

        first = command()
        flow.eventually(lambda: "ck" in lw.get("ck") and low(lw, "ck") == mark(10), "one goes on")
        flow.job(checkpoint="later", out="later-out")
        flow.eventually(lambda: "later" in lw.get("later") and low(lw, "later") == mark(10), "another one has come")
        since = heartbeat.stat().st_mtime_ns
        flow.eventually(
            lambda: heartbeat.stat().st_mtime_ns > since,
            "both have looked, and the one that was refused does not count",
        )
        first.kill()
        assert first.stderr is not None
        assert "windows is not tracked any more: the operator stateStoreSave" in first.stderr.read()
        flow.feed.put([row("a", 10)])
        upstream.at(11)
        second = command()
        flow.eventually(lambda: (low(lw, "ck"), low(lw, "later")) == (mark(11), mark(11)), "the next process goes on")
        second.terminate()
        assert second.wait(60) == 1, "one was refused"


def test_topics_are_followed_and_only_those_that_are_declared(
    kafka: Kafka, spark: SparkSession, authority: Serving, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    def put(topic: str, hour: int) -> None:
        kafka.put(topic, [Row(json.dumps({"key": topic, "t": at(hour).isoformat()}).encode())])

    def follow(topics: str, *more: str) -> lws.Sidecar:
        declared: dict[str, Any] = {
            "checkpoint": str(tmp_path / "ck"),
            "inputs": ["source"],
            "sources": [f"kafka:{topics},kafka.bootstrap.servers={kafka.address},lowwater.brokers=1"],
            "promises": ["nothing-skipped", "sink-visible-before-commit", *more],
        }
        where: dict[str, Any] = {"state": tmp_path / "state", "address": authority.address, "spark": lambda: spark}
        return lws.track("stage", **declared, **where)

    for topic in ("a", "b"):
        kafka.create(topic)
        put(topic, 9)
    upstream.at(10)
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": "a,b", "startingOffsets": "earliest"}
    stream = spark.readStream.format("kafka").options(**options).load()
    job = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck")).start()
    log = CheckpointLog(tmp_path / "ck")
    sidecar = None
    try:
        eventually(lambda: log.last_committed() == 0, "both are read")
        with pytest.raises(CheckpointMismatch, match="read the topic b of Kafka, which is not among a"):
            follow("a", "history")
        with pytest.raises(Unsupported, match="before anybody looked"):
            follow("a+b")
        sidecar = follow("a+b", "history")
        eventually(lambda: low(lw, "stage") == mark(10), "all that both had is committed")
        put("b", 10)
        upstream.at(11)
        eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
        job.stop()
        put("a", 11)
        upstream.at(12)
        eventually(lambda: "partition 0 of a" in " ".join(sidecar.status().waiting_for), "the job is away")
    finally:
        job.stop()
        if sidecar is not None:
            sidecar.stop()


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


def test_a_claim_that_is_made_late_says_what_is_committed_then(
    flow: Elsewhere, lw: lowwater.Client, upstream: Upstream, authority: Serving
) -> None:
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


def test_rule1_nothing_counts_before_the_first_commit(flow: Elsewhere, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(10, 30)
    flow.job(hours(flow.read()))
    flow.begun()
    sidecar = flow.follow()
    flow.eventually(lambda: sidecar.status().low == mark(10, 30), "the inputs are read, and nothing is there")
    assert "until then it is unknown" in " ".join(sidecar.status().waiting_for)
    flow.feed.put([row("a", 10, 35)])
    assert "how far below its watermark" in str(ended_by(sidecar))
    assert low(lw, "stage").unknown
