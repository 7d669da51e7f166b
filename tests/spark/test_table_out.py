"""Batches that are handed over as versions of a Delta table: each once, and none instead of another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.complete.mark import Claim, Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.delta import app_id
from lowwater_spark.sources.delta_log import DeltaLog, path_of
from lowwater_spark.track import table_out
from lowwater_spark.track.table_out import append
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row
from tests.spark.test_delta import PATIENCE, TableFlow, spark, table

__all__ = ["spark", "table"]

STANDING = Standing(0, Claim(1, 1))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def writing(path: Path, made: list[tuple[int, bool]]) -> Callable[[DataFrame, lws.Batch], object]:
    """What it writes differs from run to run."""

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        made.append((batch.id, batch.write_table(rows.withColumn("by", sf.rand()), path)))

    return write


def keys(flow: Flow, path: Path) -> list[str]:
    return sorted(r.key for r in flow.spark.read.format("delta").load(str(path)).collect())


def test_t2_a_batch_that_runs_again_is_in_the_table_once(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """It was killed when the version was there, and its rows are others when it runs again. Who reads the table follows."""
    made: list[tuple[int, bool]] = []

    def fail(reached: str, number: int) -> None:
        if (reached, number) == ("written", 0):
            raise ConnectionResetError("killed")

    flow.feed.put([row("a", 9), row("b", 9)])
    upstream.at(9)
    query = flow.start(writing(table.path, made), probe=fail, ranges=2)
    with pytest.raises(Exception, match="killed"):
        query.await_termination(PATIENCE)
    query = flow.start(writing(table.path, made), ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the batch is committed")
    flow.feed.put([row("c", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "and the next one")
    assert made[:2] == [(0, True), (0, False)]
    assert all(new for _, new in made[2:])
    assert keys(flow, table.path) == ["a", "b", "c"]
    with pytest.raises(Unsupported, match="into which stage writes"):
        lws.stage(flow.spark, "next", inputs=["source"], key="key", event_time="t", address=flow.address).foreach_batch(
            table.read(), flow.plain, checkpoint=flow.folder / "next"
        )
    reader = lws.stage(flow.spark, "next", inputs=["stage"], key="key", event_time="t", ranges=2, address=flow.address)
    flow.queries.append(reader.foreach_batch(table.read(), flow.plain, checkpoint=flow.folder / "next"))
    flow.eventually(lambda: low(lw, "next") == mark(10), "its reader follows")
    assert table.keys() == ["a", "b", "c"]


def test_t1_of_two_runs_that_write_a_batch_at_a_time_one_fails(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The other one commits while the tasks of this one run."""
    table.put(("filled", 1))
    here, gone = flow.folder / "here", flow.folder / "gone"
    os.mkfifo(gone)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        here.touch()
        if gone.exists():
            gone.read_bytes()  # until the test has opened and closed it
        yield from batches

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        if not rows.isEmpty():
            batch.write_table(rows.coalesce(1).mapInPandas(slow, rows.schema), table.path)

    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(write, ranges=2)
    flow.eventually(here.exists, "the tasks run")
    app = app_id("stage", identity(flow.folder / "ck"))
    table.put(("b", 9), txnAppId=app, txnVersion="0")
    gone.write_bytes(b"")
    gone.unlink()
    with pytest.raises(Exception, match="DELTA_CONCURRENT_TRANSACTION"):
        query.await_termination(PATIENCE)
    assert keys(flow, table.path) == ["b", "filled"]
    assert low(lw, "stage").unknown


def test_t4_a_checkpoint_that_is_older_than_its_table_is_refused(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """It runs on after a copy was taken, the copy is put back, and it runs again with other rows, while no authority answers."""
    write = writing(table.path, [])
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(write, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first")
    query.stop()
    shutil.copytree(flow.folder / "ck", flow.folder / "copy")
    flow.feed.put([row("b", 9)])
    upstream.at(10)
    query = flow.start(write, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the second")
    query.stop()
    shutil.rmtree(flow.folder / "ck")
    (flow.folder / "copy").rename(flow.folder / "ck")
    flow.feed.put([row("c", 9)])
    flow.address = "127.0.0.1:1"
    with pytest.raises(Exception, match="made from another plan: the checkpoint is older than the table"):
        flow.start(write, ranges=2).await_termination(PATIENCE)
    assert keys(flow, table.path) == ["a", "b"]


def test_what_is_written_is_synced_before_it_counts(
    flow: Flow, table: TableFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows' files, the version, and all directories that name them; what somebody else has added meanwhile, too."""
    frame = flow.spark.createDataFrame([("a", 1), ("b", 2)], "key string, n int").repartition(2)
    frame.write.format("delta").partitionBy("key").save(str(table.path))
    log = DeltaLog(flow.spark, str(table.path))
    synced: set[Path] = set()
    monkeypatch.setattr(table_out, "sync_file", synced.add)
    monkeypatch.setattr(table_out, "sync_directory", synced.add)
    assert append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
    rows = {table.path / name for name in log.files(1)}
    assert len(rows) == 2
    folder = table.path / "_delta_log"
    assert synced >= {*rows, *(path.parent for path in rows), table.path, folder, folder / f"{1:020}.json"}


def test_a_plain_stage_leaves_its_mark_in_the_table_of_its_sink(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    plain = lws.stage(flow.spark, "plain", inputs=["source"], key="key", event_time="t", address=flow.address)
    flow.queries.append(plain.start(flow.read(), checkpoint=flow.folder / "ck", format="delta", path=table.path))
    flow.eventually(lambda: low(lw, "plain") == mark(9), "it is written")
    commit = DeltaLog(flow.spark, str(table.path)).commit(0)
    assert commit is not None
    assert (commit.writer, commit.operation) == ("plain", "STREAMING UPDATE")


def test_what_a_table_does_not_show_any_more_is_refused(flow: Flow, table: TableFlow) -> None:
    said = {"digest": "d", "run": 1}
    frame = flow.spark.createDataFrame([("a",)], "key string")
    log = DeltaLog(flow.spark, str(table.path))
    assert append(frame, log, "lowwater:c:stage", 0, said, STANDING, replayed=False)
    assert not append(frame, log, "lowwater:c:stage", 0, said, STANDING, replayed=True)
    with pytest.raises(CheckpointMismatch, match="no run of this checkpoint had begun it"):
        append(frame, log, "lowwater:c:stage", 0, said, STANDING, replayed=False)
    with pytest.raises(CheckpointMismatch, match="made from another plan"):
        append(frame, log, "lowwater:c:stage", 0, said | {"digest": "x"}, STANDING, replayed=True)
    assert append(frame, log, "lowwater:c:stage", 1, said | {"digest": "e"}, STANDING, replayed=False)
    table.sql("RESTORE TABLE {table} TO VERSION AS OF 0")
    with pytest.raises(CheckpointMismatch, match="does not show the version any more"):
        append(frame, log, "lowwater:c:stage", 1, said | {"digest": "e"}, STANDING, replayed=True)
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')")
    with pytest.raises(Unsupported, match="it forgets which batches it has"):
        append(frame, log, "lowwater:c:stage", 2, said, STANDING, replayed=False)


def test_a_table_is_named_by_its_path_or_in_the_catalog(flow: Flow, table: TableFlow) -> None:
    table.put(("a", 9))
    flow.spark.sql(f"CREATE TABLE IF NOT EXISTS named USING delta LOCATION '{table.path}'")
    try:
        assert path_of(flow.spark, "named") == f"file://{table.path}"
    finally:
        flow.spark.sql("DROP TABLE named")
    assert path_of(flow.spark, table.path) == str(table.path)
    with pytest.raises(Unsupported, match="the session's catalog does not know it"):
        path_of(flow.spark, "unheard")
    with pytest.raises(ValueError, match="relative path"):
        path_of(flow.spark, "a/table")


@pytest.mark.parametrize(
    "looks", [True, pytest.param(False, marks=pytest.mark.xfail(strict=True, reason="without the look"))]
)
def test_a_directory_with_a_table_of_iceberg_gets_no_rows_of_delta(
    flow: Flow, table: TableFlow, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog of Iceberg's has a table there, which this session does not know by its path: its readers would never see the rows."""
    if not looks:
        monkeypatch.setattr(DeltaLog, "beside_iceberg", False)
    folder = table.path / "metadata"
    folder.mkdir(parents=True)
    (folder / "00000-a.metadata.json").write_text("{}")
    frame = flow.spark.createDataFrame([("a",)], "key string")
    log = DeltaLog(flow.spark, str(table.path))
    with pytest.raises(Unsupported, match="a table of Iceberg is there"):
        append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
    assert sorted(each.name for each in table.path.iterdir()) == ["metadata"]
    (folder / "00000-a.metadata.json").rename(folder / "other.json")
    assert append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
