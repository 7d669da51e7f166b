"""TLS and mutual TLS, against real servers and real certificates: who is refused, and what a rotation does to whom."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

import lowwater
from lowwater import errors
from lowwater.cli import main as command
from lowwater.cli.arguments import parser as arguments
from lowwater.cli.commands import open_client
from lowwater_authority.commands.serve_arguments import parser
from lowwater_authority.serve import CannotServe, serve
from lowwater_server.tls import BadCertificate, Certificates, Files
from tests.kit.eventually import eventually
from tests.process.browsing import Answer, ask
from tests.process.serving import Serving, serving
from tests.process.sharding import Shard, Sharded, balanced, spread

pytestmark = pytest.mark.process

NOON = 1_767_268_800_000_000
NEVER = datetime(3000, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _own_sockets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed leaves the folder of its socket behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("own")))


@dataclass(frozen=True)
class Authority:
    """One that signs certificates."""

    ca: trustme.CA

    @property
    def root(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def pair(self, *names: str, since: datetime | None = None, until: datetime | None = None) -> tuple[bytes, bytes]:
        cert = self.ca.issue_cert(*names, not_before=since, not_after=until)
        return b"".join(pem.bytes() for pem in cert.cert_chain_pems), cert.private_key_pem.bytes()


OURS, THEIRS = Authority(trustme.CA()), Authority(trustme.CA())


def put(path: Path, content: bytes) -> Path:
    """Write a file as whoever rotates certificates should: in one step, readable by nobody else."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.replace(path)
    return path


def written(folder: Path, pair: tuple[bytes, bytes], client_ca: bytes = b"", peer_ca: bytes = b"") -> list[str]:
    """Write what a server needs; returns the flags."""
    flags = ["--tls-cert", str(put(folder / "chain.pem", pair[0])), "--tls-key", str(put(folder / "key.pem", pair[1]))]
    if client_ca:
        flags += ["--tls-client-ca", str(put(folder / "clients.pem", client_ca))]
    if peer_ca:
        flags += ["--peer-ca", str(put(folder / "peers.pem", peer_ca))]
    return flags


def connect(server: Serving, trusted: Authority, pair: tuple[bytes, bytes] | None = None) -> lowwater.Client:
    chain, key = pair or (None, None)
    return lowwater.connect(
        f"localhost:{server.port}", root_certificates=trusted.root, certificate_chain=chain, private_key=key, timeout=30
    )


def answered(clients: Mapping[str, lowwater.Client]) -> list[str]:
    """Which of some clients a server answers, that answers others. Each repeats itself for as long as it may, so all ask side by side."""

    def is_answered(client: lowwater.Client) -> bool:
        with client, lowwater.Client(replace(client.settings, timeout=2)) as lw:
            try:
                lw.get()
            except (errors.Unavailable, errors.Timeout):
                return False
            return True

    with ThreadPoolExecutor(len(clients)) as pool:
        return [name for name, was in zip(clients, pool.map(is_answered, clients.values()), strict=True) if was]


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.root.decode())
    return context


def page(server: Serving, path: str, trusted: Authority = OURS) -> Answer:
    url = server.page if path.startswith("api/") else server.endpoint
    return ask(url.replace("127.0.0.1", "localhost"), path, tls=trusting(trusted))


def not_after(server: Serving, trusted: Authority) -> float:
    metrics = page(server, "metrics", trusted).body.decode()
    match = re.search(r"^lowwater_certificate_not_after_timestamp_seconds (\S+)$", metrics, re.MULTILINE)
    assert match
    return float(match[1])


def shown(port: int, protocol: str, context: ssl.SSLContext) -> bytes:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", port), 30) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as encrypted,
    ):
        certificate = encrypted.getpeercert(binary_form=True)
    assert certificate
    return certificate


def everywhere(server: Serving) -> set[bytes]:
    """The certificates that new connections are shown, of gRPC, of the metrics and of the page, if there is one."""
    places = [url for url in (server.endpoint, server.page) if url != "off"]
    ports = [int(url.rstrip("/").rpartition(":")[2]) for url in places]
    return {
        shown(port, protocol, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        for port, protocol in ((server.port, "h2"), *((port, "http/1.1") for port in ports))
    }


def leaf(pair: tuple[bytes, bytes]) -> bytes:
    first, mark, _ = pair[0].decode().partition("-----END CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(first + mark)


def standing(lw: lowwater.Client, name: str, micros: int) -> None:
    lw.register(name)
    lease = lw.worker(name).claim()
    lease.advance(None, oldest=None, frontier=micros)
    lease.flush(30)


def test_only_who_trusts_the_server_and_finds_its_name_talks_to_it(tmp_path: Path) -> None:
    pair = OURS.pair("localhost", until=NEVER)
    with serving(tmp_path, *written(tmp_path, pair), page="127.0.0.1:0") as server, connect(server, OURS) as lw:
        standing(lw, "flights", NOON)
        assert lw.get("flights")["flights"].low.micros == NOON
        strangers = {
            "another root": connect(server, THEIRS),
            "nothing is served in the clear": lowwater.connect(server.address),
            "it is not 127.0.0.1": lowwater.connect(server.address, root_certificates=OURS.root),
        }
        assert answered(strangers) == []
        assert answered({"this one": connect(server, OURS)}) == ["this one"]

        assert server.page.startswith("https://")
        assert server.endpoint.startswith("https://")
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            page(server, "healthz", THEIRS)
        with pytest.raises((OSError, ConnectionError)):
            ask(server.endpoint.replace("https", "http"), "healthz")
        # The page asks by a socket of this machine: the certificate is not for 127.0.0.1 either.
        eventually(lambda: [view["name"] for view in page(server, "api/snapshot").json["computations"]] == ["flights"])
        assert not_after(server, OURS) == NEVER.timestamp()
        dates = [event["until"] for event in server.events("certificate_in_force")]
        assert dates == ["3000-01-01T00:00:00Z"] * 2, "the authority, and the page beside it"


def test_a_connection_that_never_shakes_hands_keeps_nobody_waiting(tmp_path: Path) -> None:
    with serving(tmp_path, *written(tmp_path, OURS.pair("localhost"))) as server:
        port = int(server.endpoint.rstrip("/").rpartition(":")[2])
        with ExitStack() as open_connections:
            for _ in range(20):
                open_connections.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            assert page(server, "healthz").status == 200


def test_mutual_tls_takes_those_only_that_show_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setenv("TMPDIR", str(private))
    flags = written(tmp_path, OURS.pair("localhost"), client_ca=THEIRS.root)
    with serving(tmp_path, *flags, page="127.0.0.1:0") as server, connect(server, OURS, THEIRS.pair("etl")) as lw:
        standing(lw, "flights", NOON)
        strangers = {
            "no certificate": connect(server, OURS),
            "signed by another": connect(server, OURS, OURS.pair("etl")),
            "nothing is served in the clear": lowwater.connect(server.address),
        }
        assert answered(strangers) == []
        # The server's own certificate is signed by another as well: it reaches itself where nobody else can.
        eventually(lambda: [view["name"] for view in page(server, "api/snapshot").json["computations"]] == ["flights"])
        [folder] = private.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()
        assert server.stop() == 0
    assert list(private.iterdir()) == []


def test_a_rotation_reaches_new_connections_and_cuts_off_no_old_one(tmp_path: Path) -> None:
    before, after = OURS.pair("localhost"), THEIRS.pair("localhost", until=NEVER)
    with serving(tmp_path, *written(tmp_path, before), page="127.0.0.1:0") as server, connect(server, OURS) as lw:
        standing(lw, "flights", NOON)
        assert everywhere(server) == {leaf(before)}
        written(tmp_path, after)
        assert everywhere(server) == {leaf(after)}
        # It trusts the old root only, so that this is the connection from before.
        standing(lw, "weather", NOON)
        assert answered({"who trusts the old root": connect(server, OURS)}) == []
        with connect(server, THEIRS) as new:
            assert set(new.get()) == {"flights", "weather"}
        assert not_after(server, THEIRS) == NEVER.timestamp()
        eventually(
            lambda: (
                {computation["name"] for computation in page(server, "api/snapshot", THEIRS).json["computations"]}
                == {"flights", "weather"}
            )
        )
        assert len(server.events("certificate_in_force")) == 2 * 2, "the authority, and the page beside it"


def files(folder: Path, pair: tuple[bytes, bytes], **more: bytes) -> Files:
    written(folder, pair)
    files_ = Files(folder / "chain.pem", folder / "key.pem")
    return replace(files_, **{name: put(folder / f"{name}.pem", content) for name, content in more.items()})


def encrypted_key() -> bytes:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(OURS.pair("localhost")[1], None)
    scheme = serialization.BestAvailableEncryption(b"a passphrase")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, scheme)


YESTERDAY = datetime.now(UTC) - timedelta(days=1)
GOOD = OURS.pair("localhost")


@pytest.mark.parametrize(
    ("pair", "more", "text"),
    [
        ((GOOD[0], OURS.pair("localhost")[1]), {}, "do not belong together"),
        (OURS.pair("localhost", until=YESTERDAY), {}, f"--tls-cert expired at {YESTERDAY:%Y-%m-%dT%H:%M:%S}Z"),
        ((GOOD[0], GOOD[0]), {}, "--tls-key: the file has no private key in PEM"),
        ((GOOD[0], encrypted_key()), {}, "--tls-key is encrypted"),
        (GOOD, {"client_ca": b"nothing"}, "--tls-client-ca: the file has no certificates"),
        (GOOD, {"peer_ca": b""}, "--peer-ca: the file has no certificates"),
    ],
    ids=["another pair's key", "expired", "no key", "encrypted", "no authorities", "no authorities of peers"],
)
def test_what_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, pair: tuple[bytes, bytes], more: dict[str, bytes], text: str
) -> None:
    with pytest.raises(BadCertificate) as refusal:
        Certificates(files(tmp_path, pair, **more))
    assert text in str(refusal.value)
    assert "BEGIN" not in str(refusal.value).replace("(-----BEGIN", "")


def test_a_certificate_of_a_clock_ahead_is_taken_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [datetime.now(UTC).timestamp() + 60]
    where = files(tmp_path, GOOD)
    certificates = Certificates(where, clock=lambda: now[0])
    before = certificates.current()
    where.key.unlink()
    assert certificates.current() is before
    assert caplog.text.count("cannot be read") == 1
    files(tmp_path, OURS.pair("localhost", since=datetime.fromtimestamp(now[0] + 30, UTC)))
    for _ in range(3):
        assert certificates.current() is before
    assert caplog.text.count("is valid only from") == 1
    now[0] += 31
    assert certificates.current() is not before


def test_flags_that_encrypt_nothing_are_refused() -> None:
    for flag, needed in (("cert", "key"), ("key", "cert"), ("client-ca", "cert")):
        flags = [f"--tls-{flag}", "a.pem", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with ExitStack() as leaving, pytest.raises(CannotServe, match=f"--tls-{flag} needs --tls-{needed}"):
            asyncio.run(serve(parser().parse_args(flags), leaving))


def test_a_file_that_changes_twice_within_its_time_of_change_is_read_again(tmp_path: Path) -> None:
    """File systems tell times of change to some milliseconds, or worse; the size is the same anyway."""
    one, other = OURS.root, THEIRS.root
    where = files(tmp_path, GOOD, client_ca=one)
    assert where.client_ca is not None
    state = where.client_ca.stat()
    certificates = Certificates(where, clock=lambda: state.st_mtime + 0.5)
    assert certificates.current().client_ca == one
    with where.client_ca.open("r+b") as opened:  # the same file
        opened.truncate(0)
        opened.write(other)
    os.utime(where.client_ca, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert certificates.current().client_ca == other


def test_a_key_that_everybody_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = files(tmp_path, GOOD)
    Certificates(where)
    assert "can be read" not in caplog.text
    where.key.chmod(0o644)
    Certificates(where)
    assert f"{where.key} can be read by every user" in caplog.text


def test_a_shard_that_others_will_refuse_is_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Certificates(files(tmp_path, GOOD, client_ca=OURS.root)).check_as_client()
    Certificates(files(tmp_path, GOOD)).check_as_client()
    assert "will refuse" not in caplog.text
    Certificates(files(tmp_path, GOOD, client_ca=THEIRS.root)).check_as_client()
    assert "will refuse this one" in caplog.text


def test_the_command_takes_certificates_from_the_environment_and_those_that_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = {name: tmp_path / f"mine-{name}.pem" for name in ("ca", "cert", "key")}

    def renew(authority: Authority) -> list[str]:
        """Renew the certificates of the server and of the command; neither trusts the other one before it has read its new files."""
        for path, content in zip(mine.values(), (authority.root, *authority.pair("etl")), strict=True):
            put(path, content)
        return written(tmp_path, authority.pair("localhost"), client_ca=authority.root)

    with serving(tmp_path, *renew(OURS)) as server:
        ask_names = ["status", "--names", "--address", f"localhost:{server.port}", "--answer-within", "30s"]
        assert command([*ask_names, *(f"--{name}={path}" for name, path in mine.items())]) == 0
        assert command([*ask_names, "--ca", str(mine["ca"]), "--answer-within", "1s"]) == 3
        for name, path in mine.items():
            monkeypatch.setenv(f"LOWWATER_{name.upper()}", str(path))
        assert command(ask_names) == 0
        with open_client(arguments().parse_args(ask_names)) as lw:
            standing(lw, "flights", NOON)
            renew(THEIRS)
            assert server.stop() == 0
            server.start()
            assert set(lw.get()) == {"flights"}
            assert command(ask_names) == 0
    assert capsys.readouterr().out.endswith("flights\n")


class Encrypted(Sharded):
    def __init__(self, folder: Path, shards: int) -> None:
        self.client: dict[str, Any] = {}
        self.rotate(folder, OURS)
        super().__init__(folder, shards, dead_after=4.0, flags=self.flags)

    def rotate(self, folder: Path, authority: Authority) -> None:
        """Give all of them, and the test, a certificate of an authority, and have them trust no other."""
        self.flags = written(folder, authority.pair("127.0.0.1"), client_ca=authority.root, peer_ca=authority.root)
        chain, key = authority.pair("etl")
        self.client = {"root_certificates": authority.root, "certificate_chain": chain, "private_key": key}

    def more(self, store: str = "") -> Shard:
        self._made = getattr(self, "_made", 0) + 1
        url = store or self.redis.url
        shard = Shard(self.folder / f"shard-{self._made}", url, *self.flags, dead_after=self.dead_after)
        shard.page_at = "127.0.0.1:0"
        return shard

    def start(self, *shards: Shard) -> None:
        for shard in shards:
            shard.start()
        with self.connect() as lw:
            eventually(lambda: {shard.address for shard in shards} <= {shard.address for shard in lw.shards()})

    def connect(self, **options: Any) -> lowwater.Client:
        return super().connect(**self.client, **options)


def test_shards_reach_each_other_over_mutual_tls_and_go_on_after_a_rotation(tmp_path: Path) -> None:
    with Encrypted(tmp_path, 2) as shards:
        one, two = shards.shards
        names = balanced("c", 1, one, two)

        def lows(shard: Shard, trusted: Authority) -> dict[str, Any]:
            computations = ask(shard.page, "api/snapshot", tls=trusting(trusted)).json["computations"]
            return {entry["name"]: entry["low"]["micros"] for entry in computations}

        with shards.connect() as lw:
            for name in names:
                standing(lw, name, NOON)
            eventually(lambda: spread(lw, names, one, two))
            eventually(lambda: lows(one, OURS) == lows(two, OURS) == dict.fromkeys(names, NOON))
            # Each asks the other how far the input is, which it does not serve itself.
            first, second = names
            for name, other in ((first, second), (second, first)):
                lw.register(f"after-{name}", inputs=[name])
                lw.set_inputs(f"after-{name}", [name, other])
        shards.rotate(tmp_path, THEIRS)
        two.kill()
        two.start()
        with shards.connect() as lw:
            eventually(lambda: {one.address, two.address} <= {shard.address for shard in lw.shards()})
            for name in names:
                lw.reset(name)
                standing(lw, name, NOON + 1)
            # Neither would be let in with what it has shown before, nor trust what the other shows now.
            eventually(lambda: {lows(one, THEIRS).get(name) for name in names} == {NOON + 1})
            eventually(lambda: {lows(two, THEIRS).get(name) for name in names} == {NOON + 1})
