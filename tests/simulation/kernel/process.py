"""A simulated operating-system process: a set of tasks that can be killed or frozen at any of their awaits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.simulation.kernel.loop import PROCESS, Callback

if TYPE_CHECKING:
    from tests.simulation.kernel.simulation import Simulation

T = TypeVar("T")

START_MICROS: Final = 1_357_689_600_000_000


class Crashed(Exception):
    """The process is dead; ``restarted()`` makes a new one."""


class Process:
    def __init__(self, sim: Simulation, name: str, generation: int = 1) -> None:
        self.sim = sim
        self.name = name
        self.generation = generation
        self.alive = True
        self.paused = False
        self.halted = False
        self.pauses = 0
        self.failure: BaseException | None = None
        self.skew = 0.0
        """Seconds by which its wall clock is wrong; may change at any time, in both directions."""
        self.ended = asyncio.Event()
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self._main: asyncio.Task[Any] | None = None
        self._deferred: deque[Callback] = deque()

    def __repr__(self) -> str:
        return f"{self.name}#{self.generation}"

    def start(self, coro_function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> asyncio.Task[T]:
        """Run a coroutine in this process, the main one at the first call. Raises Crashed when the process is dead.

        Awaiting the task of a process that dies waits for ever; ``ended`` does not.
        """
        if not self.alive:
            raise Crashed(f"{self} is dead: start {self.name}'s next life, restarted()")
        task: asyncio.Task[T] = self.sim.loop.create_task(coro_function(*args), context=self.context.copy())
        if self._main is None and self is not self.sim.god:
            self._main = task
            self.sim.trace("start", process=str(self))
            task.add_done_callback(self._main_ended, context=Context())
        return task

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        if not self.alive:
            return
        self.failure = asyncio.CancelledError() if main.cancelled() else main.exception()
        self._die("exit", failure=type(self.failure).__name__ if self.failure else "")

    def crash(self) -> None:
        if self is self.sim.god:
            raise ValueError("the process that runs the simulation cannot be killed")
        if self.alive:
            self._die("crash")

    def _die(self, kind: str, **facts: object) -> None:
        self.sim.trace(kind, process=str(self), **facts)
        self.alive = self.paused = False
        self.halted = True
        self.sim.loop.bury(self)
        self._deferred.clear()
        self.sim.network.died(self)
        self.ended.set()

    def pause(self) -> None:
        if self is self.sim.god:
            raise ValueError("the process that runs the simulation cannot be paused")
        if self.alive and not self.paused:
            self.sim.trace("pause", process=str(self))
            self.paused = self.halted = True
            self.pauses += 1
            self.sim.network.paused(self)

    def resume(self) -> None:
        if self.paused:
            self.sim.trace("resume", process=str(self), kept=len(self._deferred))
            self.paused = self.halted = False
            deferred, self._deferred = self._deferred, deque()
            self.sim.loop.again(deferred)
            self.sim.network.changed()

    def keep(self, callback: Callback) -> None:
        if self.alive:
            self._deferred.append(callback)

    def restarted(self) -> Process:
        """A fresh process of the same name and clock, which from now on is the one that goes by the name.

        The old one may still be alive: a zombie.
        """
        fresh = Process(self.sim, self.name, self.sim.processes[self.name].generation + 1)
        fresh.skew = self.skew
        self.sim.processes[self.name] = fresh
        return fresh

    def clock(self) -> int:
        return START_MICROS + round((self.sim.now + self.skew) * 1_000_000)
