"""Places of rows between computations and at both ends: a folder of files, a Kafka topic, a table.

A place is declared once; its writer and its readers are derived from that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import lowwater_spark as lws

__all__ = ["Folder", "Frame", "Place", "Sent", "Table", "Topic"]


class Place(Protocol):
    """A place of rows. ``path`` in its methods is the declared path, or one that is derived."""

    @property
    def schema(self) -> str | None:
        """Columns as DDL, if the place declares them."""
        ...

    @property
    def path(self) -> str | None:
        """Declared path, below the pipeline's root if relative; None without one."""
        ...

    def describe(self, path: str) -> str:
        """Return the place in a few words."""
        ...

    def identity(self, path: str) -> object:
        """Return a value that is equal for equal places: in a file system the path."""
        ...

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Create an output that is missing, so that readers can start before its first row."""
        ...

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """Return a streaming frame of the rows."""
        ...

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """Write the rows of a batch, once."""
        ...


@dataclass(frozen=True)
class Folder:
    """Files of one format in a folder; ``batch.write`` writes a sub-folder for each batch."""

    schema: str | None = None
    """Columns as DDL. Leave it out for a computation's output, which declares its own."""
    path: str | None = None
    """Folder on a local or NFS file system, below the root if relative. Default for an output:
    ``outputs/COMPUTATION/OUTPUT``."""
    format: str = "parquet"
    keep: timedelta | None = None
    """Shortest time for which an output's files stay after all readers have read them, see
    ``Batch.write``. None keeps them for ever."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options of Spark's source."""

    def describe(self, path: str) -> str:
        """See Place."""
        return f"{self.format} {path}"

    def identity(self, path: str) -> object:
        """See Place."""
        return Path(os.path.normpath(path))

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """See Place."""
        Path(path).mkdir(parents=True, exist_ok=True)

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """See Place."""
        options = {"recursiveFileLookup": "true", **self.options}
        return spark.readStream.schema(schema).options(**options).format(self.format).load(path)

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """See Place."""
        batch.write(rows, path, file_format=self.format, keep=self.keep)


@dataclass(frozen=True)
class Topic:
    """An existing topic of Kafka with JSON objects as values; ``batch.write_kafka`` writes it."""

    topic: str
    servers: str
    """Addresses of Kafka's brokers, ``HOST:PORT,...``."""
    brokers: int
    """Number of brokers of the cluster, see ``lowwater.brokers``."""
    schema: str | None = None
    """Columns as DDL. Leave it out for a computation's output, which declares its own."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options of Kafka's client, named as in Spark (``kafka.security.protocol``)."""
    path: str | None = field(default=None, init=False)

    def describe(self, path: str) -> str:
        """See Place."""
        return f"topic {self.topic}"

    def identity(self, path: str) -> object:
        """See Place."""
        return _topic(self.servers, self.topic)

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Do nothing: only a user can choose a topic's number of partitions."""

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """See Place."""
        committed = {"kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
        options = {**committed, **self._client(), "lowwater.brokers": str(self.brokers), "subscribe": self.topic}
        return self.rows(spark.readStream.format("kafka").options(**options).load(), schema)

    @staticmethod
    def rows(messages: DataFrame, schema: str) -> DataFrame:
        """Return the rows of messages.

        Times may have a fraction of a second, of any length, or none, as other programs write them.
        """
        from pyspark.sql import functions as sf

        # No format is given: one with a fraction would turn a time without it into null.
        value = sf.from_json(sf.col("value").cast("string"), schema)
        return messages.select(value.alias("value")).select("value.*")

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """See Place."""
        from pyspark.sql import functions as sf

        from lowwater_spark.track.output.times import exact_times

        value = sf.to_json(sf.struct("*"), exact_times("json")).alias("value")
        batch.write_kafka(rows.select(value), self.topic, options=self._client())

    def _client(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.servers, **self.options}


@dataclass(frozen=True)
class Table:
    """A Delta table; ``batch.write_table`` writes an output, and creates a missing table."""

    path: str | None = None
    """Path, below the root if relative. Default for an output: ``outputs/COMPUTATION/OUTPUT``."""
    schema: str | None = None
    """Columns as DDL, to compare before anything starts; the table's own columns count. Leave it
    out for a computation's output, which declares its own."""

    def describe(self, path: str) -> str:
        """See Place."""
        return f"delta {path}"

    def identity(self, path: str) -> object:
        """See Place."""
        return Path(os.path.normpath(path))

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """See Place."""
        spark.createDataFrame([], schema).write.format("delta").mode("ignore").save(path)

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """See Place."""
        return spark.readStream.format("delta").load(path)

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """See Place."""
        batch.write_table(rows, path)


@dataclass(frozen=True)
class Frame:
    """A streaming frame made by a function: any source of a tracked stage, but no output."""

    make: Callable[[SparkSession], DataFrame]
    schema: str | None = None
    """Columns as DDL, to compare before anything starts; the frame's own columns count."""
    path: str | None = field(default=None, init=False)

    def describe(self, path: str) -> str:
        """See Place."""
        return f"{getattr(self.make, '__name__', 'a frame').replace('<lambda>', 'a frame')}"

    def identity(self, path: str) -> object:
        """See Place."""
        return "frame", id(self)

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Do nothing."""

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """See Place."""
        return self.make(spark)

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> Any:
        """Raise TypeError: a frame is read only. A pipeline refuses it before."""
        raise TypeError


@dataclass(frozen=True)
class Sent:
    """The topic of weak productions, which tasks write while their batch runs."""

    topic: str
    servers: str
    schema: str | None = field(default=None, init=False)
    path: str | None = field(default=None, init=False)

    def describe(self, path: str) -> str:
        """See Place."""
        return f"topic {self.topic}, sent"

    def identity(self, path: str) -> object:
        """See Place."""
        return _topic(self.servers, self.topic)

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Do nothing: the start of the computation checks the topic."""

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """Raise TypeError: a pipeline demands a Frame for reading it, and refuses it without."""
        raise TypeError

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """Raise TypeError: the tasks have written it."""
        raise TypeError


def _topic(servers: str, topic: str) -> object:
    return "topic", frozenset(servers.replace(" ", "").split(",")), topic
