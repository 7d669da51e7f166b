"""The graph of computations as an SVG: inputs left, readers right.

The layout is that of layered graphs (Sugiyama, Tagawa and Toda, 1981): a computation is one column
right of its last input, and an edge that passes over columns gets a place in each of them. Sweeps
over the columns move every box towards the mean of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from lowwater.core.lag import upstream_first
from lowwater.core.text import on_one_line

__all__ = ["MOST_NODES", "Look", "Node", "draw", "layers_of"]

MOST_NODES: Final = 300
"""Greatest number of computations that are drawn."""

MOST_PLACES: Final = 3_000
"""Greatest number of boxes and places of passing edges that are drawn."""

_SWEEPS: Final = 8
"""Number of sweeps over the columns; further ones hardly move a box."""

_LETTER: Final = 7.3
"""Width of a letter of the fixed-width font, in pixels at 12 pixels of height."""

_MOST_LETTERS: Final = 34
"""Number of letters beyond which a text in a box is shortened."""

_BOX: Final = 42.0
"""Height of a box, pixels."""

_BETWEEN: Final = 14.0
"""Least vertical distance of two boxes, pixels."""

_PASSING: Final = 10.0
"""Height of the place that a passing edge takes in a column, pixels."""

_ACROSS: Final = 56.0
"""Horizontal distance of two columns, pixels."""

_MARGIN: Final = 6.0
"""Room around the drawing, pixels."""

PAPER: Final = "var(--jp-layout-color0, var(--vscode-editor-background, Canvas))"
"""Background of a notebook: that of JupyterLab, of VS Code, or of the page."""


@dataclass(frozen=True, slots=True)
class Look:
    """How the state of a computation is drawn."""

    mark: str
    """One character that shows the state without a colour."""
    colour: str
    """Colour that is readable on light and dark ground."""
    legend: str
    """Meaning of mark and colour, a few words."""
    strong: bool = False
    """True for what should be seen first."""


@dataclass(frozen=True, slots=True)
class Node:
    """One computation of a drawing."""

    name: str
    inputs: Sequence[str]
    line: str
    """Second line of its box."""
    look: Look
    dashed: bool = False
    """True for a computation whose watermarks are no promise, or that is not registered."""


@dataclass(slots=True, eq=False)
class _Place:
    """A box of a column, or the place of an edge that passes over the column."""

    node: Node | None
    height: float
    y: float = 0.0
    """Top edge, pixels."""

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def draw(nodes: Sequence[Node]) -> str | None:
    """Return the SVG of computations; None when they are too many to be drawn.

    Inputs that are not among the nodes are left out. O(places * sweeps).
    """
    by_name = {node.name: node for node in nodes}
    inputs = {node.name: [name for name in dict.fromkeys(node.inputs) if name in by_name] for node in nodes}
    if not nodes or len(nodes) > MOST_NODES:
        return None
    layer_of = layers_of(inputs)
    passing = sum(max(0, layer_of[node] - layer_of[name] - 1) for node in inputs for name in inputs[node])
    if len(nodes) + passing > MOST_PLACES:
        return None
    columns, edges = _places(by_name, inputs, layer_of)
    _arrange(columns, edges)
    lefts, widths = _across(columns)
    height = max(place.y + place.height for column in columns for place in column)
    column_of = {id(place): i for i, column in enumerate(columns) for place in column}
    parts = [_edge(edge, lambda place: (lefts[column_of[id(place)]], widths[column_of[id(place)]])) for edge in edges]
    parts += [
        _box(place.node, lefts[i], place.y, widths[i])
        for i, column in enumerate(columns)
        for place in column
        if place.node is not None
    ]
    width, height = lefts[-1] + widths[-1] + _MARGIN, height + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{len(nodes)} computations, inputs left" '
        f'style="width:100%;height:auto;min-width:{0.65 * width:.0f}px;max-width:{width + _MARGIN:.0f}px" viewBox="{-_MARGIN:g} {-_MARGIN:g} {width + _MARGIN:.0f} {height + _MARGIN:.0f}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def layers_of(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each computation: one right of its last input.

    >>> layers_of({"report": ["hourly", "orders"], "hourly": ["orders"], "orders": []})
    {'orders': 0, 'hourly': 1, 'report': 2}
    """
    layers: dict[str, int] = {}
    for name in upstream_first(inputs):
        # Views of two versions of the graph may form a cycle, which is cut here.
        layers[name] = 1 + max((layers.get(upstream, -1) for upstream in inputs[name]), default=-1)
    return layers


def _places(
    nodes: Mapping[str, Node], inputs: Mapping[str, Sequence[str]], layer_of: Mapping[str, int]
) -> tuple[list[list[_Place]], list[list[_Place]]]:
    """Return the columns, and each edge as the places that it joins from left to right."""
    columns: list[list[_Place]] = [[] for _ in range(max(layer_of.values()) + 1)]
    boxes = {name: _Place(nodes[name], _BOX) for name in layer_of}
    for name, box in boxes.items():
        columns[layer_of[name]].append(box)
    edges: list[list[_Place]] = []
    for name in layer_of:
        for upstream in inputs[name]:
            edge = [boxes[upstream]]
            for column in columns[layer_of[upstream] + 1 : layer_of[name]]:
                column.append(_Place(None, _PASSING))
                edge.append(column[-1])
            edges.append([*edge, boxes[name]])
    return columns, edges


def _arrange(columns: Sequence[list[_Place]], edges: Sequence[Sequence[_Place]]) -> None:
    """Order the places of each column, and set their heights."""
    left_neighbours: dict[int, list[_Place]] = {}
    right_neighbours: dict[int, list[_Place]] = {}
    for edge in edges:
        for one, other in pairwise(edge):
            left_neighbours.setdefault(id(other), []).append(one)
            right_neighbours.setdefault(id(one), []).append(other)
    for column in columns:
        _stack(column, [0.0] * len(column))
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        neighbours = left_neighbours if forward else right_neighbours
        for column in columns if forward else reversed(columns):
            near = [neighbours.get(id(place)) or [place] for place in column]
            wanted = [sum(place.middle for place in places) / len(places) for places in near]
            order = sorted(range(len(column)), key=wanted.__getitem__)
            column[:] = [column[i] for i in order]
            _stack(column, [wanted[i] for i in order])
    top = min(place.y for column in columns for place in column)
    for column in columns:
        for place in column:
            place.y -= top


def _stack(column: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Place a column from top to bottom, each place as near to the middle it wants as it can."""
    bottom = float("-inf")
    for place, middle in zip(column, wanted, strict=True):
        place.y = max(middle - place.height / 2, bottom)
        bottom = place.y + place.height + _BETWEEN
    error = sum(place.middle - middle for place, middle in zip(column, wanted, strict=True)) / len(column)
    for place in column:
        place.y -= error


def _across(columns: Sequence[Sequence[_Place]]) -> tuple[list[float], list[float]]:
    """Return the left edge and the width of each column."""
    lefts: list[float] = []
    widths: list[float] = []
    x = 0.0
    for column in columns:
        texts = [
            _shortened(text) for place in column if place.node for text in (place.node.name, f"  {place.node.line}")
        ]
        lefts.append(x)
        widths.append(20 + _LETTER * max(map(len, texts)))
        x += widths[-1] + _ACROSS
    return lefts, widths


def _edge(places: Sequence[_Place], across: Callable[[_Place], tuple[float, float]]) -> str:
    left, width = across(places[0])
    path = f"M{left + width:.1f} {places[0].middle:.1f}"
    x, y = left + width, places[0].middle
    for place in places[1:]:
        left, width = across(place)
        bend = (left - x) / 2
        path += f"C{x + bend:.1f} {y:.1f} {left - bend:.1f} {place.middle:.1f} {left:.1f} {place.middle:.1f}"
        x, y = left, place.middle
        if place.node is None:
            x += width
            path += f"H{x:.1f}"
    arrow = f"M{x - 6:.1f} {y - 3.5:.1f}L{x:.1f} {y:.1f}L{x - 6:.1f} {y + 3.5:.1f}"
    return f'<path d="{path}{arrow}" fill="none" stroke="currentColor" stroke-opacity="0.45" stroke-width="1.2"/>'


def _box(node: Node, x: float, y: float, width: float) -> str:
    dashes = ' stroke-dasharray="4 3"' if node.dashed else ""
    name, line = escape(_shortened(node.name)), escape(_shortened(node.line))
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BOX:g}" rx="6"'
    return (
        f"<g><title>{escape(on_one_line(f'{node.name}: {node.line}'))}</title>"
        f'<rect {shape} style="fill:{PAPER}"/>'
        f'<rect {shape} fill="{node.look.colour}" fill-opacity="{0.3 if node.look.strong else 0.1}" stroke="{node.look.colour}" stroke-width="1.5"{dashes}/>'
        f'<text x="{x + 10:.1f}" y="{y + 17:.1f}" font-weight="600">{name}</text>'
        f'<text x="{x + 10:.1f}" y="{y + 33:.1f}" font-size="11"><tspan fill="{node.look.colour}">{node.look.mark}</tspan> {line}</text></g>'
    )


def _shortened(text: str) -> str:
    """Return a text with its middle left out if it is too long.

    >>> _shortened("production/customers/orders_by_hour")
    'production/custo..s/orders_by_hour'
    """
    text, half = on_one_line(text), _MOST_LETTERS // 2 - 1
    return text if len(text) <= _MOST_LETTERS else f"{text[:half]}..{text[-half:]}"
