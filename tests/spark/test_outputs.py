"""The contract of outputs, over all that need no other Spark: a directory, a topic, a Delta table, and the guarded ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_pipeline.guard.delta import DeltaOutput
from lowwater_pipeline.guard.postgres_out import PostgresOutput
from tests.kit.postgres import Postgres
from tests.spark.flow import Flow
from tests.spark.outputs import COLUMNS, Output, TestOutput

__all__ = ["TestOutput"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Folder(Output):
    older = "was not made from this batch: .* or the batch was planned anew"

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.place = self.path = str(flow.folder / "result")

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write(rows, self.path)

    def keys(self) -> list[str]:
        found = self.flow.spark.read.option("recursiveFileLookup", "true").parquet(self.path)
        return sorted(each.key for each in found.collect())

    def read(self) -> DataFrame:
        stream = self.flow.spark.readStream.option("recursiveFileLookup", "true").schema(COLUMNS)
        return stream.parquet(self.path)


class Delta(Folder):
    older = "made from another plan: the checkpoint is older than the table"

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_table(rows, self.path)

    def keys(self) -> list[str]:
        return sorted(each.key for each in self.flow.spark.read.format("delta").load(self.path).collect())

    def read(self) -> DataFrame:
        return self.flow.spark.readStream.format("delta").load(self.path)


class GuardedDelta(Delta):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.place = None
        flow.spark.sql(f"CREATE TABLE delta.`{self.path}` ({COLUMNS}) USING delta")

    def start(self, **options: Any) -> lws.TrackedQuery:
        self.output = DeltaOutput(self.path, "stage")
        return super().start(**options)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return self.output.write(batch, rows)


class Topic(Output):
    older = "from other rows than those that are staged"

    def __init__(self, flow: Flow, kafka: Any) -> None:
        super().__init__(flow)
        self.kafka, self.topic = kafka, flow.folder.name
        self.options = {"kafka.bootstrap.servers": kafka.address}
        kafka.create(self.topic, partitions=3)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        out = rows.select("key", sf.to_json(sf.struct("key", "t")).alias("value"))
        return batch.write_kafka(out, self.topic, options=self.options, slots=2)

    def keys(self) -> list[str]:
        return sorted(each.key.decode() for each in self.kafka.rows(self.topic))

    def read(self) -> DataFrame:
        told = {"subscribe": self.topic, "startingOffsets": "earliest", "lowwater.brokers": "1"}
        told["kafka.isolation.level"] = "read_committed"
        stream = self.flow.spark.readStream.format("kafka").options(**self.options, **told).load()
        return stream.select(sf.from_json(sf.col("value").cast("string"), COLUMNS).alias("r")).select("r.*")


class Table(Output):
    """A table of PostgreSQL, which takes rows from the owner alone."""

    def __init__(self, flow: Flow, postgres: Postgres) -> None:
        super().__init__(flow)
        self.postgres = postgres
        self.output: PostgresOutput | None = None
        postgres.execute("CREATE TABLE out (key text, t timestamptz)")

    def start(self, **options: Any) -> lws.TrackedQuery:
        self.close()
        self.output = PostgresOutput(self.postgres.dsn, "out", name="stage")
        return super().start(**options)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        assert self.output is not None
        return self.output.write(batch, rows)

    def keys(self) -> list[str]:
        return sorted(key for [key] in self.postgres.execute("SELECT key FROM out"))

    def close(self) -> None:
        if self.output is not None:
            self.output.close()


MARKED = ["folder", "topic"]


def made(request: pytest.FixtureRequest, flow: Flow) -> Output:
    if request.param == "topic":
        return Topic(flow, request.getfixturevalue("kafka"))
    kinds = {"folder": Folder, "Delta": Delta, "guarded Delta": GuardedDelta}
    return kinds[request.param](flow)


@pytest.fixture(params=[*MARKED, pytest.param("Delta", marks=pytest.mark.long)])
def marked(request: pytest.FixtureRequest, flow: Flow) -> Output:
    return made(request, flow)


@pytest.fixture(params=[*MARKED, "Delta", pytest.param("guarded Delta", marks=pytest.mark.long), "PostgreSQL"])
def output(request: pytest.FixtureRequest, flow: Flow) -> Iterator[Output]:
    if request.param == "PostgreSQL":
        with Postgres() as server:
            table = Table(flow, server)
            yield table
            flow.stop()
            table.close()
    else:
        yield made(request, flow)
