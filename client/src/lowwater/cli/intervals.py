"""The missing part of an interval, as text and as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from lowwater import errors
from lowwater._sync.client import Client
from lowwater.cli.render import range_record, times, to_json, view_record
from lowwater.core.causes import Cause
from lowwater.core.intervals import Gap, IntervalView
from lowwater.core.text import counted, describe_range, on_one_line
from lowwater.core.why import HIDDEN, held_words
from lowwater.views import RangeView, WatermarkView

__all__ = ["gaps_text", "interval", "interval_record"]

_LINES: Final = 20
"""Most lines of key ranges for one computation."""

_READ: Final = 1000
"""Most key ranges to read for these lines: many ranges of one worker are one line."""


def interval(lw: Client, args: argparse.Namespace) -> int:
    """Tell by the exit code whether an interval of a computation is complete."""
    if args.to is None or args.start is None:
        fix = "pass --from and --to together, or --until alone"
        msg = f"an interval has a start and an end: {fix}"
        raise errors.InvalidArgument(msg, metadata={"field": "from" if args.start is None else "to", "fix": fix})
    if not args.start < args.to:
        fix = "pass a --to that is later than --from"
        msg = f"--to: {args.to} is not after --from, {args.start}; {fix}"
        raise errors.InvalidArgument(msg, metadata={"field": "to", "fix": fix})
    limit = _LINES if args.json else _READ
    view, now = lw.interval(args.name, args.start, args.to, limit), time.time_ns() // 1_000
    if args.json:
        print(to_json(interval_record(view, now)))
    elif view.complete:
        estimated = ", but that is only estimated" if view.watermark.estimated else ""
        print(f"complete: nothing of {view.start} to {view.end} will come any more in {view.computation}{estimated}")
    else:
        print(gaps_text(view, now))
    return 0 if view.complete else 1


def gaps_text(view: IntervalView, now_micros: int) -> str:
    """Return the missing part: lines for the root cause, each computation and its key ranges."""
    low = view.watermark.low
    here = "has promised nothing yet" if low.unknown else f"is complete until {low}, and not until {view.end}"
    lines = [f"not yet: {view.computation} {here}"]
    if view.why is not None:
        lines.append(f"  {on_one_line(view.why.sentence)}")
    for gap in view.gaps:
        head, holders = _head(gap), list(_holders(gap, now_micros))
        if gap.ranges is not None and gap.ranges.total == len(holders) == 1:
            lines.append(f"  {head}: {holders[0]}")
            continue
        lines.append(f"  {head}")
        lines += [f"    {line}" for line in holders]
    return "\n".join(lines)


def _holders(gap: Gap, now_micros: int) -> Iterator[str]:
    """Yield a line for each key range; those of which the same is to be said share one."""
    if gap.ranges is None:
        return
    places: dict[str, list[RangeView]] = {}
    for key_range in gap.ranges:
        place = f"{describe_range(key_range.start, key_range.end)} "
        places.setdefault(held_words(key_range, now_micros).removeprefix(place), []).append(key_range)
    named = 0
    for words, alike in islice(places.items(), _LINES):
        named += len(alike)
        every = "all " if len(alike) == gap.watermark.ranges else ""
        first = describe_range(alike[0].start, alike[0].end)
        yield f"{first if len(alike) == 1 else f'{every}{len(alike)} key ranges'} {words}"
    if gap.ranges.total > named:
        yield f"and {counted(gap.ranges.total - named, 'more key range')}"


def _head(gap: Gap) -> str:
    if gap.cause is Cause.HIDDEN:
        return f"{gap.computation} {HIDDEN.rstrip('.')}"
    if not gap.watermark.registered:
        return f"{gap.computation} is not registered: all of it is missing"
    head = f"{gap.computation} misses what is from {gap.missing} on"
    if gap.ranges is None:
        return f"{head}; which key ranges miss it is not known just now"
    if gap.ranges.total == len(gap.ranges) == 1:
        return head
    return f"{head}, in {counted(gap.ranges.total, 'key range')}" + (":" if len(gap.ranges) else " any more")


def interval_record(view: IntervalView, now_micros: int) -> dict[str, Any]:
    """Return the answer for JSON."""
    guilty = None if view.why is None else view.why.guilty.computation
    return {
        "complete": view.complete,
        **times("from", view.start),
        **times("to", view.end),
        "watermark": view_record(view.watermark, now_micros, None if guilty is None else WatermarkView(guilty)),
        "gaps": [_gap_record(gap) for gap in view.gaps],
        "guilty": guilty,
        "why": None if view.why is None else view.why.sentence,
    }


def _gap_record(gap: Gap) -> dict[str, Any]:
    return {
        "computation": gap.computation,
        **times("missing_from", gap.missing),
        **times("low", gap.watermark.low),
        "cause": gap.cause.value,
        "holding": None if gap.ranges is None else gap.ranges.total,
        "holders": [range_record(key_range) for key_range in gap.ranges or ()],
    }
