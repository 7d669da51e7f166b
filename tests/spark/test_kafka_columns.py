"""Rows that no producer of Kafka takes are found before they are staged: what is staged is never made anew."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lowwater_spark.track.kafka_out import _columns

pytestmark = pytest.mark.spark

PARTITIONS = 3

HEADER = "named_struct('key', {}, 'value', cast('x' as binary))"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("array(cast(null as struct<key:string,value:binary>)) AS headers", "a header for Kafka is null"),
        (f"array({HEADER.format('cast(null as string)')}) AS headers", "a header for Kafka is null"),
        ("3 AS partition", "says 3, and the topic has the partitions 0 to 2"),
        ("-1 AS partition", "says -1"),
    ],
)
def test_a_row_that_kafka_does_not_take_fails_before_it_is_staged(spark: SparkSession, said: str, why: str) -> None:
    rows = spark.range(1).selectExpr("'a' AS value", said)
    with pytest.raises(PySparkException, match=why):
        rows.select(*_columns(rows, PARTITIONS)).collect()


def test_rows_that_kafka_takes_stay_as_they_are(spark: SparkSession) -> None:
    header = HEADER.format("'k'")
    rows = spark.range(3).selectExpr(
        "'a' AS value",
        "CASE id WHEN 0 THEN 2 END AS partition",
        f"CASE id WHEN 0 THEN array({header}) WHEN 1 THEN array() END AS headers",
    )
    taken = rows.select(*_columns(rows, PARTITIONS))
    assert [field.dataType.simpleString() for field in taken.schema] == [
        "binary",
        "int",
        "array<struct<key:string,value:binary>>",
    ]
    found = [(row.partition, row.headers) for row in taken.collect()]
    assert [partition for partition, _ in found] == [2, None, None]
    assert [None if headers is None else len(headers) for _, headers in found] == [1, 0, None]
