"""The pipeline of a record's whole life, that ends at a named point of it: a topic of at-least-once senders, deduplication, a function of the user's, a topic.

Spark's Python workers import it as well, so it imports little.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

import lowwater
from lowwater_pipeline.dedup import stage as dedup_stage
from lowwater_pipeline.dedup.stage import Deduplicated, Deduplication, IdUpdate
from lowwater_spark.track.output import kafka_slot
from lowwater_spark.track.output.kafka_slot import Publishing, publish_slots

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    import lowwater_spark as lws
    from lowwater_spark.track.segments import NextSegments, Segments

SLOTS: Final = 2
SLACK: Final = timedelta(minutes=3)

POINTS: Final = {
    "begun": "before its id is looked up",
    "sifted": "when its id is looked up, and nothing is written",
    "state": "when its id is durable, and nothing else of it",
    "function begun": "before the function has seen it",
    "function done": "when the function has answered it",
    "rows staged": "when the answer is staged",
    "delivery begun": "before its delivery",
    "delivery read": "when what was delivered before is known",
    "delivery written": "when the answer is on its way, in an open transaction",
    "delivery marked": "when the mark of its batch is in the transaction as well, and Kafka has both",
    "delivery published": "when the transaction is committed",
    "rows published": "when all transactions of its batch are committed",
    "written": "when the late and the undecidable ones have their places",
    "prepared": "when the authority knows what the commit will say",
    "committed": "when Spark has committed its batch",
    "told": "when the authority has counted it, before it is acknowledged",
    "acknowledged": "when it is acknowledged",
}
"""Where a life can be cut off, in its order: before and after each of dedup check, function, delivery, commit and acknowledgement."""

Dedup = Callable[["lws.Batch", "DataFrame"], Deduplicated]


@dataclass(frozen=True, slots=True)
class Doom:
    """A file that names the point at which a life ends. In the driver, in its workers, and in the tasks that write into Kafka."""

    file: Path

    def plan(self, point: str) -> None:
        beside = self.file.with_suffix(".new")
        beside.write_text(point)
        beside.replace(self.file)

    def forgive(self) -> None:
        """End nothing."""
        self.file.unlink(missing_ok=True)

    @property
    def group(self) -> Path:
        return self.file.with_suffix(".group")

    def __call__(self, point: str) -> None:
        try:
            planned = self.file.read_text()
        except FileNotFoundError:
            return
        if planned != point:
            return
        if self.group.exists():
            self.file.unlink(missing_ok=True)
            os.killpg(int(self.group.read_text()), signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)  # of a worker: it and all others are a group of their own
        # Every attempt of a task fails, so the query does.
        raise Killed(point)

    def publish(self, job: Publishing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.file.exists():
            while kafka_slot._writers:
                kafka_slot._writers.popitem()[1].discard()
        return publish_slots(replace(job, probe=self._delivering), batches)

    def _delivering(self, step: str, _: int, slot: int) -> None:
        if slot == SLOTS - 1:  # the others may be through
            self(f"delivery {step}")

    def work(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The user's function: it answers each record, with something that is never the same twice."""
        for frame in frames:
            if len(frame):
                self("function begun")
            squares = frame.assign(square=frame["n"] * frame["n"], nonce=[uuid.uuid4().hex for _ in range(len(frame))])
            yield squares[["id", "square", "nonce"]]
            if len(frame):
                self("function done")


class Killed(RuntimeError):
    """Stands for the end of a driver."""


@dataclass(frozen=True, slots=True)
class Looking:
    """The update of the ids, that may end when it has looked them up."""

    update: IdUpdate
    doom: Doom

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table, None, list[Any]]:
        done = self.update.update_segments(before, rows, low)
        if rows.num_rows:
            self.doom("sifted")
        return done


@contextmanager
def doomed(doom: Doom) -> Iterator[None]:
    """Have the pipelines that run meanwhile end at what is planned."""
    with (
        patch("lowwater_spark.track.output.kafka_out.publish_slots", doom.publish),
        patch.object(dedup_stage, "IdUpdate", lambda *arguments: Looking(IdUpdate(*arguments), doom)),
    ):
        yield


class Place(NamedTuple):
    address: str
    folder: str
    brokers: str
    incoming: str
    outgoing: str

    @property
    def acknowledged(self) -> Path:
        """The acknowledgements to the senders: a line for each batch, with the first offset of each partition that is not acknowledged."""
        return Path(self.folder, "acknowledged")


def start(spark: SparkSession, place: Place, doom: Doom, dedup: Dedup | None = None) -> lws.TrackedQuery:
    from pyspark.sql import functions as sf

    import lowwater_spark as lws
    from lowwater_spark.checkpoint.log import CheckpointLog
    from lowwater_spark.sources.kafka.source import vector_of

    base = Path(place.folder)
    log = CheckpointLog(base / "ck")
    sift = dedup or Deduplication("id", "t", slack=SLACK).of

    def planned(number: int) -> dict[str, int]:
        plan = log.plan(number)
        return {} if plan is None else {str(reading.number): to for reading, to in vector_of(plan.lines[0]).items()}

    def acknowledge(number: int) -> None:
        with place.acknowledged.open("a") as file:
            file.write(json.dumps(planned(number)) + "\n")

    def probe(step: str, number: int) -> None:
        if planned(number) == planned(number - 1):
            return  # it has no records
        if step == "rows published":
            doom("delivery published")  # the next attempt of its task has found it done
        doom(step)
        if step == "told":
            acknowledge(number)
            doom("acknowledged")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        done = sift(batch, rows)
        worked = done.main.mapInPandas(doom.work, "id string, square long, nonce string")
        worked = worked.repartition(3, "nonce")  # so where a row goes is another place each time that it is made
        out = worked.select(sf.col("id").alias("key"), sf.to_json(sf.struct("id", "square", "nonce")).alias("value"))
        batch.write_kafka(out, place.outgoing, options={"kafka.bootstrap.servers": place.brokers}, slots=SLOTS)
        batch.write(done.late, base / "late")
        batch.write(done.undecidable, base / "undecidable")

    read = {
        "kafka.bootstrap.servers": place.brokers,
        "subscribe": place.incoming,
        "startingOffsets": "earliest",
        "lowwater.brokers": "1",
        "kafka.metadata.max.age.ms": "500",
    }
    stream = spark.readStream.format("kafka").options(**read).load()
    fields = sf.from_json(sf.col("value").cast("string"), "id string, n long, t timestamp").alias("record")
    stage = lws.stage(spark, "stage", inputs=["source"], key="id", event_time="t", ranges=SLOTS, address=place.address)
    query = stage.foreach_batch(stream.select(fields).select("record.*"), write, checkpoint=base / "ck", probe=probe)
    if (last := log.last_committed()) is not None:
        acknowledge(last)  # whoever ran it may have died before, and nobody runs it again
    return query
