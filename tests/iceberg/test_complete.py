"""An Iceberg table's snapshots say how far it is complete: known until somebody takes rows away."""

from __future__ import annotations

from typing import Any

import pytest

import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from tests.iceberg.table import TableFlow, through
from tests.kit.times import at, mark
from tests.spark.outputs import OutputRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Appender:
    """A writer of what a stage writes, without the query: a batch for each hour."""

    def __init__(self, table: TableFlow) -> None:
        self.table, self.batch = table, 0
        self.run = OutputRun(table.flow.folder / "ck", ["iceberg"], table.name)

    def __call__(self, hour: int) -> int:
        assert self.run.write(self.table.rows(("k", hour)), self.batch, through=mark(hour))
        self.batch += 1
        return self.table.head


@pytest.fixture
def filled(table: TableFlow) -> Appender:
    stage = Appender(table)
    for hour in (9, 10):
        stage(hour)
    return stage


def asked_in_sql(table: TableFlow, **options: Any) -> object:
    spark = table.flow.spark
    lws.register_function(spark, "complete", table.name, ["stage"], **options)
    table.sql("refresh table {table}")
    return spark.sql("select complete() at").collect()[0].at


@pytest.mark.long  # of Delta: spark/test_complete.py
def test_who_reads_the_snapshot_of_the_answer_has_all_of_it(table: TableFlow, filled: Appender) -> None:
    spark, last = table.flow.spark, table.head
    assert through(table) == lws.Completeness(mark(10), "", last, {"stage": lws.OutputWriter(mark(10), "", last, 1, 7)})
    table.call("rewrite_data_files", options="map('min-input-files', '2')")
    table.put(("late", 1))
    table.sql("alter table {table} add column more string")
    table.sql("alter table {table} create branch aside")
    table.sql("delete from {table}.branch_aside")
    answer = through(table)
    assert (answer.low, answer.version) == (mark(10), table.head)
    table.sql("refresh table {table}")
    read = spark.read.option("versionAsOf", str(answer.version)).table(table.name)
    assert sorted(r.t for r in read.where("key = 'k'").collect()) == [
        hour.replace(tzinfo=None) for hour in (at(9), at(10))
    ]
    assert asked_in_sql(table) == at(10).replace(tzinfo=None)
    for name in (f"{table.name}.branch_aside", f"{table.name}.snapshot_id_{last}"):
        with pytest.raises(Unsupported, match="a branch or a moment of the table"):
            lws.complete_through(spark, name, ["stage"])
    with pytest.raises(Unsupported, match="by its path"):
        lws.register_function(spark, "complete", table.log.table().location, ["stage"])


def test_a_rollback_makes_it_unknown(table: TableFlow, filled: Appender) -> None:
    before, last = table.log.table().lineage[0].id, table.head
    table.call("rollback_to_snapshot", snapshot_id=before)
    lost = f"snapshot {last} with its batch 1 is not in the lineage of the table"
    assert lost in through(table).why
    assert asked_in_sql(table) is None
    table.call("cherrypick_snapshot", snapshot_id=last)
    if table.head != last:
        assert lost in through(table).why, "its rows are there again, in another snapshot"
    table.call("set_current_snapshot", snapshot_id=last)
    assert through(table).low == mark(10)
    table.call("rollback_to_snapshot", snapshot_id=before)
    filled(11)
    table.call("expire_snapshots", snapshot_ids=f"array({last})")
    filled(12)
    assert lost in through(table).why
    assert asked_in_sql(table) is None
