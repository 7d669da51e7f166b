"""Checks of an authority, by calls that any client may make.

Each check works on computations of its own, and drops them.
"""

from __future__ import annotations

import os
import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from conformance.program import Broken
from lowwater.v1 import (
    errors_pb2,
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)

MIN: Final = -(2**63)
MAX: Final = 2**63 - 1
HOUR: Final = 3_600_000_000
FAR: Final = 9_999_999_999_000_000
"""A time in the year 2286."""
TIMEOUT: Final = 30.0
LATE: Final = 5.0
"""Seconds after which a beat is missing: one comes each second."""
DETAILS: Final = "grpc-status-details-bin"


@dataclass(frozen=True)
class Check:
    """A check of an authority."""

    name: str
    run: Callable[[Peer], None]

    @property
    def expected(self) -> str:
        """The rule that an authority has to keep."""
        return (self.run.__doc__ or "").splitlines()[0]


CHECKS: Final[list[Check]] = []


def check(run: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """Add a check."""
    CHECKS.append(Check(run.__name__.replace("_", "-"), run))
    return run


def expect(condition: object, what: str) -> None:
    """Check something. Raises Broken."""
    if not condition:
        raise Broken(what)


class Stream:
    """A report stream."""

    def __init__(self, peer: Peer, sender: bytes, number: int) -> None:
        self._sent: queue.Queue[workers_pb2.ReportRequest | None] = queue.Queue()
        opening = workers_pb2.ReportOpen(server_token=peer.token, sender=sender, stream=number)
        self._sent.put(workers_pb2.ReportRequest(open=opening))
        self._down = peer.workers.Report(iter(self._sent.get, None), timeout=TIMEOUT)
        self._number = 0
        peer.streams.append(self)

    def opened(self) -> Stream:
        """Wait until the authority lets the stream in."""
        expect(self.next().HasField("opened"), "a report stream was expected to be opened")
        return self

    def send(self, *groups: workers_pb2.GroupReport, number: int = 0) -> int:
        """Send the next report, or one of another number."""
        self._number = number or self._number + 1
        self._sent.put(workers_pb2.ReportRequest(report=workers_pb2.Report(number=self._number, groups=groups)))
        return self._number

    def report(self, *groups: workers_pb2.GroupReport) -> list[workers_pb2.RefusedRanges]:
        """Send the next report; returns what was refused of it."""
        number = self.send(*groups)
        refused: list[workers_pb2.RefusedRanges] = []
        while True:
            message = self.next()
            refused += message.ack.refused
            if message.HasField("ack") and message.ack.number >= number:
                expect(
                    message.ack.number == number,
                    f"an acknowledgement of {number} was expected, but {message.ack.number} came",
                )
                return refused

    def next(self) -> workers_pb2.ReportResponse:
        """Wait for a message. Raises Broken when the stream ends."""
        try:
            return next(self._down)
        except grpc.RpcError as error:
            raise Broken(f"a message of the report stream was expected, but it ended: {why(error)}") from None

    def ends(self, reason: str) -> None:
        """Wait for the end, for a reason: nothing more is taken."""

        def to_the_end() -> None:
            for message in self._down:
                kind = message.WhichOneof("kind")
                expect(
                    kind not in ("opened", "ack"),
                    f"the end of the stream was expected, for {reason}, but it goes on: {kind}",
                )

        expect_refused(to_the_end, reason)

    def close(self) -> None:
        """End the stream."""
        self._sent.put(None)
        self._down.cancel()


class Peer:
    """Calls to an authority, by hand."""

    def __init__(self, channel: grpc.Channel, prefix: str = "") -> None:
        self.topology = topology_pb2_grpc.TopologyServiceStub(channel)
        self.workers = workers_pb2_grpc.WorkerServiceStub(channel)
        self.watermarks = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        self.streams: list[Stream] = []
        self.token = ""
        self._prefix = prefix or f"conformance/{secrets.token_hex(6)}"
        self._names: list[str] = []

    def name(self, suffix: str = "a") -> str:
        """A computation of this check."""
        return f"{self._prefix}-{suffix}"

    def register(self, suffix: str = "a", *inputs: str, **fields: Any) -> topology_pb2.Computation:
        """Register a computation."""
        name = self.name(suffix)
        if name not in self._names:
            self._names.append(name)
        request = topology_pb2.RegisterRequest(name=name, inputs=[self.name(suffix) for suffix in inputs], **fields)
        answer = self.topology.Register(request, timeout=TIMEOUT)
        self.token = answer.server_token
        return answer.computation

    def claim(
        self, *bounds: bytes, suffix: str = "a", request_id: bytes = b"", **fields: Any
    ) -> workers_pb2.ClaimResponse:
        """Claim ranges; all keys as one range if no bounds are given."""
        request = workers_pb2.ClaimRequest(
            computation=self.name(suffix),
            bounds=bounds or (b"", b""),
            worker="conformance",
            request_id=request_id or os.urandom(16),
            **fields,
        )
        answer: workers_pb2.ClaimResponse = self.workers.Claim(request, timeout=TIMEOUT)
        return answer

    def open(self, sender: bytes = b"", number: int = 1) -> Stream:
        """Open a report stream."""
        return Stream(self, sender or os.urandom(16), number)

    def state(
        self, claim: workers_pb2.ClaimResponse, *micros: int, suffix: str = "a", **fields: Any
    ) -> workers_pb2.GroupReport:
        """Build the report of a claim."""
        return workers_pb2.GroupReport(
            computation=self.name(suffix), sequencer=claim.sequencer, watermarks_micros=micros, **fields
        )

    def get(self, suffix: str = "a") -> Any:
        """Return the published watermark of a computation."""
        request = watermarks_pb2.GetWatermarksRequest(computations=[self.name(suffix)])
        [found] = self.watermarks.GetWatermarks(request, timeout=TIMEOUT).watermarks
        return found

    def low(self, expected: int, suffix: str = "a") -> None:
        """Check the low watermark."""
        low = self.get(suffix).low_micros
        expect(low == expected, f"the low watermark {expected} was expected, but is {low}")

    def ranges(self, suffix: str = "a") -> list[Any]:
        """The key ranges, by their keys."""
        request = watermarks_pb2.ListRangesRequest(computation=self.name(suffix), page_size=1000)
        return sorted(self.watermarks.ListRanges(request, timeout=TIMEOUT).ranges, key=lambda r: bytes(r.start))

    def watch(self, *suffixes: str) -> Iterator[Any]:
        """Follow computations."""
        names = [self.name(suffix) for suffix in suffixes or ("a",)]
        answers: Iterator[Any] = self.watermarks.Watch(watermarks_pb2.WatchRequest(computations=names), timeout=LATE)
        return answers

    def clean_up(self) -> None:
        """End the streams and drop the computations, readers first."""
        for stream in self.streams:
            stream.close()
        for name in reversed(self._names):
            try:
                self.topology.Drop(topology_pb2.DropRequest(computation=name, force=True), timeout=TIMEOUT)
            except grpc.RpcError:
                continue  # the check may have left it as nothing can be dropped


def info(error: Any) -> errors_pb2.ErrorInfo:
    """The ErrorInfo of a refusal; an empty one without."""
    details = errors_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS:
            for detail in errors_pb2.RpcStatus.FromString(value).details:
                if detail.type_url == "type.googleapis.com/google.rpc.ErrorInfo":
                    details.ParseFromString(detail.value)
    return details


def why(error: Any) -> str:
    """Return the status, the reason and the message of a refusal."""
    return f"{error.code().name} {info(error).reason} {error.details()}"


def expect_refused(call: Callable[[], object], reason: str, field: str = "") -> None:
    """Check that a call is refused for a reason, and, where one is given, for a field."""
    try:
        answer = call()
    except grpc.RpcError as error:
        refusal = info(error)
        expect(refusal.reason == reason, f"{reason} was expected, but {why(error)} came")
        expect(refusal.domain == "lowwater", f"the domain lowwater was expected, but is {refusal.domain!r}")
        named = refusal.metadata.get("field", "")
        expect(not field or named == field, f"the refusal was expected to name the field {field}, but names {named!r}")
        expect(not field or refusal.metadata.get("fix"), "the refusal was expected to name a fix")
        return
    raise Broken(f"{reason} was expected, but it was answered: {str(answer)[:200]}")


def refusals(refused: list[workers_pb2.RefusedRanges], *expected: tuple[str, list[int]]) -> None:
    """Check which handles of a report were refused, and for which reasons."""
    actual = sorted((entry.reason, list(entry.handles)) for entry in refused)
    expect(actual == sorted(expected), f"{sorted(expected)} were expected to be refused, but {actual} were")


# -- the graph -------------------------------------------------------------------------------------


@check
def register(peer: Peer) -> None:
    """A registration may be repeated; another one under the name, and a circle, are refused."""
    first = peer.register("a", heuristics_ppm=[990_000])
    expect(first.incarnation >= 1, "an incarnation from 1 was expected")
    expect(
        peer.register("a", heuristics_ppm=[990_000]) == first, "a repeated registration was expected to change nothing"
    )
    expect_refused(lambda: peer.register("a", heuristics_ppm=[500_000]), "REGISTRATION_CONFLICT")
    peer.register("b", "c")
    expect_refused(lambda: peer.register("c", "b"), "CYCLE")
    request = topology_pb2.RegisterRequest(name="no spaces")
    expect_refused(lambda: peer.topology.Register(request, timeout=TIMEOUT), "INVALID_ARGUMENT", "name")


@check
def another_deployment(peer: Peer) -> None:
    """A call that means another deployment is refused, a stream too; one that names none, or this one, is not."""
    peer.register()
    expect(peer.token, "a server token was expected in the answer")
    name = peer.name()
    expect_refused(lambda: peer.claim(server_token="another"), "SERVER_TOKEN_MISMATCH")
    request = watermarks_pb2.GetWatermarksRequest(server_token="another", computations=[name])
    expect_refused(lambda: peer.watermarks.GetWatermarks(request, timeout=TIMEOUT), "SERVER_TOKEN_MISMATCH")
    watched = watermarks_pb2.WatchRequest(server_token="another", computations=[name])
    expect_refused(lambda: next(peer.watermarks.Watch(watched, timeout=TIMEOUT)), "SERVER_TOKEN_MISMATCH")
    peer.claim(server_token=peer.token)


@check
def unknown(peer: Peer) -> None:
    """A name that is not registered is at MIN, may be followed, and cannot be claimed."""
    peer.register()
    view = peer.get("nobody")
    expect(not view.registered and view.low_micros == MIN, f"an unregistered name at MIN was expected, but {view} came")
    expect_refused(lambda: peer.claim(suffix="nobody"), "UNKNOWN_COMPUTATION")
    watermarks = next(peer.watch("nobody")).watermarks
    expect(
        [watermark.registered for watermark in watermarks] == [False],
        "the first message was expected to tell of a name that is not registered",
    )


# -- claims ----------------------------------------------------------------------------------------


@check
def repeated_claim(peer: Peer) -> None:
    """A claim that is repeated gets the first answer; another one under its id, and a superseded one, are refused."""
    peer.register()
    one = os.urandom(16)
    first = peer.claim(request_id=one)
    expect(
        peer.claim(request_id=one).sequencer == first.sequencer,
        "a repeated claim was expected to get the same sequencer",
    )
    expect_refused(lambda: peer.claim(b"", b"m", request_id=one), "INVALID_ARGUMENT", "request_id")
    second = peer.claim()
    expect(second.sequencer > first.sequencer, "a newer claim was expected to get a greater sequencer")
    expect_refused(lambda: peer.claim(request_id=one), "STALE_SEQUENCER")
    expect_refused(lambda: peer.claim(request_id=b"short"), "INVALID_ARGUMENT", "request_id")


@check
def bounds(peer: Peer) -> None:
    """Bounds ascend, at least two of them; keys have at most 1,024 bytes; bound_micros are none, one, or one a range."""
    peer.register()
    expect_refused(lambda: peer.claim(b""), "INVALID_ARGUMENT", "bounds")
    expect_refused(lambda: peer.claim(b"x", b"b"), "INVALID_ARGUMENT", "bounds[1]")
    expect_refused(lambda: peer.claim(b"", b"", b"y"), "INVALID_ARGUMENT", "bounds[1]")
    expect_refused(lambda: peer.claim(b"x" * 1025, b""), "INVALID_ARGUMENT", "bounds")
    expect_refused(lambda: peer.claim(bound_micros=[1, 2]), "INVALID_ARGUMENT", "bound_micros")
    expect_refused(lambda: peer.claim(bound_micros=[FAR]), "TOO_FAR_AHEAD")


@check
def order(peer: Peer) -> None:
    """A claim of an older generation or ordinal is refused; an equal one counts by its arrival."""
    peer.register()
    peer.claim(generation=3, ordinal=2)
    expect_refused(lambda: peer.claim(generation=2, ordinal=9), "OLDER_CLAIM")
    expect_refused(lambda: peer.claim(generation=3, ordinal=1), "OLDER_CLAIM")
    expect_refused(peer.claim, "OLDER_CLAIM")
    peer.claim(generation=3, ordinal=2)


@check
def identity(peer: Peer) -> None:
    """The first claim binds the identity; adopt by another one begins a new incarnation, at MIN."""
    peer.register()
    claim = peer.claim(identity="one")
    peer.open().opened().report(peer.state(claim, HOUR))
    expect_refused(lambda: peer.claim(identity="two"), "IDENTITY_MISMATCH")
    adopted = peer.claim(identity="two", adopt=True)
    expect(adopted.incarnation == claim.incarnation + 1, "adopt was expected to begin another incarnation")
    peer.low(MIN)


@check
def cut(peer: Peer) -> None:
    """A claim takes what it touches: what it cuts is lost whole, the rest holds unowned, and the loser is told and refused."""
    peer.register()
    older = peer.claim(b"", b"m", b"")
    stream = peer.open().opened()
    stream.report(peer.state(older, HOUR, 2 * HOUR))
    newer = peer.claim(b"c", b"d")
    expect(
        list(newer.watermarks_micros) == [HOUR],
        f"the new claim was expected to begin at {HOUR}, but begins at {newer.watermarks_micros}",
    )
    fenced = stream.next().fenced
    notice = (fenced.sequencer, list(fenced.handles))
    expect(
        notice == (older.sequencer, [0]),
        f"a notice of the lost range 0 of {older.sequencer} was expected, but {notice} came",
    )
    refusals(stream.report(peer.state(older, 3 * HOUR, 4 * HOUR)), ("STALE_SEQUENCER", [0]))
    views = [(bytes(r.start), bytes(r.end), r.watermark_micros // HOUR, r.state) for r in peer.ranges()]
    expected = [(b"", b"c", 1, 3), (b"c", b"d", 1, 2), (b"d", b"m", 1, 3), (b"m", b"", 4, 2)]
    expect(views == expected, f"the ranges {expected} were expected, but are {views}")
    peer.low(HOUR)


@check
def release(peer: Peer) -> None:
    """A released range holds its value; its claim may report no more, and is released once."""
    peer.register()
    claim = peer.claim()
    stream = peer.open().opened()
    stream.report(peer.state(claim, HOUR))
    request = workers_pb2.ReleaseRequest(computation=peer.name(), sequencer=claim.sequencer)
    peer.workers.Release(request, timeout=TIMEOUT)
    expect_refused(lambda: peer.workers.Release(request, timeout=TIMEOUT), "STALE_SEQUENCER")
    refusals(stream.report(peer.state(claim, 2 * HOUR)), ("STALE_SEQUENCER", []))
    peer.low(HOUR)
    expect(
        list(peer.claim(bound_micros=[HOUR // 2]).watermarks_micros) == [HOUR // 2],
        "a claim was expected to begin at its lower bound",
    )
    peer.low(HOUR)


# -- reports ---------------------------------------------------------------------------------------


@check
def unknown_holds(peer: Peer) -> None:
    """A computation is unknown until all of its key space was claimed and reported."""
    peer.register()
    low = peer.claim(b"", b"m")
    stream = peer.open().opened()
    refusals(stream.report(peer.state(low, HOUR)))
    peer.low(MIN)
    high = peer.claim(b"m", b"")
    peer.low(MIN)
    refusals(stream.report(peer.state(high, 2 * HOUR)))
    peer.low(HOUR)


@check
def never_back(peer: Peer) -> None:
    """An owner may lower its range; what is published does not go back."""
    peer.register()
    claim = peer.claim(b"", b"m", b"")
    stream = peer.open().opened()
    stream.report(peer.state(claim, 2 * HOUR, 3 * HOUR))
    refusals(stream.report(peer.state(claim, HOUR, handles=[0])))
    peer.low(2 * HOUR)
    expect(peer.ranges()[0].watermark_micros == HOUR, "the range was expected to be lowered")
    stream.report(peer.state(claim, 5 * HOUR, handles=[0]))
    peer.low(3 * HOUR)


@check
def repeated_report(peer: Peer) -> None:
    """A report number that was seen is passed over, whatever it says."""
    peer.register()
    claim = peer.claim()
    stream = peer.open().opened()
    stream.report(peer.state(claim, 2 * HOUR))
    stream.send(peer.state(claim, 9 * HOUR), number=1)
    refusals(stream.report(peer.state(claim, 3 * HOUR)))
    peer.low(3 * HOUR)


@check
def gap(peer: Peer) -> None:
    """A gap in the numbers ends the stream, and what is behind it does not count; so do the number 0 and a claim that is named twice."""
    peer.register()
    claim = peer.claim()
    sender = os.urandom(16)
    stream = peer.open(sender).opened()
    stream.report(peer.state(claim, HOUR))
    stream.send(peer.state(claim, 9 * HOUR), number=3)
    stream.ends("INVALID_ARGUMENT")
    peer.low(HOUR)
    stream = peer.open(sender, 2).opened()
    stream.send(peer.state(claim, 9 * HOUR), peer.state(claim, 8 * HOUR))
    stream.ends("INVALID_ARGUMENT")
    peer.low(HOUR)


@check
def streams(peer: Peer) -> None:
    """A sender's streams count up: one that is not newer is refused, a newer one ends the older."""
    peer.register()
    claim = peer.claim()
    sender = os.urandom(16)
    older = peer.open(sender, 5).opened()
    peer.open(sender, 4).ends("OLD_STREAM")
    peer.open(sender, 5).ends("OLD_STREAM")
    newer = peer.open(sender, 6).opened()
    older.ends("OLD_STREAM")
    refusals(newer.report(peer.state(claim, HOUR)))
    peer.open(b"short").ends("INVALID_ARGUMENT")
    peer.open(os.urandom(16), 0).ends("INVALID_ARGUMENT")


@check
def in_part(peer: Peer) -> None:
    """A wrong value is refused for its range alone; the rest of the report counts, and the stream goes on."""
    peer.register("a")
    peer.register("b")
    claim, beside = peer.claim(b"", b"m", b""), peer.claim(suffix="b")
    stream = peer.open().opened()
    refusals(stream.report(peer.state(claim, HOUR, FAR), peer.state(beside, HOUR, suffix="b")), ("TOO_FAR_AHEAD", [1]))
    peer.low(HOUR, "b")
    refusals(stream.report(peer.state(claim, HOUR, MAX)), ("FINISH_REQUIRED", [1]))
    refusals(stream.report(peer.state(claim, 1, 2, 3)), ("INVALID_ARGUMENT", []))
    refusals(stream.report(peer.state(claim, 1, handles=[7])), ("INVALID_ARGUMENT", [7]))
    refusals(stream.report(peer.state(claim, HOUR, suffix="nobody")), ("UNKNOWN_COMPUTATION", []))
    peer.low(MIN)
    refusals(stream.report(peer.state(claim, 2 * HOUR)))
    peer.low(2 * HOUR)


@check
def finish(peer: Peer) -> None:
    """MAX with finish ends a computation; its owner may take that back of a range, and what is published stays."""
    peer.register()
    claim = peer.claim()
    stream = peer.open().opened()
    refusals(stream.report(peer.state(claim, MAX, finish=True)))
    peer.low(MAX)
    refusals(stream.report(peer.state(claim, HOUR)))
    expect(peer.ranges()[0].watermark_micros == HOUR, "the range was expected to stand where its owner put it")
    peer.low(MAX)


@check
def folds(peer: Peer) -> None:
    """A report names the inputs that it folded: another version is refused, another incarnation counts as unknown, and so does an unregistered input."""
    peer.register("a")
    peer.register("b", "a", "c")
    claim = peer.claim(suffix="b")
    inputs = ([name.removeprefix(peer.name("")) for name in claim.inputs], list(claim.input_incarnations))
    expect(inputs == (["a", "c"], [1, 0]), f"the inputs a and c were expected, one registered, but {inputs} came")
    stream = peer.open().opened()
    version = claim.input_version

    def fold(micros: int, version: int, *incarnations: int) -> workers_pb2.GroupReport:
        return peer.state(claim, micros, suffix="b", input_version=version, input_incarnations=incarnations)

    refusals(stream.report(fold(HOUR, version + 1, 1, 0)), ("INPUT_VERSION", []))
    refusals(stream.report(fold(HOUR, version, 2, 0)), ("INCARNATION_CHANGED", []))
    refusals(stream.report(fold(HOUR, version, 1, 0)), ("INVALID_ARGUMENT", []))
    refusals(stream.report(fold(MIN, version, 1, 0)))
    peer.low(MIN, "b")
    peer.register("c")
    refusals(stream.report(fold(HOUR, version, 1, 1)))
    peer.low(HOUR, "b")


# -- reads -----------------------------------------------------------------------------------------


@check
def watch(peer: Peer) -> None:
    """A watch tells where all stand at once, then what changes, and beats when nothing does."""
    peer.register()
    claim = peer.claim()
    stream = peer.open().opened()
    stream.report(peer.state(claim, HOUR))
    watching = peer.watch()
    try:
        first = next(watching)
        lows = [watermark.low_micros for watermark in first.watermarks]
        expect(lows == [HOUR], f"the first message was expected to have {[HOUR]}, but has {lows}")
        expect(first.server_token == peer.token, "the messages of a watch were expected to name the deployment")
        stream.report(peer.state(claim, 2 * HOUR))
        changed = next(message for message in watching if message.watermarks)
        expect(changed.watermarks[0].low_micros == 2 * HOUR, "the change was expected")
        beat = next(watching)
        expect(not beat.watermarks, f"a beat was expected when nothing changes, but {beat} came")
    except grpc.RpcError as error:
        raise Broken(f"news and beats were expected within {LATE:g} s, but the watch ended: {why(error)}") from None


@check
def complete(peer: Peer) -> None:
    """Times below the low watermark are complete; of others the ranges are told that hold them, the furthest behind first."""
    peer.register()
    claim = peer.claim(b"", b"g", b"m", b"")
    peer.open().opened().report(peer.state(claim, 3 * HOUR, HOUR, 2 * HOUR))

    def ask(until: int) -> Any:
        request = watermarks_pb2.CheckCompleteRequest(computation=peer.name(), until_micros=until)
        return peer.watermarks.CheckComplete(request, timeout=TIMEOUT)

    expect(ask(HOUR).complete, "what ends at the low watermark was expected to be complete")
    first = ask(HOUR + 1)
    expect(not first.complete and first.holding == 1, f"one range was expected to hold, but {first} came")
    holders = [bytes(holder.start) for holder in ask(3 * HOUR).holders]
    expect(holders == [b"g", b"m"], f"the holders g and m were expected, in this order, but {holders} came")


@check
def heuristic(peer: Peer) -> None:
    """The heuristic watermark of a share is the greatest time that has so much of the mass at or above it, and no more than the greatest frontier."""
    peer.register("a", heuristics_ppm=[990_000, 500_000])
    claim = peer.claim()
    stream = peer.open().opened()
    frontiers = [{"share_ppm": share, "micros": 5 * HOUR} for share in (990_000, 500_000)]

    def estimates(counts: list[int], recent: int) -> dict[int, int]:
        pending = {"starts_micros": [HOUR, 2 * HOUR, 7 * HOUR], "counts": counts}
        mass = workers_pb2.Mass(pending=pending, recent=recent, frontiers=frontiers)  # type: ignore[arg-type]
        refusals(stream.report(peer.state(claim, HOUR, mass=mass)))
        return {estimate.share_ppm: estimate.micros // HOUR for estimate in peer.get().heuristics}

    for counts, recent, expected in (
        ([2, 97, 0], 1, {990_000: 1, 500_000: 2}),
        ([1, 98, 0], 1, {990_000: 2, 500_000: 2}),
        ([1, 0, 50], 949, {990_000: 5, 500_000: 5}),
        ([99, 0, 0], 1, {990_000: 5, 500_000: 5}),
    ):
        actual = estimates(counts, recent)
        expect(
            actual == expected,
            f"of the mass {counts} and {recent} at 5, the watermarks {expected} were expected, never back, but {actual} came",
        )
    peer.low(HOUR)


# -- micro-batches ---------------------------------------------------------------------------------


@check
def batches(peer: Peer) -> None:
    """A micro-batch moves ranges when it is committed, whole; what is not prepared is refused, and an older run is REWOUND."""
    peer.register()
    claim = peer.claim(b"", b"m", b"", generation=4, ordinal=1)
    about: dict[str, Any] = {"computation": peer.name(), "sequencer": claim.sequencer, "batch": 4}
    commit = workers_pb2.CommitBatchRequest(**about)
    expect_refused(lambda: peer.workers.CommitBatch(commit, timeout=TIMEOUT), "NOT_PREPARED")
    tasks = [workers_pb2.TaskAttempt(stage=1, partition=partition, attempt=7 + partition) for partition in (0, 1)]
    prepare = workers_pb2.PrepareBatchRequest(**about, tasks=tasks, bound_micros=3 * HOUR)
    for task, oldest in ((tasks[0], HOUR), (tasks[1], MAX)):
        missing = list(peer.workers.PrepareBatch(prepare, timeout=TIMEOUT).missing)
        expect(task in missing, f"the attempt {task} was expected to be missing, but {missing} are")
        staged = workers_pb2.StageTaskRequest(**about, task=task, handles=[task.partition], oldest_micros=[oldest])
        peer.workers.StageTask(staged, timeout=TIMEOUT)
    expect(not peer.workers.PrepareBatch(prepare, timeout=TIMEOUT).missing, "nothing was expected to be missing")
    peer.low(MIN)
    for _ in range(2):
        answer = peer.workers.CommitBatch(commit, timeout=TIMEOUT)
        expect(not answer.refused, f"nothing was expected to be refused, but {answer.refused} was")
    lows = [key_range.watermark_micros // HOUR for key_range in peer.ranges()]
    expect(lows == [1, 3], f"the ranges were expected at 1 (held) and 3 (the bound), but are at {lows}")
    expect_refused(lambda: peer.claim(generation=4, ordinal=2), "REWOUND")
