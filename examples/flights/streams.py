"""The demo over streams: a Kafka topic as the feed, and Delta tables and a topic as outputs.

    topic feed -> flights (injector) -> table flights -> enriched -> topic enriched -> hourly ->
    table hourly

The jobs are those of :mod:`examples.flights.pipeline`; only where their rows come from and go to
differs. The broker is a real one of this machine, and goes with the demo.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from pyspark.sql import functions as sf

from examples.flights.data import moment
from examples.flights.pipeline import DDL, Folders
from examples.flights.plain import ENRICHED, FLIGHTS, HOURLY
from examples.flights.replay import FEED_DDL, FEED_SCHEMA, Beat
from scripts.jars import jars
from tests.kit import delta
from tests.kit.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lowwater_spark import Batch

FEED: Final = "feed"
"""The topic of the feed. It has one partition: a beat says that all before it is there, and order
is kept within a partition alone."""

_TIME_FORMAT: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Without it times would have milliseconds, and a time would come back as an older one."""

SESSION: Final[Mapping[str, str]] = {
    "spark.driver.extraClassPath": os.pathsep.join(
        str(jar) for connector in ("kafka", "delta") for jar in jars(connector)
    ),
    **delta.SETTINGS,
}

_HANDED_OVER: Final = {"kafka.isolation.level": "read_committed", "lowwater.brokers": "1", "lowwater.head": "marks"}
_ACKNOWLEDGED_WITHIN: Final = 60.0
_TIMES: Final = frozenset(field.name for field in FEED_SCHEMA if str(field.type).startswith("timestamp"))


@dataclass(frozen=True, slots=True)
class Streams(Folders):
    """Where a run over streams keeps its rows."""

    broker: str
    """HOST:PORT."""

    @classmethod
    @contextlib.contextmanager
    def over(cls, root: Path) -> Iterator[Streams]:
        """Give the streams of a broker that is started for them, with their topics."""
        with Kafka(root / "kafka") as kafka:
            for topic in (FEED, ENRICHED):
                kafka.create(topic)
            yield cls(root, kafka.address)

    @property
    def replayed(self) -> list[str]:
        """See Folders."""
        return ["--kafka", self.broker]

    def make(self, spark: SparkSession) -> None:
        """See Folders."""
        self.feed.mkdir(parents=True, exist_ok=True)
        for job in (FLIGHTS, HOURLY):
            spark.sql(f"CREATE TABLE delta.`{self.output(job)}` ({DDL[job]}) USING delta")

    def read_feed(self, spark: SparkSession) -> DataFrame:
        """See Folders."""
        return self._topic(spark, FEED, FEED_DDL)

    def read(self, spark: SparkSession, job: str) -> DataFrame:
        """See Folders."""
        if job != ENRICHED:
            return spark.readStream.format("delta").load(str(self.output(job)))
        # What a stage has published is read without what it had begun and given up, and nobody else
        # writes there.
        return self._topic(spark, job, DDL[job], **_HANDED_OVER)

    def write(self, batch: Batch, rows: DataFrame, job: str) -> None:
        """See Folders."""
        if job != ENRICHED:
            batch.write_table(rows, self.output(job))
            return
        values = rows.select(sf.col("tailnum").alias("key"), sf.to_json(sf.struct("*"), _TIME_FORMAT).alias("value"))
        batch.write_kafka(values, job, options={"kafka.bootstrap.servers": self.broker}, slots=1)

    def result(self, spark: SparkSession, job: str) -> DataFrame:
        """See Folders."""
        return spark.read.format("delta").load(str(self.output(job)))

    def _topic(self, spark: SparkSession, name: str, schema: str, **options: str) -> DataFrame:
        settings = {"kafka.bootstrap.servers": self.broker, "subscribe": name, "startingOffsets": "earliest", **options}
        rows = spark.readStream.format("kafka").options(**settings).load()
        return rows.select(sf.from_json(sf.col("value").cast("string"), schema).alias("row")).select("row.*")


class Producing:
    """Writes beats to the topic of the feed."""

    def __init__(self, broker: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": broker, "log_level": 0, "acks": "all", "enable.idempotence": True}
        )

    def put(self, folder: Path, beat: Beat) -> None:
        """Write the rows of a beat; then its file, which is empty: it tells the replay clock."""
        for row in beat.rows:
            self._producer.produce(FEED, json.dumps(_as_json(row._asdict())).encode())
        if unsent := self._producer.flush(_ACKNOWLEDGED_WITHIN):
            raise OSError(f"{unsent} rows of beat {beat.number} were not acknowledged by the broker")
        (folder / beat.file_name).touch()


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times as Spark reads them."""
    return {
        name: moment(value).isoformat() if name in _TIMES and value is not None else value
        for name, value in row.items()
    }
