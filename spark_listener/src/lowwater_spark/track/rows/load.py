"""Costs of a batch's key ranges, and a layout that spreads them better. Pure.

A task measures for each of its ranges the rows, the time of the update, the rows by sixteen parts,
and the rows of the heaviest key. The driver collects them with the receipts, and reports the
hottest ones to the authority.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater.layout import Layout, RangeLoad
from lowwater_spark.track.rows.ranges import PLACES, SIGN

if TYPE_CHECKING:
    from lowwater_spark.track.rows.cut import Cut

__all__ = ["BATCHES", "MOST_TOLD", "balanced", "hottest", "loads_of", "measured"]

PARTS: Final = 16

MOST_TOLD: Final = 64
"""Number of hottest ranges that are reported to the authority."""

BATCHES: Final = 3
"""Number of consecutive batches in which a range must be too hot, or two neighbours cold."""

UNEVEN: Final = 1.25
"""Load, in fair shares, above which the slowest task's ranges are moved, and a range is cut."""

GAIN: Final = 0.8
"""Greatest part of its load that the slowest task may keep if moving ranges is worth while."""

COLD: Final = 0.125
"""Greatest load of two neighbours together, in workers' fair shares, to merge them."""


def measured(handle: int, places: Any, span: tuple[int, int], micros: int) -> list[int]:
    """Return a range's cost: handle, micros, rows, rows of the heaviest key, rows by part.

    ``places`` are the signed hashes of the rows' keys, and ``span`` the range's unsigned places.
    O(rows log rows).
    """
    if not len(places):
        return [handle, micros, 0, 0]
    unsigned = np.asarray(places, np.int64).view(np.uint64) ^ np.uint64(SIGN)
    start, size = span[0], span[1] - span[0]
    part = np.minimum((unsigned - np.uint64(start)) // np.uint64(max(1, size // PARTS)), PARTS - 1)
    heaviest = int(np.unique(unsigned, return_counts=True)[1].max())
    return [handle, micros, len(unsigned), heaviest, *np.bincount(part.astype(np.int64), minlength=PARTS).tolist()]


def loads_of(cut: Cut, measures: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[RangeLoad]:
    """Return the loads of all ranges, from their tasks' measures, in the order of the key space.

    ``sizes`` has the bytes of each range's state. Ranges of less than a slot are left out.
    """
    slots = [place * 65_536 // PLACES for place in cut.places]
    by_handle = {handle: rest for handle, *rest in measures}
    loads = []
    for handle, (size, (start, end)) in enumerate(zip(sizes, pairwise(slots), strict=True)):
        micros, rows, heaviest, *parts = by_handle.get(handle, (0, 0, 0))
        if start < end:
            loads.append(RangeLoad(start, end, rows, micros, size, tuple(parts), heaviest))
    return loads


def hottest(loads: Sequence[RangeLoad]) -> list[RangeLoad]:
    """Return the ranges with the greatest cost, hottest first; without those that had no rows."""
    return sorted((load for load in loads if load.rows), key=lambda load: (-load.micros, load.start))[:MOST_TOLD]


def balanced(
    layout: Layout, history: Sequence[Sequence[RangeLoad]], tasks: int, workers: int, least: int, *, pins: bool
) -> Layout | None:
    """Return a layout that spreads the loads of the last batches better; None if there is none.

    First, ranges move to other tasks, if ``pins`` says that they can. Second, a range is cut at its
    rows' median if in each batch it alone costs a quarter more than a fair share of one of the
    ``workers``, which run tasks side by side. Last, two cold neighbours become one, down to
    ``least`` ranges. A range that one key dominates stays. O(ranges log ranges) a batch.
    """
    batches = history[-BATCHES:]
    spans = list(zip(layout.starts, layout.ends, strict=True))
    if len(batches) < BATCHES or any([(load.start, load.end) for load in loads] != spans for loads in batches):
        return None
    means = [sum(load.micros for load in loads) / len(batches) for loads in zip(*batches, strict=True)]
    fair = sum(means) / tasks
    if not fair:
        return None
    placed = [(task - 1 if task else i) % tasks for i, task in enumerate(layout.tasks or [0] * len(layout))]
    slowest = max(_sums(placed, means, tasks))
    if pins and slowest > UNEVEN * fair:
        packed = _packed(means, tasks)
        if max(_sums(packed, means, tasks)) <= GAIN * slowest:
            return Layout(layout.version, layout.starts, tuple(task + 1 for task in packed))
    shares = [[sum(load.micros for load in loads) / workers] * len(loads) for loads in batches]
    for i in sorted(range(len(layout)), key=lambda i: (-means[i], i)):
        own_loads = [loads[i] for loads in batches]
        median = own_loads[-1].median
        hot = all(load.micros > UNEVEN * share[i] for load, share in zip(own_loads, shares, strict=True))
        if hot and median is not None and not any(load.ruled for load in own_loads):
            return layout.split(layout.starts[i], [median])
    if len(layout) <= least:
        return None
    pairs = [(means[i] + means[i + 1], i) for i in range(len(layout) - 1)]
    cold = [
        (load, i)
        for load, i in pairs
        if all(
            loads[i].micros + loads[i + 1].micros <= COLD * share[i]
            for loads, share in zip(batches, shares, strict=True)
        )
    ]
    if not cold:
        return None
    _, i = min(cold)
    return layout.merge(layout.starts[i], layout.starts[i + 1])


def _sums(placed: Sequence[int], loads: Sequence[float], tasks: int) -> list[float]:
    sums = [0.0] * tasks
    for task, load in zip(placed, loads, strict=True):
        sums[task] += load
    return sums


def _packed(loads: Sequence[float], tasks: int) -> list[int]:
    """Return a task for each load: the greatest load first, each to the least loaded task."""
    sums, packed = [0.0] * tasks, [0] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        task = min(range(tasks), key=lambda task: (sums[task], task))
        packed[i] = task
        sums[task] += loads[i]
    return packed
