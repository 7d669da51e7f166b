"""Every unary call, once: its method, its request, whether it may be repeated, and what its answer becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from lowwater import errors
from lowwater._core import checks, wire
from lowwater._core.fold import Reading
from lowwater._core.watching import WatchState
from lowwater._pb.lowwater.v1 import (
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater.histogram import Histogram
from lowwater.views import (
    Completeness,
    Computation,
    History,
    Inputs,
    Ranges,
    Refusal,
    TaskAttempt,
    Topology,
    WatermarkView,
)
from lowwater.watermark import EventTime, Watermark, all_to_micros, to_micros

__all__ = ["Call", "Calls", "Published", "Stubs", "full_name"]

Result = TypeVar("Result")

_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_SKEW: Final = timedelta(microseconds=2**62 - 1)
_STEPS: Final = (timedelta(seconds=1), timedelta(days=366))
"""What the authority takes."""


def _micros(field: str, length: timedelta, least: timedelta, most: timedelta) -> int:
    given: Any = length
    if not isinstance(given, timedelta) or not least <= given <= most:
        raise checks.refused(field, given, f"a timedelta of {least} to {most}")
    return length // _MICROSECOND


def full_name(namespace: str, name: str, field: str = "name") -> str:
    """Return a computation's full name: a namespace goes before names that have none. Raises InvalidArgument for what is no name."""
    checks.text(field, name)
    return f"{namespace}/{name}" if namespace and "/" not in name else name


class Stubs:
    """The generated stubs over a channel, of threads or of asyncio: which, their types cannot say here."""

    def __init__(self, channel: Any) -> None:
        self.workers: Any = workers_pb2_grpc.WorkerServiceStub(channel)
        self.watermarks: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        self.graph: Any = topology_pb2_grpc.TopologyServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One unary call."""

    method: Callable[[Stubs], Callable[..., Any]]
    request: Any
    take: Callable[[Any], Result]
    """What the answer becomes. It may change what is known, so the shell guards it. Raises what the answer means."""
    repeatable: bool = True
    """Whether the authority may get it twice."""


@dataclass(frozen=True, slots=True)
class Published:
    """Published watermarks by name, and the authority's clock, in microseconds."""

    views: dict[str, WatermarkView]
    time_micros: int

    def require(self, name: str) -> None:
        """Raise UnknownComputation unless a computation, by its full name, is among them."""
        if name not in self.views:
            msg = f"there is no computation {name!r}; check the spelling and the namespace"
            raise errors.UnknownComputation(msg, metadata={"computation": name})


class Calls:
    """Describes calls on behalf of one client: with its namespace, and the deployment it belongs to."""

    def __init__(self, known: WatchState, namespace: str) -> None:
        self._known = known
        self._namespace = namespace

    def full(self, name: str, field: str = "name") -> str:
        """Return a computation's full name. Raises InvalidArgument for what is no name."""
        return full_name(self._namespace, name, field)

    def _inputs(self, inputs: Iterable[str]) -> list[str]:
        return [self.full(name, f"inputs[{i}]") for i, name in enumerate(checks.listed("inputs", inputs))]

    # -- the graph ----------------------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        inputs: Iterable[str],
        heuristics: Iterable[float],
        key_hash: str,
        max_skew: timedelta,
        history_step: timedelta | None,
    ) -> Call[Computation]:
        """Register a computation."""
        request = topology_pb2.RegisterRequest(
            server_token=self._known.server_token,
            name=self.full(name),
            inputs=self._inputs(inputs),
            heuristics_ppm=wire.ppm(heuristics),
            key_hash=checks.text("key_hash", key_hash),
            max_skew_micros=_micros("max_skew", max_skew, _MICROSECOND, _LONGEST_SKEW),
            history_step_micros=0 if history_step is None else _micros("history_step", history_step, *_STEPS),
        )

        def take(answer: topology_pb2.RegisterResponse) -> Computation:
            self._known.admit(answer.server_token)
            return wire.computation(answer.computation)

        return Call(lambda stubs: stubs.graph.Register, request, take)

    def topology(self) -> Call[Topology]:
        """Read the whole graph."""
        return self._graph(wire.topology)

    def reading(self, computation: str) -> Call[Reading]:
        """Read which inputs a computation, by its full name, folds."""

        def reading(answer: topology_pb2.GetTopologyResponse) -> Reading:
            for each in answer.computations:
                if each.name == computation:
                    return wire.reading(each)
            msg = f"there is no computation {computation!r}; register it first"
            raise errors.UnknownComputation(msg, metadata={"computation": computation})

        return self._graph(reading)

    def _graph(self, become: Callable[[topology_pb2.GetTopologyResponse], Result]) -> Call[Result]:
        def take(answer: topology_pb2.GetTopologyResponse) -> Result:
            self._known.admit(answer.server_token)
            return become(answer)

        request = topology_pb2.GetTopologyRequest(server_token=self._known.server_token)
        return Call(lambda stubs: stubs.graph.GetTopology, request, take)

    def set_inputs(self, name: str, inputs: Iterable[str]) -> Call[Computation]:
        """Change what a computation reads."""
        request = topology_pb2.SetInputsRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            inputs=self._inputs(inputs),
        )

        def take(answer: topology_pb2.SetInputsResponse) -> Computation:
            return wire.computation(answer.computation)

        return Call(lambda stubs: stubs.graph.SetInputs, request, take, repeatable=False)

    def reset(self, name: str) -> Call[tuple[Computation, ...]]:
        """Start a new life of a computation and of all that reads it."""

        def take(answer: topology_pb2.ResetResponse) -> tuple[Computation, ...]:
            self._known.begin((each.name, each.incarnation) for each in answer.computations)
            return tuple(wire.computation(each) for each in answer.computations)

        request = topology_pb2.ResetRequest(server_token=self._known.server_token, computation=self.full(name))
        return Call(lambda stubs: stubs.graph.Reset, request, take, repeatable=False)

    def retire(self, name: str, start: bytes, end: bytes, *, force: bool) -> Call[int]:
        """Take a key range out of a computation."""
        request = topology_pb2.RetireRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            start=checks.key("start", start),
            end=checks.key("end", end),
            force=checks.flag("force", force),
        )

        def take(answer: topology_pb2.RetireResponse) -> int:
            return answer.ranges

        # A forced one may not be repeated by itself: an owner may have claimed in between.
        return Call(lambda stubs: stubs.graph.Retire, request, take, repeatable=not force)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, names: Sequence[str]) -> Call[Published]:
        """Read published watermarks, of all computations when none is named."""

        def take(answer: watermarks_pb2.GetWatermarksResponse) -> Published:
            views = self._known.admit(answer.server_token, map(wire.watermark_view, answer.watermarks))
            by_name = dict(zip(names or (view.computation for view in views), views, strict=True))
            return Published(by_name, answer.time_micros)

        request = watermarks_pb2.GetWatermarksRequest(
            server_token=self._known.server_token, computations=[self.full(name, "names") for name in names]
        )
        return Call(lambda stubs: stubs.watermarks.GetWatermarks, request, take)

    def complete(self, name: str, until: EventTime) -> Call[Completeness]:
        """Ask whether everything before a time is here."""
        target = Watermark.of(until)

        def take(answer: watermarks_pb2.CheckCompleteResponse) -> Completeness:
            found = wire.completeness(answer)
            [view] = self._known.admit(None, [found.watermark])
            return Completeness(view.registered and target <= view.low, view, found.holders, found.holding)

        request = watermarks_pb2.CheckCompleteRequest(
            server_token=self._known.server_token, computation=self.full(name), until_micros=target.micros
        )
        return Call(lambda stubs: stubs.watermarks.CheckComplete, request, take)

    def ranges(self, name: str, below: EventTime | None, limit: int) -> Call[Ranges]:
        """List key ranges."""
        request = watermarks_pb2.ListRangesRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            page_size=checks.count("limit", limit, 32, least=1),
            below_micros=None if below is None else to_micros(below),
        )
        return Call(lambda stubs: stubs.watermarks.ListRanges, request, wire.ranges)

    def history(self, name: str, since: EventTime | None, limit: int) -> Call[History]:
        """Ask when steps of event time became complete."""
        full = self.full(name)
        request = watermarks_pb2.GetHistoryRequest(
            server_token=self._known.server_token,
            computation=full,
            since_micros=None if since is None else to_micros(since),
            page_size=checks.count("limit", limit, 32, least=1),
        )
        return Call(lambda stubs: stubs.watermarks.GetHistory, request, lambda answer: wire.history(full, answer))

    # -- writing ------------------------------------------------------------------------------------------------------

    def claim(
        self, request: workers_pb2.ClaimRequest, become: Callable[[workers_pb2.ClaimResponse], Result]
    ) -> Call[Result]:
        """Claim key ranges. The request names itself, so that a repetition gets the same answer."""

        def take(answer: workers_pb2.ClaimResponse) -> Result:
            self._known.admit(answer.server_token)
            return become(answer)

        request.server_token = self._known.server_token
        return Call(lambda stubs: stubs.workers.Claim, request, take)

    def release(self, computation: str, sequencer: int) -> Call[None]:
        """Give a claim back."""
        request = workers_pb2.ReleaseRequest(
            server_token=self._known.server_token, computation=computation, sequencer=sequencer
        )
        return Call(lambda stubs: stubs.workers.Release, request, lambda _: None, repeatable=False)

    def stage_task(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        task: TaskAttempt,
        *,
        handles: Sequence[int],
        oldest: Iterable[EventTime | None],
        pending: Histogram | None,
        finished: int,
    ) -> Call[None]:
        """Stage what a task of a micro-batch holds."""
        finished = checks.records(finished, pending)
        request = workers_pb2.StageTaskRequest(
            server_token=self._known.server_token,
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            batch=checks.count("batch", batch, 64),
            task=wire.attempt(task),
            handles=checks.counts("handles", handles, 32),
            oldest_micros=all_to_micros(oldest),
            pending=wire.histogram(pending) if pending is not None else None,
            finished=finished,
        )
        return Call(lambda stubs: stubs.workers.StageTask, request, lambda _: None)

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
        covers_all: bool,
        frontiers: Iterable[tuple[float, EventTime]] | None,
        oldest_operation: EventTime | None,
    ) -> Call[tuple[TaskAttempt, ...]]:
        """Name the accepted attempts of a micro-batch."""
        given: Any = seen
        if not isinstance(given, Inputs | None):
            raise checks.refused("seen", given, "what worker.inputs() returned, or None for an injector")
        if frontiers is None:
            frontiers = seen.heuristic.items() if seen is not None else ()
        request = workers_pb2.PrepareBatchRequest(
            server_token=self._known.server_token,
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            batch=checks.count("batch", batch, 64),
            digest=checks.key("digest", digest),
            tasks=[wire.attempt(task) for task in checks.listed("tasks", tasks)],
            bound_micros=to_micros(bound),
            covers_all=checks.flag("covers_all", covers_all),
            input_version=seen.input_version if seen is not None else 0,
            input_incarnations=seen.incarnations if seen is not None else (),
            oldest_operation_micros=checks.operation(oldest_operation),
            frontiers=wire.frontiers(map(_frontier, checks.listed("frontiers", frontiers))),
        )

        def take(answer: workers_pb2.PrepareBatchResponse) -> tuple[TaskAttempt, ...]:
            return tuple(TaskAttempt(each.stage, each.partition, each.attempt) for each in answer.missing)

        return Call(lambda stubs: stubs.workers.PrepareBatch, request, take)

    def commit_batch(self, computation: str, sequencer: int, batch: int) -> Call[tuple[Refusal, ...]]:
        """Apply the prepared batch."""
        request = workers_pb2.CommitBatchRequest(
            server_token=self._known.server_token,
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            batch=checks.count("batch", batch, 64),
        )

        def take(answer: workers_pb2.CommitBatchResponse) -> tuple[Refusal, ...]:
            return tuple(wire.refusal(each) for each in answer.refused)

        return Call(lambda stubs: stubs.workers.CommitBatch, request, take)


def _frontier(pair: Any) -> tuple[int, int]:
    try:
        share, time = pair
    except (TypeError, ValueError):
        raise checks.refused("frontiers", pair, "pairs of (share, event time)") from None
    return wire.ppm([share])[0], to_micros(time)
