"""Shards that know each other by a token: what one asks of another, and of all of them for the page."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

import lowwater
from lowwater import errors
from lowwater.v1 import cluster_pb2
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.process.accessing import PATIENCE, SOON, Rules, Tokens, Wire, bearer, rules_of, write
from tests.process.sharding import Shard, move

OLD, NEW = "o" * 43, "n" * 43

EVERYTHING: Rules = [("*", {"report": ["*"], "read": ["*"], "operate": ["*"]})]

TOKENS = Tokens()


@contextlib.contextmanager
def deployment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *peers: str
) -> Iterator[tuple[lowwater.Client, list[Shard]]]:
    """Shards over one Redis, each with its own idea of the tokens that they know each other by, and a client that may do everything."""
    path = folder / "access.toml"
    write(path, rules_of("admin", TOKENS["admin"], EVERYTHING, "page = true"))
    with RedisServer(folder / "redis", *DURABLE) as redis, contextlib.ExitStack() as running:
        redis.start()
        shards = []
        for number, tokens in enumerate(peers):
            monkeypatch.setenv("LOWWATER_PEER_TOKEN", tokens)
            shard = Shard(folder / f"shard-{number}", redis.url, "--access", str(path))
            shard.constants = SOON
            shard.page_at = "127.0.0.1:0"
            shards.append(running.enter_context(shard))
        addresses = ",".join(shard.address for shard in shards)
        with lowwater.connect(addresses, token=TOKENS["admin"], timeout=PATIENCE) as lw:
            eventually(lambda: len(lw.shards()) == len(shards))
            yield lw, shards


def spread(lw: lowwater.Client, one: Shard, two: Shard) -> None:
    lw.register("source")
    lw.register("reader", inputs=["source"])
    move(lw, one, "source")
    move(lw, two, "reader")
    lease = lw.worker("source").claim()
    lease.advance(None, oldest=None, frontier=5)
    lease.flush(timeout=PATIENCE)


def snapshot(shard: Shard, token: str) -> str:
    request = urllib.request.Request(f"{shard.page}api/snapshot", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return str(answer.read())


def shows(shard: Shard, *names: str) -> bool:
    text = snapshot(shard, TOKENS["admin"])
    return all(f'"{name}"' in text for name in names)


def test_shards_ask_each_other_while_their_token_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a claim of what was retired is compared with how far an input is, and the page shows all: both are asked of the other shard."""
    with deployment(tmp_path, monkeypatch, OLD, f"{OLD},{NEW}") as (lw, [one, two]):
        spread(lw, one, two)
        lw.retire("reader", b"", b"", force=True)
        lw.worker("reader").claim(bound=3)
        for shard in (one, two):
            eventually(partial(shows, shard, "source", "reader"))


def test_a_shard_with_another_token_is_told_apart_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deployment(tmp_path, monkeypatch, OLD, NEW) as (lw, [one, two]):
        spread(lw, one, two)
        lw.retire(
            "reader", b"", b"", force=True
        )  # only what was retired begins at its bound, which may not lead the inputs
        with lowwater.connect(two.address, token=TOKENS["admin"], timeout=3) as hasty:
            with pytest.raises(errors.Unavailable, match="LOWWATER_PEER_TOKEN must name the same token"):
                hasty.worker("reader").claim(bound=3)
            # A token of shards reads, and does nothing else.
            with lowwater.connect(two.address, token=NEW, timeout=PATIENCE) as peer:
                assert peer.get("reader")["reader"].registered
                for act in (
                    lambda: peer.reset("reader"),
                    lambda: peer.worker("reader").claim(),
                    lambda: peer.drain(one.address),
                ):
                    with pytest.raises(errors.PermissionDenied, match="peer"):
                        act()


def test_who_only_reads_does_not_move_a_computation_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard owns a computation anew when a client has seen a greater number of it. A worker has to claim again then."""
    with deployment(tmp_path, monkeypatch, OLD) as (lw, [one]), grpc.insecure_channel(one.address) as channel:
        lw.register("source")
        rules: Rules = [("", {"read": ["source"]})]
        path = tmp_path / "access.toml"
        write(path, path.read_text() + rules_of("reader", TOKENS["reader"], rules))
        wire = Wire(channel, one.address)
        eventually(lambda: wire.attempt("GetWatermarks", bearer(TOKENS["reader"]), "source") is None)

        def epoch(token: str, known_epoch: int) -> int:
            request = cluster_pb2.LocateRequest(computations=["source"], epochs=[known_epoch])
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
        losses = [line for line in lines if line["event"] == "store_lost_epochs"]
        assert [(loss["level"], loss["seen"], loss["epoch"]) for loss in losses] == [("warning", before + 1000, before)]
        assert epoch(TOKENS["admin"], before + 1000) > before + 1000
