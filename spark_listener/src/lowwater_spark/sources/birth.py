"""When a directory was made, as far as its file system says so.

Inode numbers are given out again: the root of each ext4 volume has 2 and that of each tmpfs 1, and a directory that was removed may leave its number
to the next one. The birth time tells them apart, and no name, move or remount changes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

__all__ = ["birth_of"]

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
    """Return whether a call was answered; not when the system does not have it. Raises what it has failed with."""
    number = ctypes.get_errno()
    if result != 0 and number not in _MISSING:
        raise OSError(number, os.strerror(number), path)
    return result == 0
