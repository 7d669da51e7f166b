"""Hands the rows of a batch over to readers as one version of a Delta table.

A version has a name for the writer that counts its batches in the table, and the batch's number
(Delta's ``txnAppId`` and ``txnVersion``). Delta itself writes each number of a name once: it skips
a replay, and of two concurrent runs one fails. But after a checkpoint was restored from an older
copy, Delta would silently skip other rows that have an existing number. So each version also has
the digest of its plan, and a batch counts as written only if its version has the same digest.

Each version also says how far the table is complete (:mod:`lowwater_spark.complete.mark`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.mark import COMPLETE, Standing, follow
from lowwater_spark.complete.table import history_of
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.delta import DELTA, Commit, Table, marked, writer_of
from lowwater_spark.sources.delta_log import DeltaLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = ["append", "check_table", "sync_versions"]

logger = logging.getLogger("lowwater.spark")

_RETENTION: Final = "delta.setTransactionRetentionDuration"

_COMMIT_INFO: Final = "spark.databricks.delta.commitInfo.enabled"


def append(
    frame: DataFrame,
    log: DeltaLog,
    app: str,
    batch: int,
    mark: Mapping[str, Any],
    standing: Standing,
    *,
    replayed: bool,
    newest: int = -1,
) -> bool:
    """Append rows to a table as one version, once and durably; False if it was done before.

    ``app`` is the writer's name in the table. ``mark`` is what the version says about the batch,
    with its ``digest`` and the number of its ``run``; ``standing`` decides how far the table is
    complete. ``newest`` is the newest written batch by the checkpoint. Raises CheckpointMismatch if
    a version of another plan has the batch's number, Unsupported for a table that cannot be
    checked, and Delta's error if another run writes at the same time. Costs, besides Delta's own
    write, a read of each version that is added meanwhile.
    """
    spark = frame.sparkSession
    before = log.table()
    check_table(spark, log, before)
    apps = {} if before.version < 0 else log.apps()
    last = apps.get(app, -1)
    if last >= batch:
        commit = _must_match(_find(log, app, batch, before.version, down_to=0), log, batch, mark)
        if not replayed:
            msg = (
                f"{log.path} has batch {batch} already, but no run of this checkpoint had begun it: the directory 'lowwater' of the checkpoint is older than its "
                "output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        sync_versions(log, before, commit.version, commit.version)
        return False
    lost = {app: f"its last batch of this writer is {last}, and {newest} had been written"} if last < newest else {}
    complete, news = follow(app, standing, history_of(log, before.version, apps, lost))
    if news:
        logger.warning("%s no longer says how far it is complete: %s", log.path, news)
    mark = {**mark, COMPLETE: complete.to_json()}
    writer = frame.write.format(DELTA).mode("append").option("txnAppId", app).option("txnVersion", str(batch))
    writer.option("userMetadata", marked(writer_of(app), **mark)).save(log.path)
    after = log.table()
    # Delta skips the write silently if another run has come first.
    commit = _must_match(_find(log, app, batch, after.version, down_to=before.version + 1), log, batch, mark)
    sync_versions(log, after, before.version + 1, commit.version)
    return bool(commit.mark.get("run") == mark["run"])


def check_table(spark: SparkSession, log: DeltaLog, table: Table, what: str = "batch.write_table()") -> None:
    """Raise Unsupported if a batch could be written twice, or written unnoticed.

    ``what`` names the write, in words.
    """
    if str(spark.conf.get(_COMMIT_INFO, "true")).lower() != "true":
        raise Unsupported(
            f"{what} in a session where {_COMMIT_INFO} is false",
            "versions then do not have the digest of their plan",
            "Set it to true, its default.",
        )
    if table.version < 0 and log.beside_iceberg:
        raise Unsupported(
            f"{what} to {log.path}",
            "an Iceberg table is there, which this session cannot read by its path, and rows of Delta beside it are not its rows",
            "Name it as its catalog does, in a session with Iceberg's runtime; for a table of Delta name another directory.",
        )
    if table.refusal:
        raise Unsupported(
            f"{what} to the Delta table {log.path}",
            f"{table.refusal}, and the written version could not be found again",
            "Write to a table whose own log has all commits.",
        )
    if table.on_s3:
        raise Unsupported(
            f"{what} to the Delta table {log.path} on S3",
            "two drivers that write there at the same time may both get success, and one version is lost",
            "Write to a table on HDFS, on another store, or in a local directory.",
        )
    if _RETENTION in table.properties:
        raise Unsupported(
            f"{what} to the Delta table {log.path} with the property {_RETENTION}",
            "it forgets which batches it has, and a replay would be written twice",
            "Unset the property.",
        )


def _find(log: DeltaLog, app: str, batch: int, newest: int, *, down_to: int) -> Commit | None:
    """Return the version with a batch; None if the log lacks it or a RESTORE may have undone it."""
    for version in range(newest, down_to - 1, -1):
        commit = log.commit(version)
        if commit is None or commit.batches.get(app) == batch:
            return commit
        if commit.operation == "RESTORE":
            return None
    return None


def _must_match(commit: Commit | None, log: DeltaLog, batch: int, mark: Mapping[str, Any]) -> Commit:
    if commit is None:
        msg = (
            f"the Delta table {log.path} counts batch {batch} of this checkpoint as written, but its log no longer has the version, so it is unknown whether its rows are "
            "there. Restore table and checkpoint from one moment, or start from a new checkpoint and a new table."
        )
        raise CheckpointMismatch(msg)
    if commit.mark.get("digest") != mark["digest"]:
        msg = (
            f"{commit} of the Delta table {log.path} has batch {batch} of this checkpoint, made from another plan: the checkpoint is older than the table, or another "
            "run has gone on with it. Delta would skip the write, and its rows would be lost. Restore both from one moment, or start from a new checkpoint "
            "and a new table."
        )
        raise CheckpointMismatch(msg)
    return commit


def sync_versions(log: DeltaLog, table: Table, first: int, last: int) -> None:
    """Make versions of a table durable, with the files that the last of them adds.

    Only local directories need it: other stores keep what they have acknowledged.
    """
    place = SparkPath.of_text(table.location)
    root = place.local
    if root is None:
        return
    folder = root / "_delta_log"
    files = [path for name in log.files(last) if (path := place.below(name).local) is not None]
    named = {f"{version:020}" for version in range(first, last + 1)}
    files += [path for path in folder.iterdir() if path.name.lstrip(".").partition(".")[0] in named]
    files += [folder / "_last_checkpoint"]
    sums = [path.with_name(f".{path.name}.crc") for path in files]
    for path in {*files, *sums}:
        if path.is_file():
            sync_file(path)
    folders = {folder, root, root.parent}
    for path in files:
        folders |= {parent for parent in path.parents if root in parent.parents}
    for parent in folders:
        sync_directory(parent)
