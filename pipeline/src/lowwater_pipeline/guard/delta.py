"""Guarded writes into a Delta table, by options of Delta's own writer.

Delta writes a version once for each ``txnAppId`` and ``txnVersion``, and skips a number that is not
above the last one. That is a fence, if the numbers are chosen well:

    txnVersion = raise << 40 | batch + 1          a guard's raises count densely: 1, 2, 3, ...

A raise is a version without rows, with the number ``raise << 40``. From then on an older owner's
numbers are too low. If Delta reads the table after the raise, it skips the write; if it read the
table before, the commit conflicts. It skips *without an error*, so after each save the writer looks
for its own mark in the log.

With the batch's number alone, Delta would skip a copied checkpoint, or skip the live one after the
copy: rows would be lost without an error.

The guard's row is in the ``userMetadata`` of the newest version that the guard has written. Needs
the extra ``lowwater-pipeline[spark]``, and a session with Delta.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lowwater_pipeline.guard.claim import Claim
from lowwater_pipeline.guard.errors import Damaged, GuardError, InDoubt, Unfit
from lowwater_pipeline.guard.row import Row, check_steps, judge, raised
from lowwater_pipeline.guard.run import GuardedOutput
from lowwater_spark.sources.tables.delta import DELTA
from lowwater_spark.sources.tables.delta_log import Commit, DeltaLog, Table, path_of
from lowwater_spark.sources.tables.versioned import app_id, marked
from lowwater_spark.track.output.delta_out import check_table, sync_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import lowwater_spark as lws

__all__ = ["DeltaGuard", "DeltaOutput", "DeltaWriter"]

BATCH_BITS: Final = 40
MOST_BATCHES: Final = (1 << BATCH_BITS) - 1

_TRIES: Final = 20
"""Greatest number of attempts to save a version when other writers come first."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """A guard's state in the table's log."""

    table: Table
    number: int
    """The last ``txnVersion``; 0 before the first raise."""
    row: Row | None
    version: int
    """Version of the table that has the number; -1 before the first raise."""

    @property
    def ordinal(self) -> int:
        """Number of raises so far."""
        return self.number >> BATCH_BITS


class DeltaGuard:
    """One guard in one existing Delta table. Several guards of one table are independent.

    ``table`` is an absolute path, or a name in the session's catalog. ``name`` is the guard's.
    ``computation`` is the full name of the computation whose output it is; readers see it as the
    writer. The guard has one slot, because a Spark query owns the whole key space. Not thread-safe.
    """

    def __init__(self, spark: SparkSession, table: str, name: str, *, computation: str) -> None:
        if not name or {":", "\0"} & set(name):
            msg = f"name={name!r}: it is a text that is not empty, without a colon"
            raise Unfit(msg)
        self.spark = spark
        self.name = name
        self.computation = computation
        self.log = DeltaLog(spark, path_of(spark, table))
        self.app = app_id(computation, f"guard-{name}")
        """Name under which the table counts the guard's versions."""
        self.probe: Callable[[str], None] = lambda point: None
        """Called at the named points of a write; for tests."""

    def raise_(self, claim: Claim, *, begin: int = 0) -> DeltaWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        As :meth:`lowwater_pipeline.guard.postgres.PostgresGuard.raise_`. Costs one version of the
        table, and reads the versions since the guard's last one. Raises Unfit when the table is
        missing, lowwater_spark.Unsupported for a table that cannot be fenced, OSError when its log
        cannot be read, InDoubt when other writers came first again and again.
        """
        if claim.computation != self.computation:
            msg = f"{self._where} is made for {self.computation}, and the claim is of {claim.computation}"
            raise Unfit(msg)
        for _ in range(_TRIES):
            stands = self.standing()
            row = raised(stands.row, claim, stands.table.id, begin, self._where)
            if row == stands.row:
                self._settle(stands)
                return DeltaWriter(self, claim, stands.ordinal, row)
            ordinal = stands.ordinal + 1
            nothing = self.spark.read.format(DELTA).load(self.log.path).limit(0)
            if self._save(nothing, stands, ordinal << BATCH_BITS, row):
                return DeltaWriter(self, claim, ordinal, row)
        raise self._crowded()

    def standing(self) -> _Standing:
        """Return the guard's state in the log now. Raises Damaged, Unfit, Unsupported, OSError."""
        table = self.log.table()
        if table.version < 0:
            msg = f"there is no Delta table at {self.log.path}: create it first, with the columns that will be written"
            raise Unfit(msg)
        check_table(self.spark, self.log, table, f"the guard {self.name}, which writes")
        number = self.log.apps().get(self.app, 0)
        if not number:
            return _Standing(table, 0, None, -1)
        # The table is read again, because the counted number may be newer than the first answer.
        table = self.log.table()
        for version in range(table.version, -1, -1):
            commit = self.log.commit(version)
            if commit is None:
                raise self._damaged(
                    f"version {version} of {self.log.path} is not in its log any more, and the guard has written none since: the log is kept for "
                    "delta.logRetentionDuration, 30 days by default"
                )
            if commit.operation == "RESTORE":
                raise self._damaged(f"{commit} may have taken rows away that it counts")
            if commit.batches.get(self.app, -1) >= number:
                return _Standing(table, commit.batches[self.app], self._row(commit), version)
        raise self._damaged(f"no version of {self.log.path} has its number {number}")

    def write(self, writer: DeltaWriter, batch: int, digest: str, frame: DataFrame, after: int | None = None) -> bool:
        """See :meth:`DeltaWriter.write`."""
        for _ in range(_TRIES):
            stands = self.standing()
            if not judge({0: stands.row}, writer.claim, stands.table.id, {0: batch}, digest, self.name, after):
                self._settle(stands)
                return False
            assert stands.row is not None
            self.probe("checked")
            row = replace(stands.row, batch=batch, digest=digest)
            if self._save(frame, stands, writer.ordinal << BATCH_BITS | batch + 1, row):
                return True
        raise self._crowded()

    def _save(self, frame: DataFrame, stands: _Standing, number: int, row: Row) -> bool:
        """Save a version, durably; return False when another writer came first."""
        own = secrets.token_hex(16)
        mark = {**_fields(row), "guard": self.name, "save": own}
        writer = frame.write.format(DELTA).mode("append").option("txnAppId", self.app).option("txnVersion", str(number))
        try:
            writer.option("userMetadata", marked(self.computation, **mark)).save(self.log.path)
        except Exception as failure:
            if _conflicts(failure):
                return False
            raise
        self.probe("saved")
        after = self.log.table()
        if not self._has_save(own, after, stands.table.version + 1):
            return False
        sync_versions(self.log, after, stands.table.version + 1, after.version)
        return True

    def _settle(self, stands: _Standing) -> None:
        """Sync a version that is there already: its writer may have died before it did."""
        sync_versions(self.log, stands.table, stands.version, stands.version)

    def _has_save(self, own: str, table: Table, first: int) -> bool:
        """Return True if the log has a save. Delta does not report a skipped one."""
        for version in range(table.version, first - 1, -1):
            commit = self.log.commit(version)
            if commit is not None and commit.mark.get("save") == own:
                return True
        return False

    def _row(self, commit: Commit) -> Row:
        mark = commit.mark
        try:
            return Row.of({**mark, "batch": mark["last"]})
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"{commit} of {self.log.path} does not say what stands there: {error!r}") from error

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"{self._where} cannot be read: {what}. Nothing was written. Go on with a guard of another name, from a new checkpoint or with what was lost written again."
        )

    def _crowded(self) -> GuardError:
        return InDoubt(
            f"the guard {self.name}: others have written into {self.log.path} before, {_TRIES} times. Make the same write again."
        )

    @property
    def _where(self) -> str:
        return f"the guard {self.name} of the Delta table {self.log.path}"


class DeltaWriter:
    """The owner of an output until the next raise; :meth:`DeltaGuard.raise_` returns it."""

    def __init__(self, guard: DeltaGuard, claim: Claim, ordinal: int, row: Row) -> None:
        self.guard = guard
        self.claim = claim
        self.ordinal = ordinal
        """Number of the claim's raise among the guard's."""
        self.found: Mapping[int, Row] = {0: row}
        """Row after the raise; its batch is the last one that the table has."""

    def write(self, batch: int, digest: str, frame: DataFrame, *, after: int | None = None) -> bool:
        """Append the rows of a batch as one version, once; return False if it is there already.

        Durable when it returns; local directories are synced. ``batch``, ``digest`` and ``after``
        as for :meth:`lowwater_pipeline.guard.postgres.PostgresWriter.write`. The frame runs again
        when another guard of the table came first. Raises Fenced when a newer claim was raised,
        another GuardError, OSError when the log cannot be read, and what Spark raises. Reads the
        versions since the guard's last one, twice.
        """
        check_steps(range(1), {0: batch}, digest, self.guard.name)
        if batch >= MOST_BATCHES:
            msg = f"batch {batch}: a Delta table counts up to {MOST_BATCHES:,}"
            raise Unfit(msg)
        return self.guard.write(self, batch, digest, frame, after)


class DeltaOutput(GuardedOutput[DeltaWriter]):
    """One Delta table that one tracked stage appends to, under its claim.

    Make one for each output, beside the stage; it serves all runs of the process. ``table`` and
    ``name`` as for :class:`DeltaGuard`; ``configuration`` as for
    :class:`lowwater_pipeline.guard.Claim`.
    """

    def __init__(self, table: str, name: str, *, configuration: int = 0) -> None:
        super().__init__(table, name, configuration)

    def own(self, batch: lws.Batch, spark: SparkSession) -> DeltaWriter:
        """Raise the claim of the batch's run, once, and return its writer.

        Raises Unclaimed, Fenced and what :meth:`DeltaGuard.raise_` raises.
        """

        def raise_(claim: Claim, begin: int) -> DeltaWriter:
            guard = DeltaGuard(spark, self.table, self.name, computation=claim.computation)
            guard.probe = self.probe
            return guard.raise_(claim, begin=begin)

        return self._owned(batch, raise_)

    def write(self, batch: lws.Batch, frame: DataFrame) -> bool:
        """Append the rows of a batch, once and whole; return False if they were there.

        Not every batch needs a write. Raises and costs as :meth:`own` and
        :meth:`DeltaWriter.write`.
        """
        writer = self.own(batch, frame.sparkSession)
        return self._written(batch, writer, lambda after: writer.write(batch.id, batch.digest, frame, after=after))


def _fields(row: Row) -> dict[str, Any]:
    """Return a row as a version's metadata, beside the computation's name."""
    texts = row.texts().items()
    return {"last" if name == "batch" else name: text for name, text in texts if name != "computation"}


def _conflicts(failure: Exception) -> bool:
    """Return True if Delta has refused a commit because another one came first."""
    text = f"{type(failure).__name__} {failure}"
    return any(
        kind in text for kind in ("ConcurrentTransactionException", "DELTA_CONCURRENT_TRANSACTION", "ConcurrentAppend")
    )
