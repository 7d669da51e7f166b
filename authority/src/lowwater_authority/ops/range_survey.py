"""How the ranges of each computation stand, counted now and then on the event loop for whoever scrapes.

A scrape must not count: it runs on another thread, where the interval map may change under it. Nor must a publish, which everybody waits
for. So a task counts what has changed, at a moment when all of it is durable, a few milliseconds at a time, and leaves an immutable answer.
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
    from lowwater_authority.core.interval_map import IntervalMap
    from lowwater_authority.engine.shard import Shard

PERIOD: Final = 5.0
"""Seconds between two surveys, and so how old a count may be, as long as rounds go on."""

SLICE: Final = 0.002
"""Seconds for which a survey holds the event loop at a time; one computation is counted in one
piece."""

FINISHED: Final = "finished"
STATES: Final = {
    GroupState.NEVER: "never_claimed",
    GroupState.OWNED: "owned",
    GroupState.UNOWNED: "unowned",
    GroupState.RETIRED: "retired",
}

log = logging.getLogger(__name__)


class RangeCounts(NamedTuple):
    """How the ranges of one computation stand."""

    states: dict[str, int]
    """How many there are by state; "finished" are those of claims all of whose ranges are, whoever
    owned them."""
    holding: int
    """How many stand at the low watermark, or below it after their owner lowered them; 0 when it is
    finished."""
    last_report: int
    """Processing time, microseconds, of the oldest last report of the claims that these belong to,
    a claim counting as one; 0 when they belong to none. An owner that has not been heard of since a
    recovery counts from then: one that died with it must not stay unseen."""


def counted(ranges: IntervalMap, low: int, recovered: int) -> RangeCounts:
    """Count the ranges of a computation whose low watermark is published as ``low``; ``recovered``: since when it is served here.

    O(claims), and what Columns.at_most says.
    """
    states = dict.fromkeys([*STATES.values(), FINISHED], 0)
    for group in ranges.run_groups():
        states[FINISHED if group.finished else STATES[group.state]] += group.live_count
    if low == MAX:
        return RangeCounts(states, 0, 0)
    holding, groups = ranges.holding(low)
    heard = (group.last_report or (recovered if group.state is GroupState.OWNED else 0) for group in groups)
    return RangeCounts(states, holding, min((time for time in heard if time), default=0))


class RangeSurvey:
    """Counts the ranges of all that a shard serves."""

    def __init__(self, shard: Shard) -> None:
        self.counts: Mapping[str, RangeCounts] = {}
        """By computation, as of the last survey. Replaced, never changed."""
        self._shard = shard
        self._known: dict[str, tuple[View, RangeCounts]] = {}
        self._served: dict[str, tuple[Computation, int]] = {}
        """Since when each is known to be served here, within ``PERIOD``; a fail-over leaves another
        object."""

    async def run(self, period: float = PERIOD) -> None:
        """Survey every ``period`` seconds until the shard stops.

        A survey that fails is told, and the next one begins anew.
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
        """Count once what has changed. Raises ShuttingDown, Unavailable."""
        left: Sequence[str] = self._shard.served.names()
        known: dict[str, tuple[View, RangeCounts]] = {}
        while left:
            left = await self._shard.reads.look(partial(self._count, left, known))
        self._known = known
        self._served = {name: self._served[name] for name in known}
        self.counts = {name: counts for name, (_, counts) in known.items()}

    def _count(
        self, names: Sequence[str], known: dict[str, tuple[View, RangeCounts]], held: Mapping[str, Computation]
    ) -> Sequence[str]:
        """Count some, at least one, and return the rest."""
        end = time.perf_counter() + SLICE
        for done, name in enumerate(names, start=1):
            computation = held.get(name)
            if computation is None:
                continue
            served, since = self._served.get(name, (None, 0))
            if served is not computation:
                since = self._shard.now
                self._served[name] = computation, since
            # A round that touches a computation leaves a new view of it.
            view = computation.published
            before = self._known.get(name)
            if before is not None and before[0] is view:
                known[name] = before
            else:
                known[name] = view, counted(computation.map, view.low, since)
            if time.perf_counter() > end:
                return names[done:]
        return ()
