"""The access file while it is served: read again when it has changed, and kept as it was when the new one is bad."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from lowwater._core.events import Limited, event
from lowwater._core.text import counted
from lowwater_authority.access.policy import Access, BadAccess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["LOOK_SECONDS", "MOST_SECONDS", "SETTLED_SECONDS", "AccessFile"]

LOOK_SECONDS: Final = 0.5
"""Between two looks at the file."""

SETTLED_SECONDS: Final = 2.0
"""How long a file must have stayed as it is before it is read: one that is being written may be good TOML and name half of the principals.

Who is removed is cut off this long and two looks after the last change, which is three seconds.
"""

MOST_SECONDS: Final = 30.0
"""After which one is read that changes all the time: else whoever was removed would stay for as long as it does.

So this is the longest that a good file takes; a bad one removes nobody.
"""

log = logging.getLogger(__name__)

Mark = tuple[int, int, int, int]


class AccessFile:
    """The rules of a file as they stand. ``access`` is replaced on the event loop; whoever keeps something of it gives ``on_change``.

    A file is told from its successor by its times, its size and its inode, so that one that is put in place by a rename, as
    Kubernetes does, is noticed too. ``monotonic`` gives seconds of any clock: by that it is known how long a file has stayed as it is,
    whatever time it bears itself. ``check`` raises BadAccess for rules that may not be in force here. Raises BadAccess when the first cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        check: Callable[[Access], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._check = check
        self._monotonic = monotonic
        self._quiet = Limited()
        self._mark = self._look()
        """Of the file that was read last."""
        self._newest = self._mark
        """Of the file as it was seen last, and since when it was seen so."""
        self._newest_since = self._changing_since = monotonic()
        self.access: Access = self._load()
        self.on_change: list[Callable[[Access], None]] = []

    async def watch(self) -> None:
        """Look at the file again and again, for ever. What fails is told, and tried again: whoever is removed from the file has to go."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:
                count = self._quiet.count("look", self._monotonic())
                if count:
                    told = event("access_failed", file=str(self.path), error=str(error), count=count)
                    log.exception("the access file cannot be followed, which is tried again", extra=told)

    async def look(self) -> None:
        """Read the file if it has changed, and has stayed so for a while; a bad one is told once, and changes nothing."""
        mark, now = await asyncio.to_thread(self._look), self._monotonic()
        if mark != self._newest:
            if self._newest == self._mark:
                self._changing_since = now
            self._newest, self._newest_since = mark, now
        settled = now - self._newest_since >= SETTLED_SECONDS or now - self._changing_since >= MOST_SECONDS
        if mark == self._mark or not settled:
            return
        access, error = await asyncio.to_thread(self._read)
        if await asyncio.to_thread(self._look) != mark:
            return  # it was replaced meanwhile: the next look sees that
        if access is None:
            self._mark = mark
            log.error(
                "the access file is bad, and what it said before stays in force: %s",
                error,
                extra=event("access_refused", file=str(self.path), error=str(error)),
            )
            return
        self.access = access
        for changed in self.on_change:
            changed(access)
        self._mark = mark  # not before: else what has failed would not be tried again
        told = event("access_read", file=str(self.path), principals=len(access.principals))
        log.info("the access file was read again: %s", counted(len(access.principals), "principal"), extra=told)

    def _read(self) -> tuple[Access | None, BadAccess | None]:
        try:
            return self._load(), None
        except BadAccess as error:
            return None, error

    def _load(self) -> Access:
        """Read and check the file. Raises BadAccess."""
        access = Access.load(self.path)
        try:
            self._check(access)
        except BadAccess as error:
            raise error.within(str(self.path)) from None
        return access

    def _look(self) -> Mark | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
