"""Watches how many files this process has open.

Each connection is a file, also one without a token. gRPC tells in lines of its own that none is
left, which no collector of the log understands.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Final

from lowwater._core.events import event
from lowwater._server.connections import file_limit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENOUGH_SHARE", "MOST_SHARE", "FileWatch", "open_share"]

LOOK_SECONDS: Final = 5.0
"""Between two looks."""

MOST_SHARE: Final = 0.9
"""Part of the files that a process may open, from which the log has a line."""

ENOUGH_SHARE: Final = 0.8
"""Part below which it is over, so that a process between the two writes no line after line."""

log = logging.getLogger(__name__)


def open_share() -> float:
    """Return which part of the files that it may open this process has open. O(files)."""
    try:
        count = len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough
    except OSError as error:
        return 1.0 if error.errno in {errno.EMFILE, errno.ENFILE} else 0.0  # a look needs a file as well
    return count / file_limit()


class FileWatch:
    """Logs once when files run out, and once when that is over. ``share`` is asked on another thread."""

    def __init__(self, share: Callable[[], float] = open_share) -> None:
        self._share = share
        self._logged = False
        """True from the line about files that run out until the one that says that it is over."""

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Compare the open files with how many there may be."""
        share = await asyncio.to_thread(self._share)
        if share >= MOST_SHARE and not self._logged:
            self._logged = True
            log.error(
                "%.0f %% of the files that this process may open are open. When none is left, the "
                "process refuses every new connection: raise the limit (ulimit -n), or let a "
                "firewall stop hosts that open connections and send nothing",
                100 * share,
                extra=event("files_run_out", share=round(share, 3)),
            )
        elif share < ENOUGH_SHARE and self._logged:
            self._logged = False
            log.info("files are free again", extra=event("files_free", share=round(share, 3)))
