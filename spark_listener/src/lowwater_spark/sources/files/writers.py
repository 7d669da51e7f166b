"""Marks of the writers of a directory, which a reader compares with the inputs that it names.

A reader's low watermark is the least of its inputs. If its inputs did not name a writer, that
writer's rows would come late without a word. So each writer leaves its name in the directory before
its first row, in a folder that readers of rows skip. A reader that does not name it is refused, or
holds when the mark comes later. The writers of a directory without marks are unknown. The directory
of a batch that was handed over has a mark of its own, with the digest of the batch's plan.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, Final

from lowwater_spark.checkpoint.durable import make_directory, write_once, write_over
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import Unsupported

__all__ = [
    "HANDED_OVER",
    "MARKS",
    "SINK_MARK",
    "above",
    "behind",
    "check_alone",
    "digest_of",
    "mark_sink",
    "mark_writer",
    "strangers",
]

MARKS: Final = "_lowwater_writers"
"""Folder of the marks. Spark and others skip a folder of such a name."""

SINK_MARK: Final = "sink.json"
"""Mark of a file sink. A directory has at most one sink, because readers go by the sink's log."""

HANDED_OVER: Final = ".lowwater.json"
"""Mark in the directory of a batch that lowwater has handed over: the batch is whole, and made for
the plan that the mark names."""

_FORMAT: Final = 1


def mark_writer(folder: Location, computation: str) -> None:
    """Write the mark of a computation into the directory of its output.

    Durable when it returns; costs two fsyncs.
    """
    marks = folder / MARKS
    make_directory(marks)
    content = json.dumps({"format": _FORMAT, "computation": computation})
    # The file's name is a hash: a computation's name may have characters that no file name may
    # have.
    write_once(marks / f"{hashlib.sha256(computation.encode()).hexdigest()[:16]}.json", content.encode())


def mark_sink(folder: Path, computation: str, checkpoint: str, *, adopt: bool) -> None:
    """Write the mark of the one query whose file sink writes to a directory.

    The mark has the computation's full name and the checkpoint's identity. One of several queries
    that start at once gets it. With ``adopt`` it is taken over from another checkpoint of the same
    computation. Durable when it returns; costs two fsyncs. Raises Unsupported when another query
    has the mark, and when another computation writes there as well.
    """
    mark = folder / MARKS / SINK_MARK
    make_directory(mark.parent)
    entry = {"format": _FORMAT, "computation": computation, "checkpoint": checkpoint}
    if not write_once(mark, json.dumps(entry).encode()):
        owner = _content(mark)
        if adopt and owner["computation"] == computation:
            write_over(mark, json.dumps(entry).encode())
        elif owner != entry:
            raise _not_alone(folder, str(owner["computation"]), os.fspath(mark))
    check_alone(folder, computation)


def strangers(folder: str | Location, inputs: Set[str]) -> list[tuple[str, str]]:
    """Return path and writer's full name of each mark in a directory whose writer is no input.

    Raises OSError when a mark cannot be read: then the writers are unknown.
    """
    at = Path(folder) if isinstance(folder, str) else folder
    try:
        marks = sorted(mark for mark in (at / MARKS).iterdir() if mark.suffix == ".json")
    except FileNotFoundError:
        return []
    writers = [(str(mark), _content(mark)["computation"]) for mark in marks]
    return [(path, name) for path, name in writers if name not in inputs]


def check_alone(folder: Path, computation: str) -> None:
    """Raise Unsupported when another computation writes into the directory of Spark's file sink.

    Raises OSError as :func:`strangers` does.
    """
    for mark, name in strangers(os.fspath(folder), {computation}):
        raise _not_alone(folder, name, mark)


def _not_alone(folder: Path, writer: str, mark: str) -> Unsupported:
    return Unsupported(
        f"The output {folder}",
        f"{writer} writes there, and readers of a directory with a sink's log see only the rows in that log",
        f"Start into a directory of its own. If {writer} has stopped for good, and its rows are deleted, delete {mark}.",
    )


def _content(path: Location) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] == _FORMAT:
            return {**content, "computation": str(content["computation"])}
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{path} is no mark of a writer; restore it, or delete it if no computation of lowwater writes there"
        raise OSError(msg) from error
    msg = f"{path} is of format {content['format']}; this release reads {_FORMAT}. Use a newer lowwater-spark."
    raise OSError(msg)


def above(root: str) -> Iterator[str]:
    """Yield the directories above whose writers write here, because this one is a partition.

    Both the path and its real place count.

    >>> list(above("/out/year=2013/month=1")), list(above("/out/raw"))
    (['/out/year=2013', '/out'], [])
    """
    folders = dict[str, None]()
    for path in (Path(root), Path(os.path.realpath(root))):
        while "=" in path.name:
            path = path.parent
            folders[os.fspath(path)] = None
    yield from folders


def behind(link: str, *, folder: bool) -> Iterator[str]:
    """Yield the directories whose writers write the target of a symbolic link.

    The target itself is not among them when it is a folder.
    """
    real = Path(os.path.realpath(link))
    if not folder:
        real = real.parent
        yield os.fspath(real)
    yield from above(os.fspath(real))


def digest_of(batch: Location) -> str:
    """Return the digest of the plan of a handed-over batch; empty: no such directory, or no mark.

    The digest tells batches of one number apart, also in a moved or copied directory. Raises
    OSError when the mark cannot be read.
    """
    mark = batch / HANDED_OVER
    try:
        return str(json.loads(mark.read_bytes())["digest"])
    except FileNotFoundError:
        return ""
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{mark} is damaged; restore the directory with its checkpoint"
        raise OSError(msg) from error
