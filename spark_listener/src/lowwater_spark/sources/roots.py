"""Whether the directories that a query reads are still those that it has read before.

Where a volume is not mounted, there is its mount point: a directory, and often empty. A listing of
it says that nothing is left to be read, and every low watermark would count. So a checkpoint
remembers each directory by its inode and its birth time. Under others a directory is taken for the
same one only if a witness stands in it: a file that was seen standing in the directory before. That
a file was read is not enough: somebody may write into the mount point, and Spark reads that. Device
numbers say nothing here: each mount of NFS may give another one, and each start of a container.

Inode numbers are given out again: the root of each ext4 volume has 2 and that of each tmpfs 1, and
a directory that was removed may leave its number to the next one. The birth time tells them apart,
and no name, move or remount changes it.
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
from lowwater_spark.sources.source_log import File, Head

__all__ = ["Identity", "Replaced", "Roots", "birth_of", "identity_of"]

_WITNESSES: Final = 8
"""How many files are remembered of a directory: the newest, since old ones are removed first. They
also are not in what was copied from before."""


class Replaced(OSError):
    """A directory is not the one that was read before.

    Only who has replaced it, or who mounts the right one, can help.
    """


class Identity(NamedTuple):
    """Which directory a path leads to."""

    inode: int
    birth: int | None
    """See :func:`~lowwater_spark.sources.roots.birth_of`."""


class _Root(NamedTuple):
    """What is remembered of a directory."""

    identity: Identity
    witnesses: tuple[File, ...] = ()
    """Files that stood in it, the newest first."""


def identity_of(path: str) -> Identity:
    """Return which directory a path leads to now. Raises OSError."""
    return Identity(Path(path).stat().st_ino, birth_of(path))


def _files(head: Head) -> Iterator[File]:
    """Yield what was looked at and is a file of rows: waited for, or taken already."""
    return (file for file in itertools.chain(head, head.settled) if file.modified >= 0)


def _age(file: File) -> tuple[int, str]:
    return file.modified, file.path


def _is_same(known: _Root, identity: Identity, head: Head) -> bool:
    if known.identity == identity:
        return True
    return not set(known.witnesses).isdisjoint(_files(head))


class Roots:
    """By what the directories that a query reads are known again: in the checkpoint's manifest.

    A directory of which nothing is known, as in a new checkpoint, is taken as it is found. So is
    every directory while there is a file ``CHECKPOINT/lowwater/replaced``, which whoever has
    replaced one on purpose makes; it goes with the first directory that is taken so.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._replaced = manifest.home / "lowwater" / "replaced"

    def recognize(self, root: str, identity: Identity, head: Head) -> None:
        """Remember a directory by what was just listed of it.

        Raises Replaced when it is not the one that was read before, OSError.

        ``identity`` is the directory's before the listing and after it. Costs what a version of the
        manifest does if it has new files.
        """
        self._manifest.attend()
        before = self._of(root)
        forgiven = before is not None and not _is_same(before, identity, head)
        if forgiven and not self._replaced.exists():
            msg = (
                f"{root} is not the directory that was read before, and none of its newest files is in it: mount its volume. If it was "
                f"replaced on purpose, say so: touch {self._replaced}"
            )
            raise Replaced(msg)
        # Only now: what stands in another directory can be no witness of this one.
        newest = heapq.nlargest(_WITNESSES, _files(head), key=_age)
        # Batches that are not looked into any more still stand there. Of a directory that this one
        # is a copy of, what is not in the copy counts no more.
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
"""AT_FDCWD: a relative path is one of the working directory."""

_BIRTH: Final = 0x800
"""STATX_BTIME."""

_SIZE: Final = 256
"""Bytes of what statx and statfs fill in, at most."""

_BIRTH_AT: Final = 80
"""Where the birth time stands in it: seconds in 8 bytes, nanoseconds in 4."""

_OVERLAY: Final = 0x794C7630

_MISSING: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""What a kernel, or the filter of a container, says of a call that it does not have."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def birth_of(path: str) -> int | None:
    """Return when a file or directory was made, nanoseconds since the epoch; None where nothing that stays says so. Links are followed.

    Such are NFS before 4.2, systems without statx, and overlayfs: a directory of a container's image is made again when something is first written
    into it. Raises OSError when it cannot be looked at. Linux only, two system calls.
    """
    try:
        statx, statfs = _libc.statx, _libc.statfs
    except AttributeError:
        return None
    name, found = os.fsencode(path), ctypes.create_string_buffer(_SIZE)
    if not _answered(statx(_HERE, name, 0, _BIRTH, found), path):
        return None
    mask: int = struct.unpack_from("=I", found)[0]
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    if not mask & _BIRTH:
        return None
    # The type is the first number of the structure.
    if not _answered(statfs(name, found), path) or ctypes.c_ulong.from_buffer(found).value == _OVERLAY:
        return None
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _answered(result: int, path: str) -> bool:
    """Return whether a call was answered; not when the system does not have it.

    Raises what it has failed with.
    """
    number = ctypes.get_errno()
    if result != 0 and number not in _MISSING:
        raise OSError(number, os.strerror(number), path)
    return result == 0
