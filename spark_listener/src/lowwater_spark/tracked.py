"""The queries of this process that a stage tracks: ``attach()`` publishes no estimate of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["is_tracked", "started"]

_starting: Final[list[str]] = []
"""Names of the tracked queries that are being started. Spark tells listeners of a start before it
returns the query, and so its id."""

_ids: Final[set[str]] = set()
"""Spark's ids of the queries that were started. Events may come after the end of a query."""


def started(writer: DataStreamWriter, name: str) -> StreamingQuery:
    """Start a tracked query of this name, and return it."""
    _starting.append(name)
    try:
        query = writer.start()
        _ids.add(query.id)
        return query
    finally:
        _starting.remove(name)


def is_tracked(query: str, name: str | None) -> bool:
    """Return whether a stage tracks the query of this id and name."""
    return query in _ids or name in _starting
