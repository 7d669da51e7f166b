"""Tracks a batch that keeps nothing: a second job counts its rows by key range, and its tasks stage what they saw.

The aggregate runs in the JVM and only the key and the event time are read for it; Python sees one row per key range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lowwater_spark.ranges import range_column
from lowwater_spark.staging import RECEIPT, Destination, Part, Receipt, receipt_of, stage_part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["event_micros", "track_rows"]


def event_micros(frame: DataFrame, event_time: str | Column) -> Column:
    """Return a column of event times in microseconds. Raises TypeError when it is no timestamp with time zone."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import TimestampType

    field = frame.select(event_time).schema.fields[0]
    if not isinstance(field.dataType, TimestampType):
        msg = (
            f"event_time {field.name} is of type {field.dataType.simpleString()}; an event time is a point on the time line: "
            "use a timestamp column, for example sf.timestamp_micros(...)"
        )
        raise TypeError(msg)
    return sf.unix_micros(event_time)


def track_rows(
    frame: DataFrame,
    key: Sequence[str | Column],
    event_time: str | Column,
    ranges: int,
    promised: int,
    destination: Destination,
) -> list[Receipt]:
    """Run the job and return the receipts of its accepted attempts.

    Each receipt tells ``finished`` (rows), ``late`` (rows with an event time below ``promised``) and ``late_example`` (the
    oldest of them). Re-reads the source and re-runs what the frame computes.
    """
    from pyspark.sql import functions as sf

    time = event_micros(frame, event_time)
    late = time < sf.lit(promised)
    counted = (
        frame.groupBy(range_column(key, ranges).alias("handle"))
        .agg(
            sf.count(sf.lit(1)).alias("rows"),
            sf.count_if(late).alias("late"),
            sf.min(sf.when(late, time)).alias("late_example"),
        )
        .mapInArrow(partial(_stage_counts, destination), RECEIPT)
    )
    return [receipt_of(row) for row in counted.collect()]


def _stage_counts(destination: Destination, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    handles: list[int] = []
    detail: dict[str, Any] = {"finished": 0, "late": 0, "late_example": None}
    for batch in batches:
        handles += batch.column("handle").to_pylist()
        detail["finished"] += sum(batch.column("rows").to_pylist())
        detail["late"] += sum(batch.column("late").to_pylist())
        examples = [t for t in (detail["late_example"], *batch.column("late_example").to_pylist()) if t is not None]
        detail["late_example"] = min(examples, default=None)
    if handles:
        part = Part(handles, [None] * len(handles), finished=detail["finished"])
        yield stage_part(destination, part, detail)
