"""Batches that are handed over as snapshots of an Iceberg table: each once, and none instead of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.tables.iceberg_log import find
from lowwater_spark.track.output import iceberg_out, table_out
from tests.iceberg.table import TableFlow
from tests.spark.outputs import OutputRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def keys(table: TableFlow) -> list[str]:
    # A batch has a session of its own, and each session keeps what it knows of a table for half a minute.
    table.sql("refresh table {table}")
    return sorted(r.key for r in table.flow.spark.table(table.name).collect())


def run_of(table: TableFlow, number: int = 1, to: str = "") -> OutputRun:
    return OutputRun(table.flow.folder / "ck", ["iceberg"], to or table.name, number)


def test_of_two_runs_that_commit_at_once_one_fails(table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_of(table)

    class Late(iceberg_out.Unchanged):
        attempts = 0

        def validate(self, ancestors: Any) -> bool:
            Late.attempts += 1
            passed = super().validate(ancestors)
            if Late.attempts == 1:
                monkeypatch.undo()
                assert run_of(table, 2).write(table.rows(("b", 9)), 0)
            return passed

    monkeypatch.setattr(iceberg_out, "Unchanged", Late)
    with pytest.raises(CheckpointMismatch, match="another run of this checkpoint has written"):
        first.write(table.rows(("a", 9)), 0)
    assert Late.attempts == 2
    assert keys(table) == ["b"]


def test_a_table_that_has_lost_a_batch_is_refused(table: TableFlow) -> None:
    run = run_of(table)
    for batch in (0, 1):
        assert run.write(table.rows((f"{batch}", 9)), batch)
    table.drop()
    table.create()
    with pytest.raises(CheckpointMismatch, match="count batch 1 of this checkpoint, which was written, but none"):
        run.write(table.rows(("2", 9)), 2)
    assert keys(table) == []


def test_a_batch_is_synced_before_it_counts(table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    table.drop()
    table.flow.spark.sql(f"create table {table.name} (key string, t timestamp) using iceberg partitioned by (key)")
    synced: set[Path] = set()
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(table_out, name, synced.add)
    root = Path(table.log.table().location)
    before = {*(root / "metadata").iterdir()}
    assert run_of(table).write(table.rows(("a", 9), ("b", 9)), 0)
    rows = {Path(path) for path in table.log.files(table.head)}
    assert len(rows) == 2
    new = {*(root / "metadata").iterdir()} - before
    assert {path.suffix for path in new} >= {".json", ".avro"}
    folders = {root, root.parent, root / "metadata", root / "data", *(path.parent for path in rows)}
    assert synced >= {*rows, *new, *folders, root / "metadata/version-hint.text"}


def test_a_table_that_could_not_tell_is_refused_and_nothing_is_written(table: TableFlow) -> None:
    frame = table.rows(("a", 9))
    table.put(("z", 9))
    table.sql("alter table {table} create branch audit")
    with pytest.raises(Unsupported, match="audit is a branch of it"):
        run_of(table, to=f"{table.name}.branch_audit").write(frame, 0)
    table.sql("alter table {table} set tblproperties ('write.wap.enabled' = 'true')")
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        run_of(table).write(frame, 0)
    assert keys(table) == ["z"]


def test_a_directory_whose_table_cannot_be_read_now_is_not_taken_for_an_empty_one(table: TableFlow) -> None:
    folder = Path(table.log.table().location.removeprefix("file:")) / "metadata"
    metadata = {path: path.read_bytes() for path in folder.iterdir() if ".metadata.json" in path.name}
    try:
        for path in metadata:
            path.write_text("{")
        with pytest.raises(OSError, match=r"whether an Iceberg table is in .* cannot be known"):
            find(table.flow.spark, str(folder.parent))
    finally:
        for path, content in metadata.items():
            path.write_bytes(content)
    assert find(table.flow.spark, str(folder.parent)) is not None
    assert find(table.flow.spark, str(folder.parent.parent / "none")) is None
