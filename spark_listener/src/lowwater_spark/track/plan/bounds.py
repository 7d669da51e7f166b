"""Bounds of the stamps that Spark's own state can still emit: one rule for each kind of operator.

This is the rule of PySpark 4.x. Batch N runs with the watermark R(N), whole milliseconds, which is
in its entry of the offset log.

* At its end a windowed aggregation releases every window with ``end <= R(N)``.
* Batch N+1 drops late rows by R(N), not by its own watermark: a row does not enter a window with
  ``end <= R(N)``.
* So once N is committed, each window that is still emitted has ``end > R(N)``, in the output modes
  append and update alike. The bounds of windows need nothing else. It does not matter which rows
  are still unread, or where an outer window gets them: an inner window is emitted in a batch whose
  late filter lets it pass, and the outer window that it falls into ends later still.
* State that is kept by a time (``groupBy(t)``, sessions by their end, rows of a join) follows the
  same rule: ``time > R(N)``.
* Above a join of two streams Spark's watermark is lower: the least time that either side of the
  join can still hold.

Windows end at ``start + length``, whole slides apart. So the least end above R and its window's
start are bounds that Spark reaches: the next row may fall into that very window. A stamp that
``date_trunc()`` makes of such a value is at or above the least result for any moment from the bound
on (:class:`Truncated`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

__all__ = ["MILLISECOND", "Stamp", "Truncated", "Window", "in_python", "least_retention", "lowest_stamp"]

MILLISECOND: Final = timedelta(milliseconds=1)
"""The precision of Spark's watermark."""

_MICRO: Final = timedelta(microseconds=1)


_DAYS: Final = {
    **dict.fromkeys(("day", "dd"), 1),
    "week": 7,
    **dict.fromkeys(("month", "mon", "mm"), 31),
    "quarter": 92,
    **dict.fromkeys(("year", "yyyy", "yy"), 366),
}
"""Greatest number of days of a unit, by Spark's names of units."""


@dataclass(frozen=True, slots=True)
class Window:
    """A cut of event time by ``window()``."""

    length: timedelta
    slide: timedelta
    start: timedelta
    """Spark's startTime: the shift of the windows."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """``date_trunc()`` to a unit of a time zone's calendar, such as the day.

    A later moment has a later beginning or the same one, except if the zone's clocks are put back
    in between: past midnight, the day before begins again. The beginning moves back by no more than
    the clocks, less than two days. So the least beginning from a moment on is its own, or that of a
    transition in the two days after it.
    """

    unit: str
    zone: str
    beginning: Callable[[int], int] = field(compare=False, repr=False)
    """Spark's own function for the beginning of a moment's unit. Microseconds both."""
    transitions: Callable[[int, int], Iterable[int]] = field(compare=False, repr=False)
    """Function for the zone's clock transitions after one moment up to another, microseconds."""

    @property
    def longest(self) -> timedelta:
        """Length of the longest unit, plus an hour for clocks that are put back."""
        return timedelta(days=_DAYS.get(self.unit, 0), hours=1)

    def after(self, micros: int) -> int:
        """Return the earliest beginning of this moment and all later ones, microseconds."""
        until = micros + timedelta(days=2) // _MICRO
        return min(self.beginning(moment) for moment in (micros, *self.transitions(micros, until)))


@dataclass(frozen=True, slots=True)
class Stamp:
    """A stamp of the rows that one stateful operator emits."""

    kind: Literal["start", "end", "time"]
    """Kind of the stamp: ``start`` or ``end`` of a window, or ``time``, by which the operator
    releases its state."""
    window: Window | None = None
    lag: timedelta = timedelta()
    """Distance of the operator's watermark, or of its oldest kept time, below the query's."""
    shift: timedelta = timedelta()
    """Time added to the value, such as the microsecond that ``window_time()`` subtracts."""
    truncated: tuple[Truncated, ...] = ()
    """Truncations of the value, in order, such as to the day of a window's start."""

    def after(self, watermark: int) -> int:
        """Return the lowest stamp that Spark emits after a batch that ran with a watermark. Micros.

        >>> hour, twenty = timedelta(hours=1), timedelta(minutes=20)
        >>> tumbling, sliding = Window(hour, hour, 0 * hour), Window(hour, twenty, 0 * hour)
        >>> shifted = Window(hour, hour, twenty)
        >>> start, end = Stamp("start", tumbling), Stamp("end", tumbling)
        >>> ten = 10 * hour // timedelta(microseconds=1)
        >>> def at(stamp, micros): return str(timedelta(microseconds=stamp.after(micros)))
        >>> at(start, ten), at(start, ten - 1), at(end, ten)
        ('10:00:00', '9:00:00', '11:00:00')
        >>> [at(Stamp(kind, sliding), ten) for kind in ("start", "end")]
        ['9:20:00', '10:20:00']
        >>> at(Stamp("start", tumbling, lag=hour), ten), at(Stamp("start", shifted), ten)
        ('9:00:00', '9:20:00')
        >>> at(Stamp("time", lag=twenty), ten)
        '9:40:00'
        """
        lowest = watermark - self.lag // _MICRO
        if self.window is not None:
            parts = (self.window.length, self.window.slide, self.window.start)
            length, slide, start = (truncation // _MICRO for truncation in parts)
            # Spark has released the windows that end at or below ``lowest``, the watermark of this
            # operator. So the lowest end that it still emits is the first one above. Ends are at
            # start + length and whole slides from there: the remainder leads from ``lowest`` down
            # to the last end that is not above it, and a slide more to the next one.
            end = lowest - (lowest - start - length) % slide + slide
            lowest = end if self.kind == "end" else end - length
        lowest += self.shift // _MICRO
        for truncation in self.truncated:
            lowest = truncation.after(lowest)
        return lowest

    def retention(self, *, at_ends: bool) -> timedelta:
        """Return the least retention that a declaration may have for this stamp. Not negative.

        Truncations are left out: the bound never exceeds :meth:`after`, also with a declaration.
        ``at_ends``: the watermark is always at the end of such a window, as in a driven query.
        """
        lowest = self.lag - self.shift
        if self.kind == "start" and self.window is not None:
            lowest += self.window.length - (self.window.slide if at_ends else MILLISECOND)
        if self.kind == "end":
            lowest -= _MICRO  # a window that Spark still emits ends above the watermark, not at it
        return max(timedelta(), lowest)


def lowest_stamp(stamps: Iterable[Stamp], watermark: int) -> int:
    """Return the lowest stamp that Spark emits for any of the stamps.

    Raises ValueError for none.
    """
    return min(stamp.after(watermark) for stamp in stamps)


def least_retention(stamps: Iterable[Stamp], *, at_ends: bool) -> timedelta:
    """Return the least retention that covers all stamps."""
    return max((stamp.retention(at_ends=at_ends) for stamp in stamps), default=timedelta())


def in_python(length: timedelta) -> str:
    """Return a length as Python code, to the microsecond.

    >>> in_python(timedelta(hours=1, milliseconds=1))
    'timedelta(seconds=3600, microseconds=1000)'
    """
    return repr(length).removeprefix("datetime.")
