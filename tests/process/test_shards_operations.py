"""An operator looks at shards, drains and pins by command; and a shard that cannot serve as it was asked to says why."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

import lowwater
from lowwater.cli import main
from lowwater.v1 import cluster_pb2, cluster_pb2_grpc
from tests.kit.eventually import eventually
from tests.process.sharding import Sharded, balanced, served, spread


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    with Sharded(tmp_path_factory.mktemp("operations"), 2) as one:
        names = balanced("c", 4, *one.shards)
        with one.connect() as lw:
            for name in names:
                lw.register(name)
            eventually(lambda: spread(lw, names, *one.shards))
        yield one


@pytest.fixture
def lw(deployment: Sharded) -> Iterator[lowwater.Client]:
    with deployment.connect() as client:
        yield client


class Commands:
    def __init__(self, addresses: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._addresses = addresses
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--address", self._addresses])
        output = self._capsys.readouterr()
        return code, output.out + output.err


@pytest.fixture
def command(deployment: Sharded, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(deployment.addresses, capsys)


def test_a_bad_question_where_computations_are(deployment: Sharded) -> None:
    with deployment.shards[0].channel() as channel:
        locate = cluster_pb2_grpc.ClusterServiceStub(channel).Locate
        for epochs, text in (([1], "epochs has 1 numbers"), ([1, 2**64 - 1], "epochs has a number that")):
            with pytest.raises(grpc.RpcError, match=text):
                locate(cluster_pb2.LocateRequest(computations=["a", "b"], epochs=epochs), timeout=10)


def test_a_drained_shard_serves_nothing_while_so(deployment: Sharded, command: Commands, lw: lowwater.Client) -> None:
    one, two = (shard.address for shard in deployment.shards)
    before = served(lw, deployment.shards[0])
    code, out = command("drain", one)
    assert (code, out.splitlines()[-1]) == (0, f"{one} serves nothing any more")
    code, out = command("shards", "--json")
    assert code == 0
    assert {shard["address"]: (shard["state"], shard["computations"]) for shard in json.loads(out)["shards"]} == {
        one: ("drained", []),
        two: ("serving", sorted(lw.topology().computations)),
    }
    code, out = command("shards")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == sorted([[one, "drained"], [two, "serving"]])

    code, out = command("drain", two, "--no-wait")
    assert code == 1
    assert out.startswith(f"{two} still serves ")
    assert "no other shard can take over" in out
    for place in (one, two):
        assert command("drain", place, "--cancel") == (0, f"{place} serves again, and takes back its computations\n")
    eventually(lambda: served(lw, deployment.shards[0]) == before)
    assert command("drain", "nowhere:1") == (
        2,
        f"lowwater drain: address 'nowhere:1' is no living shard's; name one of {', '.join(sorted((one, two)))}\n",
    )


def test_a_pin_outlives_the_shard(deployment: Sharded, command: Commands, lw: lowwater.Client) -> None:
    one, two = deployment.shards
    name = served(lw, one)[0]
    assert command("pin", name, two.address) == (0, f"{name} is pinned to {two.address}\n")
    eventually(lambda: name in served(lw, two))
    with lw.worker(name) as worker:
        lease = worker.claim()
        two.kill()
        eventually(lambda: name in served(lw, one))
        assert f"{name} is pinned to {two.address}, which is away" in command("shards")[1]
        two.start()
        eventually(lambda: name in served(lw, two))
        lease.advance(None, oldest=None, frontier=1)
        lease.flush(30)
    assert command("pin", name, "--off") == (0, f"{name} is not pinned\n")
    eventually(lambda: name in served(lw, one))
    assert command("pin", name, "nowhere:1")[0] == 2
    code, out = command("pin", "nothing", one.address)
    assert (code, "there is no computation 'nothing'" in out) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--advertise", ""], 2, "--store needs --advertise HOST:PORT"),
        (["--store", "postgres://here"], 2, "--store: the URL of a store begins with one of redis://, rediss://, "),
        (["--store", "rediss://here?ssl_keyfile=k&ssl_pass%77ord=a/b"], 2, "--store has a password in it"),
        (["--store", "redis://127.0.0.1:1"], 2, "127.0.0.1:1: Error 111"),
        (["--dead-after", "nan"], 2, "--dead-after: 'nan' is not from 0.2 to 600 seconds"),
    ],
)
def test_bad_starts_say_the_fix(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve", "--http", "off", "--listen", "127.0.0.1:0", "--store", "redis://127.0.0.1:1"]
    try:
        status = main([*command, "--advertise", "127.0.0.1:2", *arguments])
        error = capsys.readouterr().err
    except SystemExit as ended:
        status, error = int(ended.code or 0), capsys.readouterr().err
    assert (status, says in error) == (code, True), error
    assert "a/b" not in error
