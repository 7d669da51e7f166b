"""docs/start/fit.md says of each source, query, sink, trigger and platform what the code does with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.connect.session import SparkSession as ConnectSession

import lowwater_spark as lws
from tests.spark.support import Feed

PAGE = Path(__file__).parents[2] / "docs/start/fit.md"
SCHEMA = "key string, t timestamp"
ELSEWHERE = "s3a://bucket/folder"
HOUR = timedelta(hours=1)
CONNECT = "Spark Connect, and platforms that offer nothing else"

NOT_ASKED = {
    "declarative pipelines (`spark-pipelines`)": "tests/spark/test_pipelines.py",
    "Kafka, its brokers declared": "tests/spark/test_kafka.py",
    "`rate`, a Python data source": "tests/spark/test_opaque.py",
    "`socket`": "tests/spark/test_opaque.py",
    "static tables, joined to a stream": "tests/spark/test_refusals.py",
    "filters, projections, unions, `dropDuplicates`": "tests/spark/test_refusals.py",
    "`batch.write_table`": "tests/spark/test_table_out.py",
    "`batch.write_kafka`": "tests/spark/test_kafka_out.py",
    "`PostgresOutput`, `DeltaOutput` of `lowwater-pipeline`": "tests/spark/test_postgres_out.py, test_delta_guard.py",
    "Kinesis, Pub/Sub": "Spark alone does not have them, and `rate` is a source of their kind",
    "Delta tables": "tests/spark/test_delta.py",
    "Iceberg tables": "tests/iceberg",
    "Hudi": "a source of the kind of `rate`, which is asked",
    "the same on HDFS, S3 or GCS": "tests/spark/test_stored_files.py",
    "the same on Azure": "tests/unit/test_spark_folders.py",
    "the same on another file system": "tests/unit/test_spark_folders.py",
    "Spark's file sink on an object store": "Spark makes its folder at the start",
    "Delta, Iceberg and other tables that commit in the batch": "Spark alone does not have them",
    "a classic session on one machine, or on a standalone cluster": "what all tests of Spark run on",
    "a checkpoint on HDFS": "tests/spark/test_hdfs.py",
    "a checkpoint on S3": "tests/spark/test_s3.py",
    "a checkpoint on GCS": "tests/spark/test_s3.py",
    "YARN, Kubernetes": "tests/cluster/test_manifests.py",
    "PySpark 4.0 and 4.1": "tests/floors",
    "Spark 3.5": "tests/floors",
    "Linux": "what the tests run on",
}
"""Rows that are true by other tests, or by what is written elsewhere."""


def tables() -> dict[str, dict[str, str]]:
    """Return the page's tables: by the first cell of a row, the heading of each column, and the cell."""
    found: dict[str, dict[str, str]] = {}
    kinds, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## Beside other watermarks\n")
    kinds = re.sub(r"<!-- table: matrix -->.*?<!-- end -->", "", kinds, flags=re.DOTALL)  # tests/matrix makes it
    for table in re.findall(r"^(?:\|.*\n)+", kinds, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for first, *cells in rows:
            assert first not in found, f"the page has two rows for {first}"
            found[first] = dict(zip(head[1:], cells, strict=True))
    return found


Read = Callable[[SparkSession, str], DataFrame]


def files(kind: str) -> Read:
    """Reads a folder as files of a format."""
    return lambda spark, folder: spark.readStream.schema(SCHEMA).format(kind).option("rowTag", "row").load(folder)


def json(spark: SparkSession, folder: str) -> DataFrame:
    return files("json")(spark, folder)


def text(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.text(folder).selectExpr("value as key", "timestamp'2013-01-09' as t")


def binary(spark: SparkSession, folder: str) -> DataFrame:
    schema = "path string, modificationTime timestamp, length long, content binary"
    frame = spark.readStream.schema(schema).format("binaryFile").load(folder)
    return frame.selectExpr("path as key", "modificationTime as t")


def sessions(frame: DataFrame) -> DataFrame:
    windows = frame.groupBy("key", sf.session_window("t", "1 hour")).count()
    return windows.select("key", sf.col("session_window.start").alias("t"), "count")


def windows(frame: DataFrame) -> DataFrame:
    hours = frame.groupBy(sf.window("t", "1 hour"), "key").count()
    return hours.select("key", sf.col("window.start").alias("t"), "count")


@dataclass(frozen=True, slots=True)
class Ask:
    """A query that has just that in it."""

    read: Read = json
    then: Callable[[DataFrame], DataFrame] = lambda frame: frame
    """The function of the frame that was read, and driven if it is."""
    own: bool = False
    """True if the query has a withWatermark when it is not driven."""
    retention: timedelta | None = None
    function: bool = False
    """True if the query is started with a function for its batches."""
    checkpoint: str = ""
    sink: str = ""
    """A format; empty: files, in a folder that another query has written to, which is looked at last."""
    trigger: Mapping[str, str | bool] | None = None
    output_mode: str = "append"
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, spark: SparkSession, feed: Feed, folder: Path, *, drive: bool) -> str:
        frame = self.read(spark, str(feed.folder))
        if drive:
            frame = lws.drive(frame, inputs=["source"], event_time="t")
        elif self.own:
            frame = frame.withWatermark("t", "10 minutes")
        stage = lws.stage(
            spark, "fit", inputs=["source"], key="key", event_time="t", retention=self.retention, address="127.0.0.1:1"
        )
        checkpoint = self.checkpoint or (ELSEWHERE if self.function or self.sink else str(folder / "ck"))
        try:
            if self.function:
                stage.foreach_batch(self.then(frame), lambda _rows, _batch: None, checkpoint=checkpoint)
            else:
                stage.start(
                    self.then(frame),
                    checkpoint=checkpoint,
                    format=self.sink or "parquet",
                    path=None if self.sink else folder / "written",
                    trigger=self.trigger,
                    output_mode=self.output_mode,
                    **self.options,
                )
        except lws.CheckpointMismatch:
            return "exact"
        except lws.Unsupported as refusal:
            return "exact" if str(refusal).startswith(f"The checkpoint {ELSEWHERE} ") else "refused"
        pytest.fail("it was started")

    def begins(self, spark: SparkSession, feed: Feed) -> str:
        """Return the code's answer for an injector over the frame: "the same" when only its checkpoint is refused."""
        stage = lws.injector(spark, "fit", key="key", event_time="t", address="127.0.0.1:1")
        frame = self.read(spark, str(feed.folder))
        with pytest.raises(lws.Unsupported) as refusal:
            stage.foreach_batch(frame, lambda _rows, _batch: None, checkpoint=ELSEWHERE)
        return "exact" if str(refusal.value).startswith(f"The checkpoint {ELSEWHERE} ") else "refused"


ASKED: Mapping[str, Sequence[Ask]] = {
    "`csv`, `json`, `orc`, `parquet`, `text` files in a local or NFS directory": [
        *(Ask(files(kind)) for kind in ("csv", "json", "orc", "parquet")),
        Ask(text),
    ],
    "other formats of files: `xml`, `binaryFile`, Avro": [Ask(files("xml")), Ask(binary)],
    "windows of Spark's own": [Ask(then=windows, own=True), Ask(then=windows, own=True, retention=HOUR)],
    "sessions, stream joins, stateful functions of Spark's own": [Ask(then=sessions, own=True, retention=HOUR)],
    "windows without a `withWatermark`": [Ask(then=windows), Ask(then=windows, retention=HOUR)],
    "the others without a `withWatermark` or without a `retention`": [Ask(then=sessions, own=True), Ask(then=sessions)],
    "state of yours, with `batch.stateful`": [Ask(function=True)],
    "the output mode `update`": [Ask(then=windows, own=True, retention=HOUR, output_mode="update")],
    "the output mode `complete`": [Ask(then=windows, own=True, retention=HOUR, output_mode="complete")],
    "the option `asyncProgressTrackingEnabled`": [Ask(options={"asyncProgressTrackingEnabled": "true"})],
    "`batch.write`": [Ask(function=True)],
    "Spark's file sink on a local or NFS directory": [Ask()],
    "Kafka with `acks=all`": [Ask(sink="kafka", options={"kafka.acks": "all"}), Ask(sink="kafka")],
    "Kafka with other `acks`": [Ask(sink="kafka", options={"kafka.acks": acks}) for acks in ("0", "1")],
    "a `foreachBatch` function of yours": [Ask(function=True)],
    "`console`, `memory`, `noop`": [Ask(sink=kind) for kind in ("console", "memory", "noop")],
    "none, `processingTime`": [Ask(), Ask(trigger={"processingTime": "1 minute"})],
    "`availableNow`": [Ask(trigger={"availableNow": True})],
    "`once`": [Ask(then=windows, own=True, retention=HOUR, trigger={"once": True})],
    "`continuous`": [Ask(trigger={"continuous": "1 second"})],
    "`realTime`": [Ask(output_mode="update", trigger={"realTime": "5 minutes"})],
    "a checkpoint on another object store": [Ask(checkpoint=f"{kind}://name/ck") for kind in ("abfs", "abfss")],
}
"""The questions of each row."""


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    written = tmp_path / "written/_spark_metadata"
    written.mkdir(parents=True)
    (written / "0").write_text("v1\n")
    return Feed(tmp_path / "in")


def test_every_row_is_asked_or_shown_elsewhere() -> None:
    assert {*tables()} == {*ASKED, *NOT_ASKED, CONNECT}
    assert not {*ASKED} & {*NOT_ASKED}


@pytest.mark.parametrize("row", ASKED)
def test_the_code_says_what_the_page_says(row: str, spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    cells = tables()[row]
    for ask in ASKED[row]:
        for drive in (False, True):
            cell = cells.get("track, drive") or cells["drive" if drive else "track"]
            assert ask.answer(spark, feed, tmp_path, drive=drive) == cell, (ask, drive)
        if "begin" in cells:
            assert ask.begins(spark, feed) == cells["begin"], ask


def test_a_session_of_connect_is_refused() -> None:
    session: Any = object.__new__(ConnectSession)  # one that reaches no server: nothing is asked of it
    with pytest.raises(lws.Unsupported, match=r"Spark Connect.*classic driver.*lws\.track"):
        lws.stage(session, "fit", inputs=["source"], key="key", event_time="t", address="127.0.0.1:1")
    assert tables()[CONNECT]["track, drive"] == "refused"
