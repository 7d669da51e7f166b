"""Where computations stood lately: the last hour in full, the last day and week in coarser steps, in bounded memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from lowwater.watermark import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

Number = TypeVar("Number", np.int32, np.int64)

STEP_SECONDS: Final = 5
"""Between two samples."""

NONE: Final = np.iinfo(np.int32).min
"""In place of a lag: there was no time to compare, or nobody looked."""

Sample = tuple[int, int | None, int | None]
"""Processing time, low watermark and heuristic watermark, in microseconds; None while a watermark has no time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time up to now, and the steps in which it can be had."""

    seconds: int
    step: int
    """Seconds between two samples of a computation."""
    column: int
    """Seconds of a column of the heat map: some steps."""


SPANS: Final[Mapping[str, Span]] = {
    "1h": Span(3600, STEP_SECONDS, 60),
    "6h": Span(6 * 3600, 60, 300),
    "24h": Span(86_400, 60, 900),
    "7d": Span(7 * 86_400, 600, 7200),
}
"""By name. The page's model/history.js has the same."""

KEPT: Final = {STEP_SECONDS: 3600 // STEP_SECONDS, 60: 86_400 // 60, 600: 7 * 86_400 // 600}
"""How many samples are kept, by the seconds between them."""

LOW: Final = 0
HEURISTIC: Final = 1
"""Which of two watermarks."""

SAMPLE_BYTES: Final = 8
"""What a sample takes: two lags of 32 bits. A sample of the last hour, which is exact, takes twice as much."""

PER_COMPUTATION: Final = SAMPLE_BYTES * (2 * KEPT[STEP_SECONDS] + KEPT[60] + KEPT[600])
"""Bytes of memory that the samples of a computation take."""


@dataclass(frozen=True, slots=True)
class Heat:
    """How far computations were behind, in columns of time."""

    from_micros: int
    """When the first column begins."""
    column: int
    """Seconds of a column."""
    since_micros: int
    """When the first sample was taken: what is older was recalled."""
    total: int
    """How many computations there are samples of."""
    lags: Mapping[str, list[int | None]]
    """The greatest lag in each column, in seconds behind the clock, of those that were furthest behind first; None: no time was known."""


class Samples:
    """Samples of each computation's present incarnation. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._since = 0
        self._hour = _Hour()
        self._coarse = {step: _Lags(step, count) for step, count in KEPT.items() if step != STEP_SECONDS}
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        """Rows of what was dropped."""

    def add(self, time_micros: int, names: Sequence[str], values: Sequence[tuple[int, int]]) -> None:
        """Take a sample: where the watermarks of each stand. O(computations)."""
        with self._lock:
            for name in names:
                if name not in self._rows:
                    self._rows[name] = self._free.pop() if self._free else len(self._rows)
            self._now = time_micros
            self._since = self._since or time_micros
            rows = np.array([self._rows[name] for name in names], np.intp)
            marks = np.array(values, np.int64).reshape(-1, 2)
            height = len(self._rows) + len(self._free)
            self._hour.add(time_micros, rows, marks, height)
            lags = _lags(time_micros, marks)
            for each in self._coarse.values():
                each.add(time_micros, rows, lags, height)

    def recall(self, name: str, completions: Sequence[tuple[int, int]]) -> bool:
        """Take over what is known of the time before: which event times a computation had passed, and when, in microseconds.

        From the end of such a time until it was passed the computation was behind by at least what had gone by since. Returns False when
        there is no sample of it yet: it is too early then.
        """
        with self._lock:
            row = self._rows.get(name)
            if row is None:
                return False
            for each in self._coarse.values():
                each.recall(self._now, row, completions)
            return True

    def begin(self, name: str) -> None:
        """Forget what was: a new incarnation has begun."""
        with self._lock:
            if name in self._rows:
                self._clear(self._rows[name])

    def remove(self, name: str) -> None:
        """Forget a computation that was dropped."""
        with self._lock:
            row = self._rows.pop(name, None)
            if row is not None:
                self._clear(row)
                self._free.append(row)

    def of(self, name: str, span: Span) -> list[Sample]:
        """Return the samples of a computation, oldest first."""
        with self._lock:
            row = self._rows.get(name)
            if row is None:
                return []
            if span.step == STEP_SECONDS:
                return self._hour.of(row)
            since, rows = self._now - span.seconds * 1_000_000, np.array([row])
            times, lows = self._coarse[span.step].since(since, rows, LOW)
            _, shares = self._coarse[span.step].since(since, rows, HEURISTIC)
        # The watermarks that were as far behind at the sample's time.
        found = zip(times.tolist(), lows[0].tolist(), shares[0].tolist(), strict=True)
        return [(time, _before(time, low), _before(time, share)) for time, low, share in found]

    def heat(self, span: Span, most: int) -> Heat:
        """Return how far everything was behind: of so many computations at most, those that were furthest behind. O(samples)."""
        with self._lock:
            names, rows = list(self._rows), np.array(list(self._rows.values()), np.intp)
            columns = span.seconds // span.column
            first = self._now // 1_000_000 // span.column - columns + 1
            found = np.full((len(names), columns), NONE, np.int32)
            source: _Hour | _Lags = self._hour if span.step == STEP_SECONDS else self._coarse[span.step]
            times, lags = source.since(first * span.column * 1_000_000, rows, LOW)
        at = times // 1_000_000 // span.column - first
        for column in np.unique(at):
            found[:, column] = lags[:, at == column].max(axis=1)
        worst = found.max(axis=1, initial=NONE)
        order = np.argsort(-worst.astype(np.int64), kind="stable")[:most].tolist()
        return Heat(
            first * span.column * 1_000_000,
            span.column,
            self._since,
            len(names),
            {names[i]: [None if lag == NONE else lag for lag in found[i].tolist()] for i in order},
        )

    def _clear(self, row: int) -> None:
        self._hour.clear(row)
        for each in self._coarse.values():
            each.clear(row)


class _Hour:
    """The last hour, exactly: a column of times, and a row of (low, heuristic) for each computation."""

    def __init__(self) -> None:
        self._count = KEPT[STEP_SECONDS]
        self._taken = 0
        self._times: npt.NDArray[np.int64] = np.zeros(self._count, np.int64)
        self._values: npt.NDArray[np.int64] = np.zeros((0, self._count, 2), np.int64)
        self._since: dict[int, int] = {}
        """Which sample is the first of a row."""

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], marks: npt.NDArray[np.int64], height: int) -> None:
        self._values = _grown(self._values, height, 0)
        for row in rows.tolist():
            self._since.setdefault(row, self._taken)
        place = self._taken % self._count
        self._times[place] = time_micros
        self._values[rows, place] = marks
        self._taken += 1

    def clear(self, row: int) -> None:
        self._since.pop(row, None)

    def of(self, row: int) -> list[Sample]:
        places = self._places(self._since.get(row, self._taken))
        times, values = self._times[places].tolist(), self._values[row, places].tolist()
        return [(time, _timed(low), _timed(share)) for time, (low, share) in zip(times, values, strict=True)]

    def since(
        self, time_micros: int, rows: npt.NDArray[np.intp], which: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the times since then, and how far one watermark of some rows was behind at each, in shape (rows, times)."""
        places = self._places(0)
        places = places[self._times[places] >= time_micros]
        times = self._times[places]
        lags = _lags(times, self._values[rows[:, None], places, which])
        firsts = np.array([self._since.get(row, self._taken) for row in rows.tolist()], np.int64)
        ages = np.arange(self._taken - len(places), self._taken)
        lags[ages[None, :] < firsts[:, None]] = NONE
        return times, lags

    def _places(self, first: int) -> npt.NDArray[np.int64]:
        return np.arange(max(first, self._taken - self._count), self._taken) % self._count


class _Lags:
    """The greatest lags in each step of a longer time, in whole seconds: a row of (low, heuristic) for each computation."""

    def __init__(self, step: int, count: int) -> None:
        self._step = step
        self._count = count
        self._times: npt.NDArray[np.int64] = np.full(count, -1, np.int64)
        """Of the last sample in each step; -1: there was none."""
        self._values: npt.NDArray[np.int32] = np.zeros((0, count, 2), np.int32)

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], lags: npt.NDArray[np.int32], height: int) -> None:
        self._values = _grown(self._values, height, NONE)
        number = self._number(time_micros)
        place = number % self._count
        if self._number(int(self._times[place])) != number:
            self._values[:, place] = NONE
        self._times[place] = time_micros
        self._values[rows, place] = np.maximum(self._values[rows, place], lags)

    def recall(self, now_micros: int, row: int, completions: Sequence[tuple[int, int]]) -> None:
        """See Samples. Steps of which nobody has a sample get one."""
        oldest = self._number(now_micros) - self._count + 1
        for through, time_micros in completions:
            numbers = np.arange(max(self._number(through), oldest), self._number(min(time_micros, now_micros)) + 1)
            if not numbers.size:
                continue
            ends = np.minimum((numbers + 1) * self._step * 1_000_000 - 1, min(time_micros, now_micros))
            places = numbers % self._count
            new = places[self._times[places] // 1_000_000 // self._step != numbers]
            self._values[:, new] = NONE
            self._times[places] = np.maximum(self._times[places], ends)
            lags = ((ends - through) // 1_000_000).astype(np.int32)
            self._values[row, places, LOW] = np.maximum(self._values[row, places, LOW], lags)

    def clear(self, row: int) -> None:
        self._values[row] = NONE

    def since(
        self, time_micros: int, rows: npt.NDArray[np.intp], which: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the times since then, and how far one watermark of some rows was behind at each, in shape (rows, times)."""
        places = np.flatnonzero(self._times >= max(time_micros, 0))
        places = places[np.argsort(self._times[places])]
        return self._times[places], self._values[rows[:, None], places, which]

    def _number(self, time_micros: int) -> int:
        return time_micros // 1_000_000 // self._step


def _grown(values: npt.NDArray[Number], height: int, empty: int) -> npt.NDArray[Number]:
    """Return room for so many rows: half as many again, so that it is seldom asked for."""
    if height <= len(values):
        return values
    more = np.full((max(height - len(values), len(values) // 2), *values.shape[1:]), empty, values.dtype)
    return np.concatenate((values, more))


def _lags(times: int | npt.NDArray[np.int64], marks: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return how many whole seconds watermarks are behind the clock; ``NONE`` where they have no time."""
    timed = (marks > MIN) & (marks < MAX)
    seconds = (times - np.where(timed, marks, 0)) // 1_000_000
    limit = np.iinfo(np.int32).max  # 68 years
    return np.where(timed, np.clip(seconds, -limit, limit), NONE).astype(np.int32)


def _before(time_micros: int, lag: int) -> int | None:
    return None if lag == NONE else time_micros - lag * 1_000_000


def _timed(micros: int) -> int | None:
    return micros if MIN < micros < MAX else None
