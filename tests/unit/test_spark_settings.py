"""Stages convert Spark's paths in their three forms, and learn how the authority and Kafka are reached."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.settings import SparkSettings, connection
from lowwater_spark.sidecar.command import Heartbeat, QueryWatch, may_pass
from lowwater_spark.sidecar.watch import settings_here
from lowwater_spark.sources.kafka.admin import KafkaAdmin
from lowwater_spark.sources.kafka.client import client_settings
from lowwater_spark.sources.kafka.paced import PACE
from lowwater_spark.track.state import receipt
from lowwater_spark.track.state.receipt import Destination

ODD = ["a blank", "a%20b", "t#1", "what?", "a[1]", "{a,b}", "a:b", "größe-日本", "back\\slash", "line\u2028break"]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(("scheme", "authority"), [("", ""), ("file", ""), ("hdfs", "one:8020"), ("s3a", "bucket")])
def test_each_form_gives_the_path_back(name: str, scheme: str, authority: str) -> None:
    path = SparkPath(f"/data/{name}/x", scheme, authority)
    assert SparkPath.of_text(path.text) == path
    assert SparkPath.of_uri(path.uri) == path
    assert path.uri.isascii()


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        # As Java writes them: letters beyond ASCII stay, and of slashes there may be one or three.
        ("file:/my%20warehouse/orders", "/my warehouse/orders"),
        ("file:///my%20warehouse/orders", "/my warehouse/orders"),
        ("file:/gr\u00f6\u00dfe/t%231", "/größe/t#1"),
        ("file:/a%2520b", "/a%20b"),
        ("file:/a+b:c", "/a+b:c"),
    ],
)
def test_a_uri_of_java_is_read(uri: str, path: str) -> None:
    assert SparkPath.of_uri(uri) == SparkPath(path, "file")


def test_a_path_elsewhere_is_not_local() -> None:
    assert SparkPath.of_text("hdfs://one:8020/t").local is None
    assert SparkPath.of_text("hdfs://one:8020/t").below("k=1/a.parquet").text == "hdfs://one:8020/t/k=1/a.parquet"


def test_spark_paths_are_converted_in_one_place() -> None:
    """Whoever escapes or unescapes by hand takes one form for another, sooner or later."""
    root = Path(__file__).parents[2] / "spark_listener/src/lowwater_spark"
    files = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "urllib.parse"
        if {name.name for name in node.names} & {"unquote", "urlsplit", "urlparse"}
    }
    assert files == {"checkpoint/spark_path.py"}


@pytest.mark.parametrize(("name", "inner"), [("attach", "attach.book"), ("drive", "drive.plan")])
def test_a_folder_never_hides_the_function_of_its_name(name: str, inner: str) -> None:
    importlib.import_module(f"lowwater_spark.{inner}")
    assert inspect.isfunction(getattr(lws, name))


EMPTY: dict[str, str] = {}


def conf(**settings: str) -> SparkSettings:
    return connection({f"spark.lowwater.{name}": value for name, value in settings.items()}.get)


def test_the_argument_goes_before_the_session_and_that_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWWATER_ADDRESS", "environment:1")
    assert connection(EMPTY.get).address == "environment:1"
    session = {"spark.lowwater.address": "session:1", "spark.lowwater.token": "t"}
    assert connection(session.get).address == "session:1"
    chosen = connection(session.get, "argument:1")
    assert (chosen.address, chosen.token) == ("argument:1", "t")
    monkeypatch.delenv("LOWWATER_ADDRESS")
    assert connection(EMPTY.get).address == "localhost:7420"
    assert connection({"spark.lowwater.address": "there"}.get).addresses == ("there:7420",)
    with pytest.raises(errors.InvalidArgument):
        connection(EMPTY.get, "")


def test_names_of_files_travel_and_their_contents_do_not(tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    key.write_bytes(b"the private key")
    certificate.write_bytes(b"the certificate")
    settings = conf(key=str(key), certificate=str(certificate), token="t", serverToken="deployment", namespace="team")
    assert (settings.server_token, settings.namespace) == ("deployment", "team")
    assert settings.encrypted
    assert settings.credentials is not None
    # The driver's quick client has other time-outs; what a task gets is that client's.
    shipped = pickle.dumps(Destination(dataclasses.replace(settings, timeout=1.0), "stage", 1))
    assert b"the private key" not in shipped
    arrived = pickle.loads(shipped).settings
    assert (arrived.private_key, arrived.timeout, arrived.token) == (None, 1.0, "t")
    here = arrived.read()
    assert (here.root_certificates, here.private_key, here.certificate_chain) == (
        None,
        b"the private key",
        b"the certificate",
    )
    assert (here.timeout, here.token, here.namespace) == (1.0, "t", "team")


def test_a_token_file_is_read_where_the_call_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    shipped = pickle.dumps(conf(tokenFile=str(file)))
    assert b"first" not in shipped
    settings = pickle.loads(shipped)
    for token in ("first", "second"):
        file.write_text(token)
        assert settings.metadata == (("authorization", f"Bearer {token}"),)
    monkeypatch.setenv("LOWWATER_TOKEN", "start")
    monkeypatch.setenv("LOWWATER_TOKEN_FILE", str(file))
    assert settings_here().token == "second"
    file.unlink()
    with pytest.raises(errors.InvalidArgument, match=rf"^LOWWATER_TOKEN_FILE is '{file}', which cannot be read \("):
        settings_here()


def test_a_file_that_an_executor_does_not_have_is_a_refusal_and_no_channel_without_tls(tmp_path: Path) -> None:
    """The task's call fails with a reason, which holds the stage."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes(b"pem")
    settings = pickle.loads(pickle.dumps(conf(ca=str(ca), token="t")))
    ca.unlink()
    assert settings.encrypted
    assert settings.credentials is not None
    with pytest.raises(errors.InvalidArgument, match=r"spark\.lowwater\.ca.*same absolute path"):
        receipt._client(settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ca": "certs/ca.pem"}, "bare name"),
        ({"key": "/etc/tls.key"}, "belong together"),
        ({"ca": "/nowhere/ca.pem"}, "cannot be read here"),
        ({"tokenFile": "/nowhere/token"}, "cannot be read here"),
        ({"tokenFile": "token"}, "cannot be read here"),
    ],
)
def test_settings_that_mean_nothing_are_refused_at_the_start(settings: dict[str, str], reason: str) -> None:
    with pytest.raises((ValueError, errors.InvalidArgument), match=reason):
        conf(**settings)


def test_both_clients_of_kafka_are_told_how_a_secured_cluster_is_reached_each_by_its_own_names(tmp_path: Path) -> None:
    """The one that reads at one pace; and the one in Spark's JVM, which asks about the same topics."""
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"the {name}")
    same = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL"}
    secured = {**same, "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": 'a"b'}
    secured |= {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    options = {f"kafka.{name}": value for name, value in secured.items()}
    assert secured.items() <= client_settings(options, "read_kafka").items()
    properties = KafkaAdmin(None, {**options, PACE: "folder"}).properties
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    jvm = {
        **same,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{login} username="me" password="a\\"b";',
        "ssl.truststore.certificates": "the ca",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.certificate.chain": "the certificate",
        "ssl.keystore.key": "the key",
        "ssl.keystore.type": "PEM",
    }
    assert jvm.items() <= properties.items()
    assert not properties.keys() & (secured.keys() - jvm.keys())
    assert secured.items() <= KafkaAdmin(None, options).properties.items(), "Spark's own source has one client"


def test_a_heartbeat_waits_for_each_query_that_is_still_tracked(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    heartbeat = Heartbeat(file)
    for turns, beats in (
        ({"a": (0, 0), "b": (0, 0)}, True),
        ({"a": (0, 1), "b": (0, 0)}, False),
        ({"a": (0, 2), "b": (0, 0)}, False),
        ({"a": (0, 2), "b": (1, 0)}, True),
        ({"a": (0, 2)}, False),
        ({"a": (1, 0)}, True),
    ):
        file.unlink()
        heartbeat.look(turns)
        assert file.exists() == beats, turns
        file.touch()
    with pytest.raises(FileNotFoundError):
        Heartbeat(tmp_path / "no folder" / "heartbeat")
    Heartbeat(None).look({"a": (0, 1)})


class OneAttempt(threading.Event):
    """Set as soon as somebody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def test_a_query_is_tried_again_while_its_token_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWWATER_TOKEN_FILE", str(tmp_path / "token"))
    spec: dict[str, Any] = {"name": "a", "checkpoint": str(tmp_path), "inputs": ["b"], "sources": [f"files:{tmp_path}"]}
    query = {**spec, "promises": ["sink-visible-before-commit", "nothing-skipped"]}
    one = QueryWatch(query, state=str(tmp_path), address=None, session=None)
    one.stopping = OneAttempt()
    one.run()
    assert not one.refused
    assert one.turn == (2, 0), "the checkpoint is one step, and the attempt another"
    assert may_pass(errors.Unauthenticated("unknown token"))
    assert not may_pass(errors.PermissionDenied("of another principal"))
    assert not may_pass(errors.InvalidArgument("name", metadata={"field": "name"}))
