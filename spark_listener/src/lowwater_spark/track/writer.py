"""What a query is started with: said as arguments, or told to a ``DataStreamWriter`` of Spark's.

Spark's writer answers no questions: it keeps what it is told in private fields of its side in the
JVM, and has nothing to read them by. They are read here one by one. A field that is set and that
nobody here knows is refused by its name: what is not kept would be lost without a word.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from lowwater_spark.checkpoint.location import Location, spark_path
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.operators import items
from lowwater_spark.track.plan import check_options, check_session, check_trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Writer", "interval_of", "writer_of"]

_EVERY_BATCH: Final[Mapping[str, Any]] = {"processingTime": "0 seconds"}

_PROCESSING_TIME: Final = "ProcessingTimeTrigger"
"""The class in the JVM of a trigger with an interval."""

_FUNCTION: Final = "foreachbatch"
"""The format of a writer with a function."""

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "foreachWriter": (
        "foreach of a writer",
        "Use foreachBatch, whose function returns when its rows are written, or stage.foreach_batch().",
    ),
    "sinkName": ("name() of a writer", "Leave it out; queryName() is the name of the query."),
    "clusteringColumns": ("clusterBy of a writer", "Cluster the table itself, by its own settings."),
}
"""Fields that are known and not kept."""

_KEPT: Final = frozenset(
    {"ds", "source", "outputMode", "trigger", "extraOptions", "foreachBatchWriter", "partitioningColumns"}
)
"""Fields that are read."""

_WITH_THEM: Final = frozenset({"foreachWriterEncoder"})
"""Fields that say nothing unless another one is set."""

_OPTIONS: Final[Mapping[str, str]] = {"checkpointlocation": "checkpoint", "path": "path", "queryname": "name"}
"""Options of a writer that are values of their own here."""


@dataclass(frozen=True, slots=True)
class Writer:
    """What a query writes and by what rules."""

    frame: DataFrame
    checkpoint: str | os.PathLike[str]
    format: str | None = None
    path: str | os.PathLike[str] | None = None
    output_mode: str = "append"
    partition_by: Sequence[str] = ()
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """Empty: nobody has said one, and batch comes after batch."""
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    function: Any = None
    """Of a writer with foreachBatch: what Spark calls with each batch, an object of the JVM's."""

    def check_no_sink(self) -> None:
        """Raise ValueError if it says where to write to: it would be the function of the stage that writes, and not the sink."""
        default = self.frame.sparkSession.conf.get("spark.sql.sources.default", "parquet")
        said = {
            "foreachBatch()": self.function is not None,
            "format()": self.format not in (None, default),
            "partitionBy()": bool(self.partition_by),
            "path": self.path is not None,
        }
        for what, is_said in said.items():
            if is_said:
                msg = (
                    f"the writer has a sink, by {what}, and foreach_batch has a function that writes; leave {what} out, or start the writer with "
                    "stage.start(writer)"
                )
                raise ValueError(msg)

    def check_sink(self) -> None:
        """Raise ValueError unless it says where to write to."""
        if self.format is None and self.function is None:
            msg = 'format is missing: "parquet", "kafka", "delta" or any other sink that Spark knows'
            raise ValueError(msg)

    def onto(self, frame: DataFrame, checkpoint: Location, name: str) -> DataStreamWriter:
        """Return a writer of Spark's for another frame, which writes what and as this one says."""
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
        """Return it with so long from one look for rows to the next at least, unless it says a trigger itself."""
        if self.trigger or not seconds:
            return self
        return dataclasses.replace(self, trigger={"processingTime": f"{round(seconds * 1000)} milliseconds"})

    def with_options(self, **options: str) -> Writer:
        """Return it with options that it has unless it says them itself."""
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
    """Return what a query is started with, by a frame and arguments, or by a writer without any.

    Raises ValueError for a writer with arguments, and for no checkpoint; Unsupported for what a
    writer was told and cannot be kept, and for triggers and options that cannot be tracked.
    """
    said = {"checkpoint": checkpoint, "trigger": trigger, "name": name, "output_mode": output_mode, **sink}
    given = {argument: value for argument, value in said.items() if value is not None and value != {}}
    if hasattr(what, "_jwrite") or hasattr(what, "_write_proto"):
        if given:
            argument = next(iter(given))
            msg = f"{argument} is said beside a writer; tell it to the writer, which has all that the query is started with"
            raise ValueError(msg)
        given = _told(cast("DataStreamWriter", what))
        if given.get("checkpoint") is None:
            msg = 'the writer has no checkpoint; tell it .option("checkpointLocation", DIRECTORY), of this query alone'
            raise ValueError(msg)
    else:
        given["frame"] = what
        if isinstance(given.get("partition_by"), str):
            given["partition_by"] = [given["partition_by"]]
        check_options(given.get("options", {}))
        if checkpoint is None:
            msg = "checkpoint is missing; it is a directory of this query alone"
            raise ValueError(msg)
    check_trigger(given.get("trigger", {}))
    return Writer(**given)


def _told(writer: DataStreamWriter) -> dict[str, Any]:
    """Return what a writer was told, as :class:`Writer` has it."""
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
    told: dict[str, Any] = {_OPTIONS[key.lower()]: value for key, value in options.items() if key.lower() in _OPTIONS}
    told["options"] = {key: value for key, value in options.items() if key.lower() not in _OPTIONS}
    check_options(told["options"])
    told["frame"] = frame
    told["output_mode"] = str(fields["outputMode"].toString()).lower()
    told["trigger"] = _trigger(fields["trigger"])
    if str(fields["source"]).lower() == _FUNCTION:  # a function that a later format() has replaced is still there
        told["function"] = fields["foreachBatchWriter"]
    else:
        told["format"] = str(fields["source"])
    if fields["partitioningColumns"] is not None:
        told["partition_by"] = [str(column) for column in items(fields["partitioningColumns"])]
    return told


def _fields(jwrite: Any) -> dict[str, Any]:
    """Return the fields of a writer in the JVM by their names.

    An option that is empty is None, one that is not its content.
    """
    found: dict[str, Any] = {}
    for each in jwrite.getClass().getDeclaredFields():
        each.setAccessible(True)
        value = each.get(jwrite)
        found[each.getName()] = value
        if hasattr(value, "getClass") and value.getClass().getName() in ("scala.None$", "scala.Some"):
            found[each.getName()] = value.get() if value.isDefined() else None
    return found


def interval_of(query: StreamingQuery) -> float:
    """Return the seconds from one batch of a running query to the next by its trigger; 0.0: none, or this release of Spark does not tell."""
    from py4j.protocol import Py4JError

    try:
        trigger = cast("Any", query)._jsq.streamingQuery().trigger()
        return float(trigger.intervalMs()) / 1000 if _kind(trigger) == _PROCESSING_TIME else 0.0
    except (AttributeError, Py4JError):
        return 0.0


def _kind(trigger: Any) -> str:
    return str(trigger.getClass().getSimpleName()).rstrip("$")


def _trigger(trigger: Any) -> Mapping[str, Any]:
    """Return the arguments that make a trigger. Raises Unsupported for one that has none."""
    kind = _kind(trigger)
    if kind == _PROCESSING_TIME:
        # A writer that was told none has one of no interval.
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
    return {names[kind]: True}


def _java_map(frame: DataFrame, scala_map: Any) -> Mapping[str, str]:
    jvm: Any = frame.sparkSession._jvm
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))
