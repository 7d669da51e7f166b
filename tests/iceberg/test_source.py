"""Iceberg as the source of a tracked stage: a watermark counts when all that the table had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.plan.checked import check_plan
from tests.iceberg.table import TableFlow
from tests.kit.times import mark
from tests.spark.support import Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180


def test_a_stage_follows_its_inputs_through_a_table(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_what_takes_rows_ends_the_query_and_holds(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    table.put(("a", 9))
    query = table.followed(lw, upstream, ("b", 9))
    table.sql("update {table} set t = t + interval 1 hour where key = 'a'")
    upstream.at(11)
    with pytest.raises(Exception, match="Cannot process overwrite snapshot"):
        query.await_termination(PATIENCE)
    assert low(lw, "stage") == mark(9)


def test_a_table_is_known_however_it_is_named(table: TableFlow) -> None:
    spark = table.flow.spark
    table.put(("a", 9))
    name = table.name
    path = table.log.table().location
    limited = spark.readStream.option("streaming-max-files-per-micro-batch", "1").table(name)
    for frame, text in ((table.read(), name), (limited, name), (spark.readStream.format("iceberg").load(path), path)):
        [source] = check_plan(spark, frame).sources
        assert (source.kind, source.name) == ("iceberg", f"the Iceberg table {text}")
        source.waiting_for(frozenset({"default/source"}))
    for setting, text in (
        ("spark.datasource.iceberg.streaming-skip-overwrite-snapshots", "with the option streaming-skip-overwrite"),
        ("spark.sql.iceberg.async-micro-batch-planning-enabled", "in a session where"),
    ):
        spark.conf.set(setting, "true")
        with pytest.raises(Unsupported, match=text):
            table.track()
        spark.conf.unset(setting)
    table.sql("alter table {table} create branch aside")
    with pytest.raises(Unsupported, match="of its branch aside"):
        table.track(stream=spark.readStream.table(f"{name}.branch_aside"))
    table.sql("alter table {table} set tblproperties ('write.wap.enabled' = 'true')")
    with pytest.raises(Unsupported, match=r"write\.wap\.enabled"):
        table.track()
