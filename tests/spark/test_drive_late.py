"""Approximate driving: windows follow a heuristic watermark, and what it has passed is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowwater
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, record
from tests.spark.support import Upstream

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)


def mostly(upstream: Upstream, hour: int) -> None:
    """Of a thousand records one is still at nine; the others are past an hour."""
    upstream.lease.advance(None, oldest=at(9), frontier=at(hour), pending=[at(9)], finished=1000)
    upstream.lease.flush(20)


def kept(driven: Driven) -> list[tuple[str, int, int]]:
    """The late rows that stand in the directory, with the batch's watermark that each met."""
    late = driven.folder / "late"
    if not list(late.glob("batch=*/part-*.parquet")):
        return []
    rows = driven.spark.read.option("recursiveFileLookup", "true").parquet(str(late)).collect()
    return sorted((row.key, row.t.astimezone().hour, row.lowwater_watermark.astimezone().hour) for row in rows)


def test_what_an_approximate_watermark_has_passed_is_kept(
    driven: Driven, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """Every row is in exactly one place: in its window, or with the late ones; also when the batch runs twice."""
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
    driven.eventually(lambda: len(kept(driven)) == 2, "both late rows are kept")
    assert kept(driven) == [("late", 9, 11), ("late", 10, 11)]
    upstream.lease.finish()
    driven.await_watermark(at(13))
    assert driven.rows == counts(rows), "and the late ones are in no window"
    assert len(kept(driven)) == 2
    query.stop()


def test_late_rows_of_two_queries_are_not_mixed(driven: Driven, upstream: Upstream, tmp_path: Path) -> None:
    counted = driven.hourly(driven.drive(approximate=0.5, late=tmp_path / "late"))
    driven.start(counted, stamp=HOUR)
    other = driven.hourly(driven.drive(approximate=0.5, late=tmp_path / "late"))
    with pytest.raises(ValueError, match="late rows of another query"):
        driven.start(other, stamp=HOUR, name="other", checkpoint="other")
