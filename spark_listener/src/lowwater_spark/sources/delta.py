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

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Leaf, Line, SourceDeclared, up
from lowwater_spark.sources.roots import Replaced
from lowwater_spark.sources.versioned import ANEW, BACK, STEP, OpenTable, TableSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = [
    "DELTA",
    "EXTERNAL",
    "Commit",
    "DeltaSource",
    "Head",
    "Offset",
    "OpenDelta",
    "SETTINGS",
    "Table",
    "TableLog",
    "app_id",
    "mark_of",
    "marked",
    "unread",
    "writer_of",
]

DELTA: Final = "delta"
"""Format of the source, as Spark names it."""

EXTERNAL: Final = "lowwater.externalLogStore"
"""Option that declares, for a table on S3, that no writer keeps commits outside of its log."""

_NAMED: Final = 5
"""Number of a version's files whose names are kept for messages."""

_FORMAT: Final = 1

_APP: Final = "lowwater:"


# -- the log of a table ----------------------------------------------------------------------------


class Table(NamedTuple):
    """A table as of its newest version."""

    version: int
    """Number of the newest version; -1: there is no table."""
    id: str
    """The table's id; it differs for a table that was dropped and created again."""
    location: str
    features: frozenset[str] = frozenset()
    properties: Mapping[str, str] = MappingProxyType({})

    @property
    def on_s3(self) -> bool:
        """True when the table is on S3, where Delta's writers may need a LogStore to stay apart."""
        return SparkPath.of_text(self.location).scheme.startswith("s3")

    @property
    def refusal(self) -> str:
        """Reason why the table's log does not have all of its commits; empty: it has."""
        if managed := self.features & {"catalogManaged", "catalogOwned", "catalogOwned-preview"}:
            return f"a catalog has its newest commits (the feature {min(managed)})"
        if coordinated := [name for name in self.properties if name.startswith("delta.coordinatedCommits.")]:
            return f"a coordinator has its newest commits (the property {min(coordinated)})"
        return ""


class Commit(NamedTuple):
    """One version of a table, from the table's log."""

    version: int
    added: int
    """Number of files with new rows. Offsets count the files of a version from 0."""
    removes: bool
    """True when the version removes rows."""
    operation: str
    writer: str
    """Full name of the computation that wrote the version; empty: it names none."""
    table: str
    """The table's id, if the version sets it; else empty."""
    files: tuple[str, ...] = ()
    """Names of the first files that the version adds."""
    mark: Mapping[str, Any] = MappingProxyType({})
    """Mark that lowwater has left in the commit; empty: none."""
    batches: Mapping[str, int] = MappingProxyType({})
    """Number of the batch that the version is, by the app that counts it."""

    @classmethod
    def parse(cls, version: int, text: str) -> Commit:
        r"""Return a version from the JSON of its commit. Raises OSError for another text.

        >>> new = '{"add":{"path":"a","dataChange":true}}'
        >>> moved = '{"add":{"path":"b","dataChange":false}}'
        >>> Commit.parse(7, f"{new}\n{moved}").added
        1
        """
        added, removes, operation, writer, table = 0, False, "", "", ""
        files: list[str] = []
        batches: dict[str, int] = {}
        mark: Mapping[str, Any] = {}
        try:
            for action in map(json.loads, lines_of(text)):
                if (add := action.get("add")) and add["dataChange"]:
                    added += 1
                    files += [add["path"]] if added <= _NAMED else []
                elif (remove := action.get("remove")) and remove["dataChange"]:
                    removes = True
                elif info := action.get("commitInfo"):
                    operation, mark = str(info.get("operation", "")), mark_of(info.get("userMetadata"))
                elif meta := action.get("metaData"):
                    table = meta["id"]
                elif txn := action.get("txn"):
                    writer = writer or writer_of(txn["appId"])
                    batches[txn["appId"]] = txn["version"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"version {version} of a table is no commit of Delta: {error!r}"
            raise OSError(msg) from error
        writer = writer or str(mark.get("computation", ""))
        return cls(version, added, removes, operation, writer, table, tuple(files), mark, batches)

    @property
    def strange(self) -> bool:
        """True when the version has new rows and names no computation."""
        return bool(self.added) and not self.writer

    @property
    def rewrites(self) -> bool:
        """True when the version adds older rows again, which a watermark may have passed."""
        return bool(self.added) and (self.removes or self.operation == "RESTORE")

    def __str__(self) -> str:
        """Return the version in words."""
        return f"version {self.version} ({self.operation or 'of an operation that it does not name'})"


def mark_of(metadata: Any) -> Mapping[str, Any]:
    """Return lowwater's mark from a commit's metadata; empty when there is none."""
    try:
        content = json.loads(metadata)["lowwater"]
    except (KeyError, TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def marked(computation: str, **content: object) -> str:
    """Return the mark that a computation leaves in the metadata of its commits, as JSON.

    >>> marked("hourly", batch=7)
    '{"lowwater": {"format": 1, "computation": "hourly", "batch": 7}}'
    """
    return json.dumps({"lowwater": {"format": _FORMAT, "computation": computation, **content}})


def app_id(computation: str, identity: str) -> str:
    """Return the name under which a table counts the batches of a computation's checkpoint.

    >>> app_id("default/hourly", "c0ffee"), writer_of("lowwater:c0ffee:default/hourly")
    ('lowwater:c0ffee:default/hourly', 'default/hourly')
    """
    return f"{_APP}{identity}:{computation}"


def writer_of(app: str) -> str:
    """Return the computation that counts its batches under an app; empty for a foreign app."""
    return app.removeprefix(_APP).partition(":")[2] if app.startswith(_APP) else ""


class TableLog(Protocol):
    """Questions that a source asks one table. Each call raises OSError when there is no answer."""

    def table(self) -> Table:
        """Return the table as of now."""
        ...

    def commit(self, version: int) -> Commit | None:
        """Return one version; None when it is not in the log any more."""
        ...

    def apps(self) -> Mapping[str, int]:
        """Return the number of the last batch by each app that counts batches in the table."""
        ...


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
        try:
            content = json.loads(line)
            read = cls(
                content["reservoirId"], content["reservoirVersion"], content["index"], content["isStartingVersion"]
            )
            supported = content["sourceVersion"] in (1, 3)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(_OTHER.format(line=line)) from error
        if not supported or [type(part) for part in read] != [str, int, int, bool]:
            raise CheckpointMismatch(_OTHER.format(line=line))
        return read

    def __str__(self) -> str:
        """Return the offset in words."""
        return f"({self.version}, {self.file})" + (" of the snapshot" if self.initial else "")


def unread(offset: Offset, head: int, commits: Mapping[int, Commit]) -> list[Commit] | None:
    """Return the versions up to a head of which an offset has not taken all files.

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
    """Return the newest version of which an offset has taken a file; -1: none."""
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

    format = DELTA
    title = "Delta"
    harmless = _HARMLESS
    harmful = _OPTIONS

    @classmethod
    def planned(cls, leaf: Leaf) -> DeltaSource | None:
        """Return the source of Delta's stream."""
        from lowwater_spark.sources.delta_log import DeltaLog

        if leaf.of_tables or leaf.format.lower() not in _FORMATS:
            return None
        path = leaf.options["path"]
        return cls(path, leaf.options, DeltaLog(leaf.spark, path), leaf.changed(SETTINGS, "true"))

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options that a declared table may have: none."""
        if not declared.path.startswith("/") and not SparkPath.of_text(declared.path).scheme:
            msg = f"{declared.name}: the path of a table is an absolute directory or a URI"
            raise ValueError(msg)
        return set()

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> DeltaSource:
        """Return the source of a declared table."""
        from lowwater_spark.sources.delta_log import DeltaLog

        return cls(declared.path, {"path": declared.path}, DeltaLog(session(), declared.path))

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
                f'If no writer of the table has such a LogStore, declare it: option("{EXTERNAL}", "false").',
            )
        writers = {writer_of(app) for app in self.log.apps()} - {""}
        self.check_alone(writers, _recent(self.log, table.version))

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of Delta."""
        Offset.of(line)

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
        self._committed: Offset | None = None
        self._planned: Offset | None = None
        self._settled = -1
        """Newest version of which a committed batch has taken a file."""
        self._knocked: tuple[Line, str] = ("", "")
        """Last line given to :meth:`knock`, and the table's id after that."""
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
        if offset is None:
            return
        if offset.table != self._pin.table:
            raise CheckpointMismatch(self._replaced(offset.table))
        before = self._committed
        if before is not None and (offset.version, offset.file) < (before.version, before.file):
            raise self._gone_back(before, offset)
        self._planned = offset

    def knock(self, line: Line) -> None:
        """Ask for the table's id and the unchecked versions, which :meth:`confirm` needs.

        Raises OSError.
        """
        table = self._log.table()
        for version in range(self._checked + 1, _last_read(Offset.of(line)) + 1):
            if version not in self._commits:
                self._commits[version] = self._commit(version)
        self._knocked = line, table.id

    def confirm(self, line: Line) -> None:
        """Check that the table is the pinned one, and check the versions that a batch has read.

        Raises CheckpointMismatch, and OSError when the log cannot be read.
        """
        if self._knocked[0] != line:
            self.knock(line)
        if self._knocked[1] != self._pin.table:
            raise CheckpointMismatch(self._replaced(self._knocked[1]))
        offset = Offset.of(line)
        if offset is None:
            return
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
            for version in [number for number in list(self._commits) if number < begin]:  # another thread may knock
                del self._commits[version]
            for version in range(begin, table.version + 1):
                if version not in self._commits:
                    self._commits[version] = self._commit(version)
        self._raise_what_holds()
        return Head(table.version, read is None and self._never_had_rows(table.version))

    def _check_to(self, last: int) -> None:
        """Check each version up to ``last`` that was not checked yet.

        Raises OSError when one is not in the log any more.
        """
        for version in range(self._checked + 1, last + 1):
            commit = self._commits.get(version) or self._commit(version)
            self._commits[version] = commit
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
        commit: Commit | None = self._log.commit(version)
        if commit is None:
            msg = (
                f"version {version} of {self._source.name} is not in its log any more, so its rows are unknown. {ANEW}"
            )
            raise OSError(msg)
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

    def reached(self, head: Head, offset: Line | None) -> bool:
        """Return whether an offset has taken all files up to the head."""
        if self._held:
            return False
        read = None if offset is None else Offset.of(offset)
        if read is None:
            return head.empty
        if read.table != self._pin.table or read.initial:
            return False
        return read.version > head.version or unread(read, head.version, self._commits) == []

    def same(self, one: Head, other: Head) -> bool:
        """Return whether both heads are the same version."""
        return one.version == other.version

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


_OTHER: Final = (
    "{line!r} is not the offset of a Delta table in the offset log: the checkpoint belongs to a query with another source. Start that query again, or this one "
    "from a new checkpoint, with adopt=True."
)
