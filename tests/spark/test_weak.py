"""Weak productions between two tracked stages over a real Kafka: sent while the batch runs, perhaps twice, and once behind the deduplication of the reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import Input, Weak, start
from lowwater_pipeline.computation.delivery import HEADER
from lowwater_pipeline.dedup.stage import Deduplication
from lowwater_spark.prometheus import register
from tests.kit.kafka import Kafka
from tests.kit.times import mark
from tests.spark.computations import Counts
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class Sent(Counts):
    """Sends its hours."""

    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", id="id")]

    def __init__(self, kafka: Kafka, topic: str, patience: timedelta) -> None:
        options = {"kafka.bootstrap.servers": kafka.address}
        self.productions = Weak({"hours": topic}, options, patience)  # type: ignore[misc]


class Pair:
    """The computation, and a stage that reads its topic and drops copies."""

    def __init__(self, flow: Flow, kafka: Kafka, topic: str) -> None:
        self.flow, self.kafka, self.topic = flow, kafka, topic
        self.doom: list[str] = []
        """Steps of a batch at which the driver dies, in turn."""
        self.patience = timedelta(minutes=1)
        kafka.create(topic, 2)

    def probe(self, step: str, batch: int) -> None:
        if self.doom and step == self.doom[0]:
            raise RuntimeError(self.doom.pop(0))

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
            probe=self.probe,
        )
        self.flow.queries.append(query)
        return query

    def receive(self) -> lws.TrackedQuery:
        dedup = Deduplication("id", "start")

        def write(rows: DataFrame, batch: lws.Batch) -> None:
            routed = dedup.of(batch, rows)
            batch.write(routed.main, self.flow.folder / "main")
            batch.write(routed.late.unionByName(routed.undecidable), self.flow.folder / "aside")

        options = {
            "kafka.bootstrap.servers": self.kafka.address,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "lowwater.brokers": "1",
            "kafka.metadata.max.age.ms": "500",
        }
        stream = self.flow.spark.readStream.format("kafka").options(**options).load()
        identity = sf.element_at(sf.map_from_entries("headers"), HEADER).cast("string").alias("id")
        fields = sf.from_json(sf.col("value").cast("string"), "key string, start timestamp, n long, number long")
        rows = stream.select(identity, fields.alias("row")).select("id", "row.*")
        stage = lws.stage(
            self.flow.spark,
            "once",
            inputs=["counts"],
            key="id",
            event_time="start",
            ranges=2,
            address=self.flow.address,
        )
        query = stage.foreach_batch(rows, write, checkpoint=self.flow.folder / "ck2")
        self.flow.queries.append(query)
        return query

    def rows(self, folder: str, schema: str) -> list[Row]:
        path = self.flow.folder / folder
        path.mkdir(exist_ok=True)
        return self.flow.spark.read.option("recursiveFileLookup", "true").schema(schema).parquet(str(path)).collect()

    def out(self, folder: str) -> list[tuple[str, int, int]]:
        rows = self.rows(folder, "id string, key string, start timestamp, n long, number long")
        return sorted((each.key, each.start.hour, each.n) for each in rows)

    def keys(self) -> list[str]:
        return sorted(each.key for each in self.rows("keys", "key string, t timestamp"))


@pytest.fixture
def pair(flow: Flow, kafka: Kafka, tmp_path: Path) -> Pair:
    return Pair(flow, kafka, tmp_path.name)


def record(key: str, hour: int, number: int) -> dict[str, str]:
    return {"id": f"{key}-{hour}-{number}", **row(key, hour, number)}


def test_rows_come_once_behind_the_readers_deduplication_whatever_dies(
    pair: Pair, lw: lowwater.Client, upstream: Upstream
) -> None:
    """A driver that dies when rows are sent and nothing is durable sends them again, with the same ids."""
    flow = pair.flow
    sent = [(key, hour, number) for key in "abcde" for hour in (9, 10) for number in range(3)]
    flow.feed.put([record(*each) for each in sent if each[1] == 9])
    upstream.at(9)
    pair.send()
    pair.receive()
    flow.eventually(lambda: low(lw, "once") == mark(9), "both stages are tracked")
    for step, hour in (("state", 10), ("written", 11)):
        pair.doom = [step]
        flow.feed.put([record(*each) for each in sent if each[1] == hour])
        upstream.at(hour)
        flow.eventually(lambda: not flow.queries[0].query.isActive, f"it dies at {step}")
        assert pair.doom == []
        flow.queries[0] = pair.send()
    flow.eventually(lambda: low(lw, "once") == mark(11), "everything has come")
    expected = [(key, hour, n) for (key, hour), n in sorted(Counter(each[:2] for each in sent).items())]
    assert pair.out("main") == expected
    assert pair.out("aside") == []
    assert len(pair.kafka.rows(pair.topic)) >= len(expected)


def test_rule5_a_broker_that_is_away_holds_and_the_batches_go_on(
    pair: Pair, lw: lowwater.Client, upstream: Upstream
) -> None:
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
        said = f"an unacknowledged production to the topic {pair.topic} since {lowwater.Watermark(round(status.unsent_since * 1e6))}, the oldest of {mark(9)}"
        assert status.waiting_for == (said,)
        registry = CollectorRegistry()
        register(again, registry=registry)
        labels = {"query": str(again.query.name), "computation": "counts"}
        assert registry.get_sample_value("lowwater_spark_unsent_rows", labels) == 1
        since = registry.get_sample_value("lowwater_spark_unsent_since_timestamp_seconds", labels)
        assert since == status.unsent_since
        flow.eventually(lambda: said in str(lw.why("counts")), "and so does the authority, to whoever asks why")
    finally:
        broker.resume()
    upstream.at(11)
    pair.receive()
    flow.eventually(lambda: low(lw, "once") == mark(11), "all is acknowledged, and read")
    assert (again.stage_status().unsent_rows, again.stage_status().unsent_since) == (0, None)
    assert pair.out("main") == [("a", 9, 1), ("a", 10, 1), ("b", 10, 1)]
