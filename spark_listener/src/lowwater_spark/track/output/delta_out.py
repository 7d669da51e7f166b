"""An output that is a Delta table: one batch is one version.

A version has a name for the writer that counts its batches in the table, and the batch's number
(Delta's ``txnAppId`` and ``txnVersion``). Delta itself writes each number of a name once: it skips
a replay, and of two concurrent runs one fails. But after a checkpoint was restored from an older
copy, Delta would silently skip other rows that have an existing number. So each version also has
the digest of its plan, and a batch counts as written only if its version has the same digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.mark import History
from lowwater_spark.complete.table import history_of
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.tables.delta import DELTA
from lowwater_spark.sources.tables.delta_log import Commit, DeltaLog, Table, path_of
from lowwater_spark.sources.tables.versioned import marked
from lowwater_spark.track.output.outputs import FoundBatch, OutputTurn
from lowwater_spark.track.output.table_out import TableOut, sync_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaOut", "check_table", "sync_versions"]

_RETENTION: Final = "delta.setTransactionRetentionDuration"

_COMMIT_INFO: Final = "spark.databricks.delta.commitInfo.enabled"


class DeltaOut(TableOut):
    """A Delta table. Costs, besides Delta's own write, a read of each version added meanwhile."""

    log: DeltaLog
    head: Table
    _commit: Commit
    """Version that has the batch, once it is known."""

    def __init__(self, spark: SparkSession, log: DeltaLog, turn: OutputTurn) -> None:
        super().__init__(log, log.path, turn)
        self._spark = spark
        self._apps: Mapping[str, int] = {}

    @classmethod
    def at(cls, frame: DataFrame, turn: OutputTurn, place: str) -> DeltaOut:
        """Return the table at a path, or of a name in the session's catalog.

        Raises Unsupported for an unknown name, ValueError for a relative path.
        """
        spark = frame.sparkSession
        return cls(spark, DeltaLog(spark, path_of(spark, place)), turn)

    def counted(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the version that has the batch's number."""
        check_table(self._spark, self.log, self.head)
        self._apps = {} if self.head.version < 0 else self.log.apps()
        if self._apps.get(self.app, -1) < turn.facts.batch:
            return None
        self._commit = self._written(turn, self.head.version, down_to=0)
        digest = str(self._commit.mark.get("digest"))
        return FoundBatch(turn.facts.batch, digest, f"{self._commit} of the Delta table {self.name}")

    def history(self) -> History:
        """Return the versions of the table."""
        last = self._apps.get(self.app, -1)
        lost = {self.app: f"its last batch of this writer is {last}, and {self.newest} had been written"}
        return history_of(self.log, self.head.version, self._apps, lost if last < self.newest else {})

    def commit(self, frame: DataFrame, turn: OutputTurn, mark: Mapping[str, Any]) -> bool:
        """Write the rows. Delta skips the write silently if another run has come first."""
        writer = frame.write.format(DELTA).mode("append").option("txnAppId", self.app)
        writer.option("txnVersion", str(turn.facts.batch))
        writer.option("userMetadata", marked(turn.writer, **mark)).save(self.log.path)
        turn.probe("rows committed")
        before, self.head = self.head.version, self.log.table()
        self._commit = self._written(turn, self.head.version, down_to=before + 1)
        if (self._commit.mark.get("run"), self._commit.mark.get("digest")) != (turn.run, turn.facts.digest):
            return False
        sync_versions(self.log, self.head, before + 1, self._commit.version)
        return True

    def sync(self) -> None:
        """Make the version durable, with its rows."""
        sync_versions(self.log, self.head, self._commit.version, self._commit.version)

    @classmethod
    def sink_options(cls, frame: DataFrame, name: str, options: Mapping[str, Any], writer: str) -> dict[str, str]:
        """Return the mark that each commit of Spark's own sink has."""
        return {"userMetadata": marked(writer)}

    def _written(self, turn: OutputTurn, newest: int, *, down_to: int) -> Commit:
        """Return the version with the batch. Raises CheckpointMismatch if a RESTORE undid it."""
        for version in range(newest, down_to - 1, -1):
            commit = self.log.commit(version)
            if commit is not None and commit.batches.get(self.app) == turn.facts.batch:
                return commit
            if commit is None or commit.operation == "RESTORE":
                break
        msg = (
            f"the Delta table {self.name} counts batch {turn.facts.batch} of this checkpoint as written, but its log no longer has the version, so it is unknown whether its rows "
            "are there. Restore table and checkpoint from one moment, or start from a new checkpoint and a new table."
        )
        raise CheckpointMismatch(msg)


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


def sync_versions(log: DeltaLog, table: Table, first: int, last: int) -> None:
    """Make versions of a table durable, with the files that the last of them adds."""
    place = SparkPath.of_text(table.location)
    root = place.local
    if root is None:
        return
    folder = root / "_delta_log"
    rows = [path for name in log.files(last) if (path := place.below(name).local) is not None]
    named = {f"{version:020}" for version in range(first, last + 1)}
    entries = [path for path in folder.iterdir() if path.name.lstrip(".").partition(".")[0] in named]
    sync_files(root, rows, folder, [*entries, folder / "_last_checkpoint"])
