"""``lowwater journal``: a deployment moves from a folder to Redis and back, and what a copy refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lowwater.cli import main
from lowwater_authority.journal import GRAPH
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.times import HOUR
from tests.process.peer import Peer
from tests.process.serving import Serving

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


def test_it_moves_to_a_redis_with_a_password_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(tmp_path / "data") as server, peer(server) as one:
        one.register("a")
        claim, down = one.claim("a"), one.open()
        next(down)
        one.report(1, claim, 14)
        assert next(down).ack.number == 1
        assert server.stop() == 0
    with RedisServer(tmp_path / "redis", *DURABLE, "--requirepass", SECRET) as redis:
        redis.start()
        monkeypatch.setenv("ELSEWHERE", f"redis://:{SECRET}@127.0.0.1:{redis.port}")
        before = run(capsys, "show", server.data)
        answer = run(capsys, "copy", server.data, "env:ELSEWHERE#moved")
        assert answer["target"] == f"redis://127.0.0.1:{redis.port}#moved", "all compared, and no secret"
        copied = run(capsys, "show", "env:ELSEWHERE#moved")
        assert answer["server_token"] == copied["server_token"] == before["server_token"]
        assert logs(copied) == logs(before)
        assert all(epoch > epochs(before)[log] for log, epoch in epochs(copied).items())
        run(capsys, "copy", "env:ELSEWHERE#moved", tmp_path / "back/data")
    with Serving(tmp_path / "back/data") as server, peer(server) as returned:
        returned.sender = one.sender
        down = returned.open(stream=2, server_token=before["server_token"])
        next(down)
        returned.report(1, claim, 15)
        assert not next(down).ack.refused, "the old owner goes on"
        assert returned.low() == 15 * HOUR
        assert returned.claim("a").sequencer > claim.sequencer


def test_a_password_on_the_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis+sentinel://me:{SECRET}#/?' \"@one,two/main"
    for command in (("show", url), ("copy", url, tmp_path / "target"), ("copy", tmp_path / "source", url)):
        text = refused(capsys, *command)
        assert "the URL of a store has a password in it" in text
        assert "env:VARIABLE#NAME" in text
    assert not list(tmp_path.iterdir())
