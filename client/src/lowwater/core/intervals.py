"""Intervals of event time: what is missing of one, and those that close one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lowwater import errors
from lowwater.core import checks
from lowwater.core.causes import Cause, cause_of
from lowwater.core.why import Why
from lowwater.views import History, Ranges, WatermarkView
from lowwater.watermark import MAX, MIN, EventTime, Watermark

__all__ = ["Closings", "Gap", "Interval", "IntervalView", "bounds_of", "first_start", "gap_of", "upstream_below"]

_MICROSECOND: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)
_EVERY: Final = (timedelta(seconds=1), timedelta(days=366))
_LAST: Final = MAX - 1
"""The last event time at which an interval may begin."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval ``[start, end)`` of event time that is complete in a computation: nothing of it will come any more in this incarnation."""

    computation: str
    incarnation: int
    """The computation's incarnation: after a reset the same interval closes once more, in the next
    one."""
    start: Watermark
    end: Watermark
    """Exclusive. Finished: it has no end. It is the last, and begins where no interval with an end
    can have closed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One computation that is not complete to the end of an interval."""

    computation: str
    watermark: WatermarkView
    missing: Watermark
    """From here on to the end of the interval it is not complete: its low watermark, or the start
    of the interval if that is later."""
    ranges: Ranges | None
    """Its key ranges below the end of the interval, furthest behind first: the first few. None when
    nobody could tell."""
    cause: Cause
    """What keeps the computation where it is. HIDDEN: this client may not read it, and knows
    nothing of it but its name."""


@dataclass(frozen=True, slots=True)
class IntervalView:
    """Whether ``[start, end)`` is complete in a computation, and if not, what is missing of it and who holds it."""

    computation: str
    start: Watermark
    end: Watermark
    watermark: WatermarkView
    gaps: tuple[Gap, ...]
    """The computation itself, then all that are upstream of it and below ``end``, the nearest
    first. None when it is complete."""
    why: Why | None
    """The root cause; None when it is complete."""

    @property
    def complete(self) -> bool:
        """Whether nothing of the interval will come any more."""
        return self.watermark.registered and self.end <= self.watermark.low

    def __bool__(self) -> bool:
        return self.complete


def bounds_of(start: EventTime, end: EventTime) -> tuple[Watermark, Watermark]:
    """Return both ends of an interval.

    Raises InvalidArgument unless it begins at a time, and ends later.
    """
    first, last = Watermark.of(start), Watermark.of(end)
    if first.unknown or first.finished:
        raise checks.refused("start", str(first), "the event time at which the interval begins")
    if last <= first:
        raise checks.refused("end", str(last), f"an event time after the start, {first}")
    return first, last


def first_start(start: EventTime, every: timedelta, field: str = "start") -> EventTime:
    """Return where the first of many intervals of one length begins.

    Raises InvalidArgument for intervals of more than an hour that begin in another zone than UTC.
    Such zones have days of 23 and 25 hours, so the intervals would drift from the days, and their
    names, which are of UTC, would be of other days.
    """
    if not isinstance(start, datetime) or start.tzinfo is None or every <= _HOUR:
        return start
    months = [start.replace(month=month, day=1) for month in range(1, 13)]
    if any(each.utcoffset() for each in [start, *months]):
        moment = Watermark.of(start)
        fix = f"a time in UTC, such as {moment}: intervals of {every} have one length, and days of a local zone do not"
        raise checks.refused(field, start.isoformat(), fix)
    return start


def upstream_below(name: str, views: Mapping[str, WatermarkView], end: Watermark) -> list[WatermarkView]:
    """Return a computation and all that it reads, directly or not, if they are below ``end``; the nearest first.

    What is complete to ``end`` holds nothing of the interval, nor does what only that reads. O(computations + inputs).
    """
    found: dict[str, WatermarkView] = {}
    ahead = [name]
    for each in ahead:
        view = views.get(each) or WatermarkView(each)
        if each in found or (view.registered and view.low >= end):
            continue
        found[each] = view
        ahead += view.inputs
    return list(found.values())


def gap_of(
    view: WatermarkView, start: Watermark, ranges: Ranges | None, now_micros: int, *, hidden: bool = False
) -> Gap:
    """Return what is missing of an interval in a computation that is below its end; ``hidden``: which the caller may not read."""
    cause = Cause.HIDDEN if hidden else cause_of(view, now_micros)
    return Gap(view.computation, view, max(start, view.low), ranges, cause)


class Closings:
    """The intervals ``[start + k * every, start + (k + 1) * every)`` of a computation, as its low watermark passes them, each once.

    Within one incarnation: the first that is seen, unless it is given. Only the exact low watermark closes an interval. Raises InvalidArgument.

    Which they are depends on no timing: whoever looks seldom, begins anew or comes late finds the same. So, where the computation has finished and
    no end was given, its history says how far it had come before (:meth:`asks`). Intervals up to there close one by one, as they did for those who
    saw it come. The one behind them has no end.
    """

    def __init__(
        self, name: str, every: timedelta, start: EventTime, *, incarnation: int = 0, until: EventTime | None = None
    ) -> None:
        self.name: str = checks.known_name("name", name)
        given: Any = every
        if not isinstance(given, timedelta) or not _EVERY[0] <= given <= _EVERY[1]:
            raise checks.refused("every", given, f"a timedelta of {_EVERY[0]} to {_EVERY[1]}")
        self.every: int = every // _MICROSECOND
        self.next: Watermark
        self.next, self._until = bounds_of(first_start(start, every), Watermark.FINISHED if until is None else until)
        """Where the next interval begins."""
        if not self._until.finished and (self._until.micros - self.next.micros) % self.every:
            raise checks.refused(
                "until", str(self._until), f"the end of an interval: {self.next} and so many times {every}"
            )
        self.incarnation: int = checks.count("incarnation", incarnation, 64)
        self._came: int | None = None
        """Before it finished, the low watermark had not come to here. Intervals that begin before
        it have an end. None: not told."""

    @property
    def over(self) -> bool:
        """Whether no interval will close any more."""
        return self.next >= self._until

    def closed(self, view: WatermarkView) -> Interval | None:
        """Return the next interval, if it has closed.

        Of what has finished none closes as long as it :meth:`asks`.

        Raises IncarnationChanged when the computation was reset or dropped, EstimatedInput when
        nobody promises its watermark.
        """
        if not view.registered and not self.incarnation:
            return None
        self.incarnation = self.incarnation or view.incarnation
        if not view.registered or view.incarnation != self.incarnation:
            raise self._ended(view)
        if view.estimated:
            fix = "name a computation that is exact, such as a tracked stage"
            msg = f"{self.name} is only estimated: rows below its watermark will come, so that none of its intervals is ever complete; {fix}"
            raise errors.EstimatedInput(msg, metadata={"computation": self.name, "fix": fix})
        if self.over or self.asks(view):
            return None
        endless = self._came is not None and self.next.micros >= min(self._came, _LAST)
        end = Watermark(MAX if endless else min(self.next.micros + self.every, _LAST))
        if end > view.low:
            return None
        start, self.next = self.next, end
        return Interval(self.name, self.incarnation, start, end)

    def asks(self, view: WatermarkView) -> bool:
        """Whether the newest completion of the history has to be told (:meth:`tell`) before anything closes."""
        return self._came is None and self._until.finished and view.registered and view.low.finished

    def tell(self, history: History) -> None:
        """Take what the history says.

        One that does not say how this incarnation finished changes nothing.
        """
        newest = history.completions[-1] if history.completions else None
        if newest is None or newest.incarnation != self.incarnation or not newest.through.finished:
            return
        self._came = MIN if newest.after.unknown else newest.after.micros + history.step // _MICROSECOND

    def _ended(self, view: WatermarkView) -> errors.IncarnationChanged:
        became = f"reset: incarnation {view.incarnation} began" if view.registered else "dropped"
        fix = "begin anew, with the intervals of the new one from where they are wanted"
        msg = f"{self.name} was {became}, and the intervals that were asked for belong to incarnation {self.incarnation}; {fix}"
        metadata = {
            "computation": self.name,
            "waited_for": str(self.incarnation),
            "incarnation": str(view.incarnation if view.registered else 0),
            "fix": fix,
        }
        return errors.IncarnationChanged(msg, metadata=metadata)
