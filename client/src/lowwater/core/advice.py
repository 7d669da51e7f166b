"""What waiting costs and loses, from a query's own data: a constant delay and a low watermark.

What is kept, by whom, and what it can tell:

- *Attach* publishes Spark's watermark as an estimate. Spark's progress reports have more: the
  rows and the least, mean and greatest event time of each batch. :class:`EventTimes` keeps these
  in the driver, and Spark's event log has them of the past. Spark's rule is about exactly these:
  with a delay D it drops rows behind "greatest event time of all batches up to the last but one,
  less D". So the rows that any D would have lost lie between two bounds: a batch whose greatest
  time is behind is lost whole, one whose least time is not behind loses nothing, and of the others
  the mean bounds how many of the rows are behind (``_lost``). The delay that loses nothing depends
  on least times alone, so it is known exactly as long as no batches were merged.
- *Tracked stages* and injectors with a lateness budget report histograms of lateness
  (``lowwater.Arrived``) to the authority, which moves the budgets by them. They count from the
  promise or the frontier of the claim, not from the greatest event time that any partition has
  brought. That is never less, so a share in them is a *lower* bound of what Spark's rule loses: of
  a slow partition all rows may be on time for its own frontier, and lost to Spark. Readers see of
  them how many records came behind a budget and behind a heuristic watermark: a fact about these
  watermarks, and none about a constant delay.
- *Heuristic watermarks* promise nothing about records to come, and tell nothing about a delay.
- *History* has when each step of event time became complete, by the authority's clock. Beside
  event times it says how long the low watermark waits in the time of the rows: when the hour that
  ends at B was complete, Spark had read rows up to M, so a delay of M - B would have closed it
  then. This holds for a replay too. Without event times it says only how long after B, by the
  clock, the hour was complete. Spark closes it D after B at the earliest, unless rows are ahead of
  the clock.
- Who held a computation at which time is not kept. Only the holder of this moment is known.

All here is pure: functions of event times, completions and delays.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from lowwater.core.event_times import ROUNDING, EventTimes
from lowwater.core.text import counted, duration, on_one_line
from lowwater.watermark import MIN, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater.core.event_times import Stretch
    from lowwater.views import Completion, History

__all__ = ["DELAYS", "Advice", "Between", "Delay", "Loss", "Waits", "advise"]

MILLISECOND: Final = 1_000

DELAYS: Final = tuple(timedelta(minutes=minutes) for minutes in (10, 60, 120, 360, 1440))
"""Delays that are judged when none is asked for."""

SHARES: Final = (0.01, 0.001, 0.0)
"""Shares of rows for which the necessary delay is looked for."""

CURVE: Final = 60
"""Number of delays of the curve in a picture."""

MOST_STEPS: Final = 10_000
"""Greatest number of steps of one completion whose waits count, the newest ones. After a gap in the
data one completion may have any number of steps."""

REPLAY: Final = 2
"""Factor by which event time may pass faster than the clock. Above it a history is of a replay, and
the clock says nothing about its waits."""


class Between(NamedTuple):
    """A value that lies between two known ones, both included."""

    least: float
    most: float


class Loss(NamedTuple):
    """The rows that a constant delay would have lost."""

    delay: timedelta
    rows: Between
    share: Between


class Delay(NamedTuple):
    """The delay with which at most a share of the rows would have been lost."""

    share: float
    delay: Between
    """Seconds: no shorter delay than the first is enough, and the second is."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a low watermark took to complete steps of event time.

    All figures are seconds from the end of a step.
    """

    steps: int
    """Number of steps that became complete."""
    by_rows: bool
    """True when seconds are event time that Spark had read by then, as a delay counts. False when
    they are of the clock."""
    median: Between
    worst: Between


@dataclass(frozen=True, slots=True)
class Advice:
    """What constant delays would have cost and lost, and what a low watermark did."""

    computation: str
    """Computation of the low watermark; empty without one."""
    estimated: bool
    """True when its watermark is no promise."""
    query: str
    """Query whose event times were read; empty without any."""
    rows: int
    """Number of rows that were judged."""
    unjudged_rows: int
    batches: int
    stretches: int
    """Number of stretches into which the batches were merged; as many as batches when none was."""
    first_batch: int
    """Number of the first batch that was seen."""
    missing_batches: int
    """Number of later batches that were not seen."""
    window: timedelta | None
    start: Watermark
    """Least event time of the rows."""
    end: Watermark
    """Greatest event time of the rows."""
    asked: tuple[timedelta, ...]
    """Delays that were asked for, shortest first."""
    losses: tuple[Loss, ...]
    """Loss of each of these; empty without rows."""
    delays: tuple[Delay, ...]
    """Necessary delays, by share."""
    curve: tuple[Loss, ...]
    waits: Waits | None
    unknown: tuple[str, ...]
    """What is not known, and what to do about it."""

    def __str__(self) -> str:
        return "\n".join(_sentences(self))


def advise(
    event_times: EventTimes | None,
    history: History | None = None,
    *,
    query: str = "",
    estimated: bool = False,
    delays: Sequence[timedelta] = DELAYS,
    window: timedelta | None = None,
    since: int = MIN,
) -> Advice:
    """Return what constant delays would have lost, and how long the low watermark waited.

    Cost: O(stretches * log delay) for each share.

    Args:
        event_times: The event times that the query has read; None: nothing is known of rows.
        history: Completions of the computation whose low watermark is compared.
        query: Name of the query.
        estimated: True when the computation's watermark is no promise.
        delays: Delays to judge, of at least a millisecond.
        window: Length of the query's windows, which lie at multiples of it from 1970. Spark drops a
            row when its window has ended, so fewer rows are lost than without windows. None: a row
            is lost as soon as it is not later than the watermark.
        since: Event time: only batches with rows at or after it count, and steps that end after it.

    Raises TypeError for a delay or a window that is no timedelta, and ValueError for one that is
    not a positive number of milliseconds.
    """
    for length in (*delays, *(() if window is None else (window,))):
        if not isinstance(cast("object", length), timedelta):
            msg = f"delays and window are timedeltas, like timedelta(hours=1), not {length!r}"
            raise TypeError(msg)
        if length <= timedelta() or length % timedelta(milliseconds=1):
            msg = f"{length.total_seconds():g} s is no length that Spark knows: give a positive number of milliseconds"
            raise ValueError(msg)
    width = 0 if window is None else _micros(window)
    event_times = EventTimes() if event_times is None else event_times
    stretches = tuple(stretch for stretch in event_times if stretch.greatest >= since)
    rows = sum(stretch.rows for stretch in stretches)

    def loss(delay: int) -> Loss:
        least, most = _sum_lost(stretches, delay, width)
        return Loss(timedelta(microseconds=delay), Between(least, most), Between(least / rows, most / rows))

    longest = max((stretch.last_reference - stretch.least for stretch in stretches), default=0)
    longest = max(longest // MILLISECOND * MILLISECOND + MILLISECOND + width, MILLISECOND)
    unknown: list[str] = []
    if not rows and len(event_times):
        unknown.append(
            f"What a delay loses since {Watermark(since)} is not known: all rows of {on_one_line(query)} are older"
        )
    elif not rows and event_times.unjudged_rows:
        unknown.append(
            f"What a delay loses is not known yet: no batch of {on_one_line(query)} has rows with event times and two batches before it. "
            "Without withWatermark Spark reports no event times"
        )
    elif not rows:
        unknown.append(
            "What a delay loses is not known: no event times of a query are there. Give Spark's event log, or lines of "
            "query.lastProgress.json, with --progress FILE; or attach to the session, and ask its attachment"
        )
    waits, problem = (None, "") if history is None else _waits(history, event_times, since)
    if problem:
        unknown.append(problem)
    if history is not None:
        unknown.append("Who held it in the past is not kept; 'lowwater why' names the holder of this moment")
    shortest = min((*(map(_micros, delays)), longest)) if rows else longest
    return Advice(
        computation="" if history is None else history.computation,
        estimated=estimated,
        query=query,
        rows=rows,
        unjudged_rows=event_times.unjudged_rows,
        batches=sum(stretch.batches for stretch in stretches),
        stretches=len(stretches),
        first_batch=event_times.first_batch,
        missing_batches=event_times.missing_batches,
        window=window,
        start=Watermark(min((stretch.least for stretch in stretches), default=MIN)),
        end=Watermark(max((stretch.greatest for stretch in stretches), default=MIN)),
        asked=tuple(sorted(set(delays))),
        losses=tuple(loss(_micros(delay)) for delay in sorted(set(delays))) if rows else (),
        delays=tuple(Delay(share, _delay(stretches, int(share * rows), longest, width)) for share in SHARES)
        if rows
        else (),
        curve=tuple(loss(delay) for delay in _spread(shortest, longest)) if rows else (),
        waits=waits,
        unknown=tuple(unknown),
    )


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def _spread(shortest: int, longest: int) -> list[int]:
    """Return delays at equal distances on a logarithmic scale, in whole milliseconds."""
    ratio = longest / shortest
    points = (shortest * ratio ** (index / (CURVE - 1)) for index in range(CURVE))
    return sorted({max(MILLISECOND, round(point / MILLISECOND) * MILLISECOND) for point in points})


def _sum_lost(stretches: Sequence[Stretch], delay: int, width: int) -> tuple[int, int]:
    """Return the least and the most rows that a delay would have lost."""
    least = most = 0
    for stretch in stretches:
        more_least, more_most = _lost(stretch, delay, width)
        least, most = least + more_least, most + more_most
    return least, most


def _lost(stretch: Stretch, delay: int, width: int) -> tuple[int, int]:
    """Return the least and the most rows of a stretch that a delay would have lost.

    Spark drops the rows before ``mark``. The watermark is lowest for the first batch and highest
    for the last, and a row that has exactly its time is lost where there are no windows. Reported
    times are rounded down, so such a row may also be up to a millisecond later, and kept.
    """
    low = (stretch.first_reference - delay) // MILLISECOND * MILLISECOND
    high = (stretch.last_reference - delay) // MILLISECOND * MILLISECOND
    low, high = (low // width * width, high // width * width) if width else (low, high + 1)
    return _before(stretch, low, certainly=True), _before(stretch, high, certainly=False)


def _before(stretch: Stretch, mark: int, *, certainly: bool) -> int:
    """Return the least number of rows before a mark, or the most, by least, mean and greatest time.

    Of n rows k are before the mark. One of all rows has the least time and one the greatest. So
    their sum is lowest when k rows have the least time and all others but one are at the mark, and
    highest when all but one of the k are just before the mark and all others have the greatest.
    """
    rows, least, mean, greatest = stretch.rows, stretch.least, stretch.mean, stretch.greatest
    if mark <= least:
        return 0
    if mark > greatest:
        return rows
    if (
        not (rows - 1) * least + greatest <= rows * (mean + ROUNDING)
        or not rows * mean <= least + (rows - 1) * greatest
    ):
        # The query makes several rows of one before its withWatermark, so the mean is of more rows.
        return 0 if certainly else rows
    if certainly:
        excess = (rows - 1) * mark + greatest - rows * (mean + ROUNDING)
        return max(1, -(-excess // (mark - least)))
    room = rows * (greatest - mean) - (mark - 1) + least
    return min(rows - 1, max(1, room // (greatest - mark + 1)))


def _delay(stretches: Sequence[Stretch], allowed: int, longest: int, width: int) -> Between:
    """Return the shortest delay, in seconds, by which at most so many rows may or must be lost."""

    def shortest(lost: Callable[[int], int]) -> float:
        low, high = 0, longest // MILLISECOND
        while low < high:
            middle = (low + high) // 2
            if lost(middle * MILLISECOND) <= allowed:
                high = middle
            else:
                low = middle + 1
        return low / 1_000

    return Between(
        shortest(lambda delay: _sum_lost(stretches, delay, width)[0]),
        shortest(lambda delay: _sum_lost(stretches, delay, width)[1]),
    )


def _waits(history: History, event_times: EventTimes, since: int) -> tuple[Waits | None, str]:
    """Return how long steps took, and what is not known of that.

    The first completion of an incarnation does not count: its worker may have begun long after the
    step had ended.
    """
    name, step = history.computation, _micros(history.step)
    newest = max((completion.incarnation for completion in history), default=0)
    counting = [
        completion
        for completion in history
        if completion.incarnation == newest and not completion.after.unknown and not completion.through.finished
    ]
    if not counting:
        return None, (
            f"How long {name} waits is not known: its history has no steps yet that became complete while it ran. "
            f"'lowwater history {name}' shows what there is"
        )
    read = _Read(event_times)
    within = [completion for completion in counting if read.covers(completion.time_micros)]
    if within:
        waits = [
            (first - end, last - end)
            for completion in within
            for first, last in (read.at(completion.time_micros),)
            for end in _ends(completion, step, since)
        ]
        return _summary(waits, by_rows=True), ""
    first, last = counting[0], counting[-1]
    passed, clock = last.through.micros - first.through.micros, last.time_micros - first.time_micros
    if passed > REPLAY * clock and passed > step:
        return None, (
            f"How long {name} waits is not known: its history is of a replay, {duration(passed / 1e6)} of event time in "
            f"{duration(clock / 1e6)}. Give the event times that a query read at the same time"
        )
    waits = [
        (completion.time_micros - end, completion.time_micros - end)
        for completion in counting
        for end in _ends(completion, step, since)
    ]
    return _summary(waits, by_rows=False), ""


def _ends(completion: Completion, step: int, since: int) -> range:
    """Return the ends of the newest steps of a completion."""
    through = completion.through.micros
    first = max(completion.after.micros + step, through - (MOST_STEPS - 1) * step)
    if since >= first:
        first += ((since - first) // step + 1) * step
    return range(first, through + 1, step)


def _summary(waits: Sequence[tuple[int, int]], *, by_rows: bool) -> Waits | None:
    if not waits:
        return None
    least, most = sorted(first for first, _ in waits), sorted(last for _, last in waits)
    middle = (len(waits) - 1) // 2
    return Waits(
        len(waits),
        by_rows,
        Between(least[middle] / 1e6, most[middle] / 1e6),
        Between(least[-1] / 1e6, most[-1] / 1e6),
    )


class _Read:
    """The greatest event time that a query had read, by processing time."""

    def __init__(self, event_times: EventTimes) -> None:
        stretches = tuple(event_times)
        self._started = [stretch.started for stretch in stretches]
        self._ended = [stretch.ended for stretch in stretches]
        self._greatest = list(accumulate((max(stretch.greatest, event_times.before) for stretch in stretches), max))
        self._until = event_times.until

    def covers(self, time: int) -> bool:
        """Return True when a stretch had ended by a time, up to which all is known."""
        return bool(self._ended) and self._ended[0] <= time <= self._until

    def at(self, time: int) -> tuple[int, int]:
        """Return the least and the greatest value at a time, as batches may be under way."""
        ended, started = bisect_right(self._ended, time), bisect_right(self._started, time)
        return self._greatest[ended - 1], self._greatest[max(ended, started) - 1]


# -- words -----------------------------------------------------------------------------------------


def _sentences(advice: Advice) -> list[str]:
    lines: list[str] = []
    waits, name = advice.waits, advice.computation
    if advice.rows:
        merged = f" (merged into {advice.stretches})" if advice.stretches < advice.batches else ""
        batches = f"{advice.batches} batch{'' if advice.batches == 1 else 'es'}{merged}"
        lines.append(
            f"{on_one_line(advice.query) or 'The query'} read {counted(advice.rows, 'row')} in {batches}, with event times from "
            f"{advice.start} to {advice.end}."
        )
    if name:
        lines.append(
            f"{name} is an estimate, so what its watermark loses is not known."
            if advice.estimated
            else f"The low watermark of {name} loses none, as long as its sources keep their promises."
        )
    if waits is not None:
        by = "by the event times that Spark had read" if waits.by_rows else "by the clock"
        lines.append(
            f"{name} completed {counted(waits.steps, 'step')}, {_lengths(waits.median)} after the end of a step at the "
            f"median, and {_lengths(waits.worst)} at worst, {by}."
        )
    losses = {loss.delay: loss.share for loss in advice.losses}
    for delay in advice.asked:
        parts: list[str] = []
        if delay in losses:
            parts.append(f"Spark's watermark would have lost {_share(losses[delay])} of the rows")
        if waits is not None:
            parts.append(
                f"{name} came {_beside(waits.median, delay, waits)} at the median, and {_beside(waits.worst, delay, waits)} at worst"
            )
        if parts:
            lines.append(f"With a delay of {duration(delay.total_seconds())} {'; '.join(parts)}.")
    for needed in advice.delays:
        share = f"at most {needed.share * 100:g} %" if needed.share else "none"
        lines.append(f"To lose {share} of the rows Spark would have needed a delay of {_lengths(needed.delay)}.")
    if advice.unjudged_rows:
        rows = counted(advice.unjudged_rows, "row")
        lines.append(f"Not judged: {rows} of the first two batches, or without a usable event time.")
    if advice.first_batch:
        lines.append(f"Not seen: batches before {advice.first_batch}. Rows that are behind only these count as kept.")
    if advice.missing_batches:
        lines.append(
            f"Not seen: {advice.missing_batches} of the later batches. Rows that are behind only these count as kept."
        )
    return [*lines, *(f"{sentence}." for sentence in advice.unknown)]


def _beside(wait: Between, delay: timedelta, waits: Waits) -> str:
    """Return how much later than with a delay steps were complete.

    By the clock Spark closes a step when the delay has passed after its end, or later.
    """
    least, most = wait.least - delay.total_seconds(), wait.most - delay.total_seconds()
    if least == most == 0:
        return "at the same time"
    if most < 0:
        return f"{'' if waits.by_rows else 'at least '}{_lengths(Between(-most, -least))} sooner"
    if least < 0:
        return f"between {duration(-least)} sooner and {duration(most)} later"
    return f"{'' if waits.by_rows else 'at most '}{_lengths(Between(least, most))} later"


def _lengths(seconds: Between) -> str:
    first, last = duration(seconds.least), duration(seconds.most)
    return first if first == last else f"between {first} and {last}"


def _share(share: Between) -> str:
    """Return a share as percent, its lower bound rounded down and its upper one up."""
    if share.most == 0:
        return "none"
    if share.least == share.most:
        exact = percent(share.least, ROUND_HALF_EVEN)
        return f"{exact} %" if exact != "0" else f"less than {percent(share.least, ROUND_CEILING)} %"
    first, last = percent(share.least, ROUND_FLOOR), percent(share.most, ROUND_CEILING)
    return f"between {first} % and {last} %" if share.least else f"at most {last} %"


def percent(share: float, rounding: str) -> str:
    """Return a share as percent with two digits.

    >>> percent(0.00345, ROUND_FLOOR), percent(0.00345, ROUND_CEILING), percent(0.9951, ROUND_FLOOR)
    ('0.34', '0.35', '99')
    """
    value = Decimal(share * 100)
    unit = Decimal(1).scaleb(max(value.adjusted() - 1, -4)) if value else Decimal(1)
    return f"{value.quantize(unit, rounding).normalize():f}"
