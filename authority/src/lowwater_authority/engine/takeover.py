"""Take-overs of computations, each read and checked while its owner still serves it.

    load log -> recover -> read graph -> take log -> replay what came since -> read graph -> serve

If a log is damaged in the store, its owner has the only good copy, in memory, and a take-over would
destroy that copy. So a damaged log is left to its owner. The log is read again only now and then,
because that costs all of it. After any other failure, when the store or the graph does not answer,
the rest is shorter.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater_authority.engine.holding import Damage, Rest
from lowwater_authority.engine.waiting import within
from lowwater_authority.journal import JournalCorrupt, JournalError, JournalOutvoted, JournalVersion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.served import Served

REST_SECONDS: Final = (1.0, 60.0)
"""First and longest rest until a damaged log is looked at again, in seconds.

Meanwhile a snapshot of its owner may have replaced the damaged part."""

REFUSED_SECONDS: Final = (0.1, 2.0)
"""First and longest rest after a second failure in a row of the store or the graph, in seconds.

Each attempt costs the store some calls."""

TAKEN_AT_ONCE: Final = 4
"""Most computations that are taken over side by side in turn, not counting small logs once read.

Each of them is whole in memory meanwhile, and queues for the store."""

TAKEN_IN_ALL: Final = 1024
"""Most computations that are taken over side by side in turn, small and slow ones too.

Without this bound, all of them would be in memory while the store does not answer. A caller that
waits for a single computation has it taken over beside these."""

SLOW_SECONDS: Final = 5.0
"""Age in seconds at which a take-over no longer counts as one of the ``TAKEN_AT_ONCE``.

So a few slow take-overs do not hold up the others."""

TOGETHER_SECONDS: Final = 1.0
"""Longest wait of a request about several computations for unserved ones, in seconds.

These must not hold up the answer about the others."""

log = logging.getLogger(__name__)


class Takeover:
    """Takes computations over, each once at a time.

    ``now`` gives processing time in microseconds. ``refresh`` reads the graph.
    """

    def __init__(self, served: Served, *, now: Callable[[], int], refresh: Callable[[], Awaitable[None]]) -> None:
        self._served = served
        self._holdings = served.held
        self._placement = served.placement
        self._now = now
        self._refresh = refresh
        self._places = asyncio.Semaphore(TAKEN_AT_ONCE)
        self._room = asyncio.Semaphore(TAKEN_IN_ALL)

    async def serve(self, name: str) -> bool:
        """Take a computation over unless it is served already.

        False: another shard is to serve it, or the membership has changed. Raises
        UnknownComputation, and Unavailable when the take-over is slower than ``wait_seconds``; it
        goes on all the same.
        """
        if name in self._served:
            return True
        if not self._placement.mine(name):
            return False
        async with within(self._served.settings.wait_seconds, lambda: _slow(name)):
            return await self.take(name)

    async def serve_those(self, names: Iterable[str]) -> None:
        """Take over, side by side, those computations that this shard is to serve.

        Returns after ``TOGETHER_SECONDS`` at the latest. A computation that cannot be served, or
        not yet, does not stop the others.
        """
        missing = [name for name in names if name not in self._served and self._placement.mine(name)]
        if len(missing) == 1:  # its callers wait for nothing else, so it does not queue
            with suppress(errors.Unavailable):
                async with within(TOGETHER_SECONDS, lambda: _slow(missing[0])):
                    await self.take(missing[0])
        elif missing:
            await asyncio.wait([self.begin(name) for name in missing], timeout=TOGETHER_SECONDS)

    async def serve_in_turn(self, name: str) -> bool:
        """Take a computation over as :meth:`serve` does, but in its turn and without a time limit.

        False also while its log is damaged and its owner is alive.
        """
        if name in self._served:
            return True
        if not self._placement.mine(name):
            return False
        return await asyncio.shield(self.begin(name))

    async def take(self, name: str) -> bool:
        """Take a computation over at once; one attempt serves all callers.

        False: another shard is to serve it, or goes on serving it. Raises UnknownComputation, and
        Unavailable when the store does not answer, or has a damaged log that no process has in
        memory.
        """
        damage = self._resting(name)
        if damage is None and (reason := self._refused(name)):
            raise _not_taken(name, reason)
        if damage is not None:
            if await self._placement.lives_elsewhere(name):
                if (newer := self._damage(name)) is not None:
                    newer.served_elsewhere()
                return False
            if not self._under_way(name) and not self._orphaned(name):
                raise _not_taken(name, str(damage.reason)) from damage.reason
        try:
            holding = self._holdings.of(name)
            return await asyncio.shield(holding.take.begin(partial(self._take, holding), self._ended(holding)))
        except (JournalCorrupt, JournalVersion) as error:
            if await self._placement.lives_elsewhere(name):
                return False
            self._orphaned(name)
            raise _not_taken(name, str(error)) from error
        except JournalError as error:
            raise _not_taken(name, str(error)) from error

    def _ended(self, holding: Holding) -> Callable[[], None]:
        return partial(self._holdings.discard, holding)

    def _under_way(self, name: str) -> bool:
        holding = self._holdings.find(name)
        return holding is not None and holding.take.task is not None

    def _damage(self, name: str) -> Damage | None:
        """Return the damage that the last look at a log has found; None: none, or no look yet."""
        holding = self._holdings.find(name)
        return holding.damage if holding is not None else None

    def _resting(self, name: str) -> Damage | None:
        """Return why a log must not be looked at yet; None: it may be, or a look is under way."""
        damage = self._damage(name)
        return damage if damage is not None and not self._under_way(name) and self._now() < damage.until else None

    def _refused(self, name: str) -> str:
        """Return why a take-over must not be tried yet; empty: it may be, or is under way."""
        holding = self._holdings.find(name)
        rest = holding.rest if holding is not None and holding.take.task is None else None
        return rest.reason if rest is not None and self._now() < rest.until else ""

    def _rest(self, holding: Holding, error: JournalError | errors.Unavailable) -> None:
        """Note a failed take-over. The next is made at once, each later one after a longer rest.

        A failure of long ago does not count: another shard may have served the computation since.
        """
        before, now = holding.rest, self._now()
        again = before is not None and now < before.until + 2 * REFUSED_SECONDS[1] * 1e6
        seconds = before.seconds if before is not None and again else 0.0
        longer = min(max(2 * seconds, REFUSED_SECONDS[0]), REFUSED_SECONDS[1])
        holding.rest = Rest(str(error), now + seconds * 1e6, longer)

    def _orphaned(self, name: str) -> bool:
        """Note that no process serves a computation. Returns whether that is new since a look.

        If it is new, the last owner may have left a whole log.
        """
        damage = self._damage(name)
        return damage is None or damage.orphan(self._now())

    def damaged(self, name: str, reason: JournalError) -> None:
        """Note that a log is damaged, or written by a newer release. Each reason is logged once."""
        holding = self._holdings.of(name)
        before = holding.damage
        if before is None or str(before.reason) != str(reason):
            facts = event("damaged_log", computation=name, reason=str(reason))
            log.error("%s is not taken over, its owner keeps it as long as it lives: %s", name, reason, extra=facts)
        seconds = REST_SECONDS[0] if before is None else min(2 * before.seconds, REST_SECONDS[1])
        holding.damage = Damage(reason, self._now() + seconds * 1e6, seconds)

    def is_damaged(self, name: str) -> bool:
        """Return whether this shard does not serve a computation because its log is damaged.

        As far as this shard knows, no other one serves it either.
        """
        damage = self._damage(name)
        return name not in self._served and damage is not None and isinstance(damage.reason, JournalCorrupt)

    def begin(self, name: str) -> asyncio.Task[bool]:
        """Begin to take a computation over in its turn, once for all callers.

        The task must not be cancelled.
        """
        holding = self._holdings.of(name)
        return holding.turn.begin(partial(self._take_in_turn, name), self._ended(holding))

    async def _take_in_turn(self, name: str) -> bool:
        async with self._room:
            async with self._places:
                if not self._placement.mine(name):
                    return False
                task = asyncio.create_task(self.take(name))
                small = asyncio.create_task(self._holdings.of(name).read_small.wait())
                try:
                    await asyncio.wait([task, small], timeout=SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    small.cancel()
            return await task

    async def _take(self, holding: Holding) -> bool:
        name = holding.name
        try:
            serves = holding.is_held() or await self._take_over(holding)
        except (JournalCorrupt, JournalVersion) as error:
            if holding.ending is None:  # else the computation was dropped, and its log is replaced
                self.damaged(name, error)
            raise
        except (JournalError, errors.Unavailable) as error:
            self._rest(holding, error)
            raise
        holding.rest = None
        if holding.damage is not None:
            holding.damage = None
            log.info(
                "%s can be taken over: its log is whole again", name, extra=event("log_whole_again", computation=name)
            )
        return serves

    async def _take_over(self, holding: Holding) -> bool:
        try:
            computation = await holding.take_over(self._placement.mine, self._refresh)
        except JournalOutvoted:
            await self._placement.outvoted()
            return False
        self._served.begin(computation)
        name, epoch = holding.name, holding.ownership.epoch
        log.info(
            "this shard serves %s now: %s, epoch %d",
            name,
            counted(len(computation.map), "key range"),
            epoch,
            extra=event("computation_taken", computation=name, ranges=len(computation.map), epoch=epoch),
        )
        return True


def _not_taken(name: str, reason: str) -> errors.Unavailable:
    msg = f"this shard cannot take {name} over from the store: {reason}"
    return errors.Unavailable(msg, metadata={"computation": name})


def _slow(name: str) -> errors.Unavailable:
    msg = f"{name} is being taken over by this shard, which reads it from the store and takes longer than usual; try again"
    return errors.Unavailable(msg, metadata={"computation": name})
