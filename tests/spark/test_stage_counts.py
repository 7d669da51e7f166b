"""How many rows a batch had, and which were late: read off the user's own jobs, and counted by a job where these tell nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_spark.track import rows as rows_module
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.ranges import range_column
from lowwater_spark.track.rows import Actions, Counted, Rows
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

KEYED = Keyed(["key"], "t", 4, injector=False)
ROWS = 1000
PROMISED = 5_000
"""The rows' event times are 0, 10, 20 ... microseconds: half of them are late."""


@pytest.fixture(scope="module")
def batch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Rows as foreachBatch gets them: a frame over the RDD of a stream's batch, in a session of its own."""
    folder = tmp_path_factory.mktemp("rows")
    ids = spark.range(0, ROWS, 1, 3)
    rows = ids.select(sf.col("id").cast("string").alias("key"), sf.timestamp_micros(sf.col("id") * 10).alias("t"))
    rows.write.parquet(str(folder / "in" / "rows"))
    frames: list[DataFrame] = []
    stream = spark.readStream.schema(rows.schema).option("recursiveFileLookup", "true").parquet(str(folder / "in"))
    writer = stream.writeStream.foreachBatch(lambda frame, _: frames.append(frame))
    query = writer.option("checkpointLocation", str(folder / "ck")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return frames[0]


@pytest.fixture
def actions() -> Iterator[Actions]:
    made = Actions()
    yield made
    made.close()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names every job that the counting ran by itself."""
    ran: list[str] = []
    source, late = Rows._source, Rows._find_late

    def counting(self: Rows) -> DataFrame:
        ran.append("source")
        return source(self)

    def finding(self: Rows, rows: int) -> Counted:
        ran.append("late")
        found = late(self, rows)
        ran.remove("source")
        return found

    monkeypatch.setattr(Rows, "_source", counting)
    monkeypatch.setattr(Rows, "_find_late", finding)
    return ran


def fails_on_the_way(rows: DataFrame) -> None:
    failing = rows.select(sf.when(sf.col("key") == "999", sf.raise_error(sf.lit("x"))).otherwise(sf.lit("")).alias("a"))
    with pytest.raises(Exception, match="x"):
        failing.write.format("noop").mode("overwrite").save()


def read_all(partition: Iterator[Row]) -> None:
    assert all(partition)


def kept(rows: DataFrame) -> None:
    rows.persist()
    rows.count()
    rows.groupBy("key").count().collect()


def looked_at(rows: DataFrame) -> None:
    assert not rows.isEmpty()
    assert len(rows.take(3)) == 3
    rows.write.format("noop").mode("overwrite").save()


WHOLE: dict[str, Callable[[DataFrame], object]] = {
    "grouped and written": lambda rows: rows.groupBy("key").count().write.format("noop").mode("overwrite").save(),
    "collected": lambda rows: rows.collect(),
    "filtered": lambda rows: rows.where("key = '3'").collect(),
    "united with itself": lambda rows: rows.union(rows).count(),
    "looked at, then written": looked_at,
    "kept": kept,
    "written twice": lambda rows: (rows.count(), rows.groupBy("key").count().collect()),
    "joined": lambda rows: rows.join(
        sf.broadcast(rows.sparkSession.range(3).select(sf.col("id").cast("string").alias("key"))), "key"
    ).collect(),
}
PARTLY: dict[str, Callable[[DataFrame], object]] = {
    "looked at": lambda rows: rows.take(3),
    "limited": lambda rows: rows.limit(10).write.format("noop").mode("overwrite").save(),
}
NOT: dict[str, Callable[[DataFrame], object]] = {
    "not read": lambda rows: None,
    "asked if empty": lambda rows: rows.isEmpty(),
    "asked if empty, then read where Spark tells nothing": lambda rows: (
        rows.isEmpty(),
        rows.foreachPartition(read_all),
    ),
    "read as an RDD": lambda rows: rows.rdd.count(),
    "broken off": lambda rows: next(iter(rows.toLocalIterator())),
    "failed": fails_on_the_way,
    "joined with nothing": lambda rows: rows.join(
        sf.broadcast(rows.sparkSession.range(0).select(sf.col("id").cast("string").alias("key"))), "key"
    ).collect(),
}


def counted(
    batch: DataFrame, actions: Actions, use: Callable[[DataFrame], object], promised: int = PROMISED
) -> Counted:
    rows = Rows(batch, KEYED, promised, actions)
    use(rows.observed())
    found = rows.counted()
    assert rows.counted() is found
    return found


@pytest.mark.parametrize("how", WHOLE)
def test_what_the_users_jobs_have_read_is_not_read_again(
    how: str, batch: DataFrame, actions: Actions, jobs: list[str]
) -> None:
    """Several jobs per batch: the count of the largest one, never a sum."""
    found = counted(batch, actions, WHOLE[how], promised=0)
    assert (found.rows, found.late, jobs) == (ROWS, 0, [])


@pytest.mark.parametrize("how", NOT)
def test_what_no_action_tells_of_is_counted_by_a_job(
    how: str, batch: DataFrame, actions: Actions, jobs: list[str]
) -> None:
    found = counted(batch, actions, NOT[how], promised=0)
    assert (found.rows, found.late, jobs) == (ROWS, 0, ["source"])


@pytest.mark.parametrize("how", PARTLY)
def test_what_was_read_in_part_counts_for_that(how: str, batch: DataFrame, actions: Actions, jobs: list[str]) -> None:
    """A lower bound: nothing is read again for a weight."""
    found = counted(batch, actions, PARTLY[how], promised=0)
    assert 0 < found.rows < ROWS
    assert (found.late, jobs) == (0, [])


def test_a_sort_is_counted_by_its_own_job(batch: DataFrame, actions: Actions, jobs: list[str]) -> None:
    """It samples its rows first, which an older Spark counts as well."""
    found = counted(batch, actions, lambda rows: rows.orderBy("t").collect(), promised=0)
    assert found.rows in {ROWS, 2 * ROWS}
    assert (found.late, jobs) == (0, [])


def test_a_late_row_is_seen_by_whichever_action_has_read_it(
    batch: DataFrame, actions: Actions, jobs: list[str]
) -> None:
    """The last rows, of which more are read, are not late; of the first all are."""
    found = counted(batch, actions, lambda rows: (rows.take(3), rows.tail(5)))
    assert 3 < found.rows < ROWS
    assert (found.late, jobs) == (ROWS // 2, ["late"])


@pytest.mark.parametrize("how", ["collected", "not read"])
def test_late_rows_are_counted_with_the_oldest_and_its_range(
    how: str, batch: DataFrame, actions: Actions, jobs: list[str]
) -> None:
    found = counted(batch, actions, (WHOLE | NOT)[how])
    [[handle]] = batch.where("key = '0'").select(range_column(["key"], KEYED.ranges)).collect()
    assert found == Counted(ROWS, ROWS // 2, 0, handle)
    assert "late" in jobs


def test_the_promise_is_not_in_what_spark_plans(batch: DataFrame, actions: Actions) -> None:
    """Else Spark would generate other code for each batch, and compile it."""
    promised = 123_456_789
    observed = Rows(batch, KEYED, promised, actions).observed()
    execution: Any = observed._jdf.queryExecution()
    plan = execution.toString()
    assert "CollectMetrics" in plan
    assert "oldest" in plan
    assert str(promised) not in plan


def test_events_that_never_come_are_not_waited_for(
    batch: DataFrame, actions: Actions, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full event queue drops events; a listener of the user's may block it."""
    monkeypatch.setattr(Actions, "onSuccess", lambda *_: None)
    assert counted(batch, actions, WHOLE["collected"], promised=0) == Counted(ROWS)
    assert jobs == ["source"]
    monkeypatch.setattr(rows_module, "_PATIENCE_MS", 0)
    assert counted(batch, actions, WHOLE["collected"], promised=0) == Counted(ROWS)


def test_the_listener_goes_with_its_run(batch: DataFrame) -> None:
    actions = Actions()
    manager: Any = batch.sparkSession._jsparkSession.listenerManager()
    before = len(manager.listListeners())
    counted(batch, actions, WHOLE["collected"])
    counted(batch, actions, WHOLE["collected"])
    assert len(manager.listListeners()) == before + 1
    actions.close()
    assert len(manager.listListeners()) == before


def dies_once(path: str) -> Callable[[str], str]:
    def same(key: str) -> str:
        if key == "999":
            try:
                Path(path).open("x").close()
            except FileExistsError:
                return key
            os.kill(os.getpid(), signal.SIGKILL)
        return key

    return same


@pytest.mark.parametrize("where", ["before the rows are counted", "after"])
def test_a_retried_task_counts_once(
    where: str, spark: SparkSession, tmp_path: Path, actions: Actions, batch: DataFrame, jobs: list[str]
) -> None:
    """The last partition's task dies with all its rows read, and is run again."""
    fragile = sf.udf(dies_once(str(tmp_path / "died")), "string", useArrow=False)
    frame = batch if where == "after" else batch.withColumn("key", fragile("key"))

    def use(rows: DataFrame) -> None:
        wide = rows.withColumn("key", fragile("key")) if where == "after" else rows
        wide.groupBy("key").count().collect()

    found = counted(frame, actions, use, promised=0)
    assert (tmp_path / "died").exists()
    assert (found.rows, jobs) == (ROWS, [])


def test_the_low_watermark_depends_on_no_count(
    flow: Flow, lw: Any, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count is a weight in the heuristic watermarks, so a wrong one neither holds the stage nor lets it lead."""
    monkeypatch.setattr(Rows, "counted", lambda _: Counted([0, 1, 10**9][len(flow.batches) % 3]))
    reads: list[int] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        reads.append(len(rows.take(1)))
        assert low(lw, "stage") <= mark(9 + batch.id), "what the batch reads is not written"
        flow.plain(rows, batch)

    for hour in (9, 10, 11):
        upstream.at(hour)
        flow.feed.put([row("a", hour), row("b", hour, 30)])
        if hour == 9:
            flow.start(write_batch)
        flow.eventually(lambda: len(flow.batches) == hour - 8, f"the rows of {hour}:00 are written")  # noqa: B023
        flow.eventually(lambda: low(lw, "stage") == mark(hour), "neither held nor led")  # noqa: B023
    upstream.at(12)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "it goes on")
    assert reads == [1, 1, 1]


def test_a_batch_that_failed_and_is_run_again_counts_once(flow: Flow, lw: Any, upstream: Upstream) -> None:
    """A broken promise of a batch that is replayed is counted by the run that commits it."""
    upstream.at(10)
    fails = [True]

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        flow.plain(rows, batch)
        if batch.id == 1 and fails:
            fails.clear()
            msg = "after the rows were written"
            raise RuntimeError(msg)

    flow.feed.put([row("a", 9)])
    query = flow.start(write_batch)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "batch 0")
    flow.feed.put([row("a", 8), row("b", 9), row("c", 11)])
    with pytest.raises(RuntimeError, match="after the rows"):
        query.await_termination(60)
    assert query.stage_status().late_rows == 0, "the batch has not ended"
    query = flow.start(write_batch)
    flow.eventually(lambda: query.stage_status().batch == 1, "run again")
    status = query.stage_status()
    [[handle]] = flow.spark.createDataFrame([("a",)], "key string").select(range_column(["key"], 4)).collect()
    assert (status.late_rows, status.late_example) == (2, "2013-01-09T08:00:00Z in batch 1")
    assert status.late_range is not None
    assert status.late_range.handle == handle
    assert low(lw, "stage") == mark(10)
