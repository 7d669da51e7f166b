"""Asks an output how far it is complete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lowwater_spark.checkpoint.location import location_of
from lowwater_spark.complete.folder import complete_folder
from lowwater_spark.complete.mark import Completeness, read
from lowwater_spark.complete.table import log_of
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.delta_log import DeltaLog, path_of
from lowwater_spark.sources.iceberg_log import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["complete_through"]


def complete_through(
    spark: SparkSession, table: str | os.PathLike[str], writers: Sequence[str], *, ignore_deletes: bool = False
) -> Completeness:
    """Return how far an output is complete, as it says itself: of the answer, ``low`` is the watermark and ``why`` says why it is unknown. No authority is asked.

    ``table`` is the absolute path of a Delta table, or its name in the session's catalog; or the directory that ``batch.write`` hands batches over into. ``writers`` are the names of
    all computations that write into it by ``batch.write_table`` or ``batch.write``, with their namespaces: ``"prod/enriched"``. Who reads the answer's ``version``, or a later
    one, has every row below ``low`` that one of the writers writes.

    Unknown, with the reason, while a writer has not said anything; when somebody else who leaves marks writes into it; and when rows were taken away since a
    writer's checkpoint began there: of a table by RESTORE, CLONE, REPLACE, an overwrite, UPDATE, MERGE or DELETE, of a directory when a batch is missing or was removed by ``keep``.
    ``ignore_deletes``: what DELETE or ``keep`` has taken away is not missed.

    Costs the reading of the versions since each writer's last one; of a directory a listing. Raises OSError when it cannot be read, Unsupported for a name that the
    catalog does not have, for a table of Iceberg and for a file system that is not known, ValueError for a relative path or for no writers.
    """
    if isinstance(writers, str) or not writers:
        msg = f"writers names the computations that write into {table}, one at least: {writers!r}"
        raise ValueError(msg)
    if find(spark, os.fspath(table)) is not None:
        raise Unsupported(
            f"complete_through() of the Iceberg table {os.fspath(table)}",
            "its snapshots do not say how far it is complete",
            "Ask the authority, or let the stage write into a Delta table.",
        )
    asked, path = tuple(dict.fromkeys(writers)), path_of(spark, table)
    if "/" in os.fspath(table) and not _is_table(spark, path):
        return complete_folder(location_of(spark, path, "The directory"), asked, ignore_deletes=ignore_deletes)
    log = DeltaLog(spark, path)
    # First: whoever comes meanwhile is found in the versions.
    apps = log.apps()
    return read(log.table().version, apps, log_of(log), asked, ignore_deletes=ignore_deletes)


def _is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a directory is a Delta table, on whatever file system Spark knows. Raises OSError."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    log = jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
    try:
        return bool(log.getFileSystem(session.sessionState().newHadoopConf()).exists(log))
    except Py4JJavaError as failure:
        msg = f"{path} does not tell whether it is a table: {failure.java_exception}"
        raise OSError(msg) from failure
