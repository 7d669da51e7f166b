"""``drive()``: a streaming frame under a watermark that follows computations, not its own rows.

The frame that comes back is a union: first the control source under ``withWatermark``, then the
data, which has no watermark of its own. The reasons for its form (probed on PySpark 4.3):

* The delay of ``withWatermark`` is how long ``dropDuplicatesWithinWatermark`` keeps a key,
  ``within``. The control row is later by the same length, so the watermark is the value.
* The control comes *first*: Spark takes the watermark's column from a union's first child only.
* The filter that removes the control row *cannot be pushed down*: it uses the partition, which
  Spark takes for not deterministic. That also holds back the user's filters, and Spark's own
  (``isnotnull`` of join keys). The control row is null but for its time. So such a filter below the
  watermark would drop it, and the watermark would never move, without an error.
* A random number would not do: Spark knows its bounds and folds the comparison away.
* The control row's nulls and its mark are no literals
  (:func:`~lowwater_spark.sources.nulls.nulls_of`). A batch may bring a join only the control row on
  one side, and what Spark infers from a literal would remove the rows of the other side.
* Rows at or before 1970 fail the query: Spark's watermark begins there, and would drop them.
* Rows of the year 75,042 or later fail it too: no watermark would ever close their windows.

Spark before 4.2 has another optimiser, so there only the plans that tests run are admitted
(:func:`~lowwater_spark.drive.plan.check_proven`).
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

from lowwater.core import checks
from lowwater_spark.columns import as_timestamp, check_column, own_name, quoted
from lowwater_spark.drive.late import MET, keep_late
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import DIRECTORY, FORMAT, LAST, REMEMBERS, Drive, passes_offset
from lowwater_spark.sources.nulls import nulls_of
from lowwater_spark.track.plan.checked import check_classic
from lowwater_spark.track.plan.operators import is_lowered
from lowwater_spark.track.run.events import observe_untimed
from lowwater_spark.workers import check_workers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["control_time", "drive", "drive_of"]

_MARK: Final = "__lowwater_control"

_drives: Final[dict[str, Drive]] = {}
"""Declarations of this process by directory, the only name that a plan has. A declaration stays,
some hundred bytes a call, because a frame may be started again after its query has ended. The
directory exists only while a query is driven."""

_registered: Final[weakref.WeakSet[SparkSession]] = weakref.WeakSet()
"""Sessions in which the control source is registered."""


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
    wait for all rows that the inputs still hold, and no longer. Start the frame by
    :meth:`~lowwater_spark.Stage.start` or :meth:`~lowwater_spark.Stage.foreach_batch` of a stage
    with the same inputs; started by ``writeStream`` it fails.

    Args:
        df: A streaming frame over files, Delta or Iceberg tables, or Kafka with declared brokers,
            without streaming state and without ``withWatermark``.
        inputs: Names of the computations whose output it reads.
        event_time: Name of its event-time column, a timestamp.
        step: Least move of the watermark, in event time; values are multiples of it. A whole number
            of milliseconds. Each move costs two small batches. Default: the slide of the windows,
            or a second if the query has other stateful operators.
        within: For ``dropDuplicatesWithinWatermark``: greatest distance in event time between the
            duplicates of a row. Spark keeps a key for that long beyond its first row's time.
            ``timedelta(0)`` is right for copies, which have one event time.
        approximate: Share, for example 0.99, of the heuristic watermark to follow instead. Rows
            then come late, so it needs ``late``, and the computation is marked as approximate.
        lateness_budget: Share, for example 0.01, of the inputs' lateness budget to follow instead:
            in the long run at most about that share of their records comes behind it. If an input
            has only a smaller budget, the frame follows that one; if it has none, its low
            watermark. It needs ``late``, and marks the computation as approximate, too.
        late: Directory on a file system that driver and executors share. Rows that Spark drops as
            late in batch N are in ``late/batch=N``, as Parquet, with the watermark that each row
            met in the column ``lowwater_watermark``. Without ``approximate`` and
            ``lateness_budget`` a row is late only if an input broke its promise, or if its sender
            repeats what was acknowledged. Costs one round through Arrow for every row.

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
    late_path = None if late is None else str(Path(late).resolve())
    directory = str(Path(_root().name, uuid.uuid4().hex))
    declared = Drive(directory, tuple(inputs), event_time, step, approximate, late_path, within, lateness_budget)
    _drives[declared.directory] = declared
    data = observe_untimed(df, event_time)
    data = data if declared.late is None else keep_late(data, declared)
    # ``delay`` is ``within``: for so long dropDuplicatesWithinWatermark keeps a key. Spark also
    # subtracts it from the control row's time, so that time is the value plus the delay. Otherwise
    # Spark's watermark would be lower than the value, and WatermarkLost would end the query.
    options = {DIRECTORY: declared.directory, REMEMBERS: str(not passes_offset(spark)).lower()}
    control = spark.readStream.format(FORMAT).options(**options).load()
    value = control_time(control["value"], delay)
    fields = df.schema.fields
    columns = [
        value.alias(field.name) if field.name == event_time else null
        for field, null in zip(fields, nulls_of(fields), strict=True)
    ]
    # The mark is no literal. In a batch that has only the control row on one side of a join, Spark
    # could infer from a literal that no row of the other side has a match, and drop those rows
    # before the join has stored them, see nulls_of().
    mark = control["value"].isNotNull().alias(_MARK)
    marked = control.select(*columns, mark).withWatermark(quoted(event_time), f"{delay} milliseconds")
    united = _unite(marked, data.withColumn(_MARK, sf.lit(col=False)))
    return united.where(_data_rows(event_time)).drop(_MARK)


def control_time(value: Column, delay: int) -> Column:
    """Return the event time of the control row: its value plus the delay, both milliseconds.

    The function adds numbers, because Spark adds an interval of a day or more in the calendar of
    the session's time zone. If the clocks changed in between, the watermark would be an hour beside
    the value, and WatermarkLost would end the query.
    """
    from pyspark.sql import functions as sf

    return sf.timestamp_millis(value + sf.lit(delay))


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    """Return the directory of this process's controls; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lowwater-drive-", ignore_cleanup_errors=True)


def _unite(control: DataFrame, data: DataFrame) -> DataFrame:
    """Return both in one stream, the control first, because it has the watermark."""
    return control.union(data)


def drive_of(directory: str) -> Drive:
    """Return the declaration of a control's directory. Raises ValueError for another process's."""
    try:
        return _drives[directory]
    except KeyError:
        msg = f"the control source of {directory} was not made by lowwater_spark.drive() in this process"
        raise ValueError(msg) from None


def _data_rows(event_time: str) -> Column:
    """Return the filter that removes the control row, and that Spark can push nowhere."""
    from pyspark.sql import functions as sf

    # ``never`` is one comparison. If it were two with an AND, Spark would take the one without
    # spark_partition_id() for a fact about the rows, and could drop the control row by it before
    # its time counts. Then the watermark would never move.
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
    checks.names("inputs", inputs)
    if not inputs:
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
    check_workers(spark, "A driven query in this session")
    if spark not in _registered:
        from lowwater_spark.sources.control_reader import ControlDataSource

        spark.dataSource.register(ControlDataSource)
        _registered.add(spark)


def _event_time(df: DataFrame, event_time: str) -> str:
    """Return the event time's name as the frame spells it. Raises what :func:`drive` raises."""
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
        msg = f"event_time {name} is of type {kinds[name].simpleString()}; it must be a timestamp, which is a moment in UTC: {as_timestamp(name, kinds[name])}"
        raise TypeError(msg)
    if is_lowered(df, name):
        raise Unsupported(
            f"The event time {name} of a driven frame, which date_trunc(), a date, a number, a text, an interval that is not a constant of zero or more, the offset of a time zone, or the start of a window() makes of a time",
            "rows that arrive after the watermark has passed the beginning of a day have that beginning, and Spark would drop them as late",
            f"Drive the frame by the time itself, keep {name} in a column beside it, and group by window() of the time.",
        )
    return name
