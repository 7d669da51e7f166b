"""A function of SQL that says how far a table is complete.

SQL has no function that reads Delta's log (a ``SELECT`` from ``DESCRIBE HISTORY`` does not parse), and a Python function of SQL runs in a process that has no Spark session. So the function that is registered is
one of SQL: it reads the log as text, as Spark reads any files, wherever they are, and gives the lines to a Python table function, which goes by the same rules as
:func:`lowwater_spark.complete_through`. Each query that calls it reads the log anew.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.complete.mark import Version, read
from lowwater_spark.complete.table import version_of
from lowwater_spark.sources.delta import Commit
from lowwater_spark.sources.delta_log import path_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["register_function"]

_READER: Final = "lowwater_complete"
"""The table function."""

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
    """Make ``name()`` a function of the session's SQL: the TIMESTAMP below which a Delta table is complete, NULL while that is unknown.

        lws.register_function(spark, "hourly_complete", "/data/hourly", writers=["hourly"])
        spark.sql("DECLARE OR REPLACE VARIABLE complete TIMESTAMP")
        spark.sql("SET VARIABLE complete = hourly_complete()")
        spark.sql("SELECT * FROM hourly WHERE hour < complete")

    Ask before the table is read, in a statement of its own: within one statement the table may be read as it was before the version that the function has found.

    The arguments are those of :func:`lowwater_spark.complete_through`. *Finished* is the last moment of the year 9999. It works on every file system that Spark reads, and needs this package on the
    executors. It reads all commits that the table's log has as JSON (30 days of them by default), in one task, so it costs more than ``complete_through``; and a checkpoint of a writer that has none of them left is not known to it.

    Raises ValueError for a name that is none of SQL, and as ``complete_through`` does.
    """
    from pyspark.sql.functions import udtf

    if _NAME.fullmatch(name) is None:
        msg = f"{name!r} is no name of a function: letters, digits and underscores"
        raise ValueError(msg)
    if isinstance(writers, str) or not writers:
        msg = f"writers names the computations that write into {table}, one at least: {writers!r}"
        raise ValueError(msg)
    path = path_of(spark, table).rstrip("/")
    spark.udtf.register(_READER, udtf(_Reader, returnType="low timestamp, why string, version bigint"))  # type: ignore[arg-type]
    asked = json.dumps([*dict.fromkeys(writers)])
    # Of an added file nothing is asked but that it is there; it is most of a log.
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY FUNCTION {name}() RETURNS TIMESTAMP RETURN (
          SELECT low FROM {_READER}(
            TABLE(
              SELECT _metadata.file_name AS file, IF(value LIKE '{{"add"%', '{{}}', value) AS line
              FROM text.`{path.replace("`", "``")}/_delta_log/*.json`
            ) WITH SINGLE PARTITION,
            {_quoted(asked)}, {str(ignore_deletes).lower()}))
        """
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


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

    def terminate(self) -> Iterator[tuple[dt.datetime | None, str, int]]:
        """Answer."""
        if self._asked is None:
            return
        writers, ignore_deletes = self._asked
        versions: dict[int, Version] = {
            number: version_of(Commit.parse(number, "\n".join(lines))) for number, lines in self._lines.items()
        }
        apps = {app for version in versions.values() for app in version.writes}
        newest = max(versions, default=-1)
        answer = read(newest, apps, versions.get, json.loads(writers), ignore_deletes=ignore_deletes)
        moment = None
        if answer.low.finished:
            moment = dt.datetime.max.replace(tzinfo=dt.UTC)
        elif not answer.low.unknown:
            moment = answer.low.datetime()
        yield moment, answer.why, newest
