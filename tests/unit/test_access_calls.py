"""The guard around calls as an attacker makes them: opened early and asked late, malformed, with names by the million, and health checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater import errors
from lowwater._server.audit import Actor, Audit
from lowwater._server.tokens import digest
from lowwater.core.attempts import error_of_call
from lowwater.core.events import ATTRIBUTE
from lowwater.v1 import cluster_pb2, topology_pb2, watermarks_pb2
from lowwater_authority.access import guard as guarding
from lowwater_authority.access.caller import Caller
from lowwater_authority.access.guard import Guard
from lowwater_authority.access.methods import METHODS
from lowwater_authority.access.policy import Access, Action, Allowance, Limits, Principal
from lowwater_authority.core.topology import Spec
from lowwater_authority.ops.observer import Observer
from lowwater_authority.rpc.refusals import refuse
from tests.kit.served import healthy, served
from tests.process.stalling import opening, without_room

PATIENCE = 60.0

OPERATOR = Principal("op", (Allowance("n", dict.fromkeys(Action, ("*",))),), digests=(digest("right"),))
EVERYBODY = Principal("all", (Allowance("*", dict.fromkeys(Action, ("*",))),))
RIGHT = (("authorization", "Bearer right"),)

RESET = "/lowwater.v1.TopologyService/Reset"
WATCH = "/lowwater.v1.WatermarkService/Watch"


class Served(grpc.GenericRpcHandler):
    """Resets that only remember what they were asked, and fail as they are told to; and a watch without an end."""

    def __init__(self, failure: Exception | None) -> None:
        self.reached: list[str] = []
        self.failure = failure

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def act(request: Any, context: Any) -> Any:
            self.reached.append(request.computation)
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
        if handler_call_details.method == WATCH:
            return grpc.unary_stream_rpc_method_handler(
                watch, watermarks_pb2.WatchRequest.FromString, watermarks_pb2.WatchResponse.SerializeToString
            )
        return None


class GuardedServer:
    """A server with a guard, and a channel to it."""

    def __init__(self, made: Guard, served: Served, channel: grpc.aio.Channel, address: str) -> None:
        self.guard = made
        self.reached = served.reached
        self.channel = channel
        self.port = int(address.rpartition(":")[2])
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
async def guarded(failure: Exception | None = None) -> AsyncIterator[GuardedServer]:
    access, handlers = Access([OPERATOR]), Served(failure)
    made = Guard(access, observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    services = (lambda server: server.add_generic_rpc_handlers((handlers,)), healthy)
    async with served(*services, interceptors=[made]) as address, grpc.aio.insecure_channel(address) as channel:
        yield GuardedServer(made, handlers, channel, address)


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


async def test_a_request_has_a_time_to_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "REQUEST_SECONDS", 0.05)
    async with guarded() as one:
        for call in (one.reset(), one.watch()):
            refused = await ending(call)
            assert isinstance(refused, errors.Unavailable)
            assert "no request has come within 0.05 s" in refused.message


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


async def refused(reader: asyncio.StreamReader, refusal: bytes) -> None:
    seen = b""
    while refusal not in seen:
        read = await reader.read(65536)
        assert read, "the connection ended, and nothing was refused"
        seen += read


@pytest.mark.parametrize(("method", "what"), [("Check", "checks"), ("Watch", "watches")])
async def test_a_health_call_that_takes_nothing_keeps_its_place_until_its_connection_ends(
    monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    monkeypatch.setattr(guarding, "HEALTH_WATCH_SECONDS", 0.05)
    most = getattr(guarding, f"HEALTH_{what.upper()}_OF_CONNECTION").streams
    path, refusal = f"/grpc.health.v1.Health/{method}", b"%d streams of health %s over ipv4" % (most, what.encode())
    async with guarded() as one, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(without_room(path, most + 1))
        await refused(reader, refusal)
        assert await ending(one.health.Watch(health_pb2.HealthCheckRequest())) is None, "opened later, and over"
        writer.write(opening(path, 2 * (most + 1) + 1))
        await refused(reader, refusal)
        writer.close()
        while one.guard._health._streams:
            await one.arrived()


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


# -- names in errors -----------------------------------------------------------------------------------------------------


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
