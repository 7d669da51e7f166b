"""An output that is an Iceberg table: one batch is one snapshot.

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
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.mark import COMPLETE, History, Mark
from lowwater_spark.complete.snapshots import said_of, snapshots_of
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.iceberg_log import MARK, IcebergLog, Table, Written, find
from lowwater_spark.sources.versioned import marked, writer_of
from lowwater_spark.track.output.outputs import FoundBatch, OutputTurn
from lowwater_spark.track.output.table_out import TableOut, sync_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["IcebergOut", "Unchanged"]

_VALIDATOR: Final = "org.apache.iceberg.SnapshotAncestryValidator"

_RESTORE: Final = "Restore table and checkpoint from one moment, or start from a new checkpoint and a new table."


class IcebergOut(TableOut):
    """An Iceberg table. Costs, besides Iceberg's own write, three reads of the table's metadata."""

    log: IcebergLog
    head: Table
    _stored: str | None = None
    """Value of the app's property; None: the table has none."""

    @classmethod
    def at(cls, frame: DataFrame, turn: OutputTurn, place: str) -> IcebergOut | None:
        """Return the table of a name in the session's catalogs, or at a path; None: no such one."""
        log = find(frame.sparkSession, place)
        return None if log is None else cls(log, log.name, turn)

    def _check(self) -> None:
        """Raise Unsupported if a batch could be written twice, or written unnoticed."""
        what = f"batch.write_table() to the Iceberg table {self.name}"
        if not self.log.knows(_VALIDATOR):
            raise Unsupported(
                what,
                "this version of Iceberg cannot check the table's metadata within a commit, so two drivers could write one batch twice",
                "Use Iceberg 1.11 or newer.",
            )
        if self.head.refusal:
            raise Unsupported(what, self.head.refusal, "Unset the property of the table.")
        if self.log.branch:
            raise Unsupported(
                what,
                f"{self.log.branch} is a branch of it, and its readers see rows later than they are reported",
                "Name the table.",
            )
        scheme = SparkPath.of_text(self.head.location).scheme
        if self.log.by_number and scheme not in ("", "file", "hdfs"):
            raise Unsupported(
                f"{what}, which has no catalog but files in {scheme}:",
                "two drivers that write there at the same time may both get success, and one snapshot is lost",
                "Keep the table in a catalog that replaces metadata in one step (REST, Hive, JDBC, Glue), or on HDFS.",
            )

    def counted(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the batch in the app's property, whose snapshot must be in the lineage."""
        self._check()
        self.log.refresh(self.head)
        self._stored = self.head.properties.get(self.app)
        last = None if self._stored is None else Written.parse(self._stored)
        if last is not None and last.batch >= turn.facts.batch:
            existing = FoundBatch(last.batch, last.digest, f"snapshot {last.snapshot} of the Iceberg table {self.name}")
            if (last.batch, last.digest) == (turn.facts.batch, turn.facts.digest):
                self._must_have(last)
            return existing
        if (newest := -1 if last is None else last.batch) < self.newest:
            msg = (
                f"the Iceberg table {self.name} does not count batch {self.newest} of this checkpoint, which was written, but {'none' if newest < 0 else newest} as the last: it was made "
                f"anew, an older copy of it was put back, another writer has replaced its metadata, or its catalog answers from a cache (then a later start succeeds). {_RESTORE}"
            )
            raise CheckpointMismatch(msg)
        return None

    def _must_have(self, last: Written) -> None:
        """Raise CheckpointMismatch unless the lineage has the app's last batch."""
        lineage = self.head.lineage
        if last.snapshot in {snapshot.id for snapshot in lineage} | {snapshot.parent for snapshot in lineage}:
            return
        if last.snapshot in self.head.snapshots:
            why = "it was rolled back"
        else:
            why = "it has expired, so it is unknown whether the table was rolled back before that"
        msg = f"the Iceberg table {self.name} counts batch {last.batch} of this checkpoint as written, and snapshot {last.snapshot} is not in its lineage: {why}. {_RESTORE}"
        raise CheckpointMismatch(msg)

    def history(self) -> History:
        """Return the lineage of the table."""
        return snapshots_of(self.head)

    def named(self, mark: Mark) -> Mapping[str, Any]:
        """Return the mark with snapshots by id: places would change when snapshots expire."""
        return said_of(mark, self.head)

    def commit(self, frame: DataFrame, turn: OutputTurn, mark: Mapping[str, Any]) -> bool:
        """Write the files, and commit them with the app's property."""
        metadata_before = _metadata_files(self.head)
        files = _write(frame, self.log)
        turn.probe("rows written")
        snapshot = _commit(self.log, files, self.app, self._stored, mark)
        turn.probe("rows committed")
        self._sync(self.log.table(), snapshot, metadata_before)
        return True

    def sync(self) -> None:
        """Make the snapshot durable, with its rows."""
        assert self._stored is not None
        self._sync(self.head, Written.parse(self._stored).snapshot, set())

    def _sync(self, table: Table, snapshot: int, metadata_before: set[Path]) -> None:
        """Make a snapshot durable, with the rows that it adds and all new metadata."""
        folder = _metadata_folder(table)
        if folder is None:
            return
        named = self.log.files(snapshot) if snapshot in table.snapshots else []
        rows = [Path(SparkPath.of_text(name).path) for name in named]
        entries = {*folder.iterdir()} - metadata_before | {folder / "version-hint.text"}
        sync_files(folder.parent, rows, folder, entries)

    @classmethod
    def sink_options(cls, frame: DataFrame, name: str, options: Mapping[str, Any], writer: str) -> dict[str, str]:
        """Return the mark that each snapshot of Spark's own sink has."""
        return {f"snapshot-property.{MARK}": marked(writer)}


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
