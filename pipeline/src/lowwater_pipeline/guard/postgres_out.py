"""A tracked Spark stage whose rows PostgreSQL takes only from the run that owns it.

    hourly = PostgresOutput(dsn, "hourly")

    def write_batch(rows, batch):
        hourly.write(batch, rows.groupBy("carrier").count())

    stage.foreach_batch(stream, write_batch, checkpoint=...)

Tasks only *stage*: each attempt inserts its rows into a table beside the output, under a name of
its own, and returns that name. Spark returns the names of exactly one attempt for each partition,
so the driver knows which rows count. It moves them into the output, in the transaction that checks
the run's claim and its batch (:mod:`lowwater_pipeline.guard.postgres`). Rows that failed attempts
and zombies have staged are never moved, and deleted later.

The run raises its claim at its first write. A function that reads the output calls
:meth:`PostgresOutput.own` before: from then on no zombie changes what it reads.

Needs the extras ``lowwater-pipeline[postgres,spark]``, the first on the executors as well.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from lowwater_pipeline.guard.errors import StagingLost, Unfit
from lowwater_pipeline.guard.postgres import PATIENCE, PostgresGuard, PostgresWriter
from lowwater_pipeline.guard.run import GuardedOutput
from lowwater_spark.columns import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    import lowwater_spark as lws

__all__ = ["PostgresOutput"]

_STAGED: Final = "attempt string, rows long"

_MARKS: Final = ("lowwater_guard", "lowwater_batch", "lowwater_partition", "lowwater_attempt")
"""Columns of a staged row beside those of the output."""

_WITHOUT_ZONE: Final = 1114
_WITH_ZONE: Final = 1184
"""Oids of PostgreSQL's timestamp types."""

_TYPES: Final = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
"""Selects the type of each column of a table, such as numeric(10,2)."""


class PostgresOutput(GuardedOutput[PostgresWriter]):
    """One table of PostgreSQL that one tracked stage appends to.

    Make one for each output, beside the stage; it serves all runs of the process. ``dsn`` is
    libpq's connection string for the driver and the executors. It travels with the tasks, so keep
    the password in ``PGPASSFILE``. ``table`` has at least the frame's columns, in any order, and
    its name may have a schema before it. ``name`` is the guard's, by default the table's; two
    stages that write into one table need guards of their own. ``configuration`` is the version of
    the code that makes the rows, see :class:`lowwater_pipeline.guard.Claim`. ``patience`` as for
    :class:`lowwater_pipeline.guard.postgres.PostgresGuard`.
    """

    def __init__(
        self, dsn: str, table: str, *, name: str | None = None, configuration: int = 0, patience: float = PATIENCE
    ) -> None:
        super().__init__(table, table if name is None else name, configuration)
        self.dsn = dsn
        self.guard = PostgresGuard(dsn, self.name, patience=patience)

    def close(self) -> None:
        """Close the connection. The next batch makes a new one."""
        self.guard.close()

    def own(self, batch: lws.Batch) -> PostgresWriter:
        """Raise the claim of the batch's run, once, and return its writer.

        From now on no older run writes into the output. Costs a transaction for each run. Raises
        Unclaimed when the authority has not acknowledged a claim of the run yet, Fenced when a
        newer run was raised, and another GuardError.
        """
        return self._owned(batch, lambda claim, begin: self.guard.raise_(claim, begin=begin))

    def write(self, batch: lws.Batch, frame: DataFrame) -> bool:
        """Append the rows of a batch, once and whole; return False if they were there.

        The result is as durable as what the database acknowledges. The frame runs once, so its rows
        need not be repeatable. Its columns need types that PostgreSQL has: no structs and no maps.
        Call it at most once in a batch.

        Raises what :meth:`own` and :meth:`lowwater_pipeline.guard.postgres.PostgresWriter.write`
        raise, Unfit for a table or columns that do not fit, and StagingLost when the server was
        restarted after the rows were staged. Costs one Spark job, a COPY for each task, and a
        transaction that moves the rows.
        """
        writer = self.own(batch)

        def write(after: int) -> bool:
            if writer.found[0].batch == batch.id:
                # An earlier run has written it, or the write is refused: no rows need to be staged.
                return writer.write(batch.id, batch.digest, _nothing, after=after)
            return self._append(writer, batch, frame, after)

        return self._written(batch, writer, write)

    def _append(self, writer: PostgresWriter, batch: lws.Batch, frame: DataFrame, after: int) -> bool:
        """Have the tasks stage the rows, and move them."""
        columns = tuple(frame.columns)
        staging = self._prepare(frame)
        task = partial(stage_rows, self.dsn, staging, (*_MARKS, *columns), self.guard.name, batch.id)
        staged = {row.attempt: row.rows for row in map_in_arrow(frame, task, _STAGED).collect()}
        self.probe("staged")
        move = partial(self._move, staging, columns, batch.id, staged)
        written = writer.write(batch.id, batch.digest, move, after=after)
        self.probe("written")
        return written

    def _prepare(self, frame: DataFrame) -> str:
        """Return the staging table, made if missing. Raises Unfit for columns that do not fit."""
        columns = tuple(frame.columns)
        with psycopg.connect(self.dsn) as connection:
            try:
                description = connection.execute(
                    sql.SQL("SELECT {} FROM {} LIMIT 0").format(_names(columns), _table(self.table))
                ).description
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
                msg = f"{self.table} cannot take the columns {', '.join(columns)}: {error}. Make the table with them, or select those that it has."
                raise Unfit(msg) from error
            for field, column in zip(frame.schema.fields, description or (), strict=True):
                _check_type(self.table, field.name, field.dataType.typeName(), column.type_code)
            # Types are read again, because the output may have been altered since the last batch.
            types: dict[str, str] = dict(connection.execute(_TYPES, (_table(self.table).as_string(connection),)))
            staging = _staging(self.table, [(column, types[column]) for column in columns])
            connection.execute(
                sql.SQL(
                    "CREATE UNLOGGED TABLE IF NOT EXISTS {} AS SELECT ''::text AS lowwater_guard, 0::bigint AS lowwater_batch, "
                    "0 AS lowwater_partition, ''::text AS lowwater_attempt, {} FROM {} WITH NO DATA"
                ).format(_table(staging), _names(columns), _table(self.table))
            )
        return staging

    def _move(
        self, staging: str, columns: Sequence[str], batch: int, staged: Mapping[str, int], cursor: psycopg.Cursor[Any]
    ) -> None:
        """Move the rows that the accepted attempts have staged, and delete other staged rows."""
        place, names = _table(staging), _names(columns)
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} WHERE lowwater_guard = %s AND lowwater_attempt = ANY(%s)"
            ).format(_table(self.table), names, names, place),
            (self.guard.name, list(staged)),
        )
        expected = sum(staged.values())
        if cursor.rowcount != expected:
            msg = (
                f"{self.table}: the tasks of batch {batch} have staged {expected:,} rows, and {cursor.rowcount:,} of them are there: PostgreSQL was started anew meanwhile, or another program has "
                f"removed some from {staging}. Start the query again: the batch runs again."
            )
            raise StagingLost(msg)
        cursor.execute(
            sql.SQL("DELETE FROM {} WHERE lowwater_guard = %s AND lowwater_batch <= %s").format(place),
            (self.guard.name, batch),
        )


def stage_rows(
    dsn: str,
    staging: str,
    columns: Sequence[str],
    guard: str,
    batch: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Insert one attempt's rows, in its task, into the staging table; return name and number."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt, rows = secrets.token_hex(16), 0
    marks = (guard, batch, 0 if context is None else context.partitionId(), attempt)
    copy_into = sql.SQL("COPY {} ({}) FROM STDIN").format(_table(staging), _names(columns))
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        with cursor.copy(copy_into) as copy:
            for record_batch in batches:
                for row in zip(*(column.to_pylist() for column in record_batch.columns), strict=True):
                    copy.write_row((*marks, *row))
                rows += record_batch.num_rows
    yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": pa.array([rows], pa.int64())})


def _nothing(cursor: psycopg.Cursor[Any]) -> None:
    """Fail: the batch was in the store when the claim was raised, so no rows are written."""
    msg = "a batch that was there when the claim was raised is not there any more"
    raise AssertionError(msg)


def _staging(table: str, columns: Iterable[tuple[str, str]]) -> str:
    """Return the name of the staging table, in the table's schema.

    Other columns or types give another name, because types round the staged values.
    """
    schema, dot, _ = table.rpartition(".")
    digest = hashlib.sha256("\0".join([table, *itertools.chain(*columns)]).encode()).hexdigest()[:16]
    return f"{schema}{dot}lowwater_staged_{digest}"


def _table(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def _names(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _check_type(table: str, column: str, of_spark: str, of_postgres: int) -> None:
    """Raise Unfit for a column that PostgreSQL would store as something else."""
    if of_spark in ("struct", "map", "variant"):
        msg = f"the column {column} is a {of_spark}, which PostgreSQL has not: write it as text, by to_json()"
        raise Unfit(msg)
    if (of_spark, of_postgres) in (("timestamp", _WITHOUT_ZONE), ("timestamp_ntz", _WITH_ZONE)):
        has, needs = ("without", "with") if of_postgres == _WITHOUT_ZONE else ("with", "without")
        msg = (
            f"the column {column} of {table} is a timestamp {has} time zone, and the frame's is one {needs}: PostgreSQL would pass over the zone. Make it a "
            f"timestamp {needs} time zone, or cast the frame's column."
        )
        raise Unfit(msg)
