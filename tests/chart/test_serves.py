"""The container's command as a real process, and what its probes would hear."""

from __future__ import annotations

import os
import re
import socket
import ssl
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from http.client import HTTPSConnection
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.chart.rendering import container, of_kind, program
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.program import run_program
from tests.process.serving import Serving

pytestmark = pytest.mark.process

SERVING = health_pb2.HealthCheckResponse.SERVING
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class Contained(Serving):
    """A server as the container of a set of values runs it, with its folders below one of the test."""

    def __init__(self, folder: Path, name: str) -> None:
        # Below the ports that the system gives to connections: with Redis its address is known before it starts.
        super().__init__(folder / "data", port=free_port())
        self.folder = folder
        self.container = container(name)

    def program(self) -> list[str]:
        return [program(self.container["command"][0]), *self.container["command"][1:]]

    def journal(self) -> list[str]:
        return self.mapped(self.container["args"])

    def mapped(self, arguments: Sequence[str]) -> list[str]:
        address = re.compile(r"^(--(?:advertise|address))=.*:7420$")
        return [address.sub(rf"\1={self.address}", word).replace("=/", f"={self.folder}/") for word in arguments]

    def got(self, path: str, **headers: str) -> int:
        """The status of a page over HTTPS, asked as the kubelet does: it does not look at the certificate."""
        anybody = ssl.create_default_context()
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        with closing(HTTPSConnection(urlsplit(self.metrics).netloc, timeout=30, context=anybody)) as connection:
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status


def healthy(channel: grpc.Channel, probe: Mapping[str, Any]) -> Any:
    request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
    health: Any = health_pb2_grpc.HealthStub(channel)
    return health.Check(request, timeout=30).status


def test_the_default_command_serves_and_answers_its_probes(tmp_path: Path) -> None:
    with Contained(tmp_path, "default") as server, server.channel() as channel:
        assert {healthy(channel, server.container[probe]) for probe in PROBES} == {SERVING}
        assert (tmp_path / "data/journal.sqlite").exists(), "the journal is on the volume"
        assert server.stop() == 0


def test_the_secured_command_serves_and_minds_no_lost_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("lw-lowwater.prod.svc", "127.0.0.1")
    secrets = tmp_path / "etc/lowwater"
    (secrets / "tls").mkdir(parents=True)
    (secrets / "access").mkdir()
    authority.cert_pem.write_to_path(secrets / "tls/ca.crt")
    certificate.private_key_pem.write_to_path(secrets / "tls/tls.key")
    (secrets / "tls/tls.key").chmod(0o440)
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(secrets / "tls/tls.crt", append=True)
    [texts] = (manifest for manifest in of_kind("secured", "Secret") if "access.toml" in manifest["data"])
    config = b64decode(texts["data"]["access.toml"]).decode()
    scraper = sha256(b"scraper").hexdigest()
    config = config.replace("a" * 64, scraper) + dedent(f"""
        [[principal]]
        name = "reader"
        token_sha256 = ["{sha256(b"reader").hexdigest()}"]
        [[principal.allow]]
        namespace = "*"
        read = ["*"]
    """)
    assert scraper in config
    (secrets / "access/access.toml").write_text(config)
    with RedisServer(tmp_path / "redis", *DURABLE) as redis:
        redis.start()
        texts = {"LOWWATER_STORE_FILE": redis.url, "LOWWATER_PEER_TOKEN_FILE": "x" * 43}
        for variable in container("secured")["env"]:
            if text := texts.pop(variable["name"], ""):
                file = tmp_path / variable["value"].lstrip("/")
                file.parent.mkdir()
                file.write_text(text)
                monkeypatch.setenv(variable["name"], str(file))
        assert not texts
        with Contained(tmp_path, "secured") as server:
            assert server.metrics.startswith("https:")
            startup, readiness, liveness = (server.container[probe] for probe in PROBES)
            assert {server.got(probe["httpGet"]["path"]) for probe in (startup, readiness)} == {200}
            ports = {port["name"]: port["containerPort"] for port in server.container["ports"]}
            assert ports[liveness["tcpSocket"]["port"]] == 7420
            host, port = server.address.rsplit(":", 1)
            socket.create_connection((host, int(port)), timeout=30).close()
            [monitor] = of_kind("secured", "ServiceMonitor")
            metrics = monitor["spec"]["endpoints"][0]["path"]
            assert server.got(metrics) == 401
            assert server.got(metrics, Authorization="Bearer scraper") == 200
            [pod] = of_kind("secured", "Pod")
            test, _ = pod["spec"]["containers"]
            command = [program(test["command"][0]), *test["command"][1:], *server.mapped(test["args"])]
            environment = {**os.environ, "LOWWATER_TOKEN": "reader"}
            result = run_program(command, env=environment, timeout=60)
            assert result.returncode == 0, result.stderr

            # Redis goes away. Probes that fail now would restart every shard at once, and take away what they have in memory.
            redis.kill()
            eventually(lambda: '"cut_off"' in (tmp_path / "serve.log").read_text())
            assert server.got("/healthz") == 200
            root, key = authority.cert_pem.bytes(), certificate.private_key_pem.bytes()
            chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
            with grpc.secure_channel(server.address, grpc.ssl_channel_credentials(root, key, chain)) as channel:
                assert {healthy(channel, container("redis")[probe]) for probe in PROBES} == {SERVING}
