"""The logs of dropped computations, each of which is shortened before it can be taken again.

A shortened log holds only what the next incarnation of the computation needs. Its last owner may
have stopped before it did this, so every shard looks after the dropped computations that it would
serve.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event
from lowwater_authority.core import recovery
from lowwater_authority.core.slicing import computation_of
from lowwater_authority.engine.holding import Ending, epoch_base, recover
from lowwater_authority.engine.waiting import Backoff
from lowwater_authority.engine.writes import RETRY_SECONDS
from lowwater_authority.journal import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFenced,
    JournalOutvoted,
    JournalReplaced,
    JournalVersion,
    LoadedLog,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.graph_log import GraphLog
    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.logs import Logs
    from lowwater_authority.journal import Journal, Ownership

ENDED_AT_ONCE: Final = 4
"""Most logs that are shortened side by side. A log may be long before."""

WALK_SECONDS: Final = 5.0
"""Longest wait of the walk over all dropped computations for one of them, in seconds."""

WALK_PIECE: Final = 64
"""Names that the walk passes before other tasks run: less than a millisecond."""

OVER: Final = (JournalFenced, JournalOutvoted, JournalVersion, JournalReplaced, JournalClosed)
"""Errors after which this process never shortens the log."""

log = logging.getLogger(__name__)


class Endings:
    """Shortens the logs of dropped computations. All methods are called on the event loop.

    ``of`` returns the holding of a name; ``discard`` forgets it if there is nothing to remember.
    """

    def __init__(
        self,
        journal: Journal,
        logs: Logs,
        graph: GraphLog,
        of: Callable[[str], Holding],
        discard: Callable[[Holding], None],
    ) -> None:
        self._journal = journal
        self._logs = logs
        self._graph = graph
        self._holding = of
        self._discard = discard
        self._ending: dict[str, Holding] = {}
        """Dropped computations whose logs are being shortened."""
        self._short: dict[str, int] = {}
        """Last incarnation by name of those dropped computations whose log is known to be short."""
        self._walk: asyncio.Task[None] | None = None
        """Task that begins the endings of all dropped computations, one after the other."""
        self._walk_again = False
        self._places = asyncio.Semaphore(ENDED_AT_ONCE)
        self._settling = asyncio.Event()
        """Set during :meth:`settle`: each log is tried once more, and no further one is begun."""

    def __contains__(self, name: str) -> bool:
        """Return whether the log of a dropped computation is being shortened."""
        return name in self._ending

    def begin(self, name: str) -> None:
        """Begin to shorten the log of a dropped computation, unless it is known to be short."""
        tombstone = self._graph.topology.dropped.get(name)
        if tombstone is None or name in self._ending or self._short.get(name, 0) >= tombstone.incarnation:
            return
        self.begin_held(name)

    def begin_held(self, name: str, computation: Computation | None = None) -> None:
        """Begin to shorten a log, from memory if this process has just served the computation."""
        holding = self._ending[name] = self._holding(name)
        holding.ending = Ending(asyncio.create_task(self._end(name, computation)))

    def begin_all(self, mine: Callable[[str], bool]) -> None:
        """Begin to shorten the logs of all dropped computations that are ``mine``. O(1).

        This is done one after the other, so that a caller who wants one of them does not wait
        behind all others.
        """
        self._walk_again = True
        if self._walk is None or self._walk.done():
            self._walk = asyncio.create_task(self._begin_all(mine))
            self._walk.add_done_callback(_log_failure)

    async def _begin_all(self, mine: Callable[[str], bool]) -> None:
        while self._walk_again:
            self._walk_again = False
            for number, name in enumerate(list(self._graph.topology.dropped)):
                if number % WALK_PIECE == 0:
                    await asyncio.sleep(0)
                if self._settling.is_set():
                    return
                if not mine(name):
                    continue
                self.begin(name)
                if (ending := self._of(name)) is not None:
                    await asyncio.wait([ending.task], timeout=WALK_SECONDS)

    async def ended(self, name: str) -> None:
        """Return when the log of a dropped computation is short, or another process's.

        A computation that is registered again begins with a whole log.
        """
        self.begin(name)
        if (ending := self._of(name)) is not None:
            await asyncio.wait([ending.task])

    async def taken(self, name: str) -> None:
        """Return when no earlier owner can write to the log of a dropped computation.

        The log may not be short yet.
        """
        self.begin(name)
        if (ending := self._of(name)) is not None:
            await ending.taken.wait()

    async def settle(self) -> None:
        """Wait until all begun logs are short, or were tried once more. No other is begun."""
        self._settling.set()
        if self._walk is not None:
            await asyncio.wait([self._walk])
        while self._ending:
            endings = (holding.ending for holding in self._ending.values())
            await asyncio.wait([ending.task for ending in endings if ending is not None])
        self._settling.clear()

    def _of(self, name: str) -> Ending | None:
        holding = self._ending.get(name)
        return holding.ending if holding is not None else None

    def _over(self, name: str) -> None:
        """Let waiting callers take the log, which is short, or another process's."""
        holding = self._holding(name)
        holding.log.forget()
        del self._ending[name]
        ending, holding.ending = holding.ending, None
        assert ending is not None
        ending.taken.set()
        self._discard(holding)

    async def _end(self, name: str, computation: Computation | None) -> None:
        """Shorten a log, however often the store refuses it. Until then the log is not taken."""
        backoff = Backoff(*RETRY_SECONDS)
        try:
            while True:
                try:
                    async with self._places:
                        await self._end_once(name, computation)
                except JournalError as error:
                    facts = event("snapshot_failed", computation=name, reason=str(error))
                    level = logging.WARNING if backoff.first else logging.DEBUG
                    log.log(level, "the log of %s, which was dropped, is not shortened: %s", name, error, extra=facts)
                    if isinstance(error, OVER) or self._settling.is_set():
                        return
                else:
                    return
                await backoff.wait(self._settling)
        finally:
            self._over(name)

    async def _end_once(self, name: str, computation: Computation | None) -> None:
        """Shorten a log once.

        From memory if this process has served the computation, because the store's copy may be
        damaged or older.
        """
        tombstone = self._graph.topology.dropped.get(name)
        if tombstone is None:
            return  # the computation is registered again
        if computation is None and await self._is_short(tombstone):
            self._short[name] = tombstone.incarnation
            return
        holding = self._holding(name)
        async with holding.writing:
            # The take ends every earlier ownership, one of this process too.
            self._journal.release(name)
            # It has no address: if the log is damaged later, no shard waits for this one to serve.
            take = partial(self._journal.take, name, view=self._logs.view)
            ownership = await self._logs.until_known(take)
            try:
                if (ending := self._of(name)) is not None:
                    ending.taken.set()
                if self._journal.shared:
                    # Read after the take: a process that registers the computation from here on
                    # takes the log from this one, which then writes nothing more. A process that is
                    # alone has the whole graph in memory, and registers it when this is over.
                    tombstone = (await self._graph.read()).topology.dropped.get(name)
                if tombstone is None:
                    return
                if computation is not None and computation.incarnation >= tombstone.incarnation:
                    payload = _end_of(computation, computation.incarnation)
                else:
                    loaded = await self._stored(name)
                    holding.log.read(loaded or LoadedLog(0, None, []))
                    payload = _end_of_stored(tombstone, ownership, loaded)
                ownership = await holding.replace(payload, ownership)
            finally:
                holding.disown(ownership)
        self._short[name] = tombstone.incarnation

    async def _is_short(self, tombstone: Spec) -> bool:
        loaded = await self._stored(tombstone.name)
        return loaded is not None and _has_ended(loaded, tombstone.incarnation)

    async def _stored(self, name: str) -> LoadedLog | None:
        """Read the stored log; None when it is damaged."""
        try:
            return await self._journal.load(name)
        except JournalCorrupt as damage:
            _log_damage(name, damage)
            return None


def _log_failure(walk: asyncio.Task[None]) -> None:
    if not walk.cancelled() and (error := walk.exception()) is not None:
        msg = "the logs of dropped computations are not shortened: this failed in a way it never should"
        log.error(msg, exc_info=error, extra=event("internal_error"))


def _has_ended(loaded: LoadedLog, incarnation: int) -> bool:
    """Return whether a log holds only what the incarnation after a dropped one needs."""
    if loaded.records or loaded.snapshot is None:
        return not loaded.last
    try:
        return recovery.incarnation(loaded.snapshot) > incarnation
    except recovery.ReplayError:
        return False


def _log_damage(name: str, damage: JournalCorrupt) -> None:
    log.warning("%s; its computation was dropped", damage, extra=event("damaged_log_dropped", computation=name))


def _end_of(computation: Computation, incarnation: int) -> bytes:
    """Return the snapshot with which the incarnation after a dropped one begins."""
    after = replace(computation.spec, incarnation=incarnation + 1, first=incarnation + 1)
    return recovery.snapshot(recovery.restarted(computation, after))


def _end_of_stored(tombstone: Spec, ownership: Ownership, loaded: LoadedLog | None) -> bytes:
    """Return the same snapshot from the stored log; ``loaded`` None: the log is damaged.

    The next incarnation needs only the sequencers of a damaged log, which must not be granted
    again. They count from their owner's epoch, and this process has a greater epoch than all owners
    before.
    """
    try:
        if loaded is not None:
            return _end_of(recover(tombstone, ownership, loaded), tombstone.incarnation)
    except JournalCorrupt as damage:
        _log_damage(tombstone.name, damage)
    lost = computation_of(tombstone, epoch_base=epoch_base(ownership))
    lost.last_sequencer = lost.epoch_base
    return _end_of(lost, tombstone.incarnation)
