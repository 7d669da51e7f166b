"""The run as a picture: departures beside the usual counts, and the lags of both watermarks."""

# matplotlib's annotations refuse dates on an axis, and know only the base of layout engines.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from datetime import datetime
from math import nan
from pathlib import Path
from typing import Final

from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from examples.flights.data import HOUR, moment
from examples.zeitgeist.answer import Change
from examples.zeitgeist.computations import DIP, FEEDS
from examples.zeitgeist.replay import STALL, STALLED, START
from examples.zeitgeist.report import Answer
from examples.zeitgeist.run import Outcome, Run

# Okabe and Ito's colours, as in the picture of the flights.
_BLUE, _ORANGE, _RED, _GREEN = "#0072B2", "#E69F00", "#C4390B", "#009E73"
_INK, _PALE = "#1F2328", "#C6CBD3"
_NAMES: Final = {"EWR": "Newark", "JFK": "JFK", "LGA": "LaGuardia"}


def draw(outcome: Run, batch: Answer, path: Path) -> None:
    """Draw a run into a PNG file, whose folder must exist."""
    figure = Figure(figsize=(13, 10), dpi=120, layout="constrained", facecolor="white")
    *airports, behind = figure.subplots(4, 1, sharex=True, height_ratios=(1, 1, 1, 0.8))
    figure.suptitle(
        "Departures an hour: the blizzard is a dip, and a feed that stands still is none",
        x=0.01,
        ha="left",
        fontsize=15,
        fontweight="bold",
        color=_INK,
    )
    for axes, feed in zip(airports, FEEDS, strict=True):
        _airport(axes, feed, outcome, batch)
    _behind(behind, outcome)
    handles = [
        Patch(facecolor=_PALE, label="usual: mean of four weeks"),
        Line2D([], [], color=_BLUE, drawstyle="steps", label="by the low watermark"),
        Line2D([], [], color=_ORANGE, label="by Spark's own watermark, where it is another"),
        Patch(facecolor=_RED, alpha=0.16, label="dip, by the low watermark"),
        Patch(facecolor=_GREEN, alpha=0.35, label="spike, by the low watermark"),
        Patch(facecolor="none", edgecolor=_ORANGE, hatch="////", linewidth=0, label="false dip, by Spark's own"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=11, labelcolor=_INK)
    figure.savefig(path)


def _airport(axes: Axes, feed: str, outcome: Run, batch: Answer) -> None:
    hours = sorted(hour for hour, _ in outcome.low.hours if hour.origin == feed and hour.start >= START)
    times = [moment(hour.start) for hour in hours]
    axes.fill_between(times, [hour.past / 4 for hour in hours], step="post", color=_PALE, linewidth=0)
    theirs = {hour.start: hour.n for hour, _ in outcome.spark.hours if hour.origin == feed}
    differing = [theirs[hour.start] if theirs.get(hour.start, hour.n) != hour.n else nan for hour in hours]
    axes.step(times, [hour.n for hour in hours], where="post", color=_BLUE, linewidth=1.5)
    axes.step(times, differing, where="post", color=_ORANGE, linewidth=3, clip_on=False, zorder=3)
    for episode in _episodes(outcome.low, feed):
        axes.axvspan(
            moment(episode.since),
            moment(episode.at),
            color=_RED if episode.kind == DIP else _GREEN,
            alpha=0.16 if episode.kind == DIP else 0.35,
            linewidth=0,
        )
    right = {change for change in batch.changes if change.origin == feed}
    for episode in _episodes(outcome.spark, feed):
        if episode not in right:
            axes.axvspan(
                moment(episode.since),
                moment(episode.at),
                facecolor="none",
                edgecolor=_ORANGE,
                hatch="////",
                linewidth=0,
            )
    axes.set_title(_NAMES[feed], loc="left", fontsize=12.5, color=_INK)
    axes.set_ylabel("departures", color=_INK)
    axes.set_ylim(0)
    _plain(axes)


def _behind(axes: Axes, outcome: Run) -> None:
    """Draw how far the watermarks were behind the replay clock after each step."""
    clocks = [moment(stand.clock) for stand in outcome.stands]
    axes.plot(
        clocks,
        [(stand.clock - stand.spark) / HOUR for stand in outcome.stands],
        color=_ORANGE,
        marker=".",
        linewidth=2.2,
    )
    axes.plot(
        clocks, [(stand.clock - stand.low) / HOUR for stand in outcome.stands], color=_BLUE, marker=".", linewidth=1.3
    )
    axes.set_title("Hours that the watermark is behind the replay clock", loc="left", fontsize=12.5, color=_INK)
    _note(axes, moment(STALL[1]), f"{_NAMES[STALLED]}'s feed\nstands still")
    worst = max(outcome.stands, key=lambda stand: stand.clock - stand.spark)
    _note(axes, moment(worst.clock), "nobody leaves: without rows\nSpark's watermark stands")
    axes.xaxis.set_major_locator(dates.DayLocator())
    axes.xaxis.set_major_formatter(dates.DateFormatter("%-d Feb 2013"))
    axes.tick_params(axis="x", pad=8)
    axes.set_xlabel("event time, and of the last panel replay clock; UTC", color=_INK)
    axes.set_ylim(0, max(stand.clock - min(stand.low, stand.spark) for stand in outcome.stands) / HOUR * 1.15)
    _plain(axes)


def _note(axes: Axes, at: datetime, text: str) -> None:
    axes.annotate(
        text,
        (at, axes.get_ylim()[1]),
        xytext=(12, -4),
        textcoords="offset points",
        va="top",
        fontsize=10.5,
        color=_INK,
    )


def _episodes(outcome: Outcome, feed: str) -> list[Change]:
    """Return the dips and spikes of an airport that are over."""
    return [change for change, _ in outcome.changes if change.origin == feed and not change.open and change.at >= START]


def _plain(axes: Axes) -> None:
    axes.margins(x=0.005)
    axes.grid(visible=True, axis="y", color="#E2E5EA", linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#C9CED6")
    axes.tick_params(which="both", labelcolor=_INK, labelsize=11, length=0)
