"""A job over Kafka that nobody changes, tracked by its checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.support import Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def test_topics_are_followed_and_only_those_that_are_declared(
    kafka: Kafka, spark: SparkSession, authority: Serving, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    def put(topic: str, hour: int) -> None:
        kafka.put(topic, [Row(json.dumps({"key": topic, "t": at(hour).isoformat()}).encode())])

    def follow(topics: str, state: str = "state", *more: str, checkpoint: str = "ck") -> lws.Sidecar:
        declared: dict[str, Any] = {
            "checkpoint": str(tmp_path / checkpoint),
            "inputs": ["source"],
            "sources": [f"kafka:{topics},kafka.bootstrap.servers={kafka.address},lowwater.brokers=1"],
            "promises": ["nothing-skipped", "sink-visible-before-commit", *more],
        }
        where: dict[str, Any] = {"state": tmp_path / state, "address": authority.address, "spark": lambda: spark}
        return lws.track("stage", **declared, **where)

    for topic in ("a", "b"):
        kafka.create(topic)
        put(topic, 9)
    upstream.at(10)
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": "a,b", "startingOffsets": "earliest"}
    stream = spark.readStream.format("kafka").options(**options).load()
    job = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck")).start()
    log = CheckpointLog(tmp_path / "ck")
    sidecar = None
    try:
        eventually(lambda: log.last_committed() == 0, "both are read")
        with pytest.raises(CheckpointMismatch, match="read the topic b of Kafka, which is not among a"):
            follow("a", "state", "history")
        with pytest.raises(Unsupported, match="before anybody looked"):
            follow("a+b")
        uncommitted = shutil.ignore_patterns("commits")
        shutil.copytree(tmp_path / "ck", tmp_path / "begun", ignore=uncommitted)
        with pytest.raises(Unsupported, match=r"first batch is planned already.*history"):
            follow("a+b", "begun-state", checkpoint="begun")
        sidecar = follow("a+b", "state", "history")
        eventually(lambda: low(lw, "stage") == mark(10), "all that both had is committed")
        put("b", 10)
        upstream.at(11)
        eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
        job.stop()
        put("a", 11)
        upstream.at(12)
        eventually(lambda: "partition 0 of a" in " ".join(sidecar.status().waiting_for), "the job is away")
        # Made anew and grown past what was read: the old offsets are those of other rows.
        kafka.delete("a")
        kafka.create("a")
        for _ in range(5):
            put("a", 11)
        upstream.at(13)
        eventually(lambda: "another one" in " ".join(sidecar.status().waiting_for), "it is another topic")
        assert low(lw, "stage") == mark(11)
        sidecar.stop()
        with pytest.raises(CheckpointMismatch, match="another one"):
            follow("a+b")
        assert low(lw, "stage") == mark(11)
    finally:
        job.stop()
        if sidecar is not None:
            sidecar.stop()
