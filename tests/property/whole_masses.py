"""What all claims say together, each time from all of them: the plain way, beside the sums that the core keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from lowwater_authority.core.groups import Group, GroupState, Mass
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.times import MAX, MIN


def reference_time(groups: Iterable[Group]) -> int:
    """The greatest unfinished frontier of any claim."""
    frontiers = [micros for group in groups for mass in group.masses() for micros in mass.frontiers.values()]
    return max((micros for micros in frontiers if micros != MAX), default=MIN)


def oldest_operation(groups: Iterable[Group]) -> int:
    """The oldest operation of who owns something unfinished."""
    owned = [group for group in groups if group.state is GroupState.OWNED and not group.finished]
    return min((group.oldest_operation for group in owned if group.oldest_operation), default=0)


def candidates(groups: Iterable[Group], shares: Iterable[int]) -> dict[int, int]:
    """H(p) before the low watermark and the ratchet."""
    counted = [group for group in groups if group.state is not GroupState.RETIRED and not group.finished]
    if not all(group.mass_known for group in counted):
        return {}
    masses = [mass for group in counted for mass in group.masses()]
    found = {share: _candidate(share, masses) for share in shares}
    return {share: value for share, value in found.items() if value is not None}


def _candidate(share: int, masses: Sequence[Mass]) -> int | None:
    frontiers = [mass.frontiers[share] for mass in masses if share in mass.frontiers]
    if not frontiers:
        return None
    records: dict[int, int] = {}
    for mass in masses:
        finished = [(mass.frontiers.get(share, MIN), mass.recent)]
        for time, count in [*zip(mass.starts.tolist(), mass.counts.tolist(), strict=True), *finished]:
            records[time] = records.get(time, 0) + count
    present = sorted((time for time, count in records.items() if count), reverse=True)
    if not present:
        return max(frontiers) if max(frontiers) != MAX else None
    total = sum(records.values())
    above = {time: sum(records[each] for each in present if each >= time) for time in present}
    reached = next(time for time in present if Fraction(above[time], total) >= Fraction(share, PPM))
    value = min(max(frontiers), reached)
    return value if value != MAX else next((time for time in present if time != MAX), None)
