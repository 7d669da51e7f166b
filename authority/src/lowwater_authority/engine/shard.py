"""A shard: the rooms that serve computations, and how they begin and end together.

    requests (graph, owners, reads) -> rounds -> held (memory and journal) -> served -> readers

Everything runs on one event loop; time, journal and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater_authority.core import recovery
from lowwater_authority.engine.confirmation import Confirmation
from lowwater_authority.engine.cuts import Cuts
from lowwater_authority.engine.graph_requests import GraphRequests
from lowwater_authority.engine.holdings import BrokenGraph, Holdings
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.owner_requests import OwnerRequests
from lowwater_authority.engine.placement import Alone
from lowwater_authority.engine.processing_time import ProcessingTime
from lowwater_authority.engine.reads import Reads
from lowwater_authority.engine.repair import Repair
from lowwater_authority.engine.requests import Requests
from lowwater_authority.engine.round import Rounds
from lowwater_authority.engine.served import Served
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.slice import Context
from lowwater_authority.engine.slices import Slices
from lowwater_authority.engine.takeover import Takeover
from lowwater_authority.journal import GRAPH, JournalCorrupt, JournalFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.holdings import ReadGraph
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.placement import Placement
    from lowwater_authority.journal import Journal

LOG_SECONDS: Final = 60.0
"""How often a process logs that it still waits for a graph that it can read."""

log = logging.getLogger(__name__)


class Shard:
    """Serves a set of computations: all of a deployment, with an embedded journal.

    Its rooms: ``graph`` and ``owners`` take requests that change something, ``reads`` answers
    questions; ``rounds`` makes changes durable; ``held`` is what memory has of the logs, ``served``
    what readers see of it; ``takeover`` and ``confirmation`` are about the other shards; ``slices``
    report to the roots of cut computations.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int] | None = None,
        observer: Observer,
        placement: Placement | None = None,
        settings: ShardSettings | None = None,
    ) -> None:
        self.journal = journal
        self.hub = Hub()
        self.placement: Placement = placement or Alone()
        self.settings = settings or ShardSettings()
        self._processing_time = now = ProcessingTime(clock, monotonic)
        self.held = Holdings(journal, observer, self.placement.may_heal, self.settings)
        self.slices = Slices()
        self.served = Served(self.held, self.hub, self.placement, self.slices, observer, self.settings)
        self.repair = Repair(self.served)
        self.rounds = Rounds(self.served, self.repair, observer, processing_time=now, clock=clock)
        self.confirmation = Confirmation(self.served, self.rounds, now=now)
        self.takeover = Takeover(self.served, now=now, refresh=self.confirmation.refresh_if_changed)
        requests = Requests(self.served, self.rounds, self.confirmation, self.takeover)
        self.graph = GraphRequests(requests)
        self.owners = OwnerRequests(requests)
        self.reads = Reads(requests)
        cuts = Cuts(requests, self.reads)
        self.slices.connect(Context(self.served, self.confirmation, self.owners, self.reads, cuts))

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        return self.held.topology

    @property
    def now(self) -> int:
        """Processing time; see ProcessingTime."""
        return self._processing_time()

    async def start(self) -> None:
        """Open the journal and serve what is this shard's, but for what is damaged.

        Raises what the journal raises.
        """
        held = self.held
        await self.journal.open()
        held.use(held.newer(await self._first_graph()) or held.topology)
        if not held.graph.position and await self.journal.logs():
            msg = (
                "there are logs but no graph: a copy that was not finished. Repeat `lowwater journal copy`, or remove what there is; "
                "if shards are putting back what their store has lost, start again in a moment"
            )
            raise JournalFailed(msg)
        taken = {}
        for name in held.topology.computations:
            if self.placement.mine(name):
                try:
                    taken[name] = await held.of(name).own()
                except JournalCorrupt as damage:
                    if damage.position is None:
                        raise  # perhaps more than this one log
                    self.takeover.damaged(name, damage)
        # Incarnations that began before the logs were taken; rounds do not run yet.
        held.use(held.newer(await self._first_graph()) or held.topology)
        for name, its in taken.items():
            if name not in held.topology.computations:
                held.of(name).give_up(its)  # it was dropped meanwhile
                continue
            try:
                held.of(name).hold(its)
            except JournalCorrupt as damage:
                held.of(name).give_up(its)
                self.takeover.damaged(name, damage)
            else:
                self.slices.follow(name)
        self.served.count()
        if not self.journal.shared:
            self.end_dropped()

    async def _first_graph(self) -> ReadGraph:
        """Read the graph.

        While it is damaged, wait for shards that have it in memory. Raises JournalCorrupt when none
        lives.
        """
        told = 0
        while True:
            try:
                return await self.held.read_graph()
            except JournalCorrupt as damage:
                if damage.log != GRAPH:
                    raise
                if self._processing_time() >= told:
                    log.warning(
                        "the graph is damaged in the store, %s; looking for a shard that has it in memory, and writes it again. If none comes, "
                        "restore a copy of the journal",
                        damage.reason,
                        extra=event("damaged_graph", reason=str(damage)),
                    )
                    told = self._processing_time() + int(LOG_SECONDS * 1e6)
                if not await self.placement.wait_for_graph():
                    if isinstance(damage, BrokenGraph):
                        raise
                    reason = f"{damage.reason}, and no process that lives has it in memory"
                    raise JournalCorrupt(GRAPH, damage.position, reason) from damage

    async def run(self) -> None:
        """Run rounds until :meth:`stop`.

        Raises JournalReplaced, JournalCorrupt and their like: this process must not go on.
        """
        await self.rounds.run()

    def stop(self) -> None:
        """Let :meth:`run` finish what is queued and end.

        New requests are refused with ShuttingDown.

        An append whose outcome is still unknown is given up: nothing of it was shown, and its
        callers may repeat it.
        """
        self.held.logs.stopping = True
        self.rounds.stop()

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop, and takes no more requests."""
        return self.held.logs.stopping

    async def close(self) -> None:
        """Write a snapshot of every changed computation, so that the next start is quick, and close the journal.

        It replaces what is damaged in the store. What has not changed is read and checked, and so is the graph, for this process may have
        the only good copy of it, in memory.
        """
        if unheard := self.slices.unheard:
            log.warning(
                "this process stops with %s whose newest values no root has acknowledged; the shard "
                "that takes over reports these values again",
                counted(unheard, "slice"),
                extra=event("slices_not_told", slices=unheard),
            )
        self.slices.close()
        logs = self.held.logs
        mending = self.held.mending()
        for task in mending:
            task.cancel()
        await asyncio.gather(*mending, return_exceptions=True)
        await logs.settle()
        await self.held.settle()
        await self.repair.at_stop("the graph", self.held.mend_graph)
        readable = True
        for name, computation in [(name, each.computation) for name, each in self.held.served.items()]:
            if self.held.is_torn(name):
                continue
            its = self.held.of(name).log
            if its.behind and not self.held.is_unwritten(name):
                await logs.snapshot(its, partial(recovery.pieces, computation))
                await logs.settle()
            elif readable:
                readable = await self.repair.at_stop(name, self.held.of(name).mend)
        await self.journal.close()

    def end_dropped(self) -> None:
        """Begin to make the logs of those that were dropped short, as far as they are this shard's and are not."""
        self.held.end_all(self.placement.mine)
