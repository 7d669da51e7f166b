"""Who writes into a directory: marks beside the output, which a reader compares with the inputs that it names.

A reader's low watermark is the least of its inputs. A writer that the inputs do not name is not waited for: its rows come late, and nothing
says so. So whoever writes leaves its name in the directory before its first row, in a folder that readers of rows pass over, and a reader
that does not name it is refused, or holds if the mark comes later. A directory without marks says nothing: who writes there is not known.
The directory of a batch that was handed over has a mark of its own, which says for which plan it was made.
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
"""The folder of the marks: Spark and others read no rows from a folder of such a name."""

SINK_MARK: Final = "sink.json"
"""The mark of a file sink: readers go by its log, so it must be the only one of its kind."""

HANDED_OVER: Final = ".lowwater.json"
"""The mark in the directory of a batch that lowwater has handed over: it is whole, and made for one
plan."""

_FORMAT: Final = 1


def mark_writer(folder: Location, computation: str) -> None:
    """Leave a writer's full name in the directory that it writes into.

    Durable when it returns; costs two fsyncs.
    """
    marks = folder / MARKS
    make_directory(marks)
    content = json.dumps({"format": _FORMAT, "computation": computation})
    # A name may have characters that a file's may not have.
    write_once(marks / f"{hashlib.sha256(computation.encode()).hexdigest()[:16]}.json", content.encode())


def mark_sink(folder: Path, computation: str, checkpoint: str, *, adopt: bool) -> None:
    """Leave the mark of the one query whose file sink writes to a directory, by its full name and its checkpoint's identity.

    Of several that start at once one gets it. ``adopt``: another checkpoint of the same computation gives it up. Durable when it returns; costs two fsyncs.
    Raises Unsupported for all others, and when somebody else writes there as well.
    """
    mark = folder / MARKS / SINK_MARK
    make_directory(mark.parent)
    mine = {"format": _FORMAT, "computation": computation, "checkpoint": checkpoint}
    if not write_once(mark, json.dumps(mine).encode()):
        found = _content(mark)
        if adopt and found["computation"] == computation:
            write_over(mark, json.dumps(mine).encode())
        elif found != mine:
            raise _not_alone(folder, str(found["computation"]), os.fspath(mark))
    check_alone(folder, computation)


def strangers(folder: str, inputs: Set[str]) -> list[tuple[str, str]]:
    """Return the marks in a directory of writers that are no inputs: the path of each mark, and the writer's full name.

    Raises OSError when they cannot be read; then nothing is known of who writes there.
    """
    try:
        with os.scandir(Path(folder, MARKS)) as listing:
            marks = sorted(entry.path for entry in listing if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []
    found = [(path, _computation(Path(path))) for path in marks]
    return [(path, name) for path, name in found if name not in inputs]


def check_alone(folder: Path, computation: str) -> None:
    """Raise Unsupported when others write into a directory that Spark's file sink is to write to.

    Raises OSError as :func:`strangers` does.
    """
    for mark, name in strangers(os.fspath(folder), {computation}):
        raise _not_alone(folder, name, mark)


def _not_alone(folder: Path, writer: str, mark: str) -> Unsupported:
    return Unsupported(
        f"The output {folder}",
        f"{writer} writes there, and of a directory with a sink's log readers see what is in the log, and nothing of others",
        f"Start into a directory of its own. If {writer} is gone for good, and its rows with it, delete {mark}.",
    )


def _computation(path: Path) -> str:
    return str(_content(path)["computation"])


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] == _FORMAT:
            return {**content, "computation": str(content["computation"])}
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{path} is no mark of a writer"
        raise OSError(msg) from error
    msg = f"{path} is of format {content['format']}; this release reads {_FORMAT}. Use a newer lowwater-spark."
    raise OSError(msg)


def above(root: str) -> Iterator[str]:
    """Yield the directories whose writers write into this one: all above it, as long as it is a partition of theirs.

    Above it are those of its name, and those of the place that symbolic links lead to.

    >>> list(above("/out/year=2013/month=1")), list(above("/out/raw"))
    (['/out/year=2013', '/out'], [])
    """
    found = dict[str, None]()
    for path in (Path(root), Path(os.path.realpath(root))):
        while "=" in path.name:
            path = path.parent
            found[os.fspath(path)] = None
    yield from found


def behind(link: str, *, folder: bool) -> Iterator[str]:
    """Yield the directories whose writers write what a symbolic link leads to, but for the one that the link stands for itself."""
    real = Path(os.path.realpath(link))
    if not folder:
        real = real.parent
        yield os.fspath(real)
    yield from above(os.fspath(real))


def digest_of(batch: Location) -> str:
    """Return the digest of the plan that a directory was handed over for; empty when lowwater has not made it, or when it is not there.

    It tells batches of one number apart, whoever has moved or copied the directory. Raises OSError when it cannot be read.
    """
    mark = batch / HANDED_OVER
    try:
        return str(json.loads(mark.read_bytes())["digest"])
    except FileNotFoundError:
        return ""
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{mark} cannot be understood; restore the directory with its checkpoint"
        raise OSError(msg) from error
