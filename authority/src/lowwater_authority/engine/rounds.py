"""The group-commit loop: stage what has arrived, append once, publish and answer, begin again.

No timer: the next round starts when the append returns, so an idle shard answers in one journal round trip and a busy
one batches by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from lowwater import errors
from lowwater.core.events import event
from lowwater.core.raising import own_copy
from lowwater_authority.engine.admission import Gate
from lowwater_authority.journal import GRAPH, JournalError, JournalFailed, JournalFenced, JournalPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.requests import Fenced
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.logs import Log
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.engine.slices import Slice
    from lowwater_authority.journal import JournalCorrupt, JournalLost

T = TypeVar("T")

Without: TypeAlias = "Callable[[T, Collection[str], Mapping[str, errors.Unavailable]], T]"
"""Makes of a request's result that of the same request when some computations that it has touched were not there, and what others have durable is not to be
acknowledged."""

TOGETHER: Final = 100
"""Most changes of the graph that share a round. What else waits has its turn in the next one."""

NOTHING: Final[Mapping[str, errors.Unavailable]] = {}
"""Nobody is unheard of."""

STOPPING: Final = "the authority is stopping; connect again"

log = logging.getLogger(__name__)


class GivenUp(Exception):
    """A round was rolled back for a reason that has nothing to do with the request: stage it again."""


class GraphMoved(GivenUp):
    """Another process has changed the graph meanwhile: read it first."""


class InDoubt(Exception):
    """An attempt was of unknown outcome, and a later one is refused: it may be written, or not."""

    def __init__(self, after: JournalError) -> None:
        super().__init__(f"an earlier attempt may be written, and now: {after}")
        self.after = after
        """What the later one was refused with."""


@dataclass(slots=True)
class Round:
    """What one round has staged so far. All of it gets the same processing time."""

    now: int
    wall: int
    """The wall clock: what event times may be ahead of. It may be wrong for a while, which must leave nothing behind."""
    touched: dict[str, Computation] = field(default_factory=dict)
    topology: Topology | None = None
    read: bool = False
    """Whether the graph was read from the journal, and is not to be written."""
    merged: bool = False
    """Whether it is to be written whole: it is made of two, of which the journal has one."""
    lost: JournalLost | None = None
    """What the store has lost and is to get back first."""
    damage: JournalCorrupt | None = None
    """What is wrong with the graph in the store, which is to be written again first."""
    above: dict[str, int] = field(default_factory=dict)
    """Computations that need an ownership number above another."""
    fenced: list[Fenced] = field(default_factory=list)
    dropped: dict[str, Exception] = field(default_factory=dict)
    """Computations that have left the round, each with what its callers hear; what was staged of them is never shown."""
    torn: set[str] = field(default_factory=set)
    """Computations of which perhaps half a change is staged, by a request that failed in a way it never should."""
    asked: set[str] = field(default_factory=set)
    """What the request that is being staged has touched so far."""
    behind: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Computations whose log had older inputs than the graph until this round, by name: the version
    of the inputs in the log, and the one in the graph."""
    readings: dict[Log, int] = field(default_factory=dict)
    """The readings of the logs of what was touched, as the memory is that it was staged on."""

    def touch(self, name: str, computation: Computation) -> None:
        """A request looks at a computation, or changes it: its answer stands or falls with that one."""
        self.touched[name] = computation
        self.asked.add(name)


@dataclass(slots=True)
class _Work(Generic[T]):
    """A queued request: what to do within a round, and who waits for it."""

    run: Callable[[Round], T]
    done: asyncio.Future[T]
    alone: bool = False
    together: bool = False
    without: Without[T] | None = None
    names: set[str] = field(default_factory=set)
    """What it has touched."""
    waits: bool = True
    """Whether its answer waits until what a slice says counts where that is a slice of."""
    refusal: errors.LowwaterError | None = None
    """Why it was refused; told with the round where it takes the store to know whether this process may still refuse anything."""

    def end(
        self, result: T, dropped: Mapping[str, Exception], unheard: Mapping[str, errors.Unavailable] = NOTHING
    ) -> None:
        """Answer, as far as what was touched has not left the round, and is not ``unheard`` of above."""
        gone = [name for name in dropped if name in self.names]
        if not gone and not unheard:
            self.succeed(result)
        elif self.without is not None and self.refusal is None:
            self.succeed(self.without(result, gone, unheard))
        else:
            self.fail(dropped[gone[0]] if gone else next(iter(unheard.values())))

    def succeed(self, result: T) -> None:
        if self.refusal is not None:
            self.fail(self.refusal)
        elif not self.done.done():
            self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        """Refuse with a copy of the error, which other callers may get too."""
        if not self.done.done():
            self.done.set_exception(own_copy(error))


class CommitLoop:
    """Runs requests in rounds. Answers come when their effect is durable; a refused request has changed nothing."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._writes: deque[_Work[Any]] = deque()
        self._reads: deque[_Work[Any]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._answers: set[asyncio.Task[None]] = set()
        """Those that wait for what is above a slice."""
        self._gate: Gate[None] = Gate("requests", shard.settings.queued_requests, 0)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._writes) + len(self._reads)

    def write(
        self,
        stage: Callable[[Round], T],
        *,
        alone: bool = False,
        together: bool = False,
        waits: bool = True,
        without: Without[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue a change. ``alone``: nothing else shares its round, but with ``together`` others like it, up to ``TOGETHER``.

        ``waits``: as in _Work. ``without`` gives the result when some of what it has touched leaves the round; without one, it fails as a whole.
        """
        done = asyncio.get_running_loop().create_future()
        return self._queue(self._writes, _Work(stage, done, alone, together, without, waits=waits))

    def read(self, read: Callable[[Round], T]) -> asyncio.Future[T]:
        """Queue a look at the staged state at a moment when all of it is durable."""
        return self._queue(self._reads, _Work(read, asyncio.get_running_loop().create_future()))

    def stop(self) -> None:
        """Let :meth:`run` finish what is queued and end. New requests are refused with ShuttingDown."""
        self._stopping = True
        self._arrived.set()

    async def run(self) -> None:
        """Run rounds until :meth:`stop`. Raises what an append raises when this process must not go on."""
        try:
            while len(self) or not self._stopping:
                if not len(self):
                    await self._arrived.wait()
                self._arrived.clear()
                await self._round()
                self._let_out()
        finally:
            self._stopping = True
            for work in (*self._writes, *self._reads):
                work.fail(errors.ShuttingDown(STOPPING))
            self._writes.clear()
            self._reads.clear()
            await asyncio.gather(*self._answers, return_exceptions=True)

    def _queue(self, queue: deque[_Work[Any]], work: _Work[T]) -> asyncio.Future[T]:
        if self._stopping:
            work.fail(errors.ShuttingDown(STOPPING))
            return work.done
        try:
            self._gate.enter(None, asyncio.get_running_loop().time())
        except errors.Overloaded as error:
            work.fail(error)
            return work.done
        queue.append(work)
        self._arrived.set()
        return work.done

    def _let_out(self) -> None:
        """Make room for as many requests as wait no more."""
        now = asyncio.get_running_loop().time()
        for _ in range(self._gate.inside - len(self)):
            self._gate.leave(now)

    async def _round(self) -> None:
        round_ = self._shard.begin()
        staged: list[tuple[_Work[Any], Any]] = []
        refusal = self._stage(round_, staged)
        self._let_out()
        kept: Collection[str] = ()
        try:
            refusal = refusal or await self._append(round_)
            if refusal is not None:
                kept = await self._shard.roll_back(round_)
        except BaseException:
            # Killed, or the journal is another's: nothing of this round was shown, and nothing will be.
            for work, _ in staged:
                work.fail(errors.ShuttingDown(STOPPING))
            raise
        if refusal is not None:
            unknown = errors.Unavailable(
                "the store has lost or damaged records, and what this process knows takes their place; look whether this took effect, "
                "or repeat it"
            )
            for work, _ in staged:
                work.fail(refusal if work.names.isdisjoint(kept) else unknown)
            self._answer_reads(round_)
            return
        self._shard.publish(round_, len(staged))
        for work, result in staged:
            open_ = (
                self._shard.unsettled(work.names - round_.dropped.keys()) if work.waits and work.refusal is None else []
            )
            if not open_:
                work.end(result, round_.dropped)
                continue
            task = asyncio.create_task(self._answer_settled(work, result, round_.dropped, open_))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        self._answer_reads(round_)
        await self._shard.tidy(round_)

    async def _answer_settled(
        self, work: _Work[Any], result: Any, dropped: Mapping[str, Exception], open_: Sequence[tuple[Slice, int]]
    ) -> None:
        """Answer when all slices that it has touched stand no lower than they may count; others have their answers meanwhile."""
        found = await asyncio.gather(*(each.settle(turn) for each, turn in open_))
        unheard = {each.name: refusal for (each, _), refusal in zip(open_, found, strict=True) if refusal is not None}
        work.end(result, dropped, unheard)

    async def _append(self, round_: Round) -> Exception | None:
        """Make a round durable, or return why it has to be forgotten. Raises what ends this process."""
        try:
            await self._shard.append(round_)
        except InDoubt as error:
            refusal = self._given_up(error.after)
            if refusal is None:
                raise error.after from error
            return errors.Unavailable(f"it is not known whether the write took effect; look, or repeat it: {error}")
        except (JournalFailed, JournalFenced, JournalPosition) as error:
            refusal = self._given_up(error)
            if refusal is None:
                raise
            return refusal
        return None

    def _given_up(self, error: JournalError) -> Exception | None:
        """Return what the requests of a round hear that was surely not written; None: this process has to end."""
        if isinstance(error, JournalFailed):
            return errors.JournalFailed(f"the journal refused the write, nothing was changed: {error}")
        if isinstance(error, JournalFenced) and self._shard.shared:
            self._shard.replaced(error.owners)
            return GivenUp()
        if isinstance(error, JournalPosition) and error.log == GRAPH and self._shard.shared:
            return GraphMoved()
        return None

    def _stage(self, round_: Round, staged: list[tuple[_Work[Any], Any]]) -> Exception | None:
        """Stage requests in arrival order; an error is why the whole round must be forgotten."""
        while self._writes and not (staged and self._writes[0].alone):
            if self._writes[0].together:
                return self._stage_together(round_, staged)
            work = self._writes.popleft()
            refusal = self._stage_one(round_, work, staged)
            if refusal is not None:
                return refusal
            if work.alone:
                break
        return None

    def _stage_together(self, round_: Round, staged: list[tuple[_Work[Any], Any]]) -> Exception | None:
        """Stage those that may share the round of the first in the queue; what is left of them goes behind all others."""
        time = asyncio.get_running_loop().time
        until = time() + self._shard.settings.round_seconds
        alike = deque(work for work in self._writes if work.together)
        self._writes = deque(work for work in self._writes if not work.together)
        refusal = None
        for _ in range(min(TOGETHER, len(alike))):
            refusal = self._stage_one(round_, alike.popleft(), staged)
            if refusal is not None or time() >= until:
                break
        self._writes.extend(alike)
        return refusal

    def _stage_one(
        self, round_: Round, work: _Work[Any], staged: list[tuple[_Work[Any], Any]]
    ) -> errors.LowwaterError | None:
        round_.asked = work.names
        graph = round_.topology
        try:
            staged.append((work, work.run(round_)))
        except errors.OldStream as error:
            # At once: what is behind it in its stream, in this very round, must see it.
            work.fail(error)
        except errors.LowwaterError as error:
            work.refusal = error
            if self._shard.shared or work.together:  # which is refused for what may be staged in front of it
                staged.append((work, None))
            else:
                work.fail(error)
        except GivenUp as error:
            work.fail(error)
        except Exception:
            if work.together and not work.names:
                # It has changed the graph at most, which is a value: those in front of it have nothing to do with it.
                round_.topology = graph
                log.exception("a request failed in a way it never should", extra=event("internal_error"))
                work.fail(errors.LowwaterError("internal error, nothing was changed; see the authority's log"))
                return None
            # Half a change may be staged: nothing of this round may reach the journal.
            log.exception(
                "a request failed in a way it never should; the round is rolled back", extra=event("internal_error")
            )
            staged.append((work, None))
            round_.torn |= work.names
            return errors.LowwaterError("internal error, nothing was changed; see the authority's log")
        return None

    def _answer_reads(self, round_: Round) -> None:
        for _ in range(len(self._reads)):
            work = self._reads.popleft()
            try:
                work.succeed(work.run(round_))
            except errors.LowwaterError as error:
                work.fail(error)
            except Exception:
                # A read has staged nothing, so that whoever asked is the only one who has to hear of it.
                log.exception("a question failed in a way it never should", extra=event("internal_error"))
                work.fail(errors.LowwaterError("internal error while reading; see the authority's log"))
