"""The picture of an advice: share of lost rows by delay, as an SVG for light and dark pages."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from lowwater.core.text import duration, on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater.core.advice import Advice

__all__ = ["picture"]

WIDTH: Final = 760
HEIGHT: Final = 420
LEFT: Final = 64
RIGHT: Final = 736
TOP: Final = 84
BOTTOM: Final = 352
LABEL: Final = 52
"""Width of the label of a delay."""

TICKS: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 7_200, 21_600, 43_200, 86_400, 259_200, 864_000, 8_640_000)
"""Delays that may have a label on the axis, seconds."""

STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1d2733 }
.title { font-size: 15px; font-weight: 600 }
.paper { fill: #ffffff }
.grid { stroke: #d5dbe3 }
.band { fill: #c2410c; fill-opacity: .25; stroke: #c2410c; stroke-width: 1.5 }
.lost { fill: #b23a08 }
.asked { stroke: #b23a08; stroke-dasharray: 2 3 }
.low { stroke: #0f766e; stroke-width: 2.5 }
.span { fill: #0f766e; fill-opacity: .14 }
.waits { fill: #0f766e; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6ebf2 }
  .paper { fill: #14191f }
  .grid { stroke: #36404c }
  .band { fill: #fb923c; stroke: #fb923c }
  .lost { fill: #fdba74 }
  .asked { stroke: #fdba74 }
  .low { stroke: #2dd4bf }
  .span { fill: #2dd4bf }
  .waits { fill: #5eead4 }
}
"""


def picture(advice: Advice) -> str:
    """Return the picture as the text of an SVG file.

    The band lies between the least and the most that a delay may have lost. Raises ValueError when
    no event times are known.
    """
    if len(advice.curve) < 2:
        raise ValueError("there is no picture without event times of a query; see what the advice says is not known")
    waits = advice.waits if advice.waits is not None and advice.waits.by_rows else None
    seconds = [loss.delay.total_seconds() for loss in advice.curve]
    marks = [delay.total_seconds() for delay in advice.asked]
    if waits is not None:
        marks += [value for value in (*waits.median, *waits.worst) if value > 0]
    first, last = min(seconds), max(*seconds, *marks) * 1.1
    most = max(loss.share.most for loss in advice.curve) or 0.01
    highest = math.ceil(most * 20) / 20 if most > 0.05 else most

    def x(delay: float) -> float:
        place = math.log(max(delay, first) / first) / math.log(last / first)
        return LEFT + (RIGHT - LEFT) * min(1.0, place)

    def y(share: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * share / highest

    body = [f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>']
    title = (
        f"Rows that a constant delay would have lost: {on_one_line(advice.query) or 'the query'}, {advice.rows} rows"
    )
    body.append(_text(LEFT - 40, 28, title, "title", "start"))
    for step in range(5):
        share = highest * step / 4
        body.append(f'<path class="grid" d="M{LEFT} {y(share):.1f}H{RIGHT}"/>')
        body.append(_text(LEFT - 8, y(share) + 4, f"{share * 100:.2g} %", anchor="end"))
    for tick in _apart((tick for tick in TICKS if first <= tick <= last), x):
        body.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{BOTTOM + 5}"/>')
        body.append(_text(x(tick), BOTTOM + 20, duration(tick)))
    body.append(
        _text(
            (LEFT + RIGHT) / 2, HEIGHT - 22, "delay of Spark's watermark; the share of lost rows lies within the band"
        )
    )
    if waits is not None:
        left, right = x(waits.median.least), x(waits.median.most)
        body.append(f'<rect class="span" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{BOTTOM - TOP}"/>')
        body.append(f'<path class="low" d="M{right:.1f} {TOP - 4}V{BOTTOM}"/>')
        loses = "" if advice.estimated else "loses none, "
        waited = f"{advice.computation}: {loses}waits {duration(waits.median.most)} at the median"
        anchor = "start" if right < WIDTH / 2 else "end"
        body.append(_text(right, TOP - 30, waited, "waits", anchor))
    upper = " ".join(f"{x(at):.1f},{y(loss.share.most):.1f}" for at, loss in zip(seconds, advice.curve, strict=True))
    lower = " ".join(
        f"{x(at):.1f},{y(loss.share.least):.1f}" for at, loss in zip(seconds[::-1], advice.curve[::-1], strict=True)
    )
    body.append(f'<polygon class="band" points="{upper} {lower}"/>')
    for loss in advice.losses:
        at = x(loss.delay.total_seconds())
        body.append(f'<path class="asked" d="M{at:.1f} {TOP}V{BOTTOM}"/>')
    for delay in _apart((loss.delay.total_seconds() for loss in advice.losses), x):
        body.append(_text(x(delay), TOP - 8, duration(delay), "lost"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(str(advice))}</desc><style>{STYLE}</style>\n"
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _apart(delays: Iterable[float], x: Callable[[float], float]) -> list[float]:
    """Return the delays whose labels do not cover each other."""
    shown: list[float] = []
    for delay in delays:
        if not shown or x(delay) - x(shown[-1]) >= LABEL:
            shown.append(delay)
    return shown
