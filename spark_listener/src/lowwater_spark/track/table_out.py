"""Hands the rows of a batch over to readers as one version of a Delta table.

A version has a name for who counts its batches in the table, and the number of the batch (Delta's
``txnAppId`` and ``txnVersion``). Delta itself writes a batch of a name once: a replay is skipped,
and of two runs that write at a time one fails. It goes by the number alone, so after a checkpoint
was restored from an older copy it would skip, without a word, other rows that have the number of a
batch which is there. So each version also has the digest of the plan that it was made from, and a
batch whose number is there counts as written only if its version says that it is the same.

And it says how far the table is complete (:mod:`lowwater_spark.complete.mark`).
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
    """Append rows to a table as one version of the batch, once; False when that had been done before. Durable when it returns.

    ``app`` is who counts its batches in the table. ``mark`` is what the version says of the batch, its ``digest`` and the number of its ``run`` among it; how far the table is
    complete follows from ``standing``. ``newest`` is the number of the newest batch that was written into the table, as far as the checkpoint remembers.
    Raises CheckpointMismatch when a version of another plan has the batch's number, Unsupported for a table that cannot tell, and what Delta raises when
    another run writes at the same time. Costs, beside Delta's own write, the reading of the versions that are added meanwhile.
    """
    spark = frame.sparkSession
    before = log.table()
    check_table(spark, log, before)
    apps = {} if before.version < 0 else log.apps()
    last = apps.get(app, -1)
    if last >= batch:
        found = _must_match(_find(log, app, batch, before.version, down_to=0), log, batch, mark)
        if not replayed:
            msg = (
                f"{log.path} has batch {batch} already, but no run of this checkpoint had begun it: the directory 'lowwater' of the checkpoint is older than its "
                "output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        sync_versions(log, before, found.version, found.version)
        return False
    lost = {app: f"its last batch of this writer is {last}, and {newest} had been written"} if last < newest else {}
    complete, news = follow(app, standing, history_of(log, before.version, apps, lost))
    if news:
        logger.warning("%s does not say any more how far it is complete: %s", log.path, news)
    mark = {**mark, COMPLETE: complete.to_json()}
    writer = frame.write.format(DELTA).mode("append").option("txnAppId", app).option("txnVersion", str(batch))
    writer.option("userMetadata", marked(writer_of(app), **mark)).save(log.path)
    after = log.table()
    # Delta says nothing when it has skipped the write, since another run had come first.
    found = _must_match(_find(log, app, batch, after.version, down_to=before.version + 1), log, batch, mark)
    sync_versions(log, after, before.version + 1, found.version)
    return bool(found.mark.get("run") == mark["run"])


def check_table(spark: SparkSession, log: DeltaLog, table: Table, what: str = "batch.write_table()") -> None:
    """Raise Unsupported where a batch could be written twice, or nobody could tell whether it was written. ``what`` writes, in words."""
    if str(spark.conf.get(_COMMIT_INFO, "true")).lower() != "true":
        raise Unsupported(
            f"{what} in a session where {_COMMIT_INFO} is false",
            "a version does not say then which plan it was made from",
            "Set it to true, its default.",
        )
    if table.version < 0 and log.beside_iceberg:
        raise Unsupported(
            f"{what} to {log.path}",
            "a table of Iceberg is there, which this session cannot read by its path, and rows of Delta beside it are none of its rows",
            "Name it as its catalog does, in a session with Iceberg's runtime; for a table of Delta name another directory.",
        )
    if table.refusal:
        raise Unsupported(
            f"{what} to the Delta table {log.path}",
            f"{table.refusal}, and what was written could not be found again",
            "Write to a table whose own log has all commits.",
        )
    if table.on_s3:
        raise Unsupported(
            f"{what} to the Delta table {log.path} on S3",
            "two drivers that write there at a time may both be told that they have committed, and one version is lost",
            "Write to a table on HDFS, on another store, or in a local directory.",
        )
    if _RETENTION in table.properties:
        raise Unsupported(
            f"{what} to the Delta table {log.path} with the property {_RETENTION}",
            "it forgets which batches it has, and one that runs again would be written twice",
            "Unset the property.",
        )


def _find(log: DeltaLog, app: str, batch: int, newest: int, *, down_to: int) -> Commit | None:
    """Return the version that has a batch, None when the log does not have it, or when a later RESTORE may have taken its rows away."""
    for version in range(newest, down_to - 1, -1):
        commit = log.commit(version)
        if commit is None or commit.batches.get(app) == batch:
            return commit
        if commit.operation == "RESTORE":
            return None
    return None


def _must_match(found: Commit | None, log: DeltaLog, batch: int, mark: Mapping[str, Any]) -> Commit:
    if found is None:
        msg = (
            f"the Delta table {log.path} counts batch {batch} of this checkpoint as written, and its log does not show the version any more: whether its rows are "
            "there nobody knows. Restore table and checkpoint from one moment, or start from a new checkpoint and a new table."
        )
        raise CheckpointMismatch(msg)
    if found.mark.get("digest") != mark["digest"]:
        msg = (
            f"{found} of the Delta table {log.path} has batch {batch} of this checkpoint, made from another plan: the checkpoint is older than the table, or another "
            "run has gone on with it. Delta would skip the write, and its rows would be lost. Restore both from one moment, or start from a new checkpoint "
            "and a new table."
        )
        raise CheckpointMismatch(msg)
    return found


def sync_versions(log: DeltaLog, table: Table, first: int, last: int) -> None:
    """Make versions of a table durable, with the files that the last of them adds.

    Only in local directories: elsewhere the store keeps what it acknowledged.
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
        folders |= {each for each in path.parents if root in each.parents}
    for each in folders:
        sync_directory(each)
