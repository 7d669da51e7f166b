"""Watch on the open files and the memory of this process, before either runs out.

Each connection is a file, also one without a token. When no file is left, gRPC logs lines of its
own, which no collector of logs understands. A process without memory is killed by the kernel, and
logs nothing.
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
from lowwater_server.sockets import file_limit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENOUGH_SHARE", "FILES", "MEMORY", "MOST_SHARE", "Resource", "Watch", "memory_limit", "open_share"]

LOOK_SECONDS: Final = 5.0
"""Seconds between two readings of the resource."""

MOST_SHARE: Final = 0.9
"""Used share from which on the resource counts as running out, which is logged."""

ENOUGH_SHARE: Final = 0.8
"""Used share below which this is over. It is lower, so that a process between the two does not log
again and again."""

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
"""Folder of the control groups, version 2."""

log = logging.getLogger(__name__)


def open_share() -> float:
    """Return the open share of the files that this process may open. O(files)."""
    try:
        count = len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough
    except OSError as error:
        return 1.0 if error.errno in {errno.EMFILE, errno.ENFILE} else 0.0  # a look needs a file as well
    return count / file_limit()


def memory_limit(groups: Path = CONTROL_GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the bytes of memory that the control groups of this process allow.

    Infinity: no limit, or an unknown one, as without control groups of version 2.
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
    """Return the resident share of the memory that this process may use; 0.0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / memory_limit()


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of which this process has a limited amount."""

    share: Callable[[], float]
    """Function that returns the used share; called on another thread."""
    runs_out: Callable[[float], dict[str, Any]]
    """Function from the used share to the log event "it runs out"."""
    of_what: str
    """Rest of that log line: the resource, and what to do."""
    free: Callable[[float], dict[str, Any]]
    """Function from the used share to the log event "it is free again"."""


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
        """True between the log line "it runs out" and the line "it is free again"."""

    async def run(self) -> None:
        """Look every ``LOOK_SECONDS``, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read the used share once, and log a change."""
        watched = self._watched
        share = await asyncio.to_thread(watched.share)
        if share >= MOST_SHARE and not self._logged:
            self._logged = True
            log.error("%.0f %% of %s", 100 * share, watched.of_what, extra=watched.runs_out(round(share, 3)))
        elif share < ENOUGH_SHARE and self._logged:
            self._logged = False
            log.info("%.0f %% is in use again", 100 * share, extra=watched.free(round(share, 3)))
