"""The authority goes on over messages that are none, and beside a second server that is refused."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import lowwater
from lowwater import Watermark
from lowwater.v1 import topology_pb2, topology_pb2_grpc
from tests.kit.times import HOUR
from tests.process.conftest import Refused
from tests.process.peer import reason
from tests.process.serving import Serving, serving


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
    low = max(lw.get("a")["a"].low.micros, 0) + HOUR
    lease.advance(None, oldest=None, frontier=low)
    lease.flush()
    assert lw.get("a")["a"].low == Watermark(low)


def garbage() -> Iterator[bytes]:
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


ASKS = {"Watch": "WatermarkService", "Claim": "WorkerService", "Report": "WorkerService", "Locate": "ClusterService"}
UNREADABLE = (b"\xff\xff\xff", b"\x0a\x02\xff\xfe")
"""Bytes that are no message, and a text that is not UTF-8."""


def raw(channel: grpc.Channel, method: str, body: bytes) -> grpc.RpcError:
    kind: Any = {"Watch": channel.unary_stream, "Report": channel.stream_stream}.get(method, channel.unary_unary)
    call = kind(f"/lowwater.v1.{ASKS[method]}/{method}")
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(call(iter([body]) if method == "Report" else body, timeout=30)))
    return refused.value


def test_what_cannot_be_read_is_invalid_argument(server: Serving, lw: lowwater.Client, lease: lowwater.Lease) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for method in ASKS:
            for body in UNREADABLE:
                failure: Any = raw(channel, method, body)
                code, why, facts = reason(failure)
                assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"), method
                assert "generate the client" in facts["fix"]
    assert "Traceback" not in (server.data.parent / "serve.log").read_text()
    goes_on(lease, lw)


def test_a_message_beyond_64_mb_is_refused_readably(server: Serving) -> None:
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        graph = topology_pb2_grpc.TopologyServiceStub(channel)
        for size, text in ((8 << 20, "Register takes"), (65 << 20, "larger than max")):
            with pytest.raises(grpc.RpcError) as refused:
                graph.Register(topology_pb2.RegisterRequest(name="x" * size), timeout=30)
            assert text in (refused.value.details() or "")


def test_a_second_server_is_refused_also_while_the_first_is_stopped(
    server: Serving, lw: lowwater.Client, lease: lowwater.Lease, refused_start: Refused
) -> None:
    assert server.process is not None
    pid = server.process.pid
    for stopped in (False, True, False):
        if stopped:
            server.freeze()
        try:
            error = refused_start("--data", str(server.data))
        finally:
            if stopped:
                server.signal(signal.SIGCONT)
        assert error.startswith("lowwater serve: ")
        assert f"in use by process {pid} on host" in error
        assert "stop that process" in error
        assert len(error.splitlines()) == 1
    goes_on(lease, lw)
