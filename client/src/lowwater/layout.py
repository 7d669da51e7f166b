"""Layouts: how the key space of a computation with hashed keys is divided into ranges and tasks.

The key space has 65,536 *slots*, by the first two bytes of a key's place; a range is one or several
adjacent slots. A layout is a value: each change returns another one. This module has no I/O.
"""

from __future__ import annotations

import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from lowwater.errors import InvalidArgument

__all__ = ["MOST_RANGES", "SLOTS", "Layout", "LayoutView", "RangeLoad", "slot_text", "wrong"]

SLOTS: Final = 65_536

MOST_RANGES: Final = 16_384
"""Most key ranges of a wanted layout: each has files of its own in each version of the state."""


def wrong(starts: Sequence[int], tasks: Sequence[int] = (), most: int = MOST_RANGES) -> tuple[str, str, str] | None:
    """Return the first fault of a layout as field, problem and fix; None without a fault.

    O(ranges).

    >>> wrong([0, 16_384], [1])
    ('tasks', 'has 1 values for 2 ranges', 'pass none, or one each')
    """
    for name, values in (("starts", starts), ("tasks", tasks)):
        if not all(issubclass(kind, numbers.Integral) for kind in set(map(type, values))):
            return name, "has a value that is no whole number", "pass integers"
    if not starts or starts[0] != 0:
        return "starts", "does not begin at 0", "let the first range start at 0"
    if any(first >= second for first, second in pairwise(starts)) or starts[-1] >= SLOTS:
        return "starts", "is not ascending", f"sort it, each start once and below {SLOTS}"
    if len(starts) > most:
        return "starts", f"has {len(starts)} ranges", f"merge some, down to {most}"
    if tasks and len(tasks) != len(starts):
        return "tasks", f"has {len(tasks)} values for {len(starts)} ranges", "pass none, or one each"
    if not all(0 <= task <= SLOTS for task in tasks):
        return "tasks", f"has a task that is not 0 to {SLOTS}", "count tasks from 1; 0 is any"
    return None


@dataclass(frozen=True, slots=True)
class RangeLoad:
    """Cost of a key range to its owner in one micro-batch."""

    start: int
    """First slot of the range."""
    end: int
    """First slot after the range."""
    rows: int
    micros: int
    """Microseconds that the update of the range took."""
    bytes: int
    """Bytes of the range's state."""
    parts: tuple[int, ...] = ()
    """Rows in each of equal parts of the range."""
    heaviest: int = 0
    """Rows of the heaviest key."""

    @property
    def ruled(self) -> bool:
        """True when one key has more than half of the rows: then no cut spreads them."""
        return 2 * self.heaviest > self.rows

    @property
    def median(self) -> int | None:
        """Slot at which a cut halves the rows best; None for a single slot. O(parts)."""
        size = self.end - self.start
        if size < 2:
            return None
        total, before, best = sum(self.parts), 0, (1, self.start + size // 2)
        if not total:
            return best[1]
        cuts: list[tuple[float, int]] = []
        for i, rows in enumerate(self.parts[:-1], start=1):
            before += rows
            slot = self.start + size * i // len(self.parts)
            if self.start < slot < self.end:
                cuts.append((abs(before / total - 0.5), slot))
        return min(cuts, default=best)[1]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. The first one of a computation has version 0 and no starts.

    Without starts the owner divides the key space itself.
    """

    version: int = 0
    starts: tuple[int, ...] = ()
    """First slot of each range, ascending from 0."""
    tasks: tuple[int, ...] = ()
    """Task that each range is to run in, counted from 1, 0 for any; empty means any for all."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> tuple[int, ...]:
        """First slot after each range."""
        return (*self.starts[1:], SLOTS)

    @property
    def bounds(self) -> list[bytes]:
        """Bounds of the ranges for a claim: keys of eight bytes, the first and last empty."""
        return [b"", *((start << 48).to_bytes(8, "big") for start in self.starts[1:]), b""]

    def wrong(self) -> str:
        """Return the first fault of a wanted layout, with the fix; empty for none. O(ranges)."""
        fault = wrong(self.starts, self.tasks)
        return "" if fault is None else "{} {}: {}".format(*fault)

    def index(self, start: int) -> int:
        """Return the index of the range that starts at a slot. O(log ranges).

        Raises InvalidArgument when none does, and names the range that the slot is in.
        """
        i = bisect_right(self.starts, start) - 1
        if not 0 <= start < SLOTS or i < 0 or self.starts[i] != start:
            near = f"the range of that slot starts at {slot_text(self.starts[i])}" if i >= 0 and start < SLOTS else ""
            msg = f"no range starts at {slot_text(start)}" + (f"; {near}" if near else "")
            raise InvalidArgument(msg, metadata={"field": "range", "fix": near or f"a slot below {SLOTS:#x}"})
        return i

    def split(self, start: int, cuts: Sequence[int]) -> Layout:
        """Return the layout with the range that starts at ``start`` cut at some slots.

        Its parts run in any task. Raises InvalidArgument.
        """
        i = self.index(start)
        inner = sorted(set(cuts))
        if not inner or inner[0] <= start or inner[-1] >= self.ends[i]:
            some = ", ".join(map(slot_text, inner))
            msg = f"the range from {slot_text(start)} to {slot_text(self.ends[i])} cannot be cut at {some or 'nothing'}"
            fix = "slots that are inside of the range; one of a single slot cannot be cut"
            raise InvalidArgument(msg, metadata={"field": "cuts", "fix": fix})
        return self._spliced(i, i + 1, [start, *inner])

    def halves(self, start: int, into: int) -> list[int]:
        """Return the cuts that divide a range into equal parts; fewer for a small range."""
        i = self.index(start)
        size = self.ends[i] - start
        return sorted({start + size * part // into for part in range(1, into)} - {start})

    def merge(self, first: int, last: int) -> Layout:
        """Return the layout with all ranges from one to another merged. Raises InvalidArgument."""
        low, high = self.index(first), self.index(last)
        if low >= high:
            msg = f"{slot_text(first)} does not come before {slot_text(last)}"
            raise InvalidArgument(msg, metadata={"field": "last", "fix": "two ranges, in the order of the key space"})
        return self._spliced(low, high + 1, [first])

    def move(self, start: int, task: int) -> Layout:
        """Return the layout with a range pinned to a task; 0: to none. Raises InvalidArgument."""
        i = self.index(start)
        tasks = list(self.tasks or [0] * len(self))
        tasks[i] = task
        return Layout(self.version, self.starts, tuple(tasks) if any(tasks) else ())

    def _spliced(self, low: int, high: int, starts: Sequence[int]) -> Layout:
        tasks = self.tasks and (*self.tasks[:low], *[0] * len(starts), *self.tasks[high:])
        return Layout(self.version, (*self.starts[:low], *starts, *self.starts[high:]), tasks if any(tasks) else ())


@dataclass(frozen=True, slots=True)
class LayoutView:
    """The wanted layout of a computation, and its owner's."""

    computation: str
    incarnation: int
    wanted: Layout
    current: Layout | None
    """Layout of the owner; None when it has not reported one, or follows none."""
    refused: str = ""
    """Reason why the owner does not follow the wanted layout; empty when it does, or will."""
    batch: int = 0
    """Micro-batch of the loads."""
    loads: tuple[RangeLoad, ...] = ()
    """Loads of its hottest ranges, the hottest first."""

    @property
    def base(self) -> Layout:
        """Layout that a change begins with: the wanted one, or the owner's when none is wanted yet.

        Raises InvalidArgument when both are unknown.
        """
        if self.wanted.starts:
            return self.wanted
        if self.current is None:
            msg = (
                f"the layout of {self.computation} is unknown: its owner reports it with the first micro-batch that it commits, "
                "if it is a tracked stage of Spark that can follow layouts"
            )
            raise InvalidArgument(msg, metadata={"computation": self.computation, "fix": "wait for a micro-batch"})
        return Layout(self.wanted.version, self.current.starts, self.current.tasks)


def slot_text(slot: int) -> str:
    """Return a slot in hexadecimal, for people.

    >>> slot_text(0x40ff)
    '0x40ff'
    """
    return f"{slot:#06x}"
