"""How late records come, in few numbers: logarithmic buckets of 5 %.

Lateness counts from a reference event time. A bucket says that its records are at most its upper
edge late, so that whoever reads it never takes a record for earlier than it is. Integers alone:
each process, and each replay, finds the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowwater.watermark import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LEAST: Final = 1_000
"""One millisecond: what is less late is as good as this late."""


def _edges() -> tuple[int, ...]:
    found = [0, _LEAST]
    while found[-1] < 2**63:
        found.append(found[-1] * 21 // 20)
    # No distance between two event times is longer.
    return (*found[:-1], 2**64)


EDGES: Final = _edges()
"""The upper edge of each bucket, microseconds. Bucket 0 holds what is not late at all."""


MOST_BUCKETS: Final = 128
"""Buckets that a claim may have records in: what it has told is moved each time that any of them
came."""

_FINE: Final = 32
"""Buckets that are taken as they come; later ones are of these below."""

_COARSE: Final[tuple[int, ...]] = (
    *range(0, 144, 16),
    *range(144, 448, 4),
    *range(448, len(EDGES) - 1, 31),
    len(EDGES) - 1,
)
"""96 of all: from a second to a month each is 22 % wide, less late and later than that they are
wider."""


def bucket_of(lateness: int) -> int:
    """Return the bucket of a lateness in microseconds, at most 2^64. O(log buckets).

    >>> [bucket_of(lateness) for lateness in (-5, 0, 1, 1_000, 1_001, 1_051)]
    [0, 0, 1, 1, 2, 3]
    """
    return bisect_left(EDGES, lateness)


def buckets(times: Iterable[int], reference: int) -> dict[int, int]:
    """Return how many of these event times lie in each bucket behind a reference.

    A sort, and O(buckets log times).

    >>> buckets([5_000, 4_990, 5_200], reference=5_000)
    {1: 1, 0: 2}
    """
    ordered = sorted(times)
    found: dict[int, int] = {}
    low = 0
    while low < len(ordered):
        bucket = bucket_of(reference - ordered[low])
        high = bisect_left(ordered, reference - EDGES[bucket - 1], lo=low) if bucket else len(ordered)
        found[bucket] = high - low
        low = high
    return found


def moved(counts: Mapping[int, int], reference: int, to: int) -> dict[int, int]:
    """Return the same records by how late they are behind another reference, rounded up.

    O(buckets log buckets).

    What came at or after the first reference counts as standing there.

    >>> moved({0: 2, 1: 1}, reference=5_000, to=5_500)
    {1: 2, 10: 1}
    """
    if to == reference:
        return dict(counts)
    found: dict[int, int] = {}
    for bucket, count in counts.items():
        there = bucket_of(min(EDGES[bucket] + to - reference, EDGES[-1]))
        found[there] = found.get(there, 0) + count
    return found


def behind(counts: Mapping[int, int], reference: int, mark: int) -> int:
    """Return how many records may lie before a mark: those of a bucket in which it falls count.

    O(buckets).

    >>> behind({0: 2, 11: 1}, reference=5_500, mark=5_000)
    1
    """
    return sum(count for bucket, count in counts.items() if EDGES[bucket] > reference - mark)


@dataclass(frozen=True, slots=True)
class Arrived:
    """How late some records were, where their times are somewhere else: in the tasks of a micro-batch, for one."""

    reference: int
    """The event time that their lateness counts from, microseconds."""
    counts: Mapping[int, int]
    """Records by bucket (:func:`bucket_of`)."""

    @classmethod
    def of(cls, times: Iterable[int], reference: int) -> Arrived:
        """Return it of event times in microseconds. As :func:`buckets`."""
        return cls(reference, buckets(times, reference))

    def __or__(self, other: Arrived) -> Arrived:
        """Return both, behind the lesser of their references. O(buckets log buckets)."""
        reference = min(self.reference, other.reference)
        found = moved(self.counts, self.reference, reference)
        for bucket, count in moved(other.counts, other.reference, reference).items():
            found[bucket] = found.get(bucket, 0) + count
        return Arrived(reference, found)


_UNANSWERED: Final = 64
"""Stagings that are remembered apart until they are answered. Of more the oldest ones count as one.
"""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late all records of a claim were, as it goes on the wire."""

    counts: tuple[tuple[int, int], ...]
    """(bucket, records), ascending."""
    reference: int
    frontier: int
    behind: tuple[tuple[int, int, int], ...]
    """(budget in parts per million, records, what the new ones were judged by)."""


class Arrivals:
    """How late the records of one claim were, since it was granted, and how many came behind its lateness budgets.

    Each record counts from the claim's frontier of then, or from the last one that was a time; before there was any from the least of those
    handed on together. So what one bad timestamp does ends with it. What no acknowledged report has told may have counted from several: the
    report names the least, so that nothing is taken for earlier than it was. The same with what records were judged by.
    """

    def __init__(self, marks: Mapping[int, int]) -> None:
        self.marks: dict[int, int] = dict(marks)
        """By budget in parts per million: its watermark, as the authority told last."""
        self._counts: dict[int, int] = {}
        self._behind = dict.fromkeys(self.marks, 0)
        self._frontier = self._reference = self._counted_from = MIN
        self._unanswered: deque[tuple[int, int, dict[int, int]]] = deque()
        """(version, reference, marks) of what no acknowledged report has told, the oldest first."""

    def add(self, times: Sequence[int], frontier: int, version: int) -> None:
        """Count records that were handed on with a state of a version.

        A sort, and O(buckets log records).
        """
        self._stand(frontier)
        if not times:
            return
        ordered = sorted(times)
        if self._reference == MIN:
            self._counted_from = ordered[0]
        came = Arrived.of(ordered, self._counted_from)
        self._take(came, {ppm: bisect_left(ordered, mark) for ppm, mark in self.marks.items()}, version)

    def add_counted(self, came: Arrived, frontier: int, version: int) -> None:
        """Count records whose times are not known here. Behind are all that may be. O(buckets)."""
        self._stand(frontier)
        late = {ppm: behind(came.counts, came.reference, mark) for ppm, mark in self.marks.items() if mark != MIN}
        self._take(came, late, version)

    def _stand(self, frontier: int) -> None:
        self._frontier = frontier
        if MIN < frontier < MAX:
            self._reference = self._counted_from = frontier

    def _take(self, came: Arrived, late: Mapping[int, int], version: int) -> None:
        for bucket, count in came.counts.items():
            there = self._fitting(bucket)
            self._counts[there] = self._counts.get(there, 0) + count
        for ppm, records in late.items():
            self._behind[ppm] += records
        self._unanswered.append((version, came.reference, dict(self.marks)))
        if len(self._unanswered) > _UNANSWERED:
            _, reference, marks = self._unanswered.popleft()  # the least of both; marks only rise
            then, other, _ = self._unanswered[0]
            self._unanswered[0] = then, min(reference, other), marks

    def _fitting(self, bucket: int) -> int:
        """Return the bucket itself, or one that is later where there are many already.

        O(log buckets).
        """
        if bucket in self._counts or len(self._counts) < _FINE:
            return bucket
        return _COARSE[bisect_left(_COARSE, bucket)]

    def heard(self, marks: Mapping[int, int]) -> None:
        """Take over where the budgets stand."""
        for ppm in self.marks:
            self.marks[ppm] = max(self.marks[ppm], marks.get(ppm, MIN))

    def answered(self, version: int) -> None:
        """All up to a version was taken over."""
        while self._unanswered and self._unanswered[0][0] <= version:
            self._unanswered.popleft()

    def told(self) -> Lateness | None:
        """Return what the next report carries; None while the worker tells no event times.

        O(buckets).
        """
        if not self._counts:
            return None
        reference = min((each for _, each, _ in self._unanswered), default=self._counted_from)
        marks = self._unanswered[0][2] if self._unanswered else self.marks
        behind = tuple((ppm, self._behind[ppm], marks[ppm]) for ppm in self.marks)
        return Lateness(tuple(sorted(self._counts.items())), reference, self._frontier, behind)
