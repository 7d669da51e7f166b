"""The runs of this process that a stage tracks: ``attach()`` publishes no estimate of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["is_tracked", "started"]

_starting: Final[list[str]] = []
"""Names of the tracked queries that are being started. Spark tells listeners of a start before it
returns the query, and so its id."""

_runs: Final[dict[str, deque[str]]] = {}
"""Spark's ids of the newest tracked runs, by the query's id, which its checkpoint keeps: another
run of the same checkpoint may have no stage. Several runs are remembered, because events may come
after the end of a run."""

_KEPT_RUNS: Final = 4
"""Number of runs of a checkpoint that are remembered."""


def started(writer: DataStreamWriter, name: str) -> StreamingQuery:
    """Start a tracked query of this name, and return it."""
    _starting.append(name)
    try:
        query = writer.start()
        _runs.setdefault(query.id, deque(maxlen=_KEPT_RUNS)).append(query.runId)
        return query
    finally:
        _starting.remove(name)


def is_tracked(query: str, run: str, name: str | None) -> bool:
    """Return whether a stage tracks this run of the query of this id and name."""
    return run in _runs.get(query, ()) or name in _starting
