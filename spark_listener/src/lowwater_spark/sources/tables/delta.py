"""Delta as a source: a table, for a stage with inputs; for an injector too.

The head is the newest version of the table. An offset is Delta's own: ``(v, i)`` covers all
versions before v, and the first i + 1 files that version v adds. The two numbers do not suffice: an
``initial`` offset points into a snapshot of which files are still to be read, and in a table that
was dropped and created again the same numbers mean other rows. So an offset has reached the head H
when it is of the pinned table, is not initial, and

* v is after H, or
* the offset has taken every file with rows that the versions from v to H add. A version that only
  rearranges rows (``dataChange`` false, as OPTIMIZE makes) adds none.

The manifest keeps the table's id from before the query's first batch. Each version since is checked
once: for its writer, and for rows that come back (RESTORE) or are written anew (UPDATE, MERGE, an
overwrite), because the watermark may have passed those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Leaf, Line, SourceDeclared, up
from lowwater_spark.sources.files.roots import Replaced
from lowwater_spark.sources.tables.delta_log import Commit, DeltaLog, Table, TableLog
from lowwater_spark.sources.tables.versioned import ANEW, BACK, STEP, OpenTable, TableSource, fields_of, writer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "DELTA",
    "DeltaSource",
    "Head",
    "Offset",
    "SETTINGS",
    "unread",
]

DELTA: Final = "delta"
"""Format of the source, as Spark names it."""

EXTERNAL: Final = "lowwater.externalLogStore"
"""Option that declares, for a table on S3, that no writer keeps commits outside of its log."""


# -- offsets ---------------------------------------------------------------------------------------


class Offset(NamedTuple):
    """Offset of Delta's source."""

    table: str
    version: int
    file: int
    """Index of the last file of the version that was taken; below 0: none."""
    initial: bool
    """True while the query reads the snapshot that it began with: all files of the table at that
    version."""

    @classmethod
    def of(cls, line: Line) -> Offset | None:
        """Return the offset in a line of ``offsets/N``; None before the first row was read.

        Raises CheckpointMismatch for a line of another source.
        """
        if line == NONE:
            return None
        fields = {"reservoirId": str, "reservoirVersion": int, "index": int, "isStartingVersion": bool}
        return cls(*fields_of(line, "a Delta table", fields, "sourceVersion", (1, 3)))

    def __str__(self) -> str:
        """Return the offset in words."""
        return f"({self.version}, {self.file})" + (" of the snapshot" if self.initial else "")


def unread(offset: Offset, head: int, commits: Mapping[int, Commit]) -> list[Commit] | None:
    """Return the versions up to a head that have files which an offset has not taken.

    None when ``commits`` lacks one of the versions. The offset is not initial.

    >>> write = Commit(7, 2, False, "WRITE", "", "")
    >>> optimize = Commit(8, 0, False, "OPTIMIZE", "", "")
    >>> offsets = [Offset("t", 9, -1, False), Offset("t", 7, 1, False), Offset("t", 8, -1, False)]
    >>> [unread(offset, 8, {7: write, 8: optimize}) for offset in offsets]
    [[], [], []]
    >>> [commit.version for commit in unread(Offset("t", 7, 0, False), 8, {7: write, 8: optimize})]
    [7]
    """
    pending = []
    for version in range(offset.version, head + 1):
        if version not in commits:
            return None
        commit = commits[version]
        if commit.added > (max(offset.file, -1) + 1 if version == offset.version else 0):
            pending.append(commit)
    return pending


def _last_read(offset: Offset | None) -> int:
    """Return the newest version from which an offset has taken a file; -1: none."""
    if offset is None:
        return -1
    return offset.version if offset.file >= 0 or offset.initial else offset.version - 1


# -- the source ------------------------------------------------------------------------------------

_HARMLESS: Final = frozenset(
    {
        EXTERNAL.lower(),
        "path",
        "maxfilespertrigger",
        "maxbytespertrigger",
        "ignoredeletes",
        "schematrackinglocation",
        "schemalocation",
        "streamingsourcetrackingid",
        "allowsourcecolumnrename",
        "allowsourcecolumndrop",
        "allowsourcecolumntypechange",
    }
)
"""Options, in lower case, that leave no row out."""

_OPTIONS: Final[Mapping[str, str]] = {
    "ignorechanges": "a rewritten file brings older rows again, and the watermark has passed them",
    "skipchangecommits": "rows of a skipped version would count as read",
    "ignorefiledeletion": "a rewritten file brings older rows again, and the watermark has passed them",
    "excluderegex": "rows of a skipped file would count as read",
    "readchangefeed": "the stream then has changes and not rows, and another order of files",
    "readchangedata": "the stream then has changes and not rows, and another order of files",
    "ignoremissingfiles": "rows of a skipped file would count as read",
    "ignorecorruptfiles": "rows of a skipped file would count as read",
    "startingversion": "rows before that version would count as read",
    "failondataloss": "rows of versions that are removed before they are read would count as read",
    "startingtimestamp": "rows before that time would count as read",
}

_FORMATS: Final = frozenset({DELTA, "org.apache.spark.sql.delta.sources.deltadatasource"})

SETTINGS: Final = ("spark.databricks.delta.streaming.trailingCommitValidation.enabled",)
"""Settings of the session that must be true, as they are by default."""


@dataclass(frozen=True, slots=True)
class DeltaSource(TableSource):
    """A streaming Delta source, as the query's plan has it."""

    kind = DELTA
    title = "Delta"
    harmless = _HARMLESS
    harmful = _OPTIONS

    @classmethod
    def planned(cls, leaf: Leaf) -> DeltaSource | None:
        """Return the source of Delta's stream."""
        if leaf.of_tables or leaf.format.lower() not in _FORMATS:
            return None
        path = leaf.options["path"]
        return cls(path, leaf.options, DeltaLog(leaf.spark, path), leaf.changed(SETTINGS, "true"))

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options that a declared table may have."""
        if not declared.path.startswith("/") and not SparkPath.of_text(declared.path).scheme:
            msg = f"{declared.name}: the path of a table is an absolute directory or a URI"
            raise ValueError(msg)
        return {EXTERNAL.lower()}

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> DeltaSource:
        """Return the source of a declared table."""
        return cls(declared.path, {**declared.options, "path": declared.path}, DeltaLog(session(), declared.path))

    @classmethod
    def guess(cls, line: Line) -> str:
        """Return an example for an offset of Delta."""
        return f"{DELTA}:/data/table" if '"reservoirId"' in line else ""

    def is_harmless(self, option: str, value: str) -> bool:
        """Return whether an option with a value leaves no row out."""
        return value == "true" if option == "failondataloss" else TableSource.is_harmless(self, option, value)

    def pin(self) -> Pin:
        """Return the pin of the table as it is now. Raises OSError."""
        table = self.log.table()
        marked = any(writer_of(app) for app in self.log.apps())
        return Pin(table.id, table.version, marked or any(commit.writer for commit in _recent(self.log, table.version)))

    def check_writers(self) -> None:
        """Refuse a table whose log may lack commits, or whose writers the inputs do not name.

        Raises Unsupported for both; OSError when the log cannot be read.
        """
        if self.inputs is None:
            return
        table = self.log.table()
        if table.refusal:
            raise Unsupported(
                self.staged,
                f"{table.refusal}, and readers may see them after the watermarks of the inputs",
                "Begin the pipeline here with lws.injector(), which reports how far it is.",
            )
        if table.on_s3 and self.options.get(EXTERNAL.lower(), "").lower() != "false":
            raise Unsupported(
                f"{up(self.name)} on S3, without the option {EXTERNAL}",
                "a writer whose LogStore keeps the newest commits elsewhere (S3DynamoDBLogStore) has commits that a listing misses, and a reader cannot tell",
                f'If no writer of the table has such a LogStore, declare it: option("{EXTERNAL}", "false"), for a sidecar "delta:{self.options["path"]},{EXTERNAL}=false".',
            )
        writers = {writer_of(app) for app in self.log.apps()} - {""}
        self.check_alone(writers, _recent(self.log, table.version))

    def offset(self, line: Line) -> Offset | None:
        """Return the offset in a line, see :meth:`Offset.of`."""
        return Offset.of(line)

    def open_table(self, manifest: Manifest, number: int) -> OpenDelta:
        """Return the source for one run of a query that waits for the table's head."""
        return OpenDelta(self, manifest, number)

    def went_back(self, before: Line, now: Line) -> str:
        """Return in words how a line is below the one before; empty when it is not."""
        old, new = Offset.of(before), Offset.of(now)
        if old is None or new is None:
            return ""
        if new.table != old.table:
            return f"to another table (its id was {old.table} and is {new.table})"
        if (new.version, new.file) < (old.version, old.file):
            return f"from {old} to {new}"
        return ""


def _recent(log: TableLog, last: int) -> list[Commit]:
    """Return the newest versions that the log still has, in order."""
    commits: list[Commit] = []
    for version in range(last, max(-1, last - BACK), -1):
        commit = log.commit(version)
        if commit is None:
            break
        commits.insert(0, commit)
    return commits


class Pin(NamedTuple):
    """Identity of the table and progress of the checks, stored in the checkpoint's manifest."""

    table: str
    """The table's id."""
    checked: int
    """Newest committed version up to which all since the query's start were checked; at first the
    newest version when the query began."""
    marked: bool = False
    """True when a computation has left a mark in the table; then each commit with rows must have
    one."""
    broken: str = ""
    """Reason why the watermark holds for good; empty: none."""


class Head(NamedTuple):
    """Head of a Delta source: the version to reach."""

    version: int
    empty: bool
    """True when no version up to this one has ever had a row."""


class OpenDelta(OpenTable):
    """The table of a running query.

    Its offset is a place in the table's log, its head a version.
    """

    def __init__(self, source: DeltaSource, manifest: Manifest, number: int) -> None:
        super().__init__(source, manifest, number, lambda entry: Pin(*entry))
        self._settled = -1
        """Newest version from which a committed batch has taken a file."""
        self._commits: dict[int, Commit] = {}
        """Versions that batches may still have to read."""
        self._checked: int = self._pin.checked
        """Newest version that was checked."""

    # -- lines -------------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the pin, and with the committed one.

        Raises CheckpointMismatch.
        """
        offset = Offset.of(line)
        if offset is not None and offset.table != self._pin.table:
            raise CheckpointMismatch(self._replaced(offset.table))
        super().read_to(line)

    def _is_below(self, offset: Offset | None, before: Offset) -> bool:
        return offset is not None and (offset.version, offset.file) < (before.version, before.file)

    def knock(self, line: Line) -> None:
        """Ask for the table and the unchecked versions, which :meth:`confirm` needs.

        Raises OSError.
        """
        table = self._log.table()
        for version in range(self._checked + 1, _last_read(Offset.of(line)) + 1):
            self._commit(version)
        self._knocked = line, table

    def _settle(self, offset: Offset, table: Table) -> None:
        self._settled = _last_read(offset)
        self._check_to(self._settled)
        self._committed = offset
        if self._settled >= self._pin.checked + STEP:
            self.close()

    def close(self) -> None:
        """Store in the pin the newest committed version that was checked.

        Raises CheckpointMismatch, OSError.
        """
        if self._settled > self._pin.checked:
            self._keep(self._pin._replace(checked=self._settled))

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Head:
        """Return the newest version, after each version since the last look was checked.

        Raises OSError when one cannot be read, and Replaced when the watermark holds for good.
        """
        table = self._log.table()
        if table.id != self._pin.table:
            raise Replaced(self._replaced(table.id))
        read = Offset.of(settled)
        least = max(self._checked, -1 if read is None else read.version - 1)
        if table.version < least:
            self._break(
                f"{self._source.name} ends at version {table.version}, and had version {least} before: its log was cut off. {ANEW}"
            )
        else:
            self._check_to(table.version)
            begin = self._pin.checked + 1 if read is None else read.version + read.initial
            # list() copies the keys, because another thread may add versions in knock() meanwhile,
            # and a loop over the dictionary would then fail.
            for version in [number for number in list(self._commits) if number < begin]:
                del self._commits[version]
            for version in range(begin, table.version + 1):
                self._commit(version)
        self._raise_what_holds()
        return Head(table.version, read is None and self._never_had_rows(table.version))

    def _check_to(self, last: int) -> None:
        """Check each version up to ``last`` that was not checked yet.

        Raises OSError when one is not in the log any more.
        """
        for version in range(self._checked + 1, last + 1):
            commit = self._commit(version)
            if commit.table not in ("", self._pin.table):
                self._break(self._replaced(commit.table))
            elif commit.rewrites:
                self._break(
                    f"{commit} of {self._source.name} has rows that were there before, and the watermark may have passed them. {ANEW}"
                )
            else:
                self._know_writer(commit)
            self._checked = version

    def _commit(self, version: int) -> Commit:
        """Return a version, which is read once. Raises OSError."""
        commit: Commit | None = self._commits.get(version) or self._log.commit(version)
        if commit is None:
            msg = (
                f"version {version} of {self._source.name} is not in its log any more, so its rows are unknown. {ANEW}"
            )
            raise OSError(msg)
        self._commits[version] = commit
        return commit

    def _never_had_rows(self, last: int) -> bool:
        """Return whether no version up to ``last`` has had a row.

        Costs reading the versions up to the first with rows.
        """
        for version in range(last + 1):
            commit = self._commits.get(version) or self._log.commit(version)
            if commit is None or commit.added:
                return False
        return True

    def _covers(self, head: Head, read: Offset | None) -> bool:
        if read is None:
            return head.empty
        if read.table != self._pin.table or read.initial:
            return False
        return read.version > head.version or unread(read, head.version, self._commits) == []

    def missing(self, head: Head, limit: int) -> list[str]:
        """Return in words up to ``limit`` unread versions, with an unread file of each."""
        read = self._planned or Offset(self._pin.table, self._pin.checked, -1, initial=True)
        begin = read._replace(version=read.version + 1, file=-1) if read.initial else read
        lines = []
        for commit in unread(begin, head.version, self._commits) or ():
            skip = max(begin.file, -1) + 1 if commit.version == begin.version else 0
            file = f", such as {commit.files[skip]}" if skip < len(commit.files) else ""
            rest = f"{commit.added - skip} of its {commit.added} files are unread{file}"
            lines.append(f"{self._source.name}, {commit}: {rest}")
        if read.initial and not lines and not head.empty:
            lines.append(
                f"{self._source.name}: some files of version {read.version}, with which the query begins, are unread"
            )
        return lines[:limit]
