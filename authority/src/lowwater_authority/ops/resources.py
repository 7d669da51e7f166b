"""Watches how many of its files this process has open, and how much of its memory it uses.

Each connection is a file, also one without a token. gRPC tells in lines of its own that none is
left, which no collector of the log understands. A process without memory is killed by the kernel
and writes no line at all.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.events import event
from lowwater_server.connections import file_limit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENOUGH_SHARE", "FILES", "MEMORY", "MOST_SHARE", "Resource", "Watch", "memory_limit", "open_share"]

LOOK_SECONDS: Final = 5.0
"""Between two looks."""

MOST_SHARE: Final = 0.9
"""Part of what the process may use, from which the log has a line."""

ENOUGH_SHARE: Final = 0.8
"""Part below which it is over, so that a process between the two writes no line after line."""

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
"""Folder of the control groups, version 2."""

log = logging.getLogger(__name__)


def open_share() -> float:
    """Return which part of the files that it may open this process has open. O(files)."""
    try:
        count = len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough
    except OSError as error:
        return 1.0 if error.errno in {errno.EMFILE, errno.ENFILE} else 0.0  # a look needs a file as well
    return count / file_limit()


def memory_limit(groups: Path = CONTROL_GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many bytes of memory the control groups of this process allow.

    Infinity: any number, or nothing says how many, as without control groups of version 2.
    """
    try:
        lines = own.read_text(encoding="utf-8").split("\n")
        [group] = [line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    except (OSError, ValueError):
        return math.inf
    limits = [math.inf]
    for folder in (groups / group, *(groups / group).parents):
        if folder.is_relative_to(groups):
            try:
                limits.append(int((folder / "memory.max").read_text(encoding="ascii")))
            except (OSError, ValueError):  # the root has no such file, and "max" is no limit
                continue
    return min(limits)


def memory_share() -> float:
    """Return which part of the memory that it may use is resident; 0.0 where nothing says either."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / memory_limit()


@dataclass(frozen=True, slots=True)
class Resource:
    """What a process may have a number of."""

    share: Callable[[], float]
    """Returns which part of it is used. Asked on another thread."""
    runs_out: Callable[[float], dict[str, Any]]
    """Returns the event of the line that says that it runs out; from the part that is used."""
    of_what: str
    """What the part is a part of, and what to do, for people."""
    free: Callable[[float], dict[str, Any]]
    """The same of the line that says that it does so no more."""


FILES: Final = Resource(
    open_share,
    lambda share: event("files_run_out", share=share),
    "the files that this process may open are open. When none is left, the process refuses every new connection: "
    "raise the limit (ulimit -n), or let a firewall stop hosts that open connections and send nothing",
    lambda share: event("files_free", share=share),
)

MEMORY: Final = Resource(
    memory_share,
    lambda share: event("memory_runs_out", share=share),
    "the memory that this process may use is resident. Beyond the limit the kernel kills the process: raise the limit, "
    "or spread the computations over more shards",
    lambda share: event("memory_free", share=share),
)


class Watch:
    """Logs once when a resource runs out, and once when that is over."""

    def __init__(self, watched: Resource) -> None:
        self._watched = watched
        self._logged = False
        """True from the line about what runs out until the one that says that it is over."""

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Compare what is used with how much there may be."""
        watched = self._watched
        share = await asyncio.to_thread(watched.share)
        if share >= MOST_SHARE and not self._logged:
            self._logged = True
            log.error("%.0f %% of %s", 100 * share, watched.of_what, extra=watched.runs_out(round(share, 3)))
        elif share < ENOUGH_SHARE and self._logged:
            self._logged = False
            log.info("%.0f %% is in use again", 100 * share, extra=watched.free(round(share, 3)))
