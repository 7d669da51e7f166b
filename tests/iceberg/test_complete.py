"""How far an Iceberg table is complete, as its snapshots say: known while nobody has taken rows away, and then not."""

from __future__ import annotations

from typing import Any

import pytest

import lowwater_spark as lws
from lowwater_spark.complete.mark import Claim, Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.delta import app_id
from lowwater_spark.track.iceberg_out import append
from tests.iceberg.table import TableFlow, through
from tests.kit.times import at, mark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Appender:
    """What a stage writes, without the query: a batch for each hour."""

    def __init__(self, table: TableFlow, name: str = "stage", life: int = 1, checkpoint: str = "c") -> None:
        self.table, self.checkpoint, self.life, self.batch = table, checkpoint, life, 0
        self.app = app_id(name, checkpoint)

    def __call__(self, hour: int) -> int:
        """Return the snapshot."""
        said = {"checkpoint": self.checkpoint, "batch": self.batch, "digest": f"{self.batch}", "run": 1}
        standing = Standing(mark(hour).micros, Claim(self.life, 7))
        rows = self.table.rows(("k", hour))
        newest = self.batch - 1
        assert append(rows, self.table.log, self.app, self.batch, said, standing, replayed=False, newest=newest)
        self.batch += 1
        return self.table.head


@pytest.fixture
def filled(table: TableFlow) -> Appender:
    """A table with a snapshot for each batch; the next batch by call, of the first life."""
    stage = Appender(table)
    for hour in (9, 10):
        stage(hour)
    return stage


def asked_in_sql(table: TableFlow, **options: Any) -> object:
    spark = table.flow.spark
    lws.register_function(spark, "complete", table.name, ["stage"], **options)
    table.sql("refresh table {table}")
    return spark.sql("select complete() at").collect()[0].at


def test_who_reads_the_snapshot_of_the_answer_has_all_of_it(table: TableFlow, filled: Appender) -> None:
    """Also after what rearranges rows, or adds those of others; also in SQL. A branch has no answer."""
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
        each.replace(tzinfo=None) for each in (at(9), at(10))
    ]
    assert asked_in_sql(table) == at(10).replace(tzinfo=None)
    for name in (f"{table.name}.branch_aside", f"{table.name}.snapshot_id_{last}"):
        with pytest.raises(Unsupported, match="a branch or a moment of the table"):
            lws.complete_through(spark, name, ["stage"])
    with pytest.raises(Unsupported, match="by its path"):
        lws.register_function(spark, "complete", table.log.table().location, ["stage"])


def test_rows_that_were_taken_away_make_it_unknown(table: TableFlow, filled: Appender) -> None:
    """For who reads then, for who reads after the writer's next snapshot, and for good."""
    table.sql("insert overwrite {table} select * from {table}")
    for hour in (11, 12):
        assert "(overwrite) takes rows away" in through(table, ignore_deletes=True).why
        assert asked_in_sql(table) is None
        filled(hour)
    assert through(table).low.unknown


def test_a_delete_may_be_meant(table: TableFlow, filled: Appender) -> None:
    table.sql("delete from {table} where t < timestamp '2013-01-09 09:30:00Z'")
    for hour in (10, 12):
        assert "(delete) takes rows away" in through(table).why
        assert through(table, ignore_deletes=True).low == mark(hour)
        filled(12)
    assert (asked_in_sql(table), asked_in_sql(table, ignore_deletes=True)) == (None, at(12).replace(tzinfo=None))


def test_a_rollback_makes_it_unknown(table: TableFlow, filled: Appender) -> None:
    """Until it is taken back; and for good once the writer has gone on from there."""
    before, last = table.log.table().lineage[0].id, table.head
    table.call("rollback_to_snapshot", snapshot_id=before)
    lost = f"snapshot {last} of it, which has its batch 1, is not in the lineage of the table"
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


@pytest.mark.long
def test_what_has_expired_before_anybody_looked_may_have_been_anything(table: TableFlow, filled: Appender) -> None:
    """What is older than the newest mark is not asked for."""
    table.expire()
    assert through(table).low == mark(10)
    for why in ("is not there any more", "is not in the lineage of the table"):
        table.put(("z", 9))
        table.expire()
        assert why in through(table).why
    filled(11)
    assert "is not in the lineage of the table" in through(table).why


def test_a_table_that_was_made_anew_says_nothing(table: TableFlow, filled: Appender) -> None:
    table.drop()
    table.create()
    assert through(table) == lws.Completeness.of(
        {"stage": lws.OutputWriter(through(table).low, "it has written nothing that says how far it is")}, None
    )


@pytest.mark.long
def test_the_least_of_all_writers_and_the_highest_life_count(table: TableFlow, filled: Appender) -> None:
    """A neighbour whose property says nothing harms nobody else."""
    other = Appender(table, "other", checkpoint="d")
    assert through(table, "stage", "other").why == "other: it has written nothing that says how far it is"
    other(8)
    assert through(table, "other", "stage").low == mark(8)
    assert through(table).why == "other writes into it as well: name it in writers"
    second = Appender(table, life=2, checkpoint="e")
    second(7)
    answer = through(table, "other", "stage")
    assert (answer.low, answer.writers["stage"].life) == (mark(7), 2)
    with pytest.raises(CheckpointMismatch, match="life 2 of stage has written into the table"):
        filled(12)
    table.sql("alter table {table} set tblproperties ('" + other.app + "' = 'broken')")
    answer = through(table, "other", "stage")
    assert "says nothing of a batch" in answer.writers["other"].why
    assert answer.writers["stage"].low == mark(7)
