"""What a run has shown: every hour and every dip against the batch answer, and how long each was waited for."""

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
    """How what was reported since the replay began compares with the batch answer."""

    right: int
    """Dips and spikes that have begun, as in the batch answer."""
    false: list[Change]
    """Reported, and there was none."""
    missing: list[Change]
    """Never reported."""
    dropped: int
    waited: int
    """From the end of an hour to its verdict, at the median; microseconds of the replay clock."""
    most_waited: int
    """The longest."""


def batch_answer(steps: Sequence[Step]) -> Answer:
    """Compute the batch answer of all that has arrived."""
    hours = answer.hours((each for step in steps for each in step.arriving), steps[-1].clock)
    return Answer(hours, answer.changes(hours))


def differences(found: Outcome, batch: Answer) -> str:
    """Return the first thing that is not the batch answer, row by row; empty when all is."""
    compared: list[tuple[str, Counter[Any], Counter[Any]]] = [
        ("hour", Counter(hour for hour, _ in found.hours), Counter(batch.hours)),
        ("change", Counter(change for change, _ in found.changes), Counter(batch.changes)),
    ]
    for name, rows, wanted in compared:
        for row in sorted((rows | wanted).keys()):
            if rows[row] != wanted[row]:
                return f"the {name} {row} is there {rows[row]} times and not {wanted[row]}"
    return f"{found.dropped} records came late" if found.dropped else ""


def score(found: Outcome, batch: Answer) -> Score:
    """Compare the dips and spikes that have begun since the first step."""
    wanted = {each for each in batch.changes if each.open and each.at >= START}
    told = {change for change, _ in found.changes if change.open and change.at >= START}
    waits = [clock - hour.start - HOUR for hour, clock in found.hours if hour.start >= START]
    return Score(
        len(told & wanted),
        sorted(told - wanted),
        sorted(wanted - told),
        found.dropped,
        median_low(waits),
        max(waits),
    )


def as_text(found: Run, batch: Answer) -> str:
    """Return the report."""
    low, spark = score(found.low, batch), score(found.spark, batch)
    episodes = [each for each in batch.changes if not each.open and each.at >= START]
    lines = [
        f"\nall {len(batch.hours):,} hours and all {len(batch.changes)} changes that the computations wrote are exactly the batch answer.\n",
        "dips and spikes      from            to               departures   usual",
    ]
    lines += [
        f"  {each.origin} {each.kind:12} {_when(each.since)}   {_when(each.at)}   {each.n:13}   {each.past / 4:5.0f}"
        for each in sorted(episodes, key=lambda each: (each.since, each.origin))
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
            f"false, by Spark's own watermark: {each.kind} of {each.origin} at {_when(each.at)}, {each.n} departures and {each.past / 4:.0f} usual"
            for each in spark.false
        ),
        f"\nThe feed of {STALLED} stood still from {_when(STALL[0])} to {_when(STALL[1])}. What lowwater said at its end:\n{found.why.splitlines()[0]}",
    ]
    return "\n".join(lines)


def _when(time: int) -> str:
    return f"{moment(time):%-d %b %H:%M}".rjust(12)
