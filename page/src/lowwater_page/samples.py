"""Samples of watermarks in bounded memory: the last hour in full, a day and a week in steps."""

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
"""Time in seconds between two samples."""

NONE: Final = np.iinfo(np.int32).min
"""In place of a lag: the watermark had no time, or there is no sample."""

Sample = tuple[int, int | None, int | None]
"""Processing time, low watermark and heuristic watermark, in microseconds.

None: the watermark had no time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time up to now, and its steps."""

    seconds: int
    step: int
    """Seconds between two samples of a computation."""
    column: int
    """Seconds of a column of the heat map: a multiple of ``step``."""


SPANS: Final[Mapping[str, Span]] = {
    "1h": Span(3600, STEP_SECONDS, 60),
    "6h": Span(6 * 3600, 60, 300),
    "24h": Span(86_400, 60, 900),
    "7d": Span(7 * 86_400, 600, 7200),
}
"""Spans by name, equal to those of the page's model/history.js."""

KEPT: Final = {STEP_SECONDS: 3600 // STEP_SECONDS, 60: 86_400 // 60, 600: 7 * 86_400 // 600}
"""Number of kept samples, by the seconds between them."""

LOW: Final = 0
HEURISTIC: Final = 1
"""Index of each of the two watermarks."""

SAMPLE_BYTES: Final = 8
"""Bytes of a sample: two lags of 32 bits. A sample of the last hour, exact, takes twice that."""

PER_COMPUTATION: Final = SAMPLE_BYTES * (2 * KEPT[STEP_SECONDS] + KEPT[60] + KEPT[600])
"""Bytes of all samples of a computation."""

BLOCK: Final = 100
"""Computations in a block. Memory grows by blocks, and a reader holds the lock for one block."""

LATE_SECONDS: Final = 1800.0
"""Lag in seconds from which a computation without a promise is late.

The alerts and the page's model/lag.js use the same value."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The lags of computations in columns of time."""

    from_micros: int
    """Beginning of the first column."""
    column: int
    """Seconds of a column."""
    since_micros: int
    """Time of the first sample of this process; older columns come from the history."""
    total: int
    """Number of computations with samples."""
    lags: Mapping[str, list[int | None]]
    """Greatest lag in each column, in seconds behind the clock; None: unknown.

    Sorted by the greatest lag as a multiple of the lag from which the computation is late."""


class Samples:
    """Samples of each computation's present incarnation. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._since = 0
        self._hour = _Hour()
        self._coarse = {step: _Lags(step, count) for step, count in KEPT.items() if step != STEP_SECONDS}
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        """Free rows, of dropped computations."""

    def add(self, time_micros: int, names: Sequence[str], values: Sequence[tuple[int, int]]) -> None:
        """Add a sample: (low, heuristic) watermark of each named computation. O(computations)."""
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
            behind = _lags(time_micros, marks)
            for lags in self._coarse.values():
                lags.add(time_micros, rows, behind, height)

    def recall(self, name: str, completions: Sequence[tuple[int, int]]) -> bool:
        """Derive samples of the time before this process from completed event times.

        ``completions`` are pairs (event time, processing time at which the watermark passed it), in
        microseconds. At each moment between the two, the lag was at least the time since the event
        time. Returns False when the computation has no sample yet; the caller tries again later.
        """
        with self._lock:
            row = self._rows.get(name)
            if row is None:
                return False
            for lags in self._coarse.values():
                lags.recall(self._now, row, completions)
            return True

    def begin(self, name: str) -> None:
        """Forget the samples of a computation, because a new incarnation has begun."""
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
        # A lag and the time of its sample give the watermark.
        lags = zip(times.tolist(), lows[0].tolist(), shares[0].tolist(), strict=True)
        return [(time, _before(time, low), _before(time, share)) for time, low, share in lags]

    def heat(self, span: Span, most: int, late: Mapping[str, float]) -> Heat:
        """Return the lags of at most ``most`` computations, the worst first; see Heat.lags.

        A slice is left out if its root is there. ``late`` has the lag in seconds from which a
        computation is late, where its owner promised one; else ``LATE_SECONDS``. O(samples); other
        threads wait for one block of them at most.
        """
        with self._lock:
            rows, now, since = dict(self._rows), self._now, self._since
        columns = span.seconds // span.column
        first = now // 1_000_000 // span.column - columns + 1
        source: _Hour | _Lags = self._hour if span.step == STEP_SECONDS else self._coarse[span.step]
        names = sorted((name for name in rows if slice_of(name) not in rows), key=rows.__getitem__)
        greatest = np.full((len(names), columns), NONE, np.int32)
        for i in range(0, len(names), BLOCK):
            with self._lock:
                # A row may have passed to another computation meanwhile.
                present = [
                    j for j in range(i, min(i + BLOCK, len(names))) if self._rows.get(names[j]) == rows[names[j]]
                ]
                chosen = np.array([rows[names[j]] for j in present], np.intp)
                times, lags = source.between(first * span.column * 1_000_000, now, chosen, LOW)
            if present and times.size:
                at = times // 1_000_000 // span.column - first
                begins = np.flatnonzero(np.diff(at, prepend=-1))
                greatest[np.array(present)[:, None], at[begins]] = np.maximum.reduceat(lags, begins, axis=1)
        worst = greatest.max(axis=1, initial=NONE)
        times_late = worst / np.array([late.get(name, LATE_SECONDS) for name in names])
        times_late[worst == NONE] = -np.inf
        order = np.argsort(-times_late, kind="stable")[:most].tolist()
        return Heat(
            first * span.column * 1_000_000,
            span.column,
            since,
            len(names),
            {names[i]: [None if lag == NONE else lag for lag in greatest[i].tolist()] for i in order},
        )

    def _clear(self, row: int) -> None:
        self._hour.clear(row)
        for lags in self._coarse.values():
            lags.clear(row)


class _Rows(Generic[Number]):
    """Two numbers for each row and place, in blocks, so that growing moves nothing.

    A row is a computation, a place is a sample, and the two numbers are (low, heuristic).
    """

    def __init__(self, kind: type[Number], count: int, empty: int) -> None:
        self._kind: type[Number] = kind
        self._count = count
        self._empty = empty
        self.blocks: list[npt.NDArray[Number]] = []

    def grow(self, height: int) -> None:
        """Make room for ``height`` rows."""
        while len(self.blocks) * BLOCK < height:
            self.blocks.append(np.full((BLOCK, self._count, 2), self._empty, self._kind))

    def row(self, row: int) -> npt.NDArray[Number]:
        """Return a view of a row, in shape (places, 2)."""
        view: npt.NDArray[Number] = self.blocks[row // BLOCK][row % BLOCK]
        return view

    def parts(
        self, rows: npt.NDArray[np.intp]
    ) -> Iterator[tuple[npt.NDArray[Number], npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Yield each block with some of the rows: block, indices in ``rows`` and in the block."""
        numbers = rows // BLOCK
        for number in np.unique(numbers).tolist():
            which = np.flatnonzero(numbers == number)
            yield self.blocks[number], which, rows[which] % BLOCK

    def at(self, rows: npt.NDArray[np.intp], places: npt.NDArray[np.intp], which: int) -> npt.NDArray[Number]:
        """Return a copy of one of the two numbers, in shape (rows, places)."""
        copy = np.empty((len(rows), len(places)), self._kind)
        for block, some, inside in self.parts(rows):
            copy[some] = block[inside[:, None], places, which]
        return copy


class _Hour:
    """The last hour, exactly: the times, and a row of (low, heuristic) for each computation."""

    def __init__(self) -> None:
        self._count = KEPT[STEP_SECONDS]
        self._added = 0
        self._times: npt.NDArray[np.int64] = np.zeros(self._count, np.int64)
        """Time of each sample; -1: forgotten, because the clock went back behind it."""
        self._values = _Rows(np.int64, self._count, 0)
        self._since: dict[int, int] = {}
        """Number of the first sample of each row."""

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], marks: npt.NDArray[np.int64], height: int) -> None:
        self._values.grow(height)
        self._times[self._times > time_micros] = -1
        for row in rows.tolist():
            self._since.setdefault(row, self._added)
        place = self._added % self._count
        self._times[place] = time_micros
        for block, which, inside in self._values.parts(rows):
            block[inside, place] = marks[which]
        self._added += 1

    def clear(self, row: int) -> None:
        self._since.pop(row, None)

    def of(self, row: int) -> list[Sample]:
        places = self._places(self._since.get(row, self._added))
        places = places[self._times[places] >= 0]
        times, values = self._times[places].tolist(), self._values.row(row)[places].tolist()
        return [(time, _timed(low), _timed(share)) for time, (low, share) in zip(times, values, strict=True)]

    def between(
        self, since_micros: int, until_micros: int, rows: npt.NDArray[np.intp], which: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return sample times, oldest first, and the lags of rows then, in shape (rows, times).

        ``which``: ``LOW`` or ``HEURISTIC``.
        """
        ages = np.arange(max(0, self._added - self._count), self._added)
        times = self._times[ages % self._count]
        ages = ages[(times >= max(since_micros, 0)) & (times <= until_micros)]
        places = ages % self._count
        times = self._times[places]
        lags = _lags(times, self._values.at(rows, places, which))
        firsts = np.array([self._since.get(row, self._added) for row in rows.tolist()], np.int64)
        lags[ages[None, :] < firsts[:, None]] = NONE
        return times, lags

    def _places(self, first: int) -> npt.NDArray[np.int64]:
        return np.arange(max(first, self._added - self._count), self._added) % self._count


class _Lags:
    """The greatest lags in each step of a longer time, in seconds: a row for each computation."""

    def __init__(self, step: int, count: int) -> None:
        self._step = step
        self._count = count
        self._times: npt.NDArray[np.int64] = np.full(count, -1, np.int64)
        """Time of the last sample in each step; -1: there is none."""
        self._values = _Rows(np.int32, count, NONE)

    def add(self, time_micros: int, rows: npt.NDArray[np.intp], lags: npt.NDArray[np.int32], height: int) -> None:
        self._values.grow(height)
        self._times[self._times > time_micros] = -1  # the clock went back behind these
        number = self._number(time_micros)
        place = number % self._count
        if self._number(int(self._times[place])) != number:
            self._empty(place)
        self._times[place] = time_micros
        for block, which, inside in self._values.parts(rows):
            block[inside, place] = np.maximum(block[inside, place], lags[which])

    def recall(self, now_micros: int, row: int, completions: Sequence[tuple[int, int]]) -> None:
        """Fill in lags from completed event times; see Samples. Steps without a sample get one."""
        # Nothing is known of the time before the first completion: a replay of old years was not
        # years behind before it began.
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
        """Return sample times, oldest first, and the lags of rows then; see _Hour."""
        places = np.flatnonzero((self._times >= max(since_micros, 0)) & (self._times <= until_micros))
        places = places[np.argsort(self._times[places])]
        return self._times[places], self._values.at(rows, places, which)

    def _empty(self, places: int | npt.NDArray[np.int64]) -> None:
        for block in self._values.blocks:
            block[:, places] = NONE

    def _number(self, time_micros: int) -> int:
        return time_micros // 1_000_000 // self._step


def _lags(times: int | npt.NDArray[np.int64], marks: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return the lags of watermarks in whole seconds; ``NONE`` for one without a time."""
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
