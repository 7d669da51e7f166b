"""A guest: it registers a computation, has its tasks done by some workers, and drops it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from lowwater import NewTask, errors
from tests.simulation.truth import MAX, Cell, Node, Source

if TYPE_CHECKING:
    from lowwater.aio import Client, Tasks
    from tests.simulation.kernel import Process
    from tests.simulation.programs import Place

TASKS = 4

WORKERS = 3
"""The number of workers that wait for tasks before there are any."""

IN_TIME = 30.0
"""Seconds within which a guest in peace has its tasks done. A lease lasts longer, so a released task that is not offered at once is late."""

LATER = (errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.JournalFailed)


async def visit(place: Place, process: Process) -> None:
    guest = Guest(place, process, peaceful=place.calm)
    async with place.client(process) as lw:
        await guest.have_done(lw)


class Guest:
    def __init__(self, place: Place, process: Process, *, peaceful: bool) -> None:
        self._place = place
        self._name = process.name
        self._random = place.sim.rng(f"guest {process.name}")
        self._peaceful = peaceful
        self._until = place.sim.now + IN_TIME
        self._done: set[str] = set()
        self._released: set[str] = set()
        # It has no records, so that any value of it is true.
        place.pipeline.guests[self._name] = Node(self._name, [], 0, [Cell(source=Source((), MAX))])

    async def have_done(self, lw: Client) -> None:
        tasks = lw.tasks(self._name)
        new = [NewTask(f"task-{number}", 1) for number in range(TASKS)]
        await self._until_done(lambda: lw.register(self._name))
        await self._until_done(lambda: tasks.create_group("work", lease=timedelta(seconds=2 * IN_TIME)))
        create = self._until_done(lambda: tasks.create("work", new))
        await asyncio.gather(*(self._work(tasks) for _ in range(WORKERS)), create)
        late = self._peaceful and len(self._done) < TASKS
        self._place.oracle.expect(not late, f"in {IN_TIME:g} s only {sorted(self._done)} of {self._name} were done")
        await self._until_done(lambda: self._drop(lw))

    async def _drop(self, lw: Client) -> None:
        try:
            await lw.drop(self._name, force=True)
        except errors.UnknownComputation:
            pass  # the answer to an earlier attempt was lost

    async def _work(self, tasks: Tasks) -> None:
        random, sim = self._random, self._place.sim
        while len(self._done) < TASKS and sim.now < self._until:
            try:
                lease = await tasks.take("work", worker="guest", wait=random.uniform(0, 3))
                if lease is None:
                    continue
                name = lease.task.name
                self._place.oracle.offered(self._name, name, done=name in self._done)
                await asyncio.sleep(random.uniform(0, 0.3))
                if random.random() < 0.3:
                    await lease.renew()
                if name in self._released:
                    await lease.commit()
                    self._done.add(name)
                else:
                    self._released.add(name)
                    await lease.release()
            except errors.LowwaterError as error:
                await self._refused(error)

    async def _until_done(self, call: Callable[[], Awaitable[object]]) -> None:
        while self._place.sim.now < 2 * self._until:
            try:
                await call()
            except errors.LowwaterError as error:
                await self._refused(error)
            else:
                return

    async def _refused(self, error: errors.LowwaterError) -> None:
        self._place.sim.reach(f"guest: {error.reason}")
        if self._peaceful and not isinstance(error, LATER):
            self._place.oracle.fail(f"{self._name} is refused in peace: {error!r}")
        await asyncio.sleep(0.2)
