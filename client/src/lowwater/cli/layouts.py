"""Layouts of key ranges on the command line: `lowwater hot`, `split`, `merge` and `move`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli.failures import answer
from lowwater.core.text import counted
from lowwater.layout import SLOTS, Layout, LayoutView, RangeLoad, slot_text

__all__ = ["heat", "hot", "merge", "move", "split"]

_ATTEMPTS: Final = 5
"""Attempts of a change. If another change comes between, it is made anew on the new layout."""


def hot(lw: Client, args: argparse.Namespace) -> int:
    """Show the layout of a computation, and the cost of its hottest ranges."""
    view = lw.layout(args.name)
    return answer(args, record(view), "\n".join([*_standing(view), *_table(view)]))


def split(lw: Client, args: argparse.Namespace) -> int:
    """Ask the owner to cut a range in parts."""

    def change(view: LayoutView, base: Layout) -> Layout:
        if args.at is not None:
            return base.split(args.range, [args.at])
        load = _load(view, base, args.range)
        if args.into is not None:
            return base.split(args.range, base.halves(args.range, args.into))
        if load is not None and load.ruled:
            msg = (
                f"one key brings {load.heaviest} of the {load.rows} rows of the range at {slot_text(args.range)}, so no cut spreads them: "
                "count this key in parts, by a second key, or pass --into or --at to cut the range all the same"
            )
            raise errors.InvalidArgument(msg, metadata={"field": "range", "fix": "--into N or --at SLOT"})
        median = None if load is None else load.median
        return base.split(args.range, base.halves(args.range, 2) if median is None else [median])

    return _change(lw, args, change)


def merge(lw: Client, args: argparse.Namespace) -> int:
    """Ask the owner to merge ranges."""
    return _change(lw, args, lambda _, base: base.merge(args.first, args.last))


def move(lw: Client, args: argparse.Namespace) -> int:
    """Ask the owner to run a range in a task."""
    return _change(lw, args, lambda _, base: base.move(args.range, args.task))


def _change(lw: Client, args: argparse.Namespace, change: Callable[[LayoutView, Layout], Layout]) -> int:
    for attempt in range(_ATTEMPTS):
        view = lw.layout(args.name)
        layout = change(view, view.base)
        try:
            version = lw.change_layout(args.name, view.incarnation, layout)
        except (errors.LayoutConflict, errors.IncarnationChanged):
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        what = f"version {version} of the layout of {view.computation}, with {counted(len(layout), 'key range')}, is wanted"
        sentence = f"{what}; `lowwater hot {args.name}` shows when its owner has applied it"
        change_record = {"computation": view.computation, "wanted": _layout(layout, version)}
        return answer(args, change_record, "\n".join([sentence, *_anew(view)]))
    raise AssertionError


def _anew(view: LayoutView) -> list[str]:
    """Warn that the first layout cuts all ranges anew, if the owner's parts begin between slots."""
    if view.current is None or view.current.version or SLOTS % len(view.current) == 0:
        return []
    parts = counted(len(view.current), "key range")
    return [
        f"  it has {parts} that begin between slots: its first layout cuts all of them anew, once, so that they begin at slots"
    ]


def record(view: LayoutView) -> dict[str, Any]:
    """Return the layout of a computation for JSON."""
    return {
        "computation": view.computation,
        "incarnation": view.incarnation,
        "wanted": _layout(view.wanted, view.wanted.version),
        "current": None if view.current is None else _layout(view.current, view.current.version),
        "refused": view.refused,
        "batch": view.batch,
        "loads": [
            {**asdict(load), "ruled_by_one_key": load.ruled, "cut": None if load.ruled else load.median}
            for load in view.loads
        ],
    }


def heat(view: LayoutView) -> list[str]:
    """Name the key range that takes half of its owner's time or more, if there is one.

    It may be the reason why the owner is behind.
    """
    total = sum(load.micros for load in view.loads)
    hottest = max(view.loads, key=lambda load: load.micros, default=None)
    if hottest is None or len(view.current or view.loads) < 2 or 2 * hottest.micros < total:
        return []
    share = round(100 * hottest.micros / total)
    sentence = (
        f"  the key range {slot_text(hottest.start)} of {view.computation} takes {share} % of the time of its batches"
    )
    if hottest.ruled:
        return [f"{sentence}, and one key brings most of its rows: no cut spreads them"]
    return [f"{sentence}: see `lowwater hot {view.computation}`"]


def _layout(layout: Layout, version: int) -> dict[str, Any]:
    return {"version": version, "starts": list(layout.starts), "tasks": list(layout.tasks)}


def _standing(view: LayoutView) -> list[str]:
    name, next_layout, current = view.computation, view.wanted, view.current
    if current is None:
        return [f"{name}: its owner has not reported how it cuts the key space", *_wish(view)]
    lines = [f"{name}: {counted(len(current), 'key range')}, version {current.version} of its layout"]
    if current.tasks:
        pinned = [(start, task) for start, task in zip(current.starts, current.tasks, strict=True) if task]
        lines += [f"  {slot_text(start)} runs in task {task}" for start, task in pinned]
    return lines if next_layout == current else [*lines, *_wish(view)]


def _wish(view: LayoutView) -> list[str]:
    if not view.wanted.starts or not view.wanted.version:
        return []
    wish = f"  version {view.wanted.version} is wanted, with {counted(len(view.wanted), 'key range')}"
    return [f"{wish}: {view.refused}" if view.refused else f"{wish}; one of the next micro-batches applies it"]


def _table(view: LayoutView) -> list[str]:
    if not view.loads:
        return []
    lines = [f"  batch {view.batch}, the hottest first:", "  RANGE            ROWS        TIME     STATE      CUT"]
    for load in view.loads:
        cut = "one key" if load.ruled else "-" if load.median is None else slot_text(load.median)
        span = f"{slot_text(load.start)}-{load.end:#06x}"
        time, size = f"{load.micros / 1000:.0f} ms", f"{load.bytes / 1_000_000:.1f} MB"
        lines.append(f"  {span:<15} {load.rows:>6} {time:>11} {size:>9} {cut:>8}")
    ruled = [load for load in view.loads if load.ruled]
    lines += [
        f"  {slot_text(load.start)} is ruled by one key, with {load.heaviest} of its {load.rows} rows: no cut spreads them"
        for load in ruled
    ]
    return lines


def _load(view: LayoutView, base: Layout, start: int) -> RangeLoad | None:
    """Return the cost of a range, if the owner has reported it for exactly this range."""
    end = base.ends[base.index(start)]
    return next((load for load in view.loads if (load.start, load.end) == (start, end)), None)
