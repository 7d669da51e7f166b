"""Media between the queries of ``pipeline`` and ``streams``: files, topics of Kafka, Delta tables.

Place 0 is where records are brought in, and a stage reads the place before it. Each query by itself
writes with Spark's own sink, or in a function as Spark's guide has it. Each stage does the same, or
writes with what lowwater has for that.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    import lowwater_spark as lws
    from tests.kit.kafka import Kafka

SCHEMA: Final = "key string, t timestamp, v double"
PATIENCE: Final = 120.0

_A_STEP: Final = 1 << 23
"""Bytes that the records of a step need at most."""


Start = Callable[["DataFrame"], "DataStreamWriter"]

Made = Callable[["SparkSession", Path, int], "Between"]
"""Makes a kind of place for one pipeline, from its session, its directory and the records of a
step."""


class Between(ABC):
    """One kind of place. A benchmark makes one for each of its pipelines."""

    @abstractmethod
    def put(self, step: int, records: Sequence[str]) -> None:
        """Bring in the records of a step, JSON, so that they appear all at once."""

    @abstractmethod
    def read(self, spark: SparkSession, stage: int) -> DataFrame:
        """Return what a stage reads."""

    @abstractmethod
    def alone(self, frame: DataFrame, stage: int, start: Start) -> StreamingQuery:
        """Start an untracked query; ``start`` gets a frame's writer with checkpoint and trigger."""

    @abstractmethod
    def tracked(self, stage: int, declared: lws.Stage, frame: DataFrame, checkpoint: Path) -> lws.TrackedQuery:
        """Start a stage."""

    @abstractmethod
    def await_step(self, stage: int, step: int) -> float:
        """Return when an untracked query had written a whole step, on the performance counter."""

    @abstractmethod
    def out(self, spark: SparkSession, stage: int) -> DataFrame:
        """Return what a stage has written."""

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """End what looks for records."""


class Files(Between):
    """Files: written by Spark's file sink (``plain``), or by a function and ``batch.write``."""

    def __init__(self, folder: Path, *, plain: bool) -> None:
        self._folder = folder
        self._plain = plain
        self.path(0).mkdir(parents=True)

    def path(self, stage: int) -> Path:
        """Return the directory that a stage writes to."""
        return self._folder / f"out-{stage}"

    def put(self, step: int, records: Sequence[str]) -> None:
        """See Between."""
        beside = self._folder / f".{step}"
        beside.write_text("\n".join(records), encoding="utf-8")
        beside.rename(self.path(0) / f"{step:05}.json")

    def read(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        source, stream = self.path(stage - 1), spark.readStream.schema(SCHEMA)
        if stage == 1:
            return stream.json(str(source))
        source.mkdir(exist_ok=True)
        return stream.option("recursiveFileLookup", str(not self._plain).lower()).parquet(str(source))

    def alone(self, frame: DataFrame, stage: int, start: Start) -> StreamingQuery:
        """See Between."""
        path = self.path(stage)
        if self._plain:
            query = start(frame).format("parquet").start(str(path))
            await_path([path / "_spark_metadata"])
            return query
        return (
            start(frame).foreachBatch(lambda rows, number: rows.write.parquet(f"file://{path}/batch={number}")).start()
        )

    def tracked(self, stage: int, declared: lws.Stage, frame: DataFrame, checkpoint: Path) -> lws.TrackedQuery:
        """See Between."""
        path = self.path(stage)
        if self._plain:
            query = declared.start(frame, checkpoint=checkpoint, format="parquet", path=path)
            # Who reads it before its log has begun would take it for a directory of any files.
            await_path([path / "_spark_metadata"])
            return query
        return declared.foreach_batch(frame, lambda rows, batch: batch.write(rows, path), checkpoint=checkpoint)

    def await_step(self, stage: int, step: int) -> float:
        """See Between: each batch writes something new, by its number."""
        log = self.path(stage) / "_spark_metadata"
        plain = [log / f"{step}", log / f"{step}.compact"]
        return await_path(plain if self._plain else [self.path(stage) / f"batch={step}" / "_SUCCESS"])

    def out(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        return spark.read.option("recursiveFileLookup", "true").parquet(str(self.path(stage)))


class Topics(Between):
    """Topics of one partition, written by Spark's Kafka sink or by ``batch.write_kafka``.

    The untracked queries write by Spark's sink. ``batch.write_kafka`` writes each row once.
    """

    def __init__(self, folder: Path, kafka: Kafka, stages: int, rows: int, *, once: bool) -> None:
        self._kafka = kafka
        self._name = f"{folder.parent.name}-{folder.name}"
        self._rows = rows
        self._once = once
        for place in range(stages + 1):
            kafka.create(self._topic(place), max_message_bytes=str(_A_STEP))
        # The records of a step are one message to the broker: they are there all at once, or not.
        settings = {
            "linger.ms": 10_000,
            "batch.size": _A_STEP,
            "message.max.bytes": _A_STEP,
            "batch.num.messages": 1_000_000,
        }
        self._producer = Producer({"bootstrap.servers": kafka.address, "acks": "all", "log_level": 0, **settings})
        self._written = {"kafka.bootstrap.servers": kafka.address}
        self._ends = [_End(kafka.address, self._topic(stage)) for stage in range(1, stages + 1)]

    def _topic(self, place: int) -> str:
        return f"{self._name}-{place}"

    def put(self, step: int, records: Sequence[str]) -> None:
        """See Between."""
        for record in records:
            self._producer.produce(self._topic(0), record.encode(), partition=0)
        if unsent := self._producer.flush(PATIENCE):
            raise OSError(f"{unsent} records were not acknowledged by the broker")

    def read(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        return self._rows_of(spark.readStream.options(startingOffsets="earliest"), stage - 1)

    def _rows_of(self, reader: object, place: int) -> DataFrame:
        from pyspark.sql import functions as sf

        options = {
            "kafka.bootstrap.servers": self._kafka.address,
            "subscribe": self._topic(place),
            "lowwater.brokers": "1",
        }
        if self._once and place:
            options["kafka.isolation.level"] = "read_committed"
        rows: DataFrame = reader.format("kafka").options(**options).load()  # type: ignore[attr-defined]
        return rows.select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")

    def alone(self, frame: DataFrame, stage: int, start: Start) -> StreamingQuery:
        """See Between."""
        return start(as_value(frame)).format("kafka").options(topic=self._topic(stage), **self._written).start()

    def tracked(self, stage: int, declared: lws.Stage, frame: DataFrame, checkpoint: Path) -> lws.TrackedQuery:
        """See Between."""
        if self._once:
            topic = self._topic(stage)
            return declared.foreach_batch(
                frame,
                lambda rows, batch: batch.write_kafka(
                    as_value(rows).select("key", "value"), topic, options=self._written, slots=1
                ),
                checkpoint=checkpoint,
            )
        options: dict[str, Any] = {"topic": self._topic(stage), **self._written}
        return declared.start(as_value(frame), checkpoint=checkpoint, format="kafka", **options)

    def await_step(self, stage: int, step: int) -> float:
        """See Between."""
        return self._ends[stage - 1].wait((step + 1) * self._rows)

    def out(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        return self._rows_of(spark.read, stage)

    def close(self) -> None:
        """See Between."""
        for end in self._ends:
            end.close()


class _End:
    """Counts the rows of a topic as they come."""

    def __init__(self, broker: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": broker, "group.id": "benchmark", "fetch.wait.max.ms": 5, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._count = 0

    def wait(self, count: int) -> float:
        deadline = time.monotonic() + PATIENCE
        while self._count < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._count} rows of {count} came in {PATIENCE:g} s")
            for message in self._consumer.consume(10_000, 0.001):
                assert not message.error(), message.error()
                self._count += 1
        return time.perf_counter()

    def close(self) -> None:
        self._consumer.close()


class Tables(Between):
    """Delta tables, written by Delta's sink or by ``batch.write_table``."""

    def __init__(self, folder: Path, spark: SparkSession, stages: int, rows: int, *, once: bool) -> None:
        self._folder = folder
        self._spark = spark
        self._rows = rows
        self._once = once
        self._ends = [_Commits(self.path(stage)) for stage in range(stages + 1)]
        for place in range(stages + 1):
            spark.sql(f"CREATE TABLE delta.`{self.path(place)}` ({SCHEMA}) USING delta")

    def path(self, place: int) -> Path:
        """Return the table of a place."""
        return self._folder / f"table-{place}"

    def put(self, step: int, records: Sequence[str]) -> None:
        """See Between."""
        beside = self._folder / f"{step}.json"
        beside.write_text("\n".join(records), encoding="utf-8")
        self._spark.read.schema(SCHEMA).json(str(beside)).coalesce(1).write.format("delta").mode("append").save(
            str(self.path(0))
        )

    def read(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        return spark.readStream.format("delta").load(str(self.path(stage - 1)))

    def alone(self, frame: DataFrame, stage: int, start: Start) -> StreamingQuery:
        """See Between."""
        return start(frame).format("delta").start(str(self.path(stage)))

    def tracked(self, stage: int, declared: lws.Stage, frame: DataFrame, checkpoint: Path) -> lws.TrackedQuery:
        """See Between."""
        path = self.path(stage)
        if self._once:
            return declared.foreach_batch(
                frame, lambda rows, batch: batch.write_table(rows, path), checkpoint=checkpoint
            )
        return declared.start(frame, checkpoint=checkpoint, format="delta", path=path)

    def await_step(self, stage: int, step: int) -> float:
        """See Between."""
        return self._ends[stage].wait((step + 1) * self._rows)

    def out(self, spark: SparkSession, stage: int) -> DataFrame:
        """See Between."""
        return spark.read.format("delta").load(str(self.path(stage)))


class _Commits:
    """Counts the rows of a table by its log, commit by commit."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._next = 0
        self._count = 0

    def wait(self, count: int) -> float:
        while self._count < count:
            commit = self._log / f"{self._next:020}.json"
            await_path([commit])
            self._next += 1
            actions = map(json.loads, commit.read_text(encoding="utf-8").splitlines())
            added = (action["add"] for action in actions if "add" in action)
            self._count += sum(json.loads(entry["stats"])["numRecords"] for entry in added)
        return time.perf_counter()


def as_value(rows: DataFrame) -> DataFrame:
    """Return rows in the form of a topic.

    Spark's sink ignores the other columns, from which a stage reads its event time.
    """
    from pyspark.sql import functions as sf

    return rows.withColumn("value", sf.to_json(sf.struct("*")))


def await_path(paths: Sequence[Path]) -> float:
    """Wait until one of some paths exists; return that time on the performance counter, to 1 ms."""
    deadline = time.monotonic() + PATIENCE
    while not any(path.exists() for path in paths):
        if time.monotonic() > deadline:
            msg = f"{paths[0]} did not appear in {PATIENCE:g} s"
            raise RuntimeError(msg)
        time.sleep(0.001)
    return time.perf_counter()
