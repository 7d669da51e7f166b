"""Ids that are derived from where a record comes from: the same each time, another one for each record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from lowwater_pipeline.dedup.derived import pane_id, record_id, staged_id
from tests.kit.times import at

pytestmark = pytest.mark.spark

LIVES = {"orders": "first", "returns": "second"}


def rows(spark: SparkSession) -> DataFrame:
    places = [(topic, partition, offset) for topic in LIVES for partition in range(2) for offset in range(3)]
    return spark.createDataFrame(places, "topic string, partition int, offset long")


def ids(frame: DataFrame, column: Column, *order: str) -> Sequence[Any]:
    rows = frame.select(*order, column.alias("id")).orderBy(*order).collect()
    return [None if row.id is None else bytes(row.id) for row in rows]


def test_a_row_of_kafka_has_its_own_id_however_often_and_in_whatever_order_it_is_read(spark: SparkSession) -> None:
    frame = rows(spark)
    first = ids(frame, record_id("enrich", LIVES), "topic", "partition", "offset")
    assert len({*first}) == 12
    assert {len(id_) for id_ in first} == {16}
    again = ids(frame.orderBy(sf.rand()).repartition(5), record_id("enrich", LIVES), "topic", "partition", "offset")
    assert first == again


def test_a_topic_that_is_made_anew_has_other_ids_and_an_unknown_one_has_none(spark: SparkSession) -> None:
    frame, order = rows(spark), ("topic", "partition", "offset")
    before = ids(frame, record_id("enrich", LIVES), *order)
    anew = ids(frame, record_id("enrich", {**LIVES, "orders": "third"}), *order)
    assert not {*anew[:6]} & {*before}
    assert anew[6:] == before[6:]
    assert ids(frame, record_id("enrich", {"orders": "first"}), *order) == [*before[:6], *[None] * 6]
    with pytest.raises(ValueError, match="id of each topic by its name"):
        record_id("enrich", {})


def test_a_topic_has_one_id_in_whatever_spelling(spark: SparkSession) -> None:
    """Java and librdkafka write two of the 64 letters differently."""
    frame, order = rows(spark), ("topic", "partition", "offset")
    java, librdkafka = ({"orders": id_, "returns": "x"} for id_ in ("8D8PQYpcQdiR_blXzNt-6Q", "8D8PQYpcQdiR/blXzNt+6Q"))
    assert ids(frame, record_id("enrich", java), *order) == ids(frame, record_id("enrich", librdkafka), *order)


def test_parts_that_differ_by_a_microsecond_or_a_byte_have_ids_of_their_own(spark: SparkSession) -> None:
    sql = ("timestamp_ntz'2013-01-07 09:00:00.000{}'", "timestamp'2013-01-07 09:00:00.000{}Z'", "time'09:00:00.000{}'")
    for kind in (*sql, "interval '0.000{}' second", "1.1{}bd", "x'f{}'"):
        for template in ("{}", "named_struct('a', {})"):
            pair = [template.format(kind.format(digit)) for digit in (1, 2)]
            frame = spark.range(1).select(
                *(pane_id("s", sf.lit(0), sf.expr(part)).alias(f"i{n}") for n, part in enumerate(pair))
            )
            [row] = frame.collect()
            assert None not in row, pair
            assert row[0] != row[1], pair
    [row] = spark.range(1).select(pane_id("s", sf.lit(0), sf.expr("cast(x'ff' as string)")).alias("i")).collect()
    assert row.i is None


def test_a_result_of_an_aggregation_is_known_by_stage_window_key_and_pane(spark: SparkSession) -> None:
    rows = [(at(9), "a", "bc", 0), (at(9), "ab", "c", 0), (at(10), "a", "bc", 0), (at(9), "a", "bc", 1)]
    frame = spark.createDataFrame(rows, "start timestamp, left string, right string, pane int")
    first = ids(frame, pane_id("hourly", "start", "left", "right", pane="pane"), "start", "left", "pane")
    assert len({*first}) == 4, "the borders of the parts count"
    other = ids(frame, pane_id("daily", "start", "left", "right", pane="pane"), "start", "left", "pane")
    assert not {*first} & {*other}
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert ids(frame, pane_id("hourly", "start", "left", "right", pane="pane"), "start", "left", "pane") == first
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    windows = frame.groupBy(sf.window("start", "1 hour").alias("w"), "left").count()
    assert len({*ids(windows, pane_id("hourly", "w", "left"), "w", "left")}) == 3


def test_rows_that_were_written_first_have_their_places_as_ids(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(2):
        written = spark.range(40).select(sf.rand().alias("chance")).repartition(2)
        written.write.parquet(str(tmp_path / "out" / f"batch={batch}"))

    def read(folder: Path) -> Sequence[Any]:
        stored = spark.read.parquet(str(folder))
        return ids(stored.select("chance", "_metadata"), staged_id("sender, first life"), "chance")

    first = read(tmp_path / "out")
    assert len({*first}) == 80
    (tmp_path / "out").rename(tmp_path / "moved")
    assert read(tmp_path / "moved") == first
