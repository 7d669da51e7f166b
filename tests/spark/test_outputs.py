"""The contract of outputs, over all that need no other Spark: a directory, a topic, a Delta table, a toy, and the guarded ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.guard.delta import DeltaOutput
from lowwater_pipeline.guard.postgres_out import PostgresOutput
from lowwater_spark.sources.files.bookmarks import BOOKMARKS
from lowwater_spark.sources.files.writers import digest_of
from lowwater_spark.track.output import outputs
from lowwater_spark.track.output.times import exact_times
from tests.kit.postgres import Postgres
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.outputs import *  # noqa: F403 - the rules
from tests.spark.outputs import COLUMNS, OutputCase
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Folder(OutputCase):
    kinds = ("folder",)
    options: Mapping[str, Any] = {"keep": timedelta(0)}
    stored = (5,)

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.place = self.to
        self.root = Path(self.to)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write(rows, self.to)

    def table(self) -> DataFrame:
        return self.flow.spark.read.option("recursiveFileLookup", "true").schema(COLUMNS).parquet(self.to)

    def read(self) -> DataFrame:
        stream = self.flow.spark.readStream.option("recursiveFileLookup", "true").schema(COLUMNS)
        return stream.parquet(self.to)

    def have_read(self, batch: int) -> None:
        path = Path(self.to, BOOKMARKS, "reader-0.json")
        path.parent.mkdir(exist_ok=True)
        content = {"format": 1, "reader": "next", "read": batch, "digest": digest_of(Path(self.to, f"batch={batch}"))}
        path.write_text(json.dumps(content))


class Delta(OutputCase):
    kinds = ("iceberg", "delta")

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.place = self.to

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_table(rows, self.to)

    def table(self) -> DataFrame:
        return self.flow.spark.read.format("delta").load(self.to)

    def read(self) -> DataFrame:
        return self.flow.spark.readStream.format("delta").load(self.to)


class GuardedDelta(Delta):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.place = None
        flow.spark.sql(f"CREATE TABLE delta.`{self.to}` ({COLUMNS}) USING delta")

    def start(self, **options: Any) -> lws.TrackedQuery:
        self.output = DeltaOutput(self.to, "stage")
        return super().start(**options)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return self.output.write(batch, rows)


class Topic(OutputCase):
    kinds = ("kafka",)
    stored = (3, 4, 5)

    def __init__(self, flow: Flow, kafka: Any) -> None:
        super().__init__(flow)
        self.kafka, self.to = kafka, flow.folder.name
        self.client = {"kafka.bootstrap.servers": kafka.address}
        self.options = {"options": self.client, "slots": 2}
        self.root = flow.folder / "ck/lowwater/kafka" / self.to
        kafka.create(self.to, partitions=3)

    def fit(self, rows: DataFrame) -> DataFrame:
        return rows.select("key", sf.to_json(sf.struct("key", "t"), exact_times("json")).alias("value"))

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_kafka(self.fit(rows), self.to, options=self.client, slots=2)

    def table(self) -> DataFrame:
        texts = self.flow.spark.createDataFrame([(row.value.decode(),) for row in self.kafka.rows(self.to)], "v string")
        return texts.select(sf.from_json("v", COLUMNS).alias("r")).select("r.*")

    def left(self) -> list[int]:
        assert self.batches() == [*range(6)], "what is published stays"
        names = [path.name.removeprefix("batch=") for path in self.root.iterdir()] if self.root else []
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self) -> DataFrame:
        options = {"subscribe": self.to, "startingOffsets": "earliest", "lowwater.brokers": "1"}
        options["kafka.isolation.level"] = "read_committed"
        stream = self.flow.spark.readStream.format("kafka").options(**self.client, **options).load()
        return stream.select(sf.from_json(sf.col("value").cast("string"), COLUMNS).alias("r")).select("r.*")


class Toy(OutputCase):
    kinds = ("toy",)
    options: Mapping[str, Any] = {"keep": 4}
    stored = (2, 3, 4, 5)

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.root = Path(self.to)

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        return batch.write_to(rows, "toy", self.to)

    def table(self) -> DataFrame:
        rows = [row for path in Path(self.to).glob("*.json") for row in json.loads(path.read_text())["rows"]]
        millis = self.flow.spark.createDataFrame(rows, "key string, millis long")
        return millis.selectExpr("key", "timestamp_millis(millis) AS t")


class Table(OutputCase):
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


@pytest.fixture
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of kinds with one more line."""
    monkeypatch.setitem(outputs.KINDS, "toy", outputs.OutputKind("tests.spark.toy_out", "ToyOut"))


def case_of(request: pytest.FixtureRequest, flow: Flow) -> OutputCase:
    if request.param == "topic":
        return Topic(flow, request.getfixturevalue("kafka"))
    if request.param == "toy":
        request.getfixturevalue("_toys")
    kinds = {"folder": Folder, "Delta": Delta, "guarded Delta": GuardedDelta, "toy": Toy}
    return kinds[request.param](flow)


@pytest.fixture(params=["folder", "topic", "Delta", "toy"])
def kind(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[OutputCase]:
    place = case_of(request, Flow(spark, "127.0.0.1:1", tmp_path))
    yield place
    place.close()


@pytest.fixture(params=["folder", "topic", pytest.param("Delta", marks=pytest.mark.long)])
def marked(request: pytest.FixtureRequest, flow: Flow) -> OutputCase:
    return case_of(request, flow)


@pytest.fixture(params=["folder", "Delta", pytest.param("guarded Delta", marks=pytest.mark.long), "toy", "PostgreSQL"])
def output(request: pytest.FixtureRequest, flow: Flow) -> Iterator[OutputCase]:
    if request.param == "PostgreSQL":
        with Postgres() as server:
            table = Table(flow, server)
            yield table
            flow.stop()
            table.close()
    else:
        yield case_of(request, flow)


@pytest.mark.usefixtures("_toys")
def test_a_toy_is_the_output_of_a_driven_query(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    toy, driven = Toy(flow), lws.drive(flow.read(), inputs=["source"], event_time="t")
    hours = driven.groupBy(sf.window("t", "1 hour"), "key").count()
    rows = hours.select("key", sf.col("window.start").alias("t"), "count")
    flow.feed.put([row("a", 9, 10), row("b", 10, 10)])
    upstream.at(11)
    flow.start(toy.write, stream=rows, stamp=HOUR, ranges=2)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "both hours are closed")
    assert toy.keys() == ["a", "b"]
    with pytest.raises(Exception, match=r"which keeps times to 0:00:00\.001000 only"):
        flow.start(toy.write, checkpoint="other", name="fine").await_termination(60)
    flow.queries.clear()
