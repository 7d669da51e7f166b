"""What somebody with some rights does to get more than these, at a real server."""

from __future__ import annotations

import json
import queue
import secrets
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import lowwater
from lowwater import errors
from lowwater._core.attempts import error_of_call
from lowwater._pb.lowwater.v1 import cluster_pb2, workers_pb2
from lowwater_authority.rpc.streams import DENIED_BOUND
from tests.kit.eventually import eventually
from tests.process.accessing import PATIENCE, Rules, Wire, bearer, rules_of, write
from tests.process.serving import Serving
from tests.process.stalling import DATA, END_HEADERS, END_STREAM, HEADERS, frame, without_room
from tests.process.test_access_changes import EVERYTHING, FLIGHTS, Changing
from tests.process.test_access_shards import OLD, TOKENS, deployment

READING: Rules = [("flights", {"read": ["*"], "report": ["b"]})]


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    made = Changing(tmp_path)
    made.allow(admin=EVERYTHING, leaver=FLIGHTS)
    with made.server:
        yield made


class Stream:
    """A report stream, by hand."""

    def __init__(self, wire: Wire, metadata: Any) -> None:
        self._sent: queue.SimpleQueue[workers_pb2.ReportRequest | None] = queue.SimpleQueue()
        self._answers = wire.stubs.workers.Report(iter(self._sent.get, None), metadata=metadata, timeout=PATIENCE)
        self._number = 0
        opening = workers_pb2.ReportOpen(sender=secrets.token_bytes(16), stream=1)
        self._sent.put(workers_pb2.ReportRequest(open=opening))
        assert next(self._answers).HasField("opened")

    def report(self, name: str, sequencer: int, values: dict[int, int]) -> list[str]:
        """Report some handles; returns what is refused of it. Raises what ends the stream."""
        group = workers_pb2.GroupReport(
            computation=name,
            sequencer=sequencer,
            handles=list(values),
            watermarks_micros=list(values.values()),
        )
        return self.send([group])

    def send(self, groups: list[workers_pb2.GroupReport]) -> list[str]:
        """Send one report; returns what is refused of it. Raises what ends the stream."""
        self._number += 1
        report = workers_pb2.Report(number=self._number, groups=groups)
        self._sent.put(workers_pb2.ReportRequest(report=report))
        try:
            for answer in self._answers:
                if answer.HasField("ack") and answer.ack.number >= self._number:
                    return [each.reason for each in answer.ack.refused]
        except grpc.RpcError as failure:
            raise error_of_call(failure, "here") from None
        pytest.fail("the stream has ended")

    def close(self) -> None:
        """End it."""
        self._sent.put(None)


def rights_change(changing: Changing, **rules: Any) -> None:
    """Change the file; returns when it is read."""
    before = len(changing.events("access_read"))
    changing.allow(**rules)
    eventually(lambda: len(changing.events("access_read")) > before)


def low(lw: lowwater.Client, name: str = "flights/a") -> int:
    return lw.get(name)[name].low.micros


def test_rule1_a_denied_lowering_is_not_followed_by_an_advance(changing: Changing) -> None:
    """Reports carry what changed: with the one that lowered a range refused, the next one of its stream would lead."""
    with changing.connect("admin") as lw, changing.server.channel() as channel:
        lw.register("flights/a")
        sequencer = lw.worker("flights/a").claim(bounds=[b"", b"m", b""]).sequencer
        stream = Stream(Wire(channel, changing.server.address), bearer(changing.tokens["leaver"]))
        assert stream.report("flights/a", sequencer, {0: 100, 1: 60}) == []
        assert low(lw) == 60
        rights_change(changing, admin=EVERYTHING, leaver=READING)
        assert stream.report("flights/a", sequencer, {0: 70}) == ["PERMISSION_DENIED"]
        rights_change(changing, admin=EVERYTHING, leaver=FLIGHTS)
        with pytest.raises(errors.ShuttingDown, match="leaver may report for flights/a again; connect again"):
            stream.report("flights/a", sequencer, {1: 90})
        assert low(lw) == 60
        stream.close()


def test_a_stream_ends_when_it_was_refused_more_computations_than_are_remembered(changing: Changing) -> None:
    """To forget one of them would let it lead when its right comes back."""
    with changing.server.channel() as channel:
        stream = Stream(Wire(channel, changing.server.address), bearer(changing.tokens["leaver"]))
        groups = [workers_pb2.GroupReport(computation=f"n/{n}", sequencer=1) for n in range(DENIED_BOUND)]
        for _ in range(2):  # the same ones count once
            assert set(stream.send(groups)) == {"PERMISSION_DENIED"}
        with pytest.raises(errors.Overloaded, match=f"refused the reports of {DENIED_BOUND} computations"):
            stream.report("n/more", 1, {0: 1})


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


def test_limits_hold_for_calls_that_come_at_once(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    changing.allow("[limits]\nranges = 4\ncomputations = 3\n", admin=EVERYTHING)
    with changing.server, changing.server.channel() as channel, ThreadPoolExecutor(16) as pool:
        wire, metadata = Wire(channel, changing.server.address), bearer(changing.tokens["admin"])
        told = list(pool.map(lambda number: wire.attempt("Register", metadata, f"n/{number}"), range(16)))
        assert sum(each is None for each in told) == 3
        assert wire.attempt("Register", metadata, "m/a") is None

        def claim(number: int) -> errors.LowwaterError | None:
            return wire.attempt("Claim", metadata, "m/a", bounds=[bytes([65 + 2 * number]), bytes([66 + 2 * number])])

        told = list(pool.map(claim, range(16)))
        assert [type(each) for each in told if each is not None] == [errors.Overloaded] * 15
        with changing.connect("admin") as lw:
            assert len(lw.ranges("m/a")) == 3, "before, in and after the one claim that fits"


def test_a_slice_that_is_cut_in_two_takes_room(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    changing.allow("[limits]\ncomputations = 4\n", admin=EVERYTHING)
    with changing.server, changing.connect("admin") as lw:
        lw.register("n/cut", slices=[b"\x80"])
        lw.split_slice("n/cut~0", b"\x40")
        with pytest.raises(errors.LimitReached, match="it has 4, and a slice of n/cut would be 1 more"):
            lw.split_slice("n/cut~1", b"\xc0")


def test_a_long_text_is_told_shortly(changing: Changing) -> None:
    """By who may do nothing, and by who may do everything within a namespace: in errors and in the log."""
    path = changing.server.data.parent / "serve.log"
    with changing.server.channel() as channel:
        wire, metadata = Wire(channel, changing.server.address), bearer(changing.tokens["leaver"])
        assert wire.attempt("Register", metadata, "flights/a") is None
        before = path.stat().st_size
        long = "x/" * 500_000
        for rpc in ("Claim", "GetWatermarks", "Register", "Reset", "Report"):
            for name in (long, f"flights/{'y' * 1_000_000}"):
                refused = wire.attempt(rpc, metadata, name)
                assert isinstance(refused, errors.PermissionDenied), refused
        for number in range(300):
            stranger = wire.attempt("Report", metadata, f"flights/made-up-{number}")
            assert isinstance(stranger, errors.UnknownComputation), stranger
        refused = wire.attempt("GetTopology", metadata, server_token=long)
        assert isinstance(refused, errors.ServerTokenMismatch)
        assert "x/" not in f"{refused.message} {refused.metadata}"
        assert path.stat().st_size - before < 50_000


def test_which_names_are_registered_is_not_said_by_what_is_hidden(changing: Changing) -> None:
    with changing.connect("admin") as lw, changing.server.channel() as channel:
        lw.register("billing/secret")
        wire, metadata = Wire(channel, changing.server.address), bearer(changing.tokens["leaver"])
        told: dict[str, set[str]] = {"GetTopology": set(), "Register": set()}
        for number, tried in enumerate(("billing/secret", "billing/absent")):
            name = f"flights/{number}"
            assert wire.attempt("Register", metadata, name, key_hash=tried) is None
            for rpc, refused in (
                ("GetTopology", wire.attempt("GetTopology", metadata, server_token=tried)),
                ("Register", wire.attempt("Register", metadata, name, key_hash=tried, history_step_micros=5_000_000)),
            ):
                assert refused is not None
                told[rpc].add(refused.message.replace(name, "").replace(tried, ""))
        assert [len(each) for each in told.values()] == [1, 1], told


@pytest.mark.parametrize("guarded", [True, False])
def test_who_takes_nothing_of_what_it_watches_keeps_nobody_waiting(tmp_path: Path, guarded: bool) -> None:
    """A health watch is for anybody. Others hear that the process stops, and it ends."""
    changing = Changing(tmp_path)
    changing.allow(admin=EVERYTHING)
    server = changing.server if guarded else Serving(tmp_path / "open")
    with server, socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        no_request = frame(DATA, END_STREAM, 1, bytes(5))
        connection.sendall(without_room("/grpc.health.v1.Health/Watch", 1) + no_request)
        seen = b""
        while frame(HEADERS, END_HEADERS, 1, b"")[3:] not in seen:  # its answer begins, and has no room to go on
            seen += connection.recv(65536)
        with server.channel() as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            server.signal(signal.SIGTERM)
            assert [answer.status for answer in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert server.wait() == 0


def test_who_only_reads_does_not_move_a_computation_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard owns a computation anew when a client has seen a greater number of it. A worker has to claim again then."""
    with deployment(tmp_path, monkeypatch, OLD) as (lw, [one]), grpc.insecure_channel(one.address) as channel:
        lw.register("source")
        rules: Rules = [("", {"read": ["source"]})]
        path = tmp_path / "access.toml"
        write(path, path.read_text() + rules_of("reader", TOKENS["reader"], rules))
        wire = Wire(channel, one.address)
        eventually(lambda: wire.attempt("GetWatermarks", bearer(TOKENS["reader"]), "source") is None)

        def epoch(token: str, seen: int) -> int:
            request = cluster_pb2.LocateRequest(computations=["source"], epochs=[seen])
            answer = wire.stubs.cluster.Locate(request, metadata=bearer(token), timeout=PATIENCE)
            return int(answer.redirects[0].epoch)

        lease = lw.worker("source").claim()
        before = epoch(TOKENS["admin"], 0)
        for token in (TOKENS["reader"], OLD):
            assert epoch(token, before + 1000) == before
        lease.advance(None, oldest=None, frontier=7)
        lease.flush(timeout=PATIENCE)
        # But it is told: it may be true, and then who only reads waits.
        lines = [json.loads(line) for line in one.log.splitlines() if line.startswith("{")]
        told = [each for each in lines if each["event"] == "store_lost_epochs"]
        assert [(each["level"], each["seen"], each["epoch"]) for each in told] == [("warning", before + 1000, before)]
        assert epoch(TOKENS["admin"], before + 1000) > before + 1000
