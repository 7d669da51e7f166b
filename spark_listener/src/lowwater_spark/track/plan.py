"""Reads a query's analysed plan and refuses, before anything starts, what cannot be tracked exactly.

The list of what is allowed is short on purpose: an operator, option or source that nobody has thought about is refused, by name, with
the reason and the way out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.location import Location, checkpoint_of
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources import iceberg
from lowwater_spark.sources.base import Source
from lowwater_spark.sources.control import DIRECTORY, ControlSource, is_control, is_end
from lowwater_spark.sources.delta import DELTA, SETTINGS, DeltaSource
from lowwater_spark.sources.delta_log import DeltaLog
from lowwater_spark.sources.files import FileSource, hidden, intruders
from lowwater_spark.sources.iceberg import IcebergSource
from lowwater_spark.sources.iceberg_log import IcebergLog, is_iceberg
from lowwater_spark.sources.kafka import KAFKA, PACE, KafkaSource
from lowwater_spark.sources.kafka_admin import KafkaAdmin
from lowwater_spark.sources.opaque import OpaqueSource
from lowwater_spark.sources.paced import FORMAT
from lowwater_spark.sources.sink_log import SINK_LOG, list_sink
from lowwater_spark.sources.source_log import FOR_EVER
from lowwater_spark.track.bounds import MILLISECOND, Stamp, in_python, least_retention, lowest_stamp
from lowwater_spark.track.operators import (
    KINDS,
    Operator,
    Watermark,
    inlined,
    is_lowered,
    items,
    nodes,
    operator_of,
    reach,
    stamps_of,
    watermark_of,
    windows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Checked",
    "absolute",
    "added",
    "check_arriving",
    "check_windows",
    "check_options",
    "check_output_mode",
    "check_plan",
    "check_classic",
    "check_session",
    "is_file_format",
    "check_trigger",
    "local_directory",
    "refuse_pattern",
]

_FORMATS: Final = frozenset({"csv", "json", "orc", "parquet", "text"})

_DELTA: Final = frozenset({DELTA, "org.apache.spark.sql.delta.sources.deltadatasource"})

_STATELESS: Final = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "StreamingRelation",
        "SubqueryAlias",
        "Union",
        "UpdateEventTimeWatermarkColumn",
        "View",
    }
)
"""Streaming operators that keep nothing: they emit a row's results when the row arrives, or never.
"""

_OPTIONS: Final[Mapping[str, str]] = {
    "cleansource": "files vanish by rules of their own; clean up outside of Spark, by age",
    "filenameonly": "Spark takes two files of one name for one, and never reads the second",
    "ignorecorruptfiles": "rows of a file that is passed over would count as read",
    "ignoremissingfiles": "rows of a file that is passed over would count as read",
    "modifiedafter": "the files that Spark passes over stand in the directory all the same",
    "modifiedbefore": "the files that Spark passes over stand in the directory all the same",
    "pathglobfilter": "the files that Spark passes over stand in the directory all the same",
    "sourcearchivedir": "files vanish by rules of their own; clean up outside of Spark, by age",
}

_FILE_FORMATS: Final = (
    "org.apache.spark.sql.execution.datasources.FileFormat",
    "org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2",
)
"""What Spark writes by its file sink is one of them."""

_REGISTERED: Final = "org.apache.spark.sql.sources.DataSourceRegister"
"""What a source is that has a name of its own."""

_IGNORE_SINK_LOG: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"

_SETTINGS: Final = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


def check_classic(spark: SparkSession, what: str) -> None:
    """Raise Unsupported, of ``what``, for a session of Spark Connect."""
    if not hasattr(spark, "_jvm"):
        raise Unsupported(
            what,
            "the driver's Python must see the query's plan and its checkpoint",
            "Run the query in a classic session, where the driver is.",
        )


def check_session(spark: SparkSession) -> None:
    """Raise Unsupported for a session that this release cannot work with."""
    check_classic(spark, "A Spark Connect session")
    for name in _SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise Unsupported(
                f"A session with {name}", "rows of a file that is passed over would count as read", "Set it to false."
            )
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    if str(spark.conf.get(evolution, "false")).lower() == "true":
        raise Unsupported(
            f"A session with {evolution}",
            "sources are then numbered by name in the checkpoint, which this release does not read",
            "Set it to false.",
        )


def check_trigger(trigger: Mapping[str, Any]) -> None:
    """Raise Unsupported for triggers without batches that begin and commit one after the other."""
    for name, why in (("continuous", "continuous processing"), ("realTime", "real-time mode")):
        if trigger.get(name) is not None:
            raise Unsupported(
                f"The trigger {name}",
                f"{why} gives no evidence of which rows a commit contains",
                "Use processingTime or availableNow.",
            )


@dataclass(frozen=True, slots=True)
class Checked:
    """What a plan that can be tracked consists of."""

    sources: Sequence[Source]
    """In the order in which Spark numbers them."""
    operators: Sequence[Operator] = ()
    """What keeps rows in Spark's own state; outer ones before those that they read from."""
    watermarks: Sequence[Watermark] = ()
    retention: timedelta | None = None
    """How far below Spark's own watermark what Spark holds can still come out; None: it holds
    nothing. A checkpoint keeps it."""
    stamps: Sequence[Stamp] = ()
    """What the output is stamped with, as the plan says it. Empty: the plan does not say it, and
    only ``retention`` counts."""
    declared: bool = True
    """Whether ``retention`` is the stage's own word. Otherwise ``stamps`` alone count."""

    def waiting_for(self, inputs: Iterable[str], driven: Mapping[int, Iterable[str]]) -> Checked:
        """Return it with the inputs that are waited for, by their full names: the query's, and by the number of a control those of its frame.

        The sources of a driven frame come after its control, which is what Spark numbers them by. Raises Unsupported for a source that nobody can wait for.
        """
        sources, waited_for = list[Source](), frozenset(inputs)
        for number, source in enumerate(self.sources):
            if isinstance(source, ControlSource):
                waited_for = frozenset(driven[number])
            sources.append(source.waiting_for(waited_for))
        return dataclasses.replace(self, sources=sources)

    def telling_ends(self) -> Checked:
        """Return it for an injector that goes by the ends of its sources.

        Raises Unsupported for a source whose end nobody knows.
        """
        return dataclasses.replace(self, sources=[self._kafka(source).telling_ends() for source in self.sources])

    def check_parts(self, df: DataFrame, columns: Sequence[str], *, paced: bool) -> None:
        """Raise Unsupported unless every source is Kafka, read at one pace if it must be, and the frame has the columns that name a row's partition."""
        for source in self.sources:
            if PACE not in self._kafka(source).options and paced:
                raise Unsupported(
                    f"{source.name}, read by Spark's own source, in an injector with skew_limit",
                    "Spark's own source cannot hold single partitions back",
                    "Read it by read_kafka() of the injector.",
                )
        if missing := [name for name in columns if name not in df.columns]:
            raise Unsupported(
                f"An injector with disorder over a frame without the column {missing[0]}",
                "nothing then says which partition a row is of",
                f"Keep the columns {' and '.join(columns)} of Kafka's source in the frame, and drop them before you write.",
            )

    @staticmethod
    def _kafka(source: Source) -> KafkaSource:
        if not isinstance(source, KafkaSource):
            raise Unsupported(
                f"{source.name[:1].upper()}{source.name[1:]} in an injector that goes by partitions or their ends",
                "only of Kafka it is known which partitions there are and where they end",
                "Pass producer= and producers= and neither across= nor delay=, or declare the injector without disorder= and tell batch.frontier() yourself.",
            )
        return source

    def check_writers(self) -> None:
        """Raise Unsupported when somebody writes into a source whom the inputs do not name."""
        for source in self.sources:
            source.check_writers()

    @property
    def controls(self) -> dict[int, ControlSource]:
        """The control sources by their numbers."""
        return {i: source for i, source in enumerate(self.sources) if isinstance(source, ControlSource)}

    def spark_bound(self, plan: Plan | None) -> int:
        """Return the lowest stamp, microseconds, of what Spark can still let go of after this batch was committed; None: before the first.

        MAX: it holds nothing. MIN: it has no watermark yet, so nothing is known, not even of rows that are still to come: a sliding
        window may start before any of its rows.
        """
        if self.retention is None:
            return MAX
        if plan is None or plan.watermark == 0:
            return MIN
        if self.controls and is_end(plan.watermark):
            return MAX
        return self.bound_at(plan.watermark * 1000)

    def bound_at(self, watermark: int) -> int:
        """Return the same, when Spark's watermark stands at a time; microseconds both.

        Of a plan that holds something.
        """
        bound = MAX
        if self.stamps:
            bound = lowest_stamp(self.stamps, watermark)
        if self.declared or not self.stamps:
            bound = min(bound, watermark - self.retained // timedelta(microseconds=1))
        return max(MIN, bound)

    @property
    def retained(self) -> timedelta:
        """The declared retention, and what Spark adds to it."""
        assert self.retention is not None
        return self.retention + added(operator.kind for operator in self.operators if operator.holds)


def added(kinds: Iterable[str]) -> timedelta:
    """Return how much longer Spark holds rows than a query says, by the kinds of its operators that hold rows: of a join on times a millisecond."""
    return MILLISECOND if KINDS["Join"] in kinds else timedelta()


def check_plan(
    spark: SparkSession,
    frame: DataFrame,
    *,
    retention: timedelta | None = None,
    event_time: str | Column | None = None,
    also: Sequence[str | Column] = (),
) -> Checked:
    """Return what a streaming DataFrame reads and holds.

    ``retention`` is what the stage has declared, and ``event_time`` by what its output is stamped.
    Where the plan says what that is (the start or end of a window, the end of a session, a time by
    which Spark lets go), nothing has to be declared. ``also`` are the stamps of the query's other
    stages, which all of this goes for, too: the stages have one bound. Raises Unsupported, naming
    the first thing that cannot be tracked exactly.
    """
    if not frame.isStreaming:
        raise Unsupported("A DataFrame that is not streaming", "it has no batches", "Read it with spark.readStream.")
    written = frame._jdf.queryExecution().analyzed()
    plan = inlined(written)
    operators: list[Operator] = []
    watermarks: list[Watermark] = []
    for node in nodes(plan):
        if node.isStreaming():
            _check_operator(node)
            controls = [is_control(leaf) for leaf in _relations(node)]
            operator = operator_of(node, driven=any(controls))
            if operator is not None:
                operators.append(operator)
            elif node.getClass().getSimpleName() == "EventTimeWatermark":
                watermarks.append(watermark_of(node, driven=all(controls)))
    # Spark numbers the sources of the plan as it is written.
    relations = _relations(written)
    used = _relations(plan)
    if len(used) != len(relations) or any(used[i].equals(other) for i in range(len(used)) for other in used[:i]):
        raise Unsupported(
            "A stream that is used twice in one query",
            "Spark logs it once and counts it twice, and the two could be mixed up",
            "Load it twice with spark.readStream, or split the rows after one use.",
        )
    holding = [operator for operator in operators if operator.holds]
    stamps, kept = list[Stamp](), retention
    if holding:
        own = () if event_time is None else (event_time,)
        # Pairs, because different columns may print alike: the t of either side of a join.
        declared_stamps = [(column, _stamps_of(frame, column)) for column in (*own, *also)]
        stamps = [stamp for _, column_stamps in declared_stamps for stamp in column_stamps or ()]
        if retention is not None:
            _check_retention(retention, stamps, holding)
        elif stamps and (unknown := [column for column, column_stamps in declared_stamps if column_stamps is None]):
            raise Unsupported(
                f"The stamp {unknown[0]} of one of the query's stages",
                "the plan does not say how far below Spark's watermark it can come out",
                "Say so in all stages of the query: " + _DECLARE,
            )
        elif stamps:
            longest = reach(holding)
            kept = least_retention(stamps, at_ends=False) if longest is None else longest
    _check_state(operators, watermarks, declared=kept is not None)
    sources = [_source(spark, relation) for relation in relations]
    if not holding:
        return Checked(sources, operators, watermarks)
    return Checked(sources, operators, watermarks, kept, stamps, retention is not None)


def check_arriving(frame: DataFrame, column: str | Column) -> None:
    """Raise Unsupported for a query that keeps nothing, and stamps rows below the event times that its inputs promise."""
    from pyspark.errors import AnalysisException

    try:
        lowered = is_lowered(frame, column)
    except AnalysisException:
        return  # the function of foreach_batch() adds this column: the frame lacks it
    if lowered:
        raise Unsupported(
            f"The stamp {column}, which date_trunc(), a date, a number, a text, an interval that is not a constant of zero or more, the offset of a time zone, or the start of a window() makes of the event time",
            "rows that arrive after the watermark has passed the beginning of a day are stamped with that beginning, below what is published",
            "Stamp the rows with their event time or the end of the window, and keep the truncated one in a column beside it; or group them by window().",
        )


def check_windows(frame: DataFrame, declared: timedelta | None) -> None:
    """Raise Unsupported for a ``window()`` in a frame's output that begins below the windows of ``stamp=timedelta()``, which the watermark is floored to.

    Where the output has the start of a declared one, that is the stamp, and others stand beside it.
    """
    if declared is None:
        return
    cuts = list(windows_of(frame))
    if any(cut.slide == cut.length and not declared % cut.length and not cut.start % cut.length for cut in cuts):
        return
    for cut in cuts[:1]:
        raise Unsupported(
            f"A window of {cut.length} every {cut.slide}, shifted by {cut.start}, in a stage with stamp={in_python(declared)}",
            "it begins below the declared one, and rows stamped by its start would come out below what is published",
            'Group a frame of lws.drive() by it, and declare stamp=F.col("window.start"); or use tumbling windows without startTime, whose length divides the declared one.',
        )


def _stamps_of(frame: DataFrame, column: str | Column) -> list[Stamp] | None:
    """The same as stamps_of(), for a column that a function may make of a batch only: nothing is known of that one."""
    from pyspark.errors import AnalysisException

    try:
        return stamps_of(frame, column)
    except AnalysisException:
        return None


def _check_retention(declared: timedelta, stamps: Sequence[Stamp], holding: Sequence[Operator]) -> None:
    """Refuse a declaration that is too small for what the plan says of the stamp: the stage would lead."""
    windows = {operator.window for operator in holding}
    at_ends = len(windows) == 1 and None not in windows and all(operator.driven for operator in holding)
    least = least_retention(stamps, at_ends=at_ends)
    if declared + added(operator.kind for operator in holding) < least:
        raise Unsupported(
            f"The retention {declared} of a query with {' above '.join(operator.kind for operator in holding)}",
            f"Spark's state can still give rows that are stamped {least} below its watermark, which would come out below what is published: of several operators "
            "one above the other, each holds a row for its own time, so the least retention is the sum",
            f"Declare at least retention={in_python(least)}, or none: the plan says it.",
        )


def _relations(plan: Any) -> list[Any]:
    leaves = [leaf for leaf in items(plan.collectLeaves()) if leaf.isStreaming()]
    return [leaf for leaf in leaves if leaf.getClass().getSimpleName() != "CTERelationRef"]


def _check_operator(node: Any) -> None:
    name = node.getClass().getSimpleName()
    if name.startswith("StreamingRelation") and name != "StreamingRelation":
        return
    if name not in _STATELESS and name not in KINDS:
        raise Unsupported(
            f"The streaming operator {name}",
            "Spark may hold rows back in state that this release does not see",
            "Do it on the batch, inside of the function, and keep what must wait with batch.stateful().",
        )


def _check_state(operators: Sequence[Operator], watermarks: Sequence[Watermark], *, declared: bool) -> None:
    """Refuse what Spark holds back without a bound, or without the declaration of one."""
    own = [watermark for watermark in watermarks if not watermark.driven]
    holding = [operator for operator in operators if operator.holds]
    # Duplicates need a watermark and hold nothing back. One that no operator needs has no use, and
    # is a mistake.
    if not declared and own and (holding or not operators):
        raise Unsupported(
            "withWatermark",
            "Spark drops rows by a watermark of its own, which knows nothing of slow partitions, and what it holds back comes out later",
            "Remove it: batch.low is the watermark. Or accept what Spark drops, and " + _DECLARE,
        )
    for operator in holding:
        what = f"The streaming operator {operator.kind}"
        if operator.driven:
            _check_driven_state(operator, declared=declared)
        if not declared:
            raise Unsupported(
                what,
                "Spark holds rows back in its own state, and nothing says how far below its watermark they can come out",
                "Keep them with batch.stateful() instead, or give it a withWatermark and " + _DECLARE,
            )
        if not operator.columns or not operator.both_sides:
            raise Unsupported(
                f"{what} without a watermark",
                "Spark never lets go of what it holds, so old rows could come out at any time",
                "Put withWatermark on the event time of every stream that it reads, and group by that event time or a window of it.",
            )
        if not operator.bounded:
            raise Unsupported(
                f"{what} without a bound on the times of both",
                "Spark never lets go of rows that no time rules out, so a match of any age could come out; and by a column that is made of an event time, such as h of "
                "u <= h, it lets go too early, and loses matches",
                "Add to its condition how far the event times themselves can be apart, both ways, such as u >= t AND u <= t + INTERVAL 1 HOUR.",
            )


def _check_driven_state(operator: Operator, *, declared: bool) -> None:
    """The same of an operator under :func:`~lowwater_spark.drive`: it has its watermark, which is not to be given another time."""
    what = f"A driven {operator.kind}"
    if not operator.columns and operator.kind == KINDS["Aggregate"]:
        raise Unsupported(
            f"{what} that is not grouped by the event time",
            "the watermark closes windows and times, and a group with neither would be kept for ever and never be written",
            "Group by window() or session_window() of the column that lws.drive() has as event_time, or by that column itself; for running "
            "totals without an end use batch.stateful().",
        )
    if not operator.columns or not operator.both_sides:
        raise Unsupported(
            f"{what} that does not have the event time of all that it reads",
            "Spark never lets go of what it holds, so old rows could come out at any time",
            "Call lws.drive() for each frame that it reads, and keep the column that is its event_time.",
        )
    if not declared:
        raise Unsupported(
            what,
            "Spark holds rows back in its own state, and nothing says how far below the low watermark they can come out",
            "Say so when the stage is declared: " + _DECLARE,
        )


_DECLARE: Final = (
    "declare with retention= how far below Spark's watermark its output can be stamped. Nothing has to be declared where the stamp is the start or end of a window, the end of a "
    "session, an event time of a join that is bounded both ways, or a date_trunc() of one of these. Otherwise: of what else is made of a window its length and what it is below its start; of a join "
    "how long a row waits for its match; of a stateful function what it keeps; of several of them, one above the other, the sum."
)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise Unsupported for options of a plain query's writer that take its commits' evidence away, ValueError for misplaced ones."""
    given = {option.lower(): value for option, value in options.items()}
    if str(given.get("asyncprogresstrackingenabled", "false")).lower() != "false":
        raise Unsupported(
            "The option asyncProgressTrackingEnabled",
            "batches are then missing from the offset and commit logs, which say what is read and done",
            "Remove the option.",
        )
    for option, value in options.items():
        if option.lower() == "kafka.acks" and str(value) not in ("all", "-1"):
            raise Unsupported(
                f"The option {option} with the value {value!r}",
                "a batch is then committed while Kafka can still lose what it has written, which is reported all the same",
                'Remove the option: Kafka\'s own default is "all".',
            )
    for option, argument in (("checkpointlocation", "checkpoint"), ("path", "path"), ("queryname", "name")):
        if option in given:
            msg = f"pass {argument}= and not the option {option}"
            raise ValueError(msg)


def check_output_mode(checked: Checked, mode: str, *, function: bool = False) -> None:
    """Raise Unsupported for output modes that write old results again, and ValueError for what is none.

    A function knows by ``batch.low`` which of the windows that it gets are complete; a sink of Spark's does not.
    """
    if mode not in ("append", "update", "complete"):
        msg = f'the output mode is "append" or "update", not {mode!r}'
        raise ValueError(msg)
    if mode == "complete":
        raise Unsupported(
            "The output mode complete",
            "every batch writes all old results again, far below what is promised",
            'Use "append", which writes a window once, when it is complete.',
        )
    if mode == "update" and not function and any(operator.driven for operator in checked.operators):
        raise Unsupported(
            "The output mode update in a driven query with a sink of Spark's",
            "windows would be written before they are complete, and nothing beside them says which are",
            'Use "append"; or foreach_batch(..., output_mode="update"), whose function knows it by batch.low.',
        )


def _source(spark: SparkSession, relation: Any) -> Source:
    if is_control(relation):
        return ControlSource(str(relation.extraOptions().get(DIRECTORY)))
    if relation.getClass().getSimpleName() != "StreamingRelation":
        if is_iceberg(relation.table()):
            return _iceberg_source(spark, relation)
        name = _format(spark, relation)
        return _kafka_source(spark, relation) if name in (KAFKA, FORMAT) else OpaqueSource(name)
    kind = str(relation.dataSource().className())
    if kind.lower() in _DELTA:
        return _delta_source(spark, relation)
    return _file_source(spark, relation) if kind.lower() in _FORMATS else OpaqueSource(kind)


def _format(spark: SparkSession, relation: Any) -> str:
    """Return the name that a source has given itself, however the query spells it: in other letters, or as its class. Else the query's."""
    from py4j.java_gateway import is_instance_of

    provider: Any = relation.source()
    gateway: Any = spark.sparkContext._gateway
    if provider.isDefined() and is_instance_of(gateway, provider.get(), _REGISTERED):
        return str(provider.get().shortName())
    return str(relation.sourceName())


def _kafka_source(spark: SparkSession, relation: Any) -> KafkaSource:
    given = dict(relation.extraOptions().asCaseSensitiveMap())
    options = {str(name).lower(): str(value) for name, value in given.items()}
    deprecated = str(spark.conf.get("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "false")).lower() == "true"
    return KafkaSource(options, KafkaAdmin(spark._jvm, options), deprecated)


def _delta_source(spark: SparkSession, relation: Any) -> DeltaSource:
    options = {str(key).lower(): str(value) for key, value in _map(spark, relation.dataSource().options()).items()}
    off = tuple(name for name in SETTINGS if str(spark.conf.get(name, "true")).lower() != "true")
    return DeltaSource(options["path"], options, DeltaLog(spark, options["path"]), off)


def _iceberg_source(spark: SparkSession, relation: Any) -> IcebergSource:
    given = dict(relation.extraOptions().asCaseSensitiveMap())
    options = {str(name).lower(): str(value) for name, value in given.items()}
    on = tuple(name for name in iceberg.SETTINGS if str(spark.conf.get(name, "false")).lower() == "true")
    log = IcebergLog.of(spark, relation.table())
    return IcebergSource(log.name, options, log, on, log.branch)


def _file_source(spark: SparkSession, relation: Any) -> FileSource:
    source = relation.dataSource()
    kind = str(source.className()).lower()
    options = {str(key).lower(): str(value) for key, value in _map(spark, source.options()).items()}
    for option, why in _OPTIONS.items():
        if option in options and options[option].lower() not in ("false", "off"):
            raise Unsupported(f"The option {option} of a {kind} source", why, "Remove the option; filter rows instead.")
    path = options.get("path", "")
    refuse_pattern(path, "The path")
    root = local_directory(spark, path, "The path")
    if not Path(root).is_dir():
        raise Unsupported(f"The path {path}", "it is no directory", "Read the directory that the files come into.")
    recursive = options.get("recursivefilelookup", "false").lower() == "true"
    sink_log = Path(root, SINK_LOG).exists()
    if sink_log:
        _check_sink_log(spark, path, root)
    columns = () if recursive or sink_log else _partition_columns(relation, root)
    read = FileSource(root, recursive, kind, sink_log, columns=columns, max_age=_max_age(spark, options))
    _refuse_logs(read)
    return read


def _refuse_logs(source: FileSource) -> None:
    """Refuse a directory with a sink's output in it, or a part of one: there Spark does not go by the sink's log."""
    logs = [found.path for found in intruders(source) if not found.writer]
    if logs:
        output = Path(logs[0]).parent
        raise Unsupported(
            f"The path {source.root}",
            f"Spark's file sink writes to {output}, and Spark goes by the sink's log only when it reads that very directory: what failed attempts "
            "have left would be read as well",
            f"Read {output} by a frame of its own, and unite it with others.",
        )


def _check_sink_log(spark: SparkSession, path: str, root: str) -> None:
    """Refuse the output of a Spark file sink when Spark would not read it by its log, or when the log cannot be read."""
    if str(spark.conf.get(_IGNORE_SINK_LOG, "false")).lower() == "true":
        raise Unsupported(
            f"The path {path} in a session with {_IGNORE_SINK_LOG}",
            "it is the output of Spark's file sink, and what its failed attempts have left would be read as well",
            "Set it to false.",
        )
    try:
        files = list_sink(root)
    except OSError as error:
        raise Unsupported(
            f"The path {path}",
            f"it is the output of Spark's file sink, and the sink's log cannot be read: {error}",
            "Restore the log, or let the writing query begin a new directory.",
        ) from error
    other = min((file.path for file in files if not file.path.startswith(f"{root}/")), default=None)
    if other is not None:
        raise Unsupported(
            f"The path {path}",
            f"it is the output of Spark's file sink, and the sink's log names its files by another path: {other}",
            "Read it by the path that the writing query has, and not by a symbolic link to it; a directory that was moved is read by nobody.",
        )


def _partition_columns(relation: Any, root: str) -> tuple[str, ...]:
    """Return the columns of a directory's Hive partitions, none if it has no sub-directories.

    Raises Unsupported for what Spark would pass over.

    Spark finds the columns when the frame is made, and puts them last; in a batch it matches
    columns by their places. A file that does not have all of them is logged as taken, and no rows
    of it are read.
    """
    columns = tuple(str(name) for name in items(relation.dataSource().sourceInfo().partitionColumns()))
    for folder, found in _partitions(root, ()):
        if found != columns:
            raise Unsupported(
                f"The directory {root}",
                f"{folder} has files with the partition columns {', '.join(found) or 'none'}, and the frame was made with {', '.join(columns) or 'none'}: "
                "Spark would log such files as read, and read no rows from them",
                "Keep all files in partitions by the same columns, and make the frame when they are there; or set the option recursiveFileLookup to "
                '"true", which takes no columns from names.',
            )
    return columns


def _partitions(folder: str, columns: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the directories with files in them, and the columns that the names on the way to each give."""
    files = False
    with os.scandir(folder) as listing:
        for entry in listing:
            name, equals, value = entry.name.partition("=")
            if hidden(entry.name, folder=entry.is_dir()):
                continue
            if not entry.is_dir():
                files = True
            elif name and equals and value:
                yield from _partitions(entry.path, (*columns, name))
            else:
                raise Unsupported(
                    f"The directory {folder}",
                    f"it has a sub-directory ({entry.name}) that is no partition, which Spark passes over or takes for one",
                    'Set the option recursiveFileLookup to "true".',
                )
    if files:
        yield folder, columns


def _max_age(spark: SparkSession, options: Mapping[str, str]) -> int:
    """Return maxFileAge, milliseconds, by Spark's rules."""
    limited = "maxfilespertrigger" in options or "maxbytespertrigger" in options
    if options.get("latestfirst", "false").lower() == "true" and limited:
        return FOR_EVER
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(options.get("maxfileage", "7d")))


def is_file_format(spark: SparkSession, kind: str) -> bool:
    """Return whether what Spark finds under a format's name, in any of its spellings or as a class, is written by Spark's file sink."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    conf: Any = spark._jsparkSession.sessionState().conf()
    try:
        found = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(kind, conf)
    except (Py4JJavaError, PySparkException):
        return False  # one that Spark makes without a look, like memory, or that it does not find when it starts the query either
    loader = found.getClassLoader()
    return any(loader.loadClass(name).isAssignableFrom(found) for name in _FILE_FORMATS)


def local_directory(spark: SparkSession, path: str, what: str) -> str:
    """Return the absolute local path that Spark makes of a path.

    Raises Unsupported when it is on another file system.
    """
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    raw = jvm.org.apache.hadoop.fs.Path(path)
    scheme = raw.toUri().getScheme() or raw.getFileSystem(hadoop).getUri().getScheme()
    if scheme != "file":
        raise Unsupported(
            f"{what} {path}",
            f"the driver must list and rename in it as in a local directory, and {scheme}: is none",
            "Use a directory on a local or NFS file system.",
        )
    return str(raw.getFileSystem(hadoop).makeQualified(raw).toUri().getPath())


def absolute(path: str | os.PathLike[str], spark: SparkSession, *, single_driver: bool) -> Location:
    """Return the absolute location of a checkpoint directory. Raises Unsupported."""
    location = checkpoint_of(spark, os.fspath(path), single_driver=single_driver)
    refuse_pattern(str(location), "The checkpoint")
    return location


def refuse_pattern(path: str, what: str) -> None:
    """Raise Unsupported for a path that Spark reads as a pattern: it would find other directories under it, or none."""
    if any(mark in path for mark in "{}[]*?\\"):
        raise Unsupported(
            f"{what} {path}",
            "Spark reads it as a pattern, and which directories a pattern means may change while the query runs",
            "Name one directory without any of {}[]*?\\ in its path; to read those in it as well, set recursiveFileLookup.",
        )


def _map(spark: SparkSession, scala_map: Any) -> Mapping[str, str]:
    jvm: Any = spark._jvm
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))
