"""What a shard holds: the computations it serves, each with its log, and the graph, which belongs to all shards.

    take over: load the log -> recover -> read the graph -> take the log -> load what came since -> read the graph   (fail-over, scale-out)
    let go:    when the journal says that another process took the log, and only then
    heal:      a store that has lost what it acknowledged gets it back from memory, under a new epoch

System prevalence: the state is in memory, and the journal is how the next owner gets it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.slicing import computation_of, of_kind
from lowwater_authority.core.topology import Topology, WrongGraph
from lowwater_authority.engine.holding import Ending, Holding, Recovered, Unwritten, epoch_base
from lowwater_authority.engine.logs import Log, Logs
from lowwater_authority.engine.waiting import Backoff
from lowwater_authority.engine.writes import RETRY_SECONDS
from lowwater_authority.journal import (
    GRAPH,
    End,
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalOutvoted,
    JournalPosition,
    JournalReplaced,
    JournalVersion,
    LoadedLog,
    Ownership,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.settings import ShardSettings
    from lowwater_authority.journal import Journal

STEP_BYTES: Final = 512
"""Bytes that a step of a replay takes besides its records."""

ENDED_AT_ONCE: Final = 4
"""Logs of dropped computations that are made short side by side: one that was not before may be
long."""

WALK_SECONDS: Final = 5.0
"""How long the walk over the logs of all that was dropped waits for one of them before it goes on
with the next."""

WALK_PIECE: Final = 64
"""Names that it passes over at once: less than a millisecond."""

KNOWN_ENDS: Final = 10_000
"""Positions of the graph whose record is remembered, by checksum: so many changes a store may lose
behind one that is damaged."""

OVER: Final = (JournalFenced, JournalOutvoted, JournalVersion, JournalReplaced, JournalClosed)
"""Why a log is not this process's to make short, and will not be."""

log = logging.getLogger(__name__)


class ReadGraph(NamedTuple):
    """The graph as its log had it."""

    loaded: LoadedLog
    topology: Topology


class BrokenGraph(JournalCorrupt):
    """Each record of the graph is whole, but one is a change of another graph than the one in front of it.

    So a store has lost changes, and nobody knew it when others went on. A process that has the graph in memory puts it right.
    """

    def __init__(self, loaded: LoadedLog, reason: str) -> None:
        super().__init__(GRAPH, None, f"{reason}; shards that still serve put it right from memory, then start again")
        self.last = loaded.last
        """Where the log ends."""


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
        self._settings = settings
        self.topology = Topology()
        self.graph = Log(GRAPH, settings.graph_bytes)
        self._read: ReadGraph | None = None
        """The log of the graph as it was read last."""
        self.graph_doubted = False
        """True if the store may have a damaged graph: it could not be read, or another process
        waits because it cannot read it."""
        self.graph_unread = False
        """True if it was damaged when it was read last: shards that have read what is damaged have
        to hear of it, and write it again."""
        self.covered = 0
        """Up to where ``topology`` has what the log of the graph says: what is damaged there can be
        written again from memory."""
        self._ends: dict[int, int] = {}
        """With which record the log ended at each position up to there, by checksum, when that
        became part of ``topology``."""
        self._arriving: Mapping[int, int] = {}
        """Those of a graph that was read, and is about to be used."""
        self._told = ""
        """The damage of the graph that was logged, so that it is not at each attempt to put it
        right."""
        self._known: dict[str, Holding] = {}
        """All that this process has to do with, held or not."""
        self.served: dict[str, Holding] = {}
        """Those of them that are held, in the order in which they were taken."""
        self.logs = Logs(journal, observer, self._heal, may_heal, settings.snapshot_piece)
        self._observer = observer
        self.view = 0
        """The version of the membership by which logs are taken; 0 with one process."""
        self.address = ""
        """Where this process is reached."""
        self.gone: dict[str, Holding] = {}
        """Those that were dropped, and whose logs are being made short."""
        self._ended: dict[str, int] = {}
        """The last incarnation of those that were dropped and whose log is known to be short."""
        self._walk: asyncio.Task[None] | None = None
        """What looks after the logs of all that was dropped, one after the other."""
        self._walk_again = False
        self._places = asyncio.Semaphore(ENDED_AT_ONCE)
        self._settling = asyncio.Event()
        """Set while this process waits for these logs before it stops: each is tried once more."""
        self.let_gone = 0
        """How many computations were let go: by a take that was slow, perhaps one that is to be
        served here."""

    # -- the graph ---------------------------------------------------------------------------------

    async def read_graph(self) -> ReadGraph:
        """Read the graph as the journal has it; :meth:`newer` tells whether there is anything new in it.

        Raises JournalCorrupt, ... What was read before is not read again where the store can tell that the log goes on from there, unless
        the graph is in doubt.
        """
        known = None if self.graph_doubted else self._read
        try:
            loaded = await self.journal.load(GRAPH, known=known.loaded if known is not None else None)
            self._read = read = replayed(loaded, known)
        except (JournalCorrupt, JournalVersion) as error:
            self.graph_doubted = True
            self.graph_unread = isinstance(error, JournalCorrupt)
            raise
        if known is None:
            self.graph_doubted = False
        self.graph_unread = False
        return read

    def use(self, topology: Topology) -> None:
        """Go on with the graph as its log has it, up to where that was read or written.

        O(what is new).
        """
        self.topology = topology
        self._ends.update(self._arriving)
        self._arriving = {}
        self._has_all()

    @property
    def graph_known(self) -> int:
        """Up to where the log of the graph is in ``topology``: what was read, or written, of it may be on its way there."""
        return min(self.graph.position, self.covered)

    def newer(self, read: ReadGraph) -> Topology | None:
        """Return the graph that was read, unless this process knows it already, or a later one."""
        if read.loaded.last <= self.graph.position:
            return None
        self.graph.read(read.loaded)
        self._arriving = read.loaded.tails
        return read.topology

    def graph_record(self, topology: Topology, *, whole: bool) -> bytes:
        """Return what to append for another graph: what changes, unless the log may end with another graph than this process knows."""
        known = self.graph.position > 0 and not whole
        return topology.encode(self.topology if known else None)

    # -- taking over and letting go ----------------------------------------------------------------

    def resume(self, spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered | None) -> Computation:
        """Recover a computation whose log was taken: as it was ``recovered``, with what came since.

        Raises JournalCorrupt.
        """
        computation = resumed(spec, ownership, loaded, recovered) if recovered is not None else None
        return computation if computation is not None else self._recovered(spec, ownership, loaded)

    def of(self, name: str) -> Holding:
        """Return what is known here of a computation, from now on."""
        holding = self._known.get(name)
        if holding is None:
            holding = self._known[name] = Holding(self, Log(name, self._settings.snapshot_bytes))
        return holding

    def known(self, name: str) -> Holding | None:
        """Return what is known here of a computation; None when nothing is."""
        return self._known.get(name)

    def discard(self, holding: Holding) -> None:
        """Forget a computation of which there is nothing to remember: anybody may ask for any name."""
        if holding.idle and self._known.get(holding.name) is holding:
            del self._known[holding.name]

    def mending(self) -> list[asyncio.Task[None]]:
        """Return what is under way to make memory and store one again."""
        return [holding.mending for holding in self._known.values() if holding.mending is not None]

    def computation(self, name: str) -> Computation | None:
        """Return a computation that is held; None for others.

        Also another thread may ask: it may be let go meanwhile.
        """
        holding = self.served.get(name)
        return holding.held if holding is not None else None

    def _disown(self, name: str) -> Computation | None:
        """Hold a computation no more; returns what was held."""
        holding = self.served.pop(name, None)
        if holding is None:
            return None
        computation, holding.held = holding.computation, None
        holding.one_again()
        return computation

    def _recovered(self, spec: Spec, ownership: Ownership, loaded: LoadedLog) -> Computation:
        began = perf_counter()
        computation = _recovered(spec, ownership, loaded)
        self._observer.replayed(perf_counter() - began)
        return computation

    async def recovered_in_pieces(self, spec: Spec, loaded: LoadedLog) -> Recovered:
        """Recover a computation from a log, whoever owns that: to know that it can be, and for what was found to be used. Raises JournalCorrupt.

        Others have the event loop in between.
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

    def let_go(self, owners: Mapping[str, tuple[int, int]]) -> list[str]:
        """Forget computations that other processes own now; returns those that were held.

        ``owners`` is what JournalFenced says: a log that was taken again since the refused call is
        kept.
        """
        gone = [name for name, (mine, _) in owners.items() if name in self.served and self.epoch(name) <= mine]
        for name in gone:
            epoch = self.epoch(name)
            log.warning(
                "another shard serves %s now (epoch %d is over)",
                name,
                epoch,
                extra=event("computation_lost", computation=name, epoch=epoch),
            )
            holding = self.served[name]
            ownership = holding.ownership
            self._disown(name)
            holding.log.forget()
            holding.disown(ownership)
            self.discard(holding)
        self.let_gone += len(gone)
        return gone

    def drop(self, name: str) -> None:
        """Let go of a computation that was dropped, if it is held.

        Its log begins anew, for a next incarnation, before others take it.
        """
        computation = self._disown(name)
        if computation is not None:
            self._begin_to_end(name, computation)

    def end(self, name: str) -> None:
        """Begin to make the log of a dropped computation short, unless it is known to be: its last owner may not have come to it."""
        tombstone = self.topology.dropped.get(name)
        if tombstone is None or name in self.gone or self._ended.get(name, 0) >= tombstone.incarnation:
            return
        self._begin_to_end(name)

    def end_all(self, mine: Callable[[str], bool]) -> None:
        """Begin to do so with all that are ``mine``, one after the other, so that nobody waits for them who wants one of them now. O(1)."""
        self._walk_again = True
        if self._walk is None or self._walk.done():
            self._walk = asyncio.create_task(self._end_all(mine))

    async def _end_all(self, mine: Callable[[str], bool]) -> None:
        while self._walk_again:
            self._walk_again = False
            for number, name in enumerate(list(self.topology.dropped)):
                if number % WALK_PIECE == 0:
                    await asyncio.sleep(0)
                if self._settling.is_set():
                    return
                if not mine(name):
                    continue
                self.end(name)
                if (ending := self._ending(name)) is not None:
                    await asyncio.wait([ending.task], timeout=WALK_SECONDS)

    async def ended(self, name: str) -> None:
        """Return when the log of a dropped computation is short, or another process's: what is registered again begins with a whole log."""
        self.end(name)
        if (ending := self._ending(name)) is not None:
            await asyncio.wait([ending.task])

    async def fenced(self, name: str) -> None:
        """Return when nobody who has owned the log of a dropped computation can write to it; making it short goes on."""
        self.end(name)
        if (ending := self._ending(name)) is not None:
            await ending.fenced.wait()

    def _ending(self, name: str) -> Ending | None:
        """Return what makes the log of a dropped computation short; None when nothing does."""
        holding = self.gone.get(name)
        return holding.ending if holding is not None else None

    def _begin_to_end(self, name: str, computation: Computation | None = None) -> None:
        holding = self.gone[name] = self.of(name)
        holding.ending = Ending(asyncio.create_task(self._end(name, computation)))

    def _over(self, name: str) -> None:
        """The log of a dropped computation is short, or another process's: who waits for it may take it."""
        holding = self.of(name)
        holding.log.forget()
        del self.gone[name]
        ending, holding.ending = holding.ending, None
        assert ending is not None
        ending.fenced.set()
        self.discard(holding)

    async def _end(self, name: str, computation: Computation | None) -> None:
        """Leave as little of a log as its next incarnation needs, however often the store refuses it. Until then nobody takes it."""
        backoff = Backoff(*RETRY_SECONDS)
        try:
            while True:
                try:
                    async with self._places:
                        await self._end_once(name, computation)
                except JournalError as error:
                    facts = event("snapshot_failed", computation=name, reason=str(error))
                    told = logging.WARNING if backoff.first else logging.DEBUG
                    log.log(told, "the log of %s, which was dropped, is not shortened: %s", name, error, extra=facts)
                    if isinstance(error, OVER) or self._settling.is_set():
                        return
                else:
                    return
                await backoff.wait(self._settling)
        finally:
            self._over(name)

    async def _end_once(self, name: str, computation: Computation | None) -> None:
        """End a log: from memory where this process has held it, for the store's copy may be damaged, or the older one."""
        tombstone = self.topology.dropped.get(name)
        if tombstone is None:
            return  # it is registered again
        if computation is None and await self._is_short(tombstone):
            self._ended[name] = tombstone.incarnation
            return
        holding = self.of(name)
        async with holding.writing:
            # Whoever has held it, or was about to, by an ownership before this one does so no more.
            self.journal.release(name)
            ownership = await self.logs.until_known(
                partial(self.journal.take, name, view=self.view, address=self.address)
            )
            try:
                if (ending := self._ending(name)) is not None:
                    ending.fenced.set()
                if self.journal.shared:
                    # Read behind the take: who registers it from here on takes the log from this
                    # process, which then writes nothing any more. Who is alone has all of the graph
                    # in memory, and registers it when this is over.
                    tombstone = (await self.read_graph()).topology.dropped.get(name)
                if tombstone is None:
                    return
                if computation is not None and computation.incarnation >= tombstone.incarnation:
                    payload = _end_of(computation, computation.incarnation)
                else:
                    loaded = await self._left(name)
                    holding.log.read(loaded or LoadedLog(0, None, []))
                    payload = _end_of_stored(tombstone, ownership, loaded)
                ownership = await holding.replace(payload, ownership)
            finally:
                holding.disown(ownership)
        self._ended[name] = tombstone.incarnation

    async def _is_short(self, tombstone: Spec) -> bool:
        loaded = await self._left(tombstone.name)
        return loaded is not None and _has_ended(loaded, tombstone.incarnation)

    async def _left(self, name: str) -> LoadedLog | None:
        """Read what is left of a log; None when it is damaged."""
        try:
            return await self.journal.load(name)
        except JournalCorrupt as damage:
            _tell_unread(name, damage)
            return None

    async def settle(self) -> None:
        """Wait for the logs that are being shortened since their computations were dropped: each is tried once more, and none is begun."""
        self._settling.set()
        if self._walk is not None:
            await asyncio.wait([self._walk])
        while self.gone:
            await asyncio.wait([holding.ending.task for holding in self.gone.values() if holding.ending is not None])
        self._settling.clear()

    def epoch(self, name: str) -> int:
        """Return the number under which a computation is held; 0 when it is not."""
        holding = self.served.get(name)
        return holding.ownership.epoch if holding is not None else 0

    def forget_damage(self, name: str) -> None:
        """Forget what was found wrong with the log of a computation: it was dropped, or a reset has replaced it."""
        holding = self._known.get(name)
        if holding is not None:
            holding.damage = holding.rest = None
            self.discard(holding)

    def is_torn(self, name: str) -> bool:
        """Return whether half a change may be in memory, so that the store's copy counts alone."""
        holding = self.served.get(name)
        return holding is not None and holding.is_torn()

    def unwritten(self, name: str) -> Unwritten | None:
        """Return why a held computation is not in memory as the store has it; None when it is, and for others."""
        holding = self.served.get(name)
        return holding.unwritten if holding is not None else None

    def is_unwritten(self, name: str) -> bool:
        """Return whether a held computation is not in memory as the store has it."""
        return self.unwritten(name) is not None

    def is_kept(self, name: str) -> bool:
        """Return whether memory counts, or nothing does, because the store cannot be read back."""
        holding = self.served.get(name)
        return holding is not None and holding.is_kept()

    def follow(self, computation: Computation, spec: Spec) -> None:
        """Go on with another registration of a held computation, of the same incarnation."""
        computation.follow(spec)
        self.served[spec.name].held = of_kind(computation, spec)

    def restart(self, computation: Computation, spec: Spec) -> Computation:
        """Begin a new incarnation of a held computation, which is whole whatever was half done in the one before."""
        holding = self.served[spec.name]
        fresh = holding.held = recovery.restarted(computation, spec)
        if holding.unwritten is not None:
            holding.unwritten.restarted()
        return fresh

    # -- confirming and healing --------------------------------------------------------------------

    async def confirm(self, names: Iterable[str]) -> int:
        """Return where the graph ends, after a check that the journal knows this process as the owner of computations.

        Raises JournalFenced, JournalLost and JournalFailed, and errors.Unavailable when nobody can tell.
        """
        held = [name for name in names if name in self.served]
        self.refuse_doubted(held)
        return await self.journal.confirm(held)

    def refuse_doubted(self, names: Iterable[str]) -> None:
        """Raise Unavailable where an attempt of this process's own may have made a newer owner than it knows."""
        names = list(names)
        if any(self._is_renewing(name) for name in names):
            raise errors.Unavailable("what the store has lost is being put back; ask again in a moment")
        for name in names:
            unwritten = self.unwritten(name)
            if unwritten is not None and self.is_torn(name):
                raise unwritten.refusal(name)

    def undoubted(self) -> list[str]:
        """Return the names of the computations of which it can be asked who owns them."""
        return [name for name in self.served if not self._is_renewing(name) and not self.is_torn(name)]

    async def heal(self, error: JournalLost) -> None:
        """Put back what the store has lost.

        All that is staged must be durable, or be meant to be.
        """
        await self.logs.heal(error)

    async def _heal(self, name: str) -> None:
        if name == GRAPH:
            await self._heal_graph()
        elif name in self.served:
            await self.served[name].heal()

    def _is_renewing(self, name: str) -> bool:
        holding = self._known.get(name)
        return holding is not None and holding.renewing

    async def heal_graph(self, damage: JournalCorrupt) -> None:
        """Write a graph again that is damaged in the store, from memory and the records behind what is in memory.

        Only if all that cannot be read is in memory: what this process has not read may be a change that was acknowledged, and is not to be
        lost. Raises JournalFailed when it is not, or nothing can be written now, and JournalPosition when it is to be read then.
        """
        self.logs.refuse_to_heal(damage)
        await self._write_graph_again(damage)

    async def mend_graph(self) -> None:
        """Do the same when this process ends and the graph turns out to be damaged, or short.

        Reads all of it.

        Raises JournalLost, JournalVersion, JournalFailed and JournalUnknown.
        """
        if not self.covered:
            return
        try:
            replayed(await self.journal.load(GRAPH))
        except (JournalCorrupt, JournalLost) as damage:
            with suppress(
                JournalPosition
            ):  # others have changed it, or are to read it; this process goes on with nothing
                await self._write_graph_again(damage)

    async def _write_graph_again(self, damage: JournalCorrupt | JournalLost) -> None:
        over, behind = await self._covered_end(), None
        topology = self.topology
        if over is None:
            if isinstance(damage, JournalLost):
                raise damage
            behind = await self._behind(damage)
            over, topology = behind.end, self.topology.replayed(payload for _, payload in behind.records)
        if str(damage) != self._told:
            self._told = str(damage)
            msg = "the graph is damaged in the store, %s; it is written again from memory, which has all of it"
            log.error(msg, damage, extra=event("damaged_graph_mended", reason=str(damage)))
        await self._restore_graph(topology, over)
        if behind is not None and behind.records:
            self.forget_graph()
            raise JournalPosition(GRAPH, position=0, last=0, reason="what other shards have added is to be read")
        self._has_all()

    async def _behind(self, damage: JournalCorrupt) -> LoadedLog:
        """Read what others have added to the graph behind what is in memory.

        Raises JournalFailed where that cannot be read, or does not follow.
        """
        try:
            behind = await self.journal.load_behind(GRAPH, self.covered)
            self.topology.replayed(payload for _, payload in behind.records)
        except (JournalCorrupt, WrongGraph) as unread:
            at = "" if damage.position is None else f" at position {damage.position}"
            msg = (
                f"the graph is damaged{at}: {damage.reason}; this shard has read it up to position {self.covered} only, and more than that is "
                "damaged. A shard that has read that writes it again as soon as it hears of it; if none lives, restore a copy of the journal"
            )
            raise JournalFailed(msg) from unread
        except (JournalLost, JournalVersion) as error:
            raise JournalFailed(str(error)) from error
        return behind

    async def _covered_end(self) -> End | None:
        """Return where the store ends the graph, if memory has all that it ever said up to there, whatever is damaged; None when it may say more.

        Nobody can append there but behind all that was there: so a log that ends with a record that is known is the log that was known,
        perhaps short of its newest records.
        """
        try:
            end = await self.journal.end(GRAPH)
        except JournalLost:
            end = End()
        known = not end.last or (end.last <= self.covered and self._ends.get(end.last) == end.tail)
        return end if self.covered and known else None

    async def _restore_graph(self, topology: Topology, over: End) -> None:
        """Make a graph all there is of its log, as long as that ends where it was read: what others have added since is not in it."""
        position = self.graph.position
        self.graph.reached(max(over.last, self.covered, self.journal.acknowledged(GRAPH).last))
        try:
            await self.logs.restore(
                self.graph,
                topology.encode(),
                view=self.view,
                address=self.address,
                over=over,
                newest=topology.needs_newest,
            )
        except BaseException:
            # What this process knows of it is as new as before, whatever it cannot write.
            self.graph.position = position
            raise
        self._told = ""

    def _has_all(self) -> None:
        """Memory is what the log of the graph says, up to where it was read or written."""
        self.covered = self.graph.position
        end = self.journal.acknowledged(GRAPH)
        if end.last == self.covered:  # else others have gone on, and were read, but not understood yet
            self._ends[end.last] = end.tail
        while len(self._ends) > KNOWN_ENDS:
            del self._ends[next(iter(self._ends))]

    def forget_graph(self) -> None:
        """The log of the graph is to be read again."""
        self.graph.forget()
        self._arriving = {}

    async def _heal_graph(self) -> None:
        """Whatever other shards have written on top of what is left stays; this process reads it afterwards."""
        covered = await self._covered_end()
        if covered is not None:
            await self._restore_graph(self.topology, covered)
            self._has_all()
            return
        self.journal.release(GRAPH)
        # What is in memory is of a log that is over.
        self.covered, left, over = 0, Topology(), End()
        self._ends.clear()
        try:
            try:
                loaded = await self.journal.load(GRAPH)
                over = loaded.end
                try:
                    left = replayed(loaded).topology
                except BrokenGraph:
                    left = Topology.gathered(_payloads(loaded))
            except JournalLost:
                log.warning("nothing is left of the graph", extra=event("graph_lost"))
            merged = self.topology.merged(left, prefer_other=True)
            await self._restore_graph(merged, over)
        except JournalPosition:
            log.info("another shard has put the graph back, or gone on with it", extra=event("graph_restored"))
            self.forget_graph()
            merged = left
        except BaseException as error:
            self.forget_graph()  # so that it is read, and what it lacks is written, at the next look
            if isinstance(error, JournalCorrupt):
                # What others have put in the place of what was lost is not to be guessed: who has
                # written it has it in memory.
                self.graph_doubted = self.graph_unread = True
            if isinstance(error, JournalCorrupt | JournalVersion):
                raise JournalFailed(str(error)) from error
            raise
        if merged != self.topology:
            # What is staged was staged against another graph.
            self.forget_graph()
            raise JournalPosition(GRAPH, position=0, last=0, reason="other shards have changed it meanwhile")
        self._has_all()


def replayed(loaded: LoadedLog, known: ReadGraph | None = None) -> ReadGraph:
    """Return the graph in a log: its snapshot is the whole graph, a record the whole or what it changes. Raises BrokenGraph.

    ``known`` is what an earlier state of the log said: where this one goes on from there, only what has come since is decoded.
    """
    begun = known is not None and _goes_on(loaded, known.loaded)
    graph, done = (known.topology, len(known.loaded.records)) if known is not None and begun else (Topology(), 0)
    payloads = [payload for _, payload in loaded.records[done:]] if begun else _payloads(loaded)
    if not payloads:
        return ReadGraph(loaded, graph)
    try:
        return ReadGraph(loaded, graph.replayed(payloads))
    except WrongGraph as error:
        raise BrokenGraph(loaded, str(error)) from error


def _payloads(loaded: LoadedLog) -> list[bytes]:
    """Return all that a log says, oldest first."""
    payloads = [payload for _, payload in loaded.records]
    return payloads if loaded.snapshot is None else [loaded.snapshot, *payloads]


def whole(loaded: LoadedLog, forget: Collection[str] = ()) -> bytes:
    """Return the graph in a log as one payload, without the tombstones of the namespaces ``forget``. Raises JournalCorrupt."""
    graph = replayed(loaded).topology
    for namespace in forget:
        graph = graph.without_tombstones(namespace)
    return graph.encode()


def needs_newest(payload: bytes) -> bool:
    """See Topology.needs_newest; of a graph as :func:`whole` returns it."""
    return Topology.decode(payload).needs_newest


def _goes_on(loaded: LoadedLog, known: LoadedLog) -> bool:
    """Return whether a log is as it was known, with perhaps more behind it."""
    same = known.snapshot_position == loaded.snapshot_position and known.snapshot == loaded.snapshot
    return same and known.records == loaded.records[: len(known.records)]


def _has_ended(loaded: LoadedLog, incarnation: int) -> bool:
    """Return whether there is nothing in a log but what the incarnation after a dropped one needs."""
    if loaded.records or loaded.snapshot is None:
        return not loaded.last
    try:
        return recovery.incarnation(loaded.snapshot) > incarnation
    except recovery.ReplayError:
        return False


def _tell_unread(name: str, damage: JournalCorrupt) -> None:
    log.warning("%s; its computation was dropped", damage, extra=event("damaged_log_dropped", computation=name))


def _end_of(computation: Computation, incarnation: int) -> bytes:
    """Return what the incarnation after a dropped one begins with."""
    after = replace(computation.spec, incarnation=incarnation + 1, first=incarnation + 1)
    return recovery.snapshot(recovery.restarted(computation, after))


def _end_of_stored(tombstone: Spec, ownership: Ownership, loaded: LoadedLog | None) -> bytes:
    """Return the same from what is stored.

    Of what cannot be read nothing leads to the next incarnation but the sequencers, which must not
    be granted again. They are counted from the number of their owner, and this process has a
    greater one than all before it.
    """
    try:
        if loaded is not None:
            return _end_of(_recovered(tombstone, ownership, loaded), tombstone.incarnation)
    except JournalCorrupt as damage:
        _tell_unread(tombstone.name, damage)
    lost = computation_of(tombstone, epoch_base=epoch_base(ownership))
    lost.last_sequencer = lost.epoch_base
    return _end_of(lost, tombstone.incarnation)


def resumed(spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered) -> Computation | None:
    """Replay what came since a computation was recovered; None when the log does not go on from there, or for another incarnation."""
    known = recovered.loaded
    if recovered.spec != spec or not _goes_on(loaded, known):
        return None
    since = [payload for _, payload in loaded.records[len(known.records) :]]
    try:
        return recovery.resume(recovered.computation, since, epoch_base=epoch_base(ownership))
    except recovery.ReplayError:
        return None


def _recovered(spec: Spec, ownership: Ownership, loaded: LoadedLog) -> Computation:
    records = [payload for _, payload in loaded.records]
    try:
        return recovery.recover(spec, loaded.snapshot, records, epoch_base=epoch_base(ownership))
    except recovery.ReplayError as error:
        raise JournalCorrupt(spec.name, None, str(error)) from error
