"""Reads the log of a Spark file sink: which of the files in a directory are output, and which were left by attempts that failed.

A directory that a Spark query writes to has ``_spark_metadata`` in it, and Spark's own file source then goes by that log and not by a
listing. So does head(W). Probed on PySpark 4.3: batch N of the writer is the entry ``N``, a version line and one line of JSON per
file, renamed into place when all of its files are written and before ``commits/N`` of the writer; every few entries come as one
``N.compact`` that repeats all before it, after which those may be deleted. A replayed batch finds its entry and writes nothing.
A line has a file's size and its modification time, milliseconds; a reader's source log repeats that time.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, Final

from lowwater_spark.durable import make_directory, sync_directory, sync_file, write_over
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sourcelog import NOTHING, CheckpointLog, File, local_path

__all__ = ["SINK_LOG", "DurableSink", "check_sink", "list_sink", "refuse_sink"]

SINK_LOG: Final = "_spark_metadata"
"""The name of the log in the directory that the sink writes to."""

_TRIES: Final = 5

_OTHER_SIZE: Final = -1
"""Stands for the time of a file that has another size than the log says, at the same time: no log has it."""


def list_sink(root: str) -> set[File]:
    """Return all files that the log has, with the modification times that a reader logs for them. O(files).

    A file that is not as the log says was written again by somebody else; it has another time here, so no reader has taken it.

    Raises OSError when the log cannot be read as a whole: an entry is missing, or is of a version that is not known. Then nothing is
    known of the directory, and Spark cannot read it either.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read(Path(root, SINK_LOG))
        except FileNotFoundError:
            continue  # the writer has compacted its log, and deleted what we were about to read
    return _read(Path(root, SINK_LOG))


def _read(log: Path) -> set[File]:
    entries = _entries(log)
    gone = {entry["path"] for entry in entries if entry["action"] == "delete"}
    return {_file(entry) for entry in entries if not entry["isDir"] and entry["path"] not in gone}


def _entries(log: Path, last: float = math.inf) -> list[dict[str, Any]]:
    """Return all lines of the batches up to one."""
    names = {entry.name for entry in log.iterdir()}
    compacted = max((n for n in _compacted(names) if n <= last), default=-1)
    plain = [int(name) for name in names if name.isdecimal() and int(name) <= last]
    entries: list[dict[str, Any]] = [] if compacted < 0 else _entry(log / f"{compacted}.compact")
    for number in range(compacted + 1, max(plain, default=-1) + 1):
        entries += _entry(log / str(number))
    return entries


def _newest(log: Path) -> int:
    """Return the last batch that a sink's log has; NOTHING when there is none, or no log."""
    try:
        names = [entry.name for entry in log.iterdir()]
    except FileNotFoundError:
        return NOTHING
    return max([NOTHING, *_compacted(names), *(int(name) for name in names if name.isdecimal())])


def check_sink(root: Path, log: CheckpointLog) -> None:
    """Raise CheckpointMismatch when a sink's log has batches that the checkpoint has not planned: they are another checkpoint's.

    Spark's sink goes by the number alone. It would pass over the batches of this checkpoint with those numbers, and Spark would commit
    them: their rows would be in no output. Costs a listing of each log. Raises OSError when one cannot be read.
    """
    # The sink's log first: a run of this checkpoint that still goes on plans and commits before it writes more there.
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


def refuse_sink(folder: Path) -> None:
    """Raise Unsupported when a directory is the output of a Spark file sink, or within one: whoever reads that by its log sees nothing else.

    Costs a look at each directory above.
    """
    for output in (folder, *folder.parents):
        if (output / SINK_LOG).exists():
            raise Unsupported(
                f"Rows that are handed over into {folder}",
                f"Spark's file sink writes to {output}, and who reads that directory goes by the sink's log, in which they are not",
                "Hand them over into a directory of their own, and let the readers read both.",
            )


def _compacted(names: Iterable[str]) -> list[int]:
    return [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact") and n[:-8].isdecimal()]


def _file(entry: dict[str, Any]) -> File:
    path, logged = local_path(entry["path"]), int(entry["modificationTime"])
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return File(path, logged)
    modified = found.st_mtime_ns // 1_000_000
    if modified == logged and found.st_size != entry["size"]:
        return File(path, _OTHER_SIZE)
    return File(path, modified)


def _entry(path: Path) -> list[dict[str, Any]]:
    # Only "\n" ends a line: paths may hold other characters that splitlines() would break at.
    version, *lines = path.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        msg = f"{path} is of version {version!r}; this release reads v1. Use PySpark 4.3, or a newer lowwater-spark."
        raise OSError(msg)
    return [json.loads(line) for line in filter(None, lines)]


class DurableSink:
    """Makes the output of a file sink durable: Spark writes files and log, and syncs neither.

    The files of a batch come first, then the directories that name them, then the batch's entry in the sink's log. How far all is durable
    stands in ``CHECKPOINT/lowwater/sink.json``: a new run begins behind that, and finds there what a power cut has taken.
    """

    def __init__(self, root: Path, checkpoint: Path) -> None:
        self._root = root
        self._log = root / SINK_LOG
        self._mark = checkpoint / "lowwater" / "sink.json"
        self._synced = self._load()
        """The last batch whose output is durable; None: a release that did not look after it has begun the checkpoint."""
        self._found = _newest(self._log)
        """The last batch that the log had when this run began. A power cut ends a run, so what is written later is not lost. This may be one that
        is not committed: Spark finds it written, and writes it no second time."""

    def begin(self) -> None:
        """Note that nothing is committed yet. Durable when it returns."""
        if self._synced is None:
            self._save(NOTHING)

    def sync(self, last: int) -> None:
        """Make all output up to a batch durable, which stands in the commit log. Costs an fsync for each new file and directory, and four more.

        Raises CheckpointMismatch when it is not whole, as after a power cut: the commit is on the disk, and what it stands for is not. OSError when
        the log cannot be read.
        """
        if self._synced is not None and self._synced >= last:
            return
        files, entries, exact = self._new(last)
        strict = exact and self._synced is not None and self._synced < self._found
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
        for _ in range(_TRIES - 1):
            try:
                return self._read_new(last)
            except FileNotFoundError:
                continue  # Spark has compacted its log, and deleted what we were about to read
        try:
            return self._read_new(last)
        except FileNotFoundError as error:
            raise _damaged(last, f"the sink's log lacks {error.filename}") from error

    def _read_new(self, last: int) -> tuple[list[tuple[Path, int]], list[Path], bool]:
        first = NOTHING + 1 if self._synced is None else self._synced + 1
        names = {entry.name for entry in self._log.iterdir()}
        compacted = [n for n in _compacted(names) if first <= n <= last]
        if not compacted:
            numbers = range(first, last + 1)
            lines = [line for n in numbers for line in _entry(self._log / str(n))]
            return _sizes(lines, set()), [self._log / str(n) for n in numbers], self._synced is not None
        lines, known, exact = _entries(self._log, last), set[str](), self._synced is not None
        try:
            known = {line["path"] for line in _entries(self._log, first - 1)}
        except FileNotFoundError:
            exact = False
        exact = exact and (first == 0 or bool(known))
        plain = [n for n in range(first, last + 1) if str(n) in names]
        entries = [self._log / f"{n}.compact" for n in compacted] + [self._log / str(n) for n in plain]
        return _sizes(lines, known), [entry for entry in entries if entry.exists()], exact

    def _load(self) -> int | None:
        try:
            content = json.loads(self._mark.read_bytes())
        except FileNotFoundError:
            return None
        if content.get("format") != 1:
            msg = f"{self._mark} is of format {content.get('format')}; this release reads 1. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        return int(content["batch"])

    def _save(self, batch: int) -> None:
        make_directory(self._mark.parent)
        write_over(self._mark, json.dumps({"format": 1, "batch": batch}).encode())
        self._synced = batch


def _sizes(lines: Iterable[dict[str, Any]], known: Container[str]) -> list[tuple[Path, int]]:
    return [
        (Path(local_path(line["path"])), int(line["size"]))
        for line in lines
        if not line["isDir"] and line["action"] != "delete" and line["path"] not in known
    ]


def _damaged(last: int, what: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the output up to batch {last} is not whole: {what}. The commit log is ahead of what was written, as after a power cut, or files were "
        "changed. Restore both, or start from a new checkpoint into a new output, with adopt=True."
    )
