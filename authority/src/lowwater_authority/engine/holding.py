"""One computation on a shard, from the first look at its log until it is lost or dropped.

    absent --read--> reading --take--> taking --replay--> serving <---> in doubt
       ^                |                 |                  |              |
       +---- failed ----+---- failed -----+---- lost --------+--------------+
       +<-- its log is short, or is another process's -- gone <-- dropped, from any of them

- absent: no caller wants it here, or its log is damaged and is left alone for a while. A take-over
  may begin.
- reading: its log is read and replayed, and its owner goes on. Clients are sent to the owner.
- taking: the log is taken, and the records that came since are replayed. Nothing is answered yet.
- serving: the computation is in memory as the store has it. Everything may be done.
- in doubt: memory and store may differ (``Memory``), or its ownership is being renewed. Published
  values stay; everything else waits, or is refused.
- gone: it was dropped, and its log is being shortened. Until then the log is not taken.

Only the journal tells this process that another one has replaced it (JournalFenced), never a clock.
So a served computation ends by ``Holdings.lose`` or by a drop, and by nothing else. Code that has
waited for the store looks at the state again, because the computation may be absent by then, or
taken anew. ``Log.reading`` tells a round which of these its records were staged on.

The fields tell the state, which is stored nowhere else: so no two fields contradict each other.
``Memory``, ``Unwritten`` and ``Damage`` are pure. Methods below "with the store" go to
the store, and their callers handle the errors: a round rolls back by ``reload``, ``Logs.heal`` puts
back lost records, ``Repair`` repairs beside the rounds, a stop mends. ``Takeover`` takes each
computation over once for all callers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core import recovery
from lowwater_authority.engine.logs import continues
from lowwater_authority.engine.waiting import Backoff
from lowwater_authority.engine.writes import RETRY_SECONDS
from lowwater_authority.journal import (
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalOutvoted,
    JournalPosition,
    JournalVersion,
    Ownership,
)
from lowwater_authority.journal.rules import is_usurped

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.graph_log import GraphLog
    from lowwater_authority.engine.logs import Log, Logs
    from lowwater_authority.journal import Journal, JournalError, LoadedLog

_logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 64 << 10
"""Most bytes of a small log. Once a small log is read, its take-over waits in no queue, so that
hundreds are under way at the store; see Takeover."""

NOBODY: Final = Ownership()
"""Ownership of a log that this process does not own."""

ORPHAN_SECONDS: Final = 5.0
"""Longest rest of a damaged log while no process serves the computation, in seconds."""

NONCE_BITS: Final = 0xFFF

COUNTER_BITS: Final = 28
"""Bits of a sequencer below the epoch and the nonce."""


def epoch_base(ownership: Ownership) -> int:
    """Return the base of a computation's sequencers: epoch and nonce above a counter of 28 bits.

    So sequencers grow even if the store loses the newest records. A store that has lost an epoch
    may give the same epoch to two owners; the nonce keeps these apart.
    """
    return ownership.epoch << 40 | (ownership.nonce & NONCE_BITS) << COUNTER_BITS


class Recovered(NamedTuple):
    """A computation that was recovered from a log, with that log and the registration used."""

    spec: Spec
    loaded: LoadedLog
    computation: Computation


class Taken(NamedTuple):
    """A log that this process has taken, with its content after the take."""

    ownership: Ownership
    """Ownership under which the log may be written, until the journal knows a newer one."""
    loaded: LoadedLog


class Memory(Enum):
    """Why the copy in memory differs from the store.

    While it differs, nothing of the computation is changed or published. A copy goes from torn to
    unreadable, and to only copy by a new incarnation. Each ends when the computation is written,
    read again, or held no longer.
    """

    TORN = "torn"
    """Half a change may be in memory. The log is being read back, and nothing is written."""
    UNREADABLE = "unreadable"
    """Half a change may be in memory, and the log cannot be read back. The computation goes on when
    the log can be read, or begins a new incarnation."""
    ONLY_COPY = "only copy"
    """Memory is the only good copy: the store refused the newest record, and the log cannot be read
    back. The log is written again from memory."""


@dataclass(slots=True, eq=False)
class Unwritten:
    """State of a held computation while memory and store may differ."""

    memory: Memory
    reason: JournalError | None = None
    """Error of the last attempt to read the log back; None while it is torn."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when memory and store are equal again, or the copy is no longer torn."""

    @property
    def torn(self) -> bool:
        """True if half a change may be in memory, so that the store's copy counts alone."""
        return self.memory is not Memory.ONLY_COPY

    @property
    def log_unreadable(self) -> bool:
        """True if the log cannot be read back, so that the computation stays in memory."""
        return self.memory is not Memory.TORN

    def note_unreadable(self, reason: JournalError) -> None:
        """Note that the log cannot be read back."""
        self.reason = reason
        if self.memory is Memory.TORN:
            self.memory = Memory.UNREADABLE

    def restarted(self) -> None:
        """Note that a new incarnation has begun, which is whole, and only in memory."""
        self.memory = Memory.ONLY_COPY
        self.changed.set()

    def refusal(self, name: str) -> errors.Unavailable:
        """Return the refusal of requests to the computation."""
        if self.memory is Memory.TORN:
            msg = f"a request to {name} failed half way, and {name} is read back from the store first: try again in a moment"
        elif self.memory is Memory.UNREADABLE:
            msg = (
                f"a request to {name} failed half way, and its log cannot be read back: {name} goes on when it can. Restore a copy; "
                "or reset it, or drop it by force"
            )
        else:
            msg = (
                f"{name} is written again from memory first, because its log is damaged and the store has refused the newest record: try "
                "again in a moment"
            )
        return errors.Unavailable(msg, metadata={"computation": name})


@dataclass(slots=True, eq=False)
class Damage:
    """Damage of a log, or a log of a newer release. The log is not read for a while."""

    reason: JournalError
    until: float
    """Processing time until which the log is not read, in microseconds."""
    seconds: float
    """Length of this rest, in seconds."""
    orphaned: bool = False
    """True if no process was found that serves the computation, since the log was read last."""

    def served_elsewhere(self) -> None:
        """Note that another shard serves the computation."""
        self.orphaned = False

    def orphan(self, now: int) -> bool:
        """Note that no process serves the computation. Returns whether that is news."""
        if self.orphaned:
            return False
        self.orphaned = True
        self.until = min(self.until, now + ORPHAN_SECONDS * 1e6)
        return True


@dataclass(slots=True, eq=False)
class Rest:
    """Pause after several failed take-overs in a row, because of the store or the graph."""

    reason: str
    until: float
    """Processing time at which the next attempt may begin, in microseconds."""
    seconds: float
    """Length of the next rest, if that attempt fails too."""


class Once:
    """Work that runs once at a time, for all callers. It goes on when the callers are gone."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: asyncio.Task[bool] | None = None
        """Task of the running work; None: no work runs."""

    def begin(self, work: Callable[[], Coroutine[None, None, bool]], ended: Callable[[], None]) -> asyncio.Task[bool]:
        """Return the running task, begun if there is none; ``ended`` is called after it."""

        def over(task: asyncio.Task[bool]) -> None:
            self.task = None
            if not task.cancelled():
                task.exception()  # fetched even if all callers are gone
            ended()

        if self.task is None:
            self.task = asyncio.create_task(work())
            self.task.add_done_callback(over)
        return self.task


@dataclass(slots=True, eq=False)
class Ending:
    """Task that shortens the log of a dropped computation. Until its end the log is not taken."""

    task: asyncio.Task[None]
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the log is taken, so that no earlier owner can write to it any more."""


class Neighbours(Protocol):
    """Part of Holdings that one holding uses. A protocol, because Holdings imports this module."""

    journal: Journal
    logs: Logs
    graph: GraphLog
    served: dict[str, Holding]
    unserved_logs: defaultdict[str, set[int]]

    @property
    def topology(self) -> Topology:
        """The graph, as far as this process has read it."""
        ...

    def discard(self, holding: Holding) -> None:
        """Forget a holding of which nothing must be remembered."""
        ...

    async def recovered_in_pieces(self, spec: Spec, loaded: LoadedLog) -> Recovered:
        """Recover a computation from a log. Raises JournalCorrupt."""
        ...

    def resume(self, spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered | None) -> Computation:
        """Recover a computation whose log was taken. Raises JournalCorrupt."""
        ...


@dataclass(slots=True, eq=False)
class Holding:
    """One computation on this shard. See the top of this module for its states."""

    among: Neighbours
    """Holdings of this process."""
    log: Log
    held: Computation | None = None
    """The served computation; None: not served."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock around changes of the ownership. A restore names the next position of the log, which
    another change would move."""
    renewing: bool = False
    """True while the ownership is being renewed: the store may have a newer one than this process
    knows."""
    unwritten: Unwritten | None = None
    """Set while memory and store may differ. The published values stay true."""
    take: Once = field(default_factory=Once)
    """Take-over of the computation."""
    turn: Once = field(default_factory=Once)
    """Take-over that waits for its turn in the queue before it begins ``take``."""
    arriving: bool = False
    """True while the log is read or taken, until the computation is served or given up."""
    damage: Damage | None = None
    """Damage that the last reading of the log has found."""
    read_small: asyncio.Event = field(default_factory=asyncio.Event)
    """Set during a take-over, once the log was read and is small."""
    rest: Rest | None = None
    """Pause after failed take-overs, other than for damage."""
    mending: asyncio.Task[None] | None = None
    """Task that writes an only copy, or reads back a torn one; see Repair."""
    ending: Ending | None = None
    """Set while the log of the dropped computation is shortened."""

    @property
    def name(self) -> str:
        """The computation's name, which is also its log's."""
        return self.log.name

    @property
    def ownership(self) -> Ownership:
        """Ownership of the log, as the journal knows it; epoch 0 if it is not held."""
        return self.among.journal.ownership(self.name) if self.held is not None else NOBODY

    @property
    def computation(self) -> Computation:
        """The computation, while this process serves it."""
        assert self.held is not None, f"{self.name} is not held"
        return self.held

    def is_held(self) -> bool:
        """Return whether the computation is served. Ask again after each wait for the store."""
        return self.held is not None

    @property
    def idle(self) -> bool:
        """True if nothing of the computation must be remembered."""
        # A snapshot under way does not count: its ownership is over, and it uses nothing of this.
        under_way = (self.take.task, self.turn.task, self.mending, self.ending)
        busy = self.arriving or self.renewing or self.writing.locked()
        remembered = (self.held, self.damage, self.rest, *under_way)
        return not busy and all(thing is None for thing in remembered)

    def is_torn(self) -> bool:
        """Return whether half a change may be in memory, so that the store's copy counts alone."""
        return self.unwritten is not None and self.unwritten.torn

    def is_log_unreadable(self) -> bool:
        """Return whether the computation stays in memory because its log cannot be read back."""
        return self.unwritten is not None and self.unwritten.log_unreadable

    def note_equal(self) -> bool:
        """Note that memory and store are equal, or that the computation is held no longer.

        Returns whether they differed before.
        """
        before, self.unwritten = self.unwritten, None
        if before is not None:
            before.changed.set()
        return before is not None

    # -- with the store: taking over ---------------------------------------------------------------

    async def take_over(self, mine: Callable[[str], bool], refresh: Callable[[], Awaitable[None]]) -> Computation:
        """Serve the computation from here on.

        Its log is read and checked while the owner still serves it. Then the log is taken, and the
        newer records are replayed. ``refresh`` reads the graph, first before the log is taken:
        while the graph cannot be read, the owner goes on. Raises JournalOutvoted if the computation
        is not ``mine``, UnknownComputation, JournalCorrupt, JournalFailed, Unavailable, ...
        """
        among, shared = self.among, self.among.journal.shared
        try:
            recovered = await self._recover_stored(refresh) if shared else None
            loaded = recovered.loaded if recovered is not None else None
            if loaded is not None and loaded.size <= SMALL_BYTES:
                self.read_small.set()

            async def own() -> Taken:
                if shared:
                    await refresh()
                return await self.own(mine, loaded)

            taken_log = await among.logs.until_known(own)
            try:
                if shared:
                    # The log may be of an incarnation that this process has not read yet.
                    await refresh()
                return self.hold(taken_log, recovered)
            except BaseException:
                self.disown(taken_log.ownership)
                raise
        finally:
            self.arriving = False
            self.read_small.clear()

    async def _recover_stored(self, refresh: Callable[[], Awaitable[None]]) -> Recovered:
        """Recover the computation from its log, which another process may own.

        Raises JournalCorrupt, JournalVersion, JournalFailed, ...
        """
        among = self.among
        self.arriving = True
        if among.graph.doubted:
            # This process could not serve it without the graph, so its owner keeps it until then.
            await refresh()
        loaded = await among.journal.load(self.name, durable=False)  # it is read again after the take
        try:
            return await self._recover(loaded)
        except JournalCorrupt:
            # The log may be of an incarnation, or of inputs, that this process has not read yet.
            await refresh()
            return await self._recover(loaded)

    async def _recover(self, loaded: LoadedLog) -> Recovered:
        spec = self.among.topology.get(self.name)
        recovered = await self.among.recovered_in_pieces(spec, loaded)
        self._refuse_ahead(recovered.computation)
        return recovered

    def _refuse_ahead(self, computation: Computation) -> None:
        """Raise JournalCorrupt if the log has newer inputs than the graph.

        The graph has lost an acknowledged change, and the computation would go on without an input
        that it must wait for.
        """
        version, spec = computation.input_version, self.among.topology.get(self.name)
        if version > spec.input_version:
            reason = f"it has version {version} of its inputs, but the graph knows only {spec.input_version}: reset it"
            raise JournalCorrupt(self.name, None, reason)

    async def own(self, mine: Callable[[str], bool], before: LoadedLog | None = None) -> Taken:
        """Become the owner of the log, and read the log, of which ``before`` is an earlier reading.

        The caller then calls :meth:`hold` or :meth:`give_up`. Waits while the log is being
        shortened. Raises JournalOutvoted, also if the computation is not ``mine`` after that wait,
        JournalFailed, JournalUnknown, JournalCorrupt, ...
        """
        among, name = self.among, self.name
        while True:
            if self.ending is not None:
                await asyncio.wait([self.ending.task])
            async with self._alone():
                if self.ending is not None:
                    continue  # the computation was dropped meanwhile
                if not mine(name):
                    # The log would be taken by the very view that gives it to another shard.
                    raise JournalOutvoted(name, view=among.logs.view, newest=among.logs.view)
                self.arriving = True
                among.unserved_logs[name].add(among.logs.view)
                try:
                    ownership = await among.logs.taking(name)()
                    try:
                        return Taken(ownership, await among.journal.load(name, before=before))
                    except BaseException:
                        self.disown(ownership)
                        raise
                except BaseException:
                    self.arriving = False
                    raise

    def give_up(self, taken_log: Taken) -> None:
        """Give a taken log up, instead of serving it."""
        self.disown(taken_log.ownership)
        self.arriving = False
        self.among.discard(self)

    def disown(self, ownership: Ownership) -> None:
        """Forget an ownership of the log, unless a newer one has replaced it."""
        if self.among.journal.ownership(self.name) == ownership:
            self.among.journal.release(self.name)

    def hold(self, taken_log: Taken, recovered: Recovered | None = None) -> Computation:
        """Serve a taken log from here on, or go back to its state.

        ``recovered`` is the computation of an earlier reading. Raises JournalCorrupt, and
        JournalFailed if the ownership is over because the computation was dropped.
        """
        among, (ownership, loaded) = self.among, taken_log
        if self.ending is not None or not ownership.epoch or among.journal.ownership(self.name) != ownership:
            msg = f"{self.name} was dropped while its log was taken. The log is taken again when it is shortened"
            raise JournalFailed(msg)
        computation = among.resume(among.topology.get(self.name), ownership, loaded, recovered)
        if self.held is None:  # else the graph in memory may lack a change of this process's own
            self._refuse_ahead(computation)
        self.log.read(loaded)
        self.note_equal()
        self.held, self.arriving = computation, False
        among.served[self.name] = self
        among.unserved_logs.pop(self.name, None)
        return computation

    async def give_back(self, *, due: bool) -> None:
        """Let the store name no living owner of a log that this process took and does not serve.

        If the log is damaged, the other shards leave it to the owner that the store names. They
        would send callers here for ever, and an operator could not drop the computation. The log is
        taken once more, without an address and by the view under which it was taken: an owner by a
        newer view stays. If it is not ``due``, only a log that has a newer owner is forgotten.
        Raises JournalFailed, JournalUnknown.
        """
        among, name = self.among, self.name
        async with self._alone():
            if self.arriving or name not in among.unserved_logs:
                return
            owner = (await among.journal.owners([name]))[name]
            if owner.address == among.logs.address and owner.view in among.unserved_logs[name]:
                if not due:
                    return
                with suppress(JournalOutvoted):
                    self.disown(await among.journal.take(name, view=owner.view))
            among.unserved_logs.pop(name, None)

    # -- with the store: going back, writing again, healing ----------------------------------------

    async def refuse_usurped(self) -> None:
        """Raise JournalFenced if another process has taken a held log, JournalFailed, ..."""
        owner = (await self.among.journal.owners([self.name]))[self.name]
        if self.held is not None and is_usurped(self.ownership, owner):
            raise JournalFenced({self.name: (self.ownership.epoch, owner.epoch)})

    async def mend(self) -> None:
        """Read all of the log, and write it again from memory if it is damaged.

        Raises JournalFenced if another process has taken it, JournalLost, JournalFailed and
        JournalUnknown.
        """
        among = self.among
        try:
            await among.recovered_in_pieces(among.topology.get(self.name), await among.journal.load(self.name))
        except (JournalCorrupt, JournalVersion) as damage:
            facts = event("damaged_log_mended", computation=self.name)
            _logger.error("%s; it is written again from memory", damage, extra=facts)
            if self.unwritten is not None:
                await self.write_again()
            else:
                await self.heal()

    async def reload(self) -> tuple[Computation | None, Collection[str]]:
        """Go back to the state that the journal has of the computation.

        Returns that durable state, None if the computation is held no longer, and the names of
        computations that were healed instead. If the store has lost published records, memory
        counts, with all staged changes: reports of owners are true even without an acknowledgement.
        Waits while the journal cannot be read or healed. Raises JournalFenced; JournalCorrupt or
        JournalVersion if memory has the only good copy, see :meth:`write_again`.
        """
        backoff = Backoff(*RETRY_SECONDS)
        while self.held is not None:
            try:
                return await self._reloaded()
            except JournalPosition:
                _logger.info("other shards have changed the graph, which was lost too", extra=event("graph_changed"))
            except JournalFailed as error:
                if self.among.logs.stopping:
                    raise
                _logger.warning(
                    "the journal cannot be read, trying again in %.2f s: %s",
                    backoff.seconds,
                    error,
                    extra=event("store_unreadable", computation=self.name, reason=str(error)),
                )
            await backoff.wait()
        return None, ()

    async def _reloaded(self) -> tuple[Computation | None, Collection[str]]:
        among, name, before = self.among, self.name, self.computation
        try:
            loaded = await self._read_back()
        except JournalLost as lost:
            await among.logs.heal(lost)
            if name not in lost.logs:
                return await self._reloaded()
            if self.is_torn():
                return None, ()
            return self.held, lost.logs
        if not self.is_held():
            return None, ()
        recovered = await among.recovered_in_pieces(among.topology.get(name), loaded)
        if self.held is not before:  # this process lost it meanwhile, and perhaps took it again
            return self.held, ()
        return self.hold(Taken(self.ownership, loaded), recovered), ()

    async def _read_back(self) -> LoadedLog:
        """Read the log, which this process owns, when all of it is durable.

        A write of unknown outcome may have left a record in the store's cache, which a fail-over or
        a power cut would lose: ``Journal.load`` waits until the record is durable. Raises as
        ``Journal.load`` and ``Journal.confirm`` do.
        """
        journal = self.among.journal
        loaded = await journal.load(self.name)
        # A next owner's records may be of an incarnation that this process has not read.
        await journal.confirm([self.name])
        return loaded

    def tear(self) -> None:
        """Note that half a change may be in memory, so that the log must be read back."""
        self.unwritten = Unwritten(Memory.TORN)

    def note_unreadable(self, reason: JournalError) -> None:
        """Note that the log cannot be read back, unless the computation is held no longer."""
        if self.held is None:
            return
        if self.unwritten is None:
            self.unwritten = Unwritten(Memory.ONLY_COPY)
        self.unwritten.note_unreadable(reason)

    async def repair(self) -> Computation | None:
        """Make memory and store equal, once: write an only copy, or read back a torn one.

        Returns the durable state; None if another task has done this. Raises as
        :meth:`write_again` and ``Journal.load`` do.
        """
        if not self.is_torn():
            return await self.write_again()
        async with self._alone():
            loaded = await self._read_back()
            if not self.is_torn():
                return None
            return self.hold(Taken(self.ownership, loaded))

    async def write_again(self) -> Computation | None:
        """Write an unwritten computation again from memory, once.

        Returns the durable state; None if another task has done this. Raises JournalFenced if
        another process has taken it, and errors of ``Journal.restore``.
        """
        async with self._alone():
            if self.unwritten is None:
                return None
            await self._restore()
            return self.computation if self.note_equal() else None

    async def rise(self, above: int) -> None:
        """Take a held computation again, under an epoch above ``above``.

        Raises JournalFailed, JournalFenced, ...
        """
        if self.held is None or self.is_torn():
            return
        among = self.among
        take = among.logs.taking(self.name, above=above)
        try:
            async with self._alone():
                if not self.is_held():
                    return
                with self._renewing():
                    await among.logs.until_known(take)
                    self._count_from_there()
        except JournalLost as lost:
            await among.logs.heal(lost)
            await self.rise(above)
        except JournalOutvoted as error:
            raise JournalFenced({self.name: (self.ownership.epoch, 0)}) from error

    async def heal(self) -> None:
        """Write the log again from memory, because the store has lost records of it.

        Raises JournalFenced if another process has taken it, JournalFailed, ...
        """
        if not self.is_held():
            return
        async with self._alone():
            if self.is_torn():
                # Neither copy is whole: half a change must not replace the lost records.
                self.note_unreadable(JournalCorrupt(self.name, None, "the store has lost records of it"))
            elif self.is_held():
                await self._restore()
                self.note_equal()

    async def _restore(self) -> None:
        """Replace a held log by a snapshot of memory.

        A staged change of inputs is half a change, because the graph has the other half. So its
        version of the inputs is not written, and the change is still appended as a whole. Its
        revocations and lowered ranges are written, which does no harm. Raises JournalFenced if
        another process has taken the log, JournalFailed, ...
        """
        spec = self.among.topology.computations.get(self.name)
        if spec is not None and not spec.slice_of:
            self.computation.input_version = min(self.computation.input_version, spec.input_version)
        payload = recovery.snapshot(self.computation)
        with self._renewing():
            await self.replace(payload, self.ownership)
            self._count_from_there()

    async def replace(self, payload: bytes, mine: Ownership) -> Ownership:
        """Replace the log by a snapshot, under a new ownership. Raises JournalFenced, ..."""
        among, name = self.among, self.name
        while True:
            try:
                # By the view that made this process the owner: an owner by a newer view stays.
                return await among.logs.restore(self.log, payload, view=mine.view, address=mine.address)
            except JournalOutvoted as error:
                raise JournalFenced({name: (mine.epoch, 0)}) from error
            except JournalPosition as position:
                # The log has records of another process, whose ownership the store has lost; or of
                # this process, which were of unknown outcome or cannot be read.
                owner = (await among.journal.owners([name]))[name]
                if (owner.epoch, owner.nonce) != (mine.epoch, mine.nonce):
                    raise JournalFenced({name: (mine.epoch, 0)}) from position
                self.log.reached(position.last)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Hold the lock of the ownership. Afterwards the holding is discarded if it is idle."""
        try:
            async with self.writing:
                yield
        finally:
            self.among.discard(self)

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        self.renewing = True
        try:
            yield
        finally:
            self.renewing = False

    def _count_from_there(self) -> None:
        """Count sequencers from the new ownership."""
        if self.held is not None:
            self.held.epoch_base = epoch_base(self.ownership)


def recover(spec: Spec, ownership: Ownership, loaded: LoadedLog) -> Computation:
    """Recover a computation from its log, which this process owns. Raises JournalCorrupt."""
    records = [payload for _, payload in loaded.records]
    try:
        return recovery.recover(spec, loaded.snapshot, records, epoch_base=epoch_base(ownership))
    except recovery.ReplayError as error:
        raise JournalCorrupt(spec.name, None, str(error)) from error


def resumed(spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered) -> Computation | None:
    """Replay the records that came since a computation was recovered.

    Returns None if the log does not continue that one, or the registration has changed.
    """
    if recovered.spec != spec or not continues(loaded, recovered.loaded):
        return None
    since = [payload for _, payload in loaded.records[len(recovered.loaded.records) :]]
    try:
        return recovery.resume(recovered.computation, since, epoch_base=epoch_base(ownership))
    except recovery.ReplayError:
        return None
