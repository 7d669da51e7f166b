"""The client: one object per process or program, from which everything else comes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from lowwater import errors
from lowwater._core import wire
from lowwater._core.reports import ReporterStatistics
from lowwater._core.text import describe_holder, duration
from lowwater._core.why import Why, explain
from lowwater._pb.lowwater.v1 import topology_pb2, watermarks_pb2, workers_pb2
from lowwater._sync.connection import Settings
from lowwater._sync.inputs import InputReader
from lowwater._sync.runtime import PerProcess, Runtime
from lowwater._sync.watcher import Watcher, WatcherStatistics
from lowwater._sync.worker import Worker
from lowwater.histogram import Histogram
from lowwater.views import (
    Completeness,
    Computation,
    Inputs,
    Ranges,
    Refusal,
    TaskAttempt,
    Topology,
    WatermarkView,
)
from lowwater.watermark import EventTime, Watermark, all_to_micros, to_micros

__all__ = ["Client", "ClientStatistics"]


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """What the client's two threads have done in this process."""

    reporter: ReporterStatistics
    watcher: WatcherStatistics


class Client:
    """Everything a program asks of the authority. Use it as a context manager; :func:`lowwater.connect` makes it.

    Safe for threads. After a fork the child may go on with an inherited client: it makes its own connection at the first use.
    Leases stay with the process that claimed them. Calls raise LowwaterError: Unavailable when no server answers within
    the timeout, Closed after :meth:`close`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._per_process = PerProcess(lambda: Runtime(settings))
        self._workers: list[Worker] = []
        self._closed = False

    # -- the graph --------------------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        inputs: Iterable[str] = (),
        heuristics: Iterable[float] = (0.99,),
        key_hash: str = "",
        max_skew: timedelta = timedelta(days=1),
    ) -> Computation:
        """Register a computation; repeating it is harmless. ``inputs`` must name every writer of what it reads.

        ``heuristics`` are the shares of its heuristic watermarks. Reports further ahead of the clock than ``max_skew`` are
        refused. Raises RegistrationConflict when the name is registered with something else, Cycle, InvalidArgument.
        """
        runtime = self._runtime()
        request = topology_pb2.RegisterRequest(
            server_token=runtime.watcher.server_token,
            name=self._full(name),
            inputs=[self._full(each) for each in inputs],
            heuristics_ppm=wire.ppm(heuristics),
            key_hash=key_hash,
            max_skew_micros=max_skew // timedelta(microseconds=1),
        )
        answer = runtime.connection.call(runtime.connection.graph.Register, request, repeatable=True)
        runtime.watcher.admit(answer.server_token, ())
        return wire.computation(answer.computation)

    def topology(self) -> Topology:
        """Return the whole graph."""
        runtime = self._runtime()
        request = topology_pb2.GetTopologyRequest(server_token=runtime.watcher.server_token)
        answer = runtime.connection.call(runtime.connection.graph.GetTopology, request, repeatable=True)
        runtime.watcher.admit(answer.server_token, ())
        return wire.topology(answer)

    def set_inputs(self, name: str, inputs: Iterable[str]) -> Computation:
        """Change what a computation reads. Every claim on it is revoked: its workers claim again and fold the new inputs.

        Raises UnknownComputation, Cycle, WouldRegress when a new input is behind what was published.
        """
        runtime = self._runtime()
        request = topology_pb2.SetInputsRequest(
            server_token=runtime.watcher.server_token,
            computation=self._full(name),
            inputs=[self._full(each) for each in inputs],
        )
        answer = runtime.connection.call(runtime.connection.graph.SetInputs, request, repeatable=False)
        return wire.computation(answer.computation)

    def reset(self, name: str) -> tuple[Computation, ...]:
        """Start a new life of a computation and of all that reads it, directly or not; their watermarks are unknown again.

        Every claim on them is revoked. Returns them in topological order, the named one first. Raises UnknownComputation.
        """
        runtime = self._runtime()
        request = topology_pb2.ResetRequest(server_token=runtime.watcher.server_token, computation=self._full(name))
        answer = runtime.connection.call(runtime.connection.graph.Reset, request, repeatable=False)
        runtime.watcher.begin((each.name, each.incarnation) for each in answer.computations)
        return tuple(wire.computation(each) for each in answer.computations)

    def retire(self, name: str, start: bytes, end: bytes, force: bool = False) -> int:
        """Take ``[start, end)`` out of a computation until it is claimed again: nobody waits for it. Returns how many ranges.

        Raises OwnedRanges when a worker owns part of it and ``force`` is not set.
        """
        runtime = self._runtime()
        request = topology_pb2.RetireRequest(
            server_token=runtime.watcher.server_token, computation=self._full(name), start=start, end=end, force=force
        )
        # A forced one may not be repeated by itself: an owner may have claimed in between.
        return runtime.connection.call(runtime.connection.graph.Retire, request, repeatable=not force).ranges

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, *names: str) -> dict[str, WatermarkView]:
        """Return the published watermarks of some computations by name, or of all. Names not registered are unknown."""
        views, _ = self._get(names)
        return views

    def _get(self, names: Sequence[str]) -> tuple[dict[str, WatermarkView], int]:
        runtime = self._runtime()
        request = watermarks_pb2.GetWatermarksRequest(
            server_token=runtime.watcher.server_token, computations=[self._full(name) for name in names]
        )
        answer = runtime.connection.call(runtime.connection.watermarks.GetWatermarks, request, repeatable=True)
        views = runtime.watcher.admit(answer.server_token, map(wire.watermark_view, answer.watermarks))
        return dict(zip(names or (view.computation for view in views), views, strict=True)), answer.time_micros

    def inputs(self, *names: str) -> InputReader:
        """Follow some computations and fold them locally. Raises InvalidArgument without names."""
        if not names:
            msg = "name at least one computation"
            raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": 'inputs("flights")'})
        self._runtime()
        return InputReader(self._per_process, {name: self._full(name) for name in names})

    def watch(self, *names: str) -> Iterator[WatermarkView]:
        """Yield the watermarks of some computations, or of all, and again whenever they change. Conflated.

        Blocks between changes, without end while the authority is away. Ends when the client is closed. Raises
        ServerTokenMismatch when another deployment answers.
        """
        watcher = self._runtime().watcher
        followed = [self._full(name) for name in names]
        subscription = watcher.subscribe(followed)
        version = 0
        try:
            with watcher.changed:
                watcher.wait(lambda: subscription.confirmed, None)
            while True:
                with watcher.changed:
                    watcher.wait_beyond(version, None)
                    changed = watcher.ratchet.changed_since(version)
                    version = watcher.ratchet.version
                yield from (view for view in changed if not names or view.computation in followed)
        except errors.Closed:
            return
        finally:
            subscription.close()

    def wait(self, name: str, until: EventTime, timeout: float | None = None) -> WatermarkView:
        """Wait until everything before ``until`` is complete, at most ``timeout`` seconds (None: without end).

        Raises Timeout, saying who holds it; IncarnationChanged when the computation was reset meanwhile, since what
        was waited for belonged to its earlier life.
        """
        target = Watermark.of(until)
        deadline = None if timeout is None else time.monotonic() + timeout
        full = self._full(name)
        watcher = self._runtime().watcher
        subscription = watcher.subscribe([full])
        life = 0
        try:
            with watcher.changed:
                reached = watcher.wait(lambda: subscription.confirmed, deadline)
                while reached:
                    view = watcher.ratchet.get(full)
                    life = life or view.incarnation
                    if view.incarnation != life:
                        msg = f"{full} was reset while it was waited for: life {life} ended, {view.incarnation} began. Wait anew."
                        metadata = {"computation": full, "waited_for": str(life), "incarnation": str(view.incarnation)}
                        raise errors.IncarnationChanged(msg, metadata=metadata)
                    if view.registered and view.low >= target:
                        return view
                    reached = watcher.wait_beyond(watcher.ratchet.version, deadline)
                raise _too_late(watcher, full, target, timeout)
        finally:
            subscription.close()

    def complete(self, name: str, until: EventTime) -> Completeness:
        """Tell whether everything before ``until`` is here, and if not, which key ranges hold it.

        Raises UnknownComputation, and Unavailable when nobody can tell.
        """
        target = Watermark.of(until)
        runtime = self._runtime()
        request = watermarks_pb2.CheckCompleteRequest(
            server_token=runtime.watcher.server_token, computation=self._full(name), until_micros=target.micros
        )
        answer = runtime.connection.call(runtime.connection.watermarks.CheckComplete, request, repeatable=True)
        found = wire.completeness(answer)
        [view] = runtime.watcher.admit(None, [found.watermark])
        return Completeness(view.registered and target <= view.low, view, found.holders, found.holding)

    def ranges(self, name: str, below: EventTime | None = None, limit: int = 100) -> Ranges:
        """List the key ranges of a computation, those furthest behind first; only those below an event time, if given."""
        runtime = self._runtime()
        request = watermarks_pb2.ListRangesRequest(
            server_token=runtime.watcher.server_token,
            computation=self._full(name),
            page_size=limit,
            below_micros=None if below is None else to_micros(below),
        )
        return wire.ranges(runtime.connection.call(runtime.connection.watermarks.ListRanges, request, repeatable=True))

    def why(self, name: str) -> Why:
        """Tell who holds a computation, walking upstream; ``str()`` of the answer is one sentence per hop.

        Raises UnknownComputation.
        """
        views, now = self._get(())
        full = self._full(name)
        if full not in views:
            msg = f"there is no computation {full!r}; check the spelling and the namespace"
            raise errors.UnknownComputation(msg, metadata={"computation": full})
        return explain(full, views, now, lambda guilty: self.ranges(guilty, limit=10))

    # -- writing ----------------------------------------------------------------------------------------------------

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
        """Return a worker of a computation, to claim key ranges with. ``name`` is for people; by default host and process.

        ``identity`` binds the computation to its owner for good, for example a checkpoint: claims by others are refused.
        Claims order by (generation, ordinal); an older one is refused whenever it arrives.
        """
        self._runtime()
        made = Worker(
            self._per_process,
            self._full(computation),
            name=name,
            identity=identity,
            generation=generation,
            ordinal=ordinal,
        )
        # Kept even if the caller keeps only its leases: close() has to make their last states durable.
        self._workers = [*(worker for worker in self._workers if not worker.closed), made]
        return made

    def stage_task(
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
        """Tell what a task of a micro-batch holds after its part: the oldest event time of each handle, None for nothing.

        Call it on success only; nothing moves before the batch is committed. Raises StaleSequencer, Overloaded, InvalidArgument.
        """
        runtime = self._runtime()
        request = workers_pb2.StageTaskRequest(
            server_token=runtime.watcher.server_token,
            computation=self._full(computation),
            sequencer=sequencer,
            batch=batch,
            task=_attempt(task),
            handles=handles,
            oldest_micros=all_to_micros(oldest),
            pending=wire.histogram(pending) if pending is not None else None,
            finished=finished,
        )
        runtime.connection.call(runtime.connection.workers.StageTask, request, repeatable=True)

    def prepare_batch(
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
        """Name the accepted attempts of a micro-batch, and the lowest stamp that a later row can produce.

        ``seen`` is the snapshot the batch ran with, None for an injector; ``frontiers`` by share, by default those of ``seen``.
        Returns the attempts whose part never arrived: when there are any, nothing is prepared. Raises StaleSequencer.
        """
        runtime = self._runtime()
        if frontiers is None:
            frontiers = seen.heuristic.items() if seen is not None else ()
        request = workers_pb2.PrepareBatchRequest(
            server_token=runtime.watcher.server_token,
            computation=self._full(computation),
            sequencer=sequencer,
            batch=batch,
            digest=digest,
            tasks=[_attempt(task) for task in tasks],
            bound_micros=to_micros(bound),
            covers_all=covers_all,
            input_version=seen.input_version if seen is not None else 0,
            input_incarnations=seen.incarnations if seen is not None else (),
            oldest_operation_micros=0 if oldest_operation is None else to_micros(oldest_operation),
            frontiers=wire.frontiers((wire.ppm([share])[0], to_micros(micros)) for share, micros in frontiers),
        )
        answer = runtime.connection.call(runtime.connection.workers.PrepareBatch, request, repeatable=True)
        return tuple(TaskAttempt(each.stage, each.partition, each.attempt) for each in answer.missing)

    def commit_batch(self, computation: str, sequencer: int, batch: int) -> tuple[Refusal, ...]:
        """Apply the prepared batch, whole or not at all; durable when it returns. A repeat changes nothing.

        Returns what was refused of it. Raises NotPrepared, StaleSequencer, InputVersion, IncarnationChanged.
        """
        runtime = self._runtime()
        request = workers_pb2.CommitBatchRequest(
            server_token=runtime.watcher.server_token,
            computation=self._full(computation),
            sequencer=sequencer,
            batch=batch,
        )
        answer = runtime.connection.call(runtime.connection.workers.CommitBatch, request, repeatable=True)
        return tuple(wire.refusal(each) for each in answer.refused)

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def server_token(self) -> str:
        """The deployment that answered; empty before the first answer."""
        return self._runtime().watcher.server_token

    def statistics(self) -> ClientStatistics:
        """Return what was done in this process so far."""
        runtime = self._runtime()
        return ClientStatistics(runtime.reporter.statistics(), runtime.watcher.statistics())

    def close(self) -> None:
        """End the client's workers, threads and connection. Ranges hold where they stand."""
        if self._closed:
            return
        for worker in self._workers:
            worker.close()
        self._closed = True
        runtime = self._per_process.existing()
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _runtime(self) -> Runtime:
        if self._closed:
            msg = "the client is closed; connect() makes a new one"
            raise errors.Closed(msg)
        return self._per_process.get()

    def _full(self, name: str) -> str:
        return f"{self.settings.namespace}/{name}" if self.settings.namespace and "/" not in name else name


def _attempt(task: TaskAttempt) -> workers_pb2.TaskAttempt:
    return workers_pb2.TaskAttempt(stage=task.stage, partition=task.partition, attempt=task.attempt)


def _too_late(watcher: Watcher, name: str, target: Watermark, timeout: float | None) -> errors.Timeout:
    view = watcher.ratchet.get(name)
    stale = watcher.stale_for([name])
    if stale == float("inf"):
        where = "the authority was never heard of"
    else:
        where = f"it is {view.low}, held by {describe_holder(view)}" if view.registered else "it is not registered"
        where += f"; the authority was last heard {duration(stale)} ago"
    msg = f"{name} did not reach {target} within {timeout:g} s: {where}. Ask why({name!r})."
    metadata = {
        "computation": name,
        "until": str(target),
        "low": str(view.low),
        "stale_for": f"{stale:g}",
    }
    return errors.Timeout(msg, metadata=metadata)
