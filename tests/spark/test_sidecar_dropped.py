"""Rows that Spark drops as late, counted by a sidecar that reads them again: exactly those that plain Python finds, by hour, and no number where something was not read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.support import Upstream, row
from tests.spark.test_sidecar import Elsewhere, hours

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = Elsewhere

BATCHES = [
    [("a", 9, 10), ("a", 10, 0)],
    [("a", 11, 0), ("b", 9, 30)],
    [("a", 13, 0), ("b", 8, 59), ("b", 9, 0)],
    [*[("c", 9, minute % 60) for minute in range(100)], ("c", 11, 59), ("c", 12, 0), ("a", 13, 1)],
    [("z", 16, 0)],
]
"""Rows of each batch of a job: key, hour and minute. The last one closes the windows before it."""


def hour_of(hour: int) -> str:
    return str(mark(hour))


def dropped(batches: list[list[tuple[str, int, int]]]) -> dict[str, int]:
    """Return the rows that a window of an hour and a delay of 20 minutes lose, by their hour.

    After each batch Spark runs one without rows, so a batch drops by the rows of all before it.
    """
    lost, newest = Counter[str](), 0
    for rows in batches:
        lost.update(hour_of(hour) for _, hour, _ in rows if hour * 60 + 60 <= newest - 20)
        newest = max([newest, *(hour * 60 + minute for _, hour, minute in rows)])
    return dict(sorted(lost.items()))


EXPECTED = {hour_of(8): 1, hour_of(9): 101, hour_of(11): 1}


def settled(log: CheckpointLog) -> bool:
    """Return whether all planned batches are committed, and the last one was without rows."""
    last = log.last_committed()
    if last is None or last != log.last_planned():
        return False
    plans = [log.plan(number) for number in (last - 1, last)]
    return plans[0] is not None and plans[1] is not None and plans[0].lines == plans[1].lines


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in out.glob("*.json") for line in path.read_text().splitlines()]


def written(out: Path) -> Counter[str]:
    """Return the rows that the job has counted, by the hour of their window."""
    hourly = Counter[str]()
    for each in lines(out):
        hourly[str(lowwater.Watermark.of(datetime.fromisoformat(each["t"])))] += each["count"]
    return hourly


def fed(batches: list[list[tuple[str, int, int]]]) -> Counter[str]:
    return Counter(hour_of(hour) for rows in batches for _, hour, _ in rows)


def test_dropped_rows_of_files_are_those_that_plain_python_finds(
    flow: Elsewhere, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.at(9)
    declared: dict[str, Any] = {
        "windows": "1h",
        "output_mode": "append",
        "sources": [f"files:{flow.folder / 'in'},recursiveFileLookup=true"],
        "dropped": [{"event_time": "t", "format": "json", "schema": "key string, t timestamp"}],
        "spark": lambda: flow.spark,
    }
    log = CheckpointLog(flow.folder / "ck")
    job = flow.job(hours(flow.read()))
    flow.begun()
    sidecar = flow.follow(**declared)
    for number, rows in enumerate(BATCHES):
        if number == 3:
            sidecar.stop()
        flow.feed.put([row(*each) for each in rows])
        job.processAllAvailable()
        flow.eventually(lambda: settled(log), "the batch without rows has run")
        if number == 3:
            sidecar = flow.follow(**declared)
    flow.eventually(lambda: sidecar.status().dropped_through == log.last_committed(), "all is counted")
    status = sidecar.status()
    assert status.dropped_hours == dropped(BATCHES) == EXPECTED, "also what came while the sidecar was away"
    assert (status.dropped_rows, status.dropped_uncounted) == (103, "")
    assert status.dropped_example == f"2013-01-09T08:59:00Z, file:{flow.feed.folder}/00003.json, batch 4"
    assert "Spark has dropped 101 rows of batch" in caplog.text
    assert written(flow.folder / "out") + Counter(status.dropped_hours) == fed(BATCHES[:-1]), "Spark has lost these"
    told = sum(
        operator["numRowsDroppedByWatermark"] for each in job.recentProgress for operator in each["stateOperators"]
    )
    assert told < 103, "Spark counts less"

    sidecar.stop()
    before = set(flow.feed.folder.rglob("*.json"))
    flow.feed.put([row("late", 9)])
    job.processAllAvailable()
    flow.eventually(lambda: log.last_planned() == log.last_committed(), "the batch is committed")
    for path in set(flow.feed.folder.rglob("*.json")) - before:
        path.unlink()
    again = flow.follow(**declared)
    flow.eventually(lambda: "was removed" in again.status().dropped_uncounted, "a file that is gone is no 0")
    assert again.status().dropped_hours == EXPECTED


HELD = {"retention": "1h", "output_mode": "append"}


def counts(frame: DataFrame, group: Column | str) -> DataFrame:
    return frame.groupBy("key", group).agg(sf.count("*").alias("rows")).select("rows")


@pytest.mark.parametrize(
    ("judged_by", "held", "query", "expected"),
    [
        ({"session": "30m"}, HELD, lambda frame: counts(frame, sf.session_window("t", "30 minutes")), {9: 2}),
        ({"row": True}, HELD, lambda frame: counts(frame, "t"), {9: 4, 10: 1}),
        (
            {"row": True},
            None,
            lambda frame: frame.dropDuplicates(["key", "t"]).select(sf.lit(1).alias("rows")),
            {9: 4, 10: 1},
        ),
    ],
    ids=["sessions", "groups by the event time", "deduplication"],
)
def test_each_operator_drops_by_its_own_rule(
    flow: Elsewhere,
    upstream: Upstream,
    judged_by: dict[str, Any],
    held: dict[str, str] | None,
    query: Callable[[DataFrame], DataFrame],
    expected: dict[int, int],
) -> None:
    upstream.at(9)
    folder = flow.folder / "odd names"
    log = CheckpointLog(flow.folder / "ck")
    minutes = [(9, 25), (9, 30), (9, 45), (9, 50), (10, 0), (10, 1), (10, 21)]
    batches = [[(9, 0), (10, 20)], minutes, [(16, 0)]]
    job = sidecar = None
    for number, rows in enumerate(batches):
        into = folder / f"part=a%20{number} b"
        into.mkdir(parents=True)
        (into / ".new").write_text("\n".join(json.dumps(row("a", *each)) for each in rows))
        (into / ".new").rename(into / "é {1}.json")
        if job is None:  # Spark finds the columns of partitions in what is there now
            stream = flow.spark.readStream.schema("key string, t timestamp, part string").json(str(folder))
            job = flow.job(query(stream.withWatermark("t", "20 minutes")))
        job.processAllAvailable()
        flow.eventually(lambda: settled(log), "the batch without rows has run")
        if sidecar is None:
            declared = {"event_time": "t", "format": "json", "schema": "key string, t timestamp, part string"}
            sidecar = flow.follow(
                "history",
                sources=[{"kind": "files", "path": str(folder), "options": {"partitions": "part"}}],
                dropped=[{**declared, "where": f"part <> 'a%20{len(batches)} b'", **judged_by}],
                spark=lambda: flow.spark,
                **(held or {}),
            )
    assert sidecar is not None
    counting = sidecar
    flow.eventually(lambda: counting.status().dropped_through == log.last_committed(), "all is counted")
    status = counting.status()
    assert (status.dropped_uncounted, status.dropped_hours) == (
        "",
        {hour_of(hour): rows for hour, rows in expected.items()},
    )
    assert sum(each["rows"] for each in lines(flow.folder / "out")) + status.dropped_rows + (1 if held else 0) == sum(
        map(len, batches)
    ), "Spark has lost these"


def test_dropped_rows_of_topics_are_those_that_plain_python_finds(
    kafka: Kafka, spark: SparkSession, authority: Serving, upstream: Upstream, tmp_path: Path
) -> None:
    kafka.create("late", 2)
    upstream.at(9)
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": "late", "startingOffsets": "earliest"}
    value = "from_json(cast(value as string), 'key string, t timestamp')"
    stream = spark.readStream.format("kafka").options(**options).load().selectExpr(f"{value} as row").select("row.*")
    writer = hours(stream.where("key <> 'skipped'")).writeStream.format("json").option("path", str(tmp_path / "out"))

    def follow() -> lws.Sidecar:
        return lws.track(
            "stage",
            checkpoint=str(tmp_path / "ck"),
            inputs=["source"],
            sources=[f"kafka:late,kafka.bootstrap.servers={kafka.address},lowwater.brokers=1"],
            promises=["nothing-skipped", "sink-visible-before-commit", "history"],
            state=tmp_path / "state",
            address=authority.address,
            spark=lambda: spark,
            retention="1h",
            stamp="1h",
            output_mode="append",
            dropped=[{"event_time": f"{value}.t", "where": f"{value}.key <> 'skipped'", "window": "1h"}],
        )

    job = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
    log = CheckpointLog(tmp_path / "ck")
    sidecar = None
    try:
        eventually((tmp_path / "ck" / "metadata").exists, "the job has begun")
        sidecar = follow()
        for rows in BATCHES:
            values = [json.dumps(row(*each)).encode() for each in [*rows, ("skipped", 0, 0)]]
            kafka.put("late", [Row(line, partition=number % 2) for number, line in enumerate(values)])
            job.processAllAvailable()
            eventually(lambda: settled(log), "the batch without rows has run")
        counting = sidecar
        eventually(lambda: counting.status().dropped_through == log.last_committed(), "all is counted")
        status = counting.status()
        counting.stop()
        kafka.put("late", [json.dumps(row("late", 9)).encode(), json.dumps(row("late", 17)).encode()])
        job.processAllAvailable()
        eventually(lambda: settled(log), "the batch without rows has run")
        removed = TopicPartition("late", 0, kafka.end("late"))
        kafka.admin.delete_records([removed])[removed].result(60)
        sidecar = after = follow()
        eventually(lambda: "Kafka has deleted rows of partition 0 of late" in after.status().dropped_uncounted)
        assert after.status().dropped_hours == EXPECTED, "what is gone is no 0"
    finally:
        job.stop()
        if sidecar is not None:
            sidecar.stop()
    assert (status.dropped_uncounted, status.dropped_hours) == ("", EXPECTED)
    assert "2013-01-09T08:59:00Z, partition 1 of late, offset 2, batch" in status.dropped_example
    assert written(tmp_path / "out") + Counter(status.dropped_hours) == fed(BATCHES[:-1]), "Spark has lost these"
