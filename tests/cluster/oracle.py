"""An oracle of what may be published and written, by plain Python from the files alone. It knows nothing of how the system came to it."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from lowwater.watermark import MAX, MIN
from tests.kit.times import HOUR

NEVER: Final = float("inf")


class Put(NamedTuple):
    at: float
    """When its file was there, seconds of the wall clock; as everywhere here."""
    key: str
    time: int
    """Its event time, microseconds; as everywhere here."""
    number: int = -1
    """A number that no other row has, where rows are handed on one by one."""


class Written(NamedTuple):
    key: str
    time: int
    number: int
    committed: float
    """The time of the commit, as in :class:`Emitted`."""


class Emitted(NamedTuple):
    key: str
    hour: int
    rows: int
    committed: float
    """When Spark's commit log had its batch; :data:`NEVER` when it has not yet."""


class Seen(NamedTuple):
    at: float
    incarnation: int
    low: int


def hours_of(puts: Sequence[Put]) -> dict[tuple[str, int], int]:
    """Return the batch answer: how many rows each key has in each hour."""
    return dict(Counter((put.key, put.time // HOUR * HOUR) for put in puts))


def judge_source(puts: Sequence[Put], published: Sequence[Seen]) -> list[str]:
    return [*_monotone(published), *_ahead([(put.time, put.at, _row(put)) for put in puts], published)]


def judge_rows(
    puts: Sequence[Put], written: Sequence[Written], published: Sequence[Seen], *, finished: bool = False
) -> list[str]:
    """Return what is wrong with rows that a stage hands on, and with its watermarks; empty when nothing is.

    Each row is there once and as it was put; before a watermark above its time was seen, it was committed; ``finished``: all rows are there.
    """
    put = {put.number: put for put in puts}
    wrong = _monotone(published)
    committed: dict[int, float] = {}
    for row in written:
        if row.number not in put or put[row.number][1:] != row[:3]:
            wrong.append(f"{row} was never put")
        elif row.number in committed:
            wrong.append(f"{_row(put[row.number])} is written twice")
        committed[row.number] = min(row.committed, committed.get(row.number, NEVER))
    wrong += _ahead([(put.time, committed.get(put.number, NEVER), _row(put)) for put in puts], published)
    if finished:
        wrong += [f"{_row(put)} was never written" for put in puts if put.number not in committed]
    return wrong


def judge_windows(
    puts: Sequence[Put], emitted: Sequence[Emitted], published: Sequence[Seen], *, finished: bool = False
) -> list[str]:
    """Return what is wrong with hourly windows and their stage's watermarks; empty when nothing is.

    * A window is written once, and is the batch answer: with all rows of the feed, those also that came later.
    * Before a watermark above its stamp was seen, it was committed. A window that is not written yet is committed never.
    * Watermarks of one incarnation never go down, and incarnations neither.
    * ``finished``: every window is written.

    O(rows + windows x log of the watermarks).
    """
    answer = hours_of(puts)
    wrong = _monotone(published)
    committed: dict[tuple[str, int], float] = {}
    for window in emitted:
        name = (window.key, window.hour)
        if name in committed:
            wrong.append(f"{_window(*name)} is written twice")
        elif window.rows != answer.get(name, 0):
            wrong.append(f"{_window(*name)} is written with {window.rows} rows, and has {answer.get(name, 0)}")
        committed[name] = min(window.committed, committed.get(name, NEVER))
    wrong += _ahead([(name[1], committed.get(name, NEVER), _window(*name)) for name in answer], published)
    if finished:
        wrong += [f"{_window(*name)} was never written" for name in answer if name not in committed]
    return wrong


def _row(put: Put) -> str:
    return f"the row {put.key} at {put.time}"


def _window(key: str, hour: int) -> str:
    return f"the window of {key} at {hour}"


def _monotone(published: Sequence[Seen]) -> list[str]:
    """Whoever received a value is never shown a lower one afterwards."""
    return [f"{after} came after {before}" for before, after in itertools.pairwise(published) if after[1:] < before[1:]]


def _ahead(stamped: Sequence[tuple[int, float, str]], published: Sequence[Seen]) -> list[str]:
    """Return what was not there when a watermark above its stamp was received. ``stamped``: stamp, since when it is there, its name."""
    # The first moment at which each greater value had been received.
    steps: list[Seen] = []
    for value in published:
        if value.low != MIN and (not steps or value.low > steps[-1].low):
            steps.append(value)
    lows = [step.low for step in steps]
    wrong = []
    for stamp, since, name in stamped:
        above = bisect_right(lows, stamp)
        if above < len(steps) and since > steps[above].at:
            low = "finished" if steps[above].low == MAX else steps[above].low
            when = "is not committed yet" if since == NEVER else f"was committed {since - steps[above].at:.3f} s later"
            wrong.append(f"{low} was published, and {name} {when}")
    return wrong
