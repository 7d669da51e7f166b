"""Plain queries: a sink of Spark's own, no code in the batches, and the same promises."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.files.sink_log import checksum_matches, list_sink
from lowwater_spark.sources.files.writers import mark_writer, strangers
from lowwater_spark.track.plan.checked import check_options
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow


def test_a_plain_query_follows_and_tells_breaches(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("b", 9, 30)])
    upstream.at(10)
    query = flow.start(flow.read().where("key <> 'z'"))
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the query has written all that 10:00 covers")
    assert flow.out() == ["a", "b"]
    spark = query.query
    assert (query.id, query.runId, query.name, query.isActive) == (spark.id, spark.runId, spark.name, True)
    assert query.lastProgress is not None
    assert query.lastProgress.batchId in [progress.batchId for progress in query.recentProgress]
    assert (query.exception(), query.awaitTermination(0.01)) == (None, False)
    assert query.status.keys() == spark.status.keys() == {"message", "isDataAvailable", "isTriggerActive"}
    with pytest.warns(DeprecationWarning, match="is stage_status.. now"):
        assert query.status().low == query.stage_status().low
    # Idle: no batch comes, and the stage still follows.
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "idle")
    assert (query.stage_status().batch, query.stage_status().ticks, query.stage_status().late_rows) == (0, 0, 0)
    flow.feed.put([row("a", 11), row("late", 10, 59), row("z", 10)])
    flow.eventually(lambda: query.stage_status().late_rows == 1, "a broken promise is seen")
    assert query.stage_status().late_example == "2013-01-09T10:59:00Z in batch 1"
    flow.feed.put([row("a", 11, 30)])
    flow.eventually(lambda: query.stage_status().batch == 2, "rows that keep the promise")
    upstream.at(12)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")
    assert query.stage_status().late_rows == 1
    query.stop()
    assert "stage itself ended in good order at " in lw.why("stage").sentence, "an orderly end is told from a hang"


@pytest.mark.parametrize("trigger", [{"availableNow": True}, pytest.param({"once": True}, marks=pytest.mark.long)])
def test_a_query_that_ends_by_itself_has_reported_and_has_not_finished(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, trigger: dict[str, bool]
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start(trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(10), "reported before the handle was closed"
    assert flow.out() == ["a"]
    # The next run has nothing to read, and ends before its clock has looked at it once.
    upstream.at(11)
    query = flow.start(trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(11)
    flow.feed.put([row("b", 11)])
    upstream.lease.finish()
    query = flow.start(trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage").finished
    assert flow.out() == ["a", "b"]


def test_a_restart_goes_on_and_an_older_is_refused(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start()
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch")
    query.stop()
    shutil.copytree(flow.folder / "ck", flow.folder / "old")
    query = flow.start()
    assert query.stage_status().low == mark(10), "what counted before the restart counts at once"
    flow.feed.put([row("b", 10)])
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the second batch")
    with pytest.raises(ValueError, match="is running in this"):
        flow.start()
    query.stop()
    with pytest.raises(CheckpointMismatch, match=r"up to 1, and the checkpoint .*/old has committed batches up to 0"):
        flow.start(checkpoint="old")
    with pytest.raises(errors.Rewound):
        flow.start(checkpoint="old", path=flow.folder / "out2")
    with pytest.raises(errors.IdentityMismatch):
        flow.start(checkpoint="other", path=flow.folder / "out2")


def test_a_new_checkpoint_over_old_output_is_refused(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start()
    neighbour = flow.start(stage=flow.stage("neighbour"), checkpoint="ck3", path=flow.folder / "out3")
    flow.eventually(lambda: low(lw, "stage") == low(lw, "neighbour") == mark(10), "the first batches")
    with pytest.raises(CheckpointMismatch, match=r"batches up to 0, and .*/two has committed none: .* a new output"):
        flow.start(stage=flow.stage("two"), checkpoint="two")
    assert not (flow.folder / "two").exists(), "nothing is touched"
    query.stop()
    flow.feed.put([row("b", 9, 30)])
    upstream.at(11)
    with pytest.raises(CheckpointMismatch, match="/ck2 has committed none"):
        flow.start(checkpoint="ck2", adopt=True)
    assert low(lw, "stage") == mark(10), "nothing was claimed"
    flow.start(checkpoint="ck2", path=flow.folder / "out2", adopt=True)
    flow.eventually(lambda: low(lw, "stage") == low(lw, "neighbour") == mark(11), "a new output, and the neighbour")
    assert flow.out() == ["a"]
    assert sorted(
        entry.key for entry in flow.spark.read.schema("key string").json(str(flow.folder / "out2")).collect()
    ) == ["a", "b"]
    assert neighbour.query.isActive


def test_the_sinks_of_spark(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    sinks = ["parquet", "orc", "csv", "memory", "noop", "console"]
    for sink in sinks:
        partition_by = "key" if sink == "parquet" else None
        start_beside(flow, sink, format=sink, partition_by=partition_by)
    flow.eventually(lambda: all(low(lw, sink) == mark(10) for sink in sinks), "written and reported")
    assert flow.spark.read.parquet(str(flow.folder / "out-parquet")).count() == 1
    assert (flow.folder / "out-parquet/key=a").is_dir()


def start_beside(flow: PlainFlow, name: str, **options: Any) -> lws.TrackedQuery:
    return flow.start(stage=flow.stage(name), checkpoint=f"ck-{name}", path=flow.folder / f"out-{name}", **options)


SPELT = {
    "one": "PARQUET",
    "two": "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat",
    "three": "org.apache.spark.sql.execution.datasources.v2.json.JsonDataSourceV2",
    "four": "com.databricks.spark.csv",
}


def test_rule6_a_file_sink_is_known_by_any_name(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    mark_writer(flow.folder / "others", "other")
    for name, sink in SPELT.items():
        with pytest.raises(Unsupported, match="other writes there"):
            flow.start(format=sink, path=flow.folder / "others")
        start_beside(flow, name, format=sink)
    for name, query in zip(SPELT, [*flow.queries], strict=True):
        flow.eventually(lambda: low(lw, name) == mark(10), "written and reported")  # noqa: B023
        query.stop()
        assert [writer for _, writer in strangers(str(flow.folder / f"out-{name}"), set())] == [name]
        assert Manifest(flow.folder / f"ck-{name}")["sink"]["batch"] == 0


def test_a_batch_without_files_is_a_checked_entry(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("z", 9)])
    upstream.at(10)
    flow.start(flow.read().where("key <> 'z'"), partition_by="key")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "nothing was to be written")
    entry = flow.folder / "out/_spark_metadata/0"
    assert entry.read_bytes() == b"v1"
    assert (list_sink(str(flow.folder / "out")), checksum_matches(entry, b"v1")) == (set(), True)
    flow.feed.put([row("a", 10)])
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "and then something")
    entry = flow.folder / "out/_spark_metadata/1"
    assert checksum_matches(entry, entry.read_bytes())


@pytest.mark.parametrize("acks", ["all", "-1", -1], ids=repr)
def test_all_replicas_is_what_both_spellings_of_acks_mean(acks: object) -> None:
    check_options({"kafka.acks": acks, "KAFKA.acks": acks, "topic": "out"})


def test_what_a_plain_query_cannot_be(flow: PlainFlow) -> None:
    injector = lws.injector(flow.spark, "in", key="key", event_time="t", address=flow.address)
    refused: dict[str, dict[str, Any]] = {
        "injector": {"stage": injector},
        "asyncProgressTracking": {"asyncProgressTrackingEnabled": "true"},
        "The option kafka.acks with the value '1'": {"format": "kafka", "kafka.acks": "1"},
        "The option Kafka.Acks with the value 0": {"format": "kafka", "kafka.acks": "all", "Kafka.Acks": 0},
        "The option KAFKA.ACKS with the value 'some'": {"KAFKA.ACKS": "some"},
        "output mode complete": {"output_mode": "complete"},
        "continuous processing": {"trigger": {"continuous": "1 second"}},
    }
    for reason, options in refused.items():
        with pytest.raises(Unsupported, match=reason):
            flow.start(**options)
    wrong: dict[str, dict[str, Any]] = {"pass checkpoint=": {"checkpointLocation": "/x"}, "mode": {"output_mode": "x"}}
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            flow.start(**options)
    assert not (flow.folder / "ck").exists()
