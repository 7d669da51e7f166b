"""Driven windows in update mode, merged into a Delta table: what is final there, what is not yet, and each batch once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from tests.kit.times import mark
from tests.spark.drive_support import aware
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row
from tests.spark.test_delta import PATIENCE, TableFlow, spark, table

__all__ = ["spark", "table"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MERGE = """
MERGE INTO {table} AS old USING changed AS new ON old.hour = new.hour AND old.key = new.key
WHEN MATCHED AND {once} THEN UPDATE SET count = new.count, batch = new.batch, merges = old.merges + 1
WHEN NOT MATCHED THEN INSERT (hour, key, count, batch, merges) VALUES (new.hour, new.key, new.count, new.batch, 1)
"""

ONCE = "old.batch < new.batch"


class Merging:
    """Counts by the hour, of which each batch merges those that it has changed."""

    def __init__(self, flow: Flow, table: TableFlow, *, once: str = ONCE) -> None:
        self.flow = flow
        self.table = table
        self.once = once
        self.lows: list[lowwater.Watermark] = []
        table.sql("CREATE TABLE {table} (hour TIMESTAMP, key STRING, count LONG, batch LONG, merges INT) USING delta")

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        changed = rows.select("hour", "key", "count").withColumn("batch", sf.lit(batch.id)).persist()
        with lowwater.connect(self.flow.address) as lw:
            published = low(lw, "hourly")
        for found in changed.collect():
            assert lowwater.Watermark.of(aware(found.hour)) >= published, f"{found} is below {published}"
        changed.createOrReplaceTempView("changed")
        rows.sparkSession.sql(MERGE.format(table=f"delta.`{self.table.path}`", once=self.once))
        changed.unpersist()
        self.lows.append(batch.low)

    def start(self, probe: Callable[[str, int], None] = lambda _point, _batch: None) -> lws.TrackedQuery:
        stage = lws.stage(
            self.flow.spark,
            "hourly",
            inputs=["source"],
            key="key",
            event_time="t",
            stamp=sf.col("hour"),
            ranges=2,
            address=self.flow.address,
        )
        windows = stage.drive(self.flow.read()).groupBy(sf.window("t", "1 hour"), "key").count()
        counts = windows.select(sf.col("window.start").alias("hour"), "key", "count")
        query = stage.foreach_batch(
            counts, self.write, checkpoint=self.flow.folder / "ck", output_mode="update", probe=probe
        )
        self.flow.queries.append(query)
        return query

    def found(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Count and merges by hour and key."""
        rows = self.flow.spark.read.format("delta").load(str(self.table.path)).collect()
        return {(aware(r.hour).hour, r.key): (r["count"], r.merges) for r in rows}


def test_windows_are_merged_as_they_grow_and_are_final_below_the_watermark(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream
) -> None:
    merging = Merging(flow, table)
    flow.feed.put([row("a", 9, 5), row("a", 9, 10), row("b", 10)])
    upstream.at(9)
    query = merging.start()
    flow.eventually(lambda: merging.found() == {(9, "a"): (2, 1), (10, "b"): (1, 1)}, "windows that are still open")
    assert all(each <= mark(9) for each in merging.lows)
    flow.feed.put([row("a", 9, 50)])
    flow.eventually(lambda: merging.found()[9, "a"] == (3, 2), "the window has grown")
    upstream.at(11)
    flow.eventually(lambda: low(lw, "hourly") == mark(11), "hours that begin before eleven do not come again")
    assert query.stage_status().dropped_rows == 0
    flow.feed.put([row("a", 9, 55), row("b", 11)])
    flow.eventually(lambda: (11, "b") in merging.found(), "the batch with a row that breaks the promise")
    assert merging.found() == {(9, "a"): (3, 2), (10, "b"): (1, 1), (11, "b"): (1, 1)}
    flow.eventually(lambda: query.stage_status().dropped_rows >= 1, "it is counted")


@pytest.mark.parametrize(
    "once",
    [
        ONCE,
        pytest.param(
            "true",
            marks=[
                pytest.mark.long,
                pytest.mark.xfail(strict=True, raises=AssertionError, reason="merged twice"),
            ],
        ),
    ],
)
def test_a_batch_that_runs_again_is_merged_once(
    flow: Flow, table: TableFlow, lw: lowwater.Client, upstream: Upstream, once: str
) -> None:
    merging = Merging(flow, table, once=once)

    def fail(reached: str, _number: int) -> None:
        if reached == "written" and merging.found():
            raise ConnectionResetError("killed")

    flow.feed.put([row("a", 9, 5), row("b", 9, 10)])
    upstream.at(9)
    query = merging.start(fail)
    with pytest.raises(Exception, match="killed"):
        query.await_termination(PATIENCE)
    assert merging.found() == {(9, "a"): (1, 1), (9, "b"): (1, 1)}
    merging.start()
    flow.feed.put([row("a", 9, 30)])
    upstream.at(11)
    flow.eventually(lambda: low(lw, "hourly") == mark(11), "nine to eleven is final")
    assert merging.found() == {(9, "a"): (2, 2), (9, "b"): (1, 1)}


def test_the_mode_is_for_functions_alone(flow: Flow, table: TableFlow) -> None:
    """A sink of Spark's has nothing beside the rows that says which of them are final; and there is no complete."""
    declared: dict[str, Any] = {"inputs": ["source"], "key": "key", "event_time": "t", "stamp": sf.col("window.start")}
    stage = lws.stage(flow.spark, "hourly", **declared, address=flow.address)
    windows = stage.drive(flow.read()).groupBy(sf.window("t", "1 hour"), "key").count()
    with pytest.raises(Unsupported, match="output mode update in a driven query with a sink"):
        stage.start(windows, checkpoint=flow.folder / "ck", format="noop", output_mode="update")
    with pytest.raises(Unsupported, match="output mode complete"):
        stage.foreach_batch(windows, flow.plain, checkpoint=flow.folder / "ck", output_mode="complete")
