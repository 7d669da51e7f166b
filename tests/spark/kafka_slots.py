"""Slots of a writer into Kafka, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lowwater_spark.sources.kafka.client import client_settings
from lowwater_spark.sources.kafka.marks import Slot, marks_topic, same_id
from lowwater_spark.track.output.kafka_slot import Publishing, SlotWriter
from tests.kit.kafka import Kafka

__all__ = ["Slots"]


class Slots:
    def __init__(self, kafka: Kafka, name: str, folder: Path, writer: str = "default/writer") -> None:
        self.kafka, self.folder, self.computation = kafka, folder, writer
        self.settings = client_settings({"kafka.bootstrap.servers": kafka.address})
        self.slot = Slot(name, ".", name, 0)
        self.count = 0
        kafka.create(name, partitions=2)
        kafka.create(marks_topic(name), partitions=2, cleanup_policy="compact")
        self.topic_id = same_id(kafka.id_of(name))

    def writer(self, number: int = 0) -> SlotWriter:
        return SlotWriter(self.settings, replace(self.slot, number=number), 2)

    def batch(self, number: int, *values: str, **options: Any) -> Publishing:
        self.count += 1
        path = self.folder / f"{self.count}.parquet"
        pq.write_table(pa.table({"value": [value.encode() for value in values]}), path)
        job = Publishing(
            self.settings,
            self.slot,
            self.computation,
            1,
            number,
            number,
            "digest",
            f"staged {number}",
            self.topic_id,
            2,
            [[str(path)]] * 2,
        )
        return replace(job, **options)

    def values(self) -> list[str]:
        return sorted(row.value.decode() for row in self.kafka.rows(self.slot.topic))
