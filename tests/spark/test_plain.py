"""Plain queries: a sink of Spark's own, no code in the batches, and the same promises."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark import stages as stage_module
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources import writers
from lowwater_spark.sources.sink_log import _checked, list_sink
from lowwater_spark.sources.writers import mark_writer, strangers
from lowwater_spark.track.plan import check_options
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow


def test_a_plain_query_follows_its_inputs_and_shows_broken_promises(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
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
    flow.eventually(lambda: low(lw, "stage") == mark(11), "idle", seconds=5)
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
    assert "which stopped at " in str(lw.why("stage")), "an orderly end is told from a hang"


def test_a_tracked_query_has_all_that_sparks_own_has() -> None:
    assert {name for name in dir(StreamingQuery) if not name.startswith("_")} <= set(dir(lws.TrackedQuery))


def test_a_plain_stage_has_one_range_if_it_does_not_say_how_many(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(10)
    for name, ranges in (("silent", None), ("three", 3)):
        stage = flow.stage(name, ranges=ranges)
        flow.start(stage=stage, checkpoint=name, path=flow.folder / f"out-{name}")
    flow.eventually(lambda: low(lw, "silent") == low(lw, "three") == mark(10), "both follow")
    assert [len(lw.ranges(name).ranges) for name in ("silent", "three")] == [1, 3]


@pytest.mark.parametrize("trigger", [{"availableNow": True}, pytest.param({"once": True}, marks=pytest.mark.long)])
def test_a_query_that_ends_by_itself_has_reported_and_has_not_finished(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, trigger: dict[str, bool]
) -> None:
    """An end says nothing of what is still to come: finished are only those whose inputs all are."""
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


def test_a_query_that_fails_is_told_as_failed(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Whoever waits for its end hears of the error first, and stops the query before its clock has looked again."""
    upstream.at(10)
    query = flow.start(flow.read().where("key = 'a' OR raise_error('no such key') IS NULL"))
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it runs")
    flow.feed.put([row("b", 10)])
    with pytest.raises(StreamingQueryException, match="no such key"):
        query.await_termination(60)

    def remarks() -> lowwater.Remarks:
        return lw.ranges("stage").ranges[0].remarks

    flow.eventually(lambda: remarks().ended, "the authority is told of the end")
    assert "no such key" in remarks().failure


def test_what_came_after_the_plan_of_a_one_shot_holds_the_watermark(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The file comes, and is covered by W, after availableNow has fixed what it reads: W waits for the next run."""
    upstream.at(10)
    # Many files, one a batch: the end of availableNow is fixed at the start, and there is time after it.
    for minute in range(5):
        flow.feed.put([row("a", 9, minute)])
    query = flow.start(flow.read(maxFilesPerTrigger="1"), trigger={"availableNow": True})
    flow.eventually(lambda: CheckpointLog(flow.folder / "ck").last_planned() is not None, "the first batch is planned")
    flow.feed.put([row("b", 10, 30)])
    upstream.at(11)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(10)
    assert "b" not in flow.out()
    query = flow.start(trigger={"availableNow": True})
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(11)


def test_a_restarted_query_goes_on_and_an_older_checkpoint_is_refused(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """C9b, S11: the generation is the first batch that is not committed."""
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
    with pytest.raises(
        CheckpointMismatch, match=r"has batches up to 1, and the checkpoint .*/old has committed batches up to 0"
    ):
        flow.start(checkpoint="old")
    with pytest.raises(errors.Rewound):
        flow.start(checkpoint="old", path=flow.folder / "out2")
    with pytest.raises(errors.IdentityMismatch):
        flow.start(checkpoint="other", path=flow.folder / "out2")


def test_a_replayed_batch_is_written_once_and_its_run_is_accepted(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The driver dies after the sink has the batch, before the commit log does."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start()
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch")
    query.stop()
    for name in ("0", ".0.crc"):
        (flow.folder / "ck/commits" / name).unlink()
    flow.feed.put([row("b", 10)])
    upstream.at(11)
    flow.start()
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the replay and what came after it")
    assert flow.out() == ["a", "b"]


def test_a_new_checkpoint_over_an_old_output_is_refused_and_goes_on_in_a_new_one(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Spark's sink passes over a batch whose number its log has: the rows would be in no output, and the watermark beyond them."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start()
    neighbour = flow.start(stage=flow.stage("neighbour"), checkpoint="ck3", path=flow.folder / "out3")
    flow.eventually(lambda: low(lw, "stage") == low(lw, "neighbour") == mark(10), "the first batches")
    with pytest.raises(
        CheckpointMismatch, match=r"/out has batches up to 0, and .*/two has committed none: .* a new output"
    ):
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


def test_a_file_sink_does_not_write_where_others_do(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Readers would go by its log, and see nothing of the others. Its own mark is no hindrance."""
    out = flow.folder / "out"
    mark_writer(out, "stage")
    mark_writer(out, "other")
    [(path, _)] = strangers(str(out), {"stage"})
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    with pytest.raises(Unsupported, match=f"{out} .* other writes there, .* a directory of its own.* delete {path}"):
        flow.start()
    assert not (flow.folder / "ck").exists(), "nothing is touched"
    Path(path).unlink()
    flow.start()
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it is alone")


def test_a_checkpoint_is_of_one_kind_of_query(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """What a stage holds in a function is in no plan of the other: the claim would lead it. All kinds: ``test_plain_run.py``."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)

    def write(rows: DataFrame, _batch: lws.Batch) -> None:
        rows.write.format("noop").mode("append").save()

    query = flow.stage().foreach_batch(flow.read(), write, checkpoint=flow.folder / "ck")
    flow.queries.append(query)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch")
    query.stop()
    upstream.at(11)
    with pytest.raises(CheckpointMismatch, match="begun with foreach_batch"):
        flow.start()
    assert low(lw, "stage") == mark(10), "nothing was claimed"


def test_an_input_that_was_reset_ends_the_checkpoint(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start()
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch")
    query.stop()
    lw.reset("source")
    with pytest.raises(errors.IncarnationChanged, match="earlier incarnation"):
        flow.start()


def test_the_query_starts_and_holds_without_the_authority(flow: PlainFlow, tmp_path: Path) -> None:
    """Rule 11: degrade, don't fail."""
    flow.feed.put([row("a", 9)])
    stage = lws.stage(flow.spark, "s", inputs=["source"], key="key", event_time="t", address="127.0.0.1:1")
    query = flow.start(stage=stage)
    flow.eventually(lambda: flow.out() == ["a"] if (flow.folder / "ck/commits/0").exists() else False, "rows come out")
    assert "UNAVAILABLE" in query.stage_status().holding


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
    """Start a stage of this name beside others, with a checkpoint and an output of its own."""
    return flow.start(stage=flow.stage(name), checkpoint=f"ck-{name}", path=flow.folder / f"out-{name}", **options)


SPELT = {
    "one": "PARQUET",
    "two": "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat",
    "three": "org.apache.spark.sql.execution.datasources.v2.json.JsonDataSourceV2",
    "four": "com.databricks.spark.csv",
}


def test_rule6_a_file_sink_is_known_by_any_name(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """It leaves its mark, what it writes is made durable, and it is refused where others write."""
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


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="breaks when the format's name alone decides")
def test_rule6_breaks_when_the_name_of_a_sink_decides(flow: PlainFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stage_module, "is_file_format", lambda _, kind: kind in ("csv", "json", "orc", "parquet", "text")
    )
    mark_writer(flow.folder / "others", "other")
    with pytest.raises(Unsupported):
        flow.start(format="com.databricks.spark.csv", path=flow.folder / "others")


def test_of_two_plain_queries_that_start_at_once_into_one_directory_one_is_refused(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has found the directory empty before the other one has left its mark."""
    both, look = threading.Barrier(2), writers.check_alone

    def looked(folder: Path, computation: str) -> None:
        look(folder, computation)
        both.wait(120)

    monkeypatch.setattr(stage_module, "check_alone", looked)
    flow.feed.put([row("a", 9)])
    upstream.at(10)

    def start(name: str) -> str:
        try:
            flow.start(stage=flow.stage(name), checkpoint=name)
        except Unsupported as refusal:
            refusals.append(str(refusal))
            return ""
        return name

    refusals: list[str] = []
    with ThreadPoolExecutor() as pool:
        [won] = filter(None, pool.map(start, ["one", "two"]))
    assert [f"{won} writes there, and of a directory with a sink's log" in refusal for refusal in refusals] == [True]
    flow.eventually(lambda: low(lw, won) == mark(10), "the one that won")
    assert flow.out() == ["a"]
    assert [name for _, name in strangers(str(flow.folder / "out"), set())] == [won]
    [lost] = {"one", "two"} - {won}
    monkeypatch.undo()
    flow.start(stage=flow.stage(lost), checkpoint=lost, path=flow.folder / "out2")
    flow.eventually(lambda: low(lw, lost) == mark(10), "the other one, elsewhere")


def test_a_batch_without_files_is_an_entry_with_a_checksum(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("z", 9)])
    upstream.at(10)
    flow.start(flow.read().where("key <> 'z'"), partition_by="key")
    flow.eventually(lambda: low(lw, "stage") == mark(10), "nothing was to be written")
    entry = flow.folder / "out/_spark_metadata/0"
    assert entry.read_bytes() == b"v1"
    assert (list_sink(str(flow.folder / "out")), _checked(entry, b"v1")) == (set(), True)
    flow.feed.put([row("a", 10)])
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "and then something")
    entry = flow.folder / "out/_spark_metadata/1"
    assert _checked(entry, entry.read_bytes())


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
        "real-time mode": {"trigger": {"realTime": "5 seconds"}},
    }
    for reason, options in refused.items():
        with pytest.raises(Unsupported, match=reason):
            flow.start(**options)
    wrong: dict[str, dict[str, Any]] = {"pass checkpoint=": {"checkpointLocation": "/x"}, "mode": {"output_mode": "x"}}
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            flow.start(**options)
    assert not (flow.folder / "ck").exists()
