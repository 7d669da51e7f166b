"""Tracked stages from end to end: a real authority, real queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from tests.process.serving import Serving
from tests.spark.support import Feed, Upstream, at, low, row, until

SCHEMA = "key string, t timestamp"


@pytest.fixture
def queries() -> Iterator[list[lws.TrackedQuery]]:
    started: list[lws.TrackedQuery] = []
    yield started
    for query in started:
        query.stop()


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).options(recursiveFileLookup="true", **options).json(str(folder))


def test_a_stage_that_keeps_nothing_follows_its_inputs(
    spark: SparkSession,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    feed: Callable[[str], Feed],
    tmp_path: Path,
    queries: list[lws.TrackedQuery],
) -> None:
    source = feed("in")
    source.put([row("a", 9), row("b", 9, 30)])
    upstream.at(10)
    seen = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        seen.append((batch.id, batch.low, batch.replayed))
        assert batch.write(rows, tmp_path / "out")

    stage = lws.stage(
        spark, "enriched", inputs=["source"], key="key", event_time="t", ranges=5, address=authority.address
    )
    query = stage.foreach_batch(read(spark, source.folder), write_batch, checkpoint=tmp_path / "ck")
    queries.append(query)
    until(lambda: low(lw, "enriched") == lowwater.Watermark.of(at(10)), "the stage has read all that 10:00 covers")
    assert seen == [(0, lowwater.Watermark.of(at(10)), False)]
    # Idle: no batch comes, and the stage still follows within five seconds.
    began = time.monotonic()
    upstream.at(11)
    until(lambda: low(lw, "enriched") == lowwater.Watermark.of(at(11)), "idle", 5)
    assert time.monotonic() - began < 5
    assert len(seen) == 1
    assert query.status().batch == 0
    assert query.status().late_rows == 0
    source.put([row("a", 10, 59)])
    until(lambda: query.status().late_rows == 1, "a broken promise is seen")
    assert query.status().late_example == "2013-01-09T10:59:00Z in batch 1"
    assert low(lw, "enriched").datetime() == at(11)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["batch=0", "batch=1"]
    assert spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path / "out")).count() == 3


def hourly(
    handle: int, state: pa.Table | None, rows: pa.Table, low_watermark: lowwater.Watermark
) -> tuple[pa.Table, pa.Table | None, Any, pa.Array]:
    """Counts per hour, in windows that close when the low watermark passes their end."""
    if state is not None:
        rows = pa.concat_tables([state, rows])
    if not rows.num_rows:
        return rows, None, None, pa.array([])
    starts = pc.floor_temporal(rows["t"], unit="hour")
    ends = pc.add(starts, pa.scalar(timedelta(hours=1)))
    if low_watermark.unknown:
        closed = pa.array([False] * rows.num_rows)
    elif low_watermark.finished:
        closed = pa.array([True] * rows.num_rows)
    else:
        closed = pc.less_equal(ends, pa.scalar(low_watermark.datetime(), starts.type))
    done = pa.table({"hour": starts, "key": rows["key"]}).filter(closed)
    counted = done.group_by(["hour", "key"]).aggregate([([], "count_all")])
    emitted = counted.rename_columns(["hour", "key", "n"]) if done.num_rows else None
    rest = rows.filter(pc.invert(closed))
    held = pc.min(starts.filter(pc.invert(closed))).as_py()
    return rest, emitted, held, rest["t"]


def test_windows_close_exactly_and_without_rows(
    spark: SparkSession,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    feed: Callable[[str], Feed],
    tmp_path: Path,
    queries: list[lws.TrackedQuery],
) -> None:
    source = feed("in")
    out: list[tuple[int, str, str, int]] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        closed = batch.stateful(rows, hourly, "hour timestamp, key string, n long")
        out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    stage = lws.stage(
        spark,
        "hourly",
        inputs=["source"],
        key="key",
        event_time="t",
        ranges=4,
        stamp=timedelta(hours=1),
        address=authority.address,
    )
    query = stage.foreach_batch(read(spark, source.folder), write_batch, checkpoint=tmp_path / "ck")
    queries.append(query)
    source.put([row("a", 9), row("a", 9, 30), row("b", 9, 10), row("c", 10, 5)])
    upstream.at(9, 45)
    until(lambda: low(lw, "hourly") == lowwater.Watermark.of(at(9)), "floored to the window start")
    assert out == []
    # No more rows: the windows close because the watermark passes, in a batch that the stage asks for.
    upstream.at(10, 20)
    until(lambda: low(lw, "hourly") == lowwater.Watermark.of(at(10)), "the window of nine is written")
    assert sorted(entry[1:] for entry in out) == [("09:00", "a", 2), ("09:00", "b", 1)]
    upstream.at(12)
    until(lambda: low(lw, "hourly") == lowwater.Watermark.of(at(12)), "nothing is held any more")
    assert sorted(entry[1:] for entry in out)[2:] == [("10:00", "c", 1)]
    assert query.status().ticks >= 1
    heuristic = lw.get("hourly")["hourly"].heuristic[0.99]
    assert heuristic.datetime() == at(12)
