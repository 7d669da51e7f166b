"""One process at a time: an exclusive lock on a file beside the journal."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

from lowwater_authority.journal.errors import JournalLocked


class LockFile:
    """An exclusive ``flock``, held from ``acquire`` to ``release`` or to the end of the process, however it ends.

    A process that is stopped, or hangs, keeps it: it may go on at any moment. The file stays when the lock is freed,
    because removing it would let two processes lock two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Lock, or raise JournalLocked with the holder. Raises OSError when the file cannot be made."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 1024).decode(errors="replace").strip()
            os.close(fd)
            raise JournalLocked(self.path, holder=holder or "a process that has just begun") from None
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on host {platform.node()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Unlock. Does nothing without the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
