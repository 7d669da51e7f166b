"""A table's own versions say how far it is complete: true at each of them, known without the authority, unknown when rows may be gone."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch
from tests.kit.times import at, mark
from tests.spark.drive_support import HOUR
from tests.spark.flow import Flow
from tests.spark.outputs import OutputRun
from tests.spark.support import Upstream, low, row
from tests.spark.test_delta import PATIENCE
from tests.spark.updates import HOURLY, hourly

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def out(flow: Flow) -> Path:
    return flow.folder / "result"


def into(path: Path) -> Callable[[DataFrame, lws.Batch], object]:
    return lambda rows, batch: batch.write_table(rows, path)


def through(flow: Flow, path: Path, *writers: str, **options: Any) -> lws.Completeness:
    return lws.complete_through(flow.spark, path, list(writers) or ["stage"], **options)


def reported(lw: lowwater.Client, hour: int) -> bool:
    return low(lw, "stage") == mark(hour)


def marks(path: Path) -> dict[int, dict[str, Any]]:
    marks_by_version = {}
    for file in sorted((path / "_delta_log").glob("*.json")):
        for action in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            metadata = action.get("commitInfo", {}).get("userMetadata")
            if metadata is not None:
                marks_by_version[int(file.stem)] = json.loads(metadata)["lowwater"]["complete"]
    return marks_by_version


def test_each_version_says_how_complete_it_is(flow: Flow, out: Path, lw: lowwater.Client, upstream: Upstream) -> None:
    def fail(reached: str, number: int) -> None:
        if (reached, number) == ("written", 1):
            raise ConnectionResetError("killed")

    flow.feed.put([row("a", 9), row("b", 9)])
    upstream.at(9)
    query = flow.start(into(out), probe=fail, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first batch is committed")
    assert through(flow, out) == lws.Completeness(
        mark(9), "", 0, {"stage": lws.OutputWriter(mark(9), "", 0, 1, through(flow, out).writers["stage"].epoch)}
    )
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the inputs are further")
    assert through(flow, out).low == mark(9), "a version says nothing of what was learned since"
    flow.feed.put([row("c", 11)])
    with pytest.raises(Exception, match="killed"):
        query.await_termination(PATIENCE)
    assert not (flow.folder / "ck/commits/1").exists()
    assert through(flow, out).low == mark(10)
    flow.start(into(out), ranges=2)
    upstream.at(12)
    flow.feed.put([row("d", 12)])
    flow.eventually(lambda: through(flow, out).low == mark(12), "it goes on")
    assert [mark_["through"] for mark_ in marks(out).values()] == [mark(hour).micros for hour in (9, 10, 12)]
    assert marks(out)[0]["complete"] == f"complete through {mark(9)}, life 1, epoch 1"


def test_what_a_stage_holds_is_not_complete(flow: Flow, out: Path, lw: lowwater.Client, upstream: Upstream) -> None:
    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write_table(batch.stateful(rows, hourly, HOURLY), out)

    flow.feed.put([row("a", 9, 10)])
    upstream.at(9, 30)
    flow.start(write, stamp=HOUR, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the hour is held")
    assert through(flow, out).low == mark(9)
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the hour is closed, by an empty batch")
    assert through(flow, out).low == mark(10)
    assert flow.spark.read.format("delta").load(str(out)).count() == 1


def test_what_is_written_before_the_state_begins_is_refused(flow: Flow, out: Path, upstream: Upstream) -> None:
    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write_table(rows, out)
        batch.stateful(rows, hourly, HOURLY)

    flow.feed.put([row("a", 9, 10)])
    upstream.at(9, 30)
    with pytest.raises(Exception, match=r"says already what stage holds after batch 0; call batch\.stateful"):
        flow.start(write, stamp=HOUR, ranges=2).await_termination(PATIENCE)


class Appender:
    """A writer of what a stage writes, without the query: a batch for each hour."""

    def __init__(self, flow: Flow, path: Path, life: int = 1, checkpoint: str = "ck") -> None:
        self.flow, self.batch = flow, 0
        self.run = OutputRun(flow.folder / checkpoint, ["delta"], str(path), life=life)

    def __call__(self, hour: int) -> bool:
        rows = self.flow.spark.createDataFrame([("k", at(hour))], "key string, t timestamp")
        self.batch += 1
        return self.run.write(rows, self.batch - 1, through=mark(hour))


@pytest.fixture
def filled(flow: Flow, out: Path) -> Appender:
    """A table with a version for each batch; the next batch by call, of the first life."""
    stage = Appender(flow, out)
    for hour in (9, 10):
        stage(hour)
    assert through(flow, out).low == mark(10)
    return stage


def test_what_rearranges_or_adds_takes_nothing_a_restore_is_unknown(flow: Flow, out: Path, filled: Appender) -> None:
    for statement in ("OPTIMIZE {table}", "INSERT INTO {table} VALUES ('late', timestamp '2013-01-01')"):
        flow.spark.sql(statement.format(table=f"delta.`{out}`"))
        assert through(flow, out).low == mark(10), statement
    assert through(flow, out, "stage", "other").why == "other: it has written nothing that says how far it is"
    with pytest.raises(ValueError, match="one at least"):
        lws.complete_through(flow.spark, out, [])
    flow.spark.sql(f"RESTORE TABLE delta.`{out}` TO VERSION AS OF 0")
    filled(11)
    assert "(RESTORE) takes rows away" in through(flow, out, ignore_deletes=True).why, "when its writer went on, too"


def test_resets_count_on_after_a_lost_journal(flow: Flow, out: Path, lw: lowwater.Client, upstream: Upstream) -> None:
    Appender(flow, out, life=3, checkpoint="before")(12)
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    with pytest.raises(CheckpointMismatch, match=r"has lost its journal .* `lowwater reset stage` 3 times") as refusal:
        flow.start(into(out), ranges=2).await_termination(PATIENCE)
    assert "another checkpoint has replaced this one" in str(refusal.value)
    assert through(flow, out).writers["stage"].life == 3
    for _ in range(3):
        lw.reset("stage")
    flow.start(into(out), ranges=2)
    flow.eventually(lambda: through(flow, out).writers["stage"].life == 4, "its life has a greater number")
    # Only a batch writes what it knows: the row comes when the stage knows of ten o'clock.
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the stage goes on")
    flow.feed.put([row("b", 10)])
    flow.eventually(lambda: through(flow, out).low == mark(10), "and the table")


def test_a_run_that_was_fenced_says_nothing_new(flow: Flow, out: Path, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(9)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        if batch.id == 1:
            with lw.worker("stage", name="other", identity="other", generation=0, ordinal=1) as worker:
                worker.claim(adopt=True)
            flow.eventually(lambda: query.stage_status().holding, "it is told")
        batch.write_table(rows.withColumn("n", sf.lit(batch.id)), out)

    query = flow.start(write, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first batch")
    upstream.at(10)
    flow.feed.put([row("b", 10)])
    with pytest.raises(Exception, match="lost all its ranges"):
        query.await_termination(PATIENCE)
    assert through(flow, out).low == mark(9)


def test_no_input_is_added_behind_what_an_output_says(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    out, beside, refused = flow.folder / "out", Upstream(lw, "beside"), list[str]()
    lw.register("neighbour", inputs=["source"])
    common: dict[str, Any] = {"key": "key", "event_time": "t", "ranges": 2, "address": flow.address}
    last = lws.stage(flow.spark, "last", inputs=["stage"], **common)
    stage = lws.stage(flow.spark, "stage", inputs=["source"], **common)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.of("last").write(rows, out)
        if not refused and lowwater.Watermark.UNKNOWN < low(lw, "stage") < batch.low:
            for name, inputs in (("stage", ["source"]), ("last", ["stage"])):
                try:
                    lw.set_inputs(name, [*inputs, "beside"])
                except lowwater.WouldRegress as refusal:
                    refused.append(str(refusal))
            lw.set_inputs("neighbour", ["source", "beside"])

    def step(hour: int) -> None:
        beside.at(hour - 1, 30)
        flow.feed.put([row("k", hour)])
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "last") == mark(hour), f"the batch of {hour} is committed")

    flow.queries.append(stage.foreach_batch(flow.read(), write, checkpoint=flow.folder / "ck", also=[last]))
    for hour in range(9, 24):  # a batch may begin before it is known that the source has come to the hour of its rows
        step(hour)
        if refused:
            assert through(flow, out, "last").low == mark(hour)
            break
    assert [refusal.partition(":")[0] for refusal in refused] == [
        f"beside is behind what {name} has let its output say" for name in ("stage", "last")
    ]


def test_each_batch_of_a_directory_says_how_complete_it_is(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    out = flow.folder / "out"

    def step(hour: int) -> None:
        flow.feed.put([row("k", hour)])
        upstream.at(hour)
        query = flow.start(flow.plain, ranges=2)
        flow.eventually(partial(reported, lw, hour), f"the batch of {hour}")
        query.stop()

    assert through(flow, out).why == "stage: it has handed nothing over"
    step(9)
    step(10)
    answer = through(flow, out)
    assert (answer.low, answer.writers["stage"].version, answer.writers["stage"].life) == (mark(10), 1, 1)
    watermark = json.loads((out / "batch=1/_watermark.json").read_text(encoding="utf-8"))
    assert watermark["complete"].startswith(f"complete through {mark(10)}, life 1, epoch ")
    assert len(flow.spark.read.option("recursiveFileLookup", "true").parquet(str(out)).collect()) == 2
    assert through(flow, out, "other").why == "stage writes into it as well: name it in writers"
    (out / "batch=1").rename(flow.folder / "gone")
    assert through(flow, out).low == mark(9), "it has all of that"
    step(11)
    assert through(flow, out).why == "stage: batch 1 is missing, so its rows are unknown"
    (flow.folder / "gone").rename(out / "batch=1")
    assert through(flow, out).low == mark(11)
    shutil.rmtree(out)
    step(12)
    assert through(flow, out).why == "stage: batch 0 is missing, so its rows are unknown"


def test_a_function_of_sql_says_the_same(flow: Flow, out: Path, filled: Appender) -> None:
    lws.register_function(flow.spark, "result_complete", out, ["stage"])

    def answer() -> Any:
        return flow.spark.sql("SELECT result_complete() AS low").collect()[0].low

    assert answer().astimezone(dt.UTC) == at(10)
    filled(11)
    assert answer().astimezone(dt.UTC) == at(11)
    flow.spark.sql(f"DELETE FROM delta.`{out}` WHERE t < timestamp '2013-01-09 09:30:00Z'")
    assert answer() is None
    assert "(DELETE) takes rows away" in through(flow, out).why
    lws.register_function(flow.spark, "result_complete", out, ["stage"], ignore_deletes=True)
    assert answer().astimezone(dt.UTC) == at(11)
    with pytest.raises(ValueError, match="no name for a function"):
        lws.register_function(flow.spark, "a b", out, ["stage"])
