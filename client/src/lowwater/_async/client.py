"""The client: one object per event loop, from which everything else comes."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from lowwater import errors
from lowwater._async.batches import Batches
from lowwater._async.inputs import InputReader
from lowwater._async.runtime import Runtime
from lowwater._async.tasks import Tasks
from lowwater._async.worker import Worker
from lowwater._drive.tasks.connection import MakeChannel
from lowwater._drive.tasks.runtimes import Runtimes
from lowwater.core.call import Call
from lowwater.core.calls import Published, based_on, full_name
from lowwater.core.checks import known_name
from lowwater.core.claims import CLOSE_TIMEOUT, Claimant
from lowwater.core.intervals import Closings, Gap, Interval, IntervalView, bounds_of, gap_of, upstream_below
from lowwater.core.settings import Settings
from lowwater.core.slices import parts_of
from lowwater.core.statistics import ClientStatistics
from lowwater.core.surroundings import REAL, Surroundings
from lowwater.core.watches import Changes, Waiting, check_followed
from lowwater.core.why import ASK_SECONDS, UNTOLD, Why, explain, find_absent, find_guilty
from lowwater.layout import Layout, LayoutView
from lowwater.views import (
    Completeness,
    Computation,
    History,
    Identity,
    Ranges,
    Refusal,
    Shards,
    Slice,
    TaskAttempt,
    Topology,
    WatermarkView,
)
from lowwater.watermark import EventTime

__all__ = ["Client"]

CHANGES: Final = 5
"""Number of attempts for a change that names the version it was decided on. Another attempt is
safe: the authority refuses an outdated version before it changes anything."""


class Client:
    """Everything a program asks of the authority, on asyncio.

    Use it as an async context manager; :func:`lowwater.aio.connect` makes it.

    It belongs to the process and the event loop of its first use, and starts at most one task to
    report and one to watch at each shard. A cancelled call leaves it usable. Calls raise
    LowwaterError: Unavailable when no server answers within the timeout, Closed after
    :meth:`close`, and in another process or loop.
    """

    def __init__(
        self, settings: Settings, *, surroundings: Surroundings = REAL, channel: MakeChannel | None = None
    ) -> None:
        self.settings = settings
        self._surroundings = surroundings
        self._runtimes = Runtimes(lambda: Runtime(settings, surroundings, channel))
        self._workers: list[Worker] = []
        self.batches: Batches = Batches(self._runtimes)
        """What a program says that runs micro-batches itself."""

    # -- the graph ---------------------------------------------------------------------------------

    async def register(
        self,
        name: str,
        inputs: Iterable[str] = (),
        heuristics: Iterable[float] = (0.99,),
        key_hash: str = "",
        max_skew: timedelta | None = None,
        history_step: timedelta | None = None,
        estimated: bool = False,
        lateness_budget: float | Iterable[float] = (),
        all_pending: bool = False,
        slices: Iterable[bytes] = (),
    ) -> Computation:
        """Register a computation; repeating it is harmless.

        ``inputs`` must name every writer of what it reads.

        ``heuristics`` are the shares of its heuristic watermarks. Reports further ahead of the
        clock than ``max_skew`` are refused; None: as registered before, else one day, and not less
        than that of any input. A later registration may raise it. ``history_step`` is the step of
        :meth:`history`; None: as registered before, else one hour. ``estimated``: nobody promises
        its watermarks. It may read estimated inputs, and only estimated computations may read it.
        ``lateness_budget``: a share from 0.0001 to 0.5, or up to four of them. Each gets a
        watermark behind which at most about that share of the records comes, as far as its workers
        tell the event times of what they have finished (:meth:`Lease.advance`). ``all_pending``: of
        an injector, whose workers tell with ``pending`` of all records that are still to come
        before their frontier. Its budgets then go by these: exact from the first record on, and
        earlier. ``slices``: where each slice but the first begins, ascending: n keys cut the key
        space into n + 1 slices, at most 1,000. The shards share them out, so that a computation may
        have more key ranges than one of them can serve; see :meth:`slices`. They stay as they are
        for good. Raises RegistrationConflict when the name is registered with something else,
        Cycle, EstimatedInput, InvalidArgument.
        """
        runtime = self._runtime()
        call = runtime.calls.register(
            name,
            inputs,
            heuristics,
            key_hash,
            max_skew,
            history_step,
            estimated=estimated,
            lateness_budget=lateness_budget,
            all_pending=all_pending,
            slices=slices,
        )
        return await runtime.call(call)

    async def slices(self, name: str) -> tuple[Slice, ...]:
        """Return the slices of a computation, ``(name, start, end)`` each, in the order of their keys. Raises UnknownComputation.

        Whoever works on an interval that may be wider than a slice claims slice by slice, and each claim is a lease of its own::

            for each in await lw.slices("hourly"):
                leases.append(await worker.claim(each.start, each.end))

        One that is not cut is one slice, under its own name, so that this does for any computation.
        """
        runtime = self._runtime()
        return await runtime.call(runtime.calls.slices(name))

    async def split_slice(self, name: str, at: bytes) -> Slice:
        """Cut a slice in two at a key: those from there on are a new slice's, which is returned.

        That takes over what is known of its keys as soon as it can, within moments if the shards of
        both live, and grants none of them before: watermarks stand still meanwhile, and none moves
        by it. The workers of these keys lose them, and claim again by the name of the whole. One
        slice of a computation is cut at a time: Unavailable while another one is still taken over.
        Raises InvalidArgument when the key is not inside, behind the first one, and
        UnknownComputation.
        """
        runtime = self._runtime()
        call = runtime.calls.split_slice(name, at)
        return await runtime.call(based_on(call, await runtime.call(runtime.calls.registration(name))))

    async def topology(self) -> Topology:
        """Return the whole graph."""
        runtime = self._runtime()
        return await runtime.call(runtime.calls.topology())

    async def set_inputs(self, name: str, inputs: Iterable[str]) -> Computation:
        """Change what a computation reads.

        Every claim on it is revoked: its workers claim again and fold the new inputs.

        Raises UnknownComputation, Cycle, EstimatedInput, WouldRegress when a new input is behind
        what was published, or what an output says.
        """
        runtime = self._runtime()
        call = runtime.calls.set_inputs(name, inputs)
        return await runtime.call(based_on(call, await runtime.call(runtime.calls.registration(name))))

    async def reset(self, name: str) -> tuple[Computation, ...]:
        """Start a new incarnation of a computation and of all that reads it, directly or not; their watermarks are unknown again.

        Every claim on them is revoked. Returns them in topological order, the named one first. Raises UnknownComputation.
        """
        runtime = self._runtime()
        call = runtime.calls.reset(name)
        return await runtime.call(based_on(call, await runtime.call(runtime.calls.registration(name))))

    async def retire(self, name: str, start: bytes, end: bytes, force: bool = False) -> int:
        """Take ``[start, end)`` out of a computation until it is claimed again: nobody waits for it. Returns how many ranges.

        Of one that is cut, it is taken out of each slice that it touches, one after the other. Raises OwnedRanges when a worker owns part of it and
        ``force`` is not set; the slices before that one have lost their parts then, and it may be repeated.
        """
        runtime = self._runtime()
        parts, retired, cuts = [Slice(name, start, end)], 0, 0
        while parts:
            part = parts.pop(0)
            try:
                retired += await self._retire(*part, force=force)
            except errors.OtherSlice as error:
                if part.name != name and cuts < CHANGES:
                    cuts += 1  # the slice was cut in two since it was named
                    parts.insert(0, Slice(name, part.start, part.end))
                elif "slice" in error.metadata:
                    parts.insert(0, Slice(error.metadata["slice"], part.start, part.end))
                elif "first" in error.metadata:
                    slices = await runtime.call(runtime.calls.slices(name))
                    parts = parts_of(slices, part.start, part.end) + parts
                else:
                    raise
        return retired

    async def _retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> int:
        """Retire keys as they are claimed now.

        A message that comes late is refused: it would take out what a worker has claimed since.
        """
        runtime = self._runtime()
        call = runtime.calls.retire(name, start, end, force=force)
        left = CHANGES
        while True:
            left -= 1
            with suppress(errors.PermissionDenied):  # one who may operate, and not read
                incarnation, newest = await runtime.call(runtime.calls.newest_claim(name))
                call.request.incarnation = call.request.incarnation or incarnation
                if newest is not None:
                    call.request.newest_claim = newest
            try:
                return await runtime.call(call)
            except errors.StaleSequencer:
                if not left:
                    raise

    async def layout(self, name: str) -> LayoutView:
        """Return how the key space of a computation is to be cut, how its owner cuts it, and what its hottest ranges cost. Raises UnknownComputation."""
        runtime = self._runtime()
        return await runtime.call(runtime.calls.layout(name))

    async def change_layout(self, name: str, incarnation: int, layout: Layout) -> int:
        """Ask the owner of a computation for another layout, in place of the one of ``layout.version``; returns its version. Durable when it returns.

        It is a wish: it moves no watermark and no range. A tracked stage of Spark follows it between two micro-batches, if it can; ``layout``
        says whether it has, or why not. Begin with ``(await lw.layout(name)).base``. Raises UnknownComputation, LayoutConflict when another version is
        wanted, IncarnationChanged, InvalidArgument.
        """
        runtime = self._runtime()
        return await runtime.call(runtime.calls.change_layout(name, incarnation, layout))

    async def drop(self, name: str, force: bool = False) -> int:
        """Take a computation out of the graph: its watermarks, metrics and alerts end, and nobody waits for it. Returns its last incarnation.

        Its claims are revoked, and reports for it refused. The name may be registered again and goes on with the next incarnation, never with
        older values. Raises UnknownComputation, and StillRead while another computation names it as an input. Raises OwnedRanges while a
        worker owns part of it that is not finished, unless ``force`` is set: nobody knows for sure whether that worker is still alive.
        """
        runtime = self._runtime()
        call = runtime.calls.drop(name, force=force)
        return await runtime.call(based_on(call, await runtime.call(runtime.calls.registration(name))))

    # -- reading -----------------------------------------------------------------------------------

    async def get(self, *names: str) -> dict[str, WatermarkView]:
        """Return the published watermarks of some computations by name, or of all.

        Names not registered are unknown.
        """
        runtime = self._runtime()
        published = await runtime.call(runtime.calls.get(names))
        return published.views

    def inputs(self, *names: str) -> InputReader:
        """Follow some computations and fold them locally.

        Raises InvalidArgument without names, and for a slice.
        """
        self._runtimes.check_open()
        full = {name: self._full(name, "names") for name in names}
        check_followed(tuple(full.values()))
        return InputReader(self._runtimes, full)

    async def watch(self, *names: str) -> AsyncGenerator[WatermarkView, None]:
        """Yield the watermarks of some computations, or of all, and again whenever they change.

        Conflated.

        Waits between changes, without end while the authority is away. Ends when the client is
        closed. Raises ServerTokenMismatch when another deployment answers.
        """
        runtime = self._runtime()
        watcher = runtime.watcher
        followed = [self._full(name, "names") for name in names]
        changes, subscription = Changes(followed), watcher.subscribe(followed)
        try:
            while self._runtimes.existing() is runtime:
                with watcher.changed:
                    await watcher.wait(lambda: changes.come(watcher.state, subscription), subscription, None)
                    view = changes.take(watcher.state)
                yield view
        except errors.Closed:
            return
        finally:
            # In a child the watcher is the parent's, and its lock may be held for ever; likewise at
            # the end of the program.
            if self._runtimes.existing() is runtime:
                watcher.unsubscribe(subscription)

    async def wait(
        self,
        name: str,
        until: EventTime,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        registered: bool = False,
    ) -> WatermarkView:
        """Wait until everything before ``until`` is complete, at most ``timeout`` seconds (None: without end).

        A name that nobody has registered yet is waited for as well; with ``registered`` it raises UnknownComputation at once.
        Raises Timeout, saying who holds it; IncarnationChanged when the computation was reset or dropped meanwhile, since what
        was waited for belonged to its earlier incarnation.
        """
        waiting = Waiting(self._full(name), until, timeout, registered=registered)
        runtime = self._runtime()
        watcher, state = runtime.watcher, runtime.watcher.state
        deadline = runtime.deadline(timeout)
        subscription = watcher.subscribe([waiting.name])
        try:
            with watcher.changed:
                if await watcher.wait(lambda: waiting.reached(state, subscription), subscription, deadline):
                    return state.ratchet.get(waiting.name)
                answers = waiting.answers(state)
            why = None
            if answers:
                with suppress(errors.LowwaterError):
                    why = await self._why(waiting.name, ASK_SECONDS)
            with watcher.changed:
                if waiting.reached(state, subscription):  # while it was asked
                    return state.ratchet.get(waiting.name)
                raise waiting.too_late(state, why)
        finally:
            watcher.unsubscribe(subscription)

    async def complete(self, name: str, until: EventTime) -> Completeness:
        """Tell whether everything before ``until`` is here, and if not, which key ranges hold it.

        Raises UnknownComputation, and Unavailable when nobody can tell.
        """
        runtime = self._runtime()
        return await runtime.call(runtime.calls.complete(name, until))

    async def interval(self, name: str, start: EventTime, end: EventTime, limit: int = 20) -> IntervalView:
        """Tell whether ``[start, end)`` is complete, and if not, what is missing of it, here and upstream, and who holds it.

        It is complete when the low watermark has come to ``end``. Of each computation in ``gaps`` at most ``limit`` key ranges are told. Costs a
        read of all watermarks and, of what is not complete, one of the key ranges of each computation upstream that is below ``end``.
        Raises UnknownComputation, InvalidArgument, and Unavailable when nobody can tell.
        """
        first, last = bounds_of(start, end)
        full, runtime = known_name("name", self._full(name)), self._runtime()
        published = await runtime.call(runtime.calls.get(()))
        published.require(full)
        view = published.views[full]
        if view.low >= last:
            return IntervalView(full, first, last, view, (), None)
        gaps: list[Gap] = []
        for below in upstream_below(full, published.views, last):
            told = await self._tell_ranges(below.computation, last, limit)
            found = told if isinstance(told, Ranges) else None
            hidden = isinstance(told, errors.PermissionDenied)
            gaps.append(gap_of(below, first, found, published.time_micros, hidden=hidden))
        return IntervalView(full, first, last, view, tuple(gaps), await self._explain(full, published))

    async def intervals(
        self, name: str, every: timedelta, start: EventTime, *, incarnation: int = 0, until: EventTime | None = None
    ) -> AsyncGenerator[Interval, None]:
        """Yield the intervals ``[start + k * every, start + (k + 1) * every)`` of a computation as they become complete: each once, in order.

        Waits between them, without end while the authority is away, and for a name that nobody has registered yet. Those that are complete
        already come at once. When the computation has finished, those up to the step of its history at which it stood come one by one, then a last
        one without an end; with ``until``, it ends when the intervals up to there are yielded. Which intervals there are depends on no timing:
        whoever begins later, or anew where another one ended, gets the same. ``incarnation``: the one that the intervals belong to, where an
        earlier run has told it; 0: the first that is seen. Raises IncarnationChanged when another one begins, since what was complete in the one
        before is made anew; EstimatedInput for a computation whose watermark nobody promises; InvalidArgument.
        """
        closings = Closings(self._full(name), every, start, incarnation=incarnation, until=until)
        runtime = self._runtime()
        watcher = runtime.watcher
        changes, subscription = Changes([closings.name]), watcher.subscribe([closings.name])
        view, each = WatermarkView(closings.name), None
        try:
            while not closings.over and self._runtimes.existing() is runtime:
                with watcher.changed:
                    # The newest before each: it may have been reset while the one before was made
                    # use of.
                    if each is None or changes.come(watcher.state, subscription):
                        deadline = runtime.deadline(ASK_SECONDS if closings.asks(view) else None)
                        if await watcher.wait(
                            lambda: changes.come(watcher.state, subscription), subscription, deadline
                        ):
                            view = changes.take(watcher.state)
                each = closings.closed(view)
                if closings.asks(view):
                    # Not told, it is asked again; a reset or a drop comes as a change.
                    with suppress(*UNTOLD, errors.UnknownComputation):
                        closings.tell(await runtime.call(runtime.calls.history(closings.name, None, 1)))
                        each = closings.closed(view)
                if each is not None:
                    yield each
        except errors.Closed:
            return
        finally:
            if self._runtimes.existing() is runtime:
                watcher.unsubscribe(subscription)

    async def ranges(self, name: str, below: EventTime | None = None, limit: int = 100) -> Ranges:
        """List the key ranges of a computation, those furthest behind first; only those below an event time, if given."""
        runtime = self._runtime()
        return await runtime.call(runtime.calls.ranges(name, below, limit))

    async def history(self, name: str, since: EventTime | None = None, limit: int = 100) -> History:
        """Tell when each step of event time became complete: the newest ``limit`` completions, oldest first.

        ``since`` leaves out steps that end at or before it. Raises UnknownComputation, and Unavailable when nobody can tell.
        """
        runtime = self._runtime()
        return await runtime.call(runtime.calls.history(name, since, limit))

    async def why(self, name: str) -> Why:
        """Tell who holds a computation, walking upstream; ``str()`` of the answer is the cause in a sentence, then one per hop.

        Costs a read of all watermarks and one of a few key ranges. Raises UnknownComputation.
        """
        return await self._why(self._full(name))

    async def _why(self, full: str, within: float = math.inf) -> Why:
        runtime = self._runtime()
        published = await runtime.call(runtime.calls.get(()), within)
        published.require(full)
        return await self._explain(full, published)

    async def _explain(self, full: str, published: Published) -> Why:
        runtime = self._runtime()
        guilty = find_guilty(full, published.views, published.time_micros)
        absent = find_absent(full, published.views, published.time_micros)
        found = Ranges((), 0)
        unknown: errors.LowwaterError | None = None
        if guilty is not None:
            try:
                found = await runtime.call(runtime.calls.holding(published.views[guilty]), ASK_SECONDS)
            except UNTOLD as error:
                unknown = error
        elif absent is not None:
            told = await self._tell_ranges(absent, None, 1)
            unknown = None if isinstance(told, Ranges) else told
        return explain(full, published.views, published.time_micros, found, unknown)

    async def _tell_ranges(self, full: str, below: EventTime | None, limit: int) -> Ranges | errors.LowwaterError:
        """Return key ranges, or why they are not told: nobody can just now, or it is not registered, or this client may not read it."""
        runtime = self._runtime()
        try:
            return await runtime.call(runtime.calls.ranges(full, below, limit), ASK_SECONDS)
        except (*UNTOLD, errors.PermissionDenied, errors.UnknownComputation) as error:
            return error

    # -- writing -----------------------------------------------------------------------------------

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
        """Return a worker of a computation, to claim key ranges with.

        ``name`` is for people; by default host and process.

        ``identity`` binds the computation to its owner for good, for example a checkpoint: claims
        by others are refused. Claims order by (generation, ordinal); an older one is refused
        whenever it arrives.
        """
        self._runtimes.check_open()
        claimant = Claimant.here(
            self._surroundings, self._full(computation, "computation"), name, identity, generation, ordinal
        )
        made = Worker(self._runtimes, claimant, self._surroundings)
        # Kept even if the caller keeps only its leases: close() has to make their last states
        # durable.
        self._workers = [*(worker for worker in self._workers if not worker.closed), made]
        return made

    def tasks(self, computation: str, /) -> Tasks:
        """Return the tasks that hang under a computation: work that is done once by whoever takes it, such as a close each day."""
        self._runtimes.check_open()
        return Tasks(self._runtimes, self._full(computation, "computation"), self._surroundings)

    async def stage_task(self, *given: Any, **named: Any) -> None:
        """As ``batches.stage_task``: its name in 0.1."""
        await self.batches.stage_task(*given, **named)

    async def prepare_batch(self, *given: Any, **named: Any) -> tuple[TaskAttempt, ...]:
        """As ``batches.prepare``: its name in 0.1."""
        return await self.batches.prepare(*given, **named)

    async def commit_batch(self, *given: Any, **named: Any) -> tuple[Refusal, ...]:
        """As ``batches.commit``: its name in 0.1."""
        return await self.batches.commit(*given, **named)

    # -- the shards --------------------------------------------------------------------------------

    async def shards(self) -> Shards:
        """List the shards of the deployment, what each of them serves, and what none does."""
        runtime = self._runtime()
        return await runtime.call(runtime.calls.shards())

    async def drain(self, address: str, cancel: bool = False) -> int:
        """Have a shard hand over all that it serves, before it is stopped.

        Returns how many computations it still serves.

        ``address`` is as :meth:`shards` has it. Call it again until it returns 0; ``cancel`` takes
        it back. Raises InvalidArgument when there is no such shard.
        """
        return await self._change_shards(self._runtime().calls.drain(address, cancel=cancel))

    async def pin(self, name: str, address: str | None) -> int:
        """Have a shard serve a computation for as long as it lives; None takes that back.

        Durable when it returns.

        ``address`` is as :meth:`shards` has it. Returns the version of the membership that has it.
        Raises UnknownComputation, and InvalidArgument when there is no such shard.
        """
        return await self._change_shards(self._runtime().calls.pin(name, address))

    async def _change_shards(self, call: Call[int]) -> int:
        """Change the shards as they are now.

        A message that comes late is refused: it would undo what was changed since.
        """
        runtime = self._runtime()
        left = CHANGES
        while True:
            left -= 1
            call.request.version = (await runtime.call(runtime.calls.shards())).version
            try:
                return await runtime.call(call)
            except errors.InvalidArgument as error:
                if not left or error.metadata.get("field") != "version":
                    raise

    async def identify(self, token_sha256: str = "") -> Identity:
        """Tell whose a token is, and what they may see over HTTP; empty: the token or certificate of this client.

        ``token_sha256`` is its digest as the access file has it, 64 hexadecimal digits: the token itself need not be known here. Good for
        a moment, since the file may change. Raises Unauthenticated when the authority does not know this client, InvalidArgument.
        """
        runtime = self._runtime()
        return await runtime.call(runtime.calls.identify(token_sha256))

    # -- life --------------------------------------------------------------------------------------

    @property
    def server_token(self) -> str:
        """The deployment that answered; empty before the first answer."""
        return self._runtime().watcher.state.server_token

    def statistics(self) -> ClientStatistics:
        """Return what was done so far, in this process."""
        runtime = self._runtime()
        with runtime.watcher.changed:
            watcher = runtime.watcher.state.statistics()
        return ClientStatistics(runtime.reporter.statistics(), watcher, runtime.connection.router.refused)

    async def close(self) -> None:
        """End the client's workers, tasks and connection. Ranges hold where they stand.

        Waits at most five seconds in all for the last states of all workers to be durable. Calls
        that wait raise Closed.
        """
        if self._runtimes.closed:
            return
        deadline = self._surroundings.monotonic() + CLOSE_TIMEOUT
        try:
            for worker in list(self._workers):
                await worker.retire(deadline)
        finally:
            runtime = self._runtimes.close()
            if runtime is not None:
                await runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _runtime(self) -> Runtime:
        return self._runtimes.get()

    def _full(self, name: str, field: str = "name") -> str:
        return full_name(self.settings.namespace, name, field)
