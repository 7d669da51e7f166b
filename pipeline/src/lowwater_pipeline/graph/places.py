"""Where rows stand between computations, and before and after all of them: a folder of files, a topic of Kafka, a Delta table.

One place is said once. Who writes it and who reads it are made of the same words.
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
    """Where rows stand.

    ``path`` is the one that it has said, or that is derived for it; ``schema`` its columns as DDL.
    """

    @property
    def schema(self) -> str | None:
        """The columns, if it says them itself."""
        ...

    @property
    def path(self) -> str | None:
        """Its own path, below the root of the pipeline if it is relative; None: it has none, or says none."""
        ...

    def told(self, path: str) -> str:
        """Return the place in few words."""
        ...

    def identity(self, path: str) -> object:
        """Return what is equal for two that are the same place: of one in a file system its path."""
        ...

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Make an output that is not there yet, so that it can be read before its first row."""
        ...

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """Return a streaming frame of it."""
        ...

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """Write the rows of a batch, once."""
        ...


@dataclass(frozen=True)
class Folder:
    """Files of one format in a folder: an output is written by ``batch.write``, in a sub-folder for each batch."""

    schema: str | None = None
    """The columns, as DDL. An output of a computation has its own."""
    path: str | None = None
    """A folder on a local or NFS file system, below the root if it is relative. Of an output by
    default ``outputs/COMPUTATION/OUTPUT``."""
    format: str = "parquet"
    keep: timedelta | None = None
    """Of an output: how long files stay at least that all its readers have read, see
    ``Batch.write``. By default for ever."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of Spark's source."""

    def told(self, path: str) -> str:
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
    """A topic of Kafka whose values are JSON objects.

    It must be there. An output is written by ``batch.write_kafka``.
    """

    topic: str
    servers: str
    """Of Kafka, ``HOST:PORT,...``."""
    brokers: int
    """How many brokers the cluster has, see ``lowwater.brokers``."""
    schema: str | None = None
    """The columns, as DDL. An output of a computation has its own."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of Kafka's client, as Spark names them (``kafka.security.protocol``)."""
    path: str | None = field(default=None, init=False)

    def told(self, path: str) -> str:
        """See Place."""
        return f"topic {self.topic}"

    def identity(self, path: str) -> object:
        """See Place."""
        return _topic(self.servers, self.topic)

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Do nothing: who makes a topic says how many partitions it has."""

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """See Place."""
        committed = {"kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
        options = {**committed, **self._client(), "lowwater.brokers": str(self.brokers), "subscribe": self.topic}
        return self.rows(spark.readStream.format("kafka").options(**options).load(), schema)

    @staticmethod
    def rows(messages: DataFrame, schema: str) -> DataFrame:
        """Return what messages say.

        Times may have a fraction of a second, of any length, or none, as who is not a computation
        writes them.
        """
        from pyspark.sql import functions as sf

        # Without a format: one with a fraction would make null of a time that has none.
        value = sf.from_json(sf.col("value").cast("string"), schema)
        return messages.select(value.alias("value")).select("value.*")

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """See Place."""
        from pyspark.sql import functions as sf

        from lowwater_spark.track.times import exact_times

        value = sf.to_json(sf.struct("*"), exact_times("json")).alias("value")
        batch.write_kafka(rows.select(value), self.topic, options=self._client())

    def _client(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.servers, **self.options}


@dataclass(frozen=True)
class Table:
    """A Delta table.

    An output is written by ``batch.write_table``, and the table made if it is not there.
    """

    path: str | None = None
    """Below the root if it is relative. Of an output by default ``outputs/COMPUTATION/OUTPUT``."""
    schema: str | None = None
    """The columns, as DDL, so that they are compared before anything starts; the table's own count.
    An output of a computation has its own."""

    def told(self, path: str) -> str:
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
    """What a function of the session returns: any source that a tracked stage may read.

    It is no output.
    """

    make: Callable[[SparkSession], DataFrame]
    schema: str | None = None
    """The columns, as DDL, so that they are compared before anything starts; the frame's own count.
    """
    path: str | None = field(default=None, init=False)

    def told(self, path: str) -> str:
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
        """Raises TypeError: a frame is read only. A pipeline refuses it before."""
        raise TypeError


@dataclass(frozen=True)
class Sent:
    """The topic of weak productions, which tasks write by themselves while their batch runs."""

    topic: str
    servers: str
    schema: str | None = field(default=None, init=False)
    path: str | None = field(default=None, init=False)

    def told(self, path: str) -> str:
        """See Place."""
        return f"topic {self.topic}, sent"

    def identity(self, path: str) -> object:
        """See Place."""
        return _topic(self.servers, self.topic)

    def prepare(self, spark: SparkSession, path: str, schema: str) -> None:
        """Do nothing: the start of the computation looks for the topic."""

    def read(self, spark: SparkSession, path: str, schema: str) -> DataFrame:
        """Raises TypeError: a pipeline asks for the frame by which it is read, and refuses it without."""
        raise TypeError

    def write(self, rows: DataFrame, batch: lws.Batch, path: str) -> None:
        """Raises TypeError: its tasks have written it."""
        raise TypeError


def _topic(servers: str, topic: str) -> object:
    return "topic", frozenset(servers.replace(" ", "").split(",")), topic
