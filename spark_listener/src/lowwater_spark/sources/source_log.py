"""Reads what Spark wrote into a query's checkpoint: which batch is planned, which is committed, which files are in it.

Pure reading: nothing here writes, and nothing asks Spark. What the files mean was probed on PySpark 4.3:

* ``offsets/N`` is written when batch N is planned: a version line, a line of settings, then one line per source, in the
  order of the plan: ``{"logOffset": n}``, or ``-`` while the source has given nothing.
* ``commits/N`` appears when batch N is done, before batch N + 1 starts. All logs are renamed into place: a name that is a
  plain number is complete.
* ``sources/<i>/<n>`` is written while batch N is being *planned*, one JSON line a file; every few entries come as one
  ``<n>.compact`` that repeats all earlier ones. So a path may stand here and not be in any batch yet: only the log offset
  in ``offsets/N`` says what a batch holds. Each line has the modification time that Spark has listed, milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote

from lowwater_spark.errors import CheckpointMismatch

__all__ = ["FOR_EVER", "NOTHING", "CheckpointLog", "File", "Plan", "SourceLog", "Taken", "local_path"]

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


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned batch: how far each source's log belongs to it, and the digest that tells a replay from another plan."""

    batch: int
    offsets: Sequence[int]
    """Per source, in the order of the plan; entries with a batch id up to this are in the batch or an earlier one. A control's
    source is always at :data:`NOTHING`."""
    digest: str
    """sha256 of the entry, in hex."""
    watermark: int
    """Spark's own watermark, the one that the batch runs with; milliseconds since the epoch, 0 before there is one."""
    entries: Sequence[str]
    """The offsets as they stand in the log, one line of JSON per source."""


class CheckpointLog:
    """The offset and commit logs of one checkpoint directory. Every call reads the file system anew.

    ``controls`` are the numbers of the sources that are controls of a driven query: their offsets are values and not places in a log.
    """

    def __init__(self, checkpoint: Path, controls: Container[int] = ()) -> None:
        self.checkpoint = checkpoint
        self._controls = controls
        self._commits = checkpoint / "commits"
        self._offsets = checkpoint / "offsets"

    def last_committed(self) -> int | None:
        """Return the number of the last batch in the commit log. O(entries): Spark keeps some hundred."""
        return max(_numbers(self._commits), default=None)

    def committed(self, batch: int) -> bool:
        """Return whether a batch is in the commit log. Of old batches the entry is gone. O(1)."""
        return (self._commits / str(batch)).exists()

    def plan(self, batch: int) -> Plan | None:
        """Return a batch as planned, None when it is not planned yet.

        Raises CheckpointMismatch when the entry is of a version, or of a source, that this module does not know.
        """
        try:
            content = (self._offsets / str(batch)).read_bytes()
        except FileNotFoundError:
            return None
        version, *rest = content.decode().splitlines()
        if version != "v1" or not rest:
            msg = f"{self._offsets / str(batch)} is of version {version!r}; this release reads v1. Use PySpark 4.3, or a newer lowwater-spark."
            raise CheckpointMismatch(msg)
        settings, *entries = rest
        offsets = [NOTHING if i in self._controls else _log_offset(line) for i, line in enumerate(entries)]
        watermark = json.loads(settings).get("batchWatermarkMs", 0)
        return Plan(batch, offsets, hashlib.sha256(content).hexdigest(), watermark, entries)

    def last_planned(self) -> int | None:
        """Return the number of the last batch in the offset log. O(entries)."""
        return max(_numbers(self._offsets), default=None)

    def newest_offsets(self) -> Sequence[int]:
        """Return how far the newest planned batch goes; nothing before the first. O(entries)."""
        newest = self.last_planned()
        plan = None if newest is None else self.plan(newest)
        return () if plan is None else plan.offsets

    def plans_after(self, batch: int, last: int) -> list[Plan]:
        """Return what the offset log still has of the batches after one, up to the last, in order."""
        found = [self.plan(number) for number in sorted(_numbers(self._offsets)) if batch < number <= last]
        return [plan for plan in found if plan is not None]

    def files_of(self, plan: Plan) -> list[Path]:
        """Return the log files that a plan stands on: what must be durable before anything is made from it."""
        found = [self._offsets / str(plan.batch)]
        for source, offset in enumerate(plan.offsets):
            log = self.checkpoint / "sources" / str(source)
            found += [path for path in (log / str(offset), log / f"{offset}.compact") if path.exists()]
        return found


def _log_offset(line: str) -> int:
    if line == "-":
        return NOTHING
    entry = json.loads(line)
    if not isinstance(entry, dict) or not isinstance(entry.get("logOffset"), int):
        msg = f"{line!r} in the offset log is not the offset of a file source"
        raise CheckpointMismatch(msg)
    return int(entry["logOffset"])


def _numbers(log: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()]
    except FileNotFoundError:
        return []


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
