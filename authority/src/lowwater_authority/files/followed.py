"""A file that is read again when it changes; a bad new one does not replace the value before."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lowwater.core.events import Limited
from lowwater_authority.files.table import BadFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the file."""

SETTLED_SECONDS: Final = 2.0
"""Seconds without a change after which a file is read: a half-written one may be valid TOML with
half of its entries. So a change counts three seconds after it at the latest: this time and two
looks."""

MOST_SECONDS: Final = 30.0
"""Seconds after which a file that changes all the time is read, so that its old value does not stay
without end."""

Mark = tuple[int, int, int, int]

T = TypeVar("T")


class FollowedFile(ABC, Generic[T]):
    """The value of a file, which follows the file.

    ``value`` is replaced on the event loop; listeners in ``on_change`` get the new one. A change is
    seen by the file's times, size and inode, so that a rename, as Kubernetes does it, is seen too.
    ``monotonic`` gives seconds of any clock, which measures how long the file has not changed.
    Raises BadFile when the first file cannot be used.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._quiet = Limited()
        self._mark = self._look()
        """Mark of the file that was read last; None: there was no file."""
        self._newest = self._mark
        """Mark at the last look; ``_newest_since`` is when it was first seen."""
        self._newest_since = self._changing_since = monotonic()
        self.value: T = self._load()
        self.refused: BadFile | None = None
        """Why the file that was read last does not count; None: it counts."""
        self.on_change: list[Callable[[T], None]] = []

    @abstractmethod
    def _load(self) -> T:
        """Read and check the file. Raises BadFile."""

    def _before_read(self) -> None:
        """Prepare, on the event loop, what :meth:`_load` needs when it runs in a thread."""

    @abstractmethod
    def _tell_read(self) -> None:
        """Log that the file was read again."""

    @abstractmethod
    def _tell_refused(self, error: BadFile) -> None:
        """Log that the file is bad, and that the value before stays."""

    @abstractmethod
    def _tell_failed(self, error: Exception, count: int) -> None:
        """Log that a look has failed, for the ``count``-th time since the last such line."""

    async def watch(self) -> None:
        """Look at the file again and again, without end. A failure is logged, and tried again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the subclass logs it
                count = self._quiet.count("look", self._monotonic())
                if count:
                    self._tell_failed(error, count)

    async def look(self) -> None:
        """Read the file if it has changed and settled. A bad one is logged once."""
        mark, now = await asyncio.to_thread(self._look), self._monotonic()
        if mark != self._newest:
            if self._newest == self._mark:
                self._changing_since = now
            self._newest, self._newest_since = mark, now
        settled = now - self._newest_since >= SETTLED_SECONDS or now - self._changing_since >= MOST_SECONDS
        if mark == self._mark or not settled:
            return
        self._before_read()
        value = await asyncio.to_thread(self._read)
        if await asyncio.to_thread(self._look) != mark:
            return  # the file has changed meanwhile: the next look sees that
        if isinstance(value, BadFile):
            self._mark, self.refused = mark, value
            self._tell_refused(value)
            return
        self.value = value
        for changed in self.on_change:
            changed(value)
        # Not before the listeners: if one fails, the next look tries again.
        self._mark, self.refused = mark, None
        self._tell_read()

    def _read(self) -> T | BadFile:
        try:
            return self._load()
        except BadFile as error:
            return error

    def _look(self) -> Mark | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
