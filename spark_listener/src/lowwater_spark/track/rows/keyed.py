"""A stage's rule for its rows: the key range, the event time and the stamp of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.track.rows.cut import EQUAL, Cut
from lowwater_spark.track.rows.frontier import Bounds

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Keyed", "floor_stamp"]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A stage's rule for the key range and the event time of a row."""

    key: Sequence[str | Column]
    event_time: str | Column
    ranges: int
    """Number of key ranges, as declared."""
    injector: bool
    window: timedelta | None = None
    """Length of the windows whose start is the rows' stamp; None: the event time is the stamp."""
    bounds: Bounds | None = None
    """Declared limits of an injector's source, from which its frontier is computed; None: the
    function sets the frontier."""
    balance: bool = False
    """True: the driver requests another layout when the loads of the ranges are uneven."""
    budgeted: bool = False
    """True: the stage has a lateness budget, so the lateness of its rows is counted."""
    layout: lowwater.Layout = EQUAL
    """The current layout; version 0: the key space is cut into equal parts."""
    window_start: timedelta = timedelta()
    """Shift of the windows, Spark's startTime. Only a sidecar declares one."""

    @property
    def cut(self) -> Cut:
        """The cut of the key space."""
        return Cut(self.ranges, self.layout)


def floor_stamp(micros: int, window: timedelta | None, start: timedelta = timedelta()) -> int:
    """Return the lowest stamp of a record at or after ``micros``.

    Without a ``window`` the stamp is the event time. With one it is the window's start: a record at
    14:25 opens the hour and is written with 14:00. Windows start at whole multiples of their length
    since the epoch, as Spark's do, shifted by ``start``, Spark's startTime.

    >>> floor_stamp(14_250_000, timedelta(seconds=1))
    14000000
    >>> floor_stamp(14_250_000, timedelta(seconds=1), timedelta(milliseconds=400))
    13400000
    """
    if window is None or micros in (MIN, MAX):
        return micros
    shifted = micros - start // timedelta(microseconds=1)
    return max(MIN, micros - shifted % (window // timedelta(microseconds=1)))
