"""Finds the operators of a streaming plan that keep rows in Spark's own state, and what their letting go depends on.

It reads the analysed plan through py4j, by structure and not by its text. What the nodes look like was probed on PySpark 4.3: a
window of ``window(t, length, slide, start)`` is a struct of two expressions in a Project (tumbling) or an Expand (sliding) below the
Aggregate, ``conversion(...(t - start) % slide ... + length)``; a column under ``withWatermark`` carries its delay in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "KINDS",
    "Operator",
    "Watermark",
    "Window",
    "items",
    "nodes",
    "is_windows",
    "operator_of",
    "reach",
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
"""Logical operators that keep streaming rows in state, and what they are called here. A Join only of two streams."""

_ON_ARRIVAL: Final = frozenset({"deduplication", "deduplication within the watermark"})

_NAMED: Final = frozenset({"Alias", "AttributeReference"})
"""Expressions of an analysed plan that have a name of their own, and with it the metadata in which a watermark stands."""

_DELAY: Final = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class Window:
    """How ``window()`` cuts event time."""

    length: timedelta
    slide: timedelta
    start: timedelta
    """startTime: what the windows are shifted by."""


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
    """The event time columns under a watermark that its letting go depends on; of a windowed aggregation the column in the window, of
    a join those of both sides, left before right. Empty: Spark never lets go."""
    window: Window | None
    """Of an aggregation over ``window()``; None for other keys and for session windows."""
    driven: bool
    """Whether a control source is among what it reads."""
    both_sides: bool = True
    """Of a join: whether both sides have a watermark."""

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
    return Operator(kind, tuple(name for side in sides for name in side), None, driven, all(sides))


def _is_watermarked(expression: Any) -> bool:
    # Of what an expression has no name there is no metadata; asking py4j for the attribute tells nothing, since of a Java object it has every one.
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
        fields = items(definition.children())
        if len(fields) != 4 or definition.getClass().getSimpleName() != "CreateNamedStruct":
            return None
        end = _only(fields[3], "Add")
        remainder = _only(fields[1], "Remainder")
        column = _only(fields[1], "AttributeReference")
        if end is None or remainder is None or column is None:
            return None  # a session window
        shifted = items(remainder.children())[0]
        length, slide, start = (_micros(items(e.children())[1]) for e in (end, remainder, shifted))
        return str(column.name()), Window(length, slide, start)
    return None


def _definitions(aggregate: Any, expression_id: int) -> Iterator[Any]:
    """Yield the expressions by which the nodes below define an attribute: one for each, of an Expand its last."""
    for node in nodes(items(aggregate.children())[0]):
        name = node.getClass().getSimpleName()
        if name == "Project":
            for column in items(node.projectList()):
                if column.exprId().id() == expression_id and column.getClass().getSimpleName() == "Alias":
                    yield column.child()
        elif name == "Expand":
            ids = [attribute.exprId().id() for attribute in items(node.output())]
            if expression_id in ids:
                yield items(items(node.projections())[-1])[ids.index(expression_id)]


def _only(expression: Any, name: str) -> Any:
    """Return the first expression of a class in a tree, parents first; None when there is none."""
    return next((e for e in nodes(expression) if e.getClass().getSimpleName() == name), None)


def _micros(literal: Any) -> timedelta:
    return timedelta(microseconds=int(literal.value()))


def reach(operators: Sequence[Operator], *, stamped: bool) -> timedelta | None:
    """Return how far below the watermark can be stamped what operators let go, if all that hold rows are windowed aggregations; None otherwise.

    ``stamped``: what comes out is stamped by the start or end of a window. Then it is the longest window: what an inner window lets go is in an outer one that is
    still open. Otherwise it may be stamped by a time that was in the innermost one, and waits for each in turn: the sum.
    """
    lengths = [None if each.window is None else each.window.length for each in operators if each.holds]
    known = [length for length in lengths if length is not None]
    if not known or len(known) < len(lengths):
        return None
    return max(known) if stamped else sum(known, timedelta())


def is_windows(frame: DataFrame, column: str | Column) -> bool:
    """Return whether a column of a frame is the start or the end of a ``window()``, and nothing that was made of it."""
    plan: Any = frame.select(column)._jdf.queryExecution().analyzed()
    [expression] = items(plan.projectList())
    return _is_windows(plan, expression)


def _is_windows(plan: Any, expression: Any) -> bool:
    name = expression.getClass().getSimpleName()
    if name == "Alias":
        return _is_windows(plan, expression.child())
    if name == "AttributeReference":
        return any(_is_windows(plan, each) for each in _definitions(plan, expression.exprId().id()))
    if name != "GetStructField" or expression.child().getClass().getSimpleName() != "AttributeReference":
        return False
    return bool(json.loads(expression.child().metadata().json()).get("spark.timeWindow"))
