"""Batches that are handed over as versions of a Delta table: each once, and none instead of another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

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
from tests.spark.test_delta import PATIENCE, TableFlow, table

__all__ = ["table"]

STANDING = Standing(0, Claim(1, 1))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def keys(flow: Flow, path: Path) -> list[str]:
    return sorted(r.key for r in flow.spark.read.format("delta").load(str(path)).collect())


def test_t1_one_of_two_runs_fails(flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_what_is_written_is_synced_first(flow: Flow, table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = flow.spark.createDataFrame([("a", 1), ("b", 2)], "key string, n int").repartition(2)
    frame.write.format("delta").partitionBy("key").save(str(table.path))
    log = DeltaLog(flow.spark, str(table.path))
    synced: set[Path] = set()
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(table_out, name, synced.add)
    assert append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
    rows = {table.path / name for name in log.files(1)}
    assert len(rows) == 2
    folder = table.path / "_delta_log"
    assert synced >= {*rows, *(path.parent for path in rows), table.path, folder, folder / f"{1:020}.json"}


def test_a_plain_stage_marks_its_table(flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
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
    with pytest.raises(CheckpointMismatch, match="its log no longer has the version"):
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


def test_a_directory_with_a_table_of_iceberg_gets_no_rows_of_delta(flow: Flow, table: TableFlow) -> None:
    folder = table.path / "metadata"
    folder.mkdir(parents=True)
    (folder / "00000-a.metadata.json").write_text("{}")
    frame = flow.spark.createDataFrame([("a",)], "key string")
    log = DeltaLog(flow.spark, str(table.path))
    with pytest.raises(Unsupported, match="an Iceberg table is there"):
        append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
    assert sorted(each.name for each in table.path.iterdir()) == ["metadata"]
    (folder / "00000-a.metadata.json").rename(folder / "other.json")
    assert append(frame, log, "lowwater:c:stage", 0, {"digest": "d", "run": 1}, STANDING, replayed=False)
