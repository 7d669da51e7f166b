"""Hands the rows of a batch over to readers as one snapshot of an Iceberg table.

Iceberg appends without a check for conflicts, and would write a batch twice. So lowwater counts in
the table: for each writer one of its properties has the last batch, the digest of that batch's
plan, and its snapshot. The property changes in the same commit as the rows. A commit succeeds only
if the property, in the metadata that the commit replaces, is what the run has read: each attempt
checks it (``validateWith``), and the catalog replaces metadata in one atomic step. So of two
concurrent runs one is refused.

A property stays when snapshots expire, and also when the table is rolled back. So a batch counts as
written only if its snapshot is in the table's lineage.

Each snapshot also says how far the table is complete (:mod:`lowwater_spark.complete.snapshots`).
The files are written as for a rewrite: Spark writes them, and commits nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.mark import COMPLETE, Standing, follow
from lowwater_spark.complete.snapshots import said_of, snapshots_of
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.delta import marked, writer_of
from lowwater_spark.sources.iceberg import MARK, Table, Written
from lowwater_spark.sources.iceberg_log import IcebergLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Unchanged", "append"]

logger = logging.getLogger("lowwater.spark")

_VALIDATOR: Final = "org.apache.iceberg.SnapshotAncestryValidator"

_RESTORE: Final = "Restore table and checkpoint from one moment, or start from a new checkpoint and a new table."


def append(
    frame: DataFrame,
    log: IcebergLog,
    app: str,
    batch: int,
    mark: Mapping[str, Any],
    standing: Standing,
    *,
    replayed: bool,
    newest: int = -1,
) -> bool:
    """Append rows to a table as one snapshot, once and durably; False if it was done before.

    ``app`` is the writer's name in the table. ``mark`` is what the snapshot says about the batch,
    with its ``digest`` and the number of its ``run``; ``standing`` decides how far the table is
    complete. ``newest`` is the newest written batch by the checkpoint. Raises CheckpointMismatch if
    the table has a batch of another plan or a later one, has lost one, has a later life of the
    computation, or if another run of the checkpoint writes at the same time; Unsupported for a
    table that cannot be checked; and Iceberg's errors. Costs, besides Iceberg's own write, two
    reads of the table's metadata.
    """
    spark = frame.sparkSession
    before = log.table()
    _check(spark, log, before)
    log.refresh(before)
    stored = before.properties.get(app)
    last_written = None if stored is None else Written.parse(stored)
    if last_written is not None and last_written.batch >= batch:
        _must_match(last_written, log, before, batch, mark)
        if not replayed:
            msg = (
                f"{log.name} has batch {batch} already, but no run of this checkpoint had begun it: the directory 'lowwater' of the checkpoint is older than its "
                "output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        _sync(log, before, last_written.snapshot, set())
        return False
    if (last := -1 if last_written is None else last_written.batch) < newest:
        msg = (
            f"the Iceberg table {log.name} does not count batch {newest} of this checkpoint, which was written, but {'none' if last < 0 else last} as the last: it was made "
            f"anew, an older copy of it was put back, another writer has replaced its metadata, or its catalog answers from a cache (then a later start succeeds). {_RESTORE}"
        )
        raise CheckpointMismatch(msg)
    complete, news = follow(app, standing, snapshots_of(before))
    if news:
        logger.warning("%s no longer says how far it is complete: %s", log.name, news)
    mark = {**mark, COMPLETE: said_of(complete, before)}
    metadata_before = _metadata_files(before)
    snapshot = _commit(log, _write(frame, log), app, stored, mark)
    _sync(log, log.table(), snapshot, metadata_before)
    return True


def _check(spark: SparkSession, log: IcebergLog, table: Table) -> None:
    """Raise Unsupported if a batch could be written twice, or written unnoticed."""
    what = f"batch.write_table() to the Iceberg table {log.name}"
    if not log.knows(_VALIDATOR):
        raise Unsupported(
            what,
            "this version of Iceberg cannot check the table's metadata within a commit, so two drivers could write one batch twice",
            "Use Iceberg 1.11 or newer.",
        )
    if table.refusal:
        raise Unsupported(what, table.refusal, "Unset the property of the table.")
    if log.branch:
        raise Unsupported(
            what,
            f"{log.branch} is a branch of it, and its readers see rows later than they are reported",
            "Name the table.",
        )
    scheme = SparkPath.of_text(table.location).scheme
    if log.by_number and scheme not in ("", "file", "hdfs"):
        raise Unsupported(
            f"{what}, which has no catalog but files in {scheme}:",
            "two drivers that write there at the same time may both get success, and one snapshot is lost",
            "Keep the table in a catalog that replaces metadata in one step (REST, Hive, JDBC, Glue), or on HDFS.",
        )


def _must_match(last_written: Written, log: IcebergLog, table: Table, batch: int, mark: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatch unless the table's last batch is this plan's, with its rows."""
    if (last_written.batch, last_written.digest) != (batch, mark["digest"]):
        msg = (
            f"the Iceberg table {log.name} has batch {last_written.batch} of this checkpoint, and not batch {batch} of this plan: the checkpoint is older than the table, or "
            "another run has gone on with it. Restore both from one moment, or start from a new checkpoint and a new table."
        )
        raise CheckpointMismatch(msg)
    lineage = table.lineage
    if last_written.snapshot in {snapshot.id for snapshot in lineage} | {snapshot.parent for snapshot in lineage}:
        return
    if last_written.snapshot in table.snapshots:
        why = "it was rolled back"
    else:
        why = "it has expired, so it is unknown whether the table was rolled back before that"
    msg = f"the Iceberg table {log.name} counts batch {batch} of this checkpoint as written, and snapshot {last_written.snapshot} is not in its lineage: {why}. {_RESTORE}"
    raise CheckpointMismatch(msg)


def _write(frame: DataFrame, log: IcebergLog) -> list[Any]:
    """Write the rows into files of the table, and commit nothing."""
    classes = log.classes
    group = str(uuid.uuid4())
    cache, written = classes.spark.SparkTableCache.get(), classes.spark.FileRewriteCoordinator.get()
    cache.add(group, log.java)
    try:
        frame.write.format("iceberg").mode("append").save(group)
        return list(written.fetchNewFiles(log.java, group))
    finally:
        cache.remove(group)
        written.clearRewrite(log.java, group)


class Unchanged:
    """Allows a commit while the property has its expected value.

    Iceberg calls it at each attempt, on a thread of the JVM.
    """

    def __init__(self, transaction: Any, app: str, expected: str | None) -> None:
        self._transaction = transaction
        self._app = app
        self._expected = expected
        self.refused = ""
        """Value of the property when it was another one; empty: it was not."""

    def validate(self, ancestors: Any) -> bool:
        """Return whether the metadata that this attempt replaces has the expected property."""
        now = self._transaction.startMetadata().properties().get(self._app)
        if now != self._expected:
            self.refused = str(now)
        return not self.refused

    def errorMessage(self) -> str:  # noqa: N802  # Iceberg's name
        """Return the reason for Iceberg's error message."""
        return f"another run has written {self.refused}"

    class Java:
        """Interface that py4j shows to the JVM."""

        implements = (_VALIDATOR,)


def _commit(log: IcebergLog, files: list[Any], app: str, expected: str | None, mark: Mapping[str, Any]) -> int:
    """Commit files and the batch's property in one step; return the new snapshot."""
    from py4j.protocol import Py4JJavaError
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(log.gateway)
    transaction = log.java.newTransaction()
    unchanged = Unchanged(transaction, app, expected)
    try:
        rows = transaction.newAppend()
        for file in files:
            rows.appendFile(file)
        rows.set(MARK, marked(writer_of(app), **mark))
        rows.validateWith(unchanged)
        rows.commit()
        snapshot = int(transaction.table().currentSnapshot().snapshotId())
        now = Written(mark["batch"], mark["digest"], mark["run"], snapshot, mark[COMPLETE]["life"])._asdict()
        transaction.updateProperties().set(app, json.dumps(now)).commit()
        transaction.commitTransaction()
    except Py4JJavaError as error:
        if not unchanged.refused:
            raise
        msg = (
            f"another run of this checkpoint has written to the Iceberg table {log.name} meanwhile ({unchanged.refused}); this run has written nothing. Stop one of "
            "them."
        )
        raise CheckpointMismatch(msg) from error
    return snapshot


def _metadata_folder(table: Table) -> Path | None:
    """Return the metadata folder of a table in a local directory; None for another store."""
    root = SparkPath.of_text(table.location).local
    return None if root is None else root / "metadata"


def _metadata_files(table: Table) -> set[Path]:
    folder = _metadata_folder(table)
    return set() if folder is None else set(folder.iterdir())


def _sync(log: IcebergLog, table: Table, snapshot: int, metadata_before: set[Path]) -> None:
    """Make a snapshot durable, with the rows that it adds and all new metadata."""
    folder = _metadata_folder(table)
    if folder is None:
        return
    root = folder.parent
    named = log.files(snapshot) if snapshot in table.snapshots else []
    rows = {Path(SparkPath.of_text(name).path) for name in named}
    files = {*folder.iterdir()} - metadata_before | {folder / "version-hint.text"} | rows
    for path in files | {path.with_name(f".{path.name}.crc") for path in files}:
        if path.is_file():
            sync_file(path)
    folders = {folder, root, root.parent}
    for path in rows:
        folders |= {parent for parent in path.parents if root in parent.parents}
    for parent in folders:
        sync_directory(parent)
