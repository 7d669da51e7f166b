"""Reads the log of a file source in a query's checkpoint: which files the source has taken, and in which of its entries.

Pure reading, probed on PySpark 4.3: ``sources/<i>/<n>`` is written while batch N is being *planned*, one JSON line a file; every few entries come
as one ``<n>.compact`` that repeats all earlier ones. So a path may stand here and not be in any batch yet: only the log offset in ``offsets/N``
says what a batch holds (:mod:`~lowwater_spark.checkpoint.log`). Each line has the modification time that Spark has listed, milliseconds.

head(W) of such a source is the set of the files that stood there when an input watermark had been read. A batch may count on an input low watermark W only
if it read everything that was there when W was read (a rate limit, targets fixed earlier, a replayed plan and a stale listing all leave rows
behind that W covers). So the driver lists the source *after* it has read W, and W counts from a batch that has taken each listed path. The set is
exact where a count or a greatest name is not: with ``latestFirst`` an older file is taken later than a newer one.
"""

from __future__ import annotations

import heapq
import json
import weakref
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from lowwater_spark.checkpoint.durable import write_over
from lowwater_spark.checkpoint.lines import last_lines
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Line

__all__ = [
    "FOR_EVER",
    "NOTHING",
    "NO_FILE",
    "Compacted",
    "Files",
    "File",
    "Head",
    "SourceLog",
    "Taken",
    "log_files",
    "log_offset",
]

FOR_EVER: Final = 1 << 63
"""Milliseconds that no file is old."""

NOTHING: Final = -1
"""The log offset of a source that has given nothing yet: below every batch id."""

NO_FILE: Final = -1
"""Stands for the modification time of what is no file of rows, and which Spark therefore never
takes."""


class File(NamedTuple):
    """A file as it stands in a listing.

    Another modification time is another file: it has other rows.
    """

    path: str
    modified: int
    """Milliseconds since the epoch, rounded down, as Spark logs it."""


class Taken(NamedTuple):
    """What a source's log says of a path: the newest entry that has it."""

    batch: int
    """The batch id, in the source's own count."""
    modified: int
    """As :attr:`File.modified`, when Spark listed it."""


class Head(set[File]):
    """What of a listing is still to be waited for.

    Any set of files is the head of a source of which nothing is left out.
    """

    __slots__ = ("batches", "settled", "unseen")

    def __init__(self, files: Iterable[File] = ()) -> None:
        super().__init__(files)
        self.settled: list[File] = []
        """Those that were looked at and left out."""
        self.batches: Container[str] = ()
        """The directories that were not looked into, since all in them is taken."""
        self.unseen = 0
        """The number of files in them."""

    def wait_for(self, reason: str) -> None:
        """Wait for what Spark never takes: nothing newer counts until a listing does not find it."""
        self.add(File(reason, NO_FILE))


class Files:
    """What one reading waits for: the files that no entry has taken yet, and how far the others reach into the log."""

    __slots__ = ("__weakref__", "missing", "needs")

    def __init__(self, listed: set[File], planned: int | None) -> None:
        # Not the listing itself: it also has the paths that are left out, and others may wait for
        # it.
        self.missing = set(listed)
        self.needs = NOTHING
        self.need(planned)

    def need(self, planned: int | None) -> None:
        """Wait for a planned batch as well: what is not listed may have been read by it, and removed since."""
        self.needs = max(self.needs, NOTHING if planned is None else planned)


class SourceLog:
    """The files that one file source has taken, with the entry that took each.

    ``root`` is the directory that the source reads: an entry from elsewhere raises
    CheckpointMismatch, since then the query's sources are not those of the checkpoint, or not in
    its order; None: it may be from anywhere. ``max_age`` is the source's maxFileAge, milliseconds.
    ``columns`` are those of its Hive partitions; None: Spark does not go by them. An entry of a
    file that does not have them raises CheckpointMismatch: Spark logs it, and reads no rows from
    it, or from those that came with it.

    Reads each entry once: :meth:`read_to` costs O(new entries), also at every tenth, where Spark
    writes a compacted one that repeats all before it. The first call costs O(all files that the
    compacted entry has). Holds one path per file that it has read, but for those that listings do
    not find any more.
    """

    FEW: ClassVar[int] = 1_000
    """Paths that are held without a look at whether they are still there."""

    def __init__(
        self, log: Location, root: str | None = "/", max_age: int = FOR_EVER, columns: tuple[str, ...] | None = None
    ) -> None:
        self._log = log
        self._columns = columns
        self._max_age = max_age
        self._newest = 0
        self._root = "" if root is None else root.rstrip("/") + "/"
        self._taken: dict[str, Taken] = {}
        self.read = NOTHING
        self._before = NOTHING
        self.parsed = 0
        """How many lines of entries were parsed so far."""
        self._waiting: weakref.WeakSet[Files] = weakref.WeakSet()
        """What anybody waits for."""
        self._listed: weakref.ref[set[File]] | None = None
        """The newest listing that anybody waits for."""

    @property
    def taken(self) -> Mapping[str, Taken]:
        """Every path read so far, with the entry that took it."""
        return self._taken

    @property
    def newest(self) -> int:
        """Greatest modification time of all files that were taken, milliseconds since the epoch; 0: none."""
        return self._newest

    def drop(self, paths: Iterable[str]) -> None:
        """Forget files that are not there any more, and for which nobody waits."""
        for path in paths:
            self._taken.pop(path, None)

    def passes_over(self, file: File) -> bool:
        """Return whether Spark does not take a file any more for its age: counted from the newest that it has taken."""
        return file.modified < self._newest - self._max_age

    def batch_of(self, file: File) -> int | None:
        """Return the batch id of the entry that took a file; None when there is none, or when the file was written again since."""
        taken = self._taken.get(file.path)
        return None if taken is None or taken.modified != file.modified else taken.batch

    # -- what is waited for ------------------------------------------------------------------------

    def wait(self, listed: set[File], planned: int | None = None) -> Files:
        """Return what is to be waited for after a listing, see :meth:`~lowwater_spark.sources.base.Awaited.wait`. O(listed)."""
        self._forget(listed)
        head = Files(listed, planned)
        self.look(head)
        self._waiting.add(head)
        return head

    def look(self, head: Files) -> None:
        """Take notice of what was taken since. O(what is missing)."""
        found = {file: batch for file in head.missing if (batch := self.batch_of(file)) is not None}
        head.missing.difference_update(found)
        head.needs = max([head.needs, *found.values()])

    def renewed(self, head: Files, listed: set[File], planned: int | None = None) -> Files:
        """Wait for a later listing instead, if a file that no entry has taken is gone: removed, written again, or renamed to another one of it.

        Such a file gives no rows any more, and would be waited for in vain. One that an entry has taken still counts: its batch may have read it.
        """
        self.look(head)
        if not head.missing <= listed:
            head.missing = set(listed)
            head.need(planned)
        return head

    def reached(self, head: Files, offset: int | None) -> bool:
        """Return whether all is taken up to an offset; before the first batch only an empty head is reached."""
        return not head.missing and head.needs <= (NOTHING if offset is None else offset)

    def same(self, one: Files, other: Files) -> bool:
        """Return whether both are reached by the same offsets. Both must have looked."""
        return one.needs == other.needs and one.missing == other.missing

    def missing(self, head: Files, limit: int) -> list[str]:
        """Return some of the paths that no batch has taken yet, the first by name.

        Where waiting does not help, the reason goes with the path: it was written again since a
        batch has read it, or it is too old.
        """
        return [self._named(file) for file in heapq.nsmallest(limit, head.missing)]

    def _named(self, file: File) -> str:
        if file.path in self._taken and file.modified != NO_FILE:
            return f"{file.path} (written again after it was read: give it another name)"
        if file.modified != NO_FILE and self.passes_over(file):
            return f"{file.path} (older than the newest file by more than maxFileAge)"
        return file.path

    def _forget(self, listed: set[File]) -> None:
        """Drop the paths that a listing has not found any more, once for each listing, whoever waits for it.

        One that comes again counts as not taken: Spark does not read it a second time, so it holds.
        """
        if self._listed is not None and self._listed() is listed:
            return
        self._listed = weakref.ref(listed)
        paths = [file.path for file in listed]
        if isinstance(listed, Head):
            gone = self._gone([*paths, *(file.path for file in listed.settled)], listed.batches, listed.unseen)
        else:
            gone = self._gone(paths)
        if not gone:
            return
        # First: what somebody waits for and was taken before it went is known by its entry.
        for head in self._waiting:
            self.look(head)
        for path in gone:
            self._taken.pop(path, None)

    def _gone(self, listed: Collection[str], folders: Container[str] = (), within: int = 0) -> list[str]:
        """Return the paths that a listing does not have any more, if they are most of those that are held; else none.

        ``folders`` were not looked into: what is in them is there, ``within`` files in all.
        Those alone that had been taken when this was asked last: what is taken after a listing began may have come after it. O(1), or O(paths held).
        """
        before, self._before = self._before, self.read
        if len(self._taken) < self.FEW + 2 * (len(listed) + within):
            return []
        paths = set(listed)
        return [
            path
            for path, taken in self._taken.items()
            if taken.batch <= before and path not in paths and path.rpartition("/")[0] not in folders
        ]

    # -- what Spark has taken ----------------------------------------------------------------------

    def read_to(self, offset: int) -> None:
        """Read every entry up to and including ``offset``.

        Raises CheckpointMismatch when one is missing and no compacted one stands in for it: an
        offset is only ever planned after its entry was written.
        """
        if offset <= self.read:
            return
        at = self._start(offset)
        while at <= offset:
            # The next compacted entry may lie beyond the offset. What it names beyond is planned
            # later, and says so by its batch id.
            while not self._read_entry(at):
                at = self._compacted_after(at)
            self.read = at
            at += 1

    def _start(self, offset: int) -> int:
        """Return where to begin: the first time at the newest compacted entry, which repeats all before it."""
        if self.read != NOTHING:
            return self.read + 1
        return max((n for n in self._compacted() if n <= offset), default=0)

    def _compacted_after(self, at: int) -> int:
        later = min((n for n in self._compacted() if n > at), default=None)
        if later is None:
            msg = f"{self._log} lacks its entry {at}, and no compacted entry repeats it; restore the checkpoint as a whole"
            raise CheckpointMismatch(msg)
        return later

    def _compacted(self) -> list[int]:
        return _compacted_numbers(self._log)

    def _read_entry(self, number: int) -> bool:
        """Read what an entry has that was not read before. Return whether there is one."""
        try:
            version, *lines = (self._log / f"{number}").read_bytes().split(b"\n")
        except FileNotFoundError:
            return self._read_compacted(self._log / f"{number}.compact", number)
        self._check_version(self._log / f"{number}", version)
        for line in filter(None, lines):
            self._take(self._parse(line))
        return True

    def _read_compacted(self, path: Location, number: int) -> bool:
        """Read the end of a compacted entry, back to what was read before.

        Return whether there is one.

        Spark writes the lines of the compacted entry before, and behind them those of each batch
        since, in order. A line that were elsewhere would be missed; then its file counts as not
        taken, and the watermark holds.
        """
        first = self.read + 1
        try:
            for line in last_lines(path):
                if not line:
                    continue
                if not line.startswith(b"{"):
                    self._check_version(path, line)
                    continue
                entry = self._parse(line)
                if int(entry["batchId"]) < first:
                    break
                self._take(entry)
        except FileNotFoundError:
            return False
        return True

    def _check_version(self, path: Location, version: bytes) -> None:
        if version != b"v1":
            said = version[:100].decode(errors="replace")
            msg = f"{path} is of version {said!r}; this release reads v1. Use a PySpark that docs/compatibility.md names, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)

    def _parse(self, line: bytes) -> dict[str, Any]:
        self.parsed += 1
        found: dict[str, Any] = json.loads(line)
        return found

    def _take(self, entry: Mapping[str, Any]) -> None:
        named = SparkPath.of_uri(entry["path"])
        path = named.text if named.local is None else named.path  # as the root of the source is written
        if not path.startswith(self._root):
            raise CheckpointMismatch(_OTHER_SOURCE.format(log=self._log, path=path, root=self._root))
        self._check_place(path)
        taken, known = Taken(int(entry["batchId"]), int(entry["timestamp"])), self._taken.get(path)
        self._newest = max(self._newest, taken.modified)
        # Spark takes a path again only when it has forgotten it by maxFileAge.
        if known is None or known.batch <= taken.batch:
            self._taken[path] = taken

    def _check_place(self, path: str) -> None:
        if self._columns is None:
            return
        *folders, _ = path.removeprefix(self._root).split("/")
        if tuple(folder.partition("=")[0] for folder in folders) != self._columns:
            columns = ", ".join(self._columns) or "none"
            raise CheckpointMismatch(_OTHER_PLACE.format(log=self._log, path=path, columns=columns))


class Compacted(NamedTuple):
    """One compacted entry of the log of a source whose old files nobody needs any more."""

    path: Location

    @classmethod
    def newest(cls, log: Location, last: int) -> Compacted | None:
        """Return the newest compacted entry up to a batch of the source's own count.

        Costs a listing of the log.
        """
        number = max((n for n in _compacted_numbers(log) if n <= last), default=None)
        return None if number is None else cls(log / f"{number}.compact")

    def drop_before(self, batch: int) -> None:
        """Take out the lines of all batches before one.

        Durable when it returns; costs two fsyncs if there are any.

        Spark may read the entry at the same time, and copies it into the next compacted one: it
        finds the old lines or the new ones, which are whole both.
        """
        kept, old = list[bytes](), False
        for line in last_lines(self.path):
            if line.startswith(b"{"):
                if old := int(json.loads(line)["batchId"]) < batch:
                    break
                kept.append(line)
        if not old:
            return
        # First: Hadoop's checksum is of the old content, and whoever finds none reads all the same.
        (self.path.parent / f".{self.path.name}.crc").unlink(missing_ok=True)
        write_over(self.path, b"\n".join([b"v1", *reversed(kept)]))


def _compacted_numbers(log: Location) -> list[int]:
    try:
        names = [entry.name for entry in log.iterdir()]
    except FileNotFoundError:
        return []
    plain = {name: name.removesuffix(".compact") for name in names if name.endswith(".compact")}
    return [int(number) for number in plain.values() if number.isdecimal()]


_OTHER_PLACE: Final = (
    "{log} has taken {path}, but the partitions of this source are by: {columns}. Spark may have read no rows from it, or from files that came "
    "with it. Start from a new checkpoint, with recursiveFileLookup, or over a directory in which every file is in such a partition."
)

_OTHER_SOURCE: Final = (
    "{log} has taken {path}, but this source of the query reads {root}. Spark knows sources by their order in the query: keep it, "
    "or start from a new checkpoint."
)


def log_offset(line: Line | None) -> int:
    """Return the log offset that a line of the offset log holds.

    Raises CheckpointMismatch for one of another kind of source.

    >>> log_offset('{"logOffset":7}'), log_offset("-"), log_offset(None)
    (7, -1, -1)
    """
    if line is None or line == NONE:
        return NOTHING
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("logOffset"), int):
        msg = f"{line!r} in the offset log is not the offset of a file source"
        raise CheckpointMismatch(msg)
    return int(entry["logOffset"])


def log_files(log: Location, line: Line) -> list[Location]:
    """Return the files of a source's log that a line stands on."""
    offset = log_offset(line)
    return [path for path in (log / str(offset), log / f"{offset}.compact") if path.exists()]
