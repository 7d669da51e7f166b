"""The inheritance of a new claim from the claims whose ranges it takes.

A mass describes all ranges of a claim together, so it passes to a new claim only whole. The weight
of a claim in R, the event time that lateness counts from, is divided by ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater_authority.core.groups import GroupState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.core.groups import Group, Mass
    from lowwater_authority.core.interval_map import Loss


def inherit_masses(group: Group | None, losses: Sequence[Loss], *, bounded: bool = False) -> None:
    """Let the masses of groups that are gone as a whole stand for the new group's mass.

    The mass of a part of a claim is unknown, on both sides. So is the mass of retired ranges, and
    of finished ones that come back by a claim with a bound (``bounded``): these had none any more.
    """
    stand_ins: list[Mass] = []
    complete = True
    for loss in losses:
        partly = bool(loss.group.live_count) or bool(loss.remainders)
        if loss.group.state is GroupState.RETIRED:
            complete = False
        elif loss.group.finished:
            complete = complete and not bounded
        elif partly or not loss.group.mass_known:
            complete = False
        else:
            stand_ins.extend(loss.group.masses())
        if partly:
            loss.group.mass_known = False
    if group is not None:
        group.mass_known = complete
        group.stand_ins = stand_ins if complete else []


def inherit_arrivals(group: Group | None, losses: Sequence[Loss]) -> None:
    """Let the weights in R follow the ranges: each group gets a part by its number of ranges.

    Which of a claim's ranges had the records is unknown. All parts together weigh what the claim
    did, so neither a split nor a merge makes more of it.
    """
    weights: list[tuple[int, int]] = []
    for loss in losses:
        arrived = loss.group.arrived()
        if arrived is None or loss.group.state is GroupState.RETIRED or loss.group.finished:
            continue
        frontier, rest = arrived
        ranges = sum(high - low for low, high in loss.handles) + loss.group.live_count + len(loss.remainders)
        for remainder in loss.remainders:
            remainder.arrived_before = frontier, arrived[1] // ranges
            rest -= arrived[1] // ranges
        if loss.group.live_count:
            loss.group.keep_arrived(loss.group.live_count, ranges)
            rest -= 0 if (remaining := loss.group.arrived()) is None else remaining[1]
        if rest:
            weights.append((frontier, rest))
    if group is not None and weights:
        group.arrived_before = min(frontier for frontier, _ in weights), sum(recent for _, recent in weights)
