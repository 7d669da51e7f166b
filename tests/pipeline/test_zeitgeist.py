"""The computations of the zeitgeist example, without Spark: whatever makes a batch, every hour and every dip is the batch answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.zeitgeist import answer
from examples.zeitgeist.answer import Change, Hour
from examples.zeitgeist.computations import WEEK, Counts, Dips, Model
from examples.zeitgeist.replay import BEGIN, Departure
from lowwater_pipeline.computation import HOUR, MINUTE, Computation, Output, Record
from lowwater_pipeline.computation.turn import Kept, Turns
from tests.kit.times import MAX

END = BEGIN + 4 * WEEK + 60 * HOUR
"""Two and a half days are judged."""

Row = dict[str, Any]


class Running:
    def __init__(self, computation: Computation, event_time: str, identity: str | None = None) -> None:
        self._computation, self._event_time, self._id = computation, event_time, identity
        [[self.output, declared]] = computation.outputs.items()
        assert isinstance(declared, Output)
        self._columns = {self.output: frozenset(field.split()[0] for field in declared.schema.split(", "))}
        self._entries: defaultdict[str, Kept] = defaultdict(Kept)

    def batch(self, rows: Iterable[Row], low: int) -> list[Row]:
        turns = Turns(self._computation, self._columns, low, 0)
        records: defaultdict[str, list[Record]] = defaultdict(list)
        for row in rows:
            records[row["origin"]].append(Record(row[self._event_time], self._id and row[self._id], row))
        for key in self._entries.keys() | records.keys():
            self._entries[key] = turns.take(key, self._entries[key], records[key])
        return [dict(row) for _, row, _ in turns.productions]

    @property
    def hold(self) -> int:
        length = HOUR if self._computation.stamp else 1
        return min((entry.hold(length) for entry in self._entries.values()), default=MAX)


def departures(chance: Random) -> list[Departure]:
    """Departures of two airports with dips, spikes and hours in which nobody leaves."""
    rows = list[Departure]()
    for origin in ("EWR", "JFK"):
        for hour in range(BEGIN, END, HOUR):
            usual = (0, 3, 12, 20)[hour // HOUR % 4]
            n = chance.choice((0, usual // 3, usual, usual, usual, usual, usual * 3))
            rows += [Departure(len(rows) + i, origin, hour + chance.randrange(60) * MINUTE) for i in range(n)]
    return rows


def run(rows: Sequence[Departure], chance: Random) -> tuple[list[Hour], list[Change]]:
    """Run all three over batches at random, each of which reads some of what the one before has written, up to the end."""
    counts, model, dips = Running(Counts(), "at", "id"), Running(Model(), "start"), Running(Dips(), "start")
    waiting = [flight._asdict() for flight in rows]
    chance.shuffle(waiting)
    between: list[list[Row]] = [[], []]
    hours, changes = list[Hour](), list[Change]()
    while True:
        frontier = min((row["at"] for row in waiting), default=END)
        take, waiting = waiting[: (cut := chance.randrange(1, 4000))], waiting[cut:]
        between[0] += counts.batch(take, frontier)
        low = min(frontier - frontier % HOUR, counts.hold)
        judged = model.batch(between[0], low)
        hours += [Hour(**row) for row in judged]
        between[1] += judged
        between[0] = []
        # The last one may lag: what it has not read is not below its low watermark.
        if chance.random() < 0.5 or frontier == END:
            changes += [Change(**row) for row in dips.batch(between[1], min(low, model.hold))]
            between[1] = []
        if frontier == END:
            return hours, changes


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_every_hour_and_every_change_is_the_batch_answer(seed: int) -> None:
    chance = Random(seed)
    flights = departures(chance)
    hours, changes = run(flights, chance)
    right = answer.hours(flights, END)
    assert sorted(hours) == sorted(right)
    assert sorted(changes) == sorted(answer.changes(right))
    assert any(hour.verdict == "dip" and hour.n == 0 for hour in right), "no row tells of it, but a timer"
    assert {hour.verdict for hour in right} == {"new", "quiet", "usual", "dip", "spike"}


def test_the_watch_ends_with_the_feeds() -> None:
    counts, model = Running(Counts(), "at", "id"), Running(Model(), "start")
    rows = counts.batch([Departure(1, "EWR", BEGIN)._asdict()], MAX)
    assert [row["n"] for row in model.batch(rows, MAX)] == [1]
    assert model.hold == MAX
