"""``lowwater journal``: a deployment moves from a folder to Redis and back, and what a copy refuses."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lowwater
from lowwater._pb.lowwater.v1 import workers_pb2
from lowwater.cli import main
from lowwater_authority.engine.holdings import whole
from lowwater_authority.journal import GRAPH, LoadedLog, SqliteJournal
from lowwater_authority.journal.copy import Copy, Progress, survey
from lowwater_authority.journal.redis import RedisJournal
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
    """A shard says that it is ready before it has joined."""
    with lowwater.connect(shard.address) as lw:
        lw.get("a", "b")


def acknowledged(peer: Peer, down: Iterator[workers_pb2.ReportResponse], number: int) -> workers_pb2.ReportAck:
    """The answer to a report."""
    while True:
        ack = next(down).ack
        if ack.number == number:
            return ack


class Pipeline(NamedTuple):
    data: Path
    """What an authority has left that was stopped, started again and killed."""
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
    """What a successful command answers."""
    code = main(["journal", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a refused command says."""
    assert main(["journal", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert SECRET not in err
    return err


def logs(shown: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What is the same in a copy, by log."""
    return {
        each["log"]: (each["last"], each["snapshot"], each["records"], each["bytes"])
        for each in shown["logs"]
        if each["log"] != GRAPH
    }


def epochs(shown: dict[str, Any]) -> dict[str, int]:
    return {each["log"]: each["epoch"] for each in shown["logs"] if each["log"] != GRAPH}


def test_a_deployment_moves_to_redis_and_back(
    tmp_path: Path,
    redis: RedisServer,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, sender, claim = pipeline
    store, back = f"{redis.url}#moved", tmp_path / "back" / "data"
    before = run(capsys, "show", data)
    assert {log: bool(snapshot and records) for log, (_, snapshot, records, _) in logs(before).items()} == {
        "a": True,
        "b": False,
    }
    assert run(capsys, "copy", data, store)["server_token"] == before["server_token"]
    there = run(capsys, "show", store)
    assert logs(there) == logs(before)
    assert all(epoch > epochs(before)[log] for log, epoch in epochs(there).items())

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
            taken = moved.claim("a", b"m", b"")
            assert taken.sequencer > claim.sequencer
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
        assert [each.reason for each in acknowledged(returned, down, 2).refused] == ["STALE_SEQUENCER"]
        assert returned.claim("a").sequencer > taken.sequencer


def test_a_killed_shard_counts_until_it_was_silent_for_a_while(
    tmp_path: Path,
    redis: RedisServer,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = pipeline.data
    run(capsys, "copy", data, redis.url)
    with Shard(tmp_path / "shard", redis.url) as shard:
        wait_until_served(shard)
        shard.kill()
    assert "one that was killed counts for 10 s" in refused(capsys, "copy", redis.url, tmp_path / "back")
    beats = redis.execute("HGETALL", "{lowwater:default}:beats")
    for name, heard in beats.items():
        redis.execute("HSET", "{lowwater:default}:beats", name, int(heard) - 11_000_000)
    run(capsys, "copy", redis.url, tmp_path / "back")


def test_a_folder_that_is_served_is_refused(
    tmp_path: Path, redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with Serving(tmp_path / "data") as server:
        assert server.process is not None
        for command in (("copy", server.data, redis.url), ("show", server.data)):
            assert f"is in use by process {server.process.pid}" in refused(capsys, *command)
    assert redis.execute("KEYS", "*") == []


async def cut_off(data: Path, url: str, logs: int) -> None:
    """Copy so many logs and a part of the next one."""

    class Cut(Exception):
        pass

    def stop(so_far: Progress) -> None:
        if so_far.logs == logs:
            raise Cut

    source = SqliteJournal(data / "journal.sqlite")
    await source.open()
    target = RedisJournal(url, server_token=source.server_token)
    await target.open()
    with pytest.raises(Cut):
        await Copy(source, await survey(source, fence=True), target, progress=stop, whole=whole).run()
    await source.close()
    await target.close()


def test_a_half_copy_has_no_graph_and_is_continued(
    redis: RedisServer,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = pipeline.data
    asyncio.run(cut_off(data, redis.url, 1))
    half = run(capsys, "show", redis.url)
    assert half["unfinished"]
    assert main(["journal", "show", redis.url]) == 0
    assert "An unfinished copy: there is no graph" in capsys.readouterr().out
    run(capsys, "copy", data, redis.url)
    done = run(capsys, "show", redis.url)
    assert not done["unfinished"]
    assert logs(done) == logs(run(capsys, "show", data))


def test_a_half_copy_of_an_older_state_is_refused_with_what_removes_it(
    redis: RedisServer,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = pipeline.data
    asyncio.run(cut_off(data, redis.url, 1))
    with Serving(data) as server:
        with peer(server) as one:
            one.claim("a")
        assert server.stop() == 0
    said = refused(capsys, "copy", data, redis.url)
    assert "an unfinished copy of an older state" in said
    assert f"to remove it, delete the keys {{lowwater:default}}:* in redis://127.0.0.1:{redis.port}" in said
    redis.execute("DEL", *redis.execute("KEYS", "{lowwater:default}:*"))
    run(capsys, "copy", data, redis.url)


async def contents(path: Path) -> dict[str, LoadedLog]:
    journal = SqliteJournal(path / "journal.sqlite")
    await journal.open()
    found = {log: await journal.load(log) for log in await journal.logs()}
    await journal.close()
    return found


def test_a_target_that_is_not_empty_is_left_alone(
    tmp_path: Path,
    redis: RedisServer,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = pipeline.data
    run(capsys, "copy", data, redis.url)
    with Serving(tmp_path / "other") as server:
        with peer(server) as one:
            one.register("a")
            one.claim("a")
        assert server.stop() == 0
    other = run(capsys, "show", tmp_path / "other")
    before = asyncio.run(contents(tmp_path / "other"))
    said = refused(capsys, "copy", redis.url, tmp_path / "other")
    assert f"is not empty: it holds 2 logs of the deployment {other['server_token']}" in said
    assert f"delete {tmp_path / 'other' / 'journal.sqlite'} with its -wal, -shm and .lock" in said
    assert asyncio.run(contents(tmp_path / "other")) == before
    with Serving(data) as server:
        with peer(server) as one:
            one.claim("a")
        server.kill()
    assert "3 logs of this deployment in another state" in refused(capsys, "copy", data, redis.url)


def test_a_damaged_source_is_refused_with_its_place(
    tmp_path: Path, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pipeline.data
    (damaged,) = [each for each in run(capsys, "show", data)["logs"] if each["log"] == "a"]
    with closing(sqlite3.connect(data / "journal.sqlite", isolation_level=None)) as connection:
        where = "WHERE log = (SELECT id FROM logs WHERE name = 'a') AND position = ?"
        (frame,) = connection.execute(f"SELECT frame FROM records {where}", (damaged["last"],)).fetchone()
        frame = frame[:-1] + bytes([frame[-1] ^ 1])
        connection.execute(f"UPDATE records SET frame = ? {where}", (frame, damaged["last"]))
    for command in (("copy", data, tmp_path / "target"), ("show", data)):
        said = refused(capsys, *command)
        assert f"{data}: log 'a' at position {damaged['last']} is damaged: the checksum differs" in said
    assert not (tmp_path / "target").exists()


def test_a_place_that_cannot_be_used_is_named_without_its_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOWHERE", f"redis://:{SECRET}@127.0.0.1:1")
    monkeypatch.setenv("MALFORMED", f"redis://:{SECRET}/@host")
    (tmp_path / "file").touch()
    empty = tmp_path / "empty"
    for source, said in (
        (str(empty), f"there is no journal in {empty}"),
        (str(tmp_path / "file"), "is a file: name its folder"),
        ("env:NOWHERE#x", "redis://127.0.0.1:1#x: "),
        ("env:LOWWATER_NOT_SET", "which is not set"),
        ("env:MALFORMED", "cannot be read"),
        ("env:NOWHERE#{}", "the name of a deployment is not empty and has no braces"),
        ("http://host", "begins with one of"),
    ):
        assert said in refused(capsys, "show", source)
        assert said in refused(capsys, "copy", source, tmp_path / "target")
    assert not empty.exists()
    assert not (tmp_path / "target").exists()
    assert "are both" in refused(capsys, "copy", empty, empty)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host",
        f"rediss://me:{SECRET}@host:6379/0#orders",
        f"redis+sentinel://me:{SECRET}#/?' \"@one,two/main",
        f"redis+cluster://:{SECRET}@@one:7000,two:7000",
    ],
)
def test_a_password_on_the_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    for command in (("show", url), ("copy", url, tmp_path / "target"), ("copy", tmp_path / "source", url)):
        said = refused(capsys, *command)
        assert "the URL of a store has a password in it" in said
        assert "env:VARIABLE#NAME" in said
    assert not list(tmp_path.iterdir())


def test_the_password_of_a_store_comes_from_the_environment(
    tmp_path: Path,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pipeline.data
    with RedisServer(tmp_path / "redis", *DURABLE, "--requirepass", SECRET) as server:
        server.start()
        monkeypatch.setenv("LOWWATER_STORE", f"redis://:{SECRET}@127.0.0.1:{server.port}")
        assert main(["journal", "copy", str(data), "env:LOWWATER_STORE#moved"]) == 0
        out, err = capsys.readouterr()
        assert "copied 3 logs, " in out
        assert f"to redis://127.0.0.1:{server.port}#moved, all compared" in out
        assert SECRET not in out + err
        assert main(["journal", "show", "env:LOWWATER_STORE#moved"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["deployment", "LOG", "(the", "a", "b"]
