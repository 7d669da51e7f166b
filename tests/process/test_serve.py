"""The authority as a process, driven by raw gRPC: what any client in any language meets."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater.v1 import watermarks_pb2
from tests.kit.program import run_program
from tests.process.conftest import Refused
from tests.process.peer import Peer
from tests.process.serving import Serving, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, "--reflection") as one:
        yield one


@pytest.fixture
def peer(server: Serving) -> Iterator[Peer]:
    one = Peer(server)
    yield one
    one.sent.put(None)
    one.channel.close()


def test_a_planned_stop_tells_clients_first(server: Serving, peer: Peer) -> None:
    peer.register("a")
    down = peer.open()
    next(down)
    watching = peer.watermarks.Watch(watermarks_pb2.WatchRequest())
    assert next(watching).watermarks
    server.signal(signal.SIGTERM)
    assert next(down).HasField("go_away")
    assert [message.go_away.retry_after_millis > 0 for message in watching if message.HasField("go_away")] == [True]
    assert server.wait() == 0


def test_health_reflection_and_metrics(server: Serving, peer: Peer) -> None:
    stub: Any = health_pb2_grpc.HealthStub(peer.channel)
    for name in ("", "lowwater.v1.WatermarkService"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    assert "lowwater.v1.WorkerService" in ProtoReflectionDescriptorDatabase(peer.channel).get_services()
    peer.register("a")
    claim = peer.claim("a")
    down = peer.open()
    next(down)
    peer.report(1, claim, 14)
    next(down)
    with urllib.request.urlopen(server.metrics) as response:
        text = response.read().decode()
    assert 'lowwater_low_watermark_timestamp_seconds{computation="a"} 50400.0' in text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len([family for family in families if family.startswith("lowwater_")]) >= 12


def test_a_server_that_cannot_start_says_the_fix(server: Serving, tmp_path: Path, refused_start: Refused) -> None:
    used = server.metrics.removeprefix("http://").removesuffix("/metrics")
    for flag, value in {"--data": "/proc/nowhere", "--listen": server.address, "--http": used}.items():
        # Above it may stand what gRPC says of loops that earlier tests of this process have closed.
        assert flag in refused_start("--data", str(tmp_path / "other"), flag, value).splitlines()[-1]


def test_a_folder_for_the_own_socket_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    pair = trustme.CA().issue_cert("localhost")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    flags = ["--data", "data", "--tls-cert", "chain.pem", "--tls-key", "key.pem", "--listen", "127.0.0.1:0"]
    refused = run_program(
        [sys.executable, "-m", "lowwater_authority", *flags, "--http", "127.0.0.1:0"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": "/proc/nowhere"},
        timeout=60,
    )
    assert refused.returncode == 2
    assert "below /proc/nowhere: set TMPDIR" in refused.stderr
    assert not list(tmp_path.glob("lowwater-*"))
