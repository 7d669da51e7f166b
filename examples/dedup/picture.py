"""The picture of a run: how many copies came, and how many ids are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.dedup import hour
    from examples.dedup.__main__ import Sample

_BLUE: Final = "#2563a8"
_ORANGE: Final = "#c2571a"
_GREY: Final = "#6b7280"


def draw(samples: Sequence[Sample], kills: Sequence[float], path: Path) -> None:
    """Write it as a PNG."""
    figure, (rate, size) = plt.subplots(2, 1, figsize=(9, 5.4), sharex=True, layout="constrained")
    seconds, shares = _shares(samples)
    rate.plot(seconds, shares, color=_BLUE)
    rate.set_ylabel("copies among\nthe messages, %")
    rate.set_ylim(0)
    rate.set_title("A deduplicator that is killed: what it dropped, and what it remembered", loc="left", fontsize=11)
    size.plot([sample.second for sample in samples], [sample.ids for sample in samples], color=_ORANGE)
    size.set_ylabel("remembered ids")
    size.set_xlabel("seconds")
    size.set_ylim(0)
    for axes in (rate, size):
        axes.spines[["top", "right"]].set_visible(False)
        for at in kills:
            axes.axvline(at, color=_GREY, linestyle=":", linewidth=1)
    for at in kills:
        rate.annotate("kill -9", (at, 0), xytext=(3, 3), textcoords="offset points", fontsize=8, color=_GREY)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_hour(stages: Mapping[str, Sequence[hour.Sample]], path: Path) -> None:
    """Draw the ids that a stage remembers, with and without its senders' watermark, as a PNG."""
    figure, (size, behind, rates) = plt.subplots(
        3, 1, figsize=(9, 7.2), sharex=True, layout="constrained", height_ratios=(3, 2, 2)
    )
    for (name, samples), color in zip(stages.items(), (_BLUE, _GREY), strict=True):
        minutes = [sample.minute for sample in samples]
        size.plot(minutes, [sample.counts.remembered for sample in samples], color=color, label=f"W of {name}")
    size.set_ylabel("remembered ids")
    size.set_title("An hour of replay: what is remembered follows the senders' low watermark", loc="left", fontsize=11)
    size.legend(frameon=False)
    size.set_ylim(0)
    bytes_ = size.twinx()
    [samples, *_] = stages.values()
    minutes = [sample.minute for sample in samples]
    bytes_.plot(minutes, [sample.counts.state_bytes / 1024 for sample in samples], color=_ORANGE, linewidth=1)
    bytes_.set_ylabel("its state, KiB", color=_ORANGE)
    bytes_.set_ylim(0)
    bytes_.spines["top"].set_visible(False)
    behind.plot(minutes, [sample.behind for sample in samples], color=_BLUE)
    behind.set_ylabel("W behind the\nsender, minutes")
    behind.set_ylim(0)
    rates.plot(
        minutes, [100 * sample.counts.duplicate_rate for sample in samples], color=_BLUE, label="copies among the rows"
    )
    rates.plot(
        minutes,
        [100 * sample.counts.filter_hit_rate for sample in samples],
        color=_ORANGE,
        label="looks that filters spared",
    )
    rates.set_ylabel("%")
    rates.set_ylim(0, 105)
    rates.set_xlabel("minutes of event time")
    rates.legend(frameon=False, loc="center right")
    for axes in (size, behind, rates):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _shares(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Return the share of copies over the last few seconds, where anything came."""
    seconds, shares = [], []
    for at, sample in enumerate(samples):
        before = next((earlier for earlier in reversed(samples[:at]) if earlier.second < sample.second - 3), None)
        if before is None:
            continue
        copies = sample.duplicates - before.duplicates
        messages = copies + sample.admitted - before.admitted
        if messages > 0:
            seconds.append(sample.second)
            shares.append(100 * copies / messages)
    return seconds, shares
