"""docs/start/examples.md, a Kafka job: its blocks are run, in their order, over a broker, and count what is there, with a partition that is hours behind."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.process.serving import Serving
from tests.spark.start_page import BLOCK

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs/start/examples.md"
TEN = datetime(2013, 1, 9, 10, tzinfo=UTC)


def order(shop: str, hours: float, partition: int) -> Row:
    at = (TEN + timedelta(hours=hours)).isoformat()
    return Row(json.dumps({"shop": shop, "at": at, "amount": 1.0}).encode(), partition=partition)


def test_the_moved_job_counts_what_the_old_one_drops(
    spark: SparkSession, kafka: Kafka, authority: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWWATER_ADDRESS", authority.address)
    spark.conf.set("spark.lowwater.address", authority.address)
    kafka.create("orders", 2)
    for topic in ("counts", "counts-exact"):
        kafka.create(topic)
    # Partition 1 is three hours behind partition 0.
    kafka.put("orders", [order("a", -0.5, 0), order("b", -0.9, 1), order("a", 3.5, 0)])
    section = PAGE.read_text(encoding="utf-8").partition("\n## A Kafka job, moved\n")[2].partition("\n## ")[0]
    blocks = [code for language, code in BLOCK.findall(section) if language == "python"]
    names: dict[str, Any] = {}

    def run(which: str) -> None:
        block = blocks.pop(0)
        assert which in block
        code = block.replace("broker:9092", kafka.address).replace("localhost:7420", authority.address)
        code = code.replace('"checkpoints/', f'"{tmp_path}/')  # this Spark started in another folder
        exec(compile(code, PAGE.name, "exec"), names)

    run("BROKERS")
    run("attach")
    eventually(lambda: kafka.rows("counts", committed=False), "the old job closes the hour")
    kafka.put("orders", [order("b", -0.4, 1), order("b", 3.4, 1)])
    names["running"].processAllAvailable()
    run("injector")
    run("drive")
    run("wait")
    run("stop")
    for query in ("new", "watching"):
        names[query].stop()
    names["lw"].close()
    names["seen"].stop()
    assert not blocks

    def nine(topic: str) -> dict[str, int]:
        totals = [json.loads(row.value) for row in kafka.rows(topic, committed=topic == "counts-exact")]
        return {total["shop"]: total["count"] for total in totals if total["hour"].startswith("2013-01-09T09")}

    assert nine("counts") == {"a": 1, "b": 1}, "the old job has dropped the late order of b"
    assert nine("counts-exact") == {"a": 1, "b": 2}
