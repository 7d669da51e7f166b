"""Identity of the directories that a query reads, which must stay those of earlier runs.

When a volume is not mounted, its mount point is there instead: a directory, and often empty. A
listing of it would show nothing to read, and every low watermark would count. So a checkpoint
stores the inode and the birth time of each directory. A directory with other ones is taken for the
same only when a witness is in it: a file that an earlier listing saw in the directory. A file that
was read is no witness, because somebody may write into the mount point, and Spark reads that.
Device numbers do not help: each mount of NFS, and each start of a container, may give another one.

Inode numbers are used again: the root of each ext4 volume has 2 and that of each tmpfs 1, and the
number of a removed directory may go to the next one. The birth time tells them apart, and no new
name, move or remount changes it.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.sources.files.source_log import File, Head

__all__ = ["Identity", "Replaced", "Roots", "birth_of", "identity_of"]

_WITNESSES: Final = 8
"""Number of witnesses of a directory: its newest files, because old ones are removed first, and an
older copy of the directory does not have them."""


class Replaced(OSError):
    """A source that is not the one that was read before, or that has lost rows.

    A later look does not help: a person must put the right source in place.
    """


class Identity(NamedTuple):
    """Inode and birth time of a directory."""

    inode: int | str
    """Inode number; in an object store the bucket, and the address of the store."""
    birth: int | None
    """Birth time, nanoseconds since the epoch; None: unknown, see :func:`birth_of`."""


class _Root(NamedTuple):
    """A directory in the checkpoint's manifest."""

    identity: Identity
    witnesses: tuple[File, ...] = ()
    """Files that were in the directory at a listing, the newest first."""


def identity_of(path: str) -> Identity:
    """Return the identity of the directory at a path. Raises OSError."""
    return Identity(Path(path).stat().st_ino, birth_of(path))


def _files(head: Head) -> Iterator[File]:
    """Yield the listed files of rows, settled ones included."""
    return (file for file in itertools.chain(head, head.settled) if file.modified >= 0)


def _age(file: File) -> tuple[int, str]:
    return file.modified, file.path


def _is_same(before: _Root, identity: Identity, head: Head) -> bool:
    if before.identity == identity:
        return True
    return not set(before.witnesses).isdisjoint(_files(head))


class Roots:
    """The identities of the directories that a query reads, in the checkpoint's manifest.

    A directory without an entry, as in a new checkpoint, is accepted. So is one replaced directory
    while the file ``CHECKPOINT/lowwater/replaced`` exists: an operator who has replaced a directory
    on purpose creates the file, and its first use deletes it.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._replaced = manifest.home / "lowwater" / "replaced"

    def recognize(self, root: str, identity: Identity, head: Head, *, sink: bool = False) -> None:
        """Compare a directory with its entry, and store the identity and newest files of a listing.

        ``identity`` is the directory's, the same before and after the listing. ``sink``: the
        directory is a table of Spark's file sink. Costs a version of the manifest when there are
        new files. Raises Replaced when the directory is not the one that was read before, and
        OSError.
        """
        self._manifest.attend()
        before = self._of(root)
        forgiven = before is not None and not _is_same(before, identity, head)
        if forgiven and not self._replaced.exists():
            fix = "mount its volume"
            if before is not None and isinstance(identity.inode, str):
                fix = f"it was {before.identity.inode}, and is now {identity.inode}, so set the endpoint of before"
            msg = (
                f"{root} is not the directory that was read before, and has none of that one's newest files: {fix}. If you have "
                f"replaced it on purpose, run: touch {self._replaced}"
            )
            if sink:
                msg += ". Not after the writer was begun anew, as by a full refresh of a pipeline: then lowwater reset the writer, and begin this query anew as well"
            raise Replaced(msg)
        # Witnesses are files by which a directory is known again when its inode is another one, as
        # after a remount. This listing gives them only after the comparison above: otherwise files
        # of a wrong directory would become witnesses, and it would pass for the right one.
        newest = heapq.nlargest(_WITNESSES, _files(head), key=_age)
        # Older witnesses stay though this listing may lack them, because settled batches are not
        # listed again: if all are settled, there would be no witness, and a remount would be
        # refused. They are dropped when the identity is another one, as that of a copy: the copy
        # may lack those files, and only the old directory would be known by them.
        older = before.witnesses if before is not None and before.identity == identity else ()
        now = _Root(identity, tuple(dict.fromkeys([*newest, *older]))[:_WITNESSES])
        if now != before:
            self._manifest.keep_entry("roots", root, _entry(now))
        if forgiven:
            self._replaced.unlink(missing_ok=True)

    def _of(self, root: str) -> _Root | None:
        entry = (self._manifest["roots"] or {}).get(root)
        if entry is None:
            return None
        identity, witnesses = entry
        return _Root(Identity(*identity), tuple(itertools.starmap(File, witnesses)))


def _entry(root: _Root) -> list[Any]:
    return [list(root.identity), [list(witness) for witness in root.witnesses]]


_HERE: Final = -100
"""AT_FDCWD: relative paths begin at the working directory."""

_BIRTH: Final = 0x800
"""STATX_BTIME: the mask of the birth time."""

_SIZE: Final = 256
"""Size in bytes of a buffer for the answer of statx or statfs."""

_BIRTH_AT: Final = 80
"""Offset of the birth time in the answer of statx: seconds in 8 bytes, nanoseconds in 4."""

_OVERLAY: Final = 0x794C7630

_MISSING: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""Errors of a kernel, or of a container's filter, for a call that it does not have."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def birth_of(path: str) -> int | None:
    """Return the birth time of a file or directory, nanoseconds since the epoch; None: unknown.

    Links are followed. The time is unknown on NFS before 4.2, on systems without statx, and on
    overlayfs: there a directory of a container's image is created again when a file is first
    written into it. Raises OSError when the path cannot be read. Linux only, two system calls.
    """
    try:
        statx, statfs = _libc.statx, _libc.statfs
    except AttributeError:
        return None
    name, answer = os.fsencode(path), ctypes.create_string_buffer(_SIZE)
    if not _answered(statx(_HERE, name, 0, _BIRTH, answer), path):
        return None
    mask: int = struct.unpack_from("=I", answer)[0]
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _BIRTH_AT)
    if not mask & _BIRTH:
        return None
    # The type of the file system is the first number in the answer of statfs.
    if not _answered(statfs(name, answer), path) or ctypes.c_ulong.from_buffer(answer).value == _OVERLAY:
        return None
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _answered(result: int, path: str) -> bool:
    """Return whether a call was answered; False when the system does not have the call.

    Raises OSError when the call has failed.
    """
    number = ctypes.get_errno()
    if result != 0 and number not in _MISSING:
        raise OSError(number, os.strerror(number), path)
    return result == 0
