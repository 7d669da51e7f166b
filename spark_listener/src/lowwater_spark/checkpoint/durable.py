"""Files that survive a crash whole or are not there: written beside, synced, then named.

On a local file system, or one that behaves like it (NFS), rename and link within a directory are
atomic, and fsync of a directory makes its names durable. What is promised elsewhere,
:mod:`lowwater_spark.checkpoint.hadoop` says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.hadoop import HadoopPath
from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location

__all__ = [
    "NotDurable",
    "boot_of",
    "create",
    "make_directory",
    "remove_tree",
    "rename_once",
    "sync_directory",
    "sync_file",
    "sync_tree",
    "write_once",
    "write_over",
]


_AT_ONCE: Final = 16
"""Files that are synced side by side."""


class NotDurable(RuntimeError):
    """A file could not be made durable.

    Syncing it again proves nothing: the system may have given the data up by then.
    """


def write_once(path: Location, data: bytes) -> bool:
    """Create a file with this content; False when the name was taken, by whatever content.

    The name is durable in both cases.

    Never replaces a file, and no reader ever sees a part of one. Costs two fsyncs.
    """
    if isinstance(path, HadoopPath):
        return path.write_once(data)
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
    # A name that was taken may not be durable yet: who took it may have been killed before its
    # sync.
    sync_directory(path.parent)
    return fresh


def create(path: Location) -> bool:
    """Create an empty file; False when the name was taken.

    The name is durable when it was not. Costs one fsync.
    """
    if isinstance(path, HadoopPath):
        return path.write_once(b"")
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    sync_directory(path.parent)
    return True


def make_directory(path: Location) -> None:
    """Create a directory and its missing parents, each durable in its own parent."""
    if isinstance(path, HadoopPath):
        path.mkdir()
    elif not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


_LOCAL: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Types of file systems that this machine writes itself: what it has in memory is not lost before
it is switched off."""


def boot_of(folder: Path) -> str:
    """Return a name for the time since this machine was started and the file system of a directory mounted; empty where that says nothing.

    As long as it is the same, what was written there is there, also when nobody has synced it: only its processes may have died. The disks of a
    server, like those of NFS, may lose power by themselves. A directory that is not there yet is taken to be made where the next one above it is.
    Linux only.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        device = folder.stat().st_dev
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    # "36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw": the type follows the dash.
    found = {line.partition(" - ")[2].split(" ")[0] for line in lines_of(mounts) if line.split(" ")[2] == number}
    return f"{boot} {number}" if found and found <= _LOCAL else ""


def sync_file(path: Location) -> None:
    """Make a file's content durable, whoever wrote it.

    Raises NotDurable, and OSError when it cannot be opened.
    """
    if isinstance(path, HadoopPath):
        path.stat()  # a file that was closed there cannot be synced any more, and need not
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as failure:
        msg = f"{path} cannot be made durable: {failure}. Mend the file system, and start the query again."
        raise NotDurable(msg) from failure
    finally:
        os.close(descriptor)


def sync_directory(path: Location) -> None:
    """Make the names in a directory durable."""
    if isinstance(path, Path):
        sync_file(path)


def sync_tree(path: Location) -> None:
    """Make everything under a directory durable, itself included. One fsync per file and directory.

    The files side by side: a file system writes down together what is asked of it meanwhile, 64
    files in a quarter of the time.
    """
    if isinstance(path, HadoopPath):
        return  # see sync_file
    found = [(Path(folder), [Path(folder, name) for name in names]) for folder, _, names in os.walk(path)]
    files = [file for _, names in found for file in names]
    if len(files) > 1:
        with ThreadPoolExecutor(min(len(files), _AT_ONCE)) as threads:
            list(threads.map(sync_file, files))
    else:
        list(map(sync_file, files))
    for folder, _ in found:
        sync_directory(folder)


def remove_tree(path: Location) -> None:
    """Delete a directory with all that is in it, as far as that is possible."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.remove_tree()


def rename_once(path: Location, to: Location) -> bool:
    """Give a directory, in which there is anything, another name beside; False when that was taken by such a one. Durable after a sync of the one above."""
    if isinstance(path, HadoopPath):
        assert isinstance(to, HadoopPath)
        return path.rename_once(to)
    assert isinstance(to, Path)
    try:
        path.rename(to)
    except OSError:
        # A directory that holds anything is never replaced by a rename.
        if not to.exists():
            raise
        return False
    return True


def write_over(path: Location, data: bytes, *, durable: bool = True) -> None:
    """Create or replace a file, so that a crash leaves the old content or the new one.

    Durable when it returns; costs two fsyncs.

    Without ``durable`` a reader sees one of both all the same, a power cut may take the file, and
    it costs none.
    """
    if isinstance(path, HadoopPath):
        path.write_over(data)
        return
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
