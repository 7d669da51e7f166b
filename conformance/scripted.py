"""A deployment of a few lines that a client under test connects to: it serves, fails where a scenario says, and checks every request."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import grpc

from conformance.program import PATIENCE, Broken
from lowwater.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    errors_pb2,
    topology_pb2,
    topology_pb2_grpc,
    types_pb2,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)

MIN: Final = -(2**63)
BEAT: Final = 0.5
IN_FLIGHT: Final = 64
PORTS: Final = range(10_000, 12_000)
"""Below those that systems give to connections: a server that is stopped must find its port free
again."""
DETAILS: Final = "grpc-status-details-bin"
TYPE: Final = "type.googleapis.com/google.rpc."


@dataclass
class Refusal:
    """The error that a scenario answers with, instead of doing the call or after it (``done``): an unknown outcome."""

    reason: str
    code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
    retry_after: float = 0.0
    metadata: dict[str, str] = field(default_factory=dict)
    done: bool = False

    def abort(self, context: Any) -> NoReturn:
        """End a call with this error. Without a reason the error is gRPC's own."""
        if self.reason:
            status = errors_pb2.RpcStatus(code=self.code.value[0], message="as the scenario wants it")
            info = errors_pb2.ErrorInfo(reason=self.reason, domain="lowwater", metadata=self.metadata)
            status.details.add(type_url=f"{TYPE}ErrorInfo", value=info.SerializeToString())
            if self.retry_after:
                retry = errors_pb2.RetryInfo()
                retry.retry_delay.FromNanoseconds(round(self.retry_after * 1e9))
                status.details.add(type_url=f"{TYPE}RetryInfo", value=retry.SerializeToString())
            context.set_trailing_metadata(((DETAILS, status.SerializeToString()),))
        context.abort(self.code, "as the scenario wants it")
        raise AssertionError


@dataclass
class Call:
    """A call that the client has made."""

    shard: Shard
    method: str
    request: Any
    at: float


@dataclass
class Computation:
    """A registered computation."""

    name: str
    shard: Shard
    epoch: int = 1
    incarnation: int = 1
    low: int = MIN


@dataclass
class Claim:
    """A granted claim."""

    name: str
    sequencer: int
    ranges: int
    request: bytes
    values: list[int]
    lost: set[int] = field(default_factory=set)
    ahead: int | None = None
    """Values above it are refused as too far ahead."""
    newest: int = 0
    """Reports of streams, or turns, up to this one are refused with OLD_STREAM."""
    staged: list[tuple[int, ...]] = field(default_factory=list)
    """The states that the client was told to report, in order; it may skip some."""
    reached: list[int] = field(default_factory=list)
    """The index in ``staged`` of the newest state that was reported of each handle."""


@dataclass(eq=False)
class ReportStream:
    """An open report stream."""

    shard: Shard
    sender: bytes
    number: int
    out: queue.Queue[Any] = field(default_factory=queue.Queue)
    newest: int = 0
    unacknowledged: int = 0
    """Reports that were not acknowledged."""
    named: set[int] = field(default_factory=set)
    """Claims that were reported on it."""
    moved: set[str] = field(default_factory=set)


@dataclass(eq=False)
class WatchStream:
    """An open watch stream."""

    shard: Shard
    names: list[str]
    out: queue.Queue[Any] = field(default_factory=queue.Queue)


class Deployment:
    """The state of a deployment, and the faults that its shards are to show."""

    def __init__(self, shards: int = 1) -> None:
        self.changed = threading.Condition()
        self.token = "5c1f"
        self.computations: dict[str, Computation] = {}
        self.claims: dict[int, Claim] = {}
        self.calls: list[Call] = []
        self.broken: list[str] = []
        """The client's violations of the protocol."""
        self.plans: dict[str, deque[Refusal]] = defaultdict(deque)
        """The ends of the next calls, by method. ``Report`` and ``Watch`` end as they open."""
        self.acknowledging = True
        self.reports: list[ReportStream] = []
        self.watches: list[WatchStream] = []
        self.opened: list[ReportStream] = []
        """All report streams that were let in, in order."""
        self.lies: dict[str, types_pb2.Redirect] = {}
        """A false redirect for each computation, which a shard answers until Locate is called."""
        self._granted: dict[bytes, Claim] = {}
        self._streams: dict[bytes, int] = {}
        self._answered = False
        self.shards = [Shard.create(self) for _ in range(shards)]

    def __enter__(self) -> Deployment:
        for shard in self.shards:
            shard.start()
        return self

    def __exit__(self, *_: object) -> None:
        for shard in self.shards:
            shard.stop()

    # -- for scenarios -----------------------------------------------------------------------------

    @property
    def streams(self) -> list[ReportStream | WatchStream]:
        """All open streams."""
        return [*self.reports, *self.watches]

    @property
    def address(self) -> str:
        """The address of the first shard."""
        return self.shards[0].address

    def until(self, condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
        """Wait for something that calls bring about. Raises Broken."""
        with self.changed:
            if not self.changed.wait_for(condition, within):
                raise Broken(f"{what} was expected, and did not come in {within:g} s")

    def calls_of(self, method: str) -> list[Call]:
        """The calls of a method so far."""
        return [call for call in self.calls if call.method == method]

    def only(self, method: str, times: int, why: str) -> None:
        """Check how often a method was called."""
        count = len(self.calls_of(method))
        if count != times:
            raise Broken(f"{method} was expected {times} times, {why}, but came {count} times")

    def move(self, name: str, shard: Shard) -> None:
        """Have another shard serve a computation."""
        with self.changed:
            computation = self.computations[name]
            computation.shard, computation.epoch = shard, computation.epoch + 1
            self.changed.notify_all()

    def end_streams(self, refusal: Refusal) -> None:
        """End what is open."""
        with self.changed:
            for stream in self.streams:
                stream.out.put(refusal)

    def publish(self, name: str, low: int, *, epoch: int = 0) -> None:
        """Send a value, which may be anything, to the watch streams."""
        with self.changed:
            computation = self.computations[name]
            computation.low = low
            for stream in self.watches:
                if name in stream.names or not stream.names:
                    stream.out.put(self._news([self._watermark(name, epoch)]))

    def fence(self, claim: Claim, *handles: int, tell: bool) -> None:
        """Take ranges of a claim away; all, if none are named."""
        with self.changed:
            claim.lost |= set(handles or range(claim.ranges))
            for stream in self.reports:
                if tell and claim.sequencer in stream.named:
                    notice = workers_pb2.Fenced(
                        computation=claim.name, sequencer=claim.sequencer, handles=handles, reason="a newer claim"
                    )
                    stream.out.put(workers_pb2.ReportResponse(fenced=notice))

    def acknowledge_all(self) -> None:
        """Acknowledge what was held back, and all that comes."""
        with self.changed:
            self.acknowledging = True
            for stream in self.reports:
                stream.unacknowledged = 0
                stream.out.put(workers_pb2.ReportResponse(ack=workers_pb2.ReportAck(number=stream.newest)))

    def staged(self, claim: Claim, values: list[int]) -> None:
        """Note a state that the client is about to be told to report."""
        with self.changed:
            claim.staged.append(tuple(values))

    # -- for the shards ----------------------------------------------------------------------------

    def take(self, shard: Shard, method: str, request: Any) -> Refusal | None:
        """Note a call; returns how it is to end."""
        with self.changed:
            self.calls.append(Call(shard, method, request, time.monotonic()))
            token = request.server_token
            if token != self.token and (token or self._answered):
                actual = f"the token {token!r}" if token else "no token"
                self.find(
                    f"{method} was expected to name the server token {self.token!r}, as the answers before did, but has {actual}"
                )
            self.changed.notify_all()
            return self.plans[method].popleft() if self.plans[method] else None

    def answering(self) -> None:
        """Note that the client is about to be told the token."""
        with self.changed:
            self._answered = True

    def find(self, what: str) -> None:
        """Note what the client did wrong."""
        if what not in self.broken:
            self.broken.append(what)

    def moved(self, shard: Shard, name: str) -> types_pb2.Redirect | None:
        """Return a redirect to a computation; None if it is at this shard."""
        if name in self.lies:
            return self.lies[name]
        computation = self.computations.get(name)
        if computation is None or computation.shard is shard:
            return None
        return types_pb2.Redirect(computation=name, address=computation.shard.address, epoch=computation.epoch)

    def register(self, shard: Shard, request: topology_pb2.RegisterRequest) -> topology_pb2.RegisterResponse:
        """Register a computation at the shard that is asked."""
        with self.changed:
            computation = self.computations.setdefault(request.name, Computation(request.name, shard))
            self.changed.notify_all()
            registered = topology_pb2.Computation(
                name=computation.name,
                inputs=request.inputs,
                heuristics_ppm=sorted(request.heuristics_ppm, reverse=True),
                key_hash=request.key_hash,
                max_skew_micros=request.max_skew_micros or 86_400_000_000,
                incarnation=computation.incarnation,
                history_step_micros=request.history_step_micros or 3_600_000_000,
                estimated=request.estimated,
            )
            return topology_pb2.RegisterResponse(server_token=self.token, computation=registered)

    def claim(self, request: workers_pb2.ClaimRequest) -> workers_pb2.ClaimResponse:
        """Grant a claim, or the one that a repeat names."""
        with self.changed:
            if len(request.request_id) != 16:
                self.find(f"Claim.request_id was expected to have 16 bytes, but has {len(request.request_id)}")
            spec = self.computations[request.computation]
            content = workers_pb2.ClaimRequest()
            content.CopyFrom(request)
            content.ClearField("server_token")
            body = content.SerializeToString(deterministic=True)
            claim = self._granted.get(request.request_id)
            if claim is not None and claim.request != body:
                self.find("a repeated Claim was expected to be as the first one with its request_id, but differs")
            if claim is None:
                ranges = len(request.bounds) - 1
                sequencer = (spec.epoch << 32) + len(self._granted) + 1
                claim = Claim(spec.name, sequencer, ranges, body, [spec.low] * ranges, reached=[-1] * ranges)
                self._granted[request.request_id] = self.claims[sequencer] = claim
            self.changed.notify_all()
            return workers_pb2.ClaimResponse(
                server_token=self.token,
                sequencer=claim.sequencer,
                incarnation=spec.incarnation,
                epoch=spec.epoch,
                watermarks_micros=claim.values,
                reference_micros=MIN,
            )

    def open(self, shard: Shard, request: workers_pb2.ReportRequest) -> ReportStream | Refusal:
        """Let a report stream in."""
        if request.WhichOneof("kind") != "open":
            with self.changed:
                self.find("the first message of a report stream was expected to be open")
            return Refusal("INVALID_ARGUMENT", grpc.StatusCode.INVALID_ARGUMENT)
        opening = request.open
        refusal = self.take(shard, "Report", opening)
        with self.changed:
            if len(opening.sender) != 16:
                self.find(f"ReportOpen.sender was expected to have 16 bytes, but has {len(opening.sender)}")
            newest = self._streams.get(opening.sender, 0)
            if opening.stream <= newest:
                self.find(
                    f"ReportOpen.stream was expected to be above {newest}, the newest of this sender on any shard, but is {opening.stream}"
                )
            self._streams[opening.sender] = max(newest, opening.stream)
            if refusal is not None:
                return refusal
            stream = ReportStream(shard, opening.sender, opening.stream)
            self.reports.append(stream)
            self.opened.append(stream)
            self.changed.notify_all()
            return stream

    def report(self, stream: ReportStream, request: workers_pb2.ReportRequest) -> None:
        """Take a report, and answer it."""
        with self.changed:
            report = request.report
            if request.WhichOneof("kind") != "report":
                self.find("only the first message of a report stream was expected to be open")
            if report.number <= stream.newest:
                self.find(f"report {stream.newest + 1} was expected, but {report.number} came again")
                return
            if report.number != stream.newest + 1:
                self.find(f"report {stream.newest + 1} was expected, but {report.number} came: a gap")
            stream.newest = report.number
            keys = [(group.computation, group.sequencer) for group in report.groups]
            if len(set(keys)) < len(keys):
                self.find("a report was expected to name each claim once")
            ack = workers_pb2.ReportAck(number=report.number)
            for group in report.groups:
                self._group(stream, group, ack)
            plan = self.plans["report"].popleft() if self.plans["report"] else None
            stream.unacknowledged += 1
            if stream.unacknowledged > IN_FLIGHT:
                self.find(f"at most {IN_FLIGHT} reports were expected before an acknowledgement")
            self.changed.notify_all()
            if plan is not None:
                stream.out.put(plan)
            elif self.acknowledging:
                stream.unacknowledged = 0
                stream.out.put(workers_pb2.ReportResponse(ack=ack))

    def _group(self, stream: ReportStream, group: workers_pb2.GroupReport, ack: workers_pb2.ReportAck) -> None:
        claim = self.claims.get(group.sequencer)
        if claim is None or claim.name != group.computation:
            self.find(
                f"a report was expected to name a granted claim, but names {group.sequencer} of {group.computation!r}"
            )
            return
        refused = workers_pb2.RefusedRanges(
            computation=claim.name, sequencer=claim.sequencer, message="as the scenario wants it"
        )
        redirect = self.moved(stream.shard, claim.name)
        if redirect is not None or claim.name in stream.moved:
            stream.moved.add(claim.name)
            spec = self.computations[claim.name]
            here = types_pb2.Redirect(computation=claim.name, address=spec.shard.address, epoch=spec.epoch)
            ack.refused.append(refused)
            ack.refused[-1].reason = "MOVED"
            ack.refused[-1].redirect.CopyFrom(redirect or here)
            return
        if len(claim.lost) == claim.ranges:
            ack.refused.append(refused)
            ack.refused[-1].reason = "STALE_SEQUENCER"
            return
        if (group.turn or stream.number) <= claim.newest:
            ack.refused.append(refused)
            ack.refused[-1].reason, ack.refused[-1].newest = "OLD_STREAM", claim.newest
            return
        handles = list(group.handles) or list(range(claim.ranges))
        if claim.sequencer not in stream.named and not set(range(claim.ranges)) - claim.lost <= set(handles):
            self.find(
                f"the first report of a claim on a stream was expected to have all {claim.ranges} ranges but the lost ones, but has {handles}"
            )
        stream.named.add(claim.sequencer)
        if len(group.watermarks_micros) not in (1, len(handles)):
            self.find(
                f"one value, or {len(handles)} were expected for {len(handles)} ranges, but {len(group.watermarks_micros)} came"
            )
            return
        values = list(group.watermarks_micros) * (len(handles) if len(group.watermarks_micros) == 1 else 1)
        wrong = []
        stale = claim.lost & set(handles)
        if stale:
            ack.refused.append(refused)
            ack.refused[-1].reason = "STALE_SEQUENCER"
            ack.refused[-1].handles.extend(sorted(stale))
        for handle, value in zip(handles, values, strict=True):
            self._check_value(claim, handle, value)
            if claim.ahead is not None and value > claim.ahead:
                wrong.append(handle)
            elif handle not in stale:
                claim.values[handle] = value
        if wrong:
            ack.refused.append(refused)
            ack.refused[-1].reason = "TOO_FAR_AHEAD"
            ack.refused[-1].handles.extend(wrong)
        spec = self.computations[claim.name]
        spec.low = max(spec.low, min(claim.values))

    def _check_value(self, claim: Claim, handle: int, value: int) -> None:
        """A report has a state that the client was told, and none that is older than one it has reported."""
        since = claim.reached[handle]
        for index in range(max(0, since), len(claim.staged)):
            if claim.staged[index][handle] == value:
                claim.reached[handle] = index
                return
        if value != MIN or since >= 0:
            states = [state[handle] for state in claim.staged[max(0, since) :]]
            self.find(
                f"of the range {handle} one of {states} was expected, the newest state or one since the last report, but {value} came"
            )

    def where(self, names: list[str]) -> list[types_pb2.Redirect]:
        """Return redirects to some computations."""
        redirects = []
        for name in names:
            spec = self.computations.get(name)
            self.lies.pop(name, None)
            redirects.append(
                types_pb2.Redirect(
                    computation=name, address=spec.shard.address if spec else "", epoch=spec.epoch if spec else 0
                )
            )
        return redirects

    def read(self, shard: Shard, names: list[str]) -> tuple[list[types_pb2.Watermark], list[types_pb2.Redirect]]:
        """Return the published watermarks of a shard's computations, and redirects to the others."""
        with self.changed:
            selected = names or sorted(self.computations)
            redirects = [redirect for name in selected if (redirect := self.moved(shard, name)) is not None]
            away = {redirect.computation for redirect in redirects}
            return [self._watermark(name) for name in selected if name not in away], redirects

    def watch(self, shard: Shard, names: list[str]) -> WatchStream:
        """Let a watch stream in."""
        watermarks, redirects = self.read(shard, names)
        with self.changed:
            stream = WatchStream(shard, names)
            stream.out.put(self._news(watermarks, redirects))
            self.watches.append(stream)
            self.changed.notify_all()
            return stream

    def _watermark(self, name: str, epoch: int = 0) -> types_pb2.Watermark:
        computation = self.computations.get(name)
        if computation is None:
            return types_pb2.Watermark(computation=name, low_micros=MIN)
        return types_pb2.Watermark(
            computation=name,
            registered=True,
            incarnation=computation.incarnation,
            epoch=epoch or computation.epoch,
            low_micros=computation.low,
            ranges=1,
        )

    def _news(self, watermarks: list[types_pb2.Watermark], redirects: list[types_pb2.Redirect] | None = None) -> Any:
        now = time.time_ns() // 1000
        return watermarks_pb2.WatchResponse(
            server_token=self.token, watermarks=watermarks, redirects=redirects, time_micros=now, clock_micros=now
        )

    def beat(self) -> Any:
        """A message of a watch stream that has nothing to tell."""
        return self._news([])


class Shard(
    cluster_pb2_grpc.ClusterServiceServicer,
    topology_pb2_grpc.TopologyServiceServicer,
    watermarks_pb2_grpc.WatermarkServiceServicer,
    workers_pb2_grpc.WorkerServiceServicer,
):
    """One authority of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.address = ""
        self._server: Any = None

    @classmethod
    def create(cls, deployment: Deployment) -> Shard:
        """Make one; the methods that no scenario calls are not there."""
        kind: Any = cls
        one: Shard = kind(deployment)
        return one

    def start(self) -> None:
        """Serve; again at the same address."""
        if self.address:
            self._serve(self.address)
            return
        for port in random.sample(PORTS, len(PORTS)):
            with suppress(RuntimeError):  # somebody has it
                self._serve(f"127.0.0.1:{port}")
                return
        raise OSError(f"no port of {PORTS} is free")

    def _serve(self, address: str) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(64),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self, self._server)
        topology_pb2_grpc.add_TopologyServiceServicer_to_server(self, self._server)
        watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server(self, self._server)
        workers_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(address)
        self.address = address
        self._server.start()

    def stop(self) -> None:
        """Serve no more."""
        for stream in self.deployment.streams:
            if stream.shard is self:
                stream.out.put(None)
        self._server.stop(None).wait()

    def _unary(self, method: str, request: Any, context: Any, work: Callable[[], Any], name: str = "") -> Any:
        plan = self.deployment.take(self, method, request)
        if plan is not None and not plan.done:
            plan.abort(context)
        with self.deployment.changed:
            redirect = self.deployment.moved(self, name) if name else None
            is_registered = not name or name in self.deployment.computations
        if redirect is not None:
            metadata = {"computation": name, "address": redirect.address, "epoch": str(redirect.epoch)}
            Refusal("MOVED", metadata=metadata).abort(context)
        if not is_registered:
            Refusal("UNKNOWN_COMPUTATION", grpc.StatusCode.NOT_FOUND, metadata={"computation": name}).abort(context)
        answer = work()
        if plan is not None:
            plan.abort(context)
        self.deployment.answering()
        return answer

    # -- the methods -------------------------------------------------------------------------------

    def Register(self, request: Any, context: Any) -> Any:
        return self._unary("Register", request, context, lambda: self.deployment.register(self, request))

    def GetTopology(self, request: Any, context: Any) -> Any:
        computations = [
            topology_pb2.Computation(name=name, incarnation=1) for name in sorted(self.deployment.computations)
        ]
        answer = topology_pb2.GetTopologyResponse(
            server_token=self.deployment.token, version=1, computations=computations
        )
        return self._unary("GetTopology", request, context, lambda: answer)

    def Claim(self, request: Any, context: Any) -> Any:
        return self._unary("Claim", request, context, lambda: self.deployment.claim(request), request.computation)

    def Release(self, request: Any, context: Any) -> Any:
        return self._unary("Release", request, context, workers_pb2.ReleaseResponse, request.computation)

    def Locate(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            with self.deployment.changed:
                redirects = self.deployment.where(list(request.computations))
            return cluster_pb2.LocateResponse(server_token=self.deployment.token, redirects=redirects)

        return self._unary("Locate", request, context, work)

    def GetWatermarks(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            watermarks, redirects = self.deployment.read(self, list(request.computations))
            return watermarks_pb2.GetWatermarksResponse(
                server_token=self.deployment.token,
                watermarks=watermarks,
                redirects=redirects,
                time_micros=time.time_ns() // 1000,
            )

        return self._unary("GetWatermarks", request, context, work)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        plan = self.deployment.take(self, "Watch", request)
        if plan is not None:
            plan.abort(context)
        stream = self.deployment.watch(self, list(request.computations))
        self.deployment.answering()
        context.add_callback(lambda: stream.out.put(None))
        try:
            while True:
                try:
                    message = stream.out.get(timeout=BEAT)
                except queue.Empty:
                    message = self.deployment.beat()
                if message is None:
                    return
                if isinstance(message, Refusal):
                    message.abort(context)
                yield message
        finally:
            with self.deployment.changed:
                self.deployment.watches.remove(stream)

    def Report(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        first = next(request_iterator, None)
        if first is None:
            return
        stream = self.deployment.open(self, first)
        if isinstance(stream, Refusal):
            stream.abort(context)
        self.deployment.answering()
        context.add_callback(lambda: stream.out.put(None))
        reader = threading.Thread(target=self._read, args=(stream, request_iterator), daemon=True)
        reader.start()
        try:
            yield workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token=self.deployment.token))
            while (message := stream.out.get()) is not None:
                if isinstance(message, Refusal):
                    message.abort(context)
                yield message
        finally:
            with self.deployment.changed:
                self.deployment.reports.remove(stream)

    def _read(self, stream: ReportStream, requests: Any) -> None:
        try:
            for request in requests:
                self.deployment.report(stream, request)
        except Exception:  # noqa: BLE001 - whatever gRPC makes of a stream that has ended
            pass
        finally:
            stream.out.put(None)
