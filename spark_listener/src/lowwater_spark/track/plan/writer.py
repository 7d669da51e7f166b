"""The settings of a query, from arguments or from Spark's ``DataStreamWriter``.

Spark's writer has no getters: its settings are private fields of its JVM object. This module reads
them one by one. An unknown field that is set is refused by name, so that no setting is lost.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from lowwater_spark.checkpoint.location import Location, spark_path
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.plan.checked import check_options, check_session
from lowwater_spark.track.plan.operators import items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Writer", "interval_of", "trigger_of", "writer_of"]

_EVERY_BATCH: Final[Mapping[str, Any]] = {"processingTime": "0 seconds"}

_PROCESSING_TIME: Final = "ProcessingTimeTrigger"
"""JVM class of a trigger with an interval."""

_FUNCTION: Final = "foreachbatch"
"""Format of a writer with a function."""

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "foreachWriter": (
        "foreach of a writer",
        "Use foreachBatch, whose function returns when its rows are written, or stage.foreach_batch().",
    ),
    "sinkName": ("name() of a writer", "Leave it out; queryName() is the name of the query."),
    "clusteringColumns": ("clusterBy of a writer", "Cluster the table itself, by its own settings."),
}
"""Fields that are refused, with the reason and the fix."""

_KEPT: Final = frozenset(
    {"ds", "source", "outputMode", "trigger", "extraOptions", "foreachBatchWriter", "partitioningColumns"}
)
"""Fields that are used."""

_WITH_THEM: Final = frozenset({"foreachWriterEncoder"})
"""Fields that have no meaning unless another one is set."""

_OPTIONS: Final[Mapping[str, str]] = {"checkpointlocation": "checkpoint", "path": "path", "queryname": "name"}
"""Options of a writer that are fields here."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The settings with which a query writes."""

    frame: DataFrame
    checkpoint: str | os.PathLike[str]
    format: str | None = None
    path: str | os.PathLike[str] | None = None
    output_mode: str = "append"
    partition_by: Sequence[str] = ()
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """Trigger as in Spark's ``trigger()``; empty: batches follow each other at once."""
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    function: Any = None
    """The JVM function that a writer with foreachBatch calls for each batch; else None."""

    def check_no_sink(self) -> None:
        """Raise ValueError if the writer has a sink: foreach_batch()'s function writes instead."""
        default = self.frame.sparkSession.conf.get("spark.sql.sources.default", "parquet")
        sinks = {
            "foreachBatch()": self.function is not None,
            "format()": self.format not in (None, default),
            "partitionBy()": bool(self.partition_by),
            "path": self.path is not None,
        }
        for what, is_said in sinks.items():
            if is_said:
                msg = (
                    f"the writer has a sink, by {what}, and foreach_batch has a function that writes; leave {what} out, or start the writer with "
                    "stage.start(writer)"
                )
                raise ValueError(msg)

    def check_sink(self) -> None:
        """Raise ValueError if the writer has no sink."""
        if self.format is None and self.function is None:
            msg = 'format is missing: "parquet", "kafka", "delta" or any other sink that Spark knows'
            raise ValueError(msg)

    def onto(self, frame: DataFrame, checkpoint: Location, name: str) -> DataStreamWriter:
        """Return a Spark writer for another frame, with these settings."""
        writer = frame.writeStream.outputMode(self.output_mode).options(**self.options)
        writer = writer.queryName(name).trigger(**(self.trigger or _EVERY_BATCH))
        writer = writer.option("checkpointLocation", spark_path(checkpoint).text)
        if self.function is not None:
            cast("Any", writer)._jwrite.foreachBatch(self.function)
        elif self.format is not None:
            writer = writer.format(self.format)
        if self.path is not None:
            writer = writer.option("path", os.fspath(self.path))
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer

    def with_pause(self, seconds: float) -> Writer:
        """Return a copy whose batches are at least that far apart, unless it has a trigger."""
        if self.trigger or not seconds:
            return self
        return dataclasses.replace(self, trigger={"processingTime": f"{round(seconds * 1000)} milliseconds"})

    def with_options(self, **options: str) -> Writer:
        """Return a copy with default options."""
        return dataclasses.replace(self, options={**options, **self.options})


def writer_of(
    what: DataFrame | DataStreamWriter,
    *,
    checkpoint: str | os.PathLike[str] | None,
    trigger: Mapping[str, Any] | None,
    name: str | None,
    output_mode: str | None,
    **sink: Any,
) -> Writer:
    """Return a query's settings, from a frame and arguments or from a writer without arguments.

    Raises ValueError for a writer with arguments and without a checkpoint; Unsupported for settings
    of a writer that cannot be kept, and for options that cannot be tracked.
    """
    arguments = {"checkpoint": checkpoint, "trigger": trigger, "name": name, "output_mode": output_mode, **sink}
    settings = {argument: value for argument, value in arguments.items() if value is not None and value != {}}
    if hasattr(what, "_jwrite") or hasattr(what, "_write_proto"):
        if settings:
            argument = next(iter(settings))
            msg = f"{argument} was passed beside a writer; set it on the writer, which has all settings of the query"
            raise ValueError(msg)
        settings = _settings_of(cast("DataStreamWriter", what))
        if settings.get("checkpoint") is None:
            msg = 'the writer has no checkpoint; set .option("checkpointLocation", DIRECTORY), a directory of this query alone'
            raise ValueError(msg)
    else:
        settings["frame"] = what
        if isinstance(settings.get("partition_by"), str):
            settings["partition_by"] = [settings["partition_by"]]
        check_options(settings.get("options", {}))
        if checkpoint is None:
            msg = "checkpoint is missing; pass a directory of this query alone"
            raise ValueError(msg)
    return Writer(**settings)


def _settings_of(writer: DataStreamWriter) -> dict[str, Any]:
    """Return a writer's settings as fields of :class:`Writer`."""
    frame = cast("DataFrame", cast("Any", writer)._df)
    check_session(frame.sparkSession)
    fields = _fields(cast("Any", writer)._jwrite)
    for name, value in fields.items():
        if name in _REFUSED and value is not None:
            what, fix = _REFUSED[name]
            raise Unsupported(what, "it cannot be kept when the stage starts the query", fix)
        if name not in _KEPT | _WITH_THEM | _REFUSED.keys() and value is not None:
            raise Unsupported(
                f"{name} of a writer",
                "this release does not know it, and it would be lost",
                "Start the stage with a frame and arguments.",
            )
    options = {str(key): str(value) for key, value in _java_map(frame, fields["extraOptions"].originalMap()).items()}
    settings: dict[str, Any] = {
        _OPTIONS[key.lower()]: value for key, value in options.items() if key.lower() in _OPTIONS
    }
    settings["options"] = {key: value for key, value in options.items() if key.lower() not in _OPTIONS}
    check_options(settings["options"])
    settings["frame"] = frame
    settings["output_mode"] = str(fields["outputMode"].toString()).lower()
    settings["trigger"] = trigger_of(fields["trigger"])
    # format() after foreachBatch() leaves foreachBatchWriter set, and Spark writes by the format.
    # So ``source`` decides: else the stage would call a function that Spark itself does not call.
    if str(fields["source"]).lower() == _FUNCTION:
        settings["function"] = fields["foreachBatchWriter"]
    else:
        settings["format"] = str(fields["source"])
    if fields["partitioningColumns"] is not None:
        settings["partition_by"] = [str(column) for column in items(fields["partitioningColumns"])]
    return settings


def _fields(jwrite: Any) -> dict[str, Any]:
    """Return the fields of a JVM writer by name; a Scala option's value, or None if it is empty."""
    values: dict[str, Any] = {}
    for field_ in jwrite.getClass().getDeclaredFields():
        field_.setAccessible(True)
        value = field_.get(jwrite)
        values[field_.getName()] = value
        if hasattr(value, "getClass") and value.getClass().getName() in ("scala.None$", "scala.Some"):
            values[field_.getName()] = value.get() if value.isDefined() else None
    return values


def interval_of(query: StreamingQuery) -> float:
    """Return the seconds between a running query's batches by its trigger; 0.0 if unknown."""
    from py4j.protocol import Py4JError

    try:
        trigger = cast("Any", query)._jsq.streamingQuery().trigger()
        return float(trigger.intervalMs()) / 1000 if _kind(trigger) == _PROCESSING_TIME else 0.0
    except (AttributeError, Py4JError):
        return 0.0


def _kind(trigger: Any) -> str:
    return str(trigger.getClass().getSimpleName()).rstrip("$")


def trigger_of(trigger: Any) -> Mapping[str, Any]:
    """Return the arguments that make a trigger. Raises Unsupported for an unknown one."""
    kind = _kind(trigger)
    if kind == _PROCESSING_TIME:
        # The interval is 0 if the user has not called trigger(). If that were kept as a trigger,
        # with_pause() would not space the batches.
        return {"processingTime": f"{trigger.intervalMs()} milliseconds"} if trigger.intervalMs() else {}
    names = {
        "AvailableNowTrigger": "availableNow",
        "OneTimeTrigger": "once",
        "ContinuousTrigger": "continuous",
        "RealTimeTrigger": "realTime",
    }
    if kind not in names:
        raise Unsupported(
            f"The trigger {kind} of a writer", "this release does not know it", "Use processingTime or availableNow."
        )
    return {names[kind]: f"{trigger.batchDurationMs()} milliseconds" if kind == "RealTimeTrigger" else True}


def _java_map(frame: DataFrame, scala_map: Any) -> Mapping[str, str]:
    jvm: Any = frame.sparkSession._jvm
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))
