"""The access file while it is served: read again, refused when it is bad, its limits; and that no secret is ever shown."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import lowwater
from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.v1 import watermarks_pb2, workers_pb2
from lowwater_authority.access.file import AccessFile
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.process.accessing import (
    CALLS,
    PATIENCE,
    SOON,
    Rules,
    Tokens,
    Wire,
    bearer,
    digest,
    messages,
    rules_of,
    write,
)
from tests.process.conftest import Refused
from tests.process.serving import Serving
from tests.process.sharding import Shard

EVERYTHING: Rules = [("*", {"report": ["*"], "read": ["*"], "operate": ["*"]})]
FLIGHTS: Rules = [("flights", {"report": ["*"], "read": ["*"]})]


class Changing:
    def __init__(self, folder: Path, *flags: str) -> None:
        self.path = folder / "access.toml"
        self.tokens = Tokens()
        self.server = Serving(folder / "data", "--access", str(self.path), "--log-format", "json", *flags)
        self.server.constants = SOON

    def allow(self, limits: str = "", **rules: Rules) -> None:
        parts = [rules_of(name, self.tokens[name], allowed) for name, allowed in rules.items()]
        write(self.path, "".join([*parts, limits]))

    def connect(self, name: str, **options: Any) -> lowwater.Client:
        return lowwater.connect(self.server.address, token=self.tokens[name], timeout=PATIENCE, **options)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    changing_ = Changing(tmp_path)
    changing_.allow(admin=EVERYTHING, leaver=FLIGHTS)
    with changing_.server:
        yield changing_


def ended(call: Any) -> list[errors.LowwaterError]:
    failures: list[errors.LowwaterError] = []

    def follow() -> None:
        try:
            for _ in call:
                pass
        except grpc.RpcError as failure:
            failures.append(error_of_call(failure, "here"))

    threading.Thread(target=follow, daemon=True).start()
    return failures


def test_who_is_removed_is_cut_off_and_who_is_not_goes_on(changing: Changing) -> None:
    with changing.connect("admin") as lw, changing.server.channel() as channel:
        for name in ("flights/a", "flights/b"):
            lw.register(name)
        lease, staying = lw.worker("flights/a").claim(), lw.worker("flights/b").claim()
        wire, metadata = Wire(channel, changing.server.address), bearer(changing.tokens["leaver"])
        request = watermarks_pb2.WatchRequest(computations=["flights/a"])
        watch = ended(wire.stubs.watermarks.Watch(request, metadata=metadata))
        everything = ended(wire.stubs.watermarks.Watch(watermarks_pb2.WatchRequest(), metadata=metadata))
        open_end = threading.Event()

        def reports() -> Iterator[workers_pb2.ReportRequest]:
            yield next(messages([]))
            open_end.wait(PATIENCE)

        report = ended(wire.stubs.workers.Report(reports(), metadata=metadata))
        others = ended(wire.stubs.watermarks.Watch(request, metadata=bearer(changing.tokens["admin"])))
        eventually(lambda: lw.get("flights/a")["flights/a"].registered)

        # Still there, with fewer rights: what follows a name by its name ends, what follows all does not.
        changing.allow(admin=EVERYTHING, leaver=[("flights", {"read": ["b"]})])
        eventually(lambda: bool(watch))
        assert isinstance(watch[0], errors.PermissionDenied)
        assert not everything
        assert not report

        changing.allow(admin=EVERYTHING)
        eventually(lambda: bool(everything) and bool(report))
        open_end.set()
        for cut in (everything, report):
            assert isinstance(cut[0], errors.Unauthenticated)
        assert isinstance(wire.attempt("GetWatermarks", metadata, "flights/b"), errors.Unauthenticated)

        assert not others
        for one, low in ((lease, 3), (staying, 4)):
            one.advance(None, oldest=None, frontier=low)
            one.flush(timeout=PATIENCE)
        assert [view.low.micros for view in lw.get("flights/a", "flights/b").values()] == [3, 4]


READING: Rules = [("flights", {"read": ["*"], "report": ["b"]})]


def rights_change(changing: Changing, **rules: Any) -> None:
    before = len(changing.server.events("access_read"))
    changing.allow(**rules)
    eventually(lambda: len(changing.server.events("access_read")) > before)


def low(lw: lowwater.Client, name: str = "flights/a") -> int:
    return lw.get(name)[name].low.micros


def test_rule8_the_client_sends_its_full_state_when_its_right_is_back(changing: Changing) -> None:
    with changing.connect("admin") as lw, changing.connect("leaver") as worker:
        for name in ("flights/a", "flights/b"):
            lw.register(name)
        lease, beside = worker.worker("flights/a").claim(bounds=[b"", b"m", b""]), worker.worker("flights/b").claim()
        lease.advance(None, oldest={0: 100, 1: 60}, frontier=1000)
        lease.flush(timeout=PATIENCE)
        rights_change(changing, admin=EVERYTHING, leaver=READING)
        lease.advance(None, oldest={0: 70}, frontier=1000)
        with pytest.raises(errors.PermissionDenied, match="report on 'a'"):
            lease.flush(timeout=PATIENCE)
        rights_change(changing, admin=EVERYTHING, leaver=FLIGHTS)
        lease.advance(None, oldest={1: 90}, frontier=1000)
        beside.advance(None, oldest=None, frontier=5)
        beside.flush(timeout=PATIENCE)
        eventually(lambda: low(lw) != 60)
        assert low(lw) == 70
        lease.flush(timeout=PATIENCE)
        assert low(lw) == 70


@pytest.mark.parametrize("flag", ["--access", "--promises"])
def test_a_bad_file_at_the_start_is_refused(tmp_path: Path, refused_start: Refused, flag: str) -> None:
    path = tmp_path / "rules.toml"
    error = refused_start(flag, str(path))
    assert f"{flag} {path} cannot be read: No such file or directory; name a file" in error


def test_an_unfollowed_file_ends_it(tmp_path: Path, refused_start: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever is removed would stay for as long as it runs."""

    async def die(file: AccessFile) -> None:
        raise RuntimeError(f"{file.path.name} is followed by nobody")

    monkeypatch.setattr(AccessFile, "watch", die)
    path = tmp_path / "access.toml"
    write(path, rules_of("etl", "x", FLIGHTS))
    error = refused_start("--access", str(path), "--data", str(tmp_path / "data"))
    assert "the access file is not followed any more: access.toml is followed by nobody" in error


def test_shards_need_each_others_token(tmp_path: Path, refused_start: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "access.toml"
    path.write_text(rules_of("etl", "x", FLIGHTS))
    flags = ("--access", str(path), "--store", "redis://127.0.0.1:1", "--advertise", "here:1")
    monkeypatch.delenv("LOWWATER_PEER_TOKEN", raising=False)
    assert "LOWWATER_PEER_TOKEN is missing" in refused_start(*flags)
    monkeypatch.setenv("LOWWATER_PEER_TOKEN", "hush-hush")
    error = refused_start(*flags)
    assert "LOWWATER_PEER_TOKEN has a token of less than 32 characters; set" in error
    assert "hush" not in error


def test_a_port_that_is_open_to_all_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lowwater_authority", "--http", "off", "--log-format", "json", "--data"]
    with (tmp_path / "open.log").open("w") as log:
        opened = subprocess.Popen(
            [*command, str(tmp_path / "data"), "--listen", "0.0.0.0:0"], stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert opened.stdout is not None
        with opened.stdout as output:
            assert "serving on" in output.readline()
            opened.kill()
            opened.wait(PATIENCE)
    events = [json.loads(line) for line in (tmp_path / "open.log").read_text().splitlines()]
    [warned] = [event for event in events if event["event"] == "open_to_all"]
    assert "whoever reaches 0.0.0.0:0 may do everything, and whoever reaches the page sees" in warned["message"]
    assert "give --access to say who may do what" in warned["message"]


def overloaded(refused: errors.LowwaterError | None, bound: str) -> errors.LowwaterError:
    assert refused is not None
    assert type(refused) is errors.Overloaded, refused
    assert refused.metadata["bound"] == bound
    return refused


def test_what_one_principal_may_take_is_limited(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    changing.allow("[limits]\nstreams = 2\nranges = 4\nmessage_bytes = 100000\n", admin=EVERYTHING, other=EVERYTHING)
    with changing.server, changing.server.channel() as channel:
        wire, metadata = Wire(channel, changing.server.address), bearer(changing.tokens["admin"])
        assert wire.attempt("Register", metadata, "n/a") is None
        four = [b"", b"1", b"2", b"3", b""]
        assert wire.attempt("Claim", metadata, "n/a", bounds=four) is None
        overloaded(wire.attempt("Claim", metadata, "n/a", bounds=[b"", b"1", b"2", b"3", b"4", b""]), "ranges")
        large = wire.attempt("Claim", metadata, "n/a", worker="x" * 200_000)
        assert large is not None
        assert "larger than max" in large.message
        request = watermarks_pb2.WatchRequest()
        watches = [wire.stubs.watermarks.Watch(request, metadata=metadata) for _ in range(2)]
        for watch in watches:
            next(iter(watch))
        for rpc in ("Watch", "Report"):
            assert overloaded(wire.attempt(rpc, metadata, "n/a"), "streams").retry_after == 1.0
        assert wire.attempt("Watch", bearer(changing.tokens["other"]), "n/a") is None
        watches[0].cancel()
        eventually(lambda: wire.attempt("Watch", metadata, "n/a") is None)


def test_a_request_of_nobody_is_not_even_read(changing: Changing) -> None:
    """Else whoever reaches the port could fill the memory."""
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(changing.server.address, options=options) as channel:
        wire, huge = Wire(channel, changing.server.address), "x" * (48 << 20)
        assert isinstance(wire.attempt("Register", (), "x"), errors.Unauthenticated)
        before = changing.server.memory("VmHWM")
        for rpc in ("Register", "Claim", "CheckComplete", "Watch"):
            assert isinstance(wire.attempt(rpc, (), huge), errors.Unauthenticated)
        assert changing.server.memory("VmHWM") - before < 8 << 20


def fetch(url: str, trust: Path, token: str = "") -> str:
    """A page over HTTPS, or what it is refused with."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=str(trust))
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
            return str(answer.read())
    except urllib.error.HTTPError as error:
        return f"{error} {error.headers} {error.read()!r}"


def test_no_secret_is_shown_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server as talkative as it gets, over a store with a password, refuses everything that it can."""
    password, peers = "pass-word-of-the-store", "peer-token-of-all-the-shards-together"
    tokens = Tokens()
    ca = trustme.CA()
    pair = ca.issue_cert("127.0.0.1", "localhost")
    trust, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    ca.cert_pem.write_to_path(trust)
    pair.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    for pem in pair.cert_chain_pems:
        pem.write_to_path(cert, append=True)
    path = tmp_path / "access.toml"
    write(
        path,
        rules_of("admin", tokens["admin"], EVERYTHING, "page = true\nmetrics = true")
        + rules_of("idle", tokens["idle"], []),
    )
    redis = RedisServer(tmp_path / "redis", *DURABLE, "--requirepass", password)
    redis.start()
    url = tmp_path / "store"
    url.write_text(f"redis://:{password}@127.0.0.1:{redis.port}\n")
    monkeypatch.setenv("LOWWATER_STORE_FILE", str(url))
    monkeypatch.setenv("LOWWATER_PEER_TOKEN", peers)
    texts: list[str] = []

    class Talkative(Shard):
        def journal(self) -> list[str]:
            return super().journal()[2:]

    files = {"--access": path, "--tls-cert": cert, "--tls-key": key, "--peer-ca": trust}
    flags = ("--verbose", "--reflection", *(f"{flag}={file}" for flag, file in files.items()))
    try:
        talkative = Talkative(tmp_path / "shard", "", *flags)
        talkative.constants = SOON
        talkative.page_at = "127.0.0.1:0"
        with talkative as server:
            assert server.process is not None
            texts += Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")
            with lowwater.connect(
                server.address, token=tokens["admin"], root_certificates=trust.read_bytes(), timeout=PATIENCE
            ) as lw:
                lw.register("a")
                eventually(lambda: len(lw.get("a")) == 1)
                texts += [repr(lw.shards()), repr(lw.topology()), repr(lw.get())]
                with pytest.raises(errors.UnknownComputation) as unknown:
                    lw.ranges("b")
                texts.append(str(unknown.value))
            credentials = grpc.ssl_channel_credentials(trust.read_bytes())
            with grpc.secure_channel(server.address, credentials) as channel:
                wire = Wire(channel, server.address)
                for token in (tokens["admin"], tokens["idle"], tokens["wrong"], peers, ""):
                    for rpc in CALLS:
                        for name in ("a", "n/absent"):
                            refused = wire.attempt(rpc, bearer(token), name, server_token="another")
                            texts.append(f"{refused} {getattr(refused, 'metadata', '')}")
            urls = [f"{server.page}{path}" for path in ("", "api/snapshot", "nothing")]
            for place in (*urls, server.metrics, f"{server.endpoint}nothing"):
                for token in ("", tokens["wrong"], tokens["idle"], tokens["admin"]):
                    texts.append(fetch(place, trust, token))
            write(path, f"[[principal]]\nname = '{'x' * 65}'\ntoken_sha256 = ['{tokens['wrong']}']")
            eventually(lambda: "access_refused" in server.log)
            redis.kill()  # its errors name the store
            eventually(lambda: "cannot" in server.log or "refused" in server.log)
            assert server.stop() in {0, 1}
            texts.append(server.log)
    finally:
        redis.kill()
    assert len(texts) > 200
    for proof in (
        '"event": "audit"',
        "lowwater_watermark_state",
        "computations",
        "no principal has this token",
        "lacks the permission",
    ):
        assert any(proof in text for text in texts), proof
    everything = "\n".join(texts)
    hidden = {"the password": password, "the peers' token": peers, **tokens, "the key": key.read_text().splitlines()[1]}
    assert not [what for what, secret in hidden.items() if secret in everything]
    assert not [what for what in tokens if digest(tokens[what]) in everything]
