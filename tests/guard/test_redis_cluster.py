"""Guarded writes into a Redis Cluster: all keys of a guard stand on one node, and when they move to another, its life is another."""

from __future__ import annotations

import pytest
import redis

from lowwater_pipeline.guard import Fenced, StoreReplaced
from lowwater_pipeline.guard.redis import RedisGuard
from tests.contract.redis_server import RedisServer
from tests.guard.stores import claim
from tests.process.test_redis_replicas import cluster, move

__all__ = ["cluster"]


def test_a_guard_in_a_cluster_fences_and_its_keys_may_move(cluster: tuple[RedisServer, RedisServer]) -> None:
    one, two = cluster
    with redis.RedisCluster("127.0.0.1", two.port, decode_responses=True) as client:
        guard, key = RedisGuard(client, "hourly", slots=4), "counts:{hourly}"
        zombie = guard.raise_(claim(5))
        assert zombie.write(0, "a", [("HSET", key, "09:00", 1)])
        successor = guard.raise_(claim(6))
        with pytest.raises(Fenced):
            zombie.write(1, "b", [("HSET", key, "10:00", 2)])
        assert successor.write(1, "b", [("HSET", key, "10:00", 2)])
        move(guard.tag, one, two)
        # What the first node has written last may be lost with it: whoever writes on has to look first.
        with pytest.raises(StoreReplaced):
            successor.write(2, "c", [("HSET", key, "11:00", 3)])
        again = guard.raise_(claim(7))
        assert not again.write(1, "b", [("HSET", key, "10:00", 2)]), "it is there"
        assert again.write(2, "c", [("HSET", key, "11:00", 3)])
        assert client.hgetall(key) == {"09:00": "1", "10:00": "2", "11:00": "3"}
        with pytest.raises(Fenced):
            successor.write(3, "d", [("HSET", key, "12:00", 4)])
