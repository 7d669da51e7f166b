"""Batches that are handed over as snapshots of an Iceberg table: each once, and none instead of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.complete.mark import Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.delta import app_id
from lowwater_spark.sources.iceberg_log import find
from lowwater_spark.track import iceberg_out
from lowwater_spark.track.iceberg_out import append
from tests.iceberg.table import TableFlow, through
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180

NOWHERE = Standing(MIN, None)
"""Of who has nothing to say."""

Write = Callable[[DataFrame, lws.Batch], object]


def writing(table: TableFlow, made: list[tuple[int, bool]]) -> Write:
    """What it writes differs from run to run."""

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        # Another order of columns, and other files: they are found by name, and rand() differs.
        out = rows.select("t", "key", sf.rand().alias("by")).where("by >= 0").drop("by")
        made.append((batch.id, batch.write_table(out, table.name)))

    return write


def keys(table: TableFlow) -> list[str]:
    # A batch has a session of its own, and each session keeps what it knows of a table for half a minute.
    table.sql("refresh table {table}")
    return sorted(r.key for r in table.flow.spark.table(table.name).collect())


def test_a_batch_that_runs_again_is_in_the_table_once(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """It was killed when the snapshot was there. Who reads the table follows, and a neighbour who writes into it is not touched."""
    made: list[tuple[int, bool]] = []

    def fail(reached: str, number: int) -> None:
        if (reached, number) == ("written", 0):
            raise ConnectionResetError("killed")

    flow.feed.put([row("a", 9), row("b", 9)])
    upstream.at(9)
    query = flow.start(writing(table, made), probe=fail, ranges=2)
    with pytest.raises(Exception, match="killed"):
        query.await_termination(PATIENCE)
    query = flow.start(writing(table, made), ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the batch is committed")
    assert through(table).low == mark(9), "by its own snapshot, which was there before it was committed"
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the inputs are further")
    flow.feed.put([row("c", 10)])
    flow.eventually(lambda: through(table).low == mark(10), "and the next one")
    assert made[:2] == [(0, True), (0, False)]
    assert all(new for _, new in made[2:])
    assert keys(table) == ["a", "b", "c"]
    with pytest.raises(Unsupported, match="into which stage writes"):
        lws.stage(flow.spark, "next", inputs=["source"], key="key", event_time="t", address=flow.address).foreach_batch(
            table.read(), flow.plain, checkpoint=flow.folder / "next"
        )
    reader = lws.stage(flow.spark, "next", inputs=["stage"], key="key", event_time="t", ranges=2, address=flow.address)
    flow.queries.append(reader.foreach_batch(table.read(), flow.plain, checkpoint=flow.folder / "next"))
    flow.eventually(lambda: low(lw, "next") == mark(10), "its reader follows")
    assert table.keys() == ["a", "b", "c"]


def contested(flow: Flow, table: TableFlow, upstream: Upstream, meanwhile: Callable[[str], object]) -> lws.TrackedQuery:
    """A batch during which something happens, while its tasks run."""
    here, gone = flow.folder / "here", flow.folder / "gone"

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        here.touch()
        while not gone.exists():
            time.sleep(0.01)
        yield from batches

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        if not rows.isEmpty():
            batch.write_table(rows.mapInPandas(slow, rows.schema), table.name)

    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(write, ranges=2)
    flow.eventually(here.exists, "the tasks run")
    meanwhile(app_id("stage", identity(flow.folder / "ck")))
    gone.touch()
    return query


def test_of_two_runs_that_write_a_batch_at_a_time_one_fails(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The other one commits while the tasks of this one run. Iceberg alone would append both."""

    def other(app: str) -> None:
        assert append(
            table.rows(("b", 9)), table.log, app, 0, {"batch": 0, "digest": "d", "run": 7}, NOWHERE, replayed=False
        )

    query = contested(flow, table, upstream, other)
    with pytest.raises(Exception, match="another run of this checkpoint has written"):
        query.await_termination(PATIENCE)
    assert keys(table) == ["b"]
    assert low(lw, "stage").unknown


def test_of_two_runs_one_fails_also_when_the_other_commits_between_the_look_and_the_commit(
    table: TableFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt of the commit still sees the table as it was; the catalog refuses it, and the next one asks anew."""
    said = {"batch": 0, "digest": "d", "run": 1}

    class Late(iceberg_out._Unchanged):
        attempts = 0

        def validate(self, ancestors: Any) -> bool:
            Late.attempts += 1
            passed = super().validate(ancestors)
            if Late.attempts == 1:
                monkeypatch.undo()
                assert append(
                    table.rows(("b", 9)), table.log, "lowwater:c:stage", 0, said | {"run": 2}, NOWHERE, replayed=False
                )
            return passed

    monkeypatch.setattr(iceberg_out, "_Unchanged", Late)
    with pytest.raises(CheckpointMismatch, match="another run of this checkpoint has written"):
        append(table.rows(("a", 9)), table.log, "lowwater:c:stage", 0, said, NOWHERE, replayed=False)
    assert Late.attempts == 2
    assert keys(table) == ["b"]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a commit does not compare the property")
def test_of_two_runs_both_append_when_a_commit_does_not_compare_the_property(
    table: TableFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: as Iceberg's own sink does."""
    said = {"batch": 0, "digest": "d", "run": 1}

    class Blind(iceberg_out._Unchanged):
        def validate(self, ancestors: Any) -> bool:
            if keys(table) == []:
                frame = table.rows(("a", 9))
                frame.write.format("iceberg").mode("append").save(table.name)
            return True

    monkeypatch.setattr(iceberg_out, "_Unchanged", Blind)
    append(table.rows(("a", 9)), table.log, "lowwater:c:stage", 0, said, NOWHERE, replayed=False)
    assert keys(table) == ["a"]


def test_a_neighbour_who_writes_at_the_same_time_takes_nothing_from_anybody(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Another computation, and somebody without a mark."""

    def others(_app: str) -> None:
        said = {"batch": 0, "digest": "x", "run": 1}
        assert append(table.rows(("b", 9)), table.log, "lowwater:c:other", 0, said, NOWHERE, replayed=False)
        table.put(("z", 9))

    contested(flow, table, upstream, others)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "it is committed")
    assert keys(table) == ["a", "b", "z"]


def test_what_a_table_does_not_show_any_more_is_refused(table: TableFlow) -> None:
    said = {"batch": 0, "digest": "d", "run": 1}

    def write(batch: int, digest: str, *, replayed: bool) -> bool:
        given = said | {"batch": batch, "digest": digest}
        return append(
            table.rows((f"{batch}", 9)), table.log, "lowwater:c:stage", batch, given, NOWHERE, replayed=replayed
        )

    assert write(0, "d", replayed=False)
    first = table.head
    assert not write(0, "d", replayed=True)
    with pytest.raises(CheckpointMismatch, match="no run of this checkpoint had begun it"):
        write(0, "d", replayed=False)
    with pytest.raises(CheckpointMismatch, match="not batch 0 of this plan"):
        write(0, "x", replayed=True)
    assert write(1, "e", replayed=False)
    with pytest.raises(CheckpointMismatch, match="the checkpoint is older than the table"):
        write(0, "d", replayed=True)
    table.put(("z", 9))
    table.expire()
    assert not write(1, "e", replayed=True), "its snapshot has expired, and what came after it says that it was there"
    table.put(("z", 9))
    table.expire()
    with pytest.raises(CheckpointMismatch, match="it has expired, and nobody knows"):
        write(1, "e", replayed=True)
    assert write(2, "f", replayed=False), "a new batch goes on"
    before = table.head
    assert write(3, "g", replayed=False)
    table.call("rollback_to_snapshot", snapshot_id=before)
    with pytest.raises(CheckpointMismatch, match="it was rolled back"):
        write(3, "g", replayed=True)
    assert first != before
    assert keys(table) == ["0", "1", "2", "z", "z"]


def test_a_table_that_has_lost_a_batch_is_refused(table: TableFlow) -> None:
    """It was made anew, or a writer in another process has written over its metadata. The checkpoint remembers what was written."""
    said = {"digest": "d", "run": 1}

    def write(batch: int, newest: int) -> bool:
        rows, mark = table.rows((f"{batch}", 9)), said | {"batch": batch}
        return append(rows, table.log, "lowwater:c:stage", batch, mark, NOWHERE, replayed=False, newest=newest)

    assert write(0, -1)
    assert write(1, 0)
    table.drop()
    table.create()
    with pytest.raises(
        CheckpointMismatch, match="does not count batch 1 of this checkpoint, which was written, but none"
    ):
        write(2, 1)
    assert keys(table) == []
    assert write(2, -1), "nothing else would tell"
    with pytest.raises(CheckpointMismatch, match="does not count batch 3 of this checkpoint, which was written, but 2"):
        write(4, 3)


def test_what_is_written_is_synced_before_it_counts(table: TableFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows' files, all metadata that are new, and all directories that name them."""
    table.drop()
    table.flow.spark.sql(f"create table {table.name} (key string, t timestamp) using iceberg partitioned by (key)")
    synced: set[Path] = set()
    monkeypatch.setattr(iceberg_out, "sync_file", synced.add)
    monkeypatch.setattr(iceberg_out, "sync_directory", synced.add)
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
        append(frame, table.log, "lowwater:c:stage", 0, said, NOWHERE, replayed=False)
    assert keys(table) == ["z"]


def test_a_plain_stage_leaves_its_mark_in_the_table_of_its_sink(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    plain = lws.stage(flow.spark, "plain", inputs=["source"], key="key", event_time="t", address=flow.address)
    flow.queries.append(plain.start(flow.read(), checkpoint=flow.folder / "ck", format="iceberg", path=table.name))
    flow.eventually(lambda: low(lw, "plain") == mark(9), "it is written")
    found = table.log.table()
    assert found.snapshots[table.head].writer == "plain"
    assert found.snapshots[table.head].added == 1


def test_a_directory_whose_table_cannot_be_read_now_is_not_taken_for_an_empty_one(table: TableFlow) -> None:
    """A table of another format would be made in it, and who reads this one would never see the rows."""
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
