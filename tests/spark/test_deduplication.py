"""Deduplication in a tracked stage: behind senders that repeat themselves each record comes out once, and what is remembered follows the low watermark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.dedup.sieve import Counts, Sieve
from lowwater_pipeline.dedup.stage import Deduplication, IdUpdate
from lowwater_pipeline.dedup.stage_figures import register
from lowwater_spark.track.segments import Segments
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROUTES = ("main", "late", "undecidable")


class Dedup:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
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

        return self.flow.start(write, ranges=2, **options)

    def figure(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"lowwater_dedup_stage_{name}", {"computation": "stage", **labels})

    def out(self, route: str = "main") -> Counter[str]:
        read = self.flow.spark.read.option("recursiveFileLookup", "true").schema("key string, t timestamp")
        return Counter(row.key for row in read.parquet(str(self.flow.folder / route)).collect())


@pytest.fixture
def dedup(flow: Flow) -> Dedup:
    return Dedup(flow)


def test_records_come_out_once_and_ids_are_forgotten(dedup: Dedup, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = dedup.flow
    dedup.start(Deduplication("key", "t"))
    names = [f"{number}" for number in range(20)]
    flow.feed.put([row(name, 10) for name in [*names, *names[:5]]])
    upstream.at(9)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first batch")
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "nothing of ten o'clock will come")
    flow.feed.put([row("0", 10), row("new", 12), row("new", 12)])
    flow.eventually(lambda: dedup.last.undecidable, "a copy whose id is forgotten")
    upstream.at(12)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "it is committed")
    assert [dedup.out(route) for route in ROUTES] == [Counter([*names, "new"]), Counter(), Counter(["0"])]
    routes = {route: dedup.figure("rows_total", route=route) for route in (*ROUTES, "duplicate")}
    assert routes == {"main": 21, "late": 0, "undecidable": 1, "duplicate": 6}
    assert dedup.figure("forgotten_early_ids_total") == 0
    assert (dedup.figure("remembered_ids"), dedup.figure("state_bytes")) == (1, dedup.last.state_bytes)


@pytest.mark.parametrize("before", [Segments("state", whole="state/0.arrow"), Segments("state", facts=(1, 2, 3))])
def test_what_another_function_has_made_is_refused(before: Segments) -> None:
    update = IdUpdate(Sieve("key", "t"), 0)
    with pytest.raises(ValueError, match="was made by another function"):
        update.update_segments(before, pa.table({"key": ["a"]}), lowwater.Watermark(1))
