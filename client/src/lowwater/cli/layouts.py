"""What is said of how computations are laid out: `lowwater hot`, `split`, `merge` and `move`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli import render
from lowwater.core.text import counted
from lowwater.layout import SLOTS, Layout, LayoutView, RangeLoad, slot_text

__all__ = ["heat", "hot", "merge", "move", "split"]

_ATTEMPTS: Final = 5
"""How often a change is made anew when another one comes between: what it names must be there
still."""


def hot(lw: Client, args: argparse.Namespace) -> int:
    """Tell how a computation is laid out, and what its hottest ranges cost."""
    found = lw.layout(args.name)
    if args.json:
        print(render.to_json(record(found)))
    else:
        print("\n".join([*_standing(found), *_table(found)]))
    return 0


def split(lw: Client, args: argparse.Namespace) -> int:
    """Ask for a range in parts."""

    def change(found: LayoutView, base: Layout) -> Layout:
        if args.at is not None:
            return base.split(args.range, [args.at])
        load = _load(found, base, args.range)
        if args.into is not None:
            return base.split(args.range, base.halves(args.range, args.into))
        if load is not None and load.ruled:
            msg = (
                f"one key brings {load.heaviest} of the {load.rows} rows of the range at {slot_text(args.range)}: no cut spreads them. Count such a "
                "key in parts, by a second key; or say --into or --at to cut the range all the same"
            )
            raise errors.InvalidArgument(msg, metadata={"field": "range", "fix": "--into N or --at SLOT"})
        median = None if load is None else load.median
        return base.split(args.range, base.halves(args.range, 2) if median is None else [median])

    return _change(lw, args, change)


def merge(lw: Client, args: argparse.Namespace) -> int:
    """Ask for ranges as one."""
    return _change(lw, args, lambda _, base: base.merge(args.first, args.last))


def move(lw: Client, args: argparse.Namespace) -> int:
    """Ask for a range in a task."""
    return _change(lw, args, lambda _, base: base.move(args.range, args.task))


def _change(lw: Client, args: argparse.Namespace, change: Callable[[LayoutView, Layout], Layout]) -> int:
    for attempt in range(_ATTEMPTS):
        found = lw.layout(args.name)
        wanted = change(found, found.base)
        try:
            version = lw.change_layout(args.name, found.incarnation, wanted)
        except (errors.LayoutConflict, errors.IncarnationChanged):
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        if args.json:
            print(render.to_json({"computation": found.computation, "wanted": _layout(wanted, version)}))
        else:
            what = f"version {version} of the layout of {found.computation}, with {counted(len(wanted), 'key range')}, is wanted"
            print(f"{what}; `lowwater hot {args.name}` tells when its owner has it")
            if first := _anew(found):
                print(first)
        return 0
    raise AssertionError


def _anew(found: LayoutView) -> str:
    """Say that a first layout moves all ranges a little, where the owner's equal parts begin between slots; else empty."""
    if found.current is None or found.current.version or SLOTS % len(found.current) == 0:
        return ""
    parts = counted(len(found.current), "key range")
    return f"  it has {parts} that begin between slots by now: with its first layout all of them are cut anew, once, to begin at slots"


def record(found: LayoutView) -> dict[str, Any]:
    """Return how a computation is laid out, for programs."""
    return {
        "computation": found.computation,
        "incarnation": found.incarnation,
        "wanted": _layout(found.wanted, found.wanted.version),
        "current": None if found.current is None else _layout(found.current, found.current.version),
        "refused": found.refused,
        "batch": found.batch,
        "loads": [
            {
                "start": each.start,
                "end": each.end,
                "rows": each.rows,
                "micros": each.micros,
                "bytes": each.bytes,
                "parts": list(each.parts),
                "heaviest": each.heaviest,
                "ruled_by_one_key": each.ruled,
                "cut": None if each.ruled else each.median,
            }
            for each in found.loads
        ],
    }


def heat(found: LayoutView) -> list[str]:
    """Say which key range takes most of its owner's time, if one takes half of it or more: it may be why the owner is behind."""
    total = sum(each.micros for each in found.loads)
    hottest = max(found.loads, key=lambda each: each.micros, default=None)
    if hottest is None or len(found.current or found.loads) < 2 or 2 * hottest.micros < total:
        return []
    share = round(100 * hottest.micros / total)
    said = (
        f"  the key range {slot_text(hottest.start)} of {found.computation} takes {share} % of the time of its batches"
    )
    if hottest.ruled:
        return [f"{said}, and one key brings most of its rows: no cut spreads them"]
    return [f"{said}: see `lowwater hot {found.computation}`"]


def _layout(layout: Layout, version: int) -> dict[str, Any]:
    return {"version": version, "starts": list(layout.starts), "tasks": list(layout.tasks)}


def _standing(found: LayoutView) -> list[str]:
    name, wanted, current = found.computation, found.wanted, found.current
    if current is None:
        return [f"{name}: its owner has not said how it cuts the key space", *_wish(found)]
    lines = [f"{name}: {counted(len(current), 'key range')}, version {current.version} of its layout"]
    if current.tasks:
        pinned = [(start, task) for start, task in zip(current.starts, current.tasks, strict=True) if task]
        lines += [f"  {slot_text(start)} runs in task {task}" for start, task in pinned]
    return lines if wanted == current else [*lines, *_wish(found)]


def _wish(found: LayoutView) -> list[str]:
    if not found.wanted.starts or not found.wanted.version:
        return []
    wished = f"  version {found.wanted.version} is wanted, with {counted(len(found.wanted), 'key range')}"
    return [f"{wished}: {found.refused}" if found.refused else f"{wished}; it comes with one of the next micro-batches"]


def _table(found: LayoutView) -> list[str]:
    if not found.loads:
        return []
    lines = [f"  batch {found.batch}, the hottest first:", "  RANGE            ROWS        TIME     STATE      CUT"]
    for each in found.loads:
        cut = "one key" if each.ruled else "-" if each.median is None else slot_text(each.median)
        span = f"{slot_text(each.start)}-{each.end:#06x}"
        time, size = f"{each.micros / 1000:.0f} ms", f"{each.bytes / 1_000_000:.1f} MB"
        lines.append(f"  {span:<15} {each.rows:>6} {time:>11} {size:>9} {cut:>8}")
    ruled = [each for each in found.loads if each.ruled]
    lines += [
        f"  {slot_text(each.start)} is ruled by one key, with {each.heaviest} of its {each.rows} rows: no cut spreads them"
        for each in ruled
    ]
    return lines


def _load(found: LayoutView, base: Layout, start: int) -> RangeLoad | None:
    """Return what a range cost, if the owner has told it of the same range."""
    end = base.ends[base.index(start)]
    return next((each for each in found.loads if (each.start, each.end) == (start, end)), None)
