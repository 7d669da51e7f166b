"""The task master: hands out the tasks of the computations that a shard serves, and lets workers wait for them.

What decides is core/tasks.py. Each request is one of a round, so that it is answered when its record is durable (rule 2), and it is
the store that says whether this process may still answer it (rule 4): also a renewal, and a refusal, which change nothing.
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
    """Those who wait for the tasks of one group."""

    workers: dict[asyncio.Event, None] = field(default_factory=dict[asyncio.Event, None])
    """In the order of their coming. A dict for that: a set's order would differ from process to
    process, and no run could be repeated."""
    offered: int = 0
    """How often a task of the group had become ready when they were told last."""

    def tell(self, many: int) -> None:
        """Let so many of them look, who came first.

        Whoever has been told and has not looked yet is among them.
        """
        for changed in islice(self.workers, many):
            changed.set()


class TaskMaster:
    """Runs the requests about tasks in the rounds of a shard.

    Raises what core/tasks.py raises, and what any change of a computation does.

    ``gate`` bounds how many workers wait at once.
    """

    def __init__(self, shard: Shard, gate: Gate[Any]) -> None:
        self._shard = shard
        self._gate = gate
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        """By computation and group."""
        shard.rounds.on_published = self._tell

    async def create_group(self, name: str, wanted: TaskGroup, incarnation: int = 0) -> tuple[int, GroupFigures]:
        """Create a group; returns the incarnation, too.

        Raises IncarnationChanged unless ``incarnation`` is in force; 0: any.

        Raises EstimatedInput for intervals by a watermark that nobody promises, and InvalidArgument
        for a slice.
        """

        def create(computation: Computation, _: int) -> tuple[int, GroupFigures]:
            self._shard.topology.refuse_slice(name)
            self._shard.topology.check_incarnation(name, incarnation)
            if wanted.every and self._shard.topology.is_estimated(name):
                msg = f"the watermarks of {name} are estimates: rows may come to an interval that they have passed. Hang the group under what is exact"
                raise errors.EstimatedInput(msg, metadata={"computation": name})
            return computation.incarnation, computation.tasks.create_group(wanted)

        return await self._shard.owners.change(name, create)

    async def configure(
        self, name: str, group: str, configuration: bytes, version: int, incarnation: int = 0
    ) -> tuple[int, GroupFigures]:
        """Change the configuration of a group, which ends its leases; returns the incarnation, too.

        Raises IncarnationChanged unless ``incarnation`` is in force; 0: any.
        """

        def configure(computation: Computation, _: int) -> tuple[int, GroupFigures]:
            self._shard.topology.check_incarnation(name, incarnation)
            return computation.incarnation, computation.tasks.configure(group, configuration, version)

        return await self._shard.owners.change(name, configure)

    async def create(self, name: str, group: str, tasks: Sequence[NewTask], incarnation: int) -> None:
        """Create tasks.

        Raises IncarnationChanged for those that another incarnation was meant to have.
        """

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
        """Lease the oldest task; None when none came within ``wait`` seconds, or this process is ``leaving``. ``who`` is the principal that waits."""
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
            while granted is None and not leaving.is_set() and (left := deadline - loop.time()) > 0:
                changed.clear()
                due = self._next_offer(name, group)
                if due and await _first(changed, leaving, min(left, self._shard.settings.task_look_seconds, due)):
                    continue
                granted = await self._shard.owners.change(name, take)
        finally:
            del waiting.workers[changed]
            if granted is None and changed.is_set():
                waiting.tell(1)  # it was told and leaves: the task is for another one
            if not waiting.workers:
                del self._waiting[name][group]
            if not self._waiting[name]:
                del self._waiting[name]
            self._gate.leave(loop.time(), who)
        return granted

    def _next_offer(self, name: str, group: str) -> float:
        """Return in how many seconds a task can be taken: 0 also where only a request can tell, infinite when nothing is to be had."""
        computation = self._shard.held.computation(name)
        found = None if computation is None else computation.tasks.groups.get(group)
        if found is None:
            return 0.0
        now = self._shard.now
        due = found.next_offer(now)
        return math.inf if due is None else max(0, due - now) / 1e6

    def _tell(self, names: Collection[str]) -> None:
        """Let as many look as there are tasks, of those who wait for a group of which a round has made some ready. O(names + groups + tasks)."""
        for name in [name for name in names if name in self._waiting]:
            computation = self._shard.held.computation(name)
            groups = {} if computation is None else computation.tasks.groups
            for group, waiting in self._waiting[name].items():
                found = groups.get(group)
                if found is not None and waiting.offered != found.offered:
                    waiting.offered = found.offered
                    waiting.tell(len(found.ready))

    async def renew(self, name: str, lease: TaskLease) -> int:
        """Offer a lease to nobody for its full time, in microseconds, from now on."""

        def renew(computation: Computation, now: int) -> int:
            return computation.tasks.renew(lease, incarnation=computation.incarnation, now=now)

        return await self._shard.owners.change(name, renew)

    async def release(self, name: str, lease: TaskLease) -> None:
        """Give a lease back."""

        def release(computation: Computation, _: int) -> None:
            computation.tasks.release(lease, incarnation=computation.incarnation)

        await self._shard.owners.change(name, release)

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
        """Return the incarnation, a group, its oldest tasks, each with whether its lease has run out, and how many there are."""

        def read(computation: Computation, now: int) -> tuple[int, GroupFigures, list[tuple[Task, bool]], int]:
            found = computation.tasks.group(group)
            lapsed = found.look(now)
            chosen = [task for task in found.tasks.values() if state in (None, task.state)]
            shown = [(task, task.key in lapsed) for task in chosen[:limit]]
            return computation.incarnation, found.figures(), shown, len(chosen)

        return await self._shard.reads.ask(name, read)


def _take(computation: Computation, now: int, *, group: str, worker: str, nonce: bytes) -> TaskGrant | None:
    epoch = computation.epoch_base >> COUNTER_BITS
    return computation.tasks.take(group, worker, nonce, incarnation=computation.incarnation, epoch=epoch, now=now)


async def _first(changed: asyncio.Event, leaving: asyncio.Event, seconds: float) -> bool:
    """Wait until one of two events is set, or for so many seconds; returns whether one is."""
    waits = [asyncio.ensure_future(event.wait()) for event in (changed, leaving)]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
