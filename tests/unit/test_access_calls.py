"""The guard around calls as an attacker makes them: opened early and asked late, malformed, with names by the million, and health checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater import errors
from lowwater._core.attempts import error_of_call
from lowwater._core.events import ATTRIBUTE
from lowwater._pb.lowwater.v1 import cluster_pb2, topology_pb2, watermarks_pb2, workers_pb2
from lowwater._server.audit import Actor, Audit
from lowwater._server.tokens import digest
from lowwater_authority.access import guard as guarding
from lowwater_authority.access.caller import Caller
from lowwater_authority.access.guard import Guard
from lowwater_authority.access.methods import METHODS
from lowwater_authority.access.policy import Access, Action, Allowance, Limits, Principal
from lowwater_authority.core.topology import Spec
from lowwater_authority.ops.observer import Observer
from lowwater_authority.rpc.refusals import refuse
from lowwater_authority.rpc.streams import DENIED_BOUND, Outbox
from tests.kit.served import healthy, served
from tests.process.stalling import opening, without_room

PATIENCE = 60.0

OPERATOR = Principal("op", (Allowance("n", dict.fromkeys(Action, ("*",))),), digests=(digest("right"),))
EVERYBODY = Principal("all", (Allowance("*", dict.fromkeys(Action, ("*",))),))
RIGHT = (("authorization", "Bearer right"),)

RESET = "/lowwater.v1.TopologyService/Reset"
CLAIM = "/lowwater.v1.WorkerService/Claim"
WATCH = "/lowwater.v1.WatermarkService/Watch"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served(grpc.GenericRpcHandler):
    """Resets and claims that only remember what they were asked, and fail as they are told to; and a watch without an end."""

    def __init__(self, failure: Exception | None) -> None:
        self.reached: list[str] = []
        self.failure = failure
        self.slow = asyncio.Event()
        """Set when a reset of n/slow has begun; it does not end."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def act(request: Any, context: Any) -> Any:
            self.reached.append(request.computation)
            if request.computation == "n/slow":
                self.slow.set()
                await asyncio.Event().wait()
            if isinstance(self.failure, errors.LowwaterError):
                await refuse(context, self.failure)
            if self.failure is not None:
                raise self.failure
            return topology_pb2.ResetResponse()

        async def watch(request: watermarks_pb2.WatchRequest, context: Any) -> AsyncIterator[Any]:
            self.reached.extend(request.computations)
            yield watermarks_pb2.WatchResponse()
            await asyncio.Event().wait()

        if handler_call_details.method == RESET:
            return grpc.unary_unary_rpc_method_handler(
                act, topology_pb2.ResetRequest.FromString, topology_pb2.ResetResponse.SerializeToString
            )
        if handler_call_details.method == CLAIM:
            return grpc.unary_unary_rpc_method_handler(
                act, workers_pb2.ClaimRequest.FromString, workers_pb2.ClaimResponse.SerializeToString
            )
        if handler_call_details.method == WATCH:
            return grpc.unary_stream_rpc_method_handler(
                watch, watermarks_pb2.WatchRequest.FromString, watermarks_pb2.WatchResponse.SerializeToString
            )
        return None


class GuardedServer:
    """A server with a guard, and a channel to it."""

    def __init__(self, made: Guard, served: Served, channel: grpc.aio.Channel, port: int) -> None:
        self.guard = made
        self.reached = served.reached
        self.slow = served.slow
        self.channel = channel
        self.port = port
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    def reset(self) -> Any:
        """A reset whose request is still to come."""
        write = topology_pb2.ResetRequest.SerializeToString
        opened: Any = self.channel.stream_unary(RESET, write, topology_pb2.ResetResponse.FromString)
        return opened(metadata=RIGHT)

    def watch(self) -> Any:
        """A watch whose request is still to come."""
        write = watermarks_pb2.WatchRequest.SerializeToString
        opened: Any = self.channel.stream_stream(WATCH, write, watermarks_pb2.WatchResponse.FromString)
        return opened(metadata=RIGHT)

    async def arrived(self) -> None:
        """All calls that were opened before have come to the guard: they share a connection."""
        await self.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)


@asynccontextmanager
async def guarded(limits: Limits | None = None, failure: Exception | None = None) -> AsyncIterator[GuardedServer]:
    access, handlers = Access([OPERATOR], limits), Served(failure)
    made = Guard(access, observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    services = (lambda server: server.add_generic_rpc_handlers((handlers,)), healthy)
    async with served(*services, interceptors=[made]) as address, grpc.aio.insecure_channel(address) as channel:
        yield GuardedServer(made, handlers, channel, int(address.rpartition(":")[2]))


async def ending(call: Any) -> errors.LowwaterError | None:
    """What a call is refused with; None: it was answered."""
    try:
        async with asyncio.timeout(PATIENCE):
            if hasattr(call, "read"):
                while await call.read() is not grpc.aio.EOF:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as failure:
        return error_of_call(failure, "here")
    return None


# -- opened early --------------------------------------------------------------------------------------------------------


async def test_a_call_that_was_opened_before_a_removal_does_nothing() -> None:
    async with guarded() as one:
        allowed, late = one.reset(), one.reset()
        watch = one.watch()
        await one.arrived()
        await allowed.write(topology_pb2.ResetRequest(computation="n/before"))
        await allowed.done_writing()
        assert await ending(allowed) is None
        one.guard.use(Access([]))
        await late.write(topology_pb2.ResetRequest(computation="n/after"))
        await late.done_writing()
        assert isinstance(await ending(late), errors.Unauthenticated)
        assert isinstance(await ending(watch), errors.Unauthenticated)
        assert one.reached == ["n/before"]


async def test_a_token_that_has_expired_ends_its_streams_and_calls(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as one:
        watch = one.watch()
        await one.arrived()
        one.guard.use(Access([replace(OPERATOR, expires={OPERATOR.digests[0]: 1.0})]))
        for call in (watch, one.reset()):
            refused = await ending(call)
            assert isinstance(refused, errors.Unauthenticated)
            assert "this token of op has expired" in refused.message
        assert not one.reached
        assert {(each["principal"], each["outcome"]) for each in acts(caplog)} == {("op", "refused")}


async def test_a_call_that_was_opened_before_a_right_went_does_nothing() -> None:
    async with guarded() as one:
        reset, watch = one.reset(), one.watch()
        await one.arrived()
        less = Principal("op", (Allowance("m", {Action.READ: ("*",)}),), digests=OPERATOR.digests)
        one.guard.use(Access([less]))
        await reset.write(topology_pb2.ResetRequest(computation="n/a"))
        await watch.write(watermarks_pb2.WatchRequest(computations=["n/a"]))
        assert isinstance(await ending(reset), errors.PermissionDenied)
        assert isinstance(await ending(watch), errors.PermissionDenied)
        assert not one.reached


async def test_a_watch_without_a_request_counts() -> None:
    async with guarded(Limits(streams=2)) as one:
        opened = [one.watch(), one.watch()]
        await one.arrived()
        third = await ending(one.watch())
        assert isinstance(third, errors.Overloaded)
        assert "2 streams of op are open" in third.message
        for each in opened:
            each.cancel()


async def test_a_request_has_a_time_to_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "REQUEST_SECONDS", 0.05)
    async with guarded() as one:
        for call in (one.reset(), one.watch()):
            refused = await ending(call)
            assert isinstance(refused, errors.Unavailable)
            assert "no request has come within 0.05 s" in refused.message


async def test_what_is_no_message_is_refused() -> None:
    async with guarded() as one:
        raw: Any = one.channel.unary_unary(RESET)
        refused = await ending(raw(b"\xff\xff\xff", metadata=RIGHT))
        assert isinstance(refused, errors.InvalidArgument)
        assert "is not a message of this method" in refused.message


# -- health checks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "of_whom"),
    [
        ("HEALTH_WATCHES", ""),
        ("HEALTH_WATCHES_OF_HOST", " from 127.0.0.1"),
        ("HEALTH_WATCHES_OF_CONNECTION", " over ipv4:127.0.0.1"),
    ],
)
async def test_health_watches_are_few_and_keep_no_check_away(
    monkeypatch: pytest.MonkeyPatch, limit: str, of_whom: str
) -> None:
    monkeypatch.setattr(guarding, limit, Limits(streams=2))
    async with guarded() as one:
        watches = [one.health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for each in watches:
            assert (await each.read()).status == health_pb2.HealthCheckResponse.SERVING
        refused = await ending(one.health.Watch(health_pb2.HealthCheckRequest()))
        assert isinstance(refused, errors.Overloaded)
        assert f"2 streams of health watches{of_whom}" in refused.message
        assert await ending(one.health.Check(health_pb2.HealthCheckRequest())) is None
        watches[0].cancel()
        async with asyncio.timeout(PATIENCE):
            while True:  # each is an answer of the server, which hears of the end beside it
                another = one.health.Watch(health_pb2.HealthCheckRequest())
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await another.read()
                    break
        for each in (*watches, another):
            each.cancel()


async def test_a_health_watch_ends_and_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "HEALTH_WATCHES", Limits(streams=1))
    monkeypatch.setattr(guarding, "HEALTH_WATCH_SECONDS", 0.05)
    async with guarded() as one:
        for _ in range(3):
            assert await ending(one.health.Watch(health_pb2.HealthCheckRequest())) is None


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_what_a_health_check_asks_is_never_read(compression: grpc.Compression) -> None:
    """Anybody may ask, and gRPC would hold and decompress what is sent: here all of what it refuses to, if it is read."""
    async with guarded() as one, asyncio.timeout(PATIENCE):
        check: Any = one.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await ending(check(bytes(5 << 20), compression=compression)) is None
        found = await one.health.Check(health_pb2.HealthCheckRequest(service="whatever"))
        assert found.status == health_pb2.HealthCheckResponse.SERVING, "everything here serves, or nothing"
        silent: Any = one.channel.stream_unary("/grpc.health.v1.Health/Check")
        assert await ending(silent()) is None
        watch: Any = one.channel.stream_stream("/grpc.health.v1.Health/Watch")
        opened = watch()
        assert await opened.read()
        opened.cancel()


async def stalled(one: GuardedServer, method: str, calls: int, refusal: bytes, host: str = "127.0.0.2") -> Streams:
    """Open a connection from a host with calls of the health service that take nothing, and wait until one was refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port, local_addr=(host, 0))
    writer.write(without_room(f"/grpc.health.v1.Health/{method}", calls))
    await refused(reader, refusal)
    return reader, writer


async def refused(reader: asyncio.StreamReader, refusal: bytes) -> None:
    seen = b""
    while refusal not in seen:
        read = await reader.read(65536)
        assert read, "the connection ended, and nothing was refused"
        seen += read


async def test_answers_that_are_not_taken_are_few_and_keep_no_check_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are held for as long as their connection lasts, whatever ends them here: few of a connection, some of a host."""
    most = guarding.HEALTH_CHECKS_OF_CONNECTION.streams
    assert most is not None
    monkeypatch.setattr(guarding, "HEALTH_CHECKS_OF_HOST", Limits(streams=2 * most))
    async with guarded() as one, asyncio.timeout(PATIENCE):
        over = b"%d streams of health checks over ipv4:127.0.0.2" % most
        opened = [await stalled(one, "Check", most + 1, over) for _ in range(2)]
        opened.append(await stalled(one, "Check", 1, b"%d streams of health checks from 127.0.0.2" % (2 * most)))
        assert await ending(one.health.Check(health_pb2.HealthCheckRequest())) is None, "another host"
        for _, writer in opened:
            writer.close()
        await nothing_left(one)


async def test_a_watch_that_takes_nothing_keeps_its_place_after_its_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is held until its connection ends. If its place were given to another meanwhile, one connection could hold any number."""
    monkeypatch.setattr(guarding, "HEALTH_WATCH_SECONDS", 0.05)
    most = guarding.HEALTH_WATCHES_OF_CONNECTION.streams
    assert most is not None
    async with guarded() as one, asyncio.timeout(PATIENCE):
        refusal = b"%d streams of health watches over ipv4:127.0.0.2" % most
        reader, writer = await stalled(one, "Watch", most + 1, refusal)
        assert await ending(one.health.Watch(health_pb2.HealthCheckRequest())) is None, "opened later, and over"
        writer.write(opening("/grpc.health.v1.Health/Watch", 2 * (most + 1) + 1))
        await refused(reader, refusal)
        writer.close()
        await nothing_left(one)
    assert not [record for record in caplog.records if record.exc_info], "nobody fills the log so"


async def nothing_left(one: GuardedServer) -> None:
    """Wait until the places of all that ended are free."""
    while one.guard._health._streams:
        await one.arrived()
        await asyncio.sleep(0)


async def test_what_health_does_not_serve_is_refused_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The library would log a traceback for each call of a method that is known and not served."""
    async with guarded() as one:
        unserved: Any = one.channel.unary_unary("/grpc.health.v1.Health/List")
        assert isinstance(await ending(unserved(b"")), errors.Unauthenticated)
    assert not [record for record in caplog.records if record.exc_info]


# -- what the audit has --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "outcome", "reason"),
    [
        (RuntimeError("a mistake"), "unknown", "INTERNAL"),
        (errors.JournalFailed("no"), "unknown", "JOURNAL_FAILED"),
        (errors.ShuttingDown("no"), "unknown", "SHUTTING_DOWN"),
        (errors.Unavailable("no"), "unknown", "UNAVAILABLE"),
        (errors.Moved("no"), "failed", "MOVED"),
        (errors.UnknownComputation("no"), "failed", "UNKNOWN_COMPUTATION"),
        (errors.Overloaded("no"), "failed", "OVERLOADED"),
        (errors.PermissionDenied("no"), "refused", "PERMISSION_DENIED"),
    ],
)
async def test_an_act_that_ends_in_an_error_is_told_as_what_it_may_have_been(
    caplog: pytest.LogCaptureFixture, failure: Exception, outcome: str, reason: str
) -> None:
    """An error may come after the act, from what follows it: that it failed is said only where it surely did."""
    async with guarded(failure=failure) as one:
        caplog.set_level(logging.INFO, "lowwater_authority.audit")
        call = one.reset()
        await call.write(topology_pb2.ResetRequest(computation="n/a"))
        await call.done_writing()
        assert await ending(call) is not None
        assert one.reached == ["n/a"]
        told = await act(one, caplog)
        assert (told["act"], told["computation"], told["outcome"], told["reason"]) == ("reset", "n/a", outcome, reason)
        assert told["token"] == digest("right")[:8], "which of several it was"


async def test_an_act_whose_caller_goes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as one:
        caplog.set_level(logging.INFO, "lowwater_authority.audit")
        call = one.reset()
        await call.write(topology_pb2.ResetRequest(computation="n/slow"))
        await call.done_writing()
        async with asyncio.timeout(PATIENCE):
            await one.slow.wait()
            call.cancel()
        told = await act(one, caplog)
        assert (told["outcome"], told["reason"]) == ("unknown", "CANCELLED")


async def test_a_claim_that_is_answered_with_another_place_may_have_been_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded(failure=errors.Moved("granted, and taken over since")) as one:
        caplog.set_level(logging.INFO, "lowwater_authority.audit")
        write = workers_pb2.ClaimRequest.SerializeToString
        claim: Any = one.channel.unary_unary(CLAIM, write, workers_pb2.ClaimResponse.FromString)
        assert await ending(claim(workers_pb2.ClaimRequest(computation="n/a"), metadata=RIGHT)) is not None
        told = await act(one, caplog)
        assert (told["act"], told["outcome"], told["reason"]) == ("claim", "unknown", "MOVED")


async def act(one: GuardedServer, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What the audit tells of the only act, when it does: a caller may have its answer before."""
    async with asyncio.timeout(PATIENCE):
        while not acts(caplog):
            await one.arrived()
    [told] = acts(caplog)
    return told


def acts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the audit has."""
    found = [getattr(record, ATTRIBUTE, {}) for record in caplog.records]
    return [each for each in found if each.get("event") == "audit"]


# -- names by the million ------------------------------------------------------------------------------------------------


def caller(principal: Principal = OPERATOR) -> Caller:
    return Caller(principal, Limits(), "here", Audit(lambda: 0.0))


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("WatermarkService/GetWatermarks", watermarks_pb2.GetWatermarksRequest(computations=["n/a"] * 10_001)),
        ("WatermarkService/Watch", watermarks_pb2.WatchRequest(computations=["n/a"] * 10_001)),
        ("ClusterService/Locate", cluster_pb2.LocateRequest(computations=["n/a"] * 10_001)),
        ("TopologyService/Register", topology_pb2.RegisterRequest(name="n/a", inputs=["n/b"] * 1001)),
        ("TopologyService/SetInputs", topology_pb2.SetInputsRequest(computation="n/a", inputs=["n/b"] * 1001)),
    ],
)
def test_too_many_names_are_refused_before_they_are_looked_at(method: str, request_: Any) -> None:
    one = caller()
    with pytest.raises(errors.InvalidArgument, match=r"has (10001|1001) names; name at most (10000|1000)"):
        METHODS[f"/lowwater.v1.{method}"].check(one, request_)
    assert not one._decided


def test_what_is_no_name_is_nobody_s_and_is_not_kept() -> None:
    one = caller(EVERYBODY)
    for name in ("n/" + "x" * 129, "x" * 1_000_000, "n/a/b", "", "n/", "/n", "a b", "n/ä"):
        assert not one.may(Action.READ, name)
        refused = one.denied(Action.READ, name)
        assert len(refused.message) + sum(map(len, refused.metadata.values())) < 1000
    assert not one._decided
    assert one.may(Action.READ, "n/" + "x" * 128)


def test_the_audit_tells_registered_computations_apart_and_counts_made_up_ones_as_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    audit = Audit(lambda: 0.0, {"n/a", "n/b"}.__contains__)
    with caplog.at_level(logging.INFO, "lowwater_authority.audit"):
        for name in ("x" * 1_000_000, *(f"n/made-up-{number}" for number in range(50)), "n/a", "n/b", "n/a"):
            audit.refused("reset", Actor("op", "here"), name, "PERMISSION_DENIED")
        audit.failed("reset", Actor("op", "here"), "x" * 1_000_000, "UNKNOWN_COMPUTATION")
    told = [getattr(record, ATTRIBUTE)["computation"] for record in caplog.records]
    assert [each for each in told if len(each) < 10] == ["n/a", "n/b"]
    assert len(told) == 4
    assert max(len(record.getMessage()) for record in caplog.records) < 400
    assert max(map(len, told)) < 300


def test_a_stream_remembers_only_so_many_denials() -> None:
    outbox = Outbox()
    for number in range(DENIED_BOUND):
        outbox.deny(f"n/{number}")
        outbox.deny(f"no name {number}")
    outbox.deny("n/0")
    assert len(outbox.denied) == DENIED_BOUND
    with pytest.raises(errors.Overloaded, match="refused the reports of 10000 computations"):
        outbox.deny("n/one-more")


# -- names in errors -----------------------------------------------------------------------------------------------------


def test_an_error_that_repeats_a_request_says_nothing_of_what_is_registered() -> None:
    """Else one would ask with a name where any text may stand, and see whether it is hidden."""
    error = errors.InvalidArgument("name: 'm/secret' is refused", metadata={"field": "name"})
    assert caller().redacted(error, {"m/secret": Spec("m/secret")}) is error


@pytest.mark.parametrize("inputs", [("m/secret",), ("n/open", "m/not-registered")])
def test_a_conflict_is_told_without_what_it_conflicts_with(inputs: tuple[str, ...]) -> None:
    error = errors.RegistrationConflict("n/a: inputs ['m/secret'], key hash 'x'", metadata={"computation": "n/a"})
    told = caller().redacted(error, {"n/a": Spec("n/a", inputs), "m/secret": Spec("m/secret")})
    assert told.message.startswith("n/a is registered with other inputs or options")
    assert "secret" not in told.message
    innocent = {"n/a": Spec("n/a", ("n/b",), key_hash="m/secret"), "m/secret": Spec("m/secret")}
    assert caller().redacted(error, innocent) is error, "what is registered beside does not change it"


def test_a_refusal_names_what_reads_a_computation_to_who_may_know() -> None:
    one = caller(Principal("op", (Allowance("n", {Action.OPERATE: ("*",)}), Allowance("m", {Action.READ: ("open",)}))))
    with pytest.raises(errors.PermissionDenied, match=r"directly or not, such as m/open, and") as refused:
        one.demand_downstream("n/a", ["n/a", "m/secret", "m/open"])
    assert "secret" not in refused.value.message
    with pytest.raises(errors.PermissionDenied, match=r"directly or not, and"):
        one.demand_downstream("n/a", ["n/a", "m/secret"])
