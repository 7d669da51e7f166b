"""What a client has done."""

from __future__ import annotations

from dataclasses import dataclass

from lowwater.core.reports import ReporterStatistics
from lowwater.core.watches import WatcherStatistics

__all__ = ["ClientStatistics"]


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """What the client's threads, or tasks, have done in this process, on the streams to all shards together."""

    reporter: ReporterStatistics
    watcher: WatcherStatistics
    refused_redirects: int
    """Redirects to a lower ownership number than one seen: they came from shards that had been
    replaced, and were not followed."""
