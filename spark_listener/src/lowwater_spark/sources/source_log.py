"""Reads the log of a file source in a query's checkpoint: which files the source has taken, and in which of its entries.

Pure reading, probed on PySpark 4.3: ``sources/<i>/<n>`` is written while batch N is being *planned*, one JSON line a file; every few entries come
as one ``<n>.compact`` that repeats all earlier ones. So a path may stand here and not be in any batch yet: only the log offset in ``offsets/N``
says what a batch holds (:mod:`~lowwater_spark.checkpoint.log`). Each line has the modification time that Spark has listed, milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote

from lowwater_spark.errors import CheckpointMismatch

__all__ = ["FOR_EVER", "NOTHING", "File", "SourceLog", "Taken", "local_path"]

FOR_EVER: Final = 1 << 63
"""Milliseconds that no file is old."""

NOTHING: Final = -1
"""The log offset of a source that has given nothing yet: below every batch id."""


class File(NamedTuple):
    """A file as it stands in a listing. Another modification time is another file: it has other rows."""

    path: str
    modified: int
    """Milliseconds since the epoch, rounded down, as Spark logs it."""


class Taken(NamedTuple):
    """What a source's log says of a path: the newest entry that has it."""

    batch: int
    """The batch id, in the source's own count."""
    modified: int
    """As :attr:`File.modified`, when Spark listed it."""


class SourceLog:
    """The files that one file source has taken, with the entry that took each.

    ``root`` is the directory that the source reads: an entry from elsewhere raises CheckpointMismatch, since then the query's sources
    are not those of the checkpoint, or not in its order. ``max_age`` is the source's maxFileAge, milliseconds.
    ``columns`` are those of its Hive partitions; None: Spark does not go by them. An entry of a file that does not have them raises
    CheckpointMismatch: Spark logs it, and reads no rows from it, or from those that came with it.

    Reads each entry once: :meth:`read_to` costs O(new entries), or O(all files) for a compacted one, which Spark writes
    at every tenth. Holds one path per file that it has read and nobody has told it to :meth:`forget`.
    """

    FEW: ClassVar[int] = 1_000
    """Paths that are held without a look at whether they are still there."""

    def __init__(
        self, log: Path, root: str = "/", max_age: int = FOR_EVER, columns: tuple[str, ...] | None = None
    ) -> None:
        self._log = log
        self._columns = columns
        self._max_age = max_age
        self._newest = 0
        self._root = root.rstrip("/") + "/"
        self._taken: dict[str, Taken] = {}
        self.read = NOTHING
        self._before = NOTHING

    @property
    def taken(self) -> Mapping[str, Taken]:
        """Every path read so far, with the entry that took it."""
        return self._taken

    def passes_over(self, file: File) -> bool:
        """Return whether Spark does not take a file any more for its age: counted from the newest that it has taken."""
        return file.modified < self._newest - self._max_age

    def batch_of(self, file: File) -> int | None:
        """Return the batch id of the entry that took a file; None when there is none, or when the file was written again since."""
        taken = self._taken.get(file.path)
        return None if taken is None or taken.modified != file.modified else taken.batch

    def gone(self, listed: Collection[str], folders: Container[str] = (), within: int = 0) -> list[str]:
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

    def forget(self, paths: Iterable[str]) -> None:
        """Drop paths that are gone. One that comes again counts as not taken: Spark does not read it a second time, so it holds."""
        for path in paths:
            self._taken.pop(path, None)

    def read_to(self, offset: int) -> None:
        """Read every entry up to and including ``offset``.

        Raises CheckpointMismatch when one is missing and no compacted one stands in for it: an offset is only ever planned
        after its entry was written.
        """
        if offset <= self.read:
            return
        at = self._start(offset)
        while at <= offset:
            # The next compacted entry may lie beyond the offset. What it names beyond is planned later, and says so by its batch id.
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
        try:
            names = [entry.name for entry in self._log.iterdir()]
        except FileNotFoundError:
            return []
        return [
            int(name.removesuffix(".compact"))
            for name in names
            if name.removesuffix(".compact").isdecimal() and "." in name
        ]

    def _read_entry(self, number: int) -> bool:
        for name in (f"{number}", f"{number}.compact"):
            try:
                content = (self._log / name).read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            # Only "\n" ends a line: paths may hold other characters that splitlines() would break at.
            version, *lines = content.split("\n")
            if version != "v1":
                msg = f"{self._log / name} is of version {version!r}; this release reads v1. Use PySpark 4.3, or a newer lowwater-spark."
                raise CheckpointMismatch(msg)
            for line in filter(None, lines):
                entry = json.loads(line)
                path = local_path(entry["path"])
                if not path.startswith(self._root):
                    raise CheckpointMismatch(_OTHER_SOURCE.format(log=self._log, path=path, root=self._root))
                self._check_place(path)
                taken, known = Taken(int(entry["batchId"]), int(entry["timestamp"])), self._taken.get(path)
                self._newest = max(self._newest, taken.modified)
                # Spark takes a path again only when it has forgotten it by maxFileAge.
                if known is None or known.batch <= taken.batch:
                    self._taken[path] = taken
            return True
        return False

    def _check_place(self, path: str) -> None:
        if self._columns is None:
            return
        *folders, _ = path.removeprefix(self._root).split("/")
        if tuple(folder.partition("=")[0] for folder in folders) != self._columns:
            columns = ", ".join(self._columns) or "none"
            raise CheckpointMismatch(_OTHER_PLACE.format(log=self._log, path=path, columns=columns))


_OTHER_PLACE: Final = (
    "{log} has taken {path}, but the partitions of this source are by: {columns}. Spark may have read no rows from it, or from files that came "
    "with it. Start from a new checkpoint, with recursiveFileLookup, or over a directory in which every file is in such a partition."
)

_OTHER_SOURCE: Final = (
    "{log} has taken {path}, but this source of the query reads {root}. Spark knows sources by their order in the query: keep it, "
    "or start from a new checkpoint."
)


def local_path(uri: str) -> str:
    """Return the local path of a ``file:`` URI as Spark logs it: escaped, with one or three slashes.

    >>> local_path("file:///data/a%20b%2520c.json")
    '/data/a b%20c.json'
    """
    path = uri.removeprefix("file:")
    return unquote(path.removeprefix("//") if path.startswith("///") else path)
