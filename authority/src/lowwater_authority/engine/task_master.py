"""The task master: gives the tasks of served computations to workers, which may wait for them.

core/tasks.py decides. Each request is part of a round, even a renewal or a refusal, which change
nothing. So it is answered when its record is durable (rule 2), and only if the store confirms that
this process may still answer (rule 4).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from lowwater import errors
from lowwater_authority.engine.holding import COUNTER_BITS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.tasks import GroupFigures, NewTask, Task, TaskGrant, TaskGroup, TaskLease, TaskState
    from lowwater_authority.engine.admission import Gate
    from lowwater_authority.engine.shard import Shard


@dataclass(slots=True)
class _Waiting:
    """Workers that wait for the tasks of one group."""

    workers: dict[asyncio.Event, None] = field(default_factory=dict[asyncio.Event, None])
    """Event of each worker, in the order of arrival. A dict, because the order of a set differs
    from process to process, and no simulation could be repeated."""
    offered: int = 0
    """Number of times that a task had become ready, when workers were woken last."""

    def wake(self, count: int) -> None:
        """Wake the first ``count`` workers, some of which may be awake already."""
        for changed in islice(self.workers, count):
            changed.set()


class TaskMaster:
    """Runs the requests about tasks in the rounds of a shard.

    ``gate`` bounds the number of waiting workers. Raises errors of core/tasks.py, and those of any
    change of a computation. ``incarnation`` is the one that the caller has seen; 0: any.
    """

    def __init__(self, shard: Shard, gate: Gate[Any]) -> None:
        self._shard = shard
        self._gate = gate
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        """Waiting workers by computation and group."""
        shard.rounds.on_published = self._wake

    async def create_group(self, name: str, group: TaskGroup, incarnation: int = 0) -> tuple[int, GroupFigures]:
        """Create a group; returns the incarnation, too.

        Raises IncarnationChanged, EstimatedInput for intervals by an estimated watermark, and
        InvalidArgument for a slice.
        """

        def create(computation: Computation, _: int) -> tuple[int, GroupFigures]:
            self._shard.topology.refuse_slice(name)
            self._shard.topology.check_incarnation(name, incarnation)
            if group.every and self._shard.topology.is_estimated(name):
                msg = f"the watermarks of {name} are estimates: rows may come to an interval that they have passed. Create the group for an exact computation"
                raise errors.EstimatedInput(msg, metadata={"computation": name})
            return computation.incarnation, computation.tasks.create_group(group)

        return await self._shard.owners.change(name, create)

    async def configure(
        self, name: str, group: str, configuration: bytes, version: int, incarnation: int = 0
    ) -> tuple[int, GroupFigures]:
        """Change the configuration of a group, which ends its leases; returns the incarnation, too.

        Raises IncarnationChanged.
        """

        def configure(computation: Computation, _: int) -> tuple[int, GroupFigures]:
            self._shard.topology.check_incarnation(name, incarnation)
            return computation.incarnation, computation.tasks.configure(group, configuration, version)

        return await self._shard.owners.change(name, configure)

    async def create(self, name: str, group: str, tasks: Sequence[NewTask], incarnation: int) -> None:
        """Create tasks of an incarnation. Raises IncarnationChanged."""

        def create(computation: Computation, _: int) -> None:
            self._shard.topology.check_incarnation(name, incarnation)
            computation.tasks.create(group, tasks)

        await self._shard.owners.change(name, create)

    async def take(
        self,
        name: str,
        group: str,
        worker: str,
        nonce: bytes,
        *,
        wait: float,
        leaving: asyncio.Event,
        who: str = "",
    ) -> TaskGrant | None:
        """Lease the oldest task for a principal ``who``.

        None: no task was ready within ``wait`` seconds, or this process is ``leaving``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        take = partial(_take, group=group, worker=worker, nonce=nonce)
        granted = await self._shard.owners.change(name, take)
        if granted is not None or not wait:
            return granted
        self._gate.enter(None, loop.time(), who)
        changed = asyncio.Event()
        waiting = self._waiting.setdefault(name, {}).setdefault(group, _Waiting())
        waiting.workers[changed] = None
        try:
            while granted is None and not leaving.is_set() and (seconds := deadline - loop.time()) > 0:
                changed.clear()
                due = self._next_offer(name, group)
                if due and await _first(changed, leaving, min(seconds, self._shard.settings.task_look_seconds, due)):
                    continue
                granted = await self._shard.owners.change(name, take)
        finally:
            del waiting.workers[changed]
            if granted is None and changed.is_set():
                waiting.wake(1)  # this worker was woken and leaves: the task is for the next one
            if not waiting.workers:
                del self._waiting[name][group]
            if not self._waiting[name]:
                del self._waiting[name]
            self._gate.leave(loop.time(), who)
        return granted

    def _next_offer(self, name: str, group: str) -> float:
        """Return the seconds until a task can be taken; infinite: no task can.

        0 also if only a request can find out.
        """
        computation = self._shard.held.computation(name)
        tasks = None if computation is None else computation.tasks.groups.get(group)
        if tasks is None:
            return 0.0
        now = self._shard.now
        due = tasks.next_offer(now)
        return math.inf if due is None else max(0, due - now) / 1e6

    def _wake(self, names: Collection[str]) -> None:
        """Wake as many waiting workers of each group as a round has made tasks ready.

        O(names + groups + tasks).
        """
        for name in [name for name in names if name in self._waiting]:
            computation = self._shard.held.computation(name)
            groups = {} if computation is None else computation.tasks.groups
            for group, waiting in self._waiting[name].items():
                tasks = groups.get(group)
                if tasks is not None and waiting.offered != tasks.offered:
                    waiting.offered = tasks.offered
                    waiting.wake(len(tasks.ready))

    async def renew(self, name: str, lease: TaskLease) -> int:
        """Renew a lease, from now on for its full time; returns that time in microseconds."""
        return await self._shard.owners.change(
            name, lambda computation, now: computation.tasks.renew(lease, incarnation=computation.incarnation, now=now)
        )

    async def release(self, name: str, lease: TaskLease) -> None:
        """Give a lease back."""
        await self._shard.owners.change(
            name, lambda computation, _: computation.tasks.release(lease, incarnation=computation.incarnation)
        )

    async def commit(
        self, name: str, lease: TaskLease, outputs: Sequence[str], digest: bytes, successors: Sequence[NewTask]
    ) -> None:
        """End a task and create those that follow from it."""

        def commit(computation: Computation, _: int) -> None:
            computation.tasks.commit(lease, outputs, digest, successors, incarnation=computation.incarnation)

        await self._shard.owners.change(name, commit)

    async def groups(self, name: str) -> tuple[int, list[GroupFigures]]:
        """Return the incarnation and the groups of a computation, as of the last durable round."""
        return await self._shard.reads.ask(
            name, lambda computation, _: (computation.incarnation, list(computation.tasks.published))
        )

    async def tasks(
        self, name: str, group: str, state: TaskState | None, limit: int
    ) -> tuple[int, GroupFigures, list[tuple[Task, bool]], int]:
        """Return the incarnation, a group, its oldest tasks, and the number of all tasks.

        Each task comes with whether its lease has run out.
        """

        def read(computation: Computation, now: int) -> tuple[int, GroupFigures, list[tuple[Task, bool]], int]:
            group_ = computation.tasks.group(group)
            lapsed = group_.look(now)
            chosen = [task for task in group_.tasks.values() if state in (None, task.state)]
            shown = [(task, task.key in lapsed) for task in chosen[:limit]]
            return computation.incarnation, group_.figures(), shown, len(chosen)

        return await self._shard.reads.ask(name, read)


def _take(computation: Computation, now: int, *, group: str, worker: str, nonce: bytes) -> TaskGrant | None:
    epoch = computation.epoch_base >> COUNTER_BITS
    return computation.tasks.take(group, worker, nonce, incarnation=computation.incarnation, epoch=epoch, now=now)


async def _first(changed: asyncio.Event, leaving: asyncio.Event, seconds: float) -> bool:
    """Wait ``seconds`` at most until one of two events is set; returns whether one is."""
    waits = [asyncio.ensure_future(event.wait()) for event in (changed, leaving)]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
