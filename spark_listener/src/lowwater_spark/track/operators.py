"""Finds the operators of a streaming plan that keep rows in Spark's own state, and what their letting go depends on.

It reads the analysed plan through py4j, by structure and not by its text. What the nodes look like was probed on PySpark 4.3: a
window of ``window(t, length, slide, start)`` is a struct of two expressions in a Project (tumbling) or an Expand (sliding) below the
Aggregate, ``conversion(...(t - start) % slide ... + length)``; a column under ``withWatermark`` carries its delay in its metadata.
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
from lowwater_spark.track.bounds import Stamp, Truncated, Window

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
"""Logical operators that keep streaming rows in state, and what they are called here. A Join only
of two streams."""

_ON_ARRIVAL: Final = frozenset({"deduplication", "deduplication within the watermark"})

_NAMED: Final = frozenset({"Alias", "AttributeReference"})
"""Expressions of an analysed plan that have a name of their own, and with it the metadata in which
a watermark stands."""

_DELAY: Final = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class Watermark:
    """One withWatermark."""

    column: str
    delay: timedelta
    driven: bool
    """Whether it stands on a control source and nothing else."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator that keeps rows in state."""

    kind: str
    """One of the values of :data:`KINDS`."""
    columns: tuple[str, ...]
    """The event time columns under a watermark that its letting go depends on; of a windowed
    aggregation the column in the window, of a join those of both sides, left before right. Empty:
    Spark never lets go."""
    window: Window | None
    """Of an aggregation over ``window()``; None for other keys and for session windows."""
    driven: bool
    """Whether a control source is among what it reads."""
    both_sides: bool = True
    """Of a join: whether both sides have a watermark."""
    bounded: bool = True
    """Of a join: whether Spark ever lets go of the rows of both sides."""

    @property
    def holds(self) -> bool:
        """Whether it can emit a row, or something made of it, later than in the batch that has brought the row."""
        return self.kind not in _ON_ARRIVAL


def nodes(plan: Any) -> Iterator[Any]:
    """Yield a logical plan's nodes, parents first."""
    yield plan
    for child in items(plan.children()):
        yield from nodes(child)


def items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def watermark_of(node: Any, *, driven: bool) -> Watermark:
    """Return what an EventTimeWatermark node declares."""
    column = node.eventTime().name()
    [delay] = [a for a in map(_delay, items(node.output())) if a is not None and a[0] == node.eventTime().exprId().id()]
    return Watermark(column, timedelta(milliseconds=delay[1]), driven)


def operator_of(node: Any, *, driven: bool) -> Operator | None:
    """Return what a streaming node keeps in state, None when it keeps nothing."""
    name = node.getClass().getSimpleName()
    kind = KINDS.get(name)
    children = [child for child in items(node.children()) if child.isStreaming()]
    if kind is None or (name == "Join" and len(children) < 2):
        return None
    if name == "Aggregate":
        keys = [key for key in items(node.groupingExpressions()) if _is_watermarked(key)]
        windows = [_window(node, key) for key in keys]
        columns = tuple(key.name() if found is None else found[0] for key, found in zip(keys, windows, strict=True))
        cut = next((found[1] for found in windows if found is not None), None)
        return Operator(kind, columns, cut, driven)
    sides = [tuple(a.name() for a in items(child.output()) if _is_watermarked(a)) for child in children]
    columns = tuple(name for side in sides for name in side)
    bounded = name != "Join" or None not in _lags(node)
    return Operator(kind, columns, None, driven, all(sides), bounded)


def _lags(join: Any) -> tuple[timedelta | None, timedelta | None]:
    """Return how far below its watermark a join of two streams keeps rows, left and right; None: for ever.

    Spark's own function says it of a condition on times: of ``u <= t + 1 hour`` an hour and a millisecond. Where the times, or
    windows, of both sides must be equal, they are part of the join's key, and go by the watermark itself.

    For ``u <= h``, with h made of t, Spark's function returns how long Spark should wait for h. But
    Spark drops rows by t, which may be lower than h, and then loses matches. Therefore this
    function returns None when the answers for the event time and for all columns differ.
    """
    if _time_keys(join):
        return timedelta(), timedelta()
    left, right = join.left(), join.right()
    catalyst = _jvm_of(join).org.apache.spark.sql.catalyst
    watermark = 1 << 42  # any value that Java takes for a long

    def state_lag_millis(columns: Any, other: Any) -> int | None:
        given = _jvm_of(join).scala.Option.apply(watermark)
        helper = catalyst.analysis.StreamingJoinHelper
        found = helper.getStateValueWatermark(columns, other.outputSet(), join.condition(), given)
        return watermark - found.get() if found.isDefined() else None

    def lag(side: Any, other: Any) -> timedelta | None:
        times = [catalyst.expressions.AttributeSet.apply(a) for a in items(side.output()) if _is_watermarked(a)]
        if not times:
            return None
        millis = state_lag_millis(functools.reduce(lambda one, more: getattr(one, "$plus$plus")(more), times), other)
        if millis is None or millis != state_lag_millis(side.outputSet(), other):
            return None
        return timedelta(milliseconds=millis)

    return lag(left, right), lag(right, left)


def _jvm_of(thing: Any) -> Any:
    """Return the view of the JVM that a Java object lives in."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None, "a plan belongs to a session"
    return context._jvm


def _time_keys(join: Any) -> set[int]:
    """Return the ids of the attributes under a watermark that a join asks to be equal, of both sides."""
    condition = join.condition()
    if not condition.isDefined():
        return set()
    sides = [{a.exprId().id() for a in items(side.output())} for side in (join.left(), join.right())]
    found: set[int] = set()
    for conjunct in _conjuncts(condition.get()):
        if conjunct.getClass().getSimpleName() != "EqualTo":
            continue
        pair = items(conjunct.children())
        if any(each.getClass().getSimpleName() != "AttributeReference" for each in pair):
            continue
        one, other = (each.exprId().id() for each in pair)
        across = (one in sides[0] and other in sides[1]) or (one in sides[1] and other in sides[0])
        if across and all(map(_is_watermarked, pair)):
            found |= {one, other}
    return found


def _conjuncts(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "And":
        for child in items(expression.children()):
            yield from _conjuncts(child)
    else:
        yield expression


def _is_watermarked(expression: Any) -> bool:
    # Of what an expression has no name there is no metadata; asking py4j for the attribute tells
    # nothing, since of a Java object it has every one.
    named = expression.getClass().getSimpleName() in _NAMED
    return named and _DELAY in json.loads(expression.metadata().json())


def _delay(attribute: Any) -> tuple[int, int] | None:
    """Return an attribute's id and its delay in milliseconds, None when it is under no watermark."""
    delay = json.loads(attribute.metadata().json()).get(_DELAY)
    return None if delay is None else (attribute.exprId().id(), delay)


def _window(aggregate: Any, key: Any) -> tuple[str, Window] | None:
    """Return the column and the cut of a grouping key made by ``window()``, None for any other key."""
    if not json.loads(key.metadata().json()).get("spark.timeWindow"):
        return None
    for definition in _definitions(aggregate, key.exprId().id()):
        if definition.getClass().getSimpleName() != "AttributeReference":  # a window under another name
            return _cut(definition)
    return None


def _cut(definition: Any) -> tuple[str, Window] | None:
    """Return the same of the expression that makes a window; None for any other one, such as a session window."""
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
    """Yield how each ``window()`` cuts time whose start, or something made of it, is in the output of a frame.

    In a streaming frame a static one is not followed.
    """
    plan: Any = inlined(frame._jdf.queryExecution().analyzed())
    optimizer = _jvm_of(plan).org.apache.spark.sql.catalyst.optimizer
    for rule in (optimizer.ColumnPruning, optimizer.CollapseProject):  # fewer columns to ask the JVM for
        plan = rule.apply(plan)
    yield from _windows(plan, {(attribute, ()) for attribute in _ids(plan)})


def _windows(node: Any, wanted: set[tuple[int, _Path]]) -> Iterator[Window]:
    """Yield the windows that the wanted attributes of a node's output are made of.

    An attribute comes with the path to the field that is taken of it.
    """
    name, children = node.getClass().getSimpleName(), items(node.children())
    if not wanted or not children:
        return
    if name == "Union":
        places = {attribute: place for place, attribute in enumerate(_ids(node))}
        for child in children:
            ids = _ids(child)
            yield from _windows(child, {(ids[places[one]], path) for one, path in wanted if one in places})
        return
    definitions = _made_by(node, name)
    if not definitions and name not in _PASSING:
        inputs = {attribute for child in children for attribute in _ids(child)}
        # A Python function makes its output of all columns that it reads.
        if any(attribute not in inputs for attribute, _ in wanted):
            wanted = wanted | {(attribute.exprId().id(), ()) for attribute in items(node.references().toSeq())}
    below: set[tuple[int, _Path]] = set() if name in ("Aggregate", "Expand", "Project") else set(wanted)
    for attribute, expression in definitions:
        for path in [path for each, path in wanted if each == attribute]:
            yield from _windows_in(expression, path, below)
    for child in children:
        if child.isStreaming() or not node.isStreaming():
            columns = set(_ids(child)) if len(children) > 1 else None
            yield from _windows(child, below if columns is None else {one for one in below if one[0] in columns})


def _made_by(node: Any, name: str) -> list[tuple[int, Any]]:
    """Return the attributes that a node makes, each with an expression that defines it."""
    if name == "Expand":  # sliding windows: a projection for each
        return [pair for each in items(node.projections()) for pair in zip(_ids(node), items(each), strict=True)]
    if name == "Generate":
        return [(attribute.exprId().id(), node.generator()) for attribute in items(node.generatorOutput())]
    columns = {"Aggregate": "aggregateExpressions", "Project": "projectList", "Window": "windowExpressions"}.get(name)
    named = [] if columns is None else items(getattr(node, columns)())
    return [(column.exprId().id(), column) for column in named]


def _windows_in(expression: Any, path: _Path, below: set[tuple[int, _Path]]) -> Iterator[Window]:
    """Yield the windows that an expression is made of.

    Adds to ``below`` the attributes that the expression reads of the node below.
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
    for child in children[: 1 if name == "WindowExpression" else None]:  # not that which it is partitioned by
        if _type(child) != "boolean":
            yield from _windows_in(child, path, below)


def _definitions(aggregate: Any, expression_id: int) -> Iterator[Any]:
    """Yield the expressions by which the nodes below define an attribute, under any of its names: one for each, of an Expand its last."""
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
    """Return the first expression of a class in a tree, parents first; None when there is none."""
    return next((e for e in nodes(expression) if e.getClass().getSimpleName() == name), None)


def _micros(literal: Any) -> timedelta:
    return timedelta(microseconds=int(literal.value()))


def reach(operators: Sequence[Operator]) -> timedelta | None:
    """Return the longest window, if all operators that hold rows are windowed aggregations; None otherwise.

    It is what a checkpoint keeps as the retention of a query that declares none.
    """
    lengths = [None if each.window is None else each.window.length for each in operators if each.holds]
    known = [length for length in lengths if length is not None]
    return max(known) if known and len(known) == len(lengths) else None


def is_windows(frame: DataFrame, column: str | Column) -> bool:
    """Return whether a column of a frame is the start or the end of a ``window()``, and nothing that was made of it."""
    stamps = stamps_of(frame, column)
    return bool(stamps) and all(each.window and not each.truncated and not each.shift for each in stamps or ())


def stamps_of(frame: DataFrame, column: str | Column) -> list[Stamp] | None:
    """Return what a column of a frame is, of all that Spark's operators still let go of; None: the plan does not say it.

    Every branch of a union is followed. A branch without a stateful operator adds no stamp, because
    its rows come out when they arrive. Returns None when such a branch lowers its event time
    (:func:`is_lowered`): those stamps are below what the inputs promise.
    """
    plan: Any = frame.select(column_of(frame, column))._jdf.queryExecution().analyzed()
    return _stamps(inlined(plan), _Followed(items(plan.output())[0].exprId().id()))


def inlined(plan: Any) -> Any:
    """Return a plan with the relations of its WITH clauses where they are used, and what bounds a join in its condition, as Spark's optimiser puts them.

    A ``where`` above an inner join is a part of its condition, and so is the value of a column that is constant. That is sound whatever the optimiser of a
    batch does: a row that comes out meets the ``where``, and one of the two that it is made of is new, and above the watermark. So the other one is no
    further below than the ``where`` allows. An outer join is changed only if the ``where`` takes all rows without a match away: it is an inner one then.
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
"""Fields of the struct that ``window()`` or ``session_window()`` makes."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """The column that is followed down a plan."""

    id: int
    """Of the attribute."""
    field: Field | None = None
    """Of the window that the attribute is."""
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
"""Operators that give on the columns of what they read, and hold no row back."""


def _stamps(node: Any, followed: _Followed | None) -> list[Stamp] | None:
    """Return what a column of a node's output is; an empty list: nothing below holds rows back, and the plan cuts no time off to make the column."""
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
        found: list[Stamp] = []
        for child in children:
            below = _stamps(child, dataclasses.replace(followed, id=_ids(child)[place]))
            if below is None:
                return None
            found += below
        return found
    streaming = [child for child in children if child.isStreaming()]
    if name == "Join" and len(streaming) == 2:
        return _stamps_of_join(node, followed)
    if name in _PASSING or name == "Join":
        [child] = streaming
        return _stamps(child, followed) if followed.id in _ids(child) else None
    return None


def is_lowered(frame: DataFrame, column: str | Column) -> bool:
    """Return whether the plan cuts a time off to make a column of a frame.

    It does so by ``date_trunc()``, ``time_bucket()``, the start of a ``window()``, a date, number
    or text made of a moment, or an interval that is not a constant of zero or more.

    The expressions that define the column are searched, down to the sources and to the
    aggregations. Such a column can be below the event time of its row.
    """
    plan: Any = frame.select(column_of(frame, column))._jdf.queryExecution().analyzed()
    return _is_lowered(inlined(plan), items(plan.output())[0].exprId().id(), (), set())


_Path = tuple[int, ...]
"""Places of the fields, outer before inner, that are taken of a struct."""


def _is_lowered(node: Any, attribute: int, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """The same of an attribute of a node's output.

    ``searched``: what other expressions have led to.
    """
    made = _made_of(node, attribute)
    return any(below is not None and _lowers(column, below, path, searched) for column, below in made)


def _made_of(node: Any, attribute: int) -> Iterator[tuple[Any, Any | None]]:
    """Yield the expressions that define an attribute of a node's output, each with the node that it reads.

    The node is None where the search ends: at a source, at a node that makes the attribute in some other way, such as an aggregation.
    """
    name, children = node.getClass().getSimpleName(), items(node.children())
    if name == "Project":
        made = [column for column in items(node.projectList()) if column.exprId().id() == attribute]
    elif not children or attribute not in _ids(node):
        made = []
    elif name == "Expand":  # sliding windows: a projection for each
        place = _ids(node).index(attribute)
        made = [items(each)[place] for each in items(node.projections())]
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
        made = [node.generator()] if name == "Generate" else []
    for column in made:
        if column.getClass().getSimpleName() == "AttributeReference":
            yield from _made_of(children[0], column.exprId().id())
        else:
            yield column, children[0]
    if not made:
        yield node, None


def _lowers(expression: Any, below: Any, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """The same of an expression over the output of the node below.

    An attribute that stands in it many times is followed once.
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
    # A condition says which value is taken, and is none.
    return any(_lowers(child, below, path, searched) for child in children if _type(child) != "boolean")


def _path_below(expression: Any, name: str, children: Sequence[Any], path: _Path) -> _Path:
    """Return the path that is taken of an expression's children, when ``path`` is taken of the expression."""
    if name in ("GetArrayStructFields", "GetStructField"):
        return (expression.ordinal(), *path)
    if name == "Inline" or (name in ("Explode", "PosExplode") and _type(children[0]) == "map"):
        return ()  # columns that are fields, or keys and values, of what it reads
    if name == "CreateNamedStruct" and path and 2 * path[0] + 1 >= len(children):
        return ()  # a function between has made another struct of it
    return path


def _is_moment(expression: Any, below: Any, path: _Path, searched: set[tuple[int, _Path]]) -> bool:
    """Return whether a moment is one that a source has, and not one that the plan reads from a text or a number.

    Such a text can have local time, of which a time zone makes the moment.
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
    if name in ("NamedLambdaVariable", "PreciseTimestampConversion"):  # an element of some array; that of a window()
        return True
    path = _path_below(expression, name, children, path)
    if name == "CreateNamedStruct" and path:
        return _is_moment(children[2 * path[0] + 1], below, path[1:], searched)
    times = [child for child in children if _has_moment(_kind(child))]
    if not times:  # of from_avro() and from_json() nobody knows
        return not isinstance(_kind(expression), str) and not expression.foldable()
    return any(_is_moment(child, below, path, searched) for child in times)


_WHOLE: Final = frozenset({"array", "boolean", "map", "struct", "timestamp", "timestamp_ntz"})
"""Types that can keep all of a moment, or that no moment is made of."""


_SHIFTS: Final = frozenset({"TimeAdd", "TimestampAdd", "TimestampAddInterval", "TimestampAddYMInterval"})
"""Expressions that add an interval, or a number of units, to a moment."""


def _cuts_off(expression: Any, name: str, children: Sequence[Any], path: _Path) -> bool:
    """Return whether an expression makes a date, a number or a text of a moment, or an earlier moment by an interval.

    How much of the moment comes back from a number is not searched. A date of a text is whatever the source has.
    """
    if name in ("Cast", "StructsToCsv", "StructsToJson", "StructsToXml"):  # also one of many in an array or a struct
        before, after = _kind(children[0]), _kind(expression)
        if name != "Cast":
            return _loses(before, after)
        return _loses(_at(before, path), _at(after, path), expression)
    moments = [_type(child).startswith("timestamp") for child in children]
    if True not in moments or name == "PreciseTimestampConversion":  # of window(): the microseconds
        return False
    if name == "Sequence":  # of moments: down to a constant, or up from one
        start, stop, *step = children
        return bool(start.foldable() or (stop.foldable() and not (step and _is_forward(step[0]))))
    if name in _SHIFTS:
        return not _is_forward(children[moments.index(False)])
    return _type(expression) not in _WHOLE


_ZONES: Final = {"FromUTCTimestamp": 1, "ToUTCTimestamp": -1}
"""Expressions that add a time zone's offset to a moment, or take it off."""


def _turns_back(zone: Any, sign: int) -> bool:
    """Return whether an offset of a zone makes an earlier moment of another one.

    Of a zone that is no constant, or that there is not, it may.
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
    """Return the offsets from UTC that a zone has had since 1970 and will have, seconds.

    Before there were time zones, each city had its own.
    """
    rules, epoch = clocks.getRules(), _jvm_of(clocks).java.time.Instant.EPOCH
    since = [each for each in rules.getTransitions() if not each.getInstant().isBefore(epoch)]
    offsets = [rules.getOffset(epoch)]
    for each in (*since, *rules.getTransitionRules()):
        offsets += (each.getOffsetBefore(), each.getOffsetAfter())
    return {int(offset.getTotalSeconds()) for offset in offsets}


def _kind(expression: Any) -> Any:
    """Return the type of an expression as Spark writes it in JSON: a name, or a dict of one that is made of others."""
    return json.loads(expression.dataType().json())


def _inner(kind: dict[str, Any]) -> list[Any]:
    """Return the types that a type is made of."""
    if kind["type"] == "struct":
        return [field["type"] for field in kind["fields"]]
    return [kind[key] for key in ("elementType", "keyType", "valueType", "sqlType") if key in kind]


def _at(kind: Any, path: _Path) -> Any:
    """Return the type of what a path takes of a type, through the elements of arrays and the values of maps."""
    for place in path:
        while isinstance(kind, dict) and kind["type"] in ("array", "map"):
            kind = _inner(kind)[-1]
        inner = _inner(kind) if isinstance(kind, dict) else []
        if place >= len(inner):
            return kind
        kind = inner[place]
    return kind


def _has_moment(kind: Any) -> bool:
    """Return whether a type is one of moments, or is made of one."""
    return kind.startswith("timestamp") if isinstance(kind, str) else any(map(_has_moment, _inner(kind)))


def _loses(before: Any, after: Any, cast: Any = None) -> bool:
    """Return whether a value of a type loses a part of a moment as one of another type.

    The clocks' time has no offset: where clocks are put back, two moments have the same one, of
    which Spark takes the earlier.
    """
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        return any(_loses(*pair, cast) for pair in zip(_inner(before), _inner(after), strict=False))
    if before == "timestamp" and after == "timestamp_ntz":
        return len(_offsets(cast.zoneId())) > 1
    return _has_moment(before) and not _has_moment(after)


def _is_forward(interval: Any) -> bool:
    """Return whether an interval, or a number of units, is constant and not negative.

    A null makes no moment at all.

    What is calculated from today's date is no constant: it changes from batch to batch.
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

    Spark drops the rows whose end is not after the start.

    Of a constant gap Spark tests the sum of months, days and microseconds instead, which one of a
    negative day may pass.
    """
    start = fields[1]
    if any(e.getClass().getSimpleName() != "PreciseTimestampConversion" for e in (start, *items(start.children()))):
        return False  # that of window() is calculated
    gap = next((e for e in nodes(fields[-1]) if e.getClass().getSimpleName() in _SHIFTS), None)
    return gap is not None and not items(gap.children())[1].foldable()


def _is_window_start(value: Any) -> bool:
    """Return whether the first field of a struct is the start of a ``window()``; that of a session is the time itself."""
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
    """Return what a followed column is before a list of named expressions has made it; None: something that cannot be followed."""
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
    if name == "TruncTimestamp":  # date_trunc()
        truncated = _truncated(expression)
        if truncated is None or followed.shift:
            return None
        return _inside(children[1], dataclasses.replace(followed, truncated=(truncated, *followed.truncated)))
    if name == "Subtract" and children[0].getClass().getSimpleName() == "PreciseTimestampConversion":  # window_time()
        if children[1].getClass().getSimpleName() != "Literal":
            return None
        return _inside(children[0], dataclasses.replace(followed, shift=followed.shift - _micros(children[1])))
    return None


def _truncated(expression: Any) -> Truncated | None:
    """Return what a date_trunc() makes of a moment; None where its unit is no literal that Spark knows."""
    unit, zone, jvm = items(expression.children())[0], expression.timeZoneId(), _jvm_of(expression)
    dates = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    if unit.getClass().getSimpleName() != "Literal" or zone.isEmpty() or unit.value() is None:
        return None
    level = dates.parseTruncLevel(unit.value())
    if level < 0:  # no unit
        return None
    clocks = dates.getZoneId(zone.get())

    def transitions(after: int, until: int) -> Iterator[int]:
        found = clocks.getRules().nextTransition(dates.microsToInstant(after))
        while found is not None and (at := dates.instantToMicros(found.getInstant())) <= until:
            yield at
            found = clocks.getRules().nextTransition(found.getInstant())

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
    found = _window(aggregate, keys[0])
    if found is not None and followed.field is not None:
        return [dataclasses.replace(stamp, kind=followed.field, window=found[1])]
    metadata = json.loads(keys[0].metadata().json())
    sessions = bool(metadata.get("spark.sessionWindow"))
    plain = not sessions and not metadata.get("spark.timeWindow")
    by_time = (sessions and followed.field == "end") or (plain and followed.field is None)
    return [stamp] if by_time else None


def _stamps_of_join(join: Any, followed: _Followed) -> list[Stamp] | None:
    sides = (join.left(), join.right())
    side = 0 if followed.id in _ids(sides[0]) else 1
    if followed.id not in _ids(sides[side]):
        return None  # of a semi-join the column is the left side's, of others one of either
    below, lag = _lag_of_all(sides), _lags(join)[side]
    if followed.id in _time_keys(join) and _holds(sides[side]):
        # The join holds what its side has given out for as long as its own watermark, the lesser of
        # both sides, says.
        found = _stamps(sides[side], followed)
        if found is None or below is None:
            return None
        return [dataclasses.replace(stamp, lag=max(stamp.lag, below)) for stamp in found]
    times = [a.exprId().id() for a in items(sides[side].output()) if _is_watermarked(a)]
    if followed.field is not None or times != [followed.id] or below is None or lag is None:
        return None
    return [Stamp("time", None, below + max(lag, timedelta()), followed.shift, followed.truncated)]


def _lag_of_all(plans: Sequence[Any]) -> timedelta | None:
    lags = [_lag(plan) for plan in plans if plan.isStreaming()]
    return None if None in lags else max((each for each in lags if each is not None), default=timedelta())


def _lag(plan: Any) -> timedelta | None:
    """Return how far the watermark above a plan is below the query's; None: nobody knows.

    Aggregations and deduplications pass their watermark on. A join of two streams gives the least
    time that it can still hold.
    """
    kind = KINDS.get(plan.getClass().getSimpleName())
    if kind == KINDS["TransformWithState"]:
        return None
    children = items(plan.children())
    below = _lag_of_all(children)
    if below is None or kind != KINDS["Join"] or sum(child.isStreaming() for child in children) < 2:
        return below
    left, right = _lags(plan)
    return None if left is None or right is None else below + max(left, right, timedelta())
