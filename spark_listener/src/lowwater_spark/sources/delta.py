"""Delta as a source: a table, for a stage with inputs; for an injector too.

The head is the newest version of the table. What an offset says is Delta's own: ``(v, i)`` has
everything of the versions before v, and of version v the first i + 1 files that it adds. A number
alone says too little: an offset that is ``initial`` points into a snapshot, of which files are
still to be read, and the same numbers mean other rows once a table was deleted and made anew. So an
offset has reached the head H when it is of the pinned table, is not initial, and

* v is beyond H, or
* no version from v to H adds a file with rows that it has not taken. What only rearranges rows
  (``dataChange`` false, as of OPTIMIZE) adds none.

What the table is stands in the manifest before the query's first batch. Each version since is read
once, and tells what a number would not: rows that come back (RESTORE) or are written anew (UPDATE,
MERGE, an overwrite), which the watermark has passed, and who has written it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Fileless, Line, OpenSource
from lowwater_spark.sources.opaque import OpenOpaque
from lowwater_spark.sources.roots import Replaced

if TYPE_CHECKING:
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
"""The name of the source's format."""

EXTERNAL: Final = "lowwater.externalLogStore"
"""The option that declares, of a table on S3, that no writer keeps commits elsewhere."""

_NAMED: Final = 5
"""Files of a version that are kept by name, for people."""

_BACK: Final = 100
"""Versions before its start in which a query looks for writers who leave no mark."""

_STEP: Final = 20
"""Versions that a new run may have to look at again: how many were is not noted with each batch."""

_ANEW: Final = "Start from a new checkpoint, with adopt=True."

_FORMAT: Final = 1

_APP: Final = "lowwater:"


# -- the log of a table ----------------------------------------------------------------------------


class Table(NamedTuple):
    """A table as of its newest version."""

    version: int
    """-1: there is none."""
    id: str
    """Another id is another table."""
    location: str
    features: frozenset[str] = frozenset()
    properties: Mapping[str, str] = MappingProxyType({})

    @property
    def on_s3(self) -> bool:
        """Whether it is where a name can be written over: there Delta needs somebody who keeps writers apart."""
        return SparkPath.of_text(self.location).scheme.startswith("s3")

    @property
    def refusal(self) -> str:
        """Why its versions cannot be known by its log alone, in words; empty: they can."""
        if managed := self.features & {"catalogManaged", "catalogOwned", "catalogOwned-preview"}:
            return f"a catalog has its newest commits (the feature {min(managed)})"
        if coordinated := [name for name in self.properties if name.startswith("delta.coordinatedCommits.")]:
            return f"a coordinator has its newest commits (the property {min(coordinated)})"
        return ""


class Commit(NamedTuple):
    """What one version of a table says of its rows."""

    version: int
    added: int
    """How many files with new rows it adds. Those of one version have the indexes from 0 on."""
    removes: bool
    """Whether it takes rows away."""
    operation: str
    writer: str
    """The full name of the computation that has written it; empty: it is not said."""
    table: str
    """The table's id, if the version sets it anew; else empty."""
    files: tuple[str, ...] = ()
    """The first that it adds, by name."""
    mark: Mapping[str, Any] = MappingProxyType({})
    """What lowwater has left in it."""
    batches: Mapping[str, int] = MappingProxyType({})
    """By who counts batches in the table: the one that it is."""

    @classmethod
    def parse(cls, version: int, text: str) -> Commit:
        r"""Return what the JSON of a version says. Raises OSError when it is none.

        >>> Commit.parse(7, '{"add":{"path":"a","dataChange":true}}\n{"add":{"path":"b","dataChange":false}}').added
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
    def rewrites(self) -> bool:
        """Whether rows come with it that were there before, which a watermark may have passed."""
        return bool(self.added) and (self.removes or self.operation == "RESTORE")

    def __str__(self) -> str:
        """Return it in words."""
        return f"version {self.version} ({self.operation or 'of an operation that it does not name'})"


def mark_of(said: Any) -> Mapping[str, Any]:
    """Return what lowwater has left in a commit's own metadata; nothing if it is somebody else's."""
    try:
        found = json.loads(said)["lowwater"]
    except (KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def marked(computation: str, **said: object) -> str:
    """Return what a computation leaves in the metadata of its commits.

    >>> marked("hourly", batch=7)
    '{"lowwater": {"format": 1, "computation": "hourly", "batch": 7}}'
    """
    return json.dumps({"lowwater": {"format": _FORMAT, "computation": computation, **said}})


def app_id(computation: str, identity: str) -> str:
    """Return the name under which a table counts the batches of a computation's checkpoint.

    >>> app_id("default/hourly", "c0ffee"), writer_of(app_id("default/hourly", "c0ffee")), writer_of("another's")
    ('lowwater:c0ffee:default/hourly', 'default/hourly', '')
    """
    return f"{_APP}{identity}:{computation}"


def writer_of(app: str) -> str:
    """Return the computation that counts its batches under a name; empty: it is none of lowwater's."""
    return app.removeprefix(_APP).partition(":")[2] if app.startswith(_APP) else ""


class TableLog(Protocol):
    """The log of one table. Each call raises OSError when it cannot be known now."""

    def table(self) -> Table:
        """Return the table as of now."""
        ...

    def commit(self, version: int) -> Commit | None:
        """Return what a version says; None when it is not in the log any more."""
        ...

    def apps(self) -> Mapping[str, int]:
        """Return the last batch of each who counts batches in the table."""
        ...


# -- offsets ---------------------------------------------------------------------------------------


class Offset(NamedTuple):
    """Where Delta's source stands."""

    table: str
    version: int
    file: int
    """Of the last file of the version that was taken; below 0: none."""
    initial: bool
    """Whether the version is the snapshot that the query began with, all files of which count."""

    @classmethod
    def of(cls, line: Line) -> Offset | None:
        """Return what a line of ``offsets/N`` says, None for a source that has given nothing yet.

        Raises CheckpointMismatch for a line of another source.
        """
        if line == NONE:
            return None
        try:
            found = json.loads(line)
            read = cls(found["reservoirId"], found["reservoirVersion"], found["index"], found["isStartingVersion"])
            known = found["sourceVersion"] in (1, 3)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(_OTHER.format(line=line)) from error
        if not known or [type(each) for each in read] != [str, int, int, bool]:
            raise CheckpointMismatch(_OTHER.format(line=line))
        return read

    def __str__(self) -> str:
        """Return it in words."""
        return f"({self.version}, {self.file})" + (" of the snapshot" if self.initial else "")


def unread(offset: Offset, head: int, commits: Mapping[int, Commit]) -> list[Commit] | None:
    """Return the versions up to a head with files that an offset, which is not initial, has not taken; None when one of them is not known.

    >>> commits = {7: Commit(7, 2, False, "WRITE", "", ""), 8: Commit(8, 0, False, "OPTIMIZE", "", "")}
    >>> [unread(Offset("t", version, index, False), 8, commits) for version, index in [(9, -1), (7, 1), (8, -1)]]
    [[], [], []]
    >>> [commit.version for commit in unread(Offset("t", 7, 0, False), 8, commits)]
    [7]
    """
    found = []
    for version in range(offset.version, head + 1):
        if version not in commits:
            return None
        commit = commits[version]
        if commit.added > (max(offset.file, -1) + 1 if version == offset.version else 0):
            found.append(commit)
    return found


def _last_read(offset: Offset | None) -> int:
    """Return the newest version of which an offset has taken anything; -1: none."""
    if offset is None:
        return -1
    return offset.version if offset.file >= 0 or offset.initial else offset.version - 1


def went_back(before: Line, now: Line) -> str:
    """Return how a line is below the one before, in words; empty where it is not."""
    old, new = Offset.of(before), Offset.of(now)
    if old is None or new is None:
        return ""
    if new.table != old.table:
        return f"to another table (its id was {old.table} and is {new.table})"
    if (new.version, new.file) < (old.version, old.file):
        return f"from {old} to {new}"
    return ""


# -- the source ------------------------------------------------------------------------------------

_HARMLESS: Final = frozenset(
    {
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
"""Options that leave no row out."""

_OPTIONS: Final[Mapping[str, str]] = {
    "ignorechanges": "rows that were there before come again when a file is rewritten, and the watermark has passed them",
    "skipchangecommits": "rows of a version that is passed over would count as read",
    "ignorefiledeletion": "rows that were there before come again when a file is rewritten, and the watermark has passed them",
    "excluderegex": "rows of a file that is passed over would count as read",
    "readchangefeed": "it gives changes and not rows, and in another order of files",
    "readchangedata": "it gives changes and not rows, and in another order of files",
    "ignoremissingfiles": "rows of a file that is passed over would count as read",
    "ignorecorruptfiles": "rows of a file that is passed over would count as read",
    "startingversion": "the rows before it would count as read",
    "startingtimestamp": "the rows before it would count as read",
}

SETTINGS: Final = ("spark.databricks.delta.streaming.trailingCommitValidation.enabled",)
"""Of the session; each must be true, as it is by default."""


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """A streaming Delta source, as the plan has it."""

    path: str
    options: Mapping[str, str]
    """Of the source, their names in lower case."""
    log: TableLog = field(compare=False, repr=False)
    off: tuple[str, ...] = ()
    """The settings of :data:`SETTINGS` that the session has switched off."""
    inputs: frozenset[str] | None = None
    """The full names of the computations that are waited for; None: nobody's, and nothing is asked
    of the source."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"the Delta table {self.path}"

    @property
    def kind(self) -> str:
        """Delta."""
        return DELTA

    def waiting_for(self, inputs: frozenset[str]) -> DeltaSource:
        """Return it for a stage with inputs.

        Raises Unsupported, naming the option, when its end cannot be known exactly.
        """
        if not inputs:
            return self
        stage = f"{_up(self.name)} as the source of a stage with inputs"
        for option, value in sorted(self.options.items()):
            if option == "failondataloss" and value.lower() != "true":
                raise Unsupported(
                    f"{stage}, with the option failOnDataLoss {value}",
                    "rows of versions that are gone before they were read would count as read",
                    "Remove the option.",
                )
            if option in {*_HARMLESS, EXTERNAL.lower(), "failondataloss"} or value.lower() == "false":
                continue
            why = _OPTIONS.get(option, "this release does not know whether it leaves rows out")
            raise Unsupported(f"{stage}, with the option {option}", why, "Remove the option; filter rows instead.")
        for setting in self.off:
            raise Unsupported(
                f"{stage}, in a session where {setting} is false",
                "rows of versions that a listing lacks would count as read",
                "Set it to true, its default.",
            )
        return replace(self, inputs=inputs)

    def pin(self) -> Pin:
        """Return what is to be remembered of the table as it is now. Raises OSError."""
        found = self.log.table()
        marked = any(writer_of(app) for app in self.log.apps())
        return Pin(found.id, found.version, marked or any(commit.writer for commit in _recent(self.log, found.version)))

    def check_writers(self) -> None:
        """Raise Unsupported for a table that its log does not tell all of, and when somebody writes into it whom the inputs do not name. Raises OSError."""
        if self.inputs is None:
            return
        table = self.log.table()
        if table.refusal:
            raise Unsupported(
                f"{_up(self.name)} as the source of a stage with inputs",
                f"{table.refusal}, and readers may know of them later than of the rows that the inputs stand for",
                "Begin the pipeline here with lws.injector(), which says itself how far it has come.",
            )
        if table.on_s3 and self.options.get(EXTERNAL.lower(), "").lower() != "false":
            raise Unsupported(
                f"{_up(self.name)} on S3, without the option {EXTERNAL}",
                "a writer whose LogStore keeps the newest commits elsewhere (S3DynamoDBLogStore) has commits that a listing lacks, and a reader cannot tell",
                f'If no writer of the table has such a LogStore, declare it: option("{EXTERNAL}", "false").',
            )
        writers = {writer_of(app) for app in self.log.apps()} - {""}
        if strangers := writers - self.inputs:
            raise Unsupported(
                f"{_up(self.name)}, into which {min(strangers)} writes",
                "the inputs do not name it, so its rows would not be waited for",
                f"Name {min(strangers)} in inputs, or let it write into a table of its own.",
            )
        recent = _recent(self.log, table.version)
        # Before the first mark somebody may have filled the table. If it is none of these
        # versions', it is older.
        first = next((commit.version for commit in recent if commit.writer), -1 if writers else table.version)
        late = next((commit for commit in recent if _is_strange(commit) and commit.version > first), None)
        if late is not None:
            raise Unsupported(
                f"{_up(self.name)}, of which {late} names no computation",
                f"{', '.join(sorted(writers)) or 'a computation'} writes into it as well, and nobody waits for the rows of whoever else does",
                "Let only computations that inputs names write into it, or give the rows of others a table of their own.",
            )

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of Delta."""
        Offset.of(line)

    def open(self, manifest: Manifest, number: int) -> OpenSource:
        """Return it for one run of a query: a first one pins the table.

        Raises CheckpointMismatch, and OSError when the log cannot be read.
        """
        if self.inputs is None:
            return OpenOpaque(DELTA, manifest.checkpoint / "sources" / str(number), order=went_back)
        return OpenDelta(self, manifest, number)


def _recent(log: TableLog, last: int) -> list[Commit]:
    """Return the newest versions that the log still has, in order."""
    found: list[Commit] = []
    for version in range(last, max(-1, last - _BACK), -1):
        commit = log.commit(version)
        if commit is None:
            break
        found.insert(0, commit)
    return found


def _is_strange(commit: Commit) -> bool:
    """Return whether a commit has rows of nobody that is known."""
    return bool(commit.added) and not commit.writer


def _up(words: str) -> str:
    return words[:1].upper() + words[1:]


class Pin(NamedTuple):
    """What a checkpoint remembers of a source."""

    table: str
    """The table's id."""
    checked: int
    """Its newest version when the query began, or a later one that is committed: all since then
    were looked at, one by one."""
    marked: bool = False
    """Whether a computation has left its mark in the table: then all who write rows must."""
    broken: str = ""
    """Why nothing newer counts, for good; empty: nothing is known against it."""


class Head(NamedTuple):
    """What has to be reached."""

    version: int
    empty: bool
    """Whether no version up to it has ever had a row."""


class OpenDelta(Fileless):
    """The table of a query that runs.

    Its offset is a place in the table's log, its head a version.
    """

    def __init__(self, source: DeltaSource, manifest: Manifest, number: int) -> None:
        self._source = source
        self._log = source.log
        self._manifest = manifest
        self._number = str(number)
        self._committed: Offset | None = None
        self._planned: Offset | None = None
        self._settled = -1
        """The newest version that is committed whole, or in part."""
        self._knocked: tuple[Line, str] = ("", "")
        """The line that was asked for last, and the table's id after it was committed."""
        self._commits: dict[int, Commit] = {}
        """What is known of versions that may not be read yet."""
        self._stranger = ""
        """A commit of somebody whom the inputs do not name; empty: none."""
        self._pin = self._pinned()
        self._checked = self._pin.checked
        """The newest version that was looked at."""

    @property
    def planned_is_read(self) -> bool:
        """A plan names a version: until its rows are read, a table that is made anew may have others under it."""
        return False

    def _pinned(self) -> Pin:
        """Return the pin, made and durable before the query's first batch."""
        kept = (self._manifest["delta"] or {}).get(self._number)
        begun = CheckpointLog(self._manifest.checkpoint).last_planned() is not None
        if begun and kept is not None:
            pin = Pin(*kept)
            if pin.broken:
                raise CheckpointMismatch(pin.broken)
            return pin
        if begun:
            msg = (
                f"{self._manifest.checkpoint} has read {self._source.name}, and nobody has noted since which version: rows may have come back since. Start from a "
                "new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        pin = self._source.pin()
        self._keep(pin)
        return pin

    def _keep(self, pin: Pin) -> None:
        self._manifest.keep_entry("delta", self._number, list(pin))
        self._pin = pin

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
            msg = f"the offset of {self._source.name} has gone back, from {before} to {offset}: restore the checkpoint as a whole, or start from a new one, with adopt=True."
            raise CheckpointMismatch(msg)
        self._planned = offset

    def knock(self, line: Line) -> None:
        """Ask what :meth:`confirm` has to know: which table it is now, and the versions that nobody has looked at. Raises OSError."""
        found = self._log.table()
        for version in range(self._checked + 1, _last_read(Offset.of(line)) + 1):
            if version not in self._commits:
                self._commits[version] = self._commit(version)
        self._knocked = line, found.id

    def confirm(self, line: Line) -> None:
        """Make sure that the table is still the one that was pinned, and look at the versions that a batch has read, if no head was read meanwhile.

        Raises CheckpointMismatch, and OSError when its log cannot be read.
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
        if self._settled >= self._pin.checked + _STEP:
            self.close()

    def close(self) -> None:
        """Note how far the versions were looked at that are committed.

        Raises CheckpointMismatch, OSError.
        """
        if self._settled > self._pin.checked:
            self._keep(self._pin._replace(checked=self._settled))

    def evidence(self, line: Line) -> list[Location]:
        """Return nothing: what a batch has read its plan says alone."""
        return []

    def _replaced(self, found: str) -> str:
        return f"{self._source.name} is another one (its id was {self._pin.table} and is {found}): what was read belongs to the old one. {_ANEW}"

    # -- heads -------------------------------------------------------------------------------------

    def head(self, settled: Line) -> Head:
        """Read the newest version, and each since the last look.

        Raises OSError when they are not known, and when the watermark cannot count on the table any
        more.
        """
        table = self._log.table()
        if table.id != self._pin.table:
            raise Replaced(self._replaced(table.id))
        read = Offset.of(settled)
        least = max(self._checked, -1 if read is None else read.version - 1)
        if table.version < least:
            self._break(
                f"{self._source.name} ends at version {table.version}, and had version {least} before: its log was cut off. {_ANEW}"
            )
        else:
            self._check_to(table.version)
            begin = self._pin.checked + 1 if read is None else read.version + read.initial
            for version in [known for known in list(self._commits) if known < begin]:  # another thread may knock
                del self._commits[version]
            for version in range(begin, table.version + 1):
                if version not in self._commits:
                    self._commits[version] = self._commit(version)
        if self._pin.broken:
            raise Replaced(self._pin.broken)
        if self._stranger:
            raise Replaced(self._stranger)
        return Head(table.version, read is None and self._never_had_rows(table.version))

    def _check_to(self, last: int) -> None:
        """Look at each version up to one, once.

        Raises OSError when one is not in the log any more.
        """
        for version in range(self._checked + 1, last + 1):
            commit = self._commits.get(version) or self._commit(version)
            self._commits[version] = commit
            if commit.table not in ("", self._pin.table):
                self._break(self._replaced(commit.table))
            elif commit.rewrites:
                self._break(
                    f"{commit} of {self._source.name} has rows that were there before, which the watermark may have passed. {_ANEW}"
                )
            else:
                self._know_writer(commit)
            self._checked = version

    def _commit(self, version: int) -> Commit:
        found = self._log.commit(version)
        if found is None:
            msg = (
                f"version {version} of {self._source.name} is not in its log any more, and nobody knows what was in it"
            )
            raise OSError(msg)
        return found

    def _know_writer(self, commit: Commit) -> None:
        assert self._source.inputs is not None
        if commit.writer and commit.writer not in self._source.inputs:
            self._stranger = f"{commit} of {self._source.name} was written by {commit.writer}, which the inputs do not name: start the query with it in inputs"
        elif commit.writer and not self._pin.marked:
            self._keep(self._pin._replace(marked=True))
        elif self._pin.marked and _is_strange(commit):
            self._break(
                f"{commit} of {self._source.name} names no computation, though others that write into the table do: nobody waits for its rows. {_ANEW}"
            )

    def _break(self, reason: str) -> None:
        """Let nothing newer count, for good."""
        self._keep(self._pin._replace(broken=reason))

    def _never_had_rows(self, last: int) -> bool:
        """Return whether no version has had a row.

        Costs the reading of versions up to the first that has.
        """
        for version in range(last + 1):
            commit = self._commits.get(version) or self._log.commit(version)
            if commit is None or commit.added:
                return False
        return True

    def wait(self, listed: Head, planned: Line | None) -> Head:
        """Wait for all of it: what was removed again before it was read holds until Delta's source has passed it."""
        return listed

    def look(self, head: Head) -> None:
        """Do nothing: what is read of a table stands in the plan."""

    def renewed(self, head: Head, listed: Head, planned: Line | None) -> Head:
        """Wait for the same."""
        return head

    def reached(self, head: Head, offset: Line | None) -> bool:
        """Return whether an offset has taken everything up to a version."""
        if self._pin.broken or self._stranger:
            return False
        read = None if offset is None else Offset.of(offset)
        if read is None:
            return head.empty
        if read.table != self._pin.table or read.initial:
            return False
        return read.version > head.version or unread(read, head.version, self._commits) == []

    def same(self, one: Head, other: Head) -> bool:
        """Return whether both are the same version."""
        return one.version == other.version

    def missing(self, head: Head, limit: int) -> list[str]:
        """Return some of the versions that are still to be read, and a file of each."""
        read = self._planned or Offset(self._pin.table, self._pin.checked, -1, initial=True)
        begin = read._replace(version=read.version + 1, file=-1) if read.initial else read
        said = []
        for commit in unread(begin, head.version, self._commits) or ():
            taken = max(begin.file, -1) + 1 if commit.version == begin.version else 0
            file = f", such as {commit.files[taken]}" if taken < len(commit.files) else ""
            left = f"{commit.added - taken} of its {commit.added} files are unread{file}"
            said.append(f"{self._source.name}, {commit}: {left}")
        if read.initial and not said and not head.empty:
            said.append(
                f"{self._source.name}: some files of its version {read.version}, with which the query begins, are unread"
            )
        return said[:limit]


_OTHER: Final = (
    "{line!r} is not the offset of a Delta table in the offset log: the checkpoint was begun with another source. Start the query as it was begun, or another one "
    "from a new checkpoint, with adopt=True."
)
