"""The log of a Spark file sink: it tells output files from files of failed attempts.

A directory into which a Spark file sink writes has a log, ``_spark_metadata``. Spark's file source
reads that log instead of listing the directory, and so does the head of W. Probed on PySpark 4.3:
the writer's batch N is the entry ``N``, a version line and one line of JSON per file. It is renamed
into place after the files are written and before the writer's ``commits/N``. Every few entries
Spark writes one ``N.compact`` that repeats all earlier ones, which it may then delete. A replayed
batch finds its entry and writes nothing.

A line has a file's size and modification time, milliseconds; a reader's source log repeats that
time. A batch without files (no rows, and a partitioned sink) is the version line alone. An entry
that a power cut has truncated there looks the same; only Hadoop's checksum, in the file ``.N.crc``
beside it, tells the two apart.
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
from lowwater_spark.sources.files.source_log import NOTHING, File
from lowwater_spark.sources.files.writers import MARKS, SINK_MARK

__all__ = ["SINK_LOG", "DurableSink", "check_sink", "checksum_matches", "list_sink", "refuse_sink"]

SINK_LOG: Final = "_spark_metadata"
"""Name of the log in the sink's directory."""

T = TypeVar("T")

_TRIES: Final = 5

_VERSION: Final = b"v1"

_FIELDS: Final = frozenset({"action", "isDir", "modificationTime", "path", "size"})
"""Fields that each line of an entry has."""

_OTHER_SIZE: Final = -1
"""Modification time for a file whose size differs from the log's while its time does not. No source
log has this time, so the file counts as unread."""


def list_sink(root: str) -> set[File]:
    """Return all files of the sink's log, with the modification times that a reader logs for them.

    O(files). A file that was written again since has another time here, so no reader has taken it.
    Raises OSError when an entry is missing or has an unknown version: Spark cannot read the
    directory then either.
    """
    return _settled(lambda: _read(Path(root, SINK_LOG)))


def _settled(read: Callable[[], T]) -> T:
    """Read a log that its writer may compact meanwhile: try again when an entry is missing.

    Raises FileNotFoundError after :data:`_TRIES` tries.
    """
    for _ in range(_TRIES - 1):
        try:
            return read()
        except FileNotFoundError:
            continue  # the writer has deleted the entry, and a new compacted one repeats it
    return read()


def _read(log: Path) -> set[File]:
    names = _names(log)
    entries = _lines(_chain(log, names, max(names.values(), default=NOTHING)))
    deleted = {entry["path"] for entry in entries if entry["action"] == "delete"}
    return {_file(entry) for entry in entries if not entry["isDir"] and entry["path"] not in deleted}


def _names(log: Path) -> dict[str, int]:
    """Return the batch of each of a log's entries, by the entry's name."""
    plain = {entry.name: entry.name.removesuffix(".compact") for entry in log.iterdir()}
    return {name: int(number) for name, number in plain.items() if number.isdecimal()}


def _chain(log: Path, names: Mapping[str, int], last: int, first: int = 0) -> list[Path]:
    """Return the entries of ``first`` to ``last``: the newest compacted one, and later ones."""
    compacted = max((n for name, n in names.items() if name != str(n) and first <= n <= last), default=first - 1)
    newest = [log / f"{compacted}.compact"] if compacted >= first else []
    return [*newest, *(log / str(number) for number in range(compacted + 1, last + 1))]


def _newest(log: Path) -> int:
    """Return the last batch in a sink's log; NOTHING when there is none, or no log."""
    try:
        return max(_names(log).values(), default=NOTHING)
    except FileNotFoundError:
        return NOTHING


def check_sink(root: Path, log: CheckpointLog) -> None:
    """Raise CheckpointMismatch when a sink's log has batches that the checkpoint has not planned.

    Another checkpoint wrote those batches. Spark's sink skips a batch whose number is in its log,
    and Spark commits it: the rows of this checkpoint's batches with those numbers would be in no
    output. Costs a listing of each log. Raises OSError when one cannot be read.
    """
    # The sink's log is read before the checkpoint's. An earlier run of this checkpoint may still go
    # on, and it plans a batch before it writes the batch to the sink. In the other order that batch
    # could be new in the sink and unknown here, as if another checkpoint had written it.
    newest = _newest(root / SINK_LOG)
    last = log.last_committed()
    committed = NOTHING if last is None else last
    if newest <= committed or (newest == committed + 1 and log.plan(newest) is not None):
        return
    has = "has committed none" if last is None else f"has committed batches up to {last}"
    msg = (
        f"the output {root} has batches up to {newest}, and the checkpoint {log.checkpoint} {has}: another checkpoint wrote them, or a newer "
        "state of this one. Spark would skip new batches of the same numbers, and their rows would be lost. Give this checkpoint a new "
        "output, or start from the checkpoint that wrote this one."
    )
    raise CheckpointMismatch(msg)


def refuse_sink(folder: Location) -> None:
    """Raise Unsupported when a directory is the output of a Spark file sink, or within one.

    A reader of that output goes by the sink's log, and would not see the rows. The directories
    above are those of the path and those of its real place. Costs a stat of each.
    """
    target = real(folder)
    for output in dict.fromkeys((target, *target.parents, folder, *folder.parents)):
        if (output / SINK_LOG).exists() or (output / MARKS / SINK_MARK).exists():
            raise Unsupported(
                f"Rows that are handed over into {folder}",
                f"Spark's file sink writes to {output}, and readers of that directory go by the sink's log, which does not have these rows",
                "Hand them over into a directory of their own, and let the readers read both.",
            )


def _file(entry: dict[str, Any]) -> File:
    path, logged = SparkPath.of_uri(entry["path"]).path, int(entry["modificationTime"])
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return File(path, logged)
    modified = status.st_mtime_ns // 1_000_000
    if modified == logged and status.st_size != entry["size"]:
        return File(path, _OTHER_SIZE)
    return File(path, modified)


class _Damaged(OSError):
    """An entry of a sink's log differs from what Spark has written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is damaged, as after a power cut: {what}. Restore it with the files that it names.")


def _lines(entries: Iterable[Path]) -> list[dict[str, Any]]:
    return [line for entry in entries for line in _entry(entry)]


def _entry(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an entry.

    Raises _Damaged, and OSError when the entry cannot be read or has an unknown version.
    """
    content = path.read_bytes()
    if not content:
        raise _Damaged(path, "it is empty")
    if checksum_matches(path, content) is False:
        raise _Damaged(path, "its content does not match the checksum beside it")
    version, *lines = content.split(b"\n")
    if version != _VERSION:
        msg = f"{path} is of version {version.decode(errors='replace')!r}; this release reads v1. Use a PySpark that docs/operate/operations.md names, or a newer lowwater-spark."
        raise OSError(msg)
    return [_line(path, line) for line in filter(None, lines)]


def _line(path: Path, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:  # no JSON, or bytes that are no UTF-8
        raise _Damaged(path, f"a line of it is cut, or no JSON: {line[:100]!r}") from None
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
        raise _Damaged(path, f"a line of it names no file: {line[:100]!r}")
    return entry


def checksum_matches(path: Path, content: bytes) -> bool | None:
    """Return whether content matches Hadoop's checksum beside a file; None: no whole checksum."""
    try:
        sums = path.with_name(f".{path.name}.crc").read_bytes()
    except FileNotFoundError:
        return None
    head, chunk = sums[:4], int.from_bytes(sums[4:8], "big")
    if head != b"crc\0" or chunk == 0:
        return None
    computed = (zlib.crc32(content[at : at + chunk]).to_bytes(4, "big") for at in range(0, len(content), chunk))
    return sums[8:] == b"".join(computed)


class DurableSink:
    """Makes the output of a file sink durable: Spark writes files and log, and syncs neither.

    The files of a batch come first, then the directories that name them, then the batch's entry in
    the sink's log. The checkpoint's manifest notes the last durable batch: a new run continues
    after it, and finds there what a power cut has taken.

    ``boot`` names, for a directory, the time since the last possible power cut, see
    :func:`~lowwater_spark.checkpoint.durable.boot_of`. The manifest keeps it with the batch: while
    the name is the same, there was no power cut, and somebody has deleted a missing file.
    """

    def __init__(self, root: Path, manifest: Manifest, boot: Callable[[Path], str]) -> None:
        self._root = root
        self._log = root / SINK_LOG
        self._manifest = manifest
        self._boot = boot
        stored = manifest["sink"] or {}
        self._synced: int | None = stored.get("batch")
        """Last batch whose output is durable; None: an older release, which did not sync outputs,
        began the checkpoint."""
        self._first_newest = _newest(self._log)
        """Last batch in the log when this run began. A power cut ends a run, so later batches
        cannot be lost in it. This batch may be uncommitted: Spark finds its entry, and does not
        write it again."""
        since, now = stored.get("boot", ""), boot(root)
        self._may_lack = not now or since != now
        """True when a power cut may have taken output that is not durable."""
        if self._synced is not None and self._may_lack and since:
            # The unsynced output now comes from several boots or machines, so the stored name is
            # cleared. If the first machine continued later, its name would be unchanged and would
            # wrongly say that no power cut can have taken output.
            self._write(self._synced, "")

    def begin(self) -> None:
        """Note that nothing is committed yet. Durable when it returns."""
        if self._synced is None:
            self._save(NOTHING)

    def sync(self, last: int) -> None:
        """Make all output up to a committed batch durable.

        Costs an fsync for each new file and directory, and four more. Raises CheckpointMismatch
        when the output is not whole, as after a power cut that took the output but not the commit;
        OSError when the log cannot be read.
        """
        if self._synced is not None and self._synced >= last:
            return
        files, entries, exact = self._new(last)
        strict = exact and self._may_lack and self._synced is not None and self._synced < self._first_newest
        if strict:
            _refuse_truncated(last, entries)
        for path, size in files:
            try:
                sync_file(path)
                on_disk = path.stat().st_size
            except FileNotFoundError:
                if strict:
                    raise _damaged(last, f"{path} is missing") from None
                continue  # counted as deleted by somebody: nothing says that a power cut took it
            if strict and on_disk != size:
                raise _damaged(last, f"{path} has {on_disk} bytes, and the sink's log says {size}")
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
        """Return the files of the batches that are not durable yet, with sizes, and their entries.

        The third value is False when the files may include older ones: a compacted log may not tell
        any more which files came before.
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
        lines, older, exact = _lines(chain), set[str](), self._synced is not None
        if any(entry.suffix for entry in chain):
            # A compacted entry repeats all files before it. Those of durable batches are left out,
            # since they are synced already.
            try:
                older = {line["path"] for line in _lines(_chain(self._log, names, first - 1))}
            except FileNotFoundError:
                exact = False
        entries = [self._log / name for name, n in sorted(names.items()) if first <= n <= last]
        return _sizes(lines, older), [entry for entry in entries if entry.exists()], exact

    def _save(self, batch: int) -> None:
        self._write(batch, self._boot(self._root))
        self._synced = batch

    def _write(self, batch: int, boot: str) -> None:
        self._manifest.keep("sink", {"batch": batch, "boot": boot})


def _refuse_truncated(last: int, entries: Iterable[Path]) -> None:
    """Refuse an entry without files when no checksum proves that Spark wrote it so.

    A power cut may have truncated it.
    """
    for entry in entries:
        if entry.read_bytes() == _VERSION and checksum_matches(entry, _VERSION) is None:
            raise _damaged(
                last, f"{entry} names no files, and there is no checksum beside it that says that it never did"
            )


def _sizes(lines: Iterable[dict[str, Any]], older: Container[str]) -> list[tuple[Path, int]]:
    return [
        (Path(SparkPath.of_uri(line["path"]).path), int(line["size"]))
        for line in lines
        if not line["isDir"] and line["action"] != "delete" and line["path"] not in older
    ]


def _damaged(last: int, what: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the output up to batch {last} is not whole: {what}. The commit log is ahead of what was written, as after a power cut, or files were "
        "changed. Restore both, or start from a new checkpoint into a new output, with adopt=True."
    )
