"""How late records come, in few numbers: logarithmic buckets of 5 %.

Lateness counts from a reference event time. A bucket says that its records are at most its upper edge late, so that whoever reads it never
takes a record for earlier than it is. Integers alone: each process, and each replay, finds the same.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def bucket_of(lateness: int) -> int:
    """Return the bucket of a lateness in microseconds, at most 2^64. O(log buckets).

    >>> [bucket_of(lateness) for lateness in (-5, 0, 1, 1_000, 1_001, 1_051)]
    [0, 0, 1, 1, 2, 3]
    """
    return bisect_left(EDGES, lateness)


def buckets(times: Iterable[int], reference: int) -> dict[int, int]:
    """Return how many of these event times lie in each bucket behind a reference. O(times log buckets).

    >>> buckets([5_000, 4_990, 5_200], reference=5_000)
    {0: 2, 1: 1}
    """
    found: dict[int, int] = {}
    for time in times:
        bucket = bucket_of(reference - time)
        found[bucket] = found.get(bucket, 0) + 1
    return found


def moved(counts: Mapping[int, int], reference: int, to: int) -> dict[int, int]:
    """Return the same records by how late they are behind another reference, rounded up. O(buckets log buckets).

    What came at or after the first reference counts as standing there.

    >>> moved({0: 2, 1: 1}, reference=5_000, to=5_500)
    {1: 2, 11: 1}
    """
    if to == reference:
        return dict(counts)
    found: dict[int, int] = {}
    for bucket, count in counts.items():
        there = bucket_of(min(EDGES[bucket] + to - reference, EDGES[-1]))
        found[there] = found.get(there, 0) + count
    return found


def behind(counts: Mapping[int, int], reference: int, mark: int) -> int:
    """Return how many records may lie before a mark: those of a bucket in which it falls count. O(buckets).

    >>> behind({0: 2, 11: 1}, reference=5_500, mark=5_000)
    1
    """
    return sum(count for bucket, count in counts.items() if EDGES[bucket] > reference - mark)
