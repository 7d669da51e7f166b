"""The client: one object per event loop, from which everything else comes."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from lowwater import errors
from lowwater._aio.connection import MakeChannel
from lowwater._aio.inputs import InputReader
from lowwater._aio.runtime import Runtime
from lowwater._aio.worker import Worker
from lowwater._core.attempts import closed_client
from lowwater._core.call import Call, Gather
from lowwater._core.calls import Calls, full_name
from lowwater._core.claims import Claimant
from lowwater._core.granted import CLOSE_TIMEOUT
from lowwater._core.settings import Settings
from lowwater._core.statistics import ClientStatistics
from lowwater._core.surroundings import REAL, Surroundings
from lowwater._core.watches import Changes, Waiting, check_followed
from lowwater._core.why import ASK_SECONDS, UNTOLD, Why, explain, find_guilty
from lowwater.histogram import Histogram
from lowwater.views import (
    Completeness,
    Computation,
    History,
    Inputs,
    Ranges,
    Refusal,
    Shards,
    TaskAttempt,
    Topology,
    WatermarkView,
)
from lowwater.watermark import EventTime

__all__ = ["Client"]

Result = TypeVar("Result")


class Client:
    """Everything a program asks of the authority, on asyncio. Use it as an async context manager.

    :func:`lowwater.aio.connect` makes it. Its methods are those of :class:`lowwater.Client`, to which their descriptions
    refer; those that wait are coroutines. A client belongs to the process and the event loop of its first use, and starts
    at most one task to report and one to watch at each shard. A cancelled call leaves it usable. Calls raise LowwaterError: Unavailable when no
    server answers within the timeout, Closed after :meth:`close`, and in another process or loop.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        surroundings: Surroundings = REAL,
        channel: MakeChannel | None = None,
    ) -> None:
        self.settings = settings
        self._surroundings = surroundings
        self._make_channel = channel
        self._made: Runtime | None = None
        self._workers: list[Worker] = []
        self._closed = False

    # -- the graph ----------------------------------------------------------------------------------------------------

    async def register(
        self,
        name: str,
        inputs: Iterable[str] = (),
        heuristics: Iterable[float] = (0.99,),
        key_hash: str = "",
        max_skew: timedelta = timedelta(days=1),
        history_step: timedelta | None = None,
        estimated: bool = False,
    ) -> Computation:
        """Register a computation; see :meth:`lowwater.Client.register`."""
        call = self._calls.register(name, inputs, heuristics, key_hash, max_skew, history_step, estimated=estimated)
        return await self._call(call)

    async def topology(self) -> Topology:
        """Return the whole graph."""
        return await self._call(self._calls.topology())

    async def set_inputs(self, name: str, inputs: Iterable[str]) -> Computation:
        """Change what a computation reads; see :meth:`lowwater.Client.set_inputs`."""
        return await self._call(self._calls.set_inputs(name, inputs))

    async def reset(self, name: str) -> tuple[Computation, ...]:
        """Start a new life of a computation and of all that reads it; see :meth:`lowwater.Client.reset`."""
        return await self._call(self._calls.reset(name))

    async def retire(self, name: str, start: bytes, end: bytes, force: bool = False) -> int:
        """Take ``[start, end)`` out of a computation until it is claimed again; see :meth:`lowwater.Client.retire`."""
        return await self._call(self._calls.retire(name, start, end, force=force))

    async def drop(self, name: str, force: bool = False) -> int:
        """Take a computation out of the graph; see :meth:`lowwater.Client.drop`."""
        return await self._call(self._calls.drop(name, force=force))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, *names: str) -> dict[str, WatermarkView]:
        """Return the published watermarks of some computations by name, or of all. Names not registered are unknown."""
        return (await self._call(self._calls.get(names))).views

    def inputs(self, *names: str) -> InputReader:
        """Follow some computations and fold them locally. Raises InvalidArgument without names."""
        self._check_open()
        check_followed(names)
        return InputReader(self._runtime, {name: self._full(name, "names") for name in names})

    async def watch(self, *names: str) -> AsyncGenerator[WatermarkView, None]:
        """Yield the watermarks of some computations, or of all, and again whenever they change. Conflated.

        Waits between changes, without end while the authority is away. Ends when the client is closed. Raises
        ServerTokenMismatch when another deployment answers.
        """
        watcher = self._runtime().watcher
        followed = [self._full(name, "names") for name in names]
        changes, subscription = Changes(followed), watcher.subscribe(followed)
        try:
            while True:
                await watcher.wait(lambda: changes.come(watcher.state, subscription), None)
                yield changes.take(watcher.state)
        except errors.Closed:
            return
        finally:
            watcher.unsubscribe(subscription)

    async def wait(
        self,
        name: str,
        until: EventTime,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        registered: bool = False,
    ) -> WatermarkView:
        """Wait until everything before ``until`` is complete; see :meth:`lowwater.Client.wait`."""
        waiting = Waiting(self._full(name), until, timeout, registered=registered)
        runtime = self._runtime()
        watcher = runtime.watcher
        deadline = runtime.deadline(timeout)
        subscription = watcher.subscribe([waiting.name])
        try:
            if await watcher.wait(lambda: waiting.reached(watcher.state, subscription), deadline):
                return watcher.state.ratchet.get(waiting.name)
            why = None
            if waiting.answers(watcher.state):
                with suppress(errors.LowwaterError):
                    why = await self._why(waiting.name, ASK_SECONDS)
            if waiting.reached(watcher.state, subscription):  # while it was asked
                return watcher.state.ratchet.get(waiting.name)
            raise waiting.too_late(watcher.state, why)
        finally:
            watcher.unsubscribe(subscription)

    async def complete(self, name: str, until: EventTime) -> Completeness:
        """Tell whether everything before ``until`` is here, and if not, which key ranges hold it.

        Raises UnknownComputation, and Unavailable when nobody can tell.
        """
        return await self._call(self._calls.complete(name, until))

    async def ranges(self, name: str, below: EventTime | None = None, limit: int = 100) -> Ranges:
        """List the key ranges of a computation, those furthest behind first; only those below an event time, if given."""
        return await self._call(self._calls.ranges(name, below, limit))

    async def history(self, name: str, since: EventTime | None = None, limit: int = 100) -> History:
        """Tell when each step of event time became complete; see :meth:`lowwater.Client.history`."""
        return await self._call(self._calls.history(name, since, limit))

    async def why(self, name: str) -> Why:
        """Tell who holds a computation; see :meth:`lowwater.Client.why`.

        Raises UnknownComputation.
        """
        return await self._why(self._full(name))

    async def _why(self, full: str, within: float = math.inf) -> Why:
        runtime = self._runtime()
        published = await runtime.call(runtime.calls.get(()), within)
        published.require(full)
        guilty = find_guilty(full, published.views, published.time_micros)
        found, unknown = Ranges((), 0), None
        if guilty is not None:
            try:
                found = await runtime.call(runtime.calls.holding(published.views[guilty]), ASK_SECONDS)
            except UNTOLD as error:
                unknown = error
        return explain(full, published.views, published.time_micros, found, unknown)

    # -- writing ------------------------------------------------------------------------------------------------------

    def worker(
        self,
        computation: str,
        /,
        *,
        name: str | None = None,
        identity: str = "",
        generation: int = 0,
        ordinal: int = 0,
    ) -> Worker:
        """Return a worker of a computation, to claim key ranges with; see :meth:`lowwater.Client.worker`."""
        self._check_open()
        claimant = Claimant.here(
            self._surroundings, self._full(computation, "computation"), name, identity, generation, ordinal
        )
        made = Worker(self._runtime, claimant, self._surroundings)
        # Kept even if the caller keeps only its leases: close() has to make their last states durable.
        self._workers = [*(worker for worker in self._workers if not worker.closed), made]
        return made

    async def stage_task(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        task: TaskAttempt,
        *,
        handles: Sequence[int],
        oldest: Iterable[EventTime | None],
        pending: Histogram | None = None,
        finished: int = 0,
    ) -> None:
        """Tell what a task of a micro-batch holds after its part; see :meth:`lowwater.Client.stage_task`."""
        call = self._calls.stage_task(
            computation, sequencer, batch, task, handles=handles, oldest=oldest, pending=pending, finished=finished
        )
        await self._call(call)

    async def prepare_batch(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        *,
        digest: bytes,
        tasks: Iterable[TaskAttempt],
        bound: EventTime,
        seen: Inputs | None,
        covers_all: bool = False,
        frontiers: Iterable[tuple[float, EventTime]] | None = None,
        oldest_operation: EventTime | None = None,
    ) -> tuple[TaskAttempt, ...]:
        """Name the accepted attempts of a micro-batch; see :meth:`lowwater.Client.prepare_batch`."""
        call = self._calls.prepare_batch(
            computation,
            sequencer,
            batch,
            digest=digest,
            tasks=tasks,
            bound=bound,
            seen=seen,
            covers_all=covers_all,
            frontiers=frontiers,
            oldest_operation=oldest_operation,
        )
        return await self._call(call)

    async def commit_batch(self, computation: str, sequencer: int, batch: int) -> tuple[Refusal, ...]:
        """Apply the prepared batch, whole or not at all; see :meth:`lowwater.Client.commit_batch`."""
        return await self._call(self._calls.commit_batch(computation, sequencer, batch))

    # -- the shards ---------------------------------------------------------------------------------------------------

    async def shards(self) -> Shards:
        """List the shards of the deployment, what each of them serves, and what none does."""
        return await self._call(self._calls.shards())

    async def drain(self, address: str, cancel: bool = False) -> int:
        """Have a shard hand over all that it serves; see :meth:`lowwater.Client.drain`."""
        return await self._call(self._calls.drain(address, cancel=cancel))

    async def pin(self, name: str, address: str | None) -> int:
        """Have a shard serve a computation for as long as it lives; see :meth:`lowwater.Client.pin`."""
        return await self._call(self._calls.pin(name, address))

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def server_token(self) -> str:
        """The deployment that answered; empty before the first answer."""
        return self._runtime().watcher.state.server_token

    def statistics(self) -> ClientStatistics:
        """Return what was done so far."""
        runtime = self._runtime()
        watcher, refused = runtime.watcher.state.statistics(), runtime.connection.routes.refused
        return ClientStatistics(runtime.reporter.reporting.statistics(), watcher, refused)

    async def close(self) -> None:
        """End the client's workers, tasks and connection. Ranges hold where they stand.

        Waits at most five seconds in all for the last states of all workers to be durable. Calls that wait raise Closed.
        """
        if self._closed:
            return
        deadline = self._surroundings.monotonic() + CLOSE_TIMEOUT
        try:
            for worker in list(self._workers):
                await worker.retire(deadline)
        finally:
            self._closed = True
            if self._made is not None:
                await self._made.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_client()

    def _runtime(self) -> Runtime:
        self._check_open()
        if self._made is None:
            self._made = Runtime(self.settings, self._surroundings, self._make_channel)
        return self._made.here()

    @property
    def _calls(self) -> Calls:
        return self._runtime().calls

    async def _call(self, call: Call[Result] | Gather[Result]) -> Result:
        return await self._runtime().call(call)

    def _full(self, name: str, field: str = "name") -> str:
        return full_name(self.settings.namespace, name, field)
