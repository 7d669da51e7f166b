"""A file of rules while it is served: read again when it has changed, and kept as it was when the new one is bad."""

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

__all__ = ["LOOK_SECONDS", "MOST_SECONDS", "SETTLED_SECONDS", "FollowedFile"]

LOOK_SECONDS: Final = 0.5
"""Between two looks at the file."""

SETTLED_SECONDS: Final = 2.0
"""How long a file must have stayed as it is before it is read: one that is being written may be
good TOML and name half of its entries.

What it says counts this long and two looks after the last change, which is three seconds.
"""

MOST_SECONDS: Final = 30.0
"""After which one is read that changes all the time: else what it said before would count for as
long as it does.

So this is the longest that a good file takes; a bad one changes nothing.
"""

Mark = tuple[int, int, int, int]

T = TypeVar("T")


class FollowedFile(ABC, Generic[T]):
    """What a file says as it stands.

    ``value`` is replaced on the event loop; whoever keeps something of it gives ``on_change``.

    A file is told from its successor by its times, its size and its inode, so that one that is put
    in place by a rename, as Kubernetes does, is noticed too. ``monotonic`` gives seconds of any
    clock: by that it is known how long a file has stayed as it is, whatever time it bears itself.
    Raises BadFile when the first cannot be used.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._quiet = Limited()
        self._mark = self._look()
        """Of the file that was read last."""
        self._newest = self._mark
        """Of the file as it was seen last, and since when it was seen so."""
        self._newest_since = self._changing_since = monotonic()
        self.value: T = self._load()
        self.refused: BadFile | None = None
        """Why the file as it was read last does not count; None: it does."""
        self.on_change: list[Callable[[T], None]] = []

    @abstractmethod
    def _load(self) -> T:
        """Read and check the file. Raises BadFile."""

    def _before_read(self) -> None:
        """Note on the event loop what reading a changed file, in a thread, needs of it."""

    @abstractmethod
    def _tell_read(self) -> None:
        """Log that the file was read again."""

    @abstractmethod
    def _tell_refused(self, error: BadFile) -> None:
        """Log that the file is bad, and that what it said before counts."""

    @abstractmethod
    def _tell_failed(self, error: Exception, count: int) -> None:
        """Log that the file cannot be followed, as often as that has happened since it was last said."""

    async def watch(self) -> None:
        """Look at the file again and again, for ever.

        What fails is told, and tried again: what it says has to count.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - each class of these logs what it was
                count = self._quiet.count("look", self._monotonic())
                if count:
                    self._tell_failed(error, count)

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
        self._before_read()
        found = await asyncio.to_thread(self._read)
        if await asyncio.to_thread(self._look) != mark:
            return  # it was replaced meanwhile: the next look sees that
        if isinstance(found, BadFile):
            self._mark, self.refused = mark, found
            self._tell_refused(found)
            return
        self.value = found
        for changed in self.on_change:
            changed(found)
        # Not before: else what has failed would not be tried again.
        self._mark, self.refused = mark, None
        self._tell_read()

    def _read(self) -> T | BadFile:
        try:
            return self._load()
        except BadFile as error:
            return error

    def _look(self) -> Mark | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
