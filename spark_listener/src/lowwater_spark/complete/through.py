"""``complete_through()``: how far an output is complete, by the marks in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lowwater_spark.checkpoint.location import location_of
from lowwater_spark.complete.folder import complete_folder
from lowwater_spark.complete.mark import Completeness, read
from lowwater_spark.complete.snapshots import snapshots_of
from lowwater_spark.complete.table import history_of
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.tables.delta_log import DeltaLog, path_of
from lowwater_spark.sources.tables.iceberg_log import IcebergLog, find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["asked", "complete_through"]


def complete_through(
    spark: SparkSession, table: str | os.PathLike[str], writers: Sequence[str], *, ignore_deletes: bool = False
) -> Completeness:
    """Return how far an output is complete, by the marks in it. Asks no authority.

    ``low`` of the answer is the watermark; ``why`` is the reason when it is unknown. A reader of
    the answer's ``version`` (of Iceberg: its snapshot), or of a later one, has every row below
    ``low`` that one of the writers writes.

    ``table`` is the absolute path of a Delta or Iceberg table, or its name in a catalog of the
    session; or the directory into which ``batch.write`` hands batches over. ``writers`` are the
    names, with namespaces (``"prod/enriched"``), of all computations that write into it by
    ``batch.write_table`` or ``batch.write``.

    The watermark is unknown while a writer has left no mark; when another writer leaves marks
    there; and when rows were removed since a writer's checkpoint began: from a table by RESTORE, a
    rollback, CLONE, REPLACE, an overwrite, UPDATE, MERGE or DELETE, from a directory when a batch
    is missing or was removed by ``keep``. With ``ignore_deletes``, DELETE and ``keep`` do not
    count.

    Costs reading the versions since each writer's last one; for a directory a listing. Raises
    OSError when the output cannot be read, Unsupported for a name that the catalog does not have,
    a branch or a tag, and an unknown file system, ValueError for a relative path or no writers.
    """
    names, iceberg = asked(spark, table, writers)
    if iceberg is not None:
        return read(snapshots_of(iceberg.table()), names, ignore_deletes=ignore_deletes)
    path = path_of(spark, table)
    if "/" in os.fspath(table) and not _is_table(spark, path):
        return complete_folder(location_of(spark, path, "The directory"), names, ignore_deletes=ignore_deletes)
    log = DeltaLog(spark, path)
    # ``apps``: the names under which checkpoints count their batches in the table. They are read
    # before the newest version, so each has a version up to that one. In the other order, a new
    # checkpoint that begins in between would be in ``apps`` without one: the answer would be
    # "unknown", though the marks of the earlier checkpoint tell how far the table is.
    apps = log.apps()
    return read(history_of(log, log.table().version, apps), names, ignore_deletes=ignore_deletes)


def asked(
    spark: SparkSession, table: str | os.PathLike[str], writers: Sequence[str]
) -> tuple[list[str], IcebergLog | None]:
    """Return the distinct writers in a question, and the Iceberg table; None: it is none.

    Raises ValueError without writers, and Unsupported for the name of a part of an Iceberg table.
    """
    if isinstance(writers, str) or not writers:
        msg = f"writers names the computations that write into {table}, one at least: {writers!r}"
        raise ValueError(msg)
    iceberg = find(spark, os.fspath(table))
    if iceberg is not None and iceberg.part:
        raise Unsupported(
            f"How far {os.fspath(table)}, a branch or a moment of the table {iceberg.name}, is complete",
            "the answer is of its main branch as of now",
            "Name the table itself.",
        )
    return [*dict.fromkeys(writers)], iceberg


def _is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a directory has a Delta table, on any file system that Spark knows.

    Raises OSError.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    log = jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
    try:
        return bool(log.getFileSystem(session.sessionState().newHadoopConf()).exists(log))
    except Py4JJavaError as failure:
        msg = f"lowwater cannot see whether {path} is a table: {failure.java_exception}"
        raise OSError(msg) from failure
