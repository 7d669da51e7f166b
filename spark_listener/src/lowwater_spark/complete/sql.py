"""A SQL function that returns how far a table is complete.

SQL has no function that reads Delta's log (a ``SELECT`` from ``DESCRIBE HISTORY`` does not parse),
and a Python function of SQL runs in a process without a Spark session. So the registered function
is written in SQL: it reads the log as text files, and gives the lines to a Python table function,
which applies the rules of :func:`lowwater_spark.complete_through`. Each query that calls it reads
the log again. For an Iceberg table it reads the metadata tables.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.mark import Completeness, History, Version, read
from lowwater_spark.complete.snapshots import snapshots_of
from lowwater_spark.complete.table import version_of
from lowwater_spark.complete.through import asked
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.tables.delta_log import Commit, path_of
from lowwater_spark.sources.tables.iceberg_log import MARK, Snapshot, Table

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["register_function"]

_READER: Final = "lowwater_complete"
"""Name of the table function for Delta."""

_LINEAGE_READER: Final = "lowwater_complete_lineage"
"""Name of the table function for Iceberg."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_COMMIT: Final = re.compile(r"(\d{20})\.json")


def register_function(
    spark: SparkSession,
    name: str,
    table: str | os.PathLike[str],
    writers: Sequence[str],
    *,
    ignore_deletes: bool = False,
) -> None:
    """Register ``name()`` in the session's SQL: the TIMESTAMP below which a table is complete.

    It is NULL while that is unknown, and the last moment of the year 9999 when the table is
    finished.

        lws.register_function(spark, "hourly_complete", "/data/hourly", writers=["hourly"])
        spark.sql("DECLARE OR REPLACE VARIABLE complete TIMESTAMP")
        spark.sql("SET VARIABLE complete = hourly_complete()")
        spark.sql("SELECT * FROM hourly WHERE hour < complete")

    Call the function before the table is read, in a statement of its own: within one statement
    Spark may read an older version of the table than the function has read.

    The arguments are those of :func:`lowwater_spark.complete_through`. The function works on every
    file system that Spark reads, and needs this package on the executors. A call reads, for Delta,
    all commits that the table's log has as JSON (by default 30 days), in one task, so it costs more
    than ``complete_through``; for Iceberg the tables ``.snapshots`` and ``.refs``, as new as the
    session has them (``REFRESH TABLE``). It does not see a writer's checkpoint that has nothing
    left there.

    Raises ValueError for a name that SQL does not allow, Unsupported for an Iceberg table by its
    path, and the errors of ``complete_through``.
    """
    from pyspark.sql.functions import udtf

    if _NAME.fullmatch(name) is None:
        msg = f"{name!r} is no name for a function: use letters, digits and underscores"
        raise ValueError(msg)
    names, iceberg = asked(spark, table, writers)
    if iceberg is None:
        location = SparkPath.of_text(path_of(spark, table).rstrip("/"))
        if ":" in location.path:
            raise Unsupported(
                f"register_function() of a table in {location.text}",
                "SQL reads the table's log by a pattern, and Hadoop takes no pattern with a colon in it",
                "Ask with lws.complete_through(), which reads no pattern; or keep the table in a directory without a colon in its path.",
            )
        path = location.pattern
        # Most lines of a log are long "add" actions, whose content decides nothing for
        # completeness. Spark passes {} in their place, to send less to Python. If it left them out,
        # a commit of such lines only would be missing, and the table's watermark unknown.
        rows = f"""
          SELECT _metadata.file_name AS file, IF(value LIKE '{{"add"%', '{{}}', value) AS line
          FROM text.`{path.replace("`", "``")}/_delta_log/*.json`
        """
    else:
        if "/" in os.fspath(table):
            raise Unsupported(
                f"register_function() of the Iceberg table {table}, by its path",
                "SQL finds its metadata tables only by a catalog's name",
                "Name the table as its catalog does.",
            )
        rows = f"""
          SELECT s.snapshot_id, s.parent_id, s.operation, s.summary[{_quoted(MARK)}] AS mark, r.name IS NOT NULL AS current
          FROM {table}.snapshots s LEFT JOIN {table}.refs r ON r.name = 'main' AND r.snapshot_id = s.snapshot_id
        """
    reader, function = (_READER, _Reader) if iceberg is None else (_LINEAGE_READER, _LineageReader)
    spark.udtf.register(reader, udtf(function, returnType="low timestamp, why string, version bigint"))  # type: ignore[arg-type]
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY FUNCTION {name}() RETURNS TIMESTAMP RETURN (
          SELECT low FROM {reader}(
            TABLE({rows}) WITH SINGLE PARTITION,
            {_quoted(json.dumps(names))}, {str(ignore_deletes).lower()}))
        """
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


Answer = tuple[dt.datetime | None, str, int | None]
"""Row that a table function returns: moment, reason, version."""


def _answer(completeness: Completeness) -> Answer:
    moment = None
    if completeness.low.finished:
        moment = dt.datetime.max.replace(tzinfo=dt.UTC)
    elif not completeness.low.unknown:
        moment = completeness.low.datetime()
    return moment, completeness.why, completeness.version


class _TableFunction:
    """A table function: takes the rows that describe a table's versions, and returns one row."""

    _arguments: tuple[str, bool] | None = None

    def terminate(self) -> Iterator[Answer]:
        """Answer, unless there was no row."""
        if self._arguments is not None:
            writers, ignore_deletes = self._arguments
            yield _answer(read(self._history(), json.loads(writers), ignore_deletes=ignore_deletes))

    def _history(self) -> History:
        raise NotImplementedError


class _Reader(_TableFunction):
    """The table function for Delta: takes the lines of all commits."""

    def __init__(self) -> None:
        self._lines: dict[int, list[str]] = defaultdict(list)

    def eval(self, row: Row, writers: str, ignore_deletes: bool) -> Iterator[tuple[Any, ...]]:
        """Take one line of a commit."""
        self._arguments = writers, ignore_deletes
        commit = _COMMIT.fullmatch(row["file"])
        if commit is not None:
            self._lines[int(commit[1])].append(row["line"])
        yield from ()

    def _history(self) -> History:
        versions: dict[int, Version] = {
            number: version_of(Commit.parse(number, "\n".join(lines))) for number, lines in self._lines.items()
        }
        apps = {app for version in versions.values() for app in version.writes}
        return History(max(versions, default=-1), apps, versions.get)


class _LineageReader(_TableFunction):
    """The table function for Iceberg: takes the snapshots of a table."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._current: int | None = None

    def eval(self, row: Row, writers: str, ignore_deletes: bool) -> Iterator[tuple[Any, ...]]:
        """Take one snapshot."""
        self._arguments = writers, ignore_deletes
        summary = {"operation": row["operation"], MARK: row["mark"]}
        snapshot = {"snapshot-id": row["snapshot_id"], "parent-snapshot-id": row["parent_id"], "summary": summary}
        self._snapshots[row["snapshot_id"]] = Snapshot.parse(snapshot)
        if row["current"]:
            self._current = row["snapshot_id"]
        yield from ()

    def _history(self) -> History:
        return snapshots_of(Table("", "", self._current, self._snapshots))
