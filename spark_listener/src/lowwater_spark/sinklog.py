"""Reads the log of a Spark file sink: which of the files in a directory are output, and which were left by attempts that failed.

A directory that a Spark query writes to has ``_spark_metadata`` in it, and Spark's own file source then goes by that log and not by a
listing. So does head(W). Probed on PySpark 4.3: batch N of the writer is the entry ``N``, a version line and one line of JSON per
file, renamed into place when all of its files are written and before ``commits/N`` of the writer; every few entries come as one
``N.compact`` that repeats all before it, after which those may be deleted. A replayed batch finds its entry and writes nothing.
A line has a file's size and its modification time, milliseconds; a reader's source log repeats that time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from lowwater_spark.sourcelog import File, local_path

__all__ = ["SINK_LOG", "list_sink"]

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
    names = {entry.name for entry in log.iterdir()}
    compacted = max(
        (int(n.removesuffix(".compact")) for n in names if n.endswith(".compact") and n[:-8].isdecimal()), default=-1
    )
    plain = [int(name) for name in names if name.isdecimal()]
    last = max(plain, default=-1)
    entries: list[dict[str, Any]] = [] if compacted < 0 else _entry(log / f"{compacted}.compact")
    for number in range(compacted + 1, last + 1):
        entries += _entry(log / str(number))
    gone = {entry["path"] for entry in entries if entry["action"] == "delete"}
    return {_file(entry) for entry in entries if not entry["isDir"] and entry["path"] not in gone}


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
