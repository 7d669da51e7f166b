"""A Delta table that takes the versions of a stage only from the run that owns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lowwater_pipeline.guard import Claim, Damaged, Fenced, GuardError, NonceMismatch, Unfit
from lowwater_pipeline.guard.delta import DeltaGuard, DeltaWriter
from lowwater_spark.errors import Unsupported
from tests.guard.stores import claim
from tests.kit import delta
from tests.kit.eventually import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LARGE = 2**63


class Guarded:
    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, path
        spark.sql(f"CREATE TABLE delta.`{path}` (value INT) USING delta")

    def guard(self, name: str = "hourly") -> DeltaGuard:
        return DeltaGuard(self.spark, str(self.path), name, computation="default/hourly")

    def raise_(self, claim: Claim, name: str = "hourly", begin: int = 0) -> DeltaWriter:
        return self.guard(name).raise_(claim, begin=begin)

    def write(self, writer: DeltaWriter, batch: int, digest: str, *values: int) -> bool:
        return writer.write(batch, digest, self.frame(*values))

    def frame(self, *values: int) -> DataFrame:
        return self.spark.createDataFrame([(value,) for value in values], "value INT")

    def values(self) -> list[int]:
        return sorted(r.value for r in self.spark.read.format("delta").load(str(self.path)).collect())


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Guarded:
    return Guarded(spark, tmp_path / "table")


def refused(kind: type[GuardError], call: Callable[[], object], why: str | None = None) -> None:
    with pytest.raises(kind, match=why):
        call()


def test_figure_12_a_late_zombie_is_refused_and_what_its_successor_has_scanned_stays_true(table: Guarded) -> None:
    zombie = table.raise_(claim(LARGE + 1))
    assert table.write(zombie, 0, "a", 1, 2)
    assert not table.write(zombie, 0, "a", 1, 2)
    successor = table.raise_(claim(LARGE + 2))
    assert successor.found[0].batch == 0
    refused(Fenced, lambda: table.write(zombie, 1, "b", 3), "taken over by claim 9223372036854775810")
    refused(Fenced, lambda: table.raise_(claim(LARGE + 1)))
    refused(NonceMismatch, lambda: table.raise_(claim(LARGE + 2, "after")))
    assert table.write(successor, 1, "c", 4)
    assert table.values() == [1, 2, 4]
    table.spark.sql(f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {delta.head(table.path) - 1}")
    refused(Damaged, lambda: table.write(successor, 2, "d", 5), "RESTORE")


def test_figure_12_a_save_that_delta_skips_without_a_word_is_seen(table: Guarded) -> None:
    """A zombie is checked, and then its save is delayed until its successor has raised and scanned."""
    zombie, scanned = table.raise_(claim(5)), list[list[int]]()

    def probe(reached: str) -> None:
        if reached == "checked" and not scanned:
            table.raise_(claim(6))
            scanned.append(table.values())

    zombie.guard.probe = probe
    refused(Fenced, lambda: table.write(zombie, 0, "a", 1))
    assert scanned == [table.values()] == [[]]


def test_figure_12_a_save_under_way_conflicts_with_the_raise(table: Guarded, tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        eventually(go.exists)
        yield from batches

    zombie = table.raise_(claim(5))
    frame = table.frame(1).coalesce(1).mapInArrow(slow, "value INT")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(zombie.write, 0, "a", frame)
        eventually(began.exists)
        successor = table.raise_(claim(6))
        scanned = table.values()
        go.touch()
        assert isinstance(written.exception(), Fenced)
    assert table.values() == scanned == []
    assert table.write(successor, 0, "b", 2)


def test_a_repeated_raise_changes_nothing_and_a_new_guard_begins_where_it_is_told(table: Guarded) -> None:
    writer = table.raise_(claim(5), begin=57)
    before = delta.head(table.path)
    assert table.raise_(claim(5)).found == writer.found
    assert delta.head(table.path) == before
    assert table.write(writer, 57, "a", 1)
    refused(Unfit, lambda: table.write(writer, 2**40 - 1, "b", 1), "counts up to")
    anew = table.raise_(claim(6, incarnation=2, identity="another"))
    assert table.write(anew, 0, "b", 2)


def test_neighbours_in_one_table_go_on(table: Guarded) -> None:
    mine, other = table.raise_(claim(5)), table.raise_(claim(5), "daily")
    table.frame(7).write.format("delta").mode("append").save(str(table.path))
    assert table.write(mine, 0, "a", 1)
    table.raise_(claim(6))
    refused(Fenced, lambda: table.write(mine, 1, "b", 2))
    assert table.write(other, 0, "a", 3)
    options = {"txnAppId": mine.guard.app, "txnVersion": str(9 << 40)}
    table.frame().write.format("delta").mode("append").options(**options).save(str(table.path))
    refused(Damaged, lambda: table.write(mine, 1, "b", 2), "does not say what stands there")
    refused(Damaged, lambda: table.raise_(claim(7)))
    assert table.write(other, 1, "b", 4)
    assert table.values() == [1, 3, 4, 7]


def test_a_table_that_is_not_there_or_forgets_is_refused(table: Guarded, spark: SparkSession, tmp_path: Path) -> None:
    absent = DeltaGuard(spark, str(tmp_path / "absent"), "hourly", computation="default/hourly")
    refused(Unfit, lambda: absent.raise_(claim(5)), "create it first")
    with pytest.raises(Unfit, match="without a colon"):
        table.guard("a:b")
    spark.sql(
        f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    )
    with pytest.raises(Unsupported, match="forgets which batches it has"):
        table.raise_(claim(5))
