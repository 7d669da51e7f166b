"""Where computations stood lately: the last hour in full, the last day and week in coarser steps, in bounded memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from lowwater.views import slice_of
from lowwater.watermark import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

Number = TypeVar("Number", np.int32, np.int64)

STEP_SECONDS: Final = 5
"""Between two samples."""

NONE: Final = np.iinfo(np.int32).min
"""In place of a lag: there was no time to compare, or nobody looked."""

Sample = tuple[int, int | None, int | None]
"""Processing time, low watermark and heuristic watermark, in microseconds; None while a watermark
has no time."""


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
"""What a sample takes: two lags of 32 bits. A sample of the last hour, which is exact, takes twice
as much."""

PER_COMPUTATION: Final = SAMPLE_BYTES * (2 * KEPT[STEP_SECONDS] + KEPT[60] + KEPT[600])
"""Bytes of memory that the samples of a computation take."""

BLOCK: Final = 100
"""Computations for which room is made at once, and whose samples are read at once."""

LATE_SECONDS: Final = 1800.0
"""What counts as late of what nobody promised anything of, as for the alerts. The page's
model/lag.js has the same."""


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
    """The greatest lag in each column, in seconds behind the clock; None: no time was known. First
    those that were the most times as far behind as is late."""


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
            times, lows = self._coarse[span.step].between(since, self._now, rows, LOW)
            _, shares = self._coarse[span.step].between(since, self._now, rows, HEURISTIC)
        # The watermarks that were as far behind at the sample's time.
        found = zip(times.tolist(), lows[0].tolist(), shares[0].tolist(), strict=True)
        return [(time, _before(time, low), _before(time, share)) for time, low, share in found]

    def heat(self, span: Span, most: int, late: Mapping[str, float]) -> Heat:
        """Return how far everything was behind, but for slices of what is there: of so many computations at most, those that were the most times as far behind as is late.

        ``late``: seconds from which a computation is late, where that was promised; else ``LATE_SECONDS``. O(samples); others wait for a
        block of them at most.
        """
        with self._lock:
            rows, now, since = dict(self._rows), self._now, self._since
        columns = span.seconds // span.column
        first = now // 1_000_000 // span.column - columns + 1
        source: _Hour | _Lags = self._hour if span.step == STEP_SECONDS else self._coarse[span.step]
        names = sorted((name for name in rows if slice_of(name) not in rows), key=rows.__getitem__)
        found = np.full((len(names), columns), NONE, np.int32)
        for i in range(0, len(names), BLOCK):
            with self._lock:
                # A row that was given to another one meanwhile is nobody's that was asked for.
                kept = [j for j in range(i, min(i + BLOCK, len(names))) if self._rows.get(names[j]) == rows[names[j]]]
                chosen = np.array([rows[names[j]] for j in kept], np.intp)
                times, lags = source.between(first * span.column * 1_000_000, now, chosen, LOW)
            if kept and times.size:
                at = times // 1_000_000 // span.column - first
                begins = np.flatnonzero(np.diff(at, prepend=-1))
                found[np.array(kept)[:, None], at[begins]] = np.maximum.reduceat(lags, begins, axis=1)
        worst = found.max(axis=1, initial=NONE)
        times_late = worst / np.array([late.get(name, LATE_SECONDS) for name in names])
        times_late[worst == NONE] = -np.inf
        order = np.argsort(-times_late, kind="stable")[:most].tolist()
        return Heat(
            first * span.column * 1_000_000,
            span.column,
            since,
            len(names),
            {names[i]: [None if lag == NONE else lag for lag in found[i].tolist()] for i in order},
        )

    def _clear(self, row: int) -> None:
        self._hour.clear(row)
        for each in self._coarse.values():
            each.clear(row)


class _Rows(Generic[Number]):
    """Two numbers at each of some places, for each computation, in blocks: room for more is made without moving what is there."""

    def __init__(self, kind: type[Number], count: int, empty: int) -> None:
        self._kind: type[Number] = kind
        self._count = count
        self._empty = empty
        self.blocks: list[npt.NDArray[Number]] = []

    def grow(self, height: int) -> None:
        """Make room for so many rows."""
        while len(self.blocks) * BLOCK < height:
            self.blocks.append(np.full((BLOCK, self._count, 2), self._empty, self._kind))

    def row(self, row: int) -> npt.NDArray[Number]:
        """Return a row, to be written to, in shape (places, 2)."""
        found: npt.NDArray[Number] = self.blocks[row // BLOCK][row % BLOCK]
        return found

    def parts(
        self, rows: npt.NDArray[np.intp]
    ) -> Iterator[tuple[npt.NDArray[Number], npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Yield each block that has some of the rows, which of them these are, and where they are in it."""
        numbers = rows // BLOCK
        for number in np.unique(numbers).tolist():
            which = np.flatnonzero(numbers == number)
            yield self.blocks[number], which, rows[which] % BLOCK

    def at(self, rows: npt.NDArray[np.intp], places: npt.NDArray[np.intp], which: int) -> npt.NDArray[Number]:
        """Return a copy of one of the two numbers, in shape (rows, places)."""
        found = np.empty((len(rows), len(places)), self._kind)
        for block, some, inside in self.parts(rows):
            found[some] = block[inside[:, None], places, which]
        return found


class _Hour:
    """The last hour, exactly: a column of times, and a row of (low, heuristic) for each computation."""

    def __init__(self) -> None:
        self._count = KEPT[STEP_SECONDS]
        self._taken = 0
        self._times: npt.NDArray[np.int64] = np.zeros(self._count, np.int64)
        """-1: what was taken then is forgotten, since the clock went back behind it."""
        self._values = _Rows(np.int64, self._count, 0)
        self._since: dict[int, int] = {}
        """Which sample is the first of a row."""

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], marks: npt.NDArray[np.int64], height: int) -> None:
        self._values.grow(height)
        self._times[self._times > time_micros] = -1
        for row in rows.tolist():
            self._since.setdefault(row, self._taken)
        place = self._taken % self._count
        self._times[place] = time_micros
        for block, which, inside in self._values.parts(rows):
            block[inside, place] = marks[which]
        self._taken += 1

    def clear(self, row: int) -> None:
        self._since.pop(row, None)

    def of(self, row: int) -> list[Sample]:
        places = self._places(self._since.get(row, self._taken))
        places = places[self._times[places] >= 0]
        times, values = self._times[places].tolist(), self._values.row(row)[places].tolist()
        return [(time, _timed(low), _timed(share)) for time, (low, share) in zip(times, values, strict=True)]

    def between(
        self, since_micros: int, until_micros: int, rows: npt.NDArray[np.intp], which: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the times of then, oldest first, and how far one watermark of some rows was behind at each, in shape (rows, times)."""
        ages = np.arange(max(0, self._taken - self._count), self._taken)
        times = self._times[ages % self._count]
        ages = ages[(times >= max(since_micros, 0)) & (times <= until_micros)]
        places = ages % self._count
        times = self._times[places]
        lags = _lags(times, self._values.at(rows, places, which))
        firsts = np.array([self._since.get(row, self._taken) for row in rows.tolist()], np.int64)
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
        self._values = _Rows(np.int32, count, NONE)

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], lags: npt.NDArray[np.int32], height: int) -> None:
        self._values.grow(height)
        self._times[self._times > time_micros] = -1  # of a clock that went back
        number = self._number(time_micros)
        place = number % self._count
        if self._number(int(self._times[place])) != number:
            self._empty(place)
        self._times[place] = time_micros
        for block, which, inside in self._values.parts(rows):
            block[inside, place] = np.maximum(block[inside, place], lags[which])

    def recall(self, now_micros: int, row: int, completions: Sequence[tuple[int, int]]) -> None:
        """See Samples. Steps of which nobody has a sample get one."""
        # Before the first of them nobody knows: a replay of old years was not behind by years
        # before it began.
        began = min((time_micros for _, time_micros in completions), default=0)
        oldest = max(self._number(now_micros) - self._count + 1, self._number(began))
        values = self._values.row(row)
        for through, time_micros in completions:
            numbers = np.arange(max(self._number(through), oldest), self._number(min(time_micros, now_micros)) + 1)
            if not numbers.size:
                continue
            ends = np.minimum((numbers + 1) * self._step * 1_000_000 - 1, min(time_micros, now_micros))
            places = numbers % self._count
            new = places[self._times[places] // 1_000_000 // self._step != numbers]
            self._empty(new)
            self._times[places] = np.maximum(self._times[places], ends)
            values[places, LOW] = np.maximum(values[places, LOW], _whole((ends - through) // 1_000_000))

    def clear(self, row: int) -> None:
        self._values.row(row)[:] = NONE

    def between(
        self, since_micros: int, until_micros: int, rows: npt.NDArray[np.intp], which: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the times of then, oldest first, and how far one watermark of some rows was behind at each, in shape (rows, times)."""
        places = np.flatnonzero((self._times >= max(since_micros, 0)) & (self._times <= until_micros))
        places = places[np.argsort(self._times[places])]
        return self._times[places], self._values.at(rows, places, which)

    def _empty(self, places: int | npt.NDArray[np.int64]) -> None:
        for block in self._values.blocks:
            block[:, places] = NONE

    def _number(self, time_micros: int) -> int:
        return time_micros // 1_000_000 // self._step


def _lags(times: int | npt.NDArray[np.int64], marks: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return how many whole seconds watermarks are behind the clock; ``NONE`` where they have no time."""
    timed = (marks > MIN) & (marks < MAX)
    seconds = (times - np.where(timed, marks, 0)) // 1_000_000
    return np.where(timed, _whole(seconds), np.int32(NONE))


def _whole(seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    limit = np.iinfo(np.int32).max  # 68 years
    return np.clip(seconds, -limit, limit).astype(np.int32)


def _before(time_micros: int, lag: int) -> int | None:
    return None if lag == NONE else time_micros - lag * 1_000_000


def _timed(micros: int) -> int | None:
    return micros if MIN < micros < MAX else None
