"""Kafka at one pace as a Python Data Source, which plans the end of each partition by itself.

Its columns are those of Spark's own source. This module needs PySpark 4.2 and the package
confluent-kafka. Only the driver, Spark's driver-side Python process and the executors that read
import it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Partition
from lowwater_spark.sources.control import passes_offset
from lowwater_spark.sources.kafka.client import client_settings, confluent, consumer_of
from lowwater_spark.sources.kafka.paced import FORMAT, LIMIT, PACE, Pace, paced
from lowwater_spark.sources.kafka.source import BROKERS, below, vector_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["PacedKafka", "read_paced"]

logger = logging.getLogger("lowwater.spark")

_ISOLATION: Final = "kafka.isolation.level"
_TOPICS: Final = "subscribe"
_ANSWER: Final = 10.0
"""Seconds in which Kafka must answer while a batch is planned. Without an answer the plan stays as
it is, and Spark asks again."""
_READ: Final = 60.0
"""Seconds without a row after which a reading task fails, and Spark tries it again."""
_ROWS: Final = 10_000
"""Greatest number of rows in one Arrow batch."""


def read_paced(spark: SparkSession, options: Mapping[str, object], limit: int) -> DataFrame:
    """Return topics as a streaming frame.

    ``limit`` is in milliseconds. Raises ValueError and Unsupported for options that the source does
    not take.
    """
    lower = {name.lower(): str(value) for name, value in options.items()}
    if other := sorted(name for name in lower if not name.startswith("kafka.") and name not in (_TOPICS, BROKERS)):
        msg = (
            f"read_kafka takes {_TOPICS}, {BROKERS} and options of Kafka's client, as kafka.bootstrap.servers, and not {other[0]}: remove it. read_kafka reads "
            "from the beginning"
        )
        raise ValueError(msg)
    if not lower.get(_TOPICS, "").strip():
        msg = 'read_kafka needs the topics to read: {"subscribe": "flights"}, or several names with commas between them'
        raise ValueError(msg)
    _settings(lower)
    if not passes_offset(spark):
        raise Unsupported(
            f"read_kafka on Spark {spark.version}",
            "Spark passes a query's last offset to a Python data source only since 4.2 (SPARK-55304); before, the source could go back after a restart",
            "Use Spark 4.2 or newer, or read the topics by Spark's own source.",
        )
    confluent()
    spark.dataSource.register(PacedKafka)
    folder = str(Path(_root().name, uuid.uuid4().hex))
    return spark.readStream.format(FORMAT).options(**lower, **{PACE: folder, LIMIT: str(limit)}).load()


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    """Return the directory of this process's :class:`Pace` files, deleted at the process's end."""
    return tempfile.TemporaryDirectory(prefix="lowwater-pace-", ignore_cleanup_errors=True)


def _settings(options: Mapping[str, str]) -> dict[str, str]:
    clients = {name: value for name, value in options.items() if name.startswith("kafka.") and name != _ISOLATION}
    return client_settings(clients, "read_kafka")


class PacedKafka(DataSource):
    """The format :data:`~lowwater_spark.sources.kafka.paced.FORMAT`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of Spark's own source."""
        return (
            "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        """Return the reader."""
        return PacedReader({name.lower(): value for name, value in self.options.items()})


@dataclass
class _Part(InputPartition):
    """Rows of one partition."""

    topic: str
    number: int
    start: int
    end: int


class PacedReader(DataSourceStreamReader):
    """Plans the end up to which each partition is read, and reads the rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = _settings(options)
        self._committed = options.get(_ISOLATION, "").lower() == "read_committed"
        self._topics = tuple(sorted({name.strip() for name in options[_TOPICS].split(",") if name.strip()}))
        self._limit = int(options[LIMIT])
        self._pace = Pace(options[PACE])
        self._admin: Any = None
        self._warned = ""
        """Last logged reason why nothing was planned."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without connections."""
        return {**self.__dict__, "_admin": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the beginning of each partition."""
        return _line(self._listed("earliest", self._partitions()))

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Return the offsets up to which the next batch reads; ``start`` while it can read nothing.

        It can read nothing without new rows, while the limit holds, and when Kafka does not answer.
        Raises CheckpointMismatch when a partition ends below the offset that was read.
        """
        before = vector_of(json.dumps(start))
        try:
            places = self._partitions()
            latest = self._listed("latest", places)
            if below(latest, before):
                # The answer may come from a broker that has just lost the partition to another
                # leader, and not show lost rows. A new client finds the present leader.
                self._admin = None
                latest = self._listed("latest", places)
                if cut := below(latest, before):
                    raise CheckpointMismatch(_CUT.format(cut=cut))
            if new := [place for place in latest if place not in before]:
                before.update(self._listed("earliest", new))
            ends = {place: end for place, end in latest.items() if place in before}
            times, idle = self._pace.told()
            fresh = [place for place, end in ends.items() if end > before[place] and str(place) not in times]
            standing = {
                place: times[str(place)] // 1000
                for place, end in ends.items()
                if str(place) in times and (idle or end > before[place])
            }
            standing |= self._next_times({place: before[place] for place in fresh})
            after = paced(before, ends, standing, self._limit, lambda time: self._listed(time, places), fresh)
            return _line(after)
        except (OSError, confluent().KafkaException) as failure:
            if str(failure) != self._warned:
                self._warned = str(failure)
                logger.warning("the query plans no more rows of %s for now: %s", ", ".join(self._topics), failure)
            return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the rows to read, one task for each partition that has any."""
        before, after = vector_of(json.dumps(start)), vector_of(json.dumps(end))
        spans = [(place, before.get(place, 0), to) for place, to in after.items()]
        return [_Part(place.topic, place.number, begin, to) for place, begin, to in spans if begin < to]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition as Arrow batches.

        Raises OSError when Kafka gives no row for :data:`_READ` seconds.
        """
        assert isinstance(partition, _Part)
        with self._consumer({Partition(partition.topic, partition.number): partition.start}) as consumer:
            done = False
            while not done:
                first = consumer.poll(_READ)
                messages = [] if first is None else [first, *consumer.consume(_ROWS, timeout=0)]
                rows = [message for message in messages if message.error() is None and message.offset() < partition.end]
                if rows:
                    yield _table(rows)
                done = any(_reaches(message, partition.end) for message in messages)
                if not messages:
                    msg = f"partition {partition.number} of {partition.topic} gives no rows from {partition.start} to {partition.end}"
                    raise OSError(msg)

    def _next_times(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the time of the row at each offset, milliseconds.

        Raises OSError when Kafka does not give one.
        """
        times: dict[Partition, int] = {}
        pending = {*offsets}
        if not pending:
            return times
        with self._consumer(offsets) as consumer:
            while pending:
                message = consumer.poll(_ANSWER)
                if message is None:
                    msg = f"Kafka does not give the next row of {min(pending)}"
                    raise OSError(msg)
                place = Partition(message.topic(), message.partition())
                if place in pending and message.error() is None:
                    times[place] = message.timestamp()[1]
                pending.discard(place)
        return times

    @contextlib.contextmanager
    def _consumer(self, offsets: Mapping[Partition, int]) -> Iterator[Any]:
        settings = {**self._settings, "auto.offset.reset": "error"}
        consumer = consumer_of(settings, committed=self._committed)
        assignment = confluent().TopicPartition
        with contextlib.closing(consumer):
            consumer.assign([assignment(place.topic, place.number, offset) for place, offset in offsets.items()])
            yield consumer

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = confluent().admin.AdminClient(self._settings)
        return self._admin

    def _partitions(self) -> list[Partition]:
        """Return all partitions of the topics. Raises OSError."""
        partitions: list[Partition] = []
        for topic in self._topics:
            metadata = self._client().list_topics(topic, timeout=_ANSWER).topics[topic]
            if metadata.error is not None:
                msg = f"Kafka does not describe the topic {topic}: {metadata.error}"
                raise OSError(msg)
            partitions += [Partition(topic, number) for number in sorted(metadata.partitions)]
        return partitions

    def _listed(self, which: str | int, places: Sequence[Partition]) -> dict[Partition, int]:
        """Return an offset of each partition.

        ``which`` is ``earliest``, ``latest``, or a time in milliseconds, for the first row at or
        after it. Raises OSError, also for a partition without a leader: the client returns a
        negative offset for that, and raises nothing.
        """
        library = confluent()
        spec = library.admin.OffsetSpec
        query = spec.for_timestamp(which) if isinstance(which, int) else getattr(spec, which)()
        level = library.IsolationLevel.READ_COMMITTED if self._committed else library.IsolationLevel.READ_UNCOMMITTED
        queries = {library.TopicPartition(place.topic, place.number): query for place in places}
        answers = self._client().list_offsets(queries, isolation_level=level, request_timeout=_ANSWER)
        offsets = {}
        for place, answer in answers.items():
            offset = answer.result(_ANSWER).offset
            if offset >= 0:
                offsets[Partition(place.topic, place.partition)] = offset
            elif not (isinstance(which, int) and offset == _NO_ROW):
                msg = f"no broker gives the offsets of partition {place.partition} of {place.topic}"
                raise OSError(msg)
        return offsets


_CUT: Final = (
    "the log of a topic was cut off, or the topic was created again, since it was read: {cut}. The query would never read new rows below its offset. Start from "
    "a new checkpoint, with adopt=True."
)

_NO_ROW: Final = -1
"""Offset in Kafka's answer when no row is at or after a time."""


def _line(vector: Mapping[Partition, int]) -> dict[str, Any]:
    """Return a vector as Spark's own source logs it."""
    line: dict[str, dict[str, int]] = {}
    for place, offset in sorted(vector.items()):
        line.setdefault(place.topic, {})[str(place.number)] = offset
    return line


def _reaches(message: Any, end: int) -> bool:
    """Return whether a message shows that all rows before ``end`` have come.

    Raises KafkaException for a message with an error other than the partition's end.
    """
    error = message.error()
    if error is not None and error.code() != confluent().KafkaError._PARTITION_EOF:
        raise confluent().KafkaException(error)
    # The message of a row has that row's offset. The message for the partition's end has the offset
    # of the next row, which is not written yet.
    return bool(message.offset() + (1 if error is None else 0) >= end)


def _table(rows: Sequence[Any]) -> pa.RecordBatch:
    """Return messages as an Arrow batch."""
    import pyarrow as pa

    stamps = [row.timestamp() for row in rows]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([row.key() for row in rows], pa.binary()),
            "value": pa.array([row.value() for row in rows], pa.binary()),
            "topic": pa.array([row.topic() for row in rows], pa.string()),
            "partition": pa.array([row.partition() for row in rows], pa.int32()),
            "offset": pa.array([row.offset() for row in rows], pa.int64()),
            "timestamp": pa.array([time * 1000 for _, time in stamps], pa.int64()).cast(pa.timestamp("us", "UTC")),
            # CreateTime, the first type of a timestamp, is 0 in Spark and 1 in the client library.
            "timestampType": pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
        }
    )
