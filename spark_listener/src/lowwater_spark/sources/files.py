"""Files as a source: which of them Spark has to read, and which need no further look.

What Spark would read is decided by Spark's rules (HadoopFSUtils.shouldFilterOutPathName), probed on
PySpark 4.3. A path that is listed here and never taken by Spark, for example because it is older
than ``maxFileAge``, holds W, which is safe, and its name is shown.

A file is known by its path and its modification time, since Spark takes a path once: one that was
written again in its place, like a daily file that is written anew, has rows that no batch has read.
It holds W as well. What was written twice within one millisecond, or with its time set back to what
it was, cannot be told from one that was not.

A listing must not be older than the reading of W. On a local file system it never is; an NFS mount
may serve names from a cache, so mount the sources with ``lookupcache=none`` and ``acdirmax=0`` (or
``noac``).

A listing is not atomic: of a file that is renamed meanwhile, readdir may give neither name. If such
a file were missed, W would count before Spark has read it. So each listing comes after a shorter
one that takes the names alone (:func:`_names`), and counts only if it has every name that the
shorter one has. Otherwise somebody has renamed or removed a file, and the directory is listed
again, until nothing that no batch has read is gone. A file that is renamed once is then found by
one of the two. What remains: one that is renamed in both listings may be missed by both, so rename
a file once, to its last name.

What committed batches have taken, and what is as it was, is left out of a listing
(:class:`Settled`). A file may be written again in its place, which leaves no trace in its
directory, so each is asked for its modification time in each listing. But what lowwater itself has
handed over as ``batch=N`` appears whole and is not changed by it: when all of such a directory is
taken, its name is enough.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.base import Line
from lowwater_spark.sources.bookmarks import BOOKMARKS, Extent, Output, ReadRecord, Scan, batch_number, removed, unread
from lowwater_spark.sources.roots import Roots, identity_of
from lowwater_spark.sources.sink_log import SINK_LOG, list_sink
from lowwater_spark.sources.source_log import NO_FILE, NOTHING, File, Files, Head, SourceLog, log_files, log_offset
from lowwater_spark.sources.writers import HANDED_OVER, MARKS, above, behind, strangers

__all__ = ["FILES", "FileSource", "Intruder", "OpenFiles", "Settled", "hidden", "intruders", "list_head", "walk"]


_TRIES: Final = 5
"""How often a source is listed in one look at most, until a listing has all names of the one before
it."""

FILES: Final = "files"
"""The kind of this source."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A streaming file source, as far as it decides which files there are."""

    root: str
    """Absolute local path."""
    recursive: bool
    """recursiveFileLookup."""
    format: str = ""
    sink_log: bool = False
    """Whether it is the output of a Spark file sink, which is read by the sink's log and not by a
    listing."""
    inputs: frozenset[str] | None = None
    """The full names of the computations that are waited for, for what is read here; None: nobody's
    (an injector waits for none)."""
    columns: tuple[str, ...] = ()
    """The columns of its Hive partitions, directories like ``year=2013/month=1``: Spark reads files
    that have all of them, and no others."""
    max_age: int = 7 * 86_400_000
    """maxFileAge, milliseconds, by default a week: Spark passes over a file that is older than the
    newest one by more."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"the files in {self.root}"

    @property
    def kind(self) -> str:
        """Files, of whatever format."""
        return FILES

    def waiting_for(self, inputs: frozenset[str]) -> FileSource:
        """Return it with the computations that are waited for, by their full names."""
        return dataclasses.replace(self, inputs=inputs)

    def check_writers(self) -> None:
        """Raise Unsupported when computations write into the directory which the inputs do not name."""
        writers = {found.writer: found.path for found in intruders(self) if found.writer}
        if writers:
            names = ", ".join(sorted(writers))
            raise Unsupported(
                f"The path {self.root}",
                f"{names} writes there, and the inputs do not name it: its rows would not be waited for",
                f"Name it in inputs (those of lws.drive() as well). If it does not write there any more, delete {', '.join(sorted(writers.values()))}.",
            )

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no place in a log of files."""
        log_offset(line)

    def open(self, manifest: Manifest, number: int) -> OpenFiles:
        """Return it for one run of a query."""
        return OpenFiles(self, number, manifest)

    def log_in(self, folder: Location) -> SourceLog:
        """Return the reader of its log, which is this folder of a checkpoint."""
        return SourceLog(folder, self.root, self.max_age, None if self.recursive or self.sink_log else self.columns)


class Intruder(NamedTuple):
    """What brings in rows that no input stands for."""

    path: str
    """The log of a file sink that Spark does not go by, or a writer's mark."""
    writer: str = ""
    """The full name of the writer that the inputs do not name; empty for a log."""


def hidden(name: str, *, folder: bool = False) -> bool:
    """Return whether Spark reads no rows from a file, or from anything in a folder, of this name.

    Folders may begin with ``_metadata`` or ``_common_metadata``; files of such names are taken for
    Parquet's summary files, which Spark lists and logs but never reads.

    >>> [hidden(name) for name in ("_tmp", "_a=1", ".x", "a._COPYING_", "_metadata", "a.json")]
    [True, False, True, True, True, False]
    >>> hidden("_metadata", folder=True)
    False
    """
    if folder and name.startswith(("_metadata", "_common_metadata")):
        return False
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def intruders(source: FileSource) -> list[Intruder]:
    """Return what brings in rows that no input stands for, in order.

    Costs and raises as :func:`list_head`.
    """
    return sorted({found for found in walk(source) if isinstance(found, Intruder)})


def walk(source: FileSource, settled: Settled | None = None) -> Iterator[File | Intruder]:
    """Yield the files of a source, and what stands beside them.

    Spark goes by a sink's log only if the log was there when the query started, and if it reads the
    very directory of the sink. Of a directory above it, or of a partition in it, it takes what
    failed attempts have left as well.
    """
    yield from _outputs(source, above(source.root))
    if source.sink_log:
        yield from list_sink(source.root)
        yield from _strangers(source, source.root)
    else:
        yield from _list(source, source.root, (), settled)


def _outputs(source: FileSource, folders: Iterable[str]) -> Iterator[File | Intruder]:
    """Yield what brings rows into a source from directories that are not walked, and what takes them away."""
    for folder in folders:
        if Path(folder, SINK_LOG).exists():
            yield Intruder(str(Path(folder, SINK_LOG)))
        yield from _strangers(source, folder)
        if removed(folder).through != NOTHING:
            yield File(
                f"{Path(folder, BOOKMARKS)} (batches are removed here, and only who reads all of the directory is waited for)",
                NO_FILE,
            )


def _strangers(source: FileSource, folder: str) -> Iterator[Intruder]:
    if source.inputs is not None:
        yield from itertools.starmap(Intruder, strangers(folder, source.inputs))


def _list(
    source: FileSource, folder: str, columns: tuple[str, ...], settled: Settled | None
) -> Iterator[File | Intruder]:
    """Yield what stands in a folder of a source; ``columns`` are those that the way to it has given."""
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except FileNotFoundError:
        if folder == source.root:
            raise
        return  # removed while we walked: there is nothing left to be read
    for entry in entries:
        folder_too = entry.is_dir()
        if entry.name == SINK_LOG:
            yield Intruder(entry.path)
            continue
        if entry.name in (MARKS, BOOKMARKS) and settled is not None:
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
            with contextlib.suppress(FileNotFoundError):  # removed, or a link to nothing: Spark does not list it either
                # Spark logs a file beside the partitions as taken, and reads no rows from it.
                yield File(entry.path, entry.stat().st_mtime_ns // 1_000_000 if read else NO_FILE)
        elif source.recursive:
            yield from _below(source, entry, columns, settled)
        elif (below := (*columns, entry.name.partition("=")[0])) == source.columns[: len(below)] and "=" in entry.name:
            yield from _below(source, entry, below, settled)
        else:
            yield File(entry.path + os.sep, NO_FILE)


def _below(
    source: FileSource, folder: os.DirEntry[str], columns: tuple[str, ...], settled: Settled | None
) -> Iterator[File | Intruder]:
    """Yield what stands in a sub-directory, unless it is a batch of which all is settled."""
    if settled is None:
        yield from _list(source, folder.path, columns, settled)
    elif not settled.knows(folder):
        found = list(_list(source, folder.path, columns, settled))
        yield from found
        settled.learn(folder, found)


def list_head(source: FileSource, settled: Settled | None = None) -> Head:
    """Return every file that Spark has to take before all that stands in the source now has been read.

    The source is listed until a listing has every name that the one before it has, so that a file which is renamed meanwhile is not missed.

    What is settled is left out: it is taken, for good. What Spark never takes holds for as long as it is there: a sub-directory without
    recursiveFileLookup, and each :class:`Intruder`. O(entries), with a stat of each file that is in no settled batch, and once more the entries alone. Raises OSError
    when the root cannot be listed, or when files are renamed or removed all the time; then nothing is known, and no watermark counts.
    """
    # A sink's log is read and not listed.
    before = set[str]() if source.sink_log else _names(source, settled)
    gone = set[str]()
    for _ in range(_TRIES):
        head = _listed(source, settled)
        gone = before.difference(file.path for file in itertools.chain(head, head.settled))
        if not gone:
            return head
        # Files that were read may go: these have been looked at, and are as they were.
        before = {file.path for file in head if file.modified != NO_FILE}
        if settled is not None:
            settled.begin_again()
    msg = (
        f"{source.root} cannot be listed: while it is, files are renamed or removed that no batch has read, the last time {min(gone)}. "
        "Give a file its last name by one rename, and remove files that have been read."
    )
    raise OSError(msg)


def _names(source: FileSource, settled: Settled | None) -> set[str]:
    """Return the paths of all files but those of settled batches. O(entries), without a stat."""
    found, folders = set[str](), [source.root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except FileNotFoundError:
            if folder == source.root:
                raise
            continue
        for entry in entries:
            folder_too = entry.is_dir()
            if hidden(entry.name, folder=folder_too):
                continue
            if folder_too:
                if (source.recursive or "=" in entry.name) and not (settled and settled.is_batch(entry)):
                    folders.append(entry.path)
            elif not _is_broken(entry):
                found.add(entry.path)
    return found


def _is_broken(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not Path(entry.path).exists()


def _listed(source: FileSource, settled: Settled | None) -> Head:
    head = Head()
    for found in walk(source, settled):
        if isinstance(found, Intruder):
            head.add(_waited_for(found))
        elif settled is not None and settled.has(found):
            head.settled.append(found)
        else:
            head.add(found)
    if settled is not None:
        head.batches, head.unseen = settled.batches, settled.files
    return head


def _waited_for(found: Intruder) -> File:
    reason = f" ({found.writer} writes here, and the inputs do not name it)" if found.writer else ""
    return File(found.path + reason, NO_FILE)


class OpenFiles:
    """A file source of a query that runs: what Spark has logged of it, its directory, and how far what is handed over there was read.

    Its offset is a place in Spark's log of it, its head the set of files that no committed batch has taken. ``log`` is the reader of that log, by
    default of the one in the checkpoint. Holds one path per file ever read, and what :class:`Settled` does.
    """

    def __init__(self, source: FileSource, number: int, manifest: Manifest, log: SourceLog | None = None) -> None:
        self.source = source
        self._number = number
        self._folder = manifest.checkpoint / "sources" / str(number)
        self._log = source.log_in(self._folder) if log is None else log
        self._settled = Settled(self._log)
        self._roots = Roots(manifest)
        self._record = ReadRecord(manifest)

    @property
    def outputs(self) -> Mapping[str, Output]:
        """The directories in it that batches are handed over into, by their paths.

        They change with each listing.
        """
        return self._settled.outputs

    @property
    def remembered(self) -> int:
        """How many paths are kept of what Spark has logged."""
        return len(self._log.taken)

    @property
    def planned_is_read(self) -> bool:
        """A plan names files, by their paths, and one that is gone ends the batch."""
        return True

    def read_to(self, line: Line) -> None:
        """Read the log up to a planned batch, see :meth:`~lowwater_spark.sources.source_log.SourceLog.read_to`."""
        self._log.read_to(log_offset(line))

    def head(self, settled: Line) -> Head:
        """List the directory, see :func:`list_head`.

        Costs two looks more at the directory, a read for each output of batches, and two fsyncs if
        the directory has new files. Raises OSError, also when the directory is not the one that was
        read before.
        """
        root = self.source.root
        identity = identity_of(root)
        self._settled.begin(log_offset(settled), identity)
        head = list_head(self.source, self._settled)
        if identity_of(root) != identity:
            msg = f"{root} was replaced while it was listed"
            raise OSError(msg)
        self._roots.recognize(root, identity, head)
        self._settled.end()
        # Only after the listing: what had been removed before it is noted by now.
        self._wait_for_removed(head)
        return head

    def _wait_for_removed(self, head: Head) -> None:
        """Hold, for good, when batches were removed that this checkpoint has not read."""
        for folder, output in self._settled.outputs.items():
            through = removed(folder).through
            if output.extent.lacks(through):
                output.believe(self._record.load().get((self._number, folder), Extent()))
            if output.extent.lacks(through):
                head.wait_for(unread(folder, through, output.extent.read))
            else:
                output.advance()

    def wait(self, listed: Head, planned: Line | None) -> Files:
        """Return what is missing of a listing."""
        return self._log.wait(listed, log_offset(planned))

    def look(self, head: Files) -> None:
        """Take notice of what the log has taken since."""
        self._log.look(head)

    def renewed(self, head: Files, listed: Head, planned: Line | None) -> Files:
        """Wait for a later listing, if a file that nobody has taken is gone."""
        return self._log.renewed(head, listed, log_offset(planned))

    def reached(self, head: Files, offset: Line | None) -> bool:
        """Return whether all files are taken up to an offset."""
        return self._log.reached(head, log_offset(offset))

    def same(self, one: Files, other: Files) -> bool:
        """Return whether both wait for the same files and entries."""
        return self._log.same(one, other)

    def missing(self, head: Files, limit: int) -> list[str]:
        """Return some of the paths."""
        return self._log.missing(head, limit)

    def knock(self, line: Line) -> None:
        """Do nothing: the log is read, and not the directory."""

    def close(self) -> None:
        """Do nothing: what it knows is in Spark's log, and in the bookmarks."""

    def confirm(self, line: Line) -> None:
        """Do nothing: each listing looks at the directory, and each entry of the log says where its files were."""

    def evidence(self, line: Line) -> list[Location]:
        """Return the log's entry of a batch."""
        return log_files(self._folder, line)


class Settled:
    """What a listing of one source leaves out.

    Holds two numbers for each handed-over batch that is in the directory.
    """

    def __init__(self, log: SourceLog) -> None:
        self._log = log
        self._offset = NOTHING
        self._batches: dict[str, tuple[int, int]] = {}
        """By their paths: the inode, and the number of files."""
        self._seen: dict[str, tuple[int, int]] = {}
        self._of: object = None
        self.files = 0
        """How many files are in the batches of this listing that were not looked at."""
        self.outputs: dict[str, Output] = {}
        """The directories that lowwater writes into, by their paths, as far as they were met by the
        newest listing that is whole."""
        self._scans: dict[str, Scan] = {}
        self._met: set[str] = set()

    @property
    def batches(self) -> Container[str]:
        """The paths of the batches that this listing has met and that need no further look."""
        return self._seen

    def begin(self, offset: int, of: object = None) -> None:
        """Begin a listing.

        What has been taken up to this offset of the source's log counts: no batch behind it can be
        taken back.

        ``of`` tells directories apart: of another one than in the last listing everything is looked
        at again.
        """
        if of != self._of:
            self._batches = {}
            self.outputs.clear()
        self._of = of
        self._offset = offset
        self._seen = {}
        self._scans = {}
        self._met = set()
        self.files = 0

    def begin_again(self) -> None:
        """Begin the same listing anew: it has missed something."""
        self.begin(self._offset, self._of)

    def meet(self, folder: str) -> None:
        """Take note of a directory that lowwater writes into."""
        self._met.add(folder)

    def end(self) -> None:
        """The listing is whole: what it did not meet is gone."""
        self._batches = self._seen
        for gone in self.outputs.keys() - self._met:
            del self.outputs[gone]
        for folder in self._met:
            self.outputs.setdefault(folder, Output(folder)).take(self._scans.get(folder, Scan()))

    def has(self, file: File) -> bool:
        """Return whether a file is taken, as it is now."""
        batch = self._log.batch_of(file)
        return batch is not None and batch <= self._offset

    def is_batch(self, folder: os.DirEntry[str]) -> bool:
        """Return whether a sub-directory is a batch of which all was taken.

        This takes no note of it.
        """
        known = self._batches.get(folder.path)
        return known is not None and known[0] == folder.inode()

    def knows(self, folder: os.DirEntry[str]) -> bool:
        """Return whether a sub-directory is a batch that needs no look: it is the one of which all was taken."""
        if not self.is_batch(folder):
            return False
        known = self._seen[folder.path] = self._batches[folder.path]
        self.files += known[1]
        # By hand: this runs for each batch that was ever handed over.
        name = folder.name
        self._scan(folder.path[: -len(name) - 1]).sure.append(int(name[6:]))
        return True

    def _scan(self, folder: str) -> Scan:
        scan = self._scans.get(folder)
        if scan is None:
            scan = self._scans[folder] = Scan()
        return scan

    def learn(self, folder: os.DirEntry[str], found: Collection[object]) -> None:
        """Take note of what was found in a sub-directory: if it is a batch, and all of it is taken, it needs no look from the next listing on.

        Costs one look more at it, once.
        """
        whole = self._is_whole(folder, found)
        if whole:
            self._seen[folder.path] = (folder.inode(), len(found))
        # One with files was taken by a batch before this listing; one without may have come while
        # we walked.
        number = batch_number(folder.name)
        if number is not None:
            self._scan(folder.path[: -len(folder.name) - 1]).add(number, settled=whole, sure=bool(found))

    def _is_whole(self, folder: os.DirEntry[str], found: Collection[object]) -> bool:
        if batch_number(folder.name) is None or folder.is_symlink():
            return False
        if not all(isinstance(each, File) and self.has(each) for each in found):
            return False
        try:
            with os.scandir(folder.path) as listing:
                entries = {entry.name: entry.is_dir() for entry in listing}
        except FileNotFoundError:
            return False  # removed meanwhile
        # What has directories in it was changed by somebody, and may be again.
        return HANDED_OVER in entries and not any(entries.values())
