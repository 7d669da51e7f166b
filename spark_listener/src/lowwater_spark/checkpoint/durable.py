"""Files that survive a crash whole or not at all: written beside, synced, then named.

On a local file system, or one that behaves like it (NFS), rename and link within a directory are
atomic, and fsync of a directory makes its names durable. For the promises of HDFS and S3 see
:mod:`lowwater_spark.checkpoint.hadoop`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
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
"""Number of files that are synced at the same time."""


class NotDurable(RuntimeError):
    """A file could not be made durable.

    A later successful sync proves nothing: the system may have dropped the data by then.
    """


def write_once(path: Location, data: bytes) -> bool:
    """Create a file with this content; False when the name exists, with any content.

    The name is durable in both cases. Never replaces a file, and no reader ever sees a part of one.
    Costs two fsyncs.
    """
    if isinstance(path, HadoopPath):
        return path.write_once(data)
    with _beside(path, data) as beside:
        try:
            os.link(beside, path)
            fresh = True
        except FileExistsError:
            fresh = False
    # An existing name is synced as well: the process that created it may have been killed before
    # its own sync, and a power cut would then take the name.
    sync_directory(path.parent)
    return fresh


def create(path: Location) -> bool:
    """Create an empty file; False when the name exists. A new name is durable. Costs one fsync."""
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
"""Types of file systems that this machine itself writes: unsynced data in its memory are lost only
when it stops."""


def boot_of(folder: Path) -> str:
    """Return a name for the time since this machine's start and the mount of a directory.

    While the name is the same, files that were written there are there, synced or not: only
    processes may have died. Empty when the machine's start proves nothing: the disks of a server,
    like those of NFS, may lose power by themselves. A missing directory counts as the nearest
    existing one above it. Linux only.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    number, types = mounted_at(folder)
    return f"{boot} {number}" if types and types <= _LOCAL else ""


def mounted_at(folder: Path) -> tuple[str, frozenset[str]]:
    """Return the device of a directory, and the types of its file system, such as ``nfs4``.

    A missing directory counts as the nearest existing one above it. No types: unknown. Linux only.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        device = folder.stat().st_dev
    except OSError:
        return "", frozenset()
    number = f"{os.major(device)}:{os.minor(device)}"
    # A line of mountinfo has the device in third place, and the file system's type after the dash:
    # "36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw".
    lines = [line for line in lines_of(mounts) if line.split(" ")[2] == number]
    return number, frozenset(line.partition(" - ")[2].split(" ")[0] for line in lines)


def sync_file(path: Location) -> None:
    """Make a file's content durable, also when another process wrote it.

    Raises NotDurable, and OSError when the file cannot be opened.
    """
    if isinstance(path, HadoopPath):
        # Hadoop cannot sync a closed file; checkpoint/hadoop.py says what such a file survives. For
        # a missing file stat() raises an error, as open() does below.
        path.stat()
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
    """Make a directory and all files and directories in it durable. One fsync for each.

    Files are synced at the same time, because a file system writes them together: 64 files in a
    quarter of the time.
    """
    if isinstance(path, HadoopPath):
        return  # Hadoop cannot sync closed files, see sync_file()
    folders = [(Path(folder), [Path(folder, name) for name in names]) for folder, _, names in os.walk(path)]
    files = [file for _, names in folders for file in names]
    if len(files) > 1:
        with ThreadPoolExecutor(min(len(files), _AT_ONCE)) as threads:
            list(threads.map(sync_file, files))
    else:
        list(map(sync_file, files))
    for folder, _ in folders:
        sync_directory(folder)


def remove_tree(path: Location) -> None:
    """Delete a directory with its content, as far as that is possible."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.remove_tree()


def rename_once(path: Location, to: Location) -> bool:
    """Rename a directory that is not empty; False when the new name is one that is not empty.

    Durable after a sync of the directory above.
    """
    if isinstance(path, HadoopPath):
        assert isinstance(to, HadoopPath)
        return path.rename_once(to)
    assert isinstance(to, Path)
    try:
        path.rename(to)
    except OSError:
        # rename() never replaces a directory with content. If ``to`` exists, that counts as the
        # reason of the failure.
        if not to.exists():
            raise
        return False
    return True


def write_over(path: Location, data: bytes, *, durable: bool = True) -> None:
    """Create or replace a file, so that a crash leaves the old content or the new one.

    Durable when it returns; costs two fsyncs. Without ``durable`` it costs none: a reader still
    sees the old or the new content, but a power cut may take the file.
    """
    if isinstance(path, HadoopPath):
        path.write_over(data)
        return
    with _beside(path, data, durable=durable) as beside:
        beside.replace(path)
    if durable:
        sync_directory(path.parent)


@contextlib.contextmanager
def _beside(path: Path, data: bytes, *, durable: bool = True) -> Iterator[Path]:
    """Write a file beside a path, for the time of a ``with`` block that may rename it."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)
