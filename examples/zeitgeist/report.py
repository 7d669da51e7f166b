"""Report of a run: its hours and dips beside the batch answer, and the wait for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median_low
from typing import Any, NamedTuple

from examples.flights.data import HOUR, moment
from examples.zeitgeist import answer
from examples.zeitgeist.answer import Change, Hour
from examples.zeitgeist.replay import STALL, STALLED, START, Step
from examples.zeitgeist.run import Outcome, Run


class Answer(NamedTuple):
    """The batch answer, up to the end of the replay."""

    hours: Sequence[Hour]
    changes: Sequence[Change]


class Score(NamedTuple):
    """Comparison of the changes reported since the replay began with the batch answer."""

    right: int
    """Dips and spikes that have begun, as in the batch answer."""
    false: list[Change]
    """Reported changes that the batch answer lacks."""
    missing: list[Change]
    """Changes of the batch answer that were never reported."""
    dropped: int
    waited: int
    """Median time from the end of an hour to its verdict, in microseconds of the replay clock."""
    most_waited: int
    """Longest such time."""


def batch_answer(steps: Sequence[Step]) -> Answer:
    """Compute the batch answer of all that has arrived."""
    hours = answer.hours((departure for step in steps for departure in step.arriving), steps[-1].clock)
    return Answer(hours, answer.changes(hours))


def differences(outcome: Outcome, batch: Answer) -> str:
    """Return the first thing that is not the batch answer, row by row; empty when all is."""
    compared: list[tuple[str, Counter[Any], Counter[Any]]] = [
        ("hour", Counter(hour for hour, _ in outcome.hours), Counter(batch.hours)),
        ("change", Counter(change for change, _ in outcome.changes), Counter(batch.changes)),
    ]
    for name, rows, expected in compared:
        for row in sorted((rows | expected).keys()):
            if rows[row] != expected[row]:
                return f"the {name} {row} is there {rows[row]} times and not {expected[row]}"
    return f"{outcome.dropped} records came late" if outcome.dropped else ""


def score(outcome: Outcome, batch: Answer) -> Score:
    """Compare the dips and spikes that have begun since the first step."""
    expected = {change for change in batch.changes if change.open and change.at >= START}
    reported = {change for change, _ in outcome.changes if change.open and change.at >= START}
    waits = [clock - hour.start - HOUR for hour, clock in outcome.hours if hour.start >= START]
    return Score(
        len(reported & expected),
        sorted(reported - expected),
        sorted(expected - reported),
        outcome.dropped,
        median_low(waits),
        max(waits),
    )


def as_text(outcome: Run, batch: Answer) -> str:
    """Return the report."""
    low, spark = score(outcome.low, batch), score(outcome.spark, batch)
    episodes = [change for change in batch.changes if not change.open and change.at >= START]
    lines = [
        f"\nall {len(batch.hours):,} hours and all {len(batch.changes)} changes that the computations wrote are exactly the batch answer.\n",
        "dips and spikes      from            to               departures   usual",
    ]
    lines += [
        f"  {episode.origin} {episode.kind:12} {_when(episode.since)}   {_when(episode.at)}   {episode.n:13}   {episode.past / 4:5.0f}"
        for episode in sorted(episodes, key=lambda episode: (episode.since, episode.origin))
    ]
    lines += ["", f"{'hours closed by':22}{'low watermark':>14}{'Spark, max - 1 h':>18}"]
    lines += [
        f"{name:22}{ours:>14}{theirs:>18}"
        for name, ours, theirs in (
            ("right alarms", low.right, spark.right),
            ("false alarms", len(low.false), len(spark.false)),
            ("missing alarms", len(low.missing), len(spark.missing)),
            ("departures dropped", low.dropped, spark.dropped),
            ("hours waited, median", low.waited // HOUR, spark.waited // HOUR),
            ("hours waited, most", low.most_waited // HOUR, spark.most_waited // HOUR),
        )
    ]
    lines += [
        "",
        *(
            f"false, by Spark's own watermark: {alarm.kind} of {alarm.origin} at {_when(alarm.at)}, {alarm.n} departures and {alarm.past / 4:.0f} usual"
            for alarm in spark.false
        ),
        f"\nThe feed of {STALLED} stood still from {_when(STALL[0])} to {_when(STALL[1])}. What lowwater said at its end:\n{outcome.why.splitlines()[0]}",
    ]
    return "\n".join(lines)


def _when(time: int) -> str:
    return f"{moment(time):%-d %b %H:%M}".rjust(12)
