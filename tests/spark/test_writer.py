"""A stage that is started with a DataStreamWriter: what the writer was told is kept, or refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lowwater
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.output.times import check_times, exact_times
from lowwater_spark.track.run.hook import Hook
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow


def make(flow: PlainFlow) -> DataStreamWriter:
    return flow.read().writeStream.option("checkpointLocation", str(flow.folder / "ck"))


def test_a_stage_starts_a_writer_as_it_was_told(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("b", 9, 30)])
    upstream.at(10)
    writer = make(flow).format("json").option("path", str(flow.folder / "out")).partitionBy("key").queryName("theirs")
    writer = writer.foreachBatch(print).format("json")  # what was said last counts
    query = flow.stage().start(writer.option("timestampFormat", "yyyy").trigger(availableNow=True))
    flow.queries.append(query)
    assert query.await_termination(60)
    assert (query.name, low(lw, "stage")) == ("theirs", mark(10))
    assert flow.out() == ["a", "b"]
    files = sorted((flow.folder / "out").glob("key=*/*.json"))
    assert [file.parent.name for file in files] == ["key=a", "key=b"]
    assert '"2013"' in files[0].read_text()


def test_a_stage_with_a_function_takes_a_writer(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    got: list[lowwater.Watermark] = []
    upstream.at(10)
    flow.feed.put([row("a", 9)])
    writer = make(flow).queryName("theirs").trigger(processingTime="100 milliseconds")
    query = flow.stage().foreach_batch(writer, lambda _rows, batch: got.append(batch.low))
    flow.queries.append(query)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "it follows")
    assert (query.name, got[0]) == ("theirs", mark(10))
    batches = query._run.batches
    assert isinstance(batches, Hook)
    assert batches.ticks.trigger == 0.1, "it has patience with Spark for as long as its trigger asks for"


def test_a_writer_and_arguments_are_not_mixed(flow: PlainFlow) -> None:
    writer, frame = make(flow), flow.read()
    mixed: list[tuple[Any, dict[str, Any], str]] = [
        (writer, {"trigger": {"once": True}}, "trigger was passed beside a writer"),
        (writer, {"maxRecordsPerFile": 7}, "options was passed beside a writer"),
        (frame.writeStream, {}, "the writer has no checkpoint"),
        (frame, {"checkpoint": "ck"}, "format is missing"),
        (frame, {"format": "noop"}, "checkpoint is missing"),
    ]
    for writer_, arguments, reason in mixed:
        with pytest.raises(ValueError, match=reason):
            flow.stage().start(writer_, **arguments)


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_times_are_written_with_their_microseconds(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    schema = "t timestamp, plain timestamp_ntz"
    text = "2013-01-09 09:00:00.000700"
    rows = spark.sql(f"SELECT timestamp'{text}' AS t, timestamp_ntz'{text}' AS plain")
    check_times(rows, file_format)
    rows.write.format(file_format).options(**exact_times(file_format)).save(str(tmp_path / "out"))
    [row] = spark.read.schema(schema).format(file_format).load(str(tmp_path / "out")).collect()
    assert (row.t.microsecond, row.plain.microsecond) == (700, 700)


def test_a_sink_of_texts_keeps_microseconds(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([{"key": "a", "t": "2013-01-09T09:00:00.000700Z"}])
    upstream.at(10)
    query = flow.start(trigger={"availableNow": True})
    assert query.await_termination(60)
    assert [path.read_text().count(".000700Z") for path in (flow.folder / "out").glob("*.json")] == [1]
    frame = flow.read()
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    try:
        with pytest.raises(Unsupported, match="TIMESTAMP_MILLIS"):
            flow.start(frame, checkpoint="other", format="parquet", path=flow.folder / "other out")
    finally:
        frame.sparkSession.conf.unset("spark.sql.parquet.outputTimestampType")
