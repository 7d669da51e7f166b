"""The Delta tables that tests of sources run on, and what the offsets of a reader say of the versions of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit import delta
from tests.kit.delta import Offset
from tests.kit.eventually import eventually
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session("lowwater-delta", "local[2,3]", SETTINGS | QUICK | delta.SETTINGS)
    yield session
    for query in session.streams.active:
        query.stop()


def append(spark: SparkSession, table: Path, *rows: int, files: int = 1) -> None:
    """One version with these rows."""
    spark.createDataFrame([(row,) for row in rows], "n long").repartition(files).write.format("delta").mode(
        "append"
    ).save(str(table))


@pytest.mark.slow
@pytest.mark.parametrize("tended", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_reader_moves_past_every_version_also_without_rows(tended: bool, spark: SparkSession, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    append(spark, table)
    assert delta.head(table) == 0
    rows = spark.readStream.format("delta").load(str(table))
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    tending = (
        lambda: append(spark, table, 3),
        lambda: spark.sql(f"OPTIMIZE delta.`{table}`"),
        lambda: spark.sql(f"VACUUM delta.`{table}`"),
    )
    steps = (
        lambda: append(spark, table, 1, 2),
        *(tending if tended else ()),
        lambda: spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('a' = 'b')"),
        lambda: append(spark, table, 4),
    )
    for step in steps:
        before = delta.head(table)
        step()
        now = delta.head(table)
        assert now > before
        past = Offset(now + 1, -1, initial=False)
        eventually(
            lambda past=past: delta.offsets(checkpoint)[-1:] == [past],  # type: ignore[misc]
            check=query.processAllAvailable,
            seen=lambda: delta.offsets(checkpoint),
        )
    query.stop()


def test_a_reader_stands_at_the_head_before_it_has_read_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    append(spark, table, *range(6), files=3)
    append(spark, table, *range(6, 12), files=3)
    head, files = delta.head(table), len(spark.read.format("delta").load(str(table)).inputFiles())
    rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(table))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    *begun, done = delta.offsets(checkpoint)
    assert files > 2
    assert begun == [Offset(head, file, initial=True) for file in range(files - 1)], (
        "a file a batch, all of the head's version"
    )
    assert done == Offset(head + 1, -1, initial=False)
