"""A tracked stage whose rows PostgreSQL takes only from the run that owns it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.guard import Fenced, InDoubt, Rewound, StagingLost, Unclaimed, Unfit
from lowwater_pipeline.guard.postgres import PostgresGuard
from lowwater_pipeline.guard.postgres_out import PostgresOutput
from tests.kit.eventually import eventually
from tests.kit.postgres import Postgres
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


class Out:
    """A table, and what was put in to come out there."""

    def __init__(self, postgres: Postgres, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
        self.postgres, self.flow, self.lw, self.upstream = postgres, flow, lw, upstream
        postgres.execute("DROP SCHEMA public CASCADE")
        postgres.execute("CREATE SCHEMA public")
        postgres.execute('CREATE TABLE "Out" (id bigserial, key text, t timestamptz, luck double precision)')
        self.minute = 0
        self.put: list[str] = []
        self.returned: list[tuple[int, bool]] = []
        self.at: dict[tuple[str, int], Callable[[], object]] = {}
        """What happens at a point of a batch, once."""
        self.anew()

    def anew(self) -> None:
        """A process of its own, as far as the output knows."""
        self.output = PostgresOutput(self.postgres.dsn, "Out", name="stage")
        self.batch = -1
        self.output.probe = self.reached

    def reached(self, point: str) -> None:
        if (point, self.batch) in self.at:
            self.at.pop((point, self.batch))()

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.batch = batch.id
        made = self.output.write(batch, rows.withColumn("luck", sf.rand()).repartition(3))
        self.returned.append((batch.id, made))

    def start(self) -> lws.TrackedQuery:
        return self.flow.start(self.write, ranges=2)

    def feed(self, count: int = 40) -> None:
        self.minute += 1
        keys = [f"{self.minute}-{number}" for number in range(count)]
        self.put += keys
        self.flow.feed.put(row(key, 10, self.minute) for key in keys)
        self.upstream.at(10, self.minute)

    def done(self) -> None:
        self.flow.eventually(lambda: low(self.lw, "stage") == mark(10, self.minute), "all is committed")

    def ends(self, kind: type[Exception], why: str) -> None:
        """Wait until the query has ended, and say why it should have."""
        with pytest.raises(kind, match=why):
            self.flow.queries[-1].await_termination(120)
        self.flow.queries.clear()
        self.output.close()
        self.anew()

    def times(self) -> Counter[int]:
        """How many rows are there how often."""
        found = Counter(key for [key] in self.postgres.execute('SELECT key FROM "Out"'))
        assert found.keys() <= set(self.put)
        return Counter(found[key] for key in self.put)

    def staged(self) -> int:
        """How many rows are left in tables for what is staged."""
        tables = self.postgres.execute("SELECT relname FROM pg_class WHERE relname LIKE 'lowwater_staged_%'")
        return sum(self.postgres.execute(f"SELECT count(*) FROM {table}")[0][0] for [table] in tables)


@pytest.fixture
def out(postgres: Postgres, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> Iterator[Out]:
    made = Out(postgres, flow, lw, upstream)
    yield made
    flow.stop()
    made.output.close()


def fail() -> None:
    raise ConnectionResetError("the driver ends here")


def test_each_row_lands_once_wherever_the_driver_ends(out: Out) -> None:
    """It ends when the rows of batch 1 are staged, and when those of batch 2 are written. Both run again, and make other rows."""
    out.at = {("staged", 1): fail, ("written", 2): fail}
    out.start()
    for batch in range(4):
        out.feed()
        if batch in (1, 2):
            out.ends(ConnectionResetError, "the driver ends here")
            out.start()
        out.done()
    assert out.at == {}
    assert out.times() == {1: len(out.put)}
    assert out.returned == [(0, True), (1, True), (2, False), (3, True)]
    assert out.staged() == 0


def test_what_other_attempts_have_staged_is_never_moved(out: Out) -> None:
    def stray() -> None:
        [[table]] = out.postgres.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'lowwater_staged_%' AND relkind = 'r'"
        )
        out.postgres.execute(
            f"INSERT INTO {table} SELECT lowwater_guard, lowwater_batch, lowwater_partition, 'another attempt', key, t, luck FROM {table}"
        )

    out.at = {("staged", 0): stray}
    out.start()
    out.feed()
    out.done()
    assert out.at == {}
    assert out.times() == {1: 40}
    assert out.staged() == 0


def test_figure_12_a_run_that_was_taken_over_ends_and_what_it_has_staged_never_lands(out: Out) -> None:
    """Between its tasks and its transaction a newer claim is raised, and the newer owner scans."""
    scanned: list[int] = []

    def take_over() -> None:
        writer = out.output._writer
        assert writer is not None
        with PostgresGuard(out.postgres.dsn, "stage") as guard:
            guard.raise_(replace(writer.claim, token=writer.claim.token + 1, nonce="of the newer one"))
        scanned.append(sum(out.times().values()) - out.times()[0])

    out.start()
    out.feed()
    out.done()
    out.at = {("staged", 1): take_over}
    out.feed()
    out.ends(Fenced, "it is a zombie")
    assert scanned == [40]
    assert out.times() == {1: 40, 0: 40}


def test_without_a_claim_nothing_is_written(out: Out, authority: Serving) -> None:
    authority.kill()
    out.flow.feed.put([row("a", 10, 1)])
    out.start()
    out.ends(Unclaimed, "has not acknowledged a claim")
    assert out.postgres.execute('SELECT count(*) FROM "Out"') == [(0,)]


def test_rows_that_were_staged_and_are_gone_end_the_query_and_come_with_the_next_run(out: Out) -> None:
    def lose() -> None:
        [[table]] = out.postgres.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'lowwater_staged_%' AND relkind = 'r'"
        )
        out.postgres.execute(f"DELETE FROM {table} WHERE key LIKE '1-1%'")

    out.at = {("staged", 0): lose}
    out.start()
    out.feed()
    out.ends(StagingLost, "have staged 40 rows, and 29 of them are there")
    assert out.times() == {0: 40}
    out.start()
    out.done()
    assert out.times() == {1: 40}


def test_a_database_that_has_lost_the_output_is_refused(out: Out) -> None:
    out.start()
    out.feed()
    out.done()
    out.flow.stop()
    out.output.close()
    out.anew()
    out.postgres.execute("DROP TABLE lowwater_guard")
    out.start()
    out.feed()
    out.ends(Rewound, "lost its tail")
    assert out.times() == {1: 40, 0: 40}


def test_a_stage_that_runs_may_begin_to_write_at_any_batch(out: Out) -> None:
    query = out.flow.start(lambda rows, batch: batch.write(rows, out.flow.folder / "elsewhere"), ranges=2)
    out.feed()
    out.done()
    query.stop()
    out.flow.queries.clear()
    before = out.put.copy()
    out.start()
    out.feed()
    out.done()
    assert out.returned == [(1, True)]
    assert out.times() == {0: len(before), 1: len(out.put) - len(before)}


def test_batches_that_write_nothing_may_be_left_out_and_a_tail_that_is_lost_is_seen_all_the_same(out: Out) -> None:
    """Batch 1 has rows, and the function returns; so has batch 2, after it has raised in a run of its own."""

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        if batch.id == 2:
            out.output.own(batch)
        if batch.id not in (1, 2):
            Out.write(out, rows, batch)

    def query() -> None:
        out.flow.start(write, ranges=2)

    query()
    out.feed(1)
    out.done()
    left_out = out.put.copy()
    for restarted in (False, True, False):
        if restarted:
            out.flow.stop()
            out.output.close()
            out.anew()
            query()
        out.feed(1)
        out.done()
    assert out.returned == [(0, True), (3, True)]
    assert [out.times()[1], out.put[0]] == [2, left_out[0]]
    out.postgres.execute("UPDATE lowwater_guard SET batch = 0")
    out.feed(1)
    out.ends(Rewound, "lost its tail")
    assert out.times()[1] == 2


def test_a_raise_whose_answer_is_lost_is_made_again_with_the_same_nonce(out: Out) -> None:
    """It was committed. The function makes the same write again, as InDoubt says."""
    doubts: list[str] = []

    def lost(point: str) -> None:
        if point == "committed" and not doubts:
            raise InDoubt("no answer")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        out.output.guard.probe = lost
        try:
            Out.write(out, rows, batch)
        except InDoubt as doubt:
            doubts.append(str(doubt))
            Out.write(out, rows, batch)

    out.write = write  # type: ignore[method-assign]
    out.start()
    out.feed()
    out.done()
    assert doubts == ["no answer"]
    assert out.times() == {1: 40}


def test_a_column_that_becomes_wider_takes_what_it_takes_from_the_next_batch_on(out: Out) -> None:
    """What is staged is not rounded as the column was before."""
    out.postgres.execute('ALTER TABLE "Out" ADD COLUMN money numeric(10, 2)')

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        out.output.write(batch, rows.selectExpr("key", "t", "CAST('1.2345' AS DECIMAL(12, 4)) AS money"))

    out.write = write  # type: ignore[method-assign]
    out.start()
    out.feed(1)
    out.done()
    out.postgres.execute('ALTER TABLE "Out" ALTER COLUMN money TYPE numeric(12, 4)')
    out.feed(1)
    out.done()
    assert out.postgres.execute('SELECT money::text FROM "Out" ORDER BY key') == [("1.2300",), ("1.2345",)]


UNFIT: list[tuple[Callable[[DataFrame], DataFrame], str]] = [
    (lambda rows: rows.withColumn("other", sf.lit(1)), "cannot take the columns key, t, other"),
    (lambda rows: rows.withColumn("t", sf.col("t").cast("timestamp_ntz")), "timestamp with time zone"),
    (lambda rows: rows.withColumn("key", sf.struct("key")), "to_json"),
]


def test_columns_that_do_not_fit_are_refused_and_nothing_is_written(out: Out) -> None:
    """Nor is a second write in a batch, after one that does."""

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        for change, why in UNFIT:
            with pytest.raises(Unfit, match=why):
                out.output.write(batch, change(rows))
        assert out.times() == {0: 1}
        assert out.output.write(batch, rows)
        out.output.write(batch, rows)

    out.write = write  # type: ignore[method-assign]
    out.start()
    out.feed(1)
    out.ends(Unfit, "Unite the rows first")


def test_types_are_kept(out: Out, spark: object) -> None:
    out.postgres.execute(
        "CREATE TABLE types (key text, whole bigint, small smallint, money numeric(20, 4), yes boolean, raw bytea, day date, at timestamptz, "
        "local timestamp, many integer[], nothing text)"
    )
    output = PostgresOutput(out.postgres.dsn, "public.types")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        output.write(
            batch,
            rows.selectExpr(
                "key",
                "-9223372036854775808 AS whole",
                "CAST(7 AS SMALLINT) AS small",
                "CAST('1234567890123456.7891' AS DECIMAL(20, 4)) AS money",
                "true AS yes",
                "CAST('a\\\\b' AS BINARY) AS raw",
                "DATE'2013-01-09' AS day",
                "TIMESTAMP'2013-01-09 14:00:00.000001+02:00' AS at",
                "TIMESTAMP_NTZ'2013-01-09 14:00:00' AS local",
                "array(1, 2) AS many",
                "CAST(NULL AS STRING) AS nothing",
            ),
        )

    out.write = write  # type: ignore[method-assign]
    out.start()
    out.flow.feed.put([row("tab\t, \\N and ü\n", 10, 1)])
    out.upstream.at(10, 1)
    out.minute = 1
    out.done()
    output.close()
    with psycopg.connect(out.postgres.dsn) as connection:
        [found] = connection.execute(
            "SELECT key, whole, small, money::text, yes, raw, day::text, at AT TIME ZONE 'UTC' = '2013-01-09 12:00:00.000001', local::text, many, nothing FROM types"
        ).fetchall()
    assert found == (
        "tab\t, \\N and ü\n",
        -(2**63),
        7,
        "1234567890123456.7891",
        True,
        b"a\\b",
        "2013-01-09",
        True,
        "2013-01-09 14:00:00",
        [1, 2],
        None,
    )


# -- kills --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_with_its_jvm_and_its_workers_loses_and_doubles_nothing(out: Out) -> None:
    """When the rows of a batch are staged; in the middle of its transaction; when that is committed; and when the batch is written."""
    points = ["staged", "filled", "before commit", "committed", "written"]
    log = out.flow.folder / "driver.log"

    def run(point: str, batch: int) -> subprocess.Popen[bytes]:
        told = {"address": out.flow.address, "folder": str(out.flow.folder), "dsn": out.postgres.dsn}
        command = [sys.executable, "-m", "tests.spark.postgres_out_driver"]
        with log.open("ab") as said:
            return subprocess.Popen(
                [*command, json.dumps({**told, "point": point, "batch": batch})],
                cwd=ROOT,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    out.feed()
    for batch, point in enumerate(points):
        driver = run(point, batch)
        assert driver.wait(300) == -signal.SIGKILL, log.read_text()[-3000:]
        out.feed()
    last = run("", -1)
    try:
        eventually(
            lambda: low(out.lw, "stage") == mark(10, out.minute),
            "all is committed",
            seconds=300,
            check=lambda: ended(last, log),
        )
    finally:
        os.killpg(last.pid, signal.SIGKILL)
        last.wait(30)
    assert out.times() == {1: len(out.put)}
    assert out.staged() == 0


def ended(driver: subprocess.Popen[bytes], log: Path) -> None:
    assert driver.poll() is None, log.read_text()[-3000:]
