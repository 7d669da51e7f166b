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
from lowwater_authority.engine.graph_log import BrokenGraph
from lowwater_authority.engine.graph_requests import GraphRequests
from lowwater_authority.engine.holdings import Holdings
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.owner_requests import OwnerRequests
from lowwater_authority.engine.placement import Placement
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
    from lowwater_authority.engine.graph_log import ReadGraph
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.journal import Journal

LOG_SECONDS: Final = 60.0
"""Time between two log lines about a graph that is still damaged, in seconds."""

log = logging.getLogger(__name__)


class Shard:
    """Serves a set of computations. With an embedded journal, these are all of a deployment.

    Its rooms: ``graph`` and ``owners`` take requests that change something, ``reads`` answers
    questions. ``rounds`` makes changes durable. ``held`` has the computations and the graph in
    memory, ``served`` shows readers what is published of them. ``takeover`` and ``confirmation``
    deal with other shards. ``slices`` report to the roots of cut computations.
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
        self.placement = placement or Placement()
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
        """Open the journal, and serve the computations of this shard whose logs are whole.

        Raises errors of the journal.
        """
        held = self.held
        await self.journal.open()
        held.graph.use(held.graph.newer(await self._first_graph()) or held.topology)
        if not held.graph.log.position and await self.journal.logs():
            msg = (
                "the journal has logs but no graph, so a copy was not finished. Repeat `lowwater journal copy`, or remove the logs. "
                "If shards are restoring a graph that their store has lost, start again in a moment"
            )
            raise JournalFailed(msg)
        logs = {}
        for name in held.topology.computations:
            if self.placement.mine(name):
                try:
                    logs[name] = await held.of(name).own(self.placement.mine)
                except JournalCorrupt as damage:
                    if damage.position is None:
                        raise  # perhaps more than this one log
                    self.takeover.damaged(name, damage)
        # Read again, for incarnations that began before the logs were taken; no round runs yet.
        held.graph.use(held.graph.newer(await self._first_graph()) or held.topology)
        for name, taken in logs.items():
            if name not in held.topology.computations:
                held.of(name).give_up(taken)  # it was dropped meanwhile
                continue
            try:
                held.of(name).hold(taken)
            except JournalCorrupt as damage:
                held.of(name).give_up(taken)
                self.takeover.damaged(name, damage)
            else:
                self.slices.follow(name)
        self.served.count()
        if not self.journal.shared:
            self.end_dropped()

    async def _first_graph(self) -> ReadGraph:
        """Read the graph. While it is damaged, wait for shards that have it in memory.

        Raises JournalCorrupt when none of these lives.
        """
        log_again = 0
        while True:
            try:
                return await self.held.graph.read()
            except JournalCorrupt as damage:
                if damage.log != GRAPH:
                    raise
                if self._processing_time() >= log_again:
                    log.warning(
                        "the graph is damaged in the store, %s. This process waits for a shard that has it in memory, and writes it again. If none "
                        "comes, restore a copy of the journal",
                        damage.reason,
                        extra=event("damaged_graph", reason=str(damage)),
                    )
                    log_again = self._processing_time() + int(LOG_SECONDS * 1e6)
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
        """Let :meth:`run` finish the queue and end. New requests are refused with ShuttingDown.

        An append whose outcome is still unknown is given up: none of its values was published, and
        its callers may repeat it.
        """
        self.held.logs.stopping = True
        self.rounds.stop()

    @property
    def stopping(self) -> bool:
        """True if this process stops, and takes no more requests."""
        return self.held.logs.stopping

    async def close(self) -> None:
        """Write a snapshot of every changed computation, and close the journal.

        So the next start is quick, and damage in the store is replaced. Unchanged logs and the
        graph are read and checked, because memory may have the only good copy of them.
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
        await self.held.endings.settle()
        await self.repair.at_stop("the graph", self.held.graph.mend)
        readable = True
        for name, computation in [(name, holding.computation) for name, holding in self.held.served.items()]:
            if self.held.is_torn(name):
                continue
            its_log = self.held.of(name).log
            if its_log.behind and self.held.unwritten(name) is None:
                await logs.snapshot(its_log, partial(recovery.pieces, computation))
                await logs.settle()
            elif readable:
                readable = await self.repair.at_stop(name, self.held.of(name).mend)
        await self.journal.close()

    def end_dropped(self) -> None:
        """Begin to shorten the logs of dropped computations that this shard is to serve."""
        self.held.endings.begin_all(self.placement.mine)
