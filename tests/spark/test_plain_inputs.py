"""Several sources, several inputs, and keys of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.track.ranges import place_bytes, range_bounds, range_column
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Feed, Follower, Upstream, low, row
from tests.spark.updates import HOURLY, hourly

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow


def test_w_counts_when_every_source_has_been_read(flow: PlainFlow, lw: lowwater.Client) -> None:
    """The head is joint, and W is the least of the inputs: one source is read at once, the other file by file."""
    first, second = Upstream(lw, "first"), Upstream(lw, "second")
    slow = Feed(flow.folder / "slow")
    flow.feed.put([row("a", 9)])
    for i in range(4):
        slow.put([row(f"s{i}", 9 + i)])
    first.at(11)
    second.at(12)
    lw.register("stage", inputs=["first", "second"], key_hash="xxhash64")
    follower = Follower(flow.address, flow.folder / "ck", mark(11))
    names = flow.spark.createDataFrame([("a", "Anna"), ("s3", "Sara")], "key string, name string")
    both = flow.read().union(flow.read("slow", maxFilesPerTrigger="1")).join(names, "key", "left")
    query = flow.start(both, stage=flow.stage("stage", "first", "second"))
    early = [value for value, last in follower.seen(query) if not value.unknown and (last is None or last < 3)]
    assert early == []
    first.at(14)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "the other input rules now")
    assert flow.out() == ["a", "s0", "s1", "s2", "s3"]


def test_a_directory_may_be_read_twice_by_streams_of_their_own(
    flow: PlainFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.start(flow.read().union(flow.read()))
    flow.eventually(lambda: low(lw, "stage") == mark(10), "both have read it")
    assert flow.out() == ["a", "a"]


NESTED = "struct(key as id, struct(length(key) as n) as inner) as who"

KEYS: dict[str, Sequence[str | Column]] = {
    "a column": ["key"],
    "several columns": ["key", "t"],
    "a nested field": ["who.inner.n"],
    "fields and columns": ["who.id", "key"],
}


def expressions() -> dict[str, Sequence[str | Column]]:
    """Column expressions need a session, so they are made in the test."""
    return {
        "an expression": [sf.upper("key")],
        "several expressions": [sf.substring("key", 1, 1), sf.col("who.inner.n") % 3],
        "a whole struct": [sf.col("who")],
        "a hash made before": [sf.xxhash64("key")],
    }


def test_any_expression_makes_key_ranges(flow: PlainFlow) -> None:
    """The range of a row is the range of its key's hash, for whatever the key is made of."""
    frame = flow.spark.range(300).selectExpr("concat('k', id) as key", "timestamp_seconds(id % 7) as t")
    frame = frame.selectExpr("*", NESTED)
    bounds = [*range_bounds(5)[:-1], b"\xff" * 9]
    for what, key in {**KEYS, **expressions()}.items():
        rows = frame.select(range_column(key, 5).alias("handle"), sf.xxhash64(*key).alias("hash")).collect()
        for entry in rows:
            assert bounds[entry.handle] <= place_bytes(entry.hash) < bounds[entry.handle + 1], what
        assert len({entry.handle for entry in rows}) > 1, what


def test_stages_run_by_any_key(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """One key that stalls holds its own range alone, by a nested field and an expression together."""
    out: list[str] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        out.extend(entry.key for entry in batch.stateful(rows.select("key", "t", "who"), hourly, HOURLY).collect())

    upstream.at(11)
    flow.feed.put([row("a", 9), row("stuck", 9)])
    key = [sf.upper("key"), "who.inner.n"]
    stage = flow.stage("stage", "source", key=key)
    stream = flow.read().selectExpr("*", NESTED)
    flow.queries.append(stage.foreach_batch(stream, write_batch, checkpoint=flow.folder / "ck"))
    flow.eventually(lambda: low(lw, "stage") == mark(9), "held by what is stuck")
    assert sorted(each.watermark for each in lw.ranges("stage"))[1:] == [mark(11)] * 3
    assert out == ["a"]
    plain = flow.stage("plain", "source", key=key)
    flow.start(stream.drop("who").selectExpr("*", NESTED), stage=plain, checkpoint="ck2", format="noop")
    flow.eventually(lambda: low(lw, "plain") == mark(11), "the same key in a plain query")
