"""Key ranges: the column that runs in the JVM, and the bounds that the authority gets, are the same cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from lowwater_spark.track.rows.ranges import (
    MAX_RANGES,
    hash_range_column,
    key_text,
    key_zone,
    place_bytes,
    range_bounds,
    range_column,
)

HASHES = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(1, MAX_RANGES)


def by_bounds(xxhash64: int, bounds: list[bytes]) -> int:
    return bisect_right(bounds[:-1], place_bytes(xxhash64)) - 1


def handle_of(xxhash64: int, count: int) -> int:
    """The closed form: which of ``count`` ranges a hash value lies in."""
    return ((xxhash64 + 2**63) * count) >> 64


@given(HASHES, COUNTS)
def test_a_key_lies_in_the_range_that_its_bytes_say(xxhash64: int, count: int) -> None:
    bounds = range_bounds(count)
    assert len(bounds) == count + 1
    assert bounds[0] == bounds[-1] == b""
    assert bounds[:-1] == sorted(set(bounds[:-1]))
    assert handle_of(xxhash64, count) == by_bounds(xxhash64, bounds)


def test_the_column_agrees_to_the_bit(spark: SparkSession) -> None:
    keys = spark.range(3000).select(
        sf.concat(sf.lit("k"), "id").alias("a"),
        (sf.col("id") % 7).alias("b"),
        sf.lit(None).cast("string").alias("none"),
    )
    for count in (1, 2, 3, 64, 1000, MAX_RANGES):
        bounds = range_bounds(count)
        frame = keys.select(range_column(["a", "b"], count).alias("handle"), sf.xxhash64("a", "b").alias("hash"))
        rows = frame.collect()
        assert all(row.handle == by_bounds(row.hash, bounds) == handle_of(row.hash, count) for row in rows)
        if count <= 64:
            assert {row.handle for row in rows} == set(range(count))
    [row] = (
        keys.limit(1).select(range_column(["none"], 64).alias("handle"), sf.xxhash64("none").alias("hash")).collect()
    )
    assert (row.handle, row.hash) == (handle_of(42, 64), 42), "a null key has the seed for a hash"


@pytest.mark.parametrize("count", [1, 3, MAX_RANGES])
def test_the_column_at_the_borders(spark: SparkSession, count: int) -> None:
    starts = [int.from_bytes(bound, "big") for bound in range_bounds(count)[1:-1]]
    chosen = {0, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1}
    for start in starts[:: max(1, len(starts) // 50)]:
        chosen |= {start - 1, start, start + 1}
    hashes = sorted(place - 2**63 for place in chosen)
    frame = spark.createDataFrame([(h,) for h in hashes], "hash long")
    column = hash_range_column(sf.col("hash"), count)
    assert [row[0] for row in frame.select(column).collect()] == [handle_of(h, count) for h in hashes]


def test_a_key_is_the_same_whatever_its_frame_is_called(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "key string, `a b` string, loc struct<city: string>")
    other = spark.createDataFrame([], "key string, n long")
    keys: dict[str, list[str | Column]] = {
        "key STRING": ["key"],
        "upper(key) STRING": [sf.upper("key")],
        "concat(key, 'it\\'s r.key', `a b`, loc.`city`) STRING": [
            sf.concat("key", sf.lit("it's r.key"), "a b", "loc.city")
        ],
        "`a b` STRING, loc.`city` STRING": ["a b", "loc.city"],
    }
    for text, key in keys.items():
        for frame in (rows, rows.alias("r"), rows.alias("r x"), rows.join(other.drop("key"))):
            assert key_text(frame, key) == text
    assert key_text(rows.alias("r"), [sf.upper("r.key")]) == "upper(key) STRING"
    # Two columns of one name are two keys.
    both = rows.alias("r").join(other.alias("o"))
    texts = [key_text(both, [key]) for key in ("r.key", "o.key", sf.upper("r.key"), sf.upper("o.key"))]
    assert texts == ["r.key STRING", "o.key STRING", "upper(r.key) STRING", "upper(o.key) STRING"]


def test_keys_whose_lambdas_use_their_variables_otherwise_are_different(spark: SparkSession) -> None:
    """Spark prints every variable of a lambda alike."""
    rows = spark.createDataFrame([], "list array<int>, key string")

    def folded(merge: Callable[[Column, Column], Column]) -> Column:
        return sf.aggregate("list", sf.lit(0), merge)

    keys = [
        folded(lambda a, x: a - x),
        folded(lambda a, x: x - a),
        sf.transform("list", lambda x: sf.aggregate("list", sf.lit(0), lambda a, y: a - y * x)),
        sf.transform("list", lambda x: sf.aggregate("list", sf.lit(0), lambda a, y: a - x * y)),
        sf.transform("list", lambda x: sf.aggregate("list", sf.lit(0), lambda a, y: x - a * y)),
    ]
    texts = [key_text(rows, [key]) for key in keys]
    assert len(set(texts)) == len(keys)
    assert [key_text(rows.alias("r"), [key]) for key in keys] == texts
    assert key_text(rows, [folded(lambda total, n: total - n)]) == texts[0], "whatever they are called"
    assert key_text(rows, [sf.size("list"), keys[0], "key"]) == f"size(list) INT, {texts[0]}, key STRING"


def test_a_key_has_a_time_zone_if_it_depends_on_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "key string, t timestamp, n int, local timestamp_ntz")
    day = sf.date_format("t", "yyyy-MM-dd")
    for key in (day, sf.hour("t"), sf.col("t").cast("date"), sf.concat("key", sf.col("t")), sf.to_json(sf.struct("t"))):
        assert key_zone(rows, ["key", key]) == "UTC"
    for key in (
        *(sf.col("t"), sf.col("local").cast("string"), sf.col("n").cast("string"), sf.upper("key")),
        sf.xxhash64("t"),
    ):
        assert key_zone(rows, ["key", key]) == ""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert key_zone(rows, [day]) == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
