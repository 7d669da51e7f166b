"""The watermarks, worked out the slow way: one record and one key at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

MIN = -(2**63)
MAX = 2**63 - 1


class Told(NamedTuple):
    """A mass as an owner tells it: one event time per unfinished record, and where the finished ones stand."""

    pending: tuple[int, ...]
    recent: int
    frontiers: Mapping[int, int]


def heuristic(share: int, unfinished: Sequence[list[Told] | None]) -> int | None:
    if any(masses is None for masses in unfinished):
        return None
    present = [mass for masses in unfinished for mass in masses or ()]
    frontiers = [mass.frontiers[share] for mass in present if share in mass.frontiers]
    if not frontiers:
        return None
    records: list[int] = []
    for mass in present:
        records += mass.pending
        records += [mass.frontiers.get(share, MIN)] * mass.recent
    if not records:
        return max(frontiers) if max(frontiers) != MAX else None
    reached = [
        time
        for time in records
        if Fraction(sum(1 for other in records if other >= time), len(records)) >= Fraction(share, 1_000_000)
    ]
    value = min(max(frontiers), max(reached))
    if value != MAX:
        return value
    # Only L may say MAX: what is left is the progress of the records that are somewhere.
    return max((time for time in records if time != MAX), default=None)


def beam_low(old: int, values: Sequence[int]) -> int:
    new = MAX
    for value in values:
        new = min(new, value)
    return max(old, new)


def completed(old: int, low: int, step: int) -> tuple[int, int] | None:
    if low == MAX:
        return (end_of_step(old, step), MAX) if old != MAX else None
    reached = [b for b in range(max(old, low - step), low + 1) if b > old and b % step == 0]
    return (end_of_step(old, step), reached[-1]) if reached else None


def end_of_step(low: int, step: int) -> int:
    return MIN if low == MIN else next(b for b in range(low, low - step, -1) if b % step == 0)
