"""Rows that Spark's own operators drop as late, counted from the sources. Pure: no I/O.

Spark gives its listeners a number of dropped rows for each batch, counted after the rows of a
window were added up: it is too small, and names no hour. A checkpoint has what an exact count
needs. ``offsets/N`` says what batch N has read of each source, and ``batchWatermarkMs`` in
``offsets/N-1`` is the watermark R by which the operators of batch N drop rows
(:mod:`lowwater_spark.track.plan.bounds`). So a sidecar reads the rows of batch N again, and counts
those below a bound, which follows from R and from what the operator goes by:

* Windows: Spark drops a row from each window that ends at or before R. A row counts as soon as it
  is missing in one window, which is the first that ends after the row.
* Sessions: a row that came alone would be a session that ends a gap later. Spark compares that end
  with R before it joins the row to a session in its state.
* Everything else (deduplication, joins, functions with event time, groups by the event time)
  compares the row's own time with R.

A checkpoint has neither event times nor schemas, so these are declared: wrong ones make a wrong
count, and never a wrong watermark. A batch whose rows cannot be read again is named as not counted,
with the reason. Rows of batches that had no watermark yet are not read: R is 1970 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from lowwater.watermark import Watermark
from lowwater_spark.track.plan.bounds import Window

__all__ = ["HOUR", "Dropped", "DroppedRow", "Tally"]

HOUR: Final = 3_600_000_000
"""Microseconds of an hour."""

_MICRO: Final = timedelta(microseconds=1)

_MOST_HOURS: Final = 1_000
"""Greatest number of hours of a tally; the rows of older ones are added up in one number."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rows of one source that Spark drops: how they are read, and by what they are judged."""

    event_time: str
    """SQL of the column under the watermark, over the columns of the source; of type timestamp."""
    where: str = "true"
    """SQL of the rows that reach the operator which drops."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader; of files also ``format`` and ``schema``."""
    window: Window | None = None
    session: timedelta | None = None
    """Gap of the sessions. None beside a window of None: the row's own time counts."""

    def bound(self, watermark: int) -> int:
        """Return the event time below which a row is dropped from a window, or whole. Micros.

        >>> hour, half = timedelta(hours=1), timedelta(minutes=30)
        >>> hourly, sliding = Window(hour, hour, 0 * hour), Window(hour, half, 0 * hour)
        >>> shifted = Window(hour, hour, timedelta(minutes=15))
        >>> low = 10 * HOUR + 40 * 60_000_000
        >>> def at(**way): return str(timedelta(0, 0, Dropped("t", **way).bound(low)))
        >>> at(window=hourly), at(window=shifted), at(window=sliding)
        ('10:00:00', '10:15:00', '10:30:00')
        >>> at(session=half), at()
        ('10:10:00.000001', '10:40:00.000001')
        """
        if self.window is not None:
            length, slide, start = (
                part // _MICRO for part in (self.window.length, self.window.slide, self.window.start)
            )
            # The last end of a window that is not above the watermark. All rows before it are in a
            # window that ends there or earlier.
            return watermark - (watermark - start - length) % slide
        gap = timedelta() if self.session is None else self.session
        return watermark - gap // _MICRO + 1


class DroppedRow(NamedTuple):
    """One row that Spark has dropped."""

    micros: int
    """Its event time, microseconds."""
    position: str
    """Its place in the source, in words: a file, or partition and offset."""
    batch: int

    def __str__(self) -> str:
        """Return event time, place and batch."""
        return f"{Watermark(self.micros)}, {self.position}, batch {self.batch}"


@dataclass(slots=True)
class Tally:
    """The dropped rows of a query's batches, by hour. O(1,000 hours) of memory."""

    name: str
    """Name of the query's computation."""
    batch: int
    """Last batch that was counted or given up; -1: none."""
    hours: dict[int, int] = field(default_factory=dict)
    """Dropped rows by the start of their hour of event time in UTC, microseconds. Oldest first."""
    earlier: int = 0
    """Dropped rows of hours before these."""
    example: DroppedRow | None = None
    """The oldest dropped row."""
    uncounted: int = 0
    """Number of batches whose rows could not be read again."""
    reason: str = ""
    """Why the newest of these could not; empty: there are none."""

    @property
    def rows(self) -> int:
        """Number of dropped rows in all counted batches."""
        return self.earlier + sum(self.hours.values())

    def add(self, batch: int, hours: Mapping[int, int], example: DroppedRow | None) -> None:
        """Add the dropped rows of a batch, by hour, with the oldest of them."""
        self.batch = batch
        total = {hour: self.hours.get(hour, 0) + hours.get(hour, 0) for hour in sorted({*self.hours, *hours})}
        for hour in list(total)[:-_MOST_HOURS]:
            self.earlier += total.pop(hour)
        self.hours = total
        if example is not None and (self.example is None or example < self.example):
            self.example = example

    def give_up(self, batch: int, reason: str) -> None:
        """Note that the batches up to this one are not counted."""
        self.uncounted += batch - self.batch
        self.batch, self.reason = batch, reason

    def shown(self) -> dict[str, Any]:
        """Return the fields of :class:`~lowwater_spark.track.run.status.Status` about it."""
        return {
            "dropped_rows": self.rows,
            "dropped_hours": {str(Watermark(hour)): rows for hour, rows in self.hours.items()},
            "dropped_example": "" if self.example is None else str(self.example),
            "dropped_through": None if self.batch < 0 else self.batch,
            "dropped_uncounted": self.not_counted,
        }

    def lines(self) -> list[str]:
        """Return the tally in words, with a line for each hour."""
        upto = "before its first batch" if self.batch < 0 else f"up to batch {self.batch}"
        oldest = "" if self.example is None else f", the oldest: {self.example}"
        older = [f"  {self.earlier} of earlier hours"] if self.earlier else []
        hours = [f"  {rows} of {Watermark(hour)}" for hour, rows in self.hours.items()]
        problem = [f"  {self.not_counted}"] if self.uncounted else []
        return [f"{self.name}: Spark has dropped {self.rows} rows {upto}{oldest}", *older, *hours, *problem]

    @property
    def not_counted(self) -> str:
        """Batches that are not counted, in words; empty: all are."""
        return f"{self.uncounted} batches are not counted, the last one because {self.reason}" if self.uncounted else ""

    def to_json(self) -> dict[str, Any]:
        """Return the tally as JSON."""
        content = {name: getattr(self, name) for name in ("name", "batch", "earlier", "uncounted", "reason", "example")}
        return {**content, "hours": list(self.hours.items())}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the tally of :meth:`to_json`."""
        example = content["example"]
        return cls(**{**content, "hours": dict(content["hours"]), "example": example and DroppedRow(*example)})
