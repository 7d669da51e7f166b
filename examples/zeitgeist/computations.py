"""The three computations, and the rules by which an hour is a dip or a spike.

All is in whole numbers.

An hour without a departure has no record, and no row of *counts*: nothing comes that could tell of
it. *Model* has a timer for the end of every hour, which fires when the low watermark says that the
hour is complete, with rows or without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Final, NamedTuple

from lowwater_pipeline.computation import DAY, HOUR, Codec, Computation, Context, Input, Output, Record, Timer, floor

FEEDS: Final[Mapping[str, str]] = {"EWR": "feed-ewr", "JFK": "feed-jfk", "LGA": "feed-lga"}
"""The computations that the injectors report, one for each airport's feed."""

WEEK: Final = 7 * DAY
WEEKS: Final = 4
"""Number of earlier weeks whose mean for the same hour is the usual count."""
ENOUGH: Final = 10
"""Least departures in an hour that count: a usual count below it makes no dip, and a count below it
no spike."""

DIP, SPIKE, USUAL, QUIET, NEW = "dip", "spike", "usual", "quiet", "new"


class Judged(NamedTuple):
    """An hour beside the weeks before."""

    n: int
    past: int
    """The sum of the same hour of :data:`WEEKS` weeks."""
    verdict: str


def verdict(n: int, past: int) -> str:
    """Return the verdict on an hour: a dip has less than half of the usual, a spike over twice.

    >>> [verdict(n, past=WEEKS * 20) for n in (9, 10, 40, 41)]
    ['dip', 'usual', 'usual', 'spike']
    >>> [verdict(n, past=WEEKS * 3) for n in (0, 9, 10)]
    ['quiet', 'quiet', 'spike']
    """
    if n >= ENOUGH and n * WEEKS > 2 * past:
        return SPIKE
    if past < ENOUGH * WEEKS:
        return QUIET
    return DIP if 2 * n * WEEKS < past else USUAL


@dataclass
class Past:
    """Memory of an airport's model."""

    weeks: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Hour of the week to the counts of the last weeks, oldest first."""
    counted: dict[int, int] = field(default_factory=dict[int, int])
    """Counts of hours that are not judged, by their start."""

    def judge(self, start: int) -> Judged:
        """Judge the hour that begins then, and learn from it."""
        n = self.counted.pop(start, 0)
        before = self.weeks.setdefault(start % WEEK // HOUR, [])
        past = sum(before)
        judgement = verdict(n, past) if len(before) == WEEKS else NEW
        self.weeks[start % WEEK // HOUR] = [*before, n][-WEEKS:]
        return Judged(n, past, judgement)


@dataclass(frozen=True)
class Episode:
    """The dip or the spike that an airport is in; without a kind it is in none."""

    kind: str = ""
    since: int = 0
    """The start of its first hour."""
    hours: int = 0
    """Number of hours with this verdict."""
    n: int = 0
    past: int = 0
    """Sums over these hours."""


def follow(episode: Episode, start: int, hour: Judged) -> tuple[Episode, list[tuple[Episode, bool]]]:
    """Go on with the next hour.

    Return the episode, and what has changed: one that is over, or that begins, and whether it is
    open.

    A dip goes on over the hours of a night, in which nobody leaves.
    """
    changes = []
    goes_on = hour.verdict == episode.kind or (episode.kind == DIP and hour.verdict == QUIET)
    if episode.kind and not goes_on:
        changes.append((episode, False))
        episode = Episode()
    if hour.verdict in (DIP, SPIKE):
        begins = not episode.kind
        since = start if begins else episode.since
        episode = Episode(hour.verdict, since, episode.hours + 1, episode.n + hour.n, episode.past + hour.past)
        if begins:
            changes.append((episode, True))
    return episode, changes


class Counts(Computation):
    """Departures of an airport and hour, when the hour is complete."""

    name = "counts"
    inputs: ClassVar[Sequence[Input]] = [Input(tuple(FEEDS.values()), key="origin", event_time="at", id="id")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "hours": Output("origin string, start timestamp, n long", event_time="start")
    }
    state = Codec(dict[int, int])
    stamp = timedelta(hours=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        hour = floor(record.timestamp, HOUR)
        ctx.state[hour] = ctx.state.get(hour, 0) + 1
        ctx.set_timer("end", hour + HOUR, hold=hour)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        hour = timer.at - HOUR
        ctx.produce("hours", {"origin": ctx.key, "start": hour, "n": ctx.state.pop(hour)})


class Model(Computation):
    """Compares every hour of an airport with the same hour of former weeks.

    It begins with the first hour that has a departure. A watched feed does not end.
    """

    name = "model"
    inputs: ClassVar[Sequence[Input]] = [Input(Counts.name, key="origin", event_time="start")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "judged": Output("origin string, start timestamp, n long, past long, verdict string", event_time="start")
    }
    state = Codec(Past)

    def process_record(self, ctx: Context, record: Record) -> None:
        ctx.state.counted[record.timestamp] = record["n"]
        ctx.set_timer("end", record.timestamp + HOUR, hold=record.timestamp)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        hour = timer.at - HOUR
        ctx.produce("judged", {"origin": ctx.key, "start": hour, **ctx.state.judge(hour)._asdict()})
        if not ctx.finished:
            ctx.set_timer("end", timer.at + HOUR, hold=timer.at)  # also if nothing comes


class Dips(Computation):
    """When a dip or a spike of an airport begins, and when it is over.

    It meets the hours in their order.
    """

    name = "dips"
    inputs: ClassVar[Sequence[Input]] = [Input(Model.name, key="origin", event_time="start")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "changes": Output(
            "origin string, at timestamp, kind string, since timestamp, open boolean, hours long, n long, past long",
            event_time="at",
        )
    }
    state = Codec(Episode)
    in_order = True

    def process_record(self, ctx: Context, record: Record) -> None:
        hour = Judged(record["n"], record["past"], record["verdict"])
        ctx.state, changes = follow(ctx.state, record.timestamp, hour)
        for episode, is_open in changes:
            ctx.produce("changes", {"origin": ctx.key, "at": record.timestamp, "open": is_open, **vars(episode)})
