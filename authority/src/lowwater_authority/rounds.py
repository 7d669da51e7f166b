"""The group-commit loop: stage what has arrived, append once, publish and answer, begin again.

No timer: the next round starts when the append returns, so an idle shard answers in one journal round trip and a busy
one batches by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from lowwater import errors
from lowwater_authority.journal import JournalFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.requests import Fenced
    from lowwater_authority.core.topology import Topology

T = TypeVar("T")

QUEUE_BOUND: Final = 65_536
"""Requests waiting for a round; one more is refused with Overloaded."""

STOPPING: Final = "the authority is stopping; connect again"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """What one round has staged so far. All of it gets the same processing time."""

    now: int
    touched: dict[str, Computation] = field(default_factory=dict)
    topology: Topology | None = None
    restarts: tuple[str, ...] = ()
    fenced: list[Fenced] = field(default_factory=list)


class RoundOwner(Protocol):
    """Owns the state that rounds change."""

    def begin(self) -> Round:
        """Start a round."""
        ...

    async def append(self, round_: Round) -> None:
        """Make the round durable and return when it is. JournalFailed: it surely is not. Else: stop this process."""

    def publish(self, round_: Round, requests: int) -> None:
        """Show what is durable now."""

    async def roll_back(self, round_: Round) -> None:
        """Forget what the round staged."""

    def tidy(self, round_: Round) -> None:
        """Do what may wait until the callers have their answers."""


@dataclass(slots=True)
class _Work(Generic[T]):
    """A queued request: what to do within a round, and who waits for it."""

    run: Callable[[Round], T]
    done: asyncio.Future[T]
    alone: bool = False

    def succeed(self, result: T) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class CommitLoop:
    """Runs requests in rounds. Answers come when their effect is durable; a refused request has changed nothing."""

    def __init__(self, owner: RoundOwner) -> None:
        self._owner = owner
        self._writes: deque[_Work[Any]] = deque()
        self._reads: deque[_Work[Any]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._writes) + len(self._reads)

    def write(self, stage: Callable[[Round], T], *, alone: bool = False) -> asyncio.Future[T]:
        """Queue a change. ``alone``: nothing else shares its round."""
        return self._queue(self._writes, stage, alone=alone)

    def read(self, read: Callable[[Round], T]) -> asyncio.Future[T]:
        """Queue a look at the staged state at a moment when all of it is durable."""
        return self._queue(self._reads, read)

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
        finally:
            self._stopping = True
            for work in (*self._writes, *self._reads):
                work.fail(errors.ShuttingDown(STOPPING))
            self._writes.clear()
            self._reads.clear()

    def _queue(self, queue: deque[_Work[Any]], run: Callable[[Round], T], *, alone: bool = False) -> asyncio.Future[T]:
        work = _Work(run, asyncio.get_running_loop().create_future(), alone)
        if self._stopping:
            work.fail(errors.ShuttingDown(STOPPING))
        elif len(self) >= QUEUE_BOUND:
            work.fail(errors.Overloaded(f"{QUEUE_BOUND} requests wait already; try again later"))
        else:
            queue.append(work)
            self._arrived.set()
        return work.done

    async def _round(self) -> None:
        round_ = self._owner.begin()
        staged: list[tuple[_Work[Any], Any]] = []
        refusal = self._stage(round_, staged)
        try:
            if refusal is None:
                await self._owner.append(round_)
        except JournalFailed as error:
            refusal = errors.JournalFailed(f"the journal refused the write, nothing was changed: {error}")
        except BaseException:
            # Replaced by a newer owner, or killed: nothing of this round was shown, and nothing will be.
            for work, _ in staged:
                work.fail(errors.ShuttingDown(STOPPING))
            raise
        if refusal is not None:
            await self._owner.roll_back(round_)
            for work, _ in staged:
                work.fail(refusal)
            return
        self._owner.publish(round_, len(staged))
        for work, result in staged:
            work.succeed(result)
        self._answer_reads(round_)
        self._owner.tidy(round_)

    def _stage(self, round_: Round, staged: list[tuple[_Work[Any], Any]]) -> errors.LowwaterError | None:
        """Stage requests in arrival order; an error is why the whole round must be forgotten."""
        while self._writes and not (staged and self._writes[0].alone):
            work = self._writes.popleft()
            try:
                staged.append((work, work.run(round_)))
            except errors.LowwaterError as error:
                work.fail(error)
            except Exception:
                # Half a change may be staged: nothing of this round may reach the journal.
                log.exception("a request failed in a way it never should; the round is rolled back")
                staged.append((work, None))
                return errors.LowwaterError("internal error, nothing was changed; see the authority's log")
            if work.alone:
                break
        return None

    def _answer_reads(self, round_: Round) -> None:
        for _ in range(len(self._reads)):
            work = self._reads.popleft()
            try:
                work.succeed(work.run(round_))
            except errors.LowwaterError as error:
                work.fail(error)
