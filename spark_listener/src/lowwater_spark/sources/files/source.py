"""Files as a source: which of them Spark has to read, and which need no further look.

The rules are Spark's (HadoopFSUtils.shouldFilterOutPathName), probed on PySpark 4.3. A path that is
listed here and that Spark never takes, for example because it is older than ``maxFileAge``, holds
W. That is safe, and ``why`` names the path.

A file is identified by its path and its modification time. Spark takes a path once, so a file that
was written again in its place has rows that no batch has read, and holds W. lowwater cannot detect
a second write within one millisecond, or one whose modification time was set back. S3 has whole
seconds, and versions beside them (:meth:`Settled.time_of`).

A listing must not be older than the reading of W. On a local file system it never is; an NFS mount
may serve names from a cache, so mount the sources with ``lookupcache=none`` and ``acdirmax=0`` (or
``noac``). For HDFS and object stores see :mod:`lowwater_spark.sources.files.folders`.

A listing is not atomic: when a file is renamed meanwhile, readdir may give neither name. If such a
file were missed, W would count before Spark has read it. So each listing follows a shorter one that
takes the names alone (:func:`_names`), and counts only when it has every name of the shorter one.
Otherwise a file was renamed or removed, and the directory is listed again, until no unread file has
gone. A file that is renamed once is then in one of the two listings. One gap remains: both listings
may miss a file that is renamed during each of them, so rename a file once, to its last name.

Files that committed batches have taken, and that have not changed, are left out of a listing
(:class:`Settled`). A file may be written again in its place, which leaves no trace in its
directory, so each listing reads the modification time of each file. A directory ``batch=N`` that
lowwater handed over appears whole and does not change: once all of it is taken, its name suffices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater_spark.checkpoint.hadoop import HadoopPath, Status
from lowwater_spark.checkpoint.location import LISTED, OBJECT_STORES, Location, refuse_pattern, source_at
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import (
    POSITION,
    Leaf,
    Line,
    OpenSource,
    ReadBefore,
    Rereading,
    RowsGone,
    Source,
    SourceDeclared,
)
from lowwater_spark.sources.files.bookmarks import (
    BOOKMARKS,
    Extent,
    Output,
    ReadRecord,
    Scan,
    batch_number,
    removed,
    unread,
)
from lowwater_spark.sources.files.folders import HERE, Entry, Folders, Listing, folders_of
from lowwater_spark.sources.files.roots import Roots
from lowwater_spark.sources.files.sink_log import SINK_LOG, list_sink
from lowwater_spark.sources.files.source_log import (
    FOR_EVER,
    NO_FILE,
    NOTHING,
    OPEN,
    WRITTEN_AGAIN,
    File,
    Files,
    Head,
    SourceLog,
    log_files,
    log_offset,
)
from lowwater_spark.sources.files.writers import HANDED_OVER, MARKS, behind, strangers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FILES",
    "SINK",
    "FileSource",
    "Intruder",
    "OpenFiles",
    "Settled",
    "hidden",
    "intruders",
    "list_head",
    "walk",
]


_TRIES: Final = 5
"""Number of listings in one look, at most, until one has all names of the one before it."""

FILES: Final = "files"
"""Kind of this source, and the word that declares one which the query lists."""

SINK: Final = "sink"
"""Word that declares a directory of Spark's file sink, which the query reads by the sink's log."""

_WEEK: Final = 7 * 86_400_000
"""Spark's default of maxFileAge, milliseconds."""

_FORMATS: Final = frozenset({"csv", "json", "orc", "parquet", "text"})

_OPTIONS: Final[Mapping[str, str]] = {
    "cleansource": "files vanish by rules of their own; clean up outside of Spark, by age",
    "filenameonly": "Spark takes two files of one name for one, and never reads the second",
    "ignorecorruptfiles": "rows of a skipped file would count as read",
    "ignoremissingfiles": "rows of a skipped file would count as read",
    "modifiedafter": "the files that Spark skips are still in the directory",
    "modifiedbefore": "the files that Spark skips are still in the directory",
    "pathglobfilter": "the files that Spark skips are still in the directory",
    "sourcearchivedir": "files vanish by rules of their own; clean up outside of Spark, by age",
}

_IGNORE_SINK_LOG: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """A streaming file source: the options that decide which files it reads."""

    root: str
    """Absolute path of the directory; with scheme and authority where it is not a local one."""
    recursive: bool
    """Value of Spark's option recursiveFileLookup."""
    format: str = ""
    sink_log: bool = False
    """True for the output of a Spark file sink, which Spark reads by the sink's log and not by a
    listing."""
    inputs: frozenset[str] | None = None
    """Full names of the computations that the stage waits for; None: it waits for none, as in an
    injector."""
    columns: tuple[str, ...] = ()
    """Columns of the Hive partitions, directories like ``year=2013/month=1``. Spark reads only
    files below all of them."""
    max_age: int = _WEEK
    """Value of maxFileAge, milliseconds: Spark skips a file that is older than the newest one by
    more."""
    folders: Folders = HERE
    """File system of the directory."""

    kind = FILES  # one kind for all formats

    @property
    def name(self) -> str:
        """Name of the source in errors."""
        return f"the files in {self.root}"

    def waiting_for(self, inputs: frozenset[str]) -> FileSource:
        """Return the source for a stage with these inputs, by full names."""
        return dataclasses.replace(self, inputs=inputs)

    def check_writers(self) -> None:
        """Raise Unsupported when a computation writes here that the inputs do not name."""
        writers = {intruder.writer: intruder.path for intruder in intruders(self) if intruder.writer}
        if writers:
            names = ", ".join(sorted(writers))
            raise Unsupported(
                f"The path {self.root}",
                f"{names} writes there, and the inputs do not name it: its rows would not be waited for",
                f"Name it in inputs (those of lws.drive() as well). If it has stopped writing there, delete {', '.join(sorted(writers.values()))}.",
            )

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a file source."""
        log_offset(line)

    def open(self, manifest: Manifest, number: int) -> OpenFiles:
        """Return the source for one run of a query."""
        return OpenFiles(self, number, manifest)

    @classmethod
    def planned(cls, leaf: Leaf) -> FileSource | None:
        """Return the source of Spark's own reader of files."""
        if leaf.of_tables or (kind := leaf.format.lower()) not in _FORMATS:
            return None
        options, spark = leaf.options, leaf.spark
        _refuse_options(kind, options)
        path = options.get("path", "")
        refuse_pattern(path, "The path")
        location = source_at(spark, path, "The path")
        if not location.is_dir():
            raise _no_directory(location, "Read the directory that the files come into.")
        root, folders = str(location).rstrip("/") or "/", folders_of(location)
        recursive = options.get("recursivefilelookup", "false").lower() == "true"
        sink_log = (location / SINK_LOG).exists()
        if sink_log:
            _refuse_remote_sink(location)
            _check_sink_log(spark, path, root)
        columns = () if recursive or sink_log else _partition_columns(leaf, root, folders)
        source = cls(root, recursive, kind, sink_log, None, columns, _max_age(spark, options), folders)
        source.refuse_logs()
        return source

    @classmethod
    def allowed(cls, declared: SourceDeclared) -> Set[str]:
        """Return the options that a declared directory may have."""
        remote = SparkPath.of_text(declared.path).scheme in LISTED
        if not (declared.path.startswith("/") or remote) or any(mark in declared.path for mark in "*?[{"):
            msg = f"{declared.name}: the path of files is an absolute directory, or a URI of {', '.join(sorted(LISTED))}, and no pattern"
            raise ValueError(msg)
        return {"maxfileage"} if declared.kind == SINK else {"recursivefilelookup", "maxfileage", "partitions"}

    @classmethod
    def declared(cls, declared: SourceDeclared, session: Callable[[], SparkSession]) -> FileSource:
        """Return the source of a declared directory, which is here as the query's driver has it."""
        local = declared.path.startswith("/")
        location = Path(declared.path) if local else source_at(session(), declared.path, "The path")
        if not location.is_dir():
            fix = "Mount it as" if local else "Give the session of this process the settings by which"
            raise _no_directory(location, f"{fix} the query's driver has it.")
        root = str(location).rstrip("/") or "/"
        sink, has_log = declared.kind == SINK, (location / SINK_LOG).exists()
        if has_log:
            _refuse_remote_sink(location)
        if sink and not has_log:
            raise Unsupported(declared.name, "there is no log of Spark's file sink in it", f"Declare {FILES}:{root}.")
        if has_log and not sink:
            raise Unsupported(
                declared.name,
                "there is a log of Spark's file sink in it: a query that was started behind it goes by the log, and one that was started before lists all files",
                f"Declare {SINK}:{root} in the first case; in the other one start the query again, over a new checkpoint.",
            )
        recursive = declared.options.get("recursivefilelookup", "false").lower() == "true"
        columns = tuple(filter(None, declared.options.get("partitions", "").split("+")))
        age = int(declared.options.get("maxfileage", _WEEK))
        source = cls(root, recursive, "", sink, None, columns, age, folders_of(location))
        source.refuse_logs()
        return source

    @classmethod
    def guess(cls, line: Line) -> str:
        """Return an example for a place in Spark's log of a file source."""
        try:
            return f"{FILES}:/data/in" if log_offset(line) != NOTHING else ""
        except CheckpointMismatch:
            return ""

    def recognize(self, manifest: Manifest, number: int, line: Line) -> None:
        """Raise Unsupported when the directory has none of the files that the query has taken."""
        log = self.log_in(manifest.checkpoint / "sources" / str(number))
        log.read_to(log_offset(line))
        if self.sink_log and log.taken.keys() - {file.path for file in list_sink(self.root)}:
            raise Unsupported(
                f"{SINK}:{self.root}",
                "the query has taken files that the sink's log does not name: it lists the directory, and reads what failed attempts have left as well",
                "Start the query again over a new checkpoint, which reads by the log.",
            )
        replaced = manifest.home / "lowwater" / "replaced"
        seen_before = self.root in (manifest["roots"] or {}) or replaced.exists()
        if log.taken and not seen_before and not self._has_any(log.taken):
            raise Unsupported(
                f"{FILES}:{self.root}",
                "none of the files that the query has taken from it is there: another volume may be mounted here than where the query's driver is",
                f"Mount it as the driver has it. If they were cleaned up, say so: touch {replaced}",
            )

    def _has_any(self, paths: Iterable[str]) -> bool:
        """Return whether a file exists. Costs a stat of each, or a listing of a store."""
        if self.folders is HERE:
            return any(Path(path).exists() for path in paths)
        return not {item.path for item in walk(self)}.isdisjoint(paths)

    def refuse_logs(self) -> None:
        """Refuse a directory that contains a sink's output, or is a part of one.

        Spark uses the sink's log only in the sink's own directory.
        """
        logs = [file.path for file in intruders(self) if not file.writer]
        if logs:
            output = logs[0].rpartition("/")[0]
            fix = f"Read {output} by a frame of its own, and unite it with others."
            raise Unsupported(
                f"The path {self.root}",
                f"Spark's file sink writes to {output}, and Spark uses the sink's log only when it reads that very directory: the leftovers of failed attempts "
                "would be read as well",
                fix if self.folders is HERE else _NO_REMOTE_SINK,
            )

    rereads = True

    def again(self, spark: SparkSession, read: ReadBefore, options: Mapping[str, str]) -> Rereading | None:
        """Return the rows of the files that a batch has taken. Costs a stat of each file, twice."""
        import pyspark.sql.functions as sf

        before, last = log_offset(read.before), log_offset(read.line)
        log = self.log_in(read.manifest.checkpoint / "sources" / str(read.number))
        log.read = before  # the entries up to there are not read
        log.read_to(last)
        files = {path: taken.modified for path, taken in log.taken.items() if before < taken.batch <= last}
        if not files:
            return None

        def confirm() -> None:
            for path, modified in files.items():
                _check_unchanged(spark, path, modified)

        confirm()
        reader = {name: value for name, value in options.items() if name not in {"format", "schema"}}
        # The paths lead to single files, and Spark finds the columns of partitions from here.
        reader |= {"basePath": SparkPath.of_text(self.root).text, "recursiveFileLookup": str(self.recursive).lower()}
        frame = spark.read.schema(options["schema"]).format(options["format"]).options(**reader)
        rows = frame.load([SparkPath.of_text(path).pattern for path in files])
        return Rereading(rows.withColumn(POSITION, sf.col("_metadata.file_path")), confirm)

    def log_in(self, folder: Location) -> SourceLog:
        """Return the reader of the source's log, which is ``folder`` in a checkpoint."""
        return SourceLog(folder, self.root, self.max_age, None if self.recursive or self.sink_log else self.columns)


def _check_unchanged(spark: SparkSession, path: str, modified: int) -> None:
    """Raise RowsGone unless a file is there with the modification time at which Spark took it."""
    location = Path(path) if path.startswith("/") else source_at(spark, path, "The path")
    try:
        status: Any = location.stat()
    except FileNotFoundError:
        msg = f"{path} was removed"
        raise RowsGone(msg) from None
    now = status.st_mtime_ns // 1_000_000 if isinstance(location, Path) else int(status.getModificationTime())
    if now != modified:
        msg = f"{path} was written again"
        raise RowsGone(msg)


def _refuse_remote_sink(location: Location) -> None:
    """Refuse the output of Spark's file sink on another file system than the local one."""
    if not isinstance(location, Path):
        raise Unsupported(
            f"The path {location}",
            "it is the output of Spark's file sink, whose log this release reads only in local directories",
            _NO_REMOTE_SINK,
        )


_NO_REMOTE_SINK: Final = (
    "Write and read a table of Delta or Iceberg instead, or a directory on a local or NFS file system."
)


def _no_directory(location: Location, fix: str) -> Unsupported:
    """Return the refusal of a path where no directory is."""
    if isinstance(location, HadoopPath) and location.uri.partition(":")[0] in OBJECT_STORES:
        reason = "the store has no object below it, or the session's settings lead to another store"
        return Unsupported(f"The path {location}", reason, f"{fix} Put an empty object {location}/.keep.")
    return Unsupported(f"The path {location}", "it is no directory", fix)


def _refuse_options(kind: str, options: Mapping[str, str]) -> None:
    """Refuse options by which Spark reads other files than the driver lists.

    Their names are in small letters.
    """
    for option, why in _OPTIONS.items():
        if option in options and options[option].lower() not in ("false", "off"):
            raise Unsupported(f"The option {option} of a {kind} source", why, "Remove the option; filter rows instead.")
    for option in sorted(options):
        if option.startswith(("fs.", "dfs.")):
            raise Unsupported(
                f"The option {option} of a {kind} source",
                "Spark would read with it, and the driver lists with the session's settings: that may be another store",
                f"Set it for the whole session, as spark.hadoop.{option}, before the session starts.",
            )


def _check_sink_log(spark: SparkSession, path: str, root: str) -> None:
    """Refuse a Spark file sink's output if Spark ignores its log or the log cannot be read."""
    if str(spark.conf.get(_IGNORE_SINK_LOG, "false")).lower() == "true":
        raise Unsupported(
            f"The path {path} in a session with {_IGNORE_SINK_LOG}",
            "it is the output of Spark's file sink, and the leftovers of its failed attempts would be read as well",
            "Set it to false.",
        )
    try:
        files = list_sink(root)
    except OSError as error:
        raise Unsupported(
            f"The path {path}",
            f"it is the output of Spark's file sink, and the sink's log cannot be read: {error}",
            "Restore the log, or let the writing query begin a new directory.",
        ) from error
    other = min((file.path for file in files if not file.path.startswith(f"{root}/")), default=None)
    if other is not None:
        raise Unsupported(
            f"The path {path}",
            f"it is the output of Spark's file sink, and the sink's log names its files by another path: {other}",
            "Read it by the path that the writing query has, and not by a symbolic link to it; a directory that was moved cannot be read.",
        )


def _partition_columns(leaf: Leaf, root: str, folders: Folders) -> tuple[str, ...]:
    """Return the columns of a directory's Hive partitions; none without sub-directories.

    Spark finds the columns when the frame is made, and puts them last; in a batch it matches
    columns by position. Spark logs a file without all of the columns as read, and reads no rows of
    the file. Raises Unsupported for such files.
    """
    names_of: Any = leaf.relation.dataSource().sourceInfo().partitionColumns()
    columns = tuple(str(names_of.apply(i)) for i in range(names_of.size()))
    for folder, names in _partitions(folders.listing(root), root, ()):
        if names != columns:
            raise Unsupported(
                f"The directory {root}",
                f"{folder} has files with the partition columns {', '.join(names) or 'none'}, and the frame was made with {', '.join(columns) or 'none'}: "
                "Spark would log such files as read, and read no rows from them",
                "Keep all files in partitions by the same columns, and make the frame when they are there; or set the option recursiveFileLookup to "
                '"true", which takes no columns from names.',
            )
    return columns


def _partitions(listing: Listing, folder: str, columns: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the directories that have files, each with the partition columns of its path."""
    files = False
    for entry in listing(folder):
        name, equals, value = entry.name.partition("=")
        if hidden(entry.name, folder=entry.is_dir()):
            continue
        if not entry.is_dir():
            files = True
        elif name and equals and value:
            yield from _partitions(listing, entry.path, (*columns, name))
        else:
            raise Unsupported(
                f"The directory {folder}",
                f"it has a sub-directory ({entry.name}) that is no partition, which Spark skips or takes for one",
                'Set the option recursiveFileLookup to "true".',
            )
    if files:
        yield folder, columns


def _max_age(spark: SparkSession, options: Mapping[str, str]) -> int:
    """Return maxFileAge in milliseconds, by Spark's rules."""
    limited = "maxfilespertrigger" in options or "maxbytespertrigger" in options
    if options.get("latestfirst", "false").lower() == "true" and limited:
        return FOR_EVER
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(options.get("maxfileage", "7d")))


class Intruder(NamedTuple):
    """Evidence that a source has rows of a writer which the inputs do not name."""

    path: str
    """Path of a writer's mark, or of the log of a file sink that Spark ignores here."""
    writer: str = ""
    """Full name of the writer; empty for a log."""


def hidden(name: str, *, folder: bool = False) -> bool:
    """Return whether Spark reads no rows from a file, or from anything in a folder, of this name.

    Spark reads folders whose names begin with ``_metadata`` or ``_common_metadata``. Spark takes
    files of such names for Parquet's summary files, which it lists and logs but never reads.

    >>> [hidden(name) for name in ("_tmp", "_a=1", ".x", "a._COPYING_", "_metadata", "a.json")]
    [True, False, True, True, True, False]
    >>> hidden("_metadata", folder=True)
    False
    """
    if folder and name.startswith(("_metadata", "_common_metadata")):
        return False
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def intruders(source: FileSource) -> list[Intruder]:
    """Return the evidence of writers that no input names, in order.

    Costs and raises as :func:`list_head`.
    """
    return sorted({item for item in walk(source) if isinstance(item, Intruder)})


def walk(source: FileSource, settled: Settled | None = None) -> Iterator[File | Intruder]:
    """Yield the files of a source, and the intruders beside them.

    Spark goes by a sink's log only when the log was there at the query's start and the query reads
    the sink's own directory. In a directory above the sink's, or in a partition of it, Spark also
    reads the files of failed attempts.
    """
    yield from _outputs(source, source.folders.above(source.root))
    if source.sink_log:
        yield from list_sink(source.root)
        yield from _strangers(source, source.root)
    else:
        yield from _list(source, source.folders.listing(source.root), source.root, (), settled)


def _outputs(source: FileSource, folders: Iterable[str]) -> Iterator[File | Intruder]:
    """Yield the intruders of folders above a source, or behind a link in it.

    For a folder with removed batches also yield a File that holds W.
    """
    for folder in folders:
        log = source.folders.at(folder) / SINK_LOG
        if log.exists():
            yield Intruder(str(log))
        yield from _strangers(source, folder)
        # Batches are removed, and bookmarks kept, only in local directories.
        if source.folders is HERE and removed(folder).through != NOTHING:
            yield File(
                f"{Path(folder, BOOKMARKS)} (batches are removed here, and only who reads all of the directory is waited for)",
                NO_FILE,
            )


def _strangers(source: FileSource, folder: str) -> Iterator[Intruder]:
    if source.inputs is not None:
        yield from itertools.starmap(Intruder, strangers(source.folders.at(folder), source.inputs))


def _list(
    source: FileSource, listing: Listing, folder: str, columns: tuple[str, ...], settled: Settled | None
) -> Iterator[File | Intruder]:
    """Yield the files and intruders of a folder; ``columns`` are the partition columns above it."""
    entries = listing(folder)
    # On HDFS the directory of a batch gets its name when its mark and its files are closed. So no
    # request for each file is needed.
    whole = source.folders is not HERE and any(entry.name == HANDED_OVER for entry in entries)
    for entry in entries:
        folder_too = entry.is_dir()
        if entry.name == SINK_LOG:
            yield Intruder(entry.path)
            continue
        if entry.name in (MARKS, BOOKMARKS) and settled is not None and source.folders is HERE:
            settled.meet(folder)
        if entry.name == MARKS:
            yield from _strangers(source, folder)
            continue
        if hidden(entry.name, folder=folder_too):
            continue
        if entry.is_symlink() and Path(entry.path).exists():
            yield from _outputs(source, behind(entry.path, folder=folder_too))
        if not folder_too:
            read = source.recursive or columns == source.columns
            with contextlib.suppress(FileNotFoundError):  # a removed file, or a broken link: Spark skips it too
                # Spark logs a file outside of the partitions as taken, but reads no rows from it.
                # With its own time that entry would count as read, and the watermark would pass the
                # rows. No entry has the time NO_FILE, so the watermark holds.
                yield File(entry.path, _modified(source, entry, settled, whole=whole) if read else NO_FILE)
        elif source.recursive:
            yield from _below(source, listing, entry, columns, settled)
        elif (below := (*columns, entry.name.partition("=")[0])) == source.columns[: len(below)] and "=" in entry.name:
            yield from _below(source, listing, entry, below, settled)
        else:
            yield File(entry.path + os.sep, NO_FILE)


def _modified(source: FileSource, entry: Entry, settled: Settled | None, *, whole: bool) -> int:
    """Return a file's modification time, WRITTEN_AGAIN or OPEN. Raises FileNotFoundError."""
    if not isinstance(entry, Status):
        return entry.stat().st_mtime_ns // 1_000_000
    return entry.modified if settled is None else settled.time_of(entry, None if whole else source.folders)


def _below(
    source: FileSource, listing: Listing, folder: Entry, columns: tuple[str, ...], settled: Settled | None
) -> Iterator[File | Intruder]:
    """Yield the files and intruders of a sub-directory, unless it is a settled batch."""
    if settled is None or not source.folders.settles:
        yield from _list(source, listing, folder.path, columns, settled)
    elif not settled.knows(folder):
        items = list(_list(source, listing, folder.path, columns, settled))
        yield from items
        settled.learn(folder, items, listing)


def list_head(source: FileSource, settled: Settled | None = None) -> Head:
    """Return the files that Spark still has to take until the source's present content is read.

    Settled files are left out: a committed batch has taken them. An entry that Spark never takes
    holds W while it exists: a sub-directory without recursiveFileLookup, and each
    :class:`Intruder`. The source is listed until no renamed file can have been missed (see the
    module).

    Costs O(entries), a stat of each file outside of settled batches, and one more listing of the
    names. Raises OSError when the root cannot be listed, or when each try finds that unread files
    were renamed or removed.
    """
    # Spark reads a sink's output by the sink's log. In a log no renamed file can be missed, so it
    # is not compared with a listing of names.
    before = set[str]() if source.sink_log else _names(source, settled)
    missing = set[str]()
    for _ in range(_TRIES):
        head = _listed(source, settled)
        missing = before.difference(file.path for file in itertools.chain(head, head.settled))
        if not missing:
            return head
        # A file was renamed or removed during this listing, so another one follows. That must have
        # each unread file of this one. The files in head.settled are left out, because they were
        # read and may be removed at any time, and so are entries with NO_FILE, which Spark never
        # reads.
        before = {file.path for file in head if file.modified != NO_FILE}
        if settled is not None:
            settled.begin_again()
    msg = (
        f"{source.root} cannot be listed: somebody renames or removes files during each listing that no batch has read, the last time {min(missing)}. "
        "Give a file its last name by one rename, and remove files that have been read."
    )
    raise OSError(msg)


def _names(source: FileSource, settled: Settled | None) -> set[str]:
    """Return the paths of all files outside of settled batches. O(entries), without a stat."""
    paths, folders, listing = set[str](), [source.root], source.folders.listing(source.root)
    while folders:
        for entry in listing(folders.pop()):
            folder_too = entry.is_dir()
            if hidden(entry.name, folder=folder_too):
                continue
            if folder_too:
                batch = settled is not None and source.folders.settles and settled.is_batch(entry)
                if (source.recursive or "=" in entry.name) and not batch:
                    folders.append(entry.path)
            elif not _is_broken(entry):
                paths.add(entry.path)
    return paths


def _is_broken(entry: Entry) -> bool:
    return entry.is_symlink() and not Path(entry.path).exists()


def _listed(source: FileSource, settled: Settled | None) -> Head:
    head = Head()
    for item in walk(source, settled):
        if isinstance(item, Intruder):
            head.add(_waited_for(item))
        elif settled is not None and settled.has(item):
            head.settled.append(item)
        else:
            head.add(item)
    if settled is not None:
        head.batches, head.unlisted = settled.batches, settled.files
    return head


def _waited_for(intruder: Intruder) -> File:
    reason = f" ({intruder.writer} writes here, and the inputs do not name it)" if intruder.writer else ""
    return File(intruder.path + reason, NO_FILE)


class OpenFiles(OpenSource):
    """A file source of a running query: Spark's log of it, its directory, and its bookmarks.

    Its offset is a place in Spark's log, its head the set of files that no committed batch has
    taken. ``log`` reads Spark's log, by default the one in the checkpoint. Memory: one path per
    file ever read, that of :class:`Settled`, and during a listing twice the paths in the directory.
    A listing of S3 is whole in the driver's JVM for a moment: some 0.6 KB an object.
    """

    def __init__(self, source: FileSource, number: int, manifest: Manifest, log: SourceLog | None = None) -> None:
        self.source = source
        self._number = number
        self._folder = manifest.checkpoint / "sources" / str(number)
        self._log = source.log_in(self._folder) if log is None else log
        self._settled = Settled(self._log)
        self._roots = Roots(manifest)
        self._record = ReadRecord(manifest)
        self._manifest = manifest
        self._seconds = 0.0
        """Duration of the newest listing, also of one that has failed."""

    @property
    def pause(self) -> float:
        """As long as the newest listing took, and in an object store a second at least.

        Each page of a store's listing is paid for.
        """
        least = self.source.folders.pause
        return max(least, self._seconds) if least else 0.0

    @property
    def outputs(self) -> Mapping[str, Output]:
        """See OpenSource."""
        return self._settled.outputs

    @property
    def remembered(self) -> int:
        """Number of paths of Spark's log that are held in memory."""
        return len(self._log.taken)

    @property
    def planned_is_read(self) -> bool:
        """True: a plan names files by their paths, and the batch fails when one is missing."""
        return True

    def read_to(self, line: Line) -> None:
        """Read the log up to a planned batch.

        Costs and raises as :meth:`~lowwater_spark.sources.files.source_log.SourceLog.read_to`.
        """
        self._log.read_to(log_offset(line))

    def head(self, settled: Line) -> Head:
        """List the directory, see :func:`list_head`.

        Costs two more stats of the directory, a read for each output of batches, and two fsyncs
        when the directory has new files. Raises OSError, also when the directory is not the one
        that was read before.
        """
        since = time.monotonic()
        try:
            return self._head(settled)
        finally:
            self._seconds = time.monotonic() - since

    def _head(self, settled: Line) -> Head:
        root, folders = self.source.root, self.source.folders
        identity = folders.identity(root)
        self._settled.begin(log_offset(settled), identity)
        self._settled.recall(self._noted())
        head = list_head(self.source, self._settled)
        if folders.identity(root) != identity:
            msg = f"{root} was replaced while it was listed"
            raise OSError(msg)
        self._roots.recognize(root, identity, head, sink=self.source.sink_log)
        self._settled.end()
        self._note_rewritten()
        # The notes of removed batches are read after the listing. A writer notes a removal before
        # it deletes the batch, so each batch that the listing lacks for that reason is noted by
        # now. In the other order a batch could be removed in between, and its unread rows would
        # count as read.
        self._wait_for_removed(head)
        return head

    def _note_rewritten(self) -> None:
        """Store which files were written again at the same time, with the versions before.

        So a file that holds W holds it also in the next run. Costs a version of the manifest when
        there are other ones than before.
        """
        if (rewritten := self._settled.rewritten) != self._noted():
            self._manifest.keep_pin(FILES, self._number, rewritten)

    def _noted(self) -> list[list[Any]]:
        """Return the files of :meth:`_note_rewritten` as the manifest has them."""
        return list(self._manifest.pin(FILES, self._number) or ())

    def _wait_for_removed(self, head: Head) -> None:
        """Hold W for good when batches were removed that this checkpoint has not read."""
        for folder, output in self._settled.outputs.items():
            through = removed(folder).through
            if output.extent.lacks(through):
                output.believe(self._record.load().get((self._number, folder), Extent()))
            if output.extent.lacks(through):
                head.wait_for(unread(folder, through, output.extent.read))
            else:
                output.advance()

    def wait(self, listed: Head, planned: Line | None) -> Files:
        """Return the listed files that no batch has taken."""
        return self._log.wait(listed, log_offset(planned))

    def look(self, head: Files) -> None:
        """Remove from a head the files that the log has taken since."""
        self._log.look(head)

    def renewed(self, head: Files, listed: Head, planned: Line | None) -> Files:
        """Return the head of a later listing when a file that no batch has taken is gone."""
        return self._log.renewed(head, listed, log_offset(planned))

    def reached(self, head: Files, offset: Line | None) -> bool:
        """Return whether the batches up to an offset have taken all files of a head."""
        return self._log.reached(head, log_offset(offset))

    def same(self, one: Files, other: Files) -> bool:
        """Return whether both heads wait for the same files and entries."""
        return self._log.same(one, other)

    def missing(self, head: Files, limit: int) -> list[str]:
        """Return up to ``limit`` paths that no batch has taken."""
        return self._log.missing(head, limit)

    # knock() and confirm() are those of OpenSource, which do nothing. Kafka and tables check there
    # that a committed batch has read the same topics or table as before. Here each listing checks
    # that the directory is the same, and SourceLog refuses a batch with a file from elsewhere.

    def evidence(self, line: Line) -> list[Location]:
        """Return the log's entry of a batch."""
        return log_files(self._folder, line)


class Settled:
    """Files of one source that a listing leaves out, because committed batches have taken them.

    Memory: two numbers for each handed-over batch in the directory. On HDFS and in a store also
    path, time and ETag of each other file in it: some 0.3 KB.
    """

    def __init__(self, log: SourceLog) -> None:
        self._log = log
        self._batches: dict[str, tuple[int, int]] = {}
        """Settled batches of the last whole listing: inode and number of files, by path."""
        self._identity: object = None
        self._first: dict[str, tuple[int, str]] = {}
        """Whole files on HDFS or in a store, by path: the modification time, and the first version
        of that time that any listing has found, also one that failed afterwards."""
        self.outputs: dict[str, Output] = {}
        """Directories with batches of lowwater in the newest whole listing, by path."""
        self.begin(NOTHING)

    @property
    def batches(self) -> Container[str]:
        """Paths of the batches that this listing has found and that need no further look."""
        return self._current

    def begin(self, offset: int, identity: object = None) -> None:
        """Begin a listing.

        Files that the log has taken up to ``offset`` count as settled: these batches are committed.
        ``identity`` tells directories apart: in another one than that of the last listing, all is
        looked at again.
        """
        if identity != self._identity:
            self._batches, self._first = {}, {}
            self.outputs.clear()
        self._identity = identity
        self._offset = offset
        self._current: dict[str, tuple[int, int]] = {}
        """Settled batches that this listing has found: inode and number of files, by path."""
        self._scans: dict[str, Scan] = {}
        """Batches that this listing has found, by the path of their output."""
        self._met: set[str] = set()
        """Outputs that this listing has found, see :meth:`meet`."""
        self._present: set[str] = set()
        """Paths of the files on HDFS or in a store that this listing has found."""
        self._rewritten: dict[str, tuple[int, str]] = {}
        """Entries of ``_first`` for which this listing has found another version."""
        self.files = 0
        """Number of files in the batches that this listing did not look into."""

    def begin_again(self) -> None:
        """Begin the same listing again, after one that has missed a file."""
        self.begin(self._offset, self._identity)

    def meet(self, folder: str) -> None:
        """Note a directory into which lowwater hands batches over: it has marks or bookmarks."""
        self._met.add(folder)

    def end(self) -> None:
        """End a whole listing: forget the batches and outputs that it did not find."""
        self._batches = self._current
        for path in self._first.keys() - self._present:
            del self._first[path]
        for folder in self.outputs.keys() - self._met:
            del self.outputs[folder]
        for folder in self._met:
            self.outputs.setdefault(folder, Output(folder)).take(self._scans.get(folder, Scan()))

    def has(self, file: File) -> bool:
        """Return whether a committed batch has taken a file in its present state."""
        batch = self._log.batch_of(file)
        return batch is not None and batch <= self._offset

    def recall(self, rewritten: Iterable[Sequence[Any]]) -> None:
        """Take over the files of :attr:`rewritten` of an earlier run, or of another directory."""
        for path, modified, version in rewritten:
            self._first.setdefault(path, (modified, version))

    @property
    def rewritten(self) -> list[list[Any]]:
        """Path, time and first version of each file that this listing has found written again."""
        return [[path, *first] for path, first in sorted(self._rewritten.items())]

    def time_of(self, file: Status, folders: Folders | None) -> int:
        """Return the modification time of a file on HDFS or in a store, WRITTEN_AGAIN or OPEN.

        WRITTEN_AGAIN: it was written again since a listing found it, at the same time. A multipart
        upload has the time of its begin, so that may happen at any time later. ``folders`` is asked
        whether a new file has all of its rows; None: it has. Raises OSError.
        """
        self._present.add(file.path)
        first = self._first.get(file.path)
        if first is None or first[0] != file.modified:
            if folders is not None and not folders.is_whole(file.path, file.modified):
                return OPEN
            # The first version stays, so that the file is different in later listings as well.
            first = self._first[file.path] = (file.modified, file.version)
        if first[1] == file.version:
            return file.modified
        self._rewritten[file.path] = first
        return WRITTEN_AGAIN

    def is_batch(self, folder: Entry) -> bool:
        """Return whether a sub-directory is a settled batch of the last listing."""
        batch = self._batches.get(folder.path)
        return batch is not None and batch[0] == folder.inode()

    def knows(self, folder: Entry) -> bool:
        """Return whether a sub-directory is a settled batch; if so, count it in this listing."""
        if not self.is_batch(folder):
            return False
        batch = self._current[folder.path] = self._batches[folder.path]
        self.files += batch[1]
        # name[6:] is the number in "batch=7". batch_number() would be too slow here: each listing
        # comes here once for every batch that was ever handed over.
        name = folder.name
        self._scan(folder.path[: -len(name) - 1]).sure.append(int(name[6:]))
        return True

    def _scan(self, folder: str) -> Scan:
        scan = self._scans.get(folder)
        if scan is None:
            scan = self._scans[folder] = Scan()
        return scan

    def learn(self, folder: Entry, content: Collection[object], listing: Listing) -> None:
        """Note the content of a sub-directory: a batch that is all taken is settled from now on.

        Costs one more listing of the sub-directory, once.
        """
        whole = self._is_whole(folder, content, listing)
        if whole:
            self._current[folder.path] = (folder.inode(), len(content))
        # ``sure``, for a settled batch: it was there before this listing began, so the listing has
        # all batches before it. That holds for a batch with files, because a committed batch has
        # read them. A batch 8 without files may have come during the listing, after a batch 7 that
        # the listing lacks: if 8 were sure, 7 would count as read.
        number = batch_number(folder.name)
        if number is not None:
            self._scan(folder.path[: -len(folder.name) - 1]).add(number, settled=whole, sure=bool(content))

    def _is_whole(self, folder: Entry, content: Collection[object], listing: Listing) -> bool:
        if batch_number(folder.name) is None or folder.is_symlink():
            return False
        if not all(isinstance(item, File) and self.has(item) for item in content):
            return False
        # The directory is listed once more. A batch that was removed meanwhile has no entries.
        entries = {entry.name: entry.is_dir() for entry in listing(folder.path)}
        # lowwater puts no directories into a batch. If there is one, somebody has changed the batch
        # and may do so again, so it is listed each time.
        return HANDED_OVER in entries and not any(entries.values())
