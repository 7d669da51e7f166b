"""The graph of a deployment on one shard, and its log, to which all shards write.

    read -> newer -> use        changes of other shards
    record -> append -> use     changes of this shard, in a round

The store may lose or damage records of the graph. A shard puts the log right only when memory has
all that the log ever said: a record that memory lacks may be an acknowledged change of another
shard, and the repair would lose it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater.core.events import event
from lowwater_authority.core.topology import Topology, WrongGraph
from lowwater_authority.engine.logs import Log, continues
from lowwater_authority.journal import (
    GRAPH,
    End,
    JournalCorrupt,
    JournalFailed,
    JournalLost,
    JournalPosition,
    JournalVersion,
    LoadedLog,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lowwater_authority.engine.logs import Logs
    from lowwater_authority.journal import Journal

KNOWN_ENDS: Final = 10_000
"""Most positions of the graph's log whose record is remembered, by checksum.

A store may lose as many changes behind a damaged one, and the log is still recognised."""

log = logging.getLogger(__name__)


class ReadGraph(NamedTuple):
    """A graph, with the log that it was read from."""

    loaded: LoadedLog
    topology: Topology


class BrokenGraph(JournalCorrupt):
    """The records of the graph are whole, but one is a change of another graph than the one before.

    The store has lost changes, and a shard has appended others before this was known. A shard that
    has the graph in memory puts the log right.
    """

    def __init__(self, loaded: LoadedLog, reason: str) -> None:
        super().__init__(GRAPH, None, f"{reason}; shards that still serve put it right from memory, then start again")
        self.last = loaded.last
        """Position at which the log ends."""


class GraphLog:
    """The graph as this process has it. All methods are called on its event loop."""

    def __init__(self, journal: Journal, logs: Logs, snapshot_after: int) -> None:
        self.logs = logs
        self.log = Log(GRAPH, snapshot_after)
        self.topology = Topology()
        self.doubted = False
        """True if the store may have a damaged graph: this process could not read it, or another
        process waits because it cannot read it."""
        self.unread = False
        """True if the last reading found damage. Shards that have read the damaged records are told
        of this, and write them again."""
        self.covered = 0
        """Position up to which ``topology`` has all changes of the log. Damage up to there can be
        written again from memory."""
        self._journal = journal
        self._read: ReadGraph | None = None
        """The newest reading."""
        self._ends: dict[int, int] = {}
        """Checksum of the last record by position of the log's end, for ends that ``topology``
        covered."""
        self._arriving: Mapping[int, int] = {}
        """``_ends`` of a reading that :meth:`use` has not taken over yet."""
        self._logged = ""
        """Damage that was logged. Each is logged once, and not at each attempt to repair it."""

    async def read(self) -> ReadGraph:
        """Read the graph from the store; :meth:`newer` says whether it is news.

        Reads only what came since the newest reading, where the store can tell that the log
        continues it, unless the graph is in doubt. Raises JournalCorrupt, JournalVersion, ...
        """
        before = None if self.doubted else self._read
        try:
            loaded = await self._journal.load(GRAPH, before=before.loaded if before is not None else None)
            self._read = read = replayed(loaded, before)
        except (JournalCorrupt, JournalVersion) as error:
            self.doubted = True
            self.unread = isinstance(error, JournalCorrupt)
            raise
        if before is None:
            self.doubted = False
        self.unread = False
        return read

    def newer(self, read: ReadGraph) -> Topology | None:
        """Return a graph that was read; None if this process has the same or a later one."""
        if read.loaded.last <= self.log.position:
            return None
        self.log.read(read.loaded)
        self._arriving = read.loaded.tails
        return read.topology

    def use(self, topology: Topology) -> None:
        """Go on with a graph that was read or written. O(new records)."""
        self.topology = topology
        self._ends.update(self._arriving)
        self._arriving = {}
        self._cover()

    @property
    def used(self) -> int:
        """Position up to which ``topology`` has the log. Newer records may be on their way."""
        return min(self.log.position, self.covered)

    def record(self, topology: Topology, *, whole: bool) -> bytes:
        """Return the record of another graph: its changes, or with ``whole`` all of it.

        An empty log gets all of it, too.
        """
        over = self.topology if self.log.position > 0 and not whole else None
        return topology.encode(over)

    def forget(self) -> None:
        """Forget where the log ends, so that it is read again."""
        self.log.forget()
        self._arriving = {}

    # -- repair ------------------------------------------------------------------------------------

    async def heal_damage(self, damage: JournalCorrupt) -> None:
        """Write a damaged graph again, from memory and the records behind what memory has.

        Raises JournalFailed if more is damaged than memory has, or if nothing can be written now.
        Raises JournalPosition if the graph must be read then.
        """
        self.logs.refuse_to_heal(damage)
        await self._write_again(damage)

    async def mend(self) -> None:
        """Read all of the graph, and write it again if it is damaged or short: this process ends.

        Raises JournalLost, JournalVersion, JournalFailed and JournalUnknown.
        """
        if not self.covered:
            return
        try:
            replayed(await self._journal.load(GRAPH))
        except (JournalCorrupt, JournalLost) as damage:
            with suppress(JournalPosition):  # the graph must be read again, but this process ends
                await self._write_again(damage)

    async def heal_loss(self) -> None:
        """Put back what the store has lost. Records that other shards wrote since stay.

        Raises JournalPosition if the graph must be read then, JournalFailed, ...
        """
        over = await self._covered_end()
        if over is not None:
            await self._restore(self.topology, over)
            self._cover()
            return
        self._journal.release(GRAPH)
        # The positions of the log in memory mean nothing any more.
        self.covered, stored, over = 0, Topology(), End()
        self._ends.clear()
        try:
            try:
                loaded = await self._journal.load(GRAPH)
                over = loaded.end
                try:
                    stored = replayed(loaded).topology
                except BrokenGraph:
                    stored = Topology.gathered(_payloads(loaded))
            except JournalLost:
                log.warning("nothing is left of the graph", extra=event("graph_lost"))
            merged = self.topology.merged(stored, prefer_other=True)
            await self._restore(merged, over)
        except JournalPosition:
            log.info("another shard has put the graph back, or gone on with it", extra=event("graph_restored"))
            self.forget()
            merged = stored
        except BaseException as error:
            self.forget()  # so the next look reads the graph, and writes what it lacks
            if isinstance(error, JournalCorrupt):
                # The shard that wrote the damaged record has it in memory, and writes it again.
                self.doubted = self.unread = True
            if isinstance(error, JournalCorrupt | JournalVersion):
                raise JournalFailed(str(error)) from error
            raise
        if merged != self.topology:
            # The round in progress was staged on another graph.
            self.forget()
            raise JournalPosition(GRAPH, position=0, last=0, reason="other shards have changed it meanwhile")
        self._cover()

    async def _write_again(self, damage: JournalCorrupt | JournalLost) -> None:
        over, behind = await self._covered_end(), None
        topology = self.topology
        if over is None:
            if isinstance(damage, JournalLost):
                raise damage
            behind = await self._behind(damage)
            over, topology = behind.end, self.topology.replayed(payload for _, payload in behind.records)
        if str(damage) != self._logged:
            self._logged = str(damage)
            msg = "the graph is damaged in the store, %s; it is written again from memory, which has all of it"
            log.error(msg, damage, extra=event("damaged_graph_mended", reason=str(damage)))
        await self._restore(topology, over)
        if behind is not None and behind.records:
            self.forget()
            raise JournalPosition(
                GRAPH, position=0, last=0, reason="other shards have added changes, which must be read"
            )
        self._cover()

    async def _behind(self, damage: JournalCorrupt) -> LoadedLog:
        """Read the records that other shards appended behind what memory has.

        Raises JournalFailed if these cannot be read, or do not follow the graph in memory.
        """
        try:
            behind = await self._journal.load_behind(GRAPH, self.covered)
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
        """Return where the store ends the graph, if memory has all up to there; None if it may not.

        A shard can append only behind all records that the log had. So if the log ends with a known
        record, it is the known log, perhaps without its newest records.
        """
        try:
            end = await self._journal.end(GRAPH)
        except JournalLost:
            end = End()
        same = not end.last or (end.last <= self.covered and self._ends.get(end.last) == end.tail)
        return end if self.covered and same else None

    async def _restore(self, topology: Topology, over: End) -> None:
        """Replace the log by a snapshot, if it still ends at ``over``.

        Otherwise another shard has appended a record that the snapshot lacks.
        """
        position = self.log.position
        self.log.reached(max(over.last, self.covered, self._journal.acknowledged(GRAPH).last))
        try:
            await self.logs.restore(self.log, topology.encode(), over=over, newest=topology.needs_newest)
        except BaseException:
            # The graph in memory is as new as before, even if nothing was written.
            self.log.position = position
            raise
        self._logged = ""

    def _cover(self) -> None:
        """Note that memory has all of the log, up to where it was read or written."""
        self.covered = self.log.position
        end = self._journal.acknowledged(GRAPH)
        if end.last == self.covered:  # else a later end was read, and is not in ``topology`` yet
            self._ends[end.last] = end.tail
        while len(self._ends) > KNOWN_ENDS:
            del self._ends[next(iter(self._ends))]


def replayed(loaded: LoadedLog, before: ReadGraph | None = None) -> ReadGraph:
    """Return the graph in a log. Raises BrokenGraph.

    A snapshot is a whole graph; a record is a whole graph, or the changes of one. ``before`` is an
    earlier reading: if the log continues it, only the new records are decoded.
    """
    goes_on = before is not None and continues(loaded, before.loaded)
    graph, done = (before.topology, len(before.loaded.records)) if before is not None and goes_on else (Topology(), 0)
    payloads = [payload for _, payload in loaded.records[done:]] if goes_on else _payloads(loaded)
    if not payloads:
        return ReadGraph(loaded, graph)
    try:
        return ReadGraph(loaded, graph.replayed(payloads))
    except WrongGraph as error:
        raise BrokenGraph(loaded, str(error)) from error


def whole(loaded: LoadedLog, forget: Collection[str] = ()) -> bytes:
    """Return the graph in a log as one payload. Raises JournalCorrupt.

    Tombstones of the namespaces ``forget`` are left out.
    """
    graph = replayed(loaded).topology
    for namespace in forget:
        graph = graph.without_tombstones(namespace)
    return graph.encode()


def needs_newest(payload: bytes) -> bool:
    """Return ``Topology.needs_newest`` of a graph that :func:`whole` has returned."""
    return Topology.decode(payload).needs_newest


def _payloads(loaded: LoadedLog) -> list[bytes]:
    """Return all payloads of a log, oldest first."""
    payloads = [payload for _, payload in loaded.records]
    return payloads if loaded.snapshot is None else [loaded.snapshot, *payloads]
