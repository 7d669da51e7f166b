"""Spark reads the Kafka that tests of sources run on."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.kit.kafka import Kafka, Row


def test_acknowledged_rows_survive_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka") as kafka:
        frame = (
            spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address).option("subscribe", "flights")
        )

        def read() -> list[Row]:
            rows = (
                frame.load().selectExpr("value", "key", "partition", "unix_millis(timestamp) time", "offset").collect()
            )
            rows.sort(key=lambda row: (row.partition, row.offset))
            return [Row(bytes(row.value), row.key and bytes(row.key), row.partition, row.time) for row in rows]

        kafka.create("flights", partitions=2)
        first = [Row(b"a", b"k", 0, 1_000), Row(b"b", None, 1, 2_000), Row(b"c", None, 1, 1_500)]
        kafka.put("flights", first)
        assert read() == kafka.rows("flights") == first

        (broker,) = kafka.brokers
        broker.kill()
        broker.start()

        later = Row(b"d", None, 1, 3_000)
        kafka.put("flights", [later])
        assert read() == kafka.rows("flights") == [*first, later]
