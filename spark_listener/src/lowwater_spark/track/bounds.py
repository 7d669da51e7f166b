"""How low the stamps can be that still come out of Spark's own state: the rule of each kind of operator, apart from any plan.

Spark's rule, of PySpark 4.x. Batch N runs with the watermark R(N), whole milliseconds, which stands in its entry of the offset log.

* At its end a windowed aggregation lets go of every window with ``end <= R(N)``.
* Batch N+1 drops late rows by R(N), and not by its own watermark: a row is left out of each window with ``end <= R(N)``.
* So once N is committed, each window that still comes out has ``end > R(N)``, in the output modes append and update alike. This is
  all that the bounds of windows need. It does not matter which rows are still to be read, or from where an outer window got them: an inner
  window comes out in a batch whose late filter lets it pass, and the outer one that it falls into ends later still.
* What is kept by a time instead (``groupBy(t)``, sessions by their end, rows of a join) goes by the same rule: ``time > R(N)``.
* Above a join of two streams Spark's watermark is lower: the least time that either side of the join can still hold.

Windows end at ``start + length``, whole slides apart. So the least end above R and its window's start are bounds that Spark reaches: the
next row may fall into that very window.

A stamp that ``date_trunc()`` makes of one of these is at or above the lowest that the function gives for anything from its bound on
(:class:`Truncated`).
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
"""Days of the longest unit, by Spark's names of units."""


@dataclass(frozen=True, slots=True)
class Window:
    """How ``window()`` cuts event time."""

    length: timedelta
    slide: timedelta
    start: timedelta
    """startTime: what the windows are shifted by."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """``date_trunc()`` to a unit of a time zone's calendar, such as the day.

    A later moment has a later beginning or the same one, except where the zone's clocks are put
    back in between: past midnight, the day before begins again. That can undo no more than the
    clocks are put back by, which is less than two days. So the least beginning from a moment on is
    its own, or that of a transition in the two days after it.
    """

    unit: str
    zone: str
    beginning: Callable[[int], int] = field(compare=False, repr=False)
    """Returns where the unit that a moment is in begins, by Spark's own function. Microseconds
    both."""
    transitions: Callable[[int, int], Iterable[int]] = field(compare=False, repr=False)
    """Returns the transitions of the zone's clocks after one moment and not after another,
    microseconds."""

    @property
    def longest(self) -> timedelta:
        """Length of the longest unit, with the hour by which clocks are put back; of an hour or less an hour."""
        return timedelta(days=_DAYS.get(self.unit, 0), hours=1)

    def after(self, micros: int) -> int:
        """Return the earliest beginning of any moment from this one on, microseconds."""
        until = micros + timedelta(days=2) // _MICRO
        return min(self.beginning(each) for each in (micros, *self.transitions(micros, until)))


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the rows that one stateful operator lets go of are stamped with."""

    kind: Literal["start", "end", "time"]
    """``start`` and ``end`` of a window; ``time``: a time by which the operator lets go of what it
    keeps."""
    window: Window | None = None
    """Of ``start`` and ``end``."""
    lag: timedelta = timedelta()
    """How far the operator's watermark, or the time down to which it keeps rows, is below the
    query's."""
    shift: timedelta = timedelta()
    """What is added to it, such as the microsecond that ``window_time()`` takes off the end."""
    truncated: tuple[Truncated, ...] = ()
    """What is then made of it, one after the other, such as the day of a window's start. Empty: it
    is the stamp."""

    def after(self, watermark: int) -> int:
        """Return the lowest stamp that can come out once a batch that ran with a watermark is committed. Microseconds both.

        >>> hour, twenty = timedelta(hours=1), timedelta(minutes=20)
        >>> tumbling, sliding, shifted = Window(hour, hour, 0 * hour), Window(hour, twenty, 0 * hour), Window(hour, hour, twenty)
        >>> ten = 10 * hour // timedelta(microseconds=1)
        >>> def at(stamp, micros): return str(timedelta(microseconds=stamp.after(micros)))
        >>> at(Stamp("start", tumbling), ten), at(Stamp("start", tumbling), ten - 1), at(Stamp("end", tumbling), ten)
        ('10:00:00', '9:00:00', '11:00:00')
        >>> at(Stamp("start", sliding), ten), at(Stamp("end", sliding), ten), at(Stamp("start", shifted), ten)
        ('9:20:00', '10:20:00', '9:20:00')
        >>> at(Stamp("start", tumbling, lag=hour), ten), at(Stamp("time", lag=twenty), ten)
        ('9:00:00', '9:40:00')
        """
        lowest = watermark - self.lag // _MICRO
        if self.window is not None:
            parts = (self.window.length, self.window.slide, self.window.start)
            length, slide, start = (each // _MICRO for each in parts)
            # The least end above the watermark.
            end = lowest - (lowest - start - length) % slide + slide
            lowest = end if self.kind == "end" else end - length
        lowest += self.shift // _MICRO
        for each in self.truncated:
            lowest = each.after(lowest)
        return lowest

    def retention(self, *, at_ends: bool) -> timedelta:
        """Return how far below the query's watermark it can be, at the least that a declaration may say. Not negative.

        What is made of it is left out: :meth:`after` counts beside a declaration in any case. ``at_ends``: the watermark stands nowhere but where windows of this kind end, as in a driven query of nothing else.
        """
        lowest = self.lag - self.shift
        if self.kind == "start" and self.window is not None:
            lowest += self.window.length - (self.window.slide if at_ends else MILLISECOND)
        if self.kind == "end":
            lowest -= _MICRO  # an end that is still to come is above the watermark, and never at it
        return max(timedelta(), lowest)


def lowest_stamp(stamps: Iterable[Stamp], watermark: int) -> int:
    """Return the lowest stamp that can come out of any of them. Raises ValueError for none."""
    return min(stamp.after(watermark) for stamp in stamps)


def least_retention(stamps: Iterable[Stamp], *, at_ends: bool) -> timedelta:
    """Return the least retention that covers all of them."""
    return max((stamp.retention(at_ends=at_ends) for stamp in stamps), default=timedelta())


def in_python(length: timedelta) -> str:
    """Return a length as a user writes it in a program, to the microsecond.

    >>> in_python(timedelta(hours=1, milliseconds=1))
    'timedelta(seconds=3600, microseconds=1000)'
    """
    return repr(length).removeprefix("datetime.")
