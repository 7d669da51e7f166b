"""An asyncio event loop with virtual time: it never waits, it jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from tests.simulation.kernel.process import Process

T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""Whose code runs. Tasks and callbacks inherit it; None is the kernel itself, which is never paused or killed."""

STANDSTILL: Final = 2_000_000
"""Callbacks within one instant after which the simulation counts as stuck: somebody polls without waiting."""

COLLECT_EVERY: Final = 50_000
"""Callbacks between two garbage collections: at fixed places, because collecting runs code (of async generators)."""


class SimulationStuck(Exception):
    def __init__(self, reason: str, pending: list[str]) -> None:
        self.pending = pending
        """Every task that was waiting: process, coroutine, and the line that it waits in."""
        super().__init__("\n  ".join([reason, *pending]))


class Callback(asyncio.TimerHandle):
    """A scheduled call. Fills none of its base's fields, which are private; it only answers as a handle does."""

    __slots__ = ("args", "call", "context", "dropped", "due", "loop", "process")

    def __init__(
        self, loop: VirtualLoop, due: float | None, call: Callable[..., object], args: Any, context: Context | None
    ) -> None:
        self.loop = loop
        self.due = due
        self.call: Callable[..., object] | None = call
        self.args = args
        self.context = copy_context() if context is None else context
        self.process = self.context.get(PROCESS)
        self.dropped = False

    def cancel(self) -> None:
        if not self.dropped:
            self.dropped = True
            self.call = self.args = None
            if self.due is not None:
                self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        assert self.due is not None
        return self.due

    def __repr__(self) -> str:
        return f"<Callback {self.call} of {self.process}>"


class SimTask(asyncio.Task[T]):
    """A task that knows its process, and whose place in a set does not depend on its address in memory."""

    __slots__ = ("number", "process")

    def __init__(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], loop: VirtualLoop, **options: Any
    ) -> None:
        # Before the base's part, which puts the task into a set.
        self.number = next(loop.task_numbers)
        context: Context | None = options.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number

    def describe(self) -> str:
        at: Any = self.get_coro()
        name = getattr(at, "__qualname__", str(at))
        where = ""
        while at is not None:
            frame = getattr(at, "cr_frame", None) or getattr(at, "ag_frame", None) or getattr(at, "gi_frame", None)
            if frame is not None:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            at = getattr(at, "cr_await", None) or getattr(at, "ag_await", None) or getattr(at, "gi_yieldfrom", None)
        return f"{self.process}: {name} waits at {where}"


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order in which they became due. Anything that needs a socket, a thread or a signal raises.

    What belongs to a dead process is dropped when its turn comes, what belongs to a paused one is kept for it.
    """

    def __init__(self, on_error: Callable[[str, BaseException | None], None]) -> None:
        self.now = 0.0
        self.callbacks = 0
        self.task_numbers = count(1)
        self._on_error = on_error
        self._ready: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._timer_numbers = count()
        self._cancelled = 0
        self._running = False
        self._closed = False
        self._failure: BaseException | None = None
        self._graveyard: list[SimTask[Any]] = []
        # By address, which a later generator may have again: weak references are gone when a generator is asked about.
        self._generators: dict[int, Process | None] = {}

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    # typed with a TypeVarTuple there
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        handle = Callback(self, None, callback, args, context)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no other threads

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        handle = Callback(self, when, callback, args, context)
        if not self._closed:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> SimTask[Any]:
        return SimTask(coro, self, **options)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self._on_error(context["message"], context.get("exception"))

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, coro: Coroutine[Any, Any, T], limit: float, context: Context) -> T:
        """Run a coroutine to its end and return what it returns. To be called once.

        Raises SimulationStuck, what the coroutine raises, or what was given to :meth:`abort`.
        """
        hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        gc.disable()
        # What is older than the simulation is not looked at again by every collection in it.
        gc.freeze()
        sys.set_asyncgen_hooks(self._generator_begins, self._generator_dropped)
        _set_running(self)
        self._running = True
        try:
            main: asyncio.Task[T] = self.create_task(coro, context=context)
            try:
                self._run(main, self.now + limit)
                return main.result()
            finally:
                self._dispose()
        finally:
            self._running = False
            _set_running(None)
            sys.set_asyncgen_hooks(*hooks)
            gc.unfreeze()
            if collecting:
                gc.enable()

    def abort(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _run(self, main: asyncio.Task[Any], limit: float) -> None:
        ready, standing, collect_at = self._ready, 0, COLLECT_EVERY
        while not main.done():
            turns = len(ready)
            if not turns:
                self._advance(limit)
                standing = 0
                continue
            for _ in range(turns):
                callback = ready.popleft()
                if callback.dropped:
                    continue
                process = callback.process
                if process is not None and process.halted:
                    process.keep(callback)
                    continue
                try:
                    callback.context.run(callback.call, *callback.args)  # type: ignore[arg-type]  # not cancelled
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # noqa: BLE001 - reported as any loop does
                    self._on_error(f"a callback failed: {callback.call}", error)
            if self._failure is not None:
                raise self._failure
            self.callbacks += turns
            standing += turns
            if standing > STANDSTILL:
                self._stuck(f"time stands still at {self.now:g} s: somebody polls without waiting")
            if self.callbacks >= collect_at:
                collect_at += COLLECT_EVERY
                gc.collect()

    def _advance(self, limit: float) -> None:
        timers = self._timers
        while timers and timers[0][2].dropped:
            heapq.heappop(timers)
            self._cancelled -= 1
        if not timers:
            self._stuck(f"nothing is scheduled after {self.now:g} s, and the main coroutine is not done")
        due = timers[0][0]
        if due > limit:
            self._stuck(f"the main coroutine is not done at its limit of {limit:g} virtual seconds")
        self.now = max(self.now, due)
        while timers and timers[0][0] <= self.now:
            callback = heapq.heappop(timers)[2]
            if callback.dropped:
                self._cancelled -= 1
            else:
                callback.due = None
                self._ready.append(callback)

    def timer_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > 256 and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].dropped]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def again(self, callbacks: Iterable[Callback]) -> None:
        self._ready.extendleft(reversed([callback for callback in callbacks if not callback.dropped]))

    def _stuck(self, reason: str) -> None:
        raise SimulationStuck(
            reason, [task.describe() for task in self._tasks() if task.process is None or task.process.alive]
        )

    # -- what never runs again -------------------------------------------------------------------------------------

    def _tasks(self) -> list[SimTask[Any]]:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.number)

    def failed(self) -> list[str]:
        """Return the tasks of living processes that have failed, and whose error nobody has fetched."""
        tasks = [task for task in gc.get_objects() if isinstance(task, SimTask) and task.get_loop() is self]
        living = [task for task in tasks if task.process is not None and task.process.alive]
        failed = [task for task in living if task.done() and task._log_traceback]
        return [f"{task.process}: {task.get_coro()} with {task.exception()!r}" for task in sorted(failed, key=hash)]

    def bury(self, process: Process) -> None:
        self._graveyard += [task for task in self._tasks() if task.process is process]

    def _generator_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = PROCESS.get()

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close a generator that was left in the middle, as any loop does; but not a dead process's, nor at the end.

        It is enough to do nothing then: Python does not ask twice.
        """
        process = self._generators.pop(id(generator), None)
        if not self._closed and (process is None or process.alive):
            self.create_task(generator.aclose(), context=process.context.copy() if process else Context())

    def _dispose(self) -> None:
        self._closed = True
        closed: set[int] = set()
        while remaining := [task for task in [*self._graveyard, *self._tasks()] if task.number not in closed]:
            for task in remaining:
                closed.add(task.number)
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        self._graveyard.clear()
        self._ready.clear()
        self._timers.clear()


def _set_running(loop: VirtualLoop | None) -> None:
    asyncio._set_running_loop(loop)


def _close(coro: Any) -> None:
    for _ in range(10):
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            coro.close()
            return
