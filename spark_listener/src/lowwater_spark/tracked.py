"""The runs of this process that a stage tracks: ``attach()`` publishes no estimate of them."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["is_tracked", "started", "started_surely"]

logger = logging.getLogger("lowwater.spark")

_starting: Final[list[str]] = []
"""Names of the tracked queries that are being started. Spark tells listeners of a start before it
returns the query, and so its id."""

_runs: Final[dict[str, deque[str]]] = {}
"""Spark's ids of the newest tracked runs, by the query's id, which its checkpoint keeps: another
run of the same checkpoint may have no stage. Several runs are remembered, because events may come
after the end of a run."""

_KEPT_RUNS: Final = 4
"""Number of runs of a checkpoint that are remembered."""

_RESTARTS: Final = 10
"""Number of times that a query starts again on a machine that is too busy: for two minutes."""

_NOTED_WITHIN: Final = 10.0
"""Most seconds between the end of a query and Spark's note of it."""

_TOO_BUSY: Final = "Python worker failed to connect back", "Current State: INITIALIZING"
"""Texts in the error of a query whose Python process for a source did not answer in time. The
second one says that the query has not begun a batch."""


def started(writer: DataStreamWriter, name: str) -> StreamingQuery:
    """Start a tracked query of this name, and return it."""
    _starting.append(name)
    try:
        query = writer.start()
        _runs.setdefault(query.id, deque(maxlen=_KEPT_RUNS)).append(query.runId)
        return query
    finally:
        _starting.remove(name)


def started_surely(writer: DataStreamWriter, name: str, streams: StreamingQueryManager) -> StreamingQuery:
    """Start a query with a source in Python, again when the machine is too busy; return it.

    For each such source Spark starts a Python process and waits 10 seconds for it, which cannot be
    set. Nothing of the query has run by then, so another start loses nothing and repeats nothing.
    ``streams``: the queries of the writer's session. Returns when Spark has made the sources, or
    the query has failed, or after the last start.
    """
    ended_before = _ended(streams, 0.001)
    query = started(writer, name)
    for restart in range(1, _RESTARTS + 1):
        if not _was_too_busy(query):
            return query
        words = "%s starts again (%d of %d times): the machine is so busy that Spark's Python process was late. Nothing had run, so Spark's traceback is harmless"
        logger.warning(words, name, restart, _RESTARTS)
        # Spark notes the last query that has ended, for awaitAnyTermination(), soon after its end.
        # Let Spark forget this query, and no other.
        if not ended_before and query.runId in _ended(streams, _NOTED_WITHIN):
            streams.resetTerminated()
        query = started(writer, name)
    if _was_too_busy(query):
        logger.error(
            "%s is given up after %d starts: start it on the same checkpoint when the machine has more time",
            name,
            1 + _RESTARTS,
        )
    return query


def _ended(streams: StreamingQueryManager, within: float) -> str:
    """Return the error of the query that ``streams.awaitAnyTermination()`` would end by.

    "ended" for one without an error; empty when none has ended in ``within`` seconds.
    """
    from pyspark.errors import StreamingQueryException

    try:
        return "ended" if streams.awaitAnyTermination(cast("int", within)) else ""
    except StreamingQueryException as failure:
        return str(failure)


def _was_too_busy(query: StreamingQuery) -> bool:
    """Wait until Spark has made a query's sources; return whether their process was late."""
    from pyspark.errors import StreamingQueryException

    try:
        while query.isActive and query.status["message"].startswith("Initializing"):
            query.awaitTermination(cast("int", 0.05))  # seconds; Spark accepts fractions
    except StreamingQueryException:
        logger.debug("%s has failed while it started", query.name)
    failure = str(query.exception() or "")
    return all(text in failure for text in _TOO_BUSY)


def is_tracked(query: str, run: str, name: str | None) -> bool:
    """Return whether a stage tracks this run of the query of this id and name."""
    return run in _runs.get(query, ()) or name in _starting
