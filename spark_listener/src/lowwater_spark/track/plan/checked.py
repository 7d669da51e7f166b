"""Reads a query's analysed plan, and refuses before the start what cannot be tracked exactly.

The list of allowed operators, options and sources is short on purpose: an unknown one is refused,
by name, with the reason and the fix.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.location import Location, checkpoint_of, refuse_pattern
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.base import Leaf, Source
from lowwater_spark.sources.control import ControlSource, is_control, is_end
from lowwater_spark.sources.kinds import source_of_leaf
from lowwater_spark.track.plan.bounds import MILLISECOND, Stamp, in_python, least_retention, lowest_stamp
from lowwater_spark.track.plan.operators import (
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
    "read_plan",
]

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
"""Streaming operators without state: they emit a row's results when the row arrives, or never."""

_FILE_FORMATS: Final = (
    "org.apache.spark.sql.execution.datasources.FileFormat",
    "org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2",
)
"""Interfaces of a format that Spark writes by its file sink."""

_SETTINGS: Final = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


_BY_CHECKPOINT: Final = (
    "Start the query by writeStream, and track it as exactly by its checkpoint: lws.track(NAME, query=query)."
)


def check_classic(spark: SparkSession, what: str, fix: str = _BY_CHECKPOINT) -> None:
    """Raise Unsupported, naming ``what`` and the fix, for a session of Spark Connect."""
    if not hasattr(spark, "_jvm"):
        raise Unsupported(
            what,
            "only the Python of a classic driver sees the query's plan and its checkpoint",
            fix,
        )


def check_session(spark: SparkSession) -> None:
    """Raise Unsupported for a session whose settings cannot be tracked exactly."""
    check_classic(spark, "A Spark Connect session")
    for name in _SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise Unsupported(
                f"A session with {name}", "rows of a skipped file would count as read", "Set it to false."
            )
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    if str(spark.conf.get(evolution, "false")).lower() == "true":
        raise Unsupported(
            f"A session with {evolution}",
            "sources are then numbered by name in the checkpoint, which this release does not read",
            "Set it to false.",
        )


def check_trigger(trigger: Mapping[str, Any], *, function: bool) -> None:
    """Raise Unsupported for triggers whose batches do not begin and commit one after the other.

    ``function``: a function handles the batches.
    """
    if trigger.get("continuous") is not None:
        raise Unsupported(
            "The trigger continuous",
            "continuous processing gives no evidence of which rows a commit contains",
            "Use processingTime, availableNow or realTime.",
        )
    if function and trigger.get("realTime") is not None:
        raise Unsupported(
            "A function for the batches of the trigger realTime",
            "Spark calls none in real-time mode",
            "Use processingTime, or start a stage that writes to Kafka: stage.start(..., format='kafka').",
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """The sources and operators of a plan that can be tracked."""

    sources: Sequence[Source]
    """Sources in the order of Spark's numbers."""
    operators: Sequence[Operator] = ()
    """Operators that keep rows in Spark's own state; outer ones before their inputs."""
    watermarks: Sequence[Watermark] = ()
    retention: timedelta | None = None
    """Greatest distance of held rows below Spark's own watermark; None: Spark holds no rows."""
    stamps: Sequence[Stamp] = ()
    """Stamps of the output according to the plan. Empty: unknown, and only ``retention`` counts."""
    declared: bool = True
    """True: the stage declares ``retention``. Otherwise only ``stamps`` count."""

    def waiting_for(self, inputs: Iterable[str], driven: Mapping[int, Iterable[str]]) -> Checked:
        """Return a copy that waits for the query's inputs, or a control's by its number.

        Spark numbers the sources of a driven frame after its control. Raises Unsupported for a
        source that cannot wait.
        """
        sources, waited_for = list[Source](), frozenset(inputs)
        for number, source in enumerate(self.sources):
            if isinstance(source, ControlSource):
                waited_for = frozenset(driven[number])
            sources.append(source.waiting_for(waited_for))
        return dataclasses.replace(self, sources=sources)

    def telling_ends(self) -> Checked:
        """Return a copy whose sources say where their partitions end.

        An injector with ``across`` or ``delay`` needs that, to know of a partition whether it has
        read all of it. Raises Unsupported for a source that cannot list its ends; only Kafka can.
        """
        return dataclasses.replace(self, sources=[source.telling_ends() for source in self.sources])

    def check_parts(self, df: DataFrame, columns: Sequence[str], *, paced: bool) -> None:
        """Raise Unsupported unless all rows have a partition and the frame names it.

        With ``paced``, every source must be read at one pace.
        """
        for source in self.sources:
            source.check_partitions(paced=paced)
        if missing := [name for name in columns if name not in df.columns]:
            raise Unsupported(
                f"An injector with disorder over a frame without the column {missing[0]}",
                "no column then says which partition a row belongs to",
                f"Keep the columns {' and '.join(columns)} of Kafka's source in the frame, and drop them before you write.",
            )

    def check_writers(self) -> None:
        """Raise Unsupported if another computation than the named inputs writes to a source."""
        for source in self.sources:
            source.check_writers()

    @property
    def controls(self) -> dict[int, ControlSource]:
        """The control sources, by Spark's number."""
        return {i: source for i, source in enumerate(self.sources) if isinstance(source, ControlSource)}

    def spark_bound(self, plan: Plan | None) -> int:
        """Return the lowest stamp, microseconds, that Spark can still emit after a committed batch.

        ``plan`` is None before the first batch. MAX: Spark holds no rows. MIN: it has no watermark
        yet, so even later rows are unknown: a sliding window may start before any of its rows.
        """
        if self.retention is None:
            return MAX
        if plan is None or plan.watermark == 0:
            return MIN
        if self.controls and is_end(plan.watermark):
            return MAX
        return self.bound_at(plan.watermark * 1000)

    def bound_at(self, watermark: int) -> int:
        """Return the lowest stamp that Spark can still emit at a watermark of its own.

        Both are microseconds. The plan must hold rows.
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
    """Return how much longer Spark holds rows than declared: a millisecond for a join on times."""
    return MILLISECOND if KINDS["Join"] in kinds else timedelta()


def check_plan(
    spark: SparkSession,
    frame: DataFrame,
    *,
    retention: timedelta | None = None,
    event_time: str | Column | None = None,
    also: Sequence[str | Column] = (),
) -> Checked:
    """Return the sources and operators of a streaming DataFrame.

    ``retention`` is the stage's declaration, and ``event_time`` its output's stamp. If the plan
    says how far back the stamp can be (the start or end of a window, the end of a session, a time
    by which Spark releases rows), no retention is needed. ``also`` are the stamps of the query's
    other stages, since all stages have one bound. Raises Unsupported, naming the first thing that
    cannot be tracked exactly.
    """
    operators, watermarks, relations = _read(frame)
    holding = [operator for operator in operators if operator.holds]
    stamps, stored_retention = list[Stamp](), retention
    if holding:
        own = () if event_time is None else (event_time,)
        # Pairs, and no dict by a column's text: the t of the left and the t of the right side of a
        # join print alike. A dict would lose the stamps of one: the bound could be too high, and
        # its rows would come out below the published watermark.
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
            stored_retention = least_retention(stamps, at_ends=False) if longest is None else longest
    _check_state(operators, watermarks, declared=stored_retention is not None)
    sources = [source_of_leaf(Leaf(spark, relation)) for relation in relations]
    if not holding:
        return Checked(sources, operators, watermarks)
    return Checked(sources, operators, watermarks, stored_retention, stamps, retention is not None)


def read_plan(spark: SparkSession, frame: DataFrame) -> Checked:
    """Return the sources and operators of a streaming DataFrame, whatever bounds its state.

    Raises Unsupported for a source or an operator that no stage takes.
    """
    operators, watermarks, relations = _read(frame)
    return Checked([source_of_leaf(Leaf(spark, relation)) for relation in relations], operators, watermarks)


def _read(frame: DataFrame) -> tuple[list[Operator], list[Watermark], list[Any]]:
    """Return the operators, watermarks and sources of the plan. Raises Unsupported."""
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
    # The checkpoint numbers the sources in the order of ``written``. ``plan``, whose WITH clauses
    # are inlined, may have them in another order: by its order, a source would get another one's
    # offsets. Only in ``plan`` does a source occur twice if its clause is used twice.
    relations = _relations(written)
    used = _relations(plan)
    if len(used) != len(relations) or any(used[i].equals(other) for i in range(len(used)) for other in used[:i]):
        raise Unsupported(
            "A stream that is used twice in one query",
            "Spark logs it once and counts it twice, and the two could be mixed up",
            "Load it twice with spark.readStream, or split the rows after one use.",
        )
    return operators, watermarks, relations


def check_arriving(frame: DataFrame, column: str | Column) -> None:
    """Raise Unsupported if a query without state stamps rows below the inputs' promised times."""
    from pyspark.errors import AnalysisException

    try:
        lowered = is_lowered(frame, column)
    except AnalysisException:
        return  # the frame has no such column: the function of foreach_batch() will add it
    if lowered:
        raise Unsupported(
            f"The stamp {column}, which date_trunc(), a date, a number, a text, an interval that is not a constant of zero or more, the offset of a time zone, or the start of a window() makes of the event time",
            "rows that arrive after the watermark has passed the beginning of a day are stamped with that beginning, below the published watermark",
            "Stamp the rows with their event time or the end of the window, and keep the truncated one in a column beside it; or group them by window().",
        )


def check_windows(frame: DataFrame, declared: timedelta | None) -> None:
    """Raise Unsupported for an output ``window()`` that starts below the declared windows.

    The watermark is floored to the windows of ``stamp=timedelta()``. If the output has the start of
    a declared window, that is the stamp, and other windows may stand beside it.
    """
    if declared is None:
        return
    cuts = list(windows_of(frame))
    if any(cut.slide == cut.length and not declared % cut.length and not cut.start % cut.length for cut in cuts):
        return
    for cut in cuts[:1]:
        raise Unsupported(
            f"A window of {cut.length} every {cut.slide}, shifted by {cut.start}, in a stage with stamp={in_python(declared)}",
            "it begins below the declared one, and rows stamped by its start would come out below the published watermark",
            'Group a frame of lws.drive() by it, and declare stamp=F.col("window.start"); or use tumbling windows without startTime, whose length divides the declared one.',
        )


def _stamps_of(frame: DataFrame, column: str | Column) -> list[Stamp] | None:
    """Return a column's stamps as stamps_of() does; None if only a batch's frame has the column."""
    from pyspark.errors import AnalysisException

    try:
        return stamps_of(frame, column)
    except AnalysisException:
        return None


def _check_retention(declared: timedelta, stamps: Sequence[Stamp], holding: Sequence[Operator]) -> None:
    """Refuse a retention that is less than the plan's: the stage's watermark would lead."""
    windows = {operator.window for operator in holding}
    at_ends = len(windows) == 1 and None not in windows and all(operator.driven for operator in holding)
    least = least_retention(stamps, at_ends=at_ends)
    if declared + added(operator.kind for operator in holding) < least:
        raise Unsupported(
            f"The retention {declared} of a query with {' above '.join(operator.kind for operator in holding)}",
            f"Spark's state can still emit rows that are stamped {least} below its watermark, which would come out below the published one: of several operators "
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
    """Refuse operators whose held rows have no bound, or no declared one."""
    own = [watermark for watermark in watermarks if not watermark.driven]
    holding = [operator for operator in operators if operator.holds]
    # ``own``: each withWatermark that has more below it than the controls of a drive(). Without a
    # retention, declared or shown by the plan, it is refused in a query that holds rows: they could
    # come out below the published watermark. It is also refused without any operator, where it is a
    # mistake. A query that only deduplicates passes: it holds no row, and forgets keys by it.
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
                "Spark never releases what it holds, so old rows could come out at any time",
                "Put withWatermark on the event time of every stream that it reads, and group by that event time or a window of it.",
            )
        if not operator.bounded:
            raise Unsupported(
                f"{what} without a bound on the times of both",
                "Spark never releases rows that no time rules out, so a match of any age could come out; and by a column that is made of an event time, such as h of "
                "u <= h, it releases rows too early, and loses matches",
                "Add to its condition how far the event times themselves can be apart, both ways, such as u >= t AND u <= t + INTERVAL 1 HOUR.",
            )


def _check_driven_state(operator: Operator, *, declared: bool) -> None:
    """Refuse an operator under :func:`~lowwater_spark.drive` whose held rows have no bound."""
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
            "Spark never releases what it holds, so old rows could come out at any time",
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
    """Raise Unsupported for writer options that make a plain query's commits unreliable.

    Raises ValueError for options that are arguments.
    """
    lowered = {option.lower(): value for option, value in options.items()}
    if str(lowered.get("asyncprogresstrackingenabled", "false")).lower() != "false":
        raise Unsupported(
            "The option asyncProgressTrackingEnabled",
            "batches are then missing from the offset and commit logs, which say what is read and written",
            "Remove the option.",
        )
    for option, value in options.items():
        if option.lower() == "kafka.acks" and str(value) not in ("all", "-1"):
            raise Unsupported(
                f"The option {option} with the value {value!r}",
                "a batch is then committed and reported while Kafka can still lose its rows",
                'Remove the option: Kafka\'s own default is "all".',
            )
    for option, argument in (("checkpointlocation", "checkpoint"), ("path", "path"), ("queryname", "name")):
        if option in lowered:
            msg = f"pass {argument}= instead of the option {option}"
            raise ValueError(msg)


def check_output_mode(checked: Checked, mode: str, *, function: bool = False) -> None:
    """Raise Unsupported for output modes that rewrite old results, ValueError for an unknown mode.

    A function sees by ``batch.low`` which windows are complete; a Spark sink does not.
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


def is_file_format(spark: SparkSession, kind: str) -> bool:
    """Return whether Spark writes a format, by its name or class, with its file sink."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    conf: Any = spark._jsparkSession.sessionState().conf()
    try:
        provider = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(kind, conf)
    except (Py4JJavaError, PySparkException):
        return False  # "memory" or the like, which has no class to look up, or a name unknown to Spark
    loader = provider.getClassLoader()
    return any(loader.loadClass(name).isAssignableFrom(provider) for name in _FILE_FORMATS)


def absolute(path: str | os.PathLike[str], spark: SparkSession, *, single_driver: bool) -> Location:
    """Return the absolute location of a checkpoint directory. Raises Unsupported."""
    location = checkpoint_of(spark, os.fspath(path), single_driver=single_driver)
    refuse_pattern(str(location), "The checkpoint")
    return location
