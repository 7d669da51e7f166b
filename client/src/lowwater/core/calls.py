"""Every unary call, described once: its method, its request, and the conversion of its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, TypeVar

from lowwater import errors
from lowwater.core import checks, wire
from lowwater.core.call import Call, Gather, Stubs
from lowwater.core.fold import Reading
from lowwater.core.slices import cut, slice_keys
from lowwater.core.text import counted
from lowwater.core.watches import WatchState
from lowwater.histogram import Histogram
from lowwater.layout import Layout, LayoutView, RangeLoad, wrong
from lowwater.v1 import cluster_pb2, topology_pb2, watermarks_pb2, workers_pb2
from lowwater.views import (
    Completeness,
    Computation,
    History,
    Identity,
    Inputs,
    Ranges,
    Refusal,
    Shards,
    Slice,
    TaskAttempt,
    Topology,
    Views,
    WatermarkView,
    slice_of,
)
from lowwater.watermark import EventTime, Watermark, all_to_micros, to_micros

__all__ = ["Calls", "Published", "full_name"]

Result = TypeVar("Result")

_DIGEST: Final = re.compile(r"(?:[0-9a-f]{64})?")
_MICROSECOND: Final = timedelta(microseconds=1)
_HOLDING: Final = 100
"""Number of key ranges to read when asking what holds a computation."""
_LONGEST_SKEW: Final = timedelta(microseconds=2**62 - 1)
_STEPS: Final = (timedelta(seconds=1), timedelta(days=366))
"""Least and greatest step of the completeness history that the authority accepts."""


def full_name(namespace: str, name: str, field: str = "name") -> str:
    """Return a full name, with the namespace unless it has one. Raises InvalidArgument."""
    checks.text(field, name)
    return f"{namespace}/{name}" if namespace and "/" not in name else name


@dataclass(frozen=True, slots=True)
class Published:
    """Published watermarks by name, and the authority's clock, in microseconds."""

    views: Views
    time_micros: int

    def require(self, name: str) -> None:
        """Raise UnknownComputation unless a computation, by its full name, is published."""
        if name not in self.views:
            raise checks.unknown_computation(name, self.views)


class Calls:
    """Describes the calls of one client, with its namespace and its deployment."""

    def __init__(self, state: WatchState, namespace: str) -> None:
        self._state = state
        self._router = state.router
        self._namespace = namespace

    def full(self, name: str, field: str = "name") -> str:
        """Return a computation's full name. Raises InvalidArgument for an invalid name."""
        return full_name(self._namespace, name, field)

    def call(
        self,
        method: Callable[[Stubs], Callable[..., Any]],
        request: Any,
        take: Callable[[Any], Result],
        computation: str = "",
        *,
        repeatable: bool = True,
    ) -> Call[Result]:
        """Return a call to this client's deployment; another one is refused on either side."""
        request.server_token = self._state.server_token

        def admit(answer: Any) -> Result:
            self._state.admit(getattr(answer, "server_token", None))  # not every answer has the token
            return take(answer)

        return Call(method, request, admit, computation, repeatable)

    def _inputs(self, inputs: Iterable[str]) -> list[str]:
        return [self.full(name, f"inputs[{i}]") for i, name in enumerate(checks.names("inputs", inputs))]

    # -- the graph ---------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        inputs: Iterable[str],
        heuristics: Iterable[float],
        key_hash: str,
        max_skew: timedelta | None,
        history_step: timedelta | None,
        *,
        estimated: bool,
        lateness_budget: float | Iterable[float],
        all_pending: bool = False,
        slices: Iterable[bytes] = (),
    ) -> Call[Computation]:
        """Register a computation."""
        keys = slice_keys(slices)
        if keys and all_pending:
            fix = "one of slices and all_pending: slices do not report all records that are still to come"
            raise checks.refused("all_pending", all_pending, fix)
        request = topology_pb2.RegisterRequest(
            name=self.full(name),
            inputs=self._inputs(inputs),
            heuristics_ppm=wire.ppm(heuristics),
            key_hash=checks.text("key_hash", key_hash),
            max_skew_micros=0 if max_skew is None else checks.micros("max_skew", max_skew, _MICROSECOND, _LONGEST_SKEW),
            history_step_micros=0 if history_step is None else checks.micros("history_step", history_step, *_STEPS),
            estimated=checks.flag("estimated", estimated),
            lateness_budgets_ppm=wire.budgets_ppm(lateness_budget),
            all_pending=checks.flag("all_pending", all_pending),
            slices=keys,
        )

        def take(answer: topology_pb2.RegisterResponse) -> Computation:
            registered = wire.computation(answer.computation)
            if estimated and not registered.estimated:
                # It would count as exact. No range has been reported yet, so the computation holds.
                fix = "upgrade the authority: this one ignores estimated, and would let exact computations read the estimate"
                raise checks.refused("estimated", estimated, fix)
            if request.lateness_budgets_ppm and not registered.lateness_budgets:
                fix = "upgrade the authority: this one has no lateness budgets"
                raise checks.refused("lateness_budget", lateness_budget, fix)
            if all_pending and not registered.all_pending:
                fix = "upgrade the authority, which does not count pending records, drop the computation, and register it again"
                raise checks.refused("all_pending", all_pending, fix)
            if keys and not registered.slices:
                # The computation would be one piece on one shard, while its workers count on
                # several.
                fix = "no slices, or upgrade the authority: this one has no slices and has registered the computation in one piece, so drop it and register it again"
                raise checks.refused("slices", f"{counted(len(keys) + 1, 'slice')}", fix)
            return registered

        return self.call(lambda stubs: stubs.graph.Register, request, take)

    def topology(self) -> Call[Topology]:
        """Read the whole graph."""
        return self._graph(wire.topology)

    def reading(self, computation: str) -> Call[Reading]:
        """Read the inputs that a computation, by its full name, folds."""
        return self._graph(lambda answer: wire.reading(_computation_in(answer, computation)))

    def slices(self, name: str) -> Call[tuple[Slice, ...]]:
        """Read the slices of a computation."""
        computation = self.full(name)

        def find(answer: topology_pb2.GetTopologyResponse) -> tuple[Slice, ...]:
            slices = [wire.computation(part) for part in answer.computations if part.slice_of == computation]
            return cut(wire.computation(_computation_in(answer, computation)), slices)

        return self._graph(find)

    def registration(self, name: str) -> Call[Computation | None]:
        """Read the registration that a change is based on; None for one that may not be read.

        The change's request names it, so that the authority refuses a request that comes late.
        """
        full = self.full(name)
        whole = slice_of(full) or full

        def find(answer: topology_pb2.GetTopologyResponse) -> Computation | None:
            return next((wire.computation(one) for one in answer.computations if one.name == whole), None)

        return self._graph(find)

    def split_slice(self, name: str, at: bytes) -> Call[Slice]:
        """Cut a slice in two; returns the new one."""
        full = self.full(name)
        root = slice_of(full)
        if not root:
            raise checks.refused("name", name, "the name of a slice, like hourly~3")
        request = topology_pb2.SplitSliceRequest(computation=root, slice=full, at=checks.key("at", at))

        def take(answer: topology_pb2.SplitSliceResponse) -> Slice:
            new = wire.computation(answer.slice)
            return Slice(new.name, new.slice_start, new.slice_end)

        return self.call(lambda stubs: stubs.graph.SplitSlice, request, take, repeatable=False)

    def _graph(self, become: Callable[[topology_pb2.GetTopologyResponse], Result]) -> Call[Result]:
        return self.call(lambda stubs: stubs.graph.GetTopology, topology_pb2.GetTopologyRequest(), become)

    def set_inputs(self, name: str, inputs: Iterable[str]) -> Call[Computation]:
        """Change the inputs of a computation."""
        full = self.full(name)
        request = topology_pb2.SetInputsRequest(computation=full, inputs=self._inputs(inputs))

        def take(answer: topology_pb2.SetInputsResponse) -> Computation:
            return wire.computation(answer.computation)

        return self.call(lambda stubs: stubs.graph.SetInputs, request, take, full, repeatable=False)

    def reset(self, name: str) -> Call[tuple[Computation, ...]]:
        """Begin a new incarnation of a computation and of all computations downstream."""

        def take(answer: topology_pb2.ResetResponse) -> tuple[Computation, ...]:
            self._state.begin((one.name, one.incarnation) for one in answer.computations)
            return tuple(wire.computation(one) for one in answer.computations)

        request = topology_pb2.ResetRequest(computation=self.full(name))
        return self.call(lambda stubs: stubs.graph.Reset, request, take, repeatable=False)

    def newest_claim(self, name: str) -> Call[tuple[int, int | None]]:
        """Read a computation's incarnation and newest claim; (0, None) from an old authority."""
        request = watermarks_pb2.ListRangesRequest(computation=self.full(name), page_size=1)

        def take(answer: watermarks_pb2.ListRangesResponse) -> tuple[int, int | None]:
            return answer.incarnation, answer.newest_claim if answer.HasField("newest_claim") else None

        return self.call(lambda stubs: stubs.watermarks.ListRanges, request, take, request.computation)

    def retire(self, name: str, start: bytes, end: bytes, *, force: bool, sequencer: int = 0) -> Call[int]:
        """Take a key range out of a computation.

        ``sequencer``: the claim of exactly these keys, which the caller releases by it; 0 for none.
        """
        request = topology_pb2.RetireRequest(
            computation=self.full(name),
            start=checks.key("start", start),
            end=checks.key("end", end),
            force=checks.flag("force", force),
            sequencer=sequencer,
        )

        # A repeated forced call could retire a range that an owner has claimed since.
        return self.call(
            lambda stubs: stubs.graph.Retire, request, attrgetter("ranges"), request.computation, repeatable=not force
        )

    def layout(self, name: str) -> Call[LayoutView]:
        """Read the layout of a computation."""
        full = self.full(name)
        request = topology_pb2.GetLayoutRequest(computation=full)
        return self.call(lambda stubs: stubs.graph.GetLayout, request, lambda answer: wire.layouts(full, answer), full)

    def change_layout(self, name: str, incarnation: int, layout: Layout) -> Call[int]:
        """Ask for a layout that replaces the one of its version."""
        full = self.full(name)
        value: Any = layout
        if not isinstance(value, Layout):
            raise checks.refused("layout", value, "a Layout")
        starts, tasks = checks.listed("layout.starts", layout.starts), checks.listed("layout.tasks", layout.tasks)
        problem = wrong(starts, tasks)
        if problem is not None:
            field, what, fix = problem
            msg = f"layout.{field} {what}: {fix}"
            raise errors.InvalidArgument(msg, metadata={"field": f"layout.{field}", "fix": fix})
        request = topology_pb2.ChangeLayoutRequest(
            computation=full,
            incarnation=checks.count("incarnation", incarnation, 64),
            expected_version=checks.count("layout.version", layout.version, 64),
            starts=starts,
            tasks=tasks,
        )

        return self.call(lambda stubs: stubs.graph.ChangeLayout, request, attrgetter("version"), full)

    def drop(self, name: str, *, force: bool) -> Call[int]:
        """Remove a computation from the graph."""
        request = topology_pb2.DropRequest(computation=self.full(name), force=checks.flag("force", force))

        def take(answer: topology_pb2.DropResponse) -> int:
            dropped = answer.computation
            self._state.dropped(WatermarkView(dropped.name, incarnation=dropped.incarnation))
            return dropped.incarnation

        # A repeated call could drop a computation that was registered again since.
        return self.call(lambda stubs: stubs.graph.Drop, request, take, request.computation, repeatable=False)

    # -- reading -----------------------------------------------------------------------------------

    def get(self, names: Sequence[str]) -> Gather[Published]:
        """Read published watermarks; no names means all computations."""
        full = {name: self.full(name, "names") for name in names}

        def request(some: Sequence[str]) -> watermarks_pb2.GetWatermarksRequest:
            return watermarks_pb2.GetWatermarksRequest(server_token=self._state.server_token, computations=some)

        def take(answers: Sequence[watermarks_pb2.GetWatermarksResponse]) -> Published:
            views_by_name: dict[str, WatermarkView] = {}
            for answer in answers:
                views = self._state.admit(answer.server_token, map(wire.watermark_view, answer.watermarks))
                views_by_name.update((view.computation, view) for view in views)
            full_names = full or {name: name for name in (sorted(views_by_name) if len(answers) > 1 else views_by_name)}
            by_name = {name: views_by_name[computation] for name, computation in full_names.items()}
            return Published(Views(by_name, whole=not full), max(answer.time_micros for answer in answers))

        return Gather(lambda stubs: stubs.watermarks.GetWatermarks, tuple(full.values()), request, take)

    def incarnation(self, name: str) -> Gather[int]:
        """Read a computation's incarnation without the whole graph; 0 when not registered."""
        full = self.full(name)
        whole = slice_of(full) or full
        read = self.get((whole,))

        def take(answers: Sequence[watermarks_pb2.GetWatermarksResponse]) -> int:
            view = read.take(answers).views[whole]
            return view.incarnation if view.registered else 0

        return Gather(read.method, read.names, read.request, take)

    def complete(self, name: str, until: EventTime) -> Call[Completeness]:
        """Ask whether everything before a time has arrived."""
        target = Watermark.of(until)

        def take(answer: watermarks_pb2.CheckCompleteResponse) -> Completeness:
            completeness = wire.completeness(answer)
            [view] = self._state.admit(None, [completeness.watermark])
            return Completeness(
                view.registered and target <= view.low, view, completeness.holders, completeness.holding
            )

        request = watermarks_pb2.CheckCompleteRequest(
            computation=checks.known_name("name", self.full(name)),
            until_micros=target.micros,
        )
        return self.call(lambda stubs: stubs.watermarks.CheckComplete, request, take, request.computation)

    def ranges(self, name: str, below: EventTime | None, limit: int) -> Call[Ranges]:
        """List key ranges."""
        return self.ranges_of(self.full(name), below, limit)

    def ranges_of(self, full: str, below: EventTime | None, limit: int) -> Call[Ranges]:
        """List key ranges of a computation by its full name, which may be in another namespace."""
        request = watermarks_pb2.ListRangesRequest(
            computation=full,
            page_size=checks.count("limit", limit, 32, least=1),
            below_micros=None if below is None else to_micros(below),
        )
        return self.call(lambda stubs: stubs.watermarks.ListRanges, request, wire.ranges, full)

    def holding(self, view: WatermarkView) -> Call[Ranges]:
        """List the first few key ranges that hold a computation: at its low watermark or below."""
        return self.ranges_of(view.computation, view.low.micros + 1, _HOLDING)

    def history(self, name: str, since: EventTime | None, limit: int) -> Call[History]:
        """Read when steps of event time became complete."""
        full = self.full(name)
        request = watermarks_pb2.GetHistoryRequest(
            computation=full,
            since_micros=None if since is None else to_micros(since),
            page_size=checks.count("limit", limit, 32, least=1),
        )
        return self.call(
            lambda stubs: stubs.watermarks.GetHistory, request, lambda answer: wire.history(full, answer), full
        )

    # -- writing -----------------------------------------------------------------------------------

    def claim(
        self, request: workers_pb2.ClaimRequest, become: Callable[[workers_pb2.ClaimResponse], Result]
    ) -> Call[Result]:
        """Claim key ranges. The request has a name, so that a repetition gets the same answer."""

        def take(answer: workers_pb2.ClaimResponse) -> Result:
            self._router.note_epoch(request.computation, answer.epoch)
            return become(answer)

        return self.call(lambda stubs: stubs.workers.Claim, request, take, request.computation)

    def release(self, computation: str, sequencer: int, failure: str | None = None) -> Call[None]:
        """Release a claim. ``failure``: the error that ended its worker; None: it has said that."""
        request = workers_pb2.ReleaseRequest(computation=computation, sequencer=sequencer, failure=failure)
        return self.call(lambda stubs: stubs.workers.Release, request, lambda _: None, computation, repeatable=False)

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
        """Stage the state of one task of a micro-batch."""
        finished = checks.records(finished, pending)
        request = workers_pb2.StageTaskRequest(
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            batch=checks.count("batch", batch, 64),
            task=wire.attempt(task),
            handles=checks.counts("handles", handles, 32),
            oldest_micros=all_to_micros(oldest),
            pending=wire.histogram(pending) if pending is not None else None,
            finished=finished,
        )
        return self.call(lambda stubs: stubs.workers.StageTask, request, lambda _: None, request.computation)

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
        value: Any = seen
        if not isinstance(value, Inputs | None):
            raise checks.refused("seen", value, "what worker.inputs() returned, or None for an injector")
        if frontiers is None:
            frontiers = seen.heuristic.items() if seen is not None else ()
        request = workers_pb2.PrepareBatchRequest(
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
            return tuple(TaskAttempt(task.stage, task.partition, task.attempt) for task in answer.missing)

        return self.call(lambda stubs: stubs.workers.PrepareBatch, request, take, request.computation)

    def commit_batch(
        self,
        computation: str,
        sequencer: int,
        batch: int,
        layout: Layout | None = None,
        layout_refused: str = "",
        loads: Iterable[RangeLoad] = (),
        wanted: Callable[[Layout], object] | None = None,
        known: Callable[[int], object] | None = None,
    ) -> Call[tuple[Refusal, ...]]:
        """Apply the prepared batch, and report the layout of its owner's ranges.

        ``wanted`` is called with another layout when the authority has one, ``known`` with the
        version of the owner's layout that the authority has.
        """
        request = workers_pb2.CommitBatchRequest(
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            batch=checks.count("batch", batch, 64),
            layout=None if layout is None else wire.layout_message(layout),
            layout_refused=layout_refused,
            loads=map(wire.load_message, loads),
        )

        def take(answer: workers_pb2.CommitBatchResponse) -> tuple[Refusal, ...]:
            if wanted is not None and answer.HasField("wanted"):
                wanted(wire.layout(answer.wanted))
            if known is not None and answer.HasField("known_layout"):
                known(answer.known_layout)
            return tuple(wire.refusal(ranges) for ranges in answer.refused)

        return self.call(lambda stubs: stubs.workers.CommitBatch, request, take, request.computation)

    def vouch(self, computation: str, sequencer: int, through: EventTime, seen: Inputs | None) -> Call[None]:
        """Ask whether an output may publish how far it is complete."""
        value: Any = seen
        if not isinstance(value, Inputs | None):
            raise checks.refused("seen", value, "what worker.inputs() returned, or None for an injector")
        request = workers_pb2.VouchRequest(
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            through_micros=to_micros(through),
            input_version=seen.input_version if seen is not None else 0,
            input_incarnations=seen.incarnations if seen is not None else (),
        )
        return self.call(lambda stubs: stubs.workers.Vouch, request, lambda _: None, request.computation)

    # -- the shards --------------------------------------------------------------------------------

    def locate(self, names: Sequence[str]) -> Call[None]:
        """Ask which shards serve computations, by their full names, and store the routes."""
        epochs = [self._router.epoch_of(name) for name in names]
        request = cluster_pb2.LocateRequest(computations=names, epochs=epochs)

        def take(answer: cluster_pb2.LocateResponse) -> None:
            for redirect in answer.redirects:
                self._router.redirected(redirect.computation, redirect.address, redirect.epoch)

        return self.call(lambda stubs: stubs.cluster.Locate, request, take)

    def shards(self) -> Call[Shards]:
        """List the shards."""
        return self.call(lambda stubs: stubs.cluster.ListShards, cluster_pb2.ListShardsRequest(), wire.shards)

    def drain(self, address: str, *, cancel: bool) -> Call[int]:
        """Make a shard hand over all that it serves, or cancel that."""
        request = cluster_pb2.DrainRequest(
            address=checks.text("address", address),
            cancel=checks.flag("cancel", cancel),
        )

        return self.call(lambda stubs: stubs.cluster.Drain, request, attrgetter("remaining"))

    def pin(self, name: str, address: str | None) -> Call[int]:
        """Pin a computation to a shard, or remove the pin."""
        if address == "":
            raise checks.refused(
                "address", address, "the shard's address, as shards() returns it, or None to remove the pin"
            )
        request = cluster_pb2.PinRequest(
            computation=self.full(name),
            address=checks.text("address", address) if address is not None else "",
        )

        return self.call(lambda stubs: stubs.cluster.Pin, request, attrgetter("version"))

    def identify(self, token_sha256: str) -> Call[Identity]:
        """Ask for the principal of a token."""
        value: Any = token_sha256
        if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
            fix = "the SHA-256 of a token, 64 lower-case hexadecimal digits, and never the token itself; or empty, for this client's own token"
            raise checks.refused("token_sha256", "(not shown)", fix)
        request = cluster_pb2.IdentifyRequest(token_sha256=token_sha256)

        def take(answer: cluster_pb2.IdentifyResponse) -> Identity:
            return Identity(answer.controlled, answer.principal, answer.page, answer.metrics)

        return self.call(lambda stubs: stubs.cluster.Identify, request, take)


def based_on(call: Call[Result], registration: Computation | None) -> Call[Result]:
    """Add the registration that a change is based on to the change's request.

    The caller makes the call before it reads the registration, so that bad input is refused without
    a question.
    """
    if registration is not None:
        call.request.incarnation = registration.incarnation
        if "input_version" in call.request.DESCRIPTOR.fields_by_name:
            call.request.input_version = registration.input_version
    return call


def _frontier(pair: Any) -> tuple[int, int]:
    try:
        share, time = pair
    except (TypeError, ValueError):
        raise checks.refused("frontiers", pair, "pairs of (share, event time)") from None
    return wire.ppm([share])[0], to_micros(time)


def _computation_in(answer: topology_pb2.GetTopologyResponse, computation: str) -> topology_pb2.Computation:
    """Return a computation of the graph. Raises UnknownComputation."""
    for candidate in answer.computations:
        if candidate.name == computation:
            return candidate
    raise checks.unknown_computation(computation, [candidate.name for candidate in answer.computations])
