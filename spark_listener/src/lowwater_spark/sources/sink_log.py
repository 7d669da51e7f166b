"""Reads the log of a Spark file sink: which of the files in a directory are output, and which were left by attempts that failed.

A directory that a Spark query writes to has ``_spark_metadata`` in it, and Spark's own file source then goes by that log and not by a
listing. So does head(W). Probed on PySpark 4.3: batch N of the writer is the entry ``N``, a version line and one line of JSON per
file, renamed into place when all of its files are written and before ``commits/N`` of the writer; every few entries come as one
``N.compact`` that repeats all before it, after which those may be deleted. A replayed batch finds its entry and writes nothing.
A line has a file's size and its modification time, milliseconds; a reader's source log repeats that time. A batch without files (it had no
rows, and the sink partitions) is the version line alone. Nothing in it tells that from an entry which a power cut has cut there; Hadoop's
checksum does, which is the file ``.N.crc`` beside it.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.location import Location, real
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.source_log import NOTHING, File
from lowwater_spark.sources.writers import MARKS, SINK_MARK

__all__ = ["SINK_LOG", "DurableSink", "check_sink", "checksum_matches", "list_sink", "refuse_sink"]

SINK_LOG: Final = "_spark_metadata"
"""The name of the log in the directory that the sink writes to."""

T = TypeVar("T")

_TRIES: Final = 5

_VERSION: Final = b"v1"

_FIELDS: Final = frozenset({"action", "isDir", "modificationTime", "path", "size"})
"""What a line says of a file, as far as it is read here."""

_OTHER_SIZE: Final = -1
"""Stands for the time of a file that has another size than the log says, at the same time: no log
has it."""


def list_sink(root: str) -> set[File]:
    """Return all files that the log has, with the modification times that a reader logs for them.

    O(files).

    A file that is not as the log says was written again by somebody else; it has another time here,
    so no reader has taken it.

    Raises OSError when the log cannot be read as a whole: an entry is missing, or is of a version
    that is not known. Then nothing is known of the directory, and Spark cannot read it either.
    """
    return _settled(lambda: _read(Path(root, SINK_LOG)))


def _settled(read: Callable[[], T]) -> T:
    """Read a log that its writer may compact meanwhile.

    Raises FileNotFoundError when it lacks an entry each time.
    """
    for _ in range(_TRIES - 1):
        try:
            return read()
        except FileNotFoundError:
            continue  # the writer has deleted what we were about to read: a compacted entry repeats it
    return read()


def _read(log: Path) -> set[File]:
    names = _names(log)
    entries = _lines(_chain(log, names, max(names.values(), default=NOTHING)))
    gone = {entry["path"] for entry in entries if entry["action"] == "delete"}
    return {_file(entry) for entry in entries if not entry["isDir"] and entry["path"] not in gone}


def _names(log: Path) -> dict[str, int]:
    """Return the names of a log's entries, each with its batch."""
    plain = {entry.name: entry.name.removesuffix(".compact") for entry in log.iterdir()}
    return {name: int(number) for name, number in plain.items() if number.isdecimal()}


def _chain(log: Path, names: Mapping[str, int], last: int, first: int = 0) -> list[Path]:
    """Return the entries that tell of the batches from one to another: the newest compacted one, which repeats all before it, and those after it."""
    compacted = max((n for name, n in names.items() if name != str(n) and first <= n <= last), default=first - 1)
    newest = [log / f"{compacted}.compact"] if compacted >= first else []
    return [*newest, *(log / str(number) for number in range(compacted + 1, last + 1))]


def _newest(log: Path) -> int:
    """Return the last batch that a sink's log has; NOTHING when there is none, or no log."""
    try:
        return max(_names(log).values(), default=NOTHING)
    except FileNotFoundError:
        return NOTHING


def check_sink(root: Path, log: CheckpointLog) -> None:
    """Raise CheckpointMismatch when a sink's log has batches that the checkpoint has not planned: they are another checkpoint's.

    Spark's sink goes by the number alone. It would pass over the batches of this checkpoint with those numbers, and Spark would commit
    them: their rows would be in no output. Costs a listing of each log. Raises OSError when one cannot be read.
    """
    # The sink's log first: a run of this checkpoint that still goes on plans and commits before it
    # writes more there.
    newest = _newest(root / SINK_LOG)
    last = log.last_committed()
    known = NOTHING if last is None else last
    if newest <= known or (newest == known + 1 and log.plan(newest) is not None):
        return
    has = "has committed none" if last is None else f"has committed batches up to {last}"
    msg = (
        f"the output {root} has batches up to {newest}, and the checkpoint {log.checkpoint} {has}: another checkpoint wrote them, or a newer "
        "state of this one. Spark would pass over new batches of the same numbers, and their rows would be lost. Give this checkpoint a new "
        "output, or start from the checkpoint that wrote this one."
    )
    raise CheckpointMismatch(msg)


def refuse_sink(folder: Location) -> None:
    """Raise Unsupported when a directory is the output of a Spark file sink, or within one: whoever reads that by its log sees nothing else.

    Above it are the directories of its name, and those of the place that symbolic links lead to. Costs a look at each.
    """
    there = real(folder)
    for output in dict.fromkeys((there, *there.parents, folder, *folder.parents)):
        if (output / SINK_LOG).exists() or (output / MARKS / SINK_MARK).exists():
            raise Unsupported(
                f"Rows that are handed over into {folder}",
                f"Spark's file sink writes to {output}, and who reads that directory goes by the sink's log, in which they are not",
                "Hand them over into a directory of their own, and let the readers read both.",
            )


def _file(entry: dict[str, Any]) -> File:
    path, logged = SparkPath.of_uri(entry["path"]).path, int(entry["modificationTime"])
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return File(path, logged)
    modified = found.st_mtime_ns // 1_000_000
    if modified == logged and found.st_size != entry["size"]:
        return File(path, _OTHER_SIZE)
    return File(path, modified)


class _Damaged(OSError):
    """An entry of a sink's log is not as Spark has written it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is damaged, as after a power cut: {what}. Restore it with the files that it names.")


def _lines(entries: Iterable[Path]) -> list[dict[str, Any]]:
    return [line for entry in entries for line in _entry(entry)]


def _entry(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an entry.

    Raises _Damaged, and OSError when it cannot be read or is of a version that is not known.
    """
    content = path.read_bytes()
    if not content:
        raise _Damaged(path, "it is empty")
    if checksum_matches(path, content) is False:
        raise _Damaged(path, "it is not what the checksum beside it is of")
    # Only "\n" ends a line: paths may hold other characters that splitlines() would break at.
    version, *lines = content.split(b"\n")
    if version != _VERSION:
        msg = f"{path} is of version {version.decode(errors='replace')!r}; this release reads v1. Use a PySpark that docs/compatibility.md names, or a newer lowwater-spark."
        raise OSError(msg)
    return [_line(path, line) for line in filter(None, lines)]


def _line(path: Path, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:  # also of bytes that are no UTF-8
        raise _Damaged(path, f"a line of it is cut, or no JSON: {line[:100]!r}") from None
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
        raise _Damaged(path, f"a line of it is of no file: {line[:100]!r}")
    return entry


def checksum_matches(path: Path, content: bytes) -> bool | None:
    """Return whether a file has the content that Hadoop has written a checksum of, beside it; None when there is none that is whole."""
    try:
        sums = path.with_name(f".{path.name}.crc").read_bytes()
    except FileNotFoundError:
        return None
    head, chunk = sums[:4], int.from_bytes(sums[4:8], "big")
    if head != b"crc\0" or chunk == 0:
        return None
    found = (zlib.crc32(content[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(content), chunk))
    return sums[8:] == b"".join(found)


class DurableSink:
    """Makes the output of a file sink durable: Spark writes files and log, and syncs neither.

    The files of a batch come first, then the directories that name them, then the batch's entry in
    the sink's log. How far all is durable stands in the checkpoint's manifest: a new run begins
    behind that, and finds there what a power cut has taken.

    ``boot`` tells for a directory since when nothing can have been lost that was written to it, see
    :func:`~lowwater_spark.checkpoint.durable.boot_of`. It is kept beside: as long as it is the
    same, there was no power cut, and what is not there was cleaned up by somebody.
    """

    def __init__(self, root: Path, manifest: Manifest, boot: Callable[[Path], str]) -> None:
        self._root = root
        self._log = root / SINK_LOG
        self._manifest = manifest
        self._boot = boot
        self._synced, since = self._load()
        """The last batch whose output is durable; None: a release that did not look after it has
        begun the checkpoint."""
        self._found = _newest(self._log)
        """The last batch that the log had when this run began. A power cut ends a run, so what is
        written later is not lost. This may be one that is not committed: Spark finds it written,
        and writes it no second time."""
        now = boot(root)
        self._may_lack = not now or since != now
        """Whether a power cut may have taken what is not durable."""
        if self._synced is not None and self._may_lack and since:
            # The first boot may come again, where another machine has written in between: what is
            # not durable yet is of several from now on.
            self._write(self._synced, "")

    def begin(self) -> None:
        """Note that nothing is committed yet. Durable when it returns."""
        if self._synced is None:
            self._save(NOTHING)

    def sync(self, last: int) -> None:
        """Make all output up to a batch durable, which stands in the commit log.

        Costs an fsync for each new file and directory, and four more.

        Raises CheckpointMismatch when it is not whole, as after a power cut: the commit is on the
        disk, and what it stands for is not. OSError when the log cannot be read.
        """
        if self._synced is not None and self._synced >= last:
            return
        files, entries, exact = self._new(last)
        strict = exact and self._may_lack and self._synced is not None and self._synced < self._found
        if strict:
            _refuse_cut(last, entries)
        for path, size in files:
            try:
                sync_file(path)
                found = path.stat().st_size
            except FileNotFoundError:
                if strict:
                    raise _damaged(last, f"{path} is not there") from None
                continue  # somebody has cleaned up
            if strict and found != size:
                raise _damaged(last, f"{path} has {found} bytes, and the sink's log says {size}")
        above = {folder for path, _ in files for folder in path.parents if folder.is_relative_to(self._root)}
        for folder in sorted({path.parent for path, _ in files} | above, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                sync_directory(folder)
        for entry in entries:
            sync_file(entry)
        sync_directory(self._log)
        sync_directory(self._root)
        self._save(last)

    def _new(self, last: int) -> tuple[list[tuple[Path, int]], list[Path], bool]:
        """Return the files of the batches that are not durable yet, with their sizes, and the entries that name them.

        Last, whether it is these alone: a log that was compacted may not tell any more which were there before.
        """
        try:
            return _settled(lambda: self._read_new(last))
        except FileNotFoundError as error:
            raise _damaged(last, f"the sink's log lacks {error.filename}") from error
        except _Damaged as error:
            raise _damaged(last, str(error)) from error

    def _read_new(self, last: int) -> tuple[list[tuple[Path, int]], list[Path], bool]:
        first = NOTHING + 1 if self._synced is None else self._synced + 1
        names = _names(self._log)
        chain = _chain(self._log, names, last, first)
        lines, known, exact = _lines(chain), set[str](), self._synced is not None
        if any(entry.suffix for entry in chain):
            # It repeats all that was there before.
            try:
                known = {line["path"] for line in _lines(_chain(self._log, names, first - 1))}
            except FileNotFoundError:
                exact = False
        entries = [self._log / name for name, n in sorted(names.items()) if first <= n <= last]
        return _sizes(lines, known), [entry for entry in entries if entry.exists()], exact

    def _load(self) -> tuple[int | None, str]:
        """Return the last batch whose output is durable, and since when nothing can have been lost."""
        content = self._manifest["sink"]
        return (None, "") if content is None else (int(content["batch"]), content.get("boot", ""))

    def _save(self, batch: int) -> None:
        self._write(batch, self._boot(self._root))
        self._synced = batch

    def _write(self, batch: int, boot: str) -> None:
        self._manifest.keep("sink", {"batch": batch, "boot": boot})


def _refuse_cut(last: int, entries: Iterable[Path]) -> None:
    """Refuse an entry of no files when nothing says that it was written so: it may have been cut."""
    for entry in entries:
        if entry.read_bytes() == _VERSION and checksum_matches(entry, _VERSION) is None:
            raise _damaged(
                last, f"{entry} names no files, and there is no checksum beside it that says that it never did"
            )


def _sizes(lines: Iterable[dict[str, Any]], known: Container[str]) -> list[tuple[Path, int]]:
    return [
        (Path(SparkPath.of_uri(line["path"]).path), int(line["size"]))
        for line in lines
        if not line["isDir"] and line["action"] != "delete" and line["path"] not in known
    ]


def _damaged(last: int, what: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the output up to batch {last} is not whole: {what}. The commit log is ahead of what was written, as after a power cut, or files were "
        "changed. Restore both, or start from a new checkpoint into a new output, with adopt=True."
    )
