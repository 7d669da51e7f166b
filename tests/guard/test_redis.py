"""Guarded writes into a real Redis: scripts that arrive late, answers that are lost, servers that start anew, and what a script cannot undo."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lowwater_pipeline.guard import Fenced, GuardError, InDoubt, Rewound, StoreReplaced, Unfit
from lowwater_pipeline.guard import redis as guarded
from lowwater_pipeline.guard.redis import RedisGuard, RedisWriter
from tests.contract.redis_server import RedisServer
from tests.guard.stores import GuardedRedis, claim
from tests.kit.eventually import eventually
from tests.process.store_proxy import StoreProxy

LARGE = 2**63


@pytest.fixture
def wire(redis_server: RedisServer) -> Iterator[StoreProxy]:
    with StoreProxy(redis_server.port) as proxy:
        yield proxy


def over(wire: StoreProxy, store: GuardedRedis, token: int) -> RedisWriter:
    client = redis.Redis.from_url(wire.url, retry=Retry(NoBackoff(), 0))
    return store.guard(client=client).raise_(claim(token))


@contextmanager
def on_the_wire(
    wire: StoreProxy, store: GuardedRedis, writer: RedisWriter, batch: int, value: int
) -> Iterator[Future[bool]]:
    with ThreadPoolExecutor(1) as pool:
        wire.swallow()
        try:
            sent = pool.submit(store.write, writer, batch, f"digest of {value}", [value])
            eventually(lambda: wire.holds)
            yield sent
        finally:
            wire.heal()


def test_figure_12_a_late_script_of_a_zombie_never_lands_after_a_scan(in_redis: GuardedRedis, wire: StoreProxy) -> None:
    zombie = over(wire, in_redis, 5)
    assert in_redis.write(zombie, 0, "a", [1])
    with on_the_wire(wire, in_redis, zombie, 1, 2) as delayed:
        successor = in_redis.raise_(claim(6))
        scanned = in_redis.values()
    with pytest.raises(Fenced):
        delayed.result()
    assert in_redis.values() == scanned == [1]
    assert in_redis.write(successor, 1, "c", [3])
    assert in_redis.values() == [1, 3]


def test_a_script_that_arrives_late_is_found_by_who_repeats_the_write(in_redis: GuardedRedis, wire: StoreProxy) -> None:
    writer = over(wire, in_redis, 5)
    with on_the_wire(wire, in_redis, writer, 0, 1) as late:
        assert isinstance(writer.guard.client, redis.Redis)
        writer.guard.client.connection_pool.disconnect()
        with pytest.raises(InDoubt, match="it is done once"):
            late.result()
        assert in_redis.values() == []
    eventually(lambda: in_redis.values() == [1])
    assert not in_redis.write(writer, 0, "digest of 1", [1])
    assert in_redis.values() == [1]


def test_two_tokens_that_are_equal_as_doubles_are_two(in_redis: GuardedRedis) -> None:
    zombie = in_redis.raise_(claim(LARGE + 1, "one nonce"))
    in_redis.raise_(claim(LARGE + 2, "one nonce"))
    with pytest.raises(Fenced):
        in_redis.write(zombie, 0, "a", [1])
    assert in_redis.values() == []


HASH, TEXT = "hash:{hourly}", "text:{hourly}"


@pytest.mark.parametrize(
    "commands",
    [[("SET", TEXT, "new"), ("RPUSH", HASH, "a")], [("RPUSH", "new:{hourly}", "a"), ("SADD", "new:{hourly}", "a")]],
)
def test_a_key_of_another_type_writes_nothing(in_redis: GuardedRedis, commands: Sequence[guarded.Command]) -> None:
    in_redis.client.hset(HASH, "a", "1")
    in_redis.client.set(TEXT, "old")
    writer = in_redis.raise_(claim(5))
    with pytest.raises(Unfit, match="nothing was written"):
        writer.write(0, "a", commands)
    assert in_redis.client.get(TEXT) == "old"
    assert in_redis.client.hgetall(HASH) == {"a": "1"}
    assert in_redis.client.exists("new:{hourly}") == 0
    assert writer.write(0, "b", [("SET", TEXT, "new"), ("DEL", HASH), ("RPUSH", HASH, "a")])


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("INCR", "n:{hourly}"), "cannot be written under a guard"),
        (("SET", "n:{daily}", "1"), "has not {hourly} in it"),
        (("SET", "lowwater:guard:{hourly}:0", "1"), "a guard's own"),
        (("SET", "n:{hourly}", "1", "EX", "10"), "one value"),
        (("DEL", "n:{hourly}", "m:{hourly}"), "nothing else"),
        (("ZADD", "n:{hourly}", float("nan"), "member"), "finite number"),
        (("RPUSH", "n:{hourly}", *range(5_000)), "at most 4,000"),
    ],
)
def test_what_could_fail_half_way_writes_nothing(in_redis: GuardedRedis, command: guarded.Command, text: str) -> None:
    writer = in_redis.raise_(claim(5))
    with pytest.raises(Unfit, match=text):
        writer.write(0, "a", [("SET", TEXT, "new"), command])
    assert in_redis.client.get(TEXT) is None
    row = in_redis.rows()[0]
    assert row is not None
    assert row.batch == -1


def test_every_command_is_written_in_order(in_redis: GuardedRedis) -> None:
    writer = in_redis.raise_(claim(5))
    commands: list[guarded.Command] = [
        ("SET", "a:{hourly}", b"\xff\x00"),
        ("HSET", "b:{hourly}", "x", 1, "y", 2.5),
        ("HDEL", "b:{hourly}", "x"),
        ("SADD", "c:{hourly}", 1, 2),
        ("SREM", "c:{hourly}", 2),
        ("RPUSH", "d:{hourly}", 1, 2),
        ("LPUSH", "d:{hourly}", 0),
        ("ZADD", "e:{hourly}", 1.5, "m", 2, "n"),
        ("ZREM", "e:{hourly}", "m"),
        ("SET", "f:{hourly}", "1"),
        ("DEL", "f:{hourly}"),
    ]
    assert writer.write(0, "a", commands)
    with redis.Redis(port=in_redis.server.port) as raw:
        assert raw.get("a:{hourly}") == b"\xff\x00"
        assert raw.hgetall("b:{hourly}") == {b"y": b"2.5"}
        assert raw.smembers("c:{hourly}") == {b"1"}
        assert raw.lrange("d:{hourly}", 0, -1) == [b"0", b"1", b"2"]
        assert raw.zrange("e:{hourly}", 0, -1, withscores=True) == [(b"n", 2.0)]
        assert raw.exists("f:{hourly}") == 0
        # A client that does not decode reads the same guard.
        assert RedisGuard(raw, "hourly").rows() == in_redis.rows()
        assert not RedisGuard(raw, "hourly").raise_(claim(5)).write(0, "a", commands)


def test_a_redis_that_is_full_takes_all_or_nothing(in_redis: GuardedRedis) -> None:
    writer = in_redis.raise_(claim(5))
    in_redis.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.OutOfMemoryError):
            writer.write(0, "a", [("RPUSH", "d:{hourly}", 1), ("RPUSH", "d:{hourly}", 2)])
        assert in_redis.client.lrange("d:{hourly}", 0, -1) == []
        # What begins by taking away is allowed when there is no room, and so is then all the rest of it.
        assert writer.write(0, "a", [("DEL", TEXT), ("RPUSH", "d:{hourly}", 1), ("RPUSH", "d:{hourly}", 2)])
        assert in_redis.client.lrange("d:{hourly}", 0, -1) == ["1", "2"]
    finally:
        in_redis.client.config_set("maxmemory", "0")


@pytest.mark.parametrize(("policy", "most", "refused"), [("allkeys-lru", "1gb", True), ("allkeys-lru", "0", False)])
def test_redis_that_may_evict_a_guard_is_refused(in_redis: GuardedRedis, policy: str, most: str, refused: bool) -> None:
    in_redis.client.config_set("maxmemory", most)
    in_redis.client.config_set("maxmemory-policy", policy)
    try:
        if refused:
            with pytest.raises(Unfit, match=f"evict it at any time, by maxmemory-policy {policy}"):
                in_redis.raise_(claim(5))
            assert in_redis.client.keys() == []
        else:
            assert in_redis.write(in_redis.raise_(claim(5)), 0, "a", [1])
    finally:
        in_redis.client.config_set("maxmemory-policy", "noeviction")
        in_redis.client.config_set("maxmemory", "0")


def test_a_user_who_may_not_write_one_of_the_rows_writes_nothing(in_redis: GuardedRedis) -> None:
    name = f"user{os.urandom(4).hex()}"
    both = in_redis.raise_(claim(5), slots=2)
    # It may run scripts on both, and HSET on the first one only.
    rules = ["~*", "+@all", "-hset", f"(+hset ~{both.guard.key(0)})"]
    in_redis.client.execute_command("ACL", "SETUSER", name, "on", "nopass", *rules)
    with redis.Redis(port=in_redis.server.port, username=name, password="any") as client:
        writer = RedisWriter(in_redis.guard(slots=2, client=client), claim(5), range(2), {})
        with pytest.raises(Unfit, match="may not HSET"):
            writer.write(0, "a", [("RPUSH", "d:{hourly}", 1)])
    in_redis.client.acl_deluser(name)
    assert in_redis.client.lrange("d:{hourly}", 0, -1) == []
    assert in_redis.write(both, 0, "a", [1])


def test_a_server_that_was_started_anew_is_another_life(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        store = GuardedRedis(server.start())
        writer = store.raise_(claim(5))
        assert store.write(writer, 0, "a", [1])
        server.kill()
        with pytest.raises(InDoubt):
            store.write(writer, 1, "b", [2])
        server.start()
        with pytest.raises(StoreReplaced):
            store.write(writer, 1, "b", [2])
        newer = store.raise_(claim(6))
        assert not store.write(newer, 0, "a", [1])
        assert store.write(newer, 1, "b", [2])
        assert store.values() == [1, 2]
        store.close()


def test_a_server_that_comes_back_with_less_is_seen(tmp_path: Path) -> None:
    """The raise of the successor is lost, too: nobody may write by what stands there."""
    with RedisServer(tmp_path) as server:
        store = GuardedRedis(server.start())
        zombie = store.raise_(claim(5))
        assert store.write(zombie, 0, "a", [1])
        store.client.save()
        successor = store.raise_(claim(6))
        assert store.write(successor, 1, "b", [2])
        server.kill()
        server.start()
        outcomes = []
        for writer in (zombie, successor):
            with pytest.raises(GuardError) as refused:
                store.write(writer, 1, "c", [3])
            outcomes.append(type(refused.value).__name__)
        assert outcomes == ["StoreReplaced", "NotRaised"]
        newer = store.raise_(claim(7))
        with pytest.raises(Rewound, match="lost its tail"):
            store.write(newer, 2, "d", [4])
        assert store.values() == [1]
        store.close()


@pytest.mark.parametrize("damage", ["no hash", "a number that is none"])
def test_a_guard_of_redis_that_is_damaged_says_how(in_redis: GuardedRedis, damage: str) -> None:
    writer, neighbour = in_redis.raise_(claim(5)), in_redis.raise_(claim(5), guard="daily")
    if damage == "no hash":
        in_redis.client.set(in_redis.guard().key(0), "text")
    else:
        in_redis.forge("token", "0")  # less than every other, as a text
    for refused in (lambda: in_redis.write(writer, 0, "a", [1]), lambda: in_redis.raise_(claim(6))):
        with pytest.raises(GuardError, match="cannot be read"):
            refused()
    assert in_redis.write(neighbour, 0, "a", [2])
