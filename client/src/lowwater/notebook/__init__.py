"""How answers look to people: one line in an interactive Python, tables and graphs in a notebook.

:func:`install` gives these looks to the types, which know nothing of them. All here but the clock
and :mod:`~lowwater.notebook.progress` is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from lowwater.core.intervals import IntervalView
from lowwater.core.text import counted, describe_range, duration, lag, on_one_line
from lowwater.core.why import Hop, Why
from lowwater.core.words import holder_words, low_words, steps_words
from lowwater.notebook import markup
from lowwater.views import Completeness, Computation, History, Inputs, Ranges, RangeView, Topology, Views, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["HTML", "LINES", "install", "now_micros"]


def now_micros() -> int:
    """Return this machine's clock, in microseconds since the epoch."""
    return time.time_ns() // 1_000


def _at(watermark: Watermark) -> str:
    """Return a watermark and how far it lags the clock."""
    timeless = watermark.unknown or watermark.finished
    return str(watermark) if timeless else f"{watermark}, {lag(watermark, now_micros())} behind"


def _view(view: WatermarkView) -> str:
    if not view.registered:
        return f"{view.computation}: {'dropped' if view.dropped else 'not registered'}"
    held = f", held by {holder_words(view.holder, now_micros())}" if view.holder is not None else ""
    estimated = ", estimated" if view.estimated else ""
    return f"{view.computation}: {_at(view.low)}{estimated}{held}"


def _range(view: RangeView) -> str:
    return f"{holder_words(view, now_micros())}, at {_at(view.watermark)}"


def _completeness(answer: Completeness) -> str:
    held = "" if answer.complete else f", held by {counted(answer.holding, 'key range')}"
    return f"{answer.watermark.computation}: {_whether(answer.complete)}, low watermark {low_words(answer.watermark)}{held}"


def _whether(complete: bool) -> str:
    return "complete" if complete else "not complete"


def _interval(answer: IntervalView) -> str:
    missing = "" if answer.complete else f", {counted(len(answer.gaps), 'computation')} below the end"
    return f"{answer.computation}, {answer.start} to {answer.end}: {_whether(answer.complete)}{missing}"


def _ranges(answer: Ranges) -> str:
    furthest = f", the furthest behind {describe_range(*_bounds(answer))}" if answer.ranges else ""
    return f"{len(answer)} of {answer.total}{furthest}"


def _bounds(answer: Ranges) -> tuple[bytes, bytes]:
    return answer.ranges[0].start, answer.ranges[0].end


def _history(answer: History) -> str:
    newest = f", the newest of {steps_words(answer.completions[-1], answer.step)}" if answer.completions else ""
    steps = f"in steps of {duration(answer.step.total_seconds())}"
    return f"{answer.computation}: {len(answer)} of {counted(answer.total, 'completion')} {steps}{newest}"


def _computation(one: Computation) -> str:
    reads = f"reads {', '.join(one.inputs)}" if one.inputs else "a source"
    return f"{one.name}: {reads}, incarnation {one.incarnation}{', estimated' if one.estimated else ''}"


def _inputs(seen: Inputs) -> str:
    held = f", held by {seen.held_by}" if seen.held_by else ""
    return f"{', '.join(seen.each)}: {_at(seen.low)}{held}"


LINES: Final[dict[type, Callable[[Any], str]]] = {
    Completeness: _completeness,
    Computation: _computation,
    History: _history,
    Hop: lambda hop: f"{hop.computation}: {hop.sentence}",
    Inputs: _inputs,
    IntervalView: _interval,
    Ranges: _ranges,
    RangeView: _range,
    Topology: lambda graph: f"version {graph.version}: {counted(len(graph.computations), 'computation')}",
    WatermarkView: _view,
    Why: lambda answer: f"{answer.hops[0].computation}: {answer.sentence}" if answer.hops else "nothing",
}
"""The line of each type, which its ``repr`` shows."""

HTML: Final[dict[type, Callable[[Any], str]]] = {
    Completeness: lambda answer: markup.completeness(answer, now_micros()),
    History: markup.history,
    IntervalView: markup.interval,
    Ranges: lambda answer: markup.ranges(answer, now_micros()),
    Topology: markup.topology,
    Views: lambda views: markup.status(views, now_micros()),
    WatermarkView: lambda view: markup.view(view, now_micros()),
    Why: markup.why,
}
"""The HTML of each type, which a notebook shows."""


def install(lines: dict[type, Callable[[Any], str]], html: dict[type, Callable[[Any], str]]) -> None:
    """Give types their ``repr`` and their ``_repr_html_``."""
    for shown, line in lines.items():
        _give(shown, "__repr__", _repr_of(line))
    for shown, made in html.items():
        _give(shown, "_repr_html_", made)


def _repr_of(line: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: on_one_line(f"<{type(value).__name__} {line(value)}>")


def _give(shown: type, name: str, made: Callable[[Any], str]) -> None:
    def method(value: Any) -> str:
        return made(value)

    method.__name__ = name
    method.__qualname__ = f"{shown.__qualname__}.{name}"
    setattr(shown, name, method)
