"""``drive()``: gives a streaming frame a watermark that follows computations of the pipeline instead of the frame's own rows.

The frame that comes back is a union: first the control source under ``withWatermark``, then the data, which has no
watermark of its own. Why it looks the way it does (probed on PySpark 4.3):

* The delay of ``withWatermark`` is how long ``dropDuplicatesWithinWatermark`` keeps a key, ``within``. The control row is later by the same
  length, so that the watermark is the value all the same.
* The control comes *first*: Spark takes the watermark's column from a union's first child, and from no other.
* The control row is taken out again by a filter that *cannot be pushed down*: it depends on the partition, which Spark takes for not
  deterministic. That holds back the user's own filters as well, and those that Spark makes itself (``isnotnull`` of join keys). The control row
  is null everywhere but in its time, so each of them would throw it away below the watermark, which then would never move, silently.
* A random number does not do: Spark knows its bounds and folds the comparison away, with the whole control.
* The control row's nulls and its mark are no literals (:func:`~lowwater_spark.sources.nulls.nulls_of`): a batch may bring a join
  nothing but the control row on one side, and what Spark infers from a literal there would remove the rows of the other side.
* Rows at or before 1970 fail the query: Spark's watermark begins there, so that it would drop them before anything was promised.
* Rows of the year 75,042 or later fail it too: no watermark would close their windows, also when all inputs are finished.
"""

from __future__ import annotations

import functools
import os
import tempfile
import uuid
import weakref
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.columns import check_column, own_name, quoted
from lowwater_spark.drive.late import MET, keep_late
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import DIRECTORY, FORMAT, LAST, Drive, check_version
from lowwater_spark.sources.nulls import nulls_of
from lowwater_spark.track.events import observe_untimed
from lowwater_spark.track.operators import is_lowered
from lowwater_spark.track.plan import check_classic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["control_time", "drive", "drive_of"]

_MARK: Final = "__lowwater_control"

_drives: Final[dict[str, Drive]] = {}
"""What this process has declared, by directory: a plan names no more than that. A frame whose query
has ended may be started again, so that it is kept, some hundred bytes a call; its directory is
there only while a query is driven."""

_knows: Final[weakref.WeakSet[SparkSession]] = weakref.WeakSet()
"""The sessions that have the control source."""


def drive(
    df: DataFrame,
    *,
    inputs: Sequence[str],
    event_time: str,
    step: timedelta | None = None,
    within: timedelta | None = None,
    approximate: float | None = None,
    lateness_budget: float | None = None,
    late: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Return ``df`` under a watermark that is the low watermark of ``inputs``, to the millisecond.

    Windows, ``dropDuplicatesWithinWatermark``, joins of two such frames and event-time timers then
    wait for all that the inputs still hold, and no longer. The frame is started by
    :meth:`~lowwater_spark.Stage.start` or :meth:`~lowwater_spark.Stage.foreach_batch` of a stage
    with the same inputs; started by ``writeStream`` it fails.

    Args:
        df: A streaming frame over files, Delta tables, or Kafka whose brokers are declared, without
            streaming state and without ``withWatermark``.
        inputs: The computations whose output it reads.
        event_time: Its event time, a column of type timestamp.
        step: How far the watermark moves at least, of event time, and to multiples of which; a
            whole number of milliseconds. Each move costs two small batches. By default the slide of
            the windows, or a second where there is anything else than windows.
        within: For ``dropDuplicatesWithinWatermark``: how far apart in event time the duplicates of
            a row may be. Spark keeps a key for that long beyond the time of its first row;
            ``timedelta(0)`` is right where duplicates are copies, with one event time.
        approximate: Follow the heuristic watermark of this share instead, for example 0.99. Rows
            then come late, so it needs ``late``, and the computation is marked as approximate.
        lateness_budget: Follow the inputs' lateness budget of this share instead, for example 0.01:
            of their records at most about so many come behind it in the long run. An input with a
            smaller budget stands with that, one without any with its low watermark. It needs
            ``late``, and marks the computation as approximate, likewise.
        late: A directory on a file system that driver and executors share. What Spark drops of
            batch N as late stands in ``late/batch=N``, as Parquet, with the watermark that each row
            met in the column ``lowwater_watermark``. Without ``approximate`` and
            ``lateness_budget`` a row is late only when an input has broken its promise, or when its
            sender repeats what it was acknowledged for. Costs one round through Arrow for every
            row.

    Raises ValueError for arguments that drive nothing, TypeError when ``event_time`` is no
    timestamp, Unsupported for a session that cannot be driven.
    """
    from pyspark.sql import functions as sf

    _check(inputs, step, approximate, lateness_budget, late)
    delay = _delay(within)
    spark = df.sparkSession
    _check_session(spark)
    event_time = _event_time(df, event_time)
    if late is not None and MET in [name.lower() for name in df.columns]:
        msg = f"the frame has a column {MET}, which is to say of late rows which watermark each met: rename it before lws.drive()"
        raise ValueError(msg)
    kept = None if late is None else str(Path(late).resolve())
    directory = str(Path(_root().name, uuid.uuid4().hex))
    declared = Drive(directory, tuple(inputs), event_time, step, approximate, kept, within, lateness_budget)
    _drives[declared.directory] = declared
    data = observe_untimed(df, event_time)
    data = data if declared.late is None else keep_late(data, declared)
    # Spark subtracts the delay again: its watermark is the value, and only the memory of duplicates
    # is longer.
    control = spark.readStream.format(FORMAT).option(DIRECTORY, declared.directory).load()
    value = control_time(control["value"], delay)
    fields = df.schema.fields
    columns = [
        value.alias(field.name) if field.name == event_time else null
        for field, null in zip(fields, nulls_of(fields), strict=True)
    ]
    mark = control["value"].isNotNull().alias(_MARK)  # no literal, for the reason that nulls_of() gives
    marked = control.select(*columns, mark).withWatermark(quoted(event_time), f"{delay} milliseconds")
    united = _unite(marked, data.withColumn(_MARK, sf.lit(col=False)))
    return united.where(_data_rows(event_time)).drop(_MARK)


def control_time(value: Column, delay: int) -> Column:
    """Return the event time of the control row: its value, later by the delay, milliseconds both.

    The sum is of numbers. Spark adds an interval of a day or more in the calendar of the session's
    time zone. Where the clocks change in between, the watermark would be an hour beside the value,
    and WatermarkLost would end the query.
    """
    from pyspark.sql import functions as sf

    return sf.timestamp_millis(value + sf.lit(delay))


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    """Return where this process has the directories of its controls; it goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lowwater-drive-", ignore_cleanup_errors=True)


def _unite(control: DataFrame, data: DataFrame) -> DataFrame:
    """Return both in one stream, the control first: it has the watermark."""
    return control.union(data)


def drive_of(directory: str) -> Drive:
    """Return what was declared for a control's directory.

    Raises ValueError for one that another process has made.
    """
    try:
        return _drives[directory]
    except KeyError:
        msg = f"the control source of {directory} was not made by lowwater_spark.drive() in this process"
        raise ValueError(msg) from None


def _data_rows(event_time: str) -> Column:
    """Return the filter that lets the data through and not the control row, and that Spark can push nowhere."""
    from pyspark.sql import functions as sf

    # One comparison: of two joined by AND, Spark would take the one without the partition for a
    # fact about the rows.
    micros = sf.unix_micros(quoted(event_time))
    never = micros + sf.spark_partition_id() < -(1 << 56)
    data = sf.lit(col=True)
    for wrong, why in (
        (micros <= 0, "at or before 1970-01-01T00:00:00Z, where Spark's watermark begins: Spark would drop it as late"),
        (micros >= LAST, f"of the year 75,042 or later ({LAST} microseconds): no watermark would close its windows"),
    ):
        msg = f"a row of a driven query has an event time {why}. Filter such rows out before lowwater_spark.drive()."
        data = sf.when(wrong, sf.raise_error(sf.lit(msg)).cast("boolean")).otherwise(data)
    return sf.when(sf.col(_MARK), never).otherwise(data)


def _check(
    inputs: Sequence[str],
    step: timedelta | None,
    approximate: float | None,
    budget: float | None,
    late: str | os.PathLike[str] | None,
) -> None:
    if isinstance(inputs, str) or not inputs:
        msg = "inputs is a list of the computations whose output the frame reads; without one nothing says how far it is complete"
        raise ValueError(msg)
    if step is not None and (step < timedelta(milliseconds=1) or step % timedelta(milliseconds=1)):
        msg = f"step is a whole number of milliseconds, not {step!r}: Spark's watermark has no more places"
        raise ValueError(msg)
    if approximate is not None and not 0 < approximate < 1:
        msg = f"approximate is a share between 0 and 1, for example 0.99, not {approximate!r}"
        raise ValueError(msg)
    if budget is not None and not 0 < budget <= 0.5:
        msg = f"lateness_budget is the share of the records that may come late, above 0 and at most 0.5, for example 0.01, not {budget!r}"
        raise ValueError(msg)
    if approximate is not None and budget is not None:
        msg = "a frame has one watermark: follow the heuristic one (approximate=) or the lateness budget (lateness_budget=), and leave the other out"
        raise ValueError(msg)
    if budget is not None and late is None:
        msg = (
            "lateness_budget needs late, a directory for late rows: its share of the rows comes behind the watermark, and Spark would drop those without a "
            "trace. Pass late=PATH, or leave lateness_budget out to lose none"
        )
        raise ValueError(msg)
    if approximate is not None and late is None:
        msg = (
            "approximate needs late, a directory for late rows: a heuristic watermark passes some of the rows that are still on their way, and "
            "Spark would drop those without a trace. Pass late=PATH, or leave approximate out to lose none"
        )
        raise ValueError(msg)


def _delay(within: timedelta | None) -> int:
    """Return how long Spark keeps the keys of duplicates, milliseconds."""
    if within is None:
        return 0
    if within < timedelta(0) or within % timedelta(milliseconds=1):
        msg = f"within is a whole number of milliseconds, not {within!r}"
        raise ValueError(msg)
    return within // timedelta(milliseconds=1)


def _check_session(spark: SparkSession) -> None:
    check_classic(spark, "A driven query in a Spark Connect session")
    check_version(spark, "A driven query")
    if spark not in _knows:
        from lowwater_spark.sources.control_reader import ControlDataSource

        spark.dataSource.register(ControlDataSource)
        _knows.add(spark)


def _event_time(df: DataFrame, event_time: str) -> str:
    """Return the frame's own name of its event time. Raises as :func:`drive`."""
    if not df.isStreaming:
        raise Unsupported("A DataFrame that is not streaming", "it has no watermark", "Read it with spark.readStream.")
    kinds: dict[str, Any] = {field.name: field.dataType for field in df.schema.fields}
    if len(kinds) != len(df.schema.fields):
        msg = "the frame has two columns of one name; rename one before lws.drive()"
        raise ValueError(msg)
    check_column(df, event_time, "event_time")
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    name = own_name(df.columns, event_time, any_case=not sensitive)
    if name is None:
        msg = f"event_time {event_time} is a part of a column; make it one of its own before lws.drive(), with df.withColumn"
        raise ValueError(msg)
    if kinds[name].typeName() != "timestamp":
        msg = f"event_time {name} is of type {kinds[name].simpleString()}; it must be a timestamp, which is a moment in UTC"
        raise TypeError(msg)
    if is_lowered(df, name):
        raise Unsupported(
            f"The event time {name} of a driven frame, which date_trunc(), a date, a number, a text, an interval that is not a constant of zero or more, the offset of a time zone, or the start of a window() makes of a time",
            "rows that arrive after the watermark has passed the beginning of a day have that beginning, and Spark would drop them as late",
            f"Drive the frame by the time itself, keep {name} in a column beside it, and group by window() of the time.",
        )
    return name
