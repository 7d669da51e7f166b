"""Every query of a panel and every alert about Spark jobs and their stages that deduplicate, against a real Prometheus that scrapes a real driver."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.dedup import stage_figures
from lowwater_pipeline.dedup.stage import Deduplication
from lowwater_spark.prometheus import register
from tests.kit.eventually import eventually
from tests.monitoring.panels_asked import asked, rules, selectors
from tests.monitoring.prometheus_server import Prometheus
from tests.process.serving import serving
from tests.spark.support import Feed, Upstream, row

# It also waits for the JVM.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SCHEMA: Final = "key string, t timestamp"


def write(rows: DataFrame, _: lws.Batch) -> None:
    """Write nothing: the watermark is what counts here."""
    rows.write.format("noop").mode("append").save()


def test_every_panel_of_spark_jobs_has_data(spark: SparkSession, tmp_path: Path) -> None:
    """A tracked query, and beside it one with Spark's own watermark that is only watched."""
    registry = CollectorRegistry()
    tracked, watched = Feed(tmp_path / "tracked"), Feed(tmp_path / "watched")
    (tmp_path / "authority").mkdir()
    exporter, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with (
            serving(tmp_path / "authority") as server,
            lowwater.connect(server.address) as lw,
            lws.attach(spark, server.address, prefix="guess.") as attachment,
            Prometheus(tmp_path / "prometheus", {"spark": [f"127.0.0.1:{exporter.server_port}"]}) as prometheus,
        ):
            figures = register(attachment, registry=registry)
            Upstream(lw).at(10)
            frame = spark.readStream.schema(SCHEMA).json(str(tracked.folder))
            stage = lws.stage(
                spark, "stage", inputs=["source"], key="key", event_time="t", ranges=4, address=server.address
            )
            figures.add(stage.foreach_batch(frame, write, checkpoint=tmp_path / "ck", name="enrich"))
            rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(watched.folder))
            hours = rows.withWatermark("t", "10 minutes").groupBy(window("t", "1 hour")).count()
            hours.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck2")).queryName(
                "hourly"
            ).start()
            tracked.put([row("a", 9), row("late", 9, 59), row("c", 11)])
            for hour in (9, 11, 13):
                watched.put([row("a", hour)])
            queries = [query for query in asked("lowwater-workloads", ".+") if "lowwater_spark_" in query.expr]
            assert len(queries) == 23
            missing = queries

            def none_missing() -> bool:
                nonlocal missing
                missing = [query for query in missing if not prometheus.series(query.expr)]
                return not missing

            eventually(none_missing, seconds=180, seen=lambda: (missing, attachment.status()))
            wanted = {each for rule in rules("alerts") for each in selectors(rule["expr"]) if "lowwater_spark_" in each}
            assert len(wanted) == 4
            assert [each for each in wanted if not prometheus.series(each)] == []
            for query in spark.streams.active:
                query.stop()
    finally:
        exporter.shutdown()
        exporter.server_close()
        thread.join()


def test_every_panel_of_stages_that_deduplicate_has_data(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    feed, numbers = Feed(tmp_path / "in"), itertools.count()
    figures, once = stage_figures.register(registry), Deduplication("key", "t")

    def unique(rows: DataFrame, batch: lws.Batch) -> None:
        found = once.of(batch, rows)
        batch.write(found.main, tmp_path / "out")
        figures.count("unique", batch, found.counts)

    (tmp_path / "authority").mkdir()
    exporter, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with (
            serving(tmp_path / "authority") as server,
            lowwater.connect(server.address) as lw,
            Prometheus(tmp_path / "prometheus", {"spark": [f"127.0.0.1:{exporter.server_port}"]}) as prometheus,
        ):
            Upstream(lw).at(10)
            stage = lws.stage(
                spark, "unique", inputs=["source"], key="key", event_time="t", ranges=1, address=server.address
            )
            frame = spark.readStream.schema(SCHEMA).json(str(feed.folder))
            query = stage.foreach_batch(frame, unique, checkpoint=tmp_path / "ck")
            queries = [each for each in asked("lowwater-dedup", ".+") if "lowwater_dedup_stage_" in each.expr]
            assert len(queries) == 6
            missing = queries

            def none_missing() -> bool:
                nonlocal missing
                feed.put([row("a", 11), row(f"fresh-{next(numbers)}", 11)])
                missing = [each for each in missing if not prometheus.series(each.expr)]
                return not missing

            eventually(none_missing, seconds=120, seen=lambda: (missing, query.query.exception()))
            query.stop()
    finally:
        exporter.shutdown()
        exporter.server_close()
        thread.join()
