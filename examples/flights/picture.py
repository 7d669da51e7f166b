"""The comparison as a picture: watermarks, the records lost by each, and the cost of exactness."""

# matplotlib's annotations refuse dates on an axis, and know only the base of layout engines.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, DayLocator, HourLocator, date2num
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from examples.flights.compare import (
    BUDGET,
    HEURISTIC,
    LOW,
    SPARK_2H,
    SPARK_6H,
    Batch,
    Comparison,
    Missing,
    compare,
    missing,
    watermarks,
)
from examples.flights.data import HOUR, moment
from lowwater.watermark import MAX, MIN


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    line: Any
    width: float
    order: float


@dataclass(frozen=True, slots=True)
class _Dot:
    """Dot of a record; its two colours are those of its halves."""

    label: str
    colour: str
    other: str
    size: float
    order: float
    listed: bool = True

    def marker(self) -> dict[str, Any]:
        """Return the arguments of matplotlib's Line2D."""
        halves = {"fillstyle": "left", "markerfacecoloralt": self.other} if self.other != self.colour else {}
        edge = 0.0 if self.size < 4 else 0.4
        return {
            "marker": "o",
            "markersize": self.size,
            "markerfacecolor": self.colour,
            "markeredgecolor": "white",
            "markeredgewidth": edge,
            **halves,
        }


# Okabe and Ito's colours: told apart with every common colour vision; the line styles tell them
# apart in grey.
_BLUE, _GREEN, _ORANGE, _RED, _PURPLE = "#0072B2", "#009E73", "#E69F00", "#C4390B", "#A0477F"
_INK, _QUIET, _PALE = "#1F2328", "#8A8F98", "#C6CBD3"
_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontsize": 14.5, "color": _INK, "fontweight": "bold", "pad": 10}

_STYLES: Final = {
    LOW: _Style(_BLUE, "-", 2.8, 7),
    HEURISTIC: _Style(_GREEN, (0, (4, 1.5)), 1.8, 6),
    BUDGET: _Style(_PURPLE, (0, (6, 1, 1, 1)), 2.0, 6.5),
    SPARK_2H: _Style(_ORANGE, "-", 1.6, 5),
    SPARK_6H: _Style(_RED, (0, (1, 1)), 2.0, 6),
}

_DOT_NONE: Final = _Dot("seen in time by all", _PALE, _PALE, 2.6, 1)
_DOT_HEURISTIC: Final = _Dot("missed by 99 % lately seen", _GREEN, _GREEN, 5, 4)
_DOT_2H: Final = _Dot("missed by Spark with 2 h", _ORANGE, _ORANGE, 5, 4)
_DOT_BOTH: Final = _Dot("missed by both of these", _GREEN, _ORANGE, 5, 4)
_DOT_6H: Final = _Dot("missed by Spark with 6 h, too", _RED, _RED, 9, 8)
_DOT_BUDGET: Final = _Dot("missed by the lateness budget", _PURPLE, _PURPLE, 7, 7)
_DOT_LOW: Final = _Dot("missed by the low watermark", _BLUE, _BLUE, 12, 9, listed=False)
_DOTS: Final = (_DOT_NONE, _DOT_HEURISTIC, _DOT_2H, _DOT_BOTH, _DOT_BUDGET, _DOT_6H, _DOT_LOW)


def draw(batches: Sequence[Batch], path: Path) -> None:
    """Draw one run's comparison into a PNG file.

    Args:
        batches: The hourly job's recorded batches, in order, with at least one record.
        path: The file; its folder must exist.

    Raises:
        ValueError: No batch has a record.
    """
    if not any(batch.records for batch in batches):
        raise ValueError("the recorded batches hold no record: there is nothing to draw")
    figure = Figure(figsize=(13, 11.5), dpi=130, layout="constrained", facecolor="white")
    grid = figure.add_gridspec(2, 2, height_ratios=(3.9, 1))
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.03, wspace=0.04)
    _times(figure.add_subplot(grid[0, :]), batches)
    comparisons = compare(batches)
    _records(figure.add_subplot(grid[1, 0]), comparisons)
    _waits(figure.add_subplot(grid[1, 1]), comparisons)
    figure.savefig(path)


def _times(axes: Axes, batches: Sequence[Batch]) -> None:
    """Draw event time against the replay clock: the watermarks, and every record."""
    clocks = [moment(batch.clock) for batch in batches]
    times = [time for batch in batches for _, time in batch.records]
    first, last = min(times) // HOUR * HOUR, max(times)
    axes.plot(clocks, clocks, color=_QUIET, linewidth=1, zorder=2)
    marks = watermarks(batches)
    for name, values in marks.items():
        _line(axes, batches, values, _STYLES[name], first)
    _dots(axes, batches, {name: set(missing(batches, values)) for name, values in marks.items()})
    _worst(axes, batches)
    axes.set_title("The low watermark waits for every record; the others close too early", **{**_TITLE, "pad": 30})
    records = sum(len(batch.records) for batch in batches)
    axes.annotate(
        f"{records:,} flights from New York City, scheduled {moment(first):%-d %b} to "
        f"{moment(last):%-d %b %Y}; windows of one hour and one airport",
        (0, 1),
        xytext=(0, 12),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=12,
        color=_INK,
    )
    axes.set_xlabel("replay clock when the hourly job saw the record (UTC)", fontsize=12, color=_INK)
    axes.set_ylabel("event time: scheduled departure (UTC)", fontsize=12, color=_INK)
    axes.set_xlim(clocks[0], clocks[-1] + timedelta(hours=1))
    axes.set_ylim(moment(first), clocks[-1] + timedelta(hours=1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(DayLocator())
        axis.set_minor_locator(HourLocator(byhour=(6, 12, 18)))
        axis.set_major_formatter(DateFormatter("%-d %b"))
    axes.set_axisbelow(True)
    axes.grid(which="major", color="#E2E5EA", linewidth=0.9)
    axes.grid(which="minor", color="#F1F3F5", linewidth=0.7)
    _legend(axes)
    _plain(axes)


def _line(axes: Axes, batches: Sequence[Batch], marks: Sequence[int], style: _Style, first: int) -> None:
    shown = [
        (moment(batch.clock), moment(max(mark, first)))
        for batch, mark in zip(batches, marks, strict=True)
        if MIN < mark < MAX
    ]
    if shown:
        times, values = zip(*shown, strict=True)
        line = axes.step(times, values, where="post", color=style.colour, linewidth=style.width, zorder=style.order)
        line[0].set_linestyle(style.line)


def _dots(axes: Axes, batches: Sequence[Batch], lost: dict[str, set[Missing]]) -> None:
    """Draw each record once, coloured by who would have missed it."""
    kinds: dict[_Dot, list[Missing]] = {kind: [] for kind in _DOTS}
    for batch in batches:
        for origin, time in batch.records:
            record = Missing(origin, time, batch.clock)
            kinds[_kind({name for name, records in lost.items() if record in records})].append(record)
    for kind, records in kinds.items():
        axes.plot(
            [moment(record.clock) for record in records],
            [moment(record.event_time) for record in records],
            linestyle="none",
            zorder=kind.order,
            **kind.marker(),
        )


def _kind(lost: Collection[str]) -> _Dot:
    """Return how a record looks that some ways would have missed."""
    if LOW in lost:
        return _DOT_LOW
    if SPARK_6H in lost:
        return _DOT_6H
    if BUDGET in lost:
        return _DOT_BUDGET
    if SPARK_2H in lost:
        return _DOT_BOTH if HEURISTIC in lost else _DOT_2H
    return _DOT_HEURISTIC if HEURISTIC in lost else _DOT_NONE


def _worst(axes: Axes, batches: Sequence[Batch]) -> None:
    """Point at the record that came latest: what a low watermark waits for."""
    clock, time, origin = max(
        ((batch.clock, time, origin) for batch in batches for origin, time in batch.records),
        key=lambda record: record[0] - record[1],
    )
    axes.annotate(
        f"due to leave {origin} on {moment(time):%-d %b %H:%M},\nits record came {(clock - time) / HOUR:.0f} h later:\n"
        "the low watermark held until then",
        xy=(float(date2num(moment(clock))), float(date2num(moment(time)))),
        xytext=(-30, -60),
        textcoords="offset points",
        fontsize=12,
        color=_INK,
        ha="right",
        va="top",
        arrowprops={"arrowstyle": "-", "color": _QUIET, "shrinkB": 6, "relpos": (1, 1)},
    )


def _legend(axes: Axes) -> None:
    clock = Line2D([], [], color=_QUIET, linewidth=1, label="the replay clock itself")
    lines = [
        Line2D([], [], color=style.colour, linestyle=style.line, linewidth=style.width, label=name)
        for name, style in _STYLES.items()
    ]
    dots = [Line2D([], [], linestyle="none", label=kind.label, **kind.marker()) for kind in _DOTS if kind.listed]
    look: dict[str, Any] = {
        "fontsize": 11.5, "title_fontsize": 12, "alignment": "left", "frameon": False, "labelcolor": _INK
    }  # fmt: skip
    first = axes.legend(
        handles=[clock, *lines], title="Watermarks", loc="upper left", bbox_to_anchor=(0.005, 0.995), **look
    )
    axes.add_artist(first)
    axes.legend(handles=dots, title="Records", loc="upper left", bbox_to_anchor=(0.005, 0.75), **look)


def _records(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    axes.set_title("Records missing from closed windows", **_TITLE)
    values = [comparison.missing_records for comparison in comparisons]
    _bars(axes, comparisons, values)
    for row, comparison in enumerate(comparisons):
        text = f"{comparison.missing_records}"
        if comparison.windows_wrong:
            text += f"  in {comparison.windows_wrong} of {comparison.windows} windows"
        if comparison.windows_never_closed:
            text += f"; {comparison.windows_never_closed} never closed"
        _beside(axes, comparison.missing_records, row, text)
    axes.set_xlim(0, max(*values, 1) * 2.3)


def _waits(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    axes.set_title("Hours from a window's end to its closing", **_TITLE)
    middle = [(comparison.median_wait_seconds or 0) / 3600 for comparison in comparisons]
    most = [(comparison.p99_wait_seconds or 0) / 3600 for comparison in comparisons]
    _bars(axes, comparisons, most, alpha=0.35)
    _bars(axes, comparisons, middle)
    for row, (median, p99) in enumerate(zip(middle, most, strict=True)):
        _beside(axes, p99, row, f"{median:.1f} median, {p99:.1f} at the 99th percentile")
    axes.set_xlim(0, max(*most, 1) * 2.5)
    axes.set_yticklabels([])


def _bars(axes: Axes, comparisons: Sequence[Comparison], widths: Sequence[float], alpha: float = 1.0) -> None:
    names = [comparison.name for comparison in comparisons]
    axes.barh(range(len(names)), widths, height=0.62, color=[_STYLES[name].colour for name in names], alpha=alpha)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xticks([])
    _plain(axes)
    axes.spines["bottom"].set_visible(False)


def _beside(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(
        text, (x, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=11.5, color=_INK
    )  # fmt: skip


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#C9CED6")
    axes.tick_params(which="both", labelcolor=_INK, labelsize=11.5, length=0)
