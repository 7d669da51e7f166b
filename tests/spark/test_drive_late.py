"""Rows that a watermark has passed are kept: of an exact one, and of a heuristic one that windows follow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lowwater
from lowwater_spark.drive.late import LateRule, keep_late, open_late, reserve_late
from lowwater_spark.sources.control import Drive
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, millis, record, say
from tests.spark.support import Upstream

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)


def mostly(upstream: Upstream, hour: int) -> None:
    upstream.lease.advance(None, oldest=at(9), frontier=at(hour), pending=[at(9)], finished=1000)
    upstream.lease.flush(20)


def late_rows(driven: Driven) -> list[tuple[str, int, int]]:
    """The late rows that stand in the directory, with the batch's watermark that each met."""
    late = driven.folder / "late"
    if not list(late.glob("batch=*/part-*.parquet")):
        return []
    rows = driven.spark.read.option("recursiveFileLookup", "true").parquet(str(late)).collect()
    return sorted((row.key, row.t.astimezone().hour, row.lowwater_watermark.astimezone().hour) for row in rows)


def test_rows_below_a_guess_are_kept(driven: Driven, lw: lowwater.Client, upstream: Upstream, tmp_path: Path) -> None:
    rows = [record("a", at(9, 30)), record("b", at(10, 30)), record("c", at(12, 30))]
    driven.feed().put(rows[:2])
    frame = driven.drive(approximate=0.99, late=tmp_path / "late")
    driven.start(driven.hourly(frame), stamp=HOUR)
    driven.hours = False  # they come before all inputs are beyond them: that is what was asked for
    mostly(upstream, 11)
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows[:2]), "the one record of nine was not waited for"
    assert lw.get("source")["source"].low == lowwater.Watermark.of(at(9))
    assert lw.get("stage")["stage"].low <= lowwater.Watermark.of(at(9)), "what is published stays exact"
    assert lw.topology().computations["stage"].estimated
    late = [record("late", at(9, 5)), record("late", at(10, 59))]
    driven.stop()
    # What a batch that was never committed has left there, and is run again.
    stray = tmp_path / "late" / "batch=99"
    stray.mkdir()
    (stray / "part-00000.parquet").touch()
    driven.feed().put([*late, rows[2]])
    frame = driven.drive(approximate=0.99, late=tmp_path / "late")
    query = driven.start(driven.hourly(frame), stamp=HOUR)
    driven.hours = False
    assert not stray.exists()
    driven.await_read(2)
    driven.eventually(lambda: len(late_rows(driven)) == 2, "both late rows are kept")
    assert late_rows(driven) == [("late", 9, 11), ("late", 10, 11)]
    upstream.lease.finish()
    driven.await_watermark(at(13))
    assert driven.rows == counts(rows), "and the late ones are in no window"
    assert len(late_rows(driven)) == 2
    query.stop()


MILLI = timedelta(milliseconds=1)


def test_what_comes_after_its_id_was_forgotten_is_kept(driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    first = [record("a", at(9)), record("b", at(9, 10)), record("a", at(9))]
    driven.feed().put(first)
    frame = driven.drive(within=timedelta(0), step=MILLI, late=driven.folder / "late").dropDuplicatesWithinWatermark(
        ["key"]
    )
    driven.start(frame)
    driven.await_read(1)
    say(upstream, at(9, 10))
    driven.await_watermark(millis(at(9, 10)) - 1)
    # A copy of a that was acknowledged long ago, or an original whose sender has broken its promise; a copy of b in time; and what is the first of its id, exactly at W.
    driven.feed().put(
        [record("a", at(9)), record("zombie", at(9, 9, 59)), record("b", at(9, 10)), record("c", at(9, 10))]
    )
    driven.await_read(2)
    driven.eventually(lambda: any(key == "c" for key, _ in driven.rows), "the batch is written")
    assert [key for key, _, _ in late_rows(driven)] == ["a", "zombie"]
    assert sorted(key for key, _ in driven.rows) == ["a", "b", "c"]
    assert not lw.topology().computations["stage"].estimated, "its watermark is exact"


def test_late_rows_of_partitions_that_one_task_runs_are_all_kept(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "ck/offsets").mkdir(parents=True)
    (tmp_path / "ck/offsets/0").write_text(f'v1\n{{"batchWatermarkMs":{10**9}}}\n-')
    drive = Drive(str(tmp_path / "control"), ("source",), "t", late=str(tmp_path / "late"))
    reserve_late(drive, "checkpoint")
    open_late(drive, LateRule(str(tmp_path / "ck"), at=True), 0)
    rows = keep_late(spark.range(0, 12, 1, 4).selectExpr("id", "timestamp_seconds(id) AS t"), drive)
    spark.sparkContext.setLocalProperty("streaming.sql.batchId", "1")
    try:
        for _ in range(2):
            assert rows.coalesce(1).count() == 12
    finally:
        spark.sparkContext.setLocalProperty("streaming.sql.batchId", None)  # type: ignore[arg-type]
    late = spark.read.parquet(str(tmp_path / "late/batch=1"))
    assert sorted(row.id for row in late.collect()) == list(range(12)), "also when it runs twice"
