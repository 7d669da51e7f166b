"""Intervals of event time: what is missing of one, and a series that closes one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lowwater import errors
from lowwater.core import checks
from lowwater.core.causes import Cause, cause_of
from lowwater.core.why import Why
from lowwater.views import History, Ranges, WatermarkView
from lowwater.watermark import MAX, MIN, EventTime, Watermark, parse_iso

__all__ = ["Closings", "Gap", "Interval", "IntervalView", "bounds_of", "first_start", "gap_of", "upstream_below"]

_MICROSECOND: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)
_EVERY: Final = (timedelta(seconds=1), timedelta(days=366))
_LAST: Final = MAX - 1
"""Last event time at which an interval may begin."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval ``[start, end)`` of event time, complete in a computation's incarnation."""

    computation: str
    incarnation: int
    """Incarnation of the computation. After a reset the same interval closes once more, in the next
    one."""
    start: Watermark
    end: Watermark
    """End, exclusive. Finished for the last interval, which has no end: it begins where no interval
    with an end can have closed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A computation that is not complete to the end of an interval."""

    computation: str
    watermark: WatermarkView
    missing: Watermark
    """Event time from which it is incomplete: its low watermark, or the start of the interval if
    that is later."""
    ranges: Ranges | None
    """First few of its key ranges below the end of the interval, furthest behind first; None when
    the authority could not answer."""
    cause: Cause
    """Reason why the computation does not move. HIDDEN: this client may read nothing of it but its
    name."""


@dataclass(frozen=True, slots=True)
class IntervalView:
    """Answer whether ``[start, end)`` is complete in a computation, and what is missing if not."""

    computation: str
    start: Watermark
    end: Watermark
    watermark: WatermarkView
    gaps: tuple[Gap, ...]
    """The computation and all upstream of it that are below ``end``, the nearest first; empty when
    it is complete."""
    why: Why | None
    """Root cause; None when it is complete."""

    @property
    def complete(self) -> bool:
        """True when no more data of the interval will come."""
        return self.watermark.registered and self.end <= self.watermark.low

    def __bool__(self) -> bool:
        return self.complete


def bounds_of(start: EventTime, end: EventTime) -> tuple[Watermark, Watermark]:
    """Return both ends of an interval. Raises InvalidArgument unless both are times, in order."""
    first, last = Watermark.of(start), Watermark.of(end)
    if first.unknown or first.finished:
        raise checks.refused("start", str(first), "the event time at which the interval begins")
    if last <= first:
        raise checks.refused("end", str(last), f"an event time after the start, {first}")
    return first, last


def first_start(start: EventTime, every: timedelta, field: str = "start") -> EventTime:
    """Return the start of the first interval of a series.

    Raises InvalidArgument for intervals of more than an hour that begin in another zone than UTC.
    Such a zone has days of 23 and 25 hours. The intervals would drift from its days, and their
    names, which are in UTC, would name other days.
    """
    if isinstance(start, str):
        start = parse_iso(start)
    if not isinstance(start, datetime) or start.tzinfo is None or every <= _HOUR:
        return start
    months = [start.replace(month=month, day=1) for month in range(1, 13)]
    if any(time.utcoffset() for time in [start, *months]):
        moment = Watermark.of(start)
        fix = f"a time in UTC, such as {moment}: intervals of {every} have one length, and days of a local zone do not"
        raise checks.refused(field, start.isoformat(), fix)
    return start


def upstream_below(name: str, views: Mapping[str, WatermarkView], end: Watermark) -> list[WatermarkView]:
    """Return a computation and its upstream, the nearest first, as far as below ``end``.

    A computation that is complete to ``end`` holds nothing of the interval, and ends the walk
    there. O(computations + inputs).
    """
    below: dict[str, WatermarkView] = {}
    pending = [name]
    for upstream in pending:
        view = views.get(upstream) or WatermarkView(upstream)
        if upstream in below or (view.registered and view.low >= end):
            continue
        below[upstream] = view
        pending += view.inputs
    return list(below.values())


def gap_of(
    view: WatermarkView, start: Watermark, ranges: Ranges | None, now_micros: int, *, hidden: bool = False
) -> Gap:
    """Return the gap of a computation below an interval's end; ``hidden``: it is unreadable."""
    cause = Cause.HIDDEN if hidden else cause_of(view, now_micros)
    return Gap(view.computation, view, max(start, view.low), ranges, cause)


class Closings:
    """The intervals ``[start + k * every, start + (k + 1) * every)`` that close, each once.

    An interval closes when the computation's exact low watermark passes its end, within one
    incarnation: the given one, or the first that is seen. Raises InvalidArgument.

    The result depends on no timing: a caller that looks seldom, restarts or comes late gets the
    same intervals. So, when the computation has finished and no end was given, its history says how
    far it had come before (:meth:`asks`). The intervals up to there close one by one, as for a
    caller who was there. The one after them has no end.
    """

    def __init__(
        self, name: str, every: timedelta, start: EventTime, *, incarnation: int = 0, until: EventTime | None = None
    ) -> None:
        self.name: str = checks.known_name("name", name)
        self.every: int = checks.micros("every", every, *_EVERY)
        self.next: Watermark
        self.next, self._until = bounds_of(first_start(start, every), Watermark.FINISHED if until is None else until)
        """Start of the next interval."""
        if not self._until.finished and (self._until.micros - self.next.micros) % self.every:
            raise checks.refused(
                "until", str(self._until), f"the end of an interval: {self.next} plus a multiple of {every}"
            )
        self.incarnation: int = checks.count("incarnation", incarnation, 64)
        self._complete_before: int | None = None
        """Time that the low watermark had not passed before it finished: intervals that begin
        before it have an end. None: the history was not read."""

    @property
    def over(self) -> bool:
        """True when no interval will close any more."""
        return self.next >= self._until

    @property
    def end(self) -> Watermark:
        """End of the next interval, as long as the computation has not finished."""
        return Watermark(min(self.next.micros + self.every, _LAST))

    def closed(self, view: WatermarkView) -> Interval | None:
        """Return the next interval, if it has closed.

        None closes of a finished computation as long as it :meth:`asks`. Raises IncarnationChanged
        after a reset or drop, EstimatedInput when no worker promises the watermark.
        """
        if not view.registered and not self.incarnation:
            return None
        self.incarnation = self.incarnation or view.incarnation
        if not view.registered or view.incarnation != self.incarnation:
            raise self._ended(view)
        if view.estimated:
            fix = "name a computation that is exact, such as a tracked stage"
            msg = f"{self.name} is only estimated: rows below its watermark may come, so none of its intervals is ever complete; {fix}"
            raise errors.EstimatedInput(msg, metadata={"computation": self.name, "fix": fix})
        if self.over or self.asks(view):
            return None
        endless = self._complete_before is not None and self.next.micros >= min(self._complete_before, _LAST)
        end = Watermark.FINISHED if endless else self.end
        if end > view.low:
            return None
        start, self.next = self.next, end
        return Interval(self.name, self.incarnation, start, end)

    def asks(self, view: WatermarkView) -> bool:
        """True when the newest completion of the history is needed first, by :meth:`tell`."""
        return self._complete_before is None and self._until.finished and view.registered and view.low.finished

    def tell(self, history: History) -> None:
        """Take the history; one that does not show the end of this incarnation changes nothing."""
        newest = history.completions[-1] if history.completions else None
        if newest is None or newest.incarnation != self.incarnation or not newest.through.finished:
            return
        self._complete_before = MIN if newest.after.unknown else newest.after.micros + history.step // _MICROSECOND

    def _ended(self, view: WatermarkView) -> errors.IncarnationChanged:
        change = f"reset: incarnation {view.incarnation} began" if view.registered else "dropped"
        fix = "begin again, with the intervals of the new incarnation"
        msg = f"{self.name} was {change}, and these intervals belong to incarnation {self.incarnation}; {fix}"
        begun = view.incarnation if view.registered else 0
        return checks.other_incarnation(self.name, self.incarnation, begun, msg, fix=fix)
