"""The live table: what it says, how it is redrawn."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

from examples.flights import table
from examples.flights.data import HOUR, MINUTE
from examples.flights.table import Line, Snapshot
from lowwater.views import RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

CLOCK = 1_357_769_700_000_000
"""9 January 2013, 22:15 UTC."""


def snapshot(clock: int | None = CLOCK, note: str = "") -> Snapshot:
    return Snapshot(
        clock,
        (
            Line("flights", Watermark(CLOCK - 8 * HOUR - 15 * MINUTE), Watermark(CLOCK - 4 * HOUR), "ewr [JFK, LGA)"),
            Line("enriched", Watermark.UNKNOWN, Watermark.UNKNOWN),
            Line("hourly", Watermark.FINISHED, Watermark.FINISHED),
        ),
        note,
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_the_table() -> None:
    assert table.render(snapshot(note="7 windows closed")) == [
        "replay clock  9 Jan 2013 22:15 UTC",
        "computation   low watermark   behind     99 % lately seen   behind     held by",
        "flights       9 Jan 14:00     8h 15m     9 Jan 18:15        4h 00m     ewr [JFK, LGA)",
        "enriched      unknown                    unknown",
        "hourly        finished                   finished",
        "7 windows closed",
    ]


def test_a_line_of_what_the_client_says() -> None:
    held = RangeView(b"\x40\x00\x00\x00\x00", b"", Watermark(CLOCK), RangeState.OWNED, "exec-7", "host", 1, 2, 3)
    view = WatermarkView("enriched", low=Watermark(CLOCK), shares=((990_000, Watermark(CLOCK + HOUR)),), holder=held)
    assert table.line_of(view) == Line("enriched", view.low, Watermark(CLOCK + HOUR), "exec-7 [40000000, …)")
    left = replace(held, start=b"JFK", end=b"LGA", state=RangeState.UNOWNED)
    assert table.line_of(replace(view, holder=left)).held_by == "unowned [JFK, LGA)"
    assert table.line_of(WatermarkView("new")) == Line("new", Watermark.UNKNOWN, Watermark.UNKNOWN, "")


def test_before_the_clock_runs_nothing_is_behind() -> None:
    lines = table.render(snapshot(clock=None))
    assert lines[0] == "replay clock  not started"
    assert "8h" not in lines[2]


def test_long_lines_are_cut() -> None:
    lines = table.render(snapshot(), width=40)
    assert max(map(len, lines)) == 40
    assert lines[2].endswith("…")


def test_a_watermark_ahead_of_the_clock_is_not_behind() -> None:
    assert table.behind(CLOCK, Watermark(CLOCK + HOUR)) == "0h 00m"


def test_a_terminal_is_redrawn_in_place() -> None:
    out = Terminal()
    table.show([snapshot(), snapshot(note="one more line")], out)
    first, second = out.getvalue().split("\x1b[5A")
    assert first.count("\n") == 5
    assert second.count("\n") == 6
    assert "one more line" in second
    # Every line is erased before it is written: nothing of a longer one stays.
    assert second.count("\x1b[2K") == 6


def test_elsewhere_a_line_every_few_seconds_and_the_last() -> None:
    out = io.StringIO()
    seconds = itertools.count()
    snapshots = [Snapshot(CLOCK + number * HOUR, (), f"number {number}") for number in range(9)]
    table.show(snapshots, out, every=4, now=lambda: next(seconds))
    assert [line.rpartition(" ")[2] for line in out.getvalue().splitlines()] == ["0", "4", "8"]
    assert "\x1b" not in out.getvalue()


def test_one_line_says_who_is_how_far_behind() -> None:
    assert table.one_line(snapshot()) == (
        "replay clock  9 Jan 2013 22:15 UTC | flights 9 Jan 14:00 (8h 15m behind) | enriched unknown | hourly finished"
    )
