"""A tracked stage whose rows PostgreSQL takes only from the run that owns it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.guard import Fenced, Rewound, StagingLost, Unclaimed, Unfit
from lowwater_pipeline.guard.postgres import PostgresGuard
from lowwater_pipeline.guard.postgres_out import PostgresOutput
from tests.kit.postgres import Postgres
from tests.process.serving import Serving
from tests.spark.flow import Fed, Flow
from tests.spark.support import Upstream, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


class Out(Fed):
    def __init__(self, postgres: Postgres, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
        super().__init__(flow, lw, upstream)
        self.postgres = postgres
        postgres.execute("DROP SCHEMA public CASCADE")
        postgres.execute("CREATE SCHEMA public")
        postgres.execute('CREATE TABLE "Out" (id bigserial, key text, t timestamptz, luck double precision)')
        self.at: dict[tuple[str, int], Callable[[], object]] = {}
        """An action at a point of a batch, done once."""
        self.anew()

    def anew(self) -> None:
        self.output = PostgresOutput(self.postgres.dsn, "Out", name="stage")
        self.batch = -1
        self.output.probe = self.reached

    def reached(self, point: str) -> None:
        if (point, self.batch) in self.at:
            self.at.pop((point, self.batch))()

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        self.batch = batch.id
        new = self.output.write(batch, rows.withColumn("luck", sf.rand()).repartition(3))
        self.returned.append((batch.id, new))

    def start(self) -> lws.TrackedQuery:
        return self.flow.start(self.write, ranges=2)

    def ends(self, kind: type[Exception], why: str) -> None:
        with pytest.raises(kind, match=why):
            self.flow.queries[-1].await_termination(120)
        self.flow.queries.clear()
        self.output.close()
        self.anew()

    def times(self) -> Counter[int]:
        keys = Counter(key for [key] in self.postgres.execute('SELECT key FROM "Out"'))
        assert keys.keys() <= set(self.put)
        return Counter(keys[key] for key in self.put)

    def staged(self) -> int:
        tables = self.postgres.execute("SELECT relname FROM pg_class WHERE relname LIKE 'lowwater_staged_%'")
        return sum(self.postgres.execute(f"SELECT count(*) FROM {table}")[0][0] for [table] in tables)


@pytest.fixture
def out(postgres: Postgres, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> Iterator[Out]:
    out_ = Out(postgres, flow, lw, upstream)
    yield out_
    flow.stop()
    out_.output.close()


def fail() -> None:
    raise ConnectionResetError("the driver ends here")


def test_each_row_lands_once_wherever_the_driver_ends_and_a_lost_output_is_refused(out: Out) -> None:
    def stray() -> None:
        [[table]] = out.postgres.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'lowwater_staged_%' AND relkind = 'r'"
        )
        others = "lowwater_guard, lowwater_batch, lowwater_partition, 'another attempt', key, t, luck"
        out.postgres.execute(f"INSERT INTO {table} SELECT {others} FROM {table}")

    out.at = {("staged", 0): stray, ("staged", 1): fail, ("written", 2): fail}
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
    out.flow.stop()
    out.output.close()
    out.anew()
    out.postgres.execute("DROP TABLE lowwater_guard")
    out.start()
    out.feed()
    out.ends(Rewound, "lost its tail")


def test_figure_12_a_run_that_was_taken_over_ends_and_what_it_has_staged_never_lands(out: Out) -> None:
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


UNFIT: list[tuple[Callable[[DataFrame], DataFrame], str]] = [
    (lambda rows: rows.withColumn("other", sf.lit(1)), "cannot take the columns key, t, other"),
    (lambda rows: rows.withColumn("t", sf.col("t").cast("timestamp_ntz")), "timestamp with time zone"),
    (lambda rows: rows.withColumn("key", sf.struct("key")), "to_json"),
]


def test_columns_that_do_not_fit_are_refused_and_nothing_is_written(out: Out) -> None:
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


TYPES = [
    ("whole bigint", "-9223372036854775808", -(2**63)),
    ("money numeric(20, 4)", "CAST('1234567890123456.7891' AS DECIMAL(20, 4))", Decimal("1234567890123456.7891")),
    ("yes boolean", "true", True),
    ("raw bytea", "CAST('a\\\\b' AS BINARY)", b"a\\b"),
    ("day date", "DATE'2013-01-09'", date(2013, 1, 9)),
    ("at timestamptz", "TIMESTAMP'2013-01-09 14:00:00.000001+02:00'", datetime(2013, 1, 9, 12, 0, 0, 1, UTC)),
    ("local timestamp", "TIMESTAMP_NTZ'2013-01-09 14:00:00'", datetime(2013, 1, 9, 14)),  # noqa: DTZ001
    ("many integer[]", "array(1, 2)", [1, 2]),
    ("nothing text", "CAST(NULL AS STRING)", None),
]
"""A column, what Spark writes into it, and what is there."""


def test_types_are_kept(out: Out) -> None:
    columns = [column for column, _, _ in TYPES]
    out.postgres.execute(f"CREATE TABLE types (key text, {', '.join(columns)})")
    output = PostgresOutput(out.postgres.dsn, "public.types")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        output.write(batch, rows.selectExpr("key", *(f"{value} AS {name.split()[0]}" for name, value, _ in TYPES)))

    out.write = write  # type: ignore[method-assign]
    out.start()
    out.flow.feed.put([row("tab\t, \\N and ü\n", 10, 1)])
    out.upstream.at(10, 1)
    out.minute = 1
    out.done()
    output.close()
    [stored] = out.postgres.execute("SELECT * FROM types")
    assert stored == ("tab\t, \\N and ü\n", *(value for _, _, value in TYPES))
