"""Asks an output how far it is complete."""

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
from lowwater_spark.sources.delta_log import DeltaLog, path_of
from lowwater_spark.sources.iceberg_log import IcebergLog, find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_asked", "complete_through"]


def complete_through(
    spark: SparkSession, table: str | os.PathLike[str], writers: Sequence[str], *, ignore_deletes: bool = False
) -> Completeness:
    """Return how far an output is complete, as it says itself: of the answer, ``low`` is the watermark and ``why`` says why it is unknown. No authority is asked.

    ``table`` is the absolute path of a table of Delta or Iceberg, or its name in a catalog of the session; or the directory that ``batch.write`` hands batches over into. ``writers`` are the names of
    all computations that write into it by ``batch.write_table`` or ``batch.write``, with their namespaces: ``"prod/enriched"``. Who reads the answer's ``version`` (of Iceberg its snapshot), or a later
    one, has every row below ``low`` that one of the writers writes.

    Unknown, with the reason, while a writer has not said anything; when somebody else who leaves marks writes into it; and when rows were taken away since a
    writer's checkpoint began there: of a table by RESTORE, a rollback, CLONE, REPLACE, an overwrite, UPDATE, MERGE or DELETE, of a directory when a batch is missing or was removed by ``keep``.
    ``ignore_deletes``: what DELETE or ``keep`` has taken away is not missed.

    Costs the reading of the versions since each writer's last one; of a directory a listing. Raises OSError when it cannot be read, Unsupported for a name that the
    catalog does not have, for a branch or a tag, and for a file system that is not known, ValueError for a relative path or for no writers.
    """
    if isinstance(writers, str) or not writers:
        msg = f"writers names the computations that write into {table}, one at least: {writers!r}"
        raise ValueError(msg)
    asked, iceberg = tuple(dict.fromkeys(writers)), find(spark, os.fspath(table))
    if iceberg is not None:
        check_asked(iceberg, table)
        return read(snapshots_of(iceberg.table()), asked, ignore_deletes=ignore_deletes)
    path = path_of(spark, table)
    if "/" in os.fspath(table) and not _is_table(spark, path):
        return complete_folder(location_of(spark, path, "The directory"), asked, ignore_deletes=ignore_deletes)
    log = DeltaLog(spark, path)
    # First: whoever comes meanwhile is found in the versions.
    apps = log.apps()
    return read(history_of(log, log.table().version, apps), asked, ignore_deletes=ignore_deletes)


def check_asked(iceberg: IcebergLog, table: str | os.PathLike[str]) -> None:
    """Raise Unsupported for the name of a part of an Iceberg table."""
    if iceberg.part:
        raise Unsupported(
            f"How far {os.fspath(table)}, a branch or a moment of the table {iceberg.name}, is complete",
            "the answer is of its main branch as of now",
            "Name the table itself.",
        )


def _is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a directory is a Delta table, on whatever file system Spark knows.

    Raises OSError.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    log = jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
    try:
        return bool(log.getFileSystem(session.sessionState().newHadoopConf()).exists(log))
    except Py4JJavaError as failure:
        msg = f"{path} does not tell whether it is a table: {failure.java_exception}"
        raise OSError(msg) from failure
