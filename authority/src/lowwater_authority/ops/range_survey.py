"""Counts of each computation's ranges, made now and then on the event loop for scrapes.

A scrape must not count, because it runs on another thread, and the interval map may change
meanwhile. A publish must not count, because all callers wait for it. So a task counts the changed
computations when they are durable, a few milliseconds at a time, and a scrape reads immutable
counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.times import MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowwater_authority.core.computation import Computation, View
    from lowwater_authority.core.groups import Group
    from lowwater_authority.core.interval_map import IntervalMap
    from lowwater_authority.engine.shard import Shard

PERIOD: Final = 5.0
"""Seconds between two surveys, and so the greatest age of a count while rounds go on."""

SLICE: Final = 0.002
"""Seconds of a survey before other tasks run. One computation is always counted in one piece."""

FINISHED: Final = "finished"
STOPPED: Final = "stopped"
STATES: Final = {
    GroupState.NEVER: "never_claimed",
    GroupState.OWNED: "owned",
    GroupState.UNOWNED: "unowned",
    GroupState.RETIRED: "retired",
}

log = logging.getLogger(__name__)


class RangeCounts(NamedTuple):
    """Counts of the ranges of one computation."""

    states: dict[str, int]
    """Number of ranges by state. "finished" counts ranges of wholly finished claims, and "stopped"
    those that their worker released in good order."""
    holding: int
    """Number of ranges at the low watermark, or lowered below it by their owner; 0 if finished."""
    last_report: int
    """Oldest of the claims' last reports, over the claims of the holding ranges, as processing time
    in microseconds; 0: no claim. An owner without a report since a recovery counts from that
    recovery, so that an owner that died with the shard is noticed."""
    stopped: bool
    """True when the workers of all holding ranges were stopped in good order, by their reports."""


def counted(ranges: IntervalMap, low: int, recovered: int) -> RangeCounts:
    """Count the ranges of a computation with the published low watermark ``low``.

    ``recovered``: processing time since which it is served here. O(claims), and the cost of
    Columns.at_most.
    """
    states = dict.fromkeys([*STATES.values(), STOPPED, FINISHED], 0)
    for group in ranges.run_groups():
        stopped = group.state is GroupState.UNOWNED and _in_good_order(group)
        state = FINISHED if group.finished else STOPPED if stopped else STATES[group.state]
        states[state] += group.live_count
    if low == MAX:
        return RangeCounts(states, 0, 0, stopped=False)
    holding, groups = ranges.holding(low)
    reports = (group.last_report or (recovered if group.state is GroupState.OWNED else 0) for group in groups)
    stopped = all(map(_in_good_order, groups))
    return RangeCounts(states, holding, min((time for time in reports if time), default=0), stopped)


def _in_good_order(group: Group) -> bool:
    return group.remarks.ended and not group.remarks.failure


class RangeSurvey:
    """Counts the ranges of all computations that a shard serves."""

    def __init__(self, shard: Shard) -> None:
        self.counts: Mapping[str, RangeCounts] = {}
        """Counts by computation, of the last survey. Replaced, never changed."""
        self._shard = shard
        self._counted: dict[str, tuple[View, RangeCounts]] = {}
        self._served: dict[str, tuple[Computation, int]] = {}
        """Computation by name, and processing time since which it is served here, to ``PERIOD``.
        A fail-over leaves another object."""

    async def run(self, period: float = PERIOD) -> None:
        """Survey every ``period`` seconds until the shard stops.

        A failed survey is logged, and the next one begins anew.
        """
        while True:
            try:
                await self.survey()
            except errors.ShuttingDown:
                return
            except errors.LowwaterError as error:
                log.debug("ranges are counted later: %s", error)
            except Exception:
                log.exception("ranges could not be counted; trying again", extra=event("internal_error"))
            await asyncio.sleep(period)

    async def survey(self) -> None:
        """Count the changed computations once. Raises ShuttingDown, Unavailable."""
        names: Sequence[str] = self._shard.served.names()
        results: dict[str, tuple[View, RangeCounts]] = {}
        while names:
            names = await self._shard.reads.look(partial(self._count, names, results))
        self._counted = results
        self._served = {name: self._served[name] for name in results}
        self.counts = {name: counts for name, (_, counts) in results.items()}

    def _count(
        self,
        names: Sequence[str],
        results: dict[str, tuple[View, RangeCounts]],
        computations: Mapping[str, Computation],
    ) -> Sequence[str]:
        """Count some computations, at least one, and return the names of the rest."""
        end = time.perf_counter() + SLICE
        for done, name in enumerate(names, start=1):
            computation = computations.get(name)
            if computation is None:
                continue
            served, since = self._served.get(name, (None, 0))
            if served is not computation:
                since = self._shard.now
                self._served[name] = computation, since
            # A round that touches a computation publishes a new view object.
            view = computation.published
            before = self._counted.get(name)
            if before is not None and before[0] is view:
                results[name] = before
            else:
                results[name] = view, counted(computation.map, view.low, since)
            if time.perf_counter() > end:
                return names[done:]
        return ()
