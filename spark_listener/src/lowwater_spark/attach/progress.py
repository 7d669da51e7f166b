"""What Spark tells of a streaming query, as plain values: its progress, and the name it is registered under."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

__all__ = ["BatchProgress", "computation_name", "read_progress"]

_LONGEST: Final = 128
"""Characters of a name that the authority takes."""

_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.-]")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What ``onQueryProgress`` said of one committed batch."""

    query: str
    """Spark's id of the query, which its checkpoint keeps."""
    run: str
    """Spark's id of this start of the query."""
    name: str | None
    batch: int
    watermark: int | None
    """The watermark that the batch ran with, microseconds: made of the batches before it. None
    without one, or while Spark's stands at 1970, where it begins and which says nothing."""
    rows: int
    """Rows that were read."""
    rows_per_second: float
    """Rows that came in per second since the batch before, as Spark has it; 0 where Spark has no
    number."""
    late_rows: int
    """Rows that its stateful operators dropped as late."""
    state_rows: int
    """Rows in the state of all its stateful operators, afterwards."""
    seconds: float
    """How long the batch took."""


def read_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """Return what the JSON of a ``StreamingQueryProgress`` says.

    Raises KeyError, TypeError, ValueError for what is none.
    """
    operators = progress.get("stateOperators") or ()
    event_time = progress.get("eventTime") or {}
    return BatchProgress(
        query=str(progress["id"]),
        run=str(progress["runId"]),
        name=progress.get("name"),
        batch=int(progress["batchId"]),
        watermark=_micros(event_time.get("watermark")),
        rows=int(progress.get("numInputRows") or 0),
        rows_per_second=float(progress.get("inputRowsPerSecond") or 0),
        late_rows=sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators),
        state_rows=sum(int(each.get("numRowsTotal") or 0) for each in operators),
        seconds=int(progress.get("batchDuration") or 0) / 1e3,
    )


def _micros(text: str | None) -> int | None:
    """Return an event time as Spark writes it; None also for one that no clock of ours knows: it holds rather than guesses."""
    if text is None:
        return None
    try:
        micros = (datetime.fromisoformat(text).astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None
    return micros if micros > 0 else None


def computation_name(prefix: str, name: str | None, query: str) -> str:
    """Return the name of a query's computation, without its namespace: by the query's name, else by its id.

    What cannot stand in a name becomes "_", and a digest of the whole keeps such names apart.

    >>> computation_name("spark.", "hourly", "5f0c...")
    'spark.hourly'
    >>> computation_name("spark.", None, "4b1f8f6a-0000-4000-8000-000000000000")
    'spark.query-4b1f8f6a-0000-4000-8000-000000000000'
    >>> computation_name("spark.", "per hour", "5f0c...")
    'spark.per_hour-77db65a5'
    """
    wanted = prefix + (name or f"query-{query}")
    clean = _UNUSABLE.sub("_", wanted)
    if clean == wanted and len(clean) <= _LONGEST:
        return clean
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{clean[: _LONGEST - len(digest) - 1]}-{digest}"
