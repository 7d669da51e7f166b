"""All computations that a shard holds, each with its log, and the graph, which all shards share.

    take over: load log -> recover -> read graph -> take log -> load what came since -> read graph
    lose:      when the journal says that another process took the log, and only then
    heal:      write lost records again from memory, under a new epoch

System prevalence: the state is in memory, and the journal carries it to the next owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core import recovery
from lowwater_authority.core.slicing import of_kind
from lowwater_authority.engine.endings import Endings
from lowwater_authority.engine.graph_log import GraphLog
from lowwater_authority.engine.holding import Holding, Recovered, recover, resumed
from lowwater_authority.engine.logs import Log, Logs
from lowwater_authority.journal import GRAPH, JournalCorrupt, JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.holding import Unwritten
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.settings import ShardSettings
    from lowwater_authority.journal import Journal, LoadedLog, Ownership

STEP_BYTES: Final = 512
"""Cost of a step of a replay besides its records, counted in bytes."""

log = logging.getLogger(__name__)


class Holdings:
    """The computations of one process. All methods are called on its event loop."""

    def __init__(
        self,
        journal: Journal,
        observer: Observer,
        may_heal: Callable[[], bool],
        settings: ShardSettings,
    ) -> None:
        self.journal = journal
        self.logs = Logs(journal, observer, self._heal, may_heal, settings.snapshot_piece)
        self.graph = GraphLog(journal, self.logs, settings.graph_bytes)
        self.endings = Endings(journal, self.logs, self.graph, self.of, self.discard)
        self.served: dict[str, Holding] = {}
        """Holdings of the computations that are held, in the order in which they were taken."""
        self.unserved_logs = defaultdict[str, set[int]](set)
        """Versions of the views under which this process has taken logs that it does not serve, or
        may have taken them, by name. The store may name this process as the owner."""
        self.losses = 0
        """Number of computations that were lost. Members compare it with its value at their last
        look: after a change, this process may have to take over a lost computation again."""
        self._settings = settings
        self._observer = observer
        self._by_name: dict[str, Holding] = {}
        """All computations of which this process remembers anything, held or not."""

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        return self.graph.topology

    # -- taking over and losing --------------------------------------------------------------------

    def of(self, name: str) -> Holding:
        """Return the holding of a computation, a new one if there is none."""
        holding = self._by_name.get(name)
        if holding is None:
            holding = self._by_name[name] = Holding(self, Log(name, self._settings.snapshot_bytes))
        return holding

    def find(self, name: str) -> Holding | None:
        """Return the holding of a computation; None if there is none."""
        return self._by_name.get(name)

    async def give_back(self, due: Mapping[str, bool]) -> None:
        """Give back logs that were taken, are not served, and are other shards' to serve.

        ``due`` says of each whether its next owner has had its time; see Holding.give_back. A log
        that the store refuses is left to the next call.
        """
        for name, is_due in due.items():
            with suppress(JournalError):
                await self.of(name).give_back(due=is_due)

    def discard(self, holding: Holding) -> None:
        """Forget a holding of which nothing must be remembered: callers may ask for any name."""
        if holding.idle and self._by_name.get(holding.name) is holding:
            del self._by_name[holding.name]

    def resume(self, spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered | None) -> Computation:
        """Recover a computation whose log was taken.

        If its log continues the one of ``recovered``, only the newer records are replayed. Raises
        JournalCorrupt.
        """
        computation = resumed(spec, ownership, loaded, recovered) if recovered is not None else None
        if computation is None:
            began = perf_counter()
            computation = recover(spec, ownership, loaded)
            self._observer.replayed(perf_counter() - began)
        return computation

    async def recovered_in_pieces(self, spec: Spec, loaded: LoadedLog) -> Recovered:
        """Recover a computation from a log that any process may own. Raises JournalCorrupt.

        Other tasks run in between.
        """
        records = [payload for _, payload in loaded.records]
        steps = recovery.steps(spec, loaded.snapshot, records, epoch_base=0)
        done, before, began = 0, 0.0, perf_counter()
        while True:
            try:
                done += STEP_BYTES + next(steps)
            except StopIteration as end:
                self._observer.replayed(before + perf_counter() - began)
                return Recovered(spec, loaded, end.value)
            except recovery.ReplayError as error:
                raise JournalCorrupt(spec.name, None, str(error)) from error
            if done >= self._settings.piece_bytes:
                before += perf_counter() - began
                await asyncio.sleep(0)
                done, began = 0, perf_counter()

    def lose(self, owners: Mapping[str, tuple[int, int]]) -> list[str]:
        """Forget computations that other processes own now; returns the lost ones.

        ``owners`` is as in JournalFenced. A log that this process has taken again since the refused
        call is kept.
        """
        lost = [name for name, (mine, _) in owners.items() if name in self.served and self.epoch(name) <= mine]
        for name in lost:
            epoch = self.epoch(name)
            facts = event("computation_lost", computation=name, epoch=epoch)
            log.warning("another shard serves %s now (epoch %d is over)", name, epoch, extra=facts)
            holding = self.served[name]
            ownership = holding.ownership
            self._release(name)
            holding.log.forget()
            holding.disown(ownership)
            self.discard(holding)
        self.losses += len(lost)
        return lost

    def drop(self, name: str) -> None:
        """Let go of a dropped computation, if it is held, and begin to shorten its log."""
        computation = self._release(name)
        self.unserved_logs.pop(name, None)
        if computation is not None:
            self.endings.begin_held(name, computation)

    def _release(self, name: str) -> Computation | None:
        """Stop holding a computation; return it if it was held."""
        holding = self.served.pop(name, None)
        if holding is None:
            return None
        computation, holding.held = holding.computation, None
        holding.note_equal()
        return computation

    # -- held computations -------------------------------------------------------------------------

    def computation(self, name: str) -> Computation | None:
        """Return a held computation; None for others. From any thread."""
        holding = self.served.get(name)
        return holding.held if holding is not None else None

    def epoch(self, name: str) -> int:
        """Return the epoch under which a computation is held; 0 for others."""
        holding = self.served.get(name)
        return holding.ownership.epoch if holding is not None else 0

    def follow(self, computation: Computation, spec: Spec) -> None:
        """Give a held computation a changed registration of the same incarnation."""
        computation.follow(spec)
        self.served[spec.name].held = of_kind(computation, spec)

    def restart(self, computation: Computation, spec: Spec) -> Computation:
        """Begin a new incarnation of a held computation, even if its last one was torn."""
        holding = self.served[spec.name]
        fresh = holding.held = recovery.restarted(computation, spec)
        if holding.unwritten is not None:
            holding.unwritten.restarted()
        return fresh

    def is_torn(self, name: str) -> bool:
        """Return whether half a change may be in memory, so that the store's copy counts alone."""
        holding = self.served.get(name)
        return holding is not None and holding.is_torn()

    def unwritten(self, name: str) -> Unwritten | None:
        """Return why memory and store may differ; None if they do not, and for others."""
        holding = self.served.get(name)
        return holding.unwritten if holding is not None else None

    def mending(self) -> list[asyncio.Task[None]]:
        """Return the tasks that repair computations whose memory and store differ."""
        return [holding.mending for holding in self._by_name.values() if holding.mending is not None]

    def forget_damage(self, name: str) -> None:
        """Forget the damage of a log that a drop or a reset has replaced."""
        holding = self._by_name.get(name)
        if holding is not None:
            holding.damage = holding.rest = None
            self.discard(holding)

    # -- confirming and healing --------------------------------------------------------------------

    async def confirm(self, names: Iterable[str]) -> int:
        """Confirm that this process owns those of ``names`` that it holds; return the graph's end.

        Raises JournalFenced, JournalLost, JournalFailed, and errors.Unavailable during a heal.
        """
        held_names = [name for name in names if name in self.served]
        self.refuse_doubted(held_names)
        return await self.journal.confirm(held_names)

    def refuse_doubted(self, names: Iterable[str]) -> None:
        """Raise Unavailable if the ownership of any of these cannot be confirmed.

        A write of this process that is under way may have given them a newer ownership.
        """
        names = list(names)
        if any(self._is_renewing(name) for name in names):
            raise errors.Unavailable("records that the store has lost are being put back; ask again in a moment")
        for name in names:
            unwritten = self.unwritten(name)
            if unwritten is not None and self.is_torn(name):
                raise unwritten.refusal(name)

    def undoubted(self) -> list[str]:
        """Return the names of the held computations whose ownership can be confirmed."""
        return [name for name in self.served if not self._is_renewing(name) and not self.is_torn(name)]

    async def _heal(self, name: str) -> None:
        if name == GRAPH:
            await self.graph.heal_loss()
        elif name in self.served:
            await self.served[name].heal()

    def _is_renewing(self, name: str) -> bool:
        holding = self._by_name.get(name)
        return holding is not None and holding.renewing
