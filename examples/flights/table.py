"""A live table of watermarks on the terminal: plain text and a few ANSI codes.

::

    replay clock  9 Jan 2013 22:15 UTC
    computation   low watermark   behind   99 % lately seen   behind   held by
    flights       9 Jan 14:00     8h 15m   9 Jan 17:55        4h 20m   JFK [JFK, LGA)
    enriched      9 Jan 14:00     8h 15m   9 Jan 17:40        4h 35m   enriched-1 [B6, EV)
    hourly        9 Jan 13:00     9h 15m   9 Jan 17:00        5h 15m   hourly [JFK, LGA)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TextIO

from examples.flights.data import MINUTE, moment
from lowwater.views import RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

_BOLD: Final = "\x1b[1m"
_PLAIN: Final = "\x1b[0m"
_UP: Final = "\x1b[{}A"
_ERASE_LINE: Final = "\x1b[2K"
_ERASE_BELOW: Final = "\x1b[0J"


@dataclass(frozen=True, slots=True)
class Line:
    """Where one computation stands."""

    name: str
    low: Watermark
    heuristic: Watermark
    held_by: str = ""
    """Who holds the low watermark, for people; empty when nobody does."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Content of the table at one time."""

    clock: int | None
    """The replay clock in microseconds; None before it runs."""
    lines: tuple[Line, ...]
    note: str = ""
    """One more line of text; empty for none."""


def line_of(view: WatermarkView, share: float = 0.99) -> Line:
    """Return where a computation stands, as ``Client.get`` and ``Inputs.each`` tell it."""
    heuristic = view.heuristic.get(share, view.low)
    return Line(view.computation, view.low, heuristic, "" if view.holder is None else holder(view.holder))


def holder(key_range: RangeView) -> str:
    """Return who holds a watermark: the worker, if any, and the key range."""
    end = _key(key_range.end) if key_range.end else "…"
    owner = key_range.worker if key_range.state is RangeState.OWNED else key_range.state.value
    return f"{owner} [{_key(key_range.start)}, {end})"


def _key(key: bytes) -> str:
    """Return a key as text if it is some, else the first of its bytes in hexadecimal."""
    text = key.decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else key[:4].hex()


def when(mark: Watermark) -> str:
    """Return a watermark in a few characters.

    >>> when(Watermark(1_357_740_000_000_000)), when(Watermark.UNKNOWN), when(Watermark.FINISHED)
    ('9 Jan 14:00', 'unknown', 'finished')
    """
    if mark.unknown or mark.finished:
        return str(mark)
    return f"{moment(mark.micros):%-d %b %H:%M}"


def behind(clock: int | None, mark: Watermark) -> str:
    """Return how far a watermark is behind the replay clock; empty when that says nothing.

    >>> behind(1_357_740_000_000_000, Watermark(1_357_710_300_000_000))
    '8h 15m'
    """
    if clock is None or mark.unknown or mark.finished:
        return ""
    hours, minutes = divmod(max(0, clock - mark.micros) // MINUTE, 60)
    return f"{hours}h {minutes:02}m"


def render(snapshot: Snapshot, width: int = 100) -> list[str]:
    """Return the table's lines, at most ``width`` characters each, without ANSI codes."""
    rows = [("computation", "low watermark", "behind", "99 % lately seen", "behind", "held by")]
    rows += [
        (
            line.name,
            when(line.low),
            behind(snapshot.clock, line.low),
            when(line.heuristic),
            behind(snapshot.clock, line.heuristic),
            line.held_by,
        )
        for line in snapshot.lines
    ]
    # Fixed least widths: the table does not jump when a value gets longer.
    widths = [
        max(least, *map(len, column))
        for least, column in zip((11, 13, 8, 14, 8, 0), zip(*rows, strict=True), strict=True)
    ]
    lines = [_clock(snapshot.clock)]
    lines += ["   ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]
    if snapshot.note:
        lines.append(snapshot.note)
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]


def one_line(snapshot: Snapshot) -> str:
    """Return the same for a log: how far each computation is behind."""
    parts = [
        f"{line.name} {when(line.low)}" + (f" ({text} behind)" if (text := behind(snapshot.clock, line.low)) else "")
        for line in snapshot.lines
    ]
    return " | ".join([_clock(snapshot.clock), *parts, *([snapshot.note] if snapshot.note else [])])


def _clock(clock: int | None) -> str:
    return "replay clock  not started" if clock is None else f"replay clock  {moment(clock):%-d %b %Y %H:%M} UTC"


def show(
    snapshots: Iterable[Snapshot],
    out: TextIO,
    *,
    every: float = 5.0,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Show each snapshot as it comes, until there are no more; the last one stays.

    On a terminal the table is redrawn in place. Elsewhere a line is written every ``every`` seconds
    at most, and one for the last snapshot.

    Args:
        snapshots: Paced by whoever makes them.
        out: Where to write.
        every: Seconds between lines when ``out`` is no terminal.
        now: Seconds, monotonic.
    """
    if out.isatty():
        drawn = 0
        for snapshot in snapshots:
            drawn = _redraw(snapshot, out, drawn)
        return
    due, waiting = now(), None
    for snapshot in snapshots:
        waiting = snapshot
        if now() >= due:
            print(one_line(snapshot), file=out, flush=True)
            due, waiting = now() + every, None
    if waiting is not None:
        print(one_line(waiting), file=out, flush=True)


def _redraw(snapshot: Snapshot, out: TextIO, drawn: int) -> int:
    """Draw over the ``drawn`` lines above; return how many lines there are now."""
    lines = render(snapshot, _width(out))
    text = _UP.format(drawn) if drawn else ""
    for number, line in enumerate(lines):
        text += _ERASE_LINE + (f"{_BOLD}{line}{_PLAIN}" if number <= 1 else line) + "\n"
    out.write(text + _ERASE_BELOW)
    out.flush()
    return len(lines)


def _width(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 100
    except OSError:
        return 100
