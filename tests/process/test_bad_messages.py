"""What is no message, too large a message, a message that never came, and a second server: the authority goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import lowwater
from lowwater import Watermark
from lowwater._core.attempts import error_of_call
from lowwater._pb.lowwater.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    topology_pb2,
    topology_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from lowwater_authority.authority import Authority
from lowwater_authority.ops.observer import Observer
from lowwater_authority.rpc import workers
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.process.scrape import Scrape
from tests.process.serving import Serving, serving
from tests.property.test_bad_constructors import BAD_TIMES, FIX

BIG = 65 << 20
UNLIMITED = (("grpc.max_send_message_length", -1),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("bad")) as one:
        yield one


@pytest.fixture(scope="module")
def lw(server: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(server.address) as client:
        client.register("a")
        yield client


@pytest.fixture(scope="module")
def lease(lw: lowwater.Client) -> lowwater.Lease:
    return lw.worker("a").claim(bounds=[b"", b"m", b""])


def goes_on(lease: lowwater.Lease, lw: lowwater.Client) -> None:
    """A report becomes a watermark."""
    low = max(lw.get("a")["a"].low.micros, 0) + HOUR
    lease.advance(None, oldest=None, frontier=low)
    lease.flush()
    assert lw.get("a")["a"].low == Watermark(low)


# -- what is no message --------------------------------------------------------------------------------------------------


def garbage() -> Iterator[bytes]:
    """What is not gRPC, and what only begins like it."""
    source = random.Random(9)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield b""
    yield b"GET /metrics HTTP/1.1\r\nHost: lowwater\r\n\r\n"
    yield bytes.fromhex("16030100c8010000c40303") + source.randbytes(200)
    yield source.randbytes(100_000)
    yield preface[:10]
    yield preface + source.randbytes(10_000)
    # A frame of headers that claims 16 MB.
    yield preface + bytes.fromhex("000000040000000000") + bytes.fromhex("ffffff010400000001") + source.randbytes(1000)


def test_raw_garbage_on_the_port_harms_nobody(server: Serving, lw: lowwater.Client, lease: lowwater.Lease) -> None:
    left_open = []
    for data in garbage():
        for _ in range(3):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            with contextlib.suppress(OSError):
                one.sendall(data)
            left_open.append(one)
    goes_on(lease, lw)
    for one in left_open:
        one.close()
    goes_on(lease, lw)


ASKS = {
    "GetWatermarks": "WatermarkService",
    "CheckComplete": "WatermarkService",
    "Watch": "WatermarkService",
    "Claim": "WorkerService",
    "Report": "WorkerService",
    "Register": "TopologyService",
    "Locate": "ClusterService",
}
UNREADABLE = {"bytes that are no message": b"\xff\xff\xff", "text that is not UTF-8": b"\x0a\x02\xff\xfe"}


def raw(channel: grpc.Channel, method: str, body: bytes) -> grpc.RpcError:
    """What a method is refused for whose request is these bytes."""
    kind: Any = {"Watch": channel.unary_stream, "Report": channel.stream_stream}.get(method, channel.unary_unary)
    call = kind(f"/lowwater.v1.{ASKS[method]}/{method}")
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(call(iter([body]) if method == "Report" else body, timeout=30)))
    return refused.value


@pytest.mark.parametrize("what", UNREADABLE)
@pytest.mark.parametrize("method", ASKS)
def test_what_cannot_be_read_is_an_invalid_argument(
    server: Serving, lw: lowwater.Client, lease: lowwater.Lease, method: str, what: str
) -> None:
    with grpc.insecure_channel(server.address) as channel:
        failure: Any = raw(channel, method, UNREADABLE[what])
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = error_of_call(failure, server.address)
    assert isinstance(error, lowwater.InvalidArgument)
    assert "generate the client" in error.metadata["fix"]
    assert "Traceback" not in (server.data.parent / "serve.log").read_text()
    goes_on(lease, lw)


def test_what_is_sent_again_and_again_and_cannot_be_read_is_counted_and_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json") as one, grpc.insecure_channel(one.address) as channel:
        for _ in range(20):
            raw(channel, "Claim", b"\xff\xff\xff")
        assert Scrape(one).all("refused_calls_total") == {("Claim", "INVALID_ARGUMENT"): 20}
        assert (one.data.parent / "serve.log").read_text().count("call_refused") == 1


def test_many_shards_are_refused_alike_by_one_that_is_alone(lw: lowwater.Client, server: Serving) -> None:
    """Whatever is asked of them: one code, one reason, one sentence with what to do."""
    with grpc.insecure_channel(server.address) as channel:
        cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
        calls: list[Callable[[], object]] = [
            lambda: cluster.Locate(cluster_pb2.LocateRequest(computations=["a"])),
            lambda: cluster.Locate(cluster_pb2.LocateRequest(computations=["nobody"], epochs=[1, 2])),
            lambda: cluster.ListShards(cluster_pb2.ListShardsRequest()),
            lambda: cluster.Drain(cluster_pb2.DrainRequest(address="nowhere:1")),
            lambda: cluster.Pin(cluster_pb2.PinRequest(computation="a", address="nowhere:1")),
            lambda: cluster.Pin(cluster_pb2.PinRequest(computation="nobody", address="nowhere:1")),
        ]
        told = set()
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            error = error_of_call(refused.value, server.address)
            told.add((refused.value.code(), error.reason, error.message))
    [(code, reason, message)] = told
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert "lowwater serve --store redis://" in message
    said = [cli(server, *words) for words in (("shards",), ("drain", "x:1"), ("pin", "a", "x:1"), ("pin", "no", "x:1"))]
    assert {(code, text.partition(": ")[2]) for code, text in said} == {(2, message + "\n")}


def cli(server: Serving, *words: str) -> tuple[int, str]:
    """The exit code of the command, and what it says."""
    command = [sys.executable, "-m", "lowwater.cli", *words, "--address", server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


# -- too large a message -------------------------------------------------------------------------------------------------


def test_a_message_beyond_64_mb_is_refused_readably(
    server: Serving, lw: lowwater.Client, lease: lowwater.Lease
) -> None:
    with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
        worker = workers_pb2_grpc.WorkerServiceStub(channel)
        graph = topology_pb2_grpc.TopologyServiceStub(channel)
        large = workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=b"x" * BIG, stream=1))
        calls: list[Callable[[], object]] = [
            lambda: graph.Register(topology_pb2.RegisterRequest(name="x" * BIG), timeout=30),
            lambda: list(worker.Report(iter([large]), timeout=30)),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in (refused.value.details() or "")
    goes_on(lease, lw)


def test_the_client_says_so_too(lw: lowwater.Client, lease: lowwater.Lease) -> None:
    with pytest.raises(lowwater.LowwaterError, match=r"RESOURCE_EXHAUSTED .*larger than max .*67108864"):
        lw.register("x" * BIG)
    goes_on(lease, lw)


# -- a message that never came -------------------------------------------------------------------------------------------


class Lossy(workers.WorkerServicer):
    """Loses one report of every stream while it is told to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loses = threading.Event()
        self.lost = threading.Event()

    async def Report(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in super().Report(self._thinned(request_iterator), context):
            yield response

    async def _thinned(self, request_iterator: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in request_iterator:
            if self.loses.is_set() and request.HasField("report"):
                self.loses.clear()
                self.lost.set()
            else:
                yield request


@contextlib.contextmanager
def lossy() -> Iterator[tuple[str, Lossy]]:
    """Serve in a thread; returns where, and the servicer."""
    started = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        authority = Authority(MemoryJournal(MemoryDisk()), clock=lambda: 1000 * HOUR, observer=Observer())
        authority._workers = servicer = Lossy(authority._services)
        await authority.recover()
        server = grpc.aio.server()
        authority.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stop = asyncio.Event()
        found.extend([f"127.0.0.1:{port}", servicer, asyncio.get_running_loop(), stop])
        rounds = asyncio.create_task(authority.run())
        started.set()
        await stop.wait()
        authority.leave()
        await server.stop(None)
        await rounds

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    try:
        yield found[0], found[1]
    finally:
        found[2].call_soon_threadsafe(found[3].set)
        thread.join()


def low_after_a_lost_lowering(monkeypatch: pytest.MonkeyPatch) -> int:
    """Where a computation stands whose ranges went down and up in one report of two messages, the first of which was lost."""
    with lossy() as (address, servicer), lowwater.connect(address) as lw:
        lw.register("a")
        lease = lw.worker("a").claim(bounds=[b"", b"m", b""])
        lease.advance(None, oldest=[14 * HOUR, 10 * HOUR], frontier=15 * HOUR)
        lease.flush()
        monkeypatch.setattr("lowwater._core.reports.MESSAGE_WORDS", 2)
        servicer.loses.set()
        lease.advance(None, oldest={0: 12 * HOUR, 1: None}, frontier=15 * HOUR)
        lease.flush(30)
        assert servicer.lost.is_set()
        assert lw.statistics().reporter.streams == 1 + (workers._follows is FOLLOWS)
        return lw.get("a")["a"].low.micros // HOUR


FOLLOWS = workers._follows


def test_rule8_a_client_whose_report_was_lost_sends_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert low_after_a_lost_lowering(monkeypatch) == 12


@pytest.mark.xfail(strict=True, reason="breaks when the numbers are not looked at")
def test_rule8_breaks_when_gaps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_follows", lambda number, newest: number > newest)
    assert low_after_a_lost_lowering(monkeypatch) == 12


# -- what a worker says --------------------------------------------------------------------------------------------------

SAYS: dict[str, Callable[[lowwater.Lease, Any], object]] = {
    "frontier": lambda lease, t: lease.advance(None, oldest=None, frontier=t),
    "oldest": lambda lease, t: lease.advance(None, oldest=t if not isinstance(t, list) else 1.5, frontier=5),  # type: ignore[arg-type]
    "oldest of one": lambda lease, t: lease.advance(None, oldest={0: t}, frontier=5),
    "oldest of each": lambda lease, t: lease.advance(None, oldest=[5, t], frontier=5),
    "pending": lambda lease, t: lease.advance(None, oldest=None, frontier=5, pending=[t]),
    "oldest_operation": lambda lease, t: lease.advance(None, oldest=None, frontier=5, oldest_operation=t),
}


@pytest.mark.parametrize("name", SAYS)
@given(time=BAD_TIMES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_no_event_time_is_not_said(lw: lowwater.Client, lease: lowwater.Lease, name: str, time: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        SAYS[name](lease, time)
    assert FIX.search(str(error.value))


def test_after_all_that_the_lease_stands_where_it_stood(lw: lowwater.Client, lease: lowwater.Lease) -> None:
    goes_on(lease, lw)
    low = lw.get("a")["a"].low
    wrong: list[Any] = [np.array([[1, 2]]), [1, 2, 3], {2: 5}, {-1: 5}]
    for bad in wrong:
        with pytest.raises((ValueError, lowwater.InvalidArgument)):
            lease.advance(None, oldest=bad, frontier=low)
    with pytest.raises(lowwater.FinishRequired):
        lease.advance(None, oldest=None, frontier=Watermark.FINISHED)
    with pytest.raises(lowwater.InvalidArgument, match="finished=-1"):
        lease.advance(None, oldest=None, frontier=low, finished=-1)
    assert lw.get("a")["a"].low == low
    goes_on(lease, lw)


# -- a second server -----------------------------------------------------------------------------------------------------


def second(data: Path) -> tuple[int, str]:
    """Start another server on the data; its exit code and what it says."""
    command = [sys.executable, "-m", "lowwater_authority", "--data", str(data), "--listen", "127.0.0.1:0"]
    ended = subprocess.run([*command, "--http", "off"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def test_a_second_server_is_refused_also_while_the_first_is_stopped(
    server: Serving, lw: lowwater.Client, lease: lowwater.Lease
) -> None:
    assert server.process is not None
    pid = server.process.pid
    for stopped in (False, True, False):
        if stopped:
            server.freeze()
        try:
            code, said = second(server.data)
        finally:
            if stopped:
                server.signal(signal.SIGCONT)
        assert code == 2
        assert said.startswith("lowwater serve: ")
        assert f"in use by process {pid} on host" in said
        assert "stop that process" in said
        assert len(said.splitlines()) == 1
    goes_on(lease, lw)
