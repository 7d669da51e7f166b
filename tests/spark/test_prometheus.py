"""A driver exports figures of a real query and of an attachment, against what was put into the query."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.prometheus import FIGURES, register
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.support import Feed, Upstream, low, row

# The first test also waits for the JVM.
pytestmark = pytest.mark.timeout(400)


def write(rows: DataFrame, _: lws.Batch) -> None:
    rows.write.format("noop").mode("append").save()


def test_a_driver_exports_its_queries_and_its_attachment(
    spark: SparkSession, authority: Serving, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    feed = Feed(tmp_path / "in")
    with lws.attach(spark, authority.address, prefix="guess.") as attachment:
        figures = register(attachment, registry=registry)
        feed.put([row("a", 9), row("b", 9, 30)])
        upstream.at(10)
        frame = spark.readStream.schema("key string, t timestamp").json(str(feed.folder))
        stage = lws.stage(
            spark, "stage", inputs=["source"], key="key", event_time="t", ranges=4, address=authority.address
        )
        query = stage.foreach_batch(frame, write, checkpoint=tmp_path / "ck", name="enrich")
        figures.add(query)
        plain = frame.writeStream.format("noop").queryName("plain").option("checkpointLocation", f"{tmp_path}/plain")
        plain_query = plain.start()

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"lowwater_spark_{name}", labels)

        def figure(name: str) -> float | None:
            return value(name, query="enrich", computation="stage")

        eventually(lambda: low(lw, "stage") == lowwater.Watermark.of(at(10)), "the first batch is reported")
        assert (figure("committed_batch"), figure("late_rows_total"), figure("holding")) == (0, 0, 0)
        assert figure("reported_watermark_timestamp_seconds") == at(10).timestamp()
        assert figure("low_watermark_timestamp_seconds") == at(10).timestamp()
        # Two rows below the 10:00 that was promised, and one that is not.
        feed.put([row("late", 9, 59), row("later", 9, 58), row("c", 11)])
        eventually(lambda: figure("late_rows_total") == 2, "the broken promises are counted")
        eventually(lambda: figure("committed_batch") == 1, "which is told before the batch is committed")
        status = eventually(
            lambda: next((query for query in attachment.status().queries if query.batches >= 2), None),
            "Spark tells of both batches",
        )
        assert status is not None
        assert [each.name for each in attachment.status().queries] == ["plain"], "a tracked query is no estimate, too"
        labels = {"query": status.name or status.query, "computation": status.computation}
        read = sum(progress["numInputRows"] for progress in plain_query.recentProgress)
        assert value("attached_rows_total", **labels) == read >= 5
        assert value("attached_batches_total", **labels) == status.batches == 2
        eventually(lambda: attachment.status().delivered >= 1, "the attachment has said something")
        assert value("attach_delivered_total") == attachment.status().delivered
        assert value("attach_authority", state="answers") == 1
        declared = {figure.name: set(figure.labels) for figure in FIGURES}
        labels_seen = {sample.name: sample.labels.keys() for family in registry.collect() for sample in family.samples}
        assert all(declared[name] == labels for name, labels in labels_seen.items())
        query.stop()
        assert figure("committed_batch") is not None, "one that has ended stays as it stood"
        figures.remove(query)
        assert figure("committed_batch") is None
        assert b"lowwater_spark_attach_failures_total" in generate_latest(registry)


class Query:
    """A query of two stages as far as it is scraped; ``broken`` for one whose status cannot be had."""

    stages = ("first", "second")

    def __init__(self, name: str, *, broken: bool = False) -> None:
        self.query = self
        self.name = name
        self._broken = broken

    def stage_status(self, stage: str) -> lws.Status:
        if self._broken:
            raise RuntimeError(stage)
        low = lowwater.Watermark.of(at(10))
        whole = {
            "ticks": 5,
            "dropped_rows": 7,
            "removed_batches": 4,
            "removed_bytes": 99,
            "removal_held_back": 1.5,
            "remembered_files": 6,
        }
        return lws.Status(3, low, low, "", (), late_rows=2, late_example="", **whole)  # type: ignore[arg-type]


def test_a_query_is_counted_once_and_a_status_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    register(
        *(cast("lws.TrackedQuery", query) for query in (Query("broken", broken=True), Query("two"))), registry=registry
    )
    rows: dict[str, dict[str, float]] = {}
    for family in registry.collect():
        for point in family.samples:
            assert point.labels["query"] == "two"
            rows.setdefault(point.name.removeprefix("lowwater_spark_"), {})[point.labels["computation"]] = point.value
    shared = {"dropped_rows_total": 7, "ticks_total": 5, "removed_batches_total": 4, "removed_bytes_total": 99}
    for name, expected in (shared | {"remembered_files": 6, "removal_held_back_seconds": 1.5}).items():
        assert rows[name] == {"first": expected}
    assert (rows["late_rows_total"], rows["committed_batch"]) == ({"first": 2, "second": 2}, {"first": 3, "second": 3})
    assert "the figures of broken are left out" in caplog.text
