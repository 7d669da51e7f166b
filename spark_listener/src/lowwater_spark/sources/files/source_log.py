"""Spark's log of a file source in a checkpoint: the files that the source has taken, and when.

The log is only read here; its format was probed on PySpark 4.3. Spark writes ``sources/<i>/<n>``
while it *plans* a batch, one JSON line a file; every few entries it writes one ``<n>.compact`` that
repeats all earlier ones. So a path may be in the log and not in any batch yet: only the log offset
in ``offsets/N`` tells which entries a batch has (:mod:`~lowwater_spark.checkpoint.log`). Each line
has the file's modification time, in milliseconds, as Spark listed it.

The head of a file source is the set of files that were there when an input watermark W had been
read. A batch may count on W only if it read all of them: a rate limit, targets fixed earlier, a
replayed plan and a stale listing leave rows behind that W covers. So the driver lists the source
*after* it has read W, and W counts from a batch that has taken each listed path. A count of files
or a greatest name would not be exact: with ``latestFirst`` Spark takes newer files first.
"""

from __future__ import annotations

import heapq
import json
import weakref
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from lowwater_spark.checkpoint.durable import write_over
from lowwater_spark.checkpoint.lines import last_lines
from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Line

__all__ = [
    "FOR_EVER",
    "NOTHING",
    "NO_FILE",
    "OPEN",
    "WRITTEN_AGAIN",
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
"""Milliseconds above the age of any file."""

NOTHING: Final = -1
"""Log offset of a source before its first rows: below every batch id."""

NO_FILE: Final = -1
"""Modification time of a path that Spark never takes, such as a directory. A head with such a path
is never reached, so it holds W."""

WRITTEN_AGAIN: Final = -2
"""Modification time for a file whose version changed while its time did not. No source log has this
time, so the file counts as unread."""

OPEN: Final = -3
"""Modification time for a file that its writer has not closed yet. No source log has this time."""

_COMPACT: Final = ".compact"
"""End of the name of a compacted entry."""


class File(NamedTuple):
    """A file in a listing.

    A path with another modification time is another file, with other rows.
    """

    path: str
    modified: int
    """Modification time, milliseconds since the epoch, rounded down as in Spark's log."""


class Taken(NamedTuple):
    """The newest entry of a source's log that has a path."""

    batch: int
    """Batch id of the entry, in the source's own count."""
    modified: int
    """Modification time in the entry, see :attr:`File.modified`."""


class Head(set[File]):
    """The files of a listing that are not settled.

    A plain set of files is the head of a listing that left nothing out.
    """

    __slots__ = ("batches", "settled", "unlisted")

    def __init__(self, files: Iterable[File] = ()) -> None:
        super().__init__(files)
        self.settled: list[File] = []
        """Listed files that were left out, because a committed batch has taken them."""
        self.batches: Container[str] = ()
        """Directories that were not listed, because all files in them are taken."""
        self.unlisted = 0
        """Number of files in these directories."""

    def wait_for(self, reason: str) -> None:
        """Add an entry that Spark never takes: W holds until a listing has no such reason."""
        self.add(File(reason, NO_FILE))


class Files:
    """The head for which one reading waits.

    ``missing`` has the files that no log entry has taken yet; ``needs`` is the greatest log offset
    that took one of the others.
    """

    __slots__ = ("__weakref__", "missing", "needs")

    def __init__(self, listed: set[File], planned: int | None) -> None:
        # A plain copy: several readings may share ``listed``, and each removes files from its own
        # set. It also drops the settled paths that a listing carries.
        self.missing = set(listed)
        self.needs = NOTHING
        self.need(planned)

    def need(self, planned: int | None) -> None:
        """Wait for a planned batch as well: it may have read files that were removed since."""
        self.needs = max(self.needs, NOTHING if planned is None else planned)


class SourceLog:
    """The files that one file source has taken, with the entry that took each.

    ``root`` is the directory that the source reads; None: any. An entry from elsewhere raises
    CheckpointMismatch: the query's sources are not those of the checkpoint, or in another order.
    ``max_age`` is the source's maxFileAge, milliseconds. ``columns`` are those of its Hive
    partitions; None: Spark ignores partitions. An entry of a file outside of the partitions raises
    CheckpointMismatch: Spark logs such a file, but reads no rows from it or from those logged with
    it.

    Each entry is read once: :meth:`read_to` costs O(new entries), also where Spark has compacted
    all earlier ones. The first call costs O(files in the compacted entry). Memory: one path per
    file that was read, less those that listings do not find any more.
    """

    FEW: ClassVar[int] = 1_000
    """Number of paths below which none is dropped, listed or not."""

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
        """Batch id of the last entry that was read."""
        self._before = NOTHING
        """Value of ``read`` when the newest listing came, see :meth:`_removed`."""
        self.parsed = 0
        """Number of lines that were parsed so far."""
        self._waiting: weakref.WeakSet[Files] = weakref.WeakSet()
        """Heads for which readings wait."""
        self._listed: weakref.ref[set[File]] | None = None
        """Newest listing that was given to :meth:`wait`."""

    @property
    def taken(self) -> Mapping[str, Taken]:
        """Every path read so far, with the entry that took it."""
        return self._taken

    @property
    def newest(self) -> int:
        """Greatest modification time of the files taken, milliseconds since the epoch; 0: none."""
        return self._newest

    def drop(self, paths: Iterable[str]) -> None:
        """Forget removed files for which no reading waits."""
        for path in paths:
            self._taken.pop(path, None)

    def passes_over(self, file: File) -> bool:
        """Return whether Spark skips a file as too old, by the newest one that it has taken."""
        return file.modified < self._newest - self._max_age

    def batch_of(self, file: File) -> int | None:
        """Return the batch id of the entry that took a file in its present state; None: none."""
        record = self._taken.get(file.path)
        return None if record is None or record.modified != file.modified else record.batch

    # -- heads -------------------------------------------------------------------------------------

    def wait(self, listed: set[File], planned: int | None = None) -> Files:
        """Return the head of a listing; O(listed).

        See :class:`~lowwater_spark.sources.base.Awaited`.
        """
        self._forget(listed)
        head = Files(listed, planned)
        self.look(head)
        self._waiting.add(head)
        return head

    def look(self, head: Files) -> None:
        """Move the files that were taken since from ``missing`` to ``needs``. O(missing files)."""
        batches = {file: batch for file in head.missing if (batch := self.batch_of(file)) is not None}
        head.missing.difference_update(batches)
        head.needs = max([head.needs, *batches.values()])

    def renewed(self, head: Files, listed: set[File], planned: int | None = None) -> Files:
        """Return the head of a later listing when a file that no entry has taken is not in it.

        Such a file was removed, renamed or written again: it would never be taken, and W would hold
        for ever. Files that an entry has taken still count, because their batches may read them.
        """
        self.look(head)
        if not head.missing <= listed:
            head.missing = set(listed)
            head.need(planned)
        return head

    def reached(self, head: Files, offset: int | None) -> bool:
        """Return whether the entries up to an offset have taken all; None: before the first."""
        return not head.missing and head.needs <= (NOTHING if offset is None else offset)

    def same(self, one: Files, other: Files) -> bool:
        """Return whether the same offsets reach both heads; call :meth:`look` for both before."""
        return one.needs == other.needs and one.missing == other.missing

    def missing(self, head: Files, limit: int) -> list[str]:
        """Return the first ``limit`` paths, by name, that no batch has taken yet.

        A reason follows the path when waiting does not help: the file was written again after a
        batch read it, or it is too old.
        """
        return [self._named(file) for file in heapq.nsmallest(limit, head.missing)]

    def _named(self, file: File) -> str:
        if file.modified == OPEN:
            return f"{file.path} (its writer has not closed it)"
        if file.modified == WRITTEN_AGAIN or (file.path in self._taken and file.modified != NO_FILE):
            return f"{file.path} (written again after it was {self._seen(file)}: give it another name)"
        if file.modified != NO_FILE and self.passes_over(file):
            return f"{file.path} (older than the newest file by more than maxFileAge)"
        return file.path

    def _seen(self, file: File) -> str:
        """Return what became of a file before it was written again."""
        if file.path not in self._taken:
            return "listed"
        # GCS gives an object another time also when only its metadata changes.
        return "read, or its metadata was changed" if file.path.startswith("gs://") else "read"

    def _forget(self, listed: set[File]) -> None:
        """Drop the paths that a listing does not have any more, once for each listing.

        A path that comes back counts as not taken, and holds W: Spark does not read it again.
        """
        if self._listed is not None and self._listed() is listed:
            return
        self._listed = weakref.ref(listed)
        paths = [file.path for file in listed]
        if isinstance(listed, Head):
            removed = self._removed([*paths, *(file.path for file in listed.settled)], listed.batches, listed.unlisted)
        else:
            removed = self._removed(paths)
        if not removed:
            return
        # The waiting heads are updated before the drop: look() finds that a file was taken only
        # while the file's entry is in _taken. In the other order a head would go on waiting for a
        # file that was taken and is gone.
        for head in self._waiting:
            self.look(head)
        for path in removed:
            self._taken.pop(path, None)

    def _removed(self, listed: Collection[str], folders: Container[str] = (), within: int = 0) -> list[str]:
        """Return the held paths that a listing lacks, if they are more than half; else none.

        ``folders`` were not listed, and still have their ``within`` files. Only paths that had been
        taken at the call before are returned: a file that was taken later may have come after the
        listing began. O(1), or O(paths held).
        """
        before, self._before = self._before, self.read
        if len(self._taken) < self.FEW + 2 * (len(listed) + within):
            return []
        paths = set(listed)
        return [
            path
            for path, record in self._taken.items()
            if record.batch <= before and path not in paths and path.rpartition("/")[0] not in folders
        ]

    # -- entries -----------------------------------------------------------------------------------

    def read_to(self, offset: int) -> None:
        """Read every entry up to and including ``offset``.

        Raises CheckpointMismatch when one is missing and no compacted one stands in for it: an
        offset is only ever planned after its entry was written.
        """
        if offset <= self.read:
            return
        at = self._start(offset)
        while at <= offset:
            # If Spark has deleted entry ``at``, the next compacted entry repeats it. That one may
            # reach beyond ``offset``, but each of its files has the id of its own batch, so files
            # of later batches do not count too early.
            while not self._read_entry(at):
                at = self._compacted_after(at)
            self.read = at
            at += 1

    def _start(self, offset: int) -> int:
        """Return the first entry to read: at first the newest compacted one, later the next one."""
        if self.read != NOTHING:
            return self.read + 1
        return max((n for n in numbers_in(self._log, suffix=_COMPACT) if n <= offset), default=0)

    def _compacted_after(self, at: int) -> int:
        later = min((n for n in numbers_in(self._log, suffix=_COMPACT) if n > at), default=None)
        if later is None:
            msg = f"{self._log} lacks its entry {at}, and no compacted entry repeats it; restore the checkpoint as a whole"
            raise CheckpointMismatch(msg)
        return later

    def _read_entry(self, number: int) -> bool:
        """Read the new lines of an entry. Return False when the entry does not exist."""
        try:
            version, *lines = (self._log / f"{number}").read_bytes().split(b"\n")
        except FileNotFoundError:
            return self._read_compacted(self._log / f"{number}.compact", number)
        self._check_version(self._log / f"{number}", version)
        for line in filter(None, lines):
            self._take(self._parse(line))
        return True

    def _read_compacted(self, path: Location, number: int) -> bool:
        """Read a compacted entry from its end back to the lines that were read before.

        Return False when the entry does not exist. Spark writes the lines of the last compacted
        entry, and after them those of each batch since, in order. A line in another place would be
        missed; its file would count as not taken, and the watermark would hold.
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
            text = version[:100].decode(errors="replace")
            msg = f"{path} is of version {text!r}; this release reads v1. Use a PySpark that docs/operate/operations.md names, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)

    def _parse(self, line: bytes) -> dict[str, Any]:
        self.parsed += 1
        entry: dict[str, Any] = json.loads(line)
        return entry

    def _take(self, entry: Mapping[str, Any]) -> None:
        named = SparkPath.of_uri(entry["path"])
        path = named.text if named.local is None else named.path  # as _root: a local path has no scheme
        if not path.startswith(self._root):
            raise CheckpointMismatch(
                _OTHER_SOURCE.format(log=self._log, path=path, root=self._root) + self._elsewhere(path)
            )
        self._check_place(path)
        record, earlier = Taken(int(entry["batchId"]), int(entry["timestamp"])), self._taken.get(path)
        self._newest = max(self._newest, record.modified)
        # The newest entry of a path counts. A path has two when Spark has forgotten the first by
        # maxFileAge; a compacted entry is read backwards, so the older one may come last.
        if earlier is None or earlier.batch <= record.batch:
            self._taken[path] = record

    def _elsewhere(self, path: str) -> str:
        """Return what to declare for a path of the same directory by another name of its server."""
        *server, rest = path.split("/", 3)
        *declared, root = self._root.split("/", 3)
        if "://" not in path or "://" not in self._root or server == declared or not rest.startswith(root):
            return ""
        return f" If both names are of one server, declare {'/'.join([*server, root]).rstrip('/')}."

    def _check_place(self, path: str) -> None:
        if self._columns is None:
            return
        *folders, _ = path.removeprefix(self._root).split("/")
        if tuple(folder.partition("=")[0] for folder in folders) != self._columns:
            columns = ", ".join(self._columns) or "none"
            raise CheckpointMismatch(_OTHER_PLACE.format(log=self._log, path=path, columns=columns))


class Compacted(NamedTuple):
    """One compacted entry of a source's log, from which the lines of old batches may be removed."""

    path: Location

    @classmethod
    def newest(cls, log: Location, last: int) -> Compacted | None:
        """Return the newest compacted entry up to a batch of the source's own count.

        Costs a listing of the log.
        """
        number = max((n for n in numbers_in(log, suffix=_COMPACT) if n <= last), default=None)
        return None if number is None else cls(log / f"{number}{_COMPACT}")

    def drop_before(self, batch: int) -> None:
        """Remove the lines of all batches before ``batch``.

        Durable when it returns; costs two fsyncs when there are such lines. Spark may read the
        entry at the same time, to copy it into the next compacted one: it finds the old or the new
        lines, each whole.
        """
        lines, old = list[bytes](), False
        for line in last_lines(self.path):
            if line.startswith(b"{"):
                if old := int(json.loads(line)["batchId"]) < batch:
                    break
                lines.append(line)
        if not old:
            return
        # The checksum is deleted before the content changes, since it would not match the new one.
        # Hadoop reads a file that has no checksum.
        (self.path.parent / f".{self.path.name}.crc").unlink(missing_ok=True)
        write_over(self.path, b"\n".join([b"v1", *reversed(lines)]))


_OTHER_PLACE: Final = (
    "{log} has taken {path}, but the partitions of this source are by: {columns}. Spark may have read no rows from it, or from files that came "
    "with it. Start from a new checkpoint, with recursiveFileLookup, or over a directory in which every file is in such a partition. Where a sidecar's declaration has forgotten partitions= or recursiveFileLookup=true, add that."
)

_OTHER_SOURCE: Final = (
    "{log} has taken {path}, but this source of the query reads {root}. Spark knows sources by their order in the query: keep it, "
    "or start from a new checkpoint."
)


def log_offset(line: Line | None) -> int:
    """Return the log offset in a line of the offset log; :data:`NOTHING` before the first rows.

    Raises CheckpointMismatch for a line of another kind of source.

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
    """Return the files of a source's log that have the entry of a line."""
    offset = log_offset(line)
    return [path for path in (log / str(offset), log / f"{offset}.compact") if path.exists()]
