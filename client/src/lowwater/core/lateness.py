"""Lateness of records as counts in logarithmic buckets, each 5 % wide.

Lateness is measured from a reference event time. All records of a bucket are at most its upper edge
late, so a reader never takes a record for earlier than it was. Only integers are used: each
process, and each replay, computes the same.
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
"""Least lateness that is distinguished, in microseconds: one millisecond."""


def _edges() -> tuple[int, ...]:
    edges = [0, _LEAST]
    while edges[-1] < 2**63:
        edges.append(edges[-1] * 21 // 20)
    # Two event times are never further apart.
    return (*edges[:-1], 2**64)


EDGES: Final = _edges()
"""Upper edge of each bucket, in microseconds. Bucket 0 has the records that are not late."""


MOST_BUCKETS: Final = 128
"""Most buckets with records of one claim: each report that changes one of them carries them all."""

_FINE: Final = 32
"""Number of buckets that are used as they come; after these a record goes to a coarse bucket."""

_COARSE: Final[tuple[int, ...]] = (
    *range(0, 144, 16),
    *range(144, 448, 4),
    *range(448, len(EDGES) - 1, 31),
    len(EDGES) - 1,
)
"""Coarse buckets, 96 of all: each is 22 % wide from a second to a month, and wider elsewhere."""


def bucket_of(lateness: int) -> int:
    """Return the bucket of a lateness in microseconds, at most 2^64. O(log buckets).

    >>> [bucket_of(lateness) for lateness in (-5, 0, 1, 1_000, 1_001, 1_051)]
    [0, 0, 1, 1, 2, 3]
    """
    return bisect_left(EDGES, lateness)


def buckets(times: Iterable[int], reference: int) -> dict[int, int]:
    """Return the number of event times in each bucket behind a reference.

    Costs a sort, and O(buckets log times).

    >>> buckets([5_000, 4_990, 5_200], reference=5_000)
    {1: 1, 0: 2}
    """
    ordered = sorted(times)
    counts: dict[int, int] = {}
    low = 0
    while low < len(ordered):
        bucket = bucket_of(reference - ordered[low])
        high = bisect_left(ordered, reference - EDGES[bucket - 1], lo=low) if bucket else len(ordered)
        counts[bucket] = high - low
        low = high
    return counts


def moved(counts: Mapping[int, int], reference: int, to: int) -> dict[int, int]:
    """Return the same records counted behind another reference, rounded up.

    A record that was not late counts as if it were at the first reference. O(buckets log buckets).

    >>> moved({0: 2, 1: 1}, reference=5_000, to=5_500)
    {1: 2, 10: 1}
    """
    if to == reference:
        return dict(counts)
    result: dict[int, int] = {}
    for bucket, count in counts.items():
        target = bucket_of(min(EDGES[bucket] + to - reference, EDGES[-1]))
        result[target] = result.get(target, 0) + count
    return result


def behind(counts: Mapping[int, int], reference: int, mark: int) -> int:
    """Return the most records that may lie before a mark, with all of its own bucket. O(buckets).

    >>> behind({0: 2, 11: 1}, reference=5_500, mark=5_000)
    1
    """
    return sum(count for bucket, count in counts.items() if EDGES[bucket] > reference - mark)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Lateness of records whose event times are elsewhere, as in the tasks of a micro-batch."""

    reference: int
    """Event time from which lateness is measured, in microseconds."""
    counts: Mapping[int, int]
    """Number of records by bucket (:func:`bucket_of`)."""

    @classmethod
    def of(cls, times: Iterable[int], reference: int) -> Arrived:
        """Return the lateness of event times in microseconds, by :func:`buckets`."""
        return cls(reference, buckets(times, reference))

    def __or__(self, other: Arrived) -> Arrived:
        """Return both together, behind the lower of their references. O(buckets log buckets)."""
        reference = min(self.reference, other.reference)
        counts = moved(self.counts, self.reference, reference)
        for bucket, count in moved(other.counts, other.reference, reference).items():
            counts[bucket] = counts.get(bucket, 0) + count
        return Arrived(reference, counts)


_UNANSWERED: Final = 64
"""Most unanswered stagings that are stored apart; beyond that the oldest two become one."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of all records of a claim, as on the wire."""

    counts: tuple[tuple[int, int], ...]
    """(bucket, records) pairs, ascending."""
    reference: int
    frontier: int
    behind: tuple[tuple[int, int, int], ...]
    """(budget in parts per million, records behind, mark that judged the new ones) triples."""


class Arrivals:
    """Lateness of one claim's records since its grant, and how many came behind its budgets.

    A record counts behind the claim's frontier of that moment, or the last one that was a time;
    before the first such frontier, behind the least record handed over with it. So a bad timestamp
    has no effect after its own call. Records that no acknowledged report has carried may count
    behind several references. The report names the least, so that no record counts as earlier than
    it was. The marks that judge records are treated alike.
    """

    def __init__(self, marks: Mapping[int, int]) -> None:
        self.marks: dict[int, int] = dict(marks)
        """Watermark of each budget by parts per million, as the authority last sent it."""
        self._counts: dict[int, int] = {}
        self._behind = dict.fromkeys(self.marks, 0)
        self._frontier = self._reference = self._counted_from = MIN
        self._unanswered: deque[tuple[int, int, dict[int, int]]] = deque()
        """(version, reference, marks) of each staging that no acknowledged report has carried,
        oldest first."""

    def add(self, times: Sequence[int], frontier: int, version: int) -> None:
        """Count records handed over with a version. Costs a sort, and O(buckets log records)."""
        self._set_frontier(frontier)
        if not times:
            return
        ordered = sorted(times)
        if self._reference == MIN:
            self._counted_from = ordered[0]
        arrived = Arrived.of(ordered, self._counted_from)
        self._take(arrived, {ppm: bisect_left(ordered, mark) for ppm, mark in self.marks.items()}, version)

    def add_counted(self, arrived: Arrived, frontier: int, version: int) -> None:
        """Count records whose times are unknown here; all that may be behind count. O(buckets)."""
        self._set_frontier(frontier)
        late = {ppm: behind(arrived.counts, arrived.reference, mark) for ppm, mark in self.marks.items() if mark != MIN}
        self._take(arrived, late, version)

    def _set_frontier(self, frontier: int) -> None:
        self._frontier = frontier
        if MIN < frontier < MAX:
            self._reference = self._counted_from = frontier

    def _take(self, arrived: Arrived, late: Mapping[int, int], version: int) -> None:
        for bucket, count in arrived.counts.items():
            target = self._allowed_bucket(bucket)
            self._counts[target] = self._counts.get(target, 0) + count
        for ppm, records in late.items():
            self._behind[ppm] += records
        self._unanswered.append((version, arrived.reference, dict(self.marks)))
        if len(self._unanswered) > _UNANSWERED:
            # Both become one with the lower reference and marks; marks only rise.
            _, reference, marks = self._unanswered.popleft()
            newer_version, newer_reference, _ = self._unanswered[0]
            self._unanswered[0] = newer_version, min(reference, newer_reference), marks

    def _allowed_bucket(self, bucket: int) -> int:
        """Return a bucket, or a coarser one above it when too many have records. O(log buckets)."""
        if bucket in self._counts or len(self._counts) < _FINE:
            return bucket
        return _COARSE[bisect_left(_COARSE, bucket)]

    def raise_marks(self, marks: Mapping[int, int]) -> None:
        """Raise the budgets' marks to those that the authority sent."""
        for ppm in self.marks:
            self.marks[ppm] = max(self.marks[ppm], marks.get(ppm, MIN))

    def answered(self, version: int) -> None:
        """Forget the stagings up to a version, which the authority took over."""
        while self._unanswered and self._unanswered[0][0] <= version:
            self._unanswered.popleft()

    def to_report(self) -> Lateness | None:
        """Return what the next report carries; None before the first event time. O(buckets)."""
        if not self._counts:
            return None
        reference = min((reference for _, reference, _ in self._unanswered), default=self._counted_from)
        marks = self._unanswered[0][2] if self._unanswered else self.marks
        behind = tuple((ppm, self._behind[ppm], marks[ppm]) for ppm in self.marks)
        return Lateness(tuple(sorted(self._counts.items())), reference, self._frontier, behind)
