"""Iceberg as the source of a tracked stage: a watermark counts when all that the table had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.track.plan import check_plan
from tests.iceberg.table import TableFlow
from tests.kit.iceberg import Offset
from tests.kit.times import mark
from tests.spark.support import Upstream, low, waits

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180


# -- what counts -------------------------------------------------------------------------------------------------------


def test_a_stage_follows_its_inputs_through_a_table(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """With rows, without, past a snapshot that only rearranges (I1), after a restart, and never before what stood there is committed."""
    going = threading.Event()
    going.set()

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        going.wait(PATIENCE)
        table.flow.plain(rows, batch)

    upstream.at(8)
    query = table.track(write)
    table.flow.eventually(lambda: low(lw, "stage") == mark(8), "the table is empty")
    table.put(("a", 9))
    table.put(("b", 9))
    upstream.at(9)
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "the rows are committed")
    upstream.at(10)
    table.flow.eventually(lambda: low(lw, "stage") == mark(10), "no rows are needed")
    going.clear()
    last = table.put(("c", 10))
    upstream.at(11)
    table.flow.eventually(lambda: table.offsets[-1].snapshot == last, "the row is planned, not committed")
    assert low(lw, "stage") == mark(10)
    going.set()
    table.flow.eventually(lambda: low(lw, "stage") == mark(11), "now it is")
    table.call("rewrite_data_files", options="map('min-input-files', '2')")
    assert table.head != last
    upstream.at(12)
    table.flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes past what adds no rows")
    assert table.offsets[-1].snapshot == last, "its offset is not the head"
    query.stop()
    table.put(("d", 12))
    upstream.at(13)
    table.track(write)
    table.flow.eventually(lambda: low(lw, "stage") == mark(13), "after a restart")
    assert table.keys() == ["a", "b", "c", "d"]


def test_a_rate_limit_leaves_rows_behind(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Of a snapshot, and whole snapshots."""
    first = table.put(*((f"{n}", 9) for n in range(8)), files=2)
    table.put(("z", 9))
    upstream.at(9)
    seen: dict[Offset, bool] = {}

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        seen[table.offsets[batch.id]] = mark(9) in (batch.low, low(lw, "stage"))
        table.flow.plain(rows, batch)

    table.track(write, source={"streaming-max-files-per-micro-batch": "1"})
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "all are read")
    assert [seen[offset] for offset in (Offset(first, 1), *seen) if offset.snapshot == first][:1] == [False]
    assert len(table.keys()) == 9


def test_a_job_over_a_table_is_tracked_by_its_checkpoint(
    table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The job knows nothing of it."""
    spark, checkpoint = table.flow.spark, str(table.flow.folder / "ck")
    for key in "abc":
        table.put((key, 9))
    upstream.at(10)
    limited = table.read(**{"streaming-max-files-per-micro-batch": "1"})
    job = limited.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    promises = ["history", "nothing-skipped", "sink-visible-before-commit"]
    said: dict[str, Any] = {"checkpoint": checkpoint, "inputs": ["source"], "promises": promises}
    where: dict[str, Any] = {"state": table.flow.folder / "state", "address": table.flow.address}
    sidecar = None
    try:
        table.flow.eventually(lambda: table.offsets != [], "it has begun")
        with pytest.raises(Unsupported, match="does not know such a table"):
            lws.track("stage", **said, **where, sources=["iceberg:ice.db.unheard"], spark=lambda: spark)
        sidecar = lws.track("stage", **said, **where, sources=[f"iceberg:{table.name}"], spark=lambda: spark)
        table.flow.eventually(lambda: low(lw, "stage") == mark(10), "all snapshots are read")
        table.put(("z", 10))
        upstream.at(11)
        table.flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
        job.stop()
        last = table.put(("z", 11))
        upstream.at(12)
        table.flow.eventually(lambda: f"snapshot {last}" in " ".join(sidecar.status().waiting_for), "the job is away")
        assert low(lw, "stage") == mark(11)
    finally:
        job.stop()
        if sidecar is not None:
            sidecar.stop()


# -- what holds --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_table_that_is_made_anew_holds(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Under the same name, in the same directory, with as many versions of its metadata: what looks for a newer one finds none."""
    query = table.followed(lw, upstream, ("a", 9))
    table.drop()
    table.create()
    table.put(("new", 9))
    upstream.at(11)
    table.flow.eventually(
        lambda: waits(query, "is another one (its uuid was")() or query.query.exception() is not None, "it is named"
    )
    query.stop()
    assert low(lw, "stage") == mark(9)
    with pytest.raises(CheckpointMismatch, match="another one"):
        table.track()


def test_what_takes_rows_away_ends_the_query_and_holds(
    table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    table.put(("a", 9))
    query = table.followed(lw, upstream, ("b", 9))
    table.sql("update {table} set t = t + interval 1 hour where key = 'a'")
    upstream.at(11)
    with pytest.raises(Exception, match="Cannot process overwrite snapshot"):
        query.await_termination(PATIENCE)
    assert low(lw, "stage") == mark(9)


@pytest.mark.long
def test_a_snapshot_without_rows_holds_nobody(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Not even the first one, of which Iceberg's stream makes no batch."""
    table.rows().writeTo(table.name).append()
    upstream.at(9)
    table.track()
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "no batch is needed")
    table.put(("a", 9))
    upstream.at(10)
    table.flow.eventually(lambda: low(lw, "stage") == mark(10), "a row")
    table.rows().writeTo(table.name).append()
    upstream.at(11)
    table.flow.eventually(lambda: low(lw, "stage") == mark(11), "none again")
    assert table.keys() == ["a"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_table_is_known_however_it_is_named(table: TableFlow) -> None:
    """And what the session sets for all of its readers counts as an option."""
    spark = table.flow.spark
    table.put(("a", 9))
    name = table.name
    path = table.log.table().location
    limited = spark.readStream.option("streaming-max-files-per-micro-batch", "1").table(name)
    for frame, said in ((table.read(), name), (limited, name), (spark.readStream.format("iceberg").load(path), path)):
        [source] = check_plan(spark, frame).sources
        assert (source.kind, source.name) == ("iceberg", f"the Iceberg table {said}")
        source.waiting_for(frozenset({"default/source"}))
    spark.conf.set("spark.datasource.iceberg.streaming-skip-overwrite-snapshots", "true")
    try:
        with pytest.raises(Unsupported, match="with the option streaming-skip-overwrite-snapshots"):
            table.track()
    finally:
        spark.conf.unset("spark.datasource.iceberg.streaming-skip-overwrite-snapshots")
    spark.conf.set("spark.sql.iceberg.async-micro-batch-planning-enabled", "true")
    try:
        with pytest.raises(Unsupported, match="in a session where"):
            table.track()
    finally:
        spark.conf.unset("spark.sql.iceberg.async-micro-batch-planning-enabled")
    table.sql("alter table {table} create branch aside")
    with pytest.raises(Unsupported, match="of its branch aside"):
        table.track(stream=spark.readStream.table(f"{name}.branch_aside"))
    table.sql("alter table {table} set tblproperties ('write.wap.enabled' = 'true')")
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        table.track()
