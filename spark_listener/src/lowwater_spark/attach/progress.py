"""Spark's progress reports as plain values, and the name of a query's computation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lowwater.core.event_times import BatchTimes, read_batch_times

__all__ = ["BatchProgress", "computation_name", "read_progress"]

_LONGEST: Final = 128
"""Greatest length of a name at the authority, characters."""

_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.-]")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One committed batch, as ``onQueryProgress`` reports it."""

    query: str
    """Spark's id of the query, which its checkpoint keeps."""
    run: str
    """Spark's id of this start of the query."""
    name: str | None
    batch: int
    watermark: int | None
    """Watermark of the batch, microseconds, made of the batches before it. None without one, and at
    1970, where Spark's watermark begins and means nothing."""
    rows: int
    """Number of rows that were read."""
    rows_per_second: float
    """Rows per second since the batch before, by Spark; 0 where Spark has no number."""
    late_rows: int
    """Number of rows that its stateful operators dropped as late."""
    state_rows: int
    """Number of rows in the state of all its stateful operators, after the batch."""
    seconds: float
    """Duration of the batch."""
    times: BatchTimes | None = None
    """Event times of its rows."""


def read_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """Return the batch in a progress report's JSON. Raises KeyError, TypeError, ValueError."""
    operators = progress.get("stateOperators") or ()
    event_time = progress.get("eventTime") or {}
    return BatchProgress(
        query=str(progress["id"]),
        run=str(progress["runId"]),
        name=progress.get("name"),
        batch=int(progress["batchId"]),
        watermark=_micros(event_time.get("watermark")),
        rows=int(_total(progress, "numInputRows")),
        rows_per_second=_total(progress, "inputRowsPerSecond"),
        late_rows=sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        seconds=int(progress.get("batchDuration") or 0) / 1e3,
        times=read_batch_times(progress),
    )


def _total(progress: Mapping[str, Any], name: str) -> float:
    """Return a number of all sources; the progress that a Connect client reads has no total."""
    if name in progress:
        return float(progress[name] or 0)
    return sum(float(source.get(name) or 0) for source in progress.get("sources") or ())


def _micros(text: str | None) -> int | None:
    """Return Spark's text of an event time as microseconds; None, which holds, if unreadable."""
    if text is None:
        return None
    try:
        micros = (datetime.fromisoformat(text).astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None
    return micros if micros > 0 else None


def computation_name(prefix: str, name: str | None, query: str) -> str:
    """Return the name of a query's computation, without its namespace: by its name, else its id.

    A character that no name may have becomes "_", and a digest keeps such names apart.

    >>> computation_name("spark.", "hourly", "5f0c...")
    'spark.hourly'
    >>> computation_name("spark.", None, "4b1f8f6a-0000-4000-8000-000000000000")
    'spark.query-4b1f8f6a-0000-4000-8000-000000000000'
    >>> computation_name("spark.", "per hour", "5f0c...")
    'spark.per_hour-77db65a5'
    """
    readable = prefix + (name or f"query-{query}")
    clean = _UNUSABLE.sub("_", readable)
    if clean == readable and len(clean) <= _LONGEST:
        return clean
    digest = hashlib.sha256(readable.encode()).hexdigest()[:8]
    return f"{clean[: _LONGEST - len(digest) - 1]}-{digest}"
