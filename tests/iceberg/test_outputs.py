"""The contract of outputs, over an Iceberg table."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

import lowwater_spark as lws
from tests.iceberg.table import TableFlow
from tests.spark.outputs import Output, TestOutput

__all__ = ["TestOutput"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class IcebergTable(Output):
    older = "the checkpoint is older than the table|not batch 1 of this plan"

    def __init__(self, table: TableFlow) -> None:
        super().__init__(table.flow)
        self.table, self.place = table, table.name

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_table(rows, self.table.name)

    def keys(self) -> list[str]:
        # A batch has a session of its own, and each session keeps what it knows of a table for half a minute.
        self.table.sql("refresh table {table}")
        return sorted(each.key for each in self.flow.spark.table(self.table.name).collect())

    def read(self) -> DataFrame:
        return self.table.read()


@pytest.fixture
def output(table: TableFlow) -> Output:
    return IcebergTable(table)


@pytest.fixture
def marked(output: Output) -> Output:
    return output
