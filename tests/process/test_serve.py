"""The authority as a process, driven by raw gRPC: what any client in any language meets."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater._pb.lowwater.v1 import (
    topology_pb2,
    watermarks_pb2,
    workers_pb2,
)
from lowwater_authority.commands.serve_arguments import parser
from tests.kit.times import HOUR, MAX, MIN
from tests.process.peer import Peer, reason
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


def test_a_report_becomes_a_watermark_that_survives_kill_and_restart(server: Serving, peer: Peer) -> None:
    peer.register("a")
    claim = peer.claim("a", b"", b"m", b"")
    down = peer.open()
    assert next(down).opened.server_token
    peer.report(1, claim, 14, 15)
    assert next(down).ack.number == 1
    assert peer.low() == 14 * HOUR
    server.kill()
    peer.sent.put(None)
    server.start()
    after = Peer(server)
    assert after.low() == 14 * HOUR
    check = after.watermarks.CheckComplete(watermarks_pb2.CheckCompleteRequest(computation="a", until_micros=15 * HOUR))
    assert not check.complete
    (holder,) = check.holders
    assert (holder.start, holder.end, holder.worker, holder.host) == (b"", b"m", "w", "h")
    after.channel.close()


def test_rule9_another_deployment_is_refused_on_every_path(peer: Peer) -> None:
    peer.register("a")
    calls: list[Callable[[], object]] = [
        lambda: peer.claim("a", server_token="other"),
        lambda: peer.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest(server_token="other")),
        lambda: next(peer.watermarks.Watch(watermarks_pb2.WatchRequest(server_token="other"))),
        lambda: next(peer.open(server_token="other")),
        lambda: peer.workers.StageTask(workers_pb2.StageTaskRequest(server_token="other", computation="a")),
        lambda: peer.watermarks.CheckComplete(
            watermarks_pb2.CheckCompleteRequest(server_token="other", computation="a")
        ),
        lambda: peer.watermarks.ListRanges(watermarks_pb2.ListRangesRequest(server_token="other", computation="a")),
        lambda: peer.topology.Register(topology_pb2.RegisterRequest(server_token="other", name="a")),
        lambda: peer.topology.GetTopology(topology_pb2.GetTopologyRequest(server_token="other")),
        lambda: peer.topology.SetInputs(topology_pb2.SetInputsRequest(server_token="other", computation="a")),
        lambda: peer.topology.Reset(topology_pb2.ResetRequest(server_token="other", computation="a")),
        lambda: peer.topology.Retire(topology_pb2.RetireRequest(server_token="other", computation="a")),
        lambda: peer.workers.Release(workers_pb2.ReleaseRequest(server_token="other", computation="a")),
        lambda: peer.workers.PrepareBatch(workers_pb2.PrepareBatchRequest(server_token="other", computation="a")),
        lambda: peer.workers.CommitBatch(workers_pb2.CommitBatchRequest(server_token="other", computation="a")),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        code, why, facts = reason(refused.value)
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "SERVER_TOKEN_MISMATCH")
        assert "other" not in facts.values()  # it can be any text, of any length


def test_rule8_an_older_stream_is_refused_and_a_newer_one_closes_it(peer: Peer) -> None:
    peer.register("a")
    older = peer.open(stream=5)
    assert next(older).HasField("opened")
    again = peer.workers.Report(
        iter([workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=peer.sender, stream=4))])
    )
    with pytest.raises(grpc.RpcError) as refused:
        next(again)
    assert reason(refused.value)[1] == "OLD_STREAM"
    newer = Peer.__new__(Peer)
    newer.__dict__.update(peer.__dict__, sent=queue.Queue())
    assert next(newer.open(stream=6)).HasField("opened")
    with pytest.raises(grpc.RpcError) as closed:
        list(older)
    assert reason(closed.value)[1] == "OLD_STREAM"
    newer.sent.put(None)


def test_a_worker_is_told_what_a_newer_claim_took(peer: Peer) -> None:
    peer.register("a")
    claim = peer.claim("a", b"", b"m", b"")
    down = peer.open()
    next(down)
    peer.report(1, claim, 14, 15)
    assert next(down).ack.number == 1
    peer.claim("a", b"m", b"")
    fenced = next(down).fenced
    assert (fenced.sequencer, list(fenced.handles)) == (claim.sequencer, [1])
    peer.report(2, claim, 16, 17)
    ack = next(down).ack
    assert [(refused.reason, list(refused.handles)) for refused in ack.refused] == [("STALE_SEQUENCER", [1])]
    assert peer.low() == 15 * HOUR, "the rest of the message counts, and the lost range holds its last value"


BAD_CALLS: dict[str, tuple[Callable[[Peer], object], str, str | None]] = {
    "name": (lambda p: p.register("no spaces"), "INVALID_ARGUMENT", "name"),
    "input name": (lambda p: p.register("b", "a", "no spaces"), "INVALID_ARGUMENT", "inputs[1]"),
    "unknown computation": (lambda p: p.claim("nobody"), "UNKNOWN_COMPUTATION", None),
    "other inputs": (lambda p: p.register("a", "x"), "REGISTRATION_CONFLICT", None),
    "cycle": (lambda p: (p.register("c", "d"), p.register("d", "c")), "CYCLE", "inputs"),
    "one bound": (lambda p: p.claim("a", b"x"), "INVALID_ARGUMENT", "bounds"),
    "empty range": (lambda p: p.claim("a", b"x", b"x"), "INVALID_ARGUMENT", "bounds[1]"),
    "reversed range": (lambda p: p.claim("a", b"x", b"b"), "INVALID_ARGUMENT", "bounds[1]"),
    "empty bound inside": (lambda p: p.claim("a", b"x", b"", b"y"), "INVALID_ARGUMENT", "bounds[1]"),
    "long key": (lambda p: p.claim("a", b"x" * 2000, b""), "INVALID_ARGUMENT", "bounds"),
    "starting bounds": (lambda p: p.claim("a", bound_micros=[1, 2, 3]), "INVALID_ARGUMENT", "bound_micros"),
    "long identity": (lambda p: p.claim("a", identity="i" * 300), "INVALID_ARGUMENT", "identity"),
    "stale release": (
        lambda p: p.workers.Release(workers_pb2.ReleaseRequest(computation="a", sequencer=7)),
        "STALE_SEQUENCER",
        None,
    ),
    "commit without prepare": (
        lambda p: p.workers.CommitBatch(
            workers_pb2.CommitBatchRequest(computation="a", sequencer=p.claim("a").sequencer, batch=3)
        ),
        "NOT_PREPARED",
        None,
    ),
    "retire what is owned": (
        lambda p: (p.claim("a"), p.topology.Retire(topology_pb2.RetireRequest(computation="a"))),
        "OWNED_RANGES",
        None,
    ),
    "too many holders": (
        lambda p: p.watermarks.CheckComplete(
            watermarks_pb2.CheckCompleteRequest(computation="a", until_micros=1, max_holders=5000)
        ),
        "INVALID_ARGUMENT",
        "max_holders",
    ),
    "sender": (
        lambda p: next(
            p.workers.Report(iter([workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=b"x", stream=1))]))
        ),
        "INVALID_ARGUMENT",
        "open.sender",
    ),
    "report first": (
        lambda p: next(p.workers.Report(iter([workers_pb2.ReportRequest(report=workers_pb2.Report(number=1))]))),
        "INVALID_ARGUMENT",
        "kind",
    ),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with serving(tmp_path_factory.mktemp("shared")) as one:
        peer = Peer(one)
        peer.register("a")
        yield peer
        peer.channel.close()


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_names_the_field_and_changes_nothing(shared: Peer, case: str) -> None:
    call, expected, field = BAD_CALLS[case]
    with pytest.raises(grpc.RpcError) as refused:
        call(shared)
    _, why, facts = reason(refused.value)
    assert why == expected
    assert facts.get("field") == field
    assert shared.low() == MIN


def test_a_bad_report_is_refused_range_by_range_and_the_rest_counts(peer: Peer) -> None:
    peer.register("a")
    claim = peer.claim("a", b"", b"h", b"p", b"")
    down = peer.open()
    next(down)
    peer.report(1, claim, 14, 15, 10**6)
    (ahead,) = next(down).ack.refused
    assert (ahead.reason, list(ahead.handles)) == ("TOO_FAR_AHEAD", [2])
    peer.report(2, claim, 14, 15, MAX)
    (finish,) = next(down).ack.refused
    assert (finish.reason, list(finish.handles)) == ("FINISH_REQUIRED", [2])
    peer.report(3, claim, 14, 15)
    (length,) = next(down).ack.refused
    assert (length.reason, list(length.handles)) == ("INVALID_ARGUMENT", [])
    peer.report(4, claim, 14, handles=[7])
    (handle,) = next(down).ack.refused
    assert handle.reason == "INVALID_ARGUMENT"
    assert peer.low() == MIN
    peer.report(5, claim, 14, 15, MAX, finish=True)
    assert not next(down).ack.refused
    assert peer.low() == 14 * HOUR


def test_a_claim_named_twice_in_one_report_ends_the_stream(peer: Peer) -> None:
    peer.register("a")
    claim = peer.claim("a")
    down = peer.open()
    next(down)
    group = workers_pb2.GroupReport(computation="a", sequencer=claim.sequencer, watermarks_micros=[1])
    peer.sent.put(workers_pb2.ReportRequest(report=workers_pb2.Report(number=1, groups=[group, group])))
    with pytest.raises(grpc.RpcError) as refused:
        next(down)
    assert reason(refused.value)[2]["field"] == "report.groups"
    assert peer.low() == MIN


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
    health: Any = health_pb2_grpc.HealthStub(peer.channel)
    for service in ("", "lowwater.v1.WatermarkService"):
        assert (
            health.Check(health_pb2.HealthCheckRequest(service=service)).status
            == health_pb2.HealthCheckResponse.SERVING
        )
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


def test_a_second_server_on_the_same_data_is_refused(server: Serving) -> None:
    command = [sys.executable, "-m", "lowwater_authority", "--data", str(server.data), "--listen", "127.0.0.1:0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert str(server.process.pid) in second.stderr  # type: ignore[union-attr]
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize("flag", ["--data", "--listen", "--http"])
def test_a_server_that_cannot_start_says_what_to_change(server: Serving, tmp_path: Path, flag: str) -> None:
    taken = server.metrics.removeprefix("http://").removesuffix("/metrics")
    flags = {"--data": str(tmp_path / "other"), "--listen": "127.0.0.1:0", "--http": "off"}
    flags[flag] = {"--data": "/proc/nowhere", "--listen": server.address, "--http": taken}[flag]
    command = [sys.executable, "-m", "lowwater_authority", *(word for pair in flags.items() for word in pair)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert flag in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_option_is_not_guessed_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parser().parse_args(["--advert", "127.0.0.1:7420"])
    assert refused.value.code == 2
    assert "--advert" in capsys.readouterr().err


def test_a_folder_for_the_own_socket_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    pair = trustme.CA().issue_cert("localhost")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    flags = ["--data", "data", "--tls-cert", "chain.pem", "--tls-key", "key.pem", "--listen", "127.0.0.1:0"]
    refused = subprocess.run(
        [sys.executable, "-m", "lowwater_authority", *flags, "--http", "127.0.0.1:0"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": "/proc/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "below /proc/nowhere: set TMPDIR" in refused.stderr
    assert not list(tmp_path.glob("lowwater-*"))
