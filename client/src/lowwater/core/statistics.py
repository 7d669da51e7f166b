"""Counters of a client."""

from __future__ import annotations

from dataclasses import dataclass

from lowwater.core.reports import ReporterStatistics
from lowwater.core.watches import WatcherStatistics

__all__ = ["ClientStatistics"]


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counters of a client in this process, over the streams to all shards."""

    reporter: ReporterStatistics
    watcher: WatcherStatistics
    refused_redirects: int
    """Number of redirects to a lower ownership number than one seen. They came from replaced
    shards, and were not followed."""
