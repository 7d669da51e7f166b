"""Files that survive a crash whole or are not there: written beside, synced, then named.

All of it is for a local file system, or one that behaves like it (NFS): rename and link within a directory are atomic, and
fsync of a directory makes its names durable.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["NotDurable", "make_directory", "sync_directory", "sync_file", "sync_tree", "write_once", "write_over"]


class NotDurable(RuntimeError):
    """A file could not be made durable. Syncing it again proves nothing: the system may have given the data up by then."""


def write_once(path: Path, data: bytes) -> bool:
    """Create a file with this content; False when the name was taken, by whatever content. The name is durable in both cases.

    Never replaces a file, and no reader ever sees a part of one. Costs two fsyncs.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
            fresh = True
        except FileExistsError:
            fresh = False
    finally:
        beside.unlink(missing_ok=True)
    # A name that was taken may not be durable yet: who took it may have been killed before its sync.
    sync_directory(path.parent)
    return fresh


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each durable in its own parent."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Make a file's content durable, whoever wrote it. Raises NotDurable, and OSError when it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as failure:
        msg = f"{path} cannot be made durable: {failure}. Mend the file system, and start the query again."
        raise NotDurable(msg) from failure
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    sync_file(path)


def sync_tree(path: Path) -> None:
    """Make everything under a directory durable, itself included. One fsync per file and directory."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync_file(Path(folder, name))
        sync_directory(Path(folder))


def write_over(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Create or replace a file, so that a crash leaves the old content or the new one. Durable when it returns; costs two fsyncs.

    Without ``durable`` a reader sees one of both all the same, a power cut may take the file, and it costs none.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)
