"""Every unary call, once: its method, its request, whether it may be repeated, and what its answer becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from lowwater import errors
from lowwater.core import checks, wire
from lowwater.core.call import Call, Gather
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
    WatermarkView,
    slice_of,
)
from lowwater.watermark import EventTime, Watermark, all_to_micros, to_micros

__all__ = ["Calls", "Published", "full_name"]

Result = TypeVar("Result")

_DIGEST: Final = re.compile(r"(?:[0-9a-f]{64})?")
_MICROSECOND: Final = timedelta(microseconds=1)
_HOLDING: Final = 100
"""Key ranges that are asked for to say who holds."""
_LONGEST_SKEW: Final = timedelta(microseconds=2**62 - 1)
_STEPS: Final = (timedelta(seconds=1), timedelta(days=366))
"""What the authority takes."""


def _micros(field: str, length: timedelta, least: timedelta, most: timedelta) -> int:
    given: Any = length
    if not isinstance(given, timedelta) or not least <= given <= most:
        raise checks.refused(field, given, f"a timedelta of {least} to {most}")
    return length // _MICROSECOND


def full_name(namespace: str, name: str, field: str = "name") -> str:
    """Return a computation's full name: a namespace goes before names that have none.

    Raises InvalidArgument for what is no name.
    """
    checks.text(field, name)
    return f"{namespace}/{name}" if namespace and "/" not in name else name


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
        self._router = known.router
        self._namespace = namespace

    @property
    def known(self) -> WatchState:
        """What is known of the deployment."""
        return self._known

    def full(self, name: str, field: str = "name") -> str:
        """Return a computation's full name. Raises InvalidArgument for what is no name."""
        return full_name(self._namespace, name, field)

    def _inputs(self, inputs: Iterable[str]) -> list[str]:
        return [self.full(name, f"inputs[{i}]") for i, name in enumerate(checks.listed("inputs", inputs))]

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
            server_token=self._known.server_token,
            name=self.full(name),
            inputs=self._inputs(inputs),
            heuristics_ppm=wire.ppm(heuristics),
            key_hash=checks.text("key_hash", key_hash),
            max_skew_micros=0 if max_skew is None else _micros("max_skew", max_skew, _MICROSECOND, _LONGEST_SKEW),
            history_step_micros=0 if history_step is None else _micros("history_step", history_step, *_STEPS),
            estimated=checks.flag("estimated", estimated),
            lateness_budgets_ppm=wire.budgets_ppm(lateness_budget),
            all_pending=checks.flag("all_pending", all_pending),
            slices=keys,
        )

        def take(answer: topology_pb2.RegisterResponse) -> Computation:
            self._known.admit(answer.server_token)
            registered = wire.computation(answer.computation)
            if estimated and not registered.estimated:
                # It would pass for exact. Nothing has been reported yet, so it holds.
                fix = "upgrade the authority: this one does not know what is estimated, and would let exact computations read it"
                raise checks.refused("estimated", estimated, fix)
            if request.lateness_budgets_ppm and not registered.lateness_budgets:
                fix = "upgrade the authority: this one knows no lateness budgets"
                raise checks.refused("lateness_budget", lateness_budget, fix)
            if all_pending and not registered.all_pending:
                fix = "upgrade the authority, which does not go by what is pending, drop the computation, and register it again"
                raise checks.refused("all_pending", all_pending, fix)
            if keys and not registered.slices:
                # It would be one piece, on one shard, while its workers count on many.
                fix = "nothing here and upgrade the authority, which does not know slices: it has registered the computation in one piece, so drop that, and register it again"
                raise checks.refused("slices", f"{counted(len(keys) + 1, 'slice')}", fix)
            return registered

        return Call(lambda stubs: stubs.graph.Register, request, take)

    def topology(self) -> Call[Topology]:
        """Read the whole graph."""
        return self._graph(wire.topology)

    def reading(self, computation: str) -> Call[Reading]:
        """Read which inputs a computation, by its full name, folds."""
        return self._registered(computation, wire.reading)

    def slices(self, name: str) -> Call[tuple[Slice, ...]]:
        """Read into which slices a computation is cut."""
        computation = self.full(name)

        def find(answer: topology_pb2.GetTopologyResponse) -> tuple[Slice, ...]:
            slices = [wire.computation(each) for each in answer.computations if each.slice_of == computation]
            return cut(wire.computation(_found(answer, computation)), slices)

        return self._graph(find)

    def seen(self, name: str) -> Call[Computation | None]:
        """Read what a change is decided on: the change names it, so that a message which comes late is refused. None: nothing that may be read."""
        full = self.full(name)
        whole = slice_of(full) or full

        def find(answer: topology_pb2.GetTopologyResponse) -> Computation | None:
            return next((wire.computation(each) for each in answer.computations if each.name == whole), None)

        return self._graph(find)

    def split_slice(self, name: str, at: bytes) -> Call[Slice]:
        """Cut a slice in two; returns the new one."""
        full = self.full(name)
        root = slice_of(full)
        if not root:
            raise checks.refused("name", name, "the name of a slice, like hourly~3")
        request = topology_pb2.SplitSliceRequest(
            server_token=self._known.server_token, computation=root, slice=full, at=checks.key("at", at)
        )

        def take(answer: topology_pb2.SplitSliceResponse) -> Slice:
            made = wire.computation(answer.slice)
            return Slice(made.name, made.slice_start, made.slice_end)

        return Call(lambda stubs: stubs.graph.SplitSlice, request, take, repeatable=False)

    def _registered(self, computation: str, become: Callable[[topology_pb2.Computation], Result]) -> Call[Result]:
        return self._graph(lambda answer: become(_found(answer, computation)))

    def _graph(self, become: Callable[[topology_pb2.GetTopologyResponse], Result]) -> Call[Result]:
        def take(answer: topology_pb2.GetTopologyResponse) -> Result:
            self._known.admit(answer.server_token)
            return become(answer)

        request = topology_pb2.GetTopologyRequest(server_token=self._known.server_token)
        return Call(lambda stubs: stubs.graph.GetTopology, request, take)

    def set_inputs(self, name: str, inputs: Iterable[str]) -> Call[Computation]:
        """Change what a computation reads."""
        full = self.full(name)
        request = topology_pb2.SetInputsRequest(
            server_token=self._known.server_token, computation=full, inputs=self._inputs(inputs)
        )

        def take(answer: topology_pb2.SetInputsResponse) -> Computation:
            return wire.computation(answer.computation)

        return Call(lambda stubs: stubs.graph.SetInputs, request, take, full, repeatable=False)

    def reset(self, name: str) -> Call[tuple[Computation, ...]]:
        """Start a new incarnation of a computation and of all that reads it."""

        def take(answer: topology_pb2.ResetResponse) -> tuple[Computation, ...]:
            self._known.begin((each.name, each.incarnation) for each in answer.computations)
            return tuple(wire.computation(each) for each in answer.computations)

        request = topology_pb2.ResetRequest(server_token=self._known.server_token, computation=self.full(name))
        return Call(lambda stubs: stubs.graph.Reset, request, take, repeatable=False)

    def newest_claim(self, name: str) -> Call[tuple[int, int | None]]:
        """Read the incarnation of a computation and its newest claim, for a retirement; 0 and None: the authority does not tell."""
        request = watermarks_pb2.ListRangesRequest(
            server_token=self._known.server_token, computation=self.full(name), page_size=1
        )

        def take(answer: watermarks_pb2.ListRangesResponse) -> tuple[int, int | None]:
            return answer.incarnation, answer.newest_claim if answer.HasField("newest_claim") else None

        return Call(lambda stubs: stubs.watermarks.ListRanges, request, take, request.computation)

    def retire(
        self,
        name: str,
        start: bytes,
        end: bytes,
        *,
        force: bool,
        sequencer: int = 0,
    ) -> Call[int]:
        """Take a key range out of a computation.

        ``sequencer``: of the claim that has just these keys, and gives them up.
        """
        request = topology_pb2.RetireRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            start=checks.key("start", start),
            end=checks.key("end", end),
            force=checks.flag("force", force),
            sequencer=sequencer,
        )

        def take(answer: topology_pb2.RetireResponse) -> int:
            return answer.ranges

        # A forced one may not be repeated by itself: an owner may have claimed in between.
        return Call(lambda stubs: stubs.graph.Retire, request, take, request.computation, repeatable=not force)

    def layout(self, name: str) -> Call[LayoutView]:
        """Ask how a computation is laid out."""
        full = self.full(name)
        request = topology_pb2.GetLayoutRequest(server_token=self._known.server_token, computation=full)
        return Call(lambda stubs: stubs.graph.GetLayout, request, lambda found: wire.layouts(full, found), full)

    def change_layout(self, name: str, incarnation: int, layout: Layout) -> Call[int]:
        """Ask for another layout in place of the one of its version."""
        full = self.full(name)
        given: Any = layout
        if not isinstance(given, Layout):
            raise checks.refused("layout", given, "a Layout")
        starts, tasks = checks.listed("layout.starts", layout.starts), checks.listed("layout.tasks", layout.tasks)
        problem = wrong(starts, tasks)
        if problem is not None:
            field, what, fix = problem
            msg = f"layout.{field} {what}: {fix}"
            raise errors.InvalidArgument(msg, metadata={"field": f"layout.{field}", "fix": fix})
        request = topology_pb2.ChangeLayoutRequest(
            server_token=self._known.server_token,
            computation=full,
            incarnation=checks.count("incarnation", incarnation, 64),
            expected_version=checks.count("layout.version", layout.version, 64),
            starts=starts,
            tasks=tasks,
        )

        def take(answer: topology_pb2.ChangeLayoutResponse) -> int:
            return answer.version

        return Call(lambda stubs: stubs.graph.ChangeLayout, request, take, full)

    def drop(self, name: str, *, force: bool) -> Call[int]:
        """Take a computation out of the graph."""
        request = topology_pb2.DropRequest(
            server_token=self._known.server_token, computation=self.full(name), force=checks.flag("force", force)
        )

        def take(answer: topology_pb2.DropResponse) -> int:
            dropped = answer.computation
            self._known.dropped(WatermarkView(dropped.name, incarnation=dropped.incarnation))
            return dropped.incarnation

        # Repeated by itself it could drop what somebody has registered again in between.
        return Call(lambda stubs: stubs.graph.Drop, request, take, request.computation, repeatable=False)

    # -- reading -----------------------------------------------------------------------------------

    def get(self, names: Sequence[str]) -> Gather[Published]:
        """Read published watermarks, of all computations when none is named."""
        full = {name: self.full(name, "names") for name in names}

        def request(some: Sequence[str]) -> watermarks_pb2.GetWatermarksRequest:
            return watermarks_pb2.GetWatermarksRequest(server_token=self._known.server_token, computations=some)

        def take(answers: Sequence[watermarks_pb2.GetWatermarksResponse]) -> Published:
            found: dict[str, WatermarkView] = {}
            for answer in answers:
                views = self._known.admit(answer.server_token, map(wire.watermark_view, answer.watermarks))
                found.update((view.computation, view) for view in views)
            asked = full or {name: name for name in (sorted(found) if len(answers) > 1 else found)}
            by_name = {name: found[computation] for name, computation in asked.items()}
            return Published(by_name, max(answer.time_micros for answer in answers))

        return Gather(lambda stubs: stubs.watermarks.GetWatermarks, tuple(full.values()), request, take)

    def incarnation(self, name: str) -> Gather[int]:
        """Read the incarnation of a computation; 0: the computation is not registered.

        Unlike ``seen`` this call does not read the whole graph.
        """
        full = self.full(name)
        whole = slice_of(full) or full
        read = self.get((whole,))

        def take(answers: Sequence[watermarks_pb2.GetWatermarksResponse]) -> int:
            view = read.take(answers).views[whole]
            return view.incarnation if view.registered else 0

        return Gather(read.method, read.names, read.request, take)

    def complete(self, name: str, until: EventTime) -> Call[Completeness]:
        """Ask whether everything before a time is here."""
        target = Watermark.of(until)

        def take(answer: watermarks_pb2.CheckCompleteResponse) -> Completeness:
            found = wire.completeness(answer)
            [view] = self._known.admit(None, [found.watermark])
            return Completeness(view.registered and target <= view.low, view, found.holders, found.holding)

        request = watermarks_pb2.CheckCompleteRequest(
            server_token=self._known.server_token,
            computation=checks.known_name("name", self.full(name)),
            until_micros=target.micros,
        )
        return Call(lambda stubs: stubs.watermarks.CheckComplete, request, take, request.computation)

    def ranges(self, name: str, below: EventTime | None, limit: int) -> Call[Ranges]:
        """List key ranges."""
        request = watermarks_pb2.ListRangesRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            page_size=checks.count("limit", limit, 32, least=1),
            below_micros=None if below is None else to_micros(below),
        )
        return Call(lambda stubs: stubs.watermarks.ListRanges, request, wire.ranges, request.computation)

    def holding(self, view: WatermarkView) -> Call[Ranges]:
        """List the first few of the key ranges that hold a computation: those at its low watermark, and those that went below it."""
        request = watermarks_pb2.ListRangesRequest(
            server_token=self._known.server_token,
            computation=view.computation,
            page_size=_HOLDING,
            below_micros=view.low.micros + 1,
        )
        return Call(lambda stubs: stubs.watermarks.ListRanges, request, wire.ranges, request.computation)

    def history(self, name: str, since: EventTime | None, limit: int) -> Call[History]:
        """Ask when steps of event time became complete."""
        full = self.full(name)
        request = watermarks_pb2.GetHistoryRequest(
            server_token=self._known.server_token,
            computation=full,
            since_micros=None if since is None else to_micros(since),
            page_size=checks.count("limit", limit, 32, least=1),
        )
        return Call(lambda stubs: stubs.watermarks.GetHistory, request, lambda answer: wire.history(full, answer), full)

    # -- writing -----------------------------------------------------------------------------------

    def claim(
        self, request: workers_pb2.ClaimRequest, become: Callable[[workers_pb2.ClaimResponse], Result]
    ) -> Call[Result]:
        """Claim key ranges. The request names itself, so that a repetition gets the same answer."""

        def take(answer: workers_pb2.ClaimResponse) -> Result:
            self._known.admit(answer.server_token)
            self._router.seen(request.computation, answer.epoch)
            return become(answer)

        request.server_token = self._known.server_token
        return Call(lambda stubs: stubs.workers.Claim, request, take, request.computation)

    def release(self, computation: str, sequencer: int) -> Call[None]:
        """Give a claim back."""
        request = workers_pb2.ReleaseRequest(
            server_token=self._known.server_token, computation=computation, sequencer=sequencer
        )
        return Call(lambda stubs: stubs.workers.Release, request, lambda _: None, computation, repeatable=False)

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
        return Call(lambda stubs: stubs.workers.StageTask, request, lambda _: None, request.computation)

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

        return Call(lambda stubs: stubs.workers.PrepareBatch, request, take, request.computation)

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
        """Apply the prepared batch, and say how its owner lays the ranges out.

        ``wanted`` is called when another layout is, ``known`` with the version of the owner's that
        is known.
        """
        request = workers_pb2.CommitBatchRequest(
            server_token=self._known.server_token,
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
            return tuple(wire.refusal(each) for each in answer.refused)

        return Call(lambda stubs: stubs.workers.CommitBatch, request, take, request.computation)

    def vouch(self, computation: str, sequencer: int, through: EventTime, seen: Inputs | None) -> Call[None]:
        """Ask whether an output may say how far it is complete."""
        given: Any = seen
        if not isinstance(given, Inputs | None):
            raise checks.refused("seen", given, "what worker.inputs() returned, or None for an injector")
        request = workers_pb2.VouchRequest(
            server_token=self._known.server_token,
            computation=self.full(computation, "computation"),
            sequencer=checks.count("sequencer", sequencer, 64),
            through_micros=to_micros(through),
            input_version=seen.input_version if seen is not None else 0,
            input_incarnations=seen.incarnations if seen is not None else (),
        )
        return Call(lambda stubs: stubs.workers.Vouch, request, lambda _: None, request.computation)

    # -- the shards --------------------------------------------------------------------------------

    def locate(self, names: Sequence[str]) -> Call[None]:
        """Ask where computations, by their full names, are served, and learn the routes."""
        epochs = [self._router.epoch_of(name) for name in names]
        request = cluster_pb2.LocateRequest(server_token=self._known.server_token, computations=names, epochs=epochs)

        def take(answer: cluster_pb2.LocateResponse) -> None:
            self._known.admit(answer.server_token)
            for each in answer.redirects:
                self._router.redirected(each.computation, each.address, each.epoch)

        return Call(lambda stubs: stubs.cluster.Locate, request, take)

    def shards(self) -> Call[Shards]:
        """List the shards."""
        request = cluster_pb2.ListShardsRequest(server_token=self._known.server_token)

        def take(answer: cluster_pb2.ListShardsResponse) -> Shards:
            self._known.admit(answer.server_token)
            return wire.shards(answer)

        return Call(lambda stubs: stubs.cluster.ListShards, request, take)

    def drain(self, address: str, *, cancel: bool) -> Call[int]:
        """Have a shard hand over all that it serves, or take that back."""
        request = cluster_pb2.DrainRequest(
            server_token=self._known.server_token,
            address=checks.text("address", address),
            cancel=checks.flag("cancel", cancel),
        )

        def take(answer: cluster_pb2.DrainResponse) -> int:
            return answer.remaining

        return Call(lambda stubs: stubs.cluster.Drain, request, take)

    def pin(self, name: str, address: str | None) -> Call[int]:
        """Give a computation to a shard, or take that back."""
        if address == "":
            raise checks.refused(
                "address", address, "the shard's address, as shards() has it, or None to take the pin back"
            )
        request = cluster_pb2.PinRequest(
            server_token=self._known.server_token,
            computation=self.full(name),
            address=checks.text("address", address) if address is not None else "",
        )

        def take(answer: cluster_pb2.PinResponse) -> int:
            return answer.version

        return Call(lambda stubs: stubs.cluster.Pin, request, take)

    def identify(self, token_sha256: str) -> Call[Identity]:
        """Ask whose a token is."""
        given: Any = token_sha256
        if not isinstance(given, str) or _DIGEST.fullmatch(given) is None:
            fix = "the SHA-256 of a token, 64 lower-case hexadecimal digits, and never the token itself; or nothing, for what this client presents"
            raise checks.refused("token_sha256", "(not shown)", fix)
        request = cluster_pb2.IdentifyRequest(server_token=self._known.server_token, token_sha256=token_sha256)

        def take(answer: cluster_pb2.IdentifyResponse) -> Identity:
            self._known.admit(answer.server_token)
            return Identity(answer.controlled, answer.principal, answer.page, answer.metrics)

        return Call(lambda stubs: stubs.cluster.Identify, request, take)


def decided_on(call: Call[Result], seen: Computation | None) -> Call[Result]:
    """Name in the request of a change the computation as the change was decided on, and return the call.

    The caller makes the call first, and reads the computation then: bad input is refused before anything is asked.
    """
    if seen is not None:
        call.request.incarnation = seen.incarnation
        if "input_version" in call.request.DESCRIPTOR.fields_by_name:
            call.request.input_version = seen.input_version
    return call


def _frontier(pair: Any) -> tuple[int, int]:
    try:
        share, time = pair
    except (TypeError, ValueError):
        raise checks.refused("frontiers", pair, "pairs of (share, event time)") from None
    return wire.ppm([share])[0], to_micros(time)


def _found(answer: topology_pb2.GetTopologyResponse, computation: str) -> topology_pb2.Computation:
    """Return a computation of the graph. Raises UnknownComputation."""
    for each in answer.computations:
        if each.name == computation:
            return each
    msg = f"there is no computation {computation!r}; register it first"
    raise errors.UnknownComputation(msg, metadata={"computation": computation})
