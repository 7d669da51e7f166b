"""Batches that are handed over as snapshots of an Iceberg table: each once, and none instead of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowwater.watermark import MIN
from lowwater_spark.complete.mark import Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.iceberg_log import find
from lowwater_spark.track import iceberg_out
from lowwater_spark.track.iceberg_out import append
from tests.iceberg.table import TableFlow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


NOWHERE = Standing(MIN, None)
"""Of who has nothing to say."""


def keys(table: TableFlow) -> list[str]:
    # A batch has a session of its own, and each session keeps what it knows of a table for half a minute.
    table.sql("refresh table {table}")
    return sorted(r.key for r in table.flow.spark.table(table.name).collect())


def write(table: TableFlow, batch: int, digest: str = "d", key: str = "", run: int = 1, **more: Any) -> bool:
    said = {"batch": batch, "digest": digest, "run": run}
    rows = table.rows((key or f"{batch}", 9))
    return append(rows, table.log, "lowwater:c:stage", batch, said, NOWHERE, **{"replayed": False, **more})


def test_of_two_runs_one_fails_also_between_look_and_commit(table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(iceberg_out.Unchanged):
        attempts = 0

        def validate(self, ancestors: Any) -> bool:
            Late.attempts += 1
            passed = super().validate(ancestors)
            if Late.attempts == 1:
                monkeypatch.undo()
                assert write(table, 0, key="b", run=2)
            return passed

    monkeypatch.setattr(iceberg_out, "Unchanged", Late)
    with pytest.raises(CheckpointMismatch, match="another run of this checkpoint has written"):
        write(table, 0, key="a")
    assert Late.attempts == 2
    assert keys(table) == ["b"]


@pytest.mark.long  # of Delta: spark/test_table_out.py
def test_what_a_table_does_not_show_any_more_is_refused(table: TableFlow) -> None:
    assert write(table, 0)
    first = table.head
    assert not write(table, 0, replayed=True)
    with pytest.raises(CheckpointMismatch, match="no run of this checkpoint had begun it"):
        write(table, 0)
    with pytest.raises(CheckpointMismatch, match="not batch 0 of this plan"):
        write(table, 0, "x", replayed=True)
    assert write(table, 1)
    with pytest.raises(CheckpointMismatch, match="the checkpoint is older than the table"):
        write(table, 0, replayed=True)
    table.put(("z", 9))
    table.expire()
    assert not write(table, 1, replayed=True), "its snapshot has expired, and the next one says that it was there"
    table.put(("z", 9))
    table.expire()
    with pytest.raises(CheckpointMismatch, match="it has expired, so it is unknown"):
        write(table, 1, replayed=True)
    assert write(table, 2), "a new batch goes on"
    before = table.head
    assert write(table, 3)
    table.call("rollback_to_snapshot", snapshot_id=before)
    with pytest.raises(CheckpointMismatch, match="it was rolled back"):
        write(table, 3, replayed=True)
    assert first != before
    assert keys(table) == ["0", "1", "2", "z", "z"]


def test_a_table_that_has_lost_a_batch_is_refused(table: TableFlow) -> None:
    assert write(table, 0, newest=-1)
    assert write(table, 1, newest=0)
    table.drop()
    table.create()
    with pytest.raises(CheckpointMismatch, match="does not count batch 1 of this checkpoint, which was written, but"):
        write(table, 2, newest=1)
    assert keys(table) == []
    assert write(table, 2, newest=-1), "nothing else would tell"
    with pytest.raises(CheckpointMismatch, match="does not count batch 3 of this checkpoint, which was written, but 2"):
        write(table, 4, newest=3)


def test_what_is_written_is_synced_first(table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    table.drop()
    table.flow.spark.sql(f"create table {table.name} (key string, t timestamp) using iceberg partitioned by (key)")
    synced: set[Path] = set()
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(iceberg_out, name, synced.add)
    root = Path(table.log.table().location)
    there = {*(root / "metadata").iterdir()}
    said = {"batch": 0, "digest": "d", "run": 1}
    assert append(table.rows(("a", 9), ("b", 9)), table.log, "lowwater:c:stage", 0, said, NOWHERE, replayed=False)
    rows = {Path(path) for path in table.log.files(table.head)}
    assert len(rows) == 2
    new = {*(root / "metadata").iterdir()} - there
    assert {path.suffix for path in new} >= {".json", ".avro"}
    folders = {root, root.parent, root / "metadata", root / "data", *(path.parent for path in rows)}
    assert synced >= {*rows, *new, *folders, root / "metadata/version-hint.text"}


def test_a_table_that_could_not_tell_is_refused_and_nothing_is_written(table: TableFlow) -> None:
    said = {"batch": 0, "digest": "d", "run": 1}
    frame = table.rows(("a", 9))
    table.put(("z", 9))
    table.sql("alter table {table} create branch audit")
    branch = find(table.flow.spark, f"{table.name}.branch_audit")
    assert branch is not None
    with pytest.raises(Unsupported, match="audit is a branch of it"):
        append(frame, branch, "lowwater:c:stage", 0, said, NOWHERE, replayed=False)
    table.sql("alter table {table} set tblproperties ('write.wap.enabled' = 'true')")
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        write(table, 0)
    assert keys(table) == ["z"]


def test_a_directory_whose_table_cannot_be_read_now_is_not_taken_for_an_empty_one(table: TableFlow) -> None:
    folder = Path(table.log.table().location.removeprefix("file:")) / "metadata"
    kept = {path: path.read_bytes() for path in folder.iterdir() if ".metadata.json" in path.name}
    try:
        for path in kept:
            path.write_text("{")
        with pytest.raises(OSError, match=r"whether an Iceberg table is in .* cannot be known"):
            find(table.flow.spark, str(folder.parent))
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    assert find(table.flow.spark, str(folder.parent)) is not None
    assert find(table.flow.spark, str(folder.parent.parent / "none")) is None
