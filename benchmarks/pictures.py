"""Draw the lines in benchmarks/results into docs/pictures: ``python -m benchmarks.pictures``.

A picture has no figure that is not in a line. Of a metric that was measured several times the last
line counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS: Final = Path(__file__).parent / "results"
PICTURES_FOLDER: Final = Path(__file__).parents[1] / "docs/pictures"

BLUE: Final = "#0072B2"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
GREY: Final = "#8A8F98"
INK: Final = "#1F2328"

Line = dict[str, Any]
Lines = dict[tuple[str, str], Line]


def lines(folder: Path) -> Lines:
    """Return the kept lines by benchmark and metric: the first baseline, and the last run."""
    kept_lines: Lines = {}
    for path in sorted(folder.glob("*.jsonl")):
        keys: set[tuple[str, str]] = set()
        for line in map(json.loads, path.read_text().splitlines()):
            key = line.get("benchmark", ""), line.get("metric", "")
            if key not in keys:
                kept_lines[key] = line
                keys.add(key)
    return kept_lines


def numbered(kept_lines: Lines, benchmark: str, prefix: str) -> list[tuple[int, Line]]:
    """Return the lines of metrics ``prefix`` and a number, by the number."""
    pairs = (
        (metric.removeprefix(prefix), line)
        for (owner, metric), line in kept_lines.items()
        if owner == benchmark and metric.startswith(prefix)
    )
    return sorted((int(number), line) for number, line in pairs if number.isdigit())


def panel(figure: Figure, title: str, across: str, along: str) -> Axes:
    """Return the axes of a picture."""
    axes: Axes = figure.subplots()
    style(axes, title, across, along)
    return axes


def style(axes: Axes, title: str, across: str, along: str) -> None:
    """Give axes their title, names and grid."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(along, color=INK)
    axes.grid(color="#E2E5EA", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def canvas() -> Figure:
    """Return an empty picture."""
    return Figure(figsize=(8.5, 4.6), dpi=120, layout="constrained", facecolor="white")


def band(axes: Axes, points: Sequence[tuple[float, Line]], name: str, colour: str, *, column: str = "") -> None:
    """Draw the median of each point, between the least and the greatest round.

    ``column`` is ``baseline_`` for the baseline.
    """
    xs = [x for x, _ in points]
    middle = [line["baseline_value" if column else "value"] for _, line in points]
    axes.plot(xs, middle, color=colour, marker="o", markersize=4, linewidth=1.8, label=name)
    axes.fill_between(
        xs,
        [line[f"{column}low"] for _, line in points],
        [line[f"{column}high"] for _, line in points],
        color=colour,
        alpha=0.15,
    )


def latency(kept_lines: Lines) -> Figure:
    """Draw latency against the number of ranges."""
    figure = canvas()
    axes = panel(
        figure,
        "From the report to the subscriber, through the journal",
        "key ranges of the computation",
        "milliseconds",
    )
    band(axes, numbered(kept_lines, "scale", "p50_"), "lowwater, p50", BLUE)
    band(axes, numbered(kept_lines, "scale", "p99_"), "lowwater, p99", ORANGE)
    relay = kept_lines["latency", "p50"]["baseline_value"]
    axes.axhline(relay, color=GREY, linestyle=":", linewidth=1.4, label="two hops of gRPC in Python, nothing else, p50")
    axes.set_xscale("log")
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure


def throughput(kept_lines: Lines) -> Figure:
    """Draw updates a second against how many a message has."""
    figure = canvas()
    axes = panel(figure, "Updates a second, one stream, one shard", "updates in a message", "updates a second")
    points = numbered(kept_lines, "batches", "updates_per_second_")
    band(axes, points, "lowwater, each durable", BLUE)
    band(axes, points, "gRPC and numpy, no journal, no checks", GREY, column="baseline_")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def growth(kept_lines: Lines) -> Figure:
    """Draw what a report costs against the number of claims."""
    figure = canvas()
    axes = panel(figure, "A round in which one claim reports", "claims of the computation", "milliseconds")
    band(
        axes,
        numbered(kept_lines, "growth", "round_of_a_report_heuristics_"),
        "with a heuristic watermark of 99 %",
        ORANGE,
    )
    band(axes, numbered(kept_lines, "growth", "round_of_a_report_"), "without", BLUE)
    axes.set_xscale("log")
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure


def failover(kept_lines: Lines) -> Figure:
    """Draw how many of the kills were over after how long."""
    figure = canvas()
    axes = panel(
        figure, "After kill -9 of a shard, until a subscriber holds a new value", "seconds", "per cent of the kills"
    )
    for kind, name, colour in (("raw", "by raw calls", GREEN), ("library", "with the client library", BLUE)):
        seconds = kept_lines["failover", f"{kind}_new_p99"]["kills"]
        axes.step(
            [0, *seconds],
            [100 * at / len(seconds) for at in range(len(seconds) + 1)],
            where="post",
            color=colour,
            label=name,
        )
    silence = kept_lines["failover", "noticed_p50"]["value"]
    axes.axvline(silence, color=GREY, linestyle=":", linewidth=1.4, label="its death was noticed, p50")
    axes.set_xlim(0)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, loc="upper left")
    return figure


PICTURES: Final = {"latency": latency, "throughput": throughput, "growth": growth, "failover": failover}


def draw(kept_lines: Lines, names: Iterable[str]) -> Iterator[tuple[str, Figure]]:
    """Return the pictures."""
    for name in names:
        yield name, PICTURES[name](kept_lines)


def main(names: Sequence[str]) -> int:
    """Draw all pictures, or those that are named."""
    for name in names:
        if name not in PICTURES:
            print(f"there is no picture {name!r}; choose from {', '.join(PICTURES)}", file=sys.stderr)
            return 2
    for name, figure in draw(lines(RESULTS), names or PICTURES):
        figure.savefig(PICTURES_FOLDER / f"performance-{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
