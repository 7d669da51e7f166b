"""Checks of a driven query before it starts, in plan, session and checkpoint; and its steps.

A query that is refused here would run wrongly: its watermark would never move, or pass unread rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Source
from lowwater_spark.sources.control import (
    END,
    NOTHING_GIVEN,
    ControlSource,
    Drive,
    Offset,
    is_control,
    passes_offset,
)
from lowwater_spark.track.plan.bounds import Window
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.plan.operators import KINDS, items, nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Steps",
    "check_checkpoint",
    "check_drivable",
    "check_driven",
    "check_ending",
    "check_proven",
    "given_offsets",
    "steps_for",
    "steps_of",
]

_AGGREGATION: Final = KINDS["Aggregate"]
_WITHIN: Final = KINDS["DeduplicateWithinWatermark"]


def check_driven(
    spark: SparkSession, frame: DataFrame, checked: Checked, drives: Mapping[int, Drive], inputs: Sequence[str]
) -> None:
    """Raise Unsupported for a query whose watermark cannot be driven.

    ``drives`` are the declarations by the number of their control source; ``inputs`` are the
    stage's. Raises ValueError when the driven inputs are not the stage's.
    """
    _check_settings(spark, drives)
    _check_inputs(drives, inputs)
    if any(not watermark.driven for watermark in checked.watermarks) or len(checked.watermarks) != len(drives):
        raise Unsupported(
            "withWatermark beside lws.drive()",
            "Spark takes the least of all watermarks of a query, so the one from the rows would hold or lead the driven one",
            "Remove it: drive() gives the frame its watermark.",
        )
    before = [operator.kind for operator in checked.operators if not operator.driven]
    if before:
        raise Unsupported(
            f"A driven query with a {before[0]} below lws.drive()",
            "rows that it holds back would be late when they come out",
            "Call lws.drive() first and put the operator on the frame that comes back.",
        )
    _check_covered(frame._jdf.queryExecution().analyzed(), len(drives))
    check_proven(spark, checked, drives)
    duplicates = any(operator.kind == _WITHIN for operator in checked.operators)
    if duplicates and any(drive.within is None for drive in drives.values()):
        raise Unsupported(
            "A driven dropDuplicatesWithinWatermark without lws.drive(..., within=...)",
            "Spark forgets a key when the watermark is that far beyond its first row, and nothing says how far apart duplicates may be",
            "Pass within, of event time; timedelta(0) where duplicates are copies, with one event time.",
        )
    _check_optimised(spark, frame, len(drives))


def check_proven(spark: SparkSession, checked: Checked, drives: Mapping[int, Drive]) -> None:
    """Raise Unsupported for a plan that the tests do not run on this Spark.

    Spark plans each batch anew, also one in which only the control row stands on one side of a
    join. If its optimiser concluded from that row that the other side has no match, it would drop
    rows before they are stored, without a trace
    (:func:`~lowwater_spark.sources.nulls.nulls_of`). Optimisers differ between versions, so a plan
    counts as proven only where a test compares it with the batch answer.
    """
    if passes_offset(spark):
        return
    fix = "Use Spark 4.2 or newer, or keep the rows yourself on this Spark: batch.stateful() in stage.foreach_batch(), without lws.drive()."
    others = [operator.kind for operator in checked.operators if operator.kind != _AGGREGATION]
    if len(drives) > 1:
        what = "of several driven frames"
    elif others:
        what = f"with a {others[0]}"
    elif any(operator.window is None for operator in checked.operators):
        what = "with an aggregation that is not by window()"
    elif len(checked.operators) > 1:
        what = "with windows over windows"
    elif any(operator.window.slide != operator.window.length for operator in checked.operators if operator.window):
        what = "with windows that overlap"
    elif any(drive.late is not None for drive in drives.values()):
        what = "with late=..."
        if not any(drive.guesses for drive in drives.values()):
            fix = "Leave late out: stage_status().dropped_rows then counts the rows that break a promise. Or use Spark 4.2 or newer."
    else:
        return
    raise Unsupported(
        f"A driven query {what} on Spark {spark.version}",
        "before 4.2 the tests run one groupBy(window(...)) over one driven frame, with windows that do not overlap, and a Spark that plans this query in another way could drop rows without a trace",
        fix,
    )


def check_drivable(spark: SparkSession, checked: Checked, trigger: Mapping[str, Any]) -> None:
    """Raise Unsupported for a query that this session could not drive, before any frame is."""
    _check_settings(spark, {})
    check_proven(spark, checked, {})
    check_ending(spark, trigger)


def check_ending(spark: SparkSession, trigger: Mapping[str, Any]) -> None:
    """Raise Unsupported for a trigger with which windows could not be closed."""
    waits = 'Leave the trigger out, and let the program end the query: lw.wait("STAGE", until=MOMENT), up to which its inputs are complete, and then query.stop().'
    if trigger.get("realTime"):
        raise Unsupported(
            "A driven query with the trigger realTime",
            "Spark reads only Kafka in real-time mode, and a driven query reads its watermark from a source of its own",
            "Use processingTime.",
        )
    if trigger.get("once"):
        available = 'Use trigger={"availableNow": True}: it runs until nothing is left to read or to close.'
        raise Unsupported(
            "A driven query with the trigger once",
            "it runs a single batch, and a moved watermark closes windows only in a later one",
            available if passes_offset(spark) else waits,
        )
    if trigger.get("availableNow") and not passes_offset(spark):
        raise Unsupported(
            f"A driven query with the trigger availableNow on Spark {spark.version}",
            "before 4.2 Spark asks a Python data source only once in such a query, before it reads any rows, so their windows would stay open",
            f"{waits} Spark 4.2 and newer drive such a query.",
        )


def _check_settings(spark: SparkSession, drives: Mapping[int, Drive]) -> None:
    empty = "spark.sql.streaming.noDataMicroBatches.enabled"
    if not _is_true(spark, empty):
        raise Unsupported(
            f"A driven query without {empty}",
            "a moved watermark closes windows in a batch without rows, which Spark would not run",
            "Set it to true, its default.",
        )
    policy = "spark.sql.streaming.multipleWatermarkPolicy"
    if len(drives) > 1 and str(spark.conf.get(policy, "min")).lower() != "min":
        raise Unsupported(
            f"A query of several driven frames with {policy} max",
            "the greatest watermark would pass rows that the other frames still wait for",
            "Set it to min, its default.",
        )
    several = "spark.sql.streaming.statefulOperator.allowMultiple"
    if any(drive.late is not None for drive in drives.values()) and not _is_true(spark, several):
        raise Unsupported(
            f"drive(..., late=...) without {several}",
            "Spark then drops rows by another watermark than the one that late rows are told by",
            "Set it to true, its default.",
        )


def _is_true(spark: SparkSession, name: str) -> bool:
    return str(spark.conf.get(name, "true")).lower() == "true"


def _check_inputs(drives: Mapping[int, Drive], inputs: Sequence[str]) -> None:
    driven = {name for drive in drives.values() for name in drive.inputs}
    if driven != set(inputs):
        msg = (
            f"the stage's inputs are {', '.join(sorted(inputs)) or 'none'}, and those of its driven frames {', '.join(sorted(driven))}: "
            "name every computation whose output the query reads in both"
        )
        raise ValueError(msg)
    late = [drive.late for drive in drives.values() if drive.late is not None]
    if len(set(late)) < len(late):
        msg = f"two driven frames of one query keep their late rows in {late[0]}; give each a directory of its own"
        raise ValueError(msg)


def _check_covered(plan: Any, controls: int) -> None:
    """Raise Unsupported for a source that no control drives, and for a drive() below another."""
    leaves = list(_leaves(plan, covered=False))
    if any(not covered for leaf, covered in leaves if not is_control(leaf)):
        raise Unsupported(
            "A driven query that also reads a frame that is not driven",
            "the watermark does not wait for its rows",
            "Unite the frames before lws.drive(), or drive each of them.",
        )
    if any(covered for leaf, covered in leaves if is_control(leaf)) or len(leaves) < 2 * controls:
        raise Unsupported(
            "A driven frame inside of a driven frame",
            "the inner watermark would be lost",
            "Call lws.drive() once, on the data.",
        )


def _leaves(node: Any, *, covered: bool) -> Iterator[tuple[Any, bool]]:
    """Yield the streaming leaves of a plan, and whether a control before them covers them."""
    children = items(node.children())
    if not children and node.isStreaming():
        yield node, covered
    first = [leaf for leaf in items(children[0].collectLeaves()) if leaf.isStreaming()] if children else []
    driven = node.getClass().getSimpleName() == "Union" and len(first) == 1 and is_control(first[0])
    for i, child in enumerate(children):
        yield from _leaves(child, covered=covered or (driven and i > 0))


def _check_optimised(spark: SparkSession, frame: DataFrame, controls: int) -> None:
    """Raise Unsupported if the optimiser drops a control or filters its row."""
    jsession: Any = spark._jsparkSession
    plan = jsession.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed())
    arriving = sum(_arrives(node) for node in nodes(plan) if node.getClass().getSimpleName() == "EventTimeWatermark")
    if arriving != controls:
        raise Unsupported(
            "A driven query that Spark plans without its control row",
            f"of {controls} control rows {controls - arriving} would be filtered out below the watermark, which would then never move",
            "Filter the frame before lws.drive(), or report the query: no plan is known in which this happens.",
        )


def _arrives(watermark: Any) -> bool:
    """Return True if only projections are between a watermark and its control source."""
    node = watermark
    while children := items(node.children()):
        [node] = children[:1]
        if len(children) > 1 or (items(node.children()) and node.getClass().getSimpleName() != "Project"):
            return False
    return is_control(node)


def steps_for(checked: Checked, drive: Drive) -> Steps:
    """Return the steps at which a control's value may be."""
    windows = [operator.window for operator in checked.operators]
    tumbling = [window for window in windows if window is not None]
    return steps_of(tumbling, step=drive.step, before=not tumbling or len(tumbling) < len(windows))


def holdback_of(checked: Checked, steps: Steps, window: timedelta | None = None) -> int:
    """Return how far below its inputs a healthy driven stage can be at most, microseconds.

    The control, by which the stage sets Spark's watermark, goes up in steps. So the result is the
    distance to the next step, plus the distance from there down to the oldest row that Spark still
    holds. ``window``: width to which the stage rounds its stamps down. 0 for a query that holds no
    rows.

    Stamps of windows are whole slides apart. So their distances to the steps repeat with the
    greatest common divisor of slide and step, and the lowest stamp decides.
    """
    if checked.retention is None:
        return 0
    before = 1_000 if steps.before else 0
    # ``whole``: each step, a value that the control may have, is a whole number of milliseconds. If
    # it is none, Steps.value() rounds it down, by up to 999 microseconds (``ahead``), so each whole
    # millisecond may be a value: these are 1,000 microseconds ``apart``, from 0.
    whole = steps.length % 1_000 == 0 == steps.origin % 1_000
    apart, origin, ahead = (steps.length, steps.origin, before) if whole else (1_000, 0, before + 999)

    def rounded(distance: int, stamp: int, period: int) -> int:
        """Add what rounding can take off a stamp; stamps are multiples of ``period`` apart."""
        if window is None:
            return distance
        common = gcd(period, _micros(window))
        return distance + _micros(window) - common + stamp % common

    distances = list[int]()
    if checked.declared or not checked.stamps:
        retained = _micros(checked.retained)
        distances.append(rounded(retained, origin - before - retained, apart))
    for stamp in checked.stamps:
        lag, cut = _micros(stamp.lag - stamp.shift), stamp.window
        at, period = origin - before - lag, apart
        if cut is not None:
            length, period, at = _micros(cut.length), _micros(cut.slide), _micros(cut.start + stamp.shift)
            common = gcd(period, apart)
            # How far below Spark's watermark, which is at a step, can a stamp be? The operator has
            # released all windows that end at or below its own watermark, ``stamp.lag`` lower. So
            # the lowest stamp is of the window with the next end. The way up to that end is taken
            # off ``lag``. It is at least the remainder by ``common``, with which ends and steps
            # repeat, or ``common`` if that is 0, as the window that ends exactly there is released.
            lag -= (_micros(cut.start + cut.length + stamp.lag) - origin + before) % common or common
            lag, at = (lag + length, at) if stamp.kind == "start" else (lag, at + length)
        if stamp.truncated:
            lag, period = lag + sum(_micros(unit.longest) for unit in stamp.truncated), 1
        distances.append(rounded(lag, at, period))
    return max(0, steps.length + ahead + max(distances))


# -- the checkpoint --------------------------------------------------------------------------------
def check_checkpoint(checkpoint: Location, sources: Sequence[Source]) -> None:
    """Raise CheckpointMismatch if a checkpoint's controls are not those of the query.

    Without this check Spark would only complain about the number of sources, or read one source's
    offset as another's.
    """
    controls = [i for i, source in enumerate(sources) if isinstance(source, ControlSource)]
    plan = CheckpointLog(checkpoint).newest()
    if plan is None:
        return
    controlled = [i for i, line in enumerate(plan.lines) if _is_offset(line)]
    unknown = [i for i in controls if i < len(plan.lines) and plan.lines[i] == NONE]
    if sorted(controlled + unknown) == controls:
        return
    what = "has no lws.drive()" if not controls else f"has {len(controls)} lws.drive()"
    was = "that was not driven" if not controlled else f"with {len(controlled)} of them"
    msg = _OTHER_SOURCES.format(checkpoint=checkpoint, what=what, was=was)
    raise CheckpointMismatch(msg)


_OTHER_SOURCES: Final = (
    "this query {what}, and {checkpoint} is the checkpoint of one {was}. A control is a source of the query, and Spark numbers the sources of "
    "a checkpoint for good. Start from a new checkpoint, into a new output, with adopt=True; it reads the files that still stand in the sources again. "
    "See 'Changing a query that runs' in docs/reference/spark.md."
)


def _is_offset(line: str) -> bool:
    try:
        return line != NONE and bool(Offset.of_line(line))
    except ValueError:
        return False


def given_offsets(log: CheckpointLog, drives: Mapping[int, Drive]) -> dict[int, Offset]:
    """Return each control's offset in the newest planned batch, from which Spark goes on.

    Raises CheckpointMismatch when a frame follows a new input: the checkpoint's watermark knows
    nothing of the rows which that input still holds.
    """
    plan = log.newest()
    if plan is None:
        return {number: Offset() for number in drives}
    offsets = {number: Offset.of_line(plan.lines[number]) for number in drives}
    for number, offset in offsets.items():
        new = sorted(set(drives[number].inputs) - set(offset.incarnations))
        if offset.watermark and new:
            msg = (
                f"the query of {log.checkpoint} has come to its watermark without {', '.join(new)}, which may hold older rows. Start from a new "
                "checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
    return offsets


@dataclass(frozen=True, slots=True)
class Steps:
    """Values that a control may have: whole steps from an origin, both microseconds.

    ``before`` is True for operators that drop a row *at* the watermark, which all do but windowed
    aggregations (they drop windows that *end* at it). The value is then one millisecond less, since
    a row exactly at the low watermark may still come.
    """

    length: int = 1_000_000
    origin: int = 0
    before: bool = True

    def value(self, low: int) -> int:
        """Return the greatest safe value, milliseconds, for the low watermark, microseconds.

        >>> Steps(1_000, before=False).value(10_000_999), Steps(1_000).value(10_000_999)
        (10000, 9999)
        >>> Steps(10_000_000, before=False).value(19_999_999), Steps().value(MAX) == END
        (10000, True)
        >>> Steps().value(MIN)
        0
        """
        if low == MIN:
            return NOTHING_GIVEN
        if low == MAX:
            return END
        floored = low - (low - self.origin) % self.length
        value = floored // 1_000 - (1 if self.before else 0)
        return min(max(value, NOTHING_GIVEN), END - 1)


def steps_of(windows: Iterable[Window], *, step: timedelta | None, before: bool) -> Steps:
    """Return the steps of a query: the given step, else the windows' ends, else whole seconds.

    Several kinds of windows end at different times: the step is then the greatest that meets all of
    their ends.
    >>> hour, ten = timedelta(hours=1), timedelta(minutes=10)
    >>> steps_of([Window(hour, ten, timedelta(minutes=5))], step=None, before=False)
    Steps(length=600000000, origin=300000000, before=False)
    >>> both = [Window(hour, hour, timedelta(0)), Window(ten, ten, ten / 2)]
    >>> steps_of(both, step=None, before=False).length == 5 * 60 * 1_000_000
    True
    """
    if step is not None:
        return Steps(_micros(step), 0, before)
    ends = [(_micros(window.start + window.length), _micros(window.slide)) for window in windows]
    if not ends or before:
        return Steps(before=before)
    origin, length = ends[0]
    for end, slide in ends[1:]:
        length = gcd(length, slide, end - origin)
    return Steps(max(length, 1_000), origin % max(length, 1_000), before)


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
