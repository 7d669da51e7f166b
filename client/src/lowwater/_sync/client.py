# Made by scripts/generate_sync.py from _async/client.py: change that one.
"""The client: one object per process or program, which opens everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from lowwater import errors
from lowwater._drive.threads.connection import MakeChannel
from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.batches import Batches
from lowwater._sync.inputs import InputReader
from lowwater._sync.runtime import Runtime
from lowwater._sync.tasks import Tasks
from lowwater._sync.worker import Worker
from lowwater.core.call import Call, Gather
from lowwater.core.calls import Calls, Published, based_on, full_name
from lowwater.core.checks import known_name, offering
from lowwater.core.claims import CLOSE_TIMEOUT, Claimant, failure_of
from lowwater.core.intervals import Closings, Gap, Interval, IntervalView, bounds_of, gap_of, upstream_below
from lowwater.core.settings import Settings
from lowwater.core.slices import parts_of
from lowwater.core.statistics import ClientStatistics
from lowwater.core.surroundings import REAL, Surroundings
from lowwater.core.watches import Changes, Waiting, check_followed
from lowwater.core.why import ASK_SECONDS, UNANSWERED, Why, explain, find_absent, find_guilty
from lowwater.layout import Layout, LayoutView
from lowwater.notebook.progress import Progress
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
    Views,
    WatermarkView,
)
from lowwater.watermark import EventTime

__all__ = ["Client"]

Result = TypeVar("Result")

CHANGES: Final = 5
"""Number of attempts for a change that names the version it is based on. Another attempt is safe:
the authority refuses an outdated version before it changes anything."""


class Client:
    """A client of one authority. Use it as a context manager.

    :func:`lowwater.connect` makes it. Safe for threads. After a fork the child may go on with an
    inherited client: it makes its own connection at the first use. Leases stay with the process
    that claimed them. Calls raise LowwaterError: Unavailable when no server answers within the
    timeout, Closed after :meth:`close`.
    """

    def __init__(
        self, settings: Settings, *, surroundings: Surroundings = REAL, channel: MakeChannel | None = None
    ) -> None:
        self.settings = settings
        self._surroundings = surroundings
        self._runtimes = Runtimes(lambda: Runtime(settings, surroundings, channel))
        self._workers: list[Worker] = []
        self.batches: Batches = Batches(self._runtimes)
        """Calls of a program that runs micro-batches itself."""

    # -- the graph ---------------------------------------------------------------------------------

    def register(
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
        """Register a computation; repeating it is harmless. Durable when it returns.

        Args:
            name: Name of the computation, ``[namespace/]name``.
            inputs: Computations that it reads; they must include every writer of its data.
            heuristics: Shares of its heuristic watermarks.
            key_hash: Hash that maps records to keys, such as "xxhash64"; empty for plain keys.
            max_skew: Reports further ahead of the clock than this are refused. None: as registered
                before, else one day, and at least that of each input. A later registration may
                raise it.
            history_step: Step of :meth:`history`. None: as registered before, else one hour.
            estimated: No worker promises its watermarks. It may read estimated inputs, and only
                estimated computations may read it.
            lateness_budget: A share of records from 0.0001 to 0.5, or up to four of them. Each gets
                a watermark behind which at most about that share of the records comes. Its workers
                have to report event times of finished records (:meth:`Lease.advance`).
            all_pending: Only for an injector whose workers report in ``pending`` all records that
                are still to come before their frontier. Its budgets are then computed from these:
                exact from the first record on, and earlier.
            slices: First key of each slice but the first, ascending: n keys cut the key space into
                n + 1 slices, at most 1,000. The shards share them out, so a computation can have
                more key ranges than one shard can serve; see :meth:`slices`. A later registration
                cannot change them.

        Raises RegistrationConflict when the name has another registration, Cycle, EstimatedInput,
        InvalidArgument.
        """
        call = self._calls.register(
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
        return self._call(call)

    def slices(self, name: str) -> tuple[Slice, ...]:
        """Return the slices of a computation in the order of their keys. Raises UnknownComputation.

        An interval of keys that may be wider than a slice is claimed slice by slice; each claim is
        a lease of its own::

            for part in lw.slices("hourly"):
                leases.append(worker.claim(part.start, part.end))

        An uncut computation is one slice with its own name, so this works for every computation.
        """
        return self._call(self._calls.slices(name))

    def split_slice(self, name: str, at: bytes) -> Slice:
        """Cut a slice in two at a key; returns the new slice, which has the keys from there on.

        The new slice takes over the state of its keys within moments if the shards of both are
        alive. Until then it grants no claim, and the watermarks do not move. The workers of these
        keys lose them, and claim them again by the name of the whole computation. Only one slice of
        a computation is cut at a time: Unavailable while another one is being taken over. Raises
        InvalidArgument when the key is not inside the slice, or is its first key, and
        UnknownComputation.
        """
        return self._change(name, self._calls.split_slice(name, at))

    def topology(self) -> Topology:
        """Return the whole graph. Cost: one call, O(computations)."""
        return self._call(self._calls.topology())

    def set_inputs(self, name: str, inputs: Iterable[str]) -> Computation:
        """Replace the inputs of a computation. Durable when it returns.

        Every claim on it is revoked: its workers claim again and fold the new inputs. Raises
        UnknownComputation, Cycle, EstimatedInput, and WouldRegress when a new input lags a
        published watermark, or the completeness of an output.
        """
        return self._change(name, self._calls.set_inputs(name, inputs))

    def reset(self, name: str) -> tuple[Computation, ...]:
        """Begin a new incarnation of a computation and of all downstream: all are unknown.

        Every claim on them is revoked. Returns them in topological order, the named one first.
        Raises UnknownComputation.
        """
        return self._change(name, self._calls.reset(name))

    def retire(self, name: str, start: bytes, end: bytes, force: bool = False) -> int:
        """Take ``[start, end)`` out of a computation: it holds nothing until claimed again.

        Returns the number of ranges. In a computation that is cut, the keys are taken out of each
        slice, one after the other. Raises OwnedRanges when a worker owns part of it and ``force``
        is False. Slices before that one have lost their parts then, and the call can be repeated.
        """
        parts, retired, cuts = [Slice(name, start, end)], 0, 0
        while parts:
            part = parts.pop(0)
            try:
                retired += self._retire(*part, force=force)
            except errors.OtherSlice as error:
                if part.name != name and cuts < CHANGES:
                    cuts += 1  # the slice was cut in two since it was named
                    parts.insert(0, Slice(name, part.start, part.end))
                elif "slice" in error.metadata:
                    parts.insert(0, Slice(error.metadata["slice"], part.start, part.end))
                elif "first" in error.metadata:
                    parts = parts_of(self.slices(name), part.start, part.end) + parts
                else:
                    raise
        return retired

    def _retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> int:
        """Retire keys for their newest claim.

        The authority refuses a request that comes late: it would retire a range that a worker has
        claimed since.
        """
        call = self._calls.retire(name, start, end, force=force)
        attempts_left = CHANGES
        while True:
            attempts_left -= 1
            # An operator may have the right to retire, and not to read.
            with suppress(errors.PermissionDenied):
                incarnation, newest = self._call(self._calls.newest_claim(name))
                call.request.incarnation = call.request.incarnation or incarnation
                if newest is not None:
                    call.request.newest_claim = newest
            try:
                return self._call(call)
            except errors.StaleSequencer:
                if not attempts_left:
                    raise

    def layout(self, name: str) -> LayoutView:
        """Return a computation's wanted layout, its owner's, and loads.

        Raises UnknownComputation.
        """
        return self._call(self._calls.layout(name))

    def change_layout(self, name: str, incarnation: int, layout: Layout) -> int:
        """Ask the owner of a computation for another layout; returns the new version. Durable.

        ``layout.version`` is the version that it replaces; begin with
        ``(lw.layout(name)).base``. The request moves no watermark and no range. A tracked
        stage of Spark follows it between two micro-batches, if it can; :meth:`layout` shows whether
        it has, or why not. Raises UnknownComputation, LayoutConflict when another version is
        wanted, IncarnationChanged, InvalidArgument.
        """
        return self._call(self._calls.change_layout(name, incarnation, layout))

    def drop(self, name: str, force: bool = False) -> int:
        """Remove a computation from the graph; returns its last incarnation.

        Durable when it returns.

        Its watermarks, metrics and alerts end, and it holds no other computation. Its claims are
        revoked, and reports for it refused. The name may be registered again: it continues with the
        next incarnation, never with older values. Raises UnknownComputation, and StillRead while
        another computation names it as an input. Raises OwnedRanges while a worker owns an
        unfinished part of it and ``force`` is False, because that worker may still be alive.
        """
        return self._change(name, self._calls.drop(name, force=force))

    # -- reading -----------------------------------------------------------------------------------

    def get(self, *names: str) -> Views:
        """Return the published watermarks of some computations by name, or of all.

        The answer is a dict; a notebook shows it as a table and, of all, as a graph. A name that
        is not registered is unknown. Cost: one call per shard that serves one of them.
        """
        return (self._call(self._calls.get(names))).views

    def inputs(self, *names: str) -> InputReader:
        """Follow some computations and fold them in this process.

        Raises InvalidArgument without names, and for a slice.
        """
        self._runtimes.check_open()
        full = {name: self._full(name, "names") for name in names}
        check_followed(tuple(full.values()))
        return InputReader(self._runtimes, full)

    def watch(self, *names: str) -> Iterator[WatermarkView]:
        """Yield the watermarks of some computations, or of all, and again whenever they change.

        Conflated: a slow loop gets the newest value of each. Waits between changes, without end
        while the authority is away. Ends when the client is closed, and in a forked child,
        where another may begin. Raises ServerTokenMismatch when another deployment answers.
        """
        runtime = self._runtime()
        watcher = runtime.watcher
        full_names = [self._full(name, "names") for name in names]
        changes, subscription = Changes(full_names), watcher.subscribe(full_names)
        try:
            while self._runtimes.existing() is runtime:
                with watcher.changed:
                    watcher.wait(lambda: changes.come(watcher.state, subscription), subscription, None)
                    view = changes.take(watcher.state)
                yield view
        except errors.Closed:
            return
        finally:
            # In a forked child the watcher is the parent's, and its lock may be held for ever;
            # likewise at the end of the program.
            if self._runtimes.existing() is runtime:
                watcher.unsubscribe(subscription)

    def wait(
        self,
        name: str,
        until: EventTime,
        timeout: float | None = None,
        *,
        registered: bool = False,
        progress: bool = True,
    ) -> WatermarkView:
        """Wait until everything before ``until`` is complete; returns the watermarks then.

        A wait of more than two seconds is shown in a notebook and on a terminal, with what holds
        it; ``progress=False`` shows nothing. ``timeout`` in seconds; None waits without end. A name
        that is not registered is waited for as well; with ``registered`` it raises
        UnknownComputation at once. Raises Timeout, whose message names what holds it, and
        IncarnationChanged when the computation was reset or dropped meanwhile: the wait was for its
        earlier incarnation.
        """
        waiting = Waiting(self._full(name), until, timeout, registered=registered)
        runtime = self._runtime()
        watcher, state = runtime.watcher, runtime.watcher.state
        deadline = runtime.deadline(timeout)
        subscription = watcher.subscribe([waiting.name])
        try:
            with Progress(waiting.name, waiting.target, self._surroundings.monotonic, wanted=progress) as shown:
                while True:
                    with watcher.changed:
                        if watcher.wait(
                            lambda: waiting.reached(state, subscription), subscription, shown.before(deadline)
                        ):
                            return state.ratchet.get(waiting.name)
                        answers = waiting.answers(state)
                    why = None
                    if answers:
                        with suppress(errors.LowwaterError):
                            why = self._why(waiting.name, ASK_SECONDS)
                    with watcher.changed:
                        if waiting.reached(state, subscription):  # it may have come meanwhile
                            return state.ratchet.get(waiting.name)
                        if not shown.is_due(deadline):
                            raise waiting.too_late(state, why)
                        low, where = state.ratchet.get(waiting.name).low, waiting.whereabouts(state, why)
                    shown.show(low, where)
        finally:
            watcher.unsubscribe(subscription)

    def complete(self, name: str, until: EventTime) -> Completeness:
        """Return whether everything before ``until`` has arrived, and the key ranges that hold it.

        Raises UnknownComputation, and Unavailable when no shard can answer.
        """
        return self._call(self._calls.complete(name, until))

    def interval(self, name: str, start: EventTime, end: EventTime, limit: int = 20) -> IntervalView:
        """Return whether ``[start, end)`` is complete, and what is missing here and upstream.

        It is complete when the low watermark is at ``end``. Each computation in ``gaps`` has at
        most ``limit`` key ranges. Cost: a read of all watermarks and, unless it is complete, one of
        the key ranges of each upstream computation below ``end``. Raises UnknownComputation,
        InvalidArgument, and Unavailable when no shard can answer.
        """
        first, last = bounds_of(start, end)
        full = known_name("name", self._full(name))
        published = self._published(full)
        view = published.views[full]
        if view.low >= last:
            return IntervalView(full, first, last, view, (), None)
        gaps: list[Gap] = []
        for below in upstream_below(full, published.views, last):
            answer = self._read_ranges(below.computation, last, limit)
            ranges = answer if isinstance(answer, Ranges) else None
            hidden = isinstance(answer, errors.PermissionDenied)
            gaps.append(gap_of(below, first, ranges, published.time_micros, hidden=hidden))
        return IntervalView(full, first, last, view, tuple(gaps), self._explain(full, published))

    def intervals(
        self,
        name: str,
        every: timedelta,
        start: EventTime,
        *,
        incarnation: int = 0,
        until: EventTime | None = None,
        progress: bool = False,
    ) -> Iterator[Interval]:
        """Yield the intervals ``[start + k * every, start + (k + 1) * every)`` once complete.

        Intervals come in order; those that are complete already come at once. Waits between them,
        without end while the authority is away, and for a name that is not registered yet. When the
        computation has finished, the intervals up to where it was then come one by one, and a last
        one without an end; with ``until``, the iteration ends there. The intervals depend on no
        timing: a caller that begins later, or continues after another one, gets the same.

        ``incarnation``: the one that the intervals belong to, as an earlier run got it; 0: the
        first that is seen. Raises IncarnationChanged when another one begins, because its data is
        computed again; EstimatedInput for a computation whose watermark no worker promises;
        InvalidArgument.

        ``progress``: a wait of more than two seconds is shown, as by :meth:`wait`.
        """
        closings = Closings(self._full(name), every, start, incarnation=incarnation, until=until)
        runtime = self._runtime()
        watcher = runtime.watcher
        changes, subscription = Changes([closings.name]), watcher.subscribe([closings.name])
        view, interval = WatermarkView(closings.name), None
        monotonic = self._surroundings.monotonic
        shown = Progress(closings.name, closings.end, monotonic, wanted=progress)
        try:
            while not closings.over and self._runtimes.existing() is runtime:
                with watcher.changed:
                    # The newest view is used for each interval: the caller may have taken long, and
                    # a reset may have come.
                    if interval is None or changes.come(watcher.state, subscription):
                        deadline = shown.before(runtime.deadline(ASK_SECONDS if closings.asks(view) else None))
                        if watcher.wait(lambda: changes.come(watcher.state, subscription), subscription, deadline):
                            view = changes.take(watcher.state)
                interval = closings.closed(view)
                if closings.asks(view):
                    # A failed read is repeated in the next round; a reset or a drop comes as a
                    # change.
                    with suppress(*UNANSWERED, errors.UnknownComputation):
                        closings.tell(runtime.call(runtime.calls.history(closings.name, None, 1)))
                        interval = closings.closed(view)
                if interval is not None:
                    shown.end(reached=True)
                    yield interval
                    shown = Progress(closings.name, closings.end, monotonic, wanted=progress)
                elif shown.is_due(None):
                    why = None
                    with suppress(errors.LowwaterError):
                        why = self._why(closings.name, ASK_SECONDS)
                    shown.show(view.low, f"it is {view.low}" if why is None else why.sentence.rstrip("."))
        except errors.Closed:
            return
        finally:
            shown.end(reached=False)
            if self._runtimes.existing() is runtime:
                watcher.unsubscribe(subscription)

    def ranges(self, name: str, below: EventTime | None = None, limit: int = 100) -> Ranges:
        """List key ranges of a computation, furthest behind first; ``below`` leaves out later ones.

        Returns at most ``limit``, with the total. Cost: O(limit).
        """
        return self._call(self._calls.ranges(name, below, limit))

    def history(self, name: str, since: EventTime | None = None, limit: int = 100) -> History:
        """Return the times at which steps of event time became complete, oldest first.

        Returns the newest ``limit`` completions. ``since`` leaves out steps that end at or before
        it. Raises UnknownComputation, and Unavailable when no shard can answer.
        """
        return self._call(self._calls.history(name, since, limit))

    def why(self, name: str) -> Why:
        """Return what holds a computation: the way upstream to the root cause.

        ``str()`` of the answer is the cause in one sentence, then one line per hop. Cost: a read of
        all watermarks and one of a few key ranges. Raises UnknownComputation.
        """
        return self._why(self._full(name))

    def _why(self, full: str, within: float = math.inf) -> Why:
        return self._explain(full, self._published(full, within))

    def _published(self, full: str, within: float = math.inf) -> Published:
        """Read all watermarks. Raises UnknownComputation unless one of them is of this name."""
        published = self._call(self._calls.get(()), within)
        published.require(full)
        return published

    def _explain(self, full: str, published: Published) -> Why:
        guilty = find_guilty(full, published.views, published.time_micros)
        absent = find_absent(full, published.views, published.time_micros)
        ranges = Ranges((), 0)
        unknown: errors.LowwaterError | None = None
        if guilty is not None:
            try:
                ranges = self._call(self._calls.holding(published.views[guilty]), ASK_SECONDS)
            except UNANSWERED as error:
                unknown = error
        elif absent is not None:
            answer = self._read_ranges(absent, None, 1)
            unknown = None if isinstance(answer, Ranges) else answer
        return explain(full, published.views, published.time_micros, ranges, unknown)

    def _read_ranges(self, full: str, below: EventTime | None, limit: int) -> Ranges | errors.LowwaterError:
        """Return key ranges, or the error why the authority does not list them."""
        try:
            return self._call(self._calls.ranges_of(full, below, limit), ASK_SECONDS)
        except (*UNANSWERED, errors.PermissionDenied, errors.UnknownComputation) as error:
            return error

    # -- writing -----------------------------------------------------------------------------------

    def worker(
        self, computation: str, /, *, name: str | None = None, identity: str = "", generation: int = 0, ordinal: int = 0
    ) -> Worker:
        """Return a worker of a computation, which claims key ranges.

        Args:
            computation: Name of the computation.
            name: Name for people; by default host and process.
            identity: Name that binds the computation to its owner for good, such as that of a
                checkpoint: claims of others are refused.
            generation: Generation of its claims, such as the first uncommitted batch. Claims are
                ordered by (generation, ordinal); an older one is refused whenever it arrives. Both
                0: in order of arrival.
            ordinal: Order of the runs of one generation.
        """
        self._runtimes.check_open()
        claimant = Claimant.here(
            self._surroundings, self._full(computation, "computation"), name, identity, generation, ordinal
        )
        worker = Worker(self._runtimes, claimant, self._surroundings)
        # Stored even if the caller stores only its leases, because close() has to make their last
        # states durable.
        self._workers = [*(other for other in self._workers if not other.closed), worker]
        return worker

    def tasks(self, computation: str, /) -> Tasks:
        """Return the tasks of a computation: work that a worker does once, as a daily close."""
        self._runtimes.check_open()
        return Tasks(self._runtimes, self._full(computation, "computation"), self._surroundings)

    def stage_task(self, *arguments: Any, **keywords: Any) -> None:
        """Deprecated name, of release 0.1, of ``batches.stage_task``."""
        self.batches.stage_task(*arguments, **keywords)

    def prepare_batch(self, *arguments: Any, **keywords: Any) -> tuple[TaskAttempt, ...]:
        """Deprecated name, of release 0.1, of ``batches.prepare``."""
        return self.batches.prepare(*arguments, **keywords)

    def commit_batch(self, *arguments: Any, **keywords: Any) -> tuple[Refusal, ...]:
        """Deprecated name, of release 0.1, of ``batches.commit``."""
        return self.batches.commit(*arguments, **keywords)

    # -- the shards --------------------------------------------------------------------------------

    def shards(self) -> Shards:
        """List the shards of the deployment, their computations, and those that no shard serves."""
        return self._call(self._calls.shards())

    def drain(self, address: str, cancel: bool = False) -> int:
        """Make a shard hand over all that it serves, before it is stopped.

        Returns the number of computations that it still serves; call it again until that is 0.
        ``address`` is one of :meth:`shards`; ``cancel`` ends the draining. Raises InvalidArgument
        when there is no such shard.
        """
        return self._change_shards(self._calls.drain(address, cancel=cancel))

    def pin(self, name: str, address: str | None) -> int:
        """Pin a computation to a shard for as long as that lives; None removes the pin.

        Returns the version of the membership that has the pin, which is durable then. ``address``
        is one of :meth:`shards`. Raises UnknownComputation, and InvalidArgument when there is no
        such shard.
        """
        return self._change_shards(self._calls.pin(name, address))

    def _change_shards(self, call: Call[int]) -> int:
        """Change the shards at their newest version.

        The authority refuses a request that comes late: it would undo a later change.
        """
        attempts_left = CHANGES
        while True:
            attempts_left -= 1
            call.request.version = (self.shards()).version
            try:
                return self._call(call)
            except errors.InvalidArgument as error:
                if not attempts_left or error.metadata.get("field") != "version":
                    raise

    def identify(self, token_sha256: str = "") -> Identity:
        """Return the principal of a token, and what it may read over HTTP.

        ``token_sha256``: the token's digest as in the access file, 64 hexadecimal digits, so that
        the token itself stays secret; empty for the token or certificate of this client. The access
        file may change at any moment. Raises Unauthenticated when the authority does not accept
        this client, InvalidArgument.
        """
        return self._call(self._calls.identify(token_sha256))

    # -- life --------------------------------------------------------------------------------------

    @property
    def server_token(self) -> str:
        """Token of the deployment that answered; empty before the first answer."""
        return self._runtime().watcher.state.server_token

    def statistics(self) -> ClientStatistics:
        """Return the counters of this process so far."""
        runtime = self._runtime()
        with runtime.watcher.changed:
            watcher = runtime.watcher.state.statistics()
        return ClientStatistics(runtime.reporter.statistics(), watcher, runtime.connection.router.refused)

    def close(self) -> None:
        """End the client's workers, threads and connection.

        Ranges hold where they are, and stay their workers'. Leaving the client as a context manager
        releases them too, as leaving a worker does. Waits at most five seconds in all for the last
        states of all workers to become durable. Calls that wait raise Closed.
        """
        self._close(None)

    def _close(self, failure: str | None) -> None:
        if self._runtimes.closed:
            return
        deadline = self._surroundings.monotonic() + CLOSE_TIMEOUT
        try:
            for worker in list(self._workers):
                worker.retire(deadline, failure)
        finally:
            runtime = self._runtimes.close()
            if runtime is not None:
                runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(failure_of(error))

    def _runtime(self) -> Runtime:
        return self._runtimes.get()

    @property
    def _calls(self) -> Calls:
        return self._runtime().calls

    def _call(self, call: Call[Result] | Gather[Result], within: float = math.inf) -> Result:
        try:
            return self._runtime().call(call, within)
        except errors.UnknownComputation as error:
            # A question of the caller's, and not one that is part of a longer answer.
            if within < math.inf or error.metadata.get("near"):
                raise
            failure = error
        names: Iterable[str] = ()
        with suppress(errors.LowwaterError):
            names = (self._runtime().call(self._calls.get(()), ASK_SECONDS)).views
        raise offering(failure, tuple(names)) from None

    def _change(self, name: str, call: Call[Result]) -> Result:
        """Make a change that the authority refuses once the computation is registered anew."""
        return self._call(based_on(call, self._call(self._calls.registration(name))))

    def _full(self, name: str, field: str = "name") -> str:
        return full_name(self.settings.namespace, name, field)
