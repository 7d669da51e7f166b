"""What a client has done."""

from __future__ import annotations

from dataclasses import dataclass

from lowwater._core.reports import ReporterStatistics
from lowwater._core.watching import WatcherStatistics

__all__ = ["ClientStatistics"]


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """What the client's two threads, or tasks, have done in this process."""

    reporter: ReporterStatistics
    watcher: WatcherStatistics
