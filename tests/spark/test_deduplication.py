"""Deduplication in a tracked stage: behind senders that repeat themselves each record comes out once, whatever dies, and what is remembered follows the low watermark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.dedup.sieve import Counts
from lowwater_pipeline.dedup.stage import Deduplication
from lowwater_pipeline.dedup.stage_figures import register
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROUTES = ("main", "late", "undecidable")


class Dedup:
    """A stage that writes what is new, what is late and what is undecidable, each into an output of its own."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.counts: list[Counts] = []
        self.last = Counts()
        self.registry = CollectorRegistry()
        self.figures = register(self.registry)

    def start(self, dedup: Deduplication, **options: Any) -> lws.TrackedQuery:
        def write(rows: DataFrame, batch: lws.Batch) -> None:
            done = dedup.of(batch, rows)
            for route in ROUTES:
                batch.write(getattr(done, route), self.flow.folder / route)
            self.last = done.counts
            self.figures.count("stage", batch, self.last)
            self.counts.append(Counts(*self.last[:6]))  # the rest depends on how many rows make a batch

        return self.flow.start(write, ranges=2, **options)

    def figure(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"lowwater_dedup_stage_{name}", {"computation": "stage", **labels})

    def out(self, route: str = "main") -> Counter[str]:
        read = self.flow.spark.read.option("recursiveFileLookup", "true").schema("key string, t timestamp")
        return Counter(each.key for each in read.parquet(str(self.flow.folder / route)).collect())


@pytest.fixture
def dedup(flow: Flow) -> Dedup:
    return Dedup(flow)


def test_records_come_out_once_whatever_dies_and_ids_are_forgotten_by_the_low_watermark(
    dedup: Dedup, lw: lowwater.Client, upstream: Upstream
) -> None:
    left = [("state", 1), ("written", 2)]

    def fail(reached: str, number: int) -> None:
        if (reached, number) in left:
            left.remove((reached, number))
            raise ConnectionResetError(reached)

    flow = dedup.flow
    dedup.start(Deduplication("key", "t"), probe=fail)
    sent: list[str] = []
    for hour in range(4):
        names = [f"{hour}-{number}" for number in range(20)]
        # Those of the hour before are not acknowledged yet, and are sent again.
        again = [f"{hour - 1}-{number}" for number in range(20)] if hour else []
        flow.feed.put(
            [*(row(name, 10 + hour) for name in [*names, *names[:5]]), *(row(name, 9 + hour) for name in again)]
        )
        sent += names
        upstream.at(9 + hour)
        if hour in (1, 2):
            with pytest.raises(Exception, match="state" if hour == 1 else "written"):
                flow.queries[-1].await_termination(120)
            flow.queries.clear()
            dedup.start(Deduplication("key", "t"), probe=fail)
        flow.eventually(lambda: low(lw, "stage") == mark(9 + hour), f"batch {hour}")  # noqa: B023
    upstream.at(13)
    flow.eventually(lambda: low(lw, "stage") == mark(13), "nothing older will come")
    flow.feed.put([row("3-0", 13), row("0-0", 10)])
    flow.eventually(lambda: dedup.counts[-1].undecidable, "two copies: one is still remembered, and one is not")
    upstream.at(14)
    flow.eventually(lambda: low(lw, "stage") == mark(14), "both are committed")
    assert left == []
    assert dedup.out() == Counter(sent)
    assert dedup.out("late") == Counter()
    assert dedup.out("undecidable") == Counter(["0-0"])
    [copies] = [each for each in dedup.counts if each.undecidable]
    assert copies == Counts(undecidable=1, duplicates=1, remembered=20), "those of thirteen o'clock"
    routes = {route: dedup.figure("rows_total", route=route) for route in (*ROUTES, "duplicate")}
    assert routes == {"main": 80, "late": 0, "undecidable": 1, "duplicate": 4 * 5 + 3 * 20 + 1}
    assert sum(each.duplicates for each in dedup.counts) > 81, "a batch that was counted has run again"
    outcomes = {outcome: dedup.figure("lookups_total", outcome=outcome) for outcome in ("filtered", "found", "vain")}
    assert outcomes == {"filtered": 0, "found": 3 * 20 + 1, "vain": 0}, "no other row is of an hour that has a segment"
    assert dedup.figure("forgotten_early_ids_total") == 0
    assert (dedup.figure("remembered_ids"), dedup.figure("state_bytes")) == (20, dedup.last.state_bytes)


def passed(_: int, state: pa.Table | None, rows: pa.Table, _low: lowwater.Watermark) -> lws.UpdateResult:
    """Pass all rows, and keep something."""
    return pa.table({"n": [1]}), rows.append_column("lowwater_route", pa.array(["main"] * rows.num_rows)), None, ()


def test_what_another_function_has_made_is_refused(dedup: Dedup, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = dedup.flow

    def function() -> lws.TrackedQuery:
        def write(frame: DataFrame, batch: lws.Batch) -> None:
            batch.write(
                batch.stateful(frame, passed, "key string, t timestamp, lowwater_route string"), flow.folder / "main"
            )

        return flow.start(write, ranges=2)

    query = function()
    flow.feed.put([row("a", 10)])
    upstream.at(9, 30)
    flow.eventually(lambda: low(lw, "stage") == mark(9, 30), "it is committed")
    query.stop()
    flow.queries.remove(query)
    query = dedup.start(Deduplication("key", "t"))
    flow.feed.put([row("b", 11)])
    with pytest.raises(Exception, match="was made by another function"):
        query.await_termination(120)
    flow.queries.remove(query)
