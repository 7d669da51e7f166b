"""The contract of outputs, over an Iceberg table."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

import lowwater_spark as lws
from tests.iceberg.table import TableFlow
from tests.spark.outputs import *  # noqa: F403 - the rules
from tests.spark.outputs import OutputCase

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class IcebergTable(OutputCase):
    kinds = ("iceberg", "delta")

    def __init__(self, table: TableFlow) -> None:
        super().__init__(table.flow)
        self.made_table, self.place, self.to = table, table.name, table.name

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_table(rows, self.to)

    def table(self) -> DataFrame:
        # A batch has a session of its own, and each session keeps what it knows of a table for half a minute.
        self.made_table.sql("refresh table {table}")
        return self.flow.spark.table(self.to)

    def read(self) -> DataFrame:
        return self.made_table.read()


@pytest.fixture
def output(table: TableFlow) -> OutputCase:
    return IcebergTable(table)


@pytest.fixture
def marked(output: OutputCase) -> OutputCase:
    return output


@pytest.fixture
def kind(output: OutputCase) -> OutputCase:
    return output
