"""Driven windows on Spark 4.1, the newest with a runtime of Iceberg: over its tables, and the proven plans over files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import END, Control, Offset
from lowwater_spark.track.plan.checked import check_plan
from tests.iceberg.table import TableFlow
from tests.kit import iceberg
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, millis, record, say
from tests.spark.support import Upstream, low, waits
from tests.spark.test_drive_traps import (
    test_rule_8_a_clock_that_is_behind_moves_nothing_back,
    test_rule_8_a_restart_goes_on_from_the_last_value,
)
from tests.spark.test_drive_windows import test_windows_close_to_the_millisecond_and_whole

__all__ = [
    "driven",
    "test_rule_8_a_clock_that_is_behind_moves_nothing_back",
    "test_rule_8_a_restart_goes_on_from_the_last_value",
    "test_windows_close_to_the_millisecond_and_whole",
]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MILLI = timedelta(milliseconds=1)

LOOKS = 3.0
"""Seconds in which the clock of a query looks at its sources several times."""


@pytest.fixture
def carrier(driven: Driven) -> Iterator[None]:
    """The reader of this Spark, which passes no offset."""
    yield
    assert driven.readers == {"remembers"}


class OverTable:
    """Driven windows of a table: how far the control is, in Spark's log and in what the clock gives out."""

    def __init__(self, table: TableFlow, driven: Driven) -> None:
        self.table, self.driven = table, driven
        self.log = CheckpointLog(driven.folder / "ck")

    def start(self) -> lws.TrackedQuery:
        frame = self.driven.drive(self.table.read(), step=MILLI)
        [source] = check_plan(self.driven.spark, frame).controls.values()
        self.control = Control(source.directory)
        return self.driven.start(self.driven.hourly(frame), stamp=HOUR)

    def clock_value(self) -> int:
        """The watermark that the clock gives out, milliseconds."""
        value = self.control.last_value()
        assert value is not None, "the clock gives out no value"
        return value.offset.watermark

    def logged(self, batch: int) -> int:
        """The watermark in the plan of a batch, milliseconds."""
        plan = self.log.plan(batch)
        assert plan is not None
        return Offset.of_line(plan.lines[0]).watermark

    def plans(self, snapshot: int) -> bool:
        """Whether the newest plan reads up to a snapshot, and its batch waits in the function."""
        plan = self.log.newest()
        return plan is not None and iceberg.Offset.parse(plan.lines[1]).snapshot == snapshot and self.driven.held

    def stays(self, watermark: int) -> None:
        """Assert that the clock gives out nothing higher, for some looks of it."""
        deadline = time.monotonic() + LOOKS
        while time.monotonic() < deadline:
            assert self.clock_value() == watermark
            time.sleep(0.05)


@pytest.fixture
def over(table: TableFlow, driven: Driven, upstream: Upstream) -> OverTable:
    """Rows of nine, which are out; and a promise of eleven with a row of ten whose batch is planned, and not committed."""
    over_ = OverTable(table, driven)
    table.put(("a", 9))
    over_.start()
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert over_.clock_value() == millis(at(10))
    driven.going.clear()
    last = table.put(("d", 10))
    say(upstream, at(11))
    driven.eventually(lambda: over_.plans(last), "the row is planned, not committed")
    return over_


def test_a_plan_of_a_table_moves_no_watermark_until_it_is_committed(over: OverTable, driven: Driven) -> None:
    """A plan names a snapshot and a position: another run may find other rows there, so nothing counts before the commit."""
    rows = [record("a", at(9)), record("d", at(10))]
    batch = over.log.last_planned()
    assert batch is not None
    over.stays(millis(at(10)))
    driven.fails_in = batch
    driven.going.set()
    with pytest.raises(RuntimeError, match="told to fail"):
        driven.queries[-1].await_termination(90)
    assert not over.log.committed(batch)
    driven.stop()
    driven.going.clear()
    over.start()
    driven.eventually(lambda: driven.held, "the batch runs again")
    over.stays(millis(at(10)))
    driven.going.set()
    driven.await_watermark(at(11))
    assert over.logged(batch) == millis(at(10))
    assert driven.rows == counts(rows, at(11))


def test_a_table_that_is_rolled_back_below_a_plan_moves_no_watermark(over: OverTable, driven: Driven) -> None:
    batch = over.log.last_planned()
    assert batch is not None
    over.stays(millis(at(10)))
    first = over.table.flow.spark.sql(
        f"select snapshot_id from {over.table.name}.snapshots order by committed_at"
    ).first()
    assert first is not None
    over.table.call("rollback_to_snapshot", snapshot_id=first[0])
    driven.eventually(waits(driven.queries[-1], "was rolled back"), "it holds")
    over.stays(millis(at(10)))
    assert not over.log.committed(batch)


def test_a_join_is_refused_until_a_test_has_run_it_here(driven: Driven) -> None:
    left, right = driven.drive(driven.read("left")), driven.drive(driven.read("right"))
    joined = left.join(right.selectExpr("key AS other", "t AS u"), sf.expr("key = other AND t = u"))
    with pytest.raises(Unsupported, match=r"several driven frames on Spark 4\.1"):
        driven.start(joined, retention=HOUR)
    assert not (driven.folder / "ck").exists()


def test_driven_windows_of_a_table(table: TableFlow, driven: Driven, lw: lowwater.Client, upstream: Upstream) -> None:
    def hourly() -> DataFrame:
        return driven.hourly(driven.drive(table.read(**{"streaming-max-files-per-micro-batch": "1"}), step=MILLI))

    rows = [record("a", at(9)), record("b", at(9)), record("a", at(10)), record("c", at(13))]
    table.put(("a", 9), ("b", 9), ("a", 10), ("c", 13), files=2)
    query = driven.start(hourly(), stamp=HOUR)
    say(upstream, at(10) - MILLI)
    driven.await_watermark(at(10) - MILLI)
    assert driven.out == [], "a row at one millisecond before ten may still come"
    say(upstream, at(10))
    driven.await_watermark(at(10))
    assert driven.rows == counts(rows, at(10))
    query.stop()
    rows += [record("d", at(10)), record("e", at(10))]
    table.put(("d", 10), ("e", 10), files=2)
    say(upstream, at(11))
    again = driven.start(hourly(), stamp=HOUR)
    driven.await_watermark(at(11))
    assert driven.rows == counts(rows, at(11))
    # A snapshot that only rearranges rows holds nothing.
    table.call("rewrite_data_files", options="map('min-input-files', '2')")
    say(upstream, at(12))
    driven.await_watermark(at(12))
    upstream.lease.finish()
    driven.await_watermark(END)
    assert driven.rows == counts(rows)
    driven.eventually(lambda: low(lw, "stage").finished, "all is written, so nothing will come")
    assert again.stage_status().late_rows == 0
