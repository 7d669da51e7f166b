"""The guard around calls and its parts: who calls, limits by virtual time, the audit, the rules while they change, and calls as an attacker makes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.core.events import ATTRIBUTE
from lowwater.v1 import topology_pb2, watermarks_pb2
from lowwater_authority.access.caller import CALLER, Caller, permit, room, room_for_slice, visible
from lowwater_authority.access.door import PEER_TOKEN, Door
from lowwater_authority.access.file import SOON_SECONDS, AccessFile
from lowwater_authority.access.identity import host_of, presented
from lowwater_authority.access.limits import Bucket, Usage
from lowwater_authority.access.policy import Access, Action, Allowance, Limits, Principal, insider
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.observer import Observer
from lowwater_authority.files.followed import LOOK_SECONDS, MOST_SECONDS, SETTLED_SECONDS
from lowwater_authority.files.table import BadFile
from lowwater_authority.rpc.guard import DEFAULT_BOUNDS, Guard, GuardBounds, paced_by_host
from lowwater_authority.rpc.refusals import refuse
from lowwater_server.audit import Actor, Audit
from tests.kit.served import healthy, served
from tests.process.stalling import opening, without_room
from tests.unit.test_access_policy import digest

READER = Principal(
    "reader", (Allowance("n", {Action.READ: ("a*",)}),), digests=(digest("right"),), certificates=("reader.example",)
)
TWIN = Principal("twin", digests=(digest("other"),), certificates=("twin.example",))
ACCESS = Access([READER, TWIN])


def who(*headers: str | bytes, names: tuple[str, ...] = ()) -> str:
    metadata = [("user-agent", "x"), *(("authorization", header) for header in headers)]
    auth = {"peer_dns": [name.encode() for name in names], "peer_email": [b"twin.example"], "x509_subject": [b"CN=x"]}
    return presented(metadata, auth).principal(ACCESS, 0.0).name


@pytest.mark.parametrize("header", ["Bearer right", "bearer right", "BEARER  right ", b"BEARER right"])
def test_a_token_says_who_calls(header: str | bytes) -> None:
    assert who(header) == "reader"


@pytest.mark.parametrize(
    "headers",
    [
        *((), ("Bearer wrong",), ("Bearer",), ("Bearer ",), ("right",), ("Basic right",)),
        *((f"Bearer {digest('right')}",), ("Bearer right",) * 2, ("",), ("Bearer\tright",)),
    ],
)
def test_what_is_no_token_is_refused_and_not_quoted(headers: tuple[str, ...]) -> None:
    with pytest.raises(errors.Unauthenticated) as refused:
        who(*headers)
    assert "wrong" not in refused.value.message.replace("it is wrong", "")
    assert "right" not in refused.value.message


def test_a_token_counts_before_a_certificate() -> None:
    assert who(names=("x", "reader.example")) == "reader"
    assert who("Bearer other", names=("reader.example",)) == "twin"
    with pytest.raises(errors.Unauthenticated):
        who("Bearer wrong", names=("reader.example",))


def test_a_host_is_found_in_what_grpc_calls_a_peer() -> None:
    assert [host_of(peer) for peer in ("ipv4:1.2.3.4:5", "ipv6:[::1]:5", "ipv6:%5B::1%5D:5", "unix:/x", "unix:")] == [
        "1.2.3.4",
        "::1",
        "::1",
        "unix",
        "unix",
    ]


def test_a_bucket_gives_a_second_at_once_and_then_the_rate() -> None:
    bucket = Bucket(4.0, 100.0)
    assert [bucket.take(4.0, 100.0) for _ in range(4)] == [0.0] * 4
    assert bucket.take(4.0, 100.0) == 0.25
    assert bucket.take(4.0, 100.2) == pytest.approx(0.05)
    assert bucket.take(4.0, 100.25) == 0.0
    assert [bucket.take(4.0, 200.0) for _ in range(5)] == [0.0] * 4 + [0.25]


def test_callers_that_take_nothing_are_forgotten() -> None:
    usage, limits = Usage(), Limits(calls_per_second=1.0)
    for number in range(5000):
        usage.call(f"peer {number}", limits, float(number))
    assert usage.callers <= 1000


def caller(principal: Principal = READER) -> Caller:
    return Caller(principal, Limits(), "here", Audit(lambda: 0.0))


@contextmanager
def called_by(who: Caller | None) -> Iterator[None]:
    token = CALLER.set(who)
    try:
        yield
    finally:
        CALLER.reset(token)


@pytest.mark.parametrize("access", [True, False], ids=["a principal", "anybody, without access rules"])
def test_rule7_what_is_registered_is_bounded_by_namespace_and_deployment_and_each_slice_counts(access: bool) -> None:
    limits = Limits(computations=6, all_computations=9)
    with called_by(Caller(READER, limits, "here", Audit(lambda: 0.0)) if access else None):
        of_server = Limits() if access else limits
        room("n/cut", 4, of_server)(["n/a", "m/b"])
        room("n/cut", 4, of_server)(["n/cut", *(f"n/{letter}" for letter in "abcdefgh")])
        room("n/b", 0, of_server)([f"n/a~{number}" for number in range(5)])
        with pytest.raises(
            errors.LimitReached, match="may have 6 computations, counting slices; it has 2, and n/cut would be 5 more"
        ) as refused:
            room("n/cut", 4, of_server)(["n/a", "n/b"])
        assert "computations of [limits] in the access file, or the authority's option --limit" in str(refused.value)
        full = ["n/a", *(f"n/a~{number}" for number in range(5))]
        with pytest.raises(errors.LimitReached, match="it has 6, and n/b would be 1 more"):
            room("n/b", 0, of_server)(full)
        with pytest.raises(errors.LimitReached, match="it has 6, and a slice of n/a would be 1 more"):
            room_for_slice("n/a", of_server)(full)
        room("m/b", 2, of_server)(full)  # a neighbour's namespace has its own room
        with pytest.raises(errors.LimitReached, match=r"deployment may have 9 .* it has 6, and m/b would be 4 more"):
            room("m/b", 3, of_server)(full)


def test_a_host_without_access_rules_uses_up_its_own_calls_alone() -> None:
    pace = paced_by_host(Limits(calls_per_second=1.0), lambda: 0.0)
    register = "/lowwater.v1.TopologyService/Register"
    pace(register, "ipv4:10.0.0.7:1")
    with pytest.raises(errors.Overloaded, match=r"all that 10\.0\.0\.7 may make"):
        pace(register, "ipv4:10.0.0.7:2")
    pace(register, "ipv4:10.0.0.8:1")
    for path in ("/grpc.health.v1.Health/Check", "/lowwater.v1.WorkerService/Vouch"):
        pace(path, "ipv4:10.0.0.7:3")


def test_a_caller_sees_what_it_may_read() -> None:
    token = CALLER.set(caller())
    try:
        assert visible(["a", "n/a", "n/b", "n/ab"]) == ["n/a", "n/ab"]
        permitted = permit("n/a")
    finally:
        CALLER.reset(token)
    with pytest.raises(errors.PermissionDenied, match="all that reads n/a") as refused:
        permitted(["n/a", "n/secret"])
    assert "secret" not in refused.value.message


def test_decisions_are_bounded_and_follow_the_rules() -> None:
    one = caller()
    for number in range(25_000):
        assert not one.may(Action.REPORT, f"n/{number}")
    assert len(one.decisions) <= 10_000
    assert one.may(Action.READ, "n/a")
    one.become(TWIN, Limits())
    assert not one.may(Action.READ, "n/a")


def test_an_error_is_told_without_names_that_the_caller_may_not_know() -> None:
    specs = {name: Spec(name) for name in ("n/a", "n/secret", "m/hidden.", "solo")}
    error = errors.Cycle(
        "n/a -> n/secret -> m/hidden. -> solo. Not others, not n/made-up.", metadata={"cycle": "n/a -> solo", "n": "1"}
    )
    error.retry_after = 2.0
    hidden = caller().redacted(error, specs)
    assert hidden.message == "n/a -> (hidden) -> (hidden) -> (hidden) Not others, not n/made-up."
    assert hidden.metadata == {"cycle": "n/a -> (hidden)", "n": "1"}
    assert (type(hidden), hidden.retry_after) == (errors.Cycle, 2.0)
    innocent = errors.Cycle("n/a reads n/ab", metadata={"cycle": "n/a"})
    assert caller().redacted(innocent, specs) is innocent
    repeated = errors.InvalidArgument("name: 'n/secret' is refused")
    assert caller().redacted(repeated, specs) is repeated, "else what is hidden would tell what is registered"


def test_refusals_that_repeat_are_one_line_and_acts_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    audit, who = Audit(lambda: now[0]), Actor("reader", "here")
    with caplog.at_level(logging.INFO, "lowwater_authority.audit"):
        for number in range(50):
            audit.refused("reset", who, f"n/{number}", "PERMISSION_DENIED")
            audit.done("claim", who, "n/a")
            audit.done("take_task", who, "n/a", often=True)
            audit.failed("commit_task", who, "n/a", "STALE_LEASE", often=True)
        now[0] = 11.0
        audit.done("take_task", who, "n/a", often=True)
        for host in range(2_000):  # more than are told apart
            audit.done("renew", Actor("worker", str(host)), "n/a", often=True)
        audit.refused("reset", who, "n/a", "PERMISSION_DENIED")
    lines = [getattr(record, ATTRIBUTE) for record in caplog.records]
    assert all(line["event"] == "audit" for line in lines)
    assert [line["count"] for line in lines if line["outcome"] == "refused"] == [1, 50]
    assert sum(line["act"] == "claim" for line in lines) == 50
    assert [line["count"] for line in lines if line["act"] == "take_task"] == [1, 50]
    assert [line["count"] for line in lines if line["act"] == "commit_task"] == [1]


SOMEBODY = f'[[principal]]\nname = "etl"\ntoken_sha256 = ["{"0" * 64}"]\n'


class Watched:
    """An access file that is looked at, on a made-up clock."""

    def __init__(self, path: Path, streams: int) -> None:
        self.path = path
        self.now = self.step = 0.0
        self.limits: list[int | None] = []
        self.write(streams)
        self.file = AccessFile(path, monotonic=self.monotonic)
        self.file.on_change.append(lambda access: self.limits.append(access.limits.streams))

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def write(self, streams: int) -> None:
        self.path.write_text(f"{SOMEBODY}[limits]\nstreams = {streams}\n")

    async def look(self, seconds: float = 0.0) -> list[int | None]:
        """Look as often as is usual in a time; returns what has been read so far."""
        await self.file.look()
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            await self.file.look()
        return self.limits


async def test_a_file_is_read_again_only_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tmp_path / "access.toml", 1)
    assert not await watched.look(10.0)
    watched.write(22)
    assert await watched.look(SETTLED_SECONDS) == [22]
    # An empty one is about to be written, as a rule; nobody could do anything by it.
    for bad in ("[limits]\nstreams = 0\n", "[[[", "", "[limits]\nstreams = 5\n"):
        watched.path.write_text(bad)
        await watched.look(10.0)
    watched.path.unlink()
    await watched.look(10.0)
    assert (watched.file.value.limits.streams, watched.file.refused is None) == (22, False)
    refused = [line.getMessage() for line in caplog.records if getattr(line, ATTRIBUTE)["event"] == "access_refused"]
    assert len(refused) == 5, "each bad one once"
    assert all("principal is missing: nobody could do anything; write a [[principal]]" in text for text in refused[2:4])
    watched.write(333)
    assert await watched.look(SETTLED_SECONDS) == [22, 333]
    assert watched.file.refused is None


async def test_a_token_expires_after_a_warning_and_ends_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, now, decided = tmp_path / "access.toml", [0.0], []
    path.write_text(
        f"{SOMEBODY}[[principal]]\nname='guest'\n[[principal.token]]\nsha256='{'1' * 64}'\nexpires=2027-01-31"
    )
    file = AccessFile(path, clock=lambda: now[0])
    file.on_change.append(lambda _: decided.append(now[0]))
    end = file.value.principals[1].ends
    assert end is not None
    for moment in (end - SOON_SECONDS - 1, end - SOON_SECONDS, end - 1, end - 0.5, end, end + 0.5):
        now[0] = moment
        await file.look()
    assert decided == [end], "once"
    lines = [getattr(record, ATTRIBUTE) for record in caplog.records]
    assert [(line["event"], line["principal"], line["expires"]) for line in lines] == [
        (event, "guest", "2027-01-31T00:00:00Z") for event in ("token_expires_soon", "token_expired")
    ]


async def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """Its first half is a good file, which leaves out whom the second half names."""
    watched = Watched(tmp_path / "access.toml", 1)
    for half in range(2, 12):
        watched.write(half)
        assert not await watched.look(SETTLED_SECONDS - LOOK_SECONDS)
    os.utime(watched.path, (2**33, 2**33))  # a clock that is ahead
    assert await watched.look(SETTLED_SECONDS) == [11]
    assert await watched.look(10.0) == [11]


async def test_a_file_that_never_rests_is_read_once_in_a_while(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "access.toml", 1)
    for number in range(1000, 1000 + round(2.5 * MOST_SECONDS)):
        watched.write(number)
        await watched.look(2 * LOOK_SECONDS)
    assert len(watched.limits) == 2


async def test_a_file_is_followed_again_after_an_error_in_applying_it(tmp_path: Path) -> None:
    """Else whoever is removed would stay, as long as the process lives."""
    watched = Watched(tmp_path / "access.toml", 1)
    watched.step = SETTLED_SECONDS
    failures, applied = [ValueError("of a stream")], asyncio.Event()

    def apply(_: Access) -> None:
        if failures:
            raise failures.pop()
        applied.set()

    watched.file.on_change.append(apply)
    following = asyncio.create_task(watched.file.watch())
    watched.write(22)
    await asyncio.wait((following, asyncio.create_task(applied.wait())), timeout=60, return_when="FIRST_COMPLETED")
    assert (applied.is_set(), following.done()) == (True, False)
    following.cancel()


def test_the_token_of_shards_is_no_principal_s(tmp_path: Path) -> None:
    """Else it were either: one that may change something, or one that reads everything and is not limited."""
    path, token = tmp_path / "access.toml", "p" * 43
    environment = {PEER_TOKEN: f"{'o' * 43},{token}"}
    path.write_text(f'{SOMEBODY}[[principal]]\nname = "x"\ntoken_sha256 = ["{digest(token)}"]\n')
    assert Door(path, shared=False, environment=environment).access().named("x"), "there it is nobody else's"
    with pytest.raises(
        BadFile,
        match=r"access\.toml: principal\[2\]\.token_sha256 has the digest of a token in LOWWATER_PEER_TOKEN; give",
    ):
        Door(path, shared=True, environment=environment)


def test_a_secret_stands_in_a_file_or_in_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    environment = {PEER_TOKEN: "o" * 43, f"{PEER_TOKEN}_FILE": str(file)}
    rules = tmp_path / "access.toml"
    rules.write_text(SOMEBODY)
    for text, problem in ((None, "cannot be read: No such file"), (b" \n", "is empty"), (b"\xff", "is not UTF-8")):
        if text is not None:
            file.write_bytes(text)
        with pytest.raises(BadFile, match=problem):
            Door(rules, shared=True, environment=environment)
    file.write_text(f"{'f' * 43},{'g' * 43}\n")
    assert Door(rules, shared=True, environment=environment).token == "f" * 43
    del environment[f"{PEER_TOKEN}_FILE"]
    assert Door(rules, shared=True, environment=environment).token == "o" * 43


PATIENCE = 60.0

OPERATOR = Principal("op", (Allowance("n", dict.fromkeys(Action, ("*",))),), digests=(digest("right"),))
EVERYBODY = Principal("all", (Allowance("*", dict.fromkeys(Action, ("*",))),))
OPERATED = Access([OPERATOR])
RIGHT = (("authorization", "Bearer right"),)

RESET = "/lowwater.v1.TopologyService/Reset"
WATCH = "/lowwater.v1.WatermarkService/Watch"


class Served(grpc.GenericRpcHandler):
    def __init__(self, failure: Exception | None, pieces: int) -> None:
        self.reached: list[str] = []
        self.callers: list[Caller | None] = []
        self.failure = failure
        self.pieces = pieces
        """Size in bytes of each answer of a watch."""
        self.writing = asyncio.Event()

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
            self.callers.append(CALLER.get())
            for _ in range(10):
                self.writing.set()
                yield watermarks_pb2.WatchResponse(server_token="x" * self.pieces)
            self.writing.clear()
            await asyncio.Event().wait()

        if handler_call_details.method == RESET:
            return grpc.unary_unary_rpc_method_handler(
                act, topology_pb2.ResetRequest.FromString, topology_pb2.ResetResponse.SerializeToString
            )
        if handler_call_details.method == WATCH:
            return grpc.unary_stream_rpc_method_handler(
                watch, watermarks_pb2.WatchRequest.FromString, watermarks_pb2.WatchResponse.SerializeToString
            )

        async def one(request: Any, context: Any) -> bytes:
            self.reached.append(handler_call_details.method)
            return b""

        async def many(request: Any, context: Any) -> AsyncIterator[bytes]:
            self.reached.append(handler_call_details.method)
            yield b""

        methods: dict[str, Callable[[], Any]] = {
            "/x.Extra/UnaryUnary": lambda: grpc.unary_unary_rpc_method_handler(one),
            "/x.Extra/UnaryStream": lambda: grpc.unary_stream_rpc_method_handler(many),
            "/x.Extra/StreamUnary": lambda: grpc.stream_unary_rpc_method_handler(one),
            "/x.Extra/StreamStream": lambda: grpc.stream_stream_rpc_method_handler(many),
        }
        return methods.get(handler_call_details.method, lambda: None)()


class GuardedServer:
    def __init__(self, guard: Guard, served: Served, channel: grpc.aio.Channel, address: str) -> None:
        self.guard = guard
        self.reached, self.callers, self.writing = served.reached, served.callers, served.writing
        self.channel = channel
        self.port = int(address.rpartition(":")[2])
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    def reset(self, token: str = "right") -> Any:
        write = topology_pb2.ResetRequest.SerializeToString
        opened: Any = self.channel.stream_unary(RESET, write, topology_pb2.ResetResponse.FromString)
        return opened(metadata=(("authorization", f"Bearer {token}"),))

    def watch(self) -> Any:
        write = watermarks_pb2.WatchRequest.SerializeToString
        opened: Any = self.channel.stream_stream(WATCH, write, watermarks_pb2.WatchResponse.FromString)
        return opened(metadata=RIGHT)

    async def arrived(self) -> None:
        """All calls that were opened before have come to the guard: they share a connection."""
        await self.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)


@asynccontextmanager
async def guarded(
    failure: Exception | None = None,
    *,
    access: Access = OPERATED,
    credentials: grpc.ServerCredentials | None = None,
    pieces: int = 0,
    bounds: GuardBounds = DEFAULT_BOUNDS,
) -> AsyncIterator[GuardedServer]:
    handlers = Served(failure, pieces)
    guard_ = Guard(
        access,
        observer=Observer(),
        audit=Audit(lambda: 0.0),
        insiders=[insider("self", ["own"])],
        monotonic=lambda: 0.0,
        bounds=bounds,
    )
    services = (lambda server: server.add_generic_rpc_handlers((handlers,)), healthy)
    async with (
        served(*services, interceptors=[guard_], credentials=credentials) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield GuardedServer(guard_, handlers, channel, address)


async def ending(call: Any) -> errors.LowwaterError | None:
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


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
async def test_a_method_that_no_table_has_is_refused(kind: str) -> None:
    async with guarded(access=ACCESS) as one:
        channel: Any = one.channel
        call = getattr(channel, kind)("/x.Extra/" + "".join(part.title() for part in kind.split("_")))
        request = b"" if kind.startswith("unary") else [b""]
        for token, expected in (
            ("right", errors.PermissionDenied),
            ("own", errors.PermissionDenied),
            ("x", errors.Unauthenticated),
        ):
            error = await ending(call(request, metadata=(("authorization", f"Bearer {token}"),)))
            assert type(error) is expected, error
        unknown: Any = channel.unary_unary("/x.Extra/Nothing")
        missing = await ending(unknown(b""))
        assert missing is not None
        assert missing.reason == "UNIMPLEMENTED"
        answer = await one.health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert not one.reached


async def test_a_client_certificate_is_an_identity() -> None:
    """A real handshake shows how gRPC calls a common name, a DNS name and a URI of a verified certificate."""
    ca = trustme.CA()
    own = ca.issue_cert("localhost")
    credentials = grpc.ssl_server_credentials(
        [(own.private_key_pem.bytes(), b"".join(pem.bytes() for pem in own.cert_chain_pems))],
        ca.cert_pem.bytes(),
        True,
    )
    cases = (
        (ca.issue_cert("reader.example"), errors.PermissionDenied),  # known, and the method is not
        (ca.issue_cert("x@else.example", common_name="reader.example"), errors.PermissionDenied),
        (
            ca.issue_cert("else.example", common_name="reader.example"),
            errors.Unauthenticated,
        ),  # it has names that were checked
        (ca.issue_cert("else.example"), errors.Unauthenticated),
        (ca.issue_cert("x@reader.example"), errors.Unauthenticated),
        (ca.issue_cert("sub.reader.example"), errors.Unauthenticated),
        (ca.issue_cert("reader.example", "twin.example"), errors.Unauthenticated),
    )
    async with guarded(access=ACCESS, credentials=credentials) as one:
        for pair, expected in cases:
            shown = grpc.ssl_channel_credentials(
                ca.cert_pem.bytes(),
                pair.private_key_pem.bytes(),
                b"".join(pem.bytes() for pem in pair.cert_chain_pems),
            )
            async with grpc.aio.secure_channel(f"localhost:{one.port}", shown) as channel:
                call: Any = channel.unary_unary("/x.Extra/UnaryUnary")
                assert type(await ending(call(b""))) is expected


async def test_a_removal_does_not_wait_for_a_slow_reader() -> None:
    """A stream that is written to ends after that message, with its status; what its caller says counts no more."""
    async with guarded(pieces=3 << 20) as one:
        watch = one.watch()
        await watch.write(watermarks_pb2.WatchRequest(computations=["n/a"]))
        await one.writing.wait()
        for _ in range(10):
            await one.arrived()
        assert one.writing.is_set()
        [who] = one.callers
        assert who is not None
        assert who.may(Action.REPORT, "n/a")
        one.guard.use(Access([TWIN]))
        assert not who.may(Action.REPORT, "n/a")
        assert isinstance(await ending(watch), errors.Unauthenticated)


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


async def test_calls_a_second_are_those_of_each_caller() -> None:
    other = replace(OPERATOR, name="other", digests=(digest("other"),))
    async with guarded(access=Access([OPERATOR, other], Limits(calls_per_second=1.0))) as one:
        for token in ("right", "other"):
            call = one.reset(token)
            await call.write(topology_pb2.ResetRequest(computation="n/a"))
            await call.done_writing()
            assert await ending(call) is None
        refused = await ending(one.reset())
        assert isinstance(refused, errors.Overloaded)
        assert (refused.metadata["bound"], refused.retry_after) == ("calls_per_second", 1.0)


async def test_a_request_has_a_time_to_come_in() -> None:
    async with guarded(bounds=GuardBounds(request_seconds=0.05)) as one:
        for call in (one.reset(), one.watch()):
            refused = await ending(call)
            assert isinstance(refused, errors.Unavailable)
            assert "no request has come within 0.05 s" in refused.message


@pytest.mark.parametrize(
    ("limit", "of_whom"),
    [("watches", ""), ("watches_of_host", " from 127.0.0.1"), ("watches_of_connection", " over ipv4:127.0.0.1")],
)
async def test_health_watches_are_few_and_keep_no_check_away(limit: str, of_whom: str) -> None:
    async with guarded(bounds=replace(DEFAULT_BOUNDS, **{limit: 2})) as one:
        watches = [one.health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
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
        for watch in (*watches, another):
            watch.cancel()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_what_a_health_check_asks_is_never_read(compression: grpc.Compression) -> None:
    """Anybody may ask, and gRPC would hold and decompress what is sent: here all of what it refuses to, if it is read."""
    async with guarded() as one, asyncio.timeout(PATIENCE):
        check: Any = one.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await ending(check(bytes(5 << 20), compression=compression)) is None
        answer = await one.health.Check(health_pb2.HealthCheckRequest(service="whatever"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, "everything here serves, or nothing"
        silent: Any = one.channel.stream_unary("/grpc.health.v1.Health/Check")
        assert await ending(silent()) is None
        watch: Any = one.channel.stream_stream("/grpc.health.v1.Health/Watch")
        opened = watch()
        assert await opened.read()
        opened.cancel()


async def refused(reader: asyncio.StreamReader, refusal: bytes) -> None:
    received = b""
    while refusal not in received:
        read = await reader.read(65536)
        assert read, "the connection ended, and nothing was refused"
        received += read


@pytest.mark.parametrize(("method", "what"), [("Check", "checks"), ("Watch", "watches")])
async def test_a_health_call_that_takes_nothing_keeps_its_place_while_it_is_connected(method: str, what: str) -> None:
    path, refusal = f"/grpc.health.v1.Health/{method}", b"2 streams of health %s over ipv4" % what.encode()
    limits: dict[str, Any] = {f"{what}_of_connection": 2, f"{what}_of_host": 3}
    async with guarded(bounds=replace(DEFAULT_BOUNDS, watch_seconds=0.05, **limits)) as one, asyncio.timeout(PATIENCE):
        call = getattr(one.health, method)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(without_room(path, 3))
        await refused(reader, refusal)
        assert await ending(one.health.Watch(health_pb2.HealthCheckRequest())) is None, "opened later, and over"
        writer.write(opening(path, 7))
        await refused(reader, refusal)
        _, beside = await asyncio.open_connection("127.0.0.1", one.port)
        beside.write(without_room(path, 1))
        for number in count(3, 2):  # one that comes while the last place is taken by the call below is refused
            if await ending(call(health_pb2.HealthCheckRequest())) is not None:
                break
            beside.write(opening(path, number))
            await one.arrived() if what == "watches" else None
        writer.close()
        while await ending(call(health_pb2.HealthCheckRequest())) is not None:
            await one.arrived() if what == "watches" else None
        beside.close()
        for connection in (writer, beside):
            with contextlib.suppress(ConnectionError):
                await connection.wait_closed()


@pytest.mark.parametrize(
    ("failure", "outcome", "reason"),
    [
        (RuntimeError("a mistake"), "unknown", "INTERNAL"),
        (errors.JournalFailed("no"), "unknown", "JOURNAL_FAILED"),
        (errors.Moved("no"), "failed", "MOVED"),
        (errors.PermissionDenied("no"), "refused", "PERMISSION_DENIED"),
    ],
)
async def test_an_act_that_ends_in_an_error_is_told_as_what_it_may_have_been(
    caplog: pytest.LogCaptureFixture, failure: Exception, outcome: str, reason: str
) -> None:
    async with guarded(failure=failure) as one:
        caplog.set_level(logging.INFO, "lowwater_authority.audit")
        call = one.reset()
        await call.write(topology_pb2.ResetRequest(computation="n/a"))
        await call.done_writing()
        assert await ending(call) is not None
        assert one.reached == ["n/a"]
        line = await act(one, caplog)
        assert (line["act"], line["computation"], line["outcome"], line["reason"]) == ("reset", "n/a", outcome, reason)
        assert line["token"] == digest("right")[:8], "which of several it was"


async def act(one: GuardedServer, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Return the audit's line of the only act, when it comes: a caller may have its answer before."""
    async with asyncio.timeout(PATIENCE):
        while not acts(caplog):
            await one.arrived()
    [line] = acts(caplog)
    return line


def acts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [getattr(record, ATTRIBUTE, {}) for record in caplog.records]
    return [line for line in lines if line.get("event") == "audit"]


def test_what_is_no_name_is_nobody_s_and_is_not_kept() -> None:
    one = caller(EVERYBODY)
    for name in ("n/" + "x" * 129, "x" * 1_000_000, "n/a/b", "", "n/", "/n", "a b", "n/ä"):
        assert not one.may(Action.READ, name)
        refused = one.denied(Action.READ, name)
        assert len(refused.message) + sum(map(len, refused.metadata.values())) < 1000
    assert not one.decisions
    assert one.may(Action.READ, "n/" + "x" * 128)


def test_the_audit_tells_registered_computations_apart_and_merges_others(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(lambda: 0.0, {"n/a", "n/b"}.__contains__)
    with caplog.at_level(logging.INFO, "lowwater_authority.audit"):
        for name in ("x" * 1_000_000, *(f"n/made-up-{number}" for number in range(50)), "n/a", "n/b", "n/a"):
            audit.refused("reset", Actor("op", "here"), name, "PERMISSION_DENIED")
        audit.failed("reset", Actor("op", "here"), "x" * 1_000_000, "UNKNOWN_COMPUTATION")
    names = [getattr(record, ATTRIBUTE)["computation"] for record in caplog.records]
    assert [name for name in names if len(name) < 10] == ["n/a", "n/b"]
    assert len(names) == 4
    assert max(len(record.getMessage()) for record in caplog.records) < 400
    assert max(map(len, names)) < 300


@pytest.mark.parametrize("inputs", [("m/secret",), ("n/open", "m/not-registered")])
def test_a_conflict_is_told_without_what_it_conflicts_with(inputs: tuple[str, ...]) -> None:
    error = errors.RegistrationConflict("n/a: inputs ['m/secret'], key hash 'x'", metadata={"computation": "n/a"})
    hidden = caller(OPERATOR).redacted(error, {"n/a": Spec("n/a", inputs), "m/secret": Spec("m/secret")})
    assert hidden.message.startswith("n/a is registered with other inputs or options")
    assert "secret" not in hidden.message
    innocent = {"n/a": Spec("n/a", ("n/b",), key_hash="m/secret"), "m/secret": Spec("m/secret")}
    assert caller(OPERATOR).redacted(error, innocent) is error, "what is registered beside does not change it"


def test_a_refusal_names_what_reads_a_computation_to_who_may_know() -> None:
    one = caller(Principal("op", (Allowance("n", {Action.OPERATE: ("*",)}), Allowance("m", {Action.READ: ("open",)}))))
    with pytest.raises(errors.PermissionDenied, match=r"directly or not, such as m/open, and") as refused:
        one.demand_downstream("n/a", ["n/a", "m/secret", "m/open"])
    assert "secret" not in refused.value.message
    with pytest.raises(errors.PermissionDenied, match=r"directly or not, and"):
        one.demand_downstream("n/a", ["n/a", "m/secret"])
