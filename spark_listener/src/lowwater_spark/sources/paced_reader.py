"""Kafka at one pace, as Spark sees it: a Python Data Source with the columns of Spark's own source, which plans the end of each partition singly.

Imported only where PySpark is: by the driver, by Spark's driver-side Python process, and by the executors that read. Needs PySpark 4.2, as
:mod:`lowwater_spark.sources.control_reader` does, and the package confluent-kafka.
"""

from __future__ import annotations

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

from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.control import check_version
from lowwater_spark.sources.kafka import BROKERS, PACE, Partition, below, vector_of
from lowwater_spark.sources.kafka_client import client_settings, confluent, consumer_of
from lowwater_spark.sources.paced import FORMAT, LIMIT, Pace, paced

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["PacedKafka", "read_paced"]

logger = logging.getLogger("lowwater.spark")

_ISOLATION: Final = "kafka.isolation.level"
_TOPICS: Final = "subscribe"
_ANSWER: Final = 10.0
"""Seconds that Kafka has for one answer while a batch is planned; without one nothing is planned,
and it is asked again."""
_READ: Final = 60.0
"""Seconds without a row after which a task that reads fails, and is tried again."""
_ROWS: Final = 10_000
"""Of one Arrow batch."""


def read_paced(spark: SparkSession, options: Mapping[str, object], limit: int) -> DataFrame:
    """Return topics as a streaming frame.

    ``limit`` is in milliseconds. Raises ValueError and Unsupported for options that it does not
    take.
    """
    told = {name.lower(): str(value) for name, value in options.items()}
    if other := sorted(name for name in told if not name.startswith("kafka.") and name not in (_TOPICS, BROKERS)):
        msg = f"read_kafka takes {_TOPICS}, {BROKERS} and options of Kafka's client, as kafka.bootstrap.servers, and not {other[0]}: it reads from the beginning"
        raise ValueError(msg)
    if not told.get(_TOPICS, "").strip():
        msg = (
            'read_kafka needs to know what to read: {"subscribe": "flights"}, or several names with commas between them'
        )
        raise ValueError(msg)
    _settings(told)
    check_version(spark, "read_kafka")
    confluent()
    spark.dataSource.register(PacedKafka)
    folder = str(Path(_root().name, uuid.uuid4().hex))
    return spark.readStream.format(FORMAT).options(**told, **{PACE: folder, LIMIT: str(limit)}).load()


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    """Return where this process says how far partitions stand; it goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lowwater-pace-", ignore_cleanup_errors=True)


def _settings(options: Mapping[str, str]) -> dict[str, str]:
    clients = {name: value for name, value in options.items() if name.startswith("kafka.") and name != _ISOLATION}
    return client_settings(clients, "read_kafka")


class PacedKafka(DataSource):
    """The format :data:`~lowwater_spark.sources.paced.FORMAT`."""

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
    """Plans how far each partition is read, and reads it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = _settings(options)
        self._committed = options.get(_ISOLATION, "").lower() == "read_committed"
        self._topics = tuple(sorted({name.strip() for name in options[_TOPICS].split(",") if name.strip()}))
        self._limit = int(options[LIMIT])
        self._pace = Pace(options[PACE])
        self._admin: Any = None
        self._said = ""
        """Why nothing was planned last."""

    def __getstate__(self) -> dict[str, Any]:
        """Go to the executors without connections."""
        return {**self.__dict__, "_admin": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the beginning of each partition."""
        return _line(self._listed("earliest", self._partitions()))

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Return how far to read next, or ``start`` while there is nothing, it has to wait, or Kafka does not answer.

        Raises CheckpointMismatch when a partition ends below where it was read to.
        """
        before = vector_of(json.dumps(start))
        try:
            places = self._partitions()
            latest = self._listed("latest", places)
            if below(latest, before):
                self._admin = None  # one that has only just lost a partition to another leader may have answered
                latest = self._listed("latest", places)
                if cut := below(latest, before):
                    raise CheckpointMismatch(_CUT.format(cut=cut))
            if new := [place for place in latest if place not in before]:
                before.update(self._listed("earliest", new))
            known = {place: end for place, end in latest.items() if place in before}
            told, idle = self._pace.told()
            fresh = [place for place, end in known.items() if end > before[place] and str(place) not in told]
            standing = {
                place: told[str(place)] // 1000
                for place, end in known.items()
                if str(place) in told and (idle or end > before[place])
            }
            standing |= self._next_times({place: before[place] for place in fresh})
            after = paced(before, known, standing, self._limit, lambda time: self._listed(time, places), fresh)
            return _line(after)
        except (OSError, confluent().KafkaException) as failure:
            if str(failure) != self._said:
                self._said = str(failure)
                logger.warning("nothing more is planned of %s for now: %s", ", ".join(self._topics), failure)
            return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the rows to read, one task for each partition that has any."""
        before, after = vector_of(json.dumps(start)), vector_of(json.dumps(end))
        spans = [(place, before.get(place, 0), to) for place, to in after.items()]
        return [_Part(place.topic, place.number, begin, to) for place, begin, to in spans if begin < to]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one partition."""
        assert isinstance(partition, _Part)
        consumer = self._consumer({Partition(partition.topic, partition.number): partition.start})
        try:
            done = False
            while not done:
                first = consumer.poll(_READ)
                found = [] if first is None else [first, *consumer.consume(_ROWS, timeout=0)]
                rows = [each for each in found if each.error() is None and each.offset() < partition.end]
                if rows:
                    yield _table(rows)
                done = any(_reaches(each, partition.end) for each in found)
                if not found:
                    msg = f"partition {partition.number} of {partition.topic} gives no rows from {partition.start} to {partition.end}"
                    raise OSError(msg)
        finally:
            consumer.close()

    def _next_times(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the times of the next rows to be read, milliseconds.

        Raises OSError when Kafka does not give them.
        """
        times: dict[Partition, int] = {}
        left = {*offsets}
        if not left:
            return times
        consumer = self._consumer(offsets)
        try:
            while left:
                found = consumer.poll(_ANSWER)
                if found is None:
                    msg = "Kafka does not give the next rows"
                    raise OSError(msg)
                place = Partition(found.topic(), found.partition())
                if place in left and found.error() is None:
                    times[place] = found.timestamp()[1]
                left.discard(place)
        finally:
            consumer.close()
        return times

    def _consumer(self, offsets: Mapping[Partition, int]) -> Any:
        settings = {**self._settings, "auto.offset.reset": "error"}
        consumer = consumer_of(settings, committed=self._committed)
        place = confluent().TopicPartition
        consumer.assign([place(each.topic, each.number, offset) for each, offset in offsets.items()])
        return consumer

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = confluent().admin.AdminClient(self._settings)
        return self._admin

    def _partitions(self) -> list[Partition]:
        """Return all partitions of the topics. Raises OSError."""
        found: list[Partition] = []
        for topic in self._topics:
            told = self._client().list_topics(topic, timeout=_ANSWER).topics[topic]
            if told.error is not None:
                msg = f"Kafka does not tell of the topic {topic}: {told.error}"
                raise OSError(msg)
            found += [Partition(topic, number) for number in sorted(told.partitions)]
        return found

    def _listed(self, which: str | int, places: Sequence[Partition]) -> dict[Partition, int]:
        """Return an offset of each partition: the earliest, the latest, or of the first row at or after a time in milliseconds. Raises OSError.

        Without an exception the client says of a partition without a leader that its offset is negative.
        """
        library = confluent()
        spec = library.admin.OffsetSpec
        asked = spec.for_timestamp(which) if isinstance(which, int) else getattr(spec, which)()
        level = library.IsolationLevel.READ_COMMITTED if self._committed else library.IsolationLevel.READ_UNCOMMITTED
        wanted = {library.TopicPartition(place.topic, place.number): asked for place in places}
        answers = self._client().list_offsets(wanted, isolation_level=level, request_timeout=_ANSWER)
        found = {}
        for place, answer in answers.items():
            offset = answer.result(_ANSWER).offset
            if offset >= 0:
                found[Partition(place.topic, place.partition)] = offset
            elif not (isinstance(which, int) and offset == _NO_ROW):
                msg = f"nobody tells the offsets of partition {place.partition} of {place.topic}"
                raise OSError(msg)
        return found


_CUT: Final = (
    "the log of a topic was cut off, or the topic was made anew, since it was read: {cut}. Rows below where the query stands would never be read. Start from a new checkpoint, with "
    "adopt=True."
)

_NO_ROW: Final = -1
"""The offset of the first row at or after a time when there is none."""


def _line(vector: Mapping[Partition, int]) -> dict[str, Any]:
    """Return a vector as Spark's own source logs it."""
    line: dict[str, dict[str, int]] = {}
    for place, offset in sorted(vector.items()):
        line.setdefault(place.topic, {})[str(place.number)] = offset
    return line


def _reaches(message: Any, end: int) -> bool:
    """Return whether what came says that all rows before ``end`` were given.

    Raises KafkaException for another error.
    """
    error = message.error()
    if error is not None and error.code() != confluent().KafkaError._PARTITION_EOF:
        raise confluent().KafkaException(error)
    # A row's own offset is the last one before the next; the end that is told is the next one.
    return bool(message.offset() + (1 if error is None else 0) >= end)


def _table(rows: Sequence[Any]) -> pa.RecordBatch:
    """Return messages as an Arrow batch."""
    import pyarrow as pa

    stamps = [each.timestamp() for each in rows]
    columns = [
        pa.array([each.key() for each in rows], pa.binary()),
        pa.array([each.value() for each in rows], pa.binary()),
        pa.array([each.topic() for each in rows], pa.string()),
        pa.array([each.partition() for each in rows], pa.int32()),
        pa.array([each.offset() for each in rows], pa.int64()),
        pa.array([time * 1000 for _, time in stamps], pa.int64()).cast(pa.timestamp("us", "UTC")),
        # Spark counts from 0 what the client library counts from 1.
        pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(
        columns, names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    )
