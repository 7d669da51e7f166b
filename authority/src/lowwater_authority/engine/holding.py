"""One computation on a shard, from the first look at its log until it is let go or dropped.

All that is known of it is in one object.

    absent --read--> reading --take--> taking --replay--> serving <---> in doubt
       ^                |                 |                  |              |
       +---- failed ----+---- failed -----+---- let go ------+--------------+
       +<-- its log is short, or is another's -- gone <-- dropped, from any of them

========  ============================================  ========================================  ===================================
state     what it means                                 who brings it about                       what may be done
========  ============================================  ========================================  ===================================
absent    nobody asks for it here, or its log is        ``Holdings.let_go``, a failed take-over   a take-over may begin
          damaged and is left alone for a while
reading   its log is read and replayed, its owner goes  ``take_over``, in a shared store
nothing: clients are sent to the
          on
          owner
taking    the log is taken, and what has come since is  ``own``
nothing is known of it yet
          replayed
serving   the computation is in memory as the store     ``hold``
all
          has it
in doubt  memory and store may differ (``Memory``), or  a roll-back; a heal and
what was published stays; the rest
          its ownership is being renewed                ``Holding.rise``
          waits, or is refused
gone      it was dropped, and its log is made short     a graph without it                        nobody takes it until that is over
========  ============================================  ========================================  ===================================

That another process has replaced this one it learns from the journal alone (JournalFenced), and
never from a clock: so what is served ends by ``Holdings.let_go`` or by a drop, and by nothing else.
Whoever has waited for the store looks at the state again before it goes on: the computation may be
absent by then, or taken anew. What was staged for a log is known by the log's ``reading``, which
grows each time.

The state is said by the fields and stored nowhere else, so that they cannot contradict each other.
Pure are ``State``, ``Memory``, ``Unwritten`` and ``Damage``. What goes to the store is behind "with
the store" below, and each caller goes on with what it raises: a round rolls back by ``reload`` and
rises; ``Logs.heal`` heals what the store has lost; the shard puts right beside the rounds what a
roll-back has kept; a stop mends. ``Takeover`` has each taken over once for all who ask, in its
turn, and leaves alone what was found damaged. ``Holdings`` lets go, makes the logs of what was
dropped short, and keeps the graph. A holding of which nothing is to be remembered is discarded
(``Holdings.discard``), for anybody may ask for any name.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core import recovery
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.logs import Log, Logs
    from lowwater_authority.journal import Journal, JournalError, LoadedLog

_logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 64 << 10
"""The most that a small log has. Once it is read, its take-over stands in no line any more, so that
the store is asked for hundreds at a time; see Takeover."""

NOBODY: Final = Ownership()
"""Of what this process does not own."""


ORPHAN_SECONDS: Final = 5.0
"""The longest until a damaged log is looked at again while nobody serves the computation."""


NONCE_BITS: Final = 0xFFF

COUNTER_BITS: Final = 28
"""Of a sequencer, below the epoch and the nonce."""


def epoch_base(ownership: Ownership) -> int:
    """Return what a computation's sequencers are counted from: epoch and nonce above a counter of 28 bits.

    They grow even past a lost journal tail; the nonce keeps two owners apart that a store, having lost an epoch, gave one.
    """
    return ownership.epoch << 40 | (ownership.nonce & NONCE_BITS) << COUNTER_BITS


class Recovered(NamedTuple):
    """A computation as its log had it before it was taken."""

    spec: Spec
    loaded: LoadedLog
    computation: Computation


class Taken(NamedTuple):
    """A log that this process has taken.

    One value, so that nothing is held without what it is held by, nor by more than was read.
    """

    ownership: Ownership
    """By which it may be written, as long as the journal knows it by no other."""
    loaded: LoadedLog
    """What stood in it then."""


class State(Enum):
    """See the top of this module."""

    ABSENT = "absent"
    READING = "reading"
    TAKING = "taking"
    SERVING = "serving"
    IN_DOUBT = "in doubt"
    GONE = "gone"


class Memory(Enum):
    """What memory has of a held computation that is not there as the store has it.

    Nothing of it is changed or shown meanwhile.

    torn -> unreadable -> only copy (by a new incarnation); each ends when it is written, read
    again, or not held any more.
    """

    TORN = "torn"
    """Half a change may be in it, and it is read back. Nothing of it is written."""
    UNREADABLE = "unreadable"
    """Half a change may be in it, and the store cannot be read back: it goes on when it can, or
    begins a new incarnation."""
    ONLY_COPY = "only copy"
    """It is the only good copy: the store has refused the newest record, and cannot be read back.
    It is written again."""


@dataclass(slots=True, eq=False)
class Unwritten:
    """That a held computation is not in memory as the store has it.

    It ends when it is written, read again, or not held any more.
    """

    memory: Memory
    reason: JournalError | None = None
    """Why the store cannot be read back; None while it is torn."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is over, or not torn any more."""

    @property
    def torn(self) -> bool:
        """Whether half a change may be in memory, so that the store's copy counts alone."""
        return self.memory is not Memory.ONLY_COPY

    @property
    def kept(self) -> bool:
        """Whether memory counts, or nothing does, because the store cannot be read back."""
        return self.memory is not Memory.TORN

    def unreadable(self, reason: JournalError) -> None:
        """The store cannot be read back."""
        self.reason = reason
        if self.memory is Memory.TORN:
            self.memory = Memory.UNREADABLE

    def restarted(self) -> None:
        """A new incarnation has begun, which is whole whatever was half done in the one before, and which only memory has."""
        self.memory = Memory.ONLY_COPY
        self.changed.set()

    def refusal(self, name: str) -> errors.Unavailable:
        """Return why nothing is said or changed of the computation."""
        if self.memory is Memory.TORN:
            msg = f"a request to {name} failed half way, and {name} is read back from the store first: try again in a moment"
        elif self.memory is Memory.UNREADABLE:
            msg = (
                f"a request to {name} failed half way, and what the store has of it cannot be read back: {name} goes on when it can, so "
                "restore a copy; or reset it, or drop it by force"
            )
        else:
            msg = (
                f"{name} is written again from memory first, because what the store has of it is damaged and it refused the newest: try "
                "again in a moment"
            )
        return errors.Unavailable(msg, metadata={"computation": name})


@dataclass(slots=True, eq=False)
class Damage:
    """That a log was found damaged, or written by a newer release.

    It is not looked at for a while. Times are processing times.
    """

    reason: JournalError
    until: float
    """Until when it is left alone; microseconds."""
    seconds: float
    """For how long that was in the beginning."""
    orphaned: bool = False
    """Whether nobody was found to serve it since the look."""

    def kept(self) -> None:
        """Another shard serves the computation."""
        self.orphaned = False

    def orphan(self, now: int) -> bool:
        """Nobody serves the computation. Returns whether that is news since the last look."""
        if self.orphaned:
            return False
        self.orphaned = True
        self.until = min(self.until, now + ORPHAN_SECONDS * 1e6)
        return True


@dataclass(slots=True, eq=False)
class Rest:
    """That the store, or the graph, did not let a computation be taken several times in a row: it is not asked again for a moment."""

    reason: str
    until: float
    """Processing time, in microseconds."""
    seconds: float
    """How long the next rest is, if that does not help."""


class Once:
    """Work that is done once at a time, for all who ask for it.

    Whoever asked may be gone when it ends.
    """

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: asyncio.Task[bool] | None = None
        """What is under way."""

    def begin(self, work: Callable[[], Coroutine[None, None, bool]], ended: Callable[[], None]) -> asyncio.Task[bool]:
        """Return what is under way, begun if nothing is; ``ended`` is called behind it."""

        def over(task: asyncio.Task[bool]) -> None:
            self.task = None
            if not task.cancelled():
                task.exception()
            ended()

        if self.task is None:
            self.task = asyncio.create_task(work())
            self.task.add_done_callback(over)
        return self.task


@dataclass(slots=True, eq=False)
class Ending:
    """The log of a dropped computation that is being made short. Until then nobody takes it."""

    task: asyncio.Task[None]
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when whoever has owned the log cannot write to it any more."""


class Neighbours(Protocol):
    """What one holding needs of all others, of the graph and of the store. See Holdings."""

    journal: Journal
    logs: Logs
    topology: Topology
    graph_doubted: bool
    served: dict[str, Holding]
    view: int
    address: str

    def discard(self, holding: Holding) -> None:
        """Forget a computation of which there is nothing to remember."""
        ...

    async def heal(self, error: JournalLost) -> None:
        """Put back what the store has lost."""
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
    """All that this shard holds, with the store and the graph."""
    log: Log
    held: Computation | None = None
    """What is served; None when it is not."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One change of its ownership at a time: the position of a restore must be the next one when it
    is written."""
    renewing: bool = False
    """Whether its ownership is being renewed: an attempt may have made a newer owner than this
    process knows."""
    unwritten: Unwritten | None = None
    """Set while memory and store may differ. What was published of it stays true."""
    take: Once = field(default_factory=Once)
    """What takes it over."""
    turn: Once = field(default_factory=Once)
    """What does so as soon as it has its turn."""
    coming: State = State.ABSENT
    """How far that has come: absent, reading or taking."""
    damage: Damage | None = None
    """What the last look at its log has found."""
    read_small: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is being taken and its log, which has been read, is small."""
    rest: Rest | None = None
    """Why the last attempt to take it has failed otherwise."""
    mending: asyncio.Task[None] | None = None
    """What writes what only memory has, or reads what memory has half of."""
    ending: Ending | None = None
    """What makes its log short since it was dropped, and then lets go of it."""

    @property
    def name(self) -> str:
        """The computation's name, which is also its log's."""
        return self.log.name

    @property
    def ownership(self) -> Ownership:
        """By which its log is this process's, as its journal knows; epoch 0 when it is not held."""
        return self.among.journal.ownership(self.name) if self.held is not None else NOBODY

    @property
    def computation(self) -> Computation:
        """What is served. Only of one that is."""
        assert self.held is not None, f"{self.name} is not held"
        return self.held

    def is_held(self) -> bool:
        """Whether it is served; to be asked again behind each wait for the store."""
        return self.held is not None

    @property
    def state(self) -> State:
        """Say how this shard stands to the computation."""
        if self.ending is not None:
            return State.GONE
        if self.held is None:
            return self.coming
        return State.SERVING if self.unwritten is None and not self.renewing else State.IN_DOUBT

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember of it."""
        # A snapshot under way is no reason: it is of an owner that is over, and needs nothing of
        # what is here.
        under_way = (self.take.task, self.turn.task, self.mending)
        waiting = self.renewing or self.writing.locked() or any(task is not None for task in under_way)
        return self.state is State.ABSENT and self.damage is None and self.rest is None and not waiting

    def is_torn(self) -> bool:
        """Whether half a change may be in memory, so that the store's copy counts alone."""
        return self.unwritten is not None and self.unwritten.torn

    def is_kept(self) -> bool:
        """Whether memory counts, or nothing does, because the store cannot be read back."""
        return self.unwritten is not None and self.unwritten.kept

    def one_again(self) -> bool:
        """It is in memory as the store has it, or not held any more.

        Returns whether that is news.
        """
        before, self.unwritten = self.unwritten, None
        if before is not None:
            before.changed.set()
        return before is not None

    # -- with the store: taking over ---------------------------------------------------------------

    async def take_over(self, mine: Callable[[str], bool], refresh: Callable[[], Awaitable[None]]) -> Computation:
        """Serve it from here on: its log is read and checked while its owner serves it, then taken, and what has come since is replayed.

        ``refresh`` reads what is new in the graph. It does so before the log is taken, too: while the graph cannot be read, whoever serves
        it goes on. Raises JournalOutvoted when it is not ``mine``, UnknownComputation, JournalCorrupt, JournalFailed, Unavailable, ...
        """
        among, name, shared = self.among, self.name, self.among.journal.shared
        try:
            recovered = await self._looked_at(refresh) if shared else None
            known = recovered.loaded if recovered is not None else None
            if known is not None and known.size <= SMALL_BYTES:
                self.read_small.set()

            async def own() -> Taken:
                if shared:
                    await refresh()
                if not mine(name):
                    # The members have changed since the first attempt, whose outcome is not known.
                    raise JournalOutvoted(name, view=among.view, newest=among.view)
                return await self.own(known)

            taken = await among.logs.until_known(own)
            try:
                if shared:
                    # The log may be of an incarnation that this process has not heard of yet.
                    await refresh()
                return self.hold(taken, recovered)
            except BaseException:
                self.disown(taken.ownership)
                raise
        finally:
            self.coming = State.ABSENT
            self.read_small.clear()

    async def _looked_at(self, refresh: Callable[[], Awaitable[None]]) -> Recovered:
        """Recover it from its log, whoever owns that.

        Raises JournalCorrupt, JournalVersion, JournalFailed, ...
        """
        among = self.among
        self.coming = State.READING
        if among.graph_doubted:
            # Without it nothing can be served that was taken: whoever has the log keeps it until
            # the graph can be read.
            await refresh()
        loaded = await among.journal.load(self.name, durable=False)  # it is taken next, and read again behind that
        try:
            return await self._recovered(loaded)
        except JournalCorrupt:
            # It may be of an incarnation, or of inputs, that this process has not heard of yet.
            await refresh()
            return await self._recovered(loaded)

    async def _recovered(self, loaded: LoadedLog) -> Recovered:
        spec = self.among.topology.get(self.name)
        recovered = await self.among.recovered_in_pieces(spec, loaded)
        self._refuse_ahead(recovered.computation)
        return recovered

    def _refuse_ahead(self, computation: Computation) -> None:
        """Raise JournalCorrupt for a log that has newer inputs than the graph, which has lost a change that was acknowledged.

        Without this the computation would go on without an input that it has to wait for.
        """
        known, spec = computation.input_version, self.among.topology.get(self.name)
        if known > spec.input_version:
            reason = f"it has version {known} of its inputs, but the graph knows only {spec.input_version}: reset it"
            raise JournalCorrupt(self.name, None, reason)

    async def own(self, known: LoadedLog | None = None) -> Taken:
        """Become the owner of its log, and read what is not known of it.

        It is to be held, or given up.

        Waits until it is not gone. Raises JournalOutvoted, JournalFailed, JournalUnknown,
        JournalCorrupt, ...
        """
        among, name = self.among, self.name
        while True:
            if self.ending is not None:
                await asyncio.wait([self.ending.task])
            async with self._alone():
                if self.ending is not None:
                    continue  # it was dropped while this waited
                self.coming = State.TAKING
                try:
                    ownership = await among.journal.take(name, view=among.view, address=among.address)
                    try:
                        return Taken(ownership, await among.journal.load(name, known=known))
                    except BaseException:
                        self.disown(ownership)
                        raise
                except BaseException:
                    self.coming = State.ABSENT
                    raise

    def give_up(self, taken: Taken) -> None:
        """Do not hold what was taken."""
        self.disown(taken.ownership)
        self.coming = State.ABSENT
        self.among.discard(self)

    def disown(self, ownership: Ownership) -> None:
        """Write its log no more by an ownership; one that has taken the place of that stays."""
        if self.among.journal.ownership(self.name) == ownership:
            self.among.journal.release(self.name)

    def hold(self, taken: Taken, recovered: Recovered | None = None) -> Computation:
        """Serve what was taken from here on, as it was recovered, with what came since; or go back to that.

        Raises JournalCorrupt, and JournalFailed when that ownership is over: it was dropped meanwhile, and its log is made short.
        """
        among, (ownership, loaded) = self.among, taken
        if self.ending is not None or not ownership.epoch or among.journal.ownership(self.name) != ownership:
            msg = f"{self.name} was dropped while its log was taken, and that is made short: it is taken anew"
            raise JournalFailed(msg)
        computation = among.resume(among.topology.get(self.name), ownership, loaded, recovered)
        if self.held is None:  # else the graph that this process has read may be behind a change of its own
            self._refuse_ahead(computation)
        self.log.read(loaded)
        self.one_again()
        self.held, self.coming = computation, State.ABSENT
        among.served[self.name] = self
        return computation

    # -- with the store: going back, writing again, healing ----------------------------------------

    async def refuse_usurped(self) -> None:
        """Raise JournalFenced when another process has taken a held log, JournalFailed, ..."""
        owner = (await self.among.journal.owners([self.name]))[self.name]
        if self.held is not None and is_usurped(self.ownership, owner):
            raise JournalFenced({self.name: (self.ownership.epoch, owner.epoch)})

    async def mend(self) -> None:
        """Write a held computation again from memory, as a heal does, when what the store has of it is damaged.

        Reads all of it. Raises JournalFenced when another process has taken it, JournalLost, JournalFailed and JournalUnknown.
        """
        among = self.among
        try:
            await among.recovered_in_pieces(among.topology.get(self.name), await among.journal.load(self.name))
        except (JournalCorrupt, JournalVersion) as damage:
            told = event("damaged_log_mended", computation=self.name)
            _logger.error("%s; it is written again from memory", damage, extra=told)
            if self.unwritten is not None:
                await self.write_again()
            else:
                await self.heal()

    async def reload(self) -> tuple[Computation | None, Collection[str]]:
        """Go back to what the journal has of a computation.

        Returns what is durable of it, None when it is not held any more, and of which computations
        what was staged counts all the same. Waits for as long as the journal cannot be read, or put
        right; raises JournalFenced, and JournalCorrupt or JournalVersion when memory is all that is
        left, see :meth:`write_again`. Where the store has lost records that were shown, memory is
        what counts, with all that is staged: what owners said is true whether or not they were told
        that it was taken over.
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
            await among.heal(lost)
            if name not in lost.logs:
                return await self._reloaded()
            if self.is_torn():
                return None, ()
            return self.held, lost.logs
        if not self.is_held():
            return None, ()
        recovered = await among.recovered_in_pieces(among.topology.get(name), loaded)
        if self.held is not before:  # let go meanwhile, and perhaps taken again
            return self.held, ()
        return self.hold(Taken(self.ownership, loaded), recovered), ()

    async def _read_back(self) -> LoadedLog:
        """Read its log, which is this process's own, so that all of it is durable and may be shown.

        An attempt of unknown outcome may have put the last record no further than into the cache of
        the store, where a fail-over or a power cut takes it back: ``Journal.load`` waits until the
        record is durable. Raises as that and ``Journal.confirm`` do.
        """
        journal = self.among.journal
        loaded = await journal.load(self.name)
        # What the next owner has written there may be of an incarnation that this process has not
        # heard of.
        await journal.confirm([self.name])
        return loaded

    def tear(self) -> None:
        """Half a change may be in memory: it is to be read back."""
        self.unwritten = Unwritten(Memory.TORN)

    def keep(self, reason: JournalError) -> None:
        """What the store has cannot be read back.

        Nothing is to be kept of what was let go meanwhile.
        """
        if self.held is None:
            return
        if self.unwritten is None:
            self.unwritten = Unwritten(Memory.ONLY_COPY)
        self.unwritten.unreadable(reason)

    async def put_right(self) -> Computation | None:
        """Make memory and store one again: write an unwritten computation, or read it when half a change may be in memory. Once.

        Returns what is durable of it, None when it was done by others. Raises as :meth:`write_again`, and as ``Journal.load`` does.
        """
        if not self.is_torn():
            return await self.write_again()
        async with self._alone():
            loaded = await self._read_back()
            if not self.is_torn():
                return None
            return self.hold(Taken(self.ownership, loaded))

    async def write_again(self) -> Computation | None:
        """Write an unwritten computation again from memory, once; returns what is durable of it, None when it was done by others.

        Raises JournalFenced when another process has taken it, and else what ``Journal.restore`` raises.
        """
        async with self._alone():
            if self.unwritten is None:
                return None
            await self._restore()
            return self.computation if self.one_again() else None

    async def rise(self, above: int) -> None:
        """Become the owner of a held computation once more, by a greater number.

        Raises JournalFailed, JournalFenced, ...
        """
        if self.held is None or self.is_torn():
            return
        among = self.among
        take = partial(among.journal.take, self.name, view=among.view, address=among.address, above=above)
        try:
            async with self._alone():
                if not self.is_held():
                    return  # it was let go meanwhile
                with self._renewing():
                    await among.logs.until_known(take)
                    self._count_from_there()
        except JournalLost as lost:
            await among.heal(lost)
            await self.rise(above)
        except JournalOutvoted as error:
            raise JournalFenced({self.name: (self.ownership.epoch, 0)}) from error

    async def heal(self) -> None:
        """Put back what the store has lost of it.

        Raises JournalFenced when another process has taken it, JournalFailed, ...
        """
        if not self.is_held():
            return
        async with self._alone():
            if self.is_torn():
                # Neither copy is whole: what the store lacks is not to be replaced by what was
                # never decided.
                self.keep(JournalCorrupt(self.name, None, "the store has lost records of it"))
            elif self.is_held():
                await self._restore()
                self.one_again()

    async def _restore(self) -> None:
        """Make memory all there is of a held log.

        Raises JournalFenced when another process has taken it, JournalFailed, ...

        A change of inputs that is staged is half a change: the graph has the other half, and is not
        written here. Its revocations and lowered ranges are written, which harm nobody, but not the
        version of the inputs. So the change is still to be appended, as a whole.
        """
        known = self.among.topology.computations.get(self.name)
        if known is not None and not known.slice_of:
            self.computation.input_version = min(self.computation.input_version, known.input_version)
        payload = recovery.snapshot(self.computation)
        with self._renewing():
            await self.replace(payload, self.ownership)
            self._count_from_there()

    async def replace(self, payload: bytes, mine: Ownership) -> Ownership:
        """Make a snapshot all there is of its log, under a greater number."""
        among, name = self.among, self.name
        while True:
            try:
                # By the view that made this process the owner: who was chosen by a newer one keeps
                # what it has.
                return await among.logs.restore(self.log, payload, view=mine.view, address=among.address)
            except JournalOutvoted as error:
                raise JournalFenced({name: (mine.epoch, 0)}) from error
            except JournalPosition as place:
                # Another process's records, in a store that has lost who owns it; or own ones, of
                # unknown outcome or too damaged to be read: nobody else writes under this number.
                found = (await among.journal.owners([name]))[name]
                if (found.epoch, found.nonce) != (mine.epoch, mine.nonce):
                    raise JournalFenced({name: (mine.epoch, 0)}) from place
                self.log.reached(place.last)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Around a change of its ownership.

        It may be let go meanwhile, and is forgotten behind it then.
        """
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
        """Grant sequencers above the number that its ownership has now."""
        if self.held is not None:  # else it was let go meanwhile
            self.held.epoch_base = epoch_base(self.ownership)
