"""Weak productions of a tracked stage over a real Kafka: its low watermark waits for them, and its batches do not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import Input, Weak, start
from lowwater_spark.prometheus import register
from tests.kit.kafka import Kafka
from tests.kit.times import mark
from tests.spark.computations import Counts
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Sent(Counts):
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", id="id")]

    def __init__(self, kafka: Kafka, topic: str, patience: timedelta) -> None:
        options = {"kafka.bootstrap.servers": kafka.address}
        self.productions = Weak({"hours": topic}, options, patience)  # type: ignore[misc]


class Pair:
    def __init__(self, flow: Flow, kafka: Kafka, topic: str) -> None:
        self.flow, self.kafka, self.topic = flow, kafka, topic
        self.patience = timedelta(minutes=1)
        kafka.create(topic, 2)

    def send(self) -> lws.TrackedQuery:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            assert [*outputs] == ["keys"]
            batch.write(outputs["keys"], self.flow.folder / "keys")

        frame = self.flow.read("id string, key string, t timestamp")
        query = start(
            Sent(self.kafka, self.topic, self.patience),
            frame,
            write,
            checkpoint=self.flow.folder / "ck",
            ranges=2,
            address=self.flow.address,
        )
        self.flow.queries.append(query)
        return query

    def sent(self) -> list[tuple[str, int]]:
        values = {row.value for row in self.kafka.rows(self.topic)}
        return sorted((row["key"], row["n"]) for row in map(json.loads, values))

    def keys(self) -> list[str]:
        path = self.flow.folder / "keys"
        path.mkdir(exist_ok=True)
        read = self.flow.spark.read.option("recursiveFileLookup", "true").schema("key string, t timestamp")
        return sorted(row.key for row in read.parquet(str(path)).collect())


@pytest.fixture
def pair(flow: Flow, kafka: Kafka, tmp_path: Path) -> Pair:
    return Pair(flow, kafka, tmp_path.name)


def record(key: str, hour: int, number: int) -> dict[str, str]:
    return {"id": f"{key}-{hour}-{number}", **row(key, hour, number)}


def test_rule5_a_missing_broker_holds_and_batches_go_on(pair: Pair, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = pair.flow
    [broker] = pair.kafka.brokers
    flow.feed.put([record("a", 9, 0), record("a", 10, 0)])
    upstream.at(9)
    query = pair.send()
    flow.eventually(lambda: low(lw, "counts") == mark(9), "it is tracked")
    query.stop()
    pair.patience = timedelta(milliseconds=200)
    again = pair.send()
    broker.pause()
    try:
        upstream.at(10)
        flow.eventually(lambda: (again.stage_status().batch or 0) > 0, "a batch has ended without Kafka")
        flow.feed.put([record("b", 10, 0)])
        flow.eventually(lambda: pair.keys() == ["a", "b"], "the other output goes on")
        assert low(lw, "counts") == mark(9)
        flow.eventually(lambda: again.stage_status().unsent_rows == 1, "the status says how many rows wait")
        status = again.stage_status()
        assert status.unsent_oldest == mark(9)
        assert status.unsent_since is not None
        reason = f"an unacknowledged production to the topic {pair.topic} since {lowwater.Watermark(round(status.unsent_since * 1e6))}, the oldest of {mark(9)}"
        assert status.waiting_for == (reason,)
        registry = CollectorRegistry()
        register(again, registry=registry)
        labels = {"query": str(again.query.name), "computation": "counts"}
        assert registry.get_sample_value("lowwater_spark_unsent_rows", labels) == 1
        since = registry.get_sample_value("lowwater_spark_unsent_since_timestamp_seconds", labels)
        assert since == status.unsent_since
        flow.eventually(lambda: reason in str(lw.why("counts")), "and so does the authority, to whoever asks why")
    finally:
        broker.resume()
    upstream.at(11)
    flow.eventually(lambda: low(lw, "counts") == mark(11), "all is acknowledged")
    assert (again.stage_status().unsent_rows, again.stage_status().unsent_since) == (0, None)
    assert pair.sent() == [("a", 1), ("a", 1), ("b", 1)]
