"""A function of SQL that says how far a table is complete.

SQL has no function that reads Delta's log (a ``SELECT`` from ``DESCRIBE HISTORY`` does not parse),
and a Python function of SQL runs in a process that has no Spark session. So the function that is
registered is one of SQL: it reads the log as text, as Spark reads any files, wherever they are, and
gives the lines to a Python table function, which goes by the same rules as
:func:`lowwater_spark.complete_through`. Each query that calls it reads the log anew. Of a table of
Iceberg it reads the tables that describe it.
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
from lowwater_spark.complete.through import check_asked
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.delta import Commit
from lowwater_spark.sources.delta_log import path_of
from lowwater_spark.sources.iceberg import MARK, Snapshot, Table
from lowwater_spark.sources.iceberg_log import find

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["register_function"]

_READER: Final = "lowwater_complete"
"""The table function for Delta."""

_LINEAGE_READER: Final = "lowwater_complete_lineage"
"""The one for Iceberg."""

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
    """Make ``name()`` a function of the session's SQL: the TIMESTAMP below which a table is complete, NULL while that is unknown.

        lws.register_function(spark, "hourly_complete", "/data/hourly", writers=["hourly"])
        spark.sql("DECLARE OR REPLACE VARIABLE complete TIMESTAMP")
        spark.sql("SET VARIABLE complete = hourly_complete()")
        spark.sql("SELECT * FROM hourly WHERE hour < complete")

    Ask before the table is read, in a statement of its own: within one statement the table may be read as it was before the version that the function has found.

    The arguments are those of :func:`lowwater_spark.complete_through`. *Finished* is the last moment of the year 9999. It works on every file system that Spark reads, and needs this package on the
    executors. Of Delta it reads all commits that the table's log has as JSON (30 days of them by default), in one task, so it costs more than ``complete_through``; of Iceberg the tables
    ``.snapshots`` and ``.refs``, as new as the session has them (``REFRESH TABLE``). A checkpoint of a writer that has nothing left there is not known to it.

    Raises ValueError for a name that is none of SQL, Unsupported for an Iceberg table by its path, and as ``complete_through`` does.
    """
    from pyspark.sql.functions import udtf

    if _NAME.fullmatch(name) is None:
        msg = f"{name!r} is no name of a function: letters, digits and underscores"
        raise ValueError(msg)
    if isinstance(writers, str) or not writers:
        msg = f"writers names the computations that write into {table}, one at least: {writers!r}"
        raise ValueError(msg)
    iceberg = find(spark, os.fspath(table))
    if iceberg is None:
        named = SparkPath.of_text(path_of(spark, table).rstrip("/"))
        if ":" in named.path:
            raise Unsupported(
                f"register_function() of a table in {named.text}",
                "SQL reads the table's log by a pattern, and Hadoop takes no pattern with a colon in it",
                "Ask with lws.complete_through(), which reads no pattern; or keep the table in a directory without a colon in its path.",
            )
        path = named.pattern
        # Of an added file nothing is asked but that it is there; it is most of a log.
        rows = f"""
          SELECT _metadata.file_name AS file, IF(value LIKE '{{"add"%', '{{}}', value) AS line
          FROM text.`{path.replace("`", "``")}/_delta_log/*.json`
        """
    else:
        check_asked(iceberg, table)
        if "/" in os.fspath(table):
            raise Unsupported(
                f"register_function() of the Iceberg table {table}, by its path",
                "SQL knows the tables that describe it by its name alone",
                "Name it as its catalog does.",
            )
        rows = f"""
          SELECT s.snapshot_id, s.parent_id, s.operation, s.summary[{_quoted(MARK)}] AS mark, r.name IS NOT NULL AS current
          FROM {table}.snapshots s LEFT JOIN {table}.refs r ON r.name = 'main' AND r.snapshot_id = s.snapshot_id
        """
    reader, function = (_READER, _Reader) if iceberg is None else (_LINEAGE_READER, _LineageReader)
    spark.udtf.register(reader, udtf(function, returnType="low timestamp, why string, version bigint"))  # type: ignore[arg-type]
    asked = json.dumps([*dict.fromkeys(writers)])
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY FUNCTION {name}() RETURNS TIMESTAMP RETURN (
          SELECT low FROM {reader}(
            TABLE({rows}) WITH SINGLE PARTITION,
            {_quoted(asked)}, {str(ignore_deletes).lower()}))
        """
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


Answer = tuple[dt.datetime | None, str, int | None]
"""The one row that a table function gives."""


def _answer(found: Completeness) -> Answer:
    moment = None
    if found.low.finished:
        moment = dt.datetime.max.replace(tzinfo=dt.UTC)
    elif not found.low.unknown:
        moment = found.low.datetime()
    return moment, found.why, found.version


class _Reader:
    """The table function: takes the lines of all commits, and gives one row."""

    def __init__(self) -> None:
        self._lines: dict[int, list[str]] = defaultdict(list)
        self._asked: tuple[str, bool] | None = None

    def eval(self, row: Row, writers: str, ignore_deletes: bool) -> Iterator[tuple[Any, ...]]:
        """Take a line."""
        self._asked = writers, ignore_deletes
        found = _COMMIT.fullmatch(row["file"])
        if found is not None:
            self._lines[int(found[1])].append(row["line"])
        yield from ()

    def terminate(self) -> Iterator[Answer]:
        """Answer."""
        if self._asked is None:
            return
        writers, ignore_deletes = self._asked
        versions: dict[int, Version] = {
            number: version_of(Commit.parse(number, "\n".join(lines))) for number, lines in self._lines.items()
        }
        apps = {app for version in versions.values() for app in version.writes}
        newest = max(versions, default=-1)
        history = History(newest, apps, versions.get)
        yield _answer(read(history, json.loads(writers), ignore_deletes=ignore_deletes))


class _LineageReader:
    """The same for Iceberg: takes the snapshots of a table."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._current: int | None = None
        self._asked: tuple[str, bool] | None = None

    def eval(self, row: Row, writers: str, ignore_deletes: bool) -> Iterator[tuple[Any, ...]]:
        """Take a snapshot."""
        self._asked = writers, ignore_deletes
        said = {"operation": row["operation"], MARK: row["mark"]}
        found = {"snapshot-id": row["snapshot_id"], "parent-snapshot-id": row["parent_id"], "summary": said}
        self._snapshots[row["snapshot_id"]] = Snapshot.parse(found)
        if row["current"]:
            self._current = row["snapshot_id"]
        yield from ()

    def terminate(self) -> Iterator[Answer]:
        """Answer."""
        if self._asked is None:
            return
        writers, ignore_deletes = self._asked
        history = snapshots_of(Table("", "", self._current, self._snapshots))
        yield _answer(read(history, json.loads(writers), ignore_deletes=ignore_deletes))
