"""Histograms of record timestamps, small however long the past is.

Buckets lie at absolute times. Their width is a power of two of milliseconds that grows with age, so
that a bucket is at most 1 % of its age (or 1 ms) wide. Records of the last seconds are
distinguished by milliseconds, those of last year by days, and a few thousand buckets hold any past.
Age counts from a *reference* event time that the authority sends, never from the wall clock: a
replay of old data works like live data.

Every value rounds down: a histogram may hold a heuristic watermark back by 1 % of its age, and the
watermark never leads.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Self

from lowwater.watermark import MIN, EventTime, all_to_micros, to_micros

__all__ = ["Histogram", "bucket_start"]

_MILLISECOND: Final = 1_000
_AGE_PER_WIDTH: Final = 100

MOST_RECORDS: Final = 2**40
"""Most records of one bucket that the authority accepts; their sums stay within 64 bits."""


def bucket_start(micros: int, reference: int) -> int:
    """Return the least event time, in microseconds, of an event time's bucket. O(1).

    The width is the largest power of two of milliseconds that is at most 1 % of the age of the
    bucket's *end*, or 1 ms. So the buckets of one reference divide time without overlap, each is at
    most 1 % of the age of everything in it, and those of a later reference are unions of them:
    ageing gives the same buckets as building again. Times at or after the reference share one
    bucket. Never above the event time, never below MIN.

    >>> bucket_start(999, reference=2_000_000)            # 2 s old: 16 ms
    0
    >>> bucket_start(1_999_999, reference=2_000_000)      # new: 1 ms
    1999000
    """
    if micros >= reference:
        return max(MIN, reference - reference % _MILLISECOND)
    widest = (reference - micros) // (_AGE_PER_WIDTH * _MILLISECOND)
    width = _MILLISECOND << max(0, widest.bit_length() - 1)
    start = micros - micros % width
    if width > _MILLISECOND and start + width > reference - _AGE_PER_WIDTH * width:
        width >>= 1
        start = micros - micros % width
    return max(MIN, start)


class Histogram:
    """Counts of records by event time, in buckets that are at most 1 % of their age wide.

    Costs: :meth:`add` O(1); :meth:`add_many` a sort and about 20 steps per bucket; :meth:`age`,
    :meth:`merge` and :meth:`columns` O(buckets), of which there are at most about 3,500.

    >>> pending = Histogram(reference_micros=60_000_000)
    >>> pending.add_many([59_999_500, 59_999_900, 10_000_000])
    >>> pending.columns()
    ([9984000, 59999000], [1, 2])
    >>> pending.total
    3
    """

    __slots__ = ("_buckets", "_reference")

    def __init__(self, reference_micros: int) -> None:
        self._reference = to_micros(reference_micros)
        self._buckets: dict[int, int] = {}

    @classmethod
    def from_columns(cls, reference_micros: int, starts: Iterable[int], counts: Iterable[int]) -> Self:
        """Return the histogram that :meth:`columns` described.

        Buckets finer than the reference allows are merged. Raises ValueError for lists of different
        lengths, and like :meth:`add`.
        """
        histogram = cls(reference_micros)
        times, numbers = all_to_micros(starts), list(counts)
        if len(times) != len(numbers):
            raise ValueError(f"{len(times)} starts with {len(numbers)} counts; pass one count per start")
        for start, count in zip(times, numbers, strict=True):
            histogram.add(start, count)
        return histogram

    @property
    def reference_micros(self) -> int:
        """Event time from which ages count."""
        return self._reference

    @property
    def total(self) -> int:
        """Number of records."""
        return sum(self._buckets.values())

    def add(self, t_micros: EventTime, n: int = 1) -> None:
        """Count ``n`` records at an event time.

        Raises ValueError for a negative ``n``, or more than 2^40 records in one bucket.
        """
        start = bucket_start(to_micros(t_micros), self._reference)
        try:
            total = self._buckets.get(start, 0) + operator.index(n)
        except TypeError:
            raise TypeError(f"n={n!r} is no number of records; pass an integer, 0 or more") from None
        if n < 0:
            msg = f"{n} records cannot be added: a histogram holds what is pending now; build a new one instead"
            raise ValueError(msg)
        if total > MOST_RECORDS:
            msg = f"{total} records at one event time are more than any claim has; count at most {MOST_RECORDS}"
            raise ValueError(msg)
        if n:
            self._buckets[start] = total

    def add_many(self, times: Iterable[EventTime]) -> None:
        """Count one record at each event time, of any iterable or array of integers."""
        ordered = sorted(all_to_micros(times))
        reference = self._reference
        low = 0
        while low < len(ordered):
            start = bucket_start(ordered[low], reference)
            high = bisect_right(ordered, start, lo=low, key=lambda t: bucket_start(t, reference))
            self._buckets[start] = self._buckets.get(start, 0) + high - low
            low = high

    def merge(self, other: Histogram) -> None:
        """Add another histogram's records; the later of the two references counts.

        Raises ValueError for more than 2^40 records together.
        """
        value: Any = other
        if not isinstance(value, Histogram):
            raise TypeError(f"only a Histogram can be merged, not {type(value).__name__}; add_many() takes event times")
        if self.total + other.total > MOST_RECORDS:
            msg = f"{self.total + other.total} records are more than any claim has; count at most {MOST_RECORDS}"
            raise ValueError(msg)
        self.age(other.reference_micros)
        self._take(other._buckets)

    def age(self, new_reference: int) -> None:
        """Move the reference on, never back, and merge buckets that become one."""
        new_reference = to_micros(new_reference)
        if new_reference <= self._reference:
            return
        old, self._buckets = self._buckets, {}
        self._reference = new_reference
        self._take(old)

    def _take(self, buckets: dict[int, int]) -> None:
        for old_start, count in buckets.items():
            start = bucket_start(old_start, self._reference)
            self._buckets[start] = self._buckets.get(start, 0) + count

    def columns(self) -> tuple[list[int], list[int]]:
        """Return the least event times of the buckets, in microseconds, and the counts."""
        ordered = sorted(self._buckets.items())
        return [start for start, _ in ordered], [count for _, count in ordered]

    def copy(self) -> Self:
        """Return an independent copy."""
        copied = type(self)(self._reference)
        copied._buckets = dict(self._buckets)
        return copied

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return self._reference == other._reference and self._buckets == other._buckets

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def __len__(self) -> int:
        return len(self._buckets)

    def __repr__(self) -> str:
        return f"<Histogram of {self.total} records in {len(self)} buckets>"
