"""Heuristic watermarks: how far a share of the record timestamps has come.

MillWheel 7.2: "we can compute a 99% low watermark that corresponds to the progress of 99% of the record timestamps in
the system". Here that is a definition, not an estimate: the mass of a claim is its unfinished records at their
timestamps and its recently finished ones at the frontier it reached, and

    H(p) = max(L, min(greatest frontier F(p), greatest T with at least a share p of all mass at or above T))

The result is about records lately seen, not a promise about those to come: nothing may be deleted by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.groups import Group, Mass

PPM: Final = 1_000_000
"""Shares are integers in parts per million, so that they compare exactly."""


def reference_time(groups: Iterable[Group]) -> int:
    """Return the greatest unfinished frontier of any claim, MIN without one: where ages count from."""
    return max(
        (micros for group in groups for mass in group.masses() for micros in mass.frontiers.values() if micros != MAX),
        default=MIN,
    )


def candidates(groups: Iterable[Group], shares: Iterable[int]) -> dict[int, int]:
    """Return H(p) before max(L, ...) and the ratchet, for each share that may move.

    No share moves while the mass of any unfinished range is unknown; a share does not move while no claim has told its
    frontier. Cost: one sort of all buckets per call.
    """
    masses: list[Mass] = []
    for group in groups:
        if group.state is GroupState.RETIRED or group.finished:
            continue
        if not group.mass_known:
            return {}
        masses.extend(group.masses())
    if not masses:
        return {}
    starts = np.concatenate([mass.starts for mass in masses])
    counts = np.concatenate([mass.counts for mass in masses])
    found = {}
    for share in shares:
        value = _candidate(share, masses, starts, counts)
        if value is not None:
            found[share] = value
    return found


def _candidate(share: int, masses: list[Mass], starts: Int64s, counts: Int64s) -> int | None:
    frontiers = [mass.frontiers[share] for mass in masses if share in mass.frontiers]
    if not frontiers:
        return None
    # Finished records stand at their claim's frontier; without one nothing is known of where, so at MIN.
    times = np.append(starts, [mass.frontiers.get(share, MIN) for mass in masses])
    weights = np.append(counts, [mass.recent for mass in masses])
    present = weights > 0
    times, weights = times[present], weights[present]
    greatest = max(frontiers)
    if not len(times):
        return greatest if greatest != MAX else None
    order = np.argsort(times)[::-1]
    times, above = times[order], np.cumsum(weights[order])
    # Ties: all mass at one time counts for that time, so look at the last entry of each.
    last = np.append(times[1:] != times[:-1], True)
    times, above = times[last], above[last]
    reached = _first_at_least(above, share)
    value = min(greatest, int(times[reached]))
    if value != MAX:
        return value
    # Unfinished claims whose inputs are finished: MAX is for L alone to say, so stay at the greatest finite time.
    finite = times[times != MAX]
    return int(finite[0]) if len(finite) else None


def _first_at_least(above: npt.NDArray[np.int64], share: int) -> int:
    """Return the first index at which the mass above is at least a share of all, in exact integers."""
    total = int(above[-1])
    needed = -(-share * total // PPM)
    return int(np.searchsorted(above, needed, side="left"))
