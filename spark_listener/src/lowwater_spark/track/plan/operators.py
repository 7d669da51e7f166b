"""Finds the operators of a streaming plan that keep rows in Spark's state, and when they emit them.

The module reads the analysed plan through py4j, by structure and not by its text. The shapes of the
nodes were probed on PySpark 4.3: a window of ``window(t, length, slide, start)`` is a struct of two
expressions in a Project (tumbling) or an Expand (sliding) below the Aggregate,
``conversion(...(t - start) % slide ... + length)``; a column under ``withWatermark`` has its delay
in its metadata. An operator *releases* a row when it drops it from its state.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from lowwater_spark.columns import column_of
from lowwater_spark.track.plan.bounds import Stamp, Truncated, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "KINDS",
    "Operator",
    "Watermark",
    "inlined",
    "items",
    "nodes",
    "is_lowered",
    "is_windows",
    "operator_of",
    "reach",
    "stamps_of",
    "windows_of",
    "watermark_of",
]

KINDS: Final = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "FlatMapGroupsInPandasWithState": "stateful function",
    "FlatMapGroupsWithState": "stateful function",
    "Join": "join of two streams",
    "TransformWithState": "stateful function",
    "TransformWithStateInPySpark": "stateful function",
}
"""Names for the logical operators with streaming rows in state; a Join must have two streams."""

_ON_ARRIVAL: Final = frozenset({"deduplication", "deduplication within the watermark"})

_NAMED: Final = frozenset({"Alias", "AttributeReference"})
"""Expressions of an analysed plan that have a name, and so metadata, where a watermark is noted."""

_DELAY: Final = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class Watermark:
    """One ``withWatermark`` of a plan."""

    column: str
    delay: timedelta
    driven: bool
    """True: only control sources are below the ``withWatermark``."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator that keeps rows in state."""

    kind: str
    """One of the values of :data:`KINDS`."""
    columns: tuple[str, ...]
    """Watermarked event time columns that decide when rows are released: of a windowed aggregation
    the column in the window, of a join the columns of both sides, left first. Empty: Spark never
    releases a row."""
    window: Window | None
    """Window of an aggregation over ``window()``; None for other keys and for session windows."""
    driven: bool
    """True: a control source is among the operator's inputs."""
    both_sides: bool = True
    """False: one side of the join has no watermark."""
    bounded: bool = True
    """False: a join keeps the rows of a side for ever."""

    @property
    def holds(self) -> bool:
        """True if the operator can emit a row in a later batch than the one that brought it."""
        return self.kind not in _ON_ARRIVAL


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan, parents first."""
    yield plan
    for child in items(plan.children()):
        yield from nodes(child)


def items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def watermark_of(node: Any, *, driven: bool) -> Watermark:
    """Return the declaration of an EventTimeWatermark node."""
    column = node.eventTime().name()
    [delay] = [a for a in map(_delay, items(node.output())) if a is not None and a[0] == node.eventTime().exprId().id()]
    return Watermark(column, timedelta(milliseconds=delay[1]), driven)


def operator_of(node: Any, *, driven: bool) -> Operator | None:
    """Return the operator that a streaming node is; None if the node keeps no rows."""
    name = node.getClass().getSimpleName()
    kind = KINDS.get(name)
    children = [child for child in items(node.children()) if child.isStreaming()]
    if kind is None or (name == "Join" and len(children) < 2):
        return None
    if name == "Aggregate":
        keys = [key for key in items(node.groupingExpressions()) if _is_watermarked(key)]
        windows = [_window(node, key) for key in keys]
        columns = tuple(key.name() if window is None else window[0] for key, window in zip(keys, windows, strict=True))
        cut = next((window[1] for window in windows if window is not None), None)
        return Operator(kind, columns, cut, driven)
    sides = [tuple(a.name() for a in items(child.output()) if _is_watermarked(a)) for child in children]
    columns = tuple(name for side in sides for name in side)
    bounded = name != "Join" or None not in _lags(node)
    return Operator(kind, columns, None, driven, all(sides), bounded)


def _lags(join: Any) -> tuple[timedelta | None, timedelta | None]:
    """Return how far below its watermark a join keeps left and right rows; None: for ever.

    Spark's own function computes it from a condition on times: for ``u <= t + 1 hour`` the result
    is an hour and a millisecond. If the times or windows of both sides must be equal, they are a
    part of the join's key, and the lag is zero.

    For ``u <= h``, with h made of t, Spark's function returns how long Spark should wait for h. But
    Spark drops rows by t, which may be lower than h, and then loses matches. Therefore this
    function returns None when the answers for the event time and for all columns differ.
    """
    if _time_keys(join):
        return timedelta(), timedelta()
    left_side, right = join.left(), join.right()
    catalyst = _jvm_of(join).org.apache.spark.sql.catalyst
    watermark = 1 << 42  # any number: only the distance below it counts. Above 2**31 py4j sends a long

    def state_lag_millis(columns: Any, other: Any) -> int | None:
        watermark_option = _jvm_of(join).scala.Option.apply(watermark)
        helper = catalyst.analysis.StreamingJoinHelper
        bound = helper.getStateValueWatermark(columns, other.outputSet(), join.condition(), watermark_option)
        return watermark - bound.get() if bound.isDefined() else None

    def lag(side: Any, other: Any) -> timedelta | None:
        times = [catalyst.expressions.AttributeSet.apply(a) for a in items(side.output()) if _is_watermarked(a)]
        if not times:
            return None
        millis = state_lag_millis(functools.reduce(lambda one, more: getattr(one, "$plus$plus")(more), times), other)
        if millis is None or millis != state_lag_millis(side.outputSet(), other):
            return None
        return timedelta(milliseconds=millis)

    return lag(left_side, right), lag(right, left_side)


def _jvm_of(thing: Any) -> Any:
    """Return the py4j view of the JVM that a Java object belongs to."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None, "a plan belongs to a session"
    return context._jvm


def _time_keys(join: Any) -> set[int]:
    """Return the ids of both sides' watermarked attributes that a join requires to be equal."""
    condition = join.condition()
    if not condition.isDefined():
        return set()
    sides = [{a.exprId().id() for a in items(side.output())} for side in (join.left(), join.right())]
    ids: set[int] = set()
    for conjunct in _conjuncts(condition.get()):
        if conjunct.getClass().getSimpleName() != "EqualTo":
            continue
        pair = items(conjunct.children())
        if any(attribute.getClass().getSimpleName() != "AttributeReference" for attribute in pair):
            continue
        one, other = (attribute.exprId().id() for attribute in pair)
        across = (one in sides[0] and other in sides[1]) or (one in sides[1] and other in sides[0])
        if across and all(map(_is_watermarked, pair)):
            ids |= {one, other}
    return ids


def _conjuncts(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "And":
        for child in items(expression.children()):
            yield from _conjuncts(child)
    else:
        yield expression


def _is_watermarked(expression: Any) -> bool:
    # Only an expression with a name has metadata(). hasattr() cannot tell, because py4j returns
    # something for any attribute of a Java object: so the class decides.
    named = expression.getClass().getSimpleName() in _NAMED
    return named and _DELAY in json.loads(expression.metadata().json())


def _delay(attribute: Any) -> tuple[int, int] | None:
    """Return an attribute's id and its delay in milliseconds; None without a watermark."""
    delay = json.loads(attribute.metadata().json()).get(_DELAY)
    return None if delay is None else (attribute.exprId().id(), delay)


def _window(aggregate: Any, key: Any) -> tuple[str, Window] | None:
    """Return the column and the window of a ``window()`` grouping key; None for any other key."""
    if not json.loads(key.metadata().json()).get("spark.timeWindow"):
        return None
    for definition in _definitions(aggregate, key.exprId().id()):
        # An AttributeReference only gives the window another name: the next definition makes it, or
        # names it again. _cut() would find no window in a name.
        if definition.getClass().getSimpleName() != "AttributeReference":
            return _cut(definition)
    return None


def _cut(definition: Any) -> tuple[str, Window] | None:
    """Return the column and the window of an expression that makes one; None for any other one."""
    fields = items(definition.children())
    if len(fields) != 4 or definition.getClass().getSimpleName() != "CreateNamedStruct":
        return None
    end, remainder = _only(fields[3], "Add"), _only(fields[1], "Remainder")
    column = _only(fields[1], "AttributeReference")
    if end is None or column is None or not _is_window_start(fields[1]):
        return None
    shifted = items(remainder.children())[0]
    length, slide, start = (_micros(items(e.children())[1]) for e in (end, remainder, shifted))
    return str(column.name()), Window(length, slide, start)


def windows_of(frame: DataFrame) -> Iterator[Window]:
    """Yield each ``window()`` whose start, or a value made of it, is in the output of a frame.

    The static inputs of a streaming frame are not searched.
    """
    plan: Any = inlined(frame._jdf.queryExecution().analyzed())
    optimizer = _jvm_of(plan).org.apache.spark.sql.catalyst.optimizer
    for rule in (optimizer.ColumnPruning, optimizer.CollapseProject):  # fewer columns to read by py4j
        plan = rule.apply(plan)
    yield from _windows(plan, {(attribute, ()) for attribute in _ids(plan)})


def _windows(node: Any, attributes: set[tuple[int, _Path]]) -> Iterator[Window]:
    """Yield the windows from which some attributes of a node's output are made.

    Each attribute comes with the path to the field that is read of it.
    """
    name, children = node.getClass().getSimpleName(), items(node.children())
    if not attributes or not children:
        return
    if name == "Union":
        places = {attribute: place for place, attribute in enumerate(_ids(node))}
        for child in children:
            ids = _ids(child)
            yield from _windows(child, {(ids[places[one]], path) for one, path in attributes if one in places})
        return
    definitions = _made_by(node, name)
    if not definitions and name not in _PASSING:
        inputs = {attribute for child in children for attribute in _ids(child)}
        # This node, such as a MapInPandas, adds a column that no expression of the plan defines: it
        # runs a function. The function may make the column from any column that the node reads. So
        # all of them are followed: else check_windows() would miss a window() below the function.
        if any(attribute not in inputs for attribute, _ in attributes):
            attributes = attributes | {(attribute.exprId().id(), ()) for attribute in items(node.references().toSeq())}
    below: set[tuple[int, _Path]] = set() if name in ("Aggregate", "Expand", "Project") else set(attributes)
    for attribute, expression in definitions:
        for path in [path for defined, path in attributes if defined == attribute]:
            yield from _windows_in(expression, path, below)
    for child in children:
        if child.isStreaming() or not node.isStreaming():
            columns = set(_ids(child)) if len(children) > 1 else None
            yield from _windows(child, below if columns is None else {one for one in below if one[0] in columns})


def _made_by(node: Any, name: str) -> list[tuple[int, Any]]:
    """Return the attributes that a node makes, each with the expression that defines it."""
    if name == "Expand":  # it has a projection for each of the sliding windows that a row is in
        return [
            pair for projection in items(node.projections()) for pair in zip(_ids(node), items(projection), strict=True)
        ]
    if name == "Generate":
        return [(attribute.exprId().id(), node.generator()) for attribute in items(node.generatorOutput())]
    columns = {"Aggregate": "aggregateExpressions", "Project": "projectList", "Window": "windowExpressions"}.get(name)
    named = [] if columns is None else items(getattr(node, columns)())
    return [(column.exprId().id(), column) for column in named]


def _windows_in(expression: Any, path: _Path, below: set[tuple[int, _Path]]) -> Iterator[Window]:
    """Yield the windows from which an expression is made.

    Adds to ``below`` the attributes of the node below that the expression reads.
    """
    name = expression.getClass().getSimpleName()
    if name == "AttributeReference":
        below.add((expression.exprId().id(), path))
        return
    children = items(expression.children())
    path = _path_below(expression, name, children, path)
    cut = _cut(expression)
    if cut is not None:
        if path[:1] in ((), (0,)):
            yield cut[1]
        return
    if name == "CreateNamedStruct" and path:
        children, path = [children[2 * path[0] + 1]], path[1:]
    # Of f() OVER (PARTITION BY ...) only f() makes the value. The partitioning selects rows, and a
    # boolean selects a value: for a window() in those, a sound query would be refused.
    for child in children[: 1 if name == "WindowExpression" else None]:
        if _type(child) != "boolean":
            yield from _windows_in(child, path, below)


def _definitions(aggregate: Any, expression_id: int) -> Iterator[Any]:
    """Yield the expressions that define an attribute in the nodes below, under any of its names.

    A Project yields one, and an Expand its last.
    """
    for node in nodes(items(aggregate.children())[0]):
        name = node.getClass().getSimpleName()
        if name == "Project":
            for column in items(node.projectList()):
                if column.exprId().id() == expression_id and column.getClass().getSimpleName() == "Alias":
                    yield column.child()
                    if column.child().getClass().getSimpleName() == "AttributeReference":
                        expression_id = column.child().exprId().id()
                    break
        elif name == "Expand":
            ids = [attribute.exprId().id() for attribute in items(node.output())]
            if expression_id in ids:
                yield items(items(node.projections())[-1])[ids.index(expression_id)]


def _only(expression: Any, name: str) -> Any:
    """Return the first expression of a class in a tree, parents first; None without any."""
    return next((e for e in nodes(expression) if e.getClass().getSimpleName() == name), None)


def _micros(literal: Any) -> timedelta:
    return timedelta(microseconds=int(literal.value()))


def reach(operators: Sequence[Operator]) -> timedelta | None:
    """Return the longest window if every holding operator is a windowed aggregation, else None.

    A checkpoint stores it as the retention of a query that declares none.
    """
    lengths = [None if operator.window is None else operator.window.length for operator in operators if operator.holds]
    finite = [length for length in lengths if length is not None]
    return max(finite) if finite and len(finite) == len(lengths) else None


def is_windows(frame: DataFrame, column: str | Column) -> bool:
    """Return whether a column of a frame is exactly the start or the end of a ``window()``."""
    stamps = stamps_of(frame, column)
    return bool(stamps) and all(stamp.window and not stamp.truncated and not stamp.shift for stamp in stamps or ())


def stamps_of(frame: DataFrame, column: str | Column) -> list[Stamp] | None:
    """Return the stamps that a column has in the rows that Spark still holds; None: unknown.

    Every branch of a union is followed. A branch without a stateful operator adds no stamp, because
    its rows are emitted when they arrive. Returns None if such a branch lowers its event time
    (:func:`is_lowered`): those stamps are below what the inputs promise.
    """
    plan: Any = frame.select(column_of(frame, column))._jdf.queryExecution().analyzed()
    return _stamps(inlined(plan), _Followed(items(plan.output())[0].exprId().id()))


def inlined(plan: Any) -> Any:
    """Return a plan with its WITH clauses inlined, and with the bounds of a join in its condition.

    Spark's optimiser does the same. A ``where`` above an inner join becomes a part of its
    condition, and so does the value of a constant column. That is sound whatever the optimiser of a
    batch does: an emitted row satisfies the ``where``, and one of the two rows that it is made of
    is new, and above the watermark. So the other one is no further below than the ``where`` allows.
    An outer join is changed only if the ``where`` drops all rows without a match.
    """
    rules = _jvm_of(plan).org.apache.spark.sql.catalyst
    if any(node.getClass().getSimpleName() == "WithCTE" for node in nodes(plan)):
        plan = rules.optimizer.InlineCTE(True, False).apply(plan)  # noqa: FBT003 - Java's
    if any(_is_join_of_streams(node) for node in nodes(plan)):
        plan = rules.analysis.EliminateSubqueryAliases.apply(plan)
        optimizer = rules.optimizer
        for rule in (
            optimizer.FoldablePropagation,
            optimizer.ConstantFolding,
            optimizer.EliminateOuterJoin,
            optimizer.PushDownPredicates,
        ):
            plan = rule.apply(plan)
    return plan


def _is_join_of_streams(node: Any) -> bool:
    return node.getClass().getSimpleName() == "Join" and all(child.isStreaming() for child in items(node.children()))


Field = Literal["start", "end"]

_FIELDS: Final[tuple[Field, Field]] = ("start", "end")
"""Fields of the struct that ``window()`` or ``session_window()`` makes, in order."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """A column that is being followed down a plan."""

    id: int
    field: Field | None = None
    """Field of the window; None: the attribute is the column itself."""
    shift: timedelta = timedelta()
    truncated: tuple[Truncated, ...] = ()


_PASSING: Final = frozenset(
    {
        "CollectMetrics",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
        "UpdateEventTimeWatermarkColumn",
        "View",
    }
)
"""Operators that pass their input's columns on, and hold no row."""


def _stamps(node: Any, followed: _Followed | None) -> list[Stamp] | None:
    """Return the stamps of a column of a node's output; None: unknown.

    An empty list: no operator below holds rows, and the plan does not lower the column.
    """
    if not _holds(node):
        if followed is None:
            return []
        path = () if followed.field is None else (_FIELDS.index(followed.field),)
        return None if followed.truncated or _is_lowered(node, followed.id, path, set()) else []
    if followed is None:
        return None
    name = node.getClass().getSimpleName()
    children = items(node.children())
    if name == "Project":
        return _stamps(children[0], _through(node.projectList(), followed))
    if name == "Aggregate":
        return _stamps_of_aggregate(node, _through(node.aggregateExpressions(), followed))
    if name == "Union":
        place = _ids(node).index(followed.id)
        stamps: list[Stamp] = []
        for child in children:
            below = _stamps(child, dataclasses.replace(followed, id=_ids(child)[place]))
            if below is None:
                return None
            stamps += below
        return stamps
    streaming = [child for child in children if child.isStreaming()]
    if name == "Join" and len(streaming) == 2:
        return _stamps_of_join(node, followed)
    if name in _PASSING or name == "Join":
        [child] = streaming
        return _stamps(child, followed) if followed.id in _ids(child) else None
    return None


def is_lowered(frame: DataFrame, column: str | Column) -> bool:
    """Return whether the plan may lower an event time to make a column of a frame.

    ``date_trunc()``, ``time_bucket()``, the start of a ``window()``, a date, number or text made of
    a moment, and an interval that is not a constant of zero or more do so. The column can then be
    below the event time of its row. The search goes through the expressions that define the column,
    down to the sources and to the aggregations.
    """
    plan: Any = frame.select(column_of(frame, column))._jdf.queryExecution().analyzed()
    return _is_lowered(inlined(plan), items(plan.output())[0].exprId().id(), (), set())


_Path = tuple[int, ...]
"""Indexes of the fields that are read of a struct, outer before inner."""


def _is_lowered(node: Any, attribute: int, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """Return whether an attribute of a node's output may be lowered: see :func:`is_lowered`.

    ``searched`` are the attributes and paths that were followed already.
    """
    definitions = _made_of(node, attribute)
    return any(below is not None and _lowers(column, below, path, searched) for column, below in definitions)


def _made_of(node: Any, attribute: int) -> Iterator[tuple[Any, Any | None]]:
    """Yield the expressions that define an attribute of a node's output, each with its input node.

    The node is None where the search ends: at a source, or at a node such as an aggregation.
    """
    name, children = node.getClass().getSimpleName(), items(node.children())
    if name == "Project":
        columns = [column for column in items(node.projectList()) if column.exprId().id() == attribute]
    elif not children or attribute not in _ids(node):
        columns = []
    elif name == "Expand":  # it has a projection for each of the sliding windows that a row is in
        place = _ids(node).index(attribute)
        columns = [items(projection)[place] for projection in items(node.projections())]
    elif name == "Union":
        place = _ids(node).index(attribute)
        for child in children:
            yield from _made_of(child, _ids(child)[place])
        return
    else:
        sources = [child for child in children if attribute in _ids(child)]
        for child in sources:
            yield from _made_of(child, attribute)
        if sources:
            return
        columns = [node.generator()] if name == "Generate" else []
    for column in columns:
        if column.getClass().getSimpleName() == "AttributeReference":
            yield from _made_of(children[0], column.exprId().id())
        else:
            yield column, children[0]
    if not columns:
        yield node, None


def _lowers(expression: Any, below: Any, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """Return whether an expression over the output of the node below may lower a moment.

    An attribute that occurs many times is followed once.
    """
    name, children = expression.getClass().getSimpleName(), items(expression.children())
    if name == "AttributeReference":
        key = (expression.exprId().id(), path)
        if key in searched:
            return False
        searched.add(key)
        return _is_lowered(below, *key, searched)
    if name in ("TimeBucket", "TruncTimestamp") or _cuts_off(expression, name, children, path):
        return True
    if name in _ZONES and _turns_back(children[1], _ZONES[name]) and _is_moment(children[0], below, (), set()):
        return True
    path = _path_below(expression, name, children, path)
    if name == "CreateNamedStruct" and path:
        value = children[1 if _has_varying_gap(children) else 2 * path[0] + 1]
        return (path[0] == 0 and _is_window_start(value)) or _lowers(value, below, path[1:], searched)
    # A boolean child, such as the condition of CASE WHEN, only selects a value, and lowers none. If
    # it were searched, a sound query with date_trunc() in a condition would be refused.
    return any(_lowers(child, below, path, searched) for child in children if _type(child) != "boolean")


def _path_below(expression: Any, name: str, children: Sequence[Any], path: _Path) -> _Path:
    """Return the path in an expression's children that ``path`` in the expression leads to."""
    if name in ("GetArrayStructFields", "GetStructField"):
        return (expression.ordinal(), *path)
    if name == "Inline" or (name in ("Explode", "PosExplode") and _type(children[0]) == "map"):
        return ()  # the columns it makes are fields, keys or values of the input: follow all of it
    if name == "CreateNamedStruct" and path and 2 * path[0] + 1 >= len(children):
        return ()  # fewer fields than the path expects: a function in between made another struct
    return path


def _is_moment(expression: Any, below: Any, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """Return whether a moment comes from a source, and not from a text or number in the plan.

    Moving a moment to another time zone lowers it. A parsed text does not count: it can be a local
    time, which only a time zone makes a moment. What from_json(), from_avro() and a function of an
    array return counts, because the plan does not show what it was made of.
    """
    name, children = expression.getClass().getSimpleName(), items(expression.children())
    kind = _at(_kind(expression), path)
    if not _has_moment(kind):
        return False
    if name == "AttributeReference":
        key = (expression.exprId().id(), path)
        if key in searched:
            return False
        searched.add(key)
        return any(node is None or _is_moment(column, node, path, searched) for column, node in _made_of(below, key[0]))
    # An element of an array in a lambda, and a bound of a window(), count as moments of a source.
    # The search below would find no moment in them, so from_utc_timestamp() could lower one
    # unnoticed, and a row would come out below the watermark.
    if name in ("NamedLambdaVariable", "PreciseTimestampConversion"):
        return True
    path = _path_below(expression, name, children, path)
    if name == "CreateNamedStruct" and path:
        return _is_moment(children[2 * path[0] + 1], below, path[1:], searched)
    times = [child for child in children if _has_moment(_kind(child))]
    if not times:  # no input is a moment: a struct by from_json() counts, a moment from a text does not
        return not isinstance(_kind(expression), str) and not expression.foldable()
    return any(_is_moment(child, below, path, searched) for child in times)


_WHOLE: Final = frozenset({"array", "boolean", "map", "struct", "timestamp", "timestamp_ntz"})
"""Types that keep a whole moment, or that are not made from a moment."""


_SHIFTS: Final = frozenset({"TimeAdd", "TimestampAdd", "TimestampAddInterval", "TimestampAddYMInterval"})
"""Expressions that add an interval, or a number of units, to a moment."""


def _cuts_off(expression: Any, name: str, children: Sequence[Any], path: _Path) -> bool:
    """Return whether an expression turns a moment into a date, number, text or earlier moment.

    The function does not search how much of the moment is restored from a number. A date made of a
    text is a value of the source.
    """
    if name in ("Cast", "StructsToCsv", "StructsToJson", "StructsToXml"):
        before, after = _kind(children[0]), _kind(expression)
        if name != "Cast":
            return _loses(before, after)
        return _loses(_at(before, path), _at(after, path), expression)
    moments = [_type(child).startswith("timestamp") for child in children]
    # In a window() PreciseTimestampConversion makes microseconds of a moment, and loses nothing. By
    # its type, a number, it would count as cut off: a stamp by a window's end would be refused.
    if True not in moments or name == "PreciseTimestampConversion":
        return False
    if name == "Sequence":  # its moments are lowered if it counts up from a constant, or down to one
        start, stop, *step = children
        return bool(start.foldable() or (stop.foldable() and not (step and _is_forward(step[0]))))
    if name in _SHIFTS:
        return not _is_forward(children[moments.index(False)])
    return _type(expression) not in _WHOLE


_ZONES: Final = {"FromUTCTimestamp": 1, "ToUTCTimestamp": -1}
"""Expressions that add (1) or subtract (-1) a time zone's offset, by name."""


def _turns_back(zone: Any, sign: int) -> bool:
    """Return whether a zone's offset can make a moment earlier; True if the zone is unknown.

    A zone that is no constant, or that does not exist, is unknown.
    """
    from pyspark.errors import DateTimeException

    if not zone.foldable():
        return True
    dates = _jvm_of(zone).org.apache.spark.sql.catalyst.util.DateTimeUtils
    try:
        clocks = dates.getZoneId(str(zone.eval(None)))
    except DateTimeException:
        return True
    return any(sign * offset < 0 for offset in _offsets(clocks))


def _offsets(clocks: Any) -> set[int]:
    """Return the offsets from UTC that a zone has had since 1970 and will have, in seconds.

    Older ones are left out: before there were time zones, each city had its own.
    """
    rules, epoch = clocks.getRules(), _jvm_of(clocks).java.time.Instant.EPOCH
    since = [transition for transition in rules.getTransitions() if not transition.getInstant().isBefore(epoch)]
    offsets = [rules.getOffset(epoch)]
    for transition in (*since, *rules.getTransitionRules()):
        offsets += (transition.getOffsetBefore(), transition.getOffsetAfter())
    return {int(offset.getTotalSeconds()) for offset in offsets}


def _kind(expression: Any) -> Any:
    """Return an expression's type as Spark's JSON has it: a name, or a dict for a compound type."""
    return json.loads(expression.dataType().json())


def _inner(kind: dict[str, Any]) -> list[Any]:
    """Return the types inside of a compound type."""
    if kind["type"] == "struct":
        return [field["type"] for field in kind["fields"]]
    return [kind[key] for key in ("elementType", "keyType", "valueType", "sqlType") if key in kind]


def _at(kind: Any, path: _Path) -> Any:
    """Return the type at a path, through the elements of arrays and the values of maps."""
    for place in path:
        while isinstance(kind, dict) and kind["type"] in ("array", "map"):
            kind = _inner(kind)[-1]
        inner = _inner(kind) if isinstance(kind, dict) else []
        if place >= len(inner):
            return kind
        kind = inner[place]
    return kind


def _has_moment(kind: Any) -> bool:
    """Return whether a type is a moment, or contains one."""
    return kind.startswith("timestamp") if isinstance(kind, str) else any(map(_has_moment, _inner(kind)))


def _loses(before: Any, after: Any, cast: Any = None) -> bool:
    """Return whether a cast from one type to another loses a part of a moment.

    Local time has no offset: when clocks are put back, two moments have the same local time, and
    Spark then takes the earlier one.
    """
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        return any(_loses(*pair, cast) for pair in zip(_inner(before), _inner(after), strict=False))
    if before == "timestamp" and after == "timestamp_ntz":
        return len(_offsets(cast.zoneId())) > 1
    return _has_moment(before) and not _has_moment(after)


def _is_forward(interval: Any) -> bool:
    """Return whether an interval, or a number of units, is constant and not negative.

    A null counts as forward, since it makes no moment. A value calculated from today's date is not
    constant: it changes from batch to batch.
    """
    patterns = _jvm_of(interval).org.apache.spark.sql.catalyst.trees.TreePattern
    if not interval.foldable() or interval.containsPattern(patterns.CURRENT_LIKE()):
        return False
    value = interval.eval(None)
    if value is None or isinstance(value, int):
        return value is None or value >= 0
    return not (value.extractAsPeriod().isNegative() or value.extractAsDuration().isNegative())


def _has_varying_gap(fields: Sequence[Any]) -> bool:
    """Return whether a struct is a ``session_window()`` whose gap is no constant.

    Spark drops a row whose end is not after its start. For a constant gap it tests only the sum of
    months, days and microseconds, so a negative number of days may pass.
    """
    start = fields[1]
    if any(e.getClass().getSimpleName() != "PreciseTimestampConversion" for e in (start, *items(start.children()))):
        return False  # a window(), whose start is calculated; a session starts at its event time
    gap = next((e for e in nodes(fields[-1]) if e.getClass().getSimpleName() in _SHIFTS), None)
    return gap is not None and not items(gap.children())[1].foldable()


def _is_window_start(value: Any) -> bool:
    """Return whether a struct's first field starts a ``window()``; a session starts at its time."""
    return all(_only(value, name) is not None for name in ("PreciseTimestampConversion", "Remainder"))


def _type(expression: Any) -> str:
    return str(expression.dataType().typeName())


def _ids(node: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in items(node.output())]


def _holds(plan: Any) -> bool:
    """Return whether any operator of a plan holds rows of a stream back."""
    for node in nodes(plan):
        kind = KINDS.get(node.getClass().getSimpleName())
        if kind is None or kind in _ON_ARRIVAL or not node.isStreaming():
            continue
        if kind != KINDS["Join"] or sum(child.isStreaming() for child in items(node.children())) == 2:
            return True
    return False


def _through(named: Any, followed: _Followed) -> _Followed | None:
    """Return the input column from which named expressions make the followed one; None: unknown."""
    for column in items(named):
        if column.exprId().id() == followed.id:
            return _inside(column, followed)
    return None


def _inside(expression: Any, followed: _Followed) -> _Followed | None:
    name = expression.getClass().getSimpleName()
    children = items(expression.children())
    if name == "AttributeReference":
        return dataclasses.replace(followed, id=expression.exprId().id())
    if name in ("Alias", "KnownNullable", "PreciseTimestampConversion"):
        return _inside(children[0], followed)
    if name == "GetStructField" and followed.field is None:
        metadata = children[0].getClass().getSimpleName() in _NAMED and json.loads(children[0].metadata().json())
        if not metadata or not (metadata.get("spark.timeWindow") or metadata.get("spark.sessionWindow")):
            return None
        return _inside(children[0], dataclasses.replace(followed, field=_FIELDS[expression.ordinal()]))
    if name == "TruncTimestamp":  # the class of date_trunc()
        truncated = _truncated(expression)
        if truncated is None or followed.shift:
            return None
        return _inside(children[1], dataclasses.replace(followed, truncated=(truncated, *followed.truncated)))
    # A plan has window_time() as the end of the window in microseconds, less a Literal of one.
    if name == "Subtract" and children[0].getClass().getSimpleName() == "PreciseTimestampConversion":
        if children[1].getClass().getSimpleName() != "Literal":
            return None
        return _inside(children[0], dataclasses.replace(followed, shift=followed.shift - _micros(children[1])))
    return None


def _truncated(expression: Any) -> Truncated | None:
    """Return the truncation of a date_trunc(); None if its unit is no literal that Spark knows."""
    unit, zone, jvm = items(expression.children())[0], expression.timeZoneId(), _jvm_of(expression)
    dates = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    if unit.getClass().getSimpleName() != "Literal" or zone.isEmpty() or unit.value() is None:
        return None
    level = dates.parseTruncLevel(unit.value())
    if level < 0:  # Spark knows no such unit, and returns null for every row
        return None
    clocks = dates.getZoneId(zone.get())

    def transitions(after: int, until: int) -> Iterator[int]:
        transition = clocks.getRules().nextTransition(dates.microsToInstant(after))
        while transition is not None and (at := dates.instantToMicros(transition.getInstant())) <= until:
            yield at
            transition = clocks.getRules().nextTransition(transition.getInstant())

    return Truncated(
        str(unit.value()).lower(),
        str(zone.get()),
        lambda micros: dates.truncTimestamp(micros, level, clocks),
        transitions,
    )


def _stamps_of_aggregate(aggregate: Any, followed: _Followed | None) -> list[Stamp] | None:
    keys = [key for key in items(aggregate.groupingExpressions()) if _is_watermarked(key)]
    lag = _lag(items(aggregate.children())[0])
    if followed is None or lag is None or [key.exprId().id() for key in keys] != [followed.id]:
        return None
    stamp = Stamp("time", None, lag, followed.shift, followed.truncated)
    window = _window(aggregate, keys[0])
    if window is not None and followed.field is not None:
        return [dataclasses.replace(stamp, kind=followed.field, window=window[1])]
    metadata = json.loads(keys[0].metadata().json())
    sessions = bool(metadata.get("spark.sessionWindow"))
    plain = not sessions and not metadata.get("spark.timeWindow")
    by_time = (sessions and followed.field == "end") or (plain and followed.field is None)
    return [stamp] if by_time else None


def _stamps_of_join(join: Any, followed: _Followed) -> list[Stamp] | None:
    sides = (join.left(), join.right())
    side = 0 if followed.id in _ids(sides[0]) else 1
    if followed.id not in _ids(sides[side]):
        return None  # neither side of the join has the column, so its stamps are unknown
    below, lag = _lag_of_all(sides), _lags(join)[side]
    if followed.id in _time_keys(join) and _holds(sides[side]):
        # The join requires equal event times of both sides, and an operator below it holds rows of
        # this side. They wait for that operator's watermark, ``stamp.lag`` below the query's, and
        # for the join's, the lower one of both sides, ``below`` it. By the smaller of the two lags
        # the bound would be too high, and a row would come out below the published watermark.
        stamps = _stamps(sides[side], followed)
        if stamps is None or below is None:
            return None
        return [dataclasses.replace(stamp, lag=max(stamp.lag, below)) for stamp in stamps]
    times = [a.exprId().id() for a in items(sides[side].output()) if _is_watermarked(a)]
    if followed.field is not None or times != [followed.id] or below is None or lag is None:
        return None
    return [Stamp("time", None, below + max(lag, timedelta()), followed.shift, followed.truncated)]


def _lag_of_all(plans: Sequence[Any]) -> timedelta | None:
    lags = [_lag(plan) for plan in plans if plan.isStreaming()]
    return None if None in lags else max((lag for lag in lags if lag is not None), default=timedelta())


def _lag(plan: Any) -> timedelta | None:
    """Return how far the watermark above a plan is below the query's; None: unknown.

    Aggregations and deduplications pass their watermark on. A join of two streams lowers it to the
    least time that it can still hold.
    """
    kind = KINDS.get(plan.getClass().getSimpleName())
    if kind == KINDS["TransformWithState"]:
        return None
    children = items(plan.children())
    below = _lag_of_all(children)
    if below is None or kind != KINDS["Join"] or sum(child.isStreaming() for child in children) < 2:
        return below
    left_lag, right = _lags(plan)
    return None if left_lag is None or right is None else below + max(left_lag, right, timedelta())
