"""Driven windows on the Spark before 4.2, over Iceberg and over files: the control remembers there where its query goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import DataFrame

import lowwater
from lowwater_spark.sources.control import END
from tests.iceberg.table import TableFlow
from tests.kit.times import at
from tests.spark.drive_support import HOUR, Driven, counts, driven, record, say
from tests.spark.support import Upstream, low
from tests.spark.test_drive_traps import (
    test_rule_8_a_clock_that_is_behind_moves_nothing_back,
    test_rule_8_a_restart_goes_on_from_the_last_value,
    test_several_controls_say_everything_again_after_a_restart,
)
from tests.spark.test_drive_windows import (
    test_a_join_of_two_streams_waits_for_the_slower_one,
    test_windows_close_to_the_millisecond_and_whole,
)

__all__ = [
    "driven",
    "test_a_join_of_two_streams_waits_for_the_slower_one",
    "test_rule_8_a_clock_that_is_behind_moves_nothing_back",
    "test_rule_8_a_restart_goes_on_from_the_last_value",
    "test_several_controls_say_everything_again_after_a_restart",
    "test_windows_close_to_the_millisecond_and_whole",
]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MILLI = timedelta(milliseconds=1)


@pytest.fixture
def carrier() -> None:
    """The one that this Spark has."""


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
