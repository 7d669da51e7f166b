"""The run as a picture: the rows of each window, and how long after its end it was there."""

# matplotlib's annotations refuse dates on an axis, and know only the base of layout engines.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.two_partitions.records import HOUR, moment
from examples.two_partitions.report import Line, account, lines
from examples.two_partitions.ways import ALONE, DRIVEN, Outcome

# Okabe and Ito's colours, as in the picture of the flights.
_BLUE, _ORANGE, _RED = "#0072B2", "#E69F00", "#C4390B"
_INK, _PALE = "#1F2328", "#C6CBD3"
_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontsize": 14.5, "color": _INK, "fontweight": "bold"}
_WIDTH: Final = 0.28


def draw(outcomes: Mapping[str, Outcome], batch: Mapping[int, int], path: Path) -> None:
    """Draw the windows of a run into a PNG file, whose folder must exist."""
    figure = Figure(figsize=(13, 8.2), dpi=130, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    rows, waits = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    alone, driven = (lines(outcomes[name], batch) for name in (ALONE, DRIVEN))
    _rows(rows, alone, driven)
    _waits(waits, alone, driven)
    totals = account(outcomes[ALONE], batch)
    rows.set_title(f"Spark alone drops {totals.lost:,} of {totals.rows:,} rows; driven, none", **_TITLE, pad=62)
    look: dict[str, Any] = {"fontsize": 12, "frameon": False, "labelcolor": _INK, "borderaxespad": 0}
    rows.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=4, **look)
    rows.annotate(
        "Two partitions, one three hours behind, which stands still for two hours more in the afternoon",
        (0, 1),
        xytext=(0, 44),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=12,
        color=_INK,
    )
    figure.savefig(path)


def _rows(axes: Axes, alone: Sequence[Line], driven: Sequence[Line]) -> None:
    places = range(len(alone))
    axes.bar([x - _WIDTH for x in places], [line.batch for line in alone], _WIDTH, color=_PALE, label="batch answer")
    written = [line.rows or 0 for line in alone]
    axes.bar(places, written, _WIDTH, color=_ORANGE, label="Spark alone")
    lost = [0 if line.rows is None else line.batch - line.rows for line in alone]
    axes.bar(
        places, lost, _WIDTH, bottom=written, color="white", edgecolor=_RED, hatch="////", linewidth=0.8, label="dropped"
    )  # fmt: skip
    axes.bar([x + _WIDTH for x in places], [line.rows or 0 for line in driven], _WIDTH, color=_BLUE, label="driven")
    for x, line in enumerate(alone):
        if line.rows is None:
            axes.annotate("not written", (x, 4), ha="center", va="bottom", rotation=90, fontsize=10.5, color=_INK)
    axes.set_ylabel("rows of the window", fontsize=12, color=_INK)
    _plain(axes)


def _waits(axes: Axes, alone: Sequence[Line], driven: Sequence[Line]) -> None:
    axes.set_title("Hours from a window's end to its result, on the replay clock", **_TITLE)
    for shift, colour, table in ((0.0, _ORANGE, alone), (_WIDTH, _BLUE, driven)):
        hours = [(line.lag or 0) / HOUR for line in table]
        axes.bar([x + shift for x in range(len(table))], hours, _WIDTH, color=colour)
    axes.set_xticks(range(len(alone)), [f"{moment(line.start):%H}" for line in alone])
    axes.set_xlabel(f"window: the hour of {moment(alone[0].start):%-d %B %Y} that it begins with, UTC", fontsize=12)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.margins(x=0.01)
    axes.grid(visible=True, axis="y", color="#E2E5EA", linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#C9CED6")
    axes.tick_params(which="both", labelcolor=_INK, labelsize=11.5, length=0)
