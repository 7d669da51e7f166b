"""``lowwater journal``: a deployment moves from a folder to Redis and back, and what a copy refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lowwater
from lowwater.cli import main
from lowwater.v1 import workers_pb2
from lowwater_authority.journal import GRAPH
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.times import HOUR
from tests.process.peer import Peer
from tests.process.serving import Serving
from tests.process.sharding import Shard

SECRET = "correct-horse"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", *DURABLE) as server:
        yield server.start()


@contextmanager
def peer(server: Serving) -> Iterator[Peer]:
    one = Peer(server)
    try:
        yield one
    finally:
        one.sent.put(None)
        one.channel.close()


def wait_until_served(shard: Shard) -> None:
    with lowwater.connect(shard.address) as lw:
        lw.get("a", "b")


def acknowledged(peer: Peer, down: Iterator[workers_pb2.ReportResponse], number: int) -> workers_pb2.ReportAck:
    while True:
        ack = next(down).ack
        if ack.number == number:
            return ack


class Pipeline(NamedTuple):
    data: Path
    """The directory of an authority that was stopped, started again and killed."""
    sender: bytes
    claim: workers_pb2.ClaimResponse
    """The worker's, on "a"."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    with Serving(tmp_path_factory.mktemp("prepared") / "data") as server:
        with peer(server) as one:
            one.register("a")
            one.register("b", "a")
            one.claim("a")
            claim = one.claim("a", b"", b"m", b"")
            down = one.open()
            next(down)
            one.report(1, claim, 14, 15)
            assert not acknowledged(one, down, 1).refused
        assert server.stop() == 0
        server.start()
        with peer(server) as again:
            again.sender = one.sender
            down = again.open(stream=2)
            next(down)
            again.report(1, claim, 16, 15)
            assert not acknowledged(again, down, 1).refused
            again.claim("b")
            assert again.low() == 15 * HOUR
        server.kill()
    return Pipeline(server.data, one.sender, claim)


@pytest.fixture
def pipeline(tmp_path: Path, prepared: Pipeline) -> Pipeline:
    data = tmp_path / "data"
    shutil.copytree(prepared.data, data, ignore=shutil.ignore_patterns("*-shm"))
    return prepared._replace(data=data)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    code = main(["journal", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    answer = json.loads(out)
    assert isinstance(answer, dict)
    return answer


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["journal", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert SECRET not in err
    return err


def logs(shown: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        log["log"]: (log["last"], log["snapshot"], log["records"], log["bytes"])
        for log in shown["logs"]
        if log["log"] != GRAPH
    }


def epochs(shown: dict[str, Any]) -> dict[str, int]:
    return {log["log"]: log["epoch"] for log in shown["logs"] if log["log"] != GRAPH}


def test_it_moves_to_redis_and_back(
    tmp_path: Path, redis: RedisServer, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    data, sender, claim = pipeline
    store, back = f"{redis.url}#moved", tmp_path / "back" / "data"
    before = run(capsys, "show", data)
    assert {log: bool(snap and rows) for log, (_, snap, rows, _) in logs(before).items()} == {"a": True, "b": False}
    assert run(capsys, "copy", data, store)["server_token"] == before["server_token"]
    copied = run(capsys, "show", store)
    assert logs(copied) == logs(before)
    assert all(epoch > epochs(before)[log] for log, epoch in epochs(copied).items())

    with Shard(tmp_path / "shard", redis.url, "--deployment", "moved") as shard:
        wait_until_served(shard)
        with peer(shard) as moved:
            assert moved.low() == 15 * HOUR
            moved.sender = sender
            down = moved.open(stream=3, server_token=before["server_token"])
            next(down)
            moved.report(1, claim, 16, 17)
            assert not acknowledged(moved, down, 1).refused, "the old owner goes on"
            assert moved.low() == 16 * HOUR
            newer = moved.claim("a", b"m", b"")
            assert newer.sequencer > claim.sequencer
        assert f"is being served by 1 shard: {shard.address} was heard of" in refused(capsys, "copy", store, back)
        assert shard.stop() == 0

    answer = run(capsys, "copy", store, back)
    assert (answer["source"], answer["target"]) == (f"redis://127.0.0.1:{redis.port}#moved", str(back))
    with Serving(back) as server, peer(server) as returned:
        assert returned.low() == 16 * HOUR
        returned.sender = sender
        down = returned.open(stream=4, server_token=before["server_token"])
        assert next(down).opened.server_token == before["server_token"]
        returned.report(1, claim, 18, handles=[0])
        assert not acknowledged(returned, down, 1).refused, "what is left to the old owner is its own"
        returned.report(2, claim, 18, handles=[1])
        assert [part.reason for part in acknowledged(returned, down, 2).refused] == ["STALE_SEQUENCER"]
        assert returned.claim("a").sequencer > newer.sequencer


def test_a_served_folder_is_refused(tmp_path: Path, redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with Serving(tmp_path / "data") as server:
        assert server.process is not None
        for command in (("copy", server.data, redis.url), ("show", server.data)):
            assert f"is in use by process {server.process.pid}" in refused(capsys, *command)
    assert redis.execute("KEYS", "*") == []


def test_a_place_that_cannot_be_used_is_named_without_its_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOWHERE", f"redis://:{SECRET}@127.0.0.1:1")
    monkeypatch.setenv("MALFORMED", f"redis://:{SECRET}/@host")
    empty = tmp_path / "empty"
    for source, text in (
        (str(empty), f"there is no journal in {empty}"),
        ("env:NOWHERE#x", "redis://127.0.0.1:1#x: "),
        ("env:MALFORMED", "cannot be read"),
        ("http://host", "begins with one of"),
    ):
        assert text in refused(capsys, "show", source)
        assert text in refused(capsys, "copy", source, tmp_path / "target")
    assert not empty.exists()
    assert not (tmp_path / "target").exists()
    assert "are both" in refused(capsys, "copy", empty, empty)


def test_the_password_of_a_store_comes_from_the_environment(
    tmp_path: Path, pipeline: Pipeline, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path / "redis", *DURABLE, "--requirepass", SECRET) as server:
        server.start()
        monkeypatch.setenv("LOWWATER_STORE", f"redis://:{SECRET}@127.0.0.1:{server.port}")
        assert main(["journal", "copy", str(pipeline.data), "env:LOWWATER_STORE#moved"]) == 0
        out, err = capsys.readouterr()
        assert f"to redis://127.0.0.1:{server.port}#moved, all compared" in out
        assert SECRET not in out + err


def test_a_password_on_the_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis+sentinel://me:{SECRET}#/?' \"@one,two/main"
    for command in (("show", url), ("copy", url, tmp_path / "target"), ("copy", tmp_path / "source", url)):
        text = refused(capsys, *command)
        assert "the URL of a store has a password in it" in text
        assert "env:VARIABLE#NAME" in text
    assert not list(tmp_path.iterdir())
