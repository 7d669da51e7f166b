"""Delta as the source of a tracked stage: a watermark counts when all that the table had is committed, and else it holds, or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.tables.delta import DELTA, DeltaSource
from lowwater_spark.sources.tables.delta_log import Commit, DeltaLog, Table
from lowwater_spark.track.plan.checked import check_plan
from tests.kit import delta
from tests.kit.delta import Offset
from tests.kit.times import at, mark
from tests.spark.flow import Flow, Readable
from tests.spark.support import Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180


class TableFlow(Readable):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.path = flow.folder / "table"

    def put(self, *rows: tuple[str, int], files: int = 1, **options: Any) -> None:
        frame = self.flow.spark.createDataFrame([(key, at(hour)) for key, hour in rows], "key string, t timestamp")
        frame.repartition(files).write.format("delta").mode("append").options(**options).save(str(self.path))

    def sql(self, statement: str) -> None:
        self.flow.spark.sql(statement.format(table=f"delta.`{self.path}`"))

    def read(self, **options: str) -> DataFrame:
        return self.flow.spark.readStream.format("delta").options(**options).load(str(self.path))

    @property
    def head(self) -> int:
        return delta.head(self.path)

    @property
    def offsets(self) -> list[Offset]:
        return delta.offsets(self.flow.folder / "ck")


@pytest.fixture
def table(flow: Flow) -> TableFlow:
    return TableFlow(flow)


class Log:
    """The log of a table that Delta here cannot make."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def table(self) -> Table:
        return self._table

    def commit(self, version: int) -> Commit | None:
        return None

    def apps(self) -> Mapping[str, int]:
        return {}


def test_d1_a_stage_follows_inputs_through_a_table(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    def change() -> None:
        for statement in ("OPTIMIZE {table}", "ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')"):
            before = table.head
            table.sql(statement)
            assert table.head > before

    query = table.story(lw, upstream, lambda _: table.offsets[-1].version > table.head, change)
    table.sql("UPDATE {table} SET t = t + INTERVAL 1 HOUR WHERE key = 'a'")
    upstream.at(14)
    with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        query.await_termination(PATIENCE)
    assert low(lw, "stage") == mark(13), "rows were taken away"


def test_d4_a_rate_limit_leaves_rows_of_a_snapshot(table: TableFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    for hour in range(3):
        table.put((f"{hour}", hour))
    upstream.at(9)
    batches: list[tuple[Offset, bool]] = []

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batches.append((table.offsets[batch.id], mark(9) in (batch.low, low(lw, "stage"))))
        table.flow.plain(rows, batch)

    table.track(write, source={"maxFilesPerTrigger": "1"})
    table.flow.eventually(lambda: low(lw, "stage") == mark(9), "all are read")
    head = table.head
    assert batches[:2] == [(Offset(head, 0, initial=True), False), (Offset(head, 1, initial=True), False)]
    assert [offset.version >= head for offset, _ in batches[:2]] == [True, True], "by its number alone it would lead"
    assert Offset(head + 1, -1, initial=False) in table.offsets
    assert table.keys() == ["0", "1", "2"]


def test_d12_d13_a_table_whose_log_does_not_tell_all_is_refused() -> None:
    for table, why in (
        (Table(3, "t", "/t", frozenset({"catalogManaged"})), "catalog has its newest commits"),
        (Table(3, "t", "/t", properties={"delta.coordinatedCommits.commitCoordinator-preview": "d"}), "coordinator"),
    ):
        source = DeltaSource("/t", {"path": "/t"}, Log(table)).waiting_for(frozenset({"default/source"}))
        with pytest.raises(Unsupported, match=why):
            source.check_writers()


def test_d12_of_a_table_on_s3_it_is_declared_that_no_writer_keeps_commits_elsewhere() -> None:
    log = Log(Table(3, "t", "s3a://bucket/t"))
    options = {"path": "s3a://bucket/t"}
    with pytest.raises(Unsupported, match=r"without the option lowwater\.externalLogStore"):
        DeltaSource("s3a://bucket/t", options, log).waiting_for(frozenset({"source"})).check_writers()
    declared = {**options, "lowwater.externallogstore": "false"}
    DeltaSource("s3a://bucket/t", declared, log).waiting_for(frozenset({"source"})).check_writers()


def test_delta_is_known_however_it_is_spelt(table: TableFlow) -> None:
    table.put(("a", 9))
    for spelt in ("DELTA", "org.apache.spark.sql.delta.sources.DeltaDataSource"):
        frame = table.flow.spark.readStream.format(spelt).load(str(table.path))
        [source] = check_plan(table.flow.spark, frame).sources
        assert source == DeltaSource(str(table.path), {"path": str(table.path)}, DeltaLog(table.flow.spark, ""))
        assert source.kind == DELTA
