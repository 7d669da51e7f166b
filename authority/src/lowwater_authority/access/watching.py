"""The access file while it is served: read again when it has changed, and kept as it was when the new one is bad."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from lowwater_authority.access.policy import Access, BadAccess
from lowwater_authority.telling import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["LOOK_SECONDS", "AccessFile"]

LOOK_SECONDS: Final = 1.0
"""Between two looks at the file. Who is removed is cut off this long after, at the latest."""

log = logging.getLogger(__name__)

Mark = tuple[int, int, int]


class AccessFile:
    """The rules of a file as they stand. ``access`` is replaced on the event loop; whoever keeps something of it gives ``on_change``.

    A file is told from its successor by its time, its size and its inode, so that one that is put in place by a rename, as
    Kubernetes does, is noticed too. Raises BadAccess when the first cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = self._look()
        self.access: Access = Access.load(path)
        self.on_change: list[Callable[[Access], None]] = []

    async def watch(self) -> None:
        """Look at the file again and again, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file if it has changed; a bad one is told once, and changes nothing."""
        mark = await asyncio.to_thread(self._look)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            access = await asyncio.to_thread(Access.load, self.path)
        except BadAccess as error:
            log.error(
                "the access file is bad, and what it said before stays in force: %s",
                error,
                extra=event("access_refused", file=str(self.path), error=str(error)),
            )
            return
        self.access = access
        for changed in self.on_change:
            changed(access)
        told = event("access_read", file=str(self.path), principals=len(access.principals))
        log.info("the access file was read again: %d principals", len(access.principals), extra=told)

    def _look(self) -> Mark | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
