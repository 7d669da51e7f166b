"""The batch answer: the rules over all departures at once, without the computations' code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from examples.flights.data import DAY, HOUR
from examples.zeitgeist.replay import Departure


class Hour(NamedTuple):
    """An hour of an airport."""

    origin: str
    start: int
    n: int
    past: int
    """The sum of the same hour of up to four weeks before."""
    verdict: str


class Change(NamedTuple):
    """A dip or a spike that begins, or that is over."""

    origin: str
    at: int
    """The start of the hour that decided it."""
    kind: str
    since: int
    open: bool
    hours: int
    n: int
    past: int


def hours(departures: Iterable[Departure], end: int) -> list[Hour]:
    """Return the hours of each airport from its first departure until ``end``, in order."""
    counts = Counter((departure.origin, departure.at - departure.at % HOUR) for departure in departures)
    rows = []
    for origin in sorted({origin for origin, _ in counts}):
        first = min(start for name, start in counts if name == origin)
        for start in range(first, end, HOUR):
            weeks = [start - week * 7 * DAY for week in (1, 2, 3, 4)]
            n, past = counts[origin, start], sum(counts[origin, week] for week in weeks)
            usual = past / 4
            if weeks[-1] < first:
                verdict = "new"
            elif n >= 10 and n > 2 * usual:
                verdict = "spike"
            elif usual < 10:
                verdict = "quiet"
            elif n < usual / 2:
                verdict = "dip"
            else:
                verdict = "usual"
            rows.append(Hour(origin, start, n, past, verdict))
    return rows


def changes(judged: Sequence[Hour]) -> list[Change]:
    """Return when dips and spikes begin and end, by airport and time."""
    rows = []
    for origin in sorted({hour.origin for hour in judged}):
        ours = [hour for hour in judged if hour.origin == origin]
        kind = ""
        within: list[Hour] = []
        for hour in ours:
            over = hour.verdict != kind and not (kind == "dip" and hour.verdict == "quiet")
            if kind and over:
                rows.append(_change(hour, within, is_open=False))
                kind, within = "", []
            if hour.verdict in ("dip", "spike"):
                within.append(hour)
                if not kind:
                    rows.append(_change(hour, within, is_open=True))
                kind = hour.verdict
    return rows


def _change(hour: Hour, within: Sequence[Hour], *, is_open: bool) -> Change:
    n, past = sum(one.n for one in within), sum(one.past for one in within)
    return Change(hour.origin, hour.start, within[0].verdict, within[0].start, is_open, len(within), n, past)
