"""One computation on a shard, from the first look at its log until it is let go or dropped. All that is known of it is in one object.

    absent --read--> reading --take--> taking --replay--> serving <---> in doubt
       ^                |                 |                  |              |
       +---- failed ----+---- failed -----+---- let go ------+--------------+
       +<-- its log is short, or is another's -- gone <-- dropped, from any of them

========  ============================================  ========================================  ===================================
state     what it means                                 who brings it about                       what may be done
========  ============================================  ========================================  ===================================
absent    nobody asks for it here, or its log is        ``Holdings.let_go``, a failed take-over   a take-over may begin
          damaged and is left alone for a while
reading   its log is read and replayed, its owner goes  ``Taking``, in a shared store             nothing: clients are sent to the
          on                                                                                      owner
taking    the log is taken, and what has come since is  ``Holdings.take``                         nothing is known of it yet
          replayed
serving   the computation is in memory as the store     ``Holdings.hold``                         all
          has it
in doubt  memory and store may differ (``Memory``), or  a roll-back; a heal and                   what was published stays; the rest
          its ownership is being renewed                ``Holdings.rise``                         waits, or is refused
gone      it was dropped, and its log is made short     a graph without it                        nobody takes it until that is over
========  ============================================  ========================================  ===================================

That another process has replaced this one it learns from the journal alone (JournalFenced), and never from a clock: so what is served ends by
``Holdings.let_go`` or by a drop, and by nothing else. Whoever has waited for the store looks at the state again before it goes on: the computation may
be absent by then, or taken anew. What was staged for a log is known by the log's ``reading``, which grows each time.

The state is said by the fields and stored nowhere else, so that they cannot contradict each other. What is pure: everything here but ``Once``. A
holding reads and writes no store. ``Holdings`` does, and changes what is served; ``Taking`` says how far a take-over has come and what was found
damaged; the shard begins to mend. A holding of which nothing is to be remembered is discarded (``Holdings.discard``), for anybody may ask for any name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater_authority.journal import Ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.engine.logs import Log
    from lowwater_authority.journal import JournalError

NOBODY: Final = Ownership()
"""Of what this process does not own."""


ORPHAN_SECONDS: Final = 5.0
"""The longest until a damaged log is looked at again while nobody serves the computation."""


class State(Enum):
    """See the top of this module."""

    ABSENT = "absent"
    READING = "reading"
    TAKING = "taking"
    SERVING = "serving"
    IN_DOUBT = "in doubt"
    GONE = "gone"


class Memory(Enum):
    """What memory has of a held computation that is not there as the store has it. Nothing of it is changed or shown meanwhile.

    torn -> unreadable -> only copy (by a new life); each ends when it is written, read again, or not held any more.
    """

    TORN = "torn"
    """Half a change may be in it, and it is read back. Nothing of it is written."""
    UNREADABLE = "unreadable"
    """Half a change may be in it, and the store cannot be read back: it goes on when it can, or begins a new life."""
    ONLY_COPY = "only copy"
    """It is the only good copy: the store has refused the newest record, and cannot be read back. It is written again."""


@dataclass(slots=True, eq=False)
class Unwritten:
    """That a held computation is not in memory as the store has it. It ends when it is written, read again, or not held any more."""

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
        """A new life has begun, which is whole whatever was half done in the one before, and which only memory has."""
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
    """That a log was found damaged, or written by a newer release. It is not looked at for a while. Times are processing times."""

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


class Once:
    """Work that is done once at a time, for all who ask for it. Whoever asked may be gone when it ends."""

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


@dataclass(slots=True, eq=False)
class Holding:
    """One computation on this shard. See the top of this module for its states."""

    log: Log
    ownership: Ownership = NOBODY
    """By which its log is this process's; epoch 0 when it is not held."""
    held: Computation | None = None
    """What is served; None when it is not."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One change of its ownership at a time: the position of a restore must be the next one when it is written."""
    renewing: bool = False
    """Whether its ownership is being renewed: an attempt may have made a newer owner than this process knows."""
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
    mending: asyncio.Task[None] | None = None
    """What writes what only memory has, or reads what memory has half of."""
    ending: Ending | None = None
    """What makes its log short since it was dropped, and then lets go of it."""

    @property
    def name(self) -> str:
        """The computation's name, which is also its log's."""
        return self.log.name

    @property
    def computation(self) -> Computation:
        """What is served. Only of one that is."""
        assert self.held is not None, f"{self.name} is not held"
        return self.held

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
        under_way = (self.take.task, self.turn.task, self.mending, self.log.snapshotting)
        waiting = self.renewing or self.writing.locked() or any(task is not None for task in under_way)
        return self.state is State.ABSENT and self.damage is None and not waiting

    @property
    def torn(self) -> bool:
        """Whether half a change may be in memory, so that the store's copy counts alone."""
        return self.unwritten is not None and self.unwritten.torn

    @property
    def kept(self) -> bool:
        """Whether memory counts, or nothing does, because the store cannot be read back."""
        return self.unwritten is not None and self.unwritten.kept

    def one_again(self) -> bool:
        """It is in memory as the store has it, or not held any more. Returns whether that is news."""
        before, self.unwritten = self.unwritten, None
        if before is not None:
            before.changed.set()
        return before is not None
