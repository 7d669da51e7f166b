"""A kind of source is one class and one line of a table: it is then a tracked stage's, an injector's, a driven query's and a sidecar's."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.sources.kinds import KINDS
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row
from tests.spark.tape import Tape, TapeSource
from tests.spark.taped import TAPE, TapeInput

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def newest(rows: DataFrame, batch: lws.Batch) -> None:
    [[micros]] = rows.agg(sf.unix_micros(sf.max("t"))).collect()
    batch.frontier(max(batch.previous_frontier, lowwater.Watermark(MIN if micros is None else micros)))


def test_a_toy_is_the_source_of_all_four(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, TAPE, TapeInput)
    flow.spark.dataSource.register(TapeSource)
    tape, folder = Tape(flow.folder / "tape"), flow.folder
    hours: list[tuple[str, int]] = []

    def taped() -> DataFrame:
        return flow.spark.readStream.format(TAPE).load(str(tape.path))

    def closed(rows: DataFrame, batch: lws.Batch) -> None:
        hours.extend((row["key"], row["count"]) for row in rows.collect())

    driven = lws.drive(taped(), inputs=["source"], event_time="t").groupBy(sf.window("t", "1 hour"), "key").count()
    windows = driven.select("key", sf.col("window.start").alias("t"), "count")
    injector = lws.injector(flow.spark, "injector", key="key", event_time="t", address=flow.address)

    def start() -> None:
        flow.start(flow.plain, stream=taped())
        flow.queries.append(injector.foreach_batch(taped(), newest, checkpoint=folder / "ck-injector"))
        flow.start(closed, "driven", stream=windows, checkpoint="ck-driven")

    tape.put(row("a", 9), row("b", 9, 30), row("a", 10))
    start()
    job = taped().writeStream.format("json").option("checkpointLocation", str(folder / "ck-job"))
    running = job.start(str(folder / "out-job"))
    flow.eventually((folder / "ck-job" / "metadata").exists, "the job has begun")
    sidecar = lws.track(
        "sidecar",
        checkpoint=str(folder / "ck-job"),
        inputs=["source"],
        sources=[f"{TAPE}:{tape.path}"],
        promises=["nothing-skipped", "sink-visible-before-commit", "history"],
        state=folder / "state",
        address=flow.address,
    )
    try:
        upstream.at(10)
        for name in ("stage", "injector", "driven", "sidecar"):
            # A window is stamped by its start, and rows of the last hour are not complete.
            flow.eventually(lambda name=name: low(lw, name) == mark(10), name)  # type: ignore[misc]
        flow.eventually(lambda: sorted(hours) == [("a", 1), ("b", 1)], "the first hour")
        for query in flow.queries:
            query.stop()
        flow.queries.clear()
        tape.put(row("c", 11))
        upstream.at(11)
        flow.eventually(lambda: low(lw, "sidecar") == mark(11), "which goes on")
        start()
        for name in ("stage", "injector", "driven"):
            flow.eventually(lambda name=name: low(lw, name) == mark(11), f"{name}, after a restart")  # type: ignore[misc]
        flow.eventually(lambda: sorted(hours) == [("a", 1), ("a", 1), ("b", 1)], "the next hour")
    finally:
        sidecar.stop()
        running.stop()
