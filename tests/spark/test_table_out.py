"""Batches that are handed over as versions of a Delta table: each once, and none instead of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.tables.delta_log import DeltaLog, path_of
from lowwater_spark.track.output import table_out
from lowwater_spark.track.output.outputs import remembered
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.outputs import OutputRun
from tests.spark.support import Upstream, low, row
from tests.spark.test_delta import TableFlow, table

__all__ = ["table"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def run_of(flow: Flow, table: TableFlow, number: int = 1) -> OutputRun:
    return OutputRun(flow.folder / "ck", ["delta"], str(table.path), number)


def test_a_batch_is_synced_before_it_counts(flow: Flow, table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = flow.spark.createDataFrame([("a", 1), ("b", 2)], "key string, n int").repartition(2)
    frame.write.format("delta").partitionBy("key").save(str(table.path))
    log = DeltaLog(flow.spark, str(table.path))
    synced: set[Path] = set()
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(table_out, name, synced.add)
    assert run_of(flow, table).write(frame, 0)
    rows = {table.path / name for name in log.files(1)}
    assert len(rows) == 2
    folder = table.path / "_delta_log"
    whole = {*rows, *(path.parent for path in rows), table.path, folder, folder / f"{1:020}.json"}
    assert synced >= whole
    synced.clear()
    assert not run_of(flow, table, 2).write(frame, 0, replayed=True)
    assert synced >= whole, "the run that wrote it may have died before it was synced"


def test_a_write_that_fails_is_not_noted(flow: Flow, table: TableFlow) -> None:
    frame, run = flow.spark.createDataFrame([("a",)], "key string"), run_of(flow, table)
    assert run.write(frame, 0)
    with pytest.raises(Exception, match="no such row"):
        run.write(frame.select(sf.raise_error(sf.lit("no such row")).cast("string").alias("key")), 1)
    place = DeltaLog(flow.spark, str(table.path)).table().location
    assert remembered(run.place.manifest, "stage", place) == 0


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
    frame, run = flow.spark.createDataFrame([("a",)], "key string"), run_of(flow, table)
    assert run.write(frame, 0)
    assert run.write(frame, 1)
    assert not run.write(frame, 0, replayed=True), "it is there, before a later one"
    table.sql("RESTORE TABLE {table} TO VERSION AS OF 0")
    with pytest.raises(CheckpointMismatch, match="its log no longer has the version"):
        run.write(frame, 1, replayed=True)
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')")
    with pytest.raises(Unsupported, match="it forgets which batches it has"):
        run.write(frame, 2)


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
    frame, run = flow.spark.createDataFrame([("a",)], "key string"), run_of(flow, table)
    with pytest.raises(Unsupported, match="an Iceberg table is there"):
        run.write(frame, 0)
    assert sorted(each.name for each in table.path.iterdir()) == ["metadata"]
    (folder / "00000-a.metadata.json").rename(folder / "other.json")
    assert run.write(frame, 0)
