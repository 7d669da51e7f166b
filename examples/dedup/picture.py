"""The picture of a run: how many copies came, and how many ids are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
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
    size.plot([each.second for each in samples], [each.ids for each in samples], color=_ORANGE)
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


def _shares(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Return the share of copies over the last few seconds, where anything came."""
    seconds, shares = [], []
    for at, sample in enumerate(samples):
        before = next((each for each in reversed(samples[:at]) if each.second < sample.second - 3), None)
        if before is None:
            continue
        copies = sample.duplicates - before.duplicates
        messages = copies + sample.admitted - before.admitted
        if messages > 0:
            seconds.append(sample.second)
            shares.append(100 * copies / messages)
    return seconds, shares
