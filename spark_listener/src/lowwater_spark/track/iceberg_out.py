"""Hands the rows of a batch over to readers as one snapshot of an Iceberg table.

Iceberg appends without looking for conflicts, so nothing of its own keeps a batch from being there
twice. The table counts for us: one of its properties has, for each who writes batches, the last
batch, the digest of the plan that it was made from, and its snapshot. The property changes in the
same commit as the rows. And a commit goes through only if the property is, in the very metadata
that the commit replaces, what it was when the run looked: each attempt asks that anew
(``validateWith``), and replacing metadata is one atomic step of the catalog. So of two runs that
write at a time one is refused.

A property stays when snapshots expire, and it stays when the table is rolled back, too. So a batch
counts as written only if its snapshot is in the table's lineage.

And each snapshot says how far the table is complete (:mod:`lowwater_spark.complete.snapshots`).

The files are written as those of a rewrite are: Spark writes them, and commits nothing.
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
    """Append rows to a table as one snapshot of the batch, once; False when that had been done before. Durable when it returns.

    ``app`` is who counts its batches in the table. ``mark`` is what the snapshot says of the batch, its ``digest`` and the number of its ``run`` among it; how far the table is
    complete follows from ``standing``. ``newest`` is the number of the newest batch that was written into the table, as far as the checkpoint remembers. Raises
    CheckpointMismatch when the table has a batch of another plan, or a later one, or has lost one, when a later life of the computation writes into it, and when another run of the checkpoint writes at the same time; Unsupported for a
    table that cannot tell, and what Iceberg raises. Costs, beside Iceberg's own write, a reading of the table's metadata before it and one after it.
    """
    spark = frame.sparkSession
    before = log.table()
    _check(spark, log, before)
    log.refresh(before)
    said = before.properties.get(app)
    found = None if said is None else Written.parse(said)
    if found is not None and found.batch >= batch:
        _must_match(found, log, before, batch, mark)
        if not replayed:
            msg = (
                f"{log.name} has batch {batch} already, but no run of this checkpoint had begun it: the directory 'lowwater' of the checkpoint is older than its "
                "output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        _sync(log, before, found.snapshot, set())
        return False
    if (last := -1 if found is None else found.batch) < newest:
        msg = (
            f"the Iceberg table {log.name} does not count batch {newest} of this checkpoint, which was written, but {'none' if last < 0 else last} as the last: it was made "
            f"anew, an older copy of it was put back, another writer has replaced its metadata, or its catalog answers from a cache, and then a start later goes on. {_RESTORE}"
        )
        raise CheckpointMismatch(msg)
    complete, news = follow(app, standing, snapshots_of(before))
    if news:
        logger.warning("%s does not say any more how far it is complete: %s", log.name, news)
    mark = {**mark, COMPLETE: said_of(complete, before)}
    there = _metadata_files(before)
    snapshot = _commit(log, _write(frame, log), app, said, mark)
    _sync(log, log.table(), snapshot, there)
    return True


def _check(spark: SparkSession, log: IcebergLog, table: Table) -> None:
    """Raise Unsupported where a batch could be written twice, or nobody could tell whether it was written."""
    what = f"batch.write_table() to the Iceberg table {log.name}"
    if not log.knows(_VALIDATOR):
        raise Unsupported(
            what,
            "this version of Iceberg cannot compare the table with what it was when a batch is committed, and two drivers could write one twice",
            "Use Iceberg 1.11 or newer.",
        )
    if table.refusal:
        raise Unsupported(what, table.refusal, "Unset the property of the table.")
    if log.branch:
        raise Unsupported(
            what,
            f"{log.branch} is a branch of it, and readers see rows later than they are reported",
            "Name the table.",
        )
    scheme = SparkPath.of_text(table.location).scheme
    if log.by_number and scheme not in ("", "file", "hdfs"):
        raise Unsupported(
            f"{what}, which has no catalog but files in {scheme}:",
            "two drivers that write there at a time may both be told that they have committed, and one snapshot is lost",
            "Keep the table in a catalog that replaces metadata in one step (REST, Hive, JDBC, Glue), or on HDFS.",
        )


def _must_match(found: Written, log: IcebergLog, table: Table, batch: int, mark: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatch unless the last batch in the table is this one, of the same plan, and its rows are there."""
    if (found.batch, found.digest) != (batch, mark["digest"]):
        msg = (
            f"the Iceberg table {log.name} has batch {found.batch} of this checkpoint, and not batch {batch} of this plan: the checkpoint is older than the table, or "
            "another run has gone on with it. Restore both from one moment, or start from a new checkpoint and a new table."
        )
        raise CheckpointMismatch(msg)
    lineage = table.lineage
    if found.snapshot in {each.id for each in lineage} | {each.parent for each in lineage}:
        return
    if found.snapshot in table.snapshots:
        why = "it was rolled back"
    else:
        why = "it has expired, and nobody knows whether the table was rolled back before that"
    msg = f"the Iceberg table {log.name} counts batch {batch} of this checkpoint as written, and snapshot {found.snapshot} is not in its lineage: {why}. {_RESTORE}"
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
    """Lets a commit go through while the property is what it was.

    Iceberg asks it at each attempt, on a thread of the JVM.
    """

    def __init__(self, transaction: Any, app: str, said: str | None) -> None:
        self._transaction = transaction
        self._app = app
        self._said = said
        self.refused = ""
        """What the property was when it was not."""

    def validate(self, ancestors: Any) -> bool:
        """Return whether nobody has written a batch of this checkpoint, in the metadata that this attempt replaces."""
        now = self._transaction.startMetadata().properties().get(self._app)
        if now != self._said:
            self.refused = str(now)
        return not self.refused

    def errorMessage(self) -> str:  # noqa: N802  # Iceberg's name
        """Return what Iceberg says then."""
        return f"another run has written {self.refused}"

    class Java:
        """What it is there."""

        implements = (_VALIDATOR,)


def _commit(log: IcebergLog, files: list[Any], app: str, said: str | None, mark: Mapping[str, Any]) -> int:
    """Make files a snapshot of the table, with what is said of the batch, in one step; return it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(log.gateway)
    transaction = log.java.newTransaction()
    unchanged = Unchanged(transaction, app, said)
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
            f"another run of this checkpoint has written into the Iceberg table {log.name} meanwhile ({unchanged.refused}); this one has written nothing. Stop one of "
            "them."
        )
        raise CheckpointMismatch(msg) from error
    return snapshot


def _metadata_folder(table: Table) -> Path | None:
    """Return where a table in a local directory has its metadata; None for another: there the store keeps what it has acknowledged."""
    root = SparkPath.of_text(table.location).local
    return None if root is None else root / "metadata"


def _metadata_files(table: Table) -> set[Path]:
    folder = _metadata_folder(table)
    return set() if folder is None else set(folder.iterdir())


def _sync(log: IcebergLog, table: Table, snapshot: int, there: set[Path]) -> None:
    """Make a snapshot durable, with the rows that it adds, and all metadata but those that were there before."""
    folder = _metadata_folder(table)
    if folder is None:
        return
    root = folder.parent
    named = log.files(snapshot) if snapshot in table.snapshots else []
    rows = {Path(SparkPath.of_text(name).path) for name in named}
    files = {*folder.iterdir()} - there | {folder / "version-hint.text"} | rows
    for path in files | {path.with_name(f".{path.name}.crc") for path in files}:
        if path.is_file():
            sync_file(path)
    folders = {folder, root, root.parent}
    for path in rows:
        folders |= {each for each in path.parents if root in each.parents}
    for each in folders:
        sync_directory(each)
