"""Pictures of a pipeline: aligned text, mermaid, dot, and an SVG drawing in layers.

Pure: the same pipeline gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Final

from lowwater_pipeline.computation.computation import Computation, Input
from lowwater_pipeline.graph.pipeline import Pipeline, Writes

__all__ = ["FORMATS", "draw"]


def draw(pipeline: Pipeline, form: str) -> str:
    """Return a picture in one of :data:`FORMATS`, with a line break at its end."""
    return FORMATS[form](pipeline) + "\n"


def _key(declared: Input) -> str:
    return declared.key if isinstance(declared.key, str) else "a function"


def _kind(computation: Computation) -> list[str]:
    """Return the words for a computation's stamp, productions and order."""
    productions: object = getattr(computation, "productions", None)
    kinds = [
        "event time" if computation.stamp is None else f"windows of {computation.stamp}",
        "strong" if productions is None else type(productions).__name__.lower(),
    ]
    return [*kinds, "in order"] if computation.in_order else kinds


# -- text ------------------------------------------------------------------------------------------


def _text(pipeline: Pipeline) -> str:
    inputs = [["COMPUTATION", "INPUT", "READS", "FROM", "KEY", "EVENT TIME", "ID"]]
    outputs = [["COMPUTATION", "OUTPUT", "STANDS IN", "EVENT TIME", "READ BY"]]
    kinds = [["COMPUTATION", "STAMP", "PRODUCTIONS", "ORDER"]]
    for name in pipeline.order:
        for read in pipeline.reads_of(name):
            row = [read.input.label, read.origin, read.place.describe(read.path)]
            inputs.append([name, *row, _key(read.input), read.input.event_time, read.input.id or "-"])
        for write in pipeline.writes_of(name):
            readers = [read.computation for read in pipeline.reads if read.source is write]
            row = [write.output, write.stands.describe(write.path), write.declared.event_time or "-"]
            outputs.append([name, *row, ", ".join(dict.fromkeys(readers)) or "-"])
        stamp, productions, *order = _kind(pipeline.computations[name])
        kinds.append([name, stamp, productions, "by time" if order else "as it comes"])
    return "\n\n".join([f"pipeline {pipeline.name}", *map(_aligned, (inputs, outputs, kinds))])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table. Only a computation's first row shows its name."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines, before = [], ""
    for row in rows:
        shown = ["" if row[0] == before else row[0], *row[1:]]
        before = row[0]
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(shown, widths, strict=True)).rstrip())
    return "\n".join(lines)


# -- boxes and arrows ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Box:
    """A computation, or a place outside of the pipeline that it reads or writes."""

    title: str
    lines: Sequence[str]
    computes: bool = False


@dataclass(frozen=True)
class _Arrow:
    start: str
    end: str
    label: str = ""


def _boxes(pipeline: Pipeline) -> tuple[dict[str, _Box], list[_Arrow]]:
    """Return the boxes, each behind the boxes that point to it, and the arrows."""
    sources: dict[str, _Box] = {}
    computations: dict[str, _Box] = {}
    arrows: list[_Arrow] = []
    for name in pipeline.order:
        lines = []
        for read in pipeline.reads_of(name):
            lines.append(f"{read.input.label}: key {_key(read.input)}, time {read.input.event_time}")
            if isinstance(read.source, Writes):
                label = f"{read.source.output} by {read.source.declared.event_time}"
                arrows.append(_Arrow(read.source.computation, name, label))
            else:
                sources[f"source {read.origin}"] = _Box(read.origin, [read.place.describe(read.path)])
                arrows.append(_Arrow(f"source {read.origin}", name))
        computations[name] = _Box(name, [*lines, ", ".join(_kind(pipeline.computations[name]))], computes=True)
    rim: dict[str, _Box] = {}
    for write in pipeline.writes:
        if all(read.source is not write for read in pipeline.reads):
            time = write.declared.event_time
            rim[f"output {write.called}"] = _Box(write.output, [write.stands.describe(write.path)])
            arrows.append(_Arrow(write.computation, f"output {write.called}", "" if time is None else f"by {time}"))
    return {**sources, **computations, **rim}, list(dict.fromkeys(arrows))


def _mermaid(pipeline: Pipeline) -> str:
    boxes, arrows = _boxes(pipeline)
    ids = {name: f"n{number}" for number, name in enumerate(boxes)}
    lines = ["flowchart LR"]
    for name, box in boxes.items():
        text = "<br/>".join([f"<b>{escape(box.title)}</b>", *map(escape, box.lines)]).replace("&quot;", "#quot;")
        lines.append(f'  {ids[name]}["{text}"]' if box.computes else f'  {ids[name]}(["{text}"])')
    for arrow in arrows:
        label = f'|"{escape(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {ids[arrow.start]} -->{label} {ids[arrow.end]}")
    return "\n".join(lines)


def _dot(pipeline: Pipeline) -> str:
    boxes, arrows = _boxes(pipeline)

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    lines = [f"digraph {quoted(pipeline.name)} {{", "  rankdir=LR", '  node [fontname="Helvetica" shape=box]']
    for name, box in boxes.items():
        style = "" if box.computes else " style=rounded"
        lines.append(f"  {quoted(name)} [label={quoted(chr(10).join([box.title, *box.lines]))}{style}]")
    lines += [f"  {quoted(arrow.start)} -> {quoted(arrow.end)} [label={quoted(arrow.label)}]" for arrow in arrows]
    return "\n".join([*lines, "}"])


# -- a drawing -------------------------------------------------------------------------------------

_LETTER: Final = 6.9
_TITLE: Final = 8.6
"""Greatest width of a letter in pixels, in a box's lines and in its title."""
_LINE: Final = 18
_GAP: Final = 22
_MARGIN: Final = 24

_STYLE: Final = """\
    svg { background: #fdfdfe }
    text { font-family: Helvetica, Arial, "DejaVu Sans", sans-serif; font-size: 12.5px; fill: #566371 }
    .title { font-size: 15px; font-weight: bold; fill: #16202a }
    .box { fill: #eef5fa; stroke: #266e97; stroke-width: 1.5 }
    .place { fill: #ffffff; stroke: #c3cbd5 }
    .arrow { fill: none; stroke: #566371; stroke-width: 1.4 }
    .head { fill: #566371 }
    .label { text-anchor: middle; paint-order: stroke; stroke: #fdfdfe; stroke-width: 5px }"""


@dataclass(frozen=True)
class _Placed:
    """A box in the drawing; all numbers are pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def _svg(pipeline: Pipeline) -> str:
    boxes, arrows = _boxes(pipeline)
    placed, width, height = _layout(boxes, arrows)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="title description">',
        f'  <title id="title">The pipeline {escape(pipeline.name)}</title>',
        f'  <desc id="description">{escape(_in_words(pipeline))}</desc>',
        f"  <style>\n{_STYLE}\n  </style>",
        '  <defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"><path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>',
    ]
    for arrow in arrows:
        start, end = placed[arrow.start], placed[arrow.end]
        left, right = start.x + start.width, end.x - 2
        bend = (right - left) / 2
        path = f"M{left:.0f} {start.middle:.0f} C{left + bend:.0f} {start.middle:.0f} {right - bend:.0f} {end.middle:.0f} {right:.0f} {end.middle:.0f}"
        drawn.append(f'  <path class="arrow" d="{path}" marker-end="url(#head)"/>')
    for arrow in arrows:
        if arrow.label:
            start, end = placed[arrow.start], placed[arrow.end]
            x, y = (start.x + start.width + end.x) / 2, (start.middle + end.middle) / 2 - 5
            drawn.append(f'  <text class="label" x="{x:.0f}" y="{y:.0f}">{escape(arrow.label)}</text>')
    for name, box in boxes.items():
        at = placed[name]
        kind, round_ = ("box", 6) if box.computes else ("place", at.height / 2)
        drawn.append(
            f'  <rect class="{kind}" x="{at.x:.0f}" y="{at.y:.0f}" width="{at.width:.0f}" height="{at.height:.0f}" rx="{round_:.0f}"/>'
        )
        for i, line in enumerate([box.title, *box.lines]):
            style = ' class="title"' if i == 0 else ""
            drawn.append(f'  <text{style} x="{at.x + 16:.0f}" y="{at.y + 23 + i * _LINE:.0f}">{escape(line)}</text>')
    return "\n".join([*drawn, "</svg>"])


def _in_words(pipeline: Pipeline) -> str:
    """Return the picture in words, for people who cannot see it."""
    return " ".join(
        f"{name} reads {' and '.join(read.origin for read in pipeline.reads_of(name))}, "
        f"and writes {' and '.join(write.output for write in pipeline.writes_of(name))}."
        for name in pipeline.order
    )


def _layout(boxes: Mapping[str, _Box], arrows: Sequence[_Arrow]) -> tuple[dict[str, _Placed], float, float]:
    """Return the place of each box, and the drawing's width and height. O(boxes x arrows).

    A box is to the right of all boxes that point to it, and at their middle if there is room.
    """
    layers: dict[str, int] = {}
    for name in boxes:  # a box is in a later layer than each box that points to it
        layers[name] = max((layers[arrow.start] + 1 for arrow in arrows if arrow.end == name), default=0)
    placed: dict[str, _Placed] = {}
    x, height = float(_MARGIN), 0.0
    for layer in range(max(layers.values()) + 1):
        column = [name for name in boxes if layers[name] == layer]
        before = {name: [placed[arrow.start].middle for arrow in arrows if arrow.end == name] for name in column}
        heights = {name: sum(middles) / len(middles) if middles else 0.0 for name, middles in before.items()}
        column.sort(key=lambda name: heights[name])
        wide = max(_width(boxes[name]) for name in column)
        y = float(_MARGIN)
        for name in column:
            tall = 16.0 + _LINE * (1 + len(boxes[name].lines))
            y = max(y, heights[name] - tall / 2)
            placed[name] = _Placed(x, y, wide, tall)
            y += tall + _GAP
        height = max(height, y - _GAP)
        after = max((len(arrow.label) for arrow in arrows if layers[arrow.start] == layer), default=0)
        x += wide + max(70.0, after * _LETTER + 30)
    right = max(box.x + box.width for box in placed.values())
    return placed, right + _MARGIN, height + _MARGIN


def _width(box: _Box) -> float:
    return 32 + max(len(box.title) * _TITLE, *(len(line) * _LETTER for line in box.lines))


FORMATS: Final[Mapping[str, Callable[[Pipeline], str]]] = {"text": _text, "mermaid": _mermaid, "dot": _dot, "svg": _svg}
"""Functions that draw a pipeline, by format; the first is the default."""
